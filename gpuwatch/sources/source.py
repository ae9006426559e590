"""Interface of all sources of snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuwatch.declared.facts import Share
from gpuwatch.model.snapshot import Snapshot


class Source(Protocol):
    """Source of snapshots; used from one thread, only `close` may be called from any.

    A subclass has `next` and `close`, and leaves out what it cannot do: the past cannot be sampled again, and another
    machine has shares of its own. It may also have a method `wake`, which makes a `next` that waits return None at
    once; from any thread.
    """

    def next(self, timeout: float) -> Snapshot | None:
        """Wait up to `timeout` seconds for the next snapshot; None where none came or the source has ended.

        A source never stops because of errors: where nothing new can be read it returns its last snapshot again, with
        the present `monotonic` (so that ages grow) and states that say why.
        """

    def set_interval(self, seconds: float) -> None:
        """Request a snapshot every `seconds` from now on."""
        return

    def poke(self) -> None:
        """Request a sample at once, and a retry of devices that were given up."""
        return

    def set_shares(self, shares: Sequence[Share]) -> None:
        """Replace the agreed shares that are used to read declarations."""
        return

    def set_focus(self, gpu: str | None) -> None:
        """Read PCIe and NVLink, whose calls are slow, only of this GPU (`Gpu.key`); None for no GPU."""
        return

    def close(self) -> None:
        """Release everything at once, even where the driver hangs; never waits."""
