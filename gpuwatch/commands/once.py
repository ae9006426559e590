"""`gpuwatch --once`: one snapshot as a table or as JSON."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpuwatch.alerts.unattributed import causes
from gpuwatch.analysis.rows import Filter, Row, rows, share_words, sort
from gpuwatch.errors import GpuwatchError, UnavailableError, UsageError
from gpuwatch.model import Gpu, Health, Reading, Snapshot, SourceState, encode, known
from gpuwatch.output.plain import cells, in_ascii, json_in_ascii, speaks_unicode
from gpuwatch.shares import promised, promised_words
from gpuwatch.sources.source import Source
from gpuwatch.text import fit
from gpuwatch.units import UNKNOWN, duration, gib

T = TypeVar("T")

_GAP = "  "
_WIDEST_USER = 24
_WIDEST_PLACE = 24

EVERYTHING = Filter()


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column: its header, what stands in it, and on which side it is aligned."""

    header: str
    cell: Callable[[T], str]
    right: bool = True


def table(snapshot: Snapshot, *, clock: str, width: int | None = None, keep: Filter = EVERYTHING) -> list[str]:
    """Draw a snapshot; `width` is where lines are cut (cells), None for nowhere; `keep` chooses processes."""
    people = len({process.uid for process in snapshot.processes if process.uid is not None})
    head = [
        snapshot.host,
        _count(len(snapshot.gpus), "GPU"),
        _count(len(snapshot.processes), "process", "processes"),
        _count(people, "person", "people"),
        f"driver {snapshot.driver}" if snapshot.driver else "",
        f"CUDA {snapshot.cuda}" if snapshot.cuda else "",
        clock,
    ]
    lines = [" · ".join(word for word in head if word), ""]
    owners = {process.pid: process for process in snapshot.processes}
    room: Column[Gpu] = Column("promised", lambda gpu: promised_words(gpu, owners))
    lines += draw((*GPU_COLUMNS[:4], room, *GPU_COLUMNS[4:]), snapshot.gpus)
    holdings = sort([row for row in rows(snapshot) if keep(row)], "memory")
    holdings.sort(key=lambda row: row.gpu.index)
    if holdings:
        age: Column[Row] = Column("age", lambda row: _age(row, snapshot.taken))
        lines += ["", *draw((*ROW_COLUMNS[:-2], age, *ROW_COLUMNS[-2:]), holdings)]
    else:
        lines += ["", f"no process matches {keep.text}" if keep.terms else "no process holds a GPU"]
    notes = [f"GPU {gpu.index}: {gpu.holdings_note}" for gpu in snapshot.gpus if gpu.holdings_note]
    notes += [*_overcommitted(snapshot), *_gaps(snapshot)]
    lines += ["", *notes] if notes else []
    return [line.rstrip() if width is None else fit(line, width).rstrip() for line in lines]


def _overcommitted(snapshot: Snapshot) -> list[str]:
    """Name the GPUs on which more is declared than they have."""
    people = {process.pid: process for process in snapshot.processes}
    sums = [(gpu.index, promised(gpu, people)) for gpu in snapshot.gpus]
    return [
        f"GPU {index}: over-committed, {gib(one.declared)} GiB declared of {gib(one.total)}"
        for index, one in sums
        if one.overcommitted and one.total is not None
    ]


def _gaps(snapshot: Snapshot) -> list[str]:
    """Give a line for each GPU with much unattributed memory: the likeliest cause, and what would settle it.

    What needs nothing to be done is left out.
    """
    found = [(gpu, causes(gpu, snapshot)) for gpu in snapshot.gpus]
    return [
        f"GPU {gpu.index}: {memory(gpu.unattributed)} GiB unattributed: {first.words}; {first.settle}"
        for gpu, (first, *_) in ((gpu, several) for gpu, several in found if several)
        if known(gpu.unattributed) and not first.harmless
    ]


def draw(columns: Sequence[Column[T]], items: Sequence[T]) -> list[str]:
    """Give a line of headers and a line for each item, in columns."""
    shown = [[column.header for column in columns], *([column.cell(item) for column in columns] for item in items)]
    widths = [max(cells(row[at]) for row in shown) for at in range(len(columns))]
    sides = [column.right for column in columns]
    return [_GAP.join(map(_align, row, widths, sides)) for row in shown]


def _align(text: str, width: int, right: bool) -> str:
    padding = " " * (width - cells(text))
    return padding + text if right else text + padding


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def reading(value: Reading, form: str = ".0f") -> str:
    """Print a reading, or the dash where there is a reason instead."""
    return format(value, form) if known(value) else UNKNOWN


