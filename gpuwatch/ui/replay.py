"""Replay: the dashboard with keys that move through a recording, and without keys that change anything."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Input, Static

from gpuwatch.alerts.alert import Alert
from gpuwatch.analysis.events import Events
from gpuwatch.analysis.playback import SPEEDS, Playback, events_until
from gpuwatch.base.units import format_moment, long_duration, parse_moment
from gpuwatch.ui.actions import make_bindings
from gpuwatch.ui.app import GpuwatchApp, NewFrame
from gpuwatch.ui.draw.keys import BoundKey, replay_keys
from gpuwatch.ui.draw.theme import Glyphs
from gpuwatch.ui.draw.view import View
from gpuwatch.ui.options import Helpers, Options
from gpuwatch.ui.screens.dialog import Dialog

if TYPE_CHECKING:
    from gpuwatch.history.timeline import Timeline
    from gpuwatch.model.fields import Row
    from gpuwatch.monitor import Frame, Monitor

_SAME: Final = 1.0
"""Seconds after the start of an event in which `{` goes to the event before it while the replay plays."""


class ReplaySource(Protocol):
    """Recording that is played, as the recorder's `Replay` explains it; methods may be called from any thread."""

    @property
    def playback(self) -> Playback: ...
    @property
    def notes(self) -> Sequence[str]: ...
    def play(self, playing: bool) -> None: ...
    def set_speed(self, speed: float) -> None: ...
    def step(self, by: int) -> None: ...
    def seek(self, at: float, *, onwards: bool = False) -> None: ...
    def events(self) -> Sequence[Alert]: ...
    def load_older(self, timeline: Timeline, until: float) -> None: ...


