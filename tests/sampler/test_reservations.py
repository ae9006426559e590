"""What `gpuwatch run` reserved, as others read it: real files of real processes, some of them hostile."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch import procfs
from gpuwatch.launch.reservations import locked
from gpuwatch.sampler.reservations import Found, Place, Reservations, peek, read
from gpuwatch.shares import Reservation
from tests.support.gpuholder import SOMEBODY_ELSE
from tests.support.launching import starting
from tests.support.reserving import GPU, family, junk, needs_root, write

ANOTHER = SOMEBODY_ELSE + 1

Places = tuple[Place, Place]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def both(tmp_path: Path) -> tuple[Place, Place]:
    """Return a folder of the user's own and a shared one; neither is there yet."""
    return Place(tmp_path / "own"), Place(tmp_path / "shared", shared=True)


@pytest.fixture
def sleeper() -> Iterator[Start]:
    """Return a function that starts a process which does nothing until it is ended."""
    with starting() as cat:
        yield lambda uid=None: cat(user=uid)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def found(both: Places, *holders: int) -> list[Reservation]:
    """Read as `gpuwatch pick` does."""
    return list(peek(both, holders, caller=os.getpid()).reserved)


# -- what counts -----------------------------------------------------------------------------------------------------


def test_a_reservation_lives_as_long_as_its_process(both: Places, sleeper: Start) -> None:
    process = sleeper()
    file = write(both[0], process.pid)
    (one,) = found(both, process.pid, os.getpid())
    assert (one.pids, one.uid, one.gpus) == (frozenset({process.pid}), os.getuid(), {GPU: 1000})
    assert one.made == file.stat().st_ctime
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie holds nothing either
    assert found(both) == []
    assert not file.exists(), "whoever reads removes their own"


def test_the_stream_removes_nothing(both: Places, sleeper: Start) -> None:
    process = sleeper()
    file = write(both[0], process.pid)
    end(process)
    assert Reservations(both).read(()) == []
    assert file.exists()


def test_a_pid_that_was_given_away_again_reserves_nothing(both: Places, sleeper: Start) -> None:
    file = write(both[0], sleeper().pid, start=12)
    assert found(both) == []
    assert not file.exists()


def test_what_the_program_starts_counts_as_its_own(both: Places) -> None:
    with family("nested", 3) as pids:
        write(both[0], pids[0])
        (one,) = found(both, *pids, os.getpid())
        assert one.pids == frozenset(pids)


def test_nobody_reserves_in_the_name_of_another(both: Places, sleeper: Start) -> None:
    needs_root()
    theirs, mine = sleeper(SOMEBODY_ELSE), sleeper()
    forged = write(both[1], mine.pid, owner=SOMEBODY_ELSE)
    assert found(both) == []
    assert forged.exists(), "it is not ours to remove"
    write(both[1], theirs.pid, owner=SOMEBODY_ELSE)
    (one,) = found(both, theirs.pid)
    assert (one.uid, one.pids) == (SOMEBODY_ELSE, frozenset({theirs.pid}))
    end(theirs)
    assert found(both) == []
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
        '{"pid": %d, "start": %d, "gpus": {' + ",".join(f'"GPU-{n}": 1' for n in range(100)) + "}}",
        "[" * 20_000,
    ],
)
def test_what_makes_no_sense_reserves_nothing(both: Places, sleeper: Start, text: str) -> None:
    pid = sleeper().pid
    values = (pid, procfs.read_stat(pid).start_ticks)
    write(both[0], pid, text=text % values if "%" in text else text)
    assert found(both) == []


def test_a_reservation_within_another_one_is_not_added_to_it(both: Places) -> None:
    """A script that was started by `gpuwatch run` starts its programs by `gpuwatch run`."""
    with family("nested", 4) as pids:
        for pid, size in zip(pids, (30, 20, 20, 10), strict=True):
            write(both[0], pid, gpus={GPU: size})
        (one,) = found(both, *pids)
        assert (one.gpus, one.pids) == ({GPU: 30}, frozenset(pids))
        assert one.made == max(file.stat().st_ctime for file in both[0].path.iterdir())


def test_reservations_within_one_that_is_smaller_count_together(both: Places) -> None:
    with family("siblings", 2) as pids:
        head = procfs.read_stat(pids[0]).ppid
        write(both[0], head, gpus={GPU: 30, "GPU-2": 5})
        for pid in pids:
            write(both[0], pid, gpus={GPU: 20})
        (one,) = found(both, *pids)
        assert (one.gpus, one.pids) == ({GPU: 40, "GPU-2": 5}, frozenset(pids))


def test_reservations_within_each_other_name_no_more_gpus_than_one_may(both: Places) -> None:
    """Made-up names, other ones in each, would take seconds to add up with the lock held."""
    with family("nested", 4) as pids:
        for place, pid in enumerate(pids):
            write(both[0], pid, gpus={GPU: 10 * place + 10} | {f"GPU-{place}-{n}": 1 for n in range(63)})
        (one,) = found(both)
        assert len(one.gpus) == 64
        assert one.gpus[GPU] == 40


