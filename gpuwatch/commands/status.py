"""`gpuwatch status`: one short line for a status bar."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import clean, fit
from gpuwatch.base.units import long_duration
from gpuwatch.commands.console import Console, escape_json
from gpuwatch.commands.flags import add_flags
from gpuwatch.commands.startup import configured, configured_sampler, open_source
from gpuwatch.config.types import Config
from gpuwatch.model.live import PACE, LiveFileError, Status, read_service, read_status
from gpuwatch.model.snapshot import Health, SourceState, known
from gpuwatch.sampler.protocol import SamplerOptions
from gpuwatch.sources.sampler_process import ONE_SAMPLE, WITHOUT_INSPECTOR, SamplerProcess

CELLS: Final = 72
"""Largest width of the line: a status bar has other contents too."""
STALE: Final = 5.0
"""Age of the newest values, in intervals, from which on the line shows it."""

_NAME: Final = 12
"""Cells for a user's name."""
_NO_DRIVER: Final = {
    SourceState.NO_DRIVER: "no NVIDIA driver",
    SourceState.DRIVER_DOWN: "NVIDIA driver down",
    SourceState.NO_GPU: "no GPU",
    SourceState.SILENT: "driver not responding",
}


class StatusPart(NamedTuple):
    """A few words, and the colour that they have in tmux; none for the terminal's own."""

    words: str
    color: str = ""


def status_line(status: Status, now: float, *, tmux: bool = False) -> str:
    """Return the line at `now` (the machine's monotonic clock); a long line omits the least important parts.

    With `tmux` the line has tmux's colour codes, and each `#` in a name is doubled, which tmux shows as one `#`.
    """
    kept: list[StatusPart] = []
    cut = False
    for part in parts(status, now):
        wanted = sum(len(one.words) + len(" · ") for one in kept) + len(part.words)
        if kept and wanted > CELLS - 2:  # two for the sign that something was left out
            cut = True
            break
        kept.append(part)
    line = " · ".join(_in_tmux(one) if tmux else one.words for one in kept)
    return f"{line} …" if cut else line


def exit_code(status: Status) -> int:
    """Return 3 without a driver or a GPU, else 0."""
    return 3 if status.state in _NO_DRIVER else 0


def parts(status: Status, now: float) -> Iterator[StatusPart]:
    """Return the parts of the line: the head, then the troubles, worst first."""
    if not status.gpus:
        yield StatusPart(_NO_DRIVER.get(status.state, "") or clean(status.words or status.state.value, CELLS))
        return
    count = len(status.gpus)
    busy = [float(gpu.utilization) for gpu in status.gpus if gpu.health is Health.OK and known(gpu.utilization)]
    mean = f"{sum(busy) / len(busy):.0f}%" if busy else "—"
    yield StatusPart(f"{count} GPU{'s' * (count > 1)} {mean}")
    if status.state in _NO_DRIVER:
        yield StatusPart(_NO_DRIVER[status.state], "red")
    age = now - status.sampled if status.sampled is not None else 0.0
    if age > max(STALE * status.interval, 2 * PACE):
        yield StatusPart(f"stale {long_duration(age)}", "red")
    for health in Health:
        several = sum(gpu.health is health for gpu in status.gpus)
        if health is not Health.OK and several:
            yield StatusPart(f"{several} {health.value}", "red")
    full, near = (sum(gpu.near == level for gpu in status.gpus) for level in ("critical", "warning"))
    if full:
        yield StatusPart(f"{full + near} nearly full", "red")
    if status.others:
        also = f" +{status.others - 1}" if status.others > 1 else ""
        yield StatusPart(f"{clean(status.other, 40)}{also}" if status.other else f"{status.others} critical", "red")
    if status.over:
        worst, more = status.over[0], len(status.over) - 1
        also = f" +{more}" if more else ""
        yield StatusPart(f"{fit(clean(worst.user), _NAME).rstrip()} {worst.gib:.1f} over{also}", "yellow")
    if near and not full:
        yield StatusPart(f"{near} nearly full", "yellow")


