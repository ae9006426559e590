"""Usage: who held and used how much of which GPU; added up from frames, stored, and read for `gpuwatch report`.

Times are in seconds, moments in seconds since the epoch, sizes in bytes. An hour is named by its start; `held_s` and
the like in the store are the fields of `history.Use`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from gpuwatch import programs
from gpuwatch.alerts.alert import TROUBLE, Alert
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.history import NO_USE, ChargeTimer, Use, charged
from gpuwatch.minute import Minute
from gpuwatch.model import Holding, Process, Snapshot, number
from gpuwatch.recorder.store import SOUND_HOUR, read_about, reading, write_about
from gpuwatch.text import clean
from gpuwatch.timeline import Key, Metric, user_owner

if TYPE_CHECKING:
    from gpuwatch.model import Surroundings
    from gpuwatch.monitor import Frame

K = TypeVar("K")

HOUR: Final = 3600
NOBODY: Final = -1
"""Uid of an owner whom we cannot see: the process has ended, is hidden, or is in another namespace."""
UNSEEN: Final = "?"
"""Name of the owner `NOBODY`."""
_MOST_EVENTS: Final = 10_000
"""Events of one batch, at most; a minute has a handful."""


# ---------------------------------------------------------------------------------------------------------------
# Adding up


class JobId(NamedTuple):
    """Identity of a run of one user, during one boot of one host."""

    uid: int
    key: str


class JobFacts(NamedTuple):
    """Facts about a run."""

    name: str
    launcher: str
    first: float
    last: float
    """Wall-clock time at which the run was last seen; `first` is when it was first seen."""


class GpuFacts(NamedTuple):
    """Facts about a GPU."""

    number: int
    """NVML's index of the GPU, as last seen."""
    name: str
    total: int | None


class _Known(NamedTuple):
    """Run of a process, and the facts from which it was found; the same facts give the same run."""

    source: tuple[int | None, str, Surroundings | None]
    job: JobId
    name: str
    launcher: str


class Owned(NamedTuple):
    """Alert with the users and runs that it concerns."""

    alert: Alert
    uids: frozenset[int]
    jobs: frozenset[JobId]


class Batch(msgspec.Struct):
    """Usage to add to the store; hours by their start, GPUs by their keys."""

    host: str = ""
    watched: dict[tuple[int, str], float] = msgspec.field(default_factory=dict)
    by_gpu: dict[tuple[int, str], Use] = msgspec.field(default_factory=dict)
    by_user: dict[tuple[int, str, int], Use] = msgspec.field(default_factory=dict)
    by_job: dict[tuple[int, str, JobId], Use] = msgspec.field(default_factory=dict)
    gpus: dict[str, GpuFacts] = msgspec.field(default_factory=dict)
    users: dict[int, str] = msgspec.field(default_factory=dict)
    jobs: dict[JobId, JobFacts] = msgspec.field(default_factory=dict)
    moved: dict[JobId, JobId] = msgspec.field(default_factory=dict)
    """Runs that turned out to be part of another one, once their surroundings were read."""
    events: dict[str, Owned] = msgspec.field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether the batch has anything to write."""
        return bool(self.host or self.watched or self.events)


def joined(batches: Iterable[Batch]) -> Batch:
    """Merge several batches into one; the older ones must come first."""
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
        for name, owned in one.events.items():
            before = whole.events.get(name, owned)
            whole.events[name] = owned._replace(uids=owned.uids | before.uids, jobs=owned.jobs | before.jobs)
    return whole


def _add(whole: dict[K, Use], part: Mapping[K, Use]) -> None:
    for key, use in part.items():
        whole[key] = whole[key].plus(use) if key in whole else use


class Tally:
    """Sums of usage over frames; used by one thread at a time."""

    def __init__(self) -> None:
        self._timer = ChargeTimer()
        self._batch = Batch()
        self._known: dict[tuple[int, int], _Known] = {}
        """Runs of the last snapshot's processes, by PID and start time."""
        self._newest: Frame | None = None

    def add(self, frame: Frame) -> None:
        """Add a frame; the usage of a snapshot that comes again, with other marks, is not added twice."""
        snapshot = frame.snapshot
        self._batch.host = snapshot.host or self._batch.host
        if self._newest is None or self._newest.snapshot is not snapshot:
            self._charge(snapshot)
        self._newest = frame
        self._add_owners((*frame.raised, *frame.cleared), snapshot)

    def pop(self) -> Batch:
        """Return the sums since the last call, with the alerts that hold now, and start from zero."""
        frame = self._newest
        if frame is not None:
            self._add_owners(frame.alerts, frame.snapshot)
        batch, self._batch = self._batch, Batch(host=self._batch.host)
        return batch

    def forget(self) -> None:
        """Start from zero: another gpuwatch writes these sums."""
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
            batch.gpus[gpu.key] = GpuFacts(gpu.index, gpu.name, None if total is None else int(total))
            if gpu.holdings_note and not gpu.holdings:  # no list, such as of a lost GPU: nobody knows who held it
                continue
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
        """Note which processes are there, and to which run each belongs."""
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

    def _add_owners(self, alerts: Iterable[Alert], snapshot: Snapshot) -> None:
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
            self._batch.events[alert.id] = Owned(alert, owners, jobs)


