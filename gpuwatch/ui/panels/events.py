"""The list of what was raised, one line an event, and all that is known of the chosen one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from textual import events
from textual.message import Message

from gpuwatch.alerts import Alert, Severity
from gpuwatch.output.events import lasted_words, state_words, value_words
from gpuwatch.ui.panels.gpus import mark_of
from gpuwatch.ui.panels.lines import Line, LinePanel, Pen, blank
from gpuwatch.ui.theme import Kit, Role

WIDE: Final = 100
"""From this width on a line says how its event ended."""
_LASTED: Final = 7
_LABEL: Final = 10


def event_line(alert: Alert, kit: Kit, width: int, *, now: float, under_cursor: bool, dated: bool = True) -> Line:
    """Draw one event: when, for how long, mark, title, and how it ended where there is room.

    `dated` leaves room for the day, which an event of today does not name.
    """
    pen = Pen(kit, "cursor" if under_cursor else "base").write(kit.glyphs.cursor if under_cursor else "", "strong", 2)
    over = alert.ended is not None
    moment = when(alert.raised, now, width)
    pen.write(moment if dated else moment.lstrip(), "muted").gap(2)
    pen.write(lasted_words(alert, now), "muted" if over else "text", _LASTED, right=True).gap(2)
    mark, role = mark_of(alert.most if over else alert.severity, kit.glyphs)
    quiet = over or alert.quiet
    pen.write(mark, "muted" if quiet and not over else role, 2)
    room = max(0, width - pen.cells)
    state = _state(alert) if width >= WIDE else ""
    wanted = room * 2 // 5 if state else 0  # always the same part, so that how they ended stands in one column
    title: Role = "muted" if alert.quiet else "text" if over or alert.severity is Severity.NOTE else "strong"
    pen.write(alert.title, title, room - wanted)
    if state:
        pen.gap(2).write(state, "muted", max(0, width - pen.cells))
    return pen.line(width)


def _state(alert: Alert) -> str:
    marks = ["acknowledged"] * alert.acknowledged + ["muted"] * alert.muted
    return " · ".join([*([state_words(alert)] if alert.ended is not None else ["ongoing"]), *marks])


def when(moment: float, now: float, width: int) -> str:
    """Print when something was: the time, with the day before it where that is not today."""
    local, today = time.localtime(moment), time.localtime(now)
    if local[:3] == today[:3]:
        return time.strftime("       %H:%M:%S" if width >= 80 else "       %H:%M", local)
    return time.strftime("%d %b %H:%M:%S" if width >= 80 else "%d %b %H:%M", local)


def detail_lines(alert: Alert | None, kit: Kit, width: int, lines: int, now: float) -> list[Line]:
    """Draw all that is known of one event, in as many lines as there are; long evidence takes those to spare."""
    if lines <= 0:
        return []
    drawn = [Pen(kit, "band").line(width)]
    facts = _facts(alert, now) if alert is not None else []
    spare = max(0, lines - 1 - len(facts))
    for label, words in facts:
        parts = wrap(words, max(1, width - 2 - _LABEL)) if label == "evidence" else [words]
        kept = [*parts[:spare], " ".join(parts[spare:])] if len(parts) > 1 + spare else parts
        for place, part in enumerate(kept):
            pen = Pen(kit).gap(2).write("" if place else label, "muted", _LABEL)
            drawn.append(pen.write(part, "text", max(0, width - pen.cells)).line(width))
    return (drawn + [blank(kit, width)] * lines)[:lines]


def _facts(alert: Alert, now: float) -> list[tuple[str, str]]:
    since = time.strftime("%a %d %b %H:%M:%S", time.localtime(alert.raised))
    until = time.strftime(" to %H:%M:%S", time.localtime(alert.ended)) if alert.ended is not None else ""
    owners = ", ".join(alert.owners)
    found = [
        ("rule", " · ".join(filter(None, (alert.rule, owners, _pids(alert))))),
        ("from", f"{since}{until}, {lasted_words(alert, now)}"),
        ("values", value_words(alert, last=True)),
        ("evidence", alert.evidence),
        ("state", _state(alert)),
    ]
    return [(label, words) for label, words in found if words]


def _pids(alert: Alert) -> str:
    if not alert.pids:
        return ""
    more = f" and {len(alert.pids) - 6} more" if len(alert.pids) > 6 else ""
    return f"pid {', '.join(map(str, alert.pids[:6]))}{more}"


class EventList(LinePanel):
    """The events, and the one under the cursor; the cursor follows its event, not the line."""

    class Moved(Message):
        """Another event is under the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.found: list[Alert] = []
        self._chosen = ""
        self._page = 1
        self._top = 0

    @property
    def chosen(self) -> Alert | None:
        """The event under the cursor."""
        return self.found[self.cursor] if self.found else None

    @property
    def cursor(self) -> int:
        """Its place in the list; the first, while none was chosen or the chosen one has gone."""
        return next((place for place, alert in enumerate(self.found) if alert.id == self._chosen), 0)

    def take(self, found: Sequence[Alert]) -> None:
        """Take other events; the newest first."""
        place = self.cursor
        self.found = list(found)
        if self._chosen and not any(alert.id == self._chosen for alert in self.found):
            self._chosen = self.found[min(place, len(self.found) - 1)].id if self.found else ""

    def move(self, by: int) -> None:
        """Move the cursor."""
        if self.found:
            # From the first line on it follows its event; before that, what is newest.
            place = max(0, min(self.cursor + by, len(self.found) - 1))
            self._chosen = self.found[place].id if place else ""
            self.post_message(self.Moved())

    def page(self, by: int) -> None:
        """Move the cursor by a screenful."""
        self.move(by * max(1, self._page - 1))

    def draw(self, kit: Kit, width: int, lines: int, now: float) -> None:
        """Draw as many events as there are lines, with the chosen one among them."""
        self._page = max(1, lines)
        cursor = self.cursor
        self._top = max(0, min(max(self._top, cursor - lines + 1), cursor, max(0, len(self.found) - lines)))
        shown = self.found[self._top : self._top + lines]
        dated = any(time.localtime(alert.raised)[:3] != time.localtime(now)[:3] for alert in shown)
        drawn = [
            event_line(alert, kit, width, now=now, under_cursor=self._top + place == cursor, dated=dated)
            for place, alert in enumerate(shown)
        ]
        self.show(drawn + [blank(kit, width)] * (lines - len(drawn)))

    def on_click(self, event: events.Click) -> None:
        """Choose the event that was clicked."""
        place = self._top + event.y
        if place < len(self.found):
            self.move(place - self.cursor)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Go down."""
        event.stop()
        self.move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Go up."""
        event.stop()
        self.move(-1)