def _in_tmux(part: StatusPart) -> str:
    words = part.words.replace("#", "##")
    return f"#[fg={part.color}]{words}#[default]" if part.color else words


_PATIENCE: Final = 3.0
"""Seconds to wait for a sample: a driver that hangs must not stop the status bar."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "json", "demo")
    parser.add_argument("--tmux", action="store_true", help="with colours for tmux")
    # By its path where it was called by one: a tmux server need not have the PATH of a virtual environment.
    path = Path(sys.argv[0]).absolute()
    program = str(path) if path.name == "gpuwatch" and re.fullmatch(r"[\w./+-]+", str(path)) else "gpuwatch"
    parser.epilog = (
        "in ~/.tmux.conf:\n"
        f"  set -g status-right '#({program} status --tmux)'\n"
        "  set -g status-right-length 80\n"
        "  set -g status-interval 5"
    )


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Print the line and return its exit code; `sampler` may take a sample already, or wait for its orders."""
    if args.tmux and args.json:
        raise UsageError("--tmux and --json cannot be used together")
    damaged: list[str] = []
    status = None if args.demo else read_status(warn=damaged.append)
    if status is None and not args.demo:
        with contextlib.suppress(LiveFileError):
            status = read_service()
    if status is None and not args.demo and (sampler is None or not sampler.is_configured):
        sampler = configured_sampler(sampler, ONE_SAMPLE, command=WITHOUT_INSPECTOR)
    config = configured(args)
    if status is None:
        status = _sampled(args, config, sampler)
    console = Console(ascii_only=config.ascii)
    console.warn(*(f"{words}; gpuwatch took a new sample instead" for words in damaged))
    if args.json:
        shown = msgspec.structs.replace(status, resting=(), processes=())  # for strays, and for the sampler
        console.print(escape_json(msgspec.json.encode(shown).decode()))
    else:
        console.print(status_line(status, time.monotonic(), tmux=args.tmux))
    return exit_code(status)


def _sampled(args: argparse.Namespace, config: Config, sampler: SamplerProcess | None) -> Status:
    """Take one sample and judge it as if its values had lasted; the declarations of processes are not read."""
    # These take longer to import than all else here, and mostly there are published figures to read.
    from gpuwatch.alerts.engine import Engine
    from gpuwatch.alerts.rule import SAMPLES
    from gpuwatch.history.history import History
    from gpuwatch.recorder.live_writer import make_status
    from gpuwatch.sources.local import LocalSource

    source = (
        open_source(args, config, None)
        if args.demo
        else LocalSource(SamplerOptions(shares=config.shares), first=sampler)
    )
    try:
        end = time.monotonic() + _PATIENCE
        while True:
            snapshot = source.next(max(0.0, end - time.monotonic()))
            now = time.monotonic()
            if snapshot is not None and snapshot.state is not SourceState.STARTING:
                break
            if now >= end:
                return Status(state=SourceState.SILENT)
    finally:
        source.close()
    if snapshot.state is SourceState.ENDED:
        raise UsageError(snapshot.words)
    limits = config.limits()
    at_once = msgspec.structs.replace(limits.allowances, after=0.0)
    limits = msgspec.structs.replace(limits, quiet=0.0, memory_for=0.0, allowances=at_once)
    engine, history = Engine(limits), History()
    for number in range(SAMPLES):  # as if the state had lasted as many samples as a rule waits for
        moment = now + number * 1e-3
        gpus = tuple(msgspec.structs.replace(gpu, sampled=gpu.sampled + number * 1e-3) for gpu in snapshot.gpus)
        again = msgspec.structs.replace(snapshot, gpus=gpus)
        alerts = engine.update(again, history.add(again, moment), moment, time.time()).active
    return make_status(snapshot, alerts, now)
