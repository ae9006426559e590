"""The order of runs: by a column, and steady."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuwatch.tree.nodes import ORPHAN_HOLDERS, Kind, Node, NodeKey


def _lowest_gpu(node: Node) -> float:
    totals = node.totals
    return min((held.gpu for held in totals.gpus), default=min(totals.opened, default=1 << 20))


def _group(node: Node) -> int:
    """Put groups after runs, in their own order."""
    return 0 if node.kind is not Kind.GROUP else 1 + (node.title != ORPHAN_HOLDERS)


SORTS: Final[dict[str, str]] = {"name": "name", "user": "user", "gpu": "GPU", "memory": "memory", "sm": "SM %"}
"""What runs are sorted by: id → words. Numbers sort the greatest first, GPUs and text from the start."""


class Order:
    """Sorts the runs again and again so that a figure that only jitters moves nothing; groups stay last.

    As in the process list, a run stays where it is until its figure has moved by more than a twentieth.
    """

    TOLERANCE: Final = 0.05

    def __init__(self) -> None:
        self._by = ""
        self._held: dict[NodeKey, float] = {}

    def sort(self, nodes: Iterable[Node], by: str) -> list[Node]:
        """Sort by one of `SORTS`; runs without a value come last, ties stay by GPU and key."""
        before = self._held if by == self._by else {}
        self._by, self._held = by, {}

        def value(node: Node) -> tuple[bool, float | str]:
            if by == "name":
                return False, node.name.casefold()
            if by == "user":
                return not node.user, node.user.casefold()
            if by == "gpu":
                return False, _lowest_gpu(node)
            figure = (node.totals.sm if by == "sm" else node.totals.memory).value
            if figure is None:
                return True, 0.0
            held = before.get(node.key, figure)
            self._held[node.key] = figure if abs(figure - held) > self.TOLERANCE * abs(held) else held
            return False, -self._held[node.key]

        keyed = [(_group(node), *value(node), _lowest_gpu(node), node.key, node) for node in nodes]
        keyed.sort(key=lambda one: one[:-1])
        return [node for *_, node in keyed]
