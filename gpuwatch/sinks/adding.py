"""How a minute's batch is added to the store: sums grow, what is known of people and runs is brought up to date."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sqlite3 import Connection

    from gpuwatch.history import Use
    from gpuwatch.sinks.tally import Batch, JobId

_SUMS: Final = ("held_s", "busy_s", "unknown_s", "byte_s", "idle_byte_s", "unsized_s")
_GROW: Final = "ON CONFLICT (scope, who, gpu, hour) DO UPDATE SET " + ", ".join(
    f"{name} = {name} + excluded.{name}" for name in _SUMS
)
_HOURS: Final = f"INSERT INTO hours (scope, hour, who, gpu, {', '.join(_SUMS)})"

_ABOUT: Final = "INSERT INTO about VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
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
_EVENT: Final = """INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET severity = max(severity, excluded.severity), seen = max(seen, excluded.seen),
    ended = coalesce(excluded.ended, ended), peak = excluded.peak, title = excluded.title"""
# What begins with SELECT needs a WHERE, or ON is taken for that of a join. Source: sqlite.org/lang_upsert.html
_MOVE: Final = f"""{_HOURS} SELECT scope, hour, ?, gpu, {", ".join(_SUMS)} FROM hours
    WHERE scope = 'job' AND who = ? AND hour >= ? {_GROW}"""

_BEFORE: Final = 4 * 3600
"""Seconds before a run was first seen in which something may have been charged to it: two and a half of the longest
intervals, and the hour that this begins in. Thus the whole table need not be looked through."""


def add(connection: Connection, batch: Batch, boot: str) -> None:
    """Add a batch, in a transaction that is open; raises sqlite3.Error."""
    if batch.host:
        connection.execute(_ABOUT, ("host", batch.host))
    gpus = [(uuid, card.number, card.name, card.total) for uuid, card in batch.gpus.items()]
    connection.executemany(_GPU, gpus)
    connection.executemany(_USER, batch.users.items())
    jobs = [(job.uid, boot, job.key, *facts) for job, facts in batch.jobs.items()]
    connection.executemany(_JOB, jobs)
    cards: dict[str, int] = dict(connection.execute("SELECT uuid, id FROM gpus"))
    runs = _Runs(connection, boot)
    connection.executemany(_ADD, _rows(batch, cards, runs))
    watched = [(hour, cards[gpu], seconds) for (hour, gpu), seconds in batch.watched.items()]
    connection.executemany(_WATCHED, watched)
    _move(connection, batch, runs)
    _tell(connection, batch, cards, runs)


class _Runs:
    """The ids of runs."""

    def __init__(self, connection: Connection, boot: str) -> None:
        self._connection, self._boot = connection, boot
        self._found: dict[JobId, int | None] = {}

    def __call__(self, job: JobId) -> int | None:
        """Give the id of a run; None where the store has none of it."""
        if job not in self._found:
            asked = "SELECT id FROM jobs WHERE uid = ? AND boot = ? AND key = ?"
            row = self._connection.execute(asked, (job.uid, self._boot, job.key)).fetchone()
            self._found[job] = row[0] if row else None
        return self._found[job]


def _rows(batch: Batch, cards: Mapping[str, int], runs: _Runs) -> Iterator[tuple[object, ...]]:
    def row(scope: str, hour: int, who: int | None, gpu: str, use: Use) -> tuple[object, ...]:
        return (scope, hour, who, cards[gpu], *use)

    for (hour, gpu), use in batch.by_gpu.items():
        yield row("gpu", hour, cards[gpu], gpu, use)
    for (hour, gpu, uid), use in batch.by_user.items():
        yield row("user", hour, uid, gpu, use)
    for (hour, gpu, job), use in batch.by_job.items():
        yield row("job", hour, runs(job), gpu, use)


def _move(connection: Connection, batch: Batch, runs: _Runs) -> None:
    """Put what was charged to a process before its run was known to that run."""
    for old, new in batch.moved.items():
        before, after = runs(old), runs(new)
        if before is None or after is None or before == after:
            continue
        (first,) = connection.execute("SELECT coalesce(first, 0.0) FROM jobs WHERE id = ?", (before,)).fetchone()
        since = first - _BEFORE
        connection.execute(_MOVE, (after, before, since))
        connection.execute("DELETE FROM hours WHERE scope = 'job' AND who = ? AND hour >= ?", (before, since))
        connection.execute("UPDATE OR IGNORE event_job SET job = ? WHERE job = ?", (after, before))
        connection.execute("DELETE FROM event_job WHERE job = ?", (before,))
        connection.execute("DELETE FROM jobs WHERE id = ?", (before,))


def _tell(connection: Connection, batch: Batch, cards: Mapping[str, int], runs: _Runs) -> None:
    for told in batch.events.values():
        one = told.alert
        worst, gpu = int(max(one.most, one.severity)), cards.get(one.gpu)
        row = (one.id, one.rule, worst, gpu, one.raised, one.seen, one.ended, one.peak, one.title)
        connection.execute(_EVENT, row)
        connection.executemany("INSERT OR IGNORE INTO event_user VALUES (?, ?)", _pairs(one.id, told.uids))
        found = (runs(batch.moved.get(job, job)) for job in told.jobs)
        connection.executemany("INSERT OR IGNORE INTO event_job VALUES (?, ?)", _pairs(one.id, filter(None, found)))


def _pairs(event: str, numbers: Iterable[int | None]) -> list[tuple[str, int | None]]:
    return [(event, number) for number in numbers]
