"""What each pattern of code declares, and what only looks like one."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model import Basis, Kind, Margin
from gpuwatch.units import GIB, MIB
from tests.support.scanning import CUPY, LIKELY, TF, TORCH, only, read

# ---------------------------------------------------------------------------------------------------------------------
# Candidates

FRACTION = {"framework": "tensorflow", "kind": Kind.CAP, "basis": Basis.TOTAL, "device": None}
TORCH_CAP = {"framework": "torch", "kind": Kind.CAP, "basis": Basis.TOTAL}
LOGICAL = {"framework": "tensorflow", "kind": Kind.CAP, "basis": Basis.BYTES, "channel": "memory_limit"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # TensorFlow 1
        ("c.gpu_options.per_process_gpu_memory_fraction = 0.4", FRACTION | {"value": 0.4}),
        ("self.c.gpu_options.per_process_gpu_memory_fraction = .5", FRACTION | {"value": 0.5}),
        ("cs[0].gpu_options.per_process_gpu_memory_fraction = .5", FRACTION | {"value": 0.5}),
        ("tf.GPUOptions(allocator_type='BFC', per_process_gpu_memory_fraction=.5)", FRACTION | {"value": 0.5}),
        ("o = c.gpu_options\no.per_process_gpu_memory_fraction = 0.4", FRACTION | {"value": 0.4}),
        ("import tensorflow\no = tensorflow.GPUOptions()\no.per_process_gpu_memory_fraction = 0.4", {"value": 0.4}),
        ("tf.GPUOptions(per_process_gpu_memory_fraction=0.4)", FRACTION | {"value": 0.4}),
        ("tf.compat.v1.GPUOptions(per_process_gpu_memory_fraction=0.4)", FRACTION | {"value": 0.4}),
        ("from tensorflow import GPUOptions as G\nG(per_process_gpu_memory_fraction=1/3)", FRACTION | {"value": 1 / 3}),
        ("import tensorflow.compat.v1 as tf1\ntf1.GPUOptions(per_process_gpu_memory_fraction=.1)", {"value": 0.1}),
        ("from tensorflow import *\nGPUOptions(per_process_gpu_memory_fraction=.1)", FRACTION | {"value": 0.1}),
        ("o = {'per_process_gpu_memory_fraction': 0.2}\ntf.GPUOptions(**o)", FRACTION | {"value": 0.2}),
        ("o = dict(per_process_gpu_memory_fraction=0.2)\ntf.GPUOptions(**o)", FRACTION | {"value": 0.2}),
        ("c.gpu_options.per_process_gpu_memory_fraction = 1.4", {"value": 1.4, "void": ""}),
        ("c.gpu_options.per_process_gpu_memory_fraction = 0", {"void": "0 leaves it to TensorFlow"}),
        ("c.gpu_options.per_process_gpu_memory_fraction = -1", {"void": "-1 is less than 0", "value": None}),
        ("c.gpu_options.per_process_gpu_memory_fraction = '0.4'", {"void": "'0.4' is no number", "value": None}),
        ("c.gpu_options.per_process_gpu_memory_fraction = args.frac", FRACTION | {"dynamic": True, "value": None}),
        ("c.gpu_options.per_process_gpu_memory_fraction *= 0.5", FRACTION | {"dynamic": True, "value": None}),
        ("c.gpu_options.allow_growth = True", {"kind": Kind.GROWTH, "channel": "allow_growth", "value": None}),
        ("c.gpu_options.allow_growth = args.growth", {"kind": Kind.GROWTH, "dynamic": True}),
        ("tf.GPUOptions(allow_growth=True)", {"kind": Kind.GROWTH, "framework": "tensorflow"}),
        # TensorFlow 2
        (TF + "tf.config.experimental.set_memory_growth(gpus[1], True)", {"kind": Kind.GROWTH, "device": 1}),
        (
            TF + "[tf.config.experimental.set_memory_growth(g, True) for g in gpus]",
            {"kind": Kind.GROWTH, "device": None},
        ),
        (TF + "tf.config.set_memory_growth(device=gpus[0], enable=args.g)", {"dynamic": True, "device": 0}),
        (
            TF + "tf.config.set_logical_device_configuration(gpus[1], [tf.config.LogicalDeviceConfiguration(1024)])",
            LOGICAL | {"value": 1024 * MIB, "device": 1},
        ),
        (
            TF + "c = tf.config\nv = [c.experimental.VirtualDeviceConfiguration(memory_limit=1024 * 4)]\n"
            "tf.config.experimental.set_virtual_device_configuration(gpus[0], v)",
            LOGICAL | {"value": 4 * GIB, "device": 0},
        ),
        (
            TF + "for g in gpus:\n  tf.config.set_logical_device_configuration(g, "
            "(tf.config.LogicalDeviceConfiguration(memory_limit=M),))",
            LOGICAL | {"value": None, "dynamic": True, "device": None, "confidence": LIKELY},
        ),
        (
            TF + "tf.config.set_logical_device_configuration(gpus[i], [tf.config.LogicalDeviceConfiguration(512)])",
            LOGICAL | {"value": 512 * MIB, "device": None, "confidence": LIKELY},
        ),
        (TF + "tf.config.set_logical_device_configuration(gpus[0], plan())", LOGICAL | {"dynamic": True, "device": 0}),
        # PyTorch
        (TORCH + "torch.cuda.set_per_process_memory_fraction(0.5)", TORCH_CAP | {"value": 0.5, "device": 0}),
        (TORCH + "torch.cuda.set_per_process_memory_fraction(0.5, 1)", TORCH_CAP | {"value": 0.5, "device": 1}),
        (TORCH + "torch.cuda.memory.set_per_process_memory_fraction(0.5, 'cuda:3')", {"device": 3}),
        (TORCH + "torch.cuda.set_per_process_memory_fraction(0.5, torch.device('cuda:2'))", {"device": 2}),
        (TORCH + "torch.cuda.set_per_process_memory_fraction(0.5, device=torch.device('cuda', 2))", {"device": 2}),
        (TORCH + "d = torch.device('cuda:1')\ntorch.cuda.set_per_process_memory_fraction(0.5, d)", {"device": 1}),
        (TORCH + "torch.cuda.set_per_process_memory_fraction(0.5, 'cuda')", {"device": 0, "confidence": LIKELY}),
        (TORCH + "torch.cuda.set_per_process_memory_fraction(0.5, rank)", {"device": None, "confidence": LIKELY}),
        (TORCH + "torch.cuda.set_per_process_memory_fraction(0.5, 'cpu')", {"device": None, "confidence": LIKELY}),
        (TORCH + "torch.cuda.set_per_process_memory_fraction(0.5, 900)", {"device": None, "confidence": LIKELY}),
        (
            TORCH + "for i in range(1, torch.cuda.device_count()):\n"
            "  torch.cuda.set_per_process_memory_fraction(0.5, i)",
            {"device": None, "some_gpu": True, "confidence": LIKELY},
        ),
        (TORCH + "torch.cuda.set_device(2)\ntorch.cuda.set_per_process_memory_fraction(.5)", {"device": 2}),
        (TORCH + "torch.cuda.set_device(rank)\ntorch.cuda.set_per_process_memory_fraction(.5)", {"device": None}),
        (TORCH + "with torch.cuda.device(1):\n  torch.cuda.set_per_process_memory_fraction(.5)", {"device": 1}),
        (TORCH + "with torch.cuda.device():\n  torch.cuda.set_per_process_memory_fraction(.5)", {"confidence": LIKELY}),
        ("from torch.cuda import set_per_process_memory_fraction as f\nf(0.5, 1)", TORCH_CAP | {"device": 1}),
        ("from torch import cuda\ncuda.set_per_process_memory_fraction(fraction=0.5)", TORCH_CAP | {"value": 0.5}),
        (TORCH + "torch.cuda.set_per_process_memory_fraction(1.5)", {"void": "1.5 is outside 0 to 1", "value": None}),
        (TORCH + "torch.cuda.set_per_process_memory_fraction(a.f, 1)", {"dynamic": True, "device": 1, "void": ""}),
        # CuPy
        (
            CUPY + "cp.get_default_memory_pool().set_limit(size=4 * 1024**3)",
            {"framework": "cupy", "kind": Kind.CAP, "basis": Basis.BYTES, "value": 4 * GIB, "device": 0},
        ),
        (CUPY + "p = cp.get_default_memory_pool()\np.set_limit(fraction=0.5)", {"basis": Basis.TOTAL, "value": 0.5}),
        (CUPY + "p = cp.get_default_memory_pool()\nwith cp.cuda.Device(1):\n  p.set_limit(1 << 30)", {"device": 1}),
        (CUPY + "cp.cuda.Device(1).use()\ncp.get_default_memory_pool().set_limit(5)", {"device": 1}),
        (CUPY + "cp.cuda.runtime.setDevice(3)\ncp.get_default_memory_pool().set_limit(5)", {"device": 3}),
        (CUPY + "p = cp.cuda.MemoryPool()\np.set_limit(size=5)", {"value": 5, "kind": Kind.CAP}),
        (CUPY + "cp.cuda.MemoryAsyncPool().set_limit(size=5)", {"value": 5, "kind": Kind.START}),
        (CUPY + "cp.get_default_memory_pool().set_limit(size=0)", {"void": "", "lifts": True}),
        (CUPY + "cp.get_default_memory_pool().set_limit(fraction=1.2)", {"void": "1.2 is outside 0 to 1"}),
        # ONNX Runtime
        (
            "import onnxruntime\np = [('CUDAExecutionProvider', {'device_id': 1, 'gpu_mem_limit': 2 * 1024**3})]",
            {"framework": "onnxruntime", "kind": Kind.CAP, "basis": Basis.BYTES, "value": 2 * GIB, "device": 1},
        ),
        ("o = {'gpu_mem_limit': '1073741824'}", {"value": GIB, "device": 0, "basis": Basis.BYTES}),
        ("o = dict(gpu_mem_limit=GIB, device_id=args.gpu)", {"dynamic": True, "device": None, "confidence": LIKELY}),
        # RMM
        (
            "import rmm\nrmm.reinitialize(pool_allocator=True, initial_pool_size=2**30)",
            {"framework": "rmm", "kind": Kind.START, "basis": Basis.BYTES, "value": GIB, "device": 0},
        ),
        ("import rmm\nrmm.reinitialize(True, False, None, 2**30, 1)", {"kind": Kind.CAP, "value": GIB, "device": 1}),
        ("import rmm\nrmm.reinitialize(True, maximum_pool_size='2 GiB')", {"kind": Kind.CAP, "value": 2 * GIB}),
        ("import rmm\nrmm.reinitialize(True, maximum_pool_size='2GB')", {"value": 2e9}),
        (
            "import rmm\nrmm.reinitialize(True, maximum_pool_size=5, devices=gpus)",
            {"device": None, "confidence": LIKELY},
        ),
        (
            "import rmm\nrmm.reinitialize(maximum_pool_size=5)",
            {"void": "ignored without pool_allocator=True", "kind": Kind.CAP},
        ),
        (
            "import rmm\nup = rmm.mr.CudaMemoryResource()\nrmm.mr.PoolMemoryResource(up, maximum_pool_size=2**30)",
            {"kind": Kind.CAP, "value": GIB, "device": 0, "channel": "maximum_pool_size"},
        ),
        # Servers
        (
            "from vllm import LLM\nLLM(model='m', gpu_memory_utilization=0.4)",
            {"framework": "vllm", "kind": Kind.CAP, "basis": Basis.TOTAL, "value": 0.4, "margin": Margin.BUDGET},
        ),
        ("import vllm\nvllm.AsyncEngineArgs(gpu_memory_utilization=0.4)", {"framework": "vllm", "value": 0.4}),
        ("from vllm import LLM as Model\nModel('m', gpu_memory_utilization=f)", {"framework": "vllm", "dynamic": True}),
        (
            "import sglang as sgl\nsgl.Engine(model_path='m', mem_fraction_static=0.8)",
            {"framework": "sglang", "kind": Kind.CACHE, "basis": Basis.FREE_AT_START, "value": 0.8},
        ),
        (
            "from tensorrt_llm.llmapi import KvCacheConfig\nKvCacheConfig(free_gpu_memory_fraction=0.85)",
            {"framework": "tensorrt-llm", "kind": Kind.CACHE, "basis": Basis.FREE_AFTER_LOAD, "value": 0.85},
        ),
        (
            "from lmdeploy import TurbomindEngineConfig\nTurbomindEngineConfig(cache_max_entry_count=0.2)",
            {"framework": "lmdeploy", "kind": Kind.CACHE, "basis": Basis.FREE_AFTER_LOAD, "value": 0.2},
        ),
        (
            "from lmdeploy import TurbomindEngineConfig\nTurbomindEngineConfig(cache_max_entry_count=400)",
            {"kind": Kind.CACHE, "basis": Basis.NONE, "value": None, "void": ""},
        ),
    ],
)
def test_each_pattern_makes_one_candidate(source: str, expected: dict[str, Any]) -> None:
    candidate = only(source)
    assert {name: getattr(candidate, name) for name in expected} == expected


@pytest.mark.parametrize(
    "source",
    [
        "c.gpu_options.allow_growth = False",
        "config.allow_growth = True",
        "self.per_process_gpu_memory_fraction = 0.4",
        "GPUOptions = dict\nGPUOptions(per_process_gpu_memory_fraction=0.4)",
        TF + "tf.config.set_memory_growth(gpus[0], False)",
        TF + "tf.config.set_memory_growth(gpus[0])",
        TF + "tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration()])",
        TF + "tf.config.set_logical_device_configuration(gpus[0])",
        "import tensorflow as tf\ncpus = tf.config.list_physical_devices('CPU')\n"
        "tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration(5)])",
        TORCH + "torch.cuda.set_per_process_memory_fraction()",
        TORCH + "torch.mps.set_per_process_memory_fraction(0.5)",
        CUPY + "cp.get_default_pinned_memory_pool().set_limit(size=5)",
        CUPY + "cp.get_default_memory_pool().set_limit()",
        "import resource\nresource.set_limit(5)",
        "import rmm\nrmm.reinitialize(pool_allocator=True, maximum_pool_size=None)",
        "db.reinitialize(maximum_pool_size=5)",
        "db.PoolMemoryResource(x, maximum_pool_size=5)",
        "class LLM: pass\nLLM(gpu_memory_utilization=0.4)",
        "from vllm import LLM\nLLM('m', gpu_memory_utilization=None)",
        "from vllm import LLM\nLLM('m', **gpu_memory_utilization)",
        "settings.lib.cnmem = 0.3",
        "jax.config.update('jax_enable_x64', True)  # local_device_ids",
        "app.initialize(local_device_ids)",
        "import cupy\ncupy" + ".get_default_memory_pool()" * 20 + ".set_limit(5)",
        TORCH + "torch.cuda.set_per_process_memory_fraction(*args)",
        "o = {" + "".join(f"'k{n}': 1, " for n in range(300)) + "'gpu_mem_limit': 5}",
    ],
)
def test_what_looks_like_a_pattern_makes_no_candidate(source: str) -> None:
    found = read(source)
    assert (found.candidates, found.selections, found.hints) == ((), (), ())


def test_a_variable_of_two_loops_over_the_same_gpus_means_each_of_them() -> None:
    found = read(
        """
        for g in gpus:
            tf.config.set_memory_growth(g, True)
        for g in gpus:
            tf.config.set_logical_device_configuration(g, [tf.config.LogicalDeviceConfiguration(512)])
        """,
        TF,
    )
    assert [(candidate.device, candidate.confidence) for candidate in found.candidates] == [
        (None, LIKELY),
        (None, LIKELY),
    ]


def test_the_limits_of_one_call_add_up_and_those_of_two_do_not() -> None:
    def adds(*configurations: str) -> list[tuple[str, float | None, int | str | None]]:
        calls = (f"tf.config.set_logical_device_configuration({one})\n" for one in configurations)
        found = read("".join(calls), TF + "L = tf.config.LogicalDeviceConfiguration\n")
        return [(candidate.adds, candidate.value, candidate.device) for candidate in found.candidates]

    two = adds("gpus[0], [L(512), L(memory_limit=1024)]")
    assert [value for _, value, _ in two] == [512 * MIB, 1024 * MIB]
    assert two[0][0] == two[1][0]
    first, second = adds("gpus[0], [L(512)]", "gpus[1], [L(512)]")
    assert first[0] != second[0]
    assert first[2] == 0
    assert second[2] == 1
    assert adds("gpus[0], [L(512)] * 2")[0][1] is None
    assert adds("gpus[0], [L(512) for _ in range(2)]")[0][1] is None
    assert adds("gpus[0], [L(512), other]")[0][1] is None


def test_pools_on_several_gpus_have_a_candidate_each() -> None:
    found = read("import rmm\nrmm.reinitialize(True, initial_pool_size=1, maximum_pool_size=2, devices=[0, 2])")
    assert [(candidate.kind, candidate.value, candidate.device) for candidate in found.candidates] == [
        (Kind.START, 1, 0),
        (Kind.START, 1, 2),
        (Kind.CAP, 2, 0),
        (Kind.CAP, 2, 2),
    ]


@pytest.mark.parametrize("size", ["'much'", "'-1'"])
def test_a_size_that_its_reader_would_refuse_is_void(size: str) -> None:
    for source in (f"o = {{'gpu_mem_limit': {size}}}", f"import rmm\nrmm.reinitialize(True, maximum_pool_size={size})"):
        candidate = only(source)
        assert candidate.void
        assert (candidate.value, candidate.dynamic) == (None, False)


def test_a_cache_in_bytes_takes_the_place_of_vllms_budget() -> None:
    found = read("from vllm import LLM\nLLM('m', gpu_memory_utilization=0.4, kv_cache_memory_bytes=8 * 2**30)")
    budget, cache = found.candidates
    assert (budget.value, budget.void) == (0.4, "kv_cache_memory_bytes takes its place")
    assert (cache.kind, cache.basis, cache.value, cache.void) == (Kind.CACHE, Basis.BYTES, 8 * GIB, "")


def test_memory_limits_come_before_the_fraction() -> None:
    found = read(
        """
        c.gpu_options.per_process_gpu_memory_fraction = 0.4
        tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration(512)])
        """,
        TF,
    )
    fraction, limit = found.candidates
    assert limit.rank > fraction.rank > 0


# ---------------------------------------------------------------------------------------------------------------------
# Selections


@pytest.mark.parametrize(
    ("source", "channel", "ordinals"),
    [
        ("c.gpu_options.visible_device_list = '1,2'", "visible_device_list", (1, 2)),
        ("tf.GPUOptions(visible_device_list='0')", "visible_device_list", (0,)),
        ("c.gpu_options.visible_device_list = str(hvd.local_rank())", "visible_device_list", None),
        ("c.gpu_options.visible_device_list = 'all of them'", "visible_device_list", None),
        ("tf.config.set_visible_devices(gpus[1], 'GPU')", "set_visible_devices", (1,)),
        ("tf.config.set_visible_devices(gpus[0:2], 'GPU')", "set_visible_devices", (0, 1)),
        ("tf.config.set_visible_devices(gpus[:4], device_type='GPU')", "set_visible_devices", (0, 1, 2, 3)),
        ("tf.config.set_visible_devices(gpus[:4:2], 'GPU')", "set_visible_devices", None),
        ("tf.config.set_visible_devices([gpus[0], gpus[2]], 'GPU')", "set_visible_devices", (0, 2)),
        ("mine = (gpus[0], gpus[2])\ntf.config.set_visible_devices(mine[1:], 'GPU')", "set_visible_devices", (2,)),
        ("mine = [gpus[0], gpus[2]]\ntf.config.set_visible_devices(mine[-1])", "set_visible_devices", (2,)),
        ("tf.config.experimental.set_visible_devices([], 'GPU')", "set_visible_devices", ()),
        ("tf.config.set_visible_devices(gpus[1:], 'GPU')", "set_visible_devices", None),
        ("tf.config.set_visible_devices(gpus[-1], 'GPU')", "set_visible_devices", None),
        ("tf.config.set_visible_devices(gpus[a:b], 'GPU')", "set_visible_devices", None),
        ("tf.config.set_visible_devices(gpus[-2:3], 'GPU')", "set_visible_devices", None),
        ("tf.config.set_visible_devices(gpus[::0], 'GPU')", "set_visible_devices", None),
        ("tf.config.set_visible_devices(gpus[args.gpu], 'GPU')", "set_visible_devices", None),
        ("tf.config.set_visible_devices([gpus[0], other], 'GPU')", "set_visible_devices", None),
        ("tf.config.set_visible_devices([gpus[5], gpus[0]][0:1], 'GPU')", "set_visible_devices", (5,)),
        ("tf.config.set_visible_devices(pick()[0:1], 'GPU')", "set_visible_devices", None),
        ("a = b\nb = a\ntf.config.set_visible_devices(a, 'GPU')", "set_visible_devices", None),
        ("a = [[[[gpus[0]]]]]\ntf.config.set_visible_devices(a, 'GPU')", "set_visible_devices", None),
        ("tf.config.set_visible_devices([gpus[:64], gpus[:2]], 'GPU')", "set_visible_devices", None),
        ("tf.config.set_visible_devices(tf.config.list_physical_devices()[1], 'GPU')", "set_visible_devices", None),
        ("import jax\njax.config.update('jax_cuda_visible_devices', '0,1')", "jax_cuda_visible_devices", (0, 1)),
        ("from jax import config\nconfig.jax_cuda_visible_devices = '3'", "jax_cuda_visible_devices", (3,)),
        ("import jax\njax.config.update('jax_cuda_visible_devices', ids)", "jax_cuda_visible_devices", None),
        ("import jax\njax.distributed.initialize(local_device_ids=[2, 3])", "local_device_ids", (2, 3)),
        ("import jax\njax.distributed.initialize('h:1', 2, 0, 1)", "local_device_ids", (1,)),
        ("import jax\njax.distributed.initialize(local_device_ids=rank)", "local_device_ids", None),
    ],
)
def test_each_choice_of_gpus_is_a_selection(source: str, channel: str, ordinals: tuple[int, ...] | None) -> None:
    (selection,) = read(source, TF).selections
    assert (selection.channel, selection.ordinals) == (channel, ordinals)
    assert selection.framework == ("jax" if "jax" in source else "tensorflow")
    assert selection.line > 2
    assert selection.text


@pytest.mark.parametrize(
    "source",
    [
        "c.gpu_options.visible_device_list = ''",
        "tf.config.set_visible_devices([], 'TPU')",
        "tf.config.set_visible_devices(gpus, 'GPU')",
        "tf.config.set_visible_devices(gpus[:], 'GPU')",
        "tf.config.set_visible_devices([gpus], 'GPU')",
        "tf.config.set_visible_devices()",
        "import jax\njax.config.update('jax_cuda_visible_devices', 'all')",
        "import jax\njax.distributed.initialize(local_device_ids=None)",
    ],
)
def test_what_leaves_all_gpus_visible_selects_none(source: str) -> None:
    assert read(source, TF).selections == ()


def test_a_choice_that_may_not_be_made_is_only_known_at_run_time() -> None:
    (selection,) = read("if args.cpu:\n    tf.config.set_visible_devices([], 'GPU')", TF).selections
    assert selection.ordinals is None
    (selection,) = read("if gpus:\n    tf.config.set_visible_devices(gpus[0], 'GPU')", TF).selections
    assert selection.ordinals == (0,)
