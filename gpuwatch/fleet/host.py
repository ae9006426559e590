"""Hosts: one row for each machine with its GPUs, from any source. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpuwatch.alerts.alert import MARKS, Severity
from gpuwatch.base.units import Unit
from gpuwatch.model.fields import Amount, Field, amount, table
from gpuwatch.model.snapshot import Reading, Reason, known

MOST_GPUS: Final = 256
"""Largest number of GPUs of a host; a line or an answer with more is not used."""
GREATEST: Final = 2.0**63
"""Bound on the numbers that another machine or a server sends."""


class HostGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a host: the figures that a row shows."""

    index: int
    uuid: str = ""
    name: str = ""
    used: Reading = Reason.NO_SAMPLE
    """Bytes."""
    total: Reading = Reason.NO_SAMPLE
    free: Reading = Reason.NO_SAMPLE
    left: Reading = Reason.NO_SAMPLE
    """Bytes: free memory, minus what is promised."""
    utilization: Reading = Reason.NO_SAMPLE
    """Percent."""
    processes: int | None = None
    """Number of processes that hold its memory; None if not known."""
    up: bool = True
    """Whether it answers."""
    near: Severity | None = None
    """Severity of the alert that it is nearly full."""

    @property
    def is_free(self) -> bool:
        """Whether it answers and nobody holds memory of it."""
        return self.up and self.processes == 0


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One machine: its GPUs, its people, its alerts, and the age of these figures."""

    name: str
    gpus: tuple[HostGpu, ...] = ()
    people: int | None = None
    """Number of people who hold GPU memory; None if not known."""
    alerts: int = 0
    """Number of active alerts of severity warning or critical."""
    worst: str = ""
    """Title of the worst of them; empty for none."""
    severity: Severity | None = None
    """Its severity."""
    age: float | None = None
    """Seconds since its newest sample; None if there was none yet."""
    trouble: str = ""
    """Why there are no new figures, and what to do about it; empty for no trouble."""

    @property
    def memory(self) -> tuple[float, float]:
        """Used and total bytes of the GPUs that report both."""
        pairs = [(float(gpu.used), float(gpu.total)) for gpu in self.gpus if known(gpu.used) and known(gpu.total)]
        return sum(used for used, total in pairs if total > 0), sum(total for _, total in pairs)

    @property
    def weight(self) -> tuple[int, int, str]:
        """Sort key of hosts, worst first: by severity (a trouble counts as critical), then by alerts and name."""
        severity = Severity.CRITICAL if self.trouble else self.severity
        return (-(severity.value if severity is not None else -1), -self.alerts, self.name)


def _sum(readings: Iterable[Reading]) -> Amount | None:
    """Return a sum; a lower bound where a part is not known, None where no part is."""
    every = list(readings)
    numbers = [float(one) for one in every if known(one)]
    return Amount(sum(numbers), at_least=len(numbers) < len(every)) if numbers else None


def _used_percent(host: Host) -> Amount | None:
    used, total = host.memory
    return Amount(100 * used / total) if total else None


def _busy(host: Host) -> Amount | None:
    values = [float(gpu.utilization) for gpu in host.gpus if known(gpu.utilization)]
    return Amount(sum(values) / len(values)) if values else None


HOST: Final[Mapping[str, Field[Host]]] = table(
    (
        Field("host", "host", lambda host: host.name, ascending=True, right=False),
        Field("gpus", "GPUs", lambda host: Amount(len(host.gpus)) if host.gpus else None),
        Field(
            "free",
            "free",
            lambda host: Amount(sum(gpu.is_free for gpu in host.gpus)) if host.gpus else None,
            words="free GPUs",
        ),
        Field("memory", "mem %", _used_percent, Unit.PERCENT, words="memory"),
        Field("left", "left GiB", lambda host: _sum(gpu.left for gpu in host.gpus), Unit.BYTES, words="memory left"),
        Field("busy", "util %", _busy, Unit.PERCENT, words="utilization"),
        Field("people", "people", lambda host: amount(host.people)),
        Field("age", "age", lambda host: amount(host.age), Unit.SECONDS, quiet=5.0),
        Field(
            "worst",
            "worst alert",
            lambda host: host.trouble or (f"{MARKS[host.severity]} {host.worst}" if host.severity is not None else ""),
            rank=lambda host: -float(host.weight[0]),
            right=False,
        ),
    )
)
"""Columns of a list of hosts, in their usual order."""
