"""Reader of recordings: finds the blocks of all files and parts, and reads snapshots and minutes, within bounds.

Foreign, torn and hostile files end in one UsageError, or in a block that is shorter: memory and time are bounded.
"""

from __future__ import annotations

import contextlib
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

import msgspec

from gpuwatch import files
from gpuwatch.errors import UsageError
from gpuwatch.minute import Minute
from gpuwatch.model import SCHEMA, Snapshot
from gpuwatch.recorder.recording_format import (
    BLOCK_S,
    HEAD,
    LARGEST_RATIO,
    LARGEST_SNAPSHOTS,
    LONGEST_HEADER,
    LONGEST_LINE,
    MINUTE,
    MOST_LINES,
    Codec,
    First,
    Header,
    LastMinute,
    codec_of,
    merged,
)
from gpuwatch.text import LIMIT, clean
from gpuwatch.units import MAX_INTERVAL_S

MOST_BLOCKS: Final = 1_000_000
"""Blocks of all files: two years of minutes."""
_CHUNK: Final = 2**16
"""Bytes that are read or decompressed at a time."""
_SCAN: Final = 2**22
"""Bytes that are searched for blocks at a time."""
_LATEST: Final = 4102444800.0
"""Latest wall-clock time that is believed: the year 2100."""
_GREATEST: Final = 2.0**63
_GREAT: Final = re.compile(rb"[:,\[]-?(?:[0-9]{18}|[0-9.]+[eE])")
"""Number in JSON that may be greater, and is not in a string: there a quote precedes it."""
_SET_BACK: Final = "the clock was set back; of a time that was recorded twice the later recording is read"
_TIMES: Final = frozenset({"at", "taken", "since", "searched", "started", "raised", "seen", "ended"})
"""Fields with wall-clock times."""


class Block(NamedTuple):
    """Place of one block."""

    at: float
    """Wall-clock time of its first snapshot."""
    file: int
    """Index of its file in `Recording.paths`."""
    offset: int
    end: int
    """Offset of the next block, or of the end of the file."""


class DamagedError(Exception):
    """Error in the contents of a block: what follows in it is not read."""


_decode_first: Final = msgspec.json.Decoder(First).decode
_decode_minute: Final = msgspec.json.Decoder(LastMinute).decode
_decode_line: Final = msgspec.json.Decoder(dict[str, Any]).decode


