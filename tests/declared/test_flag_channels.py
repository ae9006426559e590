"""Flags of servers and workers: on their own program's command line only, and as that program reads them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.facts import FrameworkConfig, Unread
from gpuwatch.declared.flags import FLAGS, PROGRAMS, candidates, find_program
from gpuwatch.declared.frameworks import NAMES
from gpuwatch.model.snapshot import Confidence
from tests.declared.tables import Case, cases


@cases("declared/flags")
def test_a_flag_is_read_as_its_program_reads_it(case: Case) -> None:
    found = candidates(tuple(shlex.split(case["line"])), "command line of parent 812")
    assert len(found) == len(case["expect"])
    for candidate, fields in zip(found, case["expect"], strict=True):
        assert {name: getattr(candidate, name) for name in fields} == fields
        assert candidate.void == fields.get("void", "")
        assert (candidate.where, candidate.device) == ("command line of parent 812", None)


@cases("declared/programs")
def test_a_program_is_known_by_its_name_module_or_title(case: Case) -> None:
    found = find_program(tuple(shlex.split(case["line"])))
    assert (found.program.framework if found else None) == case["framework"]


def test_every_flag_belongs_to_a_program_and_every_framework_has_a_name() -> None:
    assert {flag.program for flag in FLAGS} <= {program.framework for program in PROGRAMS}
    for flag in FLAGS:
        owner = flag.framework or flag.program
        assert not owner or owner in NAMES
    assert {program.framework for program in PROGRAMS} <= set(NAMES)


WORDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from([name for flag in FLAGS for name in flag.names]),
    st.sampled_from([f"{name}=0.5" for flag in FLAGS for name in flag.names]),
    st.sampled_from(["0.5", "1:2", "-m", "--", "tensorflow,gpu-memory-fraction=1"]),
)


STARTS = st.sampled_from(["python", "vllm", "tritonserver", "dask-cuda-worker", "llama-server", "VLLM::", ""])


@given(STARTS, st.lists(WORDS, max_size=8))
def test_no_command_line_is_too_odd(first: str, rest: list[str]) -> None:
    for candidate in candidates((first, *rest)):
        assert candidate.text.isprintable()
        assert len(candidate.text) <= 80
        assert (candidate.value is None) == (bool(candidate.void) or candidate.dynamic)


@pytest.mark.parametrize("text", [Unread.DENIED, "a: *b\n", "model: m\n"])
def test_a_flag_beside_a_file_that_is_not_read_may_be_replaced(text: str | Unread) -> None:
    """The file may give kv-cache-memory-bytes, and then vLLM ignores the fraction."""
    argv = ("vllm", "serve", "--config", "c.yaml", "--gpu-memory-utilization", "0.3")
    (one,) = candidates(argv, config=FrameworkConfig(path="c.yaml", text=text))
    read = text == "model: m\n"
    assert (one.value, one.void) == (0.3, "")
    assert one.confidence is (Confidence.CERTAIN if read else Confidence.POSSIBLE)
    assert one.condition == ("" if read else "unless c.yaml has kv-cache-memory-bytes")
