"""Input of the panels: a frame, the time of drawing, and the user's options."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.analysis.playback import Playback
from gpuwatch.analysis.rows import rows
from gpuwatch.analysis.strays import Stray, StrayReport, find_strays
from gpuwatch.model.fields import Row
from gpuwatch.model.snapshot import Gpu, Health
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.theme import Glyphs, Role, StyleSet
from gpuwatch.ui.options import Options

OLD: float = 2
"""Intervals after which a value is dimmed."""
STALE: float = 5
"""Intervals after which a row says how old it is."""


class View(msgspec.Struct, frozen=True):
    """Frame with the time, options and strays needed to draw it."""

    frame: Frame
    now: float
    """Reader's monotonic clock."""
    styles: StyleSet
    interval: float
    """Seconds between two samples, as asked for."""
    paused: float | None = None
    """Seconds since the user froze the screen."""
    read_only: bool = False
    strays: Mapping[tuple[int, int], Stray] = msgspec.field(default_factory=dict)
    """The viewer's own, by process (pid, start)."""
    strays_key: str = ""
    """Key that lists them, on a screen that has it."""
    playback: Playback | None = None
    """State of the replay; None where the present is shown."""

    @property
    def since_received(self) -> float:
        """Seconds since the frame came; frozen with the screen while paused."""
        return max(0.0, self.now - (self.paused or 0.0) - self.frame.received)

    def age(self, gpu: Gpu) -> float:
        """Return the age of a GPU's fast figures in seconds."""
        return max(0.0, self.frame.snapshot.monotonic - gpu.sampled) + self.since_received

    def dimmed(self, gpu: Gpu) -> bool:
        """Return whether a GPU's figures are so old that they are dimmed."""
        return self.age(gpu) > OLD * self._due

    def stale(self, gpu: Gpu) -> bool:
        """Return whether a GPU's figures are so old that its row states their age."""
        return self.age(gpu) > STALE * self._due

    @property
    def newest_age(self) -> float:
        """Seconds since the newest figures of any GPU; of the frame if no GPU answers."""
        ages = [self.age(gpu) for gpu in self.frame.snapshot.gpus if gpu.health is Health.OK and gpu.sampled]
        return min(ages, default=self.since_received)

    @property
    def behind(self) -> bool:
        """Return whether the newest figures are old."""
        return self.newest_age > OLD * self._due

    @property
    def _due(self) -> float:
        # Figures that are asked for four times a second may still come late by the time of a slow call.
        return max(self.interval, self.frame.snapshot.interval, 0.5)


def strays_of(frame: Frame, options: Options) -> StrayReport:
    """Find the strays among the viewer's processes in a frame."""
    seen = frame.snapshot
    if options.caller not in (None, seen.viewer) and not seen.demo:
        return find_strays(msgspec.structs.replace(seen, viewer=options.caller), frame.history, options.stray_limits)
    return find_strays(seen, frame.history, options.stray_limits, holdings=frame.holdings)


def view_of(
    frame: Frame,
    now: float,
    styles: StyleSet,
    options: Options,
    strays: StrayReport,
    interval: float,
    paused: float | None = None,
) -> View:
    """Return the view of a frame at a time on the reader's monotonic clock."""
    key = next(iter(options.keys.of("strays")), "")
    return View(frame, now, styles, interval, paused, options.read_only, {one.key: one for one in strays.strays}, key)


def refused_actions(options: Options) -> frozenset[str]:
    """Return the actions that the options exclude: no footer shows them."""
    return frozenset({"end_process", "select", "end"}) if options.read_only else frozenset()


_PROCESS: Final = re.compile(r"(\d+):(\d+)( |$)")
"""Subject of an alert about one process: PID and start time."""


def subject_of(alert: Alert, frame: Frame | None) -> Row | Gpu | None:
    """Return the process or the GPU of a frame that an alert is about; None if neither is in it.

    For an ended alert the PID is not enough: another process may have it by now.
    """
    if frame is None:
        return None
    identity = _PROCESS.match(alert.subject)
    every = rows(frame.snapshot, frame.history) if alert.subject else []
    held: list[Row] = []
    if identity is not None:
        pid, start = int(identity[1]), int(identity[2])
        held = [row for row in every if row.holding.pid == pid and start in (row.process.start, row.holding.start)]
    elif len(alert.pids) == 1 and alert.ended is None and not alert.subject.startswith("xid "):
        held = [row for row in every if row.holding.pid == alert.pids[0]]
    if held:
        return next((row for row in held if row.gpu.key == alert.gpu), held[0])
    return next((gpu for gpu in frame.snapshot.gpus if gpu.key == alert.gpu), None)


def subject_words(subject: Row | Gpu | None) -> str:
    """Return the name of an alert's subject: `process 123`, `GPU 1`; empty for None."""
    if isinstance(subject, Row):
        return f"process {subject.holding.pid}"
    return "" if subject is None else f"GPU {subject.index}"


def clock(seconds: float) -> str:
    """Return a wall-clock time as `14:03:12` in the local time zone; empty for 0."""
    return time.strftime("%H:%M:%S", time.localtime(seconds)) if seconds else ""


def day_time(at: float, now: float, form: str = "%H:%M") -> str:
    """Return a wall-clock time in the local time zone, with the day of the week if it is not the day of `now`."""
    then = time.localtime(at)
    return time.strftime(form if then[:3] == time.localtime(now)[:3] else f"%a {form}", then)


def replay_words(frame: Frame | None) -> str:
    """Return `REPLAY 14:03:12` for a frame of a replay; empty for one of the present."""
    return f"REPLAY {clock(frame.snapshot.taken)}" if frame is not None and frame.restarts else ""


def mark_of(severity: Severity, glyphs: Glyphs) -> tuple[str, Role]:
    if severity is Severity.CRITICAL:
        return glyphs.critical, "critical"
    return (glyphs.warning, "warning") if severity is Severity.WARNING else (glyphs.note, "note")
