"""GPUs that the sampler must leave alone for now, and the probes that find out whether they answer again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from gpuwatch.model import Gpu, Health, Snapshot, SourceState, decode
from gpuwatch.sources.child import Child


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the parent waits for what, in seconds; a test hands in shorter ones."""

    call: float = 2.0
    """One NVML call."""
    start: float = 10.0
    """nvmlInit and the look-up of a handle: with persistence off each GPU takes 1 to 3 s to wake."""
    probe: float = 30.0
    """From giving a GPU up to trying it again; doubled after each failure."""
    probe_most: float = 300.0
    restart: float = 5.0
    """From a driver that is not there to asking again; doubled after each failure."""
    restart_most: float = 60.0
    crashes: int = 3
    """So many crashes inside one GPU's calls …"""
    crash_window: float = 60.0
    """… within so many seconds put it in quarantine until the user asks."""
    silence: float = 10.0
    """From the last sign of a sampler, beyond its interval, that is in no call of the driver."""
    stuck: int = 2
    """Samplers that cannot be killed (they hang in the kernel) before nothing more is started."""

    def allows(self, call: str) -> float:
        """Give the seconds that a call may take."""
        return self.start if call.startswith(("nvmlInit", "nvmlDeviceGetHandle", "nvmlDeviceGetCount")) else self.call


@dataclass(slots=True)
class Parked:
    """One GPU that no sampler may touch, and why."""

    index: int
    row: Gpu
    """The last figures with their old stamps, and why there are no newer ones."""
    probe_at: float | None
    """Monotonic time of the next probe; None for not before the user asks."""
    delay: float
    probe: Child | None = None


@dataclass(slots=True)
class Lot:
    """All GPUs that are parked, by index."""

    patience: Patience
    start_probe: Callable[[int], Child | None]
    """Starts a sampler for one GPU alone and one sample; None where none may be started."""
    abandon: Callable[[Child], None]
    """Takes over a probe that was killed, until it is reaped."""
    parked: dict[int, Parked] = field(default_factory=dict)

    def indices(self) -> list[int]:
        """Give the indices that the sampler must skip."""
        return sorted(self.parked)

    def park(self, row: Gpu, health: Health, words: str, *, now: float, wall: float) -> None:
        """Give a GPU up: silent ones are probed after a while, quarantined ones when the user asks."""
        quiet = health is Health.QUARANTINED
        self.parked[row.index] = Parked(
            index=row.index,
            row=msgspec.structs.replace(row, health=health, words=words, since=wall),
            probe_at=None if quiet else now + self.patience.probe,
            delay=self.patience.probe,
        )

    def ask_again(self, now: float) -> None:
        """Probe every parked GPU at the next occasion, because the user asked."""
        for parked in self.parked.values():
            if parked.probe is None:
                parked.probe_at = now

    @property
    def probes(self) -> list[Child]:
        """Give the probes that run."""
        return [parked.probe for parked in self.parked.values() if parked.probe is not None]

    def step(self, now: float, awake: float) -> bool:
        """Start the probes that are due and look at those that run; True when a GPU came back.

        `awake` is since when we have been running ourselves: no call's time counts before it.
        """
        back = [index for index, parked in self.parked.items() if self._answers(parked, now, awake)]
        for index in back:
            del self.parked[index]
        return bool(back)

    def _answers(self, parked: Parked, now: float, awake: float) -> bool:
        if parked.probe is None:
            if parked.probe_at is not None and parked.probe_at <= now:
                parked.probe = self.start_probe(parked.index)
            return False
        for line in parked.probe.lines(0):
            if _healthy(line, parked.index):
                self._drop(parked)
                return True
        call = parked.probe.in_flight()
        hung = call is not None and now - max(call.started, awake) > self.patience.allows(call.call)
        late = now - max(parked.probe.born, awake) > 4 * self.patience.start
        if parked.probe.eof or hung or late:
            self._drop(parked)
            parked.delay = min(2 * parked.delay, self.patience.probe_most)
            parked.probe_at = None if parked.row.health is Health.QUARANTINED else now + parked.delay
        return False

    def _drop(self, parked: Parked) -> None:
        if parked.probe is not None:
            parked.probe.kill()
            self.abandon(parked.probe)
            parked.probe = None

    def close(self) -> None:
        """End every probe."""
        for parked in self.parked.values():
            self._drop(parked)


def _healthy(line: bytes, index: int) -> bool:
    """Say whether a probe's snapshot shows its GPU answering."""
    try:
        snapshot: Snapshot = decode(line)
    except msgspec.MsgspecError:
        return False
    answers = [gpu for gpu in snapshot.gpus if gpu.index == index]
    return snapshot.state is SourceState.OK and any(gpu.health is not Health.SILENT for gpu in answers)
