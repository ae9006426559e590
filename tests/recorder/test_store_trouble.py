"""The store on a bad day: several writers, sudden ends, full disks, and files that are something else."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuwatch.recorder.store import StoreError, read_kept, reading, store_name, store_words
from gpuwatch.recorder.usage import JobId, joined
from tests import CHECKOUT
from tests.support.gpuholder import ROOT, SOMEBODY_ELSE, unavailable
from tests.support.storing import HOUR, asked, batch, store
from tests.support.waiting import PATIENCE

PROJECT = CHECKOUT
WRITERS, ROUNDS = 4, 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store in a folder that does not exist yet."""
    return tmp_path / "state" / "gpuwatch" / store_name("box3")


def writer(path: Path, rounds: int) -> subprocess.Popen[str]:
    """Start somebody who writes."""
    command = [sys.executable, "-m", "tests.support.storing", str(path), str(rounds)]
    return subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def held(path: Path) -> set[tuple[float, ...]]:
    """Return what each scope comes to: the same for all where each batch is whole."""
    return set(asked(path, "SELECT sum(held_s) FROM hours GROUP BY scope")) | set(
        asked(path, "SELECT sum(seconds) FROM watched")
    )


# ---------------------------------------------------------------------------------------------------------------
# Several, and sudden ends


def test_several_writers_lose_nothing(path: Path) -> None:
    writers = [writer(path, ROUNDS) for _ in range(WRITERS)]
    told = [one.communicate(timeout=10 * PATIENCE) for one in writers]
    assert [(one.returncode, words) for one, (_, words) in zip(writers, told, strict=True)] == [(0, "")] * WRITERS
    assert held(path) == {(float(WRITERS * ROUNDS),)}
    assert asked(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("after", [1, 5, 20])
def test_one_that_is_killed_leaves_whole_batches(path: Path, after: int) -> None:
    with writer(path, 10_000) as one:
        assert one.stdout is not None
        for _ in range(after):
            assert one.stdout.readline() == "written\n"
        one.send_signal(signal.SIGKILL)
        more = one.stdout.read().count("written")  # with what was read ahead of the last line, unlike communicate()
    ((seconds,),) = held(path)
    assert after + more <= seconds <= after + more + 1
    store(path).write(batch())
    assert held(path) == {(seconds + 1,)}
    assert asked(path, "PRAGMA integrity_check") == [("ok",)]


def test_what_is_read_in_the_same_process_costs_no_writing(path: Path) -> None:
    one = store(path)
    one.write(batch())
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            held(path)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(50):
            one.write(batch())
    finally:
        done.set()
        reader.join()
    assert held(path) == {(51.0,)}


def test_a_reader_does_not_hold_up_a_writer(path: Path) -> None:
    store(path).write(batch())
    with reading(path) as connection:
        connection.execute("BEGIN")
        assert connection.execute("SELECT sum(held_s) FROM hours WHERE scope = 'gpu'").fetchone() == (1.0,)
        store(path, patience=0.2).write(batch())
        assert connection.execute("SELECT sum(held_s) FROM hours WHERE scope = 'gpu'").fetchone() == (1.0,)
        connection.execute("COMMIT")
    assert held(path) == {(2.0,)}


def test_one_that_stays_locked_is_told_of(path: Path) -> None:
    store(path).write(batch())
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as caught:
            store(path, patience=0.05).write(batch())
        assert store_words(caught.value, path) == f"{path}: another program keeps it locked"
        other.execute("ROLLBACK")
    store(path).write(batch())
    assert held(path) == {(2.0,)}


# ---------------------------------------------------------------------------------------------------------------
# Files that are something else


@pytest.mark.parametrize("content", [b"shopping list\n", b"SQLite", b"\0" * 4096])
def test_what_is_no_database_is_left_as_it_is(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        store(path).write(batch())
    assert store_words(caught.value, path) == f"{path}: it is no SQLite database, and is left as it is"
    with pytest.raises(sqlite3.DatabaseError), reading(path):
        pass
    assert path.read_bytes() == content


@pytest.mark.parametrize("number", [0, 4711])
def test_a_database_of_something_else_is_left_as_it_is(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE hours (mine)")
        connection.execute(f"PRAGMA application_id = {number}")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="a database of something else"):
        store(path).write(batch())
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE VIEW mine AS SELECT 1",
        "CREATE TRIGGER mine AFTER INSERT ON hours BEGIN DELETE FROM hours; END",
        "CREATE TABLE mine (one)",
        "DROP TABLE hours; CREATE VIEW hours AS SELECT 1",
    ],
)
def test_what_no_gpuwatch_made_is_not_worked_with(path: Path, planted: str) -> None:
    store(path).write(batch())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(planted)
    with pytest.raises(StoreError, match="holds what no gpuwatch made"):
        store(path).write(batch())
    with pytest.raises(StoreError, match="holds what no gpuwatch made"):
        read_kept(path, "user", 0.0)


