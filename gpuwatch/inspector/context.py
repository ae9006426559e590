"""Context of a process: container, pod, batch job, systemd unit, login, terminal, run and server.

The cgroup decides where it names the part, since a process does not leave its cgroup by itself; else the environment
decides, and where that cannot be read, the ancestors' environments. All text in the result is clean; unknown parts are
empty. Nothing that a process contains can raise an error here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuwatch.base import procfs, programs
from gpuwatch.base.text import clean
from gpuwatch.declared.facts import Facts, Unread
from gpuwatch.inspector import cgroups, runs, servers, terminals
from gpuwatch.inspector.containers import LONGEST, ContainerNames, Monitors, find_container_id, read_mounts
from gpuwatch.inspector.credentials import read_account
from gpuwatch.inspector.servers import Sockets
from gpuwatch.inspector.terminals import PaneNames
from gpuwatch.model.snapshot import Container, Notebook, Pane, ProcessContext, Run

# -- containers ----------------------------------------------------------------------------------------------------

_CONTAINER_VARIABLE = {name: name for name in ("docker", "podman", "lxc", "systemd-nspawn")} | {"oci": ""}
"""Runtime by the value of the variable `container`: systemd.io/CONTAINER_INTERFACE, podman-run(1)."""

_IMAGE_VARIABLES = {
    "apptainer": ("APPTAINER_CONTAINER", "APPTAINER_NAME"),
    "singularity": ("SINGULARITY_CONTAINER", "SINGULARITY_NAME"),
}
"""Variables that Apptainer sets, all of them; it uses no cgroup: apptainer.org, Environment and Metadata."""


def find_container(facts: Facts, proc: Path, names: ContainerNames, known: Monitors | None = None) -> Container | None:
    """Return the innermost container of a process; None where there is none, or it is not known."""
    image = _find_image(facts, proc)
    if image is not None:
        return image
    found = find_container_id(facts.pid, facts.cgroup, proc, known)
    if found is not None:
        name = names.find(found, facts.pid, _runtime_owner(facts), proc=proc).name
        return Container(runtime=found.runtime, id=found.id[:12], name=name)
    variable = _variable(facts, "container") if len(facts.cgroup) <= 1 else ""
    return Container(runtime=_CONTAINER_VARIABLE[variable]) if variable in _CONTAINER_VARIABLE else None


def find_pod(facts: Facts, *, proc: Path, names: ContainerNames) -> str:
    """Return the pod: Kubernetes' `namespace/name`, its name, or its uid, whichever can be read; empty outside of one.

    A container in a pod of Podman has the pod's host name, which is the pod's name unless it was given another
    (libpod, addNamespaceContainer; podman-pod-create(1), `--hostname`), or with `--uts` its own or the machine's.
    The kubelet gives each container HOSTNAME, the pod's name (the node's with hostNetwork), and the address of the
    cluster, KUBERNETES_SERVICE_HOST. Most manifests call the fields of the downward API POD_NAME and POD_NAMESPACE.
    Source: kubernetes.io, Container Environment.
    """
    uid = cgroups.parse_pod(facts.cgroup)
    if not uid and len(facts.cgroup) <= 1:
        uid = read_mounts(facts.pid, facts.cgroup, proc)[1]
    inside = bool(_variable(facts, "KUBERNETES_SERVICE_HOST"))
    container = cgroups.parse_container(facts.cgroup)
    if not uid and not inside:
        uid, name = cgroups.parse_podman_pod(facts.cgroup)[:12], _variable(facts, "HOSTNAME")
        other = not name or name == os.uname().nodename or bool(container and container.id.startswith(name))
        return uid and clean(uid if other else name, LONGEST)
    known = names.find(container, facts.pid, _runtime_owner(facts), proc=proc).pod if container else ""
    if known:
        return known
    name = _variable(facts, "POD_NAME") or (_variable(facts, "HOSTNAME") if inside else "")
    space = _variable(facts, "POD_NAMESPACE")
    return clean((f"{space}/{name}" if space else name) if name else uid, 2 * LONGEST)


def _runtime_owner(facts: Facts) -> int | None:
    """Return the uid of the user whose rootless runtime may have made the container: by the cgroup, else the owner."""
    found = cgroups.parse_user(facts.cgroup)
    return facts.uid if found is None else found


def _find_image(facts: Facts, proc: Path) -> Container | None:
    """Return Apptainer's container, by its variables and the folder that each of its images has.

    The variables are no proof: a batch job inherits them where it was submitted from inside a container.
    """
    for runtime, variables in _IMAGE_VARIABLES.items():
        image = next((found for name in variables if (found := _variable(facts, name))), "")
        if not image:
            continue
        try:
            os.lstat(proc / str(facts.pid) / "root" / ".singularity.d")
        except OSError:  # missing, or not readable
            return None
        name = image.rstrip("/").rpartition("/")[2].removesuffix(".sif")
        return Container(runtime=runtime, name=clean(name, LONGEST))
    return None


# -- batch jobs, units and logins ----------------------------------------------------------------------------------

_SLURM_STEPS = {
    **{"4294967291": "batch", "4294967292": "extern", "4294967290": "interactive"},
    **{"4294967294": "batch", "4294967295": "extern"},
}
"""SLURM_BATCH_SCRIPT and its like in slurm/slurm.h: 0xfffffffb and below, before 20.11 0xfffffffe and above."""

_TASK_VARIABLES = ("SLURMD_NODENAME", "SLURM_TASK_PID", "SLURM_PROCID", "SLURM_LOCALID")
"""Variables that only slurmstepd sets, for a task; salloc's shell on the login node has only SLURM_JOB_ID. srun(1)."""

