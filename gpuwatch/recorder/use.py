"""Use of GPUs by people and runs, and means for graphs: counted, stored by minute, summed up.

A row of the table `use` belongs to a minute, a GPU and a run; after a week the rows of an hour are added into one. The
GPU itself has a row too, of run 0: the seconds in which nobody held it. All its rows together are the seconds
in which it was watched. Times are in seconds, moments in seconds since the epoch, sizes in bytes.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from math import floor, inf
from operator import itemgetter
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeGuard

import msgspec

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.base.programs import split_command
from gpuwatch.base.text import clean
from gpuwatch.history.history import NO_USE, HistoryView, Use, charged
from gpuwatch.history.timeline import Key, Metric, Minute, RecordedRun, Timeline, parse_key, user_owner
from gpuwatch.inspector.runs import format_run_name
from gpuwatch.model.holdings import UNSEEN_USER
from gpuwatch.model.shares import has_gap
from gpuwatch.model.snapshot import Gpu, Holding, Process, ProcessContext, Reason, Snapshot, number
from gpuwatch.recorder.events import read_all_events
from gpuwatch.recorder.opening import PATIENCE, StoreError, reading
from gpuwatch.recorder.public import stores_read
from gpuwatch.recorder.schema import (
    ADD_USE,
    DAYS,
    HOUR,
    MINUTE,
    NOBODY,
    ON_CONFLICT,
    USE_COLUMNS,
    is_public,
    read_about,
    write_about,
)

KEEP_MEANS: Final = 25 * 3600
"""Seconds after which the means of a minute are deleted."""
MOST_PROCESSES: Final = 100
"""Processes in the stored means of a minute, at most: those with the most memory."""
_MOST_MINUTES: Final = KEEP_MEANS // MINUTE + 1
_LARGEST: Final = 1 << 18
"""Bytes of the means of a minute, at most; with 8 GPUs and 43 processes they have 2,200, and 15,000 decompressed."""
_LARGEST_JSON: Final = 1 << 21
_LARGEST_DAY: Final = 1 << 27
"""Bytes of all means that are read at a time, decompressed; a day of 16 GPUs and 100 processes has 45 MB."""
_SLOWEST: Final = 5.0
"""Seconds that reading the means of a day may take, at most."""


# -- Counting -----------------------------------------------------------------------------------------------------


class RunId(NamedTuple):
    """Identity of a run of one user on one host."""

    uid: int
    key: str


_NOBODYS: Final = RunId(NOBODY, "")


class UsedRun(NamedTuple):
    """Facts about a run."""

    name: str
    launcher: str
    first: float
    last: float
    """Wall-clock time at which the run was last seen; `first` is when it was first seen."""


class UsedGpu(NamedTuple):
    """Facts about a GPU."""

    number: int
    """NVML's index of the GPU, as last seen."""
    name: str
    total: int | None


class _KnownRun(NamedTuple):
    """Run of a process, and the facts from which it was found; the same facts give the same run."""

    source: tuple[int | None, str, ProcessContext | None]
    run: RunId
    name: str
    launcher: str


class Sums(msgspec.Struct):
    """Use and means to add to a store."""

    host: str = ""
    use: dict[tuple[int, str, RunId | None], Use] = {}
    """By the start of the minute, the key of the GPU, and the run; None for the GPU itself."""
    gpus: dict[str, UsedGpu] = {}
    users: dict[int, str] = {}
    runs: dict[RunId, UsedRun] = {}
    moved: dict[RunId, RunId] = {}
    """Runs that turned out to be part of another one, once their context was read."""
    means: list[Minute] = []

    def __bool__(self) -> bool:
        return bool(self.host or self.use or self.means)


