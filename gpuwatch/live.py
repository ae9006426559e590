"""Published facts: the declared shares of all processes, which the machine's service writes for everybody to read.

Root's `gpuwatch watch --service` replaces `/run/gpuwatch/live.json` every two seconds. Linux shows the environment of a
process to its owner and to root alone, so an ordinary user knows the shares of other people only from this file. It has
numbers, names of channels and base names of scripts: never an environment, an argument, a title or a path.

A reader trusts it only where each folder and the file belong to root and only root can write them, of this boot and
this PID namespace, and some seconds old. A process counts only with its start time. What is published tells of shares;
no process is signalled because of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gpuwatch import files, procfs
from gpuwatch.model import (
    Basis,
    Confidence,
    Declaration,
    Declared,
    Kind,
    Knowledge,
    Limit,
    Margin,
    Order,
    Presence,
    Process,
    Snapshot,
    Visible,
)
from gpuwatch.shares import is_conclusive
from gpuwatch.text import clean
from gpuwatch.version import __version__

FOLDER: Final = Path("/run/gpuwatch")
FILE: Final = "live.json"
SCHEMA: Final = 1
OLDEST: Final = 10.0
"""Age in seconds up to which the file is used."""
SOURCE: Final = "read by the machine's service"

_EVERY: Final = 2.0
"""Seconds after which a reader looks at the file again."""
_LARGEST: Final = 16 << 20
_MOST: Final = 20_000
"""Processes that are published, at most."""
_MOST_LIMITS: Final = 32
_SHORT: Final = 120


class PublishedLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limit in effect of a process on one GPU, and where it was declared."""

    gpu: str
    """UUID of the GPU."""
    bytes: int
    scope: str = ""
    """Processes that it limits together, as in `model.Declaration`."""
    margin: Margin = Margin.FRAMEWORK
    channel: str = ""
    """Name of the variable, flag, key or call: `XLA_PYTHON_CLIENT_MEM_FRACTION`."""
    framework: str = ""
    kind: Kind = Kind.CAP
    basis: Basis = Basis.NONE
    value: float | None = None
    """Fraction or bytes, as declared."""
    confidence: Confidence = Confidence.CERTAIN
    where: str = ""
    """`environment`, `command line`, or the base name of a file."""
    line: int = 0


class PublishedProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Declared shares of one process."""

    pid: int
    start: int
    """Start in clock ticks since boot."""
    sees: tuple[str, ...] | None = None
    """UUIDs of the GPUs that it can see, in its order; None where that is not known."""
    order: Order = Order.EXACT
    chosen_by: str = ""
    """Name of the setting that decides it, without its value; empty if there is none and all are visible."""
    doubtful: bool = False
    """Whether that setting may not be in effect."""
    conclusive: bool = False
    """Whether a missing limit means that none was declared."""
    collective: bool = False
    limits: tuple[PublishedLimit, ...] = ()


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the file."""

    schema: int = SCHEMA
    version: str = __version__
    boot: str = ""
    """The kernel's id of this boot."""
    pid_namespace: int = 0
    monotonic: float = 0.0
    """The machine's monotonic time of the snapshot."""
    processes: tuple[PublishedProcess, ...] = ()


class _Head(msgspec.Struct):
    schema: int = 0
    version: str = ""


# ---------------------------------------------------------------------------------------------------------------
# Writing


def publish(snapshot: Snapshot, received: float, *, hidden: bool = False) -> Published:
    """Return what everybody may know of a snapshot that came at `received` (this machine's monotonic clock).

    Nothing about processes where /proc hides those of other people (`hidden`).
    """
    known = [one for one in snapshot.processes if one.presence is Presence.SEEN and one.declared is not None]
    return Published(
        boot=procfs.boot_id(),
        pid_namespace=_pid_namespace(),
        monotonic=received,
        processes=() if hidden else tuple(_publish_processes(known[:_MOST])),
    )


def _publish_processes(processes: list[Process]) -> Iterator[PublishedProcess]:
    for one in processes:
        declared = one.declared
        if declared is None or declared.knowledge is not Knowledge.READ:
            continue
        visible = declared.visible or Visible()
        yield PublishedProcess(
            pid=one.pid,
            start=one.start,
            sees=None if declared.visible is None else visible.gpus,
            order=visible.order,
            chosen_by=re.split("[=(]", visible.text)[0],
            doubtful=visible.doubtful,
            conclusive=is_conclusive(declared),
            collective=declared.collective,
            limits=tuple(_publish_limit(limit, declared) for limit in declared.limits[:_MOST_LIMITS]),
        )


def _publish_limit(limit: Limit, declared: Declared) -> PublishedLimit:
    of = declared.declarations[limit.declaration]
    return PublishedLimit(
        gpu=limit.gpu,
        bytes=limit.bytes,
        scope=limit.scope,
        margin=limit.margin,
        channel=of.channel,
        framework=of.framework,
        kind=of.kind,
        basis=of.basis,
        value=of.value,
        confidence=of.confidence,
        where=of.where.rpartition("/")[2],
        line=of.line,
    )


