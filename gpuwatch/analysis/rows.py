"""Rows of the process list: each holding with its GPU and its process, filtered and sorted.

Pure functions, shared by the dashboard and by `gpuwatch --once`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from gpuwatch.filters import Figure, Grammar, ListFilter, Term, Value, parse_numbers, parse_terms
from gpuwatch.history import HistoryView, Idle, IdleTimes
from gpuwatch.model import Gpu, Holding, Limit, Presence, Process, Reading, Reason, Snapshot, known
from gpuwatch.shares import is_conclusive, limit_on
from gpuwatch.units import (
    UNKNOWN,
    duration,
    gib,
    parse_duration,
    parse_percent,
    parse_ratio,
    parse_size,
    percent,
)

RowKey = tuple[str, int, int]
"""GPU key, PID and start time, which identify a row."""


class Row(msgspec.Struct, frozen=True):
    """One process on one GPU."""

    gpu: Gpu
    holding: Holding
    process: Process
    mine: bool
    idle: Idle | None = None
    growth: int | None = None
    """Bytes by which the holding grew in the last minute."""
    age: float | None = None
    """Seconds since the process started."""

    @property
    def key(self) -> RowKey:
        """Identity of the row; the cursor follows it."""
        return (self.gpu.key, self.holding.pid, self.holding.start)

    @property
    def owner(self) -> str:
        """User name; `?` if it is not known."""
        return self.process.user or "?"

    @property
    def command(self) -> str:
        """Command line, or the reason why there is none; both if it was read before and cannot be read now."""
        if self.process.presence in _UNSEEN:
            return f"{_UNSEEN[self.process.presence]} {self.process.command}".rstrip()
        command = self.process.command or f"[{self.process.name}]"
        if self.process.presence is Presence.UNSURE:
            return f"perhaps {command} (or a process outside of this container)"
        return command

    @property
    def brief(self) -> str:
        """Command line without the folder of its program."""
        program, space, rest = self.command.partition(" ")
        return program.rpartition("/")[2] + space + rest if program.startswith("/") else self.command

    @property
    def where(self) -> str:
        """Container, job or terminal of the process: `tmux train`, `docker vllm`; empty if none is known."""
        around = self.process.surroundings
        return around.where if around else ""

    @property
    def share(self) -> float | None:
        """Holding in percent of the GPU's total memory, as most programs declare it."""
        return self.percent(self.holding.memory)

    @property
    def limit(self) -> Limit | None:
        """Declared limit to show on this GPU."""
        return limit_on(self.process.declared, self.gpu.uuid)

    @property
    def declared(self) -> float | None:
        """Limit in percent of the GPU's memory; None if it is not known."""
        limit = self.limit
        return self.percent(limit.bytes) if limit else None

    def percent(self, bytes_: Reading) -> float | None:
        """Return bytes in percent of the GPU's memory; None if either is not known."""
        total = self.gpu.memory.total
        return 100 * bytes_ / total if known(bytes_) and known(total) and total > 0 else None


def share_words(row: Row) -> tuple[str, str]:
    """Return both parts of `41/30`: the holding and its limit in percent of the GPU's memory.

    The second part is `30Σ` where several processes share the limit, `—` where nothing was declared, and `?` where
    declarations could not be read, or were not read yet.
    """
    share, limit = row.share, row.limit
    held = UNKNOWN if share is None else percent(share, 100)
    if limit is None:
        return held, UNKNOWN if is_conclusive(row.process.declared) else "?"
    declared = row.percent(limit.bytes)
    return held, "?" if declared is None else percent(declared, 100) + "Σ" * bool(limit.scope)


_UNSEEN = {
    Presence.GONE: "(ended: a dead process still holds memory)",
    Presence.HIDDEN: "(hidden: /proc shows only your own processes)",
    Presence.ELSEWHERE: "(in another PID namespace)",
    Presence.UNREADABLE: "(not readable just now)",
}


