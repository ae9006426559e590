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
from gpuwatch.shares import is_conclusive
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
    declared = resolve(facts(environ, libraries=JAX, mps=True), C)
    assert limits(declared, C) == {0: 512}
    assert declared.declarations[0].kind is Kind.HARD
    assert declared.declarations[1].why == "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is less"


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


def test_tensorflows_list_of_gpus_has_those_that_the_script_hides_from_it() -> None:
    script = LOGICAL.format(ONE).replace("gpus[0]", "gpus[1]")
    script += "tf.config.set_visible_devices(gpus[1], 'GPU')\n"
    declared = resolve(facts(script=script, libraries=TENSORFLOW), A)
    assert visible(declared, A) == [1]
    assert limits(declared, A) == {1: 1024}


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


def test_old_cuda_loads_all_kernels_and_may_hold_more() -> None:
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "CUDA_MODULE_LOADING": "EAGER"}
    assert resolve(facts(environ, libraries=JAX), C).limits[0].margin is Margin.EAGER


CALL = "import torch\ntorch.cuda.set_per_process_memory_fraction({})\n"
POOL = "import cupy\ncupy.get_default_memory_pool().set_limit({})\n"
TORCH_ENV = {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.3"}
CUPY_ENV = {"CUPY_GPU_MEMORY_LIMIT": "20%"}


HAMI = frozenset({"libvgpu.so"})
POSSIBLE = "import torch\nif args.small:\n    torch.cuda.set_per_process_memory_fraction({})\n"
BRANCHES = "import torch\nif args.small:\n    {0}({1})\nelse:\n    {0}({2})\n"
FRACTION_CALL = "torch.cuda.set_per_process_memory_fraction"
JAX_HALF = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}
MPS = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}
CUPY_AND_TORCH = "import cupy, torch\ntorch.cuda.set_per_process_memory_fraction(0.4)\n"
VLLM = ("/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m", "--gpu-memory-utilization", "0.4")
TGI = ("text-generation-server", "serve", "m")
JAX_ON_CPU = TORCH | {"libjax_common.so"}
TWO_CHILDREN = tuple(RelatedProcess(pid=pid, environ={"XLA_PYTHON_CLIENT_MEM_FRACTION": f"0.{pid}"}) for pid in (2, 3))
LIMITS: dict[str, tuple[Sequence[GpuFacts], Facts, dict[int, float]]] = {
    "the least of two layers, MPS read first": (C, facts(MPS | {"GPUWATCH_SHARE": "0.4"}, mps=True), {0: 800.8}),
    "the least of two layers, HAMi": (
        *(C, facts({"CUDA_DEVICE_MEMORY_LIMIT": "1g", "GPU_PORTION": "0.9"}, libraries=HAMI)),
        {0: 1024},
    ),
    "a layer below holds the sum": (C, facts(CUPY_ENV | MPS, script=CUPY_AND_TORCH, mps=True), {0: 1024}),
    "a layer that is not known to be there": (C, facts(MPS | {"GPUWATCH_SHARE": "0.9"}), {0: 1801.8}),
    "MPS alone, without its daemon": (C, facts(MPS), {}),
    "HAMi alone, without its library": (C, facts({"CUDA_DEVICE_MEMORY_LIMIT": "1g"}), {}),
    "a server and its framework share an allocator": (
        *(C, facts({"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.9"}, *VLLM, libraries=TORCH)),
        {0: 800.8},
    ),
    "unified memory allows the whole GPU": (
        *(C, facts(JAX_HALF | {"TF_FORCE_UNIFIED_MEMORY": "1"}, libraries=JAX)),
        {0: 2002},
    ),
    "the default of a launcher": (C, facts({"CUDA_MEMORY_FRACTION": "1.0"}, *TGI), {}),
    "a fraction set by a launcher": (C, facts({"CUDA_MEMORY_FRACTION": "0.5"}, *TGI), {0: 1001}),
    "a fraction of a MIG instance": (
        D,
        facts(JAX_HALF | {"CUDA_VISIBLE_DEVICES": "MIG-2222"}, libraries=JAX),
        {0: 4928},
    ),
    "JAX on the CPU beside PyTorch": (C, facts(JAX_HALF, libraries=JAX_ON_CPU), {}),
    "JAX on the GPU beside PyTorch": (C, facts(JAX_HALF, libraries=JAX_ON_CPU | JAX), {0: 1001}),
    "children with environments of their own": (C, facts(libraries=JAX, children=TWO_CHILDREN), {}),
    "either branch": (E, facts(script=BRANCHES.format(FRACTION_CALL, "0.1", "0.9"), libraries=TORCH), {}),
    "a possible call that allows less": (E[:1], facts(TORCH_ENV, script=POSSIBLE.format("0.1")), {0: 24576}),
    "a possible call that allows more": (E[:1], facts(TORCH_ENV, script=POSSIBLE.format("0.9")), {}),
    "a possible call at run time": (E[:1], facts(TORCH_ENV, script=POSSIBLE.format("args.fraction")), {}),
    "a possible call beside a sure one": (
        *(E[:1], facts(script=POSSIBLE.format("0.1") + CALL.format("0.5"))),
        {0: 40960},
    ),
    "a possible call beside another framework": (
        C,
        facts(CUPY_ENV, script="import cupy\n" + POSSIBLE.format("0.1")),
        {},
    ),
    "a possible call below MPS": (C, facts(MPS, script=POSSIBLE.format("0.9"), mps=True), {0: 1024}),
    "two sure calls, in whichever order they run": (
        *(E[:1], facts(script=CALL.format("0.5") + CALL.format("0.1"))),
        {0: 40960},
    ),
    # A call without a known number still takes the place of the environment.
    "a fraction at run time on GPU 0": (E, facts(TORCH_ENV, script=CALL.format("args.fraction, 0")), {1: 24576}),
    "a fraction at run time anywhere": (E, facts(TORCH_ENV, script=CALL.format("args.fraction, args.gpu")), {}),
    "a size at run time": (E, facts(CUPY_ENV, script=POOL.format("size=args.size")), {1: 16384}),
    "a pool without a limit": (E, facts(CUPY_ENV, script=POOL.format("size=0")), {1: 16384}),
}