def test_a_damaged_one_is_told_of_and_kept(path: Path) -> None:
    one = store(path)
    one.write(joined(batch(job=str(number)) for number in range(2000)))
    content = bytearray(path.read_bytes())
    for at in range(4096, len(content), 4096):
        content[at : at + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        one.write(batch())
    assert "it is damaged (" in store_words(caught.value, path)
    assert "move it away, and a new one is begun" in store_words(caught.value, path)
    assert path.read_bytes()[4096:] == bytes(content)[4096:]


@pytest.mark.parametrize("what", ["link", "dangling", "pipe", "folder"])
def test_what_is_planted_under_its_name_is_refused(path: Path, tmp_path: Path, what: str) -> None:
    path.parent.mkdir(parents=True)
    other = tmp_path / "other"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to(other)
        if what == "link":
            other.write_text("somebody's own")
    with pytest.raises(OSError, match=r"symbolic link|not a regular file") as caught:
        store(path).write(batch())
    assert str(path) in store_words(caught.value, path)
    with pytest.raises((OSError, StoreError)), reading(path):
        pass
    assert not other.exists() or other.read_text() == "somebody's own"


def test_a_pipe_in_place_of_its_journal_is_not_waited_for(path: Path) -> None:
    """In a child: SQLite would wait for somebody to write to the pipe."""
    store(path).write(batch())
    os.mkfifo(f"{path}-journal")
    words = f"its journal {path.name}-journal is not a regular file"
    command = [sys.executable, "-m", "gpuwatch", "report", "--file", str(path)]
    report = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (report.returncode, report.stdout) == (2, "")
    assert words in report.stderr
    with pytest.raises(StoreError, match=words):
        store(path).write(batch())


@pytest.mark.skipif(not ROOT, reason="gives a file to another user, which only root can")
def test_somebody_elses_file_is_refused(path: Path) -> None:
    store(path).write(batch())
    os.chown(path, SOMEBODY_ELSE, -1)
    with pytest.raises(OSError, match=f"the file belongs to uid {SOMEBODY_ELSE}"):
        store(path).write(batch())


def test_one_that_is_taken_away_is_begun_anew(path: Path) -> None:
    store(path).write(batch())
    path.unlink()
    store(path).write(batch())
    assert held(path) == {(1.0,)}


def test_one_that_is_taken_away_while_it_is_written_is_told_of(path: Path) -> None:
    def boot() -> str:  # asked for while the file is open
        path.unlink()
        return "b007"

    store(path).write(batch())
    with pytest.raises(StoreError, match="taken away"):
        store(path, boot_id=boot).write(batch())


@pytest.mark.parametrize("cell", ["'many'", "x'00ff'", "NULL", "-1.0", "9e999", "'1e5'"])
def test_a_cell_may_hold_anything(path: Path, cell: str) -> None:
    store(path).write(batch())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for table, column in (("gpus", "number"), ("gpus", "name"), ("jobs", "name"), ("jobs", "first")):
            connection.execute(f"UPDATE {table} SET {column} = {cell}")
        if cell != "NULL":
            connection.execute(f"UPDATE hours SET byte_s = {cell}")
            connection.execute(f"UPDATE watched SET seconds = {cell}")
        connection.commit()
    for by in ("user", "gpu", "job"):
        kept = read_kept(path, by, float(HOUR))
        assert len(kept.lines) == 1
        assert 0 <= kept.lines[0].use.memory < 1e30


@pytest.mark.parametrize("cell", ["'many'", "x'00ff'", "-1", "9e999", "9223372036854775807", "-9223372036854775808"])
def test_an_hour_may_be_anything_to_who_writes(path: Path, cell: str) -> None:
    several = [batch(HOUR + 3600 * n, job=str(n)) for n in range(30)]
    store(path).write(joined(several))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE watched SET hour = {cell} WHERE hour = {HOUR}")
        connection.execute("UPDATE jobs SET first = NULL WHERE key = '3'")
        connection.commit()
    one = store(path)
    one.write(batch())
    one.prune(HOUR + 1e9)
    small = store(path, largest=90_000)
    for number in range(40):
        name = str(number) * 200
        moved = batch(HOUR, job=name)
        moved.moved[JobId(1000, "3")] = JobId(1000, name)
        small.write(moved)
    assert asked(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        (b"seve", b"sev\xff", "it is damaged"),
        (b"TABLE ev", b"TA\xffLE ev", "it is damaged"),
        (b"idle_byte_s REAL NOT NULL", b"idle_mite_s REAL NOT NULL", "it is damaged (no such column: idle_byte_s)"),
    ],
)
def test_a_schema_that_is_damaged_is_told_of(path: Path, good: bytes, bad: bytes, words: str) -> None:
    store(path).write(batch())
    path.write_bytes(path.read_bytes().replace(good, bad))
    with pytest.raises((StoreError, sqlite3.Error)) as caught:
        read_kept(path, "user", float(HOUR))
    assert store_words(caught.value, path).startswith(f"{path}: {words}")
    with pytest.raises((StoreError, sqlite3.Error)):
        store(path).write(batch())


