"""What /proc says about a process, from fixture trees and from real processes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.base import procfs
from tests.support.process import GpuHolder, fixture_process, stat_line


@given(
    comm=st.binary(max_size=64),
    ppid=st.integers(0, 2**22),
    flags=st.integers(0, 2**32 - 1),
    start_ticks=st.integers(0, 2**63),
)
def test_a_stat_line_is_read_whatever_the_process_calls_itself(
    comm: bytes, ppid: int, flags: int, start_ticks: int
) -> None:
    stat = procfs.parse_stat(stat_line(comm=comm, state="D", ppid=ppid, flags=flags, start_ticks=start_ticks))
    assert (stat.state, stat.ppid, stat.flags, stat.start_ticks) == ("D", ppid, flags, start_ticks)
    assert stat.comm == comm
    assert stat.kernel_thread is bool(flags & 0x200000)


@given(st.binary(max_size=200))
def test_any_other_text_is_a_value_error_or_a_stat(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        procfs.parse_stat(raw)


@pytest.mark.parametrize(
    ("comm", "name"),
    [
        (b"tmux: server", "tmux: server"),
        (b"pt_data_worker", "pt_data_worker"),
        (b"cuda-EvtHandlrX", "cuda-EvtHandlrX"),
        (b"t --pwd=hunter", "t --pwd=***"),
        (b"serve sk-hunter", "serve"),  # the kernel has cut it, so that its shape is not known
        (b"\x1b[2J", "\N{REPLACEMENT CHARACTER}[2J"),
    ],
)
def test_the_name_that_a_process_gives_itself_is_shown_without_a_secret(comm: bytes, name: str) -> None:
    assert procfs.format_name(comm) == name


def test_a_line_cut_short_is_an_error() -> None:
    for raw, match in ((b"7 (python) S 1 7", "3 fields"), (b"7 (x", "no command"), (b") (", "no command")):
        with pytest.raises(ValueError, match=match):
            procfs.parse_stat(raw)


def test_this_process() -> None:
    stat = procfs.read_stat(os.getpid())
    assert (stat.ppid, stat.state, stat.kernel_thread) == (os.getppid(), "R", False)
    assert procfs.read_uids(os.getpid()) == os.getresuid()
    assert os.getpid() in dict(procfs.read_threads(os.getpid()))
    assert not procfs.has_ended(os.getpid())
    assert procfs.find_ancestors(os.getpid())[0] == os.getppid()


def test_open_files_are_named_as_the_kernel_names_them(tmp_path: Path) -> None:
    with (tmp_path / "held").open("w"):
        assert str(tmp_path / "held") in list(procfs.read_open_files(os.getpid()))


def test_a_process_that_has_gone_is_known_by_its_exception(tmp_path: Path) -> None:
    for read in (procfs.read_stat, procfs.read_uids):
        with pytest.raises(procfs.GONE):
            read(7, tmp_path)
    assert list(procfs.read_threads(7, tmp_path)) == []
    assert procfs.has_ended(7, tmp_path)
    assert procfs.find_ancestors(7, tmp_path) == ()
    assert procfs.find_descendants(7, tmp_path) == {}


def test_a_zombie_whose_threads_go_on_has_not_ended(tmp_path: Path) -> None:
    fixture_process(tmp_path, 7, stat_line(state="Z"), threads="ZD")
    (tmp_path / "7" / "task" / "8" / "fd").mkdir()
    (tmp_path / "7" / "task" / "8" / "fd" / "3").symlink_to("/dev/nvidia3")
    (tmp_path / "7" / "task" / "7" / "fd").mkdir()
    assert not procfs.has_ended(7, tmp_path)
    assert list(procfs.read_open_files(7, tmp_path)) == ["/dev/nvidia3"]


def test_what_cannot_be_read_now_may_live(tmp_path: Path) -> None:
    own = procfs.read_stat(os.getpid()).start_ticks
    (tmp_path / "7" / "stat").mkdir(parents=True)  # reading it is an error, though not that of one that has gone
    assert [procfs.is_living(os.getpid(), start) for start in (own, own + 1)] == [True, False]
    assert [procfs.is_living(pid, 0, tmp_path) for pid in (7, 8)] == [True, False]


def test_a_zombie_has_ended(tmp_path: Path) -> None:
    fixture_process(tmp_path, 7, stat_line(state="Z"), threads="ZX")
    assert procfs.has_ended(7, tmp_path)


def test_one_with_more_threads_that_have_ended_than_are_looked_at_has_not_ended(tmp_path: Path) -> None:
    """As far as is known: a debugger keeps them, and what goes on may stand behind them."""
    most = procfs.THREADS_MAX
    fixture_process(tmp_path, 7, stat_line(state="Z"), threads="Z" * most)
    fixture_process(tmp_path, 1000, stat_line(1000, state="Z"), threads="Z" * (most + 1))
    assert procfs.has_ended(7, tmp_path)
    assert not procfs.has_ended(1000, tmp_path)


def test_a_loop_of_parents_ends(tmp_path: Path) -> None:
    fixture_process(tmp_path, 7, stat_line(ppid=8))
    fixture_process(tmp_path, 8, stat_line(ppid=7))
    assert procfs.find_ancestors(7, tmp_path) == (8, 7)


@pytest.mark.slow
def test_descendants_are_found_without_a_walk_over_all_processes() -> None:
    with GpuHolder(children=2) as holder:
        found = procfs.find_descendants(holder.pid)
        assert found == {pid: procfs.read_stat(pid).start_ticks for pid in holder.children}
        assert holder.pid in procfs.find_descendants(os.getpid())


def test_a_status_file_without_uids_is_an_error(tmp_path: Path) -> None:
    fixture_process(tmp_path, 7, stat_line())
    (tmp_path / "7" / "status").write_text("Name:\tx\n")
    with pytest.raises(ValueError, match="lacks a field"):
        procfs.read_uids(7, tmp_path)


@pytest.mark.parametrize(("link", "expected"), [("pid:[4026531836]", False), ("pid:[4026532201]", True), ("", False)])
def test_whose_pids_these_are(tmp_path: Path, link: str, expected: bool) -> None:
    folder = tmp_path / "self" / "ns"
    folder.mkdir(parents=True)
    if link:
        (folder / "pid").symlink_to(link)
    assert procfs.is_in_pid_namespace(tmp_path) is expected
