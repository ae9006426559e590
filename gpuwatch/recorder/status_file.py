"""File with the newest values for `gpuwatch status`, which then needs no sampler of its own.

It also has the idle times of the user's own holdings (of everybody's where root writes it) for `gpuwatch strays`, which
takes one sample alone. Only `gpuwatch watch` writes the file, and of several the one that holds the lock. A reader
trusts the file only if it is the reader's own (under sudo, the caller's), of this boot, and seconds old.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatch import files
from gpuwatch.model import Health, Reading, Reason, SourceState
from gpuwatch.text import clean

if TYPE_CHECKING:
    from gpuwatch.history import Idle

SCHEMA: Final = 1
LATE: Final = 2.0
"""Seconds beyond three intervals for which the file is believed."""

OLDEST: Final = 60.0
"""Seconds for which idle times are believed, at any interval; at a shorter one for that, and `LATE`."""

FILE: Final = "newest.json"
_LARGEST: Final = 1 << 18
"""Bytes; 64 GPUs and 200 people take 20 kB."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK, because a FIFO planted under the name would hold us for ever."""


class StatusGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU, in a few words."""

    index: int
    uuid: str = ""
    health: Health = Health.OK
    used: Reading = Reason.NO_SAMPLE
    """Bytes."""
    total: Reading = Reason.NO_SAMPLE
    free: float | None = None
    """Percent of what programs can have; None where it is not known."""
    utilization: Reading = Reason.NO_SAMPLE
    """Percent."""
    near: str = ""
    """`warning` or `critical` while its memory is near the limit."""


class Overuse(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who holds more than they declared, by an alert that holds."""

    user: str
    gib: float
    """GiB beyond the limits, over all GPUs."""


class IdleHolding(msgspec.Struct, frozen=True, array_like=True):
    """For how long a process has run nothing on one GPU."""

    gpu: str
    """Its key."""
    pid: int
    start: int
    """Clock ticks since boot."""
    seconds: float
    at_least: bool


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the last snapshot came to."""

    schema: int = SCHEMA
    pid: int = 0
    """Of the gpuwatch that wrote it."""
    host: str = ""
    boot: str = ""
    """The kernel's identity of this boot."""
    written: float = 0.0
    """Wall-clock time."""
    monotonic: float = 0.0
    """The machine's monotonic clock when the snapshot came."""
    interval: float = 1.0
    sampled: float | None = None
    """Monotonic time of the newest figures of any GPU; None where there were none yet."""
    state: SourceState = SourceState.OK
    words: str = ""
    gpus: tuple[StatusGpu, ...] = ()
    alerts: dict[str, int] = {}
    """Alerts that hold, by severity: `note`, `warning`, `critical`."""
    unseen: int = 0
    """Those of them that are worth a warning, and that nobody has acknowledged or muted."""
    others: int = 0
    """Critical ones that neither the GPUs' rows nor `over` tell of."""
    over: tuple[Overuse, ...] = ()
    """The worst first."""
    unread: int = 0
    """Processes whose declarations could not be read: what they hold too much is not known."""
    resting: tuple[IdleHolding, ...] = ()
    """All of the user's own holdings whose idle times are known, those that compute with 0; root's are everybody's."""


def boot() -> str:
    """Return the kernel's identity of this boot; empty where it does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(64).strip()
    except OSError:
        return ""


# ---------------------------------------------------------------------------------------------------------------
# Reading


def read_status(
    folder: Path | None = None,
    *,
    uid: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    boot_id: Callable[[], str] = boot,
    warn: Callable[[str], None] = lambda words: None,
) -> Status | None:
    """Return what another gpuwatch of ours, or of `uid`'s, saw last; None where nothing is there that can be believed.

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
    boot_id: Callable[[], str] = boot,
    warn: Callable[[str], None] = lambda words: None,
) -> Mapping[tuple[str, int, int], Idle] | None:
    """Return how long our own holdings, or `uid`'s, had been idle a moment ago, by GPU key, pid and start time.

    None where nobody watches; nothing in it where somebody does whose last look is too old. What computes may be called
    idle for as long as this is believed: one interval and a little, and a minute at most.
    """
    from gpuwatch.history import Idle

    found = read_status(folder, uid=uid, clock=clock, boot_id=boot_id, warn=warn)
    if found is None:
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
        file = os.open(FILE, _READ, dir_fd=fd)
    except OSError:
        return None
    finally:
        os.close(fd)
    try:
        facts = os.fstat(file)
        theirs = stat.S_ISREG(facts.st_mode) and facts.st_uid == uid and not facts.st_mode & 0o022
        if not theirs:
            return None
        content = os.read(file, _LARGEST)
    except OSError:
        return None
    finally:
        os.close(file)
    try:
        return msgspec.json.decode(content, type=Status)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        warn(clean(f"{folder}/{FILE} is damaged, and not used: it holds no newest figures of a gpuwatch"))
        return None
