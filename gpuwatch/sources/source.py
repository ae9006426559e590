"""Interface of all sources of snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuwatch.declared.facts import Share
from gpuwatch.model import Snapshot


class Source(Protocol):
    """Source of snapshots; used from one thread, but `close` may come from any."""

    def next(self, timeout: float) -> Snapshot | None:
        """Wait up to `timeout` seconds for the next snapshot; None where none came or the source has ended.

        A source always goes on: where nothing new can be read it returns its last snapshot again, with the present
        `monotonic` (so that ages grow) and states that say why.
        """

    def set_interval(self, seconds: float) -> None:
        """Ask for a snapshot every so many seconds from now on."""

    def poke(self) -> None:
        """Ask for a sample at once, and for devices that were given up to be tried again."""

    def set_shares(self, shares: Sequence[Share]) -> None:
        """Replace the agreed shares by which the declarations of processes are read."""

    def close(self) -> None:
        """Release everything at once, whatever the driver does; never waits."""
