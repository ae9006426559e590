"""First line: the host, its CPUs and memory, numbers of GPUs and processes, and the age of the figures."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.cells import cell_len

from gpuwatch.analysis.playback import Playback
from gpuwatch.base.units import long_duration
from gpuwatch.model.fields import host_words, process_words
from gpuwatch.model.snapshot import SourceState
from gpuwatch.ui.draw.alerts import silent_mutes
from gpuwatch.ui.draw.lines import Line, LineBuilder
from gpuwatch.ui.draw.theme import Role
from gpuwatch.ui.draw.view import View, clock


def header_line(view: View, width: int) -> Line:
    """Return the header; what does not fit is left out in steps, and the host and the state stay longest."""
    right = _right(view, width)
    taken = sum(cell_len(text) + 2 for text, _ in right)
    dot = f" {view.styles.glyphs.dot} "
    builder = LineBuilder(view.styles, "band").gap()
    if width >= 60:
        builder.write("gpuwatch", "strong").gap(2)
    left = _facts(view, lambda text: builder.cells + cell_len(text) + taken < width, dot)
    host, _, rest = left.partition(dot)
    builder.write(host, "strong" if width < 60 else "text")
    if rest:
        builder.write(dot + rest, "muted")
    builder.gap(max(1, width - builder.cells - taken))
    for text, role in right:
        builder.write(text, role).gap(2)
    return builder.build(width)


def _facts(view: View, fits: Callable[[str], bool], dot: str) -> str:
    """Return the longest of a few wordings that fits."""
    seen = view.frame.snapshot
    gpus, processes = len(seen.gpus), len(seen.processes)
    people = len({process.uid for process in seen.processes if process.uid is not None})
    host = seen.host or "this machine"
    counts = [f"{gpus} GPU{'s' * (gpus != 1)}", process_words(seen.gpus, processes)]
    who = [f"{people} {'people' if people != 1 else 'person'}"] * bool(people)
    usage = host_words(seen.host_usage, view.styles.glyphs.missing)
    short = [counts[0], *[f"{processes} proc" if counts[1][0].isdigit() else counts[1]] * bool(gpus)]
    if not gpus:  # then nothing is known of processes, and the words below say of GPUs what is
        counts, who = [], []
    wordings = (
        *([host, *counts, *who, *usage[:count]] for count in (len(usage), 3, 2)),
        [host, *short, *who, *usage[:2]],
        [host, *short, *usage[:2]],
        [host, *counts, *who],
        [host, *counts],
        [host, *short],
        [host, *counts[:1]],
        [host],
    )
    return next((text for text in (dot.join(one) for one in wordings) if fits(text)), host[:20])


def _right(view: View, width: int) -> list[tuple[str, Role]]:
    if view.playback is not None:
        return _replay_words(view, view.playback, width)
    seen = view.frame.snapshot
    words: list[tuple[str, Role]] = []
    if seen.demo:
        words.append(("DEMO", "note"))
    if view.read_only:
        words.append(("READ-ONLY", "note"))
    muted = sum(alert.muted for alert in view.frame.alerts) + len(silent_mutes(view.frame))
    if muted and width >= 60:
        words.append((f"{muted} muted", "note"))
    if view.paused is not None:
        words.append((f"PAUSED {long_duration(int(view.paused))}", "warning"))
    elif seen.state is SourceState.OK and view.behind:
        words.append((f"stale {long_duration(int(view.newest_age))}", "warning"))
    if width >= 60:
        words.append((f"{'every ' * (width >= 100)}{view.interval:g} s", "muted"))
    if width >= 120 and seen.gpus and view.paused is None and not view.behind:
        age = view.newest_age  # in whole seconds: a figure that flickers draws the eye for nothing
        words.append(("<1 s old" if age < 1 else f"{age:.0f} s old", "muted"))
    taken = clock(seen.taken)
    words.append((taken if width >= 80 else taken[:5], "text"))
    return words


def _replay_words(view: View, playback: Playback, width: int) -> list[tuple[str, Role]]:
    seen = view.frame.snapshot
    words: list[tuple[str, Role]] = [("REPLAY", "warning")]
    if seen.demo and width >= 80:
        words.insert(0, ("DEMO", "note"))
    if seen.taken >= playback.last:
        words.append(("END OF THE RECORDING" if width >= 100 else "END", "note"))
    elif not playback.playing:
        words.append(("PAUSED", "note"))
    if width >= 60 or playback.playing:
        words.append((f"{playback.speed:g}{view.styles.glyphs.times}", "muted"))
    form = "%a %d %b %Y %H:%M:%S" if width >= 120 else "%d %b %H:%M:%S" if width >= 70 else "%H:%M:%S"
    words.append((time.strftime(form, time.localtime(seen.taken)), "text"))
    return words
