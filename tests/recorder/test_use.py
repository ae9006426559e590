"""Use: what is counted of who held which GPU, the means of minutes, and who writes both."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.config.types import Config, Report
from gpuwatch.history.history import History, Usage, Use, charged
from gpuwatch.history.timeline import Key, Metric, Minute, RecordedRun, Timeline
from gpuwatch.model.snapshot import (
    Gpu,
    Health,
    Holding,
    Presence,
    Process,
    ProcessContext,
    Reading,
    Reason,
    Run,
    Snapshot,
)
from gpuwatch.monitor import Monitor
from gpuwatch.recorder.events import read_events
from gpuwatch.recorder.opening import StoreError, reading
from gpuwatch.recorder.recorder import Sinks, UsageSettings
from gpuwatch.recorder.schema import HOUR, lock_path, own_store
from gpuwatch.recorder.store import Store
from gpuwatch.recorder.use import (
    KEEP_MEANS,
    MOST_PROCESSES,
    By,
    Sums,
    UseCounter,
    UseLine,
    load_older,
    read_means,
    read_reports,
    run_name,
    write_use,
)
from tests.support.alerts import Script
from tests.support.builders import EPOCH, GIB, at, gpu, holding, process, snapshot, uid
from tests.support.store import (
    PATIENCE,
    QUICK,
    Frames,
    Record,
    Recording,
    alert,
    ask,
    batch,
    change,
    read_report,
    recording,
    save,
    wait_for,
)

NOW: dict[str, Any] = {"usage": UsageSettings(), "pace": QUICK._replace(usage=0.03)}
"""Options of a recorder that writes at once."""
ADA, BEN = uid("ada"), uid("ben")
NO_SM = Reason.NO_SAMPLE


def machine(*people: Process, **changes: Any) -> Snapshot:
    """Return a machine on whose first GPU these hold a GiB each."""
    return snapshot([gpu(0, holdings=[holding(one.pid, 1) for one in people])], people, **changes)


def counted(*shown: Snapshot, step: float = 1.0, first: float = 0.0) -> Sums:
    """Return the sums of some snapshots, `step` seconds apart."""
    history, counter = History(), UseCounter()
    for number, one in enumerate(shown):
        second = first + number * step
        seen = at(one, second, taken=EPOCH + second)
        view = history.add(seen, 5000.0 + second)
        for _ in range(2):  # the second time with other marks
            counter.add(seen, view)
    return counter.pop(last=True)


def lines(path: Path, by: By = "user") -> list[UseLine]:
    """Return the use in a store; none where there is no store yet, or it is damaged or being made."""
    with contextlib.suppress(FileNotFoundError, StoreError):
        return read_report([path], by, EPOCH - 10 * HOUR).lines
    return []


def stored(path: Path, *sums: Sums) -> Path:
    for one in sums:
        Store(path).write(lambda connection, one=one: write_use(connection, one))  # type: ignore[misc]
    return path


# ---------------------------------------------------------------------------------------------------------------
# What is charged


@pytest.mark.parametrize(
    ("held", "uses"),
    [
        ([], {}),
        ([holding(1, 4, sm=7)], {1: Use(2, 2, 0, 8 * GIB, 0, 0, 2)}),
        (
            [holding(1, sm=0), holding(2, 3)],
            {1: Use(2, 0, 0, 2 * GIB, 2 * GIB, 0, 0.5), 2: Use(2, 2, 0, 6 * GIB, gpu=1.5)},
        ),
        ([holding(1, 2, sm=0), holding(1, 3, sm=7)], {1: Use(2, 2, 0, 10 * GIB, 4 * GIB, 0, 2)}),
        ([holding(1, 2, sm=0), holding(1, 3, sm=NO_SM)], {1: Use(2, 0, 2, 10 * GIB, 4 * GIB, 0, 2)}),
        ([holding(1, memory=NO_SM), holding(2, 4)], {1: Use(2, 2, 0, 0, 0, 2, 1), 2: Use(2, 2, 0, 8 * GIB, 0, 0, 1)}),
        ([holding(pid, memory=NO_SM) for pid in (1, 2)], {1: Use(2, 2, 0, 0, 0, 2, 1), 2: Use(2, 2, 0, 0, 0, 2, 1)}),
        ([holding(1, 0), holding(2, 0)], {1: Use(2, 2, 0, 0, 0, 0, 1), 2: Use(2, 2, 0, 0, 0, 0, 1)}),
    ],
)  # fmt: skip
def test_each_holder_is_charged_and_the_time_of_the_gpu_divided(held: list[Holding], uses: dict[int, Use]) -> None:
    assert charged(held, 2.0, lambda one: one.pid) == uses


READINGS: st.SearchStrategy[Reading] = st.sampled_from([0, 1, 50, 100, Reason.NO_SAMPLE, Reason.DENIED])
HOLDINGS = st.lists(
    st.builds(
        Holding,
        pid=st.integers(1, 6),
        start=st.just(1),
        memory=st.one_of(st.integers(0, 80 * GIB), st.just(Reason.NO_SAMPLE)),
        sm=READINGS,
    ),
    max_size=8,
)


@given(HOLDINGS, st.floats(0.1, 100.0))
def test_holders_together_have_the_gpu_once_however_they_are_grouped(held: list[Holding], seconds: float) -> None:
    for group in (lambda one: one.pid, lambda one: one.pid % 2, lambda _: 0):
        uses = charged(held, seconds, group)
        assert sum(use.gpu for use in uses.values()) == pytest.approx(seconds if held else 0.0)
        for use in uses.values():
            assert use.held == seconds
            assert use.busy + use.unknown <= use.held
            assert use.unsized <= use.held
            assert 0 <= use.idle_memory <= use.memory


@given(st.lists(st.tuples(st.floats(0.0, 100.0), HOLDINGS), min_size=1, max_size=8), st.floats(0.1, 60.0))
def test_no_more_is_charged_than_passed(samples: list[tuple[float, list[Holding]]], interval: float) -> None:
    usage, now = Usage(), 0.0
    for step, held in samples:
        now += step
        card: Gpu = gpu(0, holdings=held, used_gib=1.0)
        usage.add(at(snapshot([card], interval=interval), now))
    assert sum(use.held for use in usage.totals.values()) <= min(now, 2.5 * interval * len(samples)) + 1e-6


def test_the_use_of_people_is_that_since_the_first_sample_without_gaps() -> None:
    usage = Usage()
    for second, pids in enumerate(([1, 2], [1, 2], [1], [3], [3])):
        people = [process(pid, f"user{pid}", uid=pid) for pid in pids]
        usage.add(at(snapshot([gpu(0, holdings=[holding(pid) for pid in pids])], people), second))
    assert {who: use.held for who, use in usage.totals.items()} == {1: 2.0, 2: 1.0, 3: 2.0}
    alone = snapshot([gpu(0, holdings=[holding(3)])], [process(3, uid=3)])
    usage.add(at(alone, 100))
    usage.add(snapshot([gpu(0, health=Health.FAILED, sampled=0.0, holdings=[holding(3)])], [process(3, uid=3)]))
    usage.add(at(alone, 101))
    assert usage.totals[3].held == 2.0 + 2.5 + 1.0


# ---------------------------------------------------------------------------------------------------------------
# What is counted


def test_use_is_by_minute_gpu_and_run_and_adds_up(tmp_path: Path) -> None:
    start = 60 - EPOCH % 60
    sums = counted(*[machine(process(1), process(2, "ben"))] * 121, first=start)
    path = stored(tmp_path / "x", sums)
    assert ask(path, f"SELECT at - {int(EPOCH + start)}, run, held_s, gpu_s FROM use WHERE gpu = 1") == [
        *((minute, run, 60.0, 0.0 if run == 0 else 30.0) for minute in (0, 60) for run in (0, 1, 2)),
    ]
    assert [(one.name, one.use.gpu, one.gpus) for one in lines(path)] == [("ada", 60.0, (0,)), ("ben", 60.0, (0,))]
    assert [(one.name, one.user, one.key) for one in lines(path, "run")] == [
        ("train.py", "ada", "1:1"),
        ("train.py", "ben", "2:2"),
    ]
    assert [one.at - EPOCH - start for one in sums.means] == [0, 60, 120]
    assert sums.means[0].values[f"{gpu(0).key}/user:{ADA}/memory"] == pytest.approx(GIB, rel=1e-3)
    assert sums.means[0].users == {f"user:{ADA}": "ada", f"user:{BEN}": "ben"}


OWNERS = {1: "ada", 2: "ada", 3: "ada", 4: "ben", 5: "ben"}
PEOPLE = [
    process(pid, name, context=ProcessContext(run=Run(key=f"{pid // 2}:9", name="train.py")))
    for pid, name in OWNERS.items()
]
"""Of three runs of ada's and ben's; process 6 is nobody's."""


