"""What the store tells of a time: who held and used how much. What is read is believed in nothing, and cleaned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from gpuwatch.history import NO_USE, Use
from gpuwatch.sinks.store import reading
from gpuwatch.sinks.tally import HOUR, NOBODY, UNSEEN
from gpuwatch.text import clean

if TYPE_CHECKING:
    from sqlite3 import Connection

By: TypeAlias = Literal["user", "gpu", "job"]

_OVERSHOOT: Final = "overshoot"
_WARNING: Final = 2
_ADDED: Final = "sum(held_s), sum(busy_s), sum(unknown_s), sum(byte_s), sum(idle_byte_s), sum(unsized_s)"
_OF_JOBS: Final = "FROM jobs CROSS JOIN hours ON scope = 'job' AND who = id AND hour >= ?1 WHERE last >= ?1"
_LONGEST: Final = 200
"""Characters of a name."""
_HUGE: Final = 1e30
_MOST: Final = 1_000_000
"""Rows that are read; ours have a thousandth of that."""


@dataclass(frozen=True, slots=True)
class Events:
    """How many there were."""

    overshoots: int = 0
    all: int = 0
    warnings: int = 0
    """Those that were a warning or worse."""


NONE: Final = Events()


class _Card(NamedTuple):
    """What is known of a GPU."""

    number: int
    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class Line:
    """One user, GPU or run, over the whole time."""

    name: str
    """The user, the GPU's name or the run's."""
    use: Use = NO_USE
    gpus: tuple[int, ...] = ()
    """NVML's indices, as they were last, of the GPUs that it held."""
    events: Events = NONE
    uid: int | None = None
    user: str = ""
    """Of a run; with the uid None an owner whom nobody could see."""
    uuid: str = ""
    """Of a GPU."""
    watched: float | None = None
    """Of a GPU: seconds in which it was watched."""
    key: str = ""
    launcher: str = ""
    first: float | None = None
    last: float | None = None
    """Of a run: wall-clock times at which it was first and last seen, as far as they lie in the store."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the store tells."""

    by: By
    since: float
    """Start of the first hour that counts, in seconds since the epoch."""
    host: str = ""
    lines: tuple[Line, ...] = ()
    """By the GPU time held, the most first."""
    watched: float = 0.0
    """Seconds in which at least one GPU was watched."""
    total: Use = NO_USE
    """Of all lines together: of two users on one GPU each is counted."""
    gpus: tuple[int, ...] = ()
    """Indices of all GPUs that were watched."""
    events: Events = NONE
    """Each counted once, those of nobody too."""
    more: int = 0
    """Lines that were not asked for; `total` is with them."""


