"""Ending of the demo's processes: their rows are removed, and nothing is signalled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpuwatch.kill.pinned import KillTarget, refuse_owner

DEMO_NOTICE: Final = "demo: nothing is signalled, these processes are made up"


class DemoEnder:
    """Remover of the demo's processes: it has no way to a process of this machine, whatever its PID."""

    def __init__(self, remove: Callable[[int], None], viewer: int) -> None:
        """`remove` takes a PID out of the demo; `viewer` is the uid whose processes may go."""
        self._remove = remove
        self._viewer = viewer

    def end(self, targets: Sequence[KillTarget]) -> str:
        """Remove the viewer's own of these processes; return what was done, for the user."""
        own = [target for target in targets if target.process.uid == self._viewer]
        for target in own:
            self._remove(target.pid)
        if not own:
            return refuse_owner(targets[0], self._viewer) or "it is not yours"
        return f"demo: nothing was signalled; {'its row is' if len(own) == 1 else f'{len(own)} rows are'} removed"
