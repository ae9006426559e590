"""Keys of the dashboard: the actions, their keys and meanings, and the sets of keys that come with gpuwatch."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

NAMED: Final = (
    *("enter", "tab", "space", "escape", "backspace", "insert", "delete", "up", "down", "left", "right"),
    *("home", "end", "pageup", "pagedown"),
)
"""Names of keys, besides the function keys."""
OTHER_NAMES: Final = {"esc": "escape", "return": "enter", "pgup": "pageup", "pgdn": "pagedown", "del": "delete"}
RESERVED: Final = {"ctrl+c": "quit", "ctrl+q": "quit", "ctrl+z": "suspend"}
"""Keys that always do the same."""

_KEY: Final = rf"^(?:[!-~]|(?:ctrl\+|alt\+|shift\+)*(?:[a-z0-9]|{'|'.join(NAMED)}|f(?:[1-9]|1[0-9]|2[0-4])))\Z"
KeyNames: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(pattern=_KEY)], ...], Meta(max_length=8, extra={"form": "keys"})
]
"""Keys as written in gpuwatch.toml: `/`, `K`, `f9`, `ctrl+r`, `enter`. No key turns an action off."""


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """`[keys]`: the keys of each action of the dashboard."""

    preset: Annotated[
        Literal["gpuwatch", "nvitop"],
        Meta(description='keys of all other actions: those of "gpuwatch" or of "nvitop"'),
    ] = "gpuwatch"
    detail: Annotated[KeyNames, Meta(description="Show everything about this process or GPU")] = ("enter",)
    switch: Annotated[KeyNames, Meta(description="Switch between the processes and the GPUs")] = (
        "tab",
        "shift+tab",
    )
    follow: Annotated[KeyNames, Meta(description="Show only processes on this GPU, or all")] = ("f",)
    filter: Annotated[KeyNames, Meta(description="Filter the processes")] = ("/",)
    sort_left: Annotated[KeyNames, Meta(description="Sort by the previous column")] = ("<",)
    sort_right: Annotated[KeyNames, Meta(description="Sort by the next column")] = (">",)
    mine: Annotated[KeyNames, Meta(description="Show only your processes, or everybody's")] = ("m",)
    people: Annotated[KeyNames, Meta(description="Show one row per person: memory, GPUs, use")] = ("u",)
    gpus: Annotated[KeyNames, Meta(description="Show all GPUs over time: memory and use")] = ("o",)
    tree: Annotated[KeyNames, Meta(description="Show runs, with their ranks and workers")] = ("t",)
    strays: Annotated[KeyNames, Meta(description="List your abandoned processes, to end them")] = ("S",)
    hosts: Annotated[KeyNames, Meta(description="List the hosts, and open another one")] = ("H",)
    events: Annotated[KeyNames, Meta(description="List present and past alerts")] = ("e",)
    acknowledge: Annotated[KeyNames, Meta(description="Acknowledge, mute or unmute an alert")] = ("a",)
    end: Annotated[KeyNames, Meta(description="End this process (only your own)")] = ("K", "f9")
    pause: Annotated[KeyNames, Meta(description="Freeze the screen; gpuwatch keeps watching")] = ("p",)
    help: Annotated[KeyNames, Meta(description="Explain the keys, marks and terms")] = ("?", "h", "f1")
    quit: Annotated[KeyNames, Meta(description="Quit; your processes keep running")] = ("q",)
    find_next: Annotated[KeyNames, Meta(description="Jump to the next match of the last filter")] = ("n",)
    find_before: Annotated[KeyNames, Meta(description="Jump to the previous match")] = ("N",)
    message: Annotated[KeyNames, Meta(description="Copy a message for the owner")] = ("y",)
    up: Annotated[KeyNames, Meta(description="Move to the process or GPU above")] = ("up", "k")
    down: Annotated[KeyNames, Meta(description="Move to the process or GPU below")] = ("down", "j")
    left: Annotated[KeyNames, Meta(description="Move left in a heat map")] = ("left",)
    right: Annotated[KeyNames, Meta(description="Move right in a heat map")] = ("right",)
    pageup: Annotated[KeyNames, Meta(description="Move up one screen")] = ("pageup",)
    pagedown: Annotated[KeyNames, Meta(description="Move down one screen")] = ("pagedown",)
    first: Annotated[KeyNames, Meta(description="Move to the first process or GPU")] = ("home", "g")
    last: Annotated[KeyNames, Meta(description="Move to the last process or GPU")] = ("end", "G")
    columns: Annotated[KeyNames, Meta(description="Choose and order the columns")] = ("C",)
    reverse: Annotated[KeyNames, Meta(description="Reverse the sort order")] = ("r",)
    slower: Annotated[KeyNames, Meta(description="Sample less often")] = ("+", "=")
    faster: Annotated[KeyNames, Meta(description="Sample more often")] = ("-",)
    retry: Annotated[KeyNames, Meta(description="Sample now, and retry failed GPUs")] = ("R",)
    reload: Annotated[KeyNames, Meta(description="Reload the configuration")] = ("L",)
    clear: Annotated[KeyNames, Meta(description="Clear the filter, and show all GPUs")] = ("escape",)
    palette: Annotated[KeyNames, Meta(description="Find a command by name")] = (":", "ctrl+p")

    def of(self, action: str) -> tuple[str, ...]:
        keys: tuple[str, ...] = getattr(self, action)
        return keys


DEFAULT_KEYS: Final = Keys()
PRESETS: Final[dict[str, Keys]] = {
    "gpuwatch": DEFAULT_KEYS,
    "nvitop": Keys(
        preset="nvitop",
        retry=("r", "f5"),
        reverse=("/",),
        filter=("\\", "f4"),
        sort_left=(",",),
        sort_right=(".",),
        pageup=("pageup", "["),
        pagedown=("pagedown", "]"),
        end=("K", "T", "I"),
    ),
}
"""Sets of keys. nvitop has no filter: it gets the keys that htop has for it."""


def actions() -> tuple[str, ...]:
    """Return the ids of the actions that have keys."""
    return tuple(name for name in Keys.__struct_fields__ if name != "preset")


def clash(keys: Keys) -> tuple[str, str, str] | None:
    """Return the first key that has two meanings, with the ids of both actions; None if there is none."""
    taken: dict[str, str] = dict(RESERVED)
    for action in actions():
        for key in keys.of(action):
            if taken.setdefault(key, action) != action:
                return key, taken[key], action
    return None


def key_name(raw: object) -> Any:
    """Return a key's name in the form of this module (`F5`, `Esc`); what is no text is returned as it is."""
    if not isinstance(raw, str) or len(raw) == 1:
        return raw
    *modifiers, name = raw.lower().split("+")
    return "+".join([*modifiers, OTHER_NAMES.get(name, name)])
