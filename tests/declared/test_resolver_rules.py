"""The resolver where no table says what is right: precedence, sums, doubts, and what cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.facts import Facts, GpuFacts, RelatedProcess, Script, Share, Unread
from gpuwatch.declared.resolver import resolve
from gpuwatch.declared.script import read_script
from gpuwatch.model import Confidence, Kind, Knowledge, Margin, Order
from tests.support.builders import MIB
from tests.support.resolving import (
    FRACTION,
    JAX,
    LOGICAL,
    ONE,
    TENSORFLOW,
    TORCH,
    A,
    B,
    C,
    D,
    E,
    M,
    facts,
    limits,
    said,
    visible,
)


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


def test_frameworks_with_allocators_of_their_own_add_up() -> None:
    environ = {"CUPY_GPU_MEMORY_LIMIT": "20%"}
    script = "import cupy, torch\ntorch.cuda.set_per_process_memory_fraction(0.4)\n"
    declared = resolve(facts(environ, script=script), C)
    assert limits(declared, C) == pytest.approx({0: 0.6 * 2002}, abs=0.01)
    named, part = declared.declarations[:2]
    assert (named.channel, named.effective, part.effective) == ("set_per_process_memory_fraction", True, True)
    assert part.why == f"it adds to {named.channel}: each has an allocator of its own"


def test_a_framework_that_may_take_any_amount_leaves_the_other_no_limit() -> None:
    environ = {"CUPY_GPU_MEMORY_LIMIT": "20%"}
    script = "import cupy, torch\ntorch.cuda.set_per_process_memory_fraction(args.f)\n"
    declared = resolve(facts(environ, script=script), C)
    assert declared.limits == ()
    (cupy,) = [one for one in declared.declarations if one.framework == "CuPy"]
    assert (cupy.effective, cupy.why) == (False, "another framework of the process may take any amount")


def test_a_server_and_the_framework_that_it_is_built_on_share_one_allocator() -> None:
    argv = ("/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m", "--gpu-memory-utilization", "0.4")
    environ = {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.9"}
    declared = resolve(facts(environ, *argv, libraries=TORCH), C)
    assert limits(declared, C) == pytest.approx({0: 800.8})


def test_a_layer_below_holds_the_sum_of_the_frameworks() -> None:
    environ = {"CUPY_GPU_MEMORY_LIMIT": "20%", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}
    script = "import cupy, torch\ntorch.cuda.set_per_process_memory_fraction(0.4)\n"
    assert limits(resolve(facts(environ, script=script), C), C) == {0: 1024}


def test_xla_with_unified_memory_is_never_held_to_less_than_the_gpu() -> None:
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "TF_FORCE_UNIFIED_MEMORY": "1"}
    assert limits(resolve(facts(environ, libraries=JAX), C), C) == {0: 2002}


def test_what_a_launcher_sets_on_everybody_is_no_declaration() -> None:
    shard = ("text-generation-server", "serve", "m")
    assert resolve(facts({"CUDA_MEMORY_FRACTION": "1.0"}, *shard), C).limits == ()
    assert limits(resolve(facts({"CUDA_MEMORY_FRACTION": "0.5"}, *shard), C), C) == {0: 1001}


def test_a_default_yields_to_anything_that_was_said() -> None:
    declared = resolve(facts(None, "python", "-m", "sglang.launch_server", "--mem-fraction-static", "0.8"), E)
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
    found = read_script('import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "2"\n', "train.py")
    script = Script(path="train.py", contents=found, edited=True)
    started = Facts(pid=1, environ={"CUDA_VISIBLE_DEVICES": "1"}, libraries=TORCH, script=script)
    assert visible(resolve(started, A), A) == [1]
    alone = resolve(Facts(pid=1, environ={}, libraries=TORCH, script=script), A).visible
    assert alone is not None
    assert (alone.order, alone.doubtful) == (Order.HEURISTIC, True)
    assert alone.note == "the file was edited after the process started"


def test_a_variable_set_after_cuda_was_used_is_doubted() -> None:
    source = 'import os, torch\nx = torch.zeros(1).cuda()\nos.environ["CUDA_VISIBLE_DEVICES"] = "2"\n'
    late = resolve(facts(script=source, libraries=TORCH), A).visible
    assert late is not None
    assert (late.order, late.doubtful, late.note) == (Order.HEURISTIC, True, "it may not be in effect")
    assert resolve(facts({"CUDA_VISIBLE_DEVICES": "1"}, script=source, libraries=TORCH), A).visible is None


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


def test_unreadable_is_not_undeclared() -> None:
    stranger = Facts(pid=1, argv=("python", "train.py"), script=Script(path="train.py", contents=Unread.DENIED))
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
        RelatedProcess(pid=pid, environ={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2", "RANK": str(pid)}) for pid in (50, 51)
    )
    declared = resolve(facts(libraries=JAX, children=children), C)
    assert limits(declared, C) == pytest.approx({0: 400.4})
    assert declared.declarations[0].where == "environment of child 50"
    assert declared.declarations[0].confidence is Confidence.LIKELY


def test_a_child_with_an_environment_of_its_own_says_nothing_of_its_parent() -> None:
    children = (
        RelatedProcess(pid=50, environ={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}),
        RelatedProcess(pid=51, environ={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3"}),
    )
    assert resolve(facts(libraries=JAX, children=children), C).limits == ()


def test_old_cuda_loads_all_kernels_and_may_hold_more() -> None:
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "CUDA_MODULE_LOADING": "EAGER"}
    assert resolve(facts(environ, libraries=JAX), C).limits[0].margin is Margin.EAGER


CALL = "import torch\ntorch.cuda.set_per_process_memory_fraction({})\n"
POOL = "import cupy\ncupy.get_default_memory_pool().set_limit({})\n"
TORCH_ENV = {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.3"}
CUPY_ENV = {"CUPY_GPU_MEMORY_LIMIT": "20%"}


@pytest.mark.parametrize(
    ("environ", "script", "expected"),
    [
        (TORCH_ENV, CALL.format("args.fraction, 0"), {1: 24576}),
        (TORCH_ENV, CALL.format("args.fraction, args.gpu"), {}),
        (CUPY_ENV, POOL.format("size=args.size"), {1: 16384}),
        (CUPY_ENV, POOL.format("size=0"), {1: 16384}),
    ],
)
def test_a_call_without_a_known_number_still_takes_the_place_of_the_environment(
    environ: dict[str, str], script: str, expected: dict[int, float]
) -> None:
    declared = resolve(facts(environ, script=script), E)
    assert limits(declared, E) == pytest.approx(expected)


def test_a_pool_without_a_limit_is_said_to_have_none() -> None:
    declared = resolve(facts(CUPY_ENV, script=POOL.format("size=0")), E[:1])
    environment, call = sorted(declared.declarations[:2], key=lambda one: one.channel)
    assert (environment.effective, environment.why) == (False, "set_limit comes before it")
    assert (call.effective, call.why) == (True, "it sets no limit")
    assert declared.hints == ()


@pytest.mark.parametrize(("small", "large"), [("0.1", "0.9"), ("0.9", "0.1")])
def test_of_two_branches_the_looser_limit_holds(small: str, large: str) -> None:
    call = "torch.cuda.set_per_process_memory_fraction"
    script = f"import torch\nif args.small:\n    {call}({small})\nelse:\n    {call}({large})\n"
    assert limits(resolve(facts(script=script, libraries=TORCH), E), E) == pytest.approx({0: 73728})


def test_what_may_not_have_run_takes_nothing_away_from_what_was_declared_for_sure() -> None:
    script = "import torch\nif args.small:\n    torch.cuda.set_per_process_memory_fraction(0.1)\n"
    declared = resolve(facts(TORCH_ENV, script=script, libraries=TORCH), E[:1])
    assert limits(declared, E) == pytest.approx({0: 24576})
    (call,) = [one for one in declared.declarations if one.line]
    assert call.why == "it may not have run, and PYTORCH_CUDA_ALLOC_CONF allows more"


CONDITIONAL = 'import os\nif args.debug:\n    os.environ["{}"] = "{}"\n'


def test_a_variable_that_a_branch_may_have_changed_is_not_known() -> None:
    fraction = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    script = CONDITIONAL.format(fraction, ".1")
    assert resolve(facts({fraction: ".9"}, script=script, libraries=JAX), C).limits == ()
    assert limits(resolve(facts({fraction: ".1"}, script=script, libraries=JAX), C), C) == pytest.approx({0: 200.2})
    script = CONDITIONAL.format("CUDA_VISIBLE_DEVICES", "0")
    assert resolve(facts({"CUDA_VISIBLE_DEVICES": "1"}, script=script, libraries=TORCH), A).visible is None
    alone = resolve(facts(script=script, libraries=TORCH), A).visible
    assert alone is not None
    assert (alone.order, alone.note) == (Order.HEURISTIC, "it may not be in effect")


def test_one_child_alone_is_a_guess_unless_it_is_a_worker() -> None:
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2", "CUDA_VISIBLE_DEVICES": "0"}
    server = RelatedProcess(pid=50, argv=("vllm", "serve", "m"), environ=environ)
    worker = RelatedProcess(
        pid=50, argv=("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"), environ=environ
    )
    for child, sure in ((server, Confidence.GUESS), (worker, Confidence.LIKELY)):
        declared = resolve(facts(libraries=JAX, children=(child,)), C)
        assert declared.declarations[0].confidence is sure
    seen = resolve(facts(libraries=JAX, children=(server,)), A).visible
    assert seen is not None
    assert seen.note == "it may not be in effect"


def test_what_a_parent_was_started_with_is_doubted_where_the_process_hides_its_own() -> None:
    parent = RelatedProcess(pid=7, argv=("bash",), environ={"CUDA_VISIBLE_DEVICES": "0"})
    seen = resolve(facts(Unread.OVERWRITTEN, "epoch 3", libraries=TORCH, ancestors=(parent,)), A).visible
    assert seen is not None
    assert (seen.where, seen.note) == ("environment of parent 7", "its own environment may say otherwise")


def test_jax_on_the_cpu_binds_no_pytorch_job() -> None:
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".3"}
    on_cpu = TORCH | {"libjax_common.so"}
    assert resolve(facts(environ, libraries=on_cpu), C).limits == ()
    assert resolve(facts(environ, libraries=on_cpu | JAX), C).limits != ()


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


@given(st.dictionaries(st.sampled_from(ODD_NAMES), TEXT), st.lists(TEXT, max_size=4), st.sampled_from([A, B, D, ()]))
def test_no_environment_and_no_command_line_is_too_odd(
    environ: dict[str, str], argv: list[str], machine: Sequence[GpuFacts]
) -> None:
    declared = resolve(Facts(pid=1, environ=environ, argv=tuple(argv), libraries=JAX | TORCH), machine)
    uuids = {card.uuid for card in machine}
    for limit in declared.limits:
        assert limit.gpu in uuids
        assert limit.bytes >= 0
        assert declared.declarations[limit.declaration].effective
