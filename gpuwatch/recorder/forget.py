"""Removal of a person from a store: their name, their runs, and all words about them.

Their use is added to that of the holder without an owner, `?`, so that the sums of each GPU stay true. An event keeps
what a public day has of it without people: its rule, GPU, figures and times. The values by person and process of the
last 25 hours are deleted for everybody, since each minute is one compressed row; graphs then draw the use.
"""

from __future__ import annotations

import re
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from gpuwatch.model.holdings import UNSEEN_USER
from gpuwatch.recorder.public import COLUMNS
from gpuwatch.recorder.schema import ADD_USE, NOBODY, ON_CONFLICT, USE_COLUMNS
from gpuwatch.recorder.store import Store

_LARGEST: Final = 1 << 40
"""Bytes of the store, at most: this write deletes no old rows, whatever size is configured."""
_OF_EVENT: Final = "WHERE (kind = 'user' AND who = :uid OR kind = 'run' AND who GLOB :uid || '/*')"
_STATEMENTS: Final = (
    f"""INSERT INTO runs (uid, key, name, launcher, first, last)
        SELECT {NOBODY}, '', '{UNSEEN_USER}', '', min(first), max(last) FROM runs WHERE uid = :uid GROUP BY uid
        ON CONFLICT (uid, key) DO UPDATE SET first = min(first, excluded.first), last = max(last, excluded.last)""",
    f"""{ADD_USE} SELECT at, span, gpu, {NOBODY}, (SELECT id FROM runs WHERE uid = {NOBODY} AND key = ''),
        {", ".join(f"sum({name})" for name in USE_COLUMNS)}
        FROM use WHERE uid = :uid GROUP BY at, span, gpu {ON_CONFLICT}""",
    f"UPDATE OR IGNORE event_about SET who = CASE kind WHEN 'user' THEN {NOBODY} ELSE '{NOBODY}/' END {_OF_EVENT}",
    f"DELETE FROM event_about {_OF_EVENT}",  # where `?` was among the causes already
)
_COUNTED: Final = {
    "names": "DELETE FROM users WHERE uid = :uid",
    "use": "DELETE FROM use WHERE uid = :uid",
    "runs": "DELETE FROM runs WHERE uid = :uid",
    "events": f"UPDATE events SET key = NULL, alert = {COLUMNS['events'].sql['alert']} WHERE is_about(alert)",
    "marks": "DELETE FROM marks WHERE is_about(key)",
}


def forget_user(path: Path, uid: int, name: str) -> dict[str, int]:
    """Remove a person from the store at `path`; return how many rows of each kind had them; raises StoreError.

    A gpuwatch that records goes on: it has in memory what it counted in the last minute, and the events that hold.
    """
    counts: dict[str, int] = {}

    def change(connection: Connection) -> None:
        values = {"uid": uid}
        names = {name, *(row[0] for row in connection.execute("SELECT name FROM users WHERE uid = :uid", values))}
        words = [rf"(?<![\w-]){re.escape(one)}(?![\w-])" for one in names if not one.isdigit()]
        pattern = re.compile("|".join([rf'\[{uid},"', rf'"uid":{uid}\b', f'"{uid}"', rf"\buid[: ]{uid}\b", *words]))
        connection.create_function("is_about", 1, lambda text: bool(pattern.search(text or "")))
        for statement in _STATEMENTS:
            connection.execute(statement, values)
        counts.update((kind, connection.execute(sql, values).rowcount) for kind, sql in _COUNTED.items())
        if any(counts.values()):
            counts["minutes"] = connection.execute("DELETE FROM graph_values").rowcount

    store = Store(path, largest=_LARGEST)
    store.write(change)
    store.compact()
    return counts
