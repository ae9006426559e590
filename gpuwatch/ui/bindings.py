"""Key bindings and the command palette: footer, help, palette and mouse read them from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, NamedTuple

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider

from gpuwatch.analysis.rows import SORTS
from gpuwatch.ui.screens.help import key_names
from gpuwatch.ui.widgets.processes import ASCENDING

KEYS: list[Binding] = [
    Binding(
        "enter",
        "detail",
        "detail",
        id="detail",
        key_display="Enter",
        tooltip="All that is known of this process or GPU",
    ),
    # Priority, since Textual's screens move their focus by these keys.
    Binding(
        "tab,shift+tab",
        "switch",
        "GPUs",
        id="switch",
        key_display="Tab",
        tooltip="Move the cursor to the GPUs, or back to the processes",
        priority=True,
    ),
    Binding("f", "follow", "follow", id="follow", tooltip="Show only the processes of the chosen GPU, or of all GPUs"),
    # Priority, so that what is typed in the same moment (a slow line delivers it at once) already goes to the prompt.
    Binding(
        "slash",
        "filter",
        "filter",
        id="filter",
        key_display="/",
        tooltip="Show only processes that match",
        priority=True,
    ),
    Binding("less_than_sign", "sort(-1)", "sort", id="sort.left", key_display="<", tooltip="Sort by the column before"),
    Binding(
        "greater_than_sign", "sort(1)", "sort", id="sort.right", key_display=">", tooltip="Sort by the next column"
    ),
    Binding("m", "mine", "mine", id="mine", tooltip="Show only your own processes, or everybody's"),
    Binding("u", "people", "people", id="people", tooltip="One row for each person: memory, GPUs, use"),
    Binding("t", "tree", "tree", id="tree", tooltip="Runs, their ranks and their workers, with sums"),
    Binding("S", "strays", "strays", id="strays", tooltip="Your own processes that nobody attends to; end them here"),
    Binding("e", "events", "events", id="events", tooltip="What was raised, and how it ended"),
    Binding("a", "acknowledge", "ack", id="acknowledge", tooltip="Acknowledge, mute or unmute an alert"),
    Binding("K,f9", "end_process", "end", id="end", key_display="K", tooltip="End this process, if it is yours"),
    Binding("p", "pause", "pause", id="pause", tooltip="Freeze the screen; gpuwatch goes on watching"),
    Binding(
        "question_mark,h,f1", "help", "help", id="help", key_display="?", tooltip="Keys, marks and words explained"
    ),
    Binding("q", "quit", "quit", id="quit", tooltip="Quit; no other process ends"),
    Binding("n", "find(1)", "next match", id="find.next", show=False, tooltip="The next match of the last filter"),
    Binding("N", "find(-1)", "match before", id="find.before", show=False, tooltip="The match before"),
    Binding("y", "message", "message", id="message", show=False, tooltip="Copy a message to the owner"),
    Binding("up,k", "move(-1)", "up", id="up", show=False, tooltip="The process or GPU above"),
    Binding("down,j", "move(1)", "down", id="down", show=False, tooltip="The process or GPU below"),
    Binding("left", "across(-1)", "left", id="left", show=False, tooltip="The GPU to the left in a heat map"),
    Binding("right", "across(1)", "right", id="right", show=False, tooltip="The GPU to the right in a heat map"),
    Binding("pageup", "page(-1)", "page up", id="pageup", show=False, tooltip="A screenful up"),
    Binding("pagedown", "page(1)", "page down", id="pagedown", show=False, tooltip="A screenful down"),
    Binding("home,g", "move(-1000000)", "first", id="first", show=False, tooltip="The first process or GPU"),
    Binding("end,G", "move(1000000)", "last", id="last", show=False, tooltip="The last process or GPU"),
    Binding("r", "reverse", "reverse", id="reverse", show=False, tooltip="Reverse the order"),
    Binding("plus,equals_sign", "interval(1)", "slower", id="slower", show=False, tooltip="Sample less often"),
    Binding("minus", "interval(-1)", "faster", id="faster", show=False, tooltip="Sample more often"),
    Binding("R", "retry", "retry", id="retry", show=False, tooltip="Sample now, and try failed GPUs again"),
    Binding("L", "reload", "reload", id="reload", show=False, tooltip="Read the configuration again"),
    Binding(
        "escape",
        "clear",
        "clear",
        id="clear",
        show=False,
        tooltip="Clear the filter, and show the processes of all GPUs",
    ),
    Binding("colon,ctrl+p", "command_palette", "commands", id="palette", show=False, tooltip="All commands, by name"),
    Binding(
        "ctrl+z", "suspend_process", "suspend", id="suspend", show=False, tooltip="Back to the shell; `fg` goes on"
    ),
    Binding("ctrl+c,ctrl+q", "quit", "quit", id="quit.now", show=False, priority=True, tooltip="Quit, from any screen"),
]


_LIVE = frozenset({"end", "acknowledge", "message", "pause", "slower", "faster", "retry", "reload"})
"""Ids of keys that only the present has."""

REPLAY_KEYS: list[Binding] = [
    # On the GPUs of a heat map these keys move the cursor; everywhere else they move through the recording.
    *(one for one in KEYS if one.id in ("left", "right")),
    Binding("space,p", "play", "play", id="replay.play", key_display="Space", tooltip="Play, or pause"),
    Binding("left", "seek(-10)", "10 s", id="replay.back", key_display="←", tooltip="10 s back"),
    Binding("right", "seek(10)", "10 s", id="replay.forward", key_display="→", tooltip="10 s forward"),
    Binding(
        "left_square_bracket", "seek(-60)", "1 min", id="replay.minute.back", key_display="[", tooltip="A minute back"
    ),
    Binding(
        "right_square_bracket",
        "seek(60)",
        "1 min",
        id="replay.minute.forward",
        key_display="]",
        tooltip="A minute forward",
    ),
    Binding(
        "left_curly_bracket",
        "event(-1)",
        "event",
        id="replay.event.last",
        key_display="{",
        tooltip="To where the event before began",
    ),
    Binding(
        "right_curly_bracket",
        "event(1)",
        "event",
        id="replay.event.next",
        key_display="}",
        tooltip="To where the next event begins",
    ),
    Binding("t", "time", "time", id="replay.time", tooltip="To a clock time"),
    Binding("minus", "speed(-1)", "speed", id="replay.slower", key_display="-", tooltip="Play more slowly"),
    Binding("plus,equals_sign", "speed(1)", "speed", id="replay.faster", key_display="+", tooltip="Play faster"),
    Binding("comma", "step(-1)", "step", id="replay.step.back", key_display=",", tooltip="Pause, one snapshot back"),
    Binding(
        "full_stop", "step(1)", "step", id="replay.step.forward", key_display=".", tooltip="Pause, one snapshot forward"
    ),
    # The keys of the dashboard that change nothing. The tree has another key.
    *(
        replace(one, key="T") if one.id == "tree" else one
        for one in KEYS
        if one.id not in _LIVE and one.id not in ("left", "right")
    ),
]
"""Keys of a replay: those that move through the recording come first."""


_NAMES = {
    "detail": "Show the detail of the selected process or GPU",
    "switch": "Move the cursor to the GPUs, or back to the processes",
    "follow": "Follow the chosen GPU: only its processes, or all",
    "filter": "Filter the processes",
    "find.next": "Jump to the next match of the last filter",
    "find.before": "Jump to the match before",
    "mine": "Mine only, or everybody's",
    "people": "People: one row for each person",
    "tree": "Tree: runs, their ranks and their workers",
    "strays": "Strays: your processes that nobody attends to",
    "end": "End the selected process",
    "events": "Events: what was raised, and how it ended",
    "acknowledge": "Acknowledge or mute an alert",
    "reload": "Read the configuration again",
    "pause": "Pause, or go on",
    "message": "Message to the owner of the selected process",
    "help": "Help",
    "quit": "Quit",
    "reverse": "Reverse the order",
    "slower": "Longer interval",
    "faster": "Shorter interval",
    "retry": "Sample now, and try failed GPUs again",
    "clear": "Clear the filter, and show the processes of all GPUs",
    "replay.play": "Play the recording, or pause",
    "replay.event.last": "To where the event before began",
    "replay.event.next": "To where the next event begins",
    "replay.time": "To a clock time",
}
"""Name by binding id; commands that move the cursor or open the palette are left out."""


def _order(column: str) -> str:
    if column in ("user", "command"):
        return "From A to Z"
    return "The smallest first" if column in ASCENDING else "The greatest first"


class Command(NamedTuple):
    """Command of the palette."""

    name: str
    help: str
    action: str


def commands(keys: Sequence[Binding] = KEYS) -> list[Command]:
    """Return every command, in the order in which the palette lists them."""
    found = [
        Command(_NAMES[one.id], f"{key_names(one)}  {one.tooltip}", one.action) for one in keys if one.id in _NAMES
    ]
    found += [
        Command(f"Sort by {words}", f"{_order(column)}; once more reverses it", f"sort_by('{column}')")
        for column, (words, _) in SORTS.items()
    ]
    found += [
        Command(f"Theme: {name}", f"Draw for a {name} terminal", f"theme('{name}')") for name in ("dark", "light")
    ]
    return found


class GpuwatchCommands(Provider):
    """Provider of the palette's commands; each runs the same action as its key."""

    KEYS: ClassVar[Sequence[Binding]] = KEYS

    async def discover(self) -> Hits:
        """Yield all commands while nothing is typed."""
        for one in commands(self.KEYS):
            yield DiscoveryHit(one.name, partial(self.app.run_action, one.action), help=one.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for one in commands(self.KEYS):
            score = matcher.match(one.name)
            if score > 0:
                run = partial(self.app.run_action, one.action)
                yield Hit(score, matcher.highlight(one.name), run, help=one.help)


class ReplayCommands(GpuwatchCommands):
    """Provider of the commands of a replay."""

    KEYS = REPLAY_KEYS
