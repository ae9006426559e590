"""Base of all applications: themes, command palette, glyphs, signals and background workers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from textual import events
from textual.app import App
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.filter import Monochrome
from textual.screen import Screen
from textual.theme import Theme

from gpuwatch.base import files
from gpuwatch.base.errors import NoThreadError
from gpuwatch.base.text import clean
from gpuwatch.base.threads import Worker
from gpuwatch.ui.draw.keys import THEMES, PaletteCommand
from gpuwatch.ui.draw.layout import MIN_WIDTH
from gpuwatch.ui.draw.sgr import TRUECOLOR, colors_of
from gpuwatch.ui.draw.theme import PALETTES, StyleSet, make_styles, theme_id
from gpuwatch.ui.driver import AsciiOnly, NoColors, TolerantDriver
from gpuwatch.ui.options import Options
from gpuwatch.ui.terminal import ExitWatchdog, is_utf8_terminal

if TYPE_CHECKING:
    from textual.driver import Driver

    from gpuwatch.ui.first_frame import FirstFrame

SETTLED: Final = 5.0
"""Seconds after which all lasting objects exist. Garbage is collected only from then on, and these but once: each
collection of them would delay keys."""


def _enable_collector() -> None:
    """Turn Python's garbage collector on; what is left of a collection now, which takes 30 ms, is never examined."""
    gc.collect()
    gc.freeze()
    gc.enable()


def themes() -> tuple[Theme, ...]:
    """Return the Textual themes that dialogs, toasts and the palette are drawn with."""
    return tuple(
        Theme(
            name=name,
            primary=palette.note,
            secondary=palette.muted,
            warning=palette.warning,
            error=palette.critical,
            success=palette.note,
            accent=palette.note,
            foreground=palette.text,
            background=palette.base,
            surface=palette.band,
            panel=palette.band,
            dark=palette.dark,
        )
        for name, palette in PALETTES.items()
    )


class GpuwatchCommands(Provider):
    """Provider of the palette's commands; each runs the same action as its key."""

    async def discover(self) -> Hits:
        """Yield all commands while nothing is typed."""
        for one in cast("TerminalApp", self.app).palette_commands():
            yield DiscoveryHit(one.name, partial(self.app.run_action, one.action), help=one.help or None)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for one in cast("TerminalApp", self.app).palette_commands():
            score = matcher.match(one.name)
            if score > 0:
                run = partial(self.app.run_action, one.action)
                yield Hit(score, matcher.highlight(one.name), run, help=one.help or None)


