"""Which rank of a distributed run a process is, and what its run is called, by its environment.

Sources of the names: docs.pytorch.org/docs/stable/elastic/run.html (torchrun); deepspeed/launcher/launch.py
(CROSS_SIZE); lightning/fabric/plugins/environments/lightning.py (NODE_RANK and LOCAL_RANK without RANK);
docs.open-mpi.org, "Environment variables set by mpirun" (OMPI_COMM_WORLD_*); horovod/runner/gloo_run.py
(HOROVOD_*); slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"; MPICH's hydra (PMI_*); ray's
common/constants.h (RAY_JOB_ID, RAY_RAYLET_PID); tensorflow.org/guide/distributed_training (TF_CONFIG).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

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


def of(environ: Mapping[str, str], launcher: str = "") -> Place | None:
    """Give the rank that an environment tells; None where it tells none, or nonsense.

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


def shared(environ: Mapping[str, str], uid: int | None, cgroup: str) -> str:
    """Give what all processes of a run have in their environment where what started them is not to be seen.

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
    """Give what MPI calls a run."""
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
    return next((environ[name] for name in names if environ.get(name)), "")


def _alone(environ: Mapping[str, str]) -> bool:
    """Say whether it is the only task that was launched: the shell of `srun --pty bash`, and whatever it starts.

    Slurm gives that one all that MPI needs, too, where MpiDefault is pmix (slurm.schedmd.com/mpi_guide.html). The
    greatest of the sizes counts: mpirun in such a shell launches more.
    """
    sizes = (_number(environ.get(name)) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"))
    return max((size for size in sizes if size is not None), default=2) < 2


def _address(environ: Mapping[str, str], cgroup: str) -> str:
    address = environ.get("MASTER_ADDR", "")
    return f"{address}:{environ.get('MASTER_PORT', '')} {cgroup if address.startswith(_LOOPBACK) else ''}"


def is_left_by_launcher(environ: Mapping[str, str]) -> bool:
    """Say whether only a launcher can have set this: an orphan with it has lost the one that it had on this host."""
    if "TORCHELASTIC_RUN_ID" in environ or "OMPI_COMM_WORLD_RANK" in environ:  # of one rank, too: srun sets neither
        return True
    return ("PMIX_RANK" in environ or "PMI_RANK" in environ) and not _alone(environ)
