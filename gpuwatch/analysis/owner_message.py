"""Polite message to the owner of processes on a GPU: the facts, and a question. It is copied, never sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from gpuwatch.fields import Row
from gpuwatch.model import Snapshot, known
from gpuwatch.units import gib, long_duration, percent

NAMED: Final = 5
"""Largest number of processes that are named one by one."""
WORTH: Final = 300.0
"""Least idle time, in seconds, that is mentioned."""


def message(held: Sequence[Row], snapshot: Snapshot) -> str:
    """Return a message of several lines to the owner of these rows: at least one row, all of one person.

    The message contains only measured values: memory and idle time are left out where they are not known.
    """
    whom, host = held[0].owner, snapshot.host or "our GPU machine"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(snapshot.taken))
    rows = sorted(held, key=lambda row: -(row.holding.memory if known(row.holding.memory) else 0))
    lines = [f"Hi {whom},", f"on {host} ({when}) gpuwatch shows that you hold:"]
    lines += [f"- {_holding(row, snapshot)}" for row in rows[:NAMED]]
    if len(rows) > NAMED:
        rest = [row.holding.memory for row in rows[NAMED:]]
        sizes = [int(size) for size in rest if known(size)]
        least = "at least " * (len(sizes) < len(rest))
        lines.append(f"- and {len(rest)} more with {least}{gib(sum(sizes))} GiB in all")
    return "\n".join([*lines, _request(rows)])


def _holding(row: Row, snapshot: Snapshot) -> str:
    memory = row.holding.memory
    size = f"{gib(memory)} GiB" if known(memory) else "memory"
    parts = [f"{size} on GPU {row.gpu.index}: PID {row.holding.pid}"]
    if row.brief:
        parts[0] += f" ({row.brief[:60]})"
    if row.process.started is not None:
        parts.append(f"running for {long_duration(snapshot.taken - row.process.started)}")
    if row.idle is not None and row.idle.seconds >= WORTH:
        least = "at least " * row.idle.at_least
        parts.append(f"no kernel run for {least}{long_duration(row.idle.seconds)}")
    if row.declared is not None and row.share is not None and row.limit is not None and not row.limit.scope:
        over = row.share > row.declared
        parts += [f"{percent(row.share, 100)} % of the GPU, declared {percent(row.declared, 100)} %"] * over
    return ", ".join(parts)


def _request(rows: Sequence[Row]) -> str:
    idle = all(row.idle is not None and row.idle.seconds >= WORTH for row in rows)
    it = "it" if len(rows) == 1 else "them"
    if idle:
        return f"If you no longer need {it}, could you end {it}? Others could use the memory. Thank you!"
    return "Could you check whether you still need that much? Others could use the memory. Thank you!"