class TerminalApp(App[int]):
    """Textual application that draws in gpuwatch's styles, and ends in time even if its terminal hangs."""

    TITLE = "gpuwatch"
    CSS_PATH = Path(__file__).with_name("gpuwatch.tcss")
    NOTIFICATION_TIMEOUT = 6
    COMMANDS: ClassVar[set[Any]] = {GpuwatchCommands}

    def __init__(self, options: Options | None = None, first: FirstFrame | None = None) -> None:
        """`first` may be on the terminal already."""
        super().__init__(driver_class=cast("type[Driver]", partial(TolerantDriver, first=first)))
        self.options = options or Options()
        self.first = first
        self._backgrounds: dict[str, Worker] = {}
        self._watchdog: ExitWatchdog | None = None
        if self.no_color:
            self._filters = [NoColors() if isinstance(one, Monochrome) else one for one in self._filters]
        for theme in themes():
            self.register_theme(theme)
        self.theme = theme_id(self.options.theme)
        self.style_set = self._make_styles(first.styles if first is not None else None)

    def _make_styles(self, before: StyleSet | None = None) -> StyleSet:
        """Return the styles of the theme; people keep their colours and initials of the styles `before`."""
        ascii_only = self.options.ascii or (self._watchdog is not None and not is_utf8_terminal())
        # A test or a screenshot has no terminal that lacks colours.
        colors = 0 if self.no_color else colors_of(os.environ) if self.has_terminal else TRUECOLOR
        return make_styles(self.theme, ascii_only=ascii_only, colors=colors, before=before)

    # -- what an application has of its own ------------------------------------------------------------------------

    @property
    def refused(self) -> frozenset[str]:
        """Actions that would be refused on any screen: no footer shows them."""
        return frozenset()

    def paint(self) -> None:
        """Draw the screens in new styles."""

    def palette_commands(self) -> Sequence[PaletteCommand]:
        return THEMES

    def before_exit(self) -> None:
        """Finish unfinished work, within a moment."""

    def action_reload(self) -> None:
        """Reload the configuration after a SIGHUP."""

    # -- life ------------------------------------------------------------------------------------------------------

    def run_to_exit_code(self) -> int:
        """Run until the user quits; return the exit code. Raises NoThreadError where a terminal thread cannot start."""
        self._watchdog = self.first.watchdog if self.first is not None else ExitWatchdog(sys.stdin.fileno())
        self._watchdog.begin()
        try:
            self.run()
        except SystemExit as end:
            if isinstance(end.__cause__, NoThreadError):
                raise end.__cause__ from None
            raise
        finally:
            self._watchdog.close()
        return self.return_code or 0

    def exit(self, result: int | None = None, return_code: int = 0, message: Any = None) -> None:
        """Quit the program; the watchdog ends the process where this takes too long."""
        if self._watchdog is not None:
            self._watchdog.arm(return_code)
        self.before_exit()
        super().exit(result, return_code, message)

    def _handle_exception(self, error: Exception) -> None:
        """End the program with a traceback; where it is ending already, ignore the error.

        Once `exit` was called Textual 8.2 adds no widgets to a screen that is being opened, but still mounts the screen
        (`Widget.mount_all`): its handlers then find nothing, which is no fault.
        """
        if not self._exit:
            super()._handle_exception(error)

    @property
    def has_terminal(self) -> bool:
        """Whether it runs in a terminal of its own; a test or a screenshot does not."""
        return self._watchdog is not None

    def begin_drawing(self) -> None:
        """Learn what the terminal can show; called once, when the application is mounted."""
        self.theme_changed_signal.subscribe(self, lambda _theme: self._on_theme())
        if self._watchdog is not None:
            self.style_set = self._make_styles(self.style_set)
            self._watchdog.start(
                asyncio.get_running_loop(), lambda code: self.exit(return_code=code), self.action_reload
            )
            self.set_timer(SETTLED, _enable_collector, name="settled")
        if self.style_set.glyphs.ascii:
            self._filters.append(AsciiOnly())

    async def on_event(self, event: events.Event) -> None:
        """Remove control characters from pasted text before it is drawn."""
        if isinstance(event, events.Paste):
            event.text = clean(next(iter(event.text.splitlines()), ""))
        await super().on_event(event)

    def on_resize(self, event: events.Resize) -> None:
        """Redraw everything even at the same size: the terminal was smaller for a moment and has lost its content."""
        if event.size == self.size:
            self.screen.refresh()

    def _on_theme(self) -> None:
        self.style_set = self._make_styles(self.style_set)
        for screen in self.screen_stack:
            if hasattr(screen, "restyle"):
                screen.restyle(self.style_set)
        self.paint()

    # -- what screens ask for --------------------------------------------------------------------------------------

    def notify(self, message: str, *, title: str = "", timeout: float | None = None, **options: Any) -> None:
        """Show words on the line of keys; long words follow in parts."""
        seconds = self.NOTIFICATION_TIMEOUT if timeout is None else timeout
        room = max(self.size.width, MIN_WIDTH) - 4  # its edge, two blanks, and the mark of what follows
        parts = wrap(f"{title}: {message}" if title else message, room)
        for number in range(len(parts), 0, -1):  # the newest is on top, and disappears first
            words = parts[number - 1] + self.style_set.glyphs.ellipsis * (number < len(parts))
            super().notify(words, timeout=number * seconds, **options)

    def background(self, name: str) -> Worker:
        """Return the background worker with this name, for slow calls."""
        return self._backgrounds.setdefault(name, Worker(name))

    def write_to_terminal(self, words: str) -> None:
        """Write a control sequence to the terminal, past the screen's content."""
        if self._driver is not None and not self.is_headless:
            self._driver.write(words)

    def open_once(self, screen: Screen[Any]) -> None:
        """Open a screen, unless a screen of its class is open already (a double click would open two)."""
        if not any(type(one) is type(screen) for one in self.screen_stack):
            self.push_screen(screen)

    def remember(self, save: Callable[[Mapping[str, object]], None], changed: Mapping[str, object]) -> None:
        """Save choices of the user on a background thread; tell the user where that fails."""

        def call() -> None:
            try:
                save(changed)
            except OSError as error:
                words = f"your choice could not be saved: {files.words(error, None)}"
                with contextlib.suppress(RuntimeError):  # the program is on its way out
                    self.call_from_thread(self.notify, words, severity="warning", markup=False, timeout=8)

        self.background("gpuwatch-choices")(call)

    def action_theme(self, name: str) -> None:
        self.theme = theme_id(name)
