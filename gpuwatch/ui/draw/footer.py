"""Last line: the keys, which are buttons as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gpuwatch.ui.draw.keys import key_names
from gpuwatch.ui.draw.lines import Line, LineBuilder
from gpuwatch.ui.draw.theme import StyleSet

Hint = tuple[str, str, str]
"""Keys as shown, word, action."""

_FIRST_TO_GO = (
    *("window(-1)", "pause", "mine", "sort(1)", "follow", "step(1)", "seek(60)", "speed(1)", "message", "gpus"),
    *("tree", "strays", "people", "filter", "events", "switch", "detail", "end_process", "acknowledge"),
    *("help", "quit"),
)
"""Order in which hints are left out; keys to end a process, acknowledge, get help and quit are the last."""


class _Bound(Protocol):
    """A `BoundKey`, or a binding of Textual."""

    @property
    def key(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def show(self) -> bool: ...
    @property
    def key_display(self) -> str | None: ...


def hints(bindings: Sequence[_Bound]) -> list[Hint]:
    """Return a hint for each binding that the footer shows; keys with the same word share a hint."""
    found: dict[str, Hint] = {}
    for one in bindings:
        if one.show:
            key = one.key_display or key_names(one.key.partition(",")[0])
            before = found.get(one.description)
            found[one.description] = (f"{before[0]} {key}" if before else key, one.description, one.action)
    return list(found.values())


class FooterLine(NamedTuple):
    """Line of hints with its buttons."""

    line: Line
    buttons: Sequence[tuple[int, int, str]]
    """First cell, end, and action of each."""


def draw_footer(found: Sequence[Hint], styles: StyleSet, width: int) -> FooterLine:
    """Draw the hints that fit."""
    kept = list(found)
    for action in _FIRST_TO_GO:
        if sum(len(key) + len(word) + 3 for key, word, _ in kept) <= width:
            break
        kept = [hint for hint in kept if hint[2] != action]
    builder = LineBuilder(styles, "band").gap()
    buttons = []
    for key, word, action in kept:
        start = builder.cells
        builder.write(key, "strong").gap().write(word, "muted")
        buttons.append((start, builder.cells, action))
        builder.gap(2)
    return FooterLine(builder.build(width), buttons)