class UseCounter:
    """Counter of use, and maker of the means of each minute; used by one thread at a time."""

    def __init__(self, name_of: Callable[[int], str] = str) -> None:
        """`name_of` returns the name of a user on this host, or the uid in digits while it is not known."""
        self._name_of = name_of
        self._nameless: set[int] = set()
        """Users whose name was not known yet."""
        self._sums = Sums()
        self._known: dict[tuple[int, int], _KnownRun] = {}
        """Runs of the last snapshot's processes, by PID and start time."""
        self._newest: tuple[Snapshot, HistoryView] | None = None
        self._began = 0.0
        """Wall-clock time of the first snapshot."""

    def add(self, snapshot: Snapshot, history: HistoryView) -> None:
        """Add a snapshot that the history ends with; one that comes again, with other marks, is not added twice."""
        if self._newest is not None and self._newest[0] is snapshot:
            return
        if self._newest is None:
            self._began = snapshot.taken
        elif floor(self._newest[0].taken / MINUTE) != floor(snapshot.taken / MINUTE):
            self._add_means()
        self._newest = snapshot, history
        self._sums.host = snapshot.host or self._sums.host
        self._find_runs(snapshot)
        runs = {pid: known.run for (pid, _), known in self._known.items()}
        for gpu in snapshot.gpus:
            # Without a list, as of a lost GPU, its holders are not known.
            if (seconds := history.charged.get(gpu.key, 0.0)) and (gpu.holdings or not gpu.holdings_note):
                self._charge(gpu, seconds, snapshot.taken, runs)

    def pop(self, *, last: bool = False) -> Sums:
        """Return the sums since the last call, and start from zero; the `last` time with the minute that has begun."""
        if last and self._newest is not None:
            self._add_means()
            self._newest = None
        sums, self._sums = self._sums, Sums(host=self._sums.host)
        # The processes of a user may all have ended by the time the directory gives the name.
        self._nameless |= sums.users.keys()
        sums.users |= {uid: self._name_of(uid) for uid in self._nameless if sums.users.get(uid, str(uid)) == str(uid)}
        self._nameless = {uid for uid in self._nameless if sums.users[uid] == str(uid)}
        return sums

    def _add_means(self) -> None:
        assert self._newest is not None
        snapshot, history = self._newest
        at = floor(snapshot.taken / MINUTE) * MINUTE
        values = {str(key): float(f"{one:.4g}") for key, one in history.timeline.means(at, MINUTE).items()}
        users = {user_owner(one.uid): one.user for one in snapshot.processes if one.uid is not None and one.user}
        seconds = min(max(0.0, snapshot.taken - max(at, self._began)), MINUTE)
        made = Minute(at=at, values=values, users=users, seconds=seconds)
        self._sums.means = [*self._sums.means[1 - _MOST_MINUTES :], made]

    def _charge(self, gpu: Gpu, seconds: float, end: float, runs: Mapping[int, RunId]) -> None:
        total = number(gpu.memory.total)
        self._sums.gpus[gpu.key] = UsedGpu(gpu.index, gpu.name, None if total is None else int(total))
        holdings = [*gpu.holdings]
        if has_gap(gpu):
            holdings.append(Holding(pid=0, memory=gpu.unattributed, sm=Reason.NO_SAMPLE))
        for minute, part in _minutes(end, seconds):
            uses: dict[RunId | None, Use] = {None: Use(gpu=part)}
            if holdings:
                uses = {**charged(holdings, part, lambda one: runs.get(one.pid, _NOBODYS))}
                whole = charged(holdings, part, lambda _: None)[None]
                uses[None] = Use(whole.held, whole.busy, whole.unknown)
            for run, use in uses.items():
                key = (minute, gpu.key, run)
                self._sums.use[key] = self._sums.use.get(key, NO_USE).plus(use)
        if any(runs.get(one.pid, _NOBODYS) == _NOBODYS for one in holdings):
            self._note_run(_NOBODYS, UNSEEN_USER, "", end)

    def _find_runs(self, snapshot: Snapshot) -> None:
        seen: dict[tuple[int, int], _KnownRun] = {}
        for process in snapshot.processes:
            before = self._known.get(process.key)
            source = (process.uid, process.command, process.context)
            known = before
            if known is None or known.source != source:
                run = _NOBODYS if process.uid is None else RunId(process.uid, process.run_key)
                name = UNSEEN_USER if process.uid is None else run_name(process)
                launcher = process.run.launcher if process.run is not None and process.uid is not None else ""
                known = _KnownRun(source, run, name, launcher)
            if before is not None and before.run != known.run:
                read = before.source[2] is not None
                if process.uid is None or (read and process.context is None):  # it was known, and has ended since
                    known = before
                elif not read:
                    self._sums.moved[before.run] = known.run
            seen[process.key] = known
            uid = known.run.uid
            users = self._sums.users
            is_named = process.user not in ("", str(uid))  # a restarted sampler does not know it at first
            users[uid] = UNSEEN_USER if uid == NOBODY else process.user if is_named else users.get(uid, str(uid))
            self._note_run(known.run, known.name, known.launcher, snapshot.taken)
        self._known = seen

    def _note_run(self, run: RunId, name: str, launcher: str, now: float) -> None:
        before = self._sums.runs.get(run)
        if before is None or before.last != now:
            self._sums.runs[run] = UsedRun(name, launcher, before.first if before else now, now)


