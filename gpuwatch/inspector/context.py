"""Context of a process: container, pod, batch job, systemd unit, login, terminal, run and server, put together.

The cgroup tells, which a process does not leave by itself; its environment is asked only for what no cgroup has, and
where that cannot be read, its ancestors'. All that is given is clean; what cannot be told is empty. Nothing here raises
for what a process wrote.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuwatch import procfs
from gpuwatch.declared.facts import Facts, RelatedProcess, Unread
from gpuwatch.inspector import cgroups, files, jobs, servers, terminals
from gpuwatch.inspector.cgroups import Held
from gpuwatch.inspector.containers import LONGEST, Names
from gpuwatch.inspector.terminals import PaneNames
from gpuwatch.model import Container, Job, Notebook, Surroundings
from gpuwatch.text import clean

_LARGEST_MOUNTS = 256 << 10
"""Bytes of /proc/PID/mountinfo; a container's has some 5 KiB, a host's with a hundred containers 100."""

_UNSET = 0xFFFFFFFF
"""The login uid of what no login has started: -1 as a uid_t, proc_pid_loginuid(5)."""

_FILES = frozenset({"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"})
"""What runtimes mount into each container from their own folders."""

_STATE = re.compile(r"/(overlay-containers|containers)/([0-9a-f]{64})/(?:userdata/)?[^/]+$")
_POD_STATE = re.compile(r"/pods/([0-9a-f-]{32,36})/etc-hosts$")
_OCTAL = re.compile(r"\\([0-7]{3})")

_SAYS = {"docker": "docker", "podman": "podman", "oci": "", "lxc": "lxc", "systemd-nspawn": "systemd-nspawn"}
"""What runtimes set `container` to for the processes in one: systemd.io/CONTAINER_INTERFACE, podman-run(1)."""

_IMAGES = (
    ("apptainer", "APPTAINER_CONTAINER", "APPTAINER_NAME"),
    ("singularity", "SINGULARITY_CONTAINER", "SINGULARITY_NAME"),
)
"""Of Apptainer, whose containers have no cgroup: apptainer.org, Environment and Metadata. It sets both."""

_STEPS = {
    "4294967291": "batch",
    "4294967292": "extern",
    "4294967290": "interactive",
    "4294967294": "batch",
    "4294967295": "extern",
}
"""SLURM_BATCH_SCRIPT and its like in slurm/slurm.h: 0xfffffffb and below, before 20.11 0xfffffffe and above."""

_BY_A_NODE = ("SLURMD_NODENAME", "SLURM_TASK_PID", "SLURM_PROCID", "SLURM_LOCALID")
"""What only slurmstepd sets for a task; salloc's shell on the login node has SLURM_JOB_ID without them. srun(1)."""


_SCHEDULERS = (
    ("pbs", "PBS_JOBID", "PBS_ENVIRONMENT"),
    ("lsf", "LSB_JOBID", "LSB_JOBID"),
    ("sge", "JOB_ID", "SGE_ROOT"),
    ("condor", "_CONDOR_SLOT", "_CONDOR_JOB_AD"),
)
"""Schedulers, with the variable that names a job and one that is there only in a job, or with the scheduler.

Sources: qsub(1B) of OpenPBS, bsub(1) of LSF, submit(1) of Grid Engine, HTCondor's manual ("Services for Running Jobs").
"""


def find_container(facts: Facts, *, proc: Path, names: Names) -> Container | None:
    """Return the container that a process is in, the innermost; None for none, or where it cannot be told."""
    image = _image(facts, proc)
    if image is not None:
        return image
    held = cgroups.container(facts.cgroup) or _mounted(facts, proc)
    if held is None:
        says = _variable(facts, "container") if len(facts.cgroup) <= 1 else ""
        return Container(runtime=_SAYS[says]) if says in _SAYS else None
    known = names.of(held, facts.pid, _whose(facts), proc=proc)
    return Container(runtime=held.runtime, id=held.id[:12], name=known.name)


