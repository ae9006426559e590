"""Environment variables: each with its own unit, kind, default and owner, as its reader has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.env import VARIABLES, candidates
from gpuwatch.declared.facts import Candidate, Setting
from gpuwatch.declared.frameworks import NAMES
from gpuwatch.model import Basis, Confidence, Kind, Margin

MIB = 1024**2
GIB = 1024**3


def read(environ: Mapping[str, str | None]) -> list[Candidate]:
    """Return the candidates of an environment."""
    return candidates({name: Setting(value=value) for name, value in environ.items()})


def one(environ: Mapping[str, str | None], **same: Any) -> Candidate:
    """Return the only candidate of an environment that has these fields."""
    found = [
        candidate for candidate in read(environ) if all(getattr(candidate, key) == value for key, value in same.items())
    ]
    assert len(found) == 1, found
    return found[0]


CAP, START, GRANT, HARD, GROWTH = Kind.CAP, Kind.START, Kind.GRANT, Kind.HARD, Kind.GROWTH
TOTAL, BYTES, NONE = Basis.TOTAL, Basis.BYTES, Basis.NONE

# (environment, framework, kind, basis, value, device)
VARIABLES_READ: list[tuple[dict[str, str], str, Kind, Basis, float | None, int | str | None]] = [
    ({"XLA_CLIENT_MEM_FRACTION": ".3"}, "jax", CAP, TOTAL, 0.3, None),
    ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".3"}, "jax", CAP, TOTAL, 0.3, None),
    ({"XLA_CLIENT_MEM_FRACTION": "1.4", "TF_FORCE_UNIFIED_MEMORY": "1"}, "jax", CAP, TOTAL, 1.4, None),
    ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "jax", GROWTH, NONE, None, None),
    ({"XLA_PYTHON_CLIENT_PREALLOCATE": "0"}, "jax", GROWTH, NONE, None, None),
    ({"XLA_PYTHON_CLIENT_ALLOCATOR": "Platform"}, "jax", GROWTH, NONE, None, None),
    ({"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, "tensorflow", GROWTH, NONE, None, None),
    ({"TF_DEVICE_MIN_SYS_MEMORY_IN_MB": "500"}, "tensorflow", Kind.RESERVE, BYTES, 500 * MIB, None),
    (
        {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.95,throw_on_cudamalloc_oom:True"},
        *("torch", CAP, TOTAL, 0.95, None),
    ),
    (
        {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,>:4], per_process_memory_fraction : 0.5"},
        *("torch", CAP, TOTAL, 0.5, None),
    ),
    ({"CUPY_GPU_MEMORY_LIMIT": "50%"}, "cupy", CAP, TOTAL, 0.5, None),
    ({"CUPY_GPU_MEMORY_LIMIT": "1073741824"}, "cupy", CAP, BYTES, GIB, None),
    ({"THEANO_FLAGS": "device=cuda0,lib.cnmem=0.8,lib.cnmem=0.3"}, "theano", START, TOTAL, 0.3, 0),
    ({"THEANO_FLAGS": "floatX=float32,gpuarray.preallocate=1500"}, "theano", START, BYTES, 1500 * MIB, None),
    ({"THEANO_FLAGS": "'device=gpu2','lib.cnmem=1'"}, "theano", START, TOTAL, 0.95, 2),
    ({"FLAGS_gpu_memory_limit_mb": "2048"}, "paddle", CAP, BYTES, 2 * GIB, None),
    ({"FLAGS_fraction_of_gpu_memory_to_use": "0.2"}, "paddle", START, TOTAL, 0.2, None),
    ({"FLAGS_initial_gpu_memory_in_mb": "512"}, "paddle", START, BYTES, 512 * MIB, None),
    ({"FLAGS_allocator_strategy": "auto_growth"}, "paddle", GROWTH, NONE, None, None),
    ({"CUDA_MEMORY_FRACTION": "0.5"}, "tgi", CAP, TOTAL, 0.5, None),
    ({"OLLAMA_GPU_OVERHEAD": "1073741824"}, "ollama", Kind.RESERVE, BYTES, GIB, None),
    ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-8932=2G"}, "", HARD, BYTES, 2 * GIB, "GPU-8932"),
    ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}, "", Kind.COMPUTE, NONE, 0.25, None),
    ({"CUDA_DEVICE_MEMORY_LIMIT": "4g"}, "", HARD, BYTES, 4 * GIB, None),
    ({"CUDA_DEVICE_MEMORY_LIMIT_0": "3000m"}, "", HARD, BYTES, 3000 * MIB, 0),
    ({"CUDA_DEVICE_SM_LIMIT": "50"}, "", Kind.COMPUTE, NONE, 0.5, None),
    ({"CUDA_DEVICE_SM_LIMIT_3": "30"}, "", Kind.COMPUTE, NONE, 0.3, 3),
    ({"NVIDIA_GPU_MEMORY_LIMIT": "4096"}, "", HARD, BYTES, 4 * GIB, None),
    ({"NVIDIA_GPU_MEMORY_LIMIT": "4096", "NVIDIA_GPU_MEMORY_REQUEST": "2048"}, "", HARD, BYTES, 4 * GIB, None),
    ({"NVIDIA_GPU_MEMORY_REQUEST": "2048"}, "", GRANT, BYTES, 2 * GIB, None),
    ({"GPU_PORTION": "0.50"}, "", GRANT, TOTAL, 0.5, None),
    ({"RUNAI_NUM_OF_GPUS": "0.25"}, "", GRANT, TOTAL, 0.25, None),
    ({"GPU_PORTION": "0.50", "RUNAI_NUM_OF_GPUS": "0.50"}, "", GRANT, TOTAL, 0.5, None),
    ({"GENV_GPU_MEMORY": "4g"}, "", GRANT, BYTES, 4e9, None),
    ({"SLURM_SHARDS_ON_NODE": "2"}, "", GRANT, NONE, None, None),
    ({"GPUWATCH_SHARE": "0.4"}, "", GRANT, TOTAL, 0.4, None),
    ({"GPUWATCH_SHARE": "20GiB"}, "", GRANT, BYTES, 20 * GIB, None),
]


@pytest.mark.parametrize(("environ", "framework", "kind", "basis", "value", "device"), VARIABLES_READ)
def test_a_variable_is_read_as_its_reader_reads_it(
    environ: dict[str, str], framework: str, kind: Kind, basis: Basis, value: float | None, device: int | str | None
) -> None:
    candidate = one(environ)
    assert (candidate.framework, candidate.kind, candidate.basis, candidate.device) == (framework, kind, basis, device)
    assert candidate.value == (None if value is None else pytest.approx(value))
    assert not candidate.void
    assert candidate.channel.split()[0] in {name.removesuffix("_0").removesuffix("_3") for name in environ}
    assert candidate.where == "environment"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"XLA_CLIENT_MEM_FRACTION": ""},
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"},
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "no"},
        {"XLA_PYTHON_CLIENT_ALLOCATOR": "bfc"},
        {"TF_FORCE_GPU_ALLOW_GROWTH": "false"},
        {"TF_DEVICE_MIN_SYS_MEMORY_IN_MB": "0"},
        {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8"},
        {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"},
        {"CUPY_GPU_MEMORY_LIMIT": "0"},
        {"THEANO_FLAGS": "device=cuda0,floatX=float32,lib.cnmem=0"},
        {"THEANO_FLAGS": "lib.cnmem"},
        {"THEANORC": "~/.theanorc"},
        {"FLAGS_gpu_memory_limit_mb": "0"},
        {"FLAGS_allocator_strategy": "naive_best_fit"},
        {"CUDA_DEVICE_MEMORY_LIMIT": "0", "CUDA_DEVICE_MEMORY_LIMIT_0": "", "CUDA_DEVICE_SM_LIMIT": "100"},
        {"CUDA_DEVICE_MEMORY_LIMIT_X": "1g", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "''"},
        {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"},
        {"NVSHARE_ENABLE_SINGLE_OVERSUB": "1", "LD_PRELOAD": "/usr/lib/libnvshare.so"},
        {"CUDA_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "all", "GENV_GPUS": "1"},
        {"OLLAMA_GPU_OVERHEAD": "0"},
    ],
)
def test_what_declares_nothing_is_no_candidate(environ: dict[str, str]) -> None:
    assert read(environ) == []


PLATFORM = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".3", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}

# (environment, why the first variable has no effect)
VOID = [
    ({"XLA_CLIENT_MEM_FRACTION": "1.4"}, "1.4 is not above 0 and up to 1"),
    ({"XLA_CLIENT_MEM_FRACTION": "lots"}, "lots is no number"),
    (PLATFORM, "the platform allocator ignores it"),
    (PLATFORM | {"XLA_PYTHON_CLIENT_ALLOCATOR": "CUDA_ASYNC"}, "the cuda_async allocator ignores it"),
    (
        PLATFORM | {"XLA_PYTHON_CLIENT_ALLOCATOR": "jemalloc"},
        "JAX refuses to start with XLA_PYTHON_CLIENT_ALLOCATOR=jemalloc",
    ),
    (
        {"XLA_CLIENT_MEM_FRACTION": ".3", "TF_GPU_ALLOCATOR": "cuda_malloc_async"},
        "TF_GPU_ALLOCATOR=cuda_malloc_async ignores it",
    ),
    ({"TF_FORCE_GPU_ALLOW_GROWTH": "True"}, "TensorFlow ignores any text but true and false"),
    ({"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:1.5"}, "1.5 is outside 0 to 1"),
    ({"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction"}, "? is no number"),
    (
        {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.5", "PYTORCH_CUDA_ALLOC_CONF": ""},
        "PyTorch reads PYTORCH_CUDA_ALLOC_CONF in its place",
    ),
    ({"CUPY_GPU_MEMORY_LIMIT": "1GB"}, "1GB is no whole number"),
    ({"THEANO_FLAGS": "lib.cnmem='0.3"}, "Theano cannot split it: a quotation is left open"),
    ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=lots"}, "0=lots is not like 0=1G or 0=512M"),
    ({"GPU_PORTION": "2"}, "2 is not above 0 and up to 1"),
    ({"GENV_GPU_MEMORY": "4 Gib"}, "4 Gi is no whole number"),
]


@pytest.mark.parametrize(("environ", "why"), VOID)
def test_a_variable_without_effect_has_a_reason(environ: dict[str, str], why: str) -> None:
    channel = next(iter(environ))
    candidate = one(environ, channel=channel)
    assert candidate.void == why
    assert candidate.text.startswith(channel)


MPS, MPS_PIPE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY"
HAMI = {"CUDA_DEVICE_MEMORY_LIMIT_0": "1g"}


@pytest.mark.parametrize(
    ("environ", "fields", "expected"),
    [
        (
            {"XLA_CLIENT_MEM_FRACTION": ".3", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".3"},
            *("void", [("JAX refuses to start with both set",)] * 2),
        ),
        (
            {"XLA_CLIENT_MEM_FRACTION": ".3", "XLA_PYTHON_CLIENT_PREALLOCATE": "False"},
            *("kind value void", [(GROWTH, None, ""), (CAP, 0.3, "")]),
        ),
        ({"TF_GPU_ALLOCATOR": "cuda_malloc_async"}, "framework kind", [("tensorflow", GROWTH), ("jax", GROWTH)]),
        (
            {MPS: "''0=1G,1=512MB''"},
            *("device value margin", [(0, GIB, Margin.EXACT), (1, 512 * MIB, Margin.EXACT)]),
        ),
        ({MPS: "0=1G,nonsense,"}, "void", [("",), ("nonsense is not like 0=1G or 0=512M",)]),
        # HAMi has a limit for one device before that for all.
        (
            {"CUDA_DEVICE_MEMORY_LIMIT_1": "1g", "CUDA_DEVICE_MEMORY_LIMIT": "2g"},
            "device value rank text",
            [
                (None, 2 * GIB, -1, "CUDA_DEVICE_MEMORY_LIMIT=2g"),
                (1, GIB, 0, "CUDA_DEVICE_MEMORY_LIMIT_1=1g"),
            ],
        ),
        (HAMI, "channel scope margin", [("CUDA_DEVICE_MEMORY_LIMIT", "container", Margin.EXACT)]),
        (
            HAMI | {"CUDA_OVERSUBSCRIBE": "true"},
            *("text", [("CUDA_DEVICE_MEMORY_LIMIT_0=1g, of virtual memory (CUDA_OVERSUBSCRIBE=true)",)]),
        ),
        ({"GENV_GPU_MEMORY": "4g", "GENV_ENVIRONMENT_ID": "12"}, "scope margin", [("genv 12", Margin.EXACT)]),
        ({"GPU_PORTION": "0.5"}, "scope margin", [("container", Margin.FRAMEWORK)]),
        ({"NVIDIA_GPU_MEMORY_LIMIT": "100"}, "scope", [("container",)]),
        ({"SLURM_SHARDS_ON_NODE": "2", "SLURM_JOB_ID": "3385"}, "scope dynamic", [("Slurm job 3385", True)]),
        ({"GPUWATCH_SHARE": "0.4"}, "margin", [(Margin.FRAMEWORK,)]),
    ],
)
def test_the_fields_of_candidates(environ: dict[str, str], fields: str, expected: list[tuple[object, ...]]) -> None:
    found = [tuple(getattr(candidate, name) for name in fields.split()) for candidate in read(environ)]
    assert found == expected


@pytest.mark.parametrize(
    "name",
    [
        *dict.fromkeys(row.name for row in VARIABLES if row.name != "TF_GPU_ALLOCATOR"),
        *("XLA_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH", "PYTORCH_ALLOC_CONF", "THEANO_FLAGS"),
        *("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0"),
    ],
)
def test_a_value_that_is_only_known_at_run_time_is_dynamic(name: str) -> None:
    candidate = one({name: None})
    assert candidate.dynamic
    assert candidate.value is None
    assert not candidate.void


def test_a_candidate_says_where_its_setting_stands() -> None:
    line = 'os.environ["CUPY_GPU_MEMORY_LIMIT"] = "50%"'
    setting = Setting(value="50%", where="train.py", line=7, text=line, confidence=Confidence.GUESS)
    (candidate,) = candidates({"CUPY_GPU_MEMORY_LIMIT": setting})
    assert (candidate.where, candidate.line, candidate.text, candidate.confidence) == (
        "train.py",
        7,
        line,
        Confidence.GUESS,
    )


def test_a_guess_is_not_made_surer_by_what_is_likely() -> None:
    for name, value in (("CUDA_DEVICE_MEMORY_LIMIT", "1g"), ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G")):
        (candidate,) = candidates({name: Setting(value=value, confidence=Confidence.GUESS)})
        assert candidate.confidence is Confidence.GUESS


def test_foreign_text_is_cleaned_and_bounded() -> None:
    candidate = one({"CUPY_GPU_MEMORY_LIMIT": "\x1b[2J" + "9" * 500})
    assert candidate.text.isprintable()
    assert len(candidate.text) <= 80
    assert candidate.void.isprintable()
    long = one({"CUPY_GPU_MEMORY_LIMIT": "4g" * 10_000 + " password=hunter2"}).text
    assert long == f"CUPY_GPU_MEMORY_LIMIT={'4g' * 28}4…"
    assert one({"GENV_GPU_MEMORY": "4g", "GENV_ENVIRONMENT_ID": "\x1b]0;x\x07"}).scope.isprintable()


CHANNELS = [
    *(row.name for row in VARIABLES),
    *("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ALLOCATOR"),
    *("XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR", "TF_FORCE_UNIFIED_MEMORY"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "THEANO_FLAGS", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    *("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_7", "CUDA_DEVICE_SM_LIMIT_1", "GENV_GPU_MEMORY"),
    *("GENV_ENVIRONMENT_ID", "GPU_PORTION", "NVIDIA_GPU_MEMORY_REQUEST", "SLURM_SHARDS_ON_NODE", "SLURM_JOB_ID"),
]
VALUES = st.one_of(
    st.none(),
    st.text(max_size=60),
    st.sampled_from(["0.5", "1g", "0=1G", "per_process_memory_fraction:0.1", "lib.cnmem=2", "true", "platform"]),
)


@given(st.dictionaries(st.sampled_from(CHANNELS), VALUES))
def test_no_environment_is_too_odd(environ: dict[str, str | None]) -> None:
    for candidate in read(environ):
        assert candidate.framework in NAMES or not candidate.framework
        assert candidate.value is None or candidate.value >= 0
        assert candidate.text.isprintable()
        assert candidate.void.isprintable()
        assert not (candidate.dynamic and candidate.value is not None)


@pytest.mark.parametrize(
    ("name", "filler", "value"),
    [
        ("THEANO_FLAGS", "floatX=float32,", "lib.cnmem=0.3"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128,", "per_process_memory_fraction:0.3"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", " ,", "0=1G"),
    ],
)
def test_a_value_is_read_up_to_4096_characters(name: str, filler: str, value: str) -> None:
    """An environment may be of a MiB, and splitting that takes up to 3 s."""
    assert len(read({name: filler * 20 + value})) == 1
    assert read({name: filler * 4096 + value}) == []
