"""Types that cross the stream between the sampler and its readers.

One snapshot is one JSON object on one line. A reading is a number, or the `Reason` why there is none: in JSON a number
or a string. Memory is in bytes, utilization in percent (0 to 100), temperature in °C, power in watts, clocks in MHz;
wall-clock times are seconds since the epoch, monotonic times are seconds. All text is clean. What cannot be read is
empty or None, never made up.

The docstrings of classes and fields are the reference of the stream in the guide (`docs/json.md`).
"""

# Without `from __future__ import annotations`: msgspec would compile each annotation at every start.
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias, TypeGuard

import msgspec

from gpuwatch.base import programs


class Kind(StrEnum):
    """Kind of a declaration. A cap, a hard limit and a grant are limits; the others limit nothing."""

    CAP = "cap"
    """The framework's own allocator refuses to exceed it."""
    HARD = "hard limit"
    """Something outside the framework enforces it: MPS, HAMi, the driver."""
    GRANT = "grant"
    """Agreed with a scheduler or with people; nothing enforces it."""
    START = "start size"
    """The first allocation; the process may take more by design."""
    CACHE = "cache"
    """A part of what is free after loading the model, for its cache; it does not limit the total."""
    RESERVE = "reserve"
    """The memory that should stay free."""
    GROWTH = "growth"
    """Memory is taken as it is needed; no number."""
    COMPUTE = "compute share"
    """A share of the SMs; it does not limit memory."""
    DEFAULT = "default"
    """What the framework takes if nothing is declared."""


LIMITS = frozenset({Kind.CAP, Kind.HARD, Kind.GRANT})
"""Kinds that hold a process to a number."""


class Basis(StrEnum):
    """Unit of the number in a declaration."""

    TOTAL = "of the GPU"
    """A fraction of the GPU's memory."""
    FREE_AT_START = "of what is free at start"
    FREE_AFTER_LOAD = "of what is free after loading"
    BYTES = "bytes"
    NONE = ""
    """There is no number, or it is no memory."""


class Confidence(StrEnum):
    """Confidence that the process runs with a declaration."""

    CERTAIN = "certain"
    LIKELY = "likely"
    """It is usually in effect where it was read, but it could have been changed since."""
    STALE = "stale"
    """The file was changed after the process started."""
    GUESS = "guess"
    POSSIBLE = "possible"
    """It depends on a condition that may not be true: it is no limit, and raises no alert."""


class Order(StrEnum):
    """Confidence about which GPU a framework's ordinal (`cuda:0`) means."""

    EXACT = "exact"
    """There is one GPU, the GPUs are named by UUID, or CUDA_DEVICE_ORDER is PCI_BUS_ID."""
    IDENTICAL = "identical GPUs"
    """All GPUs are of one model; CUDA then numbers them as NVML does."""
    HEURISTIC = "heuristic"
    """The order is a guess: the GPUs are of different models (CUDA puts the fastest first), or MIG instances."""


class Margin(StrEnum):
    """Allowance beyond a limit, before the holding is an overshoot; `[allowance]` has the sizes."""

    FRAMEWORK = "framework"
    """A CUDA context and the libraries' handles come on top of what the allocator counts."""
    EAGER = "eager"
    """The same, with all kernels loaded at once: before CUDA 11.7, or CUDA_MODULE_LOADING=EAGER."""
    BUDGET = "budget"
    """A server's own budget for everything (vLLM); its CUDA graphs and fragments exceed it."""
    EXACT = "exact"
    """Enforced, or agreed in bytes."""


