"""Runs: finds the launch that a process belongs to, and its role there (head, rank, worker or leftover).

Sources of the variables: docs.pytorch.org/docs/stable/elastic/run.html (torchrun); deepspeed/launcher/launch.py
(CROSS_SIZE); lightning/fabric/plugins/environments/lightning.py (NODE_RANK and LOCAL_RANK without RANK);
docs.open-mpi.org, "Environment variables set by mpirun" (OMPI_COMM_WORLD_*); horovod/runner/gloo_run.py
(HOROVOD_*); slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"; MPICH's hydra (PMI_*); ray's
common/constants.h (RAY_JOB_ID, RAY_RAYLET_PID); tensorflow.org/guide/distributed_training (TF_CONFIG).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from gpuwatch.base import procfs, programs
from gpuwatch.base.programs import Role, SourceKind
from gpuwatch.base.text import clean, mask
from gpuwatch.declared.facts import Facts, RelatedProcess, Unread
from gpuwatch.inspector import files, servers
from gpuwatch.model.snapshot import Run

# -- ranks, by the environment -------------------------------------------------------------------------------------


class Rank(NamedTuple):
    """Number of a process among the ranks of its run."""

    launcher: str
    """Launcher of the run; empty where the variables were set by hand, or by an unknown launcher."""
    rank: int | None = None
    local: int | None = None
    world: int | None = None


class _RankVariables(NamedTuple):
    """Variables by which one launcher numbers its ranks."""

    launcher: str
    rank: str
    world: str
    local: str
    marks: tuple[str, ...] = ()
    """Further variables that this launcher always sets."""
    smallest: int = 1
    """Smallest number of ranks that counts: srun sets its variables for a single shell and its children, too."""


_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_RANK_VARIABLES = (
    _RankVariables("accelerate", *_TORCH, marks=("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")),
    _RankVariables("torchrun", *_TORCH, marks=("TORCHELASTIC_RUN_ID",)),
    _RankVariables("deepspeed", *_TORCH, marks=("CROSS_SIZE", "LOCAL_SIZE")),
    _RankVariables("", *_TORCH),
    _RankVariables("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    _RankVariables("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    _RankVariables("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", smallest=2),
    _RankVariables("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", smallest=2),
    _RankVariables("", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", ""),
)


def find_rank(environ: Mapping[str, str], launcher: str = "") -> Rank | None:
    """Return the rank that an environment states; None where it states none, or an impossible one.

    `launcher` is the launcher among the ancestors: its variables come first, since other variables may be older than it
    (a pod's RANK under mpirun).
    """
    for variables in sorted(_RANK_VARIABLES, key=lambda one: not launcher or one.launcher != launcher):
        rank = _parse_rank(variables, environ)
        if rank is not None:
            return rank
    return _parse_lightning(environ) or _parse_tensorflow(environ)


def _parse_rank(variables: _RankVariables, environ: Mapping[str, str]) -> Rank | None:
    if variables.rank not in environ:
        return None
    rank, world, local = (_parse_number(environ.get(name)) for name in variables[1:4])
    if rank is None or not world or rank >= world or world < variables.smallest:
        return None
    if not all(mark in environ for mark in variables.marks) or (variables.launcher == "srun" and not _step(environ)):
        return None
    return Rank(variables.launcher, rank, local if local is not None and local < world else None, world)


def _parse_lightning(environ: Mapping[str, str]) -> Rank | None:
    """Return the rank of a process that Lightning's first rank started: no RANK is set; local ranks count from 0."""
    if "RANK" in environ:
        return None
    node, local, world = (_parse_number(environ.get(name)) for name in ("NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"))
    if node is None or local is None or not world or local >= world:
        return None
    return Rank("lightning", local if node == 0 else None, local, world)


_TRAINING_TASKS = ("chief", "master", "worker")
"""TF_CONFIG's tasks that train, in the order of their ranks; the parameter servers and the evaluator do not.
Source: tensorflow/python/distribute/multi_worker_util.py, id_in_cluster and worker_count."""


class _Cluster(NamedTuple):
    """Valid value of TF_CONFIG."""

    sizes: dict[str, int]
    kind: str
    number: int
    text: str
    """Text of the cluster, which is the same for all of its tasks."""


def _parse_cluster(environ: Mapping[str, str]) -> _Cluster | None:
    try:
        found = msgspec.json.decode(environ["TF_CONFIG"])
        cluster, task = found["cluster"], found["task"]
        sizes = {str(kind): len(hosts) for kind, hosts in cluster.items()}
        kind, index = str(task["type"]), _parse_number(str(task["index"]))
        text = msgspec.json.encode(cluster, order="deterministic").decode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if index is None or index >= sizes.get(kind, 0) or sum(sizes.values()) < 2:
        return None
    return _Cluster(sizes, kind, index, text)


def _parse_tensorflow(environ: Mapping[str, str]) -> Rank | None:
    found = _parse_cluster(environ)
    if found is None:
        return None
    sizes = [found.sizes.get(kind, 0) for kind in _TRAINING_TASKS]
    rank = None
    if found.kind in _TRAINING_TASKS:
        rank = sum(sizes[: _TRAINING_TASKS.index(found.kind)]) + found.number
    return Rank("TF_CONFIG", rank, None, sum(sizes) or None)


def _parse_number(text: str | None) -> int | None:
    """Parse a whole number of at most six digits; None for any other text."""
    word = (text or "").strip()
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= 6 else None


def _step(environ: Mapping[str, str]) -> str:
    """Return a Slurm step that has several tasks; empty for a batch script, and for a shell of one task.

    Special steps, such as the batch script, have the highest 32-bit numbers. Source: slurm/slurm.h, SLURM_BATCH_SCRIPT.
    """
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    digits = job.isascii() and job.isdecimal() and step.isascii() and step.isdecimal() and len(job) + len(step) < 20
    several = (_parse_number(environ.get("SLURM_STEP_NUM_TASKS")) or 0) > 1
    return f"{job}.{step}" if digits and several and int(step) < 0xFFFFFFF0 else ""


# -- runs whose launcher is not visible ----------------------------------------------------------------------------

_LOOPBACK = ("localhost", "127.", "::1")


def find_shared_run(environ: Mapping[str, str], uid: int | None, cgroup: str) -> str:
    """Return the key of a run by the variables that all of its processes share; empty where there are none.

    A key with a loopback address contains the cgroup (or container) too: another one may use the same address.
    """
    get = environ.get
    address = f"{get('MASTER_ADDR', '')}:{get('MASTER_PORT', '')}"
    if found := get("TORCHELASTIC_RUN_ID"):
        words = ["torchrun", found, address, _scope(address, cgroup)]
    elif (found := _mpi_namespace(environ)) and not _is_single_task(environ):
        words = ["mpirun", found]
    elif found := _step(environ):
        words = ["slurm", found]
    elif (found := get("RAY_JOB_ID")) and get("RAY_RAYLET_PID"):
        words = ["ray", found, get("RAY_RAYLET_PID", ""), cgroup]
    elif (cluster := _parse_cluster(environ)) is not None:
        words = ["TF_CONFIG", cluster.text, cgroup if any(one in cluster.text for one in _LOOPBACK) else ""]
    elif (
        (_parse_number(get("WORLD_SIZE")) or 0) > 1 and "RANK" in environ and get("MASTER_ADDR") and get("MASTER_PORT")
    ):
        words = ["ranks", address, _scope(address, cgroup)]
    elif (_parse_number(get("JAX_NUM_PROCESSES")) or 0) > 1 and (found := get("JAX_COORDINATOR_ADDRESS")):
        words = ["jax", found, _scope(found, cgroup)]
    else:
        return ""
    text = "\0".join((str(uid), *words)).encode("utf-8", "backslashreplace")
    return f"{words[0]} {binascii.crc32(text):08x}"


def _scope(address: str, cgroup: str) -> str:
    return cgroup if address.startswith(_LOOPBACK) else ""


def _mpi_namespace(environ: Mapping[str, str]) -> str:
    """Return the name that MPI's launcher gave the run; empty outside of MPI."""
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
    return next((environ[name] for name in names if environ.get(name)), "")


def _is_single_task(environ: Mapping[str, str]) -> bool:
    """Return whether only one task was launched: the shell of `srun --pty bash`, and whatever it starts.

    Slurm gives that shell MPI's variables, too, where MpiDefault is pmix (slurm.schedmd.com/mpi_guide.html). The
    largest of the sizes counts: mpirun in such a shell launches more tasks.
    """
    sizes = (_parse_number(environ.get(name)) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"))
    return max((size for size in sizes if size is not None), default=2) < 2


def _has_launcher_variables(environ: Mapping[str, str]) -> bool:
    """Return whether only a launcher can have set these variables."""
    if "TORCHELASTIC_RUN_ID" in environ or "OMPI_COMM_WORLD_RANK" in environ:  # of one rank, too: srun sets neither
        return True
    return ("PMIX_RANK" in environ or "PMI_RANK" in environ) and not _is_single_task(environ)


# -- runs ----------------------------------------------------------------------------------------------------------

LONGEST_NAME = 64
"""Characters of a run's name."""

NOTEBOOK = "notebook"
"""Name of a notebook kernel's run."""

_PARENT = r"\bparent_pid=(\d{1,10})\b"
"""PID of the parent in the code of a spawned worker. Source: multiprocessing/spawn.py."""

_WORKER_TITLES = ("VLLM::", "sglang::", "ray::")
"""Titles of workers: vLLM's engine and its ranks, SGLang's scheduler, Ray's workers."""

_WORKER_NAMES = ("pt_data_worker",)
"""Names of PyTorch's DataLoader workers. Source: torch/utils/data/_utils/worker.py."""

_MOST_FORKS = 4
"""Forks of a spawned worker, each the parent of the next, that are examined at most."""

_SUBCOMMAND = r"[a-z][a-z0-9_-]{1,15}"


class _Member(NamedTuple):
    """Process of a run."""

    process: RelatedProcess
    launcher: str
    """Label of the launcher that this process is; empty for other processes."""

    @property
    def environ(self) -> Mapping[str, str]:
        """Environment of the process; empty where that cannot be read."""
        return {} if isinstance(self.process.environ, Unread) else self.process.environ

    @property
    def identity(self) -> str:
        return f"{self.process.pid}:{self.process.start}"


class _Lineage(NamedTuple):
    """Members of a run, from one process up to its head."""

    line: tuple[_Member, ...]
    leftover: bool
    """Whether the highest member did not start the run: the process that started the run has ended."""

    @property
    def itself(self) -> _Member:
        return self.line[0]

    @property
    def top(self) -> _Member:
        return self.line[-1]

    @property
    def launcher(self) -> str:
        """Label of the nearest launcher; empty where there is none."""
        return next((member.launcher for member in self.line if member.launcher), "")


def read_run(facts: Facts, stat: procfs.Stat, *, proc: Path = procfs.PROC) -> Run:
    """Return the run that a process belongs to.

    A run begins with the highest launcher (torchrun) among the ancestors of the same uid, else with the highest
    ancestor that is a program of its own. The search ends at a terminal, a login, a service manager or a notebook
    server. Shells and wrappers (xargs, make) that loop over trainings start one run each time.
    """
    run = _find_members(facts, stat, proc)
    rank, rank_process = _find_rank_process(run)
    head, key = _find_head(run, facts, stat)
    worker_of = _worker_of(run, rank_process)
    is_rank = rank_process is not None and worker_of is None
    if rank is None and not run.launcher and worker_of is None and head is not None:
        rank = _lightning_first(facts)
        is_rank = True
    name = _find_name(run, head)
    starter = "" if worker_of is None else _find_starter(run)
    return Run(
        key=key,
        name=name,
        starter=starter if starter != name else "",
        launcher=run.launcher or ("" if rank is None else rank.launcher),
        head=0 if head is None else head.pid,
        head_start=0 if head is None else head.start,
        rank=rank.rank if rank is not None and is_rank else None,
        local_rank=rank.local if rank is not None and is_rank else None,
        world=None if rank is None else rank.world,
        worker_of=worker_of,
        orphaned=run.leftover,
    )


def _find_members(facts: Facts, stat: procfs.Stat, proc: Path) -> _Lineage:
    line = [_Member(facts, programs.find_launcher(facts.argv, facts.comm))]
    if _has_lost_starter(line[0], stat, proc):
        return _Lineage(tuple(line), leftover=True)
    for process in () if procfs.is_adopted(facts.pid, stat, proc) else facts.ancestors:
        role = programs.find_role(process.argv, process.comm)
        is_payload = role is Role.LAUNCHER or (bool(process.argv) and programs.is_python(process.argv[0]))
        if role is Role.BOUNDARY or (process.pid == 1 and not is_payload):  # else a container's own program, no init
            break
        if role is not Role.WRAPPER:
            line.append(_Member(process, programs.find_launcher(process.argv, process.comm)))
    run = _Lineage(tuple(line), leftover=False)
    if run.launcher or run.top is run.itself:
        return run
    top = run.top.process
    above = procfs.find_stat(top.pid, proc, top.start)
    return run if above is None else run._replace(leftover=_has_lost_starter(run.top, above, proc))


def _has_lost_starter(member: _Member, stat: procfs.Stat, proc: Path) -> bool:
    """Return whether the process that started a member has certainly ended: its launcher, or a worker's parent."""
    if member.launcher:
        return False
    process = member.process
    if _has_lost_spawner(process, stat, proc):
        return True
    dependent = (
        _is_marked_worker(process)
        or _has_launcher_variables(member.environ)
        or (stat.session != process.pid and servers.leads_session(process.argv, member.environ))
    )
    return dependent and procfs.is_adopted(process.pid, stat, proc)


def _has_lost_spawner(process: RelatedProcess, stat: procfs.Stat, proc: Path) -> bool:
    """Return whether a worker's spawner is no longer above it; forks of the worker between the two are skipped."""
    match = re.search(_PARENT, " ".join(process.argv)) if programs.is_worker(process.argv) else None
    if match is None:
        return False
    spawner, parent = int(match[1]), stat.ppid
    arguments = b"".join(word.encode("utf-8", "backslashreplace") + b"\0" for word in process.argv)
    for _ in range(_MOST_FORKS):
        try:
            if procfs.read_own_pid(parent, proc)[0] == spawner:
                return False
            if procfs.read_file(parent, "cmdline", proc, 1 << 16) != arguments:
                return True
            parent = procfs.read_stat(parent, proc).ppid
        except (OSError, ValueError):  # hidden, or just ended
            return False
    return False


def _is_marked_worker(process: RelatedProcess) -> bool:
    """Return whether a process's title, name or command line shows that it is a worker."""
    titled = bool(process.argv) and process.argv[0].startswith(_WORKER_TITLES)
    return titled or process.comm in _WORKER_NAMES or programs.is_worker(process.argv)


def _is_worker(process: RelatedProcess, parent: RelatedProcess) -> bool:
    """Return whether a process is a helper that its parent spawned or forked, and not another program.

    A fork shows the arguments and the environment of its parent, or a title in place of both.
    """
    if _is_marked_worker(process):
        return True
    if process.argv == parent.argv and process.argv:
        return process.environ == parent.environ
    return process.environ is Unread.OVERWRITTEN


def _worker_of(run: _Lineage, rank: RelatedProcess | None) -> int | None:
    """Return the PID of the rank or program that the process helps; None where the process is no helper."""
    if rank is not None and rank is not run.itself.process:
        return rank.pid
    for member, above in zip(run.line, run.line[1:], strict=False):
        if member.launcher == "ray" or (above.launcher == "ray" and _is_marked_worker(member.process)):
            continue  # the program that Ray's daemon works for is above the daemon
        if above.launcher or not _is_worker(member.process, above.process):
            return None if member is run.itself else member.process.pid
    return None if run.top is run.itself or run.top.launcher else run.top.process.pid


def _find_rank_process(run: _Lineage) -> tuple[Rank | None, RelatedProcess | None]:
    """Return the rank of a process or of the process that it helps, and the process with that rank.

    All descendants of a rank inherit its variables: the highest process with the same variables is the rank.
    """
    rank: Rank | None = None
    process: RelatedProcess | None = None
    for member in run.line:
        if member.launcher:
            break
        found = find_rank(member.environ, run.launcher)
        if found is None:
            continue  # its environment cannot be read, or it has only started ranks
        if rank is not None and found != rank:
            break
        rank, process = found, member.process
    return rank, process


def _lightning_first(facts: Facts) -> Rank | None:
    """Return the rank of a process that has started the run's other ranks, as Lightning does; None for any other."""
    for child in facts.children:
        if child.argv[1:] == facts.argv[1:] and not isinstance(child.environ, Unread):
            found = find_rank(child.environ)
            if found is not None and found.launcher == "lightning" and found.rank:
                return Rank("lightning", 0, 0, found.world)
    return None


def _find_head(run: _Lineage, facts: Facts, stat: procfs.Stat) -> tuple[RelatedProcess | None, str]:
    """Return the first process of the run, None where it is not visible, and the key of the run.

    Leftovers of one run have at least their process group in common: the kernel does not reuse its number while a
    member lives.
    """
    launchers = [place for place, member in enumerate(run.line) if member.launcher]
    if launchers:
        top = run.line[launchers[-1]]
        if top.launcher != "ray":
            return top.process, top.identity
        if top is not run.top:  # the program that started Ray's daemon
            return run.top.process, run.top.identity
        branch = run.line[max(0, launchers[-1] - 1)]  # the daemon itself may serve several programs
        job = branch.environ.get("RAY_JOB_ID", "")
        if branch is not top and not job:  # its environment was overwritten by a title
            return branch.process, branch.identity
        return None, clean(f"ray {top.identity} {job}".rstrip(), 60)
    if key := find_shared_run(run.top.environ, facts.uid, facts.container or facts.cgroup):
        return None, key
    if run.leftover:
        return None, f"left {facts.uid}:{stat.session}:{stat.group}"
    return run.top.process, run.top.identity


# -- names of runs -------------------------------------------------------------------------------------------------


def _find_name(run: _Lineage, head: RelatedProcess | None) -> str:
    """Return the name of a run by the command line of its head, else of its highest member that has a name."""
    processes = [] if head is None else [head]
    processes += [member.process for member in reversed(run.line)]
    named = next((name for one in processes if (name := format_run_name(one.argv))), "")
    return named or run.launcher or procfs.format_name(files.encode_environ(run.itself.process.comm))


def _find_starter(run: _Lineage) -> str:
    """Return the name of the nearest program above a worker that is neither a worker nor a launcher."""
    above = (member.process for member in run.line[1:] if not member.launcher)
    return next((name for one in above if not _is_marked_worker(one) and (name := format_run_name(one.argv))), "")


def format_run_name(argv: tuple[str, ...]) -> str:
    """Return the name of a command line's program, and a server's model: `train.py`, `vllm serve meta/llama`.

    Empty where it only starts another. Clean, and at most 64 characters long.
    """
    if not argv or not argv[0]:
        return ""
    if programs.find_launcher(argv):
        started = programs.unwrap(argv)
        return "" if started == argv else format_run_name(started)
    if argv[0] == "-m":
        return mask("".join(argv[1:2]), LONGEST_NAME)
    source = programs.find_source(argv)
    if source is None:
        return NOTEBOOK if programs.is_kernel(argv) else _with_subcommand(argv[0], argv)
    if source.kind is SourceKind.WORKER:
        return ""
    if source.kind is SourceKind.CODE:
        return clean(f"{PurePosixPath(argv[0]).name} -c", LONGEST_NAME)
    if source.kind is SourceKind.MODULE:
        return clean(f"{mask(source.text)} {_model(argv)}".rstrip(), LONGEST_NAME)
    return _with_subcommand(source.text, argv)


def _with_subcommand(word: str, argv: tuple[str, ...]) -> str:
    if "::" in word:  # a title: `ray::Trainer.train()`
        return clean(re.split(r"[.( ]", mask(word), maxsplit=1)[0], LONGEST_NAME)
    if len(argv) == 1:  # a title: only the first word may be a path
        program, blank, rest = mask(word).partition(" ")
        return clean(PurePosixPath(program).name + blank + rest, LONGEST_NAME)
    name = _file_name(word)
    if name.endswith((".py", ".sh")) or programs.is_python(name):
        return name
    after = argv[argv.index(word) + 1 :] if word in argv else ()
    verb = after[0] if after and re.fullmatch(_SUBCOMMAND, after[0]) else ""
    return clean(" ".join(filter(None, (name, verb, _model(argv)))), LONGEST_NAME)


def _model(argv: tuple[str, ...]) -> str:
    model = programs.find_model(argv)
    return _file_name(model) if model.startswith(("/", ".", "~")) else mask(model)


def _file_name(path: str) -> str:
    """Return the name of a file. The path is masked before: the name of a secret may be cut off with the folders."""
    shown = mask(path)
    return clean(PurePosixPath(shown).name or shown, LONGEST_NAME)
