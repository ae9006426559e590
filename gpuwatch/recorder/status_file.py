"""File with the newest values for `gpuwatch status`, which then needs no sampler of its own.

It also has the idle times of the user's own holdings (of everybody's where root writes it) for `gpuwatch strays`, which
takes one sample alone. Only `gpuwatch watch` writes the file, and of several the one that holds the lock. A reader
trusts the file only if it is the reader's own (under sudo, the caller's), of this boot, and seconds old.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatch import files
from gpuwatch.model import Health, Knowledge, Reading, Reason, Snapshot, SourceState
from gpuwatch.text import clean
from gpuwatch.threads import Worker

if TYPE_CHECKING:
    from gpuwatch.alerts.alert import Alert
    from gpuwatch.history import HistoryView, Idle
    from gpuwatch.monitor import Frame

SCHEMA: Final = 1
PACE: Final = 1.0
"""Seconds between two writings, at least."""
LATE: Final = 2.0
"""Seconds beyond three intervals for which the file is believed."""

OLDEST: Final = 60.0
"""Seconds for which idle times are believed, at any interval; at a shorter one for that, and `LATE`."""

FILE: Final = "newest.json"
_LOCK: Final = "newest.lock"
_LARGEST: Final = 1 << 18
"""Bytes; 64 GPUs and 200 people take 20 kB."""
_MOST_OVER: Final = 200
_MOST_RESTING: Final = 2000
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


def make_status(
    snapshot: Snapshot, alerts: Iterable[Alert], received: float, history: HistoryView | None = None
) -> Status:
    """Put a snapshot that came at `received` (this machine's monotonic clock) and its alerts together.

    Without a history it says nothing of idle times.
    """
    from gpuwatch.alerts.alert import Severity
    from gpuwatch.alerts.rules.health import HEALTH, STALE
    from gpuwatch.alerts.rules.memory import MEMORY
    from gpuwatch.alerts.rules.shares import OVERSHOOT

    holding = tuple(alerts)
    near = {one.gpu: one.severity.name.lower() for one in holding if one.rule == MEMORY}
    shown = {MEMORY, HEALTH, STALE, OVERSHOOT}
    stamps = [gpu.sampled for gpu in snapshot.gpus if gpu.health is Health.OK and gpu.sampled]
    declared = [one.declared for one in snapshot.processes if one.declared is not None]
    counts = {each.name.lower(): sum(one.severity is each for one in holding) for each in Severity}
    return Status(
        pid=os.getpid(),
        host=snapshot.host,
        boot=boot(),
        written=time.time(),
        monotonic=received,
        interval=snapshot.interval,
        sampled=max(stamps, default=None),
        state=snapshot.state,
        words=snapshot.words,
        gpus=tuple(_rows(snapshot, near)),
        alerts={name: count for name, count in counts.items() if count},
        unseen=sum(one.severity >= Severity.WARNING and not one.quiet for one in holding),
        others=sum(one.severity >= Severity.CRITICAL and one.rule not in shown for one in holding),
        over=_over(snapshot, [one for one in holding if one.rule == OVERSHOOT]),
        unread=sum(one.knowledge is Knowledge.UNREADABLE for one in declared),
        resting=() if history is None else tuple(_resting(snapshot, history))[:_MOST_RESTING],
    )


def _resting(snapshot: Snapshot, history: HistoryView) -> Iterator[IdleHolding]:
    mine = {one.key for one in snapshot.processes if snapshot.viewer in (one.uid, 0)}
    for gpu in snapshot.gpus:
        for key in dict.fromkeys((one.pid, one.start) for one in gpu.holdings):
            idle = history.idle(gpu.key, *key) if key in mine else None
            if idle is not None:
                yield IdleHolding(gpu.key, *key, round(idle.seconds, 3), idle.at_least)


def _rows(snapshot: Snapshot, near: dict[str, str]) -> Iterator[StatusGpu]:
    from gpuwatch.alerts.rules.memory import room_of

    for gpu in snapshot.gpus:
        room = room_of(gpu.memory)
        yield StatusGpu(
            index=gpu.index,
            uuid=gpu.uuid,
            health=gpu.health,
            used=gpu.memory.used,
            total=gpu.memory.total,
            free=round(100 * room[0] / room[1], 1) if room else None,
            utilization=gpu.utilization,
            near=near.get(gpu.key, ""),
        )


def _over(snapshot: Snapshot, alerts: Iterable[Alert]) -> tuple[Overuse, ...]:
    """Return the users who exceed their limits, and by how much; of several limits of a process the worst counts."""
    from gpuwatch.shares import limit_usages
    from gpuwatch.units import GIB

    raised = {(one.gpu, one.pids) for one in alerts}
    if not raised:
        return ()
    people = {one.pid: one.user or f"pid {one.pid}" for one in snapshot.processes}
    beyond: dict[tuple[str, tuple[int, ...]], int] = {}
    for standing in limit_usages(snapshot):
        key = (standing.gpu, standing.pids)
        if key in raised:
            beyond[key] = max(beyond.get(key, 0), standing.held - standing.limit.bytes)
    sums: dict[str, int] = {}
    for (_, pids), size in beyond.items():
        user = people.get(pids[0], f"pid {pids[0]}")
        sums[user] = sums.get(user, 0) + size
    worst = sorted(sums.items(), key=lambda one: (-one[1], one[0]))
    return tuple(Overuse(user=user, gib=round(size / GIB, 2)) for user, size in worst[:_MOST_OVER])


def boot() -> str:
    """Return the kernel's identity of this boot; empty where it does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(64).strip()
    except OSError:
        return ""


# ---------------------------------------------------------------------------------------------------------------
# Writing


class StatusFile:
    """Sink that keeps the file up to date, on a thread of its own: its folder is in memory, the recorder's may hang."""

    name = "status"

    def __init__(self, folder: Path | None = None, *, pace: float = PACE) -> None:
        """`folder` stands in for the user's runtime folder; `pace` for the seconds between two writes."""
        self.trouble = ""
        """What keeps it from its work, in one line; empty when all is well."""
        self._folder = folder or files.runtime_folder()
        self._pace = pace
        self._frame: Frame | None = None
        self._written: Frame | None = None
        self._not_before = 0.0
        self._lock = files.FileLock(self._folder / _LOCK)
        self._worker = Worker("gpuwatch-status", self._task, last=self._leave)

    def take(self, frame: Frame) -> None:
        """Write a frame, unless another comes before it is its turn."""
        if not frame.snapshot.demo:  # nobody's status line is to show made-up figures
            self._frame = frame
            self._worker.wake()

    def close(self, seconds: float) -> None:
        """Remove the file, and give up after so many seconds."""
        self._worker.close(seconds)

    def _task(self) -> float | None:
        """Write the newest frame, at most once in a while; return the seconds until the next one may be written."""
        wait = self._not_before - time.monotonic()
        if wait > 0 or self._frame is self._written:
            return wait if wait > 0 else None
        frame = self._written = self._frame
        self._not_before = time.monotonic() + self._pace
        try:
            if frame is not None and self._has_lock():
                found = make_status(frame.snapshot, frame.alerts, frame.received, frame.history)
                self._write(msgspec.json.encode(found))
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
            self.trouble = f"the figures for `gpuwatch status` cannot be written: {files.words(error, None)}"
            self._lock.release()  # the folder may have ended with the session: it is made anew the next time
        else:
            self.trouble = ""
        return self._pace

    def _has_lock(self) -> bool:
        """Return whether the lock is ours; raises OSError where nobody can have it."""
        was_held = self._lock.held
        if self._lock.acquire() and not was_held:
            with files.opened_folder(self._folder) as folder:
                files.sweep_drafts(folder, FILE)
        return self._lock.held

    def _write(self, content: bytes) -> None:
        with files.opened_folder(self._folder) as folder:
            files.replace_file(folder, FILE, content, durable=False)

    def _leave(self) -> None:
        if self._lock.held:
            with contextlib.suppress(OSError):  # the session's folder went first
                (self._folder / FILE).unlink()
        self._lock.release()


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
