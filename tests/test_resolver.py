"""The resolver on whole processes: every channel with the framework, the GPUs and the neighbours that it has in life.

The cases are numbered as in the table that they come from; the sources are the frameworks' own, named beside each.
Figures are in MiB, as people and frameworks write them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.claims import Share
from gpuwatch.declared.facts import Card, Facts, File, Kin, Script, Slice, Unread
from gpuwatch.declared.resolver import resolve
from gpuwatch.declared.script import scan
from gpuwatch.model import Basis, Confidence, Declaration, Declared, Kind, Knowledge, Margin, Order
from tests.builders import MIB

JAX = frozenset({"libc.so.6", "xla_cuda_plugin.so"})
TORCH = frozenset({"libc.so.6", "libtorch_cuda.so", "libc10_cuda.so", "libcudart.so.12"})
TENSORFLOW = frozenset({"libc.so.6", "libtensorflow_framework.so.2", "_pywrap_tensorflow_internal.so"})


def cards(*totals: int, uuids: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[Card, ...]:
    """Give a machine of GPUs with so many MiB each."""
    return tuple(
        Card(
            index=index,
            uuid=uuids[index] if uuids else f"GPU-{index:08x}",
            bus_id=f"00000000:{index + 1:02X}:00.0",
            name=names[index] if names else "NVIDIA GeForce RTX 2080 Ti",
            total=total * MIB,
        )
        for index, total in enumerate(totals)
    )


A = cards(11019, 11019, 11019, 11019, uuids=("GPU-aaaa0001", "GPU-bbbb0002", "GPU-bbcc0003", "GPU-dddd0004"))
B = cards(2048, 24576, names=("NVIDIA Quadro P400", "NVIDIA GeForce RTX 3090"))
C = cards(2002)
D = (
    Card(
        index=0,
        uuid="GPU-mig",
        total=40960 * MIB,
        mig=True,
        slices=(
            Slice(uuid="MIG-1111", gpu_instance=1, compute_instance=0, total=9856 * MIB),
            Slice(uuid="MIG-2222", gpu_instance=2, compute_instance=0, total=9856 * MIB),
        ),
    ),
)
E = cards(81920, 81920)
T = cards(15109)
M = cards(2048)
DOCKER = "/system.slice/docker-" + "3f9a1c" + "0" * 58 + ".scope"


def facts(
    environ: Mapping[str, str] | Unread | None = None,
    *argv: str,
    libraries: frozenset[str] = frozenset(),
    script: str = "",
    **more: Any,
) -> Facts:
    """Give a process that could be read; without libraries given, none of a framework's is mapped."""
    source = Script(path="train.py", scan=scan(script, "train.py")) if script else None
    known: dict[str, Any] = {"pid": 4711, "uid": 1001, "user": "ada", "script": source, **more}
    return Facts(
        environ={} if environ is None else environ,
        argv=argv or ("python", "train.py"),
        libraries=libraries | {"libc.so.6"},
        **known,
    )


def limits(declared: Declared, machine: Sequence[Card]) -> dict[int, float]:
    """Give the limits by index, in MiB."""
    indices = {card.uuid: card.index for card in machine}
    return {indices[limit.gpu]: limit.bytes / MIB for limit in declared.limits}


def visible(declared: Declared, machine: Sequence[Card]) -> list[int] | None:
    """Give the indices of what a process can see."""
    if declared.visible is None:
        return None
    return [next(card.index for card in machine if card.uuid == uuid) for uuid in declared.visible.gpus]


def said(declared: Declared, kind: Kind) -> Declaration:
    """Give the one declaration of a kind that is in effect."""
    found = [one for one in declared.declarations if one.kind is kind and one.effective]
    assert len(found) == 1, declared.declarations
    return found[0]


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
def test_which_gpus_a_process_can_see(machine: Sequence[Card], environ: dict[str, str], expected: list[int]) -> None:
    cgroup = "/system.slice/slurmstepd.scope/job_77/step_0/user/task_0" if "SLURM_JOB_ID" in environ else ""
    assert visible(resolve(facts(environ, cgroup=cgroup), machine), machine) == expected


