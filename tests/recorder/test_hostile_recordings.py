"""Files that are torn, foreign, newer or hostile: one clear line, bounded memory, and never another exception."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwatch.errors import UsageError
from gpuwatch.model import SCHEMA, Snapshot
from gpuwatch.recorder.anonymise import TREATMENTS
from gpuwatch.recorder.recording import Recording
from gpuwatch.recorder.recording_format import LARGEST_RATIO, LARGEST_SNAPSHOTS, LONGEST_LINE, MOST_LINES
from gpuwatch.text import LIMIT
from tests import CHECKOUT
from tests.recorder.test_recording import SUFFIXES, demo, record

HEADER: Final = (
    b'{"block":{"schema":1,"version":"0.1","host":"box3","at":1795269780.0,"interval":1.0,"commands":"names"}}\n'
)
MEMORY: Final = 700 * 2**20
"""Bytes of address space that a reader of a hostile file may take, with Python and all libraries."""
READ: Final = """
import resource, sys
from pathlib import Path
from gpuwatch.errors import UsageError
from gpuwatch.recorder.recording import Recording
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
try:
    recording = Recording([Path(sys.argv[1])])
    count = sum(1 for one in recording.snapshots())
    count += sum(1 for one in recording.minutes())
    print(count, *recording.notes, sep="\\n")
except UsageError as error:
    print(error)