def run_name(process: Process) -> str:
    """Return the name of a process's run, or of its program: `train.py`, `vllm serve meta/llama`."""
    named = process.run.name if process.run is not None else ""
    return named or format_run_name(split_command(process.command)) or process.name or UNSEEN_USER


def _minutes(end: float, seconds: float) -> Iterator[tuple[int, float]]:
    """Divide a time span that ends at the wall-clock time `end` into minutes: start and seconds of each."""
    while seconds > 0:
        # A time that ends with a minute lies in that minute, not in the next.
        minute = int(-(-end // MINUTE) - 1) * MINUTE
        part = min(seconds, end - minute)
        yield minute, part
        end, seconds = float(minute), seconds - part


# -- Writing ------------------------------------------------------------------------------------------------------

_ADD: Final = f"{ADD_USE} VALUES (?, {MINUTE}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) {ON_CONFLICT}"
# What begins with SELECT needs a WHERE, or ON is taken for that of a join. Source: sqlite.org/lang_upsert.html
_MOVE: Final = f"""{ADD_USE} SELECT at, span, gpu, ?, ?, {", ".join(USE_COLUMNS)} FROM use
    WHERE run = ? AND at >= ? {ON_CONFLICT}"""
_GPU: Final = """INSERT INTO gpus (uuid, number, name, total) VALUES (?, ?, ?, ?)
    ON CONFLICT (uuid) DO UPDATE SET number = excluded.number, name = excluded.name, total = excluded.total"""
# A number replaces a name only while the name is not known.
_USER: Final = """INSERT INTO users VALUES (?, ?) ON CONFLICT (uid) DO UPDATE SET name = excluded.name
    WHERE excluded.name != CAST(uid AS TEXT)"""
_RUN: Final = """INSERT INTO runs (uid, key, name, launcher, first, last) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (uid, key) DO UPDATE SET name = excluded.name, launcher = excluded.launcher,
    first = min(first, excluded.first), last = max(last, excluded.last)"""
_OF_GPU: Final = (Metric.USED, Metric.UTILIZATION, Metric.POWER, Metric.TEMPERATURE)
"""Metrics of a GPU with columns of their own in `gpu_values`, in their order."""
_GPU_VALUES: Final = "INSERT OR REPLACE INTO gpu_values SELECT ?, id, ?, ?, ?, ? FROM gpus WHERE uuid = ?"
_SECONDS: Final = "seconds"
"""Name of the watched seconds among the means of a minute."""
_BEFORE: Final = 4 * HOUR
"""Seconds before a run was first seen in which use may have been charged to it: two and a half of the longest
intervals. Older rows need no search."""


def write_use(connection: Connection, sums: Sums, keep_means: float = KEEP_MEANS) -> None:
    """Add use and means to the store, and delete means that are older by `keep_means`, inside an open transaction."""
    if sums.host:
        write_about(connection, "host", sums.host)
    connection.executemany(_GPU, [(uuid, *facts) for uuid, facts in sums.gpus.items()])
    connection.executemany(_USER, sums.users.items())
    connection.executemany(_RUN, [(*run, *facts) for run, facts in sums.runs.items()])
    gpus: dict[str, int] = dict(connection.execute("SELECT uuid, id FROM gpus"))
    rows: list[tuple[object, ...]] = []
    for (minute, gpu, run), use in sums.use.items():
        who = (None, 0) if run is None else (run.uid, _id_of(connection, run))
        rows.append((minute, gpus[gpu], *who, *use))
    connection.executemany(_ADD, rows)
    for old, new in sums.moved.items():
        _move(connection, old, new)
    _write_means(connection, sums.means, keep_means)


def _id_of(connection: Connection, run: RunId) -> int | None:
    row = connection.execute("SELECT id FROM runs WHERE uid = ? AND key = ?", run).fetchone()
    return row[0] if row else None


def _move(connection: Connection, old: RunId, new: RunId) -> None:
    """Move the use of a process, charged before its run was known, to that run; also the events that it caused."""
    before, after = _id_of(connection, old), _id_of(connection, new)
    if before is None or after is None or before == after:
        return
    (first,) = connection.execute("SELECT coalesce(first, 0.0) FROM runs WHERE id = ?", (before,)).fetchone()
    connection.execute(_MOVE, (new.uid, after, before, first - _BEFORE))
    connection.execute("DELETE FROM use WHERE run = ? AND at >= ?", (before, first - _BEFORE))
    names = (f"{new.uid}/{new.key}", f"{old.uid}/{old.key}")
    connection.execute("UPDATE OR IGNORE event_about SET who = ? WHERE kind = 'run' AND who = ?", names)
    connection.execute("DELETE FROM event_about WHERE kind = 'run' AND who = ?", names[1:])
    connection.execute("DELETE FROM runs WHERE id = ?", (before,))


def _write_means(connection: Connection, means: Sequence[Minute], keep: float) -> None:
    if not means:
        return
    for one in means:
        found, seconds = one.values, one.seconds
        (is_there,) = connection.execute("SELECT count(*) FROM graph_values WHERE at = ?", (int(one.at),)).fetchone()
        # Of another gpuwatch, which ended in this minute.
        for before in read_means(connection, one.at, one.at + 1) if is_there else ():
            seconds += before.seconds
            part = one.seconds / seconds if seconds else 1.0
            both = {name: old + part * (found[name] - old) for name, old in before.values.items() if name in found}
            found = before.values | found | both
        values, gpus = _divide(found)
        body = zlib.compress(msgspec.json.encode({**values, _SECONDS: round(min(seconds, MINUTE), 1)}))
        connection.execute("INSERT OR REPLACE INTO graph_values VALUES (?, ?)", (int(one.at), body))
        connection.executemany("INSERT OR IGNORE INTO gpus (uuid) VALUES (?)", [(gpu,) for gpu in gpus])
        rows = [(int(one.at), *(row.get(metric) for metric in _OF_GPU), gpu) for gpu, row in gpus.items()]
        connection.executemany(_GPU_VALUES, rows)
    newest = int(means[-1].at)
    for table in ("graph_values", "gpu_values"):  # a future minute comes from a wrong clock
        connection.execute(f"DELETE FROM {table} WHERE at < ? OR at > ?", (newest - keep, newest))


def _divide(values: Mapping[str, float]) -> tuple[dict[str, float], dict[str, dict[Metric, float]]]:
    """Return the values of people and processes, and those of each GPU that have columns of their own."""
    rest = _without_small(values)
    gpus: dict[str, dict[Metric, float]] = {}
    for name in values:
        key = parse_key(name)
        if key is not None and not key.owner and key.metric in _OF_GPU:
            figures = 1 if key.metric is Metric.UTILIZATION else 0  # as fine as a driver's, and small in the file
            gpus.setdefault(key.gpu, {})[key.metric] = round(rest.pop(name), figures)
    return rest, gpus


def _without_small(values: Mapping[str, float]) -> dict[str, float]:
    """Return values without those of processes with little memory, where there are many."""
    keys = {name: parse_key(name) for name in values}
    sizes: dict[str, float] = {}
    for name, key in keys.items():
        if key is not None and key.owner.startswith("process:"):
            sizes[key.owner] = sizes.get(key.owner, 0.0) + (values[name] if key.metric is Metric.MEMORY else 0.0)
    small = set(sorted(sizes, key=sizes.__getitem__, reverse=True)[MOST_PROCESSES:])
    return {name: values[name] for name, key in keys.items() if key is not None and key.owner not in small}


# -- Means --------------------------------------------------------------------------------------------------------

_decoder: Final = msgspec.json.Decoder(dict[str, float])


def read_means(connection: Connection, since: float, until: float) -> Iterator[Minute]:
    """Yield the stored means that began in a span of wall-clock time, oldest first; damaged rows are left out."""
    asked = "SELECT at, body FROM graph_values WHERE at >= ? AND at < ? AND length(body) <= ? ORDER BY at DESC LIMIT ?"
    names = connection.execute("SELECT uid, name FROM users").fetchall()
    users: dict[str, str] = {f"user:{uid}": clean(name) for uid, name in names if isinstance(name, str)}
    of_gpus = _read_gpu_values(connection, since, until)
    bodies = dict(connection.execute(asked, (since, until, _LARGEST, _MOST_MINUTES)).fetchall())
    # The use is kept for longer; in a public day, which has only the means of GPUs, it shows the owners of the memory.
    minutes = _read_use(connection, since, min(bodies, default=until), MINUTE)
    of_use = {start: values for start, span, values in minutes if span == MINUTE}
    sound: set[str] = set()
    left = _LARGEST_DAY
    # Decoded one by one: those of a whole day would take 30 MB.
    for at in sorted(of_gpus.keys() | bodies.keys() | of_use.keys()):
        body = bodies.get(at)
        values: dict[str, float] = {}
        try:
            if isinstance(body, bytes) and left > 0:
                content = zlib.decompressobj().decompress(body, _LARGEST_JSON)
                left -= len(content)
                values = _decoder.decode(content)
        except (zlib.error, ValueError, RecursionError):
            body = None
        sound.update(name for name in values.keys() - sound if parse_key(name) is not None)
        kept = {name: value for name, value in values.items() if value >= 0 and name in sound}
        if at in of_gpus or at in of_use or isinstance(body, bytes):
            shown, seconds = kept | of_use.get(at, {}) | of_gpus.get(at, {}), values.get(_SECONDS, float(MINUTE))
            yield Minute(at=float(at), values=shown, users=users, seconds=seconds)


def _read_gpu_values(connection: Connection, since: float, until: float) -> dict[int, dict[str, float]]:
    """Return the means of the GPUs themselves by the start of their minute."""
    means: dict[int, dict[str, float]] = {}
    names = {
        gpu: [f"{uuid}//{metric}" for metric in _OF_GPU]
        for gpu, uuid in connection.execute("SELECT id, uuid FROM gpus").fetchmany(_MOST)
        if parse_key(f"{uuid}//used") is not None
    }
    asked = f"SELECT at, gpu, {', '.join(_OF_GPU)} FROM gpu_values WHERE at >= ? AND at < ? ORDER BY at DESC LIMIT ?"
    for at, gpu, *values in connection.execute(asked, (since, until, _MOST)):
        if isinstance(at, int) and gpu in names:
            sound = [(name, value) for name, value in zip(names[gpu], values, strict=True) if _is_amount(value)]
            means.setdefault(at, {}).update(sound)
    return means


def load_older(timeline: Timeline, until: float, *, folder: Path | None = None, days: Path = DAYS) -> None:
    """Add the means of the stores to a timeline, up to a wall-clock time; not for a demo or a replay.

    It reads files, and takes about a second for a whole day: call it on a thread of its own. Raises StoreError, once
    all were read. A store that does not exist adds nothing. `folder` replaces the user's state folder.
    """
    errors: list[StoreError] = []
    runs: dict[str, list[RecordedRun]] = {}
    known: set[float] = set()
    """Minutes of the stores that were read; one's own comes first, which has all owners."""

    def fresh(means: Iterable[Minute]) -> Iterator[Minute]:
        for one in means:
            if one.at not in known:
                known.add(one.at)
                yield one

    for path in sorted(stores_read(folder, since=until - KEEP_MEANS, days=days), key=is_public):
        try:
            with reading(path, seconds=_SLOWEST) as connection:
                timeline.load(fresh(read_means(connection, until - KEEP_MEANS, until)))
                runs = runs if is_public(path) else read_runs(connection, until - KEEP_MEANS, until)
        except FileNotFoundError:
            pass
        except StoreError as error:
            errors.append(error)
    timeline.recorded = runs
    if errors:
        raise errors[0]


def read_runs(connection: Connection, since: float, until: float) -> dict[str, list[RecordedRun]]:
    """Return the runs with memory on each GPU, by its key; those of unknown owners are left out, as they are no run."""
    asked = """SELECT gpus.uuid, runs.uid, runs.key, runs.name, at, span, byte_s / held_s FROM use
        JOIN gpus ON gpus.id = use.gpu JOIN runs ON runs.id = run
        WHERE run > 0 AND held_s > 0 AND runs.uid >= 0 AND at >= ? AND at < ? ORDER BY gpus.uuid, run, at"""
    found: dict[str, list[RecordedRun]] = {}
    rows = connection.execute(asked, (since, until)).fetchmany(_MOST)
    for (gpu, uid, key, name), parts in groupby(rows, key=itemgetter(slice(0, 4))):
        held = [(_integer(at), _integer(span), _amount(size)) for *_, at, span, size in parts]
        times = tuple((at, span) for at, span, _ in held)
        run = RecordedRun(_integer(uid), _text(key), _text(name), times, max(size for *_, size in held))
        found.setdefault(_text(gpu), []).append(run)
    return found


def read_hours(connection: Connection, since: float) -> Iterator[Minute]:
    """Yield the means of each hour from that of `since` (wall clock) on, oldest first, made from the use."""
    for at, _, values in _read_use(connection, floor(since / HOUR) * HOUR, _LATEST, HOUR):
        yield Minute(at=float(at), values=values)


def _read_use(
    connection: Connection, since: float, until: float, each: int
) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yield start, length and means of times of `each` seconds, or of an hour where use is kept by the hour.

    A user's memory is the mean over the time in which the GPU was watched; the utilization is the part of that time, in
    percent, in which a process was seen to run a kernel, and is missing where that is not known for half of the time.
    The used memory of a GPU is the sum of its processes'.
    """
    gpus = {gpu: _text(uuid) for gpu, uuid in connection.execute("SELECT id, uuid FROM gpus").fetchmany(_MOST)}
    asked = """SELECT at / :each * :each AS start, max(span, :each) AS length, gpu, run = 0 AS whole, uid, sum(gpu_s),
        sum(byte_s), sum(busy_s), sum(unknown_s) FROM use WHERE at >= :since AND at < :until
        GROUP BY start, length, gpu, whole, uid ORDER BY start, length, gpu"""
    rows = connection.execute(asked, {"each": each, "since": since, "until": until}).fetchmany(_MOST)
    for (at, length), of_time in groupby(rows, key=itemgetter(0, 1)):
        values: dict[str, float] = {}
        for gpu, of_gpu in groupby(of_time, key=itemgetter(2)):
            parts = [(whole, uid, *map(_amount, sums)) for _, _, _, whole, uid, *sums in of_gpu]
            watched = sum(gpu_s for _, _, gpu_s, *_ in parts)
            if not (gpu in gpus and watched):
                continue
            values[str(Key(gpus[gpu], "", Metric.USED))] = sum(size for _, _, _, size, *_ in parts) / watched
            for whole, uid, _, size, busy, unknown in parts:
                if not whole:
                    owner = user_owner(None if uid == NOBODY else _integer(uid))
                    values[str(Key(gpus[gpu], owner, Metric.MEMORY))] = size / watched
                elif (judged := watched - unknown) >= watched / 2:
                    values[str(Key(gpus[gpu], "", Metric.UTILIZATION))] = min(100.0, 100 * busy / judged)
        if values and isinstance(at, int) and at < _LATEST:
            yield at, _integer(length), values


def read_totals(connection: Connection) -> dict[str, float]:
    """Return the bytes of memory of each GPU by its key, as far as they are known."""
    rows = connection.execute("SELECT uuid, total FROM gpus").fetchmany(_MOST)
    return {_text(uuid): _amount(total) for uuid, total in rows if _amount(total)}


# -- Report -------------------------------------------------------------------------------------------------------

_PART: Final = "(min(at + span, :until) - max(at, :since)) / span"
"""Part of a row that counts: an hour may reach beyond the time that was asked for."""
# A run was busy in as much of its part of the GPU's time as of the time in which it held memory there.
_TOTALS: Final = f"""sum({_PART} * gpu_s), sum({_PART} * gpu_s * busy_s / held_s),
    sum({_PART} * gpu_s * unknown_s / held_s), sum({_PART} * byte_s), sum({_PART} * idle_byte_s),
    sum({_PART} * gpu_s * unsized_s / held_s), sum({_PART} * gpu_s)"""
"""The fields of `Use`; `held` is the run's part of the GPU's time."""
By: TypeAlias = Literal["user", "gpu", "run"]

_ABOUT: Final = "SELECT event, who FROM event_about WHERE kind = ?"
_DURING: Final = f"at > :since - {HOUR} AND at + span > :since AND at < :until AND is_new(at, span)"
_SUMS: Final = f"gpu, {_TOTALS} FROM use WHERE {_DURING} AND run != 0 GROUP BY 1, 2"
"""SQL that follows the column of the identity: `uid`, `gpu` or `run`."""
# A minute in which the clock was set back was watched for longer than a minute.
_WATCHED_ANY: Final = f"""SELECT sum({_PART} * min(most, span)) FROM
    (SELECT at, span, max(held_s + gpu_s) AS most FROM use WHERE {_DURING} AND run = 0 GROUP BY at, span)"""
_WATCHED: Final = f"""SELECT gpu, sum({_PART} * (held_s + gpu_s)), sum({_PART} * gpu_s) FROM use
    WHERE {_DURING} AND run = 0 GROUP BY gpu"""
_LONGEST: Final = 200
"""Characters of a name, at most."""
_HUGE: Final = 1e30
_LATEST: Final = 1 << 40
"""Wall-clock time that no hour reaches: `localtime` may refuse a later one."""
_MOST: Final = 1_000_000
"""Rows that are read, at most; a usual store has a hundredth of that."""


class EventCounts(NamedTuple):
    """Numbers of events by severity."""

    overshoots: int = 0
    all: int = 0
    warnings: int = 0
    """Events of severity warning or critical."""

    @classmethod
    def of(cls, alerts: Collection[Alert]) -> EventCounts:
        warnings = sum(max(one.most, one.severity) >= Severity.WARNING for one in alerts)
        return cls(sum(one.rule == OVERSHOOT for one in alerts), len(alerts), warnings)


class UseLine(msgspec.Struct):
    """Use by one user, of one GPU or by one run, over the whole report."""

    name: str
    """Name of the user, the GPU or the run."""
    use: Use = NO_USE
    gpus: tuple[int, ...] = ()
    """NVML's indices, as last seen, of the GPUs that the user or run held."""
    events: EventCounts = EventCounts()
    """Events that the user or run caused, or that are about the GPU."""
    uid: int | None = None
    user: str = ""
    """Owner of a run; where the uid is None, all owners whom nobody could see."""
    uuid: str = ""
    """UUID of a GPU."""
    watched: float = 0.0
    """Seconds in which a GPU was watched: those in which it was `free`, and those of `use`."""
    free: float = 0.0
    """Seconds of `watched` in which nobody held memory on the GPU."""
    key: str = ""
    launcher: str = ""
    first: float | None = None
    last: float | None = None
    """Wall-clock time at which a run was last seen (`first`: first seen), as far as the store reaches."""


class UseReport(msgspec.Struct):
    """Recorded use since a time."""

    by: By
    since: float
    """Start of the first minute that counts, in seconds since the epoch."""
    until: float = inf
    """End of the time that counts, in seconds since the epoch."""
    host: str = ""
    lines: list[UseLine] = []
    """Users and runs by the GPU time, the most first; GPUs by index."""
    watched: float = 0.0
    """Seconds in which at least one GPU was watched."""
    total: Use = NO_USE
    """Sum of all lines; it is the same by user, by GPU and by run."""
    gpus: tuple[int, ...] = ()
    """Indices of all watched GPUs."""
    events: EventCounts = EventCounts()
    """Events, each counted once, also those without a known user."""
    exists: bool = False
    """Whether any use was recorded, also before `since`."""


def read_reports(
    paths: Sequence[Path], ways: Sequence[By], since: float, until: float = inf, *, named: bool = False
) -> list[UseReport]:
    """Add up the use in some stores of one host from the start of the minute of `since` (wall clock) to `until`.

    All sums are of one moment. Of what is kept by hour the part of the hour counts, and its idle time is that of the
    hour's means. Where a public day has use of a time, the values of other stores for that time are left out, so that
    nothing counts twice; events are those of `read_all_events`. Raises FileNotFoundError and StoreError.
    """
    reports = [UseReport(by, float(floor(since / MINUTE) * MINUTE), until) for by in ways]
    lines_by_way: list[dict[object, UseLine]] = [{} for _ in ways]
    about: list[defaultdict[object, set[str]]] = [defaultdict(set) for _ in ways]
    """Ids of the events that each of the lines caused, or that are about it."""
    events = read_all_events(paths, reports[0].since, named=named)
    held = {one.id: one for one in events.alerts if one.raised < until}
    known: set[int] = set()
    """Minutes that the public days have."""

    def is_new(at: float, span: int) -> bool:
        return known.isdisjoint(range(int(at) // MINUTE, int(at + span - 1) // MINUTE + 1))

    days = [path for path in paths if is_public(path)]
    for path in (*days, *(path for path in paths if path not in days)):
        with (
            contextlib.suppress(*[FileNotFoundError] if known else []),
            reading(path, named=named, seconds=PATIENCE * len(ways)) as connection,
        ):
            connection.create_function("is_new", 2, is_new if path not in days else lambda *_: True)
            connection.execute("BEGIN")
            spans = connection.execute("SELECT DISTINCT at, span FROM use").fetchall() if path in days else []
            if path in days and not spans:  # it publishes no use, and does not name the causes of its events
                continue
            for report, lines, ids in zip(reports, lines_by_way, about, strict=True):
                _add_store(connection, report, lines)
                for event, who in connection.execute(_ABOUT, (report.by,)).fetchmany(_MOST):
                    ids[who].add(events.aliases.get(event, event))
        known |= {minute for at, span in spans for minute in range(at // MINUTE, (at + span) // MINUTE)}
    for report, lines, ids in zip(reports, lines_by_way, about, strict=True):
        for who, line in lines.items():
            line.events = EventCounts.of([held[one] for one in ids[who] & held.keys()])
        report.events = EventCounts.of(held.values())
        report.lines = sorted(lines.values(), key=lambda one: (one.gpus, one.uuid))
        if report.by != "gpu":
            report.lines.sort(key=lambda one: (-round(one.use.gpu, 3), -one.use.memory, one.name, one.gpus))
        report.total = reduce(Use.plus, (line.use for line in report.lines), NO_USE)
    return reports


def _add_store(connection: Connection, report: UseReport, lines: dict[object, UseLine]) -> None:
    """Add one store to a report. A SQLite cell may hold any type, so every value is checked."""

    span = {"since": report.since, "until": report.until}

    def rows(query: str) -> list[Any]:
        return connection.execute(query, span if ":since" in query else ()).fetchmany(_MOST)

    by = report.by
    numbers: dict[object, int] = {}
    named: dict[object, tuple[object, UseLine]] = {}
    """Identity and an empty line for each id in the table, the same in all stores."""
    users = {_integer(uid): _text(name) or str(uid) for uid, name in rows("SELECT uid, name FROM users")}
    users[NOBODY] = UNSEEN_USER
    for gpu, uuid, index, name in rows("SELECT id, uuid, number, name FROM gpus"):
        numbers[gpu] = index if 0 <= _integer(index, -1) < 10_000 else -1
        if by == "gpu":
            named[gpu] = _text(uuid), UseLine(_text(name), uuid=_text(uuid), gpus=_sorted([numbers[gpu]]))
    if by == "user":
        named = {uid: (uid, UseLine(name, uid=_visible(uid))) for uid, name in users.items()}
    for run, uid, key, *facts in rows("SELECT id, uid, key, name, launcher, first, last FROM runs") * (by == "run"):
        user = users.get(_integer(uid), str(_integer(uid)))
        line = UseLine(_text(facts[0]) or UNSEEN_USER, uid=_visible(_integer(uid)), user=user, key=_text(key))
        line.launcher, line.first, line.last = _text(facts[1]), _amount(facts[2]), _amount(facts[3])
        named[run] = f"{uid}/{line.key}", line
    watched = {gpu: (_amount(seconds), _amount(free)) for gpu, seconds, free in rows(_WATCHED)}

    def find_line(id: object) -> UseLine | None:
        if id not in named:
            return None
        key, new = named[id]
        line = lines.setdefault(key, new)
        if new.first is not None:
            line.first, line.last = min(line.first or new.first, new.first), max(line.last or 0.0, new.last or 0.0)
        return line

    if by == "gpu":
        for gpu, (seconds, free) in watched.items():  # a GPU that nobody held was watched too
            if found := find_line(gpu):
                found.watched, found.free = found.watched + seconds, found.free + free
    for id, gpu, *sums in rows(f"SELECT {'uid' if by == 'user' else by}, {_SUMS}"):
        if found := find_line(id):
            found.use = found.use.plus(Use(*map(_amount, sums)))
            found.gpus = _sorted([*found.gpus, numbers.get(gpu, -1)])
    report.host = read_about(connection, "host") or report.host
    report.watched += _amount(rows(_WATCHED_ANY)[0][0])
    report.gpus = _sorted([*report.gpus, *(numbers.get(gpu, -1) for gpu in watched)])
    report.exists = report.exists or bool(rows("SELECT 1 FROM use LIMIT 1"))


def _sorted(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({each for each in numbers if each >= 0}))


def _visible(uid: int) -> int | None:
    return None if uid == NOBODY else uid


def _text(value: object) -> str:
    return clean(value, _LONGEST) if isinstance(value, str | bytes) else ""


def _is_amount(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and 0 <= value < _HUGE


def _amount(value: object) -> float:
    return float(value) if _is_amount(value) else 0.0


def _integer(value: object, otherwise: int = 0) -> int:
    return value if isinstance(value, int) else otherwise
