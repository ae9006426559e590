"""Snapshot as a table or as JSON, as `gpuwatch --once` prints it."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rule import RuleContext
from gpuwatch.alerts.rules.shares import AT_ONCE
from gpuwatch.alerts.unattributed import GapEvidence, cut_words
from gpuwatch.analysis.rows import process_order, rows
from gpuwatch.base.text import clean
from gpuwatch.base.units import gib
from gpuwatch.commands.console import Console, TextColumn, cut, format_table
from gpuwatch.commands.gpustat import gpustat_json, measure_cpu
from gpuwatch.commands.startup import check_filter_flag, check_snapshot, first_snapshot
from gpuwatch.config.types import Config
from gpuwatch.history.history import HistoryView
from gpuwatch.model.fields import GPU, PROCESS, Field, Row, host_words, process_words, share_words, state_words
from gpuwatch.model.filters import Filter
from gpuwatch.model.shares import DeclaredMemory, declared_memory, unread_processes, unread_words
from gpuwatch.model.snapshot import Gpu, IdleTimes, Snapshot, encode
from gpuwatch.sources.source import Source

_WIDEST_USER = 24
_WIDEST_PLACE = 24

EVERYTHING = Filter()


def parse_filter(args: argparse.Namespace, config: Config) -> Filter:
    """Return the filter that the flags ask for; raises UsageError."""
    asked = check_filter_flag(args, config)
    words = [f"user:{clean(args.user or '')}"] * bool(args.user) + ["mine"] * bool(args.mine) + [asked] * bool(asked)
    return Filter.parse(" ".join(words), config.filters, finished=True)


def once(
    source: Source,
    console: Console,
    *,
    as_json: bool | str,
    keep: Filter = EVERYTHING,
    limits: Limits | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Print the first complete snapshot; raises UnavailableError (exit code 3) without a driver or a GPU."""
    snapshot = first_snapshot(source, monotonic)
    if as_json == "gpustat":
        snapshot = measure_cpu(snapshot)
    idle = None
    if keep.terms:  # one snapshot has no idle times: these are what others have counted
        from gpuwatch.commands.stray_inputs import idle_times  # for those who filter

        idle = idle_times(snapshot)
    print_snapshot(snapshot, console, as_json=as_json, keep=keep, limits=limits, idle=idle)
    check_snapshot(snapshot)
    return 0


def print_snapshot(
    snapshot: Snapshot,
    console: Console,
    *,
    as_json: bool | str,
    keep: Filter = EVERYTHING,
    limits: Limits | None = None,
    idle: IdleTimes | None = None,
) -> None:
    """Print a snapshot as a table, with the processes that `keep` matches, or as JSON (`"gpustat"`: as gpustat's)."""
    if as_json == "gpustat":
        if snapshot.gpus:  # like gpustat, which prints none without a driver
            console.print_json(gpustat_json(snapshot).decode())
    elif as_json:
        console.print_json(encode(snapshot).decode())
    elif snapshot.gpus:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.taken))
        console.print(*table(snapshot, clock=clock, width=console.width, keep=keep, limits=limits, idle=idle))


