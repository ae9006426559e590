"""Live file: the newest values of a gpuwatch that records, for `gpuwatch status`, `gpuwatch strays` and dashboards.

The gpuwatch that holds the recorder's lock replaces `live.json` every two seconds. A reader trusts it only if it is the
reader's own (under sudo, the caller's), of this boot, and seconds old. So no sampler is needed for a status line, and
one sample is enough to find strays: the file has the idle times of all holdings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatch import files
from gpuwatch.model import Health, Reading, Reason, SourceState
from gpuwatch.procfs import boot_id
from gpuwatch.text import clean

if TYPE_CHECKING:
    from gpuwatch.history import Idle

SCHEMA: Final = 1
PACE: Final = 2.0
"""Seconds between two writes."""
LATE: Final = 4.0
"""Seconds that a file may be older than its interval asks for."""
OLDEST: Final = 60.0
"""Age in seconds up to which idle times are used, at most; one interval and `LATE` where that is shorter."""

FILE: Final = "live.json"
_LARGEST: Final = 1 << 18
"""Bytes; 64 GPUs and 200 people take 20 kB."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StatusGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU's values."""

    index: int
    uuid: str = ""
    health: Health = Health.OK
    used: Reading = Reason.NO_SAMPLE
    """Bytes."""
    total: Reading = Reason.NO_SAMPLE
    free: float | None = None
    """Percent of the memory that programs can have; None where it is not known."""
    utilization: Reading = Reason.NO_SAMPLE
    """Percent."""
    near: str = ""
    """`warning` or `critical` while its memory is near the limit."""


class Overuse(msgspec.Struct, frozen=True, kw_only=True):
    """User who holds more than they declared, as a present alert says."""

    user: str
    gib: float
    """GiB beyond the limits, over all GPUs."""


class IdleHolding(msgspec.Struct, frozen=True, array_like=True):
    """Time for which a process has run nothing on one GPU."""

    gpu: str
    """Key of the GPU."""
    pid: int
    start: int
    """Start of the process in clock ticks since boot."""
    seconds: float
    at_least: bool


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Summary of the last snapshot."""

    schema: int = SCHEMA
    pid: int = 0
    """PID of the gpuwatch that wrote the file."""
    host: str = ""
    boot: str = ""
    """The kernel's id of this boot."""
    written: float = 0.0
    """Wall-clock time of the writing."""
    monotonic: float = 0.0
    """The machine's monotonic time at which the snapshot came."""
    interval: float = 1.0
    sampled: float | None = None
    """Monotonic time of the newest sample of any GPU; None where there is none."""
    state: SourceState = SourceState.OK
    words: str = ""
    gpus: tuple[StatusGpu, ...] = ()
    sends: bool = False
    """Whether the gpuwatch that wrote the file sends messages."""
    alerts: dict[str, int] = {}
    """Alerts that hold, by severity: `note`, `warning`, `critical`."""
    unseen: int = 0
    """Alerts of severity warning or critical that nobody has acknowledged or muted."""
    others: int = 0
    """Critical alerts that neither a GPU's row nor `over` shows."""
    over: tuple[Overuse, ...] = ()
    """The worst user first."""
    unread: int = 0
    """Processes whose declarations could not be read: they may hold too much."""
    resting: tuple[IdleHolding, ...] = ()
    """Idle times of the holdings where they are known, 0 for those that compute."""


# ---------------------------------------------------------------------------------------------------------------
# Reading


def read_status(
    folder: Path | None = None,
    *,
    uid: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    boot_id: Callable[[], str] = boot_id,
    warn: Callable[[str], None] = lambda words: None,
) -> Status | None:
    """Return the last status that a user's gpuwatch wrote (default: ours); None where no valid one exists.

    `warn` is called with one line where the file is damaged.
    """
    uid = os.geteuid() if uid is None else uid
    found = _read(folder or files.runtime_folder(uid=uid), uid, warn)
    if found is None or found.schema > SCHEMA or found.boot != boot_id():
        return None
    age = clock() - found.monotonic
    # A clock that runs behind is of another time namespace: an age in it means nothing.
    return found if 0 <= age <= 3 * found.interval + LATE else None


def read_idle(
    folder: Path | None = None,
    *,
    uid: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    boot_id: Callable[[], str] = boot_id,
    warn: Callable[[str], None] = lambda words: None,
) -> Mapping[tuple[str, int, int], Idle] | None:
    """Return the idle times that a user's gpuwatch knew a moment ago (default: ours), by GPU key, PID and start time.

    None where no gpuwatch writes the file; empty where its last snapshot is too old. A process that has just begun to
    compute may still be called idle: for one interval and `LATE`, and about a minute at most.
    """
    from gpuwatch.history import Idle

    found = read_status(folder, uid=uid, clock=clock, boot_id=boot_id, warn=warn)
    if found is None or found.pid == os.getpid():  # our own history has more
        return None
    if clock() - found.monotonic > min(found.interval, OLDEST) + LATE:
        return {}
    return {(one.gpu, one.pid, one.start): Idle(one.seconds, one.at_least) for one in found.resting}


def _read(folder: Path, uid: int, warn: Callable[[str], None]) -> Status | None:
    try:
        fd = os.open(folder, _FOLDER)
    except OSError:  # nobody ever wrote it, or it is a link
        return None
    try:
        with open(files.open_ordinary(FILE, folder=fd, links=False, owner=uid), "rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o022:
                return None
            content = file.read(_LARGEST)
    except OSError:
        return None
    finally:
        os.close(fd)
    try:
        return msgspec.json.decode(content, type=Status)
    except (ValueError, RecursionError):
        warn(clean(f"{folder}/{FILE} is damaged, and not used: it holds no newest figures of a gpuwatch"))
        return None
