"""Writer of a recording: a sink that compresses each snapshot on a thread of its own."""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuwatch import __version__, files
from gpuwatch.model import Snapshot, encode
from gpuwatch.monitor import Frame
from gpuwatch.recording.format import BLOCK_S, Commands, First, Header, changes, codec_of
from gpuwatch.threads import Worker

FLUSH_S: Final = 10.0
"""Seconds between two writes to the file: what is lost when gpuwatch is killed, at most."""

_encode: Final = msgspec.json.Encoder().encode


class RecordingWriter:
    """Sink that appends every snapshot to a recording."""

    name = "recording"

    def __init__(self, path: Path) -> None:
        self.trouble = ""
        """Why nothing is recorded, in one line; empty for no trouble."""
        self._codec = codec_of(path)
        self._path = path
        self._waiting: deque[Snapshot] = deque()
        self._newest: Snapshot | None = None
        self._block: Any = None
        self._began = 0.0
        self._last: Snapshot | None = None
        self._ready: list[bytes] = []
        self._written = time.monotonic()
        self._worker = Worker("gpuwatch-recording", self._task, last=self._leave)

    def take(self, frame: Frame) -> None:
        """Queue the snapshot of a frame."""
        if frame.snapshot is not self._newest:
            self._newest = frame.snapshot
            self._waiting.append(frame.snapshot)
            self._worker.wake()

    def close(self, seconds: float) -> None:
        """Write what waits, and give up after `seconds`."""
        self._worker.close(seconds)

    def _task(self) -> float:
        while self._waiting:
            self._add(self._waiting.popleft())
        left = FLUSH_S - (time.monotonic() - self._written)
        if left > 0:
            return left
        self._flush(self._codec.part)
        return FLUSH_S

    def _leave(self) -> None:
        self._task()
        self._flush(self._codec.end)

    def _add(self, snapshot: Snapshot) -> None:
        if self._block is None or snapshot.taken // BLOCK_S != self._began // BLOCK_S:
            self._flush(self._codec.end)
            self._block, self._began, self._last = self._codec.compressor(), snapshot.taken, None
            header = Header(version=__version__, host=snapshot.host, at=snapshot.taken, commands=Commands.ALL)
            self._put(_encode(First(header)))
            self._ready.append(self._block.flush(self._codec.part))
        self._put(encode(snapshot) if self._last is None else _encode(changes(self._last, snapshot)))
        self._last = snapshot

    def _put(self, line: bytes) -> None:
        self._ready.append(self._block.compress(line + b"\n"))

    def _flush(self, mode: int) -> None:
        if self._block is not None:
            self._ready.append(self._block.flush(mode))
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                files.write_all(file, b"".join(self._ready))
            finally:
                os.close(file)
            self._ready.clear()
            self._written = time.monotonic()
            if mode == self._codec.end:
                self._block = None
