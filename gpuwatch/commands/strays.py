"""`gpuwatch strays`: one's own processes that nobody tends, and why each is called so.

One look tells neither for how long a process has been idle nor how busy its CPU is. The first is known where a
`gpuwatch watch` has kept it, and else the rules that need it do not hold; for the second, those that would be called
strays are looked at once more. The exit code is 0 whatever is found, as of `gpuwatch events`; 3 where there is no
driver.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuwatch import procfs

if TYPE_CHECKING:
    from gpuwatch.config import Config
    from gpuwatch.history import HistoryView
    from gpuwatch.model import Gpu, Process, Snapshot
    from gpuwatch.sources.child import Child
    from gpuwatch.strays import Known, Stray, Tending

LOOK: Final = 0.5
"""Seconds between the two looks at those that may be strays: 50 ticks of the kernel's clock."""

_DEMO_SECONDS: Final = 2400.0
_DEMO_STEP: Final = 13.0
"""Seconds: no period of the demo's script is a multiple of it, so that nobody seems idle who is not."""


def main(args: argparse.Namespace, sampler: Child | None, tending: Tending | None = None) -> int:
    """Run the command and give its exit code; raises UsageError and UnavailableError. `tending` are other limits."""
    from gpuwatch.output.plain import in_ascii, json_in_ascii, speaks_unicode
    from gpuwatch.output.strays import document, table
    from gpuwatch.strays import USUAL, find, suspects, unjudged
    from gpuwatch.wiring import configured

    config, limits = configured(args), tending or USUAL
    kept: Known | None
    damaged: list[str] = []
    if args.demo:
        snapshot, history = demo()
        kept = {}
    else:
        snapshot, history = _sampled(sampler, config), None
        kept = told_by_watch(warn=damaged.append)
        snapshot = looked_again(snapshot, [one.process for one in find(snapshot, history, limits, known=kept or {})])
    found = find(snapshot, history, limits, known=kept or {})
    sure = {one.key for one in found}
    unsure = [one for one in suspects(snapshot, history, limits, known=kept or {}) if one.key not in sure]
    if args.json:
        import msgspec

        lines = [msgspec.json.encode(document(found, snapshot.taken)).decode()]
    else:
        width = shutil.get_terminal_size((160, 50)).columns if sys.stdout.isatty() else None
        root = os.geteuid() == 0
        lines = table(found, snapshot.taken, demo=args.demo, width=width, root=root) if found else []
    blind = [f"GPU {gpu.index} could not be judged: {_why(gpu, snapshot)}" for gpu in unjudged(snapshot)]
    said = damaged + words(found, unsure, kept, demo=args.demo, searched=snapshot.searched > 0, blind=blind)
    for stream, texts, start in ((sys.stdout, lines, ""), (sys.stderr, said, "gpuwatch: ")):
        plain = config.ascii or not speaks_unicode(stream)
        spelt = json_in_ascii if args.json and stream is sys.stdout else in_ascii
        _print((spelt(line) if plain else line for line in texts), stream, start)
    return 0


def _print(lines: Iterable[str], stream: Any, start: str) -> None:
    for line in lines:
        stream.write(f"{start}{line}\n")
    stream.flush()


def words(
    found: Sequence[Stray],
    unsure: Sequence[Process],
    kept: Known | None,
    *,
    demo: bool = False,
    searched: bool = True,
    blind: Sequence[str] = (),
) -> list[str]:
    """Say what the lines do not: that there are none, and of whom it cannot be told.

    `searched` is whether all processes were looked into for who has a GPU open without being listed; `blind` says
    which GPUs could not be judged, and why.
    """
    said = [] if found else ["none found" if blind else "none of your processes is a stray"]
    said += blind
    if unsure:
        pids = ", ".join(str(process.pid) for process in unsure)
        one = len(unsure) == 1
        who = "1 of your processes may be a stray" if one else f"{len(unsure)} of your processes may be strays"
        idle = "whether it is idle" if one else "whether they are idle"
        said.append(f"{who} ({pids}); {idle} is not known: leave `gpuwatch watch` running")
    elif kept is None and not found and not demo:
        said.append("who has been idle, and for how long, is only known while `gpuwatch watch` runs")
    if not searched and not demo:
        said.append("there was no time to look into all processes: one that NVML does not list may be missing here")
    return said


