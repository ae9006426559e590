"""The store of `gpuwatch report`: a real SQLite that is added to, bounded, and made anew from older ones."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpuwatch.history import Use
from gpuwatch.recorder import store as schema
from gpuwatch.recorder.store import StoreError, read_kept, reading, store_name
from gpuwatch.recorder.usage import Batch, JobId, joined
from tests import CHECKOUT
from tests.support.eventlogs import alert, ended
from tests.support.storing import HOUR, ONE, asked, batch, hours, store

OLD = CHECKOUT / "tests" / "stores"
MIB = 1 << 20
WEEK = 7 * 24 * 3600


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store in a folder that does not exist yet."""
    return tmp_path / "state" / "gpuwatch" / store_name("box3")


def sums(path: Path, scope: str) -> list[tuple[int, Use]]:
    """Return what a scope comes to, by who."""
    rows = asked(path, f"SELECT * FROM hours WHERE scope = '{scope}'")
    return [(who, Use(*amounts)) for _, _, who, _, *amounts in rows]


# ---------------------------------------------------------------------------------------------------------------
# Adding


def test_it_is_private_and_adds_up(path: Path) -> None:
    for _ in range(3):
        store(path).write(batch())
    three = Use(3.0, 1.5, 0.75, 30.0, 15.0, 0.0)
    assert [sums(path, scope) for scope in ("gpu", "user", "job")] == [[(1, three)], [(1000, three)], [(1, three)]]
    assert asked(path, "SELECT seconds FROM watched") == [(3.0,)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_it_is_written_ahead(path: Path) -> None:
    store(path).write(batch())
    assert asked(path, "PRAGMA journal_mode") == [("wal",)]
    assert asked(path, "PRAGMA auto_vacuum") == [(2,)]


def test_each_hour_gpu_and_run_has_a_row_of_its_own(path: Path) -> None:
    parts = [batch(), batch(HOUR + 3600), batch(gpu=1), batch(job="2:2"), batch(user="ben", uid=1001)]
    store(path).write(joined(parts))
    assert len(sums(path, "job")) == 5
    assert len(sums(path, "user")) == 4
    assert len(sums(path, "gpu")) == 3


def test_a_number_does_not_replace_a_name(path: Path) -> None:
    for name in ("1000", "ada", "1000"):
        store(path).write(batch(user=name))
    assert asked(path, "SELECT * FROM users") == [(1000, "ada")]


def test_the_same_key_after_a_boot_is_another_run(path: Path) -> None:
    store(path).write(batch())
    store(path, boot_id=lambda: "another").write(batch())
    assert len(sums(path, "job")) == 2


def test_a_run_keeps_its_first_time_and_its_newest_name(path: Path) -> None:
    store(path).write(batch(name="python"))
    store(path).write(batch(HOUR + 3600, name="train.py", launcher="torchrun"))
    assert asked(path, "SELECT name, launcher, first, last FROM jobs") == [
        ("train.py", "torchrun", float(HOUR), HOUR + 3660.0)
    ]


def test_what_was_charged_before_a_run_was_known_moves_to_it(path: Path) -> None:
    store(path).write(joined([batch(job="8:8"), batch(job="9:9"), batch(job="run")]))
    news = batch(job="run")
    news.moved = {JobId(1000, name): JobId(1000, "run") for name in ("8:8", "9:9", "never seen")}
    store(path).write(news)
    assert [use for _, use in sums(path, "job")] == [Use(4.0, 2.0, 1.0, 40.0, 20.0, 0.0)]
    assert asked(path, "SELECT key FROM jobs") == [("run",)]


def test_an_event_is_told_once_however_often_it_comes(path: Path) -> None:
    held = alert("full", gpu="GPU-0", title="GPU 0 is full", seen=HOUR + 1.0, peak=1.0)
    worse = msgspec.structs.replace(held, peak=2.0, seen=HOUR + 2.0)
    over = ended(worse, after=9.0, how="over")
    for one in (held, worse, over, worse):
        store(path).write(batch(events=[one]))
    (row,) = asked(path, "SELECT id, rule, severity, gpu, ended, peak, title FROM events")
    assert row == (held.id, held.rule, 2, 1, over.ended, 2.0, "GPU 0 is full")
    assert asked(path, "SELECT * FROM event_user") == [(held.id, 1000)]
    assert asked(path, "SELECT * FROM event_job") == [(held.id, 1)]


# ---------------------------------------------------------------------------------------------------------------
# Bounds


def test_what_is_older_than_it_is_kept_is_forgotten(path: Path) -> None:
    one = store(path, keep=3600.0)
    one.write(batch(HOUR, events=[alert("old", seen=float(HOUR))]))
    later = [HOUR + 7200 + 3600 * number for number in range(25)]
    for hour in later:
        one.write(batch(hour, job="2:2", events=[alert("new", seen=float(hour))]))
    one.prune(later[-1])
    assert asked(path, "SELECT DISTINCT hour FROM hours") == [(hour,) for hour in later]
    assert asked(path, "SELECT hour FROM watched") == [(hour,) for hour in later]
    assert asked(path, "SELECT key FROM jobs") == [("2:2",)]
    assert asked(path, "SELECT id FROM events") == [("id-new",)]
    assert asked(path, "SELECT event FROM event_job") == [("id-new",)]


def test_a_clock_that_is_far_ahead_for_some_hours_makes_nothing_old(path: Path) -> None:
    one, ahead = store(path, keep=30 * 86400.0), HOUR + 40 * 365 * 86400
    one.write(batch(HOUR))
    for hour in range(24):
        one.write(batch(ahead + 3600 * hour))
        one.prune(ahead + 3600.0 * hour)
    assert (HOUR,) in asked(path, "SELECT hour FROM watched")
    one.write(batch(ahead + 24 * 3600))
    one.prune(ahead + 24 * 3600.0)
    assert (HOUR,) not in asked(path, "SELECT hour FROM watched"), "it was the clock before that was wrong"


def filled(path: Path, weeks: int) -> None:
    """Fill a store with weeks of many runs."""
    one = store(path)
    for week in range(weeks):
        parts = [batch(HOUR + week * WEEK + run % 100 * 3600, job=f"{week}:{run}") for run in range(2000)]
        one.write(joined(parts))


def test_a_full_one_loses_its_oldest_weeks(path: Path) -> None:
    filled(path, 6)
    largest = MIB
    assert path.stat().st_size > 1.2 * largest
    store(path, largest=largest).write(batch(HOUR + 6 * WEEK))
    assert path.stat().st_size <= largest
    (first, last), *_ = asked(path, "SELECT min(hour), max(hour) FROM watched")
    assert first > HOUR + WEEK
    assert last == HOUR + 6 * WEEK
    assert asked(path, "PRAGMA integrity_check") == [("ok",)]


def test_it_never_grows_beyond_its_bound(path: Path) -> None:
    one = store(path, largest=MIB)
    for week in range(6):
        for day in range(4):
            start = HOUR + week * WEEK + day * 24 * 3600
            one.write(joined(batch(start + run % 20 * 3600, job=f"{start}:{run}") for run in range(500)))
            assert path.stat().st_size <= MIB
    assert asked(path, "SELECT max(hour) FROM watched")[0][0] > HOUR + 5 * WEEK


def test_a_batch_that_can_never_fit_is_told_of(path: Path) -> None:
    one = store(path, largest=MIB)
    one.write(batch())
    with pytest.raises(sqlite3.OperationalError, match="full"):
        one.write(joined(batch(HOUR + 3600, job=str(run), name="x" * 100) for run in range(10_000)))
    assert asked(path, "PRAGMA integrity_check") == [("ok",)]


# ---------------------------------------------------------------------------------------------------------------
# Versions


def made(path: Path, version: int) -> None:
    """Make a store of an older version from what one was dumped as."""
    path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript((OLD / f"version{version}.sql").read_text())
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION}")
        connection.execute(f"PRAGMA user_version = {version}")
    finally:
        connection.close()


