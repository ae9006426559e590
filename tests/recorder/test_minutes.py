"""Minutes in the store: written each minute, deleted after 25 hours, and read into a timeline."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuwatch.minute import Minute
from gpuwatch.recorder.minutes import KEEP, MOST_PROCESSES, load_older, read_minutes, write_minutes
from gpuwatch.recorder.recorder import UsageSettings
from gpuwatch.recorder.store import Store, own_store, reading
from gpuwatch.timeline import Key, Metric, Timeline
from tests.support.builders import EPOCH, gpu, snapshot
from tests.support.recording import QUICK, change, frame, recording, wait_for

KEY = Key("GPU-0", "", Metric.USED)
START = EPOCH + 40


def minute(number: int, **values: float) -> Minute:
    """Return a minute, by its number from a full minute on."""
    return Minute(at=START + 60 * number, values={str(KEY): float(number), **values})


def write(path: Path, minutes: Iterable[Minute]) -> None:
    rows = list(minutes)
    Store(path).write(lambda connection: write_minutes(connection, rows))


def stored(path: Path) -> list[int]:
    """Return the numbers of the stored minutes; none where there is no store yet."""
    try:
        with reading(path) as connection:
            found = list(read_minutes(connection, 0.0, 1e12))
    except FileNotFoundError:
        return []
    assert all(one.values[str(KEY)] == (one.at - START) // 60 for one in found)
    return [round((one.at - START) / 60) for one in found]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that does not exist yet."""
    return own_store(tmp_path / "state")


def test_minutes_are_read_back_and_old_ones_deleted(path: Path) -> None:
    write(path, [minute(0), minute(1)])
    write(path, [minute(1), minute(KEEP // 60)])
    assert stored(path) == [0, 1, KEEP // 60]
    write(path, [minute(KEEP // 60 + 1)])
    assert stored(path) == [1, KEEP // 60, KEEP // 60 + 1]


def test_minutes_of_a_clock_that_was_ahead_are_deleted(path: Path) -> None:
    write(path, [minute(0), minute(500)])
    write(path, [minute(1)])
    assert stored(path) == [0, 1]


def test_a_store_without_minutes_gains_them(path: Path) -> None:
    Store(path).write(lambda connection: None)
    change(path, "DROP TABLE minutes")
    assert stored(path) == []
    write(path, [minute(3)])
    assert stored(path) == [3]


def test_of_many_processes_those_with_the_most_memory_are_stored(path: Path) -> None:
    crowd = {f"GPU-0/process:{pid}:1/memory": float(pid) for pid in range(1, 301)}
    crowd |= {f"/process:{pid}:1/cpu": 1.0 for pid in range(1, 301)}
    write(path, [minute(0, **crowd)])
    with reading(path) as connection:
        (found,) = read_minutes(connection, 0.0, 1e12)
    assert len(found.values) == 1 + 2 * MOST_PROCESSES
    assert "GPU-0/process:300:1/memory" in found.values


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"rubbish",
        zlib.compress(b"[]"),
        zlib.compress(b'{"GPU-0//used": "much"}'),
        zlib.compress(b'{"GPU-0//used": 1'),
        zlib.compress(b"[" * 100_000),
        zlib.compress(b" " * (64 << 20)),
        b"x" * (1 << 20),
        "a text",
        7,
    ],
)
def test_damaged_rows_are_left_out(path: Path, body: object) -> None:
    write(path, [minute(0), minute(2)])
    change(path, "DELETE FROM minutes")
    connection = sqlite3.connect(path)
    good = zlib.compress(b'{"GPU-0//used": 0, "\\u001b[31m//used": 1, "GPU-0//power": -1}')
    rows = [(int(START), good), (int(START) + 60, body), (1 << 62, good)]
    connection.executemany("INSERT INTO minutes VALUES (?, ?)", rows)
    connection.commit()
    connection.close()
    with reading(path) as opened:
        assert [(one.at, one.values) for one in read_minutes(opened, 0.0, 1e12)] == [(START, {"GPU-0//used": 0.0})]


def test_the_dashboard_reads_what_is_older_than_itself(path: Path) -> None:
    timeline, folder = Timeline(), path.parent
    load_older(timeline, START + 600, folder=folder)
    write(path, [minute(number) for number in range(1, 10)])
    load_older(timeline, START + 600, folder=folder)
    timeline.add(snapshot([gpu(0)], taken=START + 600), 5000.0)
    assert timeline.read(KEY, START + 600, 6 * 3600, 360)[-9:] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_minutes_have_the_names_of_the_users_in_the_store(path: Path) -> None:
    write(path, [minute(0)])

    def add(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO users VALUES (1001, 'a\x1bda')")

    Store(path).write(add)
    with reading(path) as connection:
        assert [one.users for one in read_minutes(connection, 0.0, 1e12)] == [{"user:1001": "a\ufffdda"}]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_recorder_that_keeps_usage_writes_the_minutes(path: Path, is_kept: bool) -> None:
    with recording(path.parent) as make:
        one = make(usage=UsageSettings(is_kept=is_kept), pace=QUICK._replace(usage=0.03))
        one.recorder.take(replace(frame(), minute=minute(4)))
        one.recorder.take(replace(frame(), minute=minute(5)))
        one.recorder.take(frame())
        if is_kept:
            wait_for(lambda: stored(path) == [4, 5])
    assert stored(path) == ([4, 5] if is_kept else [])
