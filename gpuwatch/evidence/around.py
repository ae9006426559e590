"""What one process runs in and belongs to, put together from its facts and from what else /proc says."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuwatch import procfs
from gpuwatch.declared.facts import Facts, Kin, Unread
from gpuwatch.evidence import jobs, listening, notebooks, places, servers, terminals
from gpuwatch.evidence.multiplexer import PaneNames
from gpuwatch.inspector import files
from gpuwatch.inspector.containers import Names
from gpuwatch.model import Job, Notebook, Surroundings
from gpuwatch.text import clean

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


def read(
    facts: Facts,
    *,
    proc: Path = procfs.PROC,
    names: Names | None = None,
    panes: PaneNames | None = None,
    sockets: dict[int, frozenset[int]] | None = None,
) -> Surroundings:
    """Tell where the process of these facts runs; what cannot be read is missing, said in `words`, and no error.

    `names` remembers the names of containers from one process to the next; `panes` asks tmux for those of sessions
    and windows, which nobody does without it. `sockets` is what was read of other processes just now.
    """
    parts, known = _Parts(), Names() if names is None else names
    unit, user_unit = parts.read("unit", lambda: places.unit(facts), ("", False))
    no_login: tuple[str, int | None] = ("", None)
    login, login_uid = parts.read("login", lambda: _login(facts, proc), no_login)
    stat = parts.read("state", lambda: procfs.read_stat(facts.pid, proc), None)
    line = (_itself(facts, stat), *facts.ancestors)
    notebook = parts.read("notebook", lambda: notebooks.read(line, proc=proc), None)
    job = None
    if stat is not None:
        job = parts.read("run", lambda: _job(jobs.read(facts, line[0], stat, proc=proc), notebook), None)
    container = parts.read("container", lambda: places.container(facts, proc=proc, names=known), None)
    pod = parts.read("pod", lambda: places.pod(facts, proc=proc, names=known), "")
    slurm = parts.read("batch job", lambda: places.slurm(facts), "")
    place = parts.read("terminal", lambda: terminals.place(line, proc=proc), None)
    pane = None if place is None else place.pane
    batch = parts.read("batch job", lambda: places.batch(facts), "")
    if notebook is not None and (slurm or batch):  # it was handed the number of a server on another machine
        notebook = msgspec.structs.replace(notebook, left=False)
    if panes is not None and place is not None and facts.uid == panes.uid:
        pane = parts.read("pane's name", functools.partial(panes.named, place), pane)
    ssh = parts.read("login's origin", lambda: terminals.ssh(line), "")
    server = parts.read("ports", lambda: servers.server(facts, proc=proc, sockets=sockets), "")
    peer = ""
    if stat is not None and facts.uid == os.getuid() and procfs.adopted(facts.pid, stat, proc):
        peer = parts.read("connections", lambda: listening.peer(facts.pid, proc), "")
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


def _itself(facts: Facts, stat: procfs.Stat | None) -> Kin:
    return Kin(
        pid=facts.pid,
        argv=facts.argv,
        argv_cut=facts.argv_cut,
        environ=facts.environ,
        start=0 if stat is None else stat.start_ticks,
        parent=0 if stat is None else stat.ppid,
        comm="" if stat is None else files.decode_environ(stat.comm),
    )


def _login(facts: Facts, proc: Path) -> tuple[str, int | None]:
    return ("", None) if facts.uid is None else places.login(facts.pid, facts.uid, proc=proc)


def _job(job: Job, notebook: Notebook | None) -> Job:
    """Call the run of a kernel after its notebook."""
    name = "" if notebook is None or job.name != jobs.NOTEBOOK else notebook.path.rpartition("/")[2]
    return msgspec.structs.replace(job, name=clean(name, jobs.LONGEST_NAME)) if name else job
