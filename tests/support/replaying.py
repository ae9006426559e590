"""Recordings in memory, and replays of them on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import inf

import msgspec

from gpuwatch.alerts.alert import Alert
from gpuwatch.analysis.events import Events
from gpuwatch.history.timeline import Minute
from gpuwatch.model.snapshot import IdleHolding, Snapshot
from gpuwatch.recorder.recording import Recording, Standing
from gpuwatch.recorder.replay import Replay
from tests.support.builders import EPOCH, at, gpu, holding, snapshot

ROW = 10.0
"""Seconds of a row, as in a file."""


@cache
def machine(second: float) -> Snapshot:
    """Return one GPU at so many seconds; its memory in GiB is the seconds, up to 60."""
    return at(snapshot([gpu(0, holdings=[holding(100, min(second, 60.0))])]), second)


class MemoryRecording(Recording):
    """Recording whose snapshots and events are lists, with no file: it has what a replay reads, and no more."""

    def __init__(
        self,
        snapshots: Iterable[Snapshot],
        events: Sequence[Alert] = (),
        *,
        idle: Sequence[IdleHolding] = (),
        minutes: Sequence[Minute] = (),
    ) -> None:
        """`idle` are the idle times before each row; the alerts that held then are among `events`."""
        self._minutes = list(minutes)
        self._snapshots, self._events, self._idle = list(snapshots), Events(alerts=tuple(events)), tuple(idle)
        self.first, self.last = self._snapshots[0].taken, self._snapshots[-1].taken
        self.notes: list[str] = []
        self.limits = ""
        self.begun: list[float] = []
        """Arguments of `play`."""

    def events(self, since: float | None = None) -> Events:
        return self._events

    def minutes(self, since: float = 0.0, until: float = inf) -> Iterator[Minute]:
        return (one for one in self._minutes if since <= one.at < until)

    def play(self, at: float) -> tuple[Standing, Iterator[Snapshot]]:
        self.begun.append(at)
        rows = [one.taken // ROW for one in self._snapshots]
        row = max((one for one in rows if one <= at // ROW), default=rows[0])
        held = [one for one in self._events.alerts if one.raised < row * ROW and (one.ended or inf) >= row * ROW]
        after = (one for one in self._snapshots if one.taken // ROW >= row)
        return Standing(self._idle, tuple(msgspec.structs.replace(one, ended=None) for one in held)), after


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
