"""Writer of the live file: saves the newest snapshot and its alerts every two seconds."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.rules.health import HEALTH, STALE
from gpuwatch.alerts.rules.memory import MEMORY, room_of
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.base import files
from gpuwatch.base.procfs import boot_id, pid_namespace
from gpuwatch.base.threads import Worker
from gpuwatch.base.units import GIB
from gpuwatch.history.history import HistoryView
from gpuwatch.model.fields import GPU
from gpuwatch.model.live import FILE, PACE, SERVICE, Overuse, Status, StatusGpu, publish_shares
from gpuwatch.model.shares import left, limit_usages, unread_processes
from gpuwatch.model.snapshot import Health, Reason, Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.sampler.machine import hides_pids

_MOST_OVER: Final = 200
_MOST_RESTING: Final = 2000


def make_status(
    snapshot: Snapshot, alerts: Iterable[Alert], received: float, history: HistoryView | None = None
) -> Status:
    """Return the status of a snapshot that came at `received` (this machine's monotonic clock), and of its alerts.

    Without a history the status has no idle times.
    """
    holding = tuple(alerts)
    heard = [one for one in holding if not one.muted]
    # A GPU that does not answer comes before one that is full, which its users can fix.
    loud = (one for one in heard if one.severity >= Severity.WARNING)
    worst = max(loud, key=lambda one: (one.severity, one.rule == HEALTH), default=None)
    near = {one.gpu: one.severity.name.lower() for one in heard if one.rule == MEMORY}
    shown = {MEMORY, HEALTH, STALE, OVERSHOOT}
    others = [one for one in heard if one.severity >= Severity.CRITICAL and one.rule not in shown]
    soonest = next((one for one in others if one.forecast), others[0] if others else None)
    words = (soonest.forecast or soonest.short) if soonest is not None else ""
    stamps = [gpu.sampled for gpu in snapshot.gpus if gpu.health is Health.OK and gpu.sampled]
    counts = {each.name.lower(): sum(one.severity is each for one in holding) for each in Severity}
    return Status(
        pid=os.getpid(),
        host=snapshot.host,
        boot=boot_id(),
        pid_namespace=pid_namespace(),
        written=time.time(),
        monotonic=received,
        interval=snapshot.interval,
        sampled=max(stamps, default=None),
        state=snapshot.state,
        words=snapshot.words,
        gpus=tuple(_rows(snapshot, near)),
        alerts={name: count for name, count in counts.items() if count},
        unseen=sum(one.severity >= Severity.WARNING and not one.quiet for one in holding),
        worst="" if worst is None else worst.title,
        severity="" if worst is None else worst.severity.name.lower(),
        people=_people(snapshot),
        others=len(others),
        other=f"GPU {soonest.index} {words}" if soonest is not None and soonest.index is not None and words else "",
        over=_over(snapshot, [one for one in heard if one.rule == OVERSHOOT]),
        unread=unread_processes(snapshot),
        resting=() if history is None else tuple(islice(history.idle_holdings(snapshot), _MOST_RESTING)),
    )


def _people(snapshot: Snapshot) -> int | None:
    """Return how many people are known to hold GPU memory; None where no GPU, or no owner, is known."""
    owners = {one.pid: one.uid for one in snapshot.processes}
    holders = {owners.get(one.pid) for gpu in snapshot.gpus for one in gpu.holdings}
    known = len(holders - {None})
    return known if known or (snapshot.gpus and not holders) else None


def _rows(snapshot: Snapshot, near: dict[str, str]) -> Iterator[StatusGpu]:
    for gpu in snapshot.gpus:
        room, count = room_of(gpu.memory), GPU["processes"].amount(gpu)
        yield StatusGpu(
            index=gpu.index,
            uuid=gpu.uuid,
            health=gpu.health,
            used=gpu.memory.used,
            total=gpu.memory.total,
            free_percent=round(100 * room[0] / room[1], 1) if room else None,
            utilization=gpu.utilization,
            near=near.get(gpu.key, ""),
            left=left(gpu),
            processes=None if count is None or count.at_least else int(count.number),
        )


def _over(snapshot: Snapshot, alerts: Iterable[Alert]) -> tuple[Overuse, ...]:
    """Return the users who are over declared, and by how much; of several limits of a process the worst counts."""
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


def publish(status: Status, snapshot: Snapshot, *, hidden: bool = False) -> Status:
    """Return the public part of a status; nothing about processes where /proc hides other people's."""
    processes = () if hidden else tuple(publish_shares(snapshot.processes))
    return msgspec.structs.replace(
        status,
        gpus=tuple(msgspec.structs.replace(gpu, left=Reason.NO_SAMPLE, processes=None) for gpu in status.gpus),
        worst="",
        other="",
        severity="",
        people=None,
        over=() if hidden else status.over,
        resting=() if hidden else status.resting,
        processes=processes,
    )


class LiveFile:
    """Sink that writes the live file on a thread of its own: the recorder's thread may hang on its disk."""

    name = "live"

    def __init__(
        self,
        is_leader: Callable[[], bool],
        folder: Path | None = None,
        *,
        pace: float = PACE,
        public: bool = False,
    ) -> None:
        """`is_leader` returns whether this gpuwatch is the one that records; `folder` is the user's runtime folder.

        With `public` it is the service's, and the file has only the public part.
        """
        self.is_wanted = True
        """Whether the file is written; may be replaced at any time."""
        self.sends = False
        """Whether this gpuwatch sends messages; may be replaced at any time."""
        self.trouble = ""
        """Why the file cannot be written, in one line; empty for no trouble."""
        self._is_leader, self._public = is_leader, public
        self._folder = folder or (SERVICE if public else files.runtime_folder())
        self._pace = pace
        self._frame: Frame | None = None
        self._was_leader = False
        self._worker = Worker("gpuwatch-live", self._task, last=self._finish)

    def take(self, frame: Frame) -> None:
        self._frame = frame
        if not self._worker.is_running:
            self._worker.wake()

    def close(self, seconds: float) -> None:
        """Remove the file, and give up after `seconds`."""
        self._worker.close(seconds)

    def _task(self) -> float:
        frame = self._frame
        try:
            self._was_leader = self._is_leader()
            if not self.is_wanted:
                self._finish()
            elif frame is not None and self._was_leader:
                made = make_status(frame.snapshot, frame.alerts, frame.received, frame.history)
                status = msgspec.structs.replace(made, sends=self.sends)
                self._write(status, frame.snapshot)
        except Exception as error:  # noqa: BLE001 - last handler of the thread: any error must reach the user
            self.trouble = f"the figures for `gpuwatch status` cannot be written: {files.words(error, None)}"
        else:
            self.trouble = ""
        return self._pace

    def _write(self, status: Status, snapshot: Snapshot) -> None:
        if self._public:
            status = publish(status, snapshot, hidden=hides_pids())
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir(mode=0o755)
                self._folder.chmod(0o755)  # mkdir(2) applies the umask
            if trouble := files.check_source(self._folder / FILE, missing_ok=True):
                raise files.UnsafePathError(trouble)
        with files.opened_folder(self._folder, private=not self._public) as folder:
            mode = 0o644 if self._public else 0o600
            files.replace_file(folder, FILE, msgspec.json.encode(status), durable=False, mode=mode)

    def _finish(self) -> None:
        if self._was_leader:
            with contextlib.suppress(OSError):  # the session's folder was removed before
                (self._folder / FILE).unlink()
