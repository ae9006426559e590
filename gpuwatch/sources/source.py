"""Where snapshots come from: all sources answer to the same calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuwatch.declared.facts import Share
from gpuwatch.model import Snapshot


class Source(Protocol):
    """Something that gives the next snapshot; used from one thread, but `close` may come from any."""

    def next(self, timeout: float) -> Snapshot | None:
        """Wait up to `timeout` seconds for the next snapshot; None where none came or the source has ended.

        A source never goes quiet: where nothing new can be read it gives its last snapshot again, with `monotonic`
        moved on (so that ages grow) and states that say why.
        """

    def set_interval(self, seconds: float) -> None:
        """Ask for a snapshot every so many seconds from now on."""

    def poke(self) -> None:
        """Ask for a sample at once, and for devices that were given up to be tried again."""

    def set_shares(self, shares: Sequence[Share]) -> None:
        """Judge what processes declared by these agreed shares from now on, in place of those before."""

    def close(self) -> None:
        """Let go of everything at once, whatever the driver does; never waits."""