def find_pod(facts: Facts, *, proc: Path, names: Names | None = None) -> str:
    """Return the Kubernetes pod: `namespace/name`, its name, or its uid, by what can be read; empty outside of one.

    The kubelet gives each container HOSTNAME, the pod's name (the node's with hostNetwork), and the address of the
    cluster, KUBERNETES_SERVICE_HOST. POD_NAME and POD_NAMESPACE are what most manifests call the fields of the downward
    API. Source: kubernetes.io, Container Environment.
    """
    uid = cgroups.pod(facts.cgroup) or _mounted_pod(facts, proc)
    if not uid and not _variable(facts, "KUBERNETES_SERVICE_HOST"):
        return ""
    held = cgroups.container(facts.cgroup) if names else None
    if names and held:
        known = names.of(held, facts.pid, _whose(facts), proc=proc).pod
        if known:
            return known
    inside = bool(_variable(facts, "KUBERNETES_SERVICE_HOST"))
    name = _variable(facts, "POD_NAME") or (_variable(facts, "HOSTNAME") if inside else "")
    space = _variable(facts, "POD_NAMESPACE")
    return clean((f"{space}/{name}" if space else name) if name else uid, 2 * LONGEST)


def find_slurm_job(facts: Facts) -> str:
    """Tell Slurm's job and step: `4711.0`, `4711_3.batch` for a task of an array, or the job alone; empty for none.

    The cgroup counts. Without one (a node that tracks jobs by other means) the environment does, if it is one that
    slurmstepd has made for a task: who has it from salloc or from sbatch's own shell is in no job.
    """
    held = cgroups.slurm(facts.cgroup)
    job = _variable(facts, "SLURM_JOB_ID")
    if held is None and (not _number(job) or not any(_variable(facts, name) for name in _BY_A_NODE)):
        return ""
    step = held.step if held else _variable(facts, "SLURM_STEP_ID")
    array, task = _variable(facts, "SLURM_ARRAY_JOB_ID"), _variable(facts, "SLURM_ARRAY_TASK_ID")
    shown = held.job if held else job
    if shown == job and _number(array) and _number(task):
        shown = f"{array}_{task}"
    step = _STEPS.get(step, step)
    return f"{shown}.{step}" if step and (held or _number(step) or step in _STEPS.values()) else shown


def find_batch_job(facts: Facts) -> str:
    """Return the job of another scheduler: `pbs 4711`, `lsf 4711`, `sge 4711`, `condor slot1_2`; empty for none."""
    if number := cgroups.pbs(facts.cgroup):
        return f"pbs {number}"
    for scheduler, name, mark in _SCHEDULERS:
        if (found := _variable(facts, name)) and _variable(facts, mark):
            return clean(f"{scheduler} {found.partition('.')[0]}", LONGEST)
    return ""


def find_unit(facts: Facts) -> tuple[str, bool]:
    """Return the systemd service, and whether it is of the user's own manager; ("", False) for none.

    Services that only carry what people start are none: sshd, cron, slurmd, a container's runtime, a terminal. Whether
    the process is the unit's service or was only started below it says `gpuwatch.surroundings.is_service`.
    """
    found = cgroups.unit(facts.cgroup)
    return (clean(found.name, LONGEST), found.user) if found else ("", False)


def find_login(pid: int, uid: int, *, proc: Path, name: Callable[[int], str] | None = None) -> tuple[str, int | None]:
    """Return who logged in, by name and uid, where that is not the owner; ("", None) where it is, or nobody did.

    The kernel keeps it through sudo, su and a container that was started from a login; what a daemon starts (Docker's
    containers) has none. Source: proc_pid_loginuid(5). `name` gives the name of a uid.
    """
    try:
        found = int(procfs.read_file(pid, "loginuid", proc, 32))
    except (OSError, ValueError):  # a kernel without audit, or it has gone
        return "", None
    if found in (_UNSET, uid) or not 0 <= found < _UNSET:
        return "", None
    return clean((name or _user_name)(found), LONGEST), found


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def _variable(facts: Facts, name: str) -> str:
    """Return variable of a process; where its environment cannot be read, that of the nearest ancestor that has it."""
    if not isinstance(facts.environ, Unread):
        return facts.environ.get(name, "")
    above = (one.environ for one in facts.ancestors)
    readable: list[Mapping[str, str]] = [one for one in above if not isinstance(one, Unread)]
    return next((one[name] for one in readable if one.get(name)), "")


