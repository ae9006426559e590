"""Strays as lines of text, two each: what it holds, and why it is called one; and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gpuwatch.analysis.strays import Stray
from gpuwatch.output.table import Column, draw
from gpuwatch.text import fit
from gpuwatch.units import UNKNOWN, duration, gib, size

_WIDEST_PLACE: Final = 24
_INDENT: Final = 4


def table(
    strays: Sequence[Stray],
    now: float,
    *,
    possible: Sequence[Stray] = (),
    demo: bool = False,
    width: int | None = None,
    root: bool = False,
) -> list[str]:
    """Give the lines of a table of strays, and below it what they hold and how to end them; none where there is none.

    `possible` are those that may be strays; they come last, and nothing is said of ending them. `now` is the wall-clock
    time of the snapshot. `width` (cells) is where rows are cut, None for nowhere; the reasons are never cut. `root` is
    whether root would end them.
    """
    every = [*strays, *possible]
    if not every:
        return []
    age: Column[Stray] = Column("age", lambda one: _age(one, now))
    titles, *rows = draw((*_COLUMNS[:4], age, *_COLUMNS[4:]), every)
    lines = [_cut(titles, width)]
    for row, stray in zip(rows, every, strict=True):
        lines += [_cut(row, width), " " * _INDENT + " · ".join(stray.why)]
    return [*lines, "", *_total(strays, demo=demo, root=root)] if strays else lines


def _cut(line: str, width: int | None) -> str:
    return (line if width is None else fit(line, width)).rstrip()


def _total(strays: Sequence[Stray], *, demo: bool, root: bool) -> list[str]:
    sizes = [one.held for one in strays if one.held is not None]
    held = f"{'at least ' * (len(sizes) < len(strays))}{size(sum(sizes))}" if sizes else "memory that is not known"
    one = len(strays) == 1
    lines = [f"{'1 process holds' if one else f'{len(strays)} processes hold'} {held}"]
    ending = [str(stray.process.pid) for stray in strays if stray.ends]
    if ending and not demo:
        flag = "--allow-root-kill " * root
        lines.append(f"to end {'it' if one else 'them'}: gpuwatch kill {flag}{' '.join(ending)}")
    return lines


def document(strays: Sequence[Stray], now: float) -> list[dict[str, Any]]:
    """Give strays as JSON has them: a list of objects; what is not known is null.

    pid, start (ticks since boot), user, command; gpus: [{index, uuid}], those it holds most on first; held (bytes);
    idle_s, idle_at_least (it may be longer), age_s; cause, sure, why (a list of words); in (what it runs in); listed
    (whether NVML lists it), ends (whether a signal can end it).
    """
    return [
        {
            "pid": one.process.pid,
            "start": one.process.start,
            "user": one.process.user,
            "command": one.process.command,
            "gpus": [{"index": index, "uuid": key} for index, key in zip(one.indices, one.gpus, strict=True)],
            "held": one.held,
            "idle_s": one.idle,
            "idle_at_least": one.idle_at_least,
            "age_s": None if one.process.started is None else max(0.0, now - one.process.started),
            "cause": one.cause.value,
            "sure": one.sure.value,
            "why": list(one.why),
            "in": _place(one),
            "listed": one.listed,
            "ends": one.ends,
        }
        for one in strays
    ]


def _place(stray: Stray) -> str:
    around = stray.process.surroundings
    return around.where if around is not None else ""


def _age(stray: Stray, now: float) -> str:
    return UNKNOWN if stray.process.started is None else duration(now - stray.process.started)


def _idle(stray: Stray) -> str:
    return UNKNOWN if stray.idle is None else f"{'≥' * stray.idle_at_least}{duration(stray.idle)}"


_COLUMNS: Final[tuple[Column[Stray], ...]] = (
    Column("PID", lambda one: str(one.process.pid)),
    Column("GPU", lambda one: ",".join(map(str, one.indices)) or UNKNOWN),
    Column("GiB", lambda one: UNKNOWN if one.held is None else gib(one.held)),
    Column("idle", _idle),
    Column("stray", lambda one: f"{one.cause.value}, {one.sure.value}", right=False),
    Column("in", lambda one: fit(_place(one) or UNKNOWN, _WIDEST_PLACE).rstrip(), right=False),
    Column("command", lambda one: one.process.command or f"[{one.process.name}]", right=False),
)
