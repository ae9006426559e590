"""Types that cross the stream between the sampler and its readers.

Part of the stream, see `gpuwatch.model`; the package `gpuwatch.declared` finds and weighs them. All text is clean.

Part of the stream, see `gpuwatch.model`. All text is clean. What cannot be read is empty or None, never made up.

One snapshot is one JSON object on one line. A reading is a number, or the `Reason` there is none: in JSON a number or
a string. Units stand in the name's docstring: memory in bytes, utilization in percent (0 to 100), temperature in °C,
power in watts, clocks in MHz, wall-clock times in seconds since the epoch, monotonic times in seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias, TypeGuard

import msgspec


class Kind(StrEnum):
    """What a declaration promises. Only `LIMITS` can be overshot."""

    CAP = "cap"
    """The framework's own allocator refuses to go beyond it."""
    HARD = "hard limit"
    """Something outside the framework enforces it: MPS, HAMi, the driver."""
    GRANT = "grant"
    """Agreed with a scheduler or with people; nothing enforces it."""
    START = "start size"
    """The first chunk; more may be taken, by design."""
    CACHE = "cache"
    """A part of what is free when the model is loaded, for its cache; says nothing of the total."""
    RESERVE = "reserve"
    """How much is to be left free."""
    GROWTH = "growth"
    """Memory is taken as it is needed; no number."""
    COMPUTE = "compute share"
    """A share of the SMs; says nothing of memory."""
    DEFAULT = "default"
    """What the framework takes where nothing is said. Not a declaration."""


LIMITS = frozenset({Kind.CAP, Kind.HARD, Kind.GRANT})
"""Kinds that hold a process to a number."""


class Basis(StrEnum):
    """What the number of a declaration counts."""

    TOTAL = "of the GPU"
    """A fraction of the GPU's memory."""
    FREE_AT_START = "of what is free at start"
    FREE_AFTER_LOAD = "of what is free after loading"
    BYTES = "bytes"
    NONE = ""
    """There is no number, or it is no memory."""


class Confidence(StrEnum):
    """How sure we are that a declaration is what the process runs with."""

    CERTAIN = "certain"
    LIKELY = "likely"
    """Read where it usually is in effect, but could have been changed since."""
    STALE = "stale"
    """The file was edited after the process started."""
    GUESS = "guess"


class Order(StrEnum):
    """How sure we are which GPU a framework's ordinal means."""

    EXACT = "exact"
    """By UUID, by a single GPU, or by PCI_BUS_ID."""
    IDENTICAL = "identical GPUs"
    """All GPUs are of one model, which CUDA then numbers as NVML does."""
    HEURISTIC = "heuristic"
    """Different models, and CUDA puts the fastest first: which that is we can only guess."""


class Margin(StrEnum):
    """How far a process may hold more than its limit before that is an overshoot; the rules know the bytes."""

    FRAMEWORK = "framework"
    """A CUDA context and the libraries' handles come on top of what the allocator counts."""
    EAGER = "eager"
    """The same where all kernels are loaded at once: before CUDA 11.7, or CUDA_MODULE_LOADING=EAGER."""
    BUDGET = "budget"
    """A server's own budget for everything (vLLM), exceeded by its CUDA graphs and fragments."""
    EXACT = "exact"
    """Enforced, or agreed in bytes."""