class Knowledge(StrEnum):
    """State of the search for a process's declarations. "Cannot read" does not mean "nothing declared"."""

    READ = "read"
    PENDING = "not read yet"
    UNREADABLE = "unreadable"
    """Its environment belongs to another user, was overwritten, or could not be read in time."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One statement about the memory that a process takes."""

    channel: str
    """Its name: `XLA_PYTHON_CLIENT_MEM_FRACTION`, `--gpu-memory-utilization`, `set_limit`, `gpuwatch.toml`."""
    where: str = ""
    """Place where it was found: `environment`, `command line`, `environment of parent 812`, `train.py`."""
    line: int = 0
    """Line in that file; 0 for none."""
    text: str = ""
    """The statement as it is written there, cleaned."""
    framework: str = ""
    """The framework that reads it; empty if any does."""
    kind: Kind
    basis: Basis = Basis.NONE
    value: float | None = None
    """Fraction (0.4), of the SMs where `basis` is empty, or bytes; None if there is none, or only known at run time."""
    limits: dict[str, int] = {}
    """Its limit in bytes on each GPU that it concerns, by the GPU's UUID; empty if it is no limit."""
    scope: str = ""
    """Processes that it limits together: `container 3f9a1c`, `share of ada on GPU 2`; empty if only this one."""
    confidence: Confidence = Confidence.CERTAIN
    effective: bool = False
    """Whether it is in effect."""
    why: str = ""
    """Why it is in effect, or why not."""
    each: bool = False
    """Whether it limits the process on each GPU that it sees."""
    ordinal: bool = False
    """Whether it limits the process on one GPU, by its number among those that it sees."""
    guessed: bool = False
    """Whether its GPU is a guess, because CUDA's order of the GPUs is a guess (`heuristic`)."""
    undecided: bool = False
    """It may limit the process; but whether it does, to what, or on which GPU is known only at run time."""
    condition: str = ""
    """Condition of a `possible` declaration: "if `args.cap`". It quotes the script, cleaned and shortened."""


class Limit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limit in effect on one GPU."""

    gpu: str
    """UUID of the GPU."""
    bytes: int
    declaration: int
    """Index of its declaration in the list `declarations`."""
    scope: str = ""
    """As in the declaration: if it is not empty, the holdings of all processes of this group count together."""
    margin: Margin = Margin.FRAMEWORK


class Visible(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GPUs that a process can see, in its framework's order: the first is `cuda:0`."""

    gpus: tuple[str, ...] = ()
    """UUIDs of GPUs or MIG instances; empty if all are hidden."""
    order: Order = Order.EXACT
    text: str = ""
    """The setting that decides it: `CUDA_VISIBLE_DEVICES=3,2`; empty if there is none and all are visible."""
    where: str = ""
    """Place of that setting, as in a declaration."""
    note: str = ""
    """A remark on it: `-1 hides all entries after it`."""
    doubtful: bool = False
    """The process may not run with this setting; the note says why."""


class Hint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Statement that probably does not have the effect that its author intended."""

    rule: str
    """`misspelt`, `invalid`, `no effect`, `dynamic`."""
    words: str


class Declared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Declarations of one process."""

    knowledge: Knowledge = Knowledge.READ
    words: str = ""
    """Parts that could not be read, and why; empty if everything was read."""
    incomplete: bool = False
    """Some of its code, or of what its script loads, was not read; `words` names it. It may declare more."""
    frameworks: tuple[str, ...] = ()
    """Names of the frameworks that it uses: `JAX`; empty if none is known."""
    visible: Visible | None = None
    """None if it is not known."""
    unseen: str = ""
    """Why the GPUs that it sees are not known."""
    declarations: tuple[Declaration, ...] = ()
    """Declarations that were found, those in effect first. If there are many, only some; see `left_out`."""
    left_out: int = 0
    """Number of declarations that were found and are not in the list."""
    limits: tuple[Limit, ...] = ()
    """Limits in effect, at most one for each GPU and scope; the limit of only this process comes first."""
    collective: bool = False
    """It is one of several processes that exchange data between GPUs (NCCL), for which it needs buffers."""
    hints: tuple[Hint, ...] = ()
    hints_left_out: int = 0
    """Number of hints that are not in the list."""


def is_service(unit: str) -> bool:
    """Return whether a process in a systemd unit is the unit's service; an empty name is no unit.

    A notebook kernel below `jupyterhub.service`, or a window of `tmux@ada.service`, is not: people start and leave them
    by hand.
    """
    return bool(unit) and not unit.startswith(programs.INTERACTIVE_UNITS)


