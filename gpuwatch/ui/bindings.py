"""Key bindings and the command palette: footer, help, palette and mouse read them from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast, get_args

from msgspec.structs import fields
from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.keys import _character_to_key, key_to_character

from gpuwatch.config import Theme
from gpuwatch.config.keymap import DEFAULT_KEYS, Keys
from gpuwatch.fields import PROCESS, Field, Row

if TYPE_CHECKING:
    from gpuwatch.ui.actions import Actions


class _Action(NamedTuple):
    """Action with keys; `config.keymap.Keys` has the keys and the meaning of each."""

    id: str
    action: str
    word: str
    """Word in the footer."""
    show: bool = True
    """Whether the footer shows it."""
    priority: bool = False


_ACTIONS: Final = (
    _Action("detail", "detail", "detail"),
    # Priority, since Textual's screens move their focus by these keys.
    _Action("switch", "switch", "GPUs", priority=True),
    _Action("follow", "follow", "follow"),
    # Priority, so that what is typed in the same moment (a slow line delivers it at once) already goes to the prompt.
    _Action("filter", "filter", "filter", priority=True),
    _Action("sort_left", "sort(-1)", "sort"),
    _Action("sort_right", "sort(1)", "sort"),
    _Action("mine", "mine", "mine"),
    _Action("people", "people", "people"),
    _Action("tree", "tree", "tree"),
    _Action("strays", "strays", "strays"),
    _Action("events", "events", "events"),
    _Action("acknowledge", "acknowledge", "ack"),
    _Action("end", "end_process", "end"),
    _Action("pause", "pause", "pause"),
    _Action("help", "help", "help"),
    _Action("quit", "quit", "quit"),
    _Action("find_next", "find(1)", "next match", show=False),
    _Action("find_before", "find(-1)", "match before", show=False),
    _Action("message", "message", "message", show=False),
    _Action("up", "move(-1)", "up", show=False),
    _Action("down", "move(1)", "down", show=False),
    _Action("left", "across(-1)", "left", show=False),
    _Action("right", "across(1)", "right", show=False),
    _Action("pageup", "page(-1)", "page up", show=False),
    _Action("pagedown", "page(1)", "page down", show=False),
    _Action("first", "move(-1000000)", "first", show=False),
    _Action("last", "move(1000000)", "last", show=False),
    _Action("columns", "columns", "columns", show=False),
    _Action("reverse", "reverse", "reverse", show=False),
    _Action("slower", "interval(1)", "slower", show=False),
    _Action("faster", "interval(-1)", "faster", show=False),
    _Action("retry", "retry", "retry", show=False),
    _Action("reload", "reload", "reload", show=False),
    _Action("clear", "clear", "clear", show=False),
    _Action("palette", "command_palette", "commands", show=False),
)
_FIXED: Final = (
    Binding(
        "ctrl+z", "suspend_process", "suspend", id="suspend", show=False, tooltip="Back to the shell; `fg` goes on"
    ),
    Binding("ctrl+c,ctrl+q", "quit", "quit", id="quit_now", show=False, priority=True, tooltip="Quit, from any screen"),
)
"""Keys that always do the same: `config.keymap.RESERVED`."""


_KEY_NAMES = {
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "escape": "Esc",
    "enter": "Enter",
    "space": "Space",
    "tab": "Tab",
    "backspace": "Backspace",
    "insert": "Ins",
    "delete": "Del",
    "home": "Home",
    "end": "End",
    "slash": "/",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "question_mark": "?",
    "colon": ":",
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "comma": ",",
    "full_stop": ".",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
}


def key_names(keys: str) -> str:
    """Format keys with Textual's names (`K,f9`) as printed on a keyboard: `K F9`."""
    return " ".join(_key_name(key.strip()) for key in keys.split(","))


def _key_name(key: str) -> str:
    *modifiers, last = key.split("+") if key != "+" else ["+"]
    name = _KEY_NAMES.get(
        last, last.upper() if last[:1] == "f" and last[1:].isdigit() else key_to_character(last) or last
    )
    return "".join({"ctrl": "^", "shift": "⇧"}.get(modifier, f"{modifier}+") for modifier in modifiers) + name