def rows(snapshot: Snapshot, view: HistoryView | None = None, idle_times: IdleTimes | None = None) -> list[Row]:
    """Return a row for each holding, in the order of the GPUs and of the driver's lists.

    `idle_times` are for a snapshot without a history.
    """
    owners = {process.pid: process for process in snapshot.processes}
    joined = []
    for gpu in snapshot.gpus:
        for holding in gpu.holdings:
            process = owners.get(holding.pid) or Process(pid=holding.pid, presence=Presence.GONE)
            key = (gpu.key, holding.pid, holding.start)
            idle = view.idle(*key) if view else (idle_times or {}).get(key)
            growth = view.growth(gpu.key, holding.pid, holding.start) if view else None
            mine = process.uid is not None and process.uid == snapshot.viewer
            age = None if process.started is None else max(0.0, snapshot.taken - process.started)
            joined.append(Row(gpu, holding, process, mine, idle, growth, age))
    return joined


T = TypeVar("T")
SortValue: TypeAlias = tuple[bool, float | str]
"""Whether the value is missing, and the value; missing values are last."""
SortKey: TypeAlias = Callable[[Row], SortValue]


def _number(get: Callable[[Row], float | Reason | None]) -> SortKey:
    def key(row: Row) -> tuple[bool, float | str]:
        value = get(row)
        missing = value is None or isinstance(value, Reason)
        return (missing, 0.0 if missing else -float(value))  # type: ignore[arg-type]

    return key


def _text(get: Callable[[Row], str]) -> SortKey:
    return lambda row: (False, get(row).casefold())


SORTS: dict[str, tuple[str, SortKey]] = {
    "gpu": ("GPU", lambda row: (False, float(row.gpu.index))),
    "pid": ("PID", lambda row: (False, float(row.holding.pid))),
    "user": ("user", _text(lambda row: row.owner)),
    "memory": ("memory", _number(lambda row: row.holding.memory)),
    "share": ("share of the GPU", _number(lambda row: row.share)),
    "sm": ("SM %", _number(lambda row: row.holding.sm)),
    "cpu": ("CPU %", _number(lambda row: row.process.cpu)),
    "rss": ("host memory", _number(lambda row: row.process.rss)),
    "idle": ("idle time", _number(lambda row: row.idle.seconds if row.idle else None)),
    "age": ("age", _number(lambda row: -row.process.started if row.process.started is not None else None)),
    "in": ("what it runs in", lambda row: (not row.where, row.where.casefold())),
    "command": ("command", _text(lambda row: row.command)),
}
"""Columns to sort by: id → (words, key). Numbers sort the greatest first, text from A, what is missing last."""


def sort(unsorted: Iterable[Row], by: str, *, reverse: bool = False) -> list[Row]:
    """Sort rows by a column of `SORTS`; rows without a value stay last either way, ties stay by GPU and pid."""
    return ordered(unsorted, SORTS[by][1], _place, reverse=reverse)


def _place(row: Row) -> tuple[int, int, int]:
    return (row.gpu.index, row.holding.pid, row.holding.start)


def ordered(
    unsorted: Iterable[T], key: Callable[[T], SortValue], tie: Callable[[T], Any], *, reverse: bool = False
) -> list[T]:
    """Sort items by `key`; items without a value stay last either way, and ties are in the order of `tie`."""
    keyed = [(key(one), one) for one in sorted(unsorted, key=tie)]
    present = [pair for pair in keyed if not pair[0][0]]
    present.sort(key=lambda pair: pair[0][1], reverse=reverse)
    return [one for _, one in present] + [one for (missing, _), one in keyed if missing]


class StableOrder(Generic[T]):
    """Order of a list that is sorted every second: small changes of a figure move no item.

    An item moves only after its value has changed by more than a twentieth: nobody can read a list whose rows move
    each second.
    """

    TOLERANCE = 0.05

    def __init__(
        self,
        sorts: Mapping[str, tuple[str, Callable[[T], SortValue]]],
        identity: Callable[[T], Hashable],
        tie: Callable[[T], Any],
    ) -> None:
        """Sort by the columns `sorts`, which are like `SORTS`; `identity` identifies an item over time."""
        self._sorts, self._identity, self._tie = sorts, identity, tie
        self._by = ""
        self._held: dict[Hashable, float] = {}

    def sort(self, unsorted: Iterable[T], by: str, *, reverse: bool = False) -> list[T]:
        """Sort items; the order is stable for as long as the column stays the same."""
        before = self._held if by == self._by else {}
        self._by, self._held = by, {}

        def key(one: T) -> SortValue:
            missing, value = self._sorts[by][1](one)
            if missing or isinstance(value, str):
                return missing, value
            identity = self._identity(one)
            held = before.get(identity, value)
            self._held[identity] = value if abs(value - held) > self.TOLERANCE * abs(held) else held
            return missing, self._held[identity]

        return ordered(unsorted, key, self._tie, reverse=reverse)