class Recording:
    """One recording: all blocks of its files and their parts, in the order of time; any thread may read it."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open the files with their parts, and find their blocks; raises UsageError where one is no recording.

        The parts of `day.gz` are `day.1.gz`, `day.2.gz` and so on, beside it; the greatest number is the oldest part.
        """
        self.paths: list[Path] = []
        """Files and parts."""
        self.blocks: list[Block] = []
        """All blocks, oldest first; never empty."""
        self.notes: list[str] = []
        """What could not be read, in one line each."""
        self._files: list[tuple[int, Codec]] = []
        self._hosts: set[str] = set()
        try:
            for path in paths:
                self._add(path)
            self.blocks.sort()
            newest = self.blocks[-1]
            self.header: Header = read_header(*self._files[newest.file], newest.offset, newest.end)
            """Header of the last block."""
            self.host = self.header.host
            if len(self._hosts) > 1:
                raise UsageError(f"recordings of different hosts: {', '.join(sorted(self._hosts))}")
            self.first: float = self.blocks[0].at
            """Wall-clock time of the first snapshot."""
            self.last: float = max((one.taken for one in self.snapshots(inf)), default=self.blocks[-1].at)
            """Wall-clock time of the last snapshot that can be read."""
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.pop()[0])

    def minutes(self, since: float = 0.0, until: float = inf) -> Iterator[Minute]:
        """Yield the minutes that begin in a span of wall-clock time, oldest first; those that are damaged are left out.

        A block has the minute before it.
        """
        for block in self.blocks[max(0, self._index(since)) :]:
            if block.at > until + MAX_INTERVAL_S:
                return
            with contextlib.suppress(DamagedError):
                minute = self._minute(block)
                if minute is not None and since <= minute.at < until:
                    yield minute

    def snapshots(self, at: float = 0.0) -> Iterator[Snapshot]:
        """Yield the snapshots from the block that has the time `at` on, oldest first.

        A snapshot that is no later than the one before is left out, and one that is no earlier than the next block.
        Where a block is damaged, `notes` gets a line, and the next block follows.
        """
        newest = -inf
        blocks = self.blocks[max(0, self._index(at)) :]
        for number, block in enumerate(blocks, 1):
            after = blocks[number] if number < len(blocks) else None
            try:
                for snapshot in self._read(block):
                    if after is not None and snapshot.taken >= after.at:
                        if after.file == block.file:
                            self._note(block, _SET_BACK)
                        break
                    if snapshot.taken > newest:
                        newest = snapshot.taken
                        yield snapshot
            except DamagedError as error:
                self._note(block, str(error))

    def _note(self, block: Block, words: str) -> None:
        note = f"{clean(str(self.paths[block.file]))}: {words}"
        if note not in self.notes:
            self.notes.append(note)

    def _index(self, at: float) -> int:
        """Return the index of the last block that begins at a time or before; -1 where there is none."""
        return bisect_right(self.blocks, at, key=lambda block: block.at) - 1

    # -- files and blocks ----------------------------------------------------------------------------------------

    def _add(self, path: Path) -> None:
        """Open a file and its parts, and find their blocks; raises UsageError."""
        codec = codec_of(path)
        others = len(self.blocks)
        for part in (*reversed([*parts_of(path)]), path):
            file = _open(part)
            if any(os.path.sameopenfile(file, other) for other, _ in self._files):
                os.close(file)
                continue
            self._files.append((file, codec))
            self.paths.append(part)
            if size := os.fstat(file).st_size:  # a part was made a moment ago, and nothing is written yet
                self._find_blocks(len(self._files) - 1, size)
        if not self.blocks:
            raise UsageError(f"{clean(str(path))}: the file is empty")
        found = self.blocks[others:]
        self.blocks[others:] = _without_replaced(found)
        if len(self.blocks) - others < len(found):
            self._note(found[-1], _SET_BACK)

    def _find_blocks(self, index: int, size: int) -> None:
        """Add the blocks of a file; raises UsageError where the file is no recording."""
        path = clean(str(self.paths[index]))
        file, codec = self._files[index]
        found: list[tuple[float, int]] = []
        for offset in _find_all(file, codec.magic, size):
            try:
                header = read_header(file, codec, offset, size)
            except DamagedError:
                if not offset:
                    break  # another file, whatever its length
                continue  # by chance, or damaged
            if header.schema > SCHEMA:
                raise UsageError(f"{path}: {newer(header)}")
            if not offset:
                self._hosts.add(header.host)
            found.append((header.at, offset))
            if len(self.blocks) + len(found) > MOST_BLOCKS:
                raise UsageError(f"{path}: more than {MOST_BLOCKS:,} blocks")
        if not found:
            raise UsageError(f"{path}: not a recording of gpuwatch")
        ends = [offset for _, offset in found[1:]] + [size]
        self.blocks += [Block(at, index, offset, end) for (at, offset), end in zip(found, ends, strict=True)]

    # -- lines ---------------------------------------------------------------------------------------------------

    def _lines(self, block: Block) -> Iterator[bytearray]:
        """Yield the lines of a block without its header."""
        file, codec = self._files[block.file]
        lines = read_lines(file, codec, block.offset, block.end)
        next(lines, None)
        return lines

    def _minute(self, block: Block) -> Minute | None:
        """Read the minute of a block; None where it has none. Raises DamagedError."""
        line = next(self._lines(block), bytearray())
        if not line.startswith(MINUTE):
            return None
        try:
            # A day has 1,440 of them, and looking at each value takes four times as long.
            last = _decode_minute(line) if _is_plain(line) else _converted(_decoded(line), LastMinute)
        except (ValueError, RecursionError):
            raise DamagedError("a damaged line") from None
        minute: Minute = last.minute
        times = [at for one in (*minute.alerts, *minute.ended) for at in (one.raised, one.seen, one.ended or 0.0)]
        if not all(0.0 <= at < _LATEST for at in (minute.at, *times)):
            raise DamagedError("a number out of range")
        return minute if minute.at < block.at else None  # else the clock was set back

    def _read(self, block: Block) -> Iterator[Snapshot]:
        """Yield the snapshots of a block; raises DamagedError, and what follows in the block is not read."""
        whole: dict[str, Any] = {}
        longest = total = 0
        for number, line in enumerate(self._lines(block)):
            if number == MOST_LINES:
                raise DamagedError(f"a block with more than {MOST_LINES:,} snapshots")
            if not number and line.startswith(MINUTE):
                continue
            longest = max(longest, len(line))
            total += longest
            if total > LARGEST_SNAPSHOTS:
                raise DamagedError(f"a block with snapshots of more than {LARGEST_SNAPSHOTS >> 20:,} MiB")
            whole = merged(whole, _decoded(line))
            snapshot = _converted(whole, Snapshot)
            if snapshot.taken <= 0.0 or not 0.0 < snapshot.interval <= MAX_INTERVAL_S:
                raise DamagedError("a damaged snapshot")
            yield snapshot


def read_lines(file: int, codec: Codec, offset: int, end: int, longest: int = LONGEST_LINE) -> Iterator[bytearray]:
    """Yield the complete lines of the block at an offset of a file; a torn end is left out.

    Raises DamagedError for a line that is too long, and for a block that is too large for its compressed size.
    """
    rest = bytearray()
    total, largest = 0, LARGEST_RATIO * (end - offset)
    for data in _inflate(file, codec, offset, end, min(longest, _CHUNK)):
        total += len(data)
        if total > largest:
            raise DamagedError(f"a block of more than {LARGEST_RATIO} times its compressed size")
        rest += data
        if b"\n" in data:
            *lines, rest = rest.split(b"\n")
            yield from lines
        if len(rest) > longest:
            raise DamagedError(f"a line of more than {longest >> 10:,} KiB")


