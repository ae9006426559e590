"""Metrics of a machine, one table: what each is called, what it counts, and how it is read from the newest frame.

The figures of GPUs and processes are those of the table of fields, in base units: bytes, ratios (0 to 1), watts,
seconds. What is not known is absent, never 0; so is all but the age and the health of a GPU that no longer answers. The
figures of a GPU have also the names of nvidia_gpu_exporter (`nvidia_smi_…`) and of NVIDIA's DCGM exporter
(`DCGM_FI_DEV_…`, in its units), so that dashboards made for these go on. Pure functions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import Allowances
from gpuwatch.alerts.rules.memory import time_to_full
from gpuwatch.alerts.rules.shares import overshoots
from gpuwatch.analysis.rows import rows
from gpuwatch.base.units import Unit
from gpuwatch.model.fields import GPU, PROCESS, QUIET_S, Field, Row, throttle_words
from gpuwatch.model.holdings import UNSEEN_USER, GpuProcess, declared_by
from gpuwatch.model.shares import DeclaredMemory, declared_memory
from gpuwatch.model.snapshot import (
    Gpu,
    Health,
    Reading,
    Reason,
    Snapshot,
    SourceState,
    known,
)
from gpuwatch.monitor import Frame
from gpuwatch.version import __version__

PREFIX: Final = "gpuwatch"
OLDEST: Final = 10.0
"""Seconds, or five intervals if that is longer, after which the figures of a GPU are absent."""

_BASE: Final[Mapping[Unit, tuple[str, float]]] = {
    Unit.BYTES: ("_bytes", 1.0),
    Unit.FREE: ("_bytes", 1.0),
    Unit.PERCENT: ("_ratio", 0.01),
    Unit.CELSIUS: ("_celsius", 1.0),
    Unit.WATTS: ("_watts", 1.0),
    Unit.SECONDS: ("_seconds", 1.0),
    Unit.MHZ: ("_hertz", 1e6),
    Unit.COUNT: ("", 1.0),
    Unit.NONE: ("", 1.0),
}
"""Base unit of each unit of the screen: the end of a metric's name, and the factor."""

Value = float | None
Labels = tuple[str, ...]


class ExportedMetric(NamedTuple):
    """One metric of a kind of row."""

    name: str
    help: str
    read: Callable[[Any], Value]
    """Returns the value of a row; None where it is not known, and for a row that has none."""

    @property
    def counter(self) -> bool:
        return self.name.endswith("_total")


class Group(NamedTuple):
    """Metrics of one kind of row."""

    title: str
    """What a row is, for the documents."""
    labels: Labels
    rows: Callable[[ScrapedMachine], Iterable[tuple[Labels, Any]]]
    """Returns each row with the values of the labels."""
    metrics: tuple[ExportedMetric, ...]


class ScrapedMachine(NamedTuple):
    """Newest frame, and all else that the metrics are read from."""

    frame: Frame
    now: float
    """Monotonic time of the scrape."""
    failures: Mapping[str, int] = {}
    """Samples in which a GPU did not answer, by `Gpu.key`."""
    samples: int = 0
    """Samples so far."""
    allowances: Allowances = Allowances()
    per_process: int = 0
    """Number of processes that have metrics of their own."""

    def age(self, sampled: float) -> Value:
        """Return the seconds since a sample; None where there was none."""
        snapshot = self.frame.snapshot
        return max(0.0, self.now - self.frame.received + snapshot.monotonic - sampled) if sampled else None

    def fresh(self) -> Iterator[Gpu]:
        """Yield the GPUs that answer and whose sample is not old."""
        oldest = max(OLDEST, 5 * self.frame.snapshot.interval)
        for gpu in self.frame.snapshot.gpus:
            age = self.age(gpu.sampled)
            if gpu.health is Health.OK and age is not None and age <= oldest:
                yield gpu

    def trusted(self) -> Iterator[Gpu]:
        """Yield those of them whose list of processes can be right."""
        return (gpu for gpu in self.fresh() if not gpu.unreliable)


