"""Usage recorder: adds up who held and used how much, and writes it to the store once a minute.

take (watch thread) ──► tally ──► each minute: a batch ──► written, or kept and tried again
                              └─► somebody else has the lock: forgotten, and the lock asked for again

All that may wait is on a thread of its own; the tally is arithmetic, a millisecond a frame on a large machine.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from gpuwatch import programs
from gpuwatch.alerts.alert import TROUBLE, Alert
from gpuwatch.history import ChargeTimer, Use, charged
from gpuwatch.model import Holding, Process, Snapshot, number
from gpuwatch.threads import start_thread

if TYPE_CHECKING:
    from gpuwatch.model import Surroundings
    from gpuwatch.monitor import Frame
    from gpuwatch.recorder.events_log import Lock
    from gpuwatch.recorder.store import Store


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
        self._timer = ChargeTimer()
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
        """Return what has been taken in since the last time, with what is there now, and begin anew."""
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
        times = [(gpu, self._timer.seconds(gpu, snapshot.interval)) for gpu in snapshot.gpus]
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
    """Return the run that a process belongs to: as its surroundings say, or else itself."""
    uid = NOBODY if one.uid is None else one.uid
    job = one.surroundings.job if one.surroundings is not None else None
    return JobId(uid, job.key if job is not None else f"{one.pid}:{one.start}")


def job_name(one: Process) -> str:
    """Return what runs, for people: `train.py`, `vllm.entrypoints`, `python`, without folders and arguments."""
    job = one.surroundings.job if one.surroundings is not None else None
    if job is not None and job.name:
        return job.name
    argv = tuple(one.command.split())
    found = programs.find_source(argv)
    if found is not None and found.kind is programs.SourceKind.FILE:
        return PurePosixPath(found.text).name
    if found is not None and found.kind is programs.SourceKind.MODULE:
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


MOST: Final = 60
"""Batches that wait to be written: an hour of minutes. Of more the oldest are lost, and counted."""


class Pace(NamedTuple):
    """Seconds between two of what is done again and again; tests hand in less."""

    write: float = 60.0
    retry: float = 30.0
    """After an error."""
    lock: float = 2.0
    """Asking for the lock."""
    prune: float = 3600.0


class Wish(NamedTuple):
    """What is wanted of the sink."""

    writes: bool = True
    """Whether anything is kept at all."""
    keep: float = 90 * 24 * 3600.0
    """Seconds."""
    largest: int = 64 << 20
    """Bytes."""


class UsageKeeper:
    """A `watch.Sink` that adds what was held and used to the store, once a minute and at the end."""

    name = "usage"

    def __init__(
        self,
        wish: Wish | None = None,
        *,
        folder: Path | None = None,
        pace: Pace | None = None,
        wall: Callable[[], float] = time.time,
        patience: float | None = None,
    ) -> None:
        """`folder` stands in for the user's state folder; `patience` (seconds) for how long another is waited for."""
        self._wish = wish or Wish()
        self._folder = folder
        self._pace = pace or Pace()
        self._wall = wall
        self._patience = patience
        # What both threads use, under the guard.
        self._guard = threading.Lock()
        self._tally = Tally()
        # What is the thread's own.
        self._store: Store | None = None
        self._lock: Lock | None = None
        self._waiting: deque[Batch] = deque(maxlen=MOST)
        self._lost = 0
        self._error = ""
        self._due: dict[str, float] = {}
        """When to do what next, on the machine's monotonic clock."""
        self._bell = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuwatch-usage", daemon=True)
        self._started = False

    # -----------------------------------------------------------------------------------------------------------
    # For the watch thread, and for everybody

    @property
    def is_keeper(self) -> bool:
        """Whether this gpuwatch is the one that writes."""
        return self._lock is not None and self._lock.held

    @property
    def trouble(self) -> str:
        """What keeps it from writing, in one line; empty when all is well."""
        if not self._error or not self._wish.writes:
            return ""
        count = len(self._waiting)
        wait = f"; {count} {'minute waits' if count == 1 else 'minutes wait'} to be written" if count else ""
        lost = f", {self._lost} {'is' if self._lost == 1 else 'are'} lost" if self._lost else ""
        return f"nothing is kept for `gpuwatch report`: {self._error}{wait}{lost}"

    def take(self, frame: Frame) -> None:
        """Add up what a frame tells. Made-up figures go nowhere."""
        if frame.snapshot.demo or not self._wish.writes:
            return
        with self._guard:
            self._tally.add(frame)
        if not self._started:
            self._set("write", self._pace.write)
            start_thread(self._thread)
            self._started = True

    def settle(self, wish: Wish) -> None:
        """Go by another wish from now on; from any thread."""
        self._wish = wish
        self._bell.set()

    def close(self, seconds: float) -> None:
        """Write what there is, and give up after so many seconds."""
        self._closing.set()
        self._bell.set()
        if self._started:
            self._thread.join(seconds)

    # -----------------------------------------------------------------------------------------------------------
    # The thread

    def _run(self) -> None:
        while not self._closing.is_set():
            self._bell.clear()
            self._try(self._step)
            if not self._closing.is_set():
                self._bell.wait(self._pause())
        self._try(self._leave)
        self._release()

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
            from gpuwatch.recorder.store import own_store, store_words

            path = self._store.path if self._store is not None else own_store(self._folder)
            self._error = store_words(error, path)
            self._set("retry", self._pace.retry)

    def _step(self) -> None:
        if not self._wish.writes:
            try:
                self._leave()
            finally:
                self._release()
            return
        if not self._have_lock():
            return
        if self._is_due("write"):
            self._set("write", self._pace.write)
            self._collect()
        if not self._is_due("retry"):
            return
        if self._waiting or self._error:
            self._put()
            if self._is_due("prune"):
                self._made().prune(self._wall())
                self._set("prune", self._pace.prune)

    def _leave(self) -> None:
        """Write what there is."""
        if self.is_keeper:
            self._collect()
            self._put()

    def _collect(self) -> None:
        """Put what was added up since the last time with what waits."""
        with self._guard:
            batch = self._tally.take()
        if batch:
            self._lost += len(self._waiting) == MOST
            self._waiting.append(batch)

    def _put(self) -> None:
        """Write what waits; raises what the store raises, and keeps it then."""
        if self._waiting:
            self._made().write(joined(self._waiting))
        self._waiting.clear()
        self._error, self._lost = "", 0

    def _made(self) -> Store:
        from gpuwatch.recorder.store import PATIENCE, Store, own_store

        if self._store is None:
            patience = PATIENCE if self._patience is None else self._patience
            self._store = Store(own_store(self._folder), patience=patience)
        self._store.keep, self._store.largest = self._wish.keep, self._wish.largest
        return self._store

    # -----------------------------------------------------------------------------------------------------------
    # Who writes

    def _have_lock(self) -> bool:
        """Return whether it is ours to write; raises OSError where no lock can be had at all.

        Two that both write would count everything twice, so that without a lock nobody does.
        """
        lock = self._lock = self._lock or self._new_lock()
        if lock.held:
            if lock.is_there():
                return True
            lock.release()
        elif not self._is_due("lock") or not self._is_due("retry"):
            return False
        self._set("lock", self._pace.lock)
        if lock.take():
            self._error = ""
            return True
        with self._guard:  # whoever has it has written this too
            self._tally.forget()
        self._waiting.clear()
        self._set("write", self._pace.write)
        self._error, self._lost = "", 0
        return False

    def _new_lock(self) -> Lock:
        from gpuwatch.recorder.events_log import Lock
        from gpuwatch.recorder.store import own_store

        return Lock(own_store(self._folder), private_folder=True)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _pause(self) -> float | None:
        if not self._wish.writes:
            return None
        names = ["write", *["retry"] * bool(self._error)] if self.is_keeper else ["retry" if self._error else "lock"]
        now = time.monotonic()
        return max(0.001, min(self._due.get(name, now) - now for name in names))

    def _set(self, name: str, seconds: float) -> None:
        self._due[name] = time.monotonic() + seconds

    def _is_due(self, name: str) -> bool:
        return time.monotonic() >= self._due.get(name, 0.0)
