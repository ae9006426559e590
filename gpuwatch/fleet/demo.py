"""Demo of a fleet: copies of the demo machine, each at another time of its script and with other GPUs free."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from gpuwatch.fleet.overview import QUERIES
from gpuwatch.fleet.prometheus import FleetSample, Labels, PrometheusClient, Range
from gpuwatch.model.holdings import Holdings
from gpuwatch.model.shares import left, limit_usages
from gpuwatch.model.snapshot import Health, Snapshot, known
from gpuwatch.sources.demo import DemoSource

NAMES: Final = tuple(f"{rack}-gpu-{place:02}" for rack in ("lab", "vision", "speech") for place in range(1, 9))
SILENT: Final = "vision-gpu-03"
"""Host that does not answer."""


class DemoClient(PrometheusClient):
    """Client that answers like a Prometheus server about the demo machines."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self.url, self.warnings = "the demo", []
        self._source, self._wall, self._zero = DemoSource(clock=lambda: 0.0, wall=wall), wall, wall()

    def query(self, expression: str) -> list[FleetSample]:
        now = self._wall() - self._zero
        every = enumerate(NAMES) if expression == QUERIES[0] else ()
        return [one for place, name in every for one in _samples(name, machine(self._source, place, now))]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Range]:
        return []

    def close(self) -> None:
        """Do nothing."""


def machine(source: DemoSource, place: int, second: float) -> Snapshot:
    """Return a host's snapshot, with some of its GPUs free."""
    snapshot, gpus = source.at(40.0 + 45.0 * place + second), []
    for gpu in snapshot.gpus:
        if (gpu.index * 5 + place * 3) % 7 < place % 4 and gpu.health is Health.OK and gpu.memory.usable is not None:
            memory = replace(gpu.memory, used=0, free=gpu.memory.usable)
            nobody = {"holdings": (), "unattributed": 0, "promised": 0, "promises": (), "utilization": 0}
            gpu = replace(gpu, memory=memory, power=70.0, temperature=34, **nobody)
        gpus.append(gpu)
    held = {one.pid for gpu in gpus for one in gpu.holdings}
    return replace(snapshot, gpus=tuple(gpus), processes=tuple(one for one in snapshot.processes if one.pid in held))


def _samples(name: str, snapshot: Snapshot) -> Iterator[FleetSample]:
    """Yield the samples of the recording rules for a host, and its firing alerts."""

    def sample(metric: str, value: float, **labels: str) -> FleetSample:
        return FleetSample(labels=Labels(metric=metric, instance=name, **labels), value=(0.0, repr(float(value))))

    if name == SILENT:
        yield sample("up", 0)
        return
    yield sample("gpuwatch:host_age:seconds", 0.4)
    holdings, sizes = Holdings(snapshot), defaultdict[str, list[int]](list)
    limits = (one for one in limit_usages(snapshot) if one.held - one.limit.bytes > 8e9)
    over = {one.gpu: holdings.processes[one.pids[0]].user for one in limits}
    for gpu in snapshot.gpus:
        labels = {"uuid": gpu.uuid, "gpu": str(gpu.index), "name": gpu.name}
        yield sample("gpuwatch:gpu_up:bool", gpu.health is Health.OK, **labels)
        alerts = {"GpuwatchGpuLost": ""} if gpu.health is not Health.OK else {}
        if not alerts:
            memory, busy = gpu.memory, gpu.utilization
            figures = {"used": memory.used, "free": memory.free, "total": memory.total, "left": left(gpu)}
            values = {f"memory_{figure}:bytes": value for figure, value in figures.items()}
            values |= {"utilization:ratio": busy / 100 if known(busy) else busy, "processes:count": len(gpu.holdings)}
            yield from (sample(f"gpuwatch:gpu_{one}", value, **labels) for one, value in values.items() if known(value))
            for owner in holdings.owners(gpu):
                sizes[owner.name].append(owner.memory)
            alerts |= {"GpuwatchNearlyFull": ""} if known(memory.free) and memory.free < 4e9 else {}
            alerts |= {"GpuwatchOverDeclared": over[gpu.key]} if gpu.key in over else {}
        for alert, user in alerts.items():
            fired = {"alertname": alert, "severity": "critical", "user": user, **labels}
            yield sample("ALERTS", 1, alertstate="firing", **fired)
            yield sample("ALERTS_FOR_STATE", snapshot.taken - 1300, **fired)
    for user, held in sizes.items():
        yield sample("gpuwatch:user_memory:bytes", sum(held), user=user)
        yield sample("gpuwatch:user_gpus:count", len(held), user=user)
