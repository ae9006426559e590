"""The store: what is added, its bounds, and bad days: several writers, sudden ends, full disks, planted files."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import AlertCause, AlertGpu, AlertUser, Severity
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.analysis.events import Gap, State
from gpuwatch.base import files
from gpuwatch.model.holdings import UNSEEN_USER
from gpuwatch.recorder import opening
from gpuwatch.recorder.events import EventsReader, read_events
from gpuwatch.recorder.opening import DamagedError, StoreError, reading
from gpuwatch.recorder.schema import VERSION, lock_path, own_store
from gpuwatch.recorder.store import EVENTS_BYTES, Store
from gpuwatch.recorder.use import By, RunId
from tests import CHECKOUT
from tests.support.builders import EPOCH
from tests.support.process import ROOT, SOMEBODY_ELSE
from tests.support.store import HOUR, alert, ask, batch, change, ended, hours, read_report, save, write

WEEK = 7 * 86400
FULL = 400 << 10
SMALL = FULL - EVENTS_BYTES
"""What is allowed for usage where the whole file is to take 400 KiB."""
NOW = EPOCH + 100.0
GPU0 = AlertGpu("GPU-0", 0)
BYS: tuple[By, ...] = ("user", "gpu", "run")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store in a folder that does not exist yet."""
    return own_store(tmp_path / "state" / "gpuwatch")


def held(path: Path) -> set[tuple[float, ...]]:
    """Return the seconds in which the GPUs were held, by their own rows and by those of the runs."""
    return set(ask(path, "SELECT sum(held_s) FROM use WHERE run = 0 UNION SELECT sum(gpu_s) FROM use"))


def is_sound(path: Path) -> bool:
    return ask(path, "PRAGMA integrity_check") == [("ok",)]


# ---------------------------------------------------------------------------------------------------------------
# Usage