class GpuRow(NamedTuple):
    """One GPU with what is computed for it."""

    gpu: Gpu
    machine: ScrapedMachine
    declared: DeclaredMemory
    full: float | None
    """Seconds until it is full, where its memory grows steadily."""


class UserRow(NamedTuple):
    memory: Value
    declared: int | None
    promised: int
    over: int | None
    """Bytes above the limits beyond the allowance; None where no limit is known."""
    idle: float | None
    idle_memory: int | None
    """None where the idle time of a process is not known."""
    processes: int | None


# -- Rows ---------------------------------------------------------------------------------------------------------


def gpu_labels(gpu: Gpu) -> Labels:
    return (gpu.uuid, str(gpu.index), gpu.name)


def _answering(machine: ScrapedMachine) -> Iterator[tuple[Labels, GpuRow]]:
    history, processes = machine.frame.history, machine.frame.holdings.processes
    for gpu in machine.fresh():
        trend = history.gpu(gpu.key).trend
        full = time_to_full(gpu, trend) if trend is not None and trend.steady else None
        yield gpu_labels(gpu), GpuRow(gpu, machine, declared_memory(gpu, processes), full)


def _users(machine: ScrapedMachine) -> Iterator[tuple[Labels, UserRow]]:
    """Yield each user on each GPU; all who are not visible are one, and so are two uids of one name."""
    holdings = machine.frame.holdings
    names = {**holdings.names}
    for promise in (each for gpu in machine.trusted() for each in gpu.promises):
        if promise.uid is not None:
            names.setdefault(promise.uid, promise.user)

    def name_of(uid: int | None) -> str:
        return UNSEEN_USER if uid is None else names[uid]

    most: dict[tuple[int, tuple[int, ...]], int] = {}
    for one in overshoots(holdings.snapshot, machine.allowances):  # of several limits of the same processes the worst
        most[one.gpu, one.pids] = max(most.get((one.gpu, one.pids), 0), one.held - one.declared)
    over: Counter[tuple[int, str]] = Counter()
    for (index, pids), size in most.items():
        over[index, name_of(holdings.processes[pids[0]].uid)] += size
    for gpu in machine.trusted():
        held: defaultdict[str, list[GpuProcess]] = defaultdict(list)
        for owner in holdings.owners(gpu):
            held[owner.name] += owner.processes
        promised: Counter[str] = Counter()
        for promise in gpu.promises:
            promised[name_of(promise.uid)] += promise.bytes
        for name in {**held, **promised}:
            row = _user(machine, gpu, held.get(name, ()), promised[name], over[gpu.index, name])
            yield (*gpu_labels(gpu), name), row


def _user(machine: ScrapedMachine, gpu: Gpu, held: Sequence[GpuProcess], promised: int, over: int) -> UserRow:
    """Return the figures of a user; without processes, of one to whom memory is only promised."""
    limited = declared_by(gpu, held, machine.frame.holdings.processes)
    declared = limited.declared if limited.limits else None
    whole = all(one.complete for one in held) and not gpu.holdings_note
    idle = [(one, machine.frame.history.idle(gpu.key, one.process.pid, one.start)) for one in held]
    resting = [(one, idle.seconds) for one, idle in idle if idle is not None and idle.seconds >= QUIET_S]
    known_idle = whole and all(seconds is not None for _, seconds in idle)
    return UserRow(
        memory=sum(one.memory for one in held) if whole else None,
        declared=declared,
        promised=promised,
        over=over if declared is not None else None,
        idle=max((seconds for _, seconds in resting), default=None),
        idle_memory=sum(one.memory for one, _ in resting) if known_idle else None,
        processes=None if gpu.holdings_note else len({one.process.pid for one in held}),
    )


def _largest(machine: ScrapedMachine) -> Iterator[tuple[Labels, Row]]:
    """Yield the processes that have metrics of their own, the largest first."""
    trusted = {gpu.key for gpu in machine.trusted()}
    found = [row for row in rows(machine.frame.snapshot, machine.frame.history) if row.gpu.key in trusted]
    found.sort(key=lambda row: -float(row.holding.memory) if known(row.holding.memory) else 0.0)
    for row in found[: machine.per_process]:
        holding, process = row.holding, row.process
        instance = "" if holding.gpu_instance is None else str(holding.gpu_instance)
        yield (*gpu_labels(row.gpu), process.user or UNSEEN_USER, str(holding.pid), process.name, instance), row


