"""Facts about a process and the machine's GPUs, and the declarations that are found in them (candidates).

The types are msgspec Structs because a separate process scans scripts and sends the result through a pipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from gpuwatch.base.text import LIMIT, Clean, clean, mask, redact, shorten
from gpuwatch.base.units import MIB
from gpuwatch.model.shares import STEADY
from gpuwatch.model.snapshot import Basis, Confidence, Gpu, Health, Hint, Kind, Margin, Memory, Reading, known, number
from gpuwatch.model.values import Bytes, Fraction, Gpus, Pattern, Text

if TYPE_CHECKING:
    from gpuwatch.declared.sizes import Parser  # its regular expressions take 2 ms, and the sampler parses no size

CVD = "CUDA_VISIBLE_DEVICES"
NO_GPU = "it applies to no GPU that the process can see"
WITHIN = "counted within"
"""Words in the note of visible GPUs that a job or a container numbers."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Value of an environment variable, and the place that set it."""

    value: str | None
    """The value; None where a script computes it at run time."""
    where: str = "environment"
    """Place, as in `model.snapshot.Declaration.where`."""
    line: int = 0
    text: str = ""
    """The source line; empty where `NAME=value` shows everything."""
    confidence: Confidence = Confidence.CERTAIN
    condition: str = ""
    """As in `Candidate`."""
    default: bool = False
    """Whether a script sets it only if it is not set yet: then a value in the environment wins."""
    removes: bool = False
    """Whether a script removes it: it is not set any more, or was not yet removed when it was read."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Declaration as found in one place, before its GPUs and its effect are known.

    The first fields are those of `model.snapshot.Declaration`."""

    channel: str
    where: str = ""
    line: int = 0
    text: str = ""
    framework: str = ""
    """Framework's id in `frameworks.NAMES`; empty for a layer below all frameworks (MPS, HAMi, a scheduler)."""
    kind: Kind
    basis: Basis = Basis.NONE
    value: float | None = None
    """Fraction or bytes; None where there is no number, or it is `dynamic`."""
    scope: str = ""
    confidence: Confidence = Confidence.CERTAIN
    margin: Margin = Margin.FRAMEWORK

    device: int | str | None = None
    """GPU of the candidate: an ordinal among the visible GPUs, a UUID or its beginning; None for each visible GPU."""
    some_gpu: bool = False
    """Whether it applies to one GPU that is known only at run time (`args.local_rank`); `device` is None then."""
    rank: int = 0
    """Among limits of one framework, GPU and scope the highest rank is in effect, among equal ranks the last one."""
    adds: str = ""
    """Candidates with the same text here form a sum: logical devices of one GPU, engines of one process."""
    dynamic: bool = False
    """Whether its value is known only at run time: `args.fraction`, or a `value` for each of many objects."""
    unread: str = ""
    """Why the value is not known, where it is not `dynamic`: its file was not read."""
    lifts: bool = False
    """Whether it removes a limit: `set_limit(0)`."""
    void: str = ""
    """Why it has no effect: `the platform allocator ignores it`; empty where it has one."""
    condition: str = ""
    """Condition on which it depends, where its confidence is POSSIBLE: "if `args.cap`"."""


OBJECTS = "objects"
"""Beginning of `Candidate.adds` of a sum over engines, sessions or pools that a script makes."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Selection of GPUs, among the visible ones, by a script."""

    channel: str
    """Function or option that selects: `set_visible_devices`, `visible_device_list`, `jax_cuda_visible_devices`."""
    framework: str
    ordinals: tuple[int, ...] | None
    """Selected ordinals; None where they are known only at run time."""
    where: str = ""
    line: int = 0
    text: str = ""


class ScriptContents(msgspec.Struct, frozen=True, kw_only=True):
    """Declarations, variables, GPU selections and imports in a Python script."""

    candidates: tuple[Candidate, ...] = ()
    settings: tuple[tuple[str, Setting], ...] = ()
    """(name, setting) of each environment variable that the source sets, in the order of the lines."""
    selections: tuple[Selection, ...] = ()
    imports: tuple[str, ...] = ()
    """Names of the top-level packages that the source imports anywhere."""
    others: tuple[str, ...] = ()
    """Names of imported packages that take memory of a GPU and declare nothing, see `frameworks.others`."""
    hints: tuple[Hint, ...] = ()
    dotenv: bool = False
    """Whether it calls `load_dotenv()`, which sets variables from a file."""
    unread: str = ""
    """Code that it runs and gpuwatch does not read: "it runs other code: exec(…) at line 3"."""
    changes: str = ""
    """Code that may change other declarations and variables: "exec(…) at line 3"."""
    error: str = ""
    """Why the source could not be parsed; empty where it could."""


