"""Usage as it is recorded: what frames come to, who writes it, and what happens where nobody can."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuwatch.alerts.alert import TROUBLE
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.config import Config, Report
from gpuwatch.model import Job, Presence, Process, Snapshot, Surroundings
from gpuwatch.monitor import Monitor
from gpuwatch.recorder.recorder import Sinks, UsageSettings
from gpuwatch.recorder.store import StoreError, lock_path, own_store, read_events
from gpuwatch.recorder.usage import HOUR, By, JobId, Tally, UsageLine, job_name, read_usage
from tests.support.builders import EPOCH, GIB, gpu, holding, process, snapshot, uid
from tests.support.recording import PATIENCE, QUICK, Record, Recording, alert, ask, damage, ended, recording, wait_for
from tests.support.storing import Frames, batch, save
from tests.support.watches import Script

NOW: dict[str, Any] = {"usage": UsageSettings(), "pace": QUICK._replace(usage=0.03)}
"""Options of a recorder that writes at once."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder that does not exist yet."""
    return tmp_path / "state" / "gpuwatch"


@pytest.fixture
def record(folder: Path) -> Iterator[Record]:
    """Return a function that makes a recorder in the folder, which writes usage when it is closed."""
    with recording(folder) as make:
        yield lambda **options: make(**{"usage": UsageSettings(), "now": EPOCH, **options})


def machine(*people: Process, **changes: Any) -> Snapshot:
    """Return a machine on whose first GPU these hold a GiB each."""
    return snapshot([gpu(0, holdings=[holding(one.pid, 1) for one in people])], people, **changes)


def lines(folder: Path, by: By = "user") -> tuple[UsageLine, ...]:
    """Return the usage in the store of the folder; none where there is no store yet, or it is damaged or being made."""
    with contextlib.suppress(FileNotFoundError, StoreError):
        return read_usage(own_store(folder), by, EPOCH - 10 * HOUR).lines
    return ()


def feed(one: Recording, frames: Frames, base: Snapshot, count: int = 1, **changes: Any) -> None:
    """Let frames come."""
    for _ in range(count):
        one.recorder.take(frames(base, **changes))


# ---------------------------------------------------------------------------------------------------------------
# What frames come to


def test_frames_come_to_what_was_held(record: Record, folder: Path) -> None:
    frames, base, one = Frames(), machine(process(1), process(2, "ben")), record()
    feed(one, frames, base, 10)
    last = frames(base)
    for _ in range(3):  # with other marks it charges nothing
        one.recorder.take(last)
    feed(one, Frames(), machine(process(1), demo=True), 5)
    one.close()
    assert [(line.name, line.use.held, line.use.busy, line.gpus) for line in lines(folder)] == [
        ("ada", 10.0, 10.0, (0,)),
        ("ben", 10.0, 10.0, (0,)),
    ]
    (card,) = lines(folder, "gpu")
    assert (card.use.held, card.use.memory, card.watched) == (10.0, 20.0 * GIB, 10.0)
    assert [(line.name, line.user, line.key, line.use.held) for line in lines(folder, "job")] == [
        ("train.py", "ada", "1:1", 10.0),
        ("train.py", "ben", "2:2", 10.0),
    ]
    assert read_usage(own_store(folder), "user", EPOCH).host == "box3"


