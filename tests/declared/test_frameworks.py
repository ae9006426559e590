"""Which frameworks a process uses, by what it has mapped, how it was started and what its script imports."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.declared.facts import Facts, RelatedProcess, Script, ScriptContents, Unread
from gpuwatch.declared.frameworks import NAMES, collective, defaults, eager, identify
from gpuwatch.model import Basis, Confidence, Kind

CERTAIN, LIKELY = Confidence.CERTAIN, Confidence.LIKELY

CUDA = ("libc.so.6", "libpthread.so.0", "libcuda.so.580.95.05", "libnvidia-ptxjitcompiler.so.580.95.05")
TORCH = (
    *CUDA,
    "libtorch.so",
    "libtorch_cpu.so",
    "libtorch_cuda.so",
    "libc10_cuda.so",
    "libcudart.so.12",
    "libnccl.so.2",
)
TORCH_CPU = ("libc.so.6", "libtorch.so", "libtorch_cpu.so", "libc10.so", "_C.cpython-311-x86_64-linux-gnu.so")
JAX = (*CUDA, "libjax_common.so", "_jax.so", "cuda_plugin_extension.so", "xla_cuda_plugin.so", "_solver.so")
JAX_CPU = ("libc.so.6", "libjax_common.so", "_jax.so", "_lapack.so")
CUPY = (*CUDA, "memory.cpython-311-x86_64-linux-gnu.so", "_carray.cpython-311-x86_64-linux-gnu.so")


def process(*libraries: str, argv: str = "python train.py", imports: tuple[str, ...] = (), **changes: Any) -> Facts:
    """Return a process with these libraries mapped and a script that imports these packages."""
    script = Script(path="train.py", contents=ScriptContents(imports=imports)) if imports else None
    known: dict[str, Any] = {
        "pid": 1,
        "argv": tuple(argv.split()),
        "environ": {},
        "libraries": frozenset(libraries),
        "script": script,
    }
    return Facts(**{**known, **changes})


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        (TORCH, {"torch": CERTAIN}),
        (JAX, {"jax": CERTAIN}),
        (JAX_CPU, {"jax": LIKELY}),
        ((*CUDA, "xla_extension.so"), {"jax": CERTAIN}),
        ((*CUDA, "libtensorflow_framework.so.2", "libtensorflow_cc.so.2"), {"tensorflow": CERTAIN}),
        ((*CUDA, "_pywrap_tensorflow_internal.so"), {"tensorflow": CERTAIN}),
        (CUPY, {"cupy": CERTAIN}),
        ((*CUDA, "libgpuarray.so.3"), {"theano": CERTAIN}),
        ((*CUDA, "cuda_ndarray.so"), {"theano": CERTAIN}),
        ((*CUDA, "libpaddle.so"), {"paddle": CERTAIN}),
        ((*CUDA, "libonnxruntime_providers_cuda.so"), {"onnxruntime": CERTAIN}),
        ((*TORCH, "librmm.so"), {"torch": CERTAIN, "rmm": CERTAIN}),
        ((*TORCH, "_vllm_fa2_C.abi3.so"), {"torch": CERTAIN, "vllm": CERTAIN}),
        ((*TORCH, *JAX), {"jax": CERTAIN, "torch": CERTAIN}),
        (CUDA, {}),
    ],
)
def test_the_libraries_that_are_mapped_decide(libraries: tuple[str, ...], expected: dict[str, Confidence]) -> None:
    assert identify(process(*libraries)) == expected


def test_what_is_imported_and_not_mapped_is_not_used() -> None:
    assert identify(process(*TORCH, imports=("torch", "jax", "tensorflow"))) == {"torch": CERTAIN}


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        (("torch", "numpy"), {"torch": LIKELY}),
        (("tensorflow", "keras"), {"tensorflow": LIKELY}),
        (("flax", "optax"), {"jax": LIKELY}),
        (("cudf",), {"rmm": LIKELY}),
        (("vllm",), {"vllm": LIKELY, "torch": LIKELY}),
        (("tensorrt_llm",), {"tensorrt-llm": LIKELY, "torch": LIKELY}),
        (("theano",), {"theano": LIKELY}),
    ],
)
def test_early_in_its_life_the_imports_tell(imports: tuple[str, ...], expected: dict[str, Confidence]) -> None:
    assert identify(process("libc.so.6", imports=imports)) == expected
    assert identify(process(imports=imports, libraries=Unread.DENIED)) == expected


@pytest.mark.parametrize(
    "facts",
    [
        process(libraries=Unread.DENIED),
        process(libraries=Unread.DENIED, imports=("numpy", "mymodel")),
        process(libraries=Unread.DENIED, imports=("keras",)),
        process(libraries=Unread.DENIED, script=Script(path="train.py", contents=Unread.DENIED)),
        process("libc.so.6"),
        process(*TORCH_CPU),
        process(argv=""),
    ],
)
def test_where_nothing_tells_nothing_is_excluded(facts: Facts) -> None:
    assert identify(facts) is None


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("VLLM::EngineCore", {"vllm": CERTAIN, "torch": LIKELY}),
        ("/usr/bin/python3 /usr/local/bin/vllm serve m", {"vllm": CERTAIN, "torch": LIKELY}),
        ("sglang::scheduler", {"sglang": CERTAIN, "torch": LIKELY}),
        ("tensorflow_model_server --port=1", {"tensorflow": LIKELY, "tensorflow-serving": CERTAIN}),
        ("tritonserver", {"triton": CERTAIN}),
        ("/usr/local/bin/ollama runner --model m", {"ollama": CERTAIN}),
        ("llama-server -m m", {"llama.cpp": CERTAIN}),
        ("dask-cuda-worker", {"dask": CERTAIN, "rmm": LIKELY}),
    ],
)
def test_a_known_program_tells_without_libraries(argv: str, expected: dict[str, Confidence]) -> None:
    assert identify(process(argv=argv, libraries=Unread.DENIED)) == expected
    assert identify(process(*CUDA, argv=argv)) == expected


def test_an_ancestor_that_is_a_known_program_tells_likely() -> None:
    above = (RelatedProcess(pid=2, argv=("bash",)), RelatedProcess(pid=3, argv=("vllm", "serve", "m")))
    worker = process(*TORCH, argv="python -c spawn_main", ancestors=above)
    assert identify(worker) == {"torch": CERTAIN, "vllm": LIKELY}


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


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ("libcudart.so.9.0.176", True),
        ("libcudart-1b201d85.so.10.1", True),
        ("libcudart.so.10.1.243", True),
        ("libcudart.so.11.0.221", True),
        ("libcudart.so.11.4.148", True),
        ("libnvrtc-builtins.so.11.3", True),
        ("libnvrtc-builtins-4730a239.so.11.3", True),
        ("libcudart.so.11.7.99", False),
        ("libcudart.so.11.8.89", False),
        ("libnvrtc-builtins.so.11.8", False),
        ("libcudart.so.12.1.105", False),
        # The soname of every CUDA 11, in which pip's wheels name the file: cannot be told.
        ("libcudart.so.11.0", False),
        ("libcudart-d0da41ae.so.11.0", False),
        ("libcudart.so.12", False),
        ("libcudart.so", False),
        ("libnvrtc.so.11.2", False),
    ],
)
def test_how_old_cuda_is_stands_in_the_name_of_its_library(library: str, expected: bool) -> None:
    assert eager(process(*TORCH, library)) is expected


def test_eager_loading_can_be_asked_for() -> None:
    assert eager(process(environ={"CUDA_MODULE_LOADING": "EAGER"}, libraries=Unread.DENIED))
    assert not eager(process(environ={"CUDA_MODULE_LOADING": "LAZY"}))
    assert not eager(process(environ=Unread.DENIED, libraries=Unread.DENIED))


TORCHRUN = (
    RelatedProcess(pid=2, argv=("/usr/bin/python3", "/usr/local/bin/torchrun", "--nproc-per-node", "2", "train.py")),
)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (process(*TORCH, environ={"WORLD_SIZE": "2"}), True),
        (process(*TORCH, environ={"WORLD_SIZE": "1"}), False),
        (process(*TORCH, environ={"WORLD_SIZE": "01"}), False),
        (process(*TORCH, environ={"WORLD_SIZE": "0"}), False),
        (process(*TORCH, environ={"WORLD_SIZE": "many"}), False),
        (process(*TORCH, environ={"WORLD_SIZE": "1"}, ancestors=TORCHRUN), False),
        (process(*TORCH, ancestors=TORCHRUN), True),
        (process(*TORCH, ancestors=(RelatedProcess(pid=2, argv=("python", "-m", "torch.distributed.run")),)), True),
        (process(*TORCH, ancestors=(RelatedProcess(pid=2, argv=("mpirun", "-n", "2")),)), True),
        (process(*TORCH, ancestors=(RelatedProcess(pid=2, argv=("bash",)),)), False),
        (process(*TORCH), False),
        (process(*JAX, environ={"WORLD_SIZE": "2"}), False),
        (process(libraries=Unread.DENIED, environ=Unread.DENIED, ancestors=TORCHRUN), True),
    ],
)
def test_ranks_that_exchange_data_are_known_by_nccl_and_their_number(facts: Facts, expected: bool) -> None:
    assert collective(facts) is expected
