"""The dialog about an alert: acknowledge it or take that back, mute it or its rule, or unmute it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from gpuwatch.alerts.alert import HOUR, TROUBLE, Alert, Mute
from gpuwatch.analysis.rows import Row
from gpuwatch.model import Gpu
from gpuwatch.monitor import Frame
from gpuwatch.text import fit
from gpuwatch.ui.options import AlertControl
from gpuwatch.ui.screens.dialog import Dialog
from gpuwatch.ui.screens.sheet import plain
from gpuwatch.ui.theme import UNICODE, Glyphs
from gpuwatch.ui.view import subject_of, subject_words
from gpuwatch.ui.widgets.alerts import silent_mutes
from gpuwatch.ui.widgets.gpus import mark_of

if TYPE_CHECKING:
    from gpuwatch.ui.app import GpuwatchApp


def subjects(frame: Frame | None, chosen: Alert | None, wall: float | None = None) -> tuple[list[Alert], list[Mute]]:
    """Return what can be asked about: the chosen alert, or all that hold, and the mutes that none of them is under.

    Our own trouble is left out: who mutes it would not hear that the log cannot be written.
    """
    if chosen is not None:
        # It may come from the log, and what is muted may be another thing now than it was then.
        now = time.time() if wall is None else wall
        alerts, mutes = [frame.attention.mark(chosen, now) if frame else chosen], []
    else:
        alerts = sorted(frame.alerts if frame else (), key=lambda alert: alert.quiet)
        mutes = silent_mutes(frame) if frame else []
    return [alert for alert in alerts if alert.rule != TROUBLE], mutes


class _Choice(NamedTuple):
    """One thing that can be done."""

    id: str
    """Its identity, however it is worded."""
    words: str
    do: Callable[[], object] | None
    """None where it cannot be done now: the choice is dimmed and keeps its place."""
    said: str = ""
    """Text of the toast."""


class AttendScreen(Dialog[None]):
    """The dialog on one alert, or one mute, of several; left and right go to the next."""

    app: GpuwatchApp

    DEFAULT_CSS = """
    AttendScreen #title {
        height: auto;
        max-height: 3;
        text-style: bold;
    }
    AttendScreen #evidence {
        height: auto;
        max-height: 4;
        color: $text-muted;
    }
    AttendScreen #evidence.-empty {
        display: none;
    }
    AttendScreen OptionList, AttendScreen OptionList:focus {
        height: auto;
        margin-top: 1;
        padding: 0;
        border: none;
        background: $surface;
    }
    AttendScreen OptionList > .option-list--option-highlighted {
        background: $primary;
        color: $background;
        text-style: bold;
    }
    AttendScreen.-tiny #dialog {
        padding: 0 1;
    }
    AttendScreen.-low #evidence, AttendScreen.-tiny #evidence {
        display: none;
    }
    AttendScreen.-low #title, AttendScreen.-tiny #title {
        max-height: 1;
    }
    AttendScreen.-low OptionList, AttendScreen.-tiny OptionList {
        margin-top: 0;
    }
    AttendScreen.-tiny #dialog {
        border: none;
        height: 100%;
    }
    AttendScreen.-tiny OptionList {
        height: 1fr;
    }
    """

    AUTO_FOCUS = "OptionList"
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (11, "-low"), (16, "-high")]  # noqa: RUF012 - Textual declares it so

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "back", id="attend.close", tooltip="Close the dialog; nothing changes"),
        Binding("right,l,tab,a", "turn(1)", "next", show=False, id="attend.next", tooltip="The next alert"),
        Binding("left,h,shift+tab", "turn(-1)", "before", show=False, id="attend.before", tooltip="The alert before"),
        Binding("j", "move(1)", "down", show=False, id="attend.down", tooltip="The next choice"),
        Binding("k", "move(-1)", "up", show=False, id="attend.up", tooltip="The choice before"),
    ]

    def __init__(
        self,
        alerts: Sequence[Alert],
        watch: AlertControl,
        glyphs: Glyphs = UNICODE,
        wall: Callable[[], float] = time.time,
        *,
        mutes: Sequence[Mute] = (),
    ) -> None:
        """`alerts` are those to choose from, `mutes` come after them; the first of at least one is asked about."""
        super().__init__(classes="-ascii" if glyphs.ascii else None)
        self._pages: list[Alert | Mute] = [*alerts, *mutes]
        self._watch = watch
        self._glyphs = glyphs
        self._wall = wall
        self._place = 0
        self._frame: Frame | None = None
        self._held: set[str] = set()
        """Ids of the alerts that a frame has had."""
        self._over: set[str] = set()
        """Ids of those that have ended since."""

    def compose(self) -> ComposeResult:
        """Build the alert's words and the choices."""
        with Vertical(id="dialog"):
            yield Static(id="title", markup=False)
            yield Static(id="evidence", markup=False)
            yield OptionList(markup=False)

    def on_mount(self) -> None:
        """Show the first alert."""
        self._show()

    def on_resize(self, _event: events.Resize) -> None:
        """Cut the choices anew; the mark stays where it is."""
        self._tell()

    def refresh_frame(self, frame: Frame) -> None:
        """Take the alerts as a new frame has them; what has ended is only told."""
        self._frame = frame
        now = {alert.id: alert for alert in (*frame.alerts, *frame.cleared) if alert.id}
        for place, page in enumerate(self._pages):
            if isinstance(page, Mute) or page.ended is not None:
                continue
            if page.id in now:
                page = now[page.id]
            elif page.id in self._held:  # it ended in a frame that was passed over
                page = msgspec.structs.replace(page, ended=frame.snapshot.taken)
            else:  # another gpuwatch raised it
                continue
            self._pages[place] = page
            (self._held if page.ended is None else self._over).add(page.id)
        if self.query(OptionList):
            self._tell()

    @property
    def asked(self) -> Alert | Mute:
        """The alert, or the mute, that is asked about."""
        return self._pages[self._place]

    def _show(self) -> None:
        """Ask about another page: the first choice that can be made is marked."""
        options, choices = self.query_one(OptionList), self._choices_of(self.asked)
        options.clear_options()
        options.add_options([Option("", id=choice.id) for choice in choices])
        options.highlighted = next(place for place, choice in enumerate(choices) if choice.do is not None)
        self._tell()

    def _tell(self) -> None:
        """Show the page. No choice moves: one that cannot be made is dimmed, and its mark goes to Cancel."""
        asked = self.asked
        spell = plain if self._glyphs.ascii else str
        dialog = self.query_one("#dialog", Vertical)
        dialog.border_title = Content(asked.rule)
        several = f"{self._place + 1} of {len(self._pages)}, left and right for the others"
        dialog.border_subtitle = Content(several if len(self._pages) > 1 else "")
        title, words = _mute_words(asked) if isinstance(asked, Mute) else self._alert_words(asked)
        self.query_one("#title", Static).update(Content(spell(title)))
        evidence = self.query_one("#evidence", Static)
        evidence.update(Content(spell(words)))
        evidence.set_class(not words, "-empty")
        options = self.query_one(OptionList)
        room = min(76, self.app.size.width) - 8  # an option that wraps takes two lines of few
        cut = "~" if self._glyphs.ascii else "…"
        marked = options.highlighted  # Textual moves it on from where an option is turned on or off
        for place, choice in enumerate(self._choices_of(asked)):
            turn = options.disable_option_at_index if choice.do is None else options.enable_option_at_index
            if options.options[place].disabled is not (choice.do is None):
                turn(place)
            words = f" {choice.words}" if choice.do is not None else f"({choice.words})"  # dimming needs colours
            line = fit(spell(words), room, ellipsis=cut).rstrip()
            options.replace_option_prompt_at_index(place, Content(line))
        gone = marked is not None and options.options[marked].disabled
        options.highlighted = len(options.options) - 1 if gone else marked

    def _alert_words(self, alert: Alert) -> tuple[str, str]:
        mark, _ = mark_of(alert.severity, self._glyphs)
        states = [("ended", alert.ended is not None), ("muted", alert.muted), ("acknowledged", alert.acknowledged)]
        state = ", ".join(word for word, holds in states if holds)
        return f"{mark} {state}{': ' * bool(state)}{alert.title}", alert.evidence

    def _choices_of(self, asked: Alert | Mute) -> list[_Choice]:
        """Return every choice, each in one place whatever is asked about."""
        unseen = self._unseen()
        words = {
            "unmute": "Unmute",
            "acknowledge": "Acknowledge (quiet until worse)",
            "take back": "Take the acknowledgement back",
            "hour": "Mute for an hour",
            "rule": f"Mute this rule until unmuted: “{asked.rule}”",
            "all": f"Acknowledge all {len(unseen)}" if len(unseen) > 1 else "Acknowledge all",
            "show": f"Show {subject_words(self._subject(asked)) or 'its process or GPU'}",
            "cancel": "Cancel",
        }
        possible = self._possible(asked)
        return [_Choice(id, text, *possible.get(id, (None, ""))) for id, text in words.items()]

    def _possible(self, asked: Alert | Mute) -> dict[str, tuple[Callable[[], object], str]]:
        """Return what can be done now, by choice, with the text of the toast."""
        watch = self._watch
        found: dict[str, tuple[Callable[[], object], str]] = {"cancel": (lambda: None, "")}
        if isinstance(asked, Mute):
            return {**found, "unmute": (lambda: watch.unmute(asked.rule, asked.key), "unmuted")}
        if asked.id in self._over:
            return found
        if asked.muted:
            found["unmute"] = (lambda: self._unmute(asked), "unmuted")
        else:
            hour = Mute(rule=asked.rule, key=asked.key, until=self._wall() + HOUR)
            found["hour"] = (lambda: watch.mute(hour), "muted for an hour")
            found["rule"] = (lambda: watch.mute(Mute(rule=asked.rule)), f"the rule “{asked.rule}” is muted")
        if asked.ended is None and asked.acknowledged:
            found["take back"] = (lambda: watch.unacknowledge(asked), "no longer acknowledged")
        elif asked.ended is None:
            found["acknowledge"] = (lambda: watch.acknowledge(asked), "acknowledged")
        if self._subject(asked) is not None:
            found["show"] = (lambda: self.app.show_subject(asked), "")
        unseen = self._unseen()
        if len(unseen) > 1:
            found["all"] = (lambda: self._acknowledge(unseen), f"{len(unseen)} acknowledged")
        return found

    def _subject(self, asked: Alert | Mute) -> Row | Gpu | None:
        return subject_of(asked, self._frame) if isinstance(asked, Alert) else None

    def _unseen(self) -> list[Alert]:
        return [one for one in self._pages if isinstance(one, Alert) and one.ended is None and not one.quiet]

    def _acknowledge(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            self._watch.acknowledge(alert)

    def _unmute(self, alert: Alert) -> None:
        self._watch.unmute(alert.rule, alert.key)
        self._watch.unmute(alert.rule)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Do what was chosen."""
        event.stop()
        choice = next((one for one in self._choices_of(self.asked) if one.id == event.option_id), None)
        if choice is None or choice.do is None or not self.is_active:
            return  # a frame came in between; or it is the second of two quick presses
        self.dismiss(None)
        choice.do()
        if choice.said:
            words = plain(choice.said) if self._glyphs.ascii else choice.said
            self.app.notify(words, markup=False, timeout=3)

    def action_close(self) -> None:
        """Leave all as it is."""
        self.dismiss(None)

    def action_turn(self, by: int) -> None:
        """Ask about another alert."""
        self._place = (self._place + by) % len(self._pages)
        self._show()

    def action_move(self, by: int) -> None:
        """Mark another choice."""
        options: Any = self.query_one(OptionList)
        options.action_cursor_down() if by > 0 else options.action_cursor_up()


def _mute_words(mute: Mute) -> tuple[str, str]:
    """Return what is muted though nothing of it holds now, and for how long."""
    until = "until you say otherwise"
    if mute.until is not None:
        until = time.strftime("until %H:%M:%S", time.localtime(mute.until))
    if not mute.key:
        return f"the rule “{mute.rule}” is muted {until}", "nothing of it holds now"
    return f"an alert of “{mute.rule}” is muted {until}", f"it does not hold now: {mute.key.rpartition('|')[2]}"