@pytest.mark.parametrize(("machine", "known", "expected"), LIMITS.values(), ids=LIMITS)
def test_the_limits_of(machine: Sequence[GpuFacts], known: Facts, expected: dict[int, float]) -> None:
    assert limits(resolve(known, machine), machine) == pytest.approx(expected)


def test_a_pool_without_a_limit_is_said_to_have_none() -> None:
    declared = resolve(facts(CUPY_ENV, script=POOL.format("size=0")), E[:1])
    environment, call = sorted(declared.declarations[:2], key=lambda one: one.channel)
    assert (environment.effective, environment.why) == (False, "set_limit comes before it")
    assert (call.effective, call.why) == (True, "it sets no limit")
    assert declared.hints == ()


def test_a_possible_limit_is_shown_with_its_condition_and_is_not_in_effect() -> None:
    declared = resolve(facts(script=POSSIBLE.format("0.25"), libraries=TORCH), E[:1])
    (one,) = [each for each in declared.declarations if each.line]
    assert (one.confidence, one.condition) == (Confidence.POSSIBLE, "if `args.small`")
    assert (one.effective, one.undecided, one.why) == (False, True, "not known to be in effect")
    assert one.limits == {E[0].uuid: 20480 * MIB}
    assert not is_conclusive(declared)


def test_what_is_possible_takes_nothing_away_from_what_was_declared_for_sure() -> None:
    declared = resolve(facts(TORCH_ENV, script=POSSIBLE.format("0.9"), libraries=TORCH), E[:1])
    (sure,) = [one for one in declared.declarations if one.where == "environment"]
    assert (sure.effective, sure.why) == (False, "set_per_process_memory_fraction may allow more")


def test_a_variable_under_a_condition_is_possible() -> None:
    source = 'import os\nif args.cap:\n    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".5"\n'
    declared = resolve(facts(script=source, libraries=JAX), C)
    assert declared.limits == ()
    assert [one.condition for one in declared.declarations if one.line] == ["if `args.cap`"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (Script(path="train.py", contents=read_script("import config"), modules=("config.py",)),
         "nothing in train.py; config.py is not read"),
        (Script(path="train.py", contents=read_script(CALL.format("0.5")), modules=("a.py", "b.py")),
         "a.py, b.py are not read"),
        (Script(path="t.py", contents=read_script("import a"), modules=("a.py", "b.py", "c.py", "d.py", "e.py")),
         "nothing in t.py; a.py, b.py, c.py and 2 more are not read"),
        (Script(path="train.py", contents=read_script("load_dotenv()")),
         "the variables that load_dotenv() sets are not read"),
    ],
)  # fmt: skip
def test_nothing_is_not_said_of_what_was_not_read(script: Script, words: str) -> None:
    declared = resolve(Facts(pid=1, environ={}, libraries=TORCH, script=script), A)
    assert (declared.incomplete, declared.words) == (True, words)
    assert declared.knowledge is Knowledge.READ
    assert not is_conclusive(declared)


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
