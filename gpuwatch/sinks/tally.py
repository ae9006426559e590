"""What a minute of frames comes to, by hour, GPU, user and run: what the store then adds to what it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from gpuwatch.alerts.alert import TROUBLE, Alert
from gpuwatch.history import Meter, Use, charged
from gpuwatch.inspector import program
from gpuwatch.model import Holding, Process, Snapshot, number

if TYPE_CHECKING:
    from gpuwatch.model import Surroundings
    from gpuwatch.monitor import Frame

K = TypeVar("K")

HOUR: Final = 3600
NOBODY: Final = -1
"""In place of the uid of an owner whom we cannot see: gone, hidden, or in another namespace."""
UNSEEN: Final = "?"
"""The name of `NOBODY`."""
_MOST_EVENTS: Final = 10_000
"""Events that wait to be written; a minute has a handful."""


class JobId(NamedTuple):
    """A run of one user's, on one boot of one host."""

    uid: int
    key: str


class JobFacts(NamedTuple):
    """What is known of a run."""

    name: str
    launcher: str
    first: float
    last: float
    """Wall-clock times at which it was first and last seen."""


class Card(NamedTuple):
    """What is known of a GPU."""

    number: int
    """NVML's index, as it was last."""
    name: str
    total: int | None


class _Known(NamedTuple):
    """What was made of a process, and what it was made from: the same gives the same."""

    source: tuple[int | None, str, Surroundings | None]
    job: JobId
    name: str
    launcher: str


class Told(NamedTuple):
    """An event, and whose it is."""

    alert: Alert
    uids: frozenset[int]
    jobs: frozenset[JobId]


@dataclass(slots=True)
class Batch:
    """What is to be added; times in seconds, hours by their start in seconds since the epoch, GPUs by their keys."""

    host: str = ""
    watched: dict[tuple[int, str], float] = field(default_factory=dict)
    by_gpu: dict[tuple[int, str], Use] = field(default_factory=dict)
    by_user: dict[tuple[int, str, int], Use] = field(default_factory=dict)
    by_job: dict[tuple[int, str, JobId], Use] = field(default_factory=dict)
    gpus: dict[str, Card] = field(default_factory=dict)
    users: dict[int, str] = field(default_factory=dict)
    jobs: dict[JobId, JobFacts] = field(default_factory=dict)
    moved: dict[JobId, JobId] = field(default_factory=dict)
    """Runs that turned out to be part of another one, once their surroundings were read."""
    events: dict[str, Told] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.host or self.watched or self.events)


def joined(batches: Iterable[Batch]) -> Batch:
    """Give several as one, the older ones first."""
    whole = Batch()
    for one in batches:
        whole.host = one.host or whole.host
        for key, seconds in one.watched.items():
            whole.watched[key] = whole.watched.get(key, 0.0) + seconds
        _add(whole.by_gpu, one.by_gpu)
        _add(whole.by_user, one.by_user)
        _add(whole.by_job, one.by_job)
        whole.gpus |= one.gpus
        whole.users |= one.users
        for job, facts in one.jobs.items():
            old = whole.jobs.get(job, facts)
            whole.jobs[job] = facts._replace(first=min(old.first, facts.first), last=max(old.last, facts.last))
        whole.moved |= one.moved
        for name, told in one.events.items():
            before = whole.events.get(name, told)
            whole.events[name] = told._replace(uids=told.uids | before.uids, jobs=told.jobs | before.jobs)
    return whole


def _add(whole: dict[K, Use], part: Mapping[K, Use]) -> None:
    for key, use in part.items():
        whole[key] = whole[key].plus(use) if key in whole else use