def _left_out(machine: ScrapedMachine) -> Value:
    found = sum(len(gpu.holdings) for gpu in machine.trusted())
    return max(0, found - machine.per_process) if machine.per_process else None


def _newest(machine: ScrapedMachine) -> float:
    return max((gpu.sampled for gpu in machine.frame.snapshot.gpus), default=0.0)


def _sampled_at(machine: ScrapedMachine) -> Value:
    snapshot = machine.frame.snapshot
    return snapshot.taken - (snapshot.monotonic - _newest(machine)) if _newest(machine) else None


def _duration(machine: ScrapedMachine) -> Value:
    began = [gpu.sampled for gpu in machine.fresh()]
    return max(0.0, machine.frame.snapshot.monotonic - min(began)) if began else None


def _gpu_alerts(machine: ScrapedMachine) -> Iterable[tuple[Labels, int]]:
    """Return the alerts about each GPU; an alert about processes has the name of their owner."""
    gpus = {gpu.key: gpu for gpu in machine.frame.snapshot.gpus}
    return Counter(
        (*gpu_labels(gpus[alert.gpu]), user, alert.rule, alert.severity.name.lower())
        for alert in machine.frame.alerts
        if alert.gpu in gpus
        for user in (alert.owners if alert.subject else ()) or ("",)
    ).items()


# -- Metrics ------------------------------------------------------------------------------------------------------

_GPU: Final[Mapping[str, tuple[str, str]]] = {
    "memory": ("memory_used", "Memory in use, without the driver's own"),
    "free": ("memory_free", "Free memory"),
    "left": ("memory_left", "Free memory, minus what is promised"),
    "total": ("memory_total", "Total memory"),
    "promised": ("memory_promised", "Memory that is declared or reserved, and not used yet"),
    "reserved": ("memory_reserved", "Memory that the driver keeps for itself"),
    "unknown": ("memory_unknown", "Memory of unknown processes"),
    "utilization": ("utilization", "Part of the time in which a kernel ran"),
    "memory_utilization": ("memory_utilization", "Part of the time in which memory was read or written"),
    "encoder": ("encoder", "Utilization of the video encoder"),
    "decoder": ("decoder", "Utilization of the video decoder"),
    "fan": ("fan_speed", "Speed of the fan as a part of its top speed"),
    "temperature": ("temperature", "Temperature of the GPU"),
    "slowdown_temperature": ("slowdown_temperature", "Temperature at which the GPU slows itself down"),
    "power": ("power", "Power that the GPU draws"),
    "power_limit": ("power_limit", "Power limit in effect"),
    "sm_clock": ("sm_clock", "Clock of the SMs"),
    "memory_clock": ("memory_clock", "Clock of the memory"),
    "pstate": ("pstate", "Performance state, 0 is the fastest"),
    "processes": ("processes", "Processes that hold memory of the GPU"),
}
"""Name and help of the metrics of a GPU, by the keys of the table of fields."""

_PROCESS: Final[Mapping[str, tuple[str, str]]] = {
    "memory": ("memory", "Memory of the GPU that the process holds"),
    "sm": ("sm", "Part of the time in which its kernels ran"),
    "cpu": ("cpu", "CPU time a second, 1 is one core"),
    "rss": ("resident_memory", "Resident memory of the host"),
    "idle": ("idle", "Time since it last ran a kernel"),
    "age": ("age", "Time since it was started"),
}


def _reading(path: str, factor: float = 1.0) -> Callable[[Any], Value]:
    """Return the function that reads an attribute of a row, and multiplies it by a factor."""
    find = attrgetter(path)

    def read(row: Any) -> Value:
        value: Reading | bool | Reason | None = find(row)
        return None if value is None or isinstance(value, Reason) else float(value) * factor

    return read


