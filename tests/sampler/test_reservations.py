"""Reservations of `gpuwatch run`: the folder that runs lock and share, and what others read there of real processes."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.base import procfs
from gpuwatch.model.shares import Reservation
from gpuwatch.sampler.reservations import (
    MOST,
    ReservationReader,
    locked_folder,
    read_reservations,
    reservation_folders,
    reserve,
)
from tests.support.process import SOMEBODY_ELSE, Member, family
from tests.support.program import GPU, needs_root, starting, write

Folders = tuple[Path, Path]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def both(tmp_path: Path) -> Folders:
    """Return the folder of all users and that of this user; neither is there yet."""
    return tmp_path / "shared", tmp_path / "own"


@pytest.fixture
def sleeper() -> Iterator[Start]:
    """Return a function that starts a process which does nothing until it is ended."""
    with starting() as cat:
        yield lambda uid=None: cat(user=uid)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def found(both: Folders, *holders: int) -> list[Reservation]:
    """Read as `gpuwatch pick` does."""
    return read_reservations(both, holders, caller=os.getpid(), sweep=True)


# -- what counts -----------------------------------------------------------------------------------------------------


def test_a_reservation_lives_as_long_as_its_process(both: Folders, sleeper: Start) -> None:
    process = sleeper()
    file = write(both[0], process.pid)
    (one,) = found(both, process.pid, os.getpid())
    assert one == Reservation(frozenset({process.pid}), os.getuid(), {GPU: 1000}, file.stat().st_ctime)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie holds nothing either
    assert read_reservations(both, ()) == []
    assert file.exists()
    assert ReservationReader(both).read(()) == []
    assert not file.exists(), "a stream removes its user's own"


def test_a_pid_that_was_given_away_again_reserves_nothing(both: Folders, sleeper: Start) -> None:
    write(both[0], sleeper().pid, start=12)
    assert found(both) == []


def test_nobody_reserves_in_the_name_of_another(both: Folders, sleeper: Start) -> None:
    needs_root()
    theirs, mine = sleeper(SOMEBODY_ELSE), sleeper()
    write(both[0], mine.pid, owner=SOMEBODY_ELSE)
    assert found(both) == []
    write(both[0], theirs.pid, owner=SOMEBODY_ELSE)
    (one,) = found(both, theirs.pid)
    assert (one.uid, one.pids) == (SOMEBODY_ELSE, frozenset({theirs.pid}))
    end(theirs)
    assert found(both) == []
    assert len(list(both[0].iterdir())) == 1, "root removes what has ended, and nothing that names a living process"


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "[]", '{"pid": 1}', '{"gpus": {"GPU-1": -5}}', '{"gpus": {"GPU-1": 1e300}}'),
        *('{"gpus": {"GPU-1": 9007199254740993000}}', "[" * 20_000, '{"gpus": "GPU-1"}'),
        '{"gpus": {' + ",".join(f'"GPU-{n}": 1' for n in range(100)) + "}}",
    ],
)
def test_what_makes_no_sense_reserves_nothing(both: Folders, sleeper: Start, text: str) -> None:
    write(both[0], sleeper().pid, text=text)
    assert found(both) == []


def test_a_reservation_within_another_one_is_not_added_to_it(both: Folders) -> None:
    """A script that was started by `gpuwatch run` starts its programs by `gpuwatch run`."""
    tree = Member("1", children=(Member("2", children=(Member("3", children=(Member("4"),)),)),))
    with family(tree) as started:
        pids = [started.pids[name] for name in tree.names]
        for pid, size in zip(pids[:3], (30, 20, 40), strict=True):
            write(both[0], pid, gpus={GPU: size, f"GPU-{size}": size})
        (one,) = found(both, *pids, os.getpid())
        assert (one.gpus, one.pids) == ({GPU: 40, "GPU-30": 30, "GPU-20": 20, "GPU-40": 40}, frozenset(pids))
        assert one.made == max(file.stat().st_ctime for file in both[0].iterdir())


def test_what_was_reserved_for_whoever_asks_is_not_in_its_way(both: Folders, sleeper: Start) -> None:
    """A script that was started by `gpuwatch run` asks for its program; what it runs beside that still counts."""
    write(both[0], os.getppid())
    assert found(both) == []
    assert len(read_reservations(both, ())) == 1, "the stream shows it all the same"
    beside = sleeper().pid
    write(both[1], beside, gpus={GPU: 20})
    (one,) = found(both, beside)
    assert (one.gpus, one.pids) == ({GPU: 20}, frozenset({beside}))


def test_planted_names_neither_hang_nor_lead_astray(both: Folders, tmp_path: Path, sleeper: Start) -> None:
    folder, process = both[0], sleeper()
    real = write(tmp_path / "elsewhere", process.pid)
    folder.mkdir()
    name = folder / real.name
    for plant in (os.mkfifo, os.mkdir):
        plant(name)
        assert found(both) == []
        name.unlink() if name.is_fifo() else name.rmdir()
    name.symlink_to(real)
    (folder / "notes.txt").write_text(real.read_text())
    assert found(both) == []
    assert {one.name for one in folder.iterdir()} == {name.name, "notes.txt"}
    both[1].symlink_to(real.parent)
    assert found(both) == [], "a folder that is a link is not read"


def test_of_one_owners_flood_so_many_files_are_read(both: Folders, tmp_path: Path) -> None:
    both[0].mkdir()
    for number in range(MOST + 100):
        (both[0] / f"1-{number}.json").touch()
    warnings: list[str] = []
    assert read_reservations(both, (), sweep=True, warn=warnings.append, proc=tmp_path) == []
    assert len(list(both[0].iterdir())) == 100, "those that were read are swept"
    assert warnings == [f"uid {os.geteuid()} has more than {MOST} files in {both[0]}; the rest is not read"]


def test_a_flood_of_one_user_hides_nobody_elses_and_root_removes_it(both: Folders, sleeper: Start) -> None:
    needs_root()
    both[0].mkdir()
    for number in range(MOST + 100):
        file = both[0] / f"{2**22 + 1}-{number}.json"
        file.touch()
        os.chown(file, SOMEBODY_ELSE, SOMEBODY_ELSE)
    process = sleeper()
    write(both[0], process.pid)
    assert len(read_reservations(both, ())) == 1
    now = 100.0
    stream = ReservationReader(both, clock=lambda: now)
    for _ in range(2):
        assert len(stream.read(())) == 1
        now += 60
    assert len(list(both[0].iterdir())) == 1, "the service of the machine removes what has ended within a minute"


def test_the_stream_reads_again_now_and_then_and_where_the_holders_changed(both: Folders, sleeper: Start) -> None:
    now = 100.0
    stream = ReservationReader(both, clock=lambda: now)
    assert stream.read(set()) == []
    process = sleeper()
    write(both[0], process.pid)
    assert stream.read(set()) == [], "nothing is read on a tick on which no holder changed"
    assert [one.pids for one in stream.read({process.pid})] == [frozenset({process.pid})]
    end(process)
    assert len(stream.read({process.pid})) == 1
    now += 2
    assert stream.read({process.pid}) == [], "but now and then"


# -- the folder, and its lock ----------------------------------------------------------------------------------------


def lines(both: Folders, **options: Any) -> tuple[int | None, list[str]]:
    """Lock and reserve as `gpuwatch run` does; return the inode of the folder, and the warnings."""
    warnings: list[str] = []
    with locked_folder(both, warnings.append, **options) as folder:
        inode = None if folder is None else os.fstat(folder).st_ino
        if folder is not None:
            reserve(folder, {GPU: 5}, warnings.append)
    return inode, warnings


def test_a_run_reserves_where_all_see_it_whatever_the_umask(tmp_path: Path) -> None:
    folders = reservation_folders(tmp_path / "shared")
    before = os.umask(0o077)
    try:
        for _ in range(2):  # the second is of a run within this run
            assert lines(folders) == (folders[0].stat().st_ino, [])
    finally:
        os.umask(before)
    (file,) = folders[0].iterdir()
    start = procfs.read_stat(os.getpid()).start_ticks
    assert json.loads(file.read_text()) == {"pid": os.getpid(), "start": start, "gpus": {GPU: 5}}
    assert (folders[0].stat().st_mode & 0o7777, file.stat().st_mode & 0o777) == (0o1777, 0o644)
    assert len(read_reservations(folders, ())) == 1


@pytest.mark.parametrize("what", ["link", "file", "fifo", "mode 755", "mode 777", "no parent"])
def test_where_the_shared_folder_cannot_be_used_that_of_the_user_is(both: Folders, tmp_path: Path, what: str) -> None:
    shared, own = both
    reason = "it is a link or not a folder"
    if what == "link":
        shared.symlink_to(tmp_path)
    elif what == "file":
        shared.touch()
    elif what == "fifo":
        os.mkfifo(shared)
    elif what == "no parent":
        shared, reason = tmp_path / "missing" / "shared", "No such file or directory"
    else:
        needs_root()
        shared.mkdir()
        shared.chmod(int(what[5:], 8))
        os.chown(shared, SOMEBODY_ELSE, SOMEBODY_ELSE)
        reason = f"its mode is {what[5:]}, not 1777"
    inode, warnings = lines((shared, own))
    assert (inode, warnings) == (own.stat().st_ino, [f"not locked against other users: {shared}: {reason}"])
    assert own.stat().st_mode & 0o7777 == 0o700
    own.rename(tmp_path / "before")
    own.touch()
    inode, warnings = lines((shared, own))
    assert inode is None
    assert warnings[1].startswith(f"not locked against your other runs: {own}: ")


def test_one_at_a_time(both: Folders) -> None:
    inside: list[int] = []

    def choose() -> None:
        for _ in range(20):
            with locked_folder(both, pytest.fail, patience=60):
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    threads = [threading.Thread(target=choose) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_a_lock_is_waited_for_and_passed_over_aloud(both: Folders) -> None:
    lines(both)
    other = os.open(both[0], os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    now = itertools.count(0, 4)
    inode, warnings = lines(both, clock=lambda: float(next(now)))
    assert inode == both[0].stat().st_ino, "what is reserved there still counts"
    assert warnings == [f"{both[0]} has been locked for 10 s; continuing without the lock"]
    asked = itertools.count()

    def clock() -> float:
        if next(asked) == 4:  # the other one is done, after some looks in vain
            os.close(other)
        return 0.0

    assert lines(both, clock=clock) == (both[0].stat().st_ino, [])


def test_a_folder_that_cannot_be_written_is_said(both: Folders) -> None:
    warnings: list[str] = []
    folder = os.open("/proc/self", os.O_RDONLY)
    reserve(folder, {GPU: 7}, warnings.append)
    os.close(folder)
    assert warnings[0].startswith("nothing is reserved: ")