class PublishedFile:
    """Writer of the file."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    def write(self, content: Published) -> None:
        """Replace the file; raises OSError."""
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=0o755)
            self._folder.chmod(0o755)  # mkdir(2) heeds the umask
        if trouble := files.check_source(self._folder / FILE, missing_ok=True):
            raise files.UnsafePathError(trouble)
        with files.opened_folder(self._folder, private=False) as folder:
            files.replace_file(folder, FILE, msgspec.json.encode(content), durable=False, mode=0o644)

    def remove(self) -> None:
        """Remove the file, as no service writes it any more."""
        with contextlib.suppress(OSError):
            (self._folder / FILE).unlink()


# ---------------------------------------------------------------------------------------------------------------
# Reading


class Reading(NamedTuple):
    """Result of reading the file."""

    published: Published | None = None
    why: str = ""
    """Why it is not used; empty where it is, or where there is none."""


def read_published(folder: Path = FOLDER, *, clock: Callable[[], float] = time.monotonic) -> Reading:
    """Read the file and check who wrote it, when and where."""
    path = folder / FILE
    try:
        state = path.lstat()
        if stat.S_ISLNK(state.st_mode) or folder.is_symlink():
            return Reading(why=f"{clean(str(path))} is a link, or lies behind one")
        with open(files.open_ordinary(path, links=False, owner=0), "rb") as file:
            if trouble := files.check_source(path, 0, read=os.fstat(file.fileno())):
                return Reading(why=trouble)
            content = file.read(_LARGEST + 1)
    except FileNotFoundError:
        return Reading()
    except OSError as error:
        return Reading(why=f"{clean(str(path))} cannot be used: {files.reason(error)}")
    if len(content) > _LARGEST:
        return Reading(why=f"{clean(str(path))} has more than {_LARGEST >> 20} MiB")
    return _check(content, path, clock())


def _check(content: bytes, path: Path, now: float) -> Reading:
    named = clean(str(path))
    try:
        head = msgspec.json.decode(content, type=_Head)
        if head.schema != SCHEMA:
            older = "the service" if head.schema < SCHEMA else "this gpuwatch"
            return Reading(
                why=f"the service is gpuwatch {clean(head.version, 20)}, with another form of file; upgrade {older}"
            )
        found = msgspec.json.decode(content, type=Published)
    except (ValueError, RecursionError):
        return Reading(why=f"{named} is damaged")
    if found.boot != procfs.boot_id():
        return Reading(why=f"{named} is of another boot")
    if found.pid_namespace != _pid_namespace():
        return Reading(why=f"{named} is of another PID namespace: gpuwatch runs in a container")
    age = now - found.monotonic
    if not 0 <= age <= OLDEST:
        return Reading(why=f"{named} is {age:.0f} s old: the service no longer writes it")
    return Reading(found)


class PublishedReader:
    """Declared shares by PID and start time, read again every few seconds."""

    def __init__(self, folder: Path = FOLDER, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._due = 0.0
        self._shares: Mapping[tuple[int, int], Declared] = {}

    def read(self) -> Mapping[tuple[int, int], Declared]:
        """Return the shares that are published now; empty where none can be used."""
        now = self._clock()
        if now >= self._due:
            self._due = now + _EVERY
            found = read_published(self._folder, clock=self._clock).published
            self._shares = {} if found is None else {(one.pid, one.start): _declared(one) for one in found.processes}
        return self._shares


def _declared(one: PublishedProcess) -> Declared:
    """Return published facts as declarations, all texts cleaned again."""
    places: dict[PublishedLimit, int] = {}
    declarations: list[Declaration] = []
    limits: list[Limit] = []
    for limit in one.limits[:_MOST_LIMITS]:
        place = places.setdefault(msgspec.structs.replace(limit, gpu="", bytes=0), len(declarations))
        if place == len(declarations):
            declarations.append(_declaration(limit))
        of = declarations[place]
        declarations[place] = msgspec.structs.replace(of, limits={**of.limits, limit.gpu: limit.bytes})
        limits.append(Limit(gpu=limit.gpu, bytes=limit.bytes, declaration=place, scope=of.scope, margin=limit.margin))
    return Declared(
        declarations=tuple(declarations),
        limits=tuple(limits),
        visible=None if one.sees is None else _visible(one, one.sees),
        incomplete=not one.conclusive,
        collective=one.collective,
        words="" if one.conclusive else f"{SOURCE}; what it may declare besides is not known",
    )


def _declaration(limit: PublishedLimit) -> Declaration:
    return Declaration(
        channel=clean(limit.channel, _SHORT),
        where=clean(limit.where, _SHORT),
        line=limit.line,
        framework=clean(limit.framework, _SHORT),
        kind=limit.kind,
        basis=limit.basis,
        value=limit.value,
        scope=clean(limit.scope, _SHORT),
        confidence=limit.confidence,
        effective=True,
        why=SOURCE,
    )


def _visible(one: PublishedProcess, gpus: tuple[str, ...]) -> Visible:
    chosen_by = clean(one.chosen_by, _SHORT)
    return Visible(gpus=gpus, order=one.order, text=chosen_by, note=SOURCE, doubtful=one.doubtful)


def _pid_namespace() -> int:
    """Return the number of our PID namespace; 0 where the kernel has none."""
    with contextlib.suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino
    return 0
