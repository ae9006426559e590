"""Every type that crosses the stream between the sampler and its readers.

One snapshot is one JSON object on one line. A reading is a number, or the `Reason` there is none: in JSON a number or
a string. Units stand in the name's docstring: memory in bytes, utilization in percent (0 to 100), temperature in °C,
power in watts, clocks in MHz, wall-clock times in seconds since the epoch, monotonic times in seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias, TypeGuard

import msgspec

from gpuwatch.declarations import Declared
from gpuwatch.surroundings import Surroundings

SCHEMA = 1
"""Version of the stream. A reader refuses a greater one; a field is only ever added within one version."""


class Reason(StrEnum):
    """Why a reading is no number."""

    UNSUPPORTED = "unsupported"
    """The device or its driver does not have this figure."""
    DENIED = "denied"
    """The figure exists, and we may not read it."""
    NO_SAMPLE = "no sample"
    """Nothing was measured yet, or the last measurement is void."""
    ERROR = "error"
    """The call failed in a way that says nothing about the figure."""


Reading: TypeAlias = int | float | Reason


def known(reading: Reading) -> TypeGuard[int | float]:
    """Say whether a reading is a number."""
    return not isinstance(reading, Reason)


def number(reading: Reading) -> float | None:
    """Give a reading as a float, or None where there is a reason instead."""
    return float(reading) if known(reading) else None


class Health(StrEnum):
    """What state a GPU is in, as far as its driver lets us see it."""

    OK = "ok"
    LOST = "lost"
    DENIED = "no permission"
    RESET = "needs reset"
    NOT_READY = "not ready"
    SILENT = "not responding"
    QUARANTINED = "quarantined"
    """Its calls crashed the sampler again and again; it is left alone until the user asks."""
    MISSING = "missing"
    """It was there and the driver no longer lists it."""
    FAILED = "failed"
    """Any other error code, named in the GPU's `words`."""


class Presence(StrEnum):
    """How much of a process we can see in /proc."""

    SEEN = "seen"
    GONE = "gone"
    """NVML lists it and the kernel has no such process."""
    HIDDEN = "hidden"
    """/proc is mounted with hidepid: it may exist, and is not ours to see."""
    ELSEWHERE = "other namespace"
    """We run in a PID namespace of our own (a container), where this PID means nothing."""
    UNSURE = "unsure"
    """The same, and a process of ours has this PID, by chance or not: the driver may mean another outside. What is
    told of it is of ours, but its memory may be the other's; its uid is not known, and its user ends in `?`."""
    UNREADABLE = "unreadable"
    """It could not be read just now: no file descriptor or no memory was left for it (EMFILE, ENFILE, ENOMEM), or the
    kernel failed. It may run or not; what is told of it was read before."""


