"""The resolver on whole processes: every channel with the framework, the GPUs and the neighbours that it has in life.

The numbered cases are the founding ones of declared shares, of which each has the source of a framework or a document
behind it. The others have a name: precedence, sums, doubts, and what cannot be read. Figures are in MiB, as people and
frameworks write them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.base.units import MIB
from gpuwatch.declared.facts import Facts, FrameworkConfig, GpuFacts, RelatedProcess, Script, Share, Unread
from gpuwatch.declared.resolver import resolve
from gpuwatch.declared.script import read_script
from gpuwatch.model.shares import is_conclusive
from gpuwatch.model.snapshot import Confidence, Knowledge, Order
from tests.declared.tables import Case, cases
from tests.support.declared import DOCKER, JAX, TENSORFLOW, TORCH, A, B, C, D, E, M, T, facts, limits, visible

MACHINES = {"A": A, "B": B, "C": C, "D": D, "E": E, "E1": E[:1], "M": M, "T": T}
CUPY = frozenset({"_carray.cpython-311-x86_64-linux-gnu.so"})
VLLM = TORCH | {"_vllm_fa2_C.abi3.so"}
LIBRARIES = {
    "JAX": JAX,
    "JAX_ON_CPU": frozenset({"libjax_common.so"}),
    "TENSORFLOW": TENSORFLOW,
    "TORCH": TORCH,
    "HAMI": frozenset({"libvgpu.so"}),
}


def process(case: Case) -> Facts:
    """Return the process of a case, whose `environ` is a reason where it could not be read."""
    environ = case.get("environ")
    more: dict[str, Any] = {"cgroup": DOCKER if case.get("cgroup") == "docker" else case.get("cgroup", "")}
    if "theanorc" in case:
        more["rc"] = (FrameworkConfig(path="~/.theanorc", text=case["theanorc"]),)
    if "parent" in case:
        more["ancestors"] = (RelatedProcess(**{**case["parent"], "argv": tuple(case["parent"]["argv"].split())}),)
    if "share" in case:
        more["shares"] = (Share(**case["share"], where="gpuwatch.toml", line=3),)
    argv = tuple(case.get("child_argv", ()))
    more["children"] = tuple(
        RelatedProcess(pid=pid, argv=argv, environ=environ) for pid, environ in enumerate(case.get("children", ()), 50)
    )
    return facts(
        Unread(environ) if isinstance(environ, str) else environ,
        *case.get("argv", "").split(),
        libraries=frozenset().union(*(LIBRARIES[name] for name in case.get("libraries", "").split())),
        script=case.get("script", ""),
        mps=case.get("mps", False),
        **more,
    )


@cases("declared/resolver")
def test_what_a_process_declared(case: Case) -> None:
    """`says` has fields of a declaration each; `kind`, `scope` and `margin` are those of each limit."""
    machine, expect = MACHINES[case["machine"]], dict(case["expect"])
    declared = resolve(process(case), machine)
    wanted = {int(index): size for index, size in expect.pop("limits", {}).items()}
    if "limits" in case["expect"]:
        assert limits(declared, machine) == pytest.approx(wanted, abs=0.02)
    for limit in declared.limits:
        one = declared.declarations[limit.declaration]
        assert one.effective
        assert 0 < one.limits[limit.gpu] <= limit.bytes  # less where it is one of a sum
        of_limit = {"kind": one.kind, "scope": limit.scope, "margin": limit.margin}
        assert {key: expect.get(key, value) for key, value in of_limit.items()} == of_limit
    for fields in expect.pop("says", ()):
        assert fields in [{key: getattr(one, key) for key in fields} for one in declared.declarations]
    assert expect.pop("hint", "") in "".join(hint.words for hint in declared.hints)
    assert bool(declared.hints) is ("hint" in case["expect"])
    assert expect.pop("words", "") in declared.words
    seen = declared.visible
    found: dict[str, object] = {
        "visible": visible(declared, machine) if "visible" in expect else None,
        "visible_where": seen and seen.where,
        "unseen": declared.unseen,
        "order": seen and seen.order,
        "note": seen and seen.note,
        "knowledge": declared.knowledge,
        "conclusive": is_conclusive(declared),
    }
    others = {key: value for key, value in expect.items() if key not in ("kind", "scope", "margin")}
    assert {key: found[key] for key in others} == others


def test_a_shared_limit_stands_beside_that_of_the_process() -> None:
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "GENV_GPU_MEMORY": "1gi", "GENV_ENVIRONMENT_ID": "7"}
    declared = resolve(facts(environ, libraries=JAX), C)
    assert [(limit.scope, limit.bytes / MIB) for limit in declared.limits] == [("", 1001), ("genv 7", 1024)]
    assert [one.effective for one in declared.declarations[:2]] == [True, True]


def test_an_edited_script_does_not_take_the_place_of_what_the_process_was_started_with() -> None:
    found = read_script('import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "2"\n', "train.py")
    script = Script(path="train.py", contents=found, edited=True)
    started = Facts(pid=1, environ={"CUDA_VISIBLE_DEVICES": "1"}, libraries=TORCH, script=script)
    assert visible(resolve(started, A), A) == [1]
    alone = resolve(Facts(pid=1, environ={}, libraries=TORCH, script=script), A).visible
    assert alone is not None
    assert (alone.order, alone.doubtful) == (Order.HEURISTIC, True)
    assert alone.note == "the file was changed after the process started"


TORCH_16 = "import torch\ntorch.cuda.set_per_process_memory_fraction(0.2, 0)\n"


@pytest.mark.parametrize("edited", [True, False])
@pytest.mark.parametrize(
    ("environ", "script", "libraries"),
    [
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, "os.environ['XLA_PYTHON_CLIENT_MEM_FRACTION'] = '.2'", JAX),
        ({"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.5"}, TORCH_16, TORCH),
        ({"CUPY_GPU_MEMORY_LIMIT": "50%"}, "cupy.get_default_memory_pool().set_limit(fraction=0.2)", CUPY),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=40G"}, TORCH_16, TORCH),
        ({"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.5"}, "LLM(gpu_memory_utilization=0.2)", VLLM),
    ],
)
def test_a_changed_script_does_not_lower_what_the_environment_limits(
    environ: dict[str, str], script: str, libraries: frozenset[str], *, edited: bool
) -> None:
    """40 GiB that are certain, and 16 in a script that may not be the one that runs."""
    found = read_script("import os, cupy\nfrom vllm import LLM\n" + script, "train.py")
    source = Script(path="train.py", contents=found, edited=edited)
    known = msgspec.structs.replace(facts(environ, libraries=libraries, mps=True, cgroup=DOCKER), script=source)
    declared = resolve(known, E[:1])
    (limit,) = declared.limits
    assert limit.bytes / MIB == (40960 if edited else 16384)
    stale = [one.why for one in declared.declarations if one.confidence is Confidence.STALE]
    assert all("it may not be in effect" in why for why in stale)


def test_unreadable_is_not_undeclared() -> None:
    stranger = Facts(pid=1, argv=("python", "train.py"), script=Script(path="train.py", contents=Unread.DENIED))
    declared = resolve(stranger, A)
    assert (declared.knowledge, declared.limits) == (Knowledge.UNREADABLE, ())
    assert "no permission to read" in declared.words


@pytest.mark.parametrize(
    ("source", "modules", "words"),
    [
        ("import config", ("config.py",), "nothing in train.py; config.py is not read"),
        ("c.gpu_options.allow_growth = True", ("a.py", "b.py"), "a.py, b.py are not read"),
        ("import a", tuple("abcde"), "nothing in train.py; a, b, c and 2 more are not read"),
        ("load_dotenv()", (), "the variables that load_dotenv() sets are not read"),
    ],
)
def test_nothing_is_not_said_of_what_was_not_read(source: str, modules: tuple[str, ...], words: str) -> None:
    script = Script(path="train.py", contents=read_script(source), modules=modules)
    declared = resolve(Facts(pid=1, environ={}, libraries=TORCH, script=script), A)
    assert (declared.incomplete, declared.words) == (True, words)
    assert declared.knowledge is Knowledge.READ
    assert not is_conclusive(declared)


TEXT = st.text(max_size=30)
ODD_NAMES = (
    *("CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_MEM_FRACTION", "PYTORCH_CUDA_ALLOC_CONF", "THEANO_FLAGS"),
    *("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "GENV_GPU_MEMORY", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_GPUS"),
)


@given(st.dictionaries(st.sampled_from(ODD_NAMES), TEXT), st.lists(TEXT, max_size=4), st.sampled_from([A, B, D, ()]))
def test_no_environment_and_no_command_line_is_too_odd(
    environ: dict[str, str], argv: list[str], machine: Sequence[GpuFacts]
) -> None:
    declared = resolve(Facts(pid=1, environ=environ, argv=tuple(argv), libraries=JAX | TORCH), machine)
    uuids = {gpu.uuid for gpu in machine}
    for limit in declared.limits:
        assert limit.gpu in uuids
        assert limit.bytes >= 0
        assert declared.declarations[limit.declaration].effective