def textual_key(key: str) -> str:
    """Return Textual's name of a key: `slash` for `/`."""
    *modifiers, name = key.split("+") if len(key) > 1 else [key]
    return "+".join([*modifiers, _character_to_key(name) if len(name) == 1 else name])


_TOOLTIPS: Final = {field.name: field.type.__metadata__[-1].description for field in fields(Keys)}
"""Explanation of each action."""


def make_bindings(keys: Keys = DEFAULT_KEYS) -> list[Binding]:
    """Return the bindings of the dashboard; an action without a key has none."""
    found = []
    for one in _ACTIONS:
        names = [textual_key(key) for key in keys.of(one.id)]
        if names:
            found.append(
                Binding(
                    ",".join(names),
                    one.action,
                    one.word,
                    id=one.id,
                    key_display=key_names(names[0]),
                    show=one.show,
                    priority=one.priority,
                    tooltip=_TOOLTIPS[one.id],
                )
            )
    return [*found, *_FIXED]


KEYS: Final = make_bindings()
"""Bindings with the keys that gpuwatch comes with."""

_LIVE = frozenset({"end", "acknowledge", "message", "pause", "slower", "faster", "retry", "reload"})
"""Ids of keys that only the present has."""

_REPLAY: Final = (
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
)


def make_replay_bindings(keys: Keys = DEFAULT_KEYS) -> list[Binding]:
    """Return the bindings of a replay: its own keys, then those of the dashboard that change nothing."""
    live = {one.id: one for one in make_bindings(keys) if one.id not in _LIVE}
    # On the GPUs of a heat map these keys move the cursor; everywhere else they move through the recording.
    cells = [live.pop(name) for name in ("left", "right") if name in live]
    taken = {key for one in _REPLAY for key in one.key.split(",")}
    found = [*cells, *_REPLAY]
    for one in live.values():
        own = [key for key in one.key.split(",") if key not in taken]
        if one.id == "tree" and not own:
            own = ["T"]
        if own:
            found.append(replace(one, key=",".join(own), key_display=key_names(own[0])))
    return found


_NAMES = {
    "detail": "Show the detail of the selected process or GPU",
    "switch": "Move the cursor to the GPUs, or back to the processes",
    "follow": "Follow the chosen GPU: only its processes, or all",
    "filter": "Filter the processes",
    "find_next": "Jump to the next match of the last filter",
    "find_before": "Jump to the match before",
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
    "columns": "Choose and order the columns",
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


def _direction(field: Field[Row]) -> str:
    if not field.right:
        return "From A to Z"
    return "The smallest first" if field.ascending else "The greatest first"


class PaletteCommand(NamedTuple):
    """Command of the palette."""

    name: str
    help: str
    action: str


def commands(keys: Sequence[Binding] = KEYS) -> list[PaletteCommand]:
    """Return every command, in the order in which the palette lists them."""
    found = [
        PaletteCommand(_NAMES[one.id], f"{key_names(one.key)}  {one.tooltip}", one.action)
        for one in keys
        if one.id in _NAMES
    ]
    found += [
        PaletteCommand(f"Sort by {field.name}", f"{_direction(field)}; once more reverses it", f"sort_by('{column}')")
        for column, field in PROCESS.items()
    ]
    found += [
        PaletteCommand(f"Theme: {name}", f"Draw in the colours of {name}", f"theme('{name}')")
        for name in get_args(Theme)
    ]
    return found


class GpuwatchCommands(Provider):
    """Provider of the palette's commands; each runs the same action as its key."""

    async def discover(self) -> Hits:
        """Yield all commands while nothing is typed."""
        for one in commands(self._keys):
            yield DiscoveryHit(one.name, partial(self.app.run_action, one.action), help=one.help)

    @property
    def _keys(self) -> Sequence[Binding]:
        return cast("Actions", self.app).keys

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for one in commands(self._keys):
            score = matcher.match(one.name)
            if score > 0:
                run = partial(self.app.run_action, one.action)
                yield Hit(score, matcher.highlight(one.name), run, help=one.help)