def test_it_is_private_and_adds_up(path: Path) -> None:
    for _ in range(3):
        save(path, batch())
    assert ask(path, "SELECT held_s, busy_s, unknown_s, byte_s, idle_byte_s, unsized_s, gpu_s FROM use WHERE run") == [
        (3.0, 1.5, 0.75, 30.0, 15.0, 0.0, 3.0)
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert ask(path, "PRAGMA journal_mode") == [("delete",)]
    assert ask(path, "PRAGMA auto_vacuum") == [(2,)]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_what_was_charged_before_a_run_was_known_moves_to_it(path: Path) -> None:
    cause = AlertCause(uid=1000, user="ada", pid=8, start=8, run="8:8")
    save(path, batch(run="8:8"), batch(run="9:9"), batch(run="run"), events=[alert(causes=(cause,))])
    news = batch(run="run")
    news.moved = {RunId(1000, name): RunId(1000, "run") for name in ("8:8", "9:9", "never seen")}
    save(path, news)
    assert ask(path, "SELECT key, held_s, gpu_s FROM use JOIN runs ON run = id") == [("run", 4.0, 4.0)]
    assert ask(path, "SELECT key FROM runs") == [("run",)]
    assert ask(path, "SELECT who FROM event_about WHERE kind = 'run'") == [("1000/run",)]


def test_an_event_is_counted_for_its_gpu_and_for_who_causes_it(path: Path) -> None:
    ada, ben = AlertUser(1000, "ada"), AlertUser(1001, "ben")
    causes = tuple(
        AlertCause(uid=one.uid, user=one.name, pid=pid, start=pid, run=f"{pid}:{pid}")
        for one, pid in ((ben, 7), (ada, 1))
    )
    over = ended(
        alert("over", rule=OVERSHOOT, subject="1:1 GPU-0", raised=EPOCH - 500, gpus=(GPU0,), causes=causes[1:])
    )
    # Together ada's processes have the most, though one of ben's is the largest.
    full = alert("full", gpus=(AlertGpu("GPU-9", 9),), users=(ada, ben), causes=causes)
    save(path, batch(), batch(user="ben", uid=1001, run="7:7"), events=[over, full])
    unseen = alert("unseen", owners=(UNSEEN_USER, "ada"), users=(ada,), causes=causes[1:])
    save(path, events=[unseen])
    save(path, events=[alert("full", gpus=(GPU0,), most=Severity.CRITICAL, users=(ada, ben), causes=causes)])
    save(path, events=[alert("hot", gpus=(GPU0,))])
    for by in BYS:
        report = read_report([path], by, float(HOUR))
        counts = {line.name if by == "user" else line.key: line.events for line in report.lines}
        of_ada = {"user": "ada", "run": "1:1", "gpu": ""}[by]
        of_ben = {"user": {"ben": (0, 0, 0)}, "run": {"7:7": (0, 0, 0)}, "gpu": {}}[by]
        assert counts == {of_ada: (1, 3, 3) if by == "gpu" else (1, 2, 2), **of_ben}
        assert report.events == (1, 4, 4)


# ---------------------------------------------------------------------------------------------------------------
# Events


def test_events_are_read_as_they_were_written_since_a_time(path: Path) -> None:
    done = ended(alert("b", raised=EPOCH + 5, owners=("ada",), pids=(1, 2), peak=3.0))
    gaps = (Gap(EPOCH, NOW), Gap(NOW, NOW + 1, 3))
    write(path, done, alert(raised_monotonic=7.0), gaps=gaps, now=NOW)
    found = read_events(path)
    assert (found.alerts, found.gaps) == ((alert(seen=NOW), done), gaps), "what is open held until the last write"
    assert [found.state(one) for one in found.alerts] == [State.OPEN, State.ENDED]
    assert (found.note, found.watched_until, found.exists) == ("3 events could not be written", NOW, True)
    assert read_events(path.with_name("none")).exists is False
    assert [one.id for one in read_events(path, EPOCH + 80).alerts] == ["id-a"]
    later = read_events(path, NOW + 0.5)
    assert (later.alerts, later.gaps) == ((), gaps[1:]), "nobody knows what a did since"


def test_a_store_that_has_not_changed_is_not_read_again(path: Path) -> None:
    read = EventsReader(lambda: [path])
    assert not read().exists
    write(path, alert())
    first = read()
    assert [one.id for one in first.alerts] == ["id-a"]
    assert read() is first
    write(path, ended(alert()))
    assert read().alerts[0].ended is not None
    before, lock = read(), files.FileLock(lock_path(path))
    assert lock.acquire()
    assert read() is not before
    assert read().watched
    lock.release()


def test_two_stores_are_read_as_one_and_what_a_stopped_gpuwatch_left_open_has_ended(path: Path) -> None:
    other = path.with_name("other.sqlite")
    lock = files.FileLock(lock_path(path))
    assert lock.acquire()
    write(path, alert(), alert("b"), now=NOW)
    write(other, alert(id="of-another", raised=EPOCH + 5), alert("c"), now=NOW)
    found = EventsReader(lambda: [path, other])()
    assert [(one.id, found.state(one)) for one in found.finished] == [
        ("id-a", State.ONGOING),
        ("id-b", State.ONGOING),
        ("id-c", State.ENDED),
    ]
    lock.release()
    (left,) = {(one.ended, one.how) for one in read_events(path).finished}
    assert left[0] is not None
    assert "stopped" in left[1]


@pytest.mark.parametrize(
    "row",
    [
        "",
        "null",
        "[" * 60000,
        " " * 70000 + msgspec.json.encode(alert()).decode(),
        *(
            msgspec.json.encode(alert(**changes)).decode()
            for changes in ({"raised": 1e15}, {"lasted": 1e200}, {"peak": 1e300}, {"id": ""}, {"raised": -1.0})
        ),
        msgspec.json.encode(alert()).decode().replace('"severity":2', '"severity":9'),
    ],
)
def test_a_row_that_cannot_be_ours_is_counted_and_left_out(path: Path, row: str) -> None:
    write(path, alert(), alert("b"))
    change(path, f"UPDATE events SET alert = '{row}' WHERE id = 'id-a'", "INSERT INTO gaps VALUES ('x', 1, 1)")
    found = read_events(path)
    assert ([one.id for one in found.alerts], found.gaps) == (["id-b"], ())
    assert found.note == "1 events are damaged"


def test_foreign_texts_are_cleaned_again_and_cut(path: Path) -> None:
    foreign = "\x1b[31mred\u202e\n" + "x" * 5000
    save(path, batch(user=foreign, name=foreign, launcher=foreign), events=[alert(title=foreign, owners=(foreign,))])
    (one,) = read_events(path).alerts
    assert all(words.startswith("�[31mred��xxx") and len(words) == 400 for words in (one.title, one.owners[0]))
    for by in BYS[::2]:
        (line,) = read_report([path], by, float(HOUR)).lines
        assert all(words.isprintable() for words in (line.name, line.user, line.launcher))
    path.write_bytes(path.read_bytes().replace(b"red\xe2\x80\xae", b"red\xe9\xe9\xe9"))
    assert "red\N{REPLACEMENT CHARACTER}" in read_report([path], "user", float(HOUR)).lines[0].name


# ---------------------------------------------------------------------------------------------------------------
# Bounds


def test_what_is_older_than_it_is_kept_is_deleted(path: Path) -> None:
    save(path, batch(HOUR), events=[alert("old", gpus=(GPU0,), seen=float(HOUR))])
    later = [HOUR + 7200 + 3600 * number for number in range(25)]
    save(path, *(batch(hour, run="2:2") for hour in later), events=[alert("new", gpus=(GPU0,), seen=later[-1])])
    Store(path, keep=3600.0).prune(later[-1])
    assert ask(path, "SELECT DISTINCT at FROM use") == [(hour,) for hour in later]
    assert ask(path, "SELECT key FROM runs") == [("2:2",)]
    assert ask(path, "SELECT id FROM events") == [("id-new",)]
    assert ask(path, "SELECT event FROM event_about") == [("id-new",)]


def test_what_is_kept_is_kept_to_the_minute(path: Path) -> None:
    first = HOUR + 3600
    save(path, *(batch(first + second) for second in (-60, 0)))
    later = [first + 3600 * number for number in range(1, 26)]
    ends = [alert(str(end), gpus=(GPU0,), seen=float(first + end), ended=float(first + end)) for end in (-1, 0)]
    save(path, *(batch(hour) for hour in later), events=ends)
    Store(path, keep=3600.0).prune(later[-1])
    assert ask(path, "SELECT DISTINCT at FROM use") == [(hour,) for hour in (first, *later)]
    assert ask(path, "SELECT id FROM events") == [("id-0",)]


def test_after_a_week_the_minutes_of_an_hour_are_one_row(path: Path) -> None:
    save(path, *(batch(HOUR + 3600 * hour, use=hours(0.5)) for hour in (0, 1, 200)))
    save(path, *(batch(HOUR + 3600 * hour) for hour in range(201, 230)))
    before = [read_report([path], by, float(HOUR)) for by in BYS]
    Store(path).prune(EPOCH + 1e9)
    assert ask(path, f"SELECT at - {HOUR}, span, count(*) FROM use WHERE at <= {HOUR + 200 * 3600} GROUP BY 1, 2") == [
        (0, 3600, 2),
        (3600, 3600, 2),
        *((200 * 3600, 60, 2) for _ in range(1)),
    ]
    after = [read_report([path], by, float(HOUR)) for by in BYS]
    for old, new in zip(before, after, strict=True):
        assert (*new.total, new.watched) == pytest.approx((*old.total, old.watched))


def test_a_clock_that_is_far_ahead_for_some_hours_makes_nothing_old(path: Path) -> None:
    one, ahead = Store(path, keep=30 * 86400.0), HOUR + 40 * 365 * 86400
    save(path, batch(HOUR), *(batch(ahead + 3600 * hour) for hour in range(24)))
    one.prune(ahead + 24 * 3600.0)
    assert (HOUR,) in ask(path, "SELECT at FROM use")
    save(path, batch(ahead + 24 * 3600))
    one.prune(ahead + 24 * 3600.0)
    assert (HOUR,) not in ask(path, "SELECT at FROM use"), "it was the clock before that was wrong"


def test_a_full_store_loses_its_oldest_weeks_and_never_grows_beyond_its_bound(path: Path) -> None:
    for week in range(6):
        save(path, *(batch(HOUR + week * WEEK + run % 100 * 3600, run=f"{week}:{run}") for run in range(1000)))
    assert path.stat().st_size > 1.2 * FULL
    for day in range(12):
        start = HOUR + 6 * WEEK + day * 86400
        save(path, *(batch(start + run % 20 * 3600, run=f"{start}:{run}") for run in range(70)), largest=SMALL)
        assert path.stat().st_size <= FULL
    ((first, last),) = ask(path, "SELECT min(at), max(at) FROM use")
    assert first > HOUR + WEEK
    assert last > HOUR + 6 * WEEK
    assert is_sound(path)
    with pytest.raises(StoreError, match="no space left on device"):
        save(path, *(batch(run=str(run), name="x" * 100) for run in range(3000)), largest=SMALL)
    assert is_sound(path)


def test_of_events_the_newest_are_kept_and_all_that_hold(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatch.recorder.store._MOST_EVENTS", 10)
    write(path, alert("held"), *(ended(alert(str(number))) for number in range(30)))
    Store(path).prune(NOW)
    kept = [one.id for one in read_events(path).alerts]
    assert sorted(kept) == sorted(["id-held", *(f"id-{number}" for number in range(21, 30))])


# ---------------------------------------------------------------------------------------------------------------
# Several, and sudden ends


HALF = """
import os, signal, sys
from pathlib import Path
from gpuwatch.recorder.store import Store
def change(connection):
    connection.execute("PRAGMA cache_size = 1")  # what does not fit is in the file before the end
    connection.execute("DELETE FROM use")
    connection.execute("WITH n(i) AS (SELECT 2000 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) "
                       "INSERT INTO users SELECT i, hex(randomblob(100)) FROM n")
    os.kill(os.getpid(), signal.SIGKILL)
Store(Path(sys.argv[1])).write(change)
"""


def test_one_that_is_killed_in_the_middle_of_a_write_leaves_the_state_before(path: Path) -> None:
    save(path, batch())
    before = path.stat().st_size
    done = subprocess.run([sys.executable, "-c", HALF, str(path)], cwd=CHECKOUT, check=False, capture_output=True)
    assert not done.stderr
    assert done.returncode == -signal.SIGKILL
    assert path.with_name(f"{path.name}-journal").stat().st_size
    assert path.stat().st_size > before
    assert held(path) == {(1.0,)}, "who only reads undoes it"
    assert ask(path, "SELECT count(*) FROM users") == [(1,)]
    assert is_sound(path)


def test_a_store_that_stays_locked_or_is_taken_away_is_reported(path: Path) -> None:
    save(path, batch())
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=f"^{path}: another program keeps it locked$"):
            save(path, batch(), patience=0.05)
        assert held(path) == {(1.0,)}, "it can be read"
        other.execute("ROLLBACK")
    with pytest.raises(StoreError, match="removed while"):
        Store(path).write(lambda connection: path.unlink())


# ---------------------------------------------------------------------------------------------------------------
# Files that are something else


def refused(path: Path, words: str, kind: type[StoreError] = StoreError) -> None:
    """See that a file is neither read nor written."""
    before = path.read_bytes() if path.is_file() else None
    for use in (lambda: save(path, batch()), lambda: read_report([path], "user", 0.0), lambda: read_events(path)):
        with pytest.raises(kind, match=words) as caught:
            use()
        assert str(path) in str(caught.value)
        assert str(caught.value).isprintable()
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize("content", [b"shopping list\n", b"\0" * 4096])
def test_what_is_no_database_is_damaged(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    path.chmod(0o600)
    refused(path, "it is damaged", DamagedError)


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        ([f"PRAGMA user_version = {VERSION + 1}"], "newer gpuwatch wrote it .store version 3; this gpuwatch reads 2"),
        (["CREATE VIEW mine AS SELECT 1"], "objects that gpuwatch did not create"),
        (["CREATE TRIGGER m AFTER INSERT ON use BEGIN DELETE FROM use; END"], "objects that gpuwatch did not create"),
        (["DROP TABLE use", "CREATE VIEW use AS SELECT 1"], "objects that gpuwatch did not create"),
        (["PRAGMA application_id = 4711"], "a database of another program"),
    ],
)
def test_a_database_that_is_not_ours_is_never_touched(path: Path, statements: list[str], words: str) -> None:
    save(path, batch())
    change(path, *statements)
    refused(path, words)


