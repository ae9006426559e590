"""The folders in which runs meet: locks that are waited for and passed over, and reservations of living processes."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch import procfs
from gpuwatch.actions.launch import Reserved
from gpuwatch.actions.launch_places import Place, locked, peek, places, release, reserve, reserved
from tests.gpuholder import ROOT, SOMEBODY_ELSE, unavailable
from tests.launching import starting

GPU = "GPU-aaaa0001"


@pytest.fixture
def both(tmp_path: Path) -> tuple[Place, Place]:
    """Give a folder of the user's own and a shared one; neither is there yet."""
    return Place(tmp_path / "own"), Place(tmp_path / "shared", shared=True)


def never(words: str) -> None:
    """Fail at any warning."""
    raise AssertionError(words)


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Give a function that starts a process which does nothing until it is ended."""
    with starting() as cat:
        yield lambda uid=None: cat(user=uid)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def write(
    place: Place, pid: int, *, start: int | None = None, owner: int | None = None, text: str | None = None
) -> Path:
    """Write what another run would have written."""
    start = procfs.read_stat(pid).start_ticks if start is None else start
    place.path.mkdir(exist_ok=True, mode=0o700)
    file = place.path / f"{pid}-{start}.json"
    file.write_text(json.dumps({"pid": pid, "start": start, "gpus": {GPU: 1000}}) if text is None else text)
    if owner is not None:
        os.chown(file, owner, owner)
    return file


def needs_root() -> None:
    if not ROOT:
        unavailable("another user's files need root")


# -- where -----------------------------------------------------------------------------------------------------------


def test_the_users_own_folder_is_in_the_runtime_folder(tmp_path: Path) -> None:
    own, shared = places(tmp_path / "s", {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert own == (tmp_path / "gpuwatch", False)
    assert shared == (tmp_path / "s", True)


def test_a_runtime_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """sudo -E hands it on; what root makes there its owner could not use."""
    own, _ = places(environ={"XDG_RUNTIME_DIR": str(tmp_path)}, uid=3_999_999)
    assert own.path.parent != tmp_path


@pytest.mark.parametrize("given", ["", "relative", "/nowhere/at/all"])
def test_without_a_runtime_folder_it_is_in_that_for_temporary_files(given: str) -> None:
    own, _ = places(environ={"XDG_RUNTIME_DIR": given}, uid=3_999_999)
    assert own.path.name == "gpuwatch-3999999"
    assert own.path.parent.is_dir()


# -- locks -----------------------------------------------------------------------------------------------------------


def test_both_folders_are_made_as_they_must_be_whatever_the_umask(both: tuple[Place, Place]) -> None:
    before = os.umask(0o077)
    try:
        with locked(both, never) as opened:
            assert [folder.place for folder in opened] == list(both)
    finally:
        os.umask(before)
    assert [place.path.stat().st_mode & 0o7777 for place in both] == [0o700, 0o1777]


def test_one_at_a_time(both: tuple[Place, Place]) -> None:
    inside: list[int] = []
    most = itertools.count()

    def choose() -> None:
        for _ in range(20):
            with locked(both, never, patience=60):
                inside.append(1)
                assert len(inside) == 1
                next(most)
                inside.pop()

    threads = [threading.Thread(target=choose) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert next(most) == 80


def test_a_lock_that_is_never_given_back_is_passed_over_aloud(both: tuple[Place, Place]) -> None:
    with locked(both, never):
        own, shared = (os.open(place.path, os.O_RDONLY) for place in both)
    fcntl.flock(shared, fcntl.LOCK_EX)
    said: list[str] = []
    now = itertools.count(0, 4)
    try:
        with locked(both, said.append, clock=lambda: float(next(now))) as opened:
            assert len(opened) == 2, "what is reserved there still counts"
            with pytest.raises(BlockingIOError):
                fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(own)
        os.close(shared)
    assert said == [f"somebody has locked {both[1].path} for 10 s; going on without waiting"]


def test_a_lock_is_waited_for(both: tuple[Place, Place]) -> None:
    with locked(both, never):
        shared = os.open(both[1].path, os.O_RDONLY)
    fcntl.flock(shared, fcntl.LOCK_EX)
    asked: list[float] = []

    def clock() -> float:
        asked.append(time.monotonic())
        if len(asked) == 5:  # the other one is done, after some looks in vain
            os.close(shared)
        return 0.0

    with locked(both, never, clock=clock) as opened:
        assert len(opened) == 2
    assert len(asked) >= 5


# -- hostile folders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("what", ["link", "dangling link", "file", "fifo"])
def test_what_is_no_folder_is_not_used(both: tuple[Place, Place], tmp_path: Path, which: int, what: str) -> None:
    target, place = tmp_path / "target", both[which].path
    if "link" in what:
        place.symlink_to(target)
    elif what == "file":
        place.write_text("")
    else:
        os.mkfifo(place)
    if what == "link":
        target.mkdir(mode=0o755)
    said: list[str] = []
    with locked(both, said.append) as opened:
        assert [folder.place for folder in opened] == [both[1 - which]]
    (words,) = said
    assert words.endswith("it is a link, or no folder")
    assert str(place) in words
    assert what != "link" or (target.stat().st_mode & 0o777 == 0o755 and not list(target.iterdir()))


def test_a_folder_of_ones_own_that_is_another_users_is_not_used(both: tuple[Place, Place]) -> None:
    needs_root()
    both[0].path.mkdir()
    os.chown(both[0].path, SOMEBODY_ELSE, SOMEBODY_ELSE)
    said: list[str] = []
    with locked(both, said.append) as opened:
        assert [folder.place for folder in opened] == [both[1]]
    assert said == [f"you have no lock of your own: {both[0].path}: it belongs to uid {SOMEBODY_ELSE}"]


def test_a_shared_folder_that_others_cannot_use_is_not_used(both: tuple[Place, Place]) -> None:
    needs_root()
    both[1].path.mkdir()
    os.chown(both[1].path, SOMEBODY_ELSE, SOMEBODY_ELSE)
    for mode in (0o755, 0o777):  # in the second one everybody could remove everything
        both[1].path.chmod(mode)
        said: list[str] = []
        with locked(both, said.append) as opened:
            assert [folder.place for folder in opened] == [both[0]]
        assert said == [f"no lock is shared with other users: {both[1].path}: its mode is {mode:o} and not 1777"]


def test_a_shared_folder_that_somebody_else_made_serves_all(both: tuple[Place, Place]) -> None:
    needs_root()
    both[1].path.mkdir()
    os.chown(both[1].path, SOMEBODY_ELSE, SOMEBODY_ELSE)
    both[1].path.chmod(0o1777)
    with locked(both, never) as opened:
        reserve(opened, {GPU: 1}, never)
    (file,) = both[1].path.iterdir()
    assert file.stat().st_uid == os.geteuid()


def test_where_no_folder_can_be_made_it_is_said_and_nothing_stops(tmp_path: Path) -> None:
    nowhere = Place(tmp_path / "missing" / "gpuwatch", shared=True)
    said: list[str] = []
    with locked([nowhere], said.append) as opened:
        assert opened == []
        reserve(opened, {GPU: 1}, said.append)
        assert reserved(opened) == []
    assert said == [f"no lock is shared with other users: {nowhere.path}: No such file or directory"]
    assert peek([nowhere]) == []


def test_a_folder_that_cannot_be_written_leaves_the_other_one(both: tuple[Place, Place]) -> None:
    with locked(both, never) as opened:
        own, shared = opened
        closed = shared._replace(fd=os.open("/proc/self", os.O_RDONLY))
        said: list[str] = []
        try:
            reserve([own, closed], {GPU: 7}, said.append)
        finally:
            os.close(closed.fd)
    assert len(said) == 1
    assert said[0].startswith(f"nothing is reserved in {both[1].path}: ")
    assert len(list(both[0].path.iterdir())) == 1


# -- reservations ----------------------------------------------------------------------------------------------------


def test_a_reservation_is_where_all_see_it_and_readable_by_all(both: tuple[Place, Place]) -> None:
    before = os.umask(0o077)
    try:
        with locked(both, never) as opened:
            reserve(opened, {GPU: 5}, never)
            reserve(opened, {GPU: 6}, never)  # a run within this run
    finally:
        os.umask(before)
    assert list(both[0].path.iterdir()) == []
    (file,) = both[1].path.iterdir()
    start = procfs.read_stat(os.getpid()).start_ticks
    assert json.loads(file.read_text()) == {"pid": os.getpid(), "start": start, "gpus": {GPU: 6}}
    assert file.stat().st_mode & 0o777 == 0o644
    assert peek(both) == [], "what this process reserved itself is not in its own way"
    release(both)
    assert not file.exists()


def test_a_reservation_lives_as_long_as_its_process(
    both: tuple[Place, Place], sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = sleeper()
    file = write(both[0], process.pid)
    (one,) = peek(both)
    assert one == Reserved(frozenset({process.pid}), os.getuid(), {GPU: 1000})
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie holds nothing either
    assert peek(both) == []
    assert not file.exists(), "whoever reads removes their own"


def test_a_pid_that_was_given_away_again_reserves_nothing(
    both: tuple[Place, Place], sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    file = write(both[0], sleeper().pid, start=12)
    assert peek(both) == []
    assert not file.exists()


def test_what_the_program_starts_counts_as_its_own(both: tuple[Place, Place]) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; cat; kill $!"], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        write(both[0], process.pid)
        (one,) = peek(both)
        assert one.pids >= {process.pid, child}
        process.communicate()


def test_nobody_reserves_in_the_name_of_another(
    both: tuple[Place, Place], sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    needs_root()
    with locked(both, never):
        pass
    theirs, mine = sleeper(SOMEBODY_ELSE), sleeper()
    forged = write(both[1], mine.pid, owner=SOMEBODY_ELSE)
    assert peek(both) == []
    assert forged.exists(), "it is not ours to remove"
    write(both[1], theirs.pid, owner=SOMEBODY_ELSE)
    (one,) = peek(both)
    assert (one.uid, one.pids) == (SOMEBODY_ELSE, frozenset({theirs.pid}))
    end(theirs)
    assert peek(both) == []
    assert len(list(both[1].path.iterdir())) == 2, "and neither are theirs"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        '{"pid": 1}',
        '{"pid": %d, "start": %d, "gpus": {"GPU-1": -5}}',
        '{"pid": %d, "start": %d, "gpus": {"GPU-1": 1e300}}',
        '{"pid": %d, "start": %d, "gpus": {"GPU-1": 9007199254740993000}}',
        '{"pid": %d, "start": %d, "gpus": {"GPU-1": 1}, "more": 1}',
        "[" * 20_000,
    ],
)
def test_what_makes_no_sense_reserves_nothing(
    both: tuple[Place, Place], sleeper: Callable[..., subprocess.Popen[bytes]], text: str
) -> None:
    pid = sleeper().pid
    values = (pid, procfs.read_stat(pid).start_ticks)
    write(both[0], pid, text=text % values if "%" in text else text)
    assert peek(both) == []


def test_one_process_reserves_once(both: tuple[Place, Place], sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    """Else thousands of files of one process would each cost a walk over all below it."""
    real = write(both[0], sleeper().pid)
    for number in range(3):
        (real.parent / f"{number}-{number}.json").write_text(real.read_text())
    assert len(peek(both)) == 1


def test_what_was_reserved_for_whoever_asks_is_not_in_its_way(both: tuple[Place, Place]) -> None:
    """A script that was started by `gpuwatch run` asks for its program."""
    write(both[0], os.getppid())
    assert peek(both) == []


def test_planted_names_neither_hang_nor_lead_astray(
    both: tuple[Place, Place], tmp_path: Path, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    folder, pid = both[0].path, sleeper().pid
    real = write(Place(tmp_path / "elsewhere"), pid)
    folder.mkdir()
    os.mkfifo(folder / "1-1.json")
    (folder / "2-2.json").mkdir()
    (folder / "3-3.json").symlink_to(real)
    (folder / "notes.txt").write_text(real.read_text())
    assert peek(both) == []
    assert (folder / "3-3.json").is_symlink()


def test_a_process_that_ends_while_it_is_read_reserves_nothing(both: tuple[Place, Place], tmp_path: Path) -> None:
    """Its stat is there and its status is gone: so it looks between two reads."""
    process = tmp_path / "proc" / "77"
    (process / "task" / "77").mkdir(parents=True)
    stat = Path(f"/proc/{os.getpid()}/stat").read_bytes()
    for folder in (process, process / "task" / "77"):
        (folder / "stat").write_bytes(stat)
    write(both[0], 77, start=procfs.parse_stat(stat).start_ticks)
    assert peek(both, proc=tmp_path / "proc") == []