def job_id(one: Process) -> JobId:
    """Return the run that a process belongs to: by its surroundings, else a run of the process alone."""
    uid = NOBODY if one.uid is None else one.uid
    job = one.surroundings.job if one.surroundings is not None else None
    return JobId(uid, job.key if job is not None else f"{one.pid}:{one.start}")


def job_name(one: Process) -> str:
    """Return the program of a process: `train.py`, `vllm.entrypoints`, `python`; without folders and arguments."""
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
    """Divide a time span that ends at the wall-clock time `end` into hours: start and seconds of each."""
    while seconds > 0:
        # A time that ends with an hour lies in that hour, not in the next.
        hour = int(-(-end // HOUR) - 1) * HOUR
        part = min(seconds, end - hour)
        yield hour, part
        end, seconds = float(hour), seconds - part


# ---------------------------------------------------------------------------------------------------------------
# Writing

_SUMS: Final = ("held_s", "busy_s", "unknown_s", "byte_s", "idle_byte_s", "unsized_s")
_GROW: Final = "ON CONFLICT (scope, who, gpu, hour) DO UPDATE SET " + ", ".join(
    f"{name} = {name} + excluded.{name}" for name in _SUMS
)
_HOURS: Final = f"INSERT INTO hours (scope, hour, who, gpu, {', '.join(_SUMS)})"

_GPU: Final = """INSERT INTO gpus (uuid, number, name, total) VALUES (?, ?, ?, ?)
    ON CONFLICT (uuid) DO UPDATE SET number = excluded.number, name = excluded.name, total = excluded.total"""
# A number stands for a name only as long as that is not known.
_USER: Final = """INSERT INTO users VALUES (?, ?) ON CONFLICT (uid) DO UPDATE SET name = excluded.name
    WHERE excluded.name != CAST(uid AS TEXT)"""
_JOB: Final = """INSERT INTO jobs (uid, boot, key, name, launcher, first, last) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (uid, boot, key) DO UPDATE SET name = excluded.name, launcher = excluded.launcher,
    first = min(first, excluded.first), last = max(last, excluded.last)"""
_ADD: Final = f"{_HOURS} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) {_GROW}"
_WATCHED: Final = """INSERT INTO watched VALUES (?, ?, ?)
    ON CONFLICT (hour, gpu) DO UPDATE SET seconds = seconds + excluded.seconds"""
# What begins with SELECT needs a WHERE, or ON is taken for that of a join. Source: sqlite.org/lang_upsert.html
_MOVE: Final = f"""{_HOURS} SELECT scope, hour, ?, gpu, {", ".join(_SUMS)} FROM hours
    WHERE scope = 'job' AND who = ? AND hour >= ? {_GROW}"""

_BEFORE: Final = 4 * 3600
"""Seconds before a run was first seen in which usage may have been charged to it: two and a half of the longest
intervals, plus the hour in which that time begins. Older rows need no search."""


# A run may have come to be known by another key meanwhile, and the event may be recorded by another gpuwatch, under an
# id of its own: of the events of this condition it is the one that was raised closest.
_OWNER: Final = """INSERT OR IGNORE INTO event_owners SELECT id, ?, ? FROM events WHERE key = ?
    ORDER BY abs(raised - ?) LIMIT 1"""


def write_usage(connection: Connection, batch: Batch, boot: str) -> None:
    """Add a batch to the store, inside an open transaction; `boot` is the kernel's id of this boot."""
    if batch.host:
        write_about(connection, "host", batch.host)
    connection.executemany(_GPU, [(uuid, *facts) for uuid, facts in batch.gpus.items()])
    connection.executemany(_USER, batch.users.items())
    connection.executemany(_JOB, [(job.uid, boot, job.key, *facts) for job, facts in batch.jobs.items()])
    gpus: dict[str, int] = dict(connection.execute("SELECT uuid, id FROM gpus"))
    asked = "SELECT id FROM jobs WHERE uid = ? AND boot = ? AND key = ?"
    jobs = {}
    for job in {*batch.jobs, *batch.moved, *batch.moved.values(), *(job for _, _, job in batch.by_job)}:
        row = connection.execute(asked, (job.uid, boot, job.key)).fetchone()
        jobs[job] = row[0] if row else None
    rows: list[tuple[object, ...]] = [
        ("gpu", hour, gpus[gpu], gpus[gpu], *use) for (hour, gpu), use in batch.by_gpu.items()
    ]
    rows += [("user", hour, uid, gpus[gpu], *use) for (hour, gpu, uid), use in batch.by_user.items()]
    rows += [("job", hour, jobs[job], gpus[gpu], *use) for (hour, gpu, job), use in batch.by_job.items()]
    connection.executemany(_ADD, rows)
    watched = [(hour, gpus[gpu], seconds) for (hour, gpu), seconds in batch.watched.items()]
    connection.executemany(_WATCHED, watched)
    for old, new in batch.moved.items():
        _move(connection, jobs[old], jobs[new])
    for alert, uids, owners in batch.events.values():
        found = (jobs.get(batch.moved.get(job, job)) for job in owners)
        who = [*(("user", uid) for uid in uids), *(("job", job) for job in found if job is not None)]
        connection.executemany(_OWNER, [(*one, alert.key, alert.raised) for one in who])


def _move(connection: Connection, before: int | None, after: int | None) -> None:
    """Move the usage of a process, charged before its run was known, to that run."""
    if before is None or after is None or before == after:
        return
    (first,) = connection.execute("SELECT coalesce(first, 0.0) FROM jobs WHERE id = ?", (before,)).fetchone()
    since = first - _BEFORE
    connection.execute(_MOVE, (after, before, since))
    connection.execute("DELETE FROM hours WHERE scope = 'job' AND who = ? AND hour >= ?", (before, since))
    connection.execute("UPDATE OR IGNORE event_owners SET who = ? WHERE scope = 'job' AND who = ?", (after, before))
    connection.execute("DELETE FROM event_owners WHERE scope = 'job' AND who = ?", (before,))
    connection.execute("DELETE FROM jobs WHERE id = ?", (before,))


# ---------------------------------------------------------------------------------------------------------------
# Reading

By: TypeAlias = Literal["user", "gpu", "job"]

_WARNING: Final = 2
_TOTALS: Final = ", ".join(f"sum({name})" for name in _SUMS)
_OF_JOBS: Final = "FROM jobs CROSS JOIN hours ON scope = 'job' AND who = id AND hour >= ?1 WHERE last >= ?1"
_JOB_LINE: Final = f"SELECT id, uid, key, name, launcher, first, last, group_concat(DISTINCT gpu), {_TOTALS}"
_ALL_JOBS: Final = f"{_JOB_LINE} {_OF_JOBS} AND ?2 < 0 GROUP BY id"
# By the runs that were there since: of a week among many only these are looked up. Which of them are wanted is found
# first, so that the others need neither names nor lists of GPUs.
_FIRST_JOBS: Final = f"""{_JOB_LINE}
    FROM (SELECT id AS wanted {_OF_JOBS} GROUP BY id ORDER BY sum(held_s) DESC, sum(byte_s) DESC, id LIMIT ?2)
    CROSS JOIN jobs ON id = wanted CROSS JOIN hours ON scope = 'job' AND who = id AND hour >= ?1 GROUP BY id"""
_COUNTS: Final = f"sum(rule = '{OVERSHOOT}'), count(*), sum(severity >= {_WARNING})"
_EVENTS_OF: Final = {
    "gpu": f"SELECT gpus.id, {_COUNTS} FROM events JOIN gpus ON uuid = gpu WHERE coalesce(ended, seen) >= ? GROUP BY 1",
    **{
        by: f"""SELECT who, {_COUNTS} FROM events JOIN event_owners ON event = id AND scope = '{by}'
            WHERE coalesce(ended, seen) >= ? GROUP BY who"""
        for by in ("user", "job")
    },
}
# An hour in which the clock was set back was watched for longer than an hour.
_WATCHED_ANY: Final = """SELECT sum(min(most, 3600)) FROM
    (SELECT max(seconds) AS most FROM watched WHERE hour >= ? GROUP BY hour)"""
_LONGEST: Final = 200
"""Characters of a name, at most."""
_HUGE: Final = 1e30
_MOST: Final = 1_000_000
"""Rows that are read, at most; a usual store has a thousandth of that."""


class EventCounts(NamedTuple):
    """Numbers of events by severity."""

    overshoots: int = 0
    all: int = 0
    warnings: int = 0
    """Events of severity warning or critical."""


NO_EVENTS: Final = EventCounts()


class UsageLine(msgspec.Struct, frozen=True):
    """Usage of one user, GPU or run, over the whole report."""

    name: str
    """Name of the user, the GPU or the run."""
    use: Use = NO_USE
    gpus: tuple[int, ...] = ()
    """NVML's indices, as last seen, of the GPUs that the user or run held."""
    events: EventCounts = NO_EVENTS
    uid: int | None = None
    user: str = ""
    """Owner of a run; where the uid is None, an owner whom nobody could see."""
    uuid: str = ""
    """UUID of a GPU."""
    watched: float | None = None
    """Seconds in which a GPU was watched."""
    key: str = ""
    launcher: str = ""
    first: float | None = None
    last: float | None = None
    """Wall-clock time at which a run was last seen (`first`: first seen), as far as the store reaches."""

    def plus(self, other: UsageLine) -> UsageLine:
        """Return the line of the same user, GPU or run in two stores, the later one first known."""
        return msgspec.structs.replace(
            other,
            use=self.use.plus(other.use),
            gpus=tuple(sorted({*self.gpus, *other.gpus})),
            events=EventCounts(*map(sum, zip(self.events, other.events, strict=True))),
            watched=None if other.watched is None else (self.watched or 0.0) + other.watched,
            first=min(filter(None, (self.first, other.first)), default=None),
            last=max(filter(None, (self.last, other.last)), default=None),
        )


class UsageReport(msgspec.Struct, frozen=True):
    """Recorded usage since a time."""

    by: By
    since: float
    """Start of the first hour that counts, in seconds since the epoch."""
    host: str = ""
    lines: tuple[UsageLine, ...] = ()
    """Lines by the GPU time held, the most first."""
    watched: float = 0.0
    """Seconds in which at least one GPU was watched."""
    total: Use = NO_USE
    """Sum of all lines; where two users share a GPU, both are counted."""
    gpus: tuple[int, ...] = ()
    """Indices of all watched GPUs."""
    events: EventCounts = NO_EVENTS
    """Events, each counted once, also those without a known user."""
    more: int = 0
    """Lines left out by `most`; `total` contains them."""
    exists: bool = True
    """Whether the store has any usage at all."""


def read_usage(path: Path, by: By, since: float, *, named: bool = False, most: int | None = None) -> UsageReport:
    """Read the usage since the start of the hour of `since` (wall clock); raises what `reading` raises.

    At most `most` runs are returned, those that held the most: three months may have many thousands.
    """
    with reading(path, named=named) as connection:
        return _Reader(connection, by, int(since // HOUR) * HOUR).report(most)


def read_hours(connection: Connection, since: float) -> Iterator[Minute]:
    """Yield the means of each stored hour from that of `since` (wall clock) on, oldest first, as a `Minute` has them.

    A user's memory is the mean over the time in which the GPU was watched; the utilization is the part of that time, in
    percent, in which a process was seen to run a kernel, and is missing where that is not known for half of the time.
    The used memory of a GPU is the sum of its processes'.
    """
    gpus = {gpu: _text(uuid) for gpu, uuid in connection.execute("SELECT id, uuid FROM gpus").fetchmany(_MOST)}
    hour = int(since // HOUR) * HOUR
    found: dict[int, tuple[dict[str, float], dict[str, float]]] = {}
    rows = connection.execute(f"SELECT hour, gpu, seconds FROM watched WHERE hour >= ? AND {SOUND_HOUR}", (hour,))
    for at, gpu, seconds in rows.fetchmany(_MOST):
        if gpu in gpus and _amount(seconds):
            watched, values = found.setdefault(at, ({}, {}))
            watched[gpus[gpu]] = _amount(seconds)
            values |= {str(Key(gpus[gpu], "", metric)): 0.0 for metric in (Metric.USED, Metric.UTILIZATION)}
    asked = f"SELECT scope, hour, who, gpu, {', '.join(_SUMS)} FROM hours WHERE hour >= ? AND scope IN ('gpu', 'user')"
    for scope, at, who, held, *sums in connection.execute(asked, (hour,)).fetchmany(_MOST):
        watched, values = found.get(at, ({}, {}))
        gpu, use = gpus.get(held, ""), _use(sums)
        if gpu not in watched:
            continue
        if scope == "user":
            owner = user_owner(None if who == NOBODY else _integer(who))
            values[str(Key(gpu, owner, Metric.MEMORY))] = use.memory / watched[gpu]
            continue
        values[str(Key(gpu, "", Metric.USED))] = use.memory / watched[gpu]
        known = watched[gpu] - use.unknown
        if known < watched[gpu] / 2:
            del values[str(Key(gpu, "", Metric.UTILIZATION))]
        else:
            values[str(Key(gpu, "", Metric.UTILIZATION))] = min(100.0, 100 * use.busy / known)
    for at, (_, values) in sorted(found.items()):
        yield Minute(at=float(at), values=values)


def read_totals(connection: Connection) -> dict[str, float]:
    """Return the bytes of memory of each GPU by its key, as far as they are known."""
    rows = connection.execute("SELECT uuid, total FROM gpus").fetchmany(_MOST)
    return {_text(uuid): _amount(total) for uuid, total in rows if _amount(total)}


def joined_reports(parts: Sequence[UsageReport], most: int | None = None) -> UsageReport:
    """Return the reports of several stores, of one kind and host, as one."""
    if len(parts) == 1:
        return parts[0]
    lines: dict[tuple[object, ...], UsageLine] = {}
    for line in (line for part in parts for line in part.lines):
        key = (line.name, line.uid, line.uuid, line.key)
        before = lines.get(key)
        lines[key] = line if before is None else before.plus(line)
    ordered = sorted(lines.values(), key=lambda line: (-line.use.held, -line.use.memory, line.name, line.gpus))
    return msgspec.structs.replace(
        parts[-1],
        since=min(part.since for part in parts),
        lines=tuple(ordered[:most]),
        watched=sum(part.watched for part in parts),
        total=Use(*map(sum, zip(*(part.total for part in parts), strict=True))),
        gpus=tuple(sorted({index for part in parts for index in part.gpus})),
        events=EventCounts(*map(sum, zip(*(part.events for part in parts), strict=True))),
        more=sum(part.more for part in parts) + max(0, len(ordered) - (len(ordered) if most is None else most)),
        exists=any(part.exists for part in parts),
    )


class _Reader:
    """Queries for one report. A SQLite cell may hold any type, so every value is checked."""

    def __init__(self, connection: Connection, by: By, hour: int) -> None:
        self._connection, self._by, self._hour = connection, by, hour
        self._gpus = {
            _integer(gpu): GpuFacts(number if 0 <= _integer(number, -1) < 10_000 else -1, _text(name), None)
            for gpu, number, name in self._rows("SELECT id, number, name FROM gpus")
        }
        users = {_integer(uid): _text(name) or str(uid) for uid, name in self._rows("SELECT uid, name FROM users")}
        self._users = users | {NOBODY: UNSEEN}
        watched = self._rows("SELECT gpu, sum(seconds) FROM watched WHERE hour >= ? GROUP BY gpu", hour)
        self._watched = {_integer(gpu): _amount(seconds) for gpu, seconds in watched}
        counts = self._rows(_EVENTS_OF[by], hour)
        self._events = {_integer(who): EventCounts(*map(_integer, numbers)) for who, *numbers in counts}

    def report(self, most: int | None) -> UsageReport:
        lines = self._by_job(most) if self._by == "job" else self._by_gpu() if self._by == "gpu" else self._by_user()
        total = Use(*map(sum, zip(*(line.use for line in lines), strict=True))) if lines else NO_USE
        more = 0
        if self._by == "job" and most is not None and len(lines) >= most:
            ((count, *sums),) = self._rows(f"SELECT count(DISTINCT id), {_TOTALS} {_OF_JOBS}", self._hour)
            total, more = _use(sums), max(0, _integer(count) - len(lines))
        ((*counts,),) = self._rows(f"SELECT {_COUNTS} FROM events WHERE coalesce(ended, seen) >= ?", self._hour)
        return UsageReport(
            by=self._by,
            since=float(self._hour),
            host=read_about(self._connection, "host"),
            lines=tuple(sorted(lines, key=lambda line: (-line.use.held, -line.use.memory, line.name, line.gpus))),
            watched=_amount(self._rows(_WATCHED_ANY, self._hour)[0][0]),
            total=total,
            gpus=self._indices(self._watched),
            events=EventCounts(*map(_integer, counts)),
            more=more,
            exists=bool(self._rows("SELECT 1 FROM watched LIMIT 1")),
        )

    def _rows(self, query: str, *values: object) -> list[Any]:
        return self._connection.execute(query, values).fetchmany(_MOST)

    def _sums(self) -> Iterator[tuple[int, int, Use]]:
        query = f"SELECT who, gpu, {_TOTALS} FROM hours WHERE scope = ? AND hour >= ? GROUP BY who, gpu"
        for who, gpu, *sums in self._rows(query, self._by, self._hour):
            yield _integer(who), _integer(gpu), _use(sums)

    def _indices(self, gpus: Iterable[int]) -> tuple[int, ...]:
        known = {self._gpus[gpu].number for gpu in gpus if gpu in self._gpus}
        return tuple(sorted(number for number in known if number >= 0))

    def _by_user(self) -> list[UsageLine]:
        uses: dict[int, Use] = {}
        held: dict[int, list[int]] = {}
        for uid, gpu, use in self._sums():
            uses[uid] = uses.get(uid, NO_USE).plus(use)
            held.setdefault(uid, []).append(gpu)
        return [
            UsageLine(
                self._users.get(uid, str(uid)),
                use,
                self._indices(held[uid]),
                self._events.get(uid, NO_EVENTS),
                uid=None if uid == NOBODY else uid,
            )
            for uid, use in uses.items()
        ]

    def _by_gpu(self) -> list[UsageLine]:
        uses = dict.fromkeys(self._watched, NO_USE)  # one that nobody held was watched all the same
        for _, gpu, use in self._sums():
            uses[gpu] = uses.get(gpu, NO_USE).plus(use)
        uuids = {_integer(gpu): _text(uuid) for gpu, uuid in self._rows("SELECT id, uuid FROM gpus")}
        return [
            UsageLine(
                self._gpus[gpu].name,
                use,
                self._indices([gpu]),
                self._events.get(gpu, NO_EVENTS),
                uuid=uuids[gpu],
                watched=self._watched.get(gpu, 0.0),
            )
            for gpu, use in uses.items()
            if gpu in self._gpus
        ]

    def _by_job(self, most: int | None) -> list[UsageLine]:
        found = self._rows(_ALL_JOBS if most is None else _FIRST_JOBS, self._hour, -1 if most is None else most)
        lines = []
        for job, owner, key, name, launcher, first, last, gpus, *sums in found:
            uid = _integer(owner)
            line = UsageLine(
                _text(name) or UNSEEN,
                _use(sums),
                self._indices(int(gpu) for gpu in str(gpus).split(",") if gpu.isdecimal() and len(gpu) < 10),
                self._events.get(job, NO_EVENTS),
                uid=None if uid == NOBODY else uid,
                user=self._users.get(uid, str(uid)),
                key=_text(key),
                launcher=_text(launcher),
                first=_amount(first),
                last=_amount(last),
            )
            lines.append(line)
        return lines


def _use(sums: Iterable[object]) -> Use:
    return Use(*map(_amount, sums))


def _text(value: object) -> str:
    return clean(value, _LONGEST) if isinstance(value, str | bytes) else ""


def _amount(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < _HUGE else 0.0


def _integer(value: object, otherwise: int = 0) -> int:
    return value if isinstance(value, int) else otherwise