def test_a_damaged_store_is_set_aside_whole(path: Path) -> None:
    save(path, *(batch(run=str(number)) for number in range(200)))
    good = path.read_bytes()
    pages = range(4096, len(good), 4096)  # rubbish at the start of each but the first
    content = good[:4096] + b"".join(b"\xff" * 64 + good[at + 64 : at + 4096] for at in pages)
    path.write_bytes(content)
    for use in (lambda: read_report([path], "user", 0.0), lambda: save(path, batch())):
        with pytest.raises(DamagedError, match=f"^{path}: it is damaged"):
            use()
    assert Store(path).set_aside() == f"{path.name} was damaged and is now {path.name}.damaged; a new file was started"
    assert path.with_name(f"{path.name}.damaged").read_bytes()[4096:] == content[4096:]
    save(path, batch())
    assert held(path) == {(1.0,)}


@pytest.mark.parametrize("what", ["link", "dangling", "pipe"])
@pytest.mark.parametrize("place", ["", "-journal"])
def test_what_is_planted_under_its_name_or_as_its_journal_is_refused(
    path: Path, tmp_path: Path, what: str, place: str
) -> None:
    other = tmp_path / "other"
    if place:
        save(path, batch())
    path.parent.mkdir(parents=True, exist_ok=True)
    planted = path.with_name(path.name + place)
    os.mkfifo(planted) if what == "pipe" else planted.symlink_to(other)
    if what == "link":
        other.write_text("somebody's own")
    refused(path, f"its journal {planted.name} is not a regular file" if place else "symbolic link|not a regular file")
    assert not other.exists() or other.read_text() == "somebody's own"