def test_a_name_that_is_no_text_is_shown_as_far_as_it_goes(path: Path) -> None:
    store(path).write(batch())
    path.write_bytes(path.read_bytes().replace(b"ada", b"a\xe9a"))
    assert [line.name for line in read_kept(path, "user", float(HOUR)).lines] == ["a\N{REPLACEMENT CHARACTER}a"]


def test_foreign_text_is_cleaned_on_the_way_out(path: Path) -> None:
    bad = "a\x1b[31m\nb\u202e"
    store(path).write(batch(user=bad, name=bad, launcher=bad))
    for by in ("user", "job"):
        (line,) = read_kept(path, by, float(HOUR)).lines
        for words in (line.name, line.user, line.launcher):
            assert "\x1b" not in words
            assert "\n" not in words
            assert "\u202e" not in words


def test_a_question_that_takes_for_ever_is_given_up(path: Path) -> None:
    store(path).write(batch())
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(sqlite3.OperationalError, match="interrupted"), reading(path, seconds=0.05) as connection:
        connection.execute(endless).fetchall()


def test_reading_changes_nothing(path: Path) -> None:
    store(path).write(batch())
    before = path.read_bytes()
    with reading(path) as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM hours")
    assert path.read_bytes() == before


# ---------------------------------------------------------------------------------------------------------------
# A full disk, and one that cannot be written to


DISK = """
set -e
mount -t tmpfs -o size=256k,mode=700 none "$1"
exec "$2" - "$1" "$3" <<'END'
import os, subprocess, sys
from pathlib import Path
from tests.support.storing import asked, batch, store
from gpuwatch.recorder.store import store_words
folder, what = Path(sys.argv[1]), sys.argv[2]
path = folder / "state" / "usage.sqlite"
store(path).write(batch())
hog = folder / "hog"
if what == "full":
    with hog.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError as error:
            print(error.strerror)
else:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
try:
    store(path).write(batch())
except Exception as error:
    print(store_words(error, path).replace(str(folder), ""))
print(asked(path, "SELECT sum(held_s) FROM hours WHERE scope = 'gpu'"))
if what == "full":
    hog.unlink()
else:
    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
store(path).write(batch())
print(asked(path, "SELECT sum(held_s) FROM hours WHERE scope = 'gpu'"), asked(path, "PRAGMA integrity_check"))
END
"""


def on_a_small_disk(folder: Path, what: str) -> list[str]:
    """Run the program above on a disk of its own, and give what it prints."""
    try:
        probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, timeout=PATIENCE)
    except OSError as error:
        unavailable(f"unshare: {error}")
    if probe.returncode:
        unavailable(f"a mount namespace: {probe.stderr.decode().strip()}")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", DISK, "sh", str(folder), sys.executable, what],
        capture_output=True,
        text=True,
        timeout=6 * PATIENCE,
        cwd=PROJECT,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.skipif(not ROOT, reason="mounting a small disk needs root")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    full, words, kept, after = on_a_small_disk(tmp_path, "full")
    assert full == "No space left on device"
    assert words == "no space left on device"
    assert kept == "[(1.0,)]"
    assert after == "[(2.0,)] [('ok',)]"


@pytest.mark.skipif(not ROOT, reason="mounting a small disk needs root")
def test_a_disk_that_cannot_be_written_to(tmp_path: Path) -> None:
    words, kept, after = on_a_small_disk(tmp_path, "read-only")
    assert words == "/state/usage.sqlite: read-only file system"
    assert kept == "[(1.0,)]"
    assert after == "[(2.0,)] [('ok',)]"


def test_words_for_what_goes_wrong(path: Path) -> None:
    assert store_words(StoreError("it is empty"), path) == f"{path}: it is empty"
    assert store_words(OSError(28, "No space left on device"), path) == "no space left on device"
    assert store_words(KeyError("x"), path) == f"{path}: KeyError: 'x'"