@pytest.mark.parametrize("version", range(1, schema.VERSION + 1))
def test_one_of_an_older_version_is_brought_up_with_its_rows(path: Path, version: int) -> None:
    made(path, version)
    before = read_kept(path, "job", float(HOUR))
    assert [(line.name, line.use.held, line.events.all) for line in before.lines] == [("train.py", 2.0, 1)]
    store(path).write(batch())
    assert asked(path, "PRAGMA user_version") == [(schema.VERSION,)]
    assert [line.use.held for line in read_kept(path, "job", float(HOUR)).lines] == [3.0]


def test_every_version_has_its_dump() -> None:
    assert {file.name for file in OLD.iterdir()} == {f"version{at}.sql" for at in range(1, schema.VERSION + 1)}


@pytest.mark.parametrize("version", range(1, schema.VERSION))
def test_a_fresh_one_is_like_one_that_was_brought_up(path: Path, tmp_path: Path, version: int) -> None:
    made(path, version)
    fresh = tmp_path / "fresh" / "usage.sqlite"
    for one in (path, fresh):
        store(one).write(batch())
    for all_of_it in ("SELECT name, sql FROM sqlite_master ORDER BY name", "SELECT name FROM about ORDER BY name"):
        assert asked(path, all_of_it) == asked(fresh, all_of_it)


KILLED = """
import os, signal, sqlite3, sys
from gpuwatch.recorder import store as schema
def half(connection):
    schema.STEPS[1](connection)
    connection.execute("DROP TABLE hours")
    os.kill(os.getpid(), signal.SIGKILL)
schema.upgrade(sqlite3.connect(sys.argv[1], isolation_level=None), [schema.STEPS[0], half])
"""


def test_a_migration_that_is_killed_leaves_the_old_one_whole(path: Path) -> None:
    made(path, 1)
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=CHECKOUT)
    assert done.returncode == -signal.SIGKILL
    assert asked(path, "PRAGMA user_version") == [(1,)]
    assert asked(path, "SELECT count(*) FROM hours") == [(3,)]
    store(path).write(batch())
    assert [line.use.held for line in read_kept(path, "job", float(HOUR)).lines] == [3.0]


def test_a_newer_one_is_refused_and_never_touched(path: Path) -> None:
    store(path).write(batch())
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    words = f"newer gpuwatch \\(version {schema.VERSION + 1} of the store; this one knows {schema.VERSION}"
    with pytest.raises(StoreError, match=words):
        store(path).write(batch())
    with pytest.raises(StoreError, match="newer"):
        read_kept(path, "user", 0.0)
    assert path.read_bytes() == before


def test_joining_adds_and_keeps_the_newest() -> None:
    first, second = batch(use=ONE), batch(use=hours(1), gpu=0)
    whole = joined([first, second])
    assert whole.by_user == {(HOUR, "GPU-0", 1000): ONE.plus(hours(1))}
    assert not Batch()
    assert whole


def test_reading_takes_no_file_for_granted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), reading(tmp_path / "none"):
        pass
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(StoreError, match="empty"), reading(empty):
        pass
    link = tmp_path / "link"
    store(tmp_path / "real").write(batch())
    link.symlink_to(tmp_path / "real")
    with pytest.raises(StoreError, match="not a regular file"), reading(link):
        pass
    with reading(link, follow=True) as connection:
        assert connection.execute("SELECT name FROM users").fetchall() == [("ada",)]
    assert not os.access(tmp_path / "none", os.F_OK)
