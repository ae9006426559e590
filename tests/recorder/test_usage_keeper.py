"""The sink that keeps what was used: what frames come to, who writes, and what happens where it cannot."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch import config
from gpuwatch.alerts.alert import TROUBLE
from gpuwatch.commands.startup import Ways
from gpuwatch.config import Config, Report
from gpuwatch.errors import UsageError
from gpuwatch.model import Gpu, Job, Presence, Process, Snapshot, Surroundings
from gpuwatch.monitor import Monitor
from gpuwatch.recorder.store import By, Line, Store, StoreError, own_store, read_kept
from gpuwatch.recorder.usage import HOUR, MOST, JobId, Pace, Tally, UsageKeeper, Wish, job_name
from tests import CHECKOUT
from tests.support.builders import EPOCH, GIB, gpu, holding, process, snapshot, uid
from tests.support.eventlogs import alert, ended
from tests.support.storing import Frames, asked, batch
from tests.support.waiting import PATIENCE, wait_for
from tests.support.watches import Script

QUICK = Pace(write=0.05, retry=0.05, lock=0.02)
SLOW = Pace(write=3600.0, retry=0.05, lock=0.02)
"""It writes when it is closed."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder that does not exist yet."""
    return tmp_path / "state" / "gpuwatch"


def machine(*people: Process, **changes: Any) -> Snapshot:
    """Return a machine on whose first GPU these hold a GiB each."""
    return snapshot([gpu(0, holdings=[holding(one.pid, 1) for one in people])], people, **changes)


@contextlib.contextmanager
def keeping(folder: Path, pace: Pace = SLOW, **changes: Any) -> Iterator[UsageKeeper]:
    """Return a keeper, and close it in the end."""
    keeper = UsageKeeper(folder=folder, pace=pace, **{"wall": lambda: EPOCH, **changes})
    try:
        yield keeper
    finally:
        keeper.close(PATIENCE)


def kept(folder: Path, by: By) -> tuple[Line, ...]:
    """Return what is in the store of the folder."""
    return read_kept(own_store(folder), by, EPOCH - 10 * HOUR).lines


def found(folder: Path, by: By = "gpu") -> tuple[Line, ...] | None:
    """Return what is in the store of the folder; None where there is none yet, or one that is just being made."""
    try:
        return kept(folder, by)
    except (FileNotFoundError, StoreError, sqlite3.OperationalError):
        return None


# ---------------------------------------------------------------------------------------------------------------
# What frames come to


def test_frames_come_to_what_was_held(folder: Path) -> None:
    frames, base = Frames(), machine(process(1), process(2, "ben"))
    with keeping(folder) as keeper:
        for _ in range(11):
            keeper.take(frames(base))
    assert [(one.name, one.use.held, one.use.busy, one.gpus) for one in kept(folder, "user")] == [
        ("ada", 10.0, 10.0, (0,)),
        ("ben", 10.0, 10.0, (0,)),
    ]
    (card,) = kept(folder, "gpu")
    assert (card.use.held, card.use.memory, card.watched) == (10.0, 20.0 * GIB, 10.0)
    assert [(one.name, one.user, one.key, one.use.held) for one in kept(folder, "job")] == [
        ("train.py", "ada", "1:1", 10.0),
        ("train.py", "ben", "2:2", 10.0),
    ]
    assert read_kept(own_store(folder), "user", EPOCH).host == "box3"


def test_a_frame_with_other_marks_charges_nothing(folder: Path) -> None:
    frames, base = Frames(), machine(process(1))
    with keeping(folder) as keeper:
        keeper.take(frames(base))
        last = frames(base)
        for _ in range(3):
            keeper.take(last)
    assert [one.use.held for one in kept(folder, "user")] == [1.0]