def _own(name: str, words: str, read: str | Callable[[Any], Value]) -> ExportedMetric:
    return ExportedMetric(f"{PREFIX}_{name}", words, _reading(read) if isinstance(read, str) else read)


def _field_metrics(
    fields: Mapping[str, Field[Any]], names: Mapping[str, tuple[str, str]], part: str, row: Callable[[Any], Any]
) -> tuple[ExportedMetric, ...]:
    """Return the metrics of fields; a lower bound is none, since a graph cannot say that it is one."""

    def metric(field: Field[Any], name: str, words: str) -> ExportedMetric:
        ending, factor = _BASE[field.unit]

        def read(one: Any) -> Value:
            found = field.amount(row(one))
            return found.number * factor if found is not None and not found.at_least else None

        return _own(f"{part}_{name}{ending}", words, read)

    return tuple(metric(fields[key], name, words) for key, (name, words) in names.items())


_GPU_LABELS: Final = ("uuid", "gpu", "name")
_USER_LABELS: Final = (*_GPU_LABELS, "user")

GROUPS: Final[tuple[Group, ...]] = (
    Group(
        "GPU",
        _GPU_LABELS,
        _answering,
        (
            *_field_metrics(GPU, _GPU, "gpu", lambda row: row.gpu),
            _own(
                "gpu_memory_declared_bytes",
                "Sum of the limits that processes declared, as far as they can be read",
                lambda row: row.declared.declared if row.declared.limits or not row.declared.unread else None,
            ),
            _own("gpu_unread_processes", "Processes whose declarations cannot be read", "declared.unread"),
            _own("gpu_full_seconds", "Time until the GPU is full, while it fills steadily", "full"),
            _own(
                "gpu_ecc_uncorrected_errors_total",
                "Uncorrected memory errors since the driver was loaded",
                "gpu.ecc_uncorrected",
            ),
            _own(
                "gpu_remap_pending",
                "Whether broken rows of memory will be replaced at the next reset",
                "gpu.remap_pending",
            ),
            _own(
                "gpu_remap_failed", "Whether the replacement of a broken row of memory ever failed", "gpu.remap_failed"
            ),
        ),
    ),
    Group(
        "GPU, whether it answers or not",
        _GPU_LABELS,
        lambda machine: ((gpu_labels(gpu), (gpu, machine)) for gpu in machine.frame.snapshot.gpus),
        (
            _own("gpu_up", "Whether the GPU answers", lambda row: float(row[0].health is Health.OK)),
            _own(
                "gpu_sample_age_seconds",
                "Time since the last sample of the GPU",
                lambda row: row[1].age(row[0].sampled),
            ),
            _own(
                "gpu_failed_samples_total",
                "Samples in which the GPU did not answer, since the exporter was started",
                lambda row: row[1].failures.get(row[0].key, 0),
            ),
        ),
    ),
    Group(
        "state of health of a GPU",
        (*_GPU_LABELS, "state"),
        lambda machine: (((*gpu_labels(gpu), gpu.health.value), gpu) for gpu in machine.frame.snapshot.gpus),
        (_own("gpu_health", "1 for the current state: ok, or the fault", lambda gpu: 1.0),),
    ),
    Group(
        "reason that limits the clocks of a GPU",
        (*_GPU_LABELS, "reason"),
        lambda machine: (
            ((*gpu_labels(gpu), words), gpu)
            for gpu in machine.fresh()
            if isinstance(gpu.throttle, tuple)
            for words in throttle_words(gpu.throttle)
        ),
        (_own("gpu_throttled", "1 for each reason that limits the clocks now", lambda gpu: 1.0),),
    ),
    Group(
        "XID of a GPU",
        (*_GPU_LABELS, "xid"),
        lambda machine: (
            ((*gpu_labels(gpu), str(one.code)), one.count)
            for gpu in machine.frame.snapshot.gpus
            if isinstance(gpu.xids, tuple)
            for one in gpu.xids
        ),
        (_own("gpu_xid_errors_total", "XIDs that the driver reported since the sampler was started", float),),
    ),
    Group(
        "MIG instance",
        (*_GPU_LABELS, "mig_uuid", "mig_instance", "mig_profile"),
        lambda machine: (
            ((*gpu_labels(gpu), one.uuid, str(one.gpu_instance), one.profile), one)
            for gpu in machine.fresh()
            for one in gpu.instances
        ),
        (
            _own("mig_memory_used_bytes", "Memory in use", "memory.used"),
            _own("mig_memory_free_bytes", "Free memory", "memory.free"),
            _own("mig_memory_total_bytes", "Total memory", "memory.total"),
        ),
    ),
    Group(
        "user on a GPU",
        _USER_LABELS,
        _users,
        (
            _own("user_memory_bytes", "Memory that the user's processes hold", "memory"),
            _own("user_declared_bytes", "Memory that the user's processes declared", "declared"),
            _own("user_promised_bytes", "Memory that the user declared or reserved, and does not use yet", "promised"),
            _own("user_over_bytes", "Memory above the declared share, if it is more than the allowance", "over"),
            _own(
                "user_idle_seconds",
                "Longest time in which one of the user's processes held memory and ran no kernel; from one minute on",
                "idle",
            ),
            _own(
                "user_idle_memory_bytes",
                "Memory of the user's processes that have run no kernel for a minute or longer",
                "idle_memory",
            ),
            _own("user_processes", "Processes that hold memory", "processes"),
        ),
    ),
    Group(
        "one of the largest processes, with `--per-process`",
        (*_USER_LABELS, "pid", "program", "mig_instance"),
        lambda machine: _largest(machine) if machine.per_process else (),
        _field_metrics(PROCESS, _PROCESS, "process", lambda row: row),
    ),
    Group(
        "rule with active alerts",
        ("rule", "severity"),
        lambda machine: Counter(
            (alert.rule, alert.severity.name.lower())
            for alert in machine.frame.alerts
            if alert.severity >= Severity.WARNING
        ).items(),
        (_own("alerts", "Active alerts of a rule", float),),
    ),
    Group(
        "rule with active alerts on a GPU",
        (*_USER_LABELS, "rule", "severity"),
        _gpu_alerts,
        (
            _own(
                "gpu_alerts",
                "Active alerts about the GPU, notes too; with the owner if they are about processes",
                float,
            ),
        ),
    ),
    Group(
        "machine",
        (),
        lambda machine: (((), machine),),
        (
            _own(
                "driver_up",
                "Whether the driver answers",
                lambda machine: float(machine.frame.snapshot.state is SourceState.OK),
            ),
            _own(
                "sample_age_seconds",
                "Time since the newest sample of any GPU",
                lambda machine: machine.age(_newest(machine)),
            ),
            _own("sample_timestamp_seconds", "Time of the newest sample of any GPU, since the epoch", _sampled_at),
            _own("interval_seconds", "Time between two samples, as configured", "frame.snapshot.interval"),
            _own("sample_duration_seconds", "Time that the last sample of all GPUs took", _duration),
            _own("samples_total", "Samples since the exporter was started", "samples"),
            _own("nvml_calls_total", "NVML calls since the sampler was started", "frame.snapshot.nvml_calls"),
            _own(
                "processes_left_out",
                "Processes without metrics of their own; absent without `--per-process`",
                _left_out,
            ),
        ),
    ),
    Group(
        "version",
        ("version", "driver", "cuda"),
        lambda machine: (((__version__, machine.frame.snapshot.driver, machine.frame.snapshot.cuda), machine),),
        (_own("build_info", "1, with the versions of gpuwatch, driver and CUDA", lambda machine: 1.0),),
    ),
)
"""All metrics of gpuwatch, by the kind of their rows."""


