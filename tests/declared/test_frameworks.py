"""Which frameworks a process uses, by what it has mapped, how it was started and what its script imports."""

from __future__ import annotations

from gpuwatch.declared.facts import Facts, RelatedProcess, Script, ScriptContents, Unread
from gpuwatch.declared.frameworks import NAMES, collective, defaults, eager, identify
from gpuwatch.model.snapshot import Basis, Kind
from tests.declared.tables import Case, cases

CUDA = ("libc.so.6", "libpthread.so.0", "libcuda.so.580.95.05", "libnvidia-ptxjitcompiler.so.580.95.05")
TORCH = ("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10_cuda.so", "libcudart.so.12", "libnccl.so.2")
LIBRARIES = {
    "CUDA": CUDA,
    "TORCH": (*CUDA, *TORCH),
    "TORCH_CPU": ("libc.so.6", "libtorch.so", "libtorch_cpu.so", "libc10.so", "_C.cpython-311-x86_64-linux-gnu.so"),
    "JAX": (*CUDA, "libjax_common.so", "_jax.so", "cuda_plugin_extension.so", "xla_cuda_plugin.so", "_solver.so"),
    "JAX_CPU": ("libc.so.6", "libjax_common.so", "_jax.so", "_lapack.so"),
    "CUPY": (*CUDA, "memory.cpython-311-x86_64-linux-gnu.so", "_carray.cpython-311-x86_64-linux-gnu.so"),
}


def process(case: Case) -> Facts:
    """Return a process of a case; without `libraries` it is not known which are mapped."""
    mapped = [LIBRARIES.get(word, (word,)) for word in case.get("libraries", "").split()]
    environ, parent = case.get("environ", {}), case.get("parent", "bash")
    contents = ScriptContents(imports=tuple(case["imports"])) if "imports" in case else None
    return Facts(
        pid=1,
        argv=tuple(case.get("argv", "python train.py").split()),
        environ=Unread(environ) if isinstance(environ, str) else environ,
        libraries=frozenset(name for names in mapped for name in names) if mapped else Unread.DENIED,
        script=Script(path="train.py", contents=contents) if contents else None,
        ancestors=(RelatedProcess(pid=2, argv=("bash",)), RelatedProcess(pid=3, argv=tuple(parent.split()))),
    )


@cases("declared/frameworks")
def test_what_tells_a_framework_its_age_and_its_ranks(case: Case) -> None:
    """`uses` is None where nothing is excluded, `eager` is CUDA before 11.7, `collective` is ranks that use NCCL."""
    asked = {"uses": identify, "eager": eager, "collective": collective}
    (question,) = asked.keys() & case.keys()
    assert asked[question](process(case)) == case[question]


def test_a_script_that_may_not_be_read_excludes_nothing() -> None:
    script = Script(path="train.py", contents=Unread.DENIED)
    assert identify(Facts(pid=1, argv=("python", "train.py"), environ={}, script=script)) is None


def test_defaults_are_defaults() -> None:
    found = {candidate.framework: candidate for candidate in defaults(NAMES)}
    assert {candidate.kind for candidate in found.values()} == {Kind.DEFAULT}
    assert (found["jax"].value, found["jax"].basis) == (0.75, Basis.TOTAL)
    assert found["jax"].text == "default of JAX: 0.75 of the GPU"
    assert found["vllm"].value == 0.92
    assert found["tensorflow"].value is None
    assert (found["tensorrt-llm"].value, found["tensorrt-llm"].basis) == (0.9, Basis.FREE_AFTER_LOAD)
    assert (found["lmdeploy"].value, found["lmdeploy"].basis) == (0.8, Basis.FREE_AFTER_LOAD)
    assert "torch" not in found
    assert defaults(()) == []