"""


def read(path: Path) -> list[str]:
    """Read a recording in a process with little memory; return what it found, line by line."""
    done = subprocess.run(
        [sys.executable, "-c", READ, path, str(MEMORY)], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def packed(suffix: str, *parts: bytes | tuple[bytes, int], largest: int = 0) -> bytes:
    """Compress parts as one block; a part with a count is compressed once, and repeated.

    With `largest` the block is padded, so that so many bytes are not too many for its compressed size.
    """
    compressor: Any = zlib.compressobj(9, zlib.DEFLATED, 31) if suffix == "gz" else zstd.ZstdCompressor()
    mode = zlib.Z_FULL_FLUSH if suffix == "gz" else zstd.ZstdCompressor.FLUSH_BLOCK
    found = b""
    for part in parts:
        data, count = part if isinstance(part, tuple) else (part, 1)
        found += compressor.compress(data) + compressor.flush(mode)
        if count > 1:
            found += (compressor.compress(data) + compressor.flush(mode)) * (count - 1)
    return found + compressor.flush() + os.urandom(largest // LARGEST_RATIO) if largest else found


BOMBS: Final = {
    "no end of a line": ((bytes(2**26), 160), "a line of more than 8,192 KiB"),
    "empty lines": ((b"\n" * 2**26, 160), "a damaged line"),
    "tiny snapshots": ((b'{"taken":1e9}\n' * 2**20, 350), f"more than {MOST_LINES:,} snapshots"),
    "a line of 100 MB": ((b'{"taken":1e9,"host":"' + b"x" * 10**8 + b'"}\n', 1), "a line of more than 8,192 KiB"),
    "a list without end": ((b'{"taken":1e9,"gpus":[' + b"[" * 10**6, 1), "0"),
    "many objects": ((b'{"taken":1e9,"processes":[' + b"{}," * 2_600_000 + b"{}]}\n", 1), "a damaged line"),
    "many numbers": ((b'{"taken":1e9,"mps":[' + b"1," * 4_000_000 + b"1]}\n", 1), "1"),
}


LINES: Final = {"a list without end", "many objects", "many numbers"}
"""Bombs of which one line is enough: they are for the decoder of JSON, whatever the line was compressed with."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bomb", "suffix"),
    [(bomb, suffix) for bomb in BOMBS for suffix in SUFFIXES if suffix == "zst" or bomb not in LINES],
)
def test_a_bomb_costs_little_memory(tmp_path: Path, bomb: str, suffix: str) -> None:
    content, words = BOMBS[bomb]
    path = tmp_path / f"bomb.{suffix}"
    path.write_bytes(packed(suffix, HEADER, content, largest=LARGEST_SNAPSHOTS // 2))
    assert path.stat().st_size < 14 * 10**6
    assert words in "\n".join(read(path))


@pytest.mark.slow
def test_a_small_change_of_a_large_snapshot_counts_as_a_large_line(tmp_path: Path) -> None:
    """It takes as long to read as the whole snapshot: without a limit, 10,000 lines of 20 bytes take many minutes."""
    whole = b'{"taken":1e9,"host":"' + b"x" * 8_000_000 + b'"}\n'
    changes = b"".join(b'{"taken":%d}\n' % (10**9 + number) for number in range(1, 300))
    path = tmp_path / "day.gz"
    path.write_bytes(packed("gz", HEADER, whole, changes, largest=LARGEST_SNAPSHOTS // 2))
    count, note = read(path)
    assert int(count) < 150
    assert "snapshots of more than" in note


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_header_without_end_is_no_recording(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"bomb.{suffix}"
    path.write_bytes(packed(suffix, b'{"block":{"version":"', (b"x" * 2**26, 160)))
    assert read(path) == [f"{path}: not a recording of gpuwatch"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_many_blocks_with_long_lines_cost_little_memory(tmp_path: Path, suffix: str) -> None:
    path, line = tmp_path / f"bomb.{suffix}", b'{"taken":1e9,"host":"' + b"x" * (LONGEST_LINE - 100) + b'"}\n'
    starts = [HEADER.replace(b"1795269780", b"%d" % (1795269780 + 60 * number)) for number in range(40)]
    path.write_bytes(b"".join(packed(suffix, one, line, largest=2 * LONGEST_LINE) for one in starts))
    assert read(path)[0] == "1"  # no snapshot is later than the first


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_block_much_larger_than_its_compressed_size_is_not_read(tmp_path: Path, suffix: str) -> None:
    """Else a file of 2 MB could take many minutes."""
    path, line = tmp_path / f"bomb.{suffix}", b'{"taken":1e9,"host":"' + b"x" * 2**22 + b'"}\n'
    path.write_bytes(packed(suffix, HEADER, line))
    with Recording([path]) as recording:
        assert not [*recording.snapshots()]
        assert recording.notes == [f"{path}: a block of more than {LARGEST_RATIO} times its compressed size"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_newer_recording_says_what_to_do(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"day.{suffix}"
    path.write_bytes(packed(suffix, HEADER.replace(b'"schema":1', b'"schema":%d' % (SCHEMA + 1))))
    with pytest.raises(UsageError, match=r"schema 2, and this gpuwatch knows schema 1; install the newer one"):
        Recording([path])


@pytest.mark.parametrize("kind", ["folder", "fifo", "missing"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "day.gz"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(UsageError, match=r"day\.gz: (is no ordinary file|No such file)"):
        Recording([path])


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
    with Recording([record(tmp_path / "day.gz", [hostile])]) as recording:
        (played,) = recording.snapshots()
        found = [*strings(msgspec.to_builtins(played)), recording.host]
    assert not [one for one in found if not one.isprintable()]


ALERT: Final = '{"rule":"r","severity":2,"title":"%s","raised":%s}'


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ('"at":1795269720.0,"users":{"user:1":"ada"}', 1),
        ('"at":1795269720.0,"users":{"user:1":"\\u001b[31m","user:\\u202e":"b"}', 1),
        ('"at":1795269720.0,"users":{"user:1":"\x7f"}', 1),
        (f'"at":1795269720.0,"users":{{"user:1":"{"x" * 9000}"}}', 1),
        (f'"at":1795269720.0,"alerts":[{ALERT % ("up", "1795269720.0")}]', 1),
        (f'"at":1795269720.0,"alerts":[{ALERT % ("up", "123456789012345678901")}]', 0),
        (f'"at":1795269720.0,"alerts":[{ALERT % ("up", "12345678901")}]', 0),
        ('"at":1e300', 0),
        ('"at":-5', 0),
        ('"at":"now"', 0),
        ('"users":{}', 0),
        ('"at":1795269720.0,"values":{"a":1e300}', 0),
        ('"at":1795269720.0,"alerts":[[', 0),
    ],
)
def test_a_hostile_minute_is_cleaned_or_left_out(tmp_path: Path, fields: str, count: int) -> None:
    path = tmp_path / "day.gz"
    path.write_bytes(packed("gz", HEADER, f'{{"minute":{{{fields}}}}}\n'.encode(), b'{"taken":1795269780.0}\n'))
    with Recording([path]) as recording:
        minutes = list(recording.minutes())
        assert len(list(recording.snapshots())) == 1
    assert len(minutes) == count
    assert all(one.isprintable() and len(one) <= LIMIT for one in strings(msgspec.to_builtins(minutes)))


# ---------------------------------------------------------------------------------------------------------------
# Damage

Damage = list[tuple[str, float, bytes]]

DAMAGE: Final = st.lists(
    st.tuples(
        st.sampled_from(["change", "insert", "remove", "cut", "repeat"]),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=40),
    ),
    min_size=1,
    max_size=6,
)


def damaged(content: bytes, damage: Damage) -> bytes:
    """Return bytes with some damage."""
    for kind, where, data in damage:
        place = int(where * len(content))
        before, after = content[:place], content[place:]
        content = {
            "change": before + data + after[len(data) :],
            "insert": before + data + after,
            "remove": before + after[len(data) :],
            "cut": before,
            "repeat": before + content,
        }[kind]
    return content


@cache
def original(suffix: str) -> bytes:
    """Return a recording of three blocks, the last one torn."""
    folder = Path(os.environ.get("PYTEST_TMP", "/tmp")) / f"gpuwatch-original-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    path = folder / f"day.{suffix}"
    try:
        return record(path, demo(130)).read_bytes()[:-50]
    finally:
        path.unlink()
        folder.rmdir()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_line_that_is_not_utf_8_is_a_damaged_line(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"day.{suffix}"
    path.write_bytes(packed(suffix, HEADER, b'{"taken":1e9,"host":"\xff"}\n'))
    assert "a damaged line" in "\n".join(read(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=DAMAGE)
def test_damage_shortens_a_recording_and_raises_nothing_else(tmp_path: Path, suffix: str, damage: Damage) -> None:
    path = tmp_path / f"day.{suffix}"
    path.write_bytes(damaged(original(suffix), damage))
    try:
        with Recording([path]) as recording:
            assert all(isinstance(one, Snapshot) for one in recording.snapshots())
            list(recording.minutes())
            words = recording.notes
    except UsageError as error:
        words = [str(error)]
    assert all(str(path) in one and "\n" not in one for one in words)


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    line=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(Snapshot.__struct_fields__) | st.text(), inner),
    )
)
def test_any_json_in_a_block_is_a_snapshot_or_a_note(tmp_path: Path, suffix: str, line: Any) -> None:
    path = tmp_path / f"day.{suffix}"
    with contextlib.suppress(msgspec.MsgspecError, UnicodeEncodeError):
        path.write_bytes(packed(suffix, HEADER, msgspec.json.encode(line) + b"\n"))
        with Recording([path]) as recording:
            list(recording.snapshots())
            list(recording.minutes())
