"""Replay: a source that plays the snapshots of a recording, from any time and at any speed.

Where the replay moves to another time, the monitor is restarted with a history and an engine that know the state
before: the alerts and idle times that held, each snapshot of at least one minute before, and the means of an hour.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.analysis.playback import Playback
from gpuwatch.base.threads import Worker
from gpuwatch.history.history import History
from gpuwatch.history.timeline import DAY, Timeline
from gpuwatch.model.snapshot import Snapshot, to_idle_times
from gpuwatch.recorder.recording import Recording
from gpuwatch.sources.source import Source

LEAD: Final = 60.0
"""Seconds before a time whose snapshots are added to the history before that time is shown: the sparklines show as
much, and rules about memory that grows need them."""
NEAR: Final = 60.0
"""Seconds ahead up to which a move keeps the same history."""
GAP: Final = 30.0
"""Seconds without a snapshot from which on they count as a gap; at least `_GAP_INTERVALS` intervals."""
_GAP_INTERVALS: Final = 5
_SHORTEST: Final = 0.1
"""Seconds between two frames, at least: at a high speed the snapshots between them are not shown."""
_LONGEST: Final = 0.25
"""Seconds for snapshots that are not shown, at most: on a slow machine the replay is slower than asked for."""
_PAUSE: Final = 1.0
"""Seconds for which the snapshot before a gap is shown."""
_HOUR: Final = 3600.0


class Replay(Source):
    """Source that plays a recording. `next` belongs to the monitor thread; the other methods may be called from any."""

    def __init__(
        self,
        recording: Recording,
        *,
        limits: Limits | None = None,
        at: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin at the wall-clock time `at`, or at the start of the recording."""
        self.restart: Callable[[History, Engine], None] = lambda history, engine: None
        """Called on the monitor thread where another time is shown: `Monitor.restart`."""
        self._recording = recording
        self._limits = limits
        self._clock = clock
        self._changed = threading.Condition()
        # Guarded by `_changed`:
        self._target: float | None = recording.first if at is None else at
        self._onwards = False
        self._moving: float | None = None
        """Time that is being moved to: a second key counts from there."""
        self._steps = 0
        self._playing = True
        self._speed = 1.0
        self._anchor = (0.0, 0.0)
        """Time on the clock, and the recorded time that was played then."""
        self._closed = False
        # Of the monitor thread:
        self._history = History()
        self._engine = Engine(limits)
        self._snapshots: Iterator[Snapshot] = iter(())
        self._ahead: Snapshot | None = None
        """Snapshot after the newest; None at the end of the recording."""
        self._newest: Snapshot | None = None
        self._added: Snapshot | None = None
        """Snapshot that the monitor adds to the history: the one that `next` returned last."""
        self._past: deque[float] = deque(maxlen=1000)
        """Times of the snapshots up to the newest."""
        self._shown = recording.first if at is None else at
        """Time of the snapshot that `next` returned last."""
        self._drawn = 0.0
        """Time on the clock at which that was."""
        self._gap: tuple[float, float] | None = None
        self._own_notes: list[str] = []
        if limits is not None and recording.limits not in ("", msgspec.json.encode(limits).decode()):
            self._own_notes = ["alerts are judged by your limits, which differ from those of the recording"]
        self._worker = Worker("gpuwatch-minutes")
        self._events = recording.events().alerts

    # -- commands of the user --------------------------------------------------------------------------------------

    @property
    def playback(self) -> Playback:
        with self._changed:
            at = next(one for one in (self._target, self._moving, self._shown) if one is not None)
            first, last = self._recording.first, self._recording.last
            return Playback(at, self._playing, self._speed, first, last, self._gap)

    def play(self, playing: bool) -> None:
        with self._changed:
            self._playing = playing
            self._anchor = (self._clock(), self._shown)
            self._changed.notify()

    def set_speed(self, speed: float) -> None:
        """Play `speed` seconds of the recording in a second."""
        with self._changed:
            self._speed = speed
            self._anchor = (self._clock(), self._shown)
            self._changed.notify()

    def step(self, by: int) -> None:
        """Pause, and show the snapshot after (1) or before (-1) this one."""
        with self._changed:
            self._playing = False
            self._steps += by
            self._changed.notify()

    def seek(self, at: float, *, onwards: bool = False) -> None:
        """Show the last snapshot up to a wall-clock time, or the first of all; a later call replaces this one.

        With `onwards`, where that is no later one than now, the next one is shown: a gap is crossed.
        """
        with self._changed:
            self._onwards = onwards
            self._target, self._steps = min(max(at, self._recording.first), self._recording.last), 0
            self._changed.notify()

    def events(self) -> tuple[Alert, ...]:
        """Return all events of the recording as they were last seen, in the order of their start."""
        return self._events

    @property
    def notes(self) -> Sequence[str]:
        """Notes about the recording for the viewer, one line each."""
        return [*self._own_notes, *(f"a part cannot be read: {note}" for note in self._recording.notes)]

    def load_older(self, timeline: Timeline, until: float) -> None:
        """Add the means of the day before a wall-clock time to a timeline; may take seconds."""
        timeline.load(self._recording.minutes(until - DAY, until))

    # -- the source ------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the wall-clock time of the snapshot that `next` returned last: clock and wall clock of the monitor."""
        return self._shown

    def next(self, timeout: float) -> Snapshot | None:
        """Wait up to `timeout` seconds for the next snapshot that is due; None where none is."""
        end = self._clock() + timeout
        with self._changed:
            while (left := self._seconds_left()) is None or left > 0:
                wait = end - self._clock()
                if self._closed or wait <= 0:
                    return None
                self._changed.wait(wait if left is None else min(left, wait))
            if self._closed:
                return None
            target, steps, self._target, self._steps = self._target, self._steps, None, 0
            self._moving = target
            shown, onwards, self._onwards = self._shown, self._onwards, False
        if target is not None:
            self._move(target)
            if onwards and self._newest is not None and self._newest.taken <= shown and self._take():
                self._set_anchor(self._newest.taken)
        if steps < 0 and self._past:
            self._move(self._past[max(0, len(self._past) - 1 + steps)])
        elif steps > 0:
            for _ in range(steps):
                self._take()
        elif target is None:
            self._play_on()
        return self._show()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    # -- on the monitor thread ---------------------------------------------------------------------------------------

    def _seconds_left(self) -> float | None:
        """Return the seconds until `next` has something to return; None where it waits for the user."""
        if self._closed or self._target is not None or self._steps:
            return 0.0
        if not self._playing or self._ahead is None:
            return None
        began, played = self._anchor
        wait = (self._ahead.taken - played) / self._speed
        due = began + (wait if self._gap_ahead() is None else min(wait, _PAUSE))
        return max(due, self._drawn + _SHORTEST) - self._clock()

    def _show(self) -> Snapshot | None:
        """Return the newest snapshot, which the monitor adds to the history; None where none can be read."""
        newest = self._added = self._newest
        with self._changed:
            self._drawn, self._moving = self._clock(), None
            if newest is not None:
                self._shown = newest.taken
            if self._ahead is None:
                self._playing = False
        return newest

    def _play_on(self) -> None:
        """Go on to the newest snapshot that is due, or to one on either side of a gap."""
        gap = self._gap_ahead()
        if gap is not None:
            self._set_anchor(gap[1])
        began, played = self._anchor
        now = self._clock()
        until, give_up = played + (now - began) * self._speed, now + _LONGEST
        while self._take() and self._ahead is not None:
            gap = self._gap_ahead()
            if gap is not None:
                self._set_anchor(gap[0])
                break
            if self._ahead.taken > until:
                break
            if self._clock() > give_up:
                self._set_anchor(self._ahead.taken)
                break

    def _move(self, target: float) -> None:
        """Go to the last snapshot up to a time, or to the first one of the recording."""
        newest = self._newest
        is_far = newest is None or not newest.taken <= target <= newest.taken + NEAR
        if is_far:
            self._begin(target - LEAD)
            self._take()
        while self._ahead is not None and self._ahead.taken <= target:
            self._take()
        newest, gap = self._newest, self._gap_ahead()
        if newest is not None:
            if gap is not None and newest.taken + shortest_gap(newest) <= target:
                self._gap = gap
            self._set_anchor(newest.taken)
            if is_far:  # now, and not before: both would take longer
                self._worker(partial(self._load_hour, self._history, newest.taken))

    def _begin(self, at: float) -> None:
        """Begin again at a time or shortly before it, with the state of that time."""
        standing, self._snapshots = self._recording.play(at)
        self._ahead, self._newest, self._gap = next(self._snapshots, None), None, None
        self._past.clear()
        first = at if self._ahead is None else self._ahead.taken
        self._history, self._engine = History(), Engine(self._limits)
        self._history.restore_idle(to_idle_times(standing.idle), first)
        self._engine.restore(standing.alerts, first, first)
        self.restart(self._history, self._engine)

    def _load_hour(self, history: History, until: float) -> None:
        """Add the means of an hour to the timeline, unless the replay has moved on to another time."""
        if history is self._history:
            history.view.timeline.load(self._recording.minutes(until - _HOUR, until))

    def _take(self) -> bool:
        """Go on by one snapshot; return False at the end. The one before is in the history by then."""
        before, ahead = self._newest, self._ahead
        if ahead is None:
            return False
        if before is not None and before is not self._added:
            view = self._history.add(before, before.taken)
            self._engine.update(before, view, before.taken, before.taken)
        self._gap = self._gap_ahead() or self._gap
        self._newest, self._ahead = ahead, next(self._snapshots, None)
        self._past.append(ahead.taken)
        return True

    def _set_anchor(self, played: float) -> None:
        """Play from a recorded time on."""
        with self._changed:
            self._anchor = (self._clock(), played)

    def _gap_ahead(self) -> tuple[float, float] | None:
        """Return the gap between the newest snapshot and the one after it; None for none."""
        newest, ahead = self._newest, self._ahead
        if newest is None or ahead is None or ahead.taken - newest.taken < shortest_gap(newest):
            return None
        return newest.taken, ahead.taken


def shortest_gap(snapshot: Snapshot) -> float:
    """Return the seconds without another snapshot from which on there is a gap after this one."""
    return max(GAP, _GAP_INTERVALS * snapshot.interval)
