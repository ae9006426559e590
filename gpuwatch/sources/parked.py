"""GPUs that the sampler must leave alone for now, and the probes that find out whether they answer again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from gpuwatch.model import INDEX_UNKNOWN, Gpu, Health, Snapshot, SourceState, decode
from gpuwatch.sources.child import Child

_UNIDENTIFIED = "the driver lists other GPUs since, and this one never told its UUID: start gpuwatch anew"


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

    row: Gpu
    """The last figures with their old stamps, and why there are no newer ones."""
    listed: int
    """How many GPUs the driver listed when the row's index was right; INDEX_UNKNOWN where it is not."""
    probe_at: float | None
    """Monotonic time of the next probe; None for not before the user asks."""
    delay: float
    probe: Child | None = None


@dataclass(slots=True)
class Lot:
    """All GPUs that are parked, by key: UUID, or index for one that has never given it."""

    patience: Patience
    start_probe: Callable[[Parked], Child | None]
    """Starts a sampler for one GPU alone and one sample; None where none may be started."""
    abandon: Callable[[Child], None]
    """Takes over a probe that was killed, until it is reaped."""
    parked: dict[str, Parked] = field(default_factory=dict)

    def names(self) -> list[int | str]:
        """Give the GPUs that the sampler must skip, as it is told of them."""
        return [parked.row.uuid or parked.row.index for parked in self.parked.values()]

    def park(self, row: Gpu, health: Health, words: str, *, listed: int, now: float, wall: float) -> None:
        """Give a GPU up: silent ones are probed after a while, quarantined ones when the user asks."""
        quiet = health is Health.QUARANTINED
        self.parked[row.key] = Parked(
            row=msgspec.structs.replace(row, health=health, words=words, since=wall),
            listed=listed or INDEX_UNKNOWN,
            probe_at=None if quiet else now + self.patience.probe,
            delay=self.patience.probe,
        )

    def renumber(self, snapshot: Snapshot, *, whole: bool) -> bool:
        """Give the parked GPUs their indices where the driver's list has changed; True when the sampler must be told.

        They are those that no other GPU has, in the same order: when one drops out, those behind it move up (nvml.h).
        Where these are more or fewer it is not known which is whose; one without a UUID is then known by nothing, and
        let go, to be found anew. `whole` says whether the snapshot has all GPUs: else there is nothing to go by.
        """
        others = {gpu.index for gpu in snapshot.gpus if gpu.health is Health.OK and gpu.key not in self.parked}
        before = sorted(self.parked.values(), key=lambda parked: parked.row.index)
        if all(parked.listed == snapshot.listed and parked.row.index not in others for parked in before):
            return False
        free = [index for index in range(snapshot.listed) if index not in others]
        sure = whole and len(free) == len(before)
        self.parked = {}
        for place, parked in enumerate(before):
            if sure:
                parked.row, parked.listed = msgspec.structs.replace(parked.row, index=free[place]), snapshot.listed
            elif parked.row.uuid:
                parked.listed = INDEX_UNKNOWN
            elif whole:
                self._drop(parked)
                continue
            else:
                parked.row = msgspec.structs.replace(parked.row, words=_UNIDENTIFIED)
            self.parked[parked.row.key] = parked
        return sure or len(self.parked) < len(before)

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
        back = [key for key, parked in self.parked.items() if self._answers(parked, now, awake)]
        for key in back:
            del self.parked[key]
        return bool(back)

    def _answers(self, parked: Parked, now: float, awake: float) -> bool:
        if parked.probe is None:
            if parked.probe_at is not None and parked.probe_at <= now:
                parked.probe = self.start_probe(parked)
            return False
        for line in parked.probe.lines(0):
            if _answered(line):
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


def _answered(line: bytes) -> bool:
    """Say whether the snapshot of a probe, which asks one GPU, has an answer, if only that it is no longer there."""
    try:
        snapshot: Snapshot = decode(line)
    except msgspec.MsgspecError:
        return False
    return snapshot.state is SourceState.OK and any(gpu.health is not Health.SILENT for gpu in snapshot.gpus)
