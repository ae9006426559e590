"""`gpuwatch --once`: one snapshot as a table or as JSON."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpuwatch.alerts.unattributed import causes
from gpuwatch.analysis.rows import Filter, Row, rows, share_words, sort
from gpuwatch.commands.console import Column, Console, cut, format_table
from gpuwatch.commands.filters import check_filter_flag
from gpuwatch.commands.flags import parse_indices
from gpuwatch.commands.gpustat import gpustat_json, measure_cpu
from gpuwatch.commands.startup import check_snapshot, configured, first_snapshot, interval_of, open_source
from gpuwatch.config import Config
from gpuwatch.history import IdleTimes
from gpuwatch.model import Gpu, Health, Reading, Snapshot, encode, known
from gpuwatch.shares import DeclaredMemory, declared_memory, format_promised
from gpuwatch.sources.source import Source
from gpuwatch.text import clean, fit
from gpuwatch.units import UNKNOWN, duration, gib

if TYPE_CHECKING:  # the demo needs no child
    from gpuwatch.sources.sampler_process import SamplerProcess

_WIDEST_USER = 24
_WIDEST_PLACE = 24

EVERYTHING = Filter()


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Print one snapshot and return the exit code."""
    if args.recording:
        return _recorded(args)
    only = parse_indices(args.only)
    config = configured(args)
    interval = interval_of(args, config)
    keep = _filter(args, config)
    source = open_source(args, config, sampler, interval=interval, only=only, tmux=config.tmux, once=True)
    try:
        return once(source, Console(ascii_only=config.ascii), as_json=args.json, keep=keep)
    finally:
        source.close()


def _filter(args: argparse.Namespace, config: Config) -> Filter:
    """Return the filter that the flags stand for; raises UsageError."""
    asked = check_filter_flag(args, config)
    words = [f"user:{clean(args.user or '')}"] * bool(args.user) + ["mine"] * bool(args.mine) + [asked] * bool(asked)
    return Filter.parse(" ".join(words), config.filters)


def _recorded(args: argparse.Namespace) -> int:
    """Print one snapshot of a recording: the one at `--at`, or the last."""
    from gpuwatch.commands import recorded  # SQLite and more, which the snapshot of this machine does without

    config = configured(args)
    keep = _filter(args, config)
    console = Console(ascii_only=config.ascii)
    recording = recorded.open_recording(args.recording)
    at = recorded.parse_at(args.at, recording) if args.at is not None else recording.last
    snapshot, warning = recorded.recorded_snapshot(recording, at)
    notes = [*recording.notes]
    print_snapshot(snapshot, console, as_json=args.json, keep=keep)
    console.warn(*notes, *[warning] * bool(warning))
    check_snapshot(snapshot)
    return 0


