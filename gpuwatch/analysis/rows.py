"""Rows of the process list: each holding with its GPU and its process, filtered and sorted.

Pure functions, shared by the dashboard and by `gpuwatch --once`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from gpuwatch.history import HistoryView, Idle
from gpuwatch.model import Gpu, Holding, Limit, Presence, Process, Reading, Reason, Snapshot, known
from gpuwatch.shares import is_conclusive, limit_on
from gpuwatch.units import UNKNOWN, percent

RowKey = tuple[str, int, int]
"""GPU key, PID and start time, which identify a row."""


@dataclass(frozen=True, slots=True)
class Row:
    """One process on one GPU."""

    gpu: Gpu
    holding: Holding
    process: Process
    mine: bool
    idle: Idle | None = None
    growth: int | None = None
    """Bytes by which the holding grew in the last minute."""

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


def rows(snapshot: Snapshot, view: HistoryView | None = None) -> list[Row]:
    """Return a row for each holding, in the order of the GPUs and of the driver's lists."""
    owners = {process.pid: process for process in snapshot.processes}
    joined = []
    for gpu in snapshot.gpus:
        for holding in gpu.holdings:
            process = owners.get(holding.pid) or Process(pid=holding.pid, presence=Presence.GONE)
            idle = view.idle(gpu.key, holding.pid, holding.start) if view else None
            growth = view.growth(gpu.key, holding.pid, holding.start) if view else None
            mine = process.uid is not None and process.uid == snapshot.viewer
            joined.append(Row(gpu, holding, process, mine, idle, growth))
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


class FilterError(ValueError):
    """Error in a filter; the text names what was found and what is allowed."""


_KEYS: Final = ("user", "uid", "gpu", "pid", "rule")
_FLAGS: Final = ("mine",)
"""Keys and keywords of all lists. A list that lacks one of them refuses it, instead of reading it as text."""


def parse_terms(
    text: str,
    *,
    keys: Mapping[str, Callable[[str], Callable[[T], bool]]],
    flags: Mapping[str, Callable[[T], bool]] | None = None,
    anywhere: Callable[[str], Callable[[T], bool]],
) -> tuple[Callable[[T], bool], ...]:
    """Parse a filter into its terms, all of which must match; all lists share this grammar.

    A term is `key:value` for one of `keys`, a keyword of `flags`, or any text, for `anywhere`; a leading `-` or `!`
    negates it. Case does not matter. An unfinished term (`gpu:`, `-`) is left out. Raises FilterError, with
    a sentence for the prompt.
    """
    found = []
    for word in text.casefold().split():
        bare = word[1:] if word[0] in "-!" else word
        head, colon, value = bare.partition(":")
        if not bare or (colon and not value and head in _KEYS):
            continue
        if colon and head in keys:
            term = keys[head](value)
        elif not colon and flags and head in flags:
            term = flags[head]
        elif head in (_KEYS if colon else _FLAGS):
            allowed = ", ".join([*(f"{key}:" for key in keys), *(flags or ())])
            raise FilterError(f"{head}{colon} is no term of this list; {allowed} and any text are")
        else:
            term = anywhere(bare)
        found.append(_negated(term) if bare is not word else term)
    return tuple(found)


def _negated(term: Callable[[T], bool]) -> Callable[[T], bool]:
    return lambda one: not term(one)


def parse_numbers(key: str, value: str) -> frozenset[int]:
    """Parse the value of `gpu:0,2`; raises FilterError."""
    try:
        return frozenset(int(part) for part in value.split(",") if part)
    except ValueError:
        raise FilterError(f"{key}:{value} is no number; try {key}:3 or {key}:0,2") from None


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter of the process list: a row must match every term. `parse_terms` has the grammar.

    Terms: `user:ada` (any name that has it, or this uid), `uid:1001` (this one person; `uid:?` is whoever is not
    visible), `gpu:3` or `gpu:0,2`, `pid:123`, `mine`, any other text (found in the command, user, pid or GPU name).
    """

    text: str = ""
    terms: tuple[Callable[[Row], bool], ...] = ()

    def __call__(self, row: Row) -> bool:
        """Return whether a row matches every term."""
        return all(term(row) for term in self.terms)

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Parse a filter; raises FilterError with a sentence for the prompt."""
        terms = parse_terms(text, keys=_ROW_KEYS, flags={"mine": lambda row: row.mine}, anywhere=_anywhere)
        return cls(text.strip(), terms)


def _of_user(value: str) -> Callable[[Row], bool]:
    return lambda row: value in row.owner.casefold() or value == str(row.process.uid)


def _number_term(key: str, get: Callable[[Row], int | None]) -> Callable[[str], Callable[[Row], bool]]:
    def parse(value: str) -> Callable[[Row], bool]:
        if key == "uid" and value in ("?", "none"):
            return lambda row: row.process.uid is None
        numbers = parse_numbers(key, value)
        return lambda row: not numbers or get(row) in numbers

    return parse


def _anywhere(sought: str) -> Callable[[Row], bool]:
    return lambda row: (
        sought in row.command.casefold()
        or sought in row.owner.casefold()
        or sought == str(row.holding.pid)
        or sought in row.gpu.name.casefold()
    )


_ROW_KEYS: Final = {
    "user": _of_user,
    "uid": _number_term("uid", lambda row: row.process.uid),
    "gpu": _number_term("gpu", lambda row: row.gpu.index),
    "pid": _number_term("pid", lambda row: row.holding.pid),
}