def memory(value: Reading) -> str:
    """Print bytes as GiB, or the dash."""
    return gib(value) if known(value) else UNKNOWN


def state(gpu: Gpu) -> str:
    """Say in words what is not well with a GPU; empty when all is."""
    if gpu.health is not Health.OK:
        return f"{gpu.health.value}: {gpu.words}" if gpu.words else gpu.health.value
    words = list(gpu.throttle) if isinstance(gpu.throttle, tuple) else []
    if gpu.memory.unified:
        words.append("unified memory: the machine's, not the GPU's own")
    return ", ".join(words)


def _power(gpu: Gpu) -> str:
    return f"{reading(gpu.power)}/{reading(gpu.power_limit)}" if known(gpu.power) else UNKNOWN


def _share(row: Row) -> str:
    held, declared = share_words(row)
    return f"{held}/{declared:<10}"  # so that the slashes stand in one column, below that of the title


def _age(row: Row, now: float) -> str:
    return UNKNOWN if row.process.started is None else duration(now - row.process.started)


GPU_COLUMNS: tuple[Column[Gpu], ...] = (
    Column("GPU", lambda gpu: str(gpu.index)),
    Column("name", lambda gpu: gpu.name.removeprefix("NVIDIA ") or UNKNOWN, right=False),
    Column("used GiB", lambda gpu: memory(gpu.memory.used)),
    Column("free", lambda gpu: memory(gpu.memory.free)),
    Column("total", lambda gpu: memory(gpu.memory.total)),
    Column("unattributed", lambda gpu: memory(gpu.unattributed)),
    Column("util %", lambda gpu: reading(gpu.utilization)),
    Column("°C", lambda gpu: reading(gpu.temperature)),
    Column("W/limit", _power),
    Column("state", state, right=False),
)

ROW_COLUMNS: tuple[Column[Row], ...] = (
    Column("GPU", lambda row: str(row.gpu.index)),
    Column("PID", lambda row: str(row.holding.pid)),
    Column("user", lambda row: fit(row.owner, _WIDEST_USER).rstrip(), right=False),
    Column("GiB", lambda row: memory(row.holding.memory)),
    Column("held/declared %", _share),
    Column("SM %", lambda row: reading(row.holding.sm)),
    Column("in", lambda row: fit(row.where, _WIDEST_PLACE).rstrip(), right=False),
    Column("command", lambda row: row.command, right=False),
)


_PATIENCE = 30.0
"""Seconds: longer than the sampler is given to start, so that the words are about the driver and not about us."""


def once(
    source: Source,
    *,
    as_json: bool,
    ascii_only: bool = False,
    only: str = "",
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Print the first snapshot that says something; raises UnavailableError (exit 3) where there is nothing to see."""
    snapshot = first(source, monotonic)
    ascii_only = ascii_only or not speaks_unicode(sys.stdout)
    if as_json:
        text = encode(snapshot).decode()
        print(json_in_ascii(text) if ascii_only else text)
    elif snapshot.gpus:
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size((160, 50)).columns if terminal else None
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.taken))
        lines = table(snapshot, clock=clock, width=width, keep=Filter.parse(only))
        print("\n".join(in_ascii(line) if ascii_only else line for line in lines))
    sys.stdout.flush()
    error = problem(snapshot)
    if error is not None:
        raise error
    return 0


def first(
    source: Source,
    monotonic: Callable[[], float] = time.monotonic,
    *,
    look: float = _PATIENCE,
    check: Callable[[], None] = lambda: None,
) -> Snapshot:
    """Wait for the first snapshot that says something; raises UnavailableError where none comes.

    Every `look` seconds `check` is called, which may raise to end the wait.
    """
    end = monotonic() + _PATIENCE
    while (left := end - monotonic()) > 0:
        snapshot = source.next(timeout=min(left, look))
        check()
        if snapshot is not None and snapshot.state is not SourceState.STARTING:
            return snapshot
    raise UnavailableError(f"the driver has not answered for {_PATIENCE:.0f} s")


def problem(snapshot: Snapshot) -> GpuwatchError | None:
    """Give the error that a snapshot without any GPU to see stands for; None where all is well."""
    if snapshot.state is SourceState.OK:
        return None
    return (UsageError if snapshot.state is SourceState.ENDED else UnavailableError)(snapshot.words)
