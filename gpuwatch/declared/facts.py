"""Facts about a process and the GPUs of its machine, and the candidates that are read from them.

The types are msgspec Structs because the scan of a script crosses a pipe: another process reads the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from gpuwatch.declared.sizes import Parser
from gpuwatch.fields import Bytes, Fraction, Gpus, Pattern, Text
from gpuwatch.model import Basis, Confidence, Gpu, Health, Hint, Kind, Margin, Memory, Reading, known, number
from gpuwatch.text import LIMIT, Clean, clean, redact, shorten
from gpuwatch.units import MIB


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Environment variable with the place that set it."""

    value: str | None
    """None where a script sets it to what is only known at run time."""
    where: str = "environment"
    """As in `model.Declaration.where`."""
    line: int = 0
    text: str = ""
    """The line of source; empty where `NAME=value` is all."""
    confidence: Confidence = Confidence.CERTAIN
    default: bool = False
    """A script sets it only if it is not set yet: a value in the environment comes first."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Declaration as it was found in one place, before its GPUs and its effect are known.

    The first fields are those of `model.Declaration`."""

    channel: str
    where: str = ""
    line: int = 0
    text: str = ""
    framework: str = ""
    """An id of `frameworks.NAMES`; empty for a layer below all frameworks (MPS, HAMi, a scheduler)."""
    kind: Kind
    basis: Basis = Basis.NONE
    value: float | None = None
    """Fraction or bytes; None for no number, or one that is `dynamic`."""
    scope: str = ""
    confidence: Confidence = Confidence.CERTAIN
    margin: Margin = Margin.FRAMEWORK

    device: int | str | None = None
    """The GPU it is about: an ordinal among the visible ones, a UUID (or the start of one); None for each visible."""
    some_gpu: bool = False
    """It is about one GPU, which is only known at run time (`args.local_rank`); `device` is None."""
    rank: int = 0
    """Within one framework, GPU and scope the highest of the limiting kinds is in effect; of equals the last."""
    adds: str = ""
    """Claims with the same text here are parts of one sum: the memory_limits of one GPU's logical devices."""
    dynamic: bool = False
    """The value is only known at run time (`args.fraction`)."""
    unread: str = ""
    """Why the value is not known, where that is not it: the file in which it stands was not read."""
    lifts: bool = False
    """It sets no limit, and takes the place of those that do: `set_limit(0)`."""
    void: str = ""
    """Reason why it has no effect: `the platform allocator ignores it`; empty for none."""
    uncalled: bool = False
    """It stands in a function of a script that nothing is known to call."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Choice of GPUs that a script makes among the visible ones."""

    channel: str
    """`set_visible_devices`, `visible_device_list`, `jax_cuda_visible_devices`."""
    framework: str
    ordinals: tuple[int, ...] | None
    """None where they are only known at run time."""
    where: str = ""
    line: int = 0
    text: str = ""


class ScriptContents(msgspec.Struct, frozen=True, kw_only=True):
    """Declarations, variables, choices of GPUs and imports in one Python source."""

    candidates: tuple[Candidate, ...] = ()
    settings: tuple[tuple[str, Setting], ...] = ()
    """(name, setting) of the environment variables that it sets, in the order of its lines."""
    selections: tuple[Selection, ...] = ()
    imports: tuple[str, ...] = ()
    """Names of the top-level packages that it imports, anywhere in it."""
    hints: tuple[Hint, ...] = ()
    error: str = ""
    """Why it could not be parsed; empty for all well."""


