"""What the command palette offers: the keys by name, every column to sort by, and the themes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider

from gpuwatch.analysis.rows import SORTS
from gpuwatch.ui.keys import KEYS
from gpuwatch.ui.panels.processes import ASCENDING
from gpuwatch.ui.screens.help import key_names

_NAMES = {
    "detail": "Show the detail of the selected process",
    "filter": "Filter the processes",
    "mine": "Mine only, or everybody's",
    "people": "People: who has what",
    "tree": "Tree: runs, their ranks and their workers",
    "strays": "Strays: processes of yours that nobody tends",
    "end": "End the selected process",
    "events": "Events: what was raised, and how it ended",
    "attend": "Acknowledge or mute an alert",
    "reload": "Read the configuration again",
    "pause": "Pause, or go on",
    "polite": "Message to the owner of the selected process",
    "help": "Help",
    "quit": "Quit",
    "reverse": "Reverse the order",
    "slower": "Longer interval",
    "faster": "Shorter interval",
    "retry": "Retry GPUs that were given up",
    "clear": "Clear the filter",
}
"""Binding id → name. Moving about and opening the palette itself are left out: a key is always shorter."""


def _order(column: str) -> str:
    if column in ("user", "command"):
        return "From A to Z"
    return "The smallest first" if column in ASCENDING else "The greatest first"


class Command(NamedTuple):
    """One command."""

    name: str
    help: str
    action: str


def commands(keys: Sequence[Binding] = KEYS) -> list[Command]:
    """Give every command, in the order in which the palette lists them."""
    found = [
        Command(_NAMES[one.id], f"{key_names(one)}  {one.tooltip}", one.action) for one in keys if one.id in _NAMES
    ]
    found += [
        Command(f"Sort by {words}", f"{_order(column)}; once more turns it round", f"sort_by('{column}')")
        for column, (words, _) in SORTS.items()
    ]
    found += [
        Command(f"Theme: {name}", f"Draw for a {name} terminal", f"theme('{name}')") for name in ("dark", "light")
    ]
    return found


class GpuwatchCommands(Provider):
    """Feeds the palette; each command runs the app's action of the same name as its key does."""

    async def discover(self) -> Hits:
        """Offer everything while nothing is typed."""
        for one in commands():
            yield DiscoveryHit(one.name, partial(self.app.run_action, one.action), help=one.help)

    async def search(self, query: str) -> Hits:
        """Offer what matches."""
        matcher = self.matcher(query)
        for one in commands():
            score = matcher.match(one.name)
            if score > 0:
                run = partial(self.app.run_action, one.action)
                yield Hit(score, matcher.highlight(one.name), run, help=one.help)