@pytest.mark.uncounted
@settings(max_examples=30)
@given(st.lists(st.tuples(HOLDINGS, HOLDINGS), min_size=2, max_size=5))
def test_users_runs_and_gpus_add_up_to_the_machine(minutes: list[tuple[list[Holding], ...]]) -> None:
    whole, watched = Use(), 0.0
    for each in minutes[1:]:  # nothing is known of the time before the first snapshot
        for held in each:
            watched += 60.0
            for use in charged(held, 60.0, lambda one: (OWNERS.get(one.pid), one.pid // 2)).values():
                whole = whole.plus(Use(busy=use.gpu * bool(use.busy), unknown=use.gpu * bool(use.unknown), gpu=use.gpu))
    shots = [
        snapshot([gpu(number, holdings=held) for number, held in enumerate(each)], PEOPLE, interval=60.0)
        for each in minutes
    ]
    with TemporaryDirectory() as folder:
        path = stored(Path(folder, "x"), counted(*shots, first=60 - EPOCH % 60, step=60.0))
        reports = read_reports([path], ("user", "gpu", "run"), EPOCH - HOUR)
    for report in reports:
        total = Use(*map(sum, zip(*(line.use for line in report.lines), strict=True)))
        assert total == pytest.approx(report.total)
        assert (total.gpu, total.busy, total.unknown) == pytest.approx((whole.gpu, whole.busy, whole.unknown))
        assert total.idle == pytest.approx(whole.gpu - whole.busy - whole.unknown, abs=1e-6)
    assert [one.watched - one.free for one in reports[1].lines] == pytest.approx(
        [one.use.gpu for one in reports[1].lines]
    )
    assert sum(one.watched for one in reports[1].lines) == pytest.approx(watched)


def test_a_long_time_is_split_by_the_minutes_that_it_lies_in() -> None:
    first = 30 - EPOCH % 60
    sums = counted(*[machine(process(1), interval=60.0)] * 3, first=first, step=60.0)
    found = sorted((at - int(EPOCH + first), use.held) for (at, _, run), use in sums.use.items() if run is None)
    assert found == [(-30, 30.0), (30, 60.0), (90, 30.0)]


def test_time_that_was_watched_is_known_of_each_gpu(tmp_path: Path) -> None:
    free, note = gpu(1), gpu(2, holdings_note="the GPU does not answer")
    base = snapshot([gpu(0, holdings=[holding(1, 1)]), free, note], [process(1)])
    path = stored(tmp_path / "x", counted(*[base] * 3))
    assert [(one.gpus, one.watched, one.use.gpu) for one in lines(path, "gpu")] == [((0,), 2.0, 2.0), ((1,), 2.0, 0.0)]


GONE = process(1, start=0, presence=Presence.GONE, uid=None, user="", command="", name="")


def test_who_cannot_be_seen_is_one_holder_with_the_memory_of_unknown_processes(tmp_path: Path) -> None:
    held = [holding(1, 1, start=0), holding(2, 1), holding(3, 2)]
    hidden = process(2, uid=None, user="")
    base = snapshot([gpu(0, holdings=held, unattributed=4 * GIB)], [GONE, hidden, process(3)])
    path = stored(tmp_path / "x", counted(*[base] * 3))
    for by in ("user", "run"):
        (unknown, ada) = lines(path, by)
        assert (unknown.name, unknown.uid, unknown.use.gpu, unknown.use.busy) == ("?", None, 1.5, 1.5)
        assert (ada.uid, ada.use.gpu) == (ADA, 0.5)
    alone = snapshot([gpu(0, unattributed=4 * GIB), gpu(1, unattributed=GIB // 8)])
    assert {run: use.gpu for (_, _, run), use in counted(alone, alone).use.items()} == {None: 1.0, (-1, ""): 1.0}


@pytest.mark.parametrize("after", [{"uid": None, "user": ""}, {"state": ""}])
def test_one_that_has_ended_stays_its_owners(tmp_path: Path, after: dict[str, Any]) -> None:
    left = machine(process(1, presence=Presence.GONE, **after))
    path = stored(tmp_path / "x", counted(*[machine(process(1))] * 3, *[left] * 3))
    assert [(one.name, one.use.gpu) for one in lines(path)] == [("ada", 5.0)]
    assert [(one.name, one.use.gpu) for one in lines(path, "run")] == [("train.py", 5.0)]


def ranks(run: Run | None) -> Snapshot:
    """Return a machine with two ranks on one GPU, of a run or not yet known to be of one."""
    around = None if run is None else ProcessContext(run=run)
    return machine(*(process(pid, context=around) for pid in (1, 2)))


def test_ranks_are_one_run_also_before_that_was_known_and_when_it_cannot_be_read_any_more(tmp_path: Path) -> None:
    run = Run(key="90:900", name="train.py", launcher="torchrun")
    path = stored(tmp_path / "x", counted(*map(ranks, (None, None, run, run, run, None))))
    (line,) = lines(path, "run")
    assert (line.key, line.launcher, line.use.gpu) == ("90:900", "torchrun", 5.0)


def test_a_run_has_a_name_for_people() -> None:
    commands = {
        "python -m vllm.entrypoints.api": "vllm.entrypoints.api",
        "/opt/bin/ollama serve": "ollama serve",
        "": "ptxas",
    }
    assert {one: run_name(process(1, command=one, name="ptxas")) for one in commands} == commands


# ---------------------------------------------------------------------------------------------------------------
# The means of minutes

KEY = Key("GPU-0", "", Metric.USED)
START = EPOCH + 40


def minute(number: int, **values: float) -> Minute:
    """Return a minute, by its number from a full minute on."""
    return Minute(at=START + 60 * number, values={str(KEY): float(number), **values})


def means(path: Path) -> list[Minute]:
    with reading(path) as connection:
        return list(read_means(connection, 0.0, 1e12))


@pytest.mark.parametrize(
    ("batches", "left"),
    [
        ([[0, 1], [1, KEEP_MEANS // 60]], [0, 1, KEEP_MEANS // 60]),
        ([[0, 1], [KEEP_MEANS // 60 + 1]], [1, KEEP_MEANS // 60 + 1]),
        ([[0, 500], [1]], [0, 1]),
    ],
    ids=["kept", "old", "of a clock that was ahead"],
)
def test_means_are_read_back_and_old_ones_deleted(tmp_path: Path, batches: list[list[int]], left: list[int]) -> None:
    path = stored(tmp_path / "x", *(Sums(means=[minute(number) for number in one]) for one in batches))
    assert means(path) == [minute(number) for number in left]


def test_a_minute_in_which_another_went_on_has_the_mean_of_both(tmp_path: Path) -> None:
    path, history = tmp_path / "store", History()
    for seconds, gib in ((range(40), 10), (range(45, 61), 70)):
        counter = UseCounter()
        for second in seconds:
            seen = at(snapshot([gpu(0, holdings=[holding(1, gib)])]), second, taken=EPOCH // 60 * 60 + second)
            counter.add(seen, history.add(seen, 5000.0 + second))
        stored(path, counter.pop(last=True))
        history = History()
    (first, *_) = means(path)
    used = first.values[str(Key(gpu(0).key, "", Metric.USED))] / GIB
    assert used == pytest.approx((39 * 10 + 14 * 70) / 53, rel=0.02)
    assert 50 <= first.seconds <= 55


def test_values_of_gpus_stand_in_columns(tmp_path: Path) -> None:
    values = {"GPU-0//utilization": 41.25, "GPU-0//sm_clock": 1980.0, "GPU-1//power": 300.0, "GPU-1//temperature": 61.0}
    path = stored(tmp_path / "x", Sums(means=[minute(0, **values), minute(1)]))
    asked = "SELECT at, uuid, used, utilization, power, temperature FROM gpu_values JOIN gpus ON gpu = id"
    with reading(path) as connection:
        rows = sorted(connection.execute(asked))
    at = int(START)
    assert rows == [
        (at, "GPU-0", 0, 41.2, None, None),
        (at, "GPU-1", None, None, 300, 61),
        (at + 60, "GPU-0", 1, *[None] * 3),
    ]
    assert means(path) == [minute(0, **values | {"GPU-0//utilization": 41.2}), minute(1)]


def test_of_many_processes_those_with_the_most_memory_are_stored(tmp_path: Path) -> None:
    crowd = {f"GPU-0/process:{pid}:1/memory": float(pid) for pid in range(1, 301)}
    crowd |= {f"/process:{pid}:1/cpu": 1.0 for pid in range(1, 301)}
    path = stored(tmp_path / "x", Sums(means=[minute(0, **crowd)], users={1001: "a\x1bda"}))
    (found,) = means(path)
    assert len(found.values) == 1 + 2 * MOST_PROCESSES
    assert "GPU-0/process:300:1/memory" in found.values
    assert found.users == {"user:1001": "a\ufffdda"}


@pytest.mark.parametrize(
    "body",
    [
        b"rubbish",
        zlib.compress(b'{"GPU-0//used": "much"}'),
        zlib.compress(b"[" * 100_000),
        zlib.compress(b" " * (64 << 20)),
        b"x" * (1 << 20),
        "a text",
    ],
)
def test_damaged_means_are_left_out(tmp_path: Path, body: object) -> None:
    path = stored(tmp_path / "x", Sums(means=[minute(0)]))
    change(path, "DELETE FROM graph_values")
    good = zlib.compress(b'{"GPU-0//used": 0, "\\u001b[31m//used": 1, "GPU-0//power": -1}')
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        rows = [(int(START), good), (int(START) + 60, body), (1 << 62, good)]
        connection.executemany("INSERT INTO graph_values VALUES (?, ?)", rows)
    assert [(one.at, one.values) for one in means(path)] == [(START, {"GPU-0//used": 0.0})]


def test_the_dashboard_reads_what_is_older_than_itself(tmp_path: Path) -> None:
    timeline, path = Timeline(), own_store(tmp_path)
    load_older(timeline, START + 600, folder=tmp_path)
    stored(path, Sums(means=[minute(number) for number in range(1, 10)]))
    load_older(timeline, START + 600, folder=tmp_path)
    timeline.add(snapshot([gpu(0)], taken=START + 600), 5000.0)
    assert timeline.read(KEY, START + 600, 6 * 3600, 360)[-9:] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_the_dashboard_reads_the_runs_of_before_but_not_those_of_unknown_owners(tmp_path: Path) -> None:
    timeline, path = Timeline(), own_store(tmp_path)
    ada, gone = process(1, "ada", start=7), Process(pid=2, start=8)
    stored(path, counted(*[machine(ada, gone)] * 70, *[machine()] * 60, first=60.0 - EPOCH % 60))
    load_older(timeline, EPOCH + 3600, folder=tmp_path)
    begin = int(EPOCH - EPOCH % 60) + 60
    times = ((begin, 60), (begin + 60, 60))
    assert timeline.recorded == {gpu(0).key: [RecordedRun(ADA, "1:7", "train.py", times, 1.0 * GIB)]}


# ---------------------------------------------------------------------------------------------------------------
# Who writes, and where nobody can


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder that does not exist yet."""
    return tmp_path / "state" / "gpuwatch"


@pytest.fixture
def record(folder: Path) -> Iterator[Record]:
    """Return a function that makes a recorder in the folder, which writes use when it is closed."""
    with recording(folder) as make:
        yield lambda **options: make(**{"usage": UsageSettings(), "now": EPOCH, **options})


def test_a_user_has_a_name_that_is_known_after_the_only_job_has_ended(record: Record, folder: Path) -> None:
    frames, one = Frames(), record(**NOW)
    feed(one, frames, machine(process(1, "0", uid=0)), 2)
    feed(one, frames, machine(process(2)), 2)
    feed(one, frames, machine(process(2, str(ADA), uid=ADA)), 2)  # of a sampler that was started anew
    wait_for(lambda: [line.name for line in lines(own_store(folder))] == ["ada", "root"])


def feed(one: Recording, frames: Frames, base: Snapshot, count: int = 1, **changes: Any) -> None:
    """Let frames come."""
    for _ in range(count):
        one.recorder.take(frames(base, **changes))


def held(folder: Path) -> list[float]:
    return [line.use.gpu for line in lines(own_store(folder))]


def test_a_demo_is_not_counted_and_the_last_minute_is(record: Record, folder: Path) -> None:
    one = record()
    feed(one, Frames(), machine(process(1)), 10)
    feed(one, Frames(), machine(process(1), demo=True), 5)
    one.close()
    assert held(folder) == [9.0]
    assert len(means(own_store(folder))) == 1
    assert read_report([own_store(folder)], "user", EPOCH).host == "box3"


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
    assert 5.0 <= held(folder)[0] <= 10.0, "the second may have written already"
    wait_for(lambda: second.recorder.lock.held)
    feed(second, frames, base, 3)
    second.close()
    assert 8.0 <= held(folder)[0] <= 13.0, "nothing is counted twice, but for what came at the end"


def test_a_dashboard_hands_over_to_a_watch_and_records_again_when_it_ends(record: Record, folder: Path) -> None:
    frames, base, alerts = Frames(), machine(process(1)), alert()
    dashboard = record(**NOW).settle()
    feed(dashboard, frames, base, 3)
    dashboard.feed(alerts)
    watch = record(watch=True, **NOW)
    watch.settle(alerts)
    assert (dashboard.recorder.lock.held, watch.recorder.lock.held) == (False, True)
    assert [one.id for one in read_events(own_store(folder)).open] == [alerts.id]
    assert held(folder) == [2.0], "what the dashboard had counted"
    watch.close()
    wait_for(lambda: dashboard.recorder.lock.held)


def test_who_watches_a_part_of_the_gpus_takes_no_lock(record: Record, folder: Path) -> None:
    one = record(part=True)
    feed(one, Frames(), machine(process(1)), 3)
    one.feed(alert())
    one.close()
    assert not own_store(folder).exists()
    assert not lock_path(own_store(folder)).exists()


def test_what_cannot_be_written_waits(record: Record, folder: Path) -> None:
    frames, base, one = Frames(), machine(process(1)), record(**NOW)
    for store in one.stores:
        store.failure = StoreError("no room")
    feed(one, frames, base, 3)
    wait_for(lambda: one.trouble == "not recorded: no room")
    feed(one, frames, base, 3)
    one.stores[0].failure = None
    wait_for(lambda: not one.trouble and held(folder) == [5.0])


def test_what_is_old_is_deleted_in_time(record: Record, folder: Path) -> None:
    pace = QUICK._replace(usage=0.03, prune=0.01)
    frames, base, one = Frames(), machine(process(1)), record(pace=pace, now=EPOCH + 26 * HOUR)
    feed(one, frames, base, 3)
    wait_for(lambda: held(folder))
    # A day in which it was watched on.
    save(one.path, *(batch(int(EPOCH // HOUR + hour) * HOUR, gpu=5) for hour in range(2, 27)))
    one.recorder.configure(UsageSettings(keep=float(HOUR)))
    feed(one, frames, base)
    wait_for(lambda: [line.uuid for line in lines(own_store(folder), "gpu")] == ["GPU-5"])


@pytest.mark.parametrize(("keeps", "dashboard"), [(True, False), (False, True), (False, False)])
def test_watch_always_keeps_and_the_dashboard_if_told_so(own_home: Path, keeps: bool, dashboard: bool) -> None:
    source = Script([Frames()(machine(process(1), host=os.uname().nodename)).snapshot])
    watch = Monitor(source, lambda frame: None)
    sinks = Sinks(watch, Config(report=Report(dashboard=False)), watch=keeps)
    sinks.configure(Config(report=Report(dashboard=False)), Config(report=Report(dashboard=dashboard)))
    watch.start()
    wait_for(lambda: watch.newest is not None)
    watch.stop()
    watch.join()
    sinks.close(PATIENCE)
    path = own_store()
    assert (path.exists() and read_report([path], "user", 0.0).host != "") is (keeps or dashboard)