_NO_LOGIN = 0xFFFFFFFF
"""Login uid of a process that no login has started: -1 as a uid_t, proc_pid_loginuid(5)."""


def find_slurm_job(facts: Facts) -> str:
    """Return Slurm's job and step: `4711.0`, `4711_3.batch` for a task of an array, or only the job; empty for none.

    The cgroup decides. Without one, the environment decides, if it has a variable that only slurmstepd sets:
    SLURM_JOB_ID is no proof, since salloc's shell on the login node has it, too.
    """
    found = cgroups.parse_slurm(facts.cgroup)
    job = _variable(facts, "SLURM_JOB_ID")
    if found is None and not (_is_number(job) and any(_variable(facts, name) for name in _TASK_VARIABLES)):
        return ""
    step = found.step if found else _variable(facts, "SLURM_STEP_ID")
    array, task = _variable(facts, "SLURM_ARRAY_JOB_ID"), _variable(facts, "SLURM_ARRAY_TASK_ID")
    shown = found.job if found else job
    if shown == job and _is_number(array) and _is_number(task):
        shown = f"{array}_{task}"
    step = _SLURM_STEPS.get(step, step)
    return f"{shown}.{step}" if step and (found or _is_number(step) or step in _SLURM_STEPS.values()) else shown


def find_batch_job(facts: Facts) -> str:
    """Return the job of another scheduler: `pbs 4711`, `lsf 4711`, `sge 4711`, `condor slot1_2`; empty for none."""
    if number := cgroups.parse_pbs(facts.cgroup):
        return f"pbs {number}"
    for scheduler in programs.SCHEDULERS:
        found = _variable(facts, scheduler.job)
        if found and scheduler is not programs.SLURM and _variable(facts, scheduler.mark):
            return clean(f"{scheduler.label} {found.partition('.')[0]}", LONGEST)
    return ""


def find_unit(facts: Facts) -> tuple[str, bool]:
    """Return the systemd service, and whether it is of the user's own manager; ("", False) where there is none.

    Services below which people start programs do not count: sshd, cron, slurmd, a container's runtime, a terminal.
    `model.snapshot.is_service` tells whether the process is the unit's service or was only started below it.
    """
    found = cgroups.parse_unit(facts.cgroup)
    return (clean(found.name, LONGEST), found.user) if found else ("", False)


def find_login(pid: int, uid: int | None, *, proc: Path) -> tuple[str, int | None]:
    """Return the name and the uid of the user who logged in, if that is not the owner; else ("", None).

    The kernel keeps the login's uid through sudo, su and a container that was started from a login; processes that a
    daemon starts (Docker's containers) have no such uid. Source: proc_pid_loginuid(5).
    """
    try:
        found = int(procfs.read_file(pid, "loginuid", proc, 32))
    except (OSError, ValueError):  # a kernel without audit, or it has ended
        return "", None
    if uid is None or found == uid or not 0 <= found < _NO_LOGIN:
        return "", None
    return clean(read_account(found)[0], LONGEST), found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def _variable(facts: Facts, name: str) -> str:
    """Return a variable of a process; where its environment is unreadable, of the nearest ancestor that has it."""
    if not isinstance(facts.environ, Unread):
        return facts.environ.get(name, "")
    return next((one[name] for one in terminals.read_environs(facts.ancestors) if one.get(name)), "")


