"""Files that are torn, foreign, newer or hostile: one clear line, bounded memory, and never another exception."""

from __future__ import annotations

import contextlib
import lzma
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import LIMIT
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.recorder.anonymise import TREATMENTS
from gpuwatch.recorder.recording import Recording, Standing
from tests import CHECKOUT
from tests.support.store import alert, change, demo, record, small

MEMORY: Final = 700 * 2**20
"""Bytes of address space that a reader of hostile files may take, with Python and all libraries."""
READ: Final = """
import resource, sys
from pathlib import Path
from tempfile import TemporaryDirectory
from gpuwatch.base.errors import UsageError
from gpuwatch.recorder.recording import Recording
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
for path in sys.argv[2:]:
    try:
        recording = Recording([Path(path)])
        standing, snapshots = recording.play(0.0)
        count = sum(1 for one in snapshots)
        count += sum(1 for one in recording.minutes())
        recording.events()
        print(count, *recording.notes)
    except UsageError as error:
        print(error)
"""
AT: Final = 1795269780.0
ONE: Final = b'{"taken":1795269780.0}\n'


def packed(*parts: bytes | tuple[bytes, int]) -> bytes:
    """Compress parts as one body; a part with a count is repeated."""
    compressor = lzma.LZMACompressor(check=lzma.CHECK_CRC32, preset=0)
    found = b""
    for part in parts:
        data, count = part if isinstance(part, tuple) else (part, 1)
        found += b"".join(compressor.compress(data) for _ in range(count))
    return found + compressor.flush()


@cache
def without_rows() -> bytes:
    """Return a recording without its snapshots."""
    with TemporaryDirectory() as folder:
        path = record(Path(folder, "day"), small(1))
        change(path, "DELETE FROM snapshots")
        return path.read_bytes()


def rows(path: Path, *bodies: object, since: object = AT, until: object = AT + 9) -> Path:
    """Make a recording with rows of these bodies, ten seconds apart where they have a time."""
    path.write_bytes(without_rows())
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for number, body in enumerate(bodies):
            times = [one + 10 * number if isinstance(one, float) else one for one in (since, until)]
            connection.execute("INSERT INTO snapshots (since, until, count, body) VALUES (?, ?, 1, ?)", (*times, body))
    return path


def line(**fields: object) -> bytes:
    """Return a body with one snapshot."""
    return packed(b"{}\n", msgspec.json.encode({"taken": AT, **fields}) + b"\n")


BOMBS: Final = {
    "no end of a line": (((bytes(2**26), 1),), "it has more than 32 MiB"),
    "tiny snapshots": ((b"{}\n", (ONE * 2**10, 20)), "it has more than 1,000 snapshots"),
    "a list without end": ((b'{}\n{"taken":1e9,"gpus":[' + b"[" * 10**6 + b"\n",), "it is damaged"),
    "many objects": ((b'{}\n{"taken":1e9,"processes":[' + b"{}," * 1_000_000 + b"{}]}\n",), "it is damaged"),
}


