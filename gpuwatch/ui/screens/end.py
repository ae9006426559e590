"""The dialog that asks before a process is ended and tells what became of it, and what goes on when it is closed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gpuwatch.analysis.rows import RowKey, rows
from gpuwatch.kill.pinned import Refusal, Refused
from gpuwatch.kill.run import Run
from gpuwatch.kill.session import LOOK_EVERY, Choice, Phase, Request, View
from gpuwatch.kill.target import not_yours, target_of, target_of_unlisted, wrong_machine
from gpuwatch.model import Snapshot
from gpuwatch.ui.background import Background
from gpuwatch.ui.screens.dialog import ChoiceButton, ChoiceRow, Dialog
from gpuwatch.ui.screens.facts import brief
from gpuwatch.ui.screens.sheet import plain
from gpuwatch.ui.theme import UNICODE, Glyphs

if TYPE_CHECKING:
    from gpuwatch.kill.interfaces import HeldProcess, ProcessEnder
    from gpuwatch.monitor import Frame

Process = tuple[int, int]
"""PID and start time."""

Meant = tuple[tuple[Choice, ...], tuple[str, ...], str, tuple[str, ...]]


def _meant(view: View) -> Meant:
    """What pressing a button would do: the choices, what each says, whom it is about, and what is warned of."""
    return view.choices, view.labels, view.scope, view.warnings


class EndScreen(Dialog[None]):
    """The dialog on one request; what it shows comes from the request, which may outlive it."""

    DEFAULT_CSS = """
    EndScreen #told {
        height: auto;
        max-height: 100%;
        scrollbar-size-vertical: 1;
    }
    EndScreen #told > Static {
        height: auto;
    }
    EndScreen #notice {
        height: 1;
        color: $text-warning;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    EndScreen #command {
        max-height: 4;
        text-style: bold;
    }
    EndScreen #facts {
        color: $text-muted;
    }
    EndScreen #notes, EndScreen #members {
        color: $text-muted;
    }
    EndScreen #scope {
        text-style: bold;
    }
    EndScreen #members {
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    EndScreen #warnings {
        color: $text-warning;
    }
    EndScreen #said {
        margin-top: 1;
    }
    EndScreen .-empty {
        display: none;
    }
    EndScreen.-low #said {
        margin-top: 0;
    }
    EndScreen.-low #command {
        max-height: 2;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back", id="end.back", tooltip="Close the dialog; no signal is sent"),
        Binding("left,h", "move(-1)", "left", show=False, id="end.left", tooltip="Mark the button to the left"),
        Binding("right,l", "move(1)", "right", show=False, id="end.right", tooltip="Mark the button to the right"),
        Binding("s", "scope", "its run", id="end.scope", tooltip="Its whole run, or this process alone"),
        Binding("up", "scroll(-1)", "up", show=False, id="end.up", tooltip="Scroll up"),
        Binding("down", "scroll(1)", "down", show=False, id="end.down", tooltip="Scroll down"),
    ]

    def __init__(self, request: Request, told: Sequence[str], glyphs: Glyphs = UNICODE) -> None:
        super().__init__(classes="-ascii" if glyphs.ascii else None)
        self._glyphs = glyphs
        self.request = request
        self.closed = False
        """Whether it was on screen and is no more."""
        self._ready = False
        self.told = told
        """The command of the process, and under it what else is to be known of it."""
        self._view: View | None = None
        self._buttons: tuple[ChoiceButton, ...] = ()
        self._offered: Meant | None = None
        """What the buttons on screen are for."""
        self._drawing = asyncio.Lock()

    def compose(self) -> ComposeResult:
        """Build the lines and the row of buttons."""
        dialog = Vertical(id="dialog")
        dialog.border_title = Content(self._title())
        with dialog:
            notice = Static(Content(self.request.notice), id="notice", classes="" if self.request.notice else "-empty")
            yield notice  # outside of what scrolls: it is in sight at each step
            with VerticalScroll(id="told", can_focus=False):
                # First what must not be overlooked: a low terminal shows only the beginning.
                yield Static(id="warnings", markup=False)
                yield Static(Content(self.told[0]), id="command")
                yield Static(Content(self._plain("\n".join(self.told[1:]))), id="facts")
                yield Static(id="notes", markup=False)
                yield Static(id="scope", markup=False)
                yield Static(id="members", markup=False)
                yield Static(id="said", markup=False)
            yield ChoiceRow(id="choices")

    async def on_mount(self) -> None:
        """Show where the request stands."""
        self._ready = True
        await self.refresh_view()

    def on_unmount(self) -> None:
        """Take note that the dialog is gone, whoever closed it."""
        self.closed = True

    async def refresh_view(self) -> None:
        """Show where the request stands, if that has changed; the timer and a key may ask for it at the same time."""
        async with self._drawing:
            await self._refresh_view()

    async def _refresh_view(self) -> None:
        view = self.request.view
        if view == self._view or not self._ready or self.closed:
            return
        before, self._view = self._view, view
        said = f"Not ended: {view.said}." if view.phase is Phase.REFUSED else view.said
        self._tell("#warnings", "\n".join(f"▲ {words}" for words in view.warnings))
        self._tell("#notes", "\n".join(view.notes))
        other = "s: this process alone" if self.request.whole_run else "s: its whole run"
        self._tell("#scope", f"{view.scope} ({other})" if view.scope else "")
        self._tell("#members", "\n".join(one.line for one in view.members))
        self._tell("#said", said)
        self.query_one("#dialog").border_title = Content(self._title())
        if self._offered != _meant(view):
            await self._offer(view)
        warned = before is not None and before.warnings != view.warnings
        if before is None or before.phase is not view.phase or warned:
            # What is new stands last, but what must not be overlooked comes first.
            told, asks = self.query_one("#told"), view.phase in (Phase.CHECKING, Phase.ASKING)
            (told.scroll_home if asks or warned else told.scroll_end)(animate=False)

    def _tell(self, selector: str, text: str) -> None:
        line = self.query_one(selector, Static)
        line.update(Content(self._plain(text)))
        line.set_class(not text, "-empty")

    def _plain(self, text: str) -> str:
        return plain(text) if self._glyphs.ascii else text

    def _title(self) -> str:
        several = self.request.whole_run and self.request.pinned_run is not None
        demo = " (demo)" * bool(self.request.notice)
        return f"End {'the run of ' if several else 'process '}{self.request.target.pid}?{demo}"

    async def _offer(self, view: View) -> None:
        row = self.query_one(ChoiceRow)
        kept = [button.choice for button in self._buttons if button.has_focus and button.choice.signal is None]
        pairs = zip(view.choices, view.labels, strict=True)
        self._buttons = tuple(ChoiceButton(choice, label, self._glyphs) for choice, label in pairs)
        self._offered = _meant(view)
        async with self.batch():
            await row.remove_children()
            await row.mount_all(self._buttons)
            row.fit()
        # The first is one that sends nothing, and what sends nothing keeps the focus; no signal ever gets it by itself.
        again = [button for button in self._buttons if button.choice in kept]
        self.set_focus((again or self._buttons)[0])

    def on_choice_button_chosen(self, message: ChoiceButton.Chosen) -> None:
        """Hand the choice to the request."""
        message.stop()
        # A key may be quicker than the screen: what a button did not say yet is not what was chosen with it. Where two
        # steps offer the same (Hide, while it is recorded and while it stops), a button holds for both.
        if message.button in self._buttons and self._offered == _meant(self.request.view):
            self._choose(message.choice)

    def _choose(self, choice: Choice) -> None:
        if self.request.choose(choice) and not self.closed:
            self.closed = True
            self.dismiss(None)

    def action_back(self) -> None:
        """Close: call it off, leave the process alone, or let what was begun go on behind the dashboard."""
        choices = self.request.view.choices
        self._choose(Choice.LEAVE if Choice.LEAVE in choices else choices[0])

    def action_scope(self) -> None:
        """Mean its whole run, or this process alone again; what is marked is then the harmless button."""
        self.request.toggle()
        self.call_later(self.refresh_view)


