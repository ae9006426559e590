"""The resolver on whole processes: every channel with the framework, the GPUs and the neighbours that it has in life.

The cases are numbered as in the table that they come from; the sources are the frameworks' own, named beside each.
Figures are in MiB, as people and frameworks write them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpuwatch.declared.facts import Facts, File, GpuFacts, RelatedProcess, Unread
from gpuwatch.declared.resolver import resolve
from gpuwatch.model import Basis, Kind, Knowledge, Margin
from tests.support.builders import MIB
from tests.support.resolving import (
    DOCKER,
    FRACTION,
    HALF,
    JAX,
    LOGICAL,
    ONE,
    TENSORFLOW,
    TORCH,
    A,
    B,
    C,
    E,
    M,
    T,
    facts,
    limits,
    said,
    visible,
)

VISIBLE = {
    1: (A, {"CUDA_VISIBLE_DEVICES": "2"}, [2]),
    2: (A, {"CUDA_VISIBLE_DEVICES": "3,2"}, [3, 2]),
    3: (A, {"CUDA_VISIBLE_DEVICES": "0,2,-1,1"}, [0, 2]),
    4: (A, {"CUDA_VISIBLE_DEVICES": "-1,0"}, []),
    "5 empty": (A, {"CUDA_VISIBLE_DEVICES": ""}, []),
    "5 unset": (A, {}, [0, 1, 2, 3]),
    8: (A, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa0001"}, [0]),
    10: (A, {"CUDA_VISIBLE_DIVICES": "2"}, [0, 1, 2, 3]),
    12: (B, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0]),
    14: (A, {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "3", "SLURM_JOB_ID": "77"}, [3]),
    15: (A, {"NVIDIA_VISIBLE_DEVICES": "GPU-dddd0004", "CUDA_VISIBLE_DEVICES": "0"}, [3]),
}


@pytest.mark.parametrize(("machine", "environ", "expected"), VISIBLE.values(), ids=map(str, VISIBLE))
def test_which_gpus_a_process_can_see(
    machine: Sequence[GpuFacts], environ: dict[str, str], expected: list[int]
) -> None:
    cgroup = "/system.slice/slurmstepd.scope/job_77/step_0/user/task_0" if "SLURM_JOB_ID" in environ else ""
    assert visible(resolve(facts(environ, cgroup=cgroup), machine), machine) == expected


def test_10_a_misspelt_variable_is_said() -> None:
    declared = resolve(facts({"CUDA_VISIBLE_DIVICES": "2"}), A)
    assert [hint.rule for hint in declared.hints] == ["misspelt"]
    assert "CUDA_VISIBLE_DEVICES" in declared.hints[0].words


def test_16_a_container_that_hides_its_base_leaves_the_devices_unknown() -> None:
    declared = resolve(facts({"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "0"}, cgroup=DOCKER), A)
    assert declared.visible is None


def test_48_what_a_script_sets_comes_before_what_the_process_was_started_with() -> None:
    source = 'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "2"\nimport torch\n'
    declared = resolve(facts({"CUDA_VISIBLE_DEVICES": "0,1"}, script=source, libraries=TORCH), A)
    assert visible(declared, A) == [2]
    assert declared.visible is not None
    assert declared.visible.where == "train.py:2"


MPS = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "''0=1G,1=512MB''"}
JAX_ON_1 = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".3", "CUDA_VISIBLE_DEVICES": "1"}
HALF_OF_0 = "import torch\ntorch.cuda.set_per_process_memory_fraction(0.5, 0)\n"
TORCH_CONF = {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.95,throw_on_cudamalloc_oom:True"}
SERVING = ("/usr/bin/tensorflow_model_server", "--per_process_gpu_memory_fraction=0.5")
HAMI = {"CUDA_DEVICE_MEMORY_LIMIT_0": "3000m", "CUDA_DEVICE_SM_LIMIT": "50", "NVIDIA_VISIBLE_DEVICES": "GPU-bbbb0002"}
GENV = {"GENV_GPU_MEMORY": "4g", "GENV_ENVIRONMENT_ID": "12", "CUDA_VISIBLE_DEVICES": "1"}
RUNAI = {"GPU_PORTION": "0.50", "NVIDIA_VISIBLE_DEVICES": "GPU-aaaa0001"}
CUPY = frozenset({"memory.cpython-311-x86_64-linux-gnu.so"})
PERCENT, SIZE = {"CUPY_GPU_MEMORY_LIMIT": "50%"}, {"CUPY_GPU_MEMORY_LIMIT": "1073741824"}
LIMITED: dict[Any, tuple[Sequence[GpuFacts], Facts, Kind, dict[int, float]]] = {
    17: (A, facts(JAX_ON_1, libraries=JAX), Kind.CAP, {1: 3305.7}),
    24: (M, facts(script="import tensorflow as tf\n" + FRACTION, libraries=TENSORFLOW), Kind.CAP, {0: 1228.8}),
    25: (C, facts(script=LOGICAL.format(ONE), libraries=TENSORFLOW), Kind.CAP, {0: 1024}),
    26: (C, facts(script=LOGICAL.format(f"{HALF}, {HALF}"), libraries=TENSORFLOW), Kind.CAP, {0: 1024}),
    27: (T, facts(None, *SERVING), Kind.CAP, {0: 7554.5}),
    28: (A, facts({"CUDA_VISIBLE_DEVICES": "2"}, script=HALF_OF_0, libraries=TORCH), Kind.CAP, {2: 5509.5}),
    29: (E, facts(TORCH_CONF, libraries=TORCH), Kind.CAP, {0: 77824, 1: 77824}),
    "32 percent": (E, facts(PERCENT, libraries=CUPY, script="import cupy\n"), Kind.CAP, {0: 40960, 1: 40960}),
    "32 bytes": (E, facts(SIZE, script="import cupy\n"), Kind.CAP, {0: 1024, 1: 1024}),
    33: (E, facts(MPS, libraries=TORCH, mps=True), Kind.HARD, {0: 1024, 1: 512}),
    34: (A, facts(HAMI, libraries=TORCH | {"libvgpu.so"}, cgroup=DOCKER), Kind.HARD, {1: 3000}),
    36: (A, facts(GENV), Kind.GRANT, {1: 4e9 / MIB}),
    37: (A, facts(RUNAI, cgroup=DOCKER), Kind.GRANT, {0: 5509.5}),
}


@pytest.mark.parametrize(("machine", "given_facts", "kind", "expected"), LIMITED.values(), ids=map(str, LIMITED))
def test_what_a_process_is_held_to(
    machine: Sequence[GpuFacts], given_facts: Facts, kind: Kind, expected: dict[int, float]
) -> None:
    declared = resolve(given_facts, machine)
    assert limits(declared, machine) == pytest.approx(expected, abs=0.01)
    for limit in declared.limits:
        declaration = declared.declarations[limit.declaration]
        assert declaration.kind is kind
        assert declaration.effective
        assert declaration.limits[limit.gpu] == limit.bytes


UNLIMITED: dict[Any, tuple[Sequence[GpuFacts], Facts]] = {
    19: (A, facts(libraries=JAX)),
    20: (A, facts({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, libraries=JAX)),
    22: (A, facts({"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, libraries=TENSORFLOW)),
    31: (E, facts({"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8"}, libraries=TORCH)),
    "32 zero": (E, facts({"CUPY_GPU_MEMORY_LIMIT": "0"}, script="import cupy\n")),
    38: (
        A,
        facts(
            script="import theano\n", rc=(File(path="~/.theanorc", text="[global]\ndevice=gpu0\n[lib]\ncnmem=0.3\n"),)
        ),
    ),
    39: (A, facts({"THEANO_FLAGS": "device=cuda0,lib.cnmem=0.8,lib.cnmem=0.3"}, script="import theano\n")),
    41: (A, facts(script="import torch\n", libraries=TORCH, rc=(File(path="~/.theanorc", text="[lib]\ncnmem=0.3\n"),))),
    44: (E, facts(None, "/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m")),
    45: (E, facts(None, "python", "-m", "sglang.launch_server", "--model-path", "m", "--mem-fraction-static", "0.8")),
    "46 trtllm": (E, facts(None, "trtllm-serve", "m", "--kv_cache_free_gpu_memory_fraction", "0.85")),
    "46 lmdeploy": (E, facts(None, "lmdeploy", "serve", "api_server", "m", "--cache-max-entry-count", "0.2")),
    "47 comment": (A, facts(script="import tensorflow\n# config." + FRACTION, libraries=TENSORFLOW)),
    "47 misspelt": (
        A,
        facts(
            script="import tensorflow as tf\nconfig = tf.ConfigProto()\n"
            "config.gpu_options.per_process_memory_fraction = 0.4\n",
            libraries=TENSORFLOW,
        ),
    ),
}


@pytest.mark.parametrize(("machine", "given_facts"), UNLIMITED.values(), ids=map(str, UNLIMITED))
def test_what_is_no_limit_limits_nothing(machine: Sequence[GpuFacts], given_facts: Facts) -> None:
    assert resolve(given_facts, machine).limits == ()


def test_19_and_20_the_default_of_jax_is_shown_as_a_default() -> None:
    for environ in ({}, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}):
        default = said(resolve(facts(environ, libraries=JAX), A), Kind.DEFAULT)
        assert default.value == 0.75
        assert default.why == "a default is not a declaration"
    assert said(resolve(facts({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, libraries=JAX), A), Kind.GROWTH)


def test_34_what_hami_grants_is_the_containers_and_its_sm_share_a_label() -> None:
    declared = resolve(LIMITED[34][1], A)
    assert declared.limits[0].scope == "container 3f9a1c000000"
    assert declared.limits[0].margin is Margin.EXACT
    assert said(declared, Kind.COMPUTE).value == 0.5


def test_38_and_39_theanos_start_sizes() -> None:
    rc = said(resolve(UNLIMITED[38][1], A), Kind.START)
    assert (rc.value, rc.basis, rc.where) == (0.3, Basis.TOTAL, "~/.theanorc")
    both = facts(
        {"THEANO_FLAGS": "device=cuda0,lib.cnmem=0.8,lib.cnmem=0.3"},
        script="import theano\n",
        rc=(File(path="~/.theanorc", text="[lib]\ncnmem = 0.5\n"),),
    )
    declared = resolve(both, A)
    assert said(declared, Kind.START).value == 0.3
    (loser,) = [one for one in declared.declarations if one.kind is Kind.START and not one.effective]
    assert (loser.value, loser.why) == (0.5, "THEANO_FLAGS lib.cnmem comes before it")


def test_41_another_frameworks_file_is_found_and_not_in_effect() -> None:
    (rc,) = [one for one in resolve(UNLIMITED[41][1], A).declarations if one.kind is Kind.START]
    assert not rc.effective
    assert rc.why == "it does not use Theano"


def test_42_a_vllm_worker_is_held_to_the_flag_of_the_server_above_it() -> None:
    worker = facts(
        Unread.OVERWRITTEN,
        "VLLM::EngineCore",
        libraries=TORCH,
        ancestors=(
            RelatedProcess(
                pid=812,
                argv=("/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m", "--gpu-memory-utilization", "0.4"),
                environ={"CUDA_VISIBLE_DEVICES": "0"},
            ),
        ),
    )
    declared = resolve(worker, E)
    assert limits(declared, E) == {0: 32768}
    assert declared.declarations[0].where == "command line of parent 812"
    assert declared.limits[0].margin is Margin.BUDGET
    assert declared.knowledge is Knowledge.UNREADABLE
    assert "overwritten" in declared.words
    assert "parent 812" in declared.words


def test_44_to_46_servers_that_declare_no_limit_say_what_they_do_declare() -> None:
    assert said(resolve(UNLIMITED[44][1], E), Kind.DEFAULT).value == 0.92
    sglang = said(resolve(UNLIMITED[45][1], E), Kind.CACHE)
    assert (sglang.value, sglang.basis) == (0.8, Basis.FREE_AT_START)
    for name in ("46 trtllm", "46 lmdeploy"):
        assert said(resolve(UNLIMITED[name][1], E), Kind.CACHE).basis is Basis.FREE_AFTER_LOAD


def test_47_a_field_that_does_not_exist_is_hinted_at() -> None:
    hints = resolve(UNLIMITED["47 misspelt"][1], A).hints
    assert len(hints) == 1
    assert "per_process_gpu_memory_fraction" in hints[0].words
