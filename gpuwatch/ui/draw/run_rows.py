"""Rows of runs over time: who came to a GPU, what share of its SMs they used, and when they went."""

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
from gpuwatch.ui.draw.theme import Style, StyleSet
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
    sm: Values
    """Sum of their SM use in percent, by column."""
    began: bool
    """Whether their first memory was seen to come."""
    end: int | None = None
    """Column in which the last one ended that still holds memory; -1 where that was before."""
    kept: str = ""
    """Words about the memory that ended processes hold."""


def find_runs(gpu: Gpu, graphs: FrameGraphs, most: int) -> tuple[list[RunRow], int]:
    """Return the runs that held most memory of a GPU in the time of the graphs, and the number of all."""
    cells, timeline = plot_cells(graphs.width), graphs.frame.history.timeline
    runs: dict[tuple[int | None, str], list[Process]] = {}
    memory: dict[int, list[float | None]] = {}
    for process in timeline.processes(gpu.key, graphs.until, graphs.span):
        values = columns(graphs.read(gpu.key, process_owner(*process.key), Metric.MEMORY, stacked=True), cells)
        if any(value is not None for value in values):
            memory[process.pid] = values
            alone = f"{process.pid}:{process.start}"  # what still holds memory is not hidden behind those that run
            run_key = alone if process.presence is Presence.GONE else process.run_key
            runs.setdefault((process.uid, run_key), []).append(process)
    watched = columns(graphs.read(gpu.key, "", Metric.USED, stacked=True), cells)

    def peak(processes: Sequence[Process]) -> float:
        return sum(max(value or 0.0 for value in memory[one.pid]) for one in processes)

    recorded: dict[tuple[int | None, str], RecordedRun]
    recorded = {(one.uid, one.key): one for one in timeline.recorded.get(gpu.key, ())}
    before = {key: held for key, one in recorded.items() if any(held := _recorded_columns(one, graphs, cells))}
    peaks = {key: recorded[key].bytes for key in before} | {key: peak(processes) for key, processes in runs.items()}
    found = []
    for key in sorted(peaks, key=lambda key: -peaks[key])[:most]:
        held = before.get(key, [False] * cells)
        if key in runs:
            row = _run_row(gpu, runs[key], memory, watched, graphs)
            first = row.held.index(True)
            row = row._replace(held=[*held[:first], *row.held[first:]])
        else:
            run = recorded[key]
            graphs.styles.add_people({run.uid: timeline.user_name(user_owner(run.uid)) or str(run.uid)})
            row = RunRow(run.uid, _fit_name(run.name, graphs.styles), held, [None] * cells, began=False)
        start = row.held.index(True)
        found.append(row._replace(began=start > 0 and watched[start - 1] is not None))
    return found, len(peaks)


def _recorded_columns(run: RecordedRun, graphs: FrameGraphs, cells: int) -> list[bool]:
    """Return the columns in which a run held memory by the stores."""
    held = [False] * cells
    for at, span in run.times:
        first, last = ((one - graphs.start) / graphs.span * cells for one in (at, at + span))
        for x in range(max(0, floor(first)), min(cells, ceil(last))):
            held[x] = True
    return held


def _run_row(
    gpu: Gpu,
    processes: Sequence[Process],
    memory: dict[int, list[float | None]],
    watched: Values,
    graphs: FrameGraphs,
) -> RunRow:
    cells = len(watched)
    held = [any(memory[one.pid][x] is not None for one in processes) for x in range(cells)]
    uses = [columns(graphs.read(gpu.key, process_owner(*one.key), Metric.SM, stacked=True), cells) for one in processes]
    sums = [[value for value in column if value is not None] for column in zip(*uses, strict=True)]
    first = max(processes, key=lambda one: max(value or 0.0 for value in memory[one.pid]))
    more = f" +{len(processes) - 1}" if len(processes) > 1 else ""
    run_name = first.run.name if first.run is not None else ""
    # The words of a command that has ended say that it has.
    shown = run_name or (brief_command(replace(first, presence=Presence.SEEN)) if first.command else first.name)
    name = f"{_fit_name(shown, graphs.styles)} {first.pid}{more}".lstrip()
    gone = [one for one in processes if one.presence is Presence.GONE]
    end, kept = None, ""
    if len(gone) == len(processes):
        sizes = [one.memory for one in gpu.holdings if one.pid in {process.pid for process in gone}]
        kept = (
            f"ended, holds {size(sum(map(float, sizes)))}"
            if sizes and all(map(known, sizes))
            else "ended, holds memory"
        )
        # A process that has ended has no figures of the host any more.
        last = [
            x
            for one in gone
            for x, value in enumerate(
                columns(graphs.read("", process_owner(*one.key), Metric.RSS, stacked=True), cells)
            )
            if value is not None
        ]
        end = max(last, default=-1)
    return RunRow(first.uid, name, held, [sum(column) if column else None for column in sums], False, end, kept)


def _fit_name(name: str, styles: StyleSet) -> str:
    """Return a name of at most `_NAME` characters, of which each takes one cell."""
    if styles.glyphs.ascii or cell_len(name) != len(name):
        name = spell_signs(name).encode("ascii", "replace").decode("ascii")
    return fit(name, _NAME, ellipsis=styles.glyphs.ellipsis).rstrip()


def draw_runs(rows: Sequence[RunRow], count: int, graphs: FrameGraphs) -> list[Line]:
    """Draw the rows of runs, and at the end of the last one the number of those that have no row."""
    styles, cells = graphs.styles, plot_cells(graphs.width)
    cursor = graphs.column if graphs.cursor is not None else None
    lines = []
    for place, row in enumerate(rows):
        builder = LineBuilder(styles).gap(AXIS - 3)
        builder.write(styles.initial(row.uid), styles.badge(row.uid, "base")).gap()
        builder.write("|" if styles.glyphs.ascii else "│", "faint")
        more = f" +{count - len(rows)}" if place == len(rows) - 1 and count > len(rows) else ""
        pieces = with_cursor(_row_pieces(row, styles, cells, more), cursor, styles)
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
    """Write text, of which each character has one cell, over cells, as far as there are any."""
    for place, char in enumerate(text[: len(pieces) - x], x):
        pieces[place] = Piece(char, style)