def finish(requests: Sequence[Request], run: Background, deadline: float) -> None:
    """Wait until abandoned requests are over and on record, until `deadline` on the monotonic clock."""
    for request in requests:
        while not request.over and time.monotonic() < deadline:
            time.sleep(0.005)  # the call under way takes milliseconds, unless a file system hangs
            request.tick()
    if requests:
        wait([run(lambda: None)], max(0.0, deadline - time.monotonic()))


@dataclass(slots=True)
class _Course:
    request: Request
    screen: EndScreen
    told: bool = False
    """The dialog has shown how it ended."""


class Endings:
    """Every request to end a process, whether its dialog is open or not; the app has one of these.

    Call `open` for a key, `observe` for each frame, and `abandon` and `close` when the program ends.
    """

    def __init__(
        self,
        app: App[Any],
        killer: ProcessEnder,
        *,
        elsewhere: Callable[[Process], bool] | None = None,
        background: Background | None = None,
        glyphs: Glyphs = UNICODE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`elsewhere` says whether a process is being ended from another screen."""
        self._app = app
        self._killer = killer
        self._elsewhere = elsewhere or (lambda process: False)
        self._run = background or Background("gpuwatch-endings")
        self._glyphs = glyphs
        self._clock = clock
        self._courses: list[_Course] = []
        self._timer = app.set_interval(LOOK_EVERY, self._tick, pause=True)

    def open(self, key: RowKey, frame: Frame, *, whole_run: bool = False) -> bool:
        """Ask about the process of a row; False where the frame has no such row, or a dialog is open already.

        `key` may also name a process that the driver does not list. With `whole_run` its run is meant from the start.
        Where a signal is under way to it already, the dialog that was hidden is shown again.
        """
        snapshot = frame.snapshot
        if any(not course.screen.closed for course in self._courses):
            return False
        hidden = self._course_of(key[1:])
        if hidden is not None:  # a second signal may break off what the first set going
            hidden.screen = EndScreen(hidden.request, hidden.screen.told, self._glyphs)
            self._app.push_screen(hidden.screen)
            return True
        held = [row for row in rows(snapshot, frame.history) if row.key[1:] == key[1:]]
        held.sort(key=lambda row: (row.key[0] != key[0], row.gpu.index))
        found = next((one for one in snapshot.unlisted if one.process.key == key[1:]), None)
        if held:
            target, told = target_of(held, snapshot, max(0.0, self._clock() - frame.received)), brief(held, snapshot)
            process = held[0].process
        elif found is not None:
            process, target = found.process, target_of_unlisted(found.process, found.gpus)
            told = [process.command or f"[{process.name}]", "not listed by the driver; it has GPU device files open"]
        else:
            self._app.notify(f"process {key[1]} is on no GPU any more", markup=False)
            return False
        request = Request(
            target,
            snapshot,
            self._killer.pin,
            run=self._run,
            problem=self._killer.problem,
            pin_run=self._pin_run,
            whole_run=whole_run,
            refuse=wrong_machine(snapshot, self._killer),
            not_yours=not_yours(process, self._killer.policy),
            notice=self._killer.notice,
            clock=self._clock,
        )
        course = _Course(request, EndScreen(request, told, self._glyphs))
        self._courses.append(course)
        self._app.push_screen(course.screen)
        self._timer.resume()
        return True

    def follows(self, process: Process) -> bool:
        """Whether a request about that process is under way."""
        return self._course_of(process) is not None

    def _course_of(self, process: Process) -> _Course | None:
        return next((course for course in self._courses if course.request.follows(process)), None)

    def _pin_run(self, pinned: HeldProcess, snapshot: Snapshot, asked: bool) -> Run | Refused:
        """Pin its run, unless some other part of it is being ended: a signal to all would be the second to that."""
        run = self._killer.pin_run(pinned, snapshot, asked=asked)
        if isinstance(run, Refused):
            return run
        others = [one.pinned.target for one in run.members if one.pinned is not pinned]
        taken = [one for one in ((each.pid, each.start_ticks) for each in others) if self._is_taken(one)]
        if not taken:
            return run
        run.close(but=pinned)
        refused = Refused(Refusal.UNDER_WAY, taken[0][0])
        if asked:
            self._killer.refuse(pinned.target, refused, run=run.key)
        return refused

    def _is_taken(self, process: Process) -> bool:
        return self.follows(process) or self._elsewhere(process)

    def observe(self, frame: Frame) -> None:
        """Take a new frame; also while the dashboard is paused, since memory is judged by it."""
        for course in self._courses:
            course.request.observe(frame.snapshot)

    def abandon(self) -> None:
        """Give up what is under way, since the program ends; what was signalled is left as it is, and recorded so."""
        self._timer.stop()
        for course in self._courses:
            course.request.abandon()

    def close(self, deadline: float) -> None:
        """Wait for what was abandoned to be on record, until `deadline` on the monotonic clock."""
        finish([course.request for course in self._courses], self._run, deadline)
        self._courses.clear()

    async def _tick(self) -> None:
        for course in list(self._courses):
            course.request.tick()
            if course.screen.closed:
                self._go_on_unseen(course)
            else:
                await course.screen.refresh_view()
                course.told = course.request.over
        if not self._courses:
            self._timer.pause()

    def _go_on_unseen(self, course: _Course) -> None:
        """Bring a request to its end whose dialog was closed: what it would ask now is told instead."""
        request = course.request
        if request.phase is Phase.STILL_THERE and not request.abandoned:
            words = f"{request.view.said}; press K on it to decide what to do"
            request.choose(Choice.LEAVE)
            self._toast(request, words, "warning")
        elif request.over:
            if request.signalled and request.said != "left running" and not course.told:
                self._toast(request, request.said, "information")
            self._courses.remove(course)

    def _toast(self, request: Request, words: str, severity: Any) -> None:
        # markup=False: the words may name a parent process, whose name is another's to choose.
        title = f"process {request.target.pid}{' (demo)' * bool(request.notice)}"
        self._app.notify(words, title=title, severity=severity, markup=False, timeout=10)