class SourceState(StrEnum):
    """What state the whole stream is in."""

    OK = "ok"
    STARTING = "starting"
    NO_DRIVER = "no driver"
    """There is no NVIDIA library here, or it cannot be used: waiting does not help."""
    DRIVER_DOWN = "driver down"
    """The library is here and the driver does not answer: not loaded, of another version, being upgraded."""
    NO_GPU = "no gpu"
    SILENT = "not responding"
    """The driver hangs before any GPU can be asked."""
    ENDED = "ended"
    """A source that cannot go on (a wrong `--only`, a sampler that will not start)."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a GPU or a MIG instance, in bytes. `used` excludes `reserved`; total = used + free + reserved."""

    total: Reading = Reason.NO_SAMPLE
    used: Reading = Reason.NO_SAMPLE
    free: Reading = Reason.NO_SAMPLE
    reserved: Reading = Reason.NO_SAMPLE
    """What driver and firmware keep; a reason where the driver only knows the first memory call."""
    unified: bool = False
    """The GPU shares the machine's memory: the figures are MemTotal and MemAvailable, and not the GPU's own."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """One process's memory and use of one GPU."""

    pid: int
    start: int = 0
    """Start time in clock ticks since boot (0: unknown); with the pid it names one process for good."""
    kind: str = "C"
    """C compute, G graphics, M a client of the MPS server; several joined by `+`."""
    memory: Reading = Reason.NO_SAMPLE
    """Bytes. Unsupported on WSL and on some MIG and vGPU set-ups."""
    sm: Reading = Reason.NO_SAMPLE
    """Percent of time that its kernels ran on the GPU since the last sample, and in the last 1.25 s at least; 0 is
    measured idleness. Of all processes of a GPU together no more than 100."""
    memory_utilization: Reading = Reason.NO_SAMPLE
    encoder: Reading = Reason.NO_SAMPLE
    decoder: Reading = Reason.NO_SAMPLE
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG instance of a GPU."""

    uuid: str
    name: str
    gpu_instance: int
    compute_instance: int
    memory: Memory = Memory()

    @property
    def profile(self) -> str:
        """What its name ends in and tells it from others: `1g.10gb` of `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.

        Source: docs.nvidia.com/datacenter/tesla/mig-user-guide, "MIG Device Names".
        """
        return self.name.rpartition("MIG ")[2]


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    """How often the driver reported one error of a GPU (an XID, as in the kernel's log) since the sampler began."""

    code: int
    count: int = 1
    last: float = 0.0
    """Wall-clock time of the newest."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: what it is, how it is, and who holds it."""

    index: int
    """NVML's index at this moment; identity is the `uuid`."""
    uuid: str = ""
    """Empty while the driver has never given us a handle."""
    name: str = ""
    bus_id: str = ""
    minor: Reading = Reason.NO_SAMPLE
    """The N of its device file /dev/nvidiaN."""
    compute_capability: Reading = Reason.NO_SAMPLE
    """CUDA's number for what it can do: 8.6."""
    cores: Reading = Reason.NO_SAMPLE
    """CUDA cores."""
    sm_clock_max: Reading = Reason.NO_SAMPLE
    health: Health = Health.OK
    words: str = ""
    """What is wrong, in plain words with the NVML code and call; empty when all is well."""
    since: float = 0.0
    """Wall-clock time at which the health became what it is; 0 for always."""
    sampled: float = 0.0
    """Monotonic time (the sampler's clock) at which the last reading of the fast figures began; 0 for never."""
    slow_sampled: float = 0.0
    """The same for the figures asked every 10 s: fan, clocks, P-state, encoder, decoder, graphics and MPS lists."""

    memory: Memory = Memory()
    utilization: Reading = Reason.NO_SAMPLE
    """Percent of the driver's last sample period in which a kernel ran: busy time, not occupancy."""
    memory_utilization: Reading = Reason.NO_SAMPLE
    """Percent of the same period in which memory was read or written."""
    encoder: Reading = Reason.NO_SAMPLE
    decoder: Reading = Reason.NO_SAMPLE
    temperature: Reading = Reason.NO_SAMPLE
    slowdown_temperature: Reading = Reason.NO_SAMPLE
    power: Reading = Reason.NO_SAMPLE
    power_limit: Reading = Reason.NO_SAMPLE
    fan: Reading = Reason.NO_SAMPLE
    """Percent of the fan's top speed, as asked for."""
    sm_clock: Reading = Reason.NO_SAMPLE
    memory_clock: Reading = Reason.NO_SAMPLE
    pstate: Reading = Reason.NO_SAMPLE
    """0 is the fastest, 15 the slowest."""
    throttle: tuple[str, ...] | Reason = Reason.NO_SAMPLE
    """What holds the clocks down, worst first: `hw thermal`, `power brake`, `sw thermal`, `power cap`…"""
    ecc_uncorrected: Reading = Reason.NO_SAMPLE
    """Uncorrected memory errors since the driver was loaded."""
    remap_pending: bool | Reason = Reason.NO_SAMPLE
    """Whether rows of memory wait for a reset to be replaced."""
    remap_failed: bool | Reason = Reason.NO_SAMPLE
    """Whether the replacing of a row has ever failed: then the GPU is to be exchanged."""
    xids: tuple[Xid, ...] | Reason = Reason.NO_SAMPLE
    """Since this sampler began, by code; a reason where the driver reports no events to us."""
    persistence: bool | Reason = Reason.NO_SAMPLE
    compute_mode: str = Reason.NO_SAMPLE.value
    """`default`, `exclusive process`, `prohibited`, or the reason it is not known."""
    display_active: bool | Reason = Reason.NO_SAMPLE
    mig: bool | Reason = Reason.NO_SAMPLE
    instances: tuple[Instance, ...] = ()

    holdings: tuple[Holding, ...] = ()
    holdings_note: str = ""
    """Why the list of holdings is missing, incomplete or unreliable; empty when it can be trusted."""
    unreliable: bool = False
    """The list makes no sense (a pid over pid_max, memory over the device's): nothing on it may be signalled."""
    unattributed: Reading = Reason.NO_SAMPLE
    """Bytes: used (which excludes reserved) less the holdings, never below 0; a reason where a holding has none."""
    promised: Reading = Reason.NO_SAMPLE
    """Bytes that may still be taken beyond what is held, by those who declared them or reserved them (`gpuwatch run`).
    It is a part of what is free, or more than that. Limits that could not be read are not in it."""
    opened_by: tuple[int, ...] = ()
    """PIDs of at most 16 processes, as of `Snapshot.searched`, that have its device file open, do more than ask the
    driver and are not on its list: workers, and programs that are listed on another GPU."""

    @property
    def key(self) -> str:
        """What identifies this GPU: its UUID, or its index for as long as the UUID is unknown."""
        return self.uuid or f"index-{self.index}"


INDEX_UNKNOWN = -1
"""In place of how many GPUs there are, for an index that is no longer right."""


class Place(msgspec.Struct, frozen=True):
    """Where a GPU was found; a fresh sampler is told of all, and finds each again without a call to another."""

    index: int
    """NVML's index."""
    listed: int
    """How many GPUs the driver listed then: the index says nothing where it lists another number, nor where this is
    INDEX_UNKNOWN. 0: it did not list this one."""
    uuid: str = ""
    """Empty where it was never given: then there is nothing but the index."""
    name: str = ""
    bus_id: str = ""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process that NVML lists, as /proc shows it."""

    pid: int
    start: int = 0
    """Start time in clock ticks since boot (field 22 of /proc/PID/stat); 0 where it cannot be read."""
    presence: Presence = Presence.SEEN
    uid: int | None = None
    user: str = ""
    """Name, or the uid in digits while the name is not known; empty where the owner is not visible."""
    name: str = ""
    command: str = ""
    """Command line, cleaned, secrets masked."""
    program: str = ""
    """Mark that changes when it starts another program (execve), and not when it only changes its title; empty where
    that cannot be told."""
    state: str = ""
    """`running`, `sleeping`, `disk sleep`, `stopped`, `zombie`…; empty where it cannot be read."""
    ppid: int | None = None
    parent: str = ""
    """Name of the parent process."""
    terminal: str = ""
    """`/dev/pts/3`, or empty for none."""
    session: int = 0
    """PID of the leader of its session: a login's shell, or itself; 0 where it cannot be read."""
    led: bool | None = None
    """Whether that leader still runs; None where it cannot be told."""
    adopted: bool = False
    """The process that started it has ended: its parent is init, or who takes in orphans in its place."""
    cpu: Reading = Reason.NO_SAMPLE
    """Percent of one core since the last sample."""
    below: Reading = Reason.NO_SAMPLE
    """The same of all that it has started, over the last 10 s; only of the viewer's own processes."""
    rss: Reading = Reason.NO_SAMPLE
    """Resident host memory in bytes."""
    started: float | None = None
    """Wall-clock start time."""
    declared: Declared | None = None
    """What it said it would take; None where nobody has looked."""
    surroundings: Surroundings | None = None
    """What it runs in and belongs to; None where nobody has looked, or not yet."""

    @property
    def key(self) -> tuple[int, int]:
        """What identifies this process on its host: pid and start time."""
        return (self.pid, self.start)


class Unlisted(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has GPU device files open and that NVML does not list: a worker that was forked, or a leftover."""

    process: Process
    """Its `declared` is always None: it holds nothing that NVML would count."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs whose device files it has open; a CUDA program opens those of all that it can see."""
    context: bool = False
    """It has /dev/nvidia-uvm open too, as CUDA programs have and what only asks the driver has not."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen at one moment on one machine."""

    schema: int = SCHEMA
    sequence: int = 0
    """Counts up by one a sample within one run of the sampler."""
    host: str = ""
    taken: float = 0.0
    """Wall-clock time."""
    monotonic: float = 0.0
    """The sampler's monotonic clock when the snapshot was complete; ages are differences to it."""
    interval: float = 1.0
    """Seconds between two samples, as asked for."""
    viewer: int = -1
    """The uid whose processes are `mine`."""
    driver: str = ""
    cuda: str = ""
    """Highest CUDA version the driver supports, `13.0`."""
    state: SourceState = SourceState.OK
    words: str = ""
    """What is wrong with the whole, and what to do next; empty when all is well."""
    since: float = 0.0
    """Wall-clock time at which `state` became what it is."""
    demo: bool = False
    confined: bool = False
    """The sampler runs in a PID namespace of its own (a container): it may not be told of processes outside."""
    nvml_calls: int = 0
    """NVML calls of this sampler so far."""
    listed: int = 0
    """How many GPUs the driver lists, those that are left alone among them; 0 where it was not asked."""
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[Process, ...] = ()
    unlisted: tuple[Unlisted, ...] = ()
    """As last searched for, over some seconds; of other people's only where we may look at them (root)."""
    searched: float = 0.0
    """Wall-clock time at which that search last ended; 0 for not yet."""
    blind: int = 0
    """How many processes that search could not look into: they are other people's and we are not root, or it had no
    file descriptor or no memory left."""
    hides: bool = False
    """/proc is mounted so that we do not even see other people's processes (hidepid)."""
    mps: tuple[int, ...] = ()
    """PIDs of MPS servers among those that the search could not look into."""


encode = msgspec.json.Encoder().encode
"""One snapshot to JSON bytes, without the newline."""

decode = msgspec.json.Decoder(Snapshot).decode
"""JSON to a snapshot; raises msgspec.ValidationError or msgspec.DecodeError."""