@pytest.mark.slow
def test_bombs_cost_little_memory(tmp_path: Path) -> None:
    paths = [rows(tmp_path / name, packed(*parts)) for name, (parts, _) in BOMBS.items()]
    assert all(path.stat().st_size < 10**6 for path in paths)
    command = [sys.executable, "-c", READ, str(MEMORY), *map(str, paths)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    for (_, words), line in zip(BOMBS.values(), done.stdout.splitlines(), strict=True):
        assert words in line


Make = Callable[[Path], object]


def of(*bodies: object, **times: object) -> Make:
    """Make a recording whose rows have these bodies, and last a good one."""
    good = packed(b"{}\n", b'{"taken":1795269790.0}\n')
    return lambda path: rows(path, *bodies, good, **times)


def changed(*statements: str) -> Make:
    """Make a recording of which these statements have changed something."""

    def make(path: Path) -> None:
        rows(path, line())
        change(path, "BEGIN", *statements, "COMMIT")

    return make


def standing(text: str) -> Make:
    """Make a recording with this in place of what held before its first row."""
    return of(packed(f"{text}\n".encode(), ONE))


UNTIMED: Final = "it contains no snapshots"
FOREIGN: Final = "it contains objects that gpuwatch did not create|differs from gpuwatch's"
NOTED: Final = "the 10 s from "
HOSTILE: Final[dict[str, tuple[Make, str, list[float] | None]]] = {
    "an empty file": (Path.touch, "it is empty", None),
    "no database": (lambda path: path.write_bytes(b"{}"), "not a database", None),
    "a pipe": (os.mkfifo, "it is not a regular file", None),
    "a newer schema": (changed("UPDATE about SET value = '3' WHERE name = 'snapshots'"), "install the newer one", None),
    "an older schema": (changed("UPDATE about SET value = '1' WHERE name = 'snapshots'"), "schema 1, and", None),
    "a time of 0": (of(since=-0.0, until=AT), UNTIMED, None),
    "an end before the start": (of(since=AT, until=AT - 1), UNTIMED, None),
    "a row of an hour": (of(since=AT, until=AT + 3600), UNTIMED, None),
    "a far future": (of(since=1e300, until=1e300), UNTIMED, None),
    "a time as text": (of(since="now", until=AT), UNTIMED, None),
    "a time as bytes": (of(since=AT, until=b"x"), UNTIMED, None),
    "a generated column": (
        changed("ALTER TABLE users ADD COLUMN huge TEXT GENERATED ALWAYS AS (printf('%.*c', 50000000, 'x')) VIRTUAL"),
        FOREIGN,
        None,
    ),
    "a view": (
        changed("DROP TABLE users", "CREATE VIEW users AS SELECT 1 AS uid, hex(zeroblob(25000000)) AS name"),
        FOREIGN,
        None,
    ),
    "a trigger": (changed("CREATE TRIGGER t AFTER INSERT ON users BEGIN DELETE FROM users; END"), FOREIGN, None),
    "a long comment": (changed("CREATE TABLE gaps2 (since /* " + "x" * 100_000 + " */)"), FOREIGN, None),
    "many tables": (changed(*(f"CREATE TABLE t{number} (a, b, c)" for number in range(500))), FOREIGN, None),
    "a default": (changed("ALTER TABLE users ADD COLUMN more DEFAULT (1)"), FOREIGN, None),
    "no body": (of(b""), NOTED, [AT + 10]),
    "a body that is not compressed": (of(b"x"), NOTED, [AT + 10]),
    "a body that is cut": (of(packed(b"{}\n", b'{"taken":1795269780.0')[:-8]), NOTED, [AT + 10]),
    "a text that is no UTF-8": (of(packed(b"{}\n", b'{"taken":1e9,"host":"\xff"}\n')), NOTED, [AT + 10]),
    "a snapshot after its row": (of(line(taken=AT + 11)), NOTED, [AT + 10]),
    "a snapshot of 1970": (of(line(taken=-0.0)), NOTED, [AT + 10]),
    "a source of the far future": (of(line(since=1e11)), NOTED, [AT + 10]),
    "a number as text": (of(line(interval="now")), NOTED, [AT + 10]),
    "a body as text": (of("text"), NOTED, [AT + 10]),
    "a body as a number": (of(7), NOTED, [AT + 10]),
    "a body of 9 MiB": (of(b"x" * (9 << 20)), NOTED, [AT + 10]),
    "a list of what held": (standing("[]"), NOTED, [AT, AT + 10]),
    "what held, cut": (standing('{"alerts":[['), NOTED, [AT, AT + 10]),
    "what held in the far future": (standing('{"alerts":[{"raised":1e300}]}'), NOTED, [AT, AT + 10]),
    "idle times of no process": (standing('{"idle":[["a",-1]]}'), NOTED, [AT, AT + 10]),
    "nothing for what held": (standing(""), NOTED, [AT, AT + 10]),
}
"""How each is made, what is said of it, and the snapshots that are read all the same; None where it is refused."""


@pytest.mark.parametrize("name", HOSTILE)
def test_one_line_says_what_is_wrong_and_what_is_sound_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "day"
    make, words, times = HOSTILE[name]
    make(path)
    if times is None:
        with pytest.raises(UsageError, match=rf"{path}: .*({words})") as raised:
            Recording([path])
        assert "\n" not in str(raised.value)
        return
    recording = Recording([path])
    found, snapshots = recording.play(AT)
    assert found == Standing()
    assert [one.taken for one in snapshots] == times
    assert len(recording.notes) == 1
    assert recording.notes[0].startswith(f"{path}: {words}")


# ---------------------------------------------------------------------------------------------------------------
# Escapes

EVIL: Final = "\x1b[31m\x1b]0;owned\x07\u202e\u200b\n\x9b2J"


def evil(value: Any, texts: frozenset[str], name: str = "") -> Any:
    """Return decoded JSON with escapes in all texts that are free."""
    if isinstance(value, dict):
        return {key: evil(one, texts, key) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [evil(one, texts, name) for one in value]
    return EVIL if isinstance(value, str) and name in texts else value


def strings(value: Any) -> Iterator[str]:
    """Yield all strings in decoded JSON, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from (key, *strings(one))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from strings(one)


def test_no_escape_comes_out_of_a_recording(tmp_path: Path) -> None:
    texts = frozenset(name for table in TREATMENTS.values() for name in table) - {"state", "kind"}  # of few words
    whole = msgspec.to_builtins(demo(1)[0])
    hostile = msgspec.convert(evil(whole, texts), Snapshot)
    assert sum(one == EVIL for one in strings(msgspec.to_builtins(hostile))) > 300
    recording = Recording([record(tmp_path / "day", [hostile])])
    (played,) = recording.snapshots()
    found = [*strings(msgspec.to_builtins(played)), recording.host]
    assert not [one for one in found if not one.isprintable()]


def test_what_held_before_a_row_is_cleaned(tmp_path: Path) -> None:
    held = msgspec.to_builtins(alert(title=EVIL, owners=(EVIL,), evidence="x" * 9000))
    body = packed(msgspec.json.encode({"alerts": [held], "idle": [[EVIL, 1, 2, 3.0, False]]}) + b"\n", ONE)
    standing, _ = Recording([rows(tmp_path / "day", body)]).play(AT)
    assert all(one.isprintable() and len(one) <= LIMIT for one in strings(msgspec.to_builtins(standing)))
    assert standing.alerts


# ---------------------------------------------------------------------------------------------------------------
# Damage


@cache
def original() -> bytes:
    """Return a recording of three rows."""
    with TemporaryDirectory() as folder:
        return record(Path(folder, "day"), small(30)).read_bytes()


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=40), st.integers(0, 5000)), min_size=1, max_size=6))
def test_damage_shortens_a_recording_and_raises_nothing_else(
    tmp_path: Path, damage: list[tuple[float, bytes, int]]
) -> None:
    path, content = tmp_path / "day", original()
    for where, data, skipped in damage:
        place = int(where * len(content))
        content = content[:place] + data + content[place + skipped :]
    path.write_bytes(content)
    try:
        recording = Recording([path])
        assert all(isinstance(one, Snapshot) for one in recording.snapshots())
        words = recording.notes
        list(recording.minutes())
        recording.events()
    except UsageError as error:
        words = [str(error)]
    assert all(str(path) in one and "\n" not in one for one in words)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    line=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(Snapshot.__struct_fields__) | st.text(), inner),
    )
)
def test_any_json_in_a_row_is_a_snapshot_or_a_note(tmp_path: Path, line: Any) -> None:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeEncodeError):
        words = msgspec.json.encode(line) + b"\n"
        recording = Recording([rows(tmp_path / "day", packed(words, words))])
        standing, snapshots = recording.play(AT)
        assert isinstance(standing, Standing)
        assert len(list(snapshots)) + len(recording.notes) >= 1
