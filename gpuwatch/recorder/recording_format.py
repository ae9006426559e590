"""Format of a recording: compressed JSON lines, in blocks that can be read one by one.

    file    = block …                 a gzip member (`.gz`) or a Zstandard frame (`.zst`) each, one a minute at most
    block   = header, minute (not in the first block of a run), then one line for each snapshot
    header  = {"block": {"schema": 1, "version": "0.2", "host": "box3", "at": 1795269780.0, …}}
    minute  = {"minute": {…}}         the summary of the minute before the block

The first snapshot of a block is whole. In each later one a field that has not changed is left out: a field of the
snapshot, and of each row of `gpus`, `processes` and `unlisted`, and of each row of a GPU's `holdings`. A row is
compared with the row at the same place of the snapshot before; where the number of rows has changed, all are whole.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from gpuwatch.errors import UsageError
from gpuwatch.minute import Minute
from gpuwatch.model import SCHEMA as SCHEMA
from gpuwatch.model import Gpu, Snapshot
from gpuwatch.text import clean

BLOCK_S: Final = 60.0
"""Seconds of snapshots in one block."""
LONGEST_HEADER: Final = 4096
"""Bytes of a header, decompressed."""
LONGEST_LINE: Final = 8 * 2**20
"""Bytes of a line, decompressed. A whole snapshot of 5,000 processes takes less."""
LARGEST_RATIO: Final = 256
"""Decompressed bytes of a block for each compressed one. One with 5,000 processes has 40; bombs have 1,000 and more."""
LARGEST_SNAPSHOTS: Final = 1024 * 2**20
"""Bytes of the snapshots of a block, each counted as long as the longest line up to it: reading one that is given by
its changes takes as long as reading a whole one."""
MOST_LINES: Final = 10_000
"""Snapshots in a block: 600 are made in a minute at the shortest interval."""


class Commands(StrEnum):
    """How much of the command lines of processes is recorded."""

    NAMES = "names"
    """The name of the program, without arguments."""
    ALL = "all"
    ANONYMISED = "anonymised"
    """Stand-ins, as for users, hosts, paths, containers and sessions."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a block."""

    schema: int = SCHEMA
    """Version of the format and of the snapshots. A reader refuses a greater one."""
    version: str = ""
    """Version of the gpuwatch that wrote it."""
    host: str = ""
    at: float
    """Wall-clock time of the first snapshot."""
    interval: float = 1.0
    commands: Commands = Commands.NAMES


class First(msgspec.Struct, frozen=True):
    """First line of a block, as JSON has it."""

    block: Header


class LastMinute(msgspec.Struct, frozen=True):
    """Second line of a block, as JSON has it."""

    minute: Minute


HEAD: Final = b'{"block":'
"""First bytes of a header."""
MINUTE: Final = b'{"minute":'
"""First bytes of the line of a minute."""


# ---------------------------------------------------------------------------------------------------------------
# Compression


class Codec(NamedTuple):
    """One way of compression."""

    magic: bytes
    """First bytes of each block."""
    compressor: Callable[[], Any]
    """Maker of an object with `compress(data)` and `flush(mode)`, both as in zlib."""
    part: int
    """Mode of `flush` after which all that was compressed can be read."""
    end: int
    """Mode of `flush` that ends the block."""
    decompressor: Callable[[], Any]
    """Maker of an object with zlib's `decompress(data, max_length)` and `eof`."""
    errors: tuple[type[Exception], ...]
    """Errors of the decompressor about damaged bytes."""


_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 6
_WINDOW: Final = 23
"""Largest window of Zstandard that is read, as a power of two: 8 MiB of memory."""


def _gzip() -> Codec:
    return Codec(
        magic=b"\x1f\x8b\x08\0\0\0\0\0",  # deflate, without a name or a time: RFC 1952
        compressor=lambda: zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31),
        part=zlib.Z_SYNC_FLUSH,
        end=zlib.Z_FINISH,
        decompressor=lambda: zlib.decompressobj(31),
        errors=(zlib.error,),
    )


def _zstd() -> Codec:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise UsageError(
            "Zstandard is missing: pip install '.[zstd]' in the clone of gpuwatch, or use a name that ends in .gz"
        ) from None
    window: Any = {zstd.DecompressionParameter.window_log_max: _WINDOW}
    return Codec(
        magic=b"\x28\xb5\x2f\xfd",  # RFC 8878
        compressor=lambda: zstd.ZstdCompressor(_ZSTD_LEVEL),
        part=zstd.ZstdCompressor.FLUSH_BLOCK,
        end=zstd.ZstdCompressor.FLUSH_FRAME,
        decompressor=lambda: zstd.ZstdDecompressor(options=window),
        errors=(zstd.ZstdError,),
    )


_CODECS: Final[Mapping[str, Callable[[], Codec]]] = {".gz": _gzip, ".zst": _zstd}


def codec_of(path: Path) -> Codec:
    """Return the compression that a file name stands for; raises UsageError."""
    make = _CODECS.get(path.suffix)
    if make is None:
        raise UsageError(f"{clean(str(path))}: the name of a recording ends in .gz or .zst")
    return make()


# ---------------------------------------------------------------------------------------------------------------
# Snapshots without what has not changed

_ROWS: Final[Mapping[type, frozenset[str]]] = {
    Snapshot: frozenset({"gpus", "processes", "unlisted"}),
    Gpu: frozenset({"holdings"}),
}
"""Fields that are lists of rows, by type."""
_LISTS: Final = frozenset().union(*_ROWS.values())


def changes(old: msgspec.Struct, new: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of `new` that differ from `old`, of the same type; rows are compared with rows."""
    rows = _ROWS.get(type(new), ())
    found: dict[str, Any] = {}
    for name in new.__struct_fields__:
        before, value = getattr(old, name), getattr(new, name)
        if before == value:
            continue
        if name in rows and len(before) == len(value):
            value = [{} if was == one else changes(was, one) for was, one in zip(before, value, strict=True)]
        found[name] = value
    return found


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return a snapshot or a row as decoded JSON: `old` with the fields that changed; the inverse of `changes`."""
    whole = {**old, **new}
    for name in _LISTS & new.keys():
        before, rows = old.get(name), new[name]
        if isinstance(before, list) and isinstance(rows, list) and len(before) == len(rows):
            whole[name] = [_merged_row(was, one) for was, one in zip(before, rows, strict=True)]
    return whole


def _merged_row(old: Any, new: Any) -> Any:
    return merged(old, new) if isinstance(old, dict) and isinstance(new, dict) else new
