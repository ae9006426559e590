"""Application of the fleet: shows the published fleets in one of several views. It ends no process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from textual.binding import Binding, BindingType
from textual.message import Message

from gpuwatch.base.errors import NoThreadError
from gpuwatch.fleet.overview import Fleet
from gpuwatch.fleet.reader import FleetReader
from gpuwatch.fleet.ui.fleet_host_screen import FleetHostScreen
from gpuwatch.fleet.ui.fleet_screens import VIEWS, FleetScreen, MapScreen
from gpuwatch.ui.draw.keys import THEMES, BoundKey, PaletteCommand, key_names
from gpuwatch.ui.draw.sheet import Canvas, Fact, Section, SheetPage
from gpuwatch.ui.options import Options
from gpuwatch.ui.screens.sheet import Sheet
from gpuwatch.ui.terminal_app import TerminalApp
from gpuwatch.version import __version__

V = TypeVar("V", bound=FleetScreen[Any])


class NewFleet(Message):
    """Message: the reader has published."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        super().__init__()

    def can_replace(self, message: Message) -> bool:
        """Return whether a newer fleet may replace this one, which waits."""
        return isinstance(message, NewFleet)


class FleetApp(TerminalApp):
    """Textual application of a fleet. Fleets are `NewFleet` messages, from the reader or from a test."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "quit", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", "suspend", show=False),
    ]

    def __init__(
        self,
        *,
        options: Options | None = None,
        reader: FleetReader | None = None,
        interval: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        save: Callable[[Mapping[str, object]], None] | None = None,
    ) -> None:
        """`interval` are the seconds between two readings; `save` remembers a chosen theme.

        Without a `reader` only published fleets are shown.
        """
        super().__init__(options)
        self.save = save
        self.reader, self.clock, self.interval = reader, clock, interval
        self.fleet = reader.newest if reader is not None else Fleet()
        self.keys: Sequence[BoundKey] = ()
        self._map = self._make(MapScreen, self.options.filter)

    def get_default_screen(self) -> MapScreen:
        return self._map

    def publish(self, fleet: Fleet) -> None:
        """Post a fleet to the app; from any thread."""
        with contextlib.suppress(RuntimeError):  # the program is on its way out
            self.post_message(NewFleet(fleet))

    def on_mount(self) -> None:
        self.begin_drawing()
        if self.reader is not None:
            self.on_new_fleet(NewFleet(self.reader.newest))

    def on_new_fleet(self, message: NewFleet) -> None:
        """Receive a fleet: the only entry point for data."""
        self.fleet = message.fleet
        for screen in self.screen_stack:
            if isinstance(screen, FleetScreen | FleetHostScreen):
                screen.refresh_fleet(self.fleet)

    def paint(self) -> None:
        """Remember the theme: the screens have drawn themselves in it."""
        if self.save is not None:
            self.remember(self.save, {"theme": self.theme.removeprefix("gpuwatch-")})

    def palette_commands(self) -> Sequence[PaletteCommand]:
        keys = [one for one in (*FleetScreen.VIEWS, *FleetScreen.REST) if one.action.startswith("app.")]
        keys.remove(FleetScreen.PALETTE)
        named = [PaletteCommand(one.tooltip, key_names(one.key), one.action) for one in keys]
        return [*named, PaletteCommand("Help", "?", "help"), *THEMES]

    # -- what screens ask for --------------------------------------------------------------------------------------

    def action_view(self, name: str, words: str = "") -> None:
        """Show a view, with a filter; the map lies below all others, and keeps its own filter."""
        kind = VIEWS[name]
        if type(self.screen) is kind and not words:
            return
        while self.screen is not self._map:
            self.pop_screen()
        if name != "map":
            self.push_screen(self._make(kind, words))

    def _make(self, kind: type[V], words: str) -> V:
        return kind(self.fleet, self.style_set, words, self.options.filters, interval=self.interval)

    def show_host(self, name: str) -> None:
        self.open_once(FleetHostScreen(name, self.fleet, self.style_set, interval=self.interval))

    def action_reload(self) -> None:
        if self.reader is not None:
            try:
                self.reader.start()
            except NoThreadError as error:
                self.notify(str(error), severity="error", markup=False)

    def action_help(self) -> None:
        self.open_once(FleetHelp(self.style_set))


class FleetHelp(Sheet):
    """Help: the keys of the views, and their marks and terms."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "close", "back", show=False, id="help.close", tooltip="Back"),
    ]

    def make_page(self, canvas: Canvas) -> SheetPage:
        glyphs = canvas.styles.glyphs
        host_keys = [one for one in FleetHostScreen.BINDINGS if isinstance(one, Binding)]
        keys = {one.id: one for one in (*MapScreen.KEYS, *FleetScreen.VIEWS, *FleetScreen.KEYS, *host_keys)}
        shown = [Fact(key_names(one.key), one.tooltip) for one in keys.values()]
        shown += [Fact("1-5", "In a host: show the last minute up to the last day")]
        marks = (
            Fact(f"42{glyphs.warning}", "a GPU: percent of its memory in use, and the mark of its worst alert"),
            Fact("free", "it answers, and nobody uses its memory"),
            Fact("down", "it does not answer; the rest of its host does"),
            Fact(glyphs.missing, "not known, never zero"),
            Fact("left", "free memory, minus what is promised"),
            Fact("45 s old", "no newer figures; the line below the title says why"),
            Fact("age", "time since the newest sample of the host"),
        )
        return SheetPage(
            f"gpuwatch {__version__} · fleet · help",
            [Section("Keys", tuple(shown))],
            [Section("Marks and terms", marks)],
            "gpuwatch docs fleet",
        )