class ReplayApp(GpuwatchApp, inherit_bindings=False):
    """Dashboard of a recording. Nothing can be ended, acknowledged, muted, recorded or sent."""

    BINDINGS: ClassVar[list[BindingType]] = [*make_bindings(replay_keys())]

    def __init__(self, replay: ReplaySource, *, watch: Monitor | None = None, options: Options) -> None:
        quiet = replace(options, read_only=True, caller=None, bell=False, toast=False, desktop="off")
        super().__init__(
            watch=watch,
            options=quiet,
            helpers=Helpers(events=self._read_events, older=replay.load_older),
            clock=self._frame_time,
        )
        self.replay = replay
        self._gap: tuple[float, float] | None = None
        """Last gap that was reported to the user."""
        self._noted = 0
        """Number of notes that were reported to the user."""

    def make_keys(self) -> list[BoundKey]:
        return replay_keys(self.options.keys)

    def _frame_time(self) -> float:
        """Return the time of the newest frame: nothing that is recorded grows old while it is shown."""
        return self.newest.received if self.newest is not None else 0.0

    def _events_up_to(self) -> float:
        """Return a wall-clock time up to which an event that began is one of the snapshot that is shown.

        A snapshot is judged some milliseconds after it was taken.
        """
        at = self.replay.playback.at
        return at + self.newest.snapshot.interval / 2 if self.newest is not None else at

    def _read_events(self) -> Events:
        """Return the events up to the time that is shown."""
        return Events(events_until(self.replay.events(), self._events_up_to()), watched=True, exists=True)

    def _beat(self) -> None:
        """Redraw the state of the replay once a second."""
        self.paint()

    def _view(self, frame: Frame, now: float) -> View:
        return replace(super()._view(frame, now), playback=self.replay.playback)

    def on_new_frame(self, message: NewFrame) -> None:
        """Receive a frame, and tell the user of a gap in the recording before it."""
        super().on_new_frame(message)
        gap = self.replay.playback.gap
        if gap is not None and gap != self._gap:
            since, until = map(format_moment, gap)
            words = f"nothing was recorded for {long_duration(gap[1] - gap[0])}: {since} to {until}"
            self.notify(words, severity="warning", markup=False, timeout=6)
        self._gap = gap
        for note in self.replay.notes[self._noted :]:
            self._noted += 1
            self.notify(note, severity="warning", markup=False, timeout=6)

    # -- keys ------------------------------------------------------------------------------------------------------

    def action_play(self) -> None:
        now = self.replay.playback
        if now.is_over and not now.playing:
            self._go(math.inf)
        self.replay.play(not now.playing)
        self.paint()

    def action_step(self, by: int) -> None:
        """Pause, and show the snapshot before or after this one."""
        now = self.replay.playback
        if now.at >= now.last if by > 0 else now.at <= now.first:
            self._go(math.copysign(math.inf, by))
        self.replay.step(by)
        self.paint()

    def action_seek(self, by: float) -> None:
        """Move by so many seconds of the recording."""
        self._go(self.replay.playback.at + by, onwards=by > 0)

    def action_speed(self, by: int) -> None:
        """Play at the next higher or lower of `SPEEDS`."""
        speed = self.replay.playback.speed
        place = SPEEDS.index(speed) + by
        self.replay.set_speed(SPEEDS[min(max(place, 0), len(SPEEDS) - 1)])
        self.paint()

    def action_event(self, by: int) -> None:
        """Move to where the next event begins, or the one before began."""
        now = self.replay.playback
        starts = [alert.raised for alert in self.replay.events()]
        before = now.at - _SAME if now.playing else now.at
        place = bisect_right(starts, self._events_up_to()) if by > 0 else bisect_left(starts, before) - 1
        if 0 <= place < len(starts):
            self._go(min(starts[place], now.last))
        else:
            words = f"no event starts {'after' if by > 0 else 'before'} {format_moment(now.at)}"
            self.notify(words, markup=False, timeout=4)

    def action_time(self) -> None:
        self.push_screen(TimeDialog(self.replay.playback, self.style_set.glyphs), self._go)

    def _go(self, at: float | None, *, onwards: bool = False) -> None:
        """Move to a time of the recording, or to its start or end with a notification; None is ignored.

        With `onwards` a later snapshot than now is shown, across a gap too.
        """
        if at is None:
            return
        now = self.replay.playback
        if not now.first <= at <= now.last:
            words = f"end of the recording: {format_moment(now.last)}"
            if at < now.first:
                words = f"start of the recording: {format_moment(now.first)}"
            self.notify(words, markup=False, timeout=4)
        self.replay.seek(min(max(at, now.first), now.last), onwards=onwards)

    # -- what the past does not allow ------------------------------------------------------------------------------

    @property
    def refused(self) -> frozenset[str]:
        """Actions that change something."""
        return super().refused | {"acknowledge"}

    def may_end(self) -> bool:
        return self._refuse("processes cannot be ended")

    def action_acknowledge(self, alert: Alert | None = None) -> None:
        self._refuse("alerts cannot be acknowledged or muted")

    def write_to_owner(self, frame: Frame | None, is_meant: Callable[[Row], bool]) -> None:
        self._refuse("there are no messages to owners")

    def _refuse(self, words: str) -> bool:
        self.notify(f"this is a replay: {words}", severity="warning", markup=False, timeout=4)
        return False


class TimeDialog(Dialog[float]):
    """Question for a clock time; its answer is a wall-clock time of the recording, None where it was closed."""

    DEFAULT_CSS = """
    TimeDialog #dialog {
        width: 62;
    }
    TimeDialog Input {
        height: 1;
        border: none;
        padding: 0;
        background: $panel;
        color: $foreground;
    }
    TimeDialog #wrong {
        height: auto;
        color: $text-warning;
    }
    """

    AUTO_FOCUS = "Input"

    def __init__(self, now: Playback, glyphs: Glyphs) -> None:
        super().__init__("go to", glyphs=glyphs)
        self._now = now

    def compose(self) -> ComposeResult:
        first, last = map(format_moment, (self._now.first, self._now.last))
        with self.box("go to a clock time"):
            yield Static(Content(self.spell(f"recorded: {first} to {last}")), id="covers")
            yield Input(compact=True, select_on_focus=False, placeholder="03:10   03:10:22   2026-11-21 03:10")
            yield Static(Content(""), id="wrong", classes="-empty")

    def on_mount(self) -> None:
        """Turn the blinking of the cursor off: each blink is a write to the terminal."""
        self.query_one(Input).cursor_blink = False

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the time, or say what is wrong with it."""
        event.stop()
        first, last = self._now.first, self._now.last
        try:
            at = parse_moment(event.value, first, last, self._now.at)
            if not first <= at <= last:
                raise ValueError(f"{format_moment(at)} is not in the recording")
        except ValueError as error:
            self.show_text("wrong", str(error))
        else:
            self.dismiss(at)