def test_what_was_reserved_for_whoever_asks_is_not_in_its_way(both: Places) -> None:
    """A script that was started by `gpuwatch run` asks for its program; what it runs beside that still counts."""
    write(both[0], os.getppid())
    assert found(both) == []
    assert len(peek(both, ()).reserved) == 1, "the stream shows it all the same"
    with family("siblings", 1) as (beside,):
        write(both[0], beside, gpus={GPU: 20})
        (one,) = found(both, beside)
        assert (one.gpus, one.pids) == ({GPU: 20}, frozenset({beside}))


# -- hostile folders -------------------------------------------------------------------------------------------------


def test_planted_names_neither_hang_nor_lead_astray(both: Places, tmp_path: Path, sleeper: Start) -> None:
    folder, process = both[0].path, sleeper()
    start = procfs.read_stat(process.pid).start_ticks
    real = write(Place(tmp_path / "elsewhere"), process.pid)
    folder.mkdir()
    name = folder / f"{process.pid}-{start}.json"
    os.mkfifo(name)
    assert found(both) == []
    name.unlink()
    name.mkdir()
    assert found(both) == []
    name.rmdir()
    name.symlink_to(real)
    assert found(both) == []
    (folder / "1-1.json").symlink_to(real)
    (folder / "notes.txt").write_text(real.read_text())
    assert found(both) == []
    assert (folder / "1-1.json").is_symlink()
    assert name.is_symlink()
    assert (folder / "notes.txt").exists()


def test_junk_of_one_user_hides_nobodys_reservation(both: Places) -> None:
    needs_root()
    count = 5_000
    with family("siblings", 3, uid=ANOTHER) as pids:
        for pid in pids:
            write(both[1], pid, owner=ANOTHER)
        living = [f"{os.getpid()}-{start}.json" for start in range(count // 2)]
        dead = [f"4194304{number}-7.json" for number in range(count // 2)]
        junk(both[1].path, [*living, *dead], owner=SOMEBODY_ELSE)
        seen = peek(both, pids)
        assert [one.uid for one in seen.reserved] == [ANOTHER] * 3
        assert seen.words == []
        assert len(list(both[1].path.iterdir())) == count + 3, "it is not ours to remove"


def test_of_one_user_so_many_count_and_it_is_said_whose_do_not(both: Places) -> None:
    needs_root()
    with family("siblings", 8, uid=SOMEBODY_ELSE) as many, family("siblings", 2, uid=ANOTHER) as few:
        for pids, owner in ((many, SOMEBODY_ELSE), (few, ANOTHER)):
            for pid in pids:
                write(both[1], pid, owner=owner)
        seen = peek(both, (), each=5)
        assert sorted(one.uid for one in seen.reserved) == [SOMEBODY_ELSE] * 5 + [ANOTHER] * 2
        assert seen.words == [f"uid {SOMEBODY_ELSE} has 8 reservations; 5 of them count"]


def test_reading_has_an_end_and_it_is_said(both: Places) -> None:
    with family("siblings", 5) as pids, locked(both, pytest.fail) as opened:
        for pid in pids:
            write(both[1], pid)
        now = itertools.count(0.0, 0.5)
        seen = read(opened, (), patience=2.0, clock=lambda: next(now))
        assert 0 < len(seen.reserved) < 5
        assert seen.words == ["reservations take more than 2 s to read; those that are left do not count"]


def test_a_process_that_ends_while_it_is_read_reserves_nothing(both: Places, tmp_path: Path) -> None:
    """Its stat is there and its status is gone: so it looks between two reads."""
    process = tmp_path / "proc" / "77"
    (process / "task" / "77").mkdir(parents=True)
    stat = Path(f"/proc/{os.getpid()}/stat").read_bytes()
    for folder in (process, process / "task" / "77"):
        (folder / "stat").write_bytes(stat)
    write(both[0], 77, start=procfs.parse_stat(stat).start_ticks)
    assert peek(both, (), proc=tmp_path / "proc") == Found([], [])


# -- for the stream --------------------------------------------------------------------------------------------------


def test_the_stream_reads_again_what_changed_and_else_now_and_then(both: Places, sleeper: Start) -> None:
    now = 100.0
    stream = Reservations(both, clock=lambda: now)
    assert stream.read(()) == []
    first, second = sleeper(), sleeper()
    write(both[0], first.pid)
    assert len(stream.read(())) == 1, "a file has come"
    assert [one.pids for one in stream.read([first.pid])] == [frozenset({first.pid})], "it holds a GPU now"
    end(first)
    assert len(stream.read([first.pid])) == 1, "nothing is read on a tick on which neither changed"
    now += 60
    assert stream.read([first.pid]) == [], "but now and then"
    write(both[0], second.pid)
    os.utime(both[0].path, ns=(1, 1))  # that it changes is enough; the clock of files may stand for 4 ms
    assert len(stream.read([first.pid])) == 1


def test_the_stream_spends_a_small_part_of_its_time_on_reservations(both: Places, sleeper: Start) -> None:
    """However long it takes: here each look at the clock takes a second."""
    clock = itertools.count(0.0, 1.0)
    stream = Reservations(both, clock=lambda: next(clock))
    assert stream.read(()) == []
    write(both[0], sleeper().pid)
    for _ in range(15):
        assert stream.read(()) == []
    assert any(len(stream.read(())) for _ in range(10))