# -- the whole -----------------------------------------------------------------------------------------------------

_LONGEST_WORDS = 300

_Part = TypeVar("_Part")


class _Parts:
    """Helper that reads the parts of a context, and collects the errors of those that fail."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def read(self, what: str, read: Callable[[], _Part], otherwise: _Part) -> _Part:
        try:
            return read()
        except (OSError, ValueError) as error:
            ended = isinstance(error, procfs.GONE)
            self.words.append(f"its {what}: {'it has ended' if ended else clean(str(error), 100)}")
        except Exception as bug:  # noqa: BLE001 - content of a process must not keep the rest from being shown
            self.words.append(f"its {what}: a fault in gpuwatch: {type(bug).__name__}: {clean(str(bug), 100)}")
        return otherwise


def read_context(
    facts: Facts,
    *,
    proc: Path = procfs.PROC,
    names: ContainerNames | None = None,
    panes: PaneNames | None = None,
    sockets: Sockets | None = None,
    monitors: Monitors | None = None,
) -> ProcessContext:
    """Return the context of a process; parts that cannot be read are missing, with the reason in `words`.

    `names`, `sockets` and `monitors` cache what was read for other processes. `panes` asks tmux for the names of
    sessions and windows; without it tmux is not asked.
    """
    parts, known, table = _Parts(), names or ContainerNames(), sockets or Sockets(proc)
    stat = parts.read("state", lambda: procfs.read_stat(facts.pid, proc), None)
    line = (facts, *facts.ancestors)
    unit, user_unit = parts.read("unit", lambda: find_unit(facts), ("", False))
    no_login: tuple[str, int | None] = ("", None)
    login, login_uid = parts.read("login", lambda: find_login(facts.pid, facts.uid, proc=proc), no_login)
    notebook = parts.read("notebook", lambda: servers.read_notebook(line, proc=proc), None)
    slurm = parts.read("batch job", lambda: find_slurm_job(facts), "")
    batch = parts.read("batch job", lambda: find_batch_job(facts), "")
    run, peer = None, ""
    if stat is not None:
        run = parts.read("run", lambda: _named(runs.read_run(facts, stat, proc=proc), notebook), None)
        if facts.uid == os.getuid() and procfs.is_adopted(facts.pid, stat, proc):
            peer = parts.read("connections", lambda: table.peer(facts.pid), "")
    if notebook is not None and (slurm or batch):  # the PID of its server is one of another machine
        notebook = msgspec.structs.replace(notebook, left=False)
    found = ProcessContext(
        container=parts.read("container", lambda: find_container(facts, proc, known, monitors), None),
        pod=parts.read("pod", lambda: find_pod(facts, proc=proc, names=known), ""),
        slurm=slurm,
        batch=batch,
        unit=unit,
        user_unit=user_unit,
        pane=_read_pane(parts, facts, panes, proc),
        notebook=notebook,
        ssh=parts.read("login's origin", lambda: terminals.find_ssh(line), ""),
        login=login,
        login_uid=login_uid,
        run=run,
        server=parts.read("ports", lambda: servers.find_server(facts, table), ""),
        peer=peer,
    )
    words = parts.words
    if isinstance(facts.environ, Unread):
        words = [facts.environ.of_environment, *words]
    return msgspec.structs.replace(found, words=clean("; ".join(words), _LONGEST_WORDS))


def _read_pane(parts: _Parts, facts: Facts, panes: PaneNames | None, proc: Path) -> Pane | None:
    place = parts.read("terminal", lambda: terminals.find_pane((facts, *facts.ancestors), proc=proc), None)
    if place is None or panes is None or facts.uid != panes.uid:
        return None if place is None else place.pane
    return parts.read("pane's name", lambda: panes.find(place), place.pane)


def _named(run: Run, notebook: Notebook | None) -> Run:
    """Return the run of a notebook kernel, named after its notebook."""
    name = "" if notebook is None or run.name != runs.NOTEBOOK else notebook.path.rpartition("/")[2]
    return msgspec.structs.replace(run, name=clean(name, runs.LONGEST_NAME)) if name else run