def _whose(facts: Facts) -> int | None:
    """Give whose rootless runtime a container may be of: whose login it lies in, else the owner's."""
    found = cgroups.user(facts.cgroup)
    return facts.uid if found is None else found


# -- what has no cgroup --------------------------------------------------------------------------------------------


def _image(facts: Facts, proc: Path) -> Container | None:
    """Tell Apptainer's container, by the variables that it sets and the folder that each of its images has.

    The variables alone are handed on, to a batch job that was submitted from inside one.
    """
    for runtime, path, title in _IMAGES:
        image = _variable(facts, path) or _variable(facts, title)
        if not image:
            continue
        try:
            os.lstat(proc / str(facts.pid) / "root" / ".singularity.d")
        except OSError:  # not there, or not ours to see
            return None
        name = image.rstrip("/").rpartition("/")[2].removesuffix(".sif")
        return Container(runtime=runtime, name=clean(name, LONGEST))
    return None


def _mounts(facts: Facts, proc: Path) -> list[tuple[str, str]]:
    """Give what is mounted for a process: path within its file system, and place. Empty where the cgroup tells enough.

    A container that has a cgroup namespace of its own shows `/` to those inside of it, rootless Docker may make no
    cgroups, and Enroot's containers stay in Slurm's. Source: proc_pid_mountinfo(5).
    """
    path = facts.cgroup
    if len(path) > 1 and not cgroups.carrier(path) and cgroups.slurm(path) is None:
        return []
    try:
        raw = procfs.read_file(facts.pid, "mountinfo", proc, _LARGEST_MOUNTS)
    except OSError:  # it has gone
        return []
    fields = (line.split(" ", 5) for line in files.decode_environ(raw).splitlines())
    return [(_plain(line[3]), _plain(line[4])) for line in fields if len(line) > 5]


def _plain(path: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8) & 0xFF), path)


def _mounted(facts: Facts, proc: Path) -> Held | None:
    """Tell a container by the files that its runtime has mounted into it."""
    for path, place in _mounts(facts, proc):
        found = _STATE.search(path) if place in _FILES else None
        if found:
            return Held("podman" if found[1] == "overlay-containers" else "docker", found[2])
        if place == "/.lock" and path.endswith("/.lock"):  # Enroot's src/runtime.sh; below a folder of its name
            return Held("enroot", "", path.removesuffix("/.lock").rpartition("/")[2])
    return None


def _mounted_pod(facts: Facts, proc: Path) -> str:
    for path, place in _mounts(facts, proc) if len(facts.cgroup) <= 1 else ():
        found = _POD_STATE.search(path) if place == "/etc/hosts" else None
        if found:
            return found[1]
    return ""


_UNREAD = {
    Unread.DENIED: "its environment is not ours to read",
    Unread.OVERWRITTEN: "its environment was overwritten by a title",
    Unread.GONE: "its environment is gone: it has ended",
    Unread.LONG: "its environment is too long to be read",
    Unread.FAILED: "its environment could not be read",
    Unread.LEFT: "its environment was not read",
}

_LONGEST = 300

_Part = TypeVar("_Part")