class Share(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Agreement in gpuwatch.toml: the memory that a user or a command may take on some GPUs."""

    user: Annotated[
        Text, Meta(min_length=1, description="a user name or a uid; if omitted: anybody", examples=['"ada"'])
    ] = ""
    command: Annotated[
        Pattern,
        Meta(description="a regular expression to find in the command line; if omitted: any", examples=['"train"']),
    ] = ""
    gpus: Annotated[Gpus, Meta(description='or [0, 2], or "GPU-8932"; if omitted: all', examples=["2"])] = (
        msgspec.field(default=(), name="gpu")
    )
    share: Annotated[Fraction, Meta(description='or memory = "20GiB"', examples=["0.4"])] | None = None
    memory: Annotated[Bytes, Meta(ge=MIB, description="instead of share")] | None = None
    where: str = "gpuwatch.toml"
    """File of the agreement, for display."""
    line: int = 0
    ceiling: bool = False
    """Whether the administrator set it: shares of others can lower it, and never raise it."""


SHOWN = 80
"""Characters of a candidate's source text that are shown, at most."""


def format_excerpt(text: str) -> Clean:
    """Return a piece of a command line or an environment for display: cleaned, at most `SHOWN` long, secrets masked.

    Of a long text both ends are shown, unless it is too long to be searched for secrets completely.
    """
    cut = clean if len(text) > LIMIT else shorten
    return cut(redact([text[:LIMIT]])[0], SHOWN)


def format_path(path: str) -> Clean:
    """Return the path of a script or a configuration file for display: cleaned, secrets masked."""
    return mask(path, 200)


def parse_value(candidate: Candidate, value: str | None, reads: Parser) -> list[Candidate]:
    """Return a candidate with its parsed value: one for each GPU that the value names, none where it is switched off.

    The value None is known only at run time; an unreadable value makes the candidate void.
    """
    if value is None:
        return [replace(candidate, dynamic=True)]
    try:
        sizes = reads(value)
    except ValueError as error:
        return [void(candidate, str(error))]
    return [
        replace(
            candidate,
            value=size.value,
            basis=size.basis,
            device=candidate.device if size.device is None else size.device,
        )
        for size in sizes
    ]


def void(candidate: Candidate, why: str) -> Candidate:
    """Return a candidate with the reason why it has no effect."""
    return replace(candidate, void=mask(why, 2 * SHOWN))


Variables: TypeAlias = tuple[tuple[str, str], ...] | None
"""Environment variables of a process at its start that its script may read; None where they are not known."""

LOCAL_RANKS = frozenset(
    {
        *("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "HOROVOD_LOCAL_RANK"),
        *("MV2_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID"),
    }
)
"""Variables by which a launcher numbers the processes of one machine from 0, and so assigns their GPUs. Sources:
docs.pytorch.org/docs/stable/elastic/run.html; slurm.schedmd.com/srun.html; docs.open-mpi.org, "Environment variables
set by mpirun"; Intel MPI's and MVAPICH2's reference; horovod/runner/gloo_run.py; flux-run(1)."""


class Unread(StrEnum):
    """Reason why a part of the facts is not known."""

    DENIED = "denied"
    """The process belongs to another user."""
    OVERWRITTEN = "overwritten"
    """The process has set a title over it (setproctitle): a block of NULs, or text without any `=`."""
    ENDED = "ended"
    TOO_LONG = "too long"
    """It is longer than the limit for reading."""
    MOVED = "moved"
    """It was found by a relative path, and the process has changed its working directory since."""
    CHANGED = "changed"
    """It was changed while the process started; the process may have opened the previous version."""
    FAILED = "failed"
    """Reading failed: too large, no regular file, no answer in time, no such file."""

    @property
    def of_environment(self) -> str:
        """Words for an environment that was not read."""
        return {
            Unread.DENIED: "no permission to read its environment",
            Unread.OVERWRITTEN: "its process title overwrote its environment",
            Unread.ENDED: "it ended while its environment was read",
            Unread.TOO_LONG: "its environment is too long to read",
        }.get(self, "its environment could not be read")

    @property
    def of_file(self) -> str:
        """Words for a file that was not read."""
        if self is Unread.MOVED:
            return "may be another file: the working directory has changed"
        if self is Unread.CHANGED:
            return "was changed while the process started"
        return "cannot be read: no permission" if self is Unread.DENIED else "could not be read"


class MigFacts(msgspec.Struct, frozen=True, kw_only=True):
    """MIG instance of a GPU."""

    uuid: str
    gpu_instance: int
    total: int | None = None
    """As in `GpuFacts`."""


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """GPU of the machine, as NVML numbers it."""

    index: int
    uuid: str
    bus_id: str = ""
    name: str = ""
    total: int | None = None
    """Bytes that processes can have, which CUDA calls the total; None while it is not known."""
    capability: float | None = None
    """CUDA's compute capability, such as 8.6; None, as in the next two fields, where the driver does not report it."""
    cores: int | None = None
    clock: int | None = None
    """Highest clock of the SMs, in MHz."""
    mig: bool = False
    slices: tuple[MigFacts, ...] = ()


class RelatedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Ancestor of a process with the same uid, or child that has exec'ed; texts are raw, as the process wrote them."""

    pid: int
    argv: tuple[str, ...] = ()
    argv_cut: bool = False
    """Whether `argv` is incomplete: the arguments were too long to be read completely."""
    environ: Mapping[str, str] | Unread = Unread.DENIED
    """Environment of the last execve; of equal names the first value counts, as in getenv(3)."""
    start: int = 0
    """Start time in clock ticks since boot; 0 where it is not known."""
    parent: int = 0
    """PID of the parent; 0 where it is not known."""
    comm: str = ""
    """Short name in /proc/PID/stat: `tmux: server`."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """Python source that a process runs."""

    path: str
    """Path for display: `train.py`, or `-c` for code on the command line."""
    contents: ScriptContents | Unread
    edited: bool = False
    """Whether the file was changed after the process started: the process may run an older version."""
    likely: bool = False
    """Whether it may be another file than the process runs: it was found by its path only, and a container may have
    another file there."""
    modules: tuple[str, ...] = ()
    """Modules of its folder that it imports, by their paths; they are not read."""


class FrameworkConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration file of a server (`vllm serve --config serve.yaml`) or of the owner (`~/.theanorc`)."""

    path: str
    """Path for display."""
    text: str | Unread
    edited: bool = False
    """As in `Script`."""
    likely: bool = False


class Facts(RelatedProcess, frozen=True, kw_only=True):
    uid: int | None = None
    user: str = ""
    libraries: frozenset[str] | Unread = Unread.DENIED
    """File names of the shared libraries that are mapped: `libtorch_cuda.so`, `libcudart.so.11.0`."""
    cgroup: str = ""
    """Path in the cgroup tree; `/` inside a cgroup namespace."""
    container: str = ""
    """Id of its container by cgroup, monitor or mounts; empty for none, one without an id, and gpuwatch's own."""
    ancestors: tuple[RelatedProcess, ...] = ()
    """Ancestors, the parent first."""
    children: tuple[RelatedProcess, ...] = ()
    script: Script | None = None
    unread_code: str = ""
    """Why the code that it runs is not read: it is a notebook's; empty where it is read, or is no Python."""
    mps: bool = False
    """Whether an MPS daemon listens where it would connect to one."""
    configs: Mapping[int, FrameworkConfig] = {}
    """Configuration files of servers, by the PID of the process that names the file: itself or an ancestor."""
    rc: tuple[FrameworkConfig, ...] = ()
    """Theano's configuration files, the most important one last."""
    shares: tuple[Share, ...] = ()
    """Agreements in gpuwatch.toml; those that match this process are in effect."""

    @property
    def contents(self) -> ScriptContents:
        """Contents of its script; empty where there is none, or it could not be read."""
        found = self.script.contents if self.script is not None else Unread.FAILED
        return ScriptContents() if isinstance(found, Unread) else found


def gpu_facts(gpu: Gpu, last: GpuFacts | None = None) -> GpuFacts:
    """Return the facts of a GPU in a snapshot; values that are missing now are taken from `last`."""
    if last is not None and gpu.health is not Health.OK:
        return replace(last, index=gpu.index)
    totals = {one.uuid: one.total for one in last.slices} if last else {}
    slices = (
        MigFacts(uuid=one.uuid, gpu_instance=one.gpu_instance, total=_total(one.memory, totals.get(one.uuid)))
        for one in gpu.instances
    )
    return GpuFacts(
        index=gpu.index,
        uuid=gpu.key,
        bus_id=gpu.bus_id,
        name=gpu.name,
        total=_total(gpu.memory, last.total if last else None),
        capability=number(gpu.compute_capability),
        cores=_integer(gpu.cores),
        clock=_integer(gpu.sm_clock_max),
        mig=gpu.mig is True,
        slices=tuple(slices),
    )


def _integer(reading: Reading) -> int | None:
    return int(reading) if known(reading) else None


def _total(memory: Memory, last: int | None) -> int | None:
    """Return the total as CUDA counts it; the last one if it hardly changed, since a change repeats all questions."""
    now = memory.usable
    return last if now is None or (last is not None and abs(now - last) <= STEADY) else now