def table(
    snapshot: Snapshot,
    *,
    clock: str,
    width: int | None = None,
    keep: Filter = EVERYTHING,
    limits: Limits | None = None,
    idle: IdleTimes | None = None,
) -> list[str]:
    """Return the lines of a snapshot, cut at `width` cells (None: not cut), with the processes that `keep` matches."""
    people = len({process.uid for process in snapshot.processes if process.uid is not None})
    head = [
        snapshot.host,
        _count(len(snapshot.gpus), "GPU"),
        listed := process_words(snapshot.gpus, len(snapshot.processes)),
        _count(people, "person", "people") if people or listed == "0 processes" else "",
        *host_words(snapshot.host_usage),
        clock,
    ]
    lines = [" · ".join(word for word in head if word), ""]
    processes = {process.pid: process for process in snapshot.processes}
    declared = {gpu.index: declared_memory(gpu, processes) for gpu in snapshot.gpus}
    over = _over_declared(snapshot, limits or Limits())
    state: Field[Gpu] = GPU["state"].of(lambda gpu: ", ".join(filter(None, (*over.get(gpu.key, ()), state_words(gpu)))))
    lines += format_table([*(TextColumn.of(GPU[key]) for key in _GPU_COLUMNS), TextColumn.of(state)], snapshot.gpus)
    holdings = process_order().sort([row for row in rows(snapshot, idle_times=idle) if keep(row)], "memory")
    holdings.sort(key=lambda row: row.gpu.index)
    if holdings:
        columns = [one for one in _ROW_COLUMNS if any(map(str.strip, map(one.cell, holdings)))]
        lines += ["", *format_table(columns, holdings)]
    else:
        noted = any(gpu.holdings_note for gpu in snapshot.gpus)
        none = listed if noted and not snapshot.processes else "no process uses a GPU"
        lines += ["", f"no process matches {keep.text}" if keep.terms else none]
    notes = [f"GPU {gpu.index}: {gpu.holdings_note}" for gpu in snapshot.gpus if gpu.holdings_note]
    if idle is None and re.search(r"(?i)\bidle\b", keep.text):
        notes.append("idle times are not known: no gpuwatch of yours or of the machine is running")
    notes += [*_overbooked(declared), *_gaps(snapshot)]
    if unread := unread_processes(snapshot):
        notes.append(f"{unread_words(unread)}; `left` may be too large")
    lines += ["", *notes] if notes else []
    return [cut(line, width) for line in lines]


def _over_declared(snapshot: Snapshot, limits: Limits) -> dict[str, list[str]]:
    """Return the states of GPUs, by key, that the dashboard raises alerts about once they have lasted."""
    context = RuleContext(snapshot, HistoryView(), limits)
    found: dict[str, list[str]] = {}
    for seen in (seen for rule in AT_ONCE for seen in rule.find(context)):
        if seen.level is not None and seen.gpu is not None:
            found.setdefault(seen.gpu.key, []).append(seen.short)
    return found


def _overbooked(declared: Mapping[int, DeclaredMemory]) -> list[str]:
    """Return a line for each GPU, by its index, on which processes declared more memory than it has."""
    return [
        f"GPU {index}: overbooked, {gib(one.declared)} GiB declared of {gib(one.total)}"
        for index, one in declared.items()
        if one.overbooked and one.total is not None
    ]


def _gaps(snapshot: Snapshot) -> list[str]:
    """Return a line for each GPU with much memory of unknown processes: the likeliest cause, and how to check it.

    A harmless cause is left out.
    """
    unknown = GPU["unknown"]
    evidence = GapEvidence(snapshot)
    found = [(gpu, evidence.causes(gpu)) for gpu in snapshot.gpus]
    lines = [
        f"GPU {gpu.index}: {GPU['unknown'].cell(gpu)} GiB of unknown processes: {first.reason}; {first.step}"
        for gpu, (first, *_) in ((gpu, several) for gpu, several in found if several)
        if unknown.amount(gpu) is not None and not first.harmless
    ]
    cut = cut_words(snapshot) if lines else ""
    return lines + [cut] * (bool(cut) and not any(cut in line for line in lines))


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _share(row: Row) -> str:
    used, declared = share_words(row)
    # So that the slashes are in one column, below the slash of the title.
    return f"{used}{'/' if declared else ' '}{declared:<10}"


_GPU_COLUMNS: Final = (
    "gpu",
    "name",
    "memory",
    "free",
    "left",
    "total",
    "unknown",
    "utilization",
    "temperature",
    "watts",
)
_ROW_COLUMNS: Final[Sequence[TextColumn[Row]]] = (
    TextColumn.of(PROCESS["gpu"]),
    TextColumn.of(PROCESS["pid"]),
    TextColumn.of(PROCESS["user"], _WIDEST_USER),
    TextColumn.of(PROCESS["memory"]),
    TextColumn.of(PROCESS["used"].of(_share)),
    TextColumn.of(PROCESS["sm"]),
    TextColumn.of(PROCESS["age"]),
    TextColumn.of(PROCESS["in"], _WIDEST_PLACE),
    TextColumn.of(PROCESS["command"]),
)