def read_kept(path: Path, by: By, since: float, *, follow: bool = False, most: int | None = None) -> Kept:
    """Read what was kept of the time since the start of the hour of `since` (wall clock).

    Of runs, of which a quarter of a year has many thousands, at most `most` are given, those that held the most.
    Raises what `store.reading` raises.
    """
    hour = int(since // HOUR) * HOUR
    with reading(path, follow=follow) as connection:
        return _read(connection, by, hour, most)


def _read(connection: Connection, by: By, hour: int, most: int | None) -> Kept:
    cards = _cards(connection)
    times = _watched(connection, hour)
    events, total = _events(connection, by, hour)
    if by == "user":
        lines = _users(connection, hour, cards, events)
    elif by == "gpu":
        lines = _gpus(connection, hour, cards, events, times)
    else:
        lines = _jobs(connection, hour, cards, events, -1 if most is None else most)
    summed = Use(*map(sum, zip(*(line.use for line in lines), strict=True))) if lines else NO_USE
    more = 0
    if by == "job" and most is not None and len(lines) >= most:
        more, summed = _all_jobs(connection, hour)
        more = max(0, more - len(lines))
    lines.sort(key=lambda line: (-line.use.held, -line.use.memory, line.name, line.gpus))
    # An hour in which the clock was set back was watched for longer than an hour.
    both = "SELECT sum(min(most, 3600)) FROM (SELECT max(seconds) AS most FROM watched WHERE hour >= ? GROUP BY hour)"
    host = connection.execute("SELECT value FROM about WHERE name = 'host'").fetchone()
    return Kept(
        by=by,
        since=float(hour),
        host=_text(host[0]) if host else "",
        lines=tuple(lines),
        watched=_amount(connection.execute(both, (hour,)).fetchone()[0]),
        total=summed,
        gpus=_indices(times, cards),
        events=total,
        more=more,
    )


def _cards(connection: Connection) -> dict[int, _Card]:
    found = connection.execute("SELECT id, uuid, number, name FROM gpus").fetchmany(_MOST)
    return {_whole(gpu): _Card(_index(number), _text(uuid), _text(name)) for gpu, uuid, number, name in found}


def _watched(connection: Connection, hour: int) -> dict[int, float]:
    found = connection.execute("SELECT gpu, sum(seconds) FROM watched WHERE hour >= ? GROUP BY gpu", (hour,))
    return {_whole(gpu): _amount(seconds) for gpu, seconds in found.fetchmany(_MOST)}


def _indices(gpus: Iterable[int], cards: Mapping[int, _Card]) -> tuple[int, ...]:
    return tuple(sorted({cards[gpu].number for gpu in gpus if gpu in cards and cards[gpu].number >= 0}))


def _events(connection: Connection, by: By, hour: int) -> tuple[dict[int, Events], Events]:
    """Count what was raised, or still held, since; by whom it is about, and all of it."""
    counts = """sum(rule = ?), count(*), sum(severity >= ?)"""
    since = "coalesce(ended, seen) >= ?"
    values = (_OVERSHOOT, _WARNING, hour)
    whose = {
        "gpu": f"SELECT gpu, {counts} FROM events WHERE gpu IS NOT NULL AND {since} GROUP BY gpu",
        "user": f"SELECT uid, {counts} FROM events JOIN event_user ON event = id WHERE {since} GROUP BY uid",
        "job": f"SELECT job, {counts} FROM events JOIN event_job ON event = id WHERE {since} GROUP BY job",
    }[by]
    found = {_whole(who): Events(*map(_whole, row)) for who, *row in connection.execute(whose, values).fetchmany(_MOST)}
    all_of_them = connection.execute(f"SELECT {counts} FROM events WHERE {since}", values).fetchone()
    return found, Events(*map(_whole, all_of_them))


def _users(connection: Connection, hour: int, cards: Mapping[int, _Card], events: Mapping[int, Events]) -> list[Line]:
    names = _names(connection)
    uses: dict[int, Use] = {}
    held: dict[int, list[int]] = {}
    for who, gpu, *sums in _sums(connection, "user", hour):
        uses[who] = uses.get(who, NO_USE).plus(_use(sums))
        held.setdefault(who, []).append(gpu)
    return [
        Line(
            names.get(uid, str(uid)),
            use,
            _indices(held[uid], cards),
            events.get(uid, NONE),
            uid=None if uid == NOBODY else uid,
        )
        for uid, use in uses.items()
    ]


def _gpus(
    connection: Connection,
    hour: int,
    cards: Mapping[int, _Card],
    events: Mapping[int, Events],
    times: Mapping[int, float],
) -> list[Line]:
    uses = dict.fromkeys(times, NO_USE)  # one that nobody held was watched all the same
    for _, gpu, *sums in _sums(connection, "gpu", hour):
        uses[gpu] = uses.get(gpu, NO_USE).plus(_use(sums))
    return [
        Line(
            cards[gpu].name,
            use,
            _indices([gpu], cards),
            events.get(gpu, NONE),
            uuid=cards[gpu].uuid,
            watched=times.get(gpu, 0.0),
        )
        for gpu, use in uses.items()
        if gpu in cards
    ]


def _jobs(
    connection: Connection, hour: int, cards: Mapping[int, _Card], events: Mapping[int, Events], most: int
) -> list[Line]:
    names = _names(connection)
    # By the runs that were there since: of a week among many only these are looked up. Which of them are wanted is
    # found first, so that the others need neither names nor lists of GPUs; -1 is all of them.
    asked = f"""SELECT id, uid, key, name, launcher, first, last, group_concat(DISTINCT gpu), {_ADDED}
        FROM (SELECT id AS wanted {_OF_JOBS} GROUP BY id ORDER BY sum(held_s) DESC, sum(byte_s) DESC, id LIMIT ?2)
        CROSS JOIN jobs ON id = wanted CROSS JOIN hours ON scope = 'job' AND who = id AND hour >= ?1 GROUP BY id"""
    if most < 0:
        asked = f"""SELECT id, uid, key, name, launcher, first, last, group_concat(DISTINCT gpu), {_ADDED}
            {_OF_JOBS} AND ?2 < 0 GROUP BY id"""
    lines = []
    found = connection.execute(asked, (hour, most)).fetchmany(_MOST)
    for job, uid, key, name, launcher, first, last, gpus, *sums in found:
        owner = _whole(uid)
        line = Line(
            _text(name) or UNSEEN,
            _use(sums),
            _indices(_listed(gpus), cards),
            events.get(job, NONE),
            uid=None if owner == NOBODY else owner,
            user=names.get(owner, str(owner)),
            key=_text(key),
            launcher=_text(launcher),
            first=_amount(first),
            last=_amount(last),
        )
        lines.append(line)
    return lines


def _all_jobs(connection: Connection, hour: int) -> tuple[int, Use]:
    """Count the runs, and add them up."""
    asked = f"SELECT count(DISTINCT id), {_ADDED} {_OF_JOBS}"
    count, *sums = connection.execute(asked, (hour,)).fetchone()
    return _whole(count), _use(sums)


def _sums(connection: Connection, by: By, hour: int) -> Iterable[tuple[Any, ...]]:
    asked = f"SELECT who, gpu, {_ADDED} FROM hours WHERE scope = ? AND hour >= ? GROUP BY who, gpu"
    for who, gpu, *sums in connection.execute(asked, (by, hour)).fetchmany(_MOST):
        yield _whole(who), _whole(gpu), *sums


def _use(sums: Iterable[object]) -> Use:
    return Use(*map(_amount, sums))


def _names(connection: Connection) -> dict[int, str]:
    found = connection.execute("SELECT uid, name FROM users").fetchmany(_MOST)
    return {_whole(uid): _text(name) or str(uid) for uid, name in found} | {NOBODY: UNSEEN}


# ---------------------------------------------------------------------------------------------------------------
# A cell of SQLite's may hold anything


def _text(value: object) -> str:
    return clean(value, _LONGEST) if isinstance(value, str | bytes) else ""


def _amount(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < _HUGE else 0.0


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _listed(value: object) -> list[int]:
    return [int(part) for part in str(value).split(",") if part.isdecimal() and len(part) < 10]


def _index(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 10_000 else -1
