"""Live file: the newest values of a gpuwatch that records, for those that start, `status`, `strays` and everybody.

The gpuwatch that holds the recorder's lock replaces `live.json` in its user's runtime folder every two seconds, so that
no sampler is needed for a status line, and one sample is enough to find strays: the file has the idle times of all
holdings. A reader trusts it only if it is the reader's own (under sudo, the caller's), of this boot, and seconds old.

The machine's service writes another one for everybody, `/run/gpuwatch/live.json`, with the declared shares of all
processes too: Linux shows the environment of a process only to its owner and to root, so an ordinary user knows the
shares of other people only from this file. It has numbers, names of channels and base names of scripts: never an
environment, an argument, a title or a path. It is trusted only if nobody but root can write it, of this
PID namespace, and ten seconds old at most, or three of its samples. A process counts only with its start time; none is
signalled because of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from gpuwatch.base import files, procfs
from gpuwatch.base.errors import GpuwatchError
from gpuwatch.base.text import ELLIPSIS, clean
from gpuwatch.model.shares import is_conclusive
from gpuwatch.model.snapshot import (
    Basis,
    Confidence,
    Declaration,
    Declared,
    Health,
    IdleHolding,
    Kind,
    Knowledge,
    Limit,
    Margin,
    Order,
    Presence,
    Process,
    Reading,
    Reason,
    SourceState,
    Visible,
)
from gpuwatch.version import __version__

SERVICE: Final = Path("/run/gpuwatch")
"""Folder of the machine's service."""
FILE: Final = "live.json"
SCHEMA: Final = 2
PACE: Final = 2.0
"""Seconds between two writes, and between two looks of a reader."""
LATE: Final = 4.0
"""Seconds that a file may be older than its interval asks for."""
OLDEST: Final = 10.0
"""Age in seconds up to which the service's file is used, at least."""
SOURCE: Final = "read by the machine's service"

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST: Final = 16 << 20
"""Bytes; 64 GPUs and 200 people take 20 kB, 20,000 processes with limits 6 MB."""
_MOST: Final = 20_000
"""Processes that are published, at most."""
_MOST_LIMITS: Final = 32
_SHORT: Final = 120
_SECRET: Final = os.urandom(16)
"""Key of the published names of scopes, from which nobody can find the words."""


class LiveFileError(GpuwatchError):
    """A live file is not used; one line says why."""


class DamagedLiveFileError(LiveFileError):
    """A live file is damaged."""


class StatusGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU's values."""

    index: int
    uuid: str = ""
    health: Health = Health.OK
    used: Reading = Reason.NO_SAMPLE
    """Bytes."""
    total: Reading = Reason.NO_SAMPLE
    free_percent: float | None = None
    """Free memory in percent of the memory that programs can have; None if not known."""
    utilization: Reading = Reason.NO_SAMPLE
    """Percent."""
    near: str = ""
    """`warning` or `critical` while it is nearly full."""
    left: Reading = Reason.NO_SAMPLE
    """Bytes: free memory, minus what is promised. Like the next field, it is not in the service's file."""
    processes: int | None = None
    """Number of processes that hold its memory; None if not known."""


class Overuse(msgspec.Struct, frozen=True, kw_only=True):
    """User who is over declared, by an active alert."""

    user: str
    gib: float
    """GiB above what they declared, over all GPUs."""


class LiveLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limit in effect of a process on one GPU, and where it was declared."""

    gpu: str
    """UUID of the GPU."""
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    scope: str = ""
    """Name of the processes that it limits together, as `model.Declaration.scope`, which has other people's words."""
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


