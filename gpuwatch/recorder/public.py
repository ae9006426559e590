"""Public days: the past of the machine for everybody, a store of listed columns for each day.

The service's own store is closed. Once a minute it selects from that what everybody may read into a new store in
memory, and replaces `/var/lib/gpuwatch/public-2026-11-24.sqlite` by it: a reader never holds a lock of the service.
`COLUMNS` says of each column of a store whether it is public. Today's file has the values of the GPUs of the last 25
hours; use is by minute in today's and yesterday's, and before by the whole hours of the local day.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from datetime import date, timedelta
from functools import lru_cache
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from gpuwatch.base import files
from gpuwatch.recorder.events import read_events
from gpuwatch.recorder.opening import StoreError, explained, reading
from gpuwatch.recorder.schema import (
    DAYS,
    FRESH,
    HOUR,
    MINUTE,
    USE_COLUMNS,
    create_tables,
    day_of,
    file_state,
    own_store,
    public_file,
    public_files,
    read_about,
    write_about,
)

Publish: TypeAlias = Literal["shares", "use", "none"]
"""Level of publication: present values, also the past by person, or nothing."""

LARGEST: Final = 8 << 20
"""Bytes of a file, at most."""

_NOBODY: Final = ""
"""Level of a column that is not published."""
_VALUES: Final = 25 * HOUR


class PublicTable(NamedTuple):
    """Selection of a table: the level at which each column is published, its SQL, and the rows."""

    levels: dict[str, Literal["shares", "use", ""]]
    rows: str = ""
    """SQL that follows FROM and the name of the table; it may use the values of `make_day`."""
    sql: Mapping[str, str] = MappingProxyType({})
    """SQL of the columns that are not copied as they are."""


def _levels(level: Literal["shares", "use", ""], names: str) -> dict[str, Literal["shares", "use", ""]]:
    return dict.fromkeys(names.split(), level)


_DURING: Final = "coalesce(ended, seen) >= :since AND raised < :last"
_FIGURES: Final = "rule host gpu index severity most raised worse seen ended lasted unit peak mean last gpus"
"""Fields of an alert that are figures; a new field is not public until it is listed here."""


def _alert(fields: str) -> str:
    """Return the SQL of an alert of some fields; the reader makes its words."""
    parts = [f"'{name}', json_extract(alert, '$.{name}')" for name in fields.split()]
    # A field that the alert lacks is null, which a patch leaves out.
    return f"json_patch('{{\"title\":\"\"}}', json_object('id', id, {', '.join(parts)}))"


_PROGRAM: Final = "substr(coalesce(name, ''), 1, instr(coalesce(name, '') || ' ', ' ') - 1)"
"""SQL of the program of a run: the rest may be arguments, or words of a title."""
_HOUR: Final = f"(at - :since) / {HOUR}"
"""SQL of the number of an hour in its day."""

COLUMNS: Final = {
    "about": PublicTable(_levels("shares", "name value"), "WHERE name = 'host'"),
    "gpus": PublicTable(_levels("shares", "id uuid number name total")),
    "gpu_values": PublicTable(
        _levels("shares", "at gpu used utilization power temperature"), "WHERE at >= :values AND at < :until"
    ),
    "gaps": PublicTable(_levels("shares", "since until lost"), "WHERE until >= :since AND since < :until"),
    "events": PublicTable(
        _levels("shares", "id rule severity gpu raised seen ended alert") | _levels(_NOBODY, "key"),
        f"WHERE {_DURING}",
        {"alert": _alert(_FIGURES)},
    ),
    "event_about": PublicTable(
        _levels("use", "event kind who"),
        f"WHERE kind IN ('user', 'gpu') AND event IN (SELECT id FROM stored.events WHERE {_DURING})",
    ),
    "users": PublicTable(_levels("use", "uid name")),
    # All runs of a program by one user are one: the sums show how much a user ran, not when.
    "runs": PublicTable(
        _levels("use", "id uid key name") | _levels(_NOBODY, "launcher first last"),
        f"WHERE last >= :since AND first < :until GROUP BY uid, {_PROGRAM}",
        {"id": "min(id)", "key": _PROGRAM, "name": _PROGRAM},
    ),
    "use": PublicTable(
        _levels("use", f"at span gpu uid run {' '.join(USE_COLUMNS)}"),
        f"""JOIN runs_of USING (run) LEFT JOIN whole ON hour = {_HOUR}
            WHERE at >= :since AND at < :until GROUP BY 1, 2, 3, 5""",
        {"at": f"iif(hour IS NULL, at, :since + {_HOUR} * {HOUR})", "span": f"iif(hour IS NULL, span, {HOUR})"}
        | {"run": "public"}
        | {name: f"sum({name})" for name in USE_COLUMNS},
    ),
    "marks": PublicTable(_levels(_NOBODY, "kind rule key at severity until")),
    "graph_values": PublicTable(_levels(_NOBODY, "at body")),
}
_WITH_PEOPLE: Final = {"alert": _alert(f"{_FIGURES} owners users")}
_RUNS_OF: Final = f"""CREATE TEMP TABLE runs_of AS SELECT 0 AS run, 0 AS public UNION ALL
    SELECT one.id, main.runs.id FROM (SELECT id, uid, {_PROGRAM} AS program FROM stored.runs) AS one
        JOIN main.runs ON one.uid = main.runs.uid AND program = main.runs.key"""
"""Makes the table of the public run of each run; 0 is the GPU itself."""
_WHOLE: Final = f"""CREATE TEMP TABLE whole AS SELECT {_HOUR} AS hour FROM
    (SELECT at, max(held_s + gpu_s) AS watched FROM stored.use WHERE run = 0 GROUP BY at)
    WHERE :span = {HOUR} AND at >= :since AND at < :until GROUP BY 1 HAVING sum(watched) > {HOUR - MINUTE}"""
"""Makes the table of the hours that become one row each: of others the minutes say when the service ran."""


def make_day(store: Path, day: date, publish: Publish, now: float) -> bytes:
    """Return the public store of a local day, made from a closed one; raises StoreError and FileNotFoundError.

    A day that has ended at the wall-clock time `now` has no values of GPUs; one that ended a day ago, or were too large
    by minute, has use by hour.
    """
    since, until, later = (int(time.mktime((day + timedelta(days=days)).timetuple())) for days in range(3))
    values = {"now": now, "since": since, "until": until, "values": now - _VALUES if now < until else until}
    values["last"] = inf if now < until else until  # today also has rows from a clock that ran ahead
    if not store.exists():
        raise FileNotFoundError(store)
    for span in (MINUTE, HOUR) if now < later else (HOUR,):
        with explained(store):
            content = _select(store, publish, {**values, "span": span})
        if len(content) <= LARGEST:
            return content
    raise StoreError(f"what is public of {day} has more than {LARGEST >> 20} MiB")


def _select(store: Path, publish: Publish, values: dict[str, float]) -> bytes:
    with closing(sqlite3.connect(":memory:", uri=True, isolation_level=None)) as connection:
        create_tables(connection)
        connection.execute("ATTACH ? AS stored", (f"file:{quote(str(store))}?mode=ro",))
        connection.execute("BEGIN")
        for name, table in COLUMNS.items():
            if name == "use" and publish == "use":
                connection.execute(_RUNS_OF)
                connection.execute(_WHOLE, values)
            columns = [column for column, level in table.levels.items() if level in ("shares", publish)]
            if columns:
                sql = {**table.sql} | (_WITH_PEOPLE if name == "events" and publish == "use" else {})
                found = ", ".join(f"{sql.get(one, one)} AS {one}" for one in columns)
                connection.execute(
                    f"INSERT INTO main.{name} ({', '.join(columns)}) SELECT {found} FROM stored.{name} {table.rows}",
                    values,
                )
        write_about(connection, "publish", publish)
        write_about(connection, "written", values["now"])
        (first,) = connection.execute("SELECT min(at) FROM stored.use").fetchone()
        write_about(connection, "since", first)
        connection.execute("COMMIT")
        connection.execute("DETACH stored")
        return connection.serialize()


class PublicDays:
    """Writer of the public days in a folder, from a closed store."""

    def __init__(self, store: Path, publish: Publish, folder: Path = DAYS) -> None:
        self.publish = publish
        """May be replaced at any time."""
        self._store, self._folder = store, folder
        self._last: tuple[date, Publish] | None = None
        """Day and level of the last writing."""

    def write(self, now: float, keep: float, *, all_days: bool = False) -> None:
        """Write today's file, and on a new day those that lack; raises StoreError and OSError once the rest is written.

        `now` is the wall-clock time; days older than `keep` seconds are removed. Where another level is published than
        before, or with `all_days`, all are removed at once and written again. The last two days are always written
        again: their last minutes came later.
        """
        today = date.fromtimestamp(now)
        wanted: dict[date, bool] = {} if self.publish == "none" else {today: True}
        if self._last != (today, self.publish):
            self._folder.mkdir(mode=0o755, exist_ok=True)
            self._folder.chmod(0o755)  # mkdir(2) applies the umask
            if wanted:
                oldest = date.fromtimestamp(max(now - keep, read_events(self._store).since or now))
                wanted |= {today - timedelta(days=ago): ago <= 2 for ago in range(1, (today - oldest).days + 1)}
            for path in public_files(self._folder):
                if day_of(path) in wanted and not all_days and not refused_day(path):
                    with suppress(StoreError, FileNotFoundError), reading(path) as connection:
                        if read_about(connection, "publish") == self.publish:
                            continue
                path.unlink(missing_ok=True)
        errors: list[StoreError | OSError] = []
        for day, again in wanted.items():
            path = public_file(self._folder, str(day))
            try:
                if again or not path.exists():
                    content = make_day(self._store, day, self.publish, now)
                    with files.opened_folder(self._folder, private=False) as folder:
                        files.replace_file(folder, path.name, content, durable=False, mode=0o644)
            except (StoreError, OSError) as error:
                errors.append(error)
        if errors:
            raise errors[0]
        self._last = today, self.publish


# -- Which days are read ------------------------------------------------------------------------------------------

_LARGEST_DAY: Final = 16 << 20
"""Bytes of a public day that is read, at most."""


def stores_read(
    folder: Path | None = None,
    *,
    since: float = 0.0,
    days: Path = DAYS,
    warn: Callable[[str], object] = lambda words: None,
) -> list[Path]:
    """Return the stores that are read: public days from `since` (wall clock) on, the newest first, then one's own.

    Where several have a value the first counts. `warn` gets a line for each public day that is not used. `folder` is as
    in `own_store`.
    """
    first = date.fromtimestamp(since) - timedelta(days=1)  # the service may be in another time zone
    found = [path for path in public_files(days) if day_of(path) >= first]
    refused = {path: words for path in found if (words := refused_day(path))}
    for words in refused.values():
        warn(f"left out: {words}")
    return [*(path for path in found if path not in refused), own_store(folder)]


def is_use_public(now: float, days: Path = DAYS) -> bool:
    """Return whether the machine's service publishes the use of everybody, at a wall-clock time."""
    newest = next(iter(public_files(days)), None)
    if newest is None or refused_day(newest) or now - newest.stat().st_mtime > FRESH:
        return False
    with reading(newest) as connection:
        return read_about(connection, "publish") == "use"


def refused_day(path: Path) -> str:
    """Return in one line why a public day is not used; empty where it is."""
    return files.check_source(path, 0) or _unreadable_day(path, file_state(path))


@lru_cache(maxsize=256)
def _unreadable_day(path: Path, _state: object) -> str:
    try:
        size = path.stat().st_size
        if size > _LARGEST_DAY:
            return f"{path} has more than {_LARGEST_DAY >> 20} MiB"
        with reading(path) as connection:
            read_about(connection, "publish")
    except StoreError as error:
        return str(error)
    except FileNotFoundError:
        return f"{path} is gone"
    return ""
