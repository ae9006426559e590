"""Keys and the commands of the palette: footer, help, palette, mouse and Textual's bindings are made from them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, get_args

from msgspec.structs import fields

from gpuwatch.config.keymap import DEFAULT_KEYS, Keys
from gpuwatch.config.types import Theme
from gpuwatch.model.fields import PROCESS


class BoundKey(NamedTuple):
    """Action with its keys; the fields but `name` are those of Textual's `Binding`."""

    id: str
    action: str
    description: str
    """Word in the footer."""
    name: str = ""
    """Name in the palette; empty for keys that move the cursor or open the palette."""
    key: str = ""
    """Textual's names of the keys, with commas between."""
    tooltip: str = ""
    """Explanation in the help."""
    show: bool = True
    """Whether the footer shows it."""
    priority: bool = False
    key_display: str | None = None
    """What the footer shows in place of the key's name."""


_ACTIONS: Final = (
    BoundKey("detail", "detail", "detail", "Show everything about the selected process or GPU"),
    # Priority, since Textual's screens move their focus by these keys.
    BoundKey("switch", "switch", "GPUs", "Switch between the processes and the GPUs", priority=True),
    BoundKey("follow", "follow", "follow", "Follow the chosen GPU: show only its processes, or all again"),
    # Priority, so that what is typed in the same moment (a slow line delivers it at once) already goes to the prompt.
    BoundKey("filter", "filter", "filter", "Filter the processes", priority=True),
    BoundKey("sort_left", "sort(-1)", "sort"),
    BoundKey("sort_right", "sort(1)", "sort"),
    BoundKey("mine", "mine", "mine", "Show only your own processes, or everybody's"),
    BoundKey("people", "people", "people", "People: one row for each person"),
    BoundKey("gpus", "gpus", "all GPUs", "All GPUs: memory and utilization over time"),
    BoundKey("tree", "tree", "tree", "Tree: runs, their ranks and their workers"),
    BoundKey("strays", "strays", "strays", "Strays: your abandoned processes"),
    BoundKey("hosts", "hosts", "hosts", "Hosts: one row for each machine", show=False),
    BoundKey("events", "events", "events", "Events: alerts, past and present"),
    BoundKey("acknowledge", "acknowledge", "ack", "Acknowledge or mute an alert"),
    BoundKey("message", "message", "message", "Copy a message for the owner of the selected process"),
    BoundKey("end", "end_process", "end", "End the selected process"),
    BoundKey("pause", "pause", "pause", "Pause or resume"),
    BoundKey("help", "help", "help", "Help"),
    BoundKey("quit", "quit", "quit", "Quit"),
    BoundKey("find_next", "find(1)", "next match", "Jump to the next match of the last filter", show=False),
    BoundKey("find_before", "find(-1)", "previous match", "Jump to the previous match", show=False),
    BoundKey("up", "move(-1)", "up", show=False),
    BoundKey("down", "move(1)", "down", show=False),
    BoundKey("left", "across(-1)", "left", show=False),
    BoundKey("right", "across(1)", "right", show=False),
    BoundKey("pageup", "page(-1)", "page up", show=False),
    BoundKey("pagedown", "page(1)", "page down", show=False),
    BoundKey("first", "move(-1000000)", "first", show=False),
    BoundKey("last", "move(1000000)", "last", show=False),
    BoundKey("columns", "columns", "columns", "Choose and order the columns", show=False),
    BoundKey("reverse", "reverse", "reverse", "Reverse the sort order", show=False),
    BoundKey("slower", "interval(1)", "slower", "Sample less often", show=False),
    BoundKey("faster", "interval(-1)", "faster", "Sample more often", show=False),
    BoundKey("retry", "retry", "retry", "Sample now, and retry failed GPUs", show=False),
    BoundKey("reload", "reload", "reload", "Reload the configuration", show=False),
    BoundKey("clear", "clear", "clear", "Clear the filter, and show the processes of all GPUs", show=False),
    BoundKey("palette", "command_palette", "commands", show=False),
)
"""Actions of the dashboard; `config.keymap.Keys` has the keys and the meaning of each."""
_FIXED: Final = (
    BoundKey(
        "suspend", "suspend_process", "suspend", key="ctrl+z", tooltip="Suspend gpuwatch; `fg` resumes it", show=False
    ),
    BoundKey(
        "quit_now", "quit", "quit", key="ctrl+c,ctrl+q", tooltip="Quit, from any screen", show=False, priority=True
    ),
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
    "plus": "+",
    "minus": "-",
    "at": "@",
    "backslash": "\\",
    "underscore": "_",
    "less_than_sign": "<",
    "greater_than_sign": ">",
}
_TEXTUAL_NAMES: Final = {
    "solidus": "slash",
    "reverse_solidus": "backslash",
    "commercial_at": "at",
    "hyphen_minus": "minus",
    "plus_sign": "plus",
    "low_line": "underscore",
}
"""Characters that Textual does not call by their name in Unicode."""


@lru_cache(256)
def key_names(keys: str) -> str:
    """Format keys with Textual's names (`K,f9`) as printed on a keyboard: `K F9`."""
    return " ".join(_key_name(key.strip()) for key in keys.split(","))