class Tally:
    """Takes in frames, one after the other; used by one thread at a time."""

    def __init__(self) -> None:
        self._meter = Meter()
        self._batch = Batch()
        self._known: dict[tuple[int, int], _Known] = {}
        """By process, of the last snapshot."""
        self._newest: Frame | None = None

    def add(self, frame: Frame) -> None:
        """Take in a frame; one that comes again with other marks charges nothing."""
        snapshot = frame.snapshot
        self._batch.host = snapshot.host or self._batch.host
        if self._newest is None or self._newest.snapshot is not snapshot:
            self._charge(snapshot)
        self._newest = frame
        self._tell((*frame.raised, *frame.cleared), snapshot)

    def take(self) -> Batch:
        """Give what has been taken in since the last time, with what is there now, and begin anew."""
        frame = self._newest
        if frame is not None:
            self._tell(frame.alerts, frame.snapshot)
        batch, self._batch = self._batch, Batch(host=self._batch.host)
        return batch

    def forget(self) -> None:
        """Begin anew: somebody else writes what there was."""
        self._batch = Batch(host=self._batch.host)

    def _charge(self, snapshot: Snapshot) -> None:
        batch = self._batch
        times = [(gpu, self._meter.seconds(gpu, snapshot.interval)) for gpu in snapshot.gpus]
        self._look(snapshot)
        runs = {pid: known.job for (pid, _), known in self._known.items()}
        uids = {pid: job.uid for pid, job in runs.items()}

        def uid_of(one: Holding) -> int:
            return uids.get(one.pid, NOBODY)

        def job_of(one: Holding) -> JobId:
            return runs.get(one.pid) or JobId(NOBODY, f"{one.pid}:{one.start}")

        for gpu, seconds in times:
            if not seconds:
                continue
            total = number(gpu.memory.total)
            batch.gpus[gpu.key] = Card(gpu.index, gpu.name, None if total is None else int(total))
            for hour, part in _hours(snapshot.taken, seconds):
                at = (hour, gpu.key)
                batch.watched[at] = batch.watched.get(at, 0.0) + part
                if not gpu.holdings:
                    continue
                _add(batch.by_gpu, {at: charged(gpu.holdings, part, lambda _: None)[None]})
                _add(batch.by_user, {(*at, uid): use for uid, use in charged(gpu.holdings, part, uid_of).items()})
                jobs = charged(gpu.holdings, part, job_of)
                _add(batch.by_job, {(*at, job): use for job, use in jobs.items()})
                for job in jobs:
                    if job not in batch.jobs:  # of a process that the snapshot does not describe
                        batch.jobs[job] = JobFacts(UNSEEN, "", snapshot.taken, snapshot.taken)

    def _look(self, snapshot: Snapshot) -> None:
        """Note who is there, and to which run each belongs."""
        batch, now = self._batch, snapshot.taken
        seen: dict[tuple[int, int], _Known] = {}
        for one in snapshot.processes:
            before = self._known.get(one.key)
            source = (one.uid, one.command, one.surroundings)
            known = before if before is not None and before.source == source else _looked(one, source)
            if before is not None and before.job != known.job:
                read = before.source[2] is not None
                if one.uid is None or (read and one.surroundings is None):  # it was known, and has gone since
                    known = before
                elif not read:
                    batch.moved[before.job] = known.job
            seen[one.key] = known
            job = known.job
            batch.users[job.uid] = UNSEEN if job.uid == NOBODY else one.user or batch.users.get(job.uid, str(job.uid))
            facts = batch.jobs.get(job)
            if facts is None or facts.last != now:
                first = facts.first if facts is not None else now
                batch.jobs[job] = JobFacts(known.name, known.launcher, first, now)
        self._known = seen

    def _tell(self, alerts: Iterable[Alert], snapshot: Snapshot) -> None:
        alerts = [alert for alert in alerts if alert.rule != TROUBLE and alert.id]
        if not alerts:
            return
        uids = {one.user: one.uid for one in snapshot.processes if one.uid is not None}
        runs = {pid: known.job for (pid, _), known in self._known.items()}
        for alert in alerts:
            before = self._batch.events.get(alert.id)
            if before is None and len(self._batch.events) >= _MOST_EVENTS:
                continue
            owners = frozenset(uids[name] for name in alert.owners if name in uids)
            jobs = frozenset(runs[pid] for pid in alert.pids if pid in runs)
            if before is not None:
                owners, jobs = owners | before.uids, jobs | before.jobs
            self._batch.events[alert.id] = Told(alert, owners, jobs)


def job_id(one: Process) -> JobId:
    """Give the run that a process belongs to: as its surroundings say, or else itself."""
    uid = NOBODY if one.uid is None else one.uid
    job = one.surroundings.job if one.surroundings is not None else None
    return JobId(uid, job.key if job is not None else f"{one.pid}:{one.start}")


def job_name(one: Process) -> str:
    """Give what runs, for people: `train.py`, `vllm.entrypoints`, `python`, without folders and arguments."""
    job = one.surroundings.job if one.surroundings is not None else None
    if job is not None and job.name:
        return job.name
    argv = tuple(one.command.split())
    found = program.find_program(argv)
    if found is not None and found.how is program.How.FILE:
        return PurePosixPath(found.text).name
    if found is not None and found.how is program.How.MODULE:
        return found.text
    return PurePosixPath(argv[0]).name if argv else one.name or UNSEEN


def _looked(one: Process, source: tuple[int | None, str, Surroundings | None]) -> _Known:
    job = one.surroundings.job if one.surroundings is not None else None
    return _Known(source, job_id(one), job_name(one), job.launcher if job is not None else "")


def _hours(end: float, seconds: float) -> Iterator[tuple[int, float]]:
    """Split a time that ends at a wall-clock time by the hours that it lies in."""
    while seconds > 0:
        # A time that ends with an hour lies in that hour, not in the next.
        hour = int(-(-end // HOUR) - 1) * HOUR
        part = min(seconds, end - hour)
        yield hour, part
        end, seconds = float(hour), seconds - part