def test_a_long_time_is_split_by_the_hours_that_it_lies_in(folder: Path) -> None:
    begin = -(-EPOCH // HOUR) * HOUR - EPOCH  # to the next full hour
    frames = Frames()
    with keeping(folder) as keeper:
        base = machine(process(1), interval=3600.0)
        keeper.take(frames(base, step=begin - 1800))
        for one in (frames(base, step=(begin + 1800) / 2), frames(base, step=(begin + 5400) / 3)):
            keeper.take(one)
    first = int(EPOCH // HOUR) * HOUR
    assert asked(own_store(folder), "SELECT hour - 0, seconds FROM watched") == [
        (first, 1800.0),
        (first + HOUR, 3600.0),
        (first + 2 * HOUR, 1800.0),
    ]


def test_an_unwatched_gpu_is_not_said_to_be_free(folder: Path) -> None:
    frames = Frames()
    lost: Gpu = gpu(1, sampled=0.0)
    with keeping(folder) as keeper:
        for _ in range(3):
            shown = frames(machine(process(1)))
            mixed = msgspec.structs.replace(shown.snapshot, gpus=(*shown.snapshot.gpus, lost))
            keeper.take(frames_with(shown, mixed))
    assert [(one.gpus, one.watched) for one in kept(folder, "gpu")] == [((0,), 2.0)]


def frames_with(frame: Any, shown: Snapshot) -> Any:
    """Return a frame with another snapshot."""
    from dataclasses import replace

    return replace(frame, snapshot=shown)


def test_who_cannot_be_seen_is_told_as_such(folder: Path) -> None:
    gone = process(1, start=0, presence=Presence.GONE, uid=None, user="", command="", name="")
    frames = Frames()
    with keeping(folder) as keeper:
        for _ in range(3):
            keeper.take(frames(snapshot([gpu(0, holdings=[holding(1, 1, start=0)])], [gone])))
    (line,) = kept(folder, "user")
    assert (line.name, line.uid, line.use.held) == ("?", None, 2.0)
    (run,) = kept(folder, "job")
    assert (run.name, run.user, run.uid) == ("?", "?", None)


def test_one_that_is_gone_stays_its_owners(folder: Path) -> None:
    frames = Frames()
    with keeping(folder) as keeper:
        for _ in range(3):
            keeper.take(frames(machine(process(1))))
        hidden = process(1, uid=None, user="", presence=Presence.GONE)
        for _ in range(3):
            keeper.take(frames(machine(hidden)))
    assert [(one.name, one.use.held) for one in kept(folder, "user")] == [("ada", 5.0)]
    assert [(one.name, one.use.held) for one in kept(folder, "job")] == [("train.py", 5.0)]


def ranks(job: Job | None) -> list[Process]:
    """Return two ranks on one GPU, of a run or not yet known to be of one."""
    around = None if job is None else Surroundings(job=job)
    return [process(pid, surroundings=around) for pid in (1, 2)]


def test_eight_ranks_are_one_run_also_before_that_was_known(folder: Path) -> None:
    job = Job(key="90:900", name="train.py", launcher="torchrun")
    frames = Frames()
    with keeping(folder) as keeper:
        for _ in range(2):
            keeper.take(frames(machine(*ranks(None))))
        for _ in range(3):
            keeper.take(frames(machine(*ranks(job))))
    (line,) = kept(folder, "job")
    assert (line.key, line.launcher, line.use.held) == ("90:900", "torchrun", 5.0), "1 + 1 apart, 3 together"
    assert [one.use.held for one in kept(folder, "user")] == [4.0]


def test_surroundings_that_cannot_be_read_any_more_change_nothing() -> None:
    tally, frames = Tally(), Frames()
    job = Job(key="90:900", name="train.py", launcher="torchrun")
    for known in (job, job, None, None):
        tally.add(frames(machine(*ranks(known))))
    batch = tally.take()
    assert {job for _, _, job in batch.by_job} == {JobId(uid("ada"), "90:900")}
    assert not batch.moved


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 3", "train.py"),
        ("/usr/bin/python3.11 -u /home/ada/x/train.py", "train.py"),
        ("python -m vllm.entrypoints.api", "vllm.entrypoints.api"),
        ("/opt/bin/ollama serve", "ollama"),
        ("python", "python"),
        ("", "ptxas"),
    ],
)
def test_a_run_has_a_name_for_people(command: str, name: str) -> None:
    assert job_name(process(1, command=command, name="ptxas")) == name


def test_events_are_told_with_whose_they_are(folder: Path) -> None:
    frames, base = Frames(), machine(process(1), process(2, "ben"))
    fields: dict[str, Any] = {"gpu": base.gpus[0].key, "owners": ("ada", "nobody"), "pids": (1, 99)}
    over = alert("over", rule="uses more than declared", **fields)
    full = alert("full", **{**fields, "owners": ("ben", "ada"), "pids": (2, 1)})
    own = alert("own", rule=TROUBLE)
    with keeping(folder) as keeper:
        keeper.take(frames(base))
        keeper.take(frames(base, raised=(over,), alerts=(own, over)))
        keeper.take(frames(machine(process(2, "ben")), cleared=(ended(over),), raised=(full,), alerts=(full,)))
        keeper.take(frames(base, alerts=(full,)))
    assert {one.name: (one.events.overshoots, one.events.all) for one in kept(folder, "user")} == {
        "ada": (1, 2),
        "ben": (0, 1),
    }
    assert {one.key: one.events.all for one in kept(folder, "job")} == {"1:1": 2, "2:2": 1}
    assert asked(own_store(folder), "SELECT count(*), count(ended) FROM events") == [(2, 1)]


