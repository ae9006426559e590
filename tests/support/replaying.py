"""Recordings in memory, and replays of them on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import inf

import msgspec

from gpuwatch.minute import Minute
from gpuwatch.model import Snapshot
from gpuwatch.recorder.replay import Replay
from tests.support.builders import EPOCH, at, gpu, holding, snapshot

BLOCK = 60.0
"""Seconds of a block, as in a file."""


@cache
def machine(second: float) -> Snapshot:
    """Return one GPU at so many seconds; its memory in GiB is the seconds, up to 60."""
    return at(snapshot([gpu(0, holdings=[holding(100, min(second, 60.0))])]), second)


class MemoryRecording:
    """Recording whose snapshots and minutes are lists; it has the methods of `recording.reader.Recording`."""

    def __init__(self, snapshots: Iterable[Snapshot], minutes: Sequence[Minute] = ()) -> None:
        self._snapshots, self._minutes = list(snapshots), list(minutes)
        self.first, self.last = self._snapshots[0].taken, self._snapshots[-1].taken
        self.notes: list[str] = []
        self.begun: list[float] = []
        """Arguments of `snapshots`."""

    def minutes(self, since: float = 0.0, until: float = inf) -> Iterator[Minute]:
        return (one for one in self._minutes if since <= one.at < until)

    def snapshots(self, at: float = 0.0) -> Iterator[Snapshot]:
        self.begun.append(at)
        blocks = [one.taken // BLOCK for one in self._snapshots]
        block = max((one for one in blocks if one <= at // BLOCK), default=blocks[0])
        return (one for one in self._snapshots if one.taken // BLOCK >= block)


def seconds(*spans: tuple[int, int]) -> MemoryRecording:
    """Return a recording with a snapshot for each second of some spans: from the first up to before the second."""
    return MemoryRecording(machine(float(second)) for first, until in spans for second in range(first, until))


class Player:
    """Replay of a recording that a test moves on by hand."""

    def __init__(self, recording: MemoryRecording, *, at: float | None = None) -> None:
        self.now = 1000.0
        """Seconds on the clock of the person who looks."""
        self.restarts = 0
        self.replay = Replay(recording, at=None if at is None else EPOCH + at, clock=lambda: self.now)
        self.replay.restart = self._restart

    def _restart(self, *_: object) -> None:
        self.restarts += 1

    def next(self, seconds: float = 0.0) -> float | None:
        """Let time pass; return the second of the snapshot that comes, None for none."""
        self.now += seconds
        shown = self.replay.next(0.0)
        return None if shown is None else shown.taken - EPOCH

    def seek(self, second: float) -> float | None:
        """Move to a second; return the second of the snapshot that comes."""
        self.replay.seek(EPOCH + second)
        return self.next()


def minute(start: float, **changes: object) -> Minute:
    """Return the minute with a second."""
    return msgspec.structs.replace(Minute(at=(EPOCH + start) // 60 * 60), **changes)
