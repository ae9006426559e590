"""Dialog about alerts: acknowledge one or undo that, mute it or its rule, unmute it, show its process or GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, NamedTuple, TypeVar

import msgspec
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content

from gpuwatch.alerts.alert import HOUR, TROUBLE, Alert, Mute
from gpuwatch.base.text import fit
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.alerts import silent_mutes
from gpuwatch.ui.draw.theme import UNICODE, Glyphs
from gpuwatch.ui.draw.view import mark_of, subject_of, subject_words
from gpuwatch.ui.screens.dialog import OptionDialog

T = TypeVar("T")


def alerts_and_mutes(
    frame: Frame | None, chosen: Alert | None, wall: float | None = None
) -> tuple[list[Alert], list[Mute]]:
    """Return the chosen alert, or all active ones, and the mutes that apply to none of them.

    gpuwatch's own problems are left out: a user who muted them would not see that the log cannot be written.
    """
    if chosen is not None:
        # It may come from the log, and what is muted may be another thing now than it was then.
        now = time.time() if wall is None else wall
        alerts, mutes = [frame.attention.mark(chosen, now) if frame else chosen], []
    else:
        alerts = sorted(frame.alerts if frame else (), key=lambda alert: alert.quiet)
        mutes = silent_mutes(frame) if frame else []
    return [alert for alert in alerts if alert.rule != TROUBLE], mutes


class Choice(NamedTuple):
    """One line of the dialog."""

    label: str
    action: Callable[[], object] | None
    """None where it cannot be done now: the choice is dimmed and keeps its place."""
    toast: str = ""


def _choice(label: str, about: T | None, call: Callable[[T], object], toast: str = "") -> Choice:
    """Return the choice that calls `call` with `about`; None for a choice that cannot be made now."""
    return Choice(label, None if about is None else partial(call, about), toast)


class AcknowledgeDialog(OptionDialog):
    """Dialog that shows one of several alerts or mutes at a time; the left and right keys show the others."""

    DEFAULT_CSS = """
    AcknowledgeDialog #title {
        height: auto;
        max-height: 3;
        text-style: bold;
    }
    AcknowledgeDialog #evidence {
        height: auto;
        max-height: 4;
        color: $text-muted;
    }
    AcknowledgeDialog OptionList {
        margin-top: 1;
    }
    AcknowledgeDialog.-low #evidence, AcknowledgeDialog.-tiny #evidence {
        display: none;
    }
    AcknowledgeDialog.-low #title, AcknowledgeDialog.-tiny #title {
        max-height: 1;
    }
    AcknowledgeDialog.-low OptionList, AcknowledgeDialog.-tiny OptionList {
        margin-top: 0;
    }
    AcknowledgeDialog.-tiny #dialog {
        padding: 0 1;
        border: none;
        height: 100%;
    }
    AcknowledgeDialog.-tiny OptionList {
        height: 1fr;
    }
    """

    ABOVE = ("title", "evidence")
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (11, "-low"), (16, "-high")]  # noqa: RUF012 - Textual declares it so

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,l,tab,a", "turn(1)", "next", show=False, id="acknowledge.next", tooltip="Next alert"),
        Binding(
            "left,h,shift+tab", "turn(-1)", "before", show=False, id="acknowledge.before", tooltip="Previous alert"
        ),
    ]

    def __init__(
        self,
        alerts: Sequence[Alert],
        watch: Monitor,
        glyphs: Glyphs = UNICODE,
        wall: Callable[[], float] = time.time,
        *,
        mutes: Sequence[Mute] = (),
    ) -> None:
        """Show the first of `alerts`, and then of `mutes`; there is at least one."""
        super().__init__(glyphs=glyphs)
        self._pages: list[Alert | Mute] = [*alerts, *mutes]
        self._watch = watch
        self._wall = wall
        self._place = 0
        self._order: list[str] = []
        """Names of the choices, from top to bottom; while a page is open none moves."""
        self._frame: Frame | None = None
        self._held: set[str] = set()
        """Ids of the alerts that were in a frame."""
        self._over: set[str] = set()
        """Ids of the alerts that have ended since."""

    def on_mount(self) -> None:
        self._open_page()

    def on_resize(self, _event: events.Resize) -> None:
        """Cut the choices to the new width; the mark stays where it is."""
        self._draw()

    def refresh_frame(self, frame: Frame) -> None:
        """Update the alerts by a new frame; one that has ended stays, and can only be read."""
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
        if self.is_mounted:
            self._draw()

    @property
    def page(self) -> Alert | Mute:
        """The alert, or the mute, that is shown."""
        return self._pages[self._place]

    def _open_page(self) -> None:
        """Show another page: possible choices come first, and the first one is selected."""
        choices = self._choices()
        self._order = sorted(choices, key=lambda name: (name == "cancel", choices[name].action is None))
        self._draw(0)

    def _draw(self, marked: int | None = None) -> None:
        """Draw the page. No choice moves: one that cannot be made is dimmed, and its mark goes to Cancel."""
        page = self.page
        box = self.query_one("#dialog")
        box.border_title = Content(page.rule)
        several = f"{self._place + 1} of {len(self._pages)}; press left or right for others"
        box.border_subtitle = Content(several if len(self._pages) > 1 else "")
        if isinstance(page, Mute):
            title, evidence = _mute_words(page)
        else:
            mark, _ = mark_of(page.severity, self.glyphs)
            mutes = self._frame.attention.mutes if self._frame is not None and page.muted else ()
            meant = [one for one in mutes if one.rule == page.rule and one.key in ("", page.key)]
            muted = min(meant, key=lambda one: one.key, default=None)  # that of its rule first
            states = [
                ("ended", page.ended is not None),
                (f"{'its rule is ' * (not muted.key)}muted {_until(muted)}" if muted else "muted", page.muted),
                ("acknowledged", page.acknowledged),
            ]
            state = ", ".join(word for word, holds in states if holds)
            title, evidence = f"{mark} {state}{': ' * bool(state)}{page.title}", page.evidence
        if len(self._pages) > 1 and self.has_class("-tiny"):  # without a frame, and what is written on it
            title = f"{self._place + 1} of {len(self._pages)}  {title}"
        self.show_text("title", title)
        self.show_text("evidence", evidence)
        room = min(76, self.app.size.width) - 8  # an option that wraps takes two lines of few
        lines, disabled, choices = {}, set(), self._choices()
        for name in self._order:
            line = f" {choices[name].label}"
            if choices[name].action is None:
                line = f"({choices[name].label})"  # dimming needs colours
                disabled.add(name)
            lines[name] = fit(self.spell(line), room, ellipsis=self.glyphs.ellipsis).rstrip()
        place = self.options.highlighted if marked is None else marked
        is_lost = place is not None and self._order[place] in disabled
        self.show_options(lines, len(lines) - 1 if is_lost else place, disabled)

    def _choices(self) -> dict[str, Choice]:
        """Return every choice by its name."""
        page, watch = self.page, self._watch
        alert = page if isinstance(page, Alert) and page.id not in self._over else None
        muted = page if isinstance(page, Mute) or (alert is not None and alert.muted) else None
        may_mute = alert is not None and muted is None
        holding = alert if alert is not None and alert.ended is None else None
        acknowledged = holding is not None and holding.acknowledged
        subject = subject_of(alert, self._frame) if alert is not None else None
        unseen = [one for one in self._pages if isinstance(one, Alert) and one.ended is None and not one.quiet]
        hour, rule = Mute(rule=page.rule, key=page.key, until=self._wall() + HOUR), Mute(rule=page.rule)
        until, day = _next_morning(self._wall())
        morning = Mute(rule=page.rule, key=page.key, until=until)
        return {
            "unmute": Choice("Unmute", partial(self._unmute, muted) if muted is not None else None, "unmuted"),
            "acknowledge": _choice(
                "Acknowledge: quiet until it gets worse",
                None if acknowledged else holding,
                watch.acknowledge,
                "acknowledged",
            ),
            "undo": _choice(
                "Undo the acknowledgement",
                holding if acknowledged else None,
                watch.unacknowledge,
                "no longer acknowledged",
            ),
            "hour": _choice("Mute for an hour", hour if may_mute else None, watch.mute, "muted for an hour"),
            "morning": _choice(
                f"Mute until {day}8:00", morning if may_mute else None, watch.mute, f"muted until {day}8:00"
            ),
            "rule": _choice(
                f"Mute the rule “{page.rule}” until I unmute it",
                rule if may_mute else None,
                watch.mute,
                f"the rule “{page.rule}” is muted",
            ),
            "all": _choice(
                f"Acknowledge all {len(unseen)}" if len(unseen) > 1 else "Acknowledge all",
                unseen if alert is not None and len(unseen) > 1 else None,
                self._acknowledge,
                f"{len(unseen)} acknowledged",
            ),
            "show": _choice(
                f"Show {subject_words(subject) or 'its process or GPU'}",
                alert if subject is not None else None,
                actions_of(self).show_subject,
            ),
            "cancel": Choice("Cancel", lambda: None),
        }

    def _acknowledge(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            self._watch.acknowledge(alert)

    def _unmute(self, page: Alert | Mute) -> None:
        self._watch.unmute(page.rule, page.key)
        if isinstance(page, Alert):
            self._watch.unmute(page.rule)

    def pick(self, option: str) -> None:
        choice = self._choices().get(option)
        if choice is None or choice.action is None or not self.is_active:
            return  # a frame came in between; or it is the second of two quick presses
        self.dismiss(None)
        choice.action()
        if choice.toast:
            self.app.notify(self.spell(choice.toast), markup=False, timeout=3)

    def action_turn(self, by: int) -> None:
        self._place = (self._place + by) % len(self._pages)
        self._open_page()


def _next_morning(now: float) -> tuple[float, str]:
    """Return the next 8:00 of the local clock, and its day in words: empty for today."""
    year, month, day, *_ = time.localtime(now)
    today, tomorrow = (time.mktime((year, month, day + add, 8, 0, 0, 0, 0, -1)) for add in (0, 1))
    return (today, "") if now < today else (tomorrow, "tomorrow ")


def _until(mute: Mute) -> str:
    if mute.until is None:
        return "until you unmute it"
    return time.strftime("until %a %H:%M", time.localtime(mute.until))


def _mute_words(mute: Mute) -> tuple[str, str]:
    """Describe a mute without an active alert: its rule or alert, and its end."""
    if not mute.key:
        return f"the rule “{mute.rule}” is muted {_until(mute)}", "no alert of it now"
    return f"an alert of “{mute.rule}” is muted {_until(mute)}", f"not raised now: {mute.key.rpartition('|')[2]}"