def once(
    source: Source,
    console: Console,
    *,
    as_json: bool | str,
    keep: Filter = EVERYTHING,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Print the first complete snapshot; raises UnavailableError (exit code 3) where there is no driver or no GPU."""
    snapshot = first_snapshot(source, monotonic)
    if as_json == "gpustat":
        snapshot = measure_cpu(snapshot)
    idle = _idle_times(snapshot) if keep.terms else None
    print_snapshot(snapshot, console, as_json=as_json, keep=keep, idle=idle)
    check_snapshot(snapshot)
    return 0


def print_snapshot(
    snapshot: Snapshot,
    console: Console,
    *,
    as_json: bool | str,
    keep: Filter = EVERYTHING,
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
        console.print(*table(snapshot, clock=clock, width=console.width, keep=keep, idle=idle))


def _idle_times(snapshot: Snapshot) -> IdleTimes | None:
    """Return the idle times that a `gpuwatch watch` has stored, for a filter: one snapshot has none."""
    from gpuwatch.commands.stray_inputs import idle_times  # 15 ms, for those who filter

    return idle_times(snapshot)


def table(
    snapshot: Snapshot,
    *,
    clock: str,
    width: int | None = None,
    keep: Filter = EVERYTHING,
    idle: IdleTimes | None = None,
) -> list[str]:
    """Return the lines of a snapshot, cut at `width` cells (None: not cut), with the processes that `keep` matches."""
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
    processes = {process.pid: process for process in snapshot.processes}
    declared = {gpu.index: declared_memory(gpu, processes) for gpu in snapshot.gpus}
    promised: Column[Gpu] = Column("promised", lambda gpu: format_promised(gpu, declared[gpu.index]))
    lines += format_table((*GPU_COLUMNS[:4], promised, *GPU_COLUMNS[4:]), snapshot.gpus)
    holdings = sort([row for row in rows(snapshot, idle_times=idle) if keep(row)], "memory")
    holdings.sort(key=lambda row: row.gpu.index)
    if holdings:
        age: Column[Row] = Column(
            "age",
            lambda row: UNKNOWN if row.process.started is None else duration(snapshot.taken - row.process.started),
        )
        lines += ["", *format_table((*ROW_COLUMNS[:-2], age, *ROW_COLUMNS[-2:]), holdings)]
    else:
        lines += ["", f"no process matches {keep.text}" if keep.terms else "no process holds a GPU"]
    notes = [f"GPU {gpu.index}: {gpu.holdings_note}" for gpu in snapshot.gpus if gpu.holdings_note]
    if idle is None and re.search(r"(?i)\bidle[<>=]", keep.text):
        notes.append("idle times are not known: one snapshot has none, and no `gpuwatch watch` keeps them here")
    notes += [*_overcommitted(declared), *_gaps(snapshot)]
    lines += ["", *notes] if notes else []
    return [cut(line, width) for line in lines]


def _overcommitted(declared: Mapping[int, DeclaredMemory]) -> list[str]:
    """Return a line for each GPU, by its index, on which processes declared more memory than it has."""
    return [
        f"GPU {index}: overbooked, {gib(one.declared)} GiB declared of {gib(one.total)}"
        for index, one in declared.items()
        if one.overcommitted and one.total is not None
    ]


def _gaps(snapshot: Snapshot) -> list[str]:
    """Return a line for each GPU with much memory of unknown processes: the likeliest cause, and how to check it.

    A harmless cause is left out.
    """
    found = [(gpu, causes(gpu, snapshot)) for gpu in snapshot.gpus]
    return [
        f"GPU {gpu.index}: {memory(gpu.unattributed)} GiB of unknown processes: {first.words}; {first.settle}"
        for gpu, (first, *_) in ((gpu, several) for gpu, several in found if several)
        if known(gpu.unattributed) and not first.harmless
    ]


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def reading(value: Reading, form: str = ".0f") -> str:
    """Return a reading as text; a dash where there is no value."""
    return format(value, form) if known(value) else UNKNOWN


def memory(value: Reading) -> str:
    """Return bytes as GiB; a dash where there is no value."""
    return gib(value) if known(value) else UNKNOWN


def state(gpu: Gpu) -> str:
    """Return the troubles of a GPU in words: health, throttling, unified memory; empty where there are none."""
    if gpu.health is not Health.OK:
        return f"{gpu.health.value}: {gpu.words}" if gpu.words else gpu.health.value
    words = list(gpu.throttle) if isinstance(gpu.throttle, tuple) else []
    if gpu.memory.unified:
        words.append("unified memory: the machine's, not the GPU's own")
    return ", ".join(words)


def _share(row: Row) -> str:
    held, declared = share_words(row)
    return f"{held}/{declared:<7}"  # so that the slashes stand in one column, below that of the title


GPU_COLUMNS: tuple[Column[Gpu], ...] = (
    Column("GPU", lambda gpu: str(gpu.index)),
    Column("name", lambda gpu: gpu.name.removeprefix("NVIDIA ") or UNKNOWN, right=False),
    Column("used GiB", lambda gpu: memory(gpu.memory.used)),
    Column("free", lambda gpu: memory(gpu.memory.free)),
    Column("total", lambda gpu: memory(gpu.memory.total)),
    Column("unknown", lambda gpu: memory(gpu.unattributed)),
    Column("util %", lambda gpu: reading(gpu.utilization)),
    Column("°C", lambda gpu: reading(gpu.temperature)),
    Column("W/limit", lambda gpu: f"{reading(gpu.power)}/{reading(gpu.power_limit)}" if known(gpu.power) else UNKNOWN),
    Column("state", state, right=False),
)

ROW_COLUMNS: tuple[Column[Row], ...] = (
    Column("GPU", lambda row: str(row.gpu.index)),
    Column("PID", lambda row: str(row.holding.pid)),
    Column("user", lambda row: fit(row.owner, _WIDEST_USER).rstrip(), right=False),
    Column("GiB", lambda row: memory(row.holding.memory)),
    Column("used/limit %", _share),
    Column("SM %", lambda row: reading(row.holding.sm)),
    Column("runs in", lambda row: fit(row.where, _WIDEST_PLACE).rstrip(), right=False),
    Column("command", lambda row: row.command, right=False),
)