def _key_name(key: str) -> str:
    *modifiers, last = key.split("+") if key != "+" else ["+"]
    name = _KEY_NAMES.get(last, last.upper() if last[:1] == "f" and last[1:].isdigit() else _character(last))
    return "".join({"ctrl": "^", "shift": "⇧"}.get(modifier, f"{modifier}+") for modifier in modifiers) + name


def _character(name: str) -> str:
    """Return the character that a key types by Textual's name of the key; the name where there is none."""
    try:
        return unicodedata.lookup(name.replace("_", " "))
    except KeyError:
        return name


def textual_key(key: str) -> str:
    """Return Textual's name of a key: `slash` for `/`."""
    *modifiers, name = key.split("+") if len(key) > 1 else [key]
    if len(name) == 1 and not name.isalnum():
        name = unicodedata.name(name).lower().replace("-", "_").replace(" ", "_")
    return "+".join([*modifiers, _TEXTUAL_NAMES.get(name, name)])


_TOOLTIPS: Final = {field.name: field.type.__metadata__[-1].description for field in fields(Keys)}
"""Explanation of each action."""


def dashboard_keys(keys: Keys = DEFAULT_KEYS) -> list[BoundKey]:
    """Return the keys of the dashboard; an action without a key is left out."""
    bound = [one._replace(key=_textual_keys(keys, one.id), tooltip=_TOOLTIPS[one.id]) for one in _ACTIONS]
    return [*(one for one in bound if one.key), *_FIXED]


def _textual_keys(keys: Keys, action: str) -> str:
    return ",".join(map(textual_key, keys.of(action)))


_ELSEWHERE: Final = ("detail.end", "tree.end", "detail.message", "people.message", "tree.mine", "people.reverse")
"""Binding ids of the dashboard's actions that other screens have too: they have the user's keys there."""


def keymap(keys: Keys) -> dict[str, str]:
    """Return the user's keys of the actions that other screens have too, by binding id."""
    return {name: _textual_keys(keys, name.partition(".")[2]) for name in _ELSEWHERE}


KEYS: Final = dashboard_keys()
"""Default keys of the dashboard."""

_LIVE = frozenset({"end", "acknowledge", "message", "pause", "slower", "faster", "retry", "reload", "hosts"})
"""Ids of keys that a replay does not have."""

_REPLAY: Final = tuple(
    BoundKey(f"replay.{id}", action, word, name, keys, tooltip)
    for id, keys, action, word, tooltip, name in (
        ("play", "space,p", "play", "play", "Play or pause", "Play the recording, or pause it"),
        ("back", "left", "seek(-10)", "10 s", "Go back 10 s", ""),
        ("forward", "right", "seek(10)", "10 s", "Go forward 10 s", ""),
        ("minute.back", "left_square_bracket", "seek(-60)", "1 min", "Go back a minute", ""),
        ("minute.forward", "right_square_bracket", "seek(60)", "1 min", "Go forward a minute", ""),
        ("event.last", "left_curly_bracket", "event(-1)", "event", *["Go to the start of the previous event"] * 2),
        ("event.next", "right_curly_bracket", "event(1)", "event", *["Go to the start of the next event"] * 2),
        ("time", "at", "time", "time", *["Go to a clock time"] * 2),
        ("slower", "minus", "speed(-1)", "speed", "Play slower", ""),
        ("faster", "plus,equals_sign", "speed(1)", "speed", "Play faster", ""),
        ("step.back", "comma", "step(-1)", "step", "Pause, and go back one snapshot", ""),
        ("step.forward", "full_stop", "step(1)", "step", "Pause, and go forward one snapshot", ""),
    )
)


def replay_keys(keys: Keys = DEFAULT_KEYS) -> list[BoundKey]:
    """Return the keys of a replay: its own, then those of the dashboard that change nothing."""
    live = {one.id: one for one in dashboard_keys(keys) if one.id not in _LIVE}
    # On the GPUs of a heat map these keys move the cursor; everywhere else they move through the recording.
    cells = [live.pop(name) for name in ("left", "right") if name in live]
    taken = {key for one in _REPLAY for key in one.key.split(",")}
    found = [*cells, *_REPLAY]
    for one in live.values():
        own = [key for key in one.key.split(",") if key not in taken]
        if own:
            tooltip = "List abandoned processes of the user who recorded this" if one.id == "strays" else one.tooltip
            found.append(one._replace(key=",".join(own), tooltip=tooltip))
    return found


class PaletteCommand(NamedTuple):
    """Command of the palette."""

    name: str
    help: str
    """The keys, or a further explanation."""
    action: str


def commands(keys: Sequence[BoundKey] = KEYS) -> list[PaletteCommand]:
    """Return every command, in the order in which the palette lists them."""
    found = [PaletteCommand(one.name, key_names(one.key), one.action) for one in keys if one.name]
    for column, field in PROCESS.items():
        first = "Smallest first" if field.ascending else "Largest first"
        words = f"{first if field.right else 'From A to Z'}; again to reverse"
        found.append(PaletteCommand(f"Sort by {field.name}", words, f"sort_by('{column}')"))
    return [*found, *THEMES]


THEMES: Final = tuple(PaletteCommand(f"Theme: {name}", "", f"theme('{name}')") for name in get_args(Theme))
"""Commands that change the theme."""