# -- names of other exporters ------------------------------------------------------------------------------------------

_MIB: Final = 1 / 2**20

_SMI: Final[Mapping[str, tuple[str, float]]] = {
    "memory_used_bytes": ("memory.used", 1.0),
    "memory_free_bytes": ("memory.free", 1.0),
    "memory_total_bytes": ("memory.total", 1.0),
    "memory_reserved_bytes": ("memory.reserved", 1.0),
    "utilization_gpu_ratio": ("utilization", 0.01),
    "utilization_memory_ratio": ("memory_utilization", 0.01),
    "temperature_gpu": ("temperature", 1.0),
    "power_draw_watts": ("power", 1.0),
    "enforced_power_limit_watts": ("power_limit", 1.0),
    "fan_speed_ratio": ("fan", 0.01),
    "clocks_current_sm_clock_hz": ("sm_clock", 1e6),
    "clocks_current_memory_clock_hz": ("memory_clock", 1e6),
    "pstate": ("pstate", 1.0),
    "index": ("index", 1.0),
}
"""Reading and factor of metrics of nvidia_gpu_exporter. Source: its docs/METRICS.md."""
_DCGM: Final[Mapping[str, tuple[str, float]]] = {
    "GPU_UTIL": ("utilization", 1.0),
    "MEM_COPY_UTIL": ("memory_utilization", 1.0),
    "ENC_UTIL": ("encoder", 1.0),
    "DEC_UTIL": ("decoder", 1.0),
    "FB_USED": ("memory.used", _MIB),
    "FB_FREE": ("memory.free", _MIB),
    "FB_RESERVED": ("memory.reserved", _MIB),
    "GPU_TEMP": ("temperature", 1.0),
    "POWER_USAGE": ("power", 1.0),
    "SM_CLOCK": ("sm_clock", 1.0),
    "MEM_CLOCK": ("memory_clock", 1.0),
}
"""Reading and factor of metrics of DCGM's exporter, in MiB, percent and MHz. Source: its default-counters.csv."""


