"""Environment variables: each with its own unit, kind, default and owner, as its reader has them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.env import VARIABLES, candidates
from gpuwatch.declared.facts import Candidate, Setting
from gpuwatch.declared.frameworks import NAMES
from gpuwatch.model.snapshot import Confidence
from tests.declared.tables import Case, cases


def read(environ: Mapping[str, str | None]) -> list[Candidate]:
    """Return the candidates of an environment."""
    return candidates({name: Setting(value=value) for name, value in environ.items()})


@cases("declared/env")
def test_a_variable_is_read_as_its_reader_reads_it(case: Case) -> None:
    """A case without candidates declares nothing; one whose channel is named looks at the candidates of that alone."""
    found = read(case["environ"])
    expected = case["expect"]
    if expected and "channel" in expected[0]:
        found = [candidate for candidate in found if candidate.channel == expected[0]["channel"]]
    assert len(found) == len(expected)
    for candidate, fields in zip(found, expected, strict=True):
        assert {name: getattr(candidate, name) for name in fields} == fields
        assert candidate.void == fields.get("void", "")
        assert candidate.where == "environment"
        assert candidate.text.startswith(candidate.channel.split()[0])


@pytest.mark.parametrize(
    "name",
    [
        *dict.fromkeys(row.name for row in VARIABLES if row.name != "TF_GPU_ALLOCATOR"),
        *("XLA_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH", "PYTORCH_ALLOC_CONF", "THEANO_FLAGS"),
        *("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0"),
    ],
)
def test_a_value_that_is_only_known_at_run_time_is_dynamic(name: str) -> None:
    (candidate,) = read({name: None})
    assert (candidate.dynamic, candidate.value, candidate.void) == (True, None, "")


def test_a_candidate_says_where_its_setting_stands_and_is_as_sure() -> None:
    line = 'os.environ["CUPY_GPU_MEMORY_LIMIT"] = "50%"'
    setting = Setting(value="50%", where="train.py", line=7, text=line, confidence=Confidence.GUESS)
    (found,) = candidates({"CUPY_GPU_MEMORY_LIMIT": setting})
    assert (found.where, found.line, found.text, found.confidence) == ("train.py", 7, line, Confidence.GUESS)
    for name, value in (("CUDA_DEVICE_MEMORY_LIMIT", "1g"), ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G")):
        (found,) = candidates({name: Setting(value=value, confidence=Confidence.GUESS)})
        assert found.confidence is Confidence.GUESS  # these are likely at most


def test_foreign_text_is_cleaned_and_bounded() -> None:
    (candidate,) = read({"CUPY_GPU_MEMORY_LIMIT": "\x1b[2J" + "9" * 500})
    assert candidate.text.isprintable()
    assert len(candidate.text) <= 80
    assert candidate.void.isprintable()
    (candidate,) = read({"CUPY_GPU_MEMORY_LIMIT": "4g" * 10_000 + " password=hunter2"})
    assert candidate.text == f"CUPY_GPU_MEMORY_LIMIT={'4g' * 28}4…"
    (candidate,) = read({"GENV_GPU_MEMORY": "4g", "GENV_ENVIRONMENT_ID": "\x1b]0;x\x07"})
    assert candidate.scope.isprintable()


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
