"""What is remembered of samplers that hung or crashed: over which GPU, and whether the next may listen for events."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuwatch.sources.parked import Patience


@dataclass(slots=True)
class Crashes:
    """When the sampler crashed inside which GPU's calls, by the key of the GPU."""

    times: dict[str, list[float]] = field(default_factory=dict)

    def add(self, key: str, now: float, window: float) -> int:
        """Note a crash and count those within the window."""
        recent = [then for then in self.times.get(key, []) if now - then < window]
        self.times[key] = [*recent, now]
        return len(self.times[key])


@dataclass(slots=True)
class Listening:
    """Whether a sampler takes the driver's events (XIDs): not for a while after one hung or crashed over them."""

    patience: Patience
    wanted: bool = True
    retry_at: float | None = None
    """When to try again; None for not before the user asks, or for nothing to try."""
    _failures: int = 0
    _failed: float = float("-inf")

    def failed(self, now: float) -> None:
        """Do without from now on, longer after each failure; after too many, until the user asks."""
        patience = self.patience
        if now - self._failed > 10 * patience.probe_most:  # it went well for long
            self._failures = 0
        delay = min(patience.probe * 2**self._failures, patience.probe_most)
        self._failures += 1
        self._failed = now
        self.wanted = False
        self.retry_at = now + delay if self._failures < patience.crashes else None

    def ask_again(self, now: float) -> None:
        """Try at the next occasion, because the user asked."""
        if not self.wanted:
            self._failures, self.retry_at = 0, now

    def due(self, now: float) -> bool:
        """Say, once, that it is time to listen again."""
        if self.retry_at is None or now < self.retry_at:
            return False
        self.wanted, self.retry_at = True, None
        return True