def test_a_long_time_is_split_by_the_hours_that_it_lies_in(record: Record, folder: Path) -> None:
    begin = -(-EPOCH // HOUR) * HOUR - EPOCH  # to the next full hour
    frames, base, one = Frames(), machine(process(1), interval=3600.0), record()
    for step in (begin - 1800, (begin + 1800) / 2, (begin + 5400) / 3):
        feed(one, frames, base, step=step)
    one.close()
    first = int(EPOCH // HOUR) * HOUR
    assert ask(own_store(folder), "SELECT hour - 0, seconds FROM watched") == [
        (first, 1800.0),
        (first + HOUR, 3600.0),
        (first + 2 * HOUR, 1800.0),
    ]


def test_an_unwatched_gpu_is_not_said_to_be_free(record: Record, folder: Path) -> None:
    frames, one = Frames(), record()
    for _ in range(3):
        shown = frames(machine(process(1)))
        mixed = msgspec.structs.replace(shown.snapshot, gpus=(*shown.snapshot.gpus, gpu(1, sampled=0.0)))
        one.recorder.take(replace(shown, snapshot=mixed))
    one.close()
    assert [(line.gpus, line.watched) for line in lines(folder, "gpu")] == [((0,), 2.0)]


def test_a_gpu_without_a_list_of_processes_is_not_said_to_be_free(record: Record, folder: Path) -> None:
    frames, one = Frames(), record()
    lost = snapshot([gpu(0, holdings_note="the GPU does not answer")])
    feed(one, frames, machine(process(1)), 3)
    feed(one, frames, lost, 3)
    one.close()
    assert [(line.gpus, line.use.held, line.watched) for line in lines(folder, "gpu")] == [((0,), 2.0, 2.0)]


def test_who_cannot_be_seen_is_named_as_such(record: Record, folder: Path) -> None:
    gone = process(1, start=0, presence=Presence.GONE, uid=None, user="", command="", name="")
    one = record()
    feed(one, Frames(), snapshot([gpu(0, holdings=[holding(1, 1, start=0)])], [gone]), 3)
    one.close()
    (line,), (run,) = lines(folder), lines(folder, "job")
    assert (line.name, line.uid, line.use.held) == ("?", None, 2.0)
    assert (run.name, run.user, run.uid) == ("?", "?", None)


def test_one_that_had_ended_before_and_is_known_is_charged_to_its_user(record: Record, folder: Path) -> None:
    one = record()
    feed(one, Frames(), machine(process(1, presence=Presence.GONE, state="")), 3)
    one.close()
    assert [(line.name, line.use.held) for line in lines(folder)] == [("ada", 2.0)]
    assert [(line.name, line.use.held) for line in lines(folder, "job")] == [("train.py", 2.0)]


def test_one_that_has_ended_stays_its_owners(record: Record, folder: Path) -> None:
    frames, one = Frames(), record()
    feed(one, frames, machine(process(1)), 3)
    feed(one, frames, machine(process(1, uid=None, user="", presence=Presence.GONE)), 3)
    one.close()
    assert [(line.name, line.use.held) for line in lines(folder)] == [("ada", 5.0)]
    assert [(line.name, line.use.held) for line in lines(folder, "job")] == [("train.py", 5.0)]


JOB = Job(key="90:900", name="train.py", launcher="torchrun")


def ranks(job: Job | None) -> list[Process]:
    """Return two ranks on one GPU, of a run or not yet known to be of one."""
    around = None if job is None else Surroundings(job=job)
    return [process(pid, surroundings=around) for pid in (1, 2)]


def test_eight_ranks_are_one_run_also_before_that_was_known(record: Record, folder: Path) -> None:
    frames, one = Frames(), record()
    feed(one, frames, machine(*ranks(None)), 2)
    feed(one, frames, machine(*ranks(JOB)), 3)
    one.close()
    (line,) = lines(folder, "job")
    assert (line.key, line.launcher, line.use.held) == ("90:900", "torchrun", 5.0), "1 + 1 apart, 3 together"
    assert [line.use.held for line in lines(folder)] == [4.0]


def test_surroundings_that_cannot_be_read_any_more_change_nothing() -> None:
    tally, frames = Tally(), Frames()
    for known in (JOB, JOB, None, None):
        tally.add(frames(machine(*ranks(known))))
    batch = tally.pop()
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


def test_events_are_counted_for_those_they_are_about(record: Record, folder: Path) -> None:
    frames, base, one = Frames(), machine(process(1), process(2, "ben")), record()
    fields: dict[str, Any] = {"gpu": base.gpus[0].key, "owners": ("ada", "nobody"), "pids": (1, 99)}
    over = alert("over", rule=OVERSHOOT, **fields)
    full = alert("full", **{**fields, "owners": ("ben", "ada"), "pids": (2, 1), "subject": "full"})
    feed(one, frames, base)
    wait_for(lambda: one.is_leader)
    feed(one, frames, base, 3)
    wait_for(lambda: one.events.is_settled)
    feed(one, frames, base, raised=(over,), alerts=(alert("own", rule=TROUBLE), over))
    feed(one, frames, machine(process(2, "ben")), cleared=(ended(over),), raised=(full,), alerts=(full,))
    feed(one, frames, base, alerts=(full,))
    one.close()
    assert {line.name: (line.events.overshoots, line.events.all) for line in lines(folder)} == {
        "ada": (1, 2),
        "ben": (0, 1),
    }
    assert {line.key: line.events.all for line in lines(folder, "job")} == {"1:1": 2, "2:2": 1}
    assert ask(own_store(folder), "SELECT count(*), count(ended) FROM events") == [(2, 1)]


# ---------------------------------------------------------------------------------------------------------------
# Who writes


def test_one_writes_and_another_goes_on_where_it_ends(record: Record, folder: Path) -> None:
    frames, base = Frames(), machine(process(1))
    first, second = record(**NOW), record(**NOW)
    feed(first, frames, base)
    wait_for(lambda: first.recorder.lock.held)
    for _ in range(5):
        frame = frames(base)
        first.recorder.take(frame)
        second.recorder.take(frame)
    first.close()
    assert [line.use.held for line in lines(folder)] == [5.0]
    wait_for(lambda: second.recorder.lock.held)
    feed(second, frames, base, 3)
    second.close()
    assert 8.0 <= lines(folder)[0].use.held <= 13.0, "nothing is counted twice, but for what came at the end"


def test_a_dashboard_hands_over_to_a_watch_and_records_again_when_it_ends(record: Record, folder: Path) -> None:
    frames, base, held = Frames(), machine(process(1)), alert()
    dashboard = record(**NOW).settle()
    feed(dashboard, frames, base, 3)
    dashboard.feed(held)
    watch = record(watch=True, **NOW)
    watch.settle(held)
    assert (dashboard.recorder.lock.held, watch.recorder.lock.held) == (False, True)
    assert [one.id for one in read_events(own_store(folder)).open] == [held.id]
    assert [line.use.held for line in lines(folder)] == [2.0], "what the dashboard had added up"
    watch.close()
    wait_for(lambda: dashboard.recorder.lock.held)


def test_of_two_watches_one_waits_without_stopping_the_other(record: Record) -> None:
    first = record(watch=True).settle()
    second = record(watch=True).start()
    wait_for(lambda: second.recorder._worker.is_running)
    second.feed()
    assert (first.recorder.lock.held, second.recorder.lock.held) == (True, False)
    first.close()
    wait_for(lambda: second.recorder.lock.held)


def test_who_watches_a_part_of_the_gpus_takes_no_lock(record: Record, folder: Path) -> None:
    one = record(part=True)
    feed(one, Frames(), machine(process(1)), 3)
    one.feed(alert())
    one.close()
    assert not own_store(folder).exists()
    assert not lock_path(own_store(folder)).exists()


# ---------------------------------------------------------------------------------------------------------------
# Where it cannot


def test_what_cannot_be_written_waits(record: Record, folder: Path) -> None:
    frames, base, one = Frames(), machine(process(1)), record(**NOW)
    for store in one.stores:
        store.failure = StoreError("no room")
    feed(one, frames, base, 3)
    wait_for(lambda: one.trouble == "not recorded: no room")
    feed(one, frames, base, 3)
    one.stores[0].failure = None
    wait_for(lambda: not one.trouble and lines(folder) and lines(folder)[0].use.held == 5.0)


def test_where_no_lock_can_be_had_nothing_is_counted_twice(record: Record, folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.touch()
    one = record(**NOW)
    feed(one, Frames(), machine(process(1)), 3)
    wait_for(lambda: one.trouble)
    assert not one.recorder.lock.held
    folder.unlink()
    wait_for(lambda: not one.trouble and lines(folder))


def test_a_damaged_store_is_begun_anew(record: Record, folder: Path) -> None:
    frames, base, one = Frames(), machine(process(1)), record(**NOW)
    feed(one, frames, base, 2)
    wait_for(lambda: lines(folder))
    damage(one.path, b"rubbish" * 1000)
    feed(one, frames, base, 2)
    wait_for(lambda: [line.use.held for line in lines(folder)] == [2.0])
    # The step that wrote it may not have cleared the error of the step before.
    wait_for(lambda: "was damaged and is kept as" in one.trouble)
    assert one.path.with_name(f"{one.path.name}.damaged").exists()


def test_what_is_old_is_deleted_in_time(record: Record, folder: Path) -> None:
    pace = QUICK._replace(usage=0.03, prune=0.01)
    frames, base, one = Frames(), machine(process(1)), record(pace=pace, now=EPOCH + 26 * HOUR)
    feed(one, frames, base, 3)
    wait_for(lambda: lines(folder))
    # A day in which it was watched on.
    save(one.path, *(batch(int(EPOCH // HOUR + hour) * HOUR, gpu=5) for hour in range(2, 27)))
    one.recorder.configure(UsageSettings(keep=float(HOUR)))
    feed(one, frames, base)
    wait_for(lambda: [line.uuid for line in lines(folder, "gpu")] == ["GPU-5"])


# ---------------------------------------------------------------------------------------------------------------
# The configuration


def test_it_begins_and_stops_with_the_configuration(record: Record, folder: Path) -> None:
    frames, base, one = Frames(), machine(process(1)), record(usage=UsageSettings(is_kept=False))
    feed(one, frames, base, 3)
    assert not lines(folder)
    one.recorder.configure(UsageSettings())
    feed(one, frames, base, 3)
    wait_for(lambda: one.recorder.lock.held)
    one.recorder.configure(UsageSettings(is_kept=False))
    wait_for(lambda: lines(folder))
    assert [line.use.held for line in lines(folder)] == [2.0]
    feed(one, frames, base)
    one.close()
    assert [line.use.held for line in lines(folder)] == [2.0]


@pytest.mark.parametrize(("keeps", "dashboard", "kept"), [(True, False, True), (False, True, True), (False,) * 3])
def test_watch_always_keeps_and_the_dashboard_if_told_so(
    own_home: Path, keeps: bool, dashboard: bool, kept: bool
) -> None:
    source = Script([Frames()(machine(process(1), host=os.uname().nodename)).snapshot])
    watch = Monitor(source, lambda frame: None)
    sinks = Sinks(watch, Config(report=Report(dashboard=False)), watch=keeps)
    sinks.configure(Config(report=Report(dashboard=False)), Config(report=Report(dashboard=dashboard)))
    watch.start()
    try:
        wait_for(lambda: watch.newest is not None)
    finally:
        watch.stop()
        watch.join()
        sinks.close(PATIENCE)
    path = own_store()
    assert (path.exists() and read_usage(path, "user", 0.0).host != "") is kept
