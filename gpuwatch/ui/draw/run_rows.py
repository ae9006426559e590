"""Rows of runs over time: when a run started and ended on a GPU, and its SM use."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from typing import Final, NamedTuple

from msgspec.structs import replace
from rich.cells import cell_len

from gpuwatch.base.text import fit, spell_signs
from gpuwatch.base.units import size
from gpuwatch.history.timeline import Metric, RecordedRun, process_owner, user_owner
from gpuwatch.model.fields import brief_command
from gpuwatch.model.snapshot import Gpu, Presence, Process, known
from gpuwatch.ui.draw.graph import Values, columns, with_cursor
from gpuwatch.ui.draw.lines import Line, LineBuilder
from gpuwatch.ui.draw.theme import Glyphs, Style, StyleSet
from gpuwatch.ui.draw.time_axis import AXIS, Piece, join_pieces, plot_cells
from gpuwatch.ui.draw.time_graphs import FrameGraphs

_NAME: Final = 24
"""Cells of a name, at most."""


class RunRow(NamedTuple):
    """Processes of one run on a GPU, in the columns of the graphs above."""

    uid: int | None
    name: str
    """With the PID of its largest process, and the number of the others."""
    held: Sequence[bool]
    """Whether any of them held memory, by column."""
    began: bool
    """Whether their first memory was seen to come."""
    sm: Values
    """Sum of their SM use in percent, by column."""
    end: int | None = None
    """Column in which a process ended that still holds memory; -1 where that was before."""
    kept: str = ""
    """Words about the memory that it holds."""


class _Use(NamedTuple):
    """Process, and the memory that it held by column."""

    process: Process
    memory: Values
    peak: float


def find_runs(gpu: Gpu, graphs: FrameGraphs, most: int) -> tuple[list[RunRow], int]:
    """Return the runs that held most memory of a GPU in the time of the graphs, and the number of all."""
    cells, timeline = plot_cells(graphs.width), graphs.frame.history.timeline
    runs: dict[tuple[int | None, str], list[_Use]] = {}
    for process in timeline.processes(gpu.key, graphs.until, graphs.span):
        memory = _read(gpu.key, process, Metric.MEMORY, graphs)
        if sizes := [value for value in memory if value is not None]:
            alone = f"{process.pid}:{process.start}"  # an ended one that holds memory stays apart
            run_key = alone if process.presence is Presence.GONE else process.run_key
            runs.setdefault((process.uid, run_key), []).append(_Use(process, memory, max(sizes)))
    recorded: dict[tuple[int | None, str], RecordedRun]
    recorded = {(one.uid, one.key): one for one in timeline.recorded.get(gpu.key, ())}
    before = {key: held for key, one in recorded.items() if any(held := _recorded_columns(one, graphs, cells))}
    peaks = {key: recorded[key].bytes for key in before}
    peaks |= {key: sum(use.peak for use in uses) for key, uses in runs.items()}
    watched = columns(graphs.read(gpu.key, "", Metric.USED, stacked=True), cells)
    found = []
    for key in sorted(peaks, key=lambda key: -peaks[key])[:most]:
        held, uses = before.get(key, [False] * cells), runs.get(key, [])
        now = [any(use.memory[x] is not None for use in uses) for x in range(cells)]
        if uses:
            held[now.index(True) :] = now[now.index(True) :]
        start = held.index(True)
        began = start > 0 and watched[start - 1] is not None
        if uses:
            rates = zip(*(_read(gpu.key, use.process, Metric.SM, graphs) for use in uses), strict=True)
            known_rates = [[rate for rate in column if rate is not None] for column in rates]
            sm = [sum(column) if column else None for column in known_rates]
            end, kept = _remains(gpu, uses[0].process, graphs)
            found.append(RunRow(key[0], _run_name(uses, graphs.styles.glyphs), held, began, sm, end, kept))
        else:
            run = recorded[key]
            graphs.styles.add_people({run.uid: timeline.user_name(user_owner(run.uid)) or str(run.uid)})
            found.append(RunRow(run.uid, _fit_name(run.name, graphs.styles.glyphs), held, began, [None] * cells))
    return found, len(peaks)


def _read(gpu: str, process: Process, metric: Metric, graphs: FrameGraphs) -> Values:
    return columns(graphs.read(gpu, process_owner(*process.key), metric, stacked=True), plot_cells(graphs.width))


def _recorded_columns(run: RecordedRun, graphs: FrameGraphs, cells: int) -> list[bool]:
    """Return the columns in which a run held memory by the stores."""
    held = [False] * cells
    for at, span in run.times:
        first, last = ((one - graphs.start) / graphs.span * cells for one in (at, at + span))
        for x in range(max(0, floor(first)), min(cells, ceil(last))):
            held[x] = True
    return held


def _run_name(uses: Sequence[_Use], glyphs: Glyphs) -> str:
    largest = max(uses, key=lambda use: use.peak).process
    if largest.run is not None and largest.run.name:
        shown = largest.run.name
    else:  # for an ended process the words say that it has ended
        shown = brief_command(replace(largest, presence=Presence.SEEN)) if largest.command else largest.name
    more = f" +{len(uses) - 1}" if len(uses) > 1 else ""
    return f"{_fit_name(shown, glyphs)} {largest.pid}{more}".lstrip()


def _fit_name(name: str, glyphs: Glyphs) -> str:
    """Return a name of at most `_NAME` characters of one cell each."""
    if glyphs.ascii or cell_len(name) != len(name):
        name = spell_signs(name).encode("ascii", "replace").decode("ascii")
    return fit(name, _NAME, ellipsis=glyphs.ellipsis).rstrip()


def _remains(gpu: Gpu, process: Process, graphs: FrameGraphs) -> tuple[int | None, str]:
    """Return the column in which a process ended, and what it still holds; None for one that has not."""
    if process.presence is not Presence.GONE:
        return None, ""
    sizes = [one.memory for one in gpu.holdings if one.pid == process.pid]
    held = size(sum(map(float, sizes))) if sizes and all(map(known, sizes)) else "memory"
    # A process that has ended has no figures of the host any more.
    seen = [x for x, value in enumerate(_read("", process, Metric.RSS, graphs)) if value is not None]
    return max(seen, default=-1), f"ended, holds {held}"


def draw_runs(rows: Sequence[RunRow], count: int, graphs: FrameGraphs) -> list[Line]:
    """Draw the rows of runs, and at the end of the last one the number of those that have no row."""
    styles, cells = graphs.styles, plot_cells(graphs.width)
    lines = []
    for place, row in enumerate(rows):
        builder = LineBuilder(styles).gap(AXIS - 3)
        builder.write(styles.initial(row.uid), styles.badge(row.uid, "base")).gap()
        builder.write("|" if styles.glyphs.ascii else "│", "faint")
        more = f" +{count - len(rows)}" if place == len(rows) - 1 and count > len(rows) else ""
        pieces = with_cursor(_row_pieces(row, styles, cells, more), graphs.column, styles)
        lines.append(builder.write_spans(join_pieces(pieces)).build(graphs.width))
    return lines


def _row_pieces(row: RunRow, styles: StyleSet, cells: int, more: str) -> list[Piece]:
    glyphs, color = styles.glyphs, styles.owner(row.uid).swatches["base"]
    pieces = [Piece(" ", styles("text"))] * cells
    end = cells if row.end is None else row.end + 1
    for x, (held, sm) in enumerate(zip(row.held, row.sm, strict=True)):
        if held and x >= end:
            pieces[x] = Piece(glyphs.dot, styles("faint"))
        elif held:
            level = -1 if sm is None else min(len(glyphs.shades) - 1, int(sm * len(glyphs.shades) / 100))
            pieces[x] = Piece(glyphs.dash if level < 0 else glyphs.shades[level], color)
    first, last = row.held.index(True), cells - 1 - list(reversed(row.held)).index(True)
    label = f"{glyphs.began} {row.name} " if row.began else f" {row.name} "
    bar = min(last + 1, max(first, end)) - first
    fits = len(label) < bar
    if fits:
        _write(pieces, first, label, styles("text"))
    if row.end is not None:
        words = row.kept if fits else f"{row.name} {row.kept}"
        at = max(first, row.end)
        if at + len(words) + 3 <= cells or first < len(words) + 2:
            _write(pieces, at, f"{glyphs.ended} {words} ", styles("warning"))
        else:
            _write(pieces, first - len(words) - 2, f" {words} ", styles("muted"))
            _write(pieces, at, glyphs.ended, styles("warning"))
    elif not fits and last + 1 + len(label) <= cells:
        _write(pieces, last + 1, f" {row.name}", styles("muted"))
    elif not fits and len(label) <= first:
        _write(pieces, first - len(label), f" {row.name} ", styles("muted"))
    if more:
        _write(pieces, cells - len(more), more, styles("muted"))
    return pieces


def _write(pieces: list[Piece], x: int, text: str, style: Style) -> None:
    """Write text whose characters take one cell each over cells; what does not fit is cut."""
    for place, char in enumerate(text[: len(pieces) - x], x):
        pieces[place] = Piece(char, style)