class _Parts:
    """Reads one part after the other; one that fails is missing, and it is said why."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def read(self, what: str, read: Callable[[], _Part], otherwise: _Part) -> _Part:
        try:
            return read()
        except (OSError, ValueError) as error:
            gone = isinstance(error, procfs.GONE)
            self.words.append(f"its {what}: {'it has ended' if gone else clean(str(error), 100)}")
        except Exception as bug:  # noqa: BLE001 - what a process wrote must not keep the rest from being shown
            self.words.append(f"its {what}: a fault in gpuwatch: {type(bug).__name__}: {clean(str(bug), 100)}")
        return otherwise


def read_context(
    facts: Facts,
    *,
    proc: Path = procfs.PROC,
    names: Names | None = None,
    panes: PaneNames | None = None,
    sockets: dict[int, frozenset[int]] | None = None,
) -> Surroundings:
    """Return where the process of these facts runs; what cannot be read is missing, said in `words`, and no error.

    `names` remembers the names of containers from one process to the next; `panes` asks tmux for those of sessions
    and windows, which nobody does without it. `sockets` is what was read of other processes just now.
    """
    parts, known = _Parts(), Names() if names is None else names
    unit, user_unit = parts.read("unit", lambda: find_unit(facts), ("", False))
    no_login: tuple[str, int | None] = ("", None)
    login, login_uid = parts.read("login", lambda: _login(facts, proc), no_login)
    stat = parts.read("state", lambda: procfs.read_stat(facts.pid, proc), None)
    line = (_itself(facts, stat), *facts.ancestors)
    notebook = parts.read("notebook", lambda: servers.read_notebook(line, proc=proc), None)
    job = None
    if stat is not None:
        job = parts.read("run", lambda: _job(jobs.read_run(facts, line[0], stat, proc=proc), notebook), None)
    container = parts.read("container", lambda: find_container(facts, proc=proc, names=known), None)
    pod = parts.read("pod", lambda: find_pod(facts, proc=proc, names=known), "")
    slurm = parts.read("batch job", lambda: find_slurm_job(facts), "")
    place = parts.read("terminal", lambda: terminals.place(line, proc=proc), None)
    pane = None if place is None else place.pane
    batch = parts.read("batch job", lambda: find_batch_job(facts), "")
    if notebook is not None and (slurm or batch):  # it was handed the number of a server on another machine
        notebook = msgspec.structs.replace(notebook, left=False)
    if panes is not None and place is not None and facts.uid == panes.uid:
        pane = parts.read("pane's name", functools.partial(panes.named, place), pane)
    ssh = parts.read("login's origin", lambda: terminals.ssh(line), "")
    server = parts.read("ports", lambda: servers.server(facts, proc=proc, sockets=sockets), "")
    peer = ""
    if stat is not None and facts.uid == os.getuid() and procfs.adopted(facts.pid, stat, proc):
        peer = parts.read("connections", lambda: servers.peer(facts.pid, proc), "")
    if isinstance(facts.environ, Unread):
        parts.words.insert(0, _UNREAD[facts.environ])
    return Surroundings(
        container=container,
        pod=pod,
        slurm=slurm,
        batch=batch,
        unit=unit,
        user_unit=user_unit,
        pane=pane,
        notebook=notebook,
        ssh=ssh,
        login=login,
        login_uid=login_uid,
        job=job,
        server=server,
        peer=peer,
        words=clean("; ".join(parts.words), _LONGEST),
    )


def _itself(facts: Facts, stat: procfs.Stat | None) -> RelatedProcess:
    return RelatedProcess(
        pid=facts.pid,
        argv=facts.argv,
        argv_cut=facts.argv_cut,
        environ=facts.environ,
        start=0 if stat is None else stat.start_ticks,
        parent=0 if stat is None else stat.ppid,
        comm="" if stat is None else files.decode_environ(stat.comm),
    )


def _login(facts: Facts, proc: Path) -> tuple[str, int | None]:
    return ("", None) if facts.uid is None else find_login(facts.pid, facts.uid, proc=proc)


def _job(job: Job, notebook: Notebook | None) -> Job:
    """Call the run of a kernel after its notebook."""
    name = "" if notebook is None or job.name != jobs.NOTEBOOK else notebook.path.rpartition("/")[2]
    return msgspec.structs.replace(job, name=clean(name, jobs.LONGEST_NAME)) if name else job