def _relabelled(
    labels: Callable[[Gpu, Snapshot], Labels],
) -> Callable[[ScrapedMachine], Iterator[tuple[Labels, GpuRow]]]:
    def rows(machine: ScrapedMachine) -> Iterator[tuple[Labels, GpuRow]]:
        for _, row in _answering(machine):
            if row.gpu.uuid:  # else two of them would be one
                yield labels(row.gpu, machine.frame.snapshot), row

    return rows


def _bare_uuid(gpu: Gpu) -> str:
    return gpu.uuid.removeprefix("GPU-").lower()


def _last_xid(row: GpuRow) -> Value:
    xids = row.gpu.xids
    return float(max(xids, key=lambda one: one.last).code) if isinstance(xids, tuple) and xids else None


ALIASES: Final[tuple[Group, ...]] = (
    Group(
        "GPU, by the names of nvidia_gpu_exporter",
        ("uuid",),
        _relabelled(lambda gpu, _: (_bare_uuid(gpu),)),
        tuple(
            ExportedMetric(f"nvidia_smi_{name}", f"As in nvidia_gpu_exporter: {path}", _reading(f"gpu.{path}", factor))
            for name, (path, factor) in _SMI.items()
        ),
    ),
    Group(
        "GPU, by the names of nvidia_gpu_exporter",
        ("uuid", "name", "driver_version"),
        _relabelled(lambda gpu, snapshot: (_bare_uuid(gpu), gpu.name, snapshot.driver)),
        (ExportedMetric("nvidia_smi_gpu_info", "As in nvidia_gpu_exporter: 1, with model and driver", lambda _: 1.0),),
    ),
    Group(
        "GPU, by the names of NVIDIA's DCGM exporter",  # without its label modelName, which promtool finds fault with
        ("gpu", "UUID", "device", "Hostname"),
        _relabelled(lambda gpu, snapshot: (str(gpu.index), gpu.uuid, f"nvidia{gpu.index}", snapshot.host)),
        (
            *(
                ExportedMetric(
                    f"DCGM_FI_DEV_{name}", f"As in NVIDIA's DCGM exporter: {path}", _reading(f"gpu.{path}", factor)
                )
                for name, (path, factor) in _DCGM.items()
            ),
            ExportedMetric("DCGM_FI_DEV_XID_ERRORS", "As in NVIDIA's DCGM exporter: the last XID", _last_xid),
        ),
    ),
)
"""Metrics by the names of other exporters."""