class Knowledge(StrEnum):
    """Whether we could look for a process's declarations. Unreadable is not undeclared."""

    READ = "read"
    PENDING = "not read yet"
    UNREADABLE = "unreadable"
    """Its environment belongs to somebody else, was overwritten, or could not be read in time."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One statement of how much memory a process takes, wherever it stands."""

    channel: str
    """How it was said: `XLA_PYTHON_CLIENT_MEM_FRACTION`, `--gpu-memory-utilization`, `set_limit`, `gpuwatch.toml`."""
    where: str = ""
    """Where it stands: `environment`, `command line`, `environment of parent 812`, `train.py`."""
    line: int = 0
    """Line in that file; 0 for none."""
    text: str = ""
    """As it is written there, cleaned."""
    framework: str = ""
    """Whose it is; empty where it holds for any."""
    kind: Kind
    basis: Basis = Basis.NONE
    value: float | None = None
    """A fraction (0.4) or bytes, by the basis; None where there is none or it is only known at run time."""
    limits: dict[str, int] = {}
    """Bytes by GPU UUID, for the GPUs that it concerns; empty where it is no limit."""
    scope: str = ""
    """Empty for the process itself; else what shares it: `genv 12`, `container 3f9a1c`, `share of ada on GPU 2`."""
    confidence: Confidence = Confidence.CERTAIN
    effective: bool = False
    """Whether it is one of those that hold."""
    why: str = ""
    """Why it is in effect, or why not."""
    guessed: bool = False
    """Which GPU it concerns is a guess, as CUDA's order of different models is."""
    undecided: bool = False
    """It may limit the process: only the program itself knows whether, by which number, or on which GPU."""


class Limit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds on one GPU, after all declarations were weighed."""

    gpu: str
    """UUID of the GPU."""
    bytes: int
    declaration: int
    """Its place in `Declared.declarations`."""
    scope: str = ""
    """As in the declaration: with a scope, the holdings of all processes of that scope count together."""
    margin: Margin = Margin.FRAMEWORK


class Visible(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which GPUs a process can see, in its framework's order: the first is `cuda:0`."""

    gpus: tuple[str, ...] = ()
    """UUIDs of GPUs or MIG instances; empty where it hides all of them."""
    order: Order = Order.EXACT
    text: str = ""
    """What decided it: `CUDA_VISIBLE_DEVICES=3,2`; empty where nothing was said and all are visible."""
    where: str = ""
    """Where that stands, as in a declaration."""
    note: str = ""
    """What is odd about it: `-1 hides all that follow`."""
    doubtful: bool = False
    """The process may never have made this choice: the note says why."""


class Hint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that somebody wrote and surely did not mean."""

    rule: str
    """`misspelt`, `invalid`, `no effect`, `dynamic`."""
    words: str


class Declared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one process said it would take."""

    knowledge: Knowledge = Knowledge.READ
    words: str = ""
    """What could not be read, and why."""
    incomplete: bool = False
    """Modules of its script were not read: they may have declared more."""
    frameworks: tuple[str, ...] = ()
    visible: Visible | None = None
    """None where it cannot be told."""
    declarations: tuple[Declaration, ...] = ()
    """Those that were found, those in effect first; of many only some, see `left_out`."""
    left_out: int = 0
    """How many more statements were found and weighed, and are not among `declarations`."""
    limits: tuple[Limit, ...] = ()
    """At most one a GPU and scope: that of the process itself first."""
    collective: bool = False
    """It is one of several processes that exchange data between GPUs (NCCL), which takes buffers of its own."""
    hints: tuple[Hint, ...] = ()
    hints_left_out: int = 0
    """How many more hints there are."""


_PEOPLES = (
    "jupyter",
    "notebook",
    "code-server",
    "code-tunnel",
    "rstudio",
    "rserver",
    "vscode",
    "openvscode",
    "tmux",
    "screen",
    "emacs",
)
"""How units are called below which people start what they like: notebooks, editors, terminals. TheLittlestJupyterHub
and systemdspawner call theirs `jupyter-NAME.service`."""


def is_service(unit: str) -> bool:
    """Say whether what runs in a systemd unit is its service, which waits and is tended to; an empty name is no unit.

    A kernel of a notebook below `jupyterhub.service`, or a window of `tmux@ada.service`, is not: people start and leave
    those by hand, and the unit knows nothing of them.
    """
    return bool(unit) and not unit.startswith(_PEOPLES)