def test_a_demo_is_written_down_nowhere(folder: Path) -> None:
    frames = Frames()
    with keeping(folder) as keeper:
        for _ in range(3):
            keeper.take(frames(machine(process(1), demo=True)))
    assert not folder.exists()


# ---------------------------------------------------------------------------------------------------------------
# Who writes


def test_one_writes_and_another_goes_on_where_it_ends(folder: Path) -> None:
    frames, base = Frames(), machine(process(1))
    with keeping(folder, QUICK) as first:
        first.take(frames(base))
        wait_for(lambda: first.is_keeper)
        with keeping(folder, QUICK) as second:
            for _ in range(5):
                frame = frames(base)
                first.take(frame)
                second.take(frame)
            first.close(PATIENCE)
            assert [one.use.held for one in kept(folder, "user")] == [5.0]
            wait_for(lambda: second.is_keeper)
            for _ in range(3):
                second.take(frames(base))
    total = kept(folder, "user")[0].use.held
    assert 8.0 <= total <= 8.0 + 5.0, "nothing that the first one wrote is counted again, but for what came at the end"


HOLDER = """
import sys, time
from pathlib import Path
from tests.support.storing import Frames
from tests.recorder.test_usage_keeper import QUICK, machine
from tests.support.builders import process
from gpuwatch.recorder.usage import UsageKeeper
keeper, frames = UsageKeeper(folder=Path(sys.argv[1]), pace=QUICK, wall=lambda: 0.0), Frames()
while True:
    keeper.take(frames(machine(process(1))))
    if keeper.is_keeper:
        sys.stdout.write("mine\\n")
        sys.stdout.flush()
    time.sleep(0.01)
"""