class ProcessOrder(StableOrder[Row]):
    """Stable order of the process list."""

    def __init__(self) -> None:
        super().__init__(SORTS, lambda row: row.key, _place)


class Filter(ListFilter[Row], frozen=True):
    """Filter of the process list; `gpuwatch.filters` has the grammar.

    Keys: `user:ada` (any name that has it, or this uid), `uid:1001` (this one person; `uid:?` is whoever is not
    visible), `gpu:0,2-4`, `pid:123`. Figures: `mem` and `rss` (bytes), `share` (memory held / limit declared), `sm` and
    `cpu` (percent), `idle` and `age` (durations). The keyword `mine`. Any other text is found in the command, user, PID
    or GPU name.
    """

    @classmethod
    def parse(cls, text: str, saved: Mapping[str, str] | None = None) -> Filter:
        """Parse a filter; `saved` are the saved filters by name. Raises FilterError with a sentence for the prompt."""
        return cls(text.strip(), parse_terms(text, ROW_GRAMMAR, saved))


def check_filter(text: str) -> None:
    """Raise FilterError where a filter is understood by no list."""
    parse_terms(text, replace(ROW_GRAMMAR, keys={**_ROW_KEYS, "rule": lambda value: lambda row: value in row.command}))


def _of_user(value: str) -> Term[Row]:
    names = [name for name in value.split(",") if name]
    return lambda row: any(name in row.owner.casefold() or name == str(row.process.uid) for name in names)


def _number_term(key: str, get: Callable[[Row], int | None]) -> Callable[[str], Term[Row]]:
    def parse(value: str) -> Term[Row]:
        if key == "uid" and value in ("?", "none"):
            return lambda row: row.process.uid is None
        is_one = parse_numbers(key, value)
        return lambda row: is_one(get(row))

    return parse


def _anywhere(sought: str) -> Term[Row]:
    return lambda row: (
        sought in row.command.casefold()
        or sought in row.owner.casefold()
        or sought == str(row.holding.pid)
        or sought in row.gpu.name.casefold()
    )


_ROW_KEYS: Final[Mapping[str, Callable[[str], Term[Row]]]] = {
    "user": _of_user,
    "uid": _number_term("uid", lambda row: row.process.uid),
    "gpu": _number_term("gpu", lambda row: row.gpu.index),
    "pid": _number_term("pid", lambda row: row.holding.pid),
}


def _value(reading: Reading | float | None) -> Value | None:
    return Value(float(reading)) if reading is not None and known(reading) else None


def _used_of_declared(row: Row) -> Value | None:
    """Return memory held / limit declared; a lower bound where other processes count towards the same limit."""
    limit, held = row.limit, row.holding.memory
    if limit is None or not known(limit.bytes) or limit.bytes <= 0 or not known(held):
        return None
    return Value(held / limit.bytes, at_least=bool(limit.scope))


def _bytes(text: str) -> float:
    return 0 if text == "0" else parse_size(text)


_ROW_FIGURES: Final[Mapping[str, Figure[Row]]] = {
    "mem": Figure(lambda row: _value(row.holding.memory), _bytes, gib),
    "share": Figure(_used_of_declared, parse_ratio, lambda ratio: percent(ratio, 1)),
    "sm": Figure(lambda row: _value(row.holding.sm), parse_percent, "{:.0f}".format),
    "cpu": Figure(lambda row: _value(row.process.cpu), lambda text: parse_percent(text, 100_000), "{:.0f}".format),
    "rss": Figure(lambda row: _value(row.process.rss), _bytes, gib),
    "idle": Figure(lambda row: Value(*row.idle) if row.idle else None, parse_duration, duration),
    "age": Figure(lambda row: _value(row.age), parse_duration, duration),
}

ROW_GRAMMAR: Final = Grammar(_ROW_KEYS, _anywhere, _ROW_FIGURES, {"mine": lambda row: row.mine})
"""Terms by which the process list can be filtered."""