class Container(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The container that a process is in."""

    runtime: str = ""
    """`docker`, `podman`, `containerd`, `cri-o`, `lxc`, `apptainer`…; empty where the cgroup does not tell."""
    id: str = ""
    """As its runtime prints it: the first 12 digits."""
    name: str = ""
    """Empty where neither the runtime's socket nor its state is ours to read."""


class Pane(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where in a terminal multiplexer a process was started."""

    program: str
    """`tmux`, `screen` or `zellij`."""
    session: str = ""
    """Its name, or what the environment has of it: `$0` is tmux's number of a session."""
    window: str = ""
    """Number and name of the window, or tmux's number of the pane: `%3`."""
    alive: bool | None = None
    """Whether its server still runs; None where that cannot be told."""


class Notebook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Jupyter kernel that a process is, or is a child of."""

    kernel: str = ""
    """Start of its id."""
    path: str = ""
    """The notebook, as its server was asked for it."""
    server: int | None = None
    """PID of the server that started it; None where it has gone or cannot be told."""
    left: bool = False
    """Its server is known to have gone."""


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one start set going: the process itself, or all ranks and workers of a distributed run."""

    key: str
    """The same for all processes of one run on this host: `PID:START` of its head, or what its launcher calls it."""
    name: str = ""
    """What runs, for people: `train.py`, `vllm serve`, without folders and arguments."""
    launcher: str = ""
    """`torchrun`, `accelerate`, `deepspeed`, `mpirun`, `srun`, `ray`, `TF_CONFIG`…; empty for a run of one process."""
    head: int = 0
    """PID of the first process of it that is still there: the launcher, or the only one; 0 where it is not visible."""
    head_start: int = 0
    rank: int | None = None
    local_rank: int | None = None
    world: int | None = None
    """How many ranks there are, on all hosts."""
    worker_of: int | None = None
    """PID of the rank (or only process) that forked or spawned this one as a helper; None where it is a rank itself."""
    orphaned: bool = False
    """It belongs to something that has ended: its launcher, or the process that it is a worker of, is gone."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that is known of where one process runs."""

    container: Container | None = None
    pod: str = ""
    """Kubernetes: `namespace/name`, its name alone, or its uid, by what can be read."""
    slurm: str = ""
    """Job and step: `4711.0`, `4711.batch`, or the job alone."""
    batch: str = ""
    """Another scheduler and its job: `pbs 4711`, `lsf 4711`, `sge 4711`, or HTCondor's slot: `condor slot1_2`."""
    unit: str = ""
    """The systemd unit that it is a service of: `ollama.service`; empty for a login session's scope."""
    user_unit: bool = False
    """The unit is one of the user's own manager."""
    pane: Pane | None = None
    notebook: Notebook | None = None
    ssh: str = ""
    """From where the login came, an address; empty where it was no SSH login or that cannot be told."""
    login: str = ""
    """Who logged in, by the kernel's login uid, where it is not the owner: who is behind root in a container."""
    login_uid: int | None = None
    job: Job | None = None
    server: str = ""
    """Why it is taken for a server that waits for requests: `vLLM`, `listens on port 8000`; empty for none."""
    peer: str = ""
    """Whom it has a TCP connection to, and may wait for: `10.0.0.3:6379`; only of the viewer's own that have lost their
    parent."""
    words: str = ""
    """What of this could not be read, and why; empty where all was."""

    @property
    def service(self) -> bool:
        """Whether it is its unit's service, see `is_service`: it is no stray for being idle or without a parent."""
        return is_service(self.unit)

    @property
    def batch_job(self) -> str:
        """The job of whatever scheduler, with its name: `slurm 4711.0`, `pbs 4711`; empty for none."""
        return f"slurm {self.slurm}" if self.slurm else self.batch

    @property
    def where(self) -> str:
        """What stands in the column `in`: the one place that tells most."""
        if self.pod:
            return f"pod {self.pod.rpartition('/')[2]}"
        if self.batch_job:
            return self.batch_job
        if self.container:
            runtime = self.container.runtime or "container"
            return f"{runtime} {self.container.name or self.container.id}".rstrip()
        if self.notebook:
            return f"notebook {self.notebook.path.rpartition('/')[2] or self.notebook.kernel}".rstrip()
        if self.unit:
            return self.unit.removesuffix(".service")
        if self.pane:
            return " ".join(word for word in (self.pane.program, self.pane.session, self.pane.window) if word)
        return f"ssh {self.ssh}" if self.ssh else ""


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
