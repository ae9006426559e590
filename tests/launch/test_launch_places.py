"""The folders in which runs meet: locks that are waited for and passed over, and what a run leaves there."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import threading
import time
from pathlib import Path

import pytest

from gpuwatch import procfs
from gpuwatch.launch.reservations import locked, release, reserve
from gpuwatch.sampler.reservations import Found, Place, peek, places, read
from tests.support.gpuholder import SOMEBODY_ELSE
from tests.support.reserving import GPU, needs_root


@pytest.fixture
def both(tmp_path: Path) -> tuple[Place, Place]:
    """Return a folder of the user's own and a shared one; neither is there yet."""
    return Place(tmp_path / "own"), Place(tmp_path / "shared", shared=True)


def never(words: str) -> None:
    """Fail at any warning."""
    raise AssertionError(words)


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
        assert read(opened, ()) == Found([], [])
    assert said == [f"no lock is shared with other users: {nowhere.path}: No such file or directory"]
    assert peek([nowhere], ()) == Found([], [])


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
    assert len(peek(both, ()).reserved) == 1
    assert peek(both, (), caller=os.getpid()).reserved == [], "what this process reserved itself is not in its own way"
    release(both)
    assert not file.exists()
