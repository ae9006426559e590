"""What the resolver is given: the facts of one process and the GPUs of its machine."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec

from gpuwatch.declared.claims import Scan, Share

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
"""Variables by which a launcher tells a process its place among others, and so which GPU is its. Sources:
docs.pytorch.org/docs/stable/elastic/run.html; slurm.schedmd.com/srun.html; docs.open-mpi.org, "Environment variables
set by mpirun"; Intel MPI's and MVAPICH2's reference; horovod/runner/gloo_run.py; flux-run(1)."""

LOCAL_RANKS = frozenset(name for name in RANKS if "LOCAL" in name and ("RANK" in name or name.endswith("ID")))
"""Those that count the processes of one machine from 0."""


class Unread(StrEnum):
    """Why something of a process is not known."""

    DENIED = "denied"
    """It is somebody else's."""
    OVERWRITTEN = "overwritten"
    """The process set a title of its own over it (setproctitle): a block of NULs, or text without any `=`."""
    GONE = "gone"
    LONG = "long"
    """It is longer than what is read of it."""
    FAILED = "failed"
    """It could not be read: too large, no ordinary file, no answer in time, no such file."""
    LEFT = "left"
    """It was left out: we read no more of one program."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG instance of a GPU."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    total: int | None = None
    """Bytes."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of the machine, as NVML numbers it."""

    index: int
    uuid: str
    bus_id: str = ""
    name: str = ""
    total: int | None = None
    """Bytes; None while it is not known."""
    capability: float | None = None
    """CUDA's compute capability, 8.6; None where the driver does not tell, as for the next two."""
    cores: int | None = None
    clock: int | None = None
    """The highest clock of its SMs, in MHz."""
    mig: bool = False
    slices: tuple[Slice, ...] = ()


class Kin(msgspec.Struct, frozen=True, kw_only=True):
    """An ancestor, or a child that has exec'ed, of the process: of the same uid."""

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
    """The Python source that a process runs."""

    path: str
    """As it is to be shown: `train.py`, or `-c` for code on the command line."""
    scan: Scan | Unread
    edited: bool = False
    """The file was changed after the process started: it may not be what runs."""
    likely: bool = False
    """It was found by its path alone, and the process could see another file there (a container), or is a module, of
    which another one of its name may come first."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration file of the process's owner."""

    path: str
    """As it is to be shown: `~/.theanorc`."""
    text: str


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The file that a server was given its options in: `vllm serve --config serve.yaml`."""

    path: str
    """As it is to be shown."""
    text: str | Unread
    edited: bool = False
    """As in `Script`."""
    likely: bool = False


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one process; texts are raw, as the process wrote them."""

    pid: int
    uid: int | None = None
    user: str = ""
    argv: tuple[str, ...] = ()
    argv_cut: bool = False
    """As in `Kin`."""
    environ: Mapping[str, str] | Unread = Unread.DENIED
    """As of its last execve; a name given twice has its first value, as getenv(3) has it."""
    libraries: frozenset[str] | Unread = Unread.DENIED
    """File names of the shared libraries that it has mapped: `libtorch_cuda.so`, `libcudart.so.11.0`."""
    cgroup: str = ""
    """Its path in the cgroup tree; `/` inside a cgroup namespace."""
    ancestors: tuple[Kin, ...] = ()
    """The parent first."""
    children: tuple[Kin, ...] = ()
    script: Script | None = None
    modules: tuple[Script, ...] = ()
    """Those of its own folder that its script imports, and that these import, which are not read."""
    configs: Mapping[int, Config] = {}
    """The files of servers, by the PID on whose command line each stands: its own, or an ancestor's."""
    rc: tuple[File, ...] = ()
    """Theano's, the one that counts most last."""
    shares: tuple[Share, ...] = ()
    """What people agreed on in gpuwatch.toml; those that match this process are in effect."""

    @property
    def scripts(self) -> tuple[Script, ...]:
        """Its modules and then its script, which runs what it does after it has imported them."""
        return (*self.modules, self.script) if self.script is not None else self.modules
