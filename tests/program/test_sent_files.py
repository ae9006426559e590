"""Stores and recordings that somebody sent: nothing is written, nothing else is touched, and memory is bounded."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuwatch.base import files
from tests import CHECKOUT
from tests.support.program import run_gpuwatch
from tests.support.store import change, demo, record

WAYS = (
    "events --file DAY",
    "report --file DAY",
    "report --file DAY --html PAGE",
    "events --recording DAY",
    "report --recording DAY",
    "--once --recording DAY",
    "replay DAY",
    "replay DAY --copy COPY",
)
HALF = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")  # what does not fit is in the file before the end
connection.execute("BEGIN")
connection.execute("DELETE FROM snapshots")
connection.execute("WITH n(i) AS (SELECT 2000 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) "
                   "INSERT INTO users SELECT i, hex(randomblob(100)) FROM n")
os.kill(os.getpid(), signal.SIGKILL)
"""
MEMORY = 600 * 2**20
"""Bytes of address space that a command may take, with Python and all libraries."""


def words_of(way: str, day: Path) -> list[str]:
    """Return a command about a file."""
    names = {"DAY": str(day), "PAGE": str(day.with_suffix(".html")), "COPY": str(day.with_suffix(".copy"))}
    return [names.get(word, word) for word in way.split()]


def call(way: str, day: Path) -> subprocess.CompletedProcess[str]:
    """Run a command about a file in this process."""
    return run_gpuwatch(*words_of(way, day), env=os.environ)


def run(way: str, day: Path) -> subprocess.CompletedProcess[str]:
    """Run a command about a file in a process with little memory."""
    limited = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2); "
    limited += "sys.argv = ['gpuwatch', *sys.argv[2:]]; runpy.run_module('gpuwatch', run_name='__main__')"
    command = [sys.executable, "-c", limited, str(MEMORY), *words_of(way, day)]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=60)


def killed_in_a_write(day: Path) -> Path:
    """Kill a writer of a recording in the middle of a transaction; return its journal."""
    assert subprocess.run([sys.executable, "-c", HALF, day], check=False).returncode == -signal.SIGKILL
    journal = day.with_name(f"{day.name}-journal")
    assert journal.stat().st_size
    return journal


def forge(day: Path, *statements: str) -> None:
    """Change a file in a process of its own: in one that has read a store SQLite may take little memory."""
    script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
    script += "[c.execute(one) for one in sys.argv[2:]]"
    subprocess.run([sys.executable, "-c", script, day, "BEGIN", *statements, "COMMIT"], check=True)


