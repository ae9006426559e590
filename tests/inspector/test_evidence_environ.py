"""The environment of a process, from its bytes: made-up blocks, and those of real processes."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.facts import Unread
from gpuwatch.inspector import files, reader
from tests.support.sharer import sharing, sleeping

NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: not set(name) & set(b"=\0"))
VALUES = st.binary(max_size=40).filter(lambda value: 0 not in value)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"", {}),
        (b"A=1\0B=2\0", {"A": "1", "B": "2"}),
        (b"A=1\0A=2\0", {"A": "1"}),
        (b"A=\0", {"A": ""}),
        (b"A=b=c\0", {"A": "b=c"}),
        (b"no sign\0A=1\0", {"A": "1"}),
        (b"=x\0A=1\0", {"A": "1"}),
        (b"\0\0A=1\0", {"A": "1"}),
        (b"SECRET=\0\0\0\0A=1\0", {"SECRET": "", "A": "1"}),
        (b"A=1", {"A": "1"}),
        (b"\0" * 1734, Unread.OVERWRITTEN),
        (b"VLLM::EngineCore" + b"\0" * 400, Unread.OVERWRITTEN),
        (b"core --rank=3" + b"\0" * 400, Unread.OVERWRITTEN),
        (b"\0", Unread.OVERWRITTEN),
    ],
)
def test_a_block_is_an_environment_or_was_overwritten(block: bytes, expected: object) -> None:
    """A title over it leaves NULs; a single variable that was wiped does not make it unknown."""
    assert files.parse_environ(block) == expected


@given(st.lists(st.tuples(NAMES, VALUES), max_size=20))
def test_what_was_written_is_read_again(pairs: list[tuple[bytes, bytes]]) -> None:
    """Byte for byte, and of one name given twice the first, as getenv has it."""
    found = files.parse_environ(b"".join(name + b"=" + value + b"\0" for name, value in pairs))
    assert not isinstance(found, Unread)
    expected: dict[bytes, bytes] = {}
    for name, value in pairs:
        expected.setdefault(name, value)
    assert {files.encode_environ(name): files.encode_environ(value) for name, value in found.items()} == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_an_environment_or_none(block: bytes) -> None:
    """Nobody's memory makes it raise."""
    found = files.parse_environ(block)
    assert found is Unread.OVERWRITTEN or isinstance(found, dict)


# -- real processes ------------------------------------------------------------------------------------------------


def test_duplicates_and_odd_entries_of_a_real_process() -> None:
    """The kernel passes on whatever execve(2) was given; the first of two is what the program sees."""
    with sleeping(b"CUDA_VISIBLE_DEVICES=1", b"odd", b"CUDA_VISIBLE_DEVICES=2", b"NAME=\xff\xfe") as pid:
        found = reader.read(pid).environ
    assert found == {"CUDA_VISIBLE_DEVICES": "1", "NAME": "\udcff\udcfe"}


def test_an_empty_environment_is_read_and_empty() -> None:
    """Nothing was declared there, which is not the same as that nothing is known."""
    with sleeping() as pid:
        assert reader.read(pid).environ == {}


def test_a_large_environment_is_read_to_its_end() -> None:
    """100 kB, with what matters behind it."""
    large = {f"FILLER_{number}": "x" * 1000 for number in range(100)}
    with sharing("train.py", environ={**large, "XLA_PYTHON_CLIENT_MEM_FRACTION": ".3"}) as process:
        found = reader.read(process.pid).environ
    assert not isinstance(found, Unread)
    assert found["XLA_PYTHON_CLIENT_MEM_FRACTION"] == ".3"


def test_an_environment_that_is_too_long_is_not_read() -> None:
    """It is bounded, and said to be unread: what stands at its end is not known."""
    many = {f"FILLER_{number}": "x" * 100_000 for number in range(3)}
    with sharing("train.py", environ=many) as process:
        assert reader.read(process.pid).environ is Unread.LONG


@pytest.mark.parametrize("title", ["VLLM::EngineCore", "worker --share=0.4 " + "x" * 60])
def test_a_title_over_the_environment_hides_it(title: str) -> None:
    """As setproctitle does; os.environ works on, and /proc shows NULs."""
    first = f"set_title({title.encode()!r})\nassert os.environ['CUDA_VISIBLE_DEVICES'] == '1'"
    given = {"CUDA_VISIBLE_DEVICES": "1", "FILLER": "x" * 400}
    with sharing("train.py", environ=given, first=first) as process:
        facts = reader.read(process.pid)
    assert facts.environ is Unread.OVERWRITTEN
    assert facts.argv[0].startswith(title[:16])


def test_what_a_program_sets_later_is_not_in_it() -> None:
    """proc_pid_environ(5): it is what execve was given."""
    first = "os.environ['CUDA_VISIBLE_DEVICES'] = '2'"
    with sharing("train.py", environ={"CUDA_VISIBLE_DEVICES": "0,1"}, first=first) as process:
        found = reader.read(process.pid).environ
    assert not isinstance(found, Unread)
    assert found["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as any other; what was set since we started is not there."""
    monkeypatch.setenv("GPUWATCH_TEST_LATER", "1")
    found = reader.read(os.getpid()).environ
    assert not isinstance(found, Unread)
    assert "GPUWATCH_TEST_LATER" not in found
