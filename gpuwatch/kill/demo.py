"""Ending of the demo's processes: their rows are removed, and nothing is signalled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpuwatch.kill.pinned import KillTarget, refuse_owner

DEMO_NOTICE: Final = "demo: no signal is sent, because these processes are not real"


class DemoEnder:
    """Remover of the demo's processes: it has no access to processes of this machine, whatever their PIDs."""

    def __init__(self, remove: Callable[[int], None], viewer: int) -> None:
        """`remove` removes a PID from the demo; `viewer` is the uid whose processes may be removed."""
        self._remove = remove
        self._viewer = viewer

    def end(self, targets: Sequence[KillTarget]) -> str:
        """Remove those of these processes that are the viewer's; return a sentence about it for the user."""
        own = [target for target in targets if target.process.uid == self._viewer]
        for target in own:
            self._remove(target.pid)
        if not own:
            return refuse_owner(targets[0], self._viewer) or "it is not yours"
        return f"no signal was sent (demo); {'its row was' if len(own) == 1 else f'{len(own)} rows were'} removed"