def name_another(journal: Path, other: Path) -> None:
    """Make a journal name another file, which SQLite deletes after a rollback: sqlite.org/fileformat2.html, 3."""
    name = os.fsencode(other)
    record = struct.pack(">I", 0x40000000 // 4096 + 1) + name + struct.pack(">II", len(name), sum(name))
    with journal.open("ab") as file:
        file.write(record + bytes.fromhex("d9d505f920a163d7"))


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files in a folder."""
    return {one.name: one.read_bytes() for one in folder.iterdir()}


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    """Return a recording in a folder that others can write to, beside a file of the reader's."""
    folder = tmp_path / "sent"
    folder.mkdir()
    (folder / "thesis").write_text("my only copy")
    day = record(folder / "day", demo(12))
    folder.chmod(0o777)
    return day


def test_a_journal_that_names_another_file_deletes_it_where_sqlite_may_write(sent: Path) -> None:
    """Else the tests below would prove nothing."""
    name_another(killed_in_a_write(sent), sent.with_name("thesis"))
    change(sent, "SELECT * FROM about")
    assert not sent.with_name("thesis").exists()


def test_a_journal_that_names_another_file_deletes_nothing(sent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatch.recorder.opening._WRITING_S", 0.0)
    name_another(killed_in_a_write(sent), sent.with_name("thesis"))
    before = contents(sent.parent)
    for way in WAYS:
        done = call(way, sent)
        assert contents(sent.parent) == before, way
        assert (done.returncode, done.stdout) == (2, ""), way
        assert done.stderr.count("\n") == 1
        assert "its writer was killed or is still writing (day-journal is next to it)" in done.stderr


def test_nothing_is_recorded_beside_a_journal_that_names_another_file(sent: Path) -> None:
    name_another(killed_in_a_write(sent), sent.with_name("thesis"))
    before = contents(sent.parent)
    done = run("watch --quiet --demo --record DAY", sent)
    after = contents(sent.parent)
    assert {name: after[name] for name in before} == before
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "names another file" in done.stderr


def test_ones_own_recording_in_a_closed_folder_is_repaired(tmp_path: Path) -> None:
    day = record(tmp_path / "day", demo(12))
    journal = killed_in_a_write(day)
    done = run("--once --recording DAY", day)
    assert done.returncode == 0, done.stderr
    assert not journal.exists()


@pytest.mark.parametrize("way", WAYS[:6])
def test_a_schema_that_is_not_ours_is_refused_before_any_row_is_read(sent: Path, way: str) -> None:
    forge(
        sent,
        "DROP TABLE users",
        "CREATE TABLE users (uid INTEGER PRIMARY KEY, name TEXT AS (printf('%.*c', 50000000, 'x')))",
        "INSERT INTO users (uid) VALUES (1000)",
    )
    done = call(way, sent)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "it contains objects that gpuwatch did not create" in done.stderr or "differs from gpuwatch's" in done.stderr


def test_huge_values_take_little_memory(sent: Path) -> None:
    """Each value is larger than a store can have, and all texts together are."""
    forge(
        sent,
        "UPDATE users SET name = hex(zeroblob(10000000))",
        "UPDATE events SET alert = hex(zeroblob(10000000))",
        "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 6000) "
        "INSERT INTO events (id, alert) SELECT i, hex(zeroblob(32000)) FROM n",
        "INSERT INTO graph_values VALUES (60, zeroblob(20000000))",
    )
    for way in WAYS[:3]:
        done = run(way, sent)
        assert done.returncode in (0, 2), way
        assert "Traceback" not in done.stderr
        assert "Memory" not in done.stderr


def test_two_rows_130_years_apart_take_no_longer_than_two_rows(sent: Path) -> None:
    gpus = [f"GPU-{number}" for number in range(4)]
    with contextlib.closing(sqlite3.connect(sent, isolation_level=None)) as connection:
        connection.execute("UPDATE snapshots SET since = 1.0, until = 2.0 WHERE id = 1")
        connection.execute("UPDATE snapshots SET since = 4102440000.0, until = 4102440001.0 WHERE id = 2")
        for number, uuid in enumerate(gpus, 100):
            connection.execute("INSERT INTO gpus VALUES (?, ?, ?, 'x', 1)", (number, uuid, number))
            for hour in (0, 4102437600):
                connection.execute(
                    "INSERT INTO use VALUES (?, 3600, ?, NULL, 0, 0, 0, 0, 0, 0, 0, 60.0)", (hour, number)
                )
    for way in ("report --recording DAY --html PAGE", "report --recording DAY", "events --recording DAY"):
        assert run(way, sent).returncode == 0


@pytest.mark.parametrize("link", [False, True])
def test_what_is_no_ordinary_file_is_not_opened(tmp_path: Path, link: bool) -> None:
    """A writer that waits for a reader of a pipe sees whether somebody opens it."""
    pipe, path, opened = tmp_path / "pipe", tmp_path / "path", threading.Event()
    os.mkfifo(pipe)
    path.symlink_to(pipe) if link else shutil.move(pipe, path)

    def wait() -> None:
        os.close(os.open(path, os.O_WRONLY))
        opened.set()

    writer = threading.Thread(target=wait)
    writer.start()
    with pytest.raises(files.UnsafePathError, match="is not a regular file"):
        files.open_ordinary(path)
    was_opened = opened.wait(0.2)
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    writer.join()
    assert not was_opened
