"""Polite message to the owner of processes on a GPU: the facts, and a question. It is copied, never sent."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from gpuwatch.alerts.limits import Allowances
from gpuwatch.alerts.rules.shares import Overshoot, overshoots
from gpuwatch.base.units import gib, long_duration
from gpuwatch.model.fields import Row
from gpuwatch.model.snapshot import Snapshot, known

NAMED: Final = 5
"""Largest number of processes that are named one by one."""
WORTH: Final = 300.0
"""Least idle time, in seconds, that is mentioned."""
_WIDEST: Final = 60
"""Cells of a command."""


def message(held: Sequence[Row], snapshot: Snapshot, allowances: Allowances | None = None) -> str:
    """Return a message of several lines to the owner of these rows: at least one row, all of one person.

    The message contains only measured values: memory and idle time are left out where they are not known.
    """
    whom, host = held[0].owner, snapshot.host or "our GPU machine"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(snapshot.taken))
    rows = sorted(held, key=lambda row: -(row.holding.memory if known(row.holding.memory) else 0))
    over = {(one.gpu, pid): one for one in overshoots(snapshot, allowances) for pid in one.pids}
    lines = [f"Hi {whom},", f"on {host} ({when}) gpuwatch shows that you use:"]
    lines += [f"- {_holding(row, snapshot, over)}" for row in rows[:NAMED]]
    if len(rows) > NAMED:
        rest = [row.holding.memory for row in rows[NAMED:]]
        sizes = [int(size) for size in rest if known(size)]
        least = "at least " * (len(sizes) < len(rest))
        lines.append(f"- and {len(rest)} more with {least}{gib(sum(sizes))} GiB in total")
    return "\n".join([*lines, _request(rows, over)])


def _holding(row: Row, snapshot: Snapshot, over: Mapping[tuple[int, int], Overshoot]) -> str:
    memory = row.holding.memory
    size = f"{gib(memory)} GiB" if known(memory) else "memory"
    parts = [f"{size} on GPU {row.gpu.index}: PID {row.holding.pid}"]
    if row.brief:
        parts[0] += f" ({_whole_words(row.brief)})"
    if one := over.get((row.gpu.index, row.holding.pid)):
        several = f"; {len(one.pids)} processes hold {gib(one.held)} GiB together" * (len(one.pids) > 1)
        beyond, declared = gib(one.held - one.declared), gib(one.declared)
        parts.append(f"{beyond} GiB more than the {declared} GiB declared ({_whole_words(one.where)}){several}")
    if row.process.started is not None:
        parts.append(f"running for {long_duration(snapshot.taken - row.process.started)}")
    if row.idle is not None and row.idle.seconds >= WORTH:
        least = "at least " * row.idle.at_least
        parts.append(f"no kernel run for {least}{long_duration(row.idle.seconds)}")
    return ", ".join(parts)


def _whole_words(text: str) -> str:
    """Return a text of at most `_WIDEST` characters, cut between two words where it has any."""
    if len(text) <= _WIDEST:
        return text
    return f"{text[: _WIDEST - 1].rpartition(' ')[0] or text[: _WIDEST - 2]} …"


def _request(rows: Sequence[Row], over: Mapping[tuple[int, int], Overshoot]) -> str:
    idle = all(row.idle is not None and row.idle.seconds >= WORTH for row in rows)
    it = "it" if len(rows) == 1 else "them"
    if idle:
        return f"If you no longer need {it}, could you end {it}? Others could use the memory. Thank you!"
    if any((row.gpu.index, row.holding.pid) in over for row in rows):
        return "Could you stay within what you declared, or declare what you need? Others count on the rest. Thank you!"
    return "Could you check whether you still need that much? Others could use the memory. Thank you!"
