"""Events screen: the events log and the alerts of now as one list, with a filter."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.analysis.events import (
    Repeated,
    fold_repeats,
    lasted_words,
    moment,
    repeat_words,
    state_words,
    value_words,
    without_known,
)
from gpuwatch.base.text import clean
from gpuwatch.base.units import ranges
from gpuwatch.model.fields import PROCESS, age
from gpuwatch.model.filters import Grammar, Term, of_names, of_numbers, parse_terms, with_text
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.row_list import RowList
from gpuwatch.ui.draw.table import Cell, Column
from gpuwatch.ui.draw.theme import Background, Role, StyleSet
from gpuwatch.ui.draw.view import mark_of, subject_of, subject_words
from gpuwatch.ui.screens.list_screen import FILTER_KEY, FilteredListScreen

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gpuwatch.analysis.events import Events
    from gpuwatch.monitor import Frame


WIDE: Final = 100
"""From this width on, a line shows how its event ended."""


def _state(alert: Alert) -> str:
    marks = ["acknowledged"] * alert.acknowledged + ["muted"] * alert.muted
    return " · ".join([*([state_words(alert)] if alert.ended is not None else ["ongoing"]), *marks])


def when(at: float, now: float, width: int) -> str:
    """Format a wall-clock time, with its day unless that is today."""
    local, today = time.localtime(at), time.localtime(now)
    if local[:3] == today[:3]:
        return time.strftime("       %H:%M:%S" if width >= 80 else "       %H:%M", local)
    return time.strftime("%d %b %H:%M:%S" if width >= 80 else "%d %b %H:%M", local)


def event_facts(alert: Alert, now: float) -> list[tuple[str, str]]:
    since = time.strftime("%a %d %b %H:%M:%S", time.localtime(alert.raised))
    until = f" to {moment(alert.ended, alert.raised)}" if alert.ended is not None else ""
    owners = ", ".join(alert.owners)
    gpus = f"GPU {ranges(alert.indices)}" * (len(alert.indices) > 1)
    more = f" and {len(alert.pids) - 6} more" if len(alert.pids) > 6 else ""
    pids = f"pid {', '.join(map(str, alert.pids[:6]))}{more}" if alert.pids else ""
    return [
        ("rule", " · ".join(filter(None, (alert.rule, gpus, owners, pids)))),
        ("when", f"{since}{until}, {lasted_words(alert, now)}"),
        ("values", value_words(alert, last=True)),
        ("evidence", alert.evidence),
        ("state", _state(alert)),
    ]


class EventList(RowList[Alert]):
    """List of events; when others come, the cursor stays on its event, or on the newest where it was there."""

    titled = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        """Wall-clock time now."""
        self._follows_newest = True
        self._width = 0
        self.repeats: Mapping[str, Repeated] = {}
        """Events that represent several of the same condition, by id."""
        self._dated = False
        """Whether an event on screen is not of today, so that the days are shown."""

    def identity(self, row: Alert) -> Hashable:
        return row.id

    def _follow(self, keys: Sequence[Hashable]) -> None:
        self._follows_newest = self._follows_newest or not keys
        if self._follows_newest and keys:
            self._key = keys[0]
        super()._follow(keys)

    def point(self, place: int) -> None:
        super().point(place)
        self._follows_newest = not self.cursor

    def columns(self, styles: StyleSet, width: int) -> list[Column]:
        on_screen = self.found[self.top : self.top + self.page_rows]
        self._dated = any(time.localtime(one.raised)[:3] != time.localtime(self.now)[:3] for one in on_screen)
        self._width = width
        found = [
            Column("when", "", cell_len(self._when(self.now)), right=False, role="muted"),
            Column("lasted", "", 7, gap=2),
            Column("mark", "", 2, right=False, gap=2),
        ]
        room = max(0, width - 2 - sum(one.gap + one.cells for one in found))
        if width < WIDE:
            return [*found, Column("title", "", 0, right=False)]
        # A fixed part of the width, so that the endings are aligned in a column.
        title = Column("title", "", room - room * 2 // 5, right=False)
        return [*found, title, Column("state", "", 0, right=False, role="muted", gap=2)]

    def cells(self, place: int, styles: StyleSet, background: Background) -> tuple[Cell, ...]:
        alert = self.found[place]
        over = alert.ended is not None
        mark, role = mark_of(alert.most if over else alert.severity, styles.glyphs)
        title: Role = "muted" if alert.quiet else "text" if over or alert.severity is Severity.NOTE else "strong"
        cells: dict[str, tuple[str, Role]] = {
            "when": (self._when(alert.raised), "muted"),
            "lasted": (lasted_words(alert, self.now), "muted" if over else "text"),
            "mark": (mark, "muted" if alert.quiet and not over else role),
            "title": (alert.title, title),
            "state": (self._state(alert), "muted"),
        }
        return tuple((cells[column.id],) for column in self._columns)

    def _state(self, alert: Alert) -> str:
        again = self.repeats.get(alert.id)
        return _state(alert) if again is None else repeat_words(again, self.now)

    def _when(self, at: float) -> str:
        words = when(at, self.now, self._width)
        return words if self._dated else words.lstrip()


READ_EVERY: Final = 3.0
"""Seconds between two readings of the log, which another gpuwatch may be writing."""


def event_terms(
    words: str,
    gpus: Callable[[Alert], Collection[int]] | None = None,
    saved: Mapping[str, str] | None = None,
    *,
    now: Callable[[], float] = time.time,
) -> tuple[Term[Alert], ...]:
    """Parse a filter of events: `rule:over`, `gpu:0,2`, `user:ada`, `pid:123`, `age<2h`, any text; raises FilterError.

    `gpuwatch.model.filters` has the grammar. `gpus` gives the indices of the GPUs that an event is about, `saved`
    are the saved filters by name, and `now` is the wall clock.
    """
    grammar: Grammar[Alert] = Grammar(
        keys={
            "rule": of_names(lambda alert: (alert.rule,)),
            "gpu": of_numbers("gpu", gpus or (lambda alert: alert.indices)),
            "user": of_names(lambda alert: alert.people),
            "pid": of_numbers("pid", lambda alert: alert.pids),
        },
        anywhere=with_text(
            lambda one: (one.title, one.evidence, one.rule, one.how, *one.owners, *map(str, one.pids)),
        ),
        figures={"age": PROCESS["age"].of(lambda alert: age(alert.raised, now()))},
    )
    return parse_terms(words, grammar, saved)


class EventsScreen(FilteredListScreen[EventList, Alert]):
    """Screen that lists events."""

    class Read(Message):
        """Message: the log was read."""

    LIST = EventList
    NAME = TITLE = "events"
    LISTS_ALERTS = True
    KEYS = (
        Binding("escape,q,e", "close", "back", id="events.close", tooltip="Back to the dashboard"),
        FILTER_KEY,
        Binding("enter", "choose", "show", id="events.show", tooltip="Show its process, or the processes of its GPU"),
        Binding("a", "acknowledge", "ack", id="events.acknowledge", tooltip="Acknowledge or mute this event"),
        Binding("o", "ongoing", "ongoing", id="events.ongoing", tooltip="Show only ongoing alerts, or all"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]
    FILTER_HINT = "rule:over  gpu:0,2-4  user:ada  pid:123  age<2h  any text  !not"
    ROW = "event"

    def __init__(
        self,
        read: Callable[[], Events] | None,
        frame: Frame | None,
        styles: StyleSet,
        wall: Callable[[], float] = time.time,
        *,
        ended: Iterable[Alert] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` reads the events log, on a thread; without it, only events since gpuwatch started are shown."""
        super().__init__(frame, styles, clock=clock)
        self._read = read
        self._wall = wall
        self._reading: Future[Events] | None = None
        self._logged: dict[str, Alert] = {}
        self._live: dict[str, Alert] = {alert.id: alert for alert in ended if alert.id}
        """Alerts of all frames so far, also ended ones."""
        self._restarts = frame.restarts if frame is not None else 0
        self._note = ""
        self._ongoing_only = False

    def start(self) -> None:
        self.set_interval(READ_EVERY, self._look)
        self._look()

    @property
    def reading(self) -> bool:
        return self._reading is not None

    # -- what there is to show ---------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._read is not None and self._reading is None:
            self._reading = actions_of(self).background("gpuwatch-events")(self._read)
            self._reading.add_done_callback(lambda _: self.post_message(self.Read()))

    def on_events_screen_read(self) -> None:
        if self._reading is None:
            return
        error = self._reading.exception()
        if error is not None:
            why = getattr(error, "strerror", None) or error
            self._note = clean(f"the events cannot be read: {why}", 200)
        else:
            came = self._reading.result()
            self._logged = {alert.id: alert for alert in came.finished}
            self._note = came.note
        self._reading = None
        self.paint()

    def read_rows(self) -> None:
        """Add the alerts of the newest frame, also alerts that have just ended."""
        frame = self._frame
        if frame is not None:
            if frame.restarts != self._restarts:  # a replay shows another time
                self._restarts = frame.restarts
                self._live.clear()
            now = {alert.id: alert for alert in frame.alerts if alert.id}
            self._live.update(now)
            self._live.update({alert.id: alert for alert in frame.cleared})
            for gone in [each for each, alert in self._live.items() if alert.ended is None and each not in now]:
                del self._live[gone]  # ended in a frame that was passed over: the log says how

    def _every(self) -> list[Alert]:
        """Return all events, each once."""
        return [*without_known(self._logged.values(), self._live.values()), *self._live.values()]

    def found(self) -> list[Alert]:
        """Return the events that match, the newest first; without a filter, repeated ones are one line."""
        chosen = [
            alert for alert in self._every() if self.filter(alert) and (alert.ended is None or not self._ongoing_only)
        ]
        chosen.sort(key=lambda alert: (alert.ended is None, alert.raised), reverse=True)
        folded = [Repeated(alert) for alert in chosen] if self.filter.text else fold_repeats(chosen, newest=True)
        self.rows.repeats = {one.alert.id: one for one in folded if one.times > 1}
        return [one.alert for one in folded]

    def _gpus_of(self, alert: Alert) -> set[int]:
        """Return the GPUs of an event; for an ongoing event, all GPUs of its process."""
        found = set(alert.indices)
        if alert.subject and alert.ended is None and self._frame is not None:
            held = ((gpu.index, one.pid) for gpu in self._frame.snapshot.gpus for one in gpu.holdings)
            found |= {index for index, pid in held if pid in alert.pids}
        return found

    def paint(self) -> None:
        now = self._frame.snapshot.taken if self._frame is not None else 0.0
        self.rows.now = now or self._wall()
        self.rows.update_rows(self.found())
        super().paint()

    def facts(self, row: Alert) -> Sequence[tuple[str, str]]:
        return event_facts(row, self.rows.now)

    def key_words(self) -> Mapping[str, str]:
        event = self.selected
        return {"choose": subject_words(subject_of(event, self._frame)) if event is not None else ""}

    def summary(self, room: int) -> list[tuple[str, Role]]:
        """Return the number of events, the filter, and errors of the log."""
        found = self.rows.found
        total = len(self._every())
        shown = len(found) + sum(one.times - 1 for one in self.rows.repeats.values())
        words = [f"{total} event{'s' * (total != 1)}" if shown == total else f"{shown} of {total}"]
        words += [f"{sum(alert.ended is None for alert in found)} ongoing"]
        words += [f"filter: {self.filter.text}"] * bool(self.filter.text) + ["ongoing only"] * self._ongoing_only
        words += ["since gpuwatch started"] * (self._read is None)
        return [(f" {self.style_set.glyphs.dot} ".join(words), "muted"), (self._note, "warning")]

    def why_empty(self) -> Sequence[str]:
        if self.filter.text:
            return [f"no event matches “{self.filter.text}”: Esc clears the filter"]
        if self._ongoing_only:
            return ["no ongoing alert: o shows those that have ended"]
        is_reading = self._reading is not None and not self._logged
        return ["reading the events log" if is_reading else "no alert yet"]

    # -- what the user does ------------------------------------------------------------------------------------

    def parse_filter(self, words: str, saved: Mapping[str, str]) -> tuple[Term[Alert], ...]:
        return event_terms(words, self._gpus_of, saved, now=lambda: self.rows.now)

    def action_ongoing(self) -> None:
        self._ongoing_only = not self._ongoing_only
        self.paint()

    def choose(self, row: Alert) -> None:
        actions_of(self).show_subject(row)

    def action_acknowledge(self) -> None:
        if self.selected is not None:
            actions_of(self).action_acknowledge(self.selected)