def test_in_a_folder_of_all_a_journal_of_ones_own_leaves_no_place_for_another(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o1777)
    store, real, planted = Store(path, private=False), opening.connect, []

    def connect(*arguments: Any) -> sqlite3.Connection:
        """Open it after somebody tried to plant a journal since that was looked for."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(f"{path}-journal", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            planted.append(path)
        return real(*arguments)

    monkeypatch.setattr("gpuwatch.recorder.store.connect", connect)
    for number in range(3):
        store.write(lambda connection, n=number: connection.execute("INSERT INTO gaps VALUES (?, 1, 1)", (n,)) and None)  # type: ignore[misc]
    assert not planted
    assert ask(path, "SELECT count(*) FROM gaps") == [(3,)]
    path.parent.chmod(0o777)
    with pytest.raises(StoreError, match="everybody may rename files in"):
        store.write(lambda connection: None)


@pytest.mark.skipif(not ROOT, reason="gives a file to another user, which only root can")
def test_somebody_elses_file_is_refused_unless_it_was_named(path: Path) -> None:
    save(path, batch())
    os.chown(path, SOMEBODY_ELSE, -1)
    refused(path, f"the file belongs to uid {SOMEBODY_ELSE}")
    assert len(read_report([path], "user", 0.0, named=True).lines) == 1


@pytest.mark.parametrize("cell", ["'many'", "x'00ff'", "NULL", "-1.0", "9e999"])
def test_a_cell_may_hold_anything(path: Path, cell: str) -> None:
    save(path, batch())
    statements = [
        f"UPDATE {one} = {cell}" for one in ("gpus SET number", "gpus SET name", "runs SET name", "runs SET first")
    ]
    if cell != "NULL":
        statements += [f"UPDATE use SET byte_s = {cell}, gpu_s = {cell}"]
    change(path, *statements)
    for by in BYS:
        (line,) = read_report([path], by, float(HOUR)).lines
        assert 0 <= line.use.memory < 1e30


def test_a_query_that_takes_for_ever_is_given_up_and_reading_changes_nothing(path: Path) -> None:
    save(path, batch())
    before = path.read_bytes()
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(StoreError, match="took longer than"), reading(path, seconds=0.05) as connection:
        connection.execute(endless).fetchall()
    with pytest.raises(StoreError, match="readonly"), reading(path) as connection:
        connection.execute("DELETE FROM use")
    assert path.read_bytes() == before


def test_its_name_is_of_the_host_and_no_path() -> None:
    assert files.host_name("../../etc/pass wd\n") == "_.._etc_pass_wd_"
    assert files.host_name("..") == "host"