def test_one_that_is_killed_leaves_its_place(folder: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        wait_for(lambda: found(folder) is not None)
        frames, base = Frames(), machine(process(1))
        with keeping(folder, QUICK) as keeper:
            keeper.take(frames(base))
            keeper.take(frames(base))
            assert not keeper.is_keeper
            other.send_signal(signal.SIGKILL)
            other.communicate(timeout=PATIENCE)
            wait_for(lambda: keeper.is_keeper)
            keeper.take(frames(base))
            keeper.take(frames(base))
    assert kept(folder, "user")[0].use.held >= 2.0
    assert asked(own_store(folder), "PRAGMA integrity_check") == [("ok",)]


# ---------------------------------------------------------------------------------------------------------------
# Where it cannot


def test_what_cannot_be_written_waits_and_is_told_of(folder: Path) -> None:
    frames, base = Frames(), machine(process(1))
    path = own_store(folder)
    folder.mkdir(parents=True)
    path.write_text("shopping list")
    with keeping(folder, QUICK) as keeper:
        for _ in range(3):
            keeper.take(frames(base))
        start = f"nothing is kept for `gpuwatch report`: {path}: it is no SQLite database, and is left as it is; "
        wait_for(lambda: keeper.trouble.startswith(start))
        assert "to be written" in keeper.trouble
        assert path.read_text() == "shopping list"
        path.unlink()
        wait_for(lambda: not keeper.trouble)
        assert [one.use.held for one in kept(folder, "user")] == [2.0]


def test_an_hour_of_minutes_waits_and_no_more(folder: Path) -> None:
    frames, base = Frames(), machine(process(1))
    folder.mkdir(parents=True)
    own_store(folder).mkdir()
    with keeping(folder, Pace(write=0.001, retry=0.01, lock=0.02)) as keeper:
        keeper.take(frames(base))
        wait_for(lambda: f"; {MOST} minutes wait to be written, " in keeper.trouble, "they wait and are lost")
        own_store(folder).rmdir()
        wait_for(lambda: not keeper.trouble)
    assert asked(own_store(folder), "SELECT count(*) FROM gpus") == [(0,)]


def test_where_no_lock_can_be_had_nothing_is_counted_twice(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.touch()
    frames, base = Frames(), machine(process(1))
    with keeping(folder, QUICK) as keeper:
        keeper.take(frames(base))
        wait_for(lambda: keeper.trouble)
        assert not keeper.is_keeper
        folder.unlink()
        wait_for(lambda: keeper.is_keeper)
        wait_for(lambda: not keeper.trouble)


def test_a_locked_store_is_waited_for(folder: Path) -> None:
    frames, base = Frames(), machine(process(1))
    with keeping(folder, QUICK, patience=0.02) as keeper:
        keeper.take(frames(base))
        wait_for(lambda: found(folder) == ())
        with contextlib.closing(sqlite3.connect(own_store(folder), isolation_level=None, timeout=PATIENCE)) as other:
            other.execute("BEGIN IMMEDIATE")
            keeper.take(frames(base))
            wait_for(lambda: "another program keeps it locked" in keeper.trouble)
            other.execute("ROLLBACK")
        wait_for(lambda: not keeper.trouble)
    assert [one.use.held for one in kept(folder, "user")] == [1.0]


def test_what_is_old_is_forgotten_in_time(folder: Path) -> None:
    frames, base = Frames(), machine(process(1))
    with keeping(folder, QUICK._replace(prune=0.01), wall=lambda: EPOCH + 26 * HOUR) as keeper:
        for _ in range(3):
            keeper.take(frames(base))
        wait_for(lambda: found(folder))
        for hour in range(2, 27):  # a day in which it was watched on
            Store(own_store(folder)).write(batch(int(EPOCH // HOUR + hour) * HOUR, gpu=5))
        keeper.settle(Wish(keep=float(HOUR)))
        keeper.take(frames(base))
        wait_for(lambda: [line.uuid for line in found(folder) or ()] == ["GPU-5"])


# ---------------------------------------------------------------------------------------------------------------
# The configuration


def test_it_begins_and_stops_with_the_configuration(folder: Path) -> None:
    frames, base = Frames(), machine(process(1))
    with keeping(folder, SLOW, wish=Wish(writes=False)) as keeper:
        for _ in range(3):
            keeper.take(frames(base))
        assert not folder.exists()
        keeper.settle(Wish())
        for _ in range(3):
            keeper.take(frames(base))
        wait_for(lambda: keeper.is_keeper)
        keeper.settle(Wish(writes=False))
        wait_for(lambda: not keeper.is_keeper)
        assert [one.use.held for one in kept(folder, "user")] == [2.0]
        keeper.take(frames(base))
    assert [one.use.held for one in kept(folder, "user")] == [2.0]


@pytest.mark.parametrize(("keeps", "dashboard", "writes"), [(True, False, True), (False, True, True), (False,) * 3])
def test_watch_always_keeps_and_the_dashboard_if_told_so(
    own_home: Path, keeps: bool, dashboard: bool, writes: bool
) -> None:
    steps = [Frames()(machine(process(1), host=os.uname().nodename)).snapshot]
    watch = Monitor(Script(steps), lambda frame: None)
    ways = Ways(watch, keeps=keeps)
    ways.open(Config(report=Report(dashboard=dashboard)))
    watch.start()
    try:
        wait_for(lambda: watch.newest is not None)
    finally:
        watch.stop()
        watch.join()
        ways.close(PATIENCE)
    assert own_store().exists() is writes


def test_a_reload_reaches_it(own_home: Path) -> None:
    frames, base = Frames(), machine(process(1))
    source = Script()
    watch = Monitor(source, lambda frame: None)
    ways = Ways(watch)
    ways.open(Config())
    watch.start()
    try:
        new = Config(report=Report(dashboard=True))
        ways.settle(Config(), new)
        for _ in range(3):
            source.steps.put(frames(base).snapshot)
        wait_for(lambda: watch.newest is not None and watch.newest.number == 2)
        ways.settle(new, Config())
        wait_for(lambda: found(own_store().parent) is not None)
    finally:
        watch.stop()
        watch.join()
        ways.close(PATIENCE)


def test_the_keys_of_the_report(tmp_path: Path) -> None:
    file = tmp_path / "gpuwatch.toml"
    file.write_text("[report]\ndashboard = true\nkeep = '30d'\nlargest = '8MiB'\n")
    assert config.load(str(file)).report == Report(dashboard=True, keep=30 * 86400.0, largest=8 << 20)
    assert Report() == Report(dashboard=False, keep=90 * 86400.0, largest=64 << 20)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("keep = '1h'", 'key report.keep: found "1h"; allowed is seconds, or a text such as'),
        ("keep = '400d'", 'key report.keep: found "400d"; allowed is'),
        ("largest = '1MiB'", 'key report.largest: found "1MiB"; allowed is a size of 4MiB or more'),
        ("dashboard = 'yes'", 'key report.dashboard: found "yes"; allowed is true or false'),
        ("by = 'user'", "unknown key report.by"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "gpuwatch.toml"
    file.write_text(f"[report]\n{line}\n")
    with pytest.raises(UsageError) as caught:
        config.load(str(file))
    assert words in str(caught.value)
