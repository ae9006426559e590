"""Events screen: the events log and what holds now, live and with a filter."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.analysis.rows import FilterError, parse_numbers, parse_terms
from gpuwatch.output.events import lasted_words, state_words, value_words
from gpuwatch.text import clean
from gpuwatch.ui.screens.list_screen import ListScreen
from gpuwatch.ui.theme import Kit, Role
from gpuwatch.ui.view import subject_of, subject_words
from gpuwatch.ui.widgets.footer import Footer, Hint, hints
from gpuwatch.ui.widgets.gpus import mark_of
from gpuwatch.ui.widgets.lines import CursorList, Line, LinePanel, Pen, blank

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gpuwatch.monitor import Frame
    from gpuwatch.recorder.events_log import Events
    from gpuwatch.ui.app import GpuwatchApp


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


READ_EVERY: Final = 3.0
"""Seconds between two looks at the log, which another gpuwatch may be writing."""
SAME: Final = 30.0
"""Seconds between two beginnings of one condition, as two that watch it see it, within which it is one event."""
DETAIL: Final = 6
"""Lines about the chosen event, with the one above them; 2 more where there is room, for its evidence."""
_KEYS: Final[list[Binding]] = [
    Binding("escape,q,e", "close", "back", id="events.close", key_display="Esc", tooltip="Go back to the dashboard"),
    # Priority, as on the dashboard: what is typed in the same moment already goes to the filter.
    Binding(
        "slash",
        "filter",
        "filter",
        id="events.filter",
        key_display="/",
        tooltip="Show only events that match",
        priority=True,
    ),
    Binding(
        "enter",
        "show",
        "show",
        id="events.show",
        key_display="Enter",
        tooltip="Its process, or the processes of its GPU",
    ),
    Binding("a", "attend", "ack", id="events.attend", tooltip="Acknowledge this event, or mute it or its rule"),
    Binding("o", "ongoing", "ongoing", id="events.ongoing", tooltip="Only what holds now, or everything"),
    Binding("down,j", "move(1)", "down", show=False, id="events.down", tooltip="The next event"),
    Binding("up,k", "move(-1)", "up", show=False, id="events.up", tooltip="The event before"),
    Binding("pagedown,space", "page(1)", "page down", show=False, id="events.pagedown", tooltip="A screenful down"),
    Binding("pageup,b", "page(-1)", "page up", show=False, id="events.pageup", tooltip="A screenful up"),
    Binding("home,g", "move(-1000000)", "first", show=False, id="events.first", tooltip="The newest"),
    Binding("end,G", "move(1000000)", "last", show=False, id="events.last", tooltip="The oldest"),
]


def _as_known(alert: Alert, log: Events) -> Alert:
    """Give an event of the log; one without an end, which nobody writes on any more, is not said to go on."""
    if alert.ended is not None or log.watched:
        return alert
    until = log.watched_until or alert.seen
    return msgspec.structs.replace(alert, ended=until, how="still held when watching stopped")


Term = Callable[[Alert], bool]
"""One term of a filter."""


def event_terms(words: str, gpus: Callable[[Alert], Collection[int]] | None = None) -> tuple[Term, ...]:
    """Parse a filter of events: `rule:over`, `gpu:0,2`, `user:ada`, `pid:123`, any text; raises FilterError.

    The grammar is that of the process list. `gpus` gives the indices of the GPUs that an event is about.
    """
    about = gpus or (lambda alert: () if alert.index is None else (alert.index,))

    def on_gpu(value: str) -> Term:
        numbers = parse_numbers("gpu", value)
        return lambda alert: not numbers or not numbers.isdisjoint(about(alert))

    def of_pid(value: str) -> Term:
        numbers = parse_numbers("pid", value)
        return lambda alert: not numbers or not numbers.isdisjoint(alert.pids)

    keys: dict[str, Callable[[str], Term]] = {
        "rule": lambda value: lambda alert: value in alert.rule.casefold(),
        "gpu": on_gpu,
        "user": lambda value: lambda alert: any(value in owner.casefold() for owner in alert.owners),
        "pid": of_pid,
    }
    return parse_terms(words, keys=keys, anywhere=lambda sought: lambda alert: sought in _text(alert))


def _text(alert: Alert) -> str:
    parts = (alert.title, alert.evidence, alert.rule, alert.how, *alert.owners, *map(str, alert.pids))
    return " ".join(parts).casefold()


class EventsScreen(ListScreen):
    """The screen of events."""

    DEFAULT_CSS = """
    EventsScreen Input {
        height: 1;
        border: none;
        padding: 0 1;
        background: $panel;
        color: $foreground;
        display: none;
    }
    """

    class Read(Message):
        """The log was read."""

    BINDINGS: ClassVar[list[BindingType]] = [*_KEYS]
    app: GpuwatchApp

    def __init__(
        self,
        read: Callable[[], Events] | None,
        frame: Frame | None,
        kit: Kit,
        wall: Callable[[], float] = time.time,
        *,
        ended: Iterable[Alert] = (),
    ) -> None:
        """`read` reads the events log, on a thread; without it only what holds, and what this run saw end, is shown."""
        super().__init__(frame, kit)
        self._read = read
        self._wall = wall
        self._reading: Future[Events] | None = None
        self._logged: dict[str, Alert] = {}
        self._live: dict[str, Alert] = {alert.id: alert for alert in ended if alert.id}
        """What frames showed, those included that have ended since."""
        self._note = ""
        self._ongoing_only = False
        self._words = ""
        self._terms: tuple[Term, ...] = ()
        self._wrong = ""
        """Why the filter as it stands in its line cannot be understood; the last good one counts until it can."""

    def compose(self) -> ComposeResult:
        """Give the title, the list, the detail, the line of the filter and the keys."""
        yield LinePanel(id="events-title")
        yield EventList(id="events-list")
        yield LinePanel(id="events-detail")
        hint = "rule:over  gpu:0,2  user:ada  pid:123  any text  -not"
        yield Input(compact=True, select_on_focus=False, placeholder=hint)
        yield Footer(id="events-keys")

    def on_mount(self) -> None:
        """Begin with what holds now, and read the log."""
        self.query_one(Input).cursor_blink = False
        self.set_interval(READ_EVERY, self._look)
        self._look()
        self.refresh_frame(self._frame)

    @property
    def reading(self) -> bool:
        """Whether the log is being read."""
        return self._reading is not None

    # -- what there is to show ---------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._read is not None and self._reading is None:
            self._reading = self.app.background("gpuwatch-events")(self._read)
            self._reading.add_done_callback(lambda _: self.post_message(self.Read()))

    def on_events_screen_read(self) -> None:
        """Take what was read."""
        if self._reading is None:
            return
        error = self._reading.exception()
        if error is not None:
            why = getattr(error, "strerror", None) or error
            self._note = clean(f"the events log cannot be read: {why}", 200)
        else:
            came = self._reading.result()
            self._logged = {alert.id: _as_known(alert, came) for alert in came.alerts}
            self._note = came.note
        self._reading = None
        self.paint()

    def refresh_frame(self, frame: Frame | None) -> None:
        """Take a new frame: what holds now, and what has just ended."""
        self._frame = frame
        if frame is not None:
            now = {alert.id: alert for alert in frame.alerts if alert.id}
            self._live.update(now)
            self._live.update({alert.id: alert for alert in frame.cleared})
            for gone in [each for each, alert in self._live.items() if alert.ended is None and each not in now]:
                del self._live[gone]  # ended in a frame that was passed over: the log says how
        self.paint()

    def _every(self) -> list[Alert]:
        """Give all events, each once."""
        ours: dict[str, list[float]] = {}
        for alert in self._live.values():
            ours.setdefault(alert.key, []).append(alert.raised)
        # Whoever writes the log may be another gpuwatch, which raised the same event under an id of its own.
        logged = [
            alert
            for alert in self._logged.values()
            if not any(abs(alert.raised - raised) <= SAME for raised in ours.get(alert.key, ()))
        ]
        return [*logged, *self._live.values()]

    def found(self) -> list[Alert]:
        """Give the events that match, the newest first."""
        chosen = [
            alert
            for alert in self._every()
            if all(term(alert) for term in self._terms) and (alert.ended is None or not self._ongoing_only)
        ]
        return sorted(chosen, key=lambda alert: (alert.ended is None, alert.raised), reverse=True)

    def _gpus_of(self, alert: Alert) -> set[int]:
        """Return the GPU that an event names, and while it holds, all that its process is on."""
        found = set() if alert.index is None else {alert.index}
        if alert.subject and alert.ended is None and self._frame is not None:
            held = ((gpu.index, one.pid) for gpu in self._frame.snapshot.gpus for one in gpu.holdings)
            found |= {index for index, pid in held if pid in alert.pids}
        return found

    def paint(self) -> None:
        """Draw everything."""
        if not self.is_mounted:
            return
        width, height = self.app.size
        kit = self._kit
        now = self._frame.snapshot.taken if self._frame is not None and self._frame.snapshot.taken else self._wall()
        events_list = self.query_one(EventList)
        events_list.take(self.found())
        entry = self.query_one(Input)
        detail = DETAIL + 2 * (height >= 24) if height >= 16 else 0
        room = max(1, height - 2 - detail)
        with self.app.batch_update():
            self.query_one("#events-title", LinePanel).show([self._title(width)])
            events_list.give(room)
            if events_list.found:
                events_list.draw(kit, width, room, now)
            else:
                events_list.show([Pen(kit).gap(2).write(self._why_empty(), "muted").line(width)])
            panel = self.query_one("#events-detail", LinePanel)
            panel.display = detail > 0
            panel.give(max(detail, 1))
            panel.show(detail_lines(events_list.chosen, kit, width, detail, now))
            footer = self.query_one(Footer)
            footer.display = not entry.display
            footer.draw(self._hints(events_list.chosen), kit, width)

    def _hints(self, chosen: Alert | None) -> list[Hint]:
        """Return the keys, with what Enter shows of this event."""
        words = subject_words(subject_of(chosen, self._frame)) if chosen is not None else ""
        found = [(key, words if action == "show" else said, action) for key, said, action in hints(_KEYS)]
        return [hint for hint in found if hint[1]]

    def _title(self, width: int) -> Any:
        found = self.query_one(EventList).found
        ongoing = sum(alert.ended is None for alert in found)
        pen = Pen(self._kit, "band").gap().write("events", "strong").gap(2)
        total = len(self._every())
        chosen = [f"{len(found)} in all" if len(found) == total else f"{len(found)} of {total}", f"{ongoing} ongoing"]
        chosen += [f"filter: {self._words}"] * bool(self._words) + ["ongoing only"] * self._ongoing_only
        chosen += ["of this run only"] * (self._read is None)
        words = f" {self._kit.glyphs.dot} ".join(chosen)
        # What is wrong with a filter comes first, where there is room for it at any width.
        parts: list[tuple[str, Role]] = [(self._wrong, "warning"), (words, "muted")]
        parts += [(self._note, "warning")] * (not self._wrong)
        for part, role in parts:
            if part:
                pen.write(part, role, min(cell_len(part), max(0, width - pen.cells - 1))).gap(2)
        return pen.line(width)

    def _why_empty(self) -> str:
        if self._words:
            return f"no event matches “{self._words}”: Esc clears the filter"
        if self._ongoing_only:
            return "nothing holds now: o shows what has ended"
        if self._reading is not None and not self._logged:
            return "reading the log"
        return "nothing was raised yet"

    # -- what the user does ------------------------------------------------------------------------------------

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter as one types."""
        event.stop()
        words = clean(event.value, 200)
        try:
            self._terms = event_terms(words, self._gpus_of)
        except FilterError as error:
            self._wrong = str(error)
        else:
            self._words, self._wrong = words, ""
        self.paint()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, and give the keys back to the list."""
        event.stop()
        event.input.value, self._wrong = self._words, ""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one(Input).display = False
        self.set_focus(None)
        self.paint()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave `/` to whatever is typed into."""
        return action != "filter" or any(not entry.display for entry in self.query(Input))

    def action_filter(self) -> None:
        """Ask for a filter."""
        entry = self.query_one(Input)
        entry.display = True
        self.set_focus(entry)
        self.paint()

    def action_close(self) -> None:
        """Clear the filter where there is one, else go back."""
        entry = self.query_one(Input)
        if entry.display or self._words:
            entry.value = self._words = self._wrong = ""
            self._terms = ()
            self._close_filter()
        else:
            self.dismiss(None)

    def action_ongoing(self) -> None:
        """Show only what holds now, or everything."""
        self._ongoing_only = not self._ongoing_only
        self.paint()

    def on_cursor_list_chosen(self, message: EventList.Chosen) -> None:
        """Do what Enter does."""
        message.stop()
        self.action_show()

    def action_show(self) -> None:
        """Show the process that the chosen event is about, or the processes of its GPU."""
        chosen = self.query_one(EventList).chosen
        if chosen is not None:
            self.app.show_subject(chosen)

    def action_attend(self) -> None:
        """Ask what is to become of the chosen event."""
        chosen = self.query_one(EventList).chosen
        if chosen is not None:
            self.app.action_attend(chosen)