def looked_again(
    snapshot: Snapshot,
    processes: Sequence[Process],
    *,
    proc: Path = procfs.PROC,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Snapshot:
    """Give a snapshot with what the CPU of these processes does, in percent of one core, over `LOOK` seconds.

    Those that have ended meanwhile are left out. It waits only where there is one.
    """
    from msgspec.structs import replace

    if not processes:
        return snapshot
    before = {one.key: _used(one, proc) for one in processes}
    began = clock()
    pause(LOOK)
    seconds = max(clock() - began, 0.001)
    after = {one.key: _used(one, proc) for one in processes}

    def seen(process: Process) -> Process | None:
        if process.key not in before:
            return process
        first, last = before[process.key], after[process.key]
        if first is None or last is None:
            return None
        used, below = (max(0, new - old) / os.sysconf("SC_CLK_TCK") for old, new in zip(first, last, strict=True))
        return replace(process, cpu=round(100 * used / seconds, 1), below=round(100 * below / seconds, 1))

    listed = tuple(one for one in map(seen, snapshot.processes) if one is not None)
    unlisted = tuple(replace(one, process=now) for one in snapshot.unlisted if (now := seen(one.process)) is not None)
    return replace(snapshot, processes=listed, unlisted=unlisted)


def _used(process: Process, proc: Path) -> tuple[int, int] | None:
    """Give the ticks that a process, and what it has started, have spent on the CPU; None for one that has gone."""
    try:
        stat = procfs.read_stat(process.pid, proc)
    except (OSError, ValueError):
        return None
    if stat.start_ticks != process.start:
        return None
    return stat.used, procfs.used_below(process.pid, stat, proc)


def _sampled(sampler: Child | None, config: Config) -> Snapshot:
    from gpuwatch.output.once import first, problem
    from gpuwatch.sources.child import sampler_arguments
    from gpuwatch.wiring import ordered, source_of

    child = ordered(
        sampler, ["--once", "--patient", *sampler_arguments(1.0, (), shares=config.shares, tmux=config.tmux)]
    )
    source = source_of(child, 1.0, (), config)
    try:
        snapshot = first(source)
    finally:
        source.close()
    error = problem(snapshot)
    if error is not None:
        raise error
    return of_caller(snapshot)


def of_caller(snapshot: Snapshot, environ: Mapping[str, str] = os.environ) -> Snapshot:
    """Give a snapshot as seen by whoever's processes `gpuwatch kill` would end: under sudo who called it."""
    from msgspec.structs import replace

    from gpuwatch.actions.kill import Policy

    return replace(snapshot, viewer=Policy.of_this_process(read_only=False, environ=environ).may_end)


def _why(gpu: Gpu, snapshot: Snapshot) -> str:
    """Say why nothing can be said of who is idle on a GPU."""
    from gpuwatch.model import Health
    from gpuwatch.strays import has_unsure

    if gpu.health is not Health.OK:
        return ", ".join(filter(None, (gpu.health.value, gpu.words)))
    if gpu.unreliable:
        return "its list of processes makes no sense"
    if has_unsure(gpu, snapshot):
        return "the driver may mean processes outside of this container"
    return gpu.holdings_note or "its figures are old"


def told_by_watch(
    environ: Mapping[str, str] = os.environ, warn: Callable[[str], None] = lambda words: None
) -> Known | None:
    """Give the idle times that a `gpuwatch watch` keeps, under sudo root's or the caller's; None where none runs.

    `warn` is told, in one line, of a file that is damaged.
    """
    from gpuwatch.actions.kill import Policy
    from gpuwatch.sinks.newest import read_idle

    policy = Policy.of_this_process(read_only=False, environ=environ)
    people = dict.fromkeys((policy.euid, policy.may_end))
    found = [one for uid in people if (one := read_idle(uid=uid, warn=warn)) is not None]
    return next(filter(None, found), {} if found else None)


def demo() -> tuple[Snapshot, HistoryView]:
    """Give what somebody sees who has watched the demo for 40 minutes."""
    from gpuwatch.history import History
    from gpuwatch.sources.demo import DemoSource

    source, history = DemoSource(), History()
    for step in range(int(_DEMO_SECONDS / _DEMO_STEP), -1, -1):
        snapshot = source.at(-step * _DEMO_STEP)
        history.add(snapshot, snapshot.monotonic)
    return snapshot, history.view