def _without_replaced(blocks: Sequence[Block]) -> list[Block]:
    """Return blocks, given in the order in which they were written, without those that a later one replaces.

    Where the clock was set back, a minute is recorded twice; the clock was right the second time.
    """
    kept: dict[float, list[Block]] = {}
    for block in blocks:
        same = kept.setdefault(block.at // BLOCK_S, [])
        while same and same[-1].at >= block.at:
            same.pop()
        same.append(block)
    return [block for same in kept.values() for block in same]


def _inflate(file: int, codec: Codec, offset: int, end: int, size: int) -> Iterator[bytes]:
    """Yield the decompressed bytes of a block, at most `size` at a time, up to its end or where it is damaged."""
    decompressor = codec.decompressor()
    while offset < end:
        try:
            data = os.pread(file, min(size, end - offset), offset)
        except OSError as error:
            raise DamagedError(files.reason(error)) from None
        if not data:  # it was cut while it was read
            return
        offset += len(data)
        while True:
            try:
                out = decompressor.decompress(data, size)
            except codec.errors:
                return
            if out:
                yield out
            if decompressor.eof:
                return
            data = getattr(decompressor, "unconsumed_tail", b"")
            if not data and len(out) < size:
                break


def read_header(file: int, codec: Codec, offset: int, end: int) -> Header:
    """Read the header of the block at an offset of a file; raises DamagedError."""
    line = next(read_lines(file, codec, offset, end, LONGEST_HEADER), bytearray())
    if not line.startswith(HEAD):
        raise DamagedError("no header")
    try:
        header = _decode_first(line).block
    except (ValueError, RecursionError):
        raise DamagedError("a damaged header") from None
    if not (0.0 <= header.at < _LATEST and 0.0 < header.interval <= MAX_INTERVAL_S):
        raise DamagedError("a damaged header")
    return msgspec.structs.replace(header, host=clean(header.host, 255), version=clean(header.version, 40))


def newer(header: Header) -> str:
    """Return in one line that a recording was written by a newer gpuwatch."""
    by = f"recorded by gpuwatch {header.version[:20]} with schema {header.schema}"
    return f"{by}, and this gpuwatch knows schema {SCHEMA}; install the newer one"


def parts_of(path: Path) -> Iterator[Path]:
    """Yield the older parts of a recording that exist, newest first: `day.1.gz`, `day.2.gz` of `day.gz`."""
    number = 1
    while (part := part_of(path, number)).exists():
        yield part
        number += 1


def part_of(path: Path, number: int) -> Path:
    """Return the path of an older part of a recording; 1 is the newest."""
    return path.with_name(f"{path.name.removesuffix(path.suffix)}.{number}{path.suffix}")


def _open(path: Path) -> int:
    try:
        return files.open_ordinary(path)
    except OSError as error:
        raise UsageError(f"{clean(str(path))}: {files.reason(error)}") from None


def _find_all(file: int, magic: bytes, size: int) -> Iterator[int]:
    """Yield each offset in a file at which some bytes stand; the first must be 0, else none is yielded."""
    pattern = re.compile(re.escape(magic))
    offset = 0
    while offset < size:
        data = os.pread(file, _SCAN, offset)
        if not data or (not offset and not data.startswith(magic)):
            return
        for found in pattern.finditer(data):
            yield offset + found.start()
        if len(data) < len(magic) or offset + len(data) >= size:
            return
        offset += len(data) - len(magic) + 1


def _is_plain(line: bytearray) -> bool:
    """Return whether a line has neither texts that `clean` would change nor numbers that `_checked` would refuse."""
    if not line.isascii() or b"\\" in line or not line.decode("ascii").isprintable():
        return False
    return not _GREAT.search(line) and max(map(len, line.split(b'"'))) <= LIMIT


def _decoded(line: bytearray) -> dict[str, Any]:
    """Decode one line, with clean strings and believable numbers; raises DamagedError."""
    try:
        found: dict[str, Any] = _checked(_decode_line(line))
    except (ValueError, RecursionError):
        raise DamagedError("a damaged line") from None
    return found


def _checked(value: Any, name: str = "") -> Any:
    kind = type(value)
    if kind is str:
        return clean(value)
    if kind is dict:
        return {clean(key): _checked(one, key) for key, one in value.items()}
    if kind is list:
        return [_checked(one) for one in value]
    if kind in (int, float) and not (0 <= value < _LATEST if name in _TIMES else -_GREATEST < value < _GREATEST):
        raise DamagedError("a number out of range")
    return value


def _converted(value: Any, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(value, kind)
    except (ValueError, RecursionError):
        raise DamagedError("a damaged line") from None
