"""`gpuwatch strays`: the user's own abandoned processes, and the reason for each.

One snapshot tells neither the idle time of a process nor its CPU use. A gpuwatch that watches, and the machine's
service, store idle times; without one, rules that need them do not match. The CPU use of strays and possible strays is
measured by a second look. The exit code is 0 with or without strays; 3 without a driver.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuwatch.analysis.stray_facts import StrayLimits
from gpuwatch.analysis.strays import STRAY, Stray, StrayCause, StrayCertainty, find_strays, held_words, notes
from gpuwatch.base import psinfo
from gpuwatch.commands.console import Console, TextColumn, format_table
from gpuwatch.commands.flags import add_flags
from gpuwatch.commands.startup import configured, read_snapshot
from gpuwatch.commands.stray_inputs import caller, idle_times, stray_limits
from gpuwatch.model.fields import PROCESS, age
from gpuwatch.model.snapshot import Process, Snapshot
from gpuwatch.sources.sampler_process import SamplerProcess

_WIDEST_PLACE: Final = 24
_INDENT: Final = 4
_COLUMNS: Final = ("pid", "gpu", "memory", "idle", "age", "cause", "in", "command")


def table(
    strays: Sequence[Stray],
    now: float,
    *,
    possible: Sequence[Stray] = (),
    demo: bool = False,
    width: int | None = None,
    root: bool = False,
) -> list[str]:
    """Return a table of strays with their reasons, and below it their memory and how to end them.

    `possible` are processes that may be strays; they come last. `now` is the wall-clock time of the snapshot. `width`
    (cells) is where rows are cut, None for nowhere; the reasons are never cut. `root` is
    whether root would end them.
    """
    every = [*strays, *possible]
    if not every:
        return []
    fields = {**STRAY, "age": PROCESS["age"].of(lambda one: age(one.process.started, now))}
    columns = [TextColumn.of(fields[key], _WIDEST_PLACE if key == "in" else 0) for key in _COLUMNS]
    titles, *rows = format_table(columns, every, width=width)
    lines = [titles]
    for row, stray in zip(rows, every, strict=True):
        lines += [row, " " * _INDENT + " · ".join(stray.why)]
    held = held_words(strays) or "an unknown amount of memory"
    total = [f"{'1 process holds' if len(strays) == 1 else f'{len(strays)} processes hold'} {held}"] * bool(strays)
    if not demo:
        total += _ending(strays, "to end {}", root=root)
        total += _ending(possible, "if nobody needs {}", root=root)
    return [*lines, *[""] * bool(total), *total]


def _ending(strays: Sequence[Stray], when: str, *, root: bool) -> list[str]:
    """Return the command that ends strays, after asking; nothing where no signal reaches any."""
    pids = [str(stray.process.pid) for stray in strays if stray.ends]
    words = when.format("it" if len(strays) == 1 else "them")
    return [f"{words}: gpuwatch kill {'--allow-root-kill ' * root}{' '.join(pids)}"] * bool(pids)


class StrayGpu(msgspec.Struct, frozen=True):
    """GPU of a stray in JSON."""

    index: int
    uuid: str


class StrayJson(msgspec.Struct, frozen=True, rename={"in_": "in"}):
    """Stray in the JSON of `strays`."""

    pid: int
    start: int | None
    """Start in clock ticks since boot."""
    user: str
    command: str
    gpus: Sequence[StrayGpu]
    """The GPU on which it holds most is first."""
    held: int | None
    """Bytes on all GPUs."""
    idle_s: float | None
    idle_at_least: bool
    """It may be idle for longer."""
    age_s: float | None
    cause: StrayCause
    sure: StrayCertainty
    why: Sequence[str]
    """Reasons, the strongest first."""
    in_: str
    """What it runs in: a container, tmux, a notebook; empty if nothing is known."""
    listed: bool
    """Whether the driver lists it."""
    ends: bool
    """Whether a signal can end it; false for a zombie."""


def document(strays: Sequence[Stray], now: float) -> list[StrayJson]:
    """Return strays as they are in JSON."""
    return [
        StrayJson(
            pid=one.process.pid,
            start=one.process.start,
            user=one.process.user,
            command=one.process.command,
            gpus=[StrayGpu(index, key) for index, key in zip(one.indices, one.gpus, strict=True)],
            held=one.held,
            idle_s=one.idle,
            idle_at_least=one.idle_at_least,
            age_s=None if one.process.started is None else max(0.0, now - one.process.started),
            cause=one.cause,
            sure=one.sure,
            why=one.why,
            in_=one.process.context.where if one.process.context is not None else "",
            listed=one.listed,
            ends=one.ends,
        )
        for one in strays
    ]


LOOK: Final = 0.5
"""Seconds between the two readings of possible strays: 50 ticks of the kernel's clock."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "json", "demo")


def main(args: argparse.Namespace, sampler: SamplerProcess | None, limits: StrayLimits | None = None) -> int:
    """Run the command and return its exit code; `limits` replace those of the configuration."""
    config = configured(args)
    limits = limits or stray_limits(config)
    damaged: list[str] = []
    snapshot = read_snapshot(args, config, sampler, tmux=config.tmux, long_search=True)
    kept = idle_times(snapshot, warn=damaged.append)
    if not snapshot.demo:
        snapshot = replace(snapshot, viewer=caller())  # whose processes `gpuwatch kill` would end
        first = find_strays(snapshot, None, limits, idle_times=kept)
        snapshot = measure_cpu(snapshot, [one.process for one in (*first.strays, *first.possible)])
    judged = find_strays(snapshot, None, limits, idle_times=kept)
    strays, possible, _ = judged
    console = Console(ascii_only=config.ascii)
    if args.json:
        console.print_json(msgspec.json.encode(document(strays, snapshot.taken)).decode())
    else:
        root = os.geteuid() == 0
        width = console.width
        console.print(*table(strays, snapshot.taken, possible=possible, demo=snapshot.demo, width=width, root=root))
    console.warn(*damaged, *notes(judged, snapshot, 0.0 if kept is None else None, limits))
    return 0


def measure_cpu(
    snapshot: Snapshot,
    processes: Collection[Process],
    *,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Snapshot:
    """Return a snapshot with the CPU use of these processes over `LOOK` seconds, without those that have ended."""
    if not processes:
        return snapshot
    asked = {one.key for one in processes}
    used = psinfo.measure_cpu(asked, LOOK, pause=pause, clock=clock)

    def seen(process: Process) -> Process | None:
        if process.key not in used:
            return None if process.key in asked else process
        cpu, below = used[process.key]
        return replace(process, cpu=cpu, below=below)

    listed = tuple(one for one in map(seen, snapshot.processes) if one is not None)
    unlisted = tuple(replace(one, process=now) for one in snapshot.unlisted if (now := seen(one.process)) is not None)
    return replace(snapshot, processes=listed, unlisted=unlisted)
