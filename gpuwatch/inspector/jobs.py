"""Runs: the launch that a process belongs to, and its role there (head, rank, worker or leftover).

Sources of the names: docs.pytorch.org/docs/stable/elastic/run.html (torchrun); deepspeed/launcher/launch.py
(CROSS_SIZE); lightning/fabric/plugins/environments/lightning.py (NODE_RANK and LOCAL_RANK without RANK);
docs.open-mpi.org, "Environment variables set by mpirun" (OMPI_COMM_WORLD_*); horovod/runner/gloo_run.py
(HOROVOD_*); slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"; MPICH's hydra (PMI_*); ray's
common/constants.h (RAY_JOB_ID, RAY_RAYLET_PID); tensorflow.org/guide/distributed_training (TF_CONFIG).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from gpuwatch import procfs
from gpuwatch.declared.facts import Facts, RelatedProcess, Unread
from gpuwatch.inspector import program, servers
from gpuwatch.inspector.program import How, Part, Role
from gpuwatch.model import Job
from gpuwatch.text import clean

_LOOPBACK = ("localhost", "127.", "::1")

_ORDER = ("chief", "master", "worker")
"""Of TF_CONFIG's tasks those that train, in the order of their ranks; the parameter servers and the evaluator do not.
Source: tensorflow/python/distribute/multi_worker_util.py, id_in_cluster and worker_count."""


class Place(NamedTuple):
    """Which of its run a process is."""

    launcher: str
    """Empty where the variables were set by hand, or by what we do not know."""
    rank: int | None = None
    local: int | None = None
    world: int | None = None


class _Scheme(NamedTuple):
    """How one launcher says it."""

    launcher: str
    rank: str
    world: str
    local: str


_TORCH = _Scheme("", "RANK", "WORLD_SIZE", "LOCAL_RANK")
_SCHEMES = (
    _TORCH,
    _Scheme("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    _Scheme("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    _Scheme("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    _Scheme("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    _Scheme("", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", ""),
)


def find_rank(environ: Mapping[str, str], launcher: str = "") -> Place | None:
    """Return the rank that an environment tells; None where it tells none, or nonsense.

    `launcher` is the one that started it as far as that can be seen: its variables count before others, which may
    have been there before it (a pod's RANK under mpirun).
    """
    for scheme in sorted(_SCHEMES, key=lambda one: not launcher or one.launcher != launcher):
        place = _by(scheme, environ)
        if place is not None:
            return place
    return _lightning(environ) or _tensorflow(environ)


def _by(scheme: _Scheme, environ: Mapping[str, str]) -> Place | None:
    rank, world = _number(environ.get(scheme.rank)), _number(environ.get(scheme.world))
    if rank is None or not world or rank >= world:
        return None
    if scheme.launcher == "srun" and not _step(environ, world):
        return None
    if scheme.rank == "PMI_RANK" and world < 2:  # srun sets it for a shell, too, which hands it on to all
        return None
    local = _number(environ.get(scheme.local))
    word = scheme.launcher if scheme is not _TORCH else _torch(environ)
    return Place(word, rank, local if local is not None and local < world else None, world)


def _torch(environ: Mapping[str, str]) -> str:
    if "TORCHELASTIC_RUN_ID" in environ:
        return "accelerate" if "ACCELERATE_MIXED_PRECISION" in environ else "torchrun"
    return "deepspeed" if "CROSS_SIZE" in environ and "LOCAL_SIZE" in environ else ""


def _lightning(environ: Mapping[str, str]) -> Place | None:
    """Lightning starts the others of its ranks itself, without a RANK; on the first node they are as on their own."""
    if "RANK" in environ:
        return None
    node, local, world = (_number(environ.get(name)) for name in ("NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"))
    if node is None or local is None or not world or local >= world:
        return None
    return Place("lightning", local if node == 0 else None, local, world)


class _Cluster(NamedTuple):
    """TF_CONFIG, as far as it makes sense."""

    sizes: dict[str, int]
    kind: str
    number: int
    text: str
    """The cluster alone, the same for all of its tasks."""


def _cluster(environ: Mapping[str, str]) -> _Cluster | None:
    try:
        found = msgspec.json.decode(environ["TF_CONFIG"])
        cluster, task = found["cluster"], found["task"]
        sizes = {str(kind): len(hosts) for kind, hosts in cluster.items()}
        kind, index = str(task["type"]), _number(str(task["index"]))
        text = msgspec.json.encode(cluster, order="deterministic").decode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # msgspec's own errors are ValueErrors
        return None
    if index is None or index >= sizes.get(kind, 0) or sum(sizes.values()) < 2:
        return None
    return _Cluster(sizes, kind, index, text)


def _tensorflow(environ: Mapping[str, str]) -> Place | None:
    found = _cluster(environ)
    if found is None:
        return None
    world = sum(found.sizes.get(kind, 0) for kind in _ORDER)
    rank = None
    if found.kind in _ORDER:
        before = _ORDER[: _ORDER.index(found.kind)]
        rank = sum(found.sizes.get(kind, 0) for kind in before) + found.number
    return Place("TF_CONFIG", rank, None, world or None)


def _number(text: str | None) -> int | None:
    """Read a count of at most six digits."""
    word = (text or "").strip()
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= 6 else None


def _step(environ: Mapping[str, str], tasks: int | None) -> str:
    """Name a Slurm step of several tasks; empty for a batch script and for a shell of one task.

    The numbers of the batch script and of what is no step are at the end of 32 bits. Source: slurm/slurm.h,
    SLURM_BATCH_SCRIPT.
    """
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    digits = job.isascii() and job.isdecimal() and step.isascii() and step.isdecimal() and len(job) + len(step) < 20
    if not digits or int(step) >= 0xFFFFFFF0 or not tasks or tasks < 2:
        return ""
    return f"{job}.{step}"


def find_shared_run(environ: Mapping[str, str], uid: int | None, cgroup: str) -> str:
    """Return what all processes of a run have in their environment where what started them is not to be seen.

    Empty for nothing. An address of this host alone means another run in another container: then the cgroup is in it.
    """
    get = environ.get
    if found := get("TORCHELASTIC_RUN_ID"):
        words = ["torchrun", found, _address(environ, cgroup)]
    elif (found := _namespace(environ)) and not _alone(environ):
        words = ["mpirun", found]
    elif found := _step(environ, _number(get("SLURM_STEP_NUM_TASKS"))):
        words = ["slurm", found]
    elif (found := get("RAY_JOB_ID")) and get("RAY_RAYLET_PID"):
        words = ["ray", found, get("RAY_RAYLET_PID", ""), cgroup]
    elif (cluster := _cluster(environ)) is not None:
        words = ["TF_CONFIG", cluster.text, cgroup if any(one in cluster.text for one in _LOOPBACK) else ""]
    elif (_number(get("WORLD_SIZE")) or 0) > 1 and "RANK" in environ and get("MASTER_ADDR") and get("MASTER_PORT"):
        words = ["ranks", _address(environ, cgroup)]
    elif (_number(get("JAX_NUM_PROCESSES")) or 0) > 1 and (found := get("JAX_COORDINATOR_ADDRESS")):
        words = ["jax", found, cgroup if found.startswith(_LOOPBACK) else ""]
    else:
        return ""
    import hashlib  # it loads OpenSSL, 3 ms that most processes need not wait for

    text = "\0".join((str(uid), *words))
    return (
        f"{words[0]} {hashlib.sha1(text.encode('utf-8', 'backslashreplace'), usedforsecurity=False).hexdigest()[:12]}"
    )


def _namespace(environ: Mapping[str, str]) -> str:
    """Return what MPI calls a run."""
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
    return next((environ[name] for name in names if environ.get(name)), "")


def _alone(environ: Mapping[str, str]) -> bool:
    """Return whether it is the only task that was launched: the shell of `srun --pty bash`, and whatever it starts.

    Slurm gives that one all that MPI needs, too, where MpiDefault is pmix (slurm.schedmd.com/mpi_guide.html). The
    greatest of the sizes counts: mpirun in such a shell launches more.
    """
    sizes = (_number(environ.get(name)) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"))
    return max((size for size in sizes if size is not None), default=2) < 2


def _address(environ: Mapping[str, str], cgroup: str) -> str:
    address = environ.get("MASTER_ADDR", "")
    return f"{address}:{environ.get('MASTER_PORT', '')} {cgroup if address.startswith(_LOOPBACK) else ''}"


def is_left_by_launcher(environ: Mapping[str, str]) -> bool:
    """Return whether only a launcher can have set this: an orphan with it has lost the one that it had on this host."""
    if "TORCHELASTIC_RUN_ID" in environ or "OMPI_COMM_WORLD_RANK" in environ:  # of one rank, too: srun sets neither
        return True
    return ("PMIX_RANK" in environ or "PMI_RANK" in environ) and not _alone(environ)


LONGEST_NAME = 40
"""Characters of a run's name."""

NOTEBOOK = "notebook"
"""Name of the run of a kernel."""

_PARENT = re.compile(r"\bparent_pid=(\d{1,10})\b")
"""In the code that starts a spawned worker: what its parent calls itself. Source: multiprocessing/spawn.py."""

_TITLED_WORKERS = ("VLLM::", "sglang::", "ray::")
"""Titles that only workers set: vLLM's engine and its ranks, SGLang's scheduler, Ray's workers."""

_WORKER_NAMES = ("pt_data_worker",)
"""What PyTorch's DataLoader calls its workers. Source: torch/utils/data/_utils/worker.py."""

_MOST_FORKS = 4
"""Forks of a spawned worker, one below the other, that are looked through."""

_SUBCOMMAND = re.compile(r"[a-z][a-z0-9_-]{1,15}")


class _Member(NamedTuple):
    """A process of the run, on the way from the one that is looked at to its head."""

    kin: RelatedProcess
    role: Role

    @property
    def launches(self) -> bool:
        return self.role.part is Part.LAUNCHER

    @property
    def environ(self) -> Mapping[str, str]:
        """What is known of its environment: nothing where it cannot be read."""
        return {} if isinstance(self.kin.environ, Unread) else self.kin.environ


class _Run(NamedTuple):
    """The members of a run from the process up to its head."""

    line: tuple[_Member, ...]
    orphaned: bool
    """The highest is not where the run began: who started it has ended."""

    @property
    def itself(self) -> _Member:
        return self.line[0]

    @property
    def top(self) -> _Member:
        return self.line[-1]

    @property
    def launcher(self) -> _Member | None:
        """The nearest launcher above the process."""
        return next((member for member in self.line if member.launches), None)


def read_run(facts: Facts, itself: RelatedProcess, stat: procfs.Stat, *, proc: Path = procfs.PROC) -> Job:
    """Return which run a process belongs to.

    The run begins with the highest ancestor of the same uid that is no shell, wrapper, terminal, login, manager of
    services or notebook server, or with the highest launcher (torchrun) where there is one: what loops over trainings
    and is no program of its own (a shell, xargs, make) starts one run each time.
    """
    run = _run(facts, itself, stat, proc)
    place, rank_process = _place(run)
    head, key = _head(run, facts, stat)
    worker_of = _worker_of(run, rank_process)
    launcher = run.launcher
    is_rank = rank_process is not None and worker_of is None
    if place is None and launcher is None and worker_of is None and head is not None:
        place = _lightning_head(facts)  # the first of Lightning's ranks is the one that starts the others
        is_rank = True
    return Job(
        key=key,
        name=_name(run, head),
        launcher=launcher.role.word if launcher is not None else "" if place is None else place.launcher,
        head=0 if head is None else head.pid,
        head_start=0 if head is None else head.start,
        rank=place.rank if place is not None and is_rank else None,
        local_rank=place.local if place is not None and is_rank else None,
        world=None if place is None else place.world,
        worker_of=worker_of,
        orphaned=run.orphaned,
    )


# -- who is in it --------------------------------------------------------------------------------------------------


def _run(facts: Facts, itself: RelatedProcess, stat: procfs.Stat, proc: Path) -> _Run:
    role = program.find_role(itself)
    first = _Member(itself, role if role.part is Part.LAUNCHER else Role(Part.PROGRAM))
    if _is_left(first, stat, proc):
        return _Run((first,), orphaned=True)
    line = [first]
    if not procfs.adopted(itself.pid, stat, proc):
        for kin in facts.ancestors:
            role = program.find_role(kin)
            if role.part is Part.ENDS or (kin.pid == 1 and not _may_be_first(kin, role)):
                break
            if role.part is not Part.PASSES:
                line.append(_Member(kin, role))
    run = _Run(tuple(line), orphaned=False)
    if run.launcher is not None:
        return run
    top = run.top.kin
    if top is itself:
        return run
    try:
        above = procfs.read_stat(top.pid, proc)
    except (OSError, ValueError):  # it has just gone
        return run
    return run._replace(orphaned=above.start_ticks == top.start and _is_left(run.top, above, proc))


def _may_be_first(kin: RelatedProcess, role: Role) -> bool:
    """Return if PID 1, of a container that we are in too, is what the container is for and not an init of its own."""
    return role.part is Part.LAUNCHER or (bool(kin.argv) and program.is_python(kin.argv[0]))


def _is_left(member: _Member, stat: procfs.Stat, proc: Path) -> bool:
    """Return if a process can only have been started by one that has ended: a launcher, or the parent of a worker."""
    if member.launches:
        return False
    spawner = _spawner(member.kin.argv)
    if spawner is not None and _has_lost(member.kin, stat, spawner, proc):
        return True
    left = (
        _is_worker_by_itself(member.kin)
        or is_left_by_launcher(member.environ)
        or (stat.session != member.kin.pid and servers.is_led(member.kin.argv, member.environ))
    )
    return left and procfs.adopted(member.kin.pid, stat, proc)


def _spawner(argv: tuple[str, ...]) -> int | None:
    """Return what the process that spawned a worker calls itself."""
    found = program.find_program(argv)
    match = _PARENT.search(" ".join(argv)) if found is not None and found.how is How.WORKER else None
    return int(match[1]) if match else None


def _has_lost(kin: RelatedProcess, stat: procfs.Stat, spawner: int, proc: Path) -> bool:
    """Give whether the parent of a spawned worker is another than its spawner. A fork of one has its arguments too."""
    parent, arguments = stat.ppid, b"".join(word.encode("utf-8", "backslashreplace") + b"\0" for word in kin.argv)
    for _ in range(_MOST_FORKS):
        try:
            if procfs.own_number(parent, proc)[0] == spawner:
                return False
            if procfs.read_file(parent, "cmdline", proc, 1 << 16) != arguments:
                return True
            parent = procfs.read_stat(parent, proc).ppid
        except (OSError, ValueError):  # hidden, or just gone
            return False
    return False


def _is_worker_by_itself(kin: RelatedProcess) -> bool:
    """Return whether a process shows that it is a worker, whoever its parent is."""
    found = program.find_program(kin.argv)
    titled = bool(kin.argv) and kin.argv[0].startswith(_TITLED_WORKERS)
    return titled or kin.comm in _WORKER_NAMES or (found is not None and found.how is How.WORKER)


def _is_worker(kin: RelatedProcess, parent: RelatedProcess) -> bool:
    """Return whether a process is a helper that its parent spawned or forked, and no program of its own.

    A fork shows the arguments and the environment of its parent. One whose title is set has neither: it was not
    started from a shell, then, as its parent is a program too.
    """
    if _is_worker_by_itself(kin):
        return True
    if kin.argv == parent.argv and kin.argv:
        return kin.environ == parent.environ
    return kin.environ is Unread.OVERWRITTEN


def _worker_of(run: _Run, rank: RelatedProcess | None) -> int | None:
    """Return the rank, or the only process, that the process is a helper of."""
    if rank is not None and rank is not run.itself.kin:
        return rank.pid
    for member, above in zip(run.line, run.line[1:], strict=False):
        if member.role.word == "ray" or (above.role.word == "ray" and _is_worker_by_itself(member.kin)):
            continue  # who asked Ray's daemon for it is above that
        if above.launches or not _is_worker(member.kin, above.kin):
            return None if member is run.itself else member.kin.pid
    top = run.top
    return None if top is run.itself or top.launches else top.kin.pid


# -- what it is in it ----------------------------------------------------------------------------------------------


def _place(run: _Run) -> tuple[Place | None, RelatedProcess | None]:
    """Return the rank of the process, or the one that it works for, and who that is.

    All below a rank inherit its variables: of those who have the same the highest is the rank.
    """
    launcher = "" if run.launcher is None else run.launcher.role.word
    if run.itself.launches:
        return None, None
    own: Place | None = None
    found: RelatedProcess | None = None
    for member in run.line:
        if member.launches:
            break
        place = find_rank(member.environ, launcher)
        if place is None:
            continue  # its environment cannot be read, or it has only started ranks
        if own is not None and place != own:
            break
        own, found = place, member.kin
    return own, found


def _lightning_head(facts: Facts) -> Place | None:
    """Return the rank of a process that has started the others of its run, as Lightning does; None for another."""
    for child in facts.children:
        if child.argv[1:] == facts.argv[1:] and not isinstance(child.environ, Unread):
            place = find_rank(child.environ)
            if place is not None and place.launcher == "lightning" and place.rank:
                return Place("lightning", 0, 0, place.world)
    return None


def _head(run: _Run, facts: Facts, stat: procfs.Stat) -> tuple[RelatedProcess | None, str]:
    """Return the first process of the run, None where it is not to be seen, and the key of the run.

    What is left of a run whose head is gone has its process group in common, if nothing else: the kernel gives the
    number of a group to nobody while a member lives.
    """
    launchers = [member for member in run.line if member.launches]
    if launchers:
        top = launchers[-1]
        above = run.line[run.line.index(top) + 1 :]
        if top.role.word != "ray":
            return top.kin, _identity(top.kin)
        if above:  # the program that Ray's daemon was started by
            return above[-1].kin, _identity(above[-1].kin)
        branch = run.line[max(0, run.line.index(top) - 1)]  # the daemon itself may serve others
        job = branch.environ.get("RAY_JOB_ID", "")
        if branch is not top and not job:  # its title is written over it
            return branch.kin, _identity(branch.kin)
        return None, clean(f"ray {_identity(top.kin)} {job}".rstrip(), 60)
    if key := find_shared_run(run.top.environ, facts.uid, facts.cgroup):
        return None, key
    if run.orphaned:
        return None, f"left {facts.uid}:{stat.session}:{stat.group}"
    return run.top.kin, _identity(run.top.kin)


def _identity(kin: RelatedProcess) -> str:
    return f"{kin.pid}:{kin.start}"


# -- what it is called ---------------------------------------------------------------------------------------------


def _name(run: _Run, head: RelatedProcess | None) -> str:
    """Name a run by what its head was told to run, the same for all of it; else by what is highest on the way."""
    kin = [] if head is None else [head]
    kin += [member.kin for member in reversed(run.line)]
    for one in kin:
        if name := name_of(one.argv):
            return name
    words = [member.role.word for member in run.line if member.launches]
    return words[0] if words else clean(run.itself.kin.comm, LONGEST_NAME)


def name_of(argv: tuple[str, ...]) -> str:
    """Name what a command line runs: `train.py`, `foo` of `-m foo`, `vllm serve`; empty where it only starts another.

    Clean, and at most 40 characters long.
    """
    if not argv or not argv[0]:
        return ""
    if program.find_role(RelatedProcess(pid=0, argv=argv)).part is Part.LAUNCHER:
        return _behind_launcher(argv)
    found = program.find_program(argv)
    if found is not None and found.how is How.WORKER:
        return ""
    if found is not None and found.how is How.CODE:
        return clean(f"{PurePosixPath(argv[0]).name} -c", LONGEST_NAME)
    if found is not None and found.how is How.MODULE:
        return clean(found.text, LONGEST_NAME)
    if found is None and servers.is_kernel(argv):
        return NOTEBOOK
    word = found.text if found is not None else argv[0]
    return clean(_with_subcommand(word, argv), LONGEST_NAME)


def _with_subcommand(word: str, argv: Sequence[str]) -> str:
    if "::" in word:  # a title: `ray::Trainer.train()`
        return re.split(r"[.( ]", word, maxsplit=1)[0]
    name = PurePosixPath(word).name or word
    if name.endswith((".py", ".sh")) or program.is_python(name):
        return name
    after = argv[argv.index(word) + 1 :] if word in argv else ()
    return f"{name} {after[0]}" if after and _SUBCOMMAND.fullmatch(after[0]) else name


def _behind_launcher(argv: tuple[str, ...]) -> str:
    """Name what a launcher was told to run; empty where that is no Python."""
    found = program.find_program(argv)
    if found is None:
        for place, word in enumerate(argv[1:], 1):
            if program.is_python(word):
                return name_of(argv[place:])
            if word.endswith(".py") and not word.startswith("-"):
                return clean(PurePosixPath(word).name, LONGEST_NAME)
        return ""
    wrapped = found.how in (How.FILE, How.MODULE) and found.text != program.outermost_name(argv)
    return clean(PurePosixPath(found.text).name, LONGEST_NAME) if wrapped else ""
