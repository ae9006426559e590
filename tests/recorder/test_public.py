"""Public days: what of a store everybody may read, and how it is read beside one's own."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import Acknowledgement, Alert, AlertCause, AlertGpu, AlertUser, Mute, Severity
from gpuwatch.analysis.events import Gap
from gpuwatch.base.units import Unit
from gpuwatch.commands import doctor
from gpuwatch.history.history import Use
from gpuwatch.history.timeline import Key, Metric, Minute, Timeline
from gpuwatch.model.live import FILE
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.recorder.events import read_all_events, write_events
from gpuwatch.recorder.forget import forget_user
from gpuwatch.recorder.live_writer import make_status
from gpuwatch.recorder.marks import write_marks
from gpuwatch.recorder.opening import reading
from gpuwatch.recorder.public import COLUMNS, PublicDays, Publish, is_use_public, refused_day, stores_read
from gpuwatch.recorder.recorder import UsageSettings
from gpuwatch.recorder.schema import MINUTE, create_tables, public_files
from gpuwatch.recorder.schema import own_store as store_of
from gpuwatch.recorder.store import Store
from gpuwatch.recorder.use import RunId, Sums, UsedGpu, UsedRun, load_older, read_means, write_use
from tests.support.process import SOMEBODY_ELSE
from tests.support.program import needs_root
from tests.support.store import read_report, recording
from tests.support.waiting import wait_for

DAY = 24 * 3600.0
SECRET = "/home/ada/secret"
NOW = time.mktime((2026, 11, 24, 14, 0, 30, 0, 0, -1))
MIDNIGHT = time.mktime((2026, 11, 24, 0, 0, 0, 0, 0, -1))
GPU = "GPU-1"
KEEP = 90 * DAY


def event(at: float, name: str = "e1", *, subject: str = SECRET, host: str = "box3", evidence: str = SECRET) -> Alert:
    return Alert(
        id=name,
        rule="over declared",
        host=host,
        gpu=GPU,
        index=0,
        subject=subject,
        severity=Severity.WARNING,
        title=f"ada holds 62 %, train.py of {SECRET}",
        evidence=evidence,
        raised=at,
        seen=at + 60,
        ended=at + 60,
        lasted=60.0,
        how=SECRET,
        unit=Unit.PERCENT,
        peak=62.0,
        owners=("ada",),
        pids=(4711,),
        gpus=(AlertGpu(GPU, 0),),
        users=(AlertUser(1001, "ada"),),
    )


def used(at: float, *, uid: int = 1001, user: str = "ada", minutes: int = 2, run: str = "4711:1") -> Sums:
    """Return use of a whole GPU by one run, for some minutes from `at` on."""
    key, use = RunId(uid, run), Use(held=60.0, busy=60.0, memory=60.0 * 2**30, gpu=60.0)
    start = int(at // MINUTE) * MINUTE
    sums = Sums(host="box3", gpus={GPU: UsedGpu(0, "NVIDIA A100", 80 << 30)}, users={uid: user})
    sums.runs = {key: UsedRun("train.py", SECRET, at, at + 60 * minutes)}
    for number in range(minutes):
        sums.use[start + number * MINUTE, GPU, None] = Use(held=60.0, busy=60.0)
        sums.use[start + number * MINUTE, GPU, key] = use
    values = {str(Key(GPU, "", Metric.USED)): 2.0**30, str(Key(GPU, f"user:{uid}", Metric.MEMORY)): 2.0**29}
    sums.means = [Minute(at=float(start), values=values, users={})]
    return sums


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """Return a store with an event and use, of yesterday and of today."""
    needs_root()
    path = tmp_path / "closed" / "gpuwatch-box3.2.sqlite"
    path.parent.mkdir()
    for at, name in ((MIDNIGHT - 7200, "e1"), (NOW - 3600, "e2")):

        def write(connection: sqlite3.Connection, at: float = at, name: str = name) -> None:
            write_events(connection, [event(at, name)], [], at + 60)
            write_use(connection, used(at, run=f"{name}:1"))

        Store(path, private=False).write(write)
    return path


def publish(closed: Path, level: Publish, now: float = NOW) -> list[Path]:
    folder = closed.parent.parent / "days"
    PublicDays(closed, level, folder).write(now, KEEP)
    return public_files(folder)


def test_each_column_of_a_store_says_whether_it_is_public() -> None:
    with sqlite3.connect(":memory:") as connection:
        create_tables(connection)
        there = {
            name: {column for _, column, *_ in connection.execute(f"PRAGMA table_info({name})")}
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        }
    assert {name: set(table.levels) for name, table in COLUMNS.items()} == there


@pytest.mark.parametrize("level", ["shares", "use"])
def test_of_a_full_store_the_public_columns_alone_have_values(closed: Path, level: Publish) -> None:
    def fill(connection: sqlite3.Connection) -> None:
        cause = AlertCause(pid=4711, uid=1001, user="ada", run="4711:1")
        one = msgspec.structs.replace(event(NOW - 60, "e4"), causes=(cause,))
        write_events(connection, [one], [Gap(NOW - 9, NOW)], NOW)
        acknowledged = Acknowledgement(key="k", at=NOW)
        write_marks(connection, {("mute", "XID", ""): Mute(rule="XID"), ("ack", "", "k"): acknowledged}, NOW)

    Store(closed, private=False).write(fill)
    today, _ = publish(closed, level)
    with reading(closed) as stored, reading(today) as public:
        for name, table in COLUMNS.items():
            assert stored.execute(f"SELECT count(*) FROM {name}").fetchone() > (0,), name
            for column, least in table.levels.items():
                asked = f"SELECT count(*) FROM {name} WHERE {column} != ''"
                assert least in ("shares", level) or public.execute(asked).fetchone() == (0,), (name, column)
        people = {"event_about", "users", "runs", "use"} if level == "shares" else set()
        empty = {name for name in COLUMNS if public.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)}
        assert empty == {"marks", "graph_values"} | people
        kinds = {kind for (kind,) in public.execute("SELECT kind FROM event_about")}
        assert {kind for (kind,) in stored.execute("SELECT kind FROM event_about")} == {"user", "gpu", "run"}
        assert kinds == ({"user", "gpu"} if level == "use" else set())


def test_all_days_are_written_again_without_who_was_deleted_from_the_store(closed: Path) -> None:
    later = NOW + 3 * DAY
    publish(closed, "use", later)
    forget_user(closed, 1001, "ada")
    old = publish(closed, "use", later)
    assert any(b"ada" in day.read_bytes() for day in old)
    PublicDays(closed, "use", old[0].parent).write(later, KEEP, all_days=True)
    assert public_files(old[0].parent) == old
    assert not any(b"ada" in day.read_bytes() for day in old)
    assert [line.name for line in read_report(old, "user", MIDNIGHT - DAY).lines] == ["?"]


@pytest.mark.parametrize("level", ["shares", "use"])
def test_paths_and_titles_are_never_published_and_people_only_with_use(closed: Path, level: Publish) -> None:
    today, yesterday = publish(closed, level)
    assert oct(today.stat().st_mode & 0o777) == oct(0o644)
    for day in (today, yesterday):
        content = day.read_bytes()
        assert b"secret" not in content
        assert (b"ada" in content) is (level == "use")
        assert b"4711" not in content
    found = read_all_events([today, yesterday])
    assert [(one.title, one.peak, one.lasted) for one in found.alerts] == [("GPU 0: over declared", 62.0, 60.0)] * 2
    assert [one.people for one in found.alerts] == [frozenset({"ada"} if level == "use" else ())] * 2


@pytest.mark.parametrize("level", ["shares", "use"])
def test_values_of_gpus_of_25_hours_are_public_and_with_use_whose_memory_it_was(closed: Path, level: Publish) -> None:
    today, yesterday = publish(closed, level)
    of_gpu, of_user = Key(GPU, "", Metric.USED), Key(GPU, "user:1001", Metric.MEMORY)
    with reading(today) as connection:
        found = [one.values for one in read_means(connection, NOW - DAY, NOW)]
    used, of_use = {str(of_gpu): 2.0**30}, {str(of_user): 2.0**30, str(Key(GPU, "", Metric.UTILIZATION)): 100.0}
    assert found == ([used, used | of_use, used | of_use] if level == "use" else [used, used])
    with reading(yesterday) as connection:
        before = [set(one.values) for one in read_means(connection, MIDNIGHT - 7200, NOW)]
    assert [str(of_user) in one for one in before] == ([True] * 2 if level == "use" else [])
    timeline = Timeline()
    load_older(timeline, NOW, folder=closed.parent.parent / "none", days=today.parent)
    assert timeline.read(of_gpu, NOW, DAY, 1) == [2.0**30]
    assert timeline.owners(GPU, NOW, DAY) == (["user:1001"] if level == "use" else [])


def test_time_that_the_machine_has_does_not_count_twice(closed: Path, tmp_path: Path) -> None:
    days = publish(closed, "use")
    own = tmp_path / "own" / "gpuwatch-box3.2.sqlite"
    own.parent.mkdir()

    def write(connection: sqlite3.Connection) -> None:
        write_use(connection, used(NOW - 3600, minutes=4))  # two of these minutes are the machine's too
        write_events(connection, [event(NOW - 3600, "mine"), event(NOW - 3000, "later")], [], NOW)

    Store(own, private=False).write(write)
    report = read_report([*days, own], "user", MIDNIGHT - DAY)
    assert [(line.name, line.use.gpu) for line in report.lines] == [("ada", 60.0 * (2 + 4))]
    assert report.watched == 60.0 * (2 + 4)
    assert report.events.all == 3  # of yesterday, of the machine, and mine of a time that it has not
    without = publish(closed, "shares")
    assert read_report([*without, own], "user", MIDNIGHT - DAY).total.gpu == 60.0 * 4


def test_an_event_that_the_machine_recorded_too_keeps_its_words_and_the_earlier_start(
    closed: Path, tmp_path: Path
) -> None:
    days = publish(closed, "shares")
    own = tmp_path / "own" / "gpuwatch-box3.2.sqlite"
    own.parent.mkdir()
    Store(own, private=False).write(lambda one: write_events(one, [event(NOW - 3570, "mine")], [], NOW))
    found = read_all_events([*days, own])
    assert [(one.id, one.raised) for one in found.alerts] == [("e1", MIDNIGHT - 7200), ("mine", NOW - 3600)]
    assert "train.py" in found.alerts[1].title


def own_store(tmp_path: Path, *events: Alert, at: float = NOW) -> Path:
    """Return the store of a user with some events, which was last written at a time."""
    path = tmp_path / "own" / "gpuwatch-box3.2.sqlite"
    path.parent.mkdir(parents=True)
    Store(path, private=False).write(lambda one: write_events(one, events, [], at))
    return path


def test_an_event_that_outlasts_ones_own_gpuwatch_ends_as_the_machine_says(closed: Path, tmp_path: Path) -> None:
    mine = msgspec.structs.replace(event(NOW - 3600, "mine"), ended=None)
    own = own_store(tmp_path, mine, at=NOW - 3590)
    found = {one.id: one for one in read_all_events([*publish(closed, "shares"), own]).alerts}
    assert (found["mine"].ended, found["mine"].lasted) == (NOW - 3540, 60.0)


def test_an_event_of_somebody_else_at_the_same_time_is_another_one(closed: Path, tmp_path: Path) -> None:
    bens = msgspec.structs.replace(event(NOW - 3590, "e3"), users=(AlertUser(1002, "ben"),), subject="12:1")
    Store(closed, private=False).write(lambda one: write_events(one, [bens], [], NOW))
    for level in ("use", "shares"):
        own = own_store(tmp_path / level, event(NOW - 3600, "mine", subject="11:1"))
        found = read_all_events([*publish(closed, level), own])
        assert [one.id for one in found.alerts] == ["e1", "mine", "e3"]
        assert found.aliases == {"e2": "mine"}


def test_an_event_over_midnight_counts_once(closed: Path) -> None:
    late = msgspec.structs.replace(event(MIDNIGHT - 3600, "late", subject="12:1"), ended=MIDNIGHT + 3600)
    Store(closed, private=False).write(lambda one: write_events(one, [late], [], NOW))
    report = read_report(publish(closed, "use"), "gpu", MIDNIGHT - DAY)
    assert [line.events.all for line in report.lines] == [report.events.all] == [3]


def test_whole_hours_of_older_days_are_one_row_and_the_part_counts_that_was_asked_for(closed: Path) -> None:
    hour = MIDNIGHT + 9 * 3600
    Store(closed, private=False).write(lambda one: write_use(one, used(hour, minutes=60)))
    later = publish(closed, "use", NOW + 2 * DAY)
    (day,) = [path for path in later if path.name.endswith("-24.sqlite")]
    with reading(day) as connection:
        spans = connection.execute("SELECT span, count(*) FROM use WHERE run = 0 GROUP BY span").fetchall()
    assert spans == [(60, 2), (3600, 1)]
    report = read_report([day], "gpu", hour + 900, hour + 1800)
    assert report.watched == report.total.gpu == pytest.approx(900.0)


def test_a_program_is_public_without_its_arguments_and_the_words_of_its_title(closed: Path) -> None:
    sums = used(NOW - 1800)
    for number, name in enumerate(("solver acme", "solver beta", "merger with ACME", "")):
        sums.runs[RunId(1001, f"{number}:1")] = UsedRun(name, SECRET, NOW - 1800, NOW)
        sums.use[int(NOW - 1800) // 60 * 60, GPU, RunId(1001, f"{number}:1")] = Use(held=60.0, busy=60.0)
    Store(closed, private=False).write(lambda one: write_use(one, sums))
    today, _ = publish(closed, "use")
    with reading(today) as connection:
        names = connection.execute("SELECT name FROM runs ORDER BY name").fetchall()
    assert names == [("",), ("merger",), ("solver",), ("train.py",)]


def test_a_clock_that_was_wrong_costs_no_day(closed: Path) -> None:
    days = [path.name for path in publish(closed, "use")]
    for wrong in (-5.5, 120.0):
        publish(closed, "use", NOW + wrong * DAY)
        assert [path.name for path in publish(closed, "use")] == days


def test_who_is_no_longer_published_is_removed_though_the_disk_is_full(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = publish(closed, "use")
    writer = PublicDays(closed, "shares", days[0].parent)
    with monkeypatch.context() as patch:
        patch.setattr("gpuwatch.base.files.write_all", fail)
        with pytest.raises(OSError, match="full"):
            writer.write(NOW, KEEP)
        assert public_files(days[0].parent) == []
    writer.write(NOW, KEEP)
    assert public_files(days[0].parent) == days


def fail(_file: int, _content: bytes) -> None:
    raise OSError(28, "the disk is full")


def make_newer(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (make_newer, "a newer gpuwatch wrote it"),
        (lambda file: file.write_bytes(b""), "empty"),
        (lambda file: os.truncate(file, 5000), "damaged"),
    ],
)
def test_a_day_that_cannot_be_read_is_left_out_and_made_anew(
    closed: Path, change: Callable[[Path], None], why: str
) -> None:
    today, yesterday = publish(closed, "use")
    change(yesterday)
    warnings: list[str] = []
    assert stores_read(closed.parent, days=today.parent, warn=warnings.append)[:-1] == [today]
    assert [why in words for words in warnings] == [True]
    change(today)
    assert not is_use_public(time.time(), today.parent)
    publish(closed, "use")
    assert stores_read(closed.parent, days=today.parent)[:-1] == [today, yesterday]


def test_the_day_before_is_read_too_since_the_service_may_be_in_another_zone(closed: Path) -> None:
    days = publish(closed, "use")
    assert stores_read(closed.parent, since=NOW, days=days[0].parent)[:-1] == days


def test_a_gap_of_ones_own_counts_where_no_public_day_covers_it(closed: Path, tmp_path: Path) -> None:
    covered, other = Gap(NOW - 7200, NOW - 3600), Gap(NOW - 3 * DAY, NOW - 2 * DAY)
    own = tmp_path / "own.sqlite"
    Store(own, private=False).write(lambda one: write_events(one, [], [covered, other], NOW))
    assert read_all_events([*publish(closed, "shares"), own]).gaps == (other,)


def test_another_level_makes_each_day_anew_and_none_removes_them(closed: Path) -> None:
    days = publish(closed, "use")
    writer = PublicDays(closed, "use", days[0].parent)
    writer.write(NOW, KEEP)
    assert b"ada" in days[1].read_bytes()
    writer.publish = "shares"
    writer.write(NOW, KEEP)
    assert b"ada" not in days[1].read_bytes()
    writer.publish = "none"
    writer.write(NOW, KEEP)
    assert public_files(days[0].parent) == []


def test_days_are_removed_when_they_are_too_old(closed: Path) -> None:
    later = publish(closed, "use", NOW + 3 * DAY)
    assert [path.name for path in later][-1] == f"public-{date.fromtimestamp(NOW - DAY)}.sqlite"
    (folder,) = {path.parent for path in later}
    PublicDays(closed, "use", folder).write(NOW + 3 * DAY, 3.5 * DAY)
    assert date.fromtimestamp(NOW - DAY).isoformat() not in " ".join(map(str, public_files(folder)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda file: file.parent.chmod(0o777), "others can write"),
        (lambda file: file.chmod(0o666), "others can write"),
        (lambda file: os.chown(file, SOMEBODY_ELSE, 0), "belongs to"),
        (lambda file: os.truncate(file, 17 << 20), "more than 16 MiB"),
    ],
)
def test_a_day_that_root_alone_did_not_write_is_not_read(
    closed: Path, change: Callable[[Path], None], why: str
) -> None:
    today, yesterday = publish(closed, "use")
    yesterday.unlink()
    change(today)
    assert why in refused_day(today)
    assert stores_read(closed.parent, days=today.parent) == [stores_read(closed.parent, days=closed)[0]]
    assert not is_use_public(time.time(), today.parent)


def test_use_is_public_while_the_service_writes_it(closed: Path) -> None:
    folder = publish(closed, "use")[0].parent
    assert is_use_public(time.time(), folder)
    assert not is_use_public(time.time() + 600, folder)
    publish(closed, "shares")
    assert not is_use_public(time.time(), folder)


def test_doctor_says_what_history_is_published_and_what_is_not_used(closed: Path, tmp_path: Path) -> None:
    machine = doctor.Machine(root=tmp_path, uid=1001)
    assert [*doctor.published_lines(machine, Snapshot())] == ["no service is running"]
    folder, run = tmp_path / "var/lib/gpuwatch", tmp_path / "run/gpuwatch"
    folder.mkdir(parents=True)
    run.mkdir(parents=True)
    (run / FILE).write_bytes(msgspec.json.encode(make_status(Snapshot(), (), time.monotonic())))
    PublicDays(closed, "use", folder).write(NOW, KEEP)
    (line,) = doctor.published_lines(machine, Snapshot())
    assert msgspec.json.decode(line) == {"uid": 1001, "since": "2026-11-23", "programs": ["train.py"]}
    assert [*doctor.published_lines(doctor.Machine(root=tmp_path, uid=1), Snapshot())] == [
        "nothing about you is published"
    ]

    def service() -> doctor.Check:
        return {one.name: one for one in doctor.check_all(machine, Snapshot(), "")}["service"]

    assert service().found.endswith("and everybody's use since 2026-11-23")
    make_newer(public_files(folder)[1])
    assert "1 of 2 days of history not used: " in service().found


def held(at: float, until: float, name: str, user: str, **changes: Any) -> Alert:
    """Return an overshoot of a user that was seen to hold until a time, and has no end."""
    one = event(at, name, subject=f"{name}:1 {GPU}")
    changes = {"ended": None, "seen": until, "users": (AlertUser(sum(map(ord, user)), user),), **changes}
    return msgspec.structs.replace(one, owners=(user,), **changes)


@pytest.mark.parametrize("level", ["shares", "use"])
@pytest.mark.parametrize(
    ("theirs", "mine", "found"),
    [
        (held(NOW - 300, NOW - 200, "e3", "ada"), held(NOW - 171, NOW, "m", "hal"), ["e3", "m"]),
        (held(NOW - 300, NOW - 200, "e3", "ada"), held(NOW - 199, NOW, "m", "ada"), ["e3", "m"]),
        (held(NOW - 300, NOW - 200, "e3", "ada", ended=NOW - 200), held(NOW - 190, NOW, "m", "hal"), ["e3", "m"]),
        (held(NOW - 300, NOW - 200, "e3", "ada"), held(NOW - 250, NOW, "m", "ada"), ["m"]),
        (
            held(NOW - 300, NOW - 200, "e3", "ada", gpus=(AlertGpu("GPU-2", 1),)),
            held(NOW - 250, NOW, "m", "ada"),
            ["e3", "m"],
        ),
    ],
    ids=["another-person", "again", "ended", "the-same", "another-gpu"],
)
def test_what_began_after_an_event_was_last_seen_is_another_one(
    tmp_path: Path, theirs: Alert, mine: Alert, found: list[str], level: Publish
) -> None:
    needs_root()
    path = tmp_path / "closed" / "gpuwatch-box3.2.sqlite"
    path.parent.mkdir()
    Store(path, private=False).write(lambda one: write_events(one, [theirs], [], theirs.seen))
    days = publish(path, level, theirs.seen)  # as the service leaves them when it stops
    every = {one.id: one.raised for one in read_all_events([*days, own_store(tmp_path, mine)]).alerts}
    assert list(every) == found
    assert every["m"] == (mine.raised if len(found) == 2 else theirs.raised)


def test_an_event_of_before_is_published_once_it_is_known_whether_it_holds(tmp_path: Path) -> None:
    needs_root()
    store = store_of(tmp_path / "closed")
    with recording(tmp_path / "closed") as record:
        days = PublicDays(store, "shares", tmp_path / "days")
        first = record(now=NOW, days=days).settle(held(NOW - 60, NOW, "e3", "ada"))
        first.expect("e3 warning")
        first.recorder.configure(UsageSettings(is_kept=False), "shares")
        wait_for(lambda: public_files(tmp_path / "days"))
        first.recorder.configure(UsageSettings(is_kept=False), "none")
        wait_for(lambda: not public_files(tmp_path / "days"), "another level counts at once")
        first.recorder.configure(UsageSettings(is_kept=False), "shares")
        wait_for(lambda: public_files(tmp_path / "days"))
        late = event(NOW + 1, "late", subject="12:1")
        first.feed(held(NOW - 60, NOW, "e3", "ada"), cleared=[late])
        first.close()
        (day,) = public_files(tmp_path / "days")
        before = read_all_events([day]).alerts
        assert [(one.id, one.ended) for one in before] == [("e3", None), ("late", NOW + 61)], "the end is published"
        days = PublicDays(store, "shares", tmp_path / "days")
        second = record(now=NOW + 20, days=days).start()
        wait_for(lambda: second.restored)
        assert read_all_events([day]).alerts[0].seen < NOW + 19
        second.settle()
        wait_for(lambda: read_all_events([day]).alerts[0].ended is not None)


def test_an_event_of_a_clock_that_ran_ahead_is_published_today(closed: Path) -> None:
    ahead = event(NOW + 3 * DAY, "ahead", subject="12:1")
    Store(closed, private=False).write(lambda one: write_events(one, [ahead], [], NOW))
    days = publish(closed, "shares")
    assert [[one.id for one in read_all_events([day]).alerts] for day in days] == [["e2", "ahead"], ["e1"]]


def test_a_public_day_says_since_when_the_service_watches(closed: Path) -> None:
    for level in ("shares", "use"):
        found = read_all_events([publish(closed, level)[0]])
        assert found.since == int(MIDNIGHT - 7200) // 60 * 60