class Share(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Agreement in gpuwatch.toml: the memory that a user or a command may take of some GPUs."""

    user: Annotated[Text, Meta(min_length=1, description="a name or a uid; left out: anybody", examples=['"ada"'])] = ""
    command: Annotated[
        Pattern,
        Meta(description="a regular expression, searched in the command line; left out: any", examples=['"train"']),
    ] = ""
    gpus: Annotated[Gpus, Meta(description='or [0, 2], or "GPU-8932"; left out: each', examples=["2"])] = msgspec.field(
        default=(), name="gpu"
    )
    share: Annotated[Fraction, Meta(description='or memory = "20GiB"', examples=["0.4"])] | None = None
    memory: Annotated[Bytes, Meta(ge=MIB, description="instead of share")] | None = None
    where: str = "gpuwatch.toml"
    """The file, as it is to be shown."""
    line: int = 0
    ceiling: bool = False
    """Set by the administrator: shares of others can lower it, and never raise it."""


SHOWN = 80
"""Characters of what a candidate shows of the text that it was read from."""


def format_excerpt(text: str) -> Clean:
    """Return a piece of a command line or an environment for display: cleaned, at most `SHOWN` long, secrets masked.

    Of a long one both ends are shown, unless it is too long to be searched for secrets to its end.
    """
    cut = clean if len(text) > LIMIT else shorten
    return cut(redact([text[:LIMIT]])[0], SHOWN)


def parse_value(candidate: Candidate, value: str | None, reads: Parser) -> list[Candidate]:
    """Return a candidate with its parsed value: one for each GPU that the value names, none where it is switched off.

    A value of None is only known at run time; one that cannot be read makes the candidate void.
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
    return replace(candidate, void=clean(why, 2 * SHOWN))


Ranks: TypeAlias = tuple[tuple[str, str], ...] | None
"""The variables of `RANKS` that a process was started with, and their values; None where these are not known."""

RANKS = frozenset(
    {
        *("LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
        *("SLURM_LOCALID", "SLURM_PROCID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK"),
        *("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
        *("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_RANK", "PMI_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
        *("HOROVOD_LOCAL_RANK", "HOROVOD_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID", "JAX_PROCESS_ID"),
    }
)
"""Variables by which a launcher numbers the processes of a run, and so assigns their GPUs. Sources:
docs.pytorch.org/docs/stable/elastic/run.html; slurm.schedmd.com/srun.html; docs.open-mpi.org, "Environment variables
set by mpirun"; Intel MPI's and MVAPICH2's reference; horovod/runner/gloo_run.py; flux-run(1)."""

LOCAL_RANKS = frozenset(name for name in RANKS if "LOCAL" in name and ("RANK" in name or name.endswith("ID")))
"""Those that count the processes of one machine from 0."""


class Unread(StrEnum):
    """Reason why a part of a process's facts is not known."""

    DENIED = "denied"
    """It belongs to another user."""
    OVERWRITTEN = "overwritten"
    """The process set a title of its own over it (setproctitle): a block of NULs, or text without any `=`."""
    ENDED = "ended"
    TOO_LONG = "too long"
    """It is longer than what is read of it."""
    FAILED = "failed"
    """It could not be read: too large, no ordinary file, no answer in time, no such file."""
    SKIPPED = "skipped"
    """It was left out: we read no more of one program."""


class MigFacts(msgspec.Struct, frozen=True, kw_only=True):
    """MIG instance of a GPU."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    total: int | None = None
    """Bytes."""


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """GPU of the machine, as NVML numbers it."""

    index: int
    uuid: str
    bus_id: str = ""
    name: str = ""
    total: int | None = None
    """Bytes; None while it is not known."""
    capability: float | None = None
    """CUDA's compute capability, 8.6; None where the driver does not report it, as for the next two."""
    cores: int | None = None
    clock: int | None = None
    """The highest clock of its SMs, in MHz."""
    mig: bool = False
    slices: tuple[MigFacts, ...] = ()


class RelatedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Ancestor of a process, or child that has exec'ed, with the same uid."""

    pid: int
    argv: tuple[str, ...] = ()
    argv_cut: bool = False
    """`argv` has only the first of its arguments: there were too many to read them all."""
    environ: Mapping[str, str] | Unread = Unread.DENIED
    start: int = 0
    """Start time in clock ticks since boot; 0 for not known."""
    parent: int = 0
    """PID of its parent; 0 for not known."""
    comm: str = ""
    """Its short name in /proc/PID/stat: `tmux: server`."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """Python source that a process runs."""

    path: str
    """As it is to be shown: `train.py`, or `-c` for code on the command line."""
    contents: ScriptContents | Unread
    edited: bool = False
    """The file was changed after the process started: it may not be what runs."""
    likely: bool = False
    """It was found by its path alone, and the process could see another file there (a container), or is a module, of
    which another one of its name may come first."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration file of the process's owner."""

    path: str
    """As it is to be shown: `~/.theanorc`."""
    text: str


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration file of a server: `vllm serve --config serve.yaml`."""

    path: str
    """As it is to be shown."""
    text: str | Unread
    edited: bool = False
    """As in `Script`."""
    likely: bool = False


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that were read of one process; texts are raw, as the process wrote them."""

    pid: int
    uid: int | None = None
    user: str = ""
    argv: tuple[str, ...] = ()
    argv_cut: bool = False
    """As in `RelatedProcess`."""
    environ: Mapping[str, str] | Unread = Unread.DENIED
    """As of its last execve; a name given twice has its first value, as getenv(3) has it."""
    libraries: frozenset[str] | Unread = Unread.DENIED
    """File names of the shared libraries that it has mapped: `libtorch_cuda.so`, `libcudart.so.11.0`."""
    cgroup: str = ""
    """Its path in the cgroup tree; `/` inside a cgroup namespace."""
    ancestors: tuple[RelatedProcess, ...] = ()
    """The parent first."""
    children: tuple[RelatedProcess, ...] = ()
    script: Script | None = None
    modules: tuple[Script, ...] = ()
    """Those of its own folder that its script imports, and that these import, which are not read."""
    configs: Mapping[int, Config] = {}
    """The files of servers, by the PID on whose command line each stands: its own, or an ancestor's."""
    rc: tuple[File, ...] = ()
    """Theano's, the one that counts most last."""
    shares: tuple[Share, ...] = ()
    """Agreements in gpuwatch.toml; those that match this process are in effect."""

    @property
    def scripts(self) -> tuple[Script, ...]:
        """Modules of the process, then its script, which runs after it has imported them."""
        return (*self.modules, self.script) if self.script is not None else self.modules


def gpu_facts(gpu: Gpu, last: GpuFacts | None = None) -> GpuFacts:
    """Return the facts of a GPU in a snapshot; what is missing now is taken from `last`."""
    if last is not None and gpu.health is not Health.OK:
        return replace(last, index=gpu.index)
    totals = {one.uuid: one.total for one in last.slices} if last else {}
    slices = (
        MigFacts(
            uuid=one.uuid,
            gpu_instance=one.gpu_instance,
            compute_instance=one.compute_instance,
            total=_total(one.memory, totals.get(one.uuid)),
        )
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
    return int(memory.total) if known(memory.total) else last
