"""The list of what was raised, one line an event, and all that is known of the chosen one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from textual import events

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.output.events import lasted_words, state_words, value_words
from gpuwatch.ui.theme import Kit, Role
from gpuwatch.ui.widgets.gpus import mark_of
from gpuwatch.ui.widgets.lines import CursorList, Line, Pen, blank

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


class EventList(CursorList):
    """The events, and the one under the cursor; the cursor follows its event, not the line."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.found: list[Alert] = []
        self._follows_newest = True

    @property
    def chosen(self) -> Alert | None:
        """The event under the cursor."""
        return self.found[self.cursor] if self.found else None

    def take(self, found: Sequence[Alert]) -> None:
        """Take other events, the newest first; a cursor that was on the newest stays there."""
        self.found = list(found)
        self._follows_newest = self._follows_newest or not self.found
        keys = [alert.id for alert in self.found]
        if self._follows_newest and keys:
            self._key = keys[0]
        self._settle(keys)

    def move(self, by: int) -> None:
        """Move the cursor, which then stays with its event; on the first line, with what is newest."""
        super().move(by)
        self._follows_newest = not self.cursor

    def draw(self, kit: Kit, width: int, lines: int, now: float) -> None:
        """Draw as many events as there are lines."""
        shown = self._shown(lines)
        dated = any(time.localtime(self.found[place].raised)[:3] != time.localtime(now)[:3] for place in shown)
        drawn = [
            event_line(self.found[place], kit, width, now=now, under_cursor=place == self.cursor, dated=dated)
            for place in shown
        ]
        self.show(drawn + [blank(kit, width)] * (lines - len(drawn)))

    def on_click(self, event: events.Click) -> None:
        """Choose the event that was clicked; at the second click, what Enter does."""
        place = self.top + event.y
        if place >= len(self.found):
            return
        again = place == self.cursor and event.chain > 1
        self.move(place - self.cursor)
        if again:
            self.post_message(self.Chosen())