class LiveShares(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Declared shares of one process."""

    pid: int
    start: int
    """Start in clock ticks since boot."""
    sees: tuple[str, ...] | None = None
    """UUIDs of the GPUs that it can see, in its order; None if not known."""
    order: Order = Order.EXACT
    chosen_by: str = ""
    """Name of the setting that decides it, without its value; empty if there is none and all are visible."""
    doubtful: bool = False
    """Whether that setting may not be in effect."""
    conclusive: bool = False
    """Whether a missing limit means that none was declared."""
    collective: bool = False
    limits: tuple[LiveLimit, ...] = ()


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of the last snapshot: the contents of the file."""

    schema: int = SCHEMA
    version: str = __version__
    pid: int = 0
    """PID of the gpuwatch that wrote the file."""
    host: str = ""
    boot: str = ""
    """The kernel's id of this boot."""
    pid_namespace: int = 0
    """Number of the PID namespace; 0 if the kernel has none."""
    written: float = 0.0
    """Wall-clock time at which the file was written."""
    monotonic: float = 0.0
    """Monotonic time of the machine at which the snapshot arrived."""
    interval: float = 1.0
    sampled: float | None = None
    """Monotonic time of the newest sample of any GPU; None if there is none."""
    state: SourceState = SourceState.OK
    words: str = ""
    """The fault, and what to do next; empty if there is none."""
    gpus: tuple[StatusGpu, ...] = ()
    sends: bool = False
    """Whether the gpuwatch that wrote the file sends messages."""
    alerts: dict[str, int] = {}
    """Number of active alerts, by severity: `note`, `warning`, `critical`."""
    unseen: int = 0
    """Number of warnings and critical alerts that nobody has acknowledged or muted."""
    worst: str = ""
    """Title of the worst of these that nobody has muted. Like the next two fields, it is not in the service's file."""
    severity: str = ""
    """Its severity."""
    people: int | None = None
    """Number of people who hold GPU memory; None if not known."""
    others: int = 0
    """Number of critical alerts that `gpus`, `state` and `over` do not show."""
    other: str = ""
    """Title of one of these: `GPU 1 full in 4 min`; not in the service's file."""
    over: tuple[Overuse, ...] = ()
    """Users who are over declared, the worst first."""
    unread: int = 0
    """Number of processes whose declarations could not be read: they may be over declared."""
    resting: tuple[IdleHolding, ...] = ()
    """Idle times of the holdings where they are known, 0 for those that compute."""
    processes: tuple[LiveShares, ...] = ()
    """Declared shares, in the service's file."""


class _Head(msgspec.Struct):
    schema: int = 0
    version: str = ""


# ---------------------------------------------------------------------------------------------------------------
# What is published


def publish_shares(processes: Iterable[Process]) -> Iterator[LiveShares]:
    """Yield what everybody may know of the declared shares of processes."""
    for one in islice((one for one in processes if one.presence is Presence.SEEN), _MOST):
        declared = one.declared
        if declared is None or (declared.knowledge is not Knowledge.READ and not declared.limits):
            continue
        visible = declared.visible or Visible()
        # A start size, a cache or growth is not published, and yet it is no "nothing declared".
        labels = any(
            each.effective and not each.limits and each.kind is not Kind.DEFAULT for each in declared.declarations
        )
        yield LiveShares(
            pid=one.pid,
            start=one.start,
            sees=None if declared.visible is None else visible.gpus,
            order=visible.order,
            chosen_by=re.split("[=(]", visible.text)[0],
            doubtful=visible.doubtful,
            conclusive=is_conclusive(declared) and (not labels or bool(declared.limits)),
            collective=declared.collective,
            limits=tuple(_publish_limit(limit, declared) for limit in declared.limits[:_MOST_LIMITS]),
        )


def _publish_limit(limit: Limit, declared: Declared) -> LiveLimit:
    of, known = declared.declarations[limit.declaration], declared.knowledge is Knowledge.READ
    base = of.where.rpartition("/")[2]
    from hashlib import blake2b  # it loads OpenSSL (4 ms), and only the machine's service publishes

    name = blake2b(limit.scope.encode("utf-8", "replace"), key=_SECRET, digest_size=4).hexdigest()
    return LiveLimit(
        gpu=limit.gpu,
        bytes=limit.bytes,
        scope=f"{limit.scope.partition(' ')[0]} {name}" if limit.scope else "",
        margin=limit.margin,
        channel=of.channel,
        framework=of.framework,
        kind=of.kind,
        basis=of.basis,
        value=of.value,
        # Without its script, say, which may set something else, a limit of its environment is not certain.
        confidence=of.confidence if known or of.confidence is not Confidence.CERTAIN else Confidence.LIKELY,
        where="" if ELLIPSIS in base else base,  # a long path may have been cut within the name of a folder
        line=of.line,
    )


# ---------------------------------------------------------------------------------------------------------------
# Reading


def read_live(
    folder: Path | None = None,
    *,
    uid: int | None = None,
    oldest: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    boot_id: Callable[[], str] = procfs.boot_id,
) -> Status | None:
    """Return what a gpuwatch of a user (default: ours) wrote last into a folder (default: that user's runtime folder).

    None where there is no file; raises LiveFileError where it is not used. It may be as old as three samples, or
    `oldest` seconds.
    """
    uid = os.geteuid() if uid is None else uid
    folder = folder or files.runtime_folder(uid=uid)
    path = folder / FILE
    try:
        place = os.open(folder, _FOLDER)
        try:
            with open(files.open_ordinary(FILE, folder=place, links=False, owner=uid), "rb") as file:
                if trouble := files.check_source(path, uid, read=os.fstat(file.fileno())):
                    raise LiveFileError(trouble)
                content = file.read(_LARGEST + 1)
        finally:
            os.close(place)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LiveFileError(f"{clean(str(path))} cannot be used: {files.reason(error)}") from None
    found = _decode(content, path)
    if found.boot != boot_id():
        raise LiveFileError(f"{clean(str(path))} is from another boot")
    if found.pid_namespace not in (0, procfs.pid_namespace()):
        raise LiveFileError(f"{clean(str(path))} is from another PID namespace: one of the two is in a container")
    # A clock that runs behind is of another time namespace: an age in it means nothing.
    age = clock() - found.monotonic
    if not 0 <= age <= max(3 * found.interval + LATE, oldest):
        raise LiveFileError(f"{clean(str(path))} is {age:.0f} s old: no gpuwatch writes it any more")
    return found


def _decode(content: bytes, path: Path) -> Status:
    named = clean(str(path))
    if len(content) > _LARGEST:
        raise LiveFileError(f"{named} has more than {_LARGEST >> 20} MiB")
    try:
        head = msgspec.json.decode(content, type=_Head)
        if head.schema != SCHEMA:
            older = "the service" if head.schema < SCHEMA else "this gpuwatch"
            raise LiveFileError(f"{named} has the format of gpuwatch {clean(head.version, 20)}; upgrade {older}")
        return msgspec.json.decode(content, type=Status)
    except (ValueError, RecursionError):
        raise DamagedLiveFileError(f"{named} is damaged, and not used") from None


def read_service(folder: Path = SERVICE, *, clock: Callable[[], float] = time.monotonic) -> Status | None:
    """Return what the machine's service wrote last; None where there is none, raises LiveFileError."""
    return read_live(folder, uid=0, oldest=OLDEST, clock=clock)


def read_status(
    folder: Path | None = None,
    *,
    uid: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    boot_id: Callable[[], str] = procfs.boot_id,
    warn: Callable[[str], None] = lambda words: None,
) -> Status | None:
    """Return what `read_live` does, and None where it is not used; `warn` gets a line where the file is damaged."""
    try:
        return read_live(folder, uid=uid, clock=clock, boot_id=boot_id)
    except LiveFileError as error:
        if isinstance(error, DamagedLiveFileError):
            warn(str(error))
        return None


class SharesReader:
    """Declared shares by PID and start time, read again every few seconds from the service's file."""

    def __init__(self, folder: Path = SERVICE, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._due = 0.0
        self._shares: Mapping[tuple[int, int], Declared] = {}

    def read(self) -> Mapping[tuple[int, int], Declared]:
        """Return the shares that are published now; empty where none can be used."""
        now = self._clock()
        if now >= self._due:
            self._due = now + PACE
            found = None
            with contextlib.suppress(LiveFileError):
                found = read_service(self._folder, clock=self._clock)
            self._shares = {} if found is None else {(one.pid, one.start): _declared(one) for one in found.processes}
        return self._shares


def _declared(one: LiveShares) -> Declared:
    """Return published facts as declarations, all texts cleaned again."""
    places: dict[LiveLimit, int] = {}
    declarations: list[Declaration] = []
    limits: list[Limit] = []
    for limit in one.limits[:_MOST_LIMITS]:
        gpu, place = clean(limit.gpu, _SHORT), places.setdefault(replace(limit, gpu="", bytes=0), len(declarations))
        if place == len(declarations):
            declarations.append(
                Declaration(
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
            )
        of = declarations[place]
        declarations[place] = replace(of, limits={**of.limits, gpu: limit.bytes})
        limits.append(Limit(gpu=gpu, bytes=limit.bytes, declaration=place, scope=of.scope, margin=limit.margin))
    visible = None
    if one.sees is not None:
        gpus, text = tuple(clean(gpu, _SHORT) for gpu in one.sees), clean(one.chosen_by, _SHORT)
        visible = Visible(gpus=gpus, order=one.order, text=text, note=SOURCE, doubtful=one.doubtful)
    return Declared(
        declarations=tuple(declarations),
        limits=tuple(limits),
        visible=visible,
        incomplete=not one.conclusive,
        collective=one.collective,
        words="" if one.conclusive else "the machine's service does not know or publish all of it",
    )
