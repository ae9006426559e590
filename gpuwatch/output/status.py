"""`gpuwatch status`: the newest figures in one short line, what is worst right after the head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatch.model import Health, SourceState, known
from gpuwatch.text import clean, fit

if TYPE_CHECKING:
    from gpuwatch.recorder.status_file import Newest

CELLS: Final = 60
"""What the line is kept to: a status bar has more to show than us."""
STALE: Final = 5.0
"""Age of the newest figures, in intervals, from which it is said."""

_NAME: Final = 12
"""Cells for a user's name."""
_NO_DRIVER: Final = {
    SourceState.NO_DRIVER: "no NVIDIA driver",
    SourceState.DRIVER_DOWN: "NVIDIA driver down",
    SourceState.NO_GPU: "no GPU",
    SourceState.SILENT: "driver not responding",
}


class Part(NamedTuple):
    """A few words, and the colour that they have in tmux; none for the terminal's own."""

    words: str
    color: str = ""


def status_line(found: Newest, now: float, *, tmux: bool = False) -> str:
    """Give the line at `now` (the machine's monotonic clock); what is least is left out where it would get too long.

    In tmux's own language with `tmux`: colours, and every `#` of somebody else's doubled, which is how tmux writes one.
    """
    kept: list[Part] = []
    cut = False
    for part in parts(found, now):
        wanted = sum(len(one.words) + len(" · ") for one in kept) + len(part.words)
        if kept and wanted > CELLS - 2:  # two for the sign that something was left out
            cut = True
            break
        kept.append(part)
    line = " · ".join(_in_tmux(one) if tmux else one.words for one in kept)
    return f"{line} …" if cut else line


def exit_code(found: Newest) -> int:
    """Give 3 where there is nothing to see for want of a driver or a GPU, else 0."""
    return 3 if found.state in _NO_DRIVER else 0


def parts(found: Newest, now: float) -> Iterator[Part]:
    """Give what the line is made of: the head, then the worst first."""
    if not found.gpus:
        yield Part(_NO_DRIVER.get(found.state, "") or clean(found.words or found.state.value, CELLS))
        return
    count = len(found.gpus)
    busy = [float(gpu.utilization) for gpu in found.gpus if gpu.health is Health.OK and known(gpu.utilization)]
    mean = f"{sum(busy) / len(busy):.0f}%" if busy else "—"
    yield Part(f"{count} GPU{'s' * (count > 1)} {mean}")
    if found.state in _NO_DRIVER:
        yield Part(_NO_DRIVER[found.state], "red")
    yield from _stale(found, now)
    for health in Health:
        several = sum(gpu.health is health for gpu in found.gpus)
        if health is not Health.OK and several:
            yield Part(f"{several} {health.value}", "red")
    full, near = (sum(gpu.near == level for gpu in found.gpus) for level in ("critical", "warning"))
    if full:
        yield Part(f"{full} full", "red")
    if found.others:
        yield Part(f"{found.others} more critical", "red")
    if found.over:
        worst, more = found.over[0], len(found.over) - 1
        also = f" +{more}" if more else ""
        yield Part(f"{fit(clean(worst.user), _NAME).rstrip()} {worst.gib:.1f} over{also}", "yellow")
    if near:
        yield Part(f"{near} near limit", "yellow")


def _stale(found: Newest, now: float) -> Iterator[Part]:
    age = now - found.sampled if found.sampled is not None else 0.0
    if age > max(STALE * found.interval, 2.0):
        from gpuwatch.units import long_duration

        yield Part(f"stale {long_duration(age)}", "red")


def _in_tmux(part: Part) -> str:
    words = part.words.replace("#", "##")
    return f"#[fg={part.color}]{words}#[default]" if part.color else words