def test_10_a_misspelt_variable_is_said() -> None:
    declared = resolve(facts({"CUDA_VISIBLE_DIVICES": "2"}), A)
    assert [hint.rule for hint in declared.hints] == ["misspelt"]
    assert "CUDA_VISIBLE_DEVICES" in declared.hints[0].words


def test_12_the_order_of_different_gpus_is_exact_only_by_bus_id() -> None:
    exact = resolve(facts({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}), B).visible
    guessed = resolve(facts({"CUDA_VISIBLE_DEVICES": "0"}), B).visible
    assert exact is not None
    assert guessed is not None
    assert (exact.order, guessed.order) == (Order.EXACT, Order.HEURISTIC)


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
FRACTION = "gpuConfig.gpu_options.per_process_gpu_memory_fraction = 0.6\n"
LOGICAL = """
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
tf.config.set_logical_device_configuration(
    gpus[0], [{}]
)
"""
ONE = "tf.config.LogicalDeviceConfiguration(memory_limit=1024)"
HALF = "tf.config.LogicalDeviceConfiguration(memory_limit=512)"

LIMITED: dict[Any, tuple[Sequence[Card], Facts, Kind, dict[int, float]]] = {
    17: (
        A,
        facts({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".3", "CUDA_VISIBLE_DEVICES": "1"}, libraries=JAX),
        Kind.CAP,
        {1: 3305.7},
    ),
    24: (M, facts(script="import tensorflow as tf\n" + FRACTION, libraries=TENSORFLOW), Kind.CAP, {0: 1228.8}),
    25: (C, facts(script=LOGICAL.format(ONE), libraries=TENSORFLOW), Kind.CAP, {0: 1024}),
    26: (C, facts(script=LOGICAL.format(f"{HALF}, {HALF}"), libraries=TENSORFLOW), Kind.CAP, {0: 1024}),
    27: (
        T,
        facts(None, "/usr/bin/tensorflow_model_server", "--per_process_gpu_memory_fraction=0.5"),
        Kind.CAP,
        {0: 7554.5},
    ),
    28: (
        A,
        facts(
            {"CUDA_VISIBLE_DEVICES": "2"},
            script="import torch\ntorch.cuda.set_per_process_memory_fraction(0.5, 0)\n",
            libraries=TORCH,
        ),
        Kind.CAP,
        {2: 5509.5},
    ),
    29: (
        E,
        facts(
            {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.95,throw_on_cudamalloc_oom:True"},
            libraries=TORCH,
        ),
        Kind.CAP,
        {0: 77824, 1: 77824},
    ),
    "32 percent": (
        E,
        facts(
            {"CUPY_GPU_MEMORY_LIMIT": "50%"},
            libraries=frozenset({"memory.cpython-311-x86_64-linux-gnu.so"}),
            script="import cupy\n",
        ),
        Kind.CAP,
        {0: 40960, 1: 40960},
    ),
    "32 bytes": (
        E,
        facts({"CUPY_GPU_MEMORY_LIMIT": "1073741824"}, script="import cupy\n"),
        Kind.CAP,
        {0: 1024, 1: 1024},
    ),
    33: (E, facts(MPS, libraries=TORCH), Kind.HARD, {0: 1024, 1: 512}),
    34: (
        A,
        facts(
            {
                "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
                "CUDA_DEVICE_SM_LIMIT": "50",
                "NVIDIA_VISIBLE_DEVICES": "GPU-bbbb0002",
            },
            libraries=TORCH,
            cgroup=DOCKER,
        ),
        Kind.HARD,
        {1: 3000},
    ),
    36: (
        A,
        facts({"GENV_GPU_MEMORY": "4g", "GENV_ENVIRONMENT_ID": "12", "CUDA_VISIBLE_DEVICES": "1"}),
        Kind.GRANT,
        {1: 4e9 / MIB},
    ),
    37: (
        A,
        facts({"GPU_PORTION": "0.50", "NVIDIA_VISIBLE_DEVICES": "GPU-aaaa0001"}, cgroup=DOCKER),
        Kind.GRANT,
        {0: 5509.5},
    ),
}


@pytest.mark.parametrize(("machine", "given_facts", "kind", "expected"), LIMITED.values(), ids=map(str, LIMITED))
def test_what_a_process_is_held_to(
    machine: Sequence[Card], given_facts: Facts, kind: Kind, expected: dict[int, float]
) -> None:
    declared = resolve(given_facts, machine)
    assert limits(declared, machine) == pytest.approx(expected, abs=0.01)
    for limit in declared.limits:
        declaration = declared.declarations[limit.declaration]
        assert declaration.kind is kind
        assert declaration.effective
        assert declaration.limits[limit.gpu] == limit.bytes


UNLIMITED: dict[Any, tuple[Sequence[Card], Facts]] = {
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
def test_what_is_no_limit_limits_nothing(machine: Sequence[Card], given_facts: Facts) -> None:
    assert resolve(given_facts, machine).limits == ()


def test_19_and_20_the_default_of_jax_is_shown_as_a_default() -> None:
    for environ in ({}, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}):
        default = said(resolve(facts(environ, libraries=JAX), A), Kind.DEFAULT)
        assert default.value == 0.75
        assert default.why == "a default is not a declaration"
    assert said(resolve(facts({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, libraries=JAX), A), Kind.GROWTH)


def test_22_growth_is_a_label() -> None:
    declared = resolve(facts({"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, libraries=TENSORFLOW), A)
    assert said(declared, Kind.GROWTH).channel == "TF_FORCE_GPU_ALLOW_GROWTH"


def test_34_what_hami_grants_is_the_containers_and_its_sm_share_a_label() -> None:
    declared = resolve(LIMITED[34][1], A)
    assert declared.limits[0].scope == "container 3f9a1c000000"
    assert declared.limits[0].margin is Margin.EXACT
    assert said(declared, Kind.COMPUTE).value == 0.5


def test_36_and_37_grants_have_a_scope() -> None:
    assert resolve(LIMITED[36][1], A).limits[0].scope == "genv 12"
    assert resolve(LIMITED[37][1], A).limits[0].scope == "container 3f9a1c000000"


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
            Kin(
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
    assert declared.knowledge is Knowledge.READ
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


# -- what the table does not say ------------------------------------------------------------------------------------


def test_a_variable_of_another_framework_is_found_and_not_in_effect() -> None:
    declared = resolve(facts({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".3"}, libraries=TORCH), A)
    assert declared.limits == ()
    (jax,) = [one for one in declared.declarations if one.channel == "XLA_PYTHON_CLIENT_MEM_FRACTION"]
    assert (jax.effective, jax.why) == (False, "it does not use JAX")


def test_a_call_comes_before_the_environment_in_pytorch() -> None:
    declared = resolve(
        facts(
            {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.3"},
            script="import torch\ntorch.cuda.set_per_process_memory_fraction(0.5)\n",
            libraries=TORCH,
        ),
        C,
    )
    assert limits(declared, C) == pytest.approx({0: 1001})
    loser = declared.declarations[1]
    assert not loser.effective
    assert loser.why == f"{declared.declarations[0].channel} comes before it"


def test_across_layers_the_least_holds() -> None:
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=512M"}
    declared = resolve(facts(environ, libraries=JAX), C)
    assert limits(declared, C) == {0: 512}
    assert declared.declarations[0].kind is Kind.HARD
    assert declared.declarations[1].why == "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is less"


def test_of_two_layers_below_the_frameworks_the_least_holds_whichever_was_read_last() -> None:
    environ = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G", "GPUWATCH_SHARE": "0.4"}
    assert limits(resolve(facts(environ), C), C) == pytest.approx({0: 800.8})
    hami = {"CUDA_DEVICE_MEMORY_LIMIT": "1g", "GPU_PORTION": "0.9"}
    assert limits(resolve(facts(hami), C), C) == {0: 1024}


def test_xla_with_unified_memory_is_never_held_to_less_than_the_gpu() -> None:
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "TF_FORCE_UNIFIED_MEMORY": "1"}
    assert limits(resolve(facts(environ, libraries=JAX), C), C) == {0: 2002}


def test_what_a_launcher_sets_on_everybody_is_no_declaration() -> None:
    shard = ("text-generation-server", "serve", "m")
    assert resolve(facts({"CUDA_MEMORY_FRACTION": "1.0"}, *shard), C).limits == ()
    assert limits(resolve(facts({"CUDA_MEMORY_FRACTION": "0.5"}, *shard), C), C) == {0: 1001}


def test_a_default_yields_to_anything_that_was_said() -> None:
    declared = resolve(UNLIMITED[45][1], E)
    (default,) = [one for one in declared.declarations if one.kind is Kind.DEFAULT]
    assert (default.effective, default.why) == (False, "something else was declared")


def test_a_shared_limit_stands_beside_that_of_the_process() -> None:
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "GENV_GPU_MEMORY": "1gi", "GENV_ENVIRONMENT_ID": "7"}
    declared = resolve(facts(environ, libraries=JAX), C)
    assert [(limit.scope, limit.bytes / MIB) for limit in declared.limits] == [("", 1001), ("genv 7", 1024)]
    assert [one.effective for one in declared.declarations[:2]] == [True, True]


def test_an_agreement_counts_for_all_of_a_persons_processes_together() -> None:
    share = Share(user="ada", gpus=(2,), share=0.4, where="gpuwatch.toml", line=3)
    declared = resolve(facts(shares=(share,)), A)
    assert limits(declared, A) == pytest.approx({2: 0.4 * 11019})
    assert declared.limits[0].scope
    assert resolve(facts(shares=(share,), user="ben", uid=1002), A).limits == ()


def test_the_administrators_ceiling_cannot_be_raised() -> None:
    own = Share(user="ada", share=0.8, where="~/.config/gpuwatch/gpuwatch.toml")
    ceiling = Share(user="ada", share=0.4, where="/etc/gpuwatch/gpuwatch.toml", ceiling=True)
    for shares in ((own, ceiling), (ceiling, own)):
        declared = resolve(facts(shares=shares), C)
        assert min(limit.bytes for limit in declared.limits) == round(0.4 * 2002 * MIB)


def test_tensorflows_reserve_takes_the_place_of_its_fraction() -> None:
    script = "import tensorflow as tf\nconfig = tf.compat.v1.ConfigProto()\n" + FRACTION
    environ = {"TF_DEVICE_MIN_SYS_MEMORY_IN_MB": "500"}
    declared = resolve(facts(environ, script=script, libraries=TENSORFLOW), M)
    assert declared.limits == ()
    assert said(declared, Kind.RESERVE).value == 500 * MIB


def test_a_script_that_sets_only_what_is_not_set_leaves_what_is() -> None:
    source = 'import os\nos.environ.setdefault("CUDA_VISIBLE_DEVICES", "2")\nimport torch\n'
    assert visible(resolve(facts({"CUDA_VISIBLE_DEVICES": "1"}, script=source, libraries=TORCH), A), A) == [1]
    assert visible(resolve(facts(script=source, libraries=TORCH), A), A) == [2]


def test_an_edited_script_does_not_take_the_place_of_what_the_process_was_started_with() -> None:
    found = scan('import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "2"\n', "train.py")
    script = Script(path="train.py", scan=found, edited=True)
    started = Facts(pid=1, environ={"CUDA_VISIBLE_DEVICES": "1"}, libraries=TORCH, script=script)
    assert visible(resolve(started, A), A) == [1]
    alone = resolve(Facts(pid=1, environ={}, libraries=TORCH, script=script), A).visible
    assert alone is not None
    assert (alone.order, alone.note) == (Order.HEURISTIC, "the file was edited after the process started")


def test_a_variable_set_after_cuda_was_used_is_said_to_be_late() -> None:
    source = 'import os, torch\nx = torch.zeros(1).cuda()\nos.environ["CUDA_VISIBLE_DEVICES"] = "2"\n'
    late = resolve(facts(script=source, libraries=TORCH), A).visible
    assert late is not None
    assert late.order is Order.HEURISTIC
    assert "too late" in late.note


def test_tensorflows_list_of_gpus_has_those_that_the_script_hides_from_it() -> None:
    script = LOGICAL.format(ONE).replace("gpus[0]", "gpus[1]")
    script += "tf.config.set_visible_devices(gpus[1], 'GPU')\n"
    declared = resolve(facts(script=script, libraries=TENSORFLOW), A)
    assert visible(declared, A) == [1]
    assert limits(declared, A) == {1: 1024}


def test_a_fraction_on_mig_is_one_of_the_instance() -> None:
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "CUDA_VISIBLE_DEVICES": "MIG-2222"}
    declared = resolve(facts(environ, libraries=JAX), D)
    assert limits(declared, D) == {0: 4928}


def test_a_value_that_is_only_known_at_run_time_is_said_to_be_dynamic() -> None:
    script = "import torch\ntorch.cuda.set_per_process_memory_fraction(args.fraction)\n"
    declared = resolve(facts(script=script, libraries=TORCH), A)
    assert declared.limits == ()
    one = said(declared, Kind.CAP)
    assert (one.value, one.why) == (None, "its value is only known at run time")


def test_an_edited_script_is_no_certain_evidence() -> None:
    source = "import torch\ntorch.cuda.set_per_process_memory_fraction(0.5)\n"
    script = Script(path="train.py", scan=scan(source, "train.py"), edited=True)
    declared = resolve(Facts(pid=1, environ={}, libraries=TORCH, script=script), C)
    assert declared.declarations[0].confidence is Confidence.STALE


def test_unreadable_is_not_undeclared() -> None:
    stranger = Facts(pid=1, argv=("python", "train.py"), script=Script(path="train.py", scan=Unread.DENIED))
    declared = resolve(stranger, A)
    assert declared.knowledge is Knowledge.UNREADABLE
    assert declared.limits == ()
    assert "not ours to read" in declared.words


def test_a_flag_of_somebody_elses_server_is_read_although_its_environment_is_not() -> None:
    argv = ("/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m", "--gpu-memory-utilization=0.4")
    declared = resolve(Facts(pid=1, argv=argv), E[:1])
    assert limits(declared, E) == {0: 32768}
    assert declared.knowledge is Knowledge.UNREADABLE


def test_a_script_that_cannot_be_understood_may_declare_what_we_did_not_see() -> None:
    declared = resolve(
        facts(script="print 'two'\ntorch.cuda.set_per_process_memory_fraction(0.5)\n", libraries=TORCH), A
    )
    assert declared.knowledge is Knowledge.UNREADABLE
    assert declared.words.startswith("train.py could not be understood")


def test_what_all_execed_children_show_was_set_after_the_start() -> None:
    children = tuple(
        Kin(pid=pid, environ={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2", "RANK": str(pid)}) for pid in (50, 51)
    )
    declared = resolve(facts(libraries=JAX, children=children), C)
    assert limits(declared, C) == pytest.approx({0: 400.4})
    assert declared.declarations[0].where == "environment of child 50"
    assert declared.declarations[0].confidence is Confidence.LIKELY


def test_a_child_with_an_environment_of_its_own_says_nothing_of_its_parent() -> None:
    children = (
        Kin(pid=50, environ={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}),
        Kin(pid=51, environ={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3"}),
    )
    assert resolve(facts(libraries=JAX, children=children), C).limits == ()


def test_old_cuda_loads_all_kernels_and_may_hold_more() -> None:
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "CUDA_MODULE_LOADING": "EAGER"}
    assert resolve(facts(environ, libraries=JAX), C).limits[0].margin is Margin.EAGER


TEXT = st.text(max_size=30)
ODD_NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "PYTORCH_CUDA_ALLOC_CONF",
    "THEANO_FLAGS",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "GENV_GPU_MEMORY",
    "NVIDIA_VISIBLE_DEVICES",
    "SLURM_JOB_GPUS",
)


@given(
    st.dictionaries(
        st.sampled_from(ODD_NAMES),
        TEXT,
    ),
    st.lists(TEXT, max_size=4),
    st.sampled_from([A, B, D, ()]),
)
def test_no_environment_and_no_command_line_is_too_odd(
    environ: dict[str, str], argv: list[str], machine: Sequence[Card]
) -> None:
    declared = resolve(Facts(pid=1, environ=environ, argv=tuple(argv), libraries=JAX | TORCH), machine)
    uuids = {card.uuid for card in machine}
    for limit in declared.limits:
        assert limit.gpu in uuids
        assert limit.bytes >= 0
        assert declared.declarations[limit.declaration].effective