class Container(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Container of a process."""

    runtime: str = ""
    """`docker`, `podman`, `containerd`, `cri-o`, `lxc`, `apptainer`…; empty if the cgroup does not show it."""
    id: str = ""
    """The first 12 digits, as the runtime prints them."""
    name: str = ""
    """Empty if neither the runtime's socket nor its state can be read."""


class Pane(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Place in a terminal multiplexer where a process was started."""

    program: str
    """`tmux`, `screen` or `zellij`."""
    session: str = ""
    """Name of the session, or its number in tmux (`$0`)."""
    window: str = ""
    """Number and name of the window, or the number of the pane in tmux (`%3`)."""
    alive: bool | None = None
    """Whether its server still runs; None if that is not known."""


class Notebook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jupyter kernel that a process is, or is a child of."""

    kernel: str = ""
    """The beginning of its id."""
    path: str = ""
    """Path of the notebook, as its server knows it."""
    server: int | None = None
    """PID of the server that started it; None if the server has ended, or is not known."""
    left: bool = False
    """Its server has certainly ended."""


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Run that a process belongs to: all ranks and workers of one launch, or only the process."""

    key: str
    """The same for all processes of a run on this host: `PID:START` of its head, or the launcher's id of the run."""
    name: str = ""
    """Name to show, without folders and arguments, except a server's model: `train.py`, `vllm serve meta/llama`."""
    starter: str = ""
    """Name of the program that a worker works for, if it is not that of the run; empty if this is no worker."""
    launcher: str = ""
    """`torchrun`, `accelerate`, `deepspeed`, `mpirun`, `srun`, `ray`, `TF_CONFIG`…; empty for a run of one process."""
    head: int = 0
    """PID of the first process of the run that still exists: the launcher, or the only one; 0 if it is not visible."""
    head_start: int = 0
    """Start time of that process in clock ticks since boot; 0 if it is not visible."""
    rank: int | None = None
    """Number of this process among all ranks of the run, from 0; None if it is no rank."""
    local_rank: int | None = None
    """The same among the ranks on this host."""
    world: int | None = None
    """Number of ranks on all hosts; None if it is not known."""
    worker_of: int | None = None
    """PID of the rank (or only process) that started this worker; None if this process is a rank itself."""
    orphaned: bool = False
    """It is a leftover: its launcher, or the process that it is a worker of, has ended."""


class ProcessContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Context of a process. A part is empty or None if the process has none, or if it is not known."""

    container: Container | None = None
    pod: str = ""
    """Pod: with Kubernetes `namespace/name`, only the name, or the uid; with Podman the name or the id."""
    slurm: str = ""
    """Slurm job and step: `4711.0`, `4711.batch`, or only the job."""
    batch: str = ""
    """Other scheduler and its job: `pbs 4711`, `lsf`, `sge`, `flux`, or HTCondor's slot: `condor slot1_2`."""
    unit: str = ""
    """Systemd unit of the service: `ollama.service`; empty for the scope of a login session."""
    user_unit: bool = False
    """The unit belongs to the user's own service manager."""
    pane: Pane | None = None
    notebook: Notebook | None = None
    ssh: str = ""
    """Address from which the SSH login came; empty if it was no SSH login, or is not known."""
    login: str = ""
    """Name of the user who logged in, if the owner is another, such as root in a container; else empty."""
    login_uid: int | None = None
    """Uid of that user."""
    run: Run | None = None
    """Its run: all processes of one launch, or only this process."""
    server: str = ""
    """Why it counts as a server that waits for requests: `vLLM`, `listens on port 8000`; empty for none."""
    peer: str = ""
    """Other end of a TCP connection that it may wait for: `10.0.0.3:6379`; only of the viewer's own processes whose
    parent has ended."""
    words: str = ""
    """Parts that could not be read, and why; empty if everything was read."""

    @property
    def service(self) -> bool:
        """Whether it is its unit's service, see `is_service`: then it is no stray for being idle or adopted."""
        return is_service(self.unit)

    @property
    def batch_job(self) -> str:
        """Scheduler and job: `slurm 4711.0`, `pbs 4711`; empty for none."""
        return f"slurm {self.slurm}" if self.slurm else self.batch

    @property
    def in_podman(self) -> bool:
        """Whether its container is Podman's: a pod of Podman is not managed, unlike one of Kubernetes."""
        return self.container is not None and self.container.runtime == "podman"

    @property
    def where(self) -> str:
        """Text of the column `runs in`: the most telling part of the context."""
        if self.pod and not self.in_podman:
            return f"pod {self.pod.rpartition('/')[2]}"
        if self.batch_job:
            return self.batch_job
        if self.container:
            runtime = self.container.runtime or "container"
            beside = f", pod {self.pod}" if self.pod else ""
            return f"{runtime} {self.container.name or self.container.id}".rstrip() + beside
        if self.notebook:
            return f"notebook {self.notebook.path.rpartition('/')[2] or self.notebook.kernel}".rstrip()
        if self.unit:
            return self.unit.removesuffix(".service")
        if self.pane:
            return " ".join(word for word in (self.pane.program, self.pane.session, self.pane.window) if word)
        return f"ssh {self.ssh}" if self.ssh else ""


SCHEMA = 2
"""Version of the stream. A reader refuses a greater one; a field is only ever added within one version.

In version 1 `context`, `run`, `leader_alive`, `unsearched` and `cuda_context` had other names.
"""


class Reason(StrEnum):
    """Reason why there is no number."""

    UNSUPPORTED = "unsupported"
    """The device or its driver does not have this value."""
    DENIED = "denied"
    """The value exists, and gpuwatch may not read it."""
    NO_SAMPLE = "no sample"
    """Nothing was measured yet, or the last measurement is not valid."""
    ERROR = "error"
    """The call failed."""


Reading: TypeAlias = int | float | Reason


def known(reading: Reading) -> TypeGuard[int | float]:
    """Return whether a reading is a number."""
    return not isinstance(reading, Reason)


def number(reading: Reading) -> float | None:
    """Return a reading as a float, or None where there is a reason instead."""
    return float(reading) if known(reading) else None


class Health(StrEnum):
    """Health of a GPU, as far as its driver reports it."""

    OK = "ok"
    LOST = "lost"
    DENIED = "no permission"
    RESET = "needs reset"
    NOT_READY = "not ready"
    SILENT = "not responding"
    QUARANTINED = "quarantined"
    """A call crashed the sampler; gpuwatch asks it again after a while, or when the user presses `R`."""
    MISSING = "missing"
    """The driver no longer lists it."""
    FAILED = "failed"
    """Any other error code, named in the GPU's `words`."""


class Presence(StrEnum):
    """Visibility of a process in /proc."""

    SEEN = "seen"
    GONE = "gone"
    """It has ended: NVML lists it, but the kernel has no such process. Its facts were read while it ran; there are
    none if gpuwatch started later."""
    HIDDEN = "hidden"
    """/proc is mounted with hidepid: it may exist, and gpuwatch may not see it."""
    ELSEWHERE = "other namespace"
    """gpuwatch runs in a PID namespace of its own (a container), in which this PID does not exist."""
    UNSURE = "unsure"
    """The same, but a process in this container has the PID, perhaps by chance: the driver may mean one outside. The
    facts are of the process inside, the memory may be of the one outside. The uid is null, the user ends in `?`."""
    UNREADABLE = "unreadable"
    """It could not be read now: no file descriptor or no memory was left (EMFILE, ENFILE, ENOMEM), or an error of the
    kernel. It may run or not; its facts were read before."""


class SourceState(StrEnum):
    """State of the whole stream."""

    OK = "ok"
    STARTING = "starting"
    NO_DRIVER = "no driver"
    """There is no NVIDIA library, or it cannot be used: waiting does not help."""
    DRIVER_DOWN = "driver down"
    """The library is there, and the driver does not answer: not loaded, another version, being upgraded."""
    NO_GPU = "no gpu"
    SILENT = "not responding"
    """The driver hangs before gpuwatch can ask any GPU."""
    UNREACHABLE = "unreachable"
    """Another host sends nothing. Only a gpuwatch that shows a host by ssh sets this."""
    ENDED = "ended"
    """The source cannot go on (a wrong `--gpu`, a sampler that does not start)."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a GPU or a MIG instance, in bytes. `used` excludes `reserved`; total = used + free + reserved."""

    total: Reading = Reason.NO_SAMPLE
    used: Reading = Reason.NO_SAMPLE
    free: Reading = Reason.NO_SAMPLE
    reserved: Reading = Reason.NO_SAMPLE
    """Memory that the driver and the firmware keep; a reason if the driver has only the first memory call."""
    unified: bool = False
    """The GPU shares the machine's memory: the values are MemTotal and MemAvailable, not the GPU's own."""

    @property
    def usable(self) -> int | None:
        """Bytes that processes can have, which CUDA calls the total, and to which fractions refer; None if unknown."""
        if not known(self.total):
            return None
        return int(self.total - (self.reserved if known(self.reserved) else 0))


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one GPU that one process holds, and its use of that GPU in percent."""

    pid: int
    start: int = 0
    """Start time in clock ticks since boot (0: unknown); PID and start time together identify a process."""
    kind: str = "C"
    """C compute, G graphics, M a client of the MPS server; several joined by `+`."""
    memory: Reading = Reason.NO_SAMPLE
    """Bytes. Unsupported on WSL and on some MIG and vGPU set-ups."""
    sm: Reading = Reason.NO_SAMPLE
    """Percent of the time since the last sample, but at least of the last 1.25 s, in which its kernels ran, as NVML
    reports it; 0 is a measured value. The values of a GPU's processes may add up to more than 100."""
    memory_utilization: Reading = Reason.NO_SAMPLE
    """Percent of the same time in which it read or wrote memory."""
    encoder: Reading = Reason.NO_SAMPLE
    decoder: Reading = Reason.NO_SAMPLE
    gpu_instance: int | None = None
    """NVML's ids of its MIG instance, here and in the next field; None if it is on none."""
    compute_instance: int | None = None


class IdleHolding(msgspec.Struct, frozen=True, array_like=True):
    """Time for which a process has run nothing on one GPU, in the live file and in recordings."""

    gpu: str
    """`Gpu.key`."""
    pid: int
    start: int
    """Start of the process in clock ticks since boot."""
    seconds: float
    at_least: bool
    """Whether it may have been idle for longer."""


class Idle(NamedTuple):
    """Time for which a process has not run a kernel on a GPU."""

    seconds: float
    at_least: bool
    """Whether it was never seen busy since gpuwatch started: it may have been idle for longer."""


IdleTimes: TypeAlias = Mapping[tuple[str, int, int], Idle]
"""Idle times by GPU key, PID and start time."""


def merge_idle(one: Idle, other: Idle) -> Idle:
    """Return what two gpuwatches know together: who saw the process busy knows more, and later use counts."""
    if one.at_least and other.at_least:
        return max(one, other)
    return min(idle for idle in (one, other) if not idle.at_least)


def to_idle_times(holdings: Iterable[IdleHolding]) -> IdleTimes:
    """Return idle times that were written as holdings by GPU key, PID and start time."""
    return {(one.gpu, one.pid, one.start): Idle(one.seconds, one.at_least) for one in holdings}


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG instance of a GPU."""

    uuid: str
    name: str
    gpu_instance: int
    compute_instance: int
    memory: Memory = Memory()

    @property
    def profile(self) -> str:
        """Profile at the end of its name: `1g.10gb` of `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.

        Source: docs.nvidia.com/datacenter/tesla/mig-user-guide, "MIG Device Names".
        """
        return self.name.rpartition("MIG ")[2]


class Promise(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memory of a GPU that a user may still take: the rest of a declared limit, or of a reservation."""

    user: str
    """Name of the user, or what is known in its place: `uid 1003`, `PID 12`."""
    bytes: int
    uid: int | None = None
    gpu_instance: int | None = None
    """MIG instance that the processes run on; None for none."""
    reserved: float = 0.0
    """Wall-clock time at which `gpuwatch run` reserved it; 0 for the rest of a declared limit."""


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    """XID, an error of a GPU as in the kernel's log, and how often the driver reported it since the sampler started."""

    code: int
    count: int = 1
    last: float = 0.0
    """Wall-clock time of the newest one."""


BUSY = 20
"""Percent of utilization from which on a GPU counts as busy without a listed process: an idle one may show a few."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: its identity, its values, its health, and its holdings."""

    index: int
    """NVML's index at this moment; the identity is the `uuid`."""
    uuid: str = ""
    """Empty while it is not known."""
    name: str = ""
    bus_id: str = ""
    """PCI address: `00000000:9D:00.0`; empty while it is not known."""
    minor: Reading = Reason.NO_SAMPLE
    """The N of its device file /dev/nvidiaN."""
    compute_capability: Reading = Reason.NO_SAMPLE
    """CUDA's compute capability: 8.6."""
    cores: Reading = Reason.NO_SAMPLE
    """Number of CUDA cores."""
    sm_clock_max: Reading = Reason.NO_SAMPLE
    """Highest clock of the SMs in MHz."""
    health: Health = Health.OK
    words: str = ""
    """Its fault, with the NVML code and call; empty if it has none."""
    since: float = 0.0
    """Wall-clock time of the last change of health; 0 if it never changed."""
    sampled: float = 0.0
    """Monotonic time (the sampler's clock) at which the last reading of the fast values began; 0 for never."""
    slow_sampled: float = 0.0
    """The same for the values read every 10 s: fan, clocks, P-state, encoder, decoder, graphics and MPS lists."""

    memory: Memory = Memory()
    utilization: Reading = Reason.NO_SAMPLE
    """Percent of the driver's last sample period in which a kernel ran: busy time, not occupancy."""
    memory_utilization: Reading = Reason.NO_SAMPLE
    """Percent of the same period in which memory was read or written."""
    encoder: Reading = Reason.NO_SAMPLE
    """Utilization of the video encoder, in percent."""
    decoder: Reading = Reason.NO_SAMPLE
    """Utilization of the video decoder, in percent."""
    temperature: Reading = Reason.NO_SAMPLE
    slowdown_temperature: Reading = Reason.NO_SAMPLE
    """Temperature at which the GPU slows itself down."""
    power: Reading = Reason.NO_SAMPLE
    power_limit: Reading = Reason.NO_SAMPLE
    """Power limit in effect."""
    fan: Reading = Reason.NO_SAMPLE
    """Intended speed of the fan, in percent of its maximum speed."""
    sm_clock: Reading = Reason.NO_SAMPLE
    memory_clock: Reading = Reason.NO_SAMPLE
    pstate: Reading = Reason.NO_SAMPLE
    """0 is the fastest, 15 the slowest."""
    pcie_rx: Reading = Reason.NO_SAMPLE
    """Bytes per second that the GPU received over PCIe, measured over 20 ms. This value and the next five are read only
    for the GPU whose details are on screen, since the call takes 20 ms; for the others they are `no sample`."""
    pcie_tx: Reading = Reason.NO_SAMPLE
    """Bytes per second that the GPU sent over PCIe, measured over 20 ms."""
    pcie_link: str = Reason.NO_SAMPLE.value
    """Present generation and width of its PCIe link: `gen4 x16`, or the reason why it is not known. An idle GPU lowers
    the generation to save power."""
    nvlinks: Reading = Reason.NO_SAMPLE
    """Number of active NVLinks."""
    nvlink_rx: Reading = Reason.NO_SAMPLE
    """Bytes per second that the GPU received over all NVLinks since the previous reading, without protocol overhead."""
    nvlink_tx: Reading = Reason.NO_SAMPLE
    """Bytes per second that the GPU sent over all NVLinks, in the same way."""
    throttle: tuple[str, ...] | Reason = Reason.NO_SAMPLE
    """Reasons that limit the clocks, worst first: `hw thermal`, `power brake`, `sw thermal`, `power cap`…"""
    ecc_uncorrected: Reading = Reason.NO_SAMPLE
    """Uncorrected memory errors since the driver was loaded."""
    remap_pending: bool | Reason = Reason.NO_SAMPLE
    """Whether broken rows of memory will be replaced at the next reset."""
    remap_failed: bool | Reason = Reason.NO_SAMPLE
    """Whether the replacement of a row ever failed: then the GPU must be replaced."""
    xids: tuple[Xid, ...] | Reason = Reason.NO_SAMPLE
    """XIDs since this sampler started, by code; a reason where the driver does not report them."""
    persistence: bool | Reason = Reason.NO_SAMPLE
    """Whether the driver stays loaded while no program uses the GPU (persistence mode)."""
    compute_mode: str = Reason.NO_SAMPLE.value
    """`default`, `exclusive process`, `prohibited`, or the reason why it is not known."""
    display_active: bool | Reason = Reason.NO_SAMPLE
    """Whether a display is set up on it, with or without a monitor."""
    mig: bool | Reason = Reason.NO_SAMPLE
    """Whether it is in MIG mode, in which programs run only on its instances."""
    instances: tuple[Instance, ...] = ()

    holdings: tuple[Holding, ...] = ()
    holdings_note: str = ""
    """Reason why the list of holdings is missing, incomplete or unreliable; empty if nothing is wrong with it."""
    unreliable: bool = False
    """The list is wrong (a PID over pid_max, more memory than the GPU has): no process on it may be signalled."""
    unattributed: Reading = Reason.NO_SAMPLE
    """Memory of unknown processes in bytes: used (without reserved) minus the holdings, never below 0; a reason where a
    holding has no value."""
    promised: Reading = Reason.NO_SAMPLE
    """Bytes that are declared or reserved (`gpuwatch run`), and not used yet, without limits that could not be read.
    They may be more than the free memory."""
    promises: tuple[Promise, ...] = ()
    """The same by user, the largest first."""
    opened_by: tuple[int, ...] = ()
    """PIDs of at most 16 processes that have its device file open and are not listed on it, as of the snapshot's
    `searched`: workers, and programs that are listed on another GPU; not monitors."""

    @property
    def key(self) -> str:
        """Identity of this GPU: its UUID, or its index for as long as the UUID is unknown."""
        return self.uuid or f"index-{self.index}"

    @property
    def is_listed(self) -> bool:
        """Whether its list of processes is complete and plausible."""
        return self.health is Health.OK and not self.holdings_note and not self.unreliable

    @property
    def is_busy_unlisted(self) -> bool:
        """Whether kernels run on it although its list of processes can be trusted and is empty."""
        return known(self.utilization) and self.utilization >= BUSY and self.is_listed and not self.holdings


INDEX_UNKNOWN = -1
"""Value of `Place.listed` for an index that is no longer right."""


class Place(msgspec.Struct, frozen=True):
    """Place where a GPU was found, by which a new sampler finds it without a call to another GPU."""

    index: int
    """NVML's index."""
    listed: int
    """Number of GPUs that the driver listed then; the index is wrong if it lists another number, and if this is
    INDEX_UNKNOWN. 0: it did not list this one."""
    uuid: str = ""
    """Empty if it was never known: then only the index identifies the GPU."""
    name: str = ""
    bus_id: str = ""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process that NVML lists, as /proc shows it."""

    pid: int
    start: int = 0
    """Start time in clock ticks since boot (field 22 of /proc/PID/stat); 0 where it cannot be read."""
    presence: Presence = Presence.SEEN
    uid: int | None = None
    """Uid of the owner; None if the owner is not visible."""
    user: str = ""
    """Name of the owner, or the uid while the name is not known; empty if the owner is not visible."""
    name: str = ""
    command: str = ""
    """Command line, cleaned, with secrets masked; empty if there is none."""
    program: str = ""
    """Value that changes when the process starts another program (execve), not when it only changes its title; empty
    if that is not known."""
    state: str = ""
    """`running`, `sleeping`, `disk sleep`, `stopped`, `zombie`…; empty where it cannot be read."""
    ppid: int | None = None
    """PID of the parent process; None if it is not known."""
    parent: str = ""
    """Name of the parent process."""
    terminal: str = ""
    """`/dev/pts/3`, or empty for none."""
    session: int = 0
    """PID of the leader of its session: the shell of a login, or itself; 0 if it cannot be read."""
    leader_alive: bool | None = None
    """Whether that leader still runs; None if that is not known."""
    adopted: bool = False
    """The process that started it has ended: its parent is init, or another process that has adopted it."""
    cpu: Reading = Reason.NO_SAMPLE
    """Percent of one core since the last sample."""
    below: Reading = Reason.NO_SAMPLE
    """The same for all its descendants, over the last 10 s; measured only for the viewer's own processes."""
    rss: Reading = Reason.NO_SAMPLE
    """Resident host memory in bytes."""
    started: float | None = None
    """Wall-clock start time; None if it is not known."""
    declared: Declared | None = None
    """Its declarations; None if they were not looked for."""
    context: ProcessContext | None = None
    """Its context; None if it was not read yet."""

    @property
    def key(self) -> tuple[int, int]:
        """Identity of this process on its host: PID and start time."""
        return (self.pid, self.start)

    @property
    def run(self) -> Run | None:
        """Run that it belongs to; None where that is not known."""
        return self.context.run if self.context is not None else None

    @property
    def run_key(self) -> str:
        """Key of its run, the same for all processes of it; a process whose run is not known is a run of its own."""
        return self.run.key if self.run is not None and self.run.key else f"{self.pid}:{self.start}"

    @property
    def has_ended(self) -> bool:
        """Whether all its threads have ended; the driver may go on listing it."""
        return self.presence is Presence.GONE or self.state in ("zombie", "dead")


class Unlisted(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has GPU device files open and that NVML does not list: a worker that was forked, or a leftover."""

    process: Process
    """Its `declared` is always None, since it has no memory that NVML counts."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs whose device files it has open; a CUDA program opens those of all GPUs that it can see."""
    cuda_context: bool = False
    """It has /dev/nvidia-uvm open, too: CUDA programs do, monitors do not."""


class HostUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Use of the machine's CPUs and memory, and the limits of the container that gpuwatch runs in."""

    cores: Reading = Reason.NO_SAMPLE
    """Number of logical CPUs."""
    cpu: Reading = Reason.NO_SAMPLE
    """Percent of all CPUs together since the last sample; waiting for a disk does not count."""
    memory_total: Reading = Reason.NO_SAMPLE
    """Bytes."""
    memory_used: Reading = Reason.NO_SAMPLE
    """Bytes in use that the kernel cannot free from its caches: MemTotal - MemAvailable."""
    swap_total: Reading = Reason.NO_SAMPLE
    """0 if there is no swap."""
    swap_used: Reading = Reason.NO_SAMPLE
    """Bytes."""
    load: Reading = Reason.NO_SAMPLE
    """Average number of processes that ran, or waited for a CPU or a disk, in the last minute."""
    cpu_limit: Reading = Reason.UNSUPPORTED
    """CPUs that the container may use: 4.0; here and in the next two `unsupported` without a container or a limit."""
    memory_limit: Reading = Reason.UNSUPPORTED
    """Bytes that the container may hold."""
    memory_of_limit: Reading = Reason.UNSUPPORTED
    """Bytes that count against this limit, without the cache that the kernel takes back first."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs and processes of one machine at one moment."""

    schema: int = SCHEMA
    sequence: int = 0
    """Number of snapshots that the sampler wrote before this one."""
    host: str = ""
    host_usage: HostUsage = HostUsage()
    taken: float = 0.0
    """Wall-clock time at which the snapshot was complete."""
    monotonic: float = 0.0
    """The sampler's monotonic clock at the same moment; ages are differences to it."""
    interval: float = 1.0
    """Seconds between two samples, as configured."""
    viewer: int = -1
    """The uid whose processes are `mine`."""
    driver: str = ""
    """Version of the driver; empty if it is not known."""
    cuda: str = ""
    """Highest CUDA version that the driver supports: `13.0`; empty if it is not known."""
    state: SourceState = SourceState.OK
    words: str = ""
    """The fault, and what to do next; empty if there is none."""
    since: float = 0.0
    """Wall-clock time of the last change of `state`."""
    demo: bool = False
    """The snapshot is from the demo: its GPUs and processes are simulated."""
    confined: bool = False
    """The sampler runs in a PID namespace of its own (a container): processes outside may not be listed."""
    nvml_calls: int = 0
    """NVML calls of this sampler so far."""
    listed: int = 0
    """Number of GPUs that the driver lists, also those that gpuwatch does not ask; 0 if the driver was not asked."""
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[Process, ...] = ()
    unlisted: tuple[Unlisted, ...] = ()
    """Processes that have a GPU open and are not in NVML's list; only root finds those of other users."""
    searched: float = 0.0
    """Wall-clock time at which the last search for them ended; 0 if none has ended yet."""
    unsearched: int = 0
    """Number of processes that the search could not read: those of other users, unless root searches; any if no file
    descriptor or no memory was left."""
    reached: int = 0
    """Number of processes that the search of a single snapshot examined in its time; 0 if it was complete."""
    existing: int = 0
    """Number of processes at the start of that search; 0 if it was complete."""
    hides: bool = False
    """/proc hides other people's processes (hidepid)."""
    mps: tuple[int, ...] = ()
    """PIDs of MPS servers among those that the search could not read."""


encode = msgspec.json.Encoder().encode
"""One snapshot to JSON bytes, without the newline."""

decode = msgspec.json.Decoder(Snapshot).decode
"""JSON to a snapshot; raises msgspec.ValidationError or msgspec.DecodeError."""
