"""Formats of use: the tables, JSON and CSV of `gpuwatch report`, and the columns that its page has too."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gpuwatch.base.text import cell_width, fit
from gpuwatch.base.units import GIB, NONE, UNKNOWN, percent, ranges
from gpuwatch.commands.console import TextColumn, fold, format_table, in_ascii
from gpuwatch.history.history import Use
from gpuwatch.model.values import HOUR
from gpuwatch.recorder.use import By, EventCounts, UseLine, UseReport

MOST: Final = 100
"""Lines of a table. A week of a busy machine has a thousand runs."""
MOST_RUNS: Final = 10
"""Lines of the table of runs below the tables of users and of GPUs."""

_FIRST_TO_GO: Final = ("launcher", "GiB·h", "watched h", "over declared", "busy %")
"""Columns that a narrow terminal does without, in this order."""
_WIDEST: Final = 32
"""Cells of a name."""
_DOUBT: Final = 0.01
"""Part of the time without values above which a sum is marked `≥`."""


def report_lines(parts: Sequence[UseReport], now: float, most: int = MOST, *, width: int | None = None) -> list[str]:
    """Return a line with the time span, a table of each part with a line for each user, GPU or run, and the sum.

    A table has at most `most` lines, the one of runs below others `MOST_RUNS`, and counts the rest; the sum includes
    all. In less than `width` cells (None: any width) it has fewer columns.
    """
    lines = [_title(parts[0], now)]
    for report in parts:
        if report.lines:
            is_short = report.by == "run" and len(parts) > 1
            lines += [*_table(report, MOST_RUNS if is_short else most, width, is_short=is_short), ""]
    notes = [line for note in use_notes(parts[0].total) for line in fold(note, width)]
    return [*lines, *notes] if lines[1:] else lines


def _table(report: UseReport, most: int, width: int | None, *, is_short: bool) -> Iterator[str]:
    # With one line the sum is that line, but for events that are nobody's.
    total = total_cells(report) if len(report.lines) > 1 or report.events != report.lines[0].events else None
    columns, lines = [*WHO[report.by], *SUMS], list[str]()
    for gone in ("", *_FIRST_TO_GO):
        shown = [at for at, column in enumerate(columns) if column.header != gone]
        columns = [columns[at] for at in shown]
        total = None if total is None else [total[at] for at in shown]
        lines = format_table(columns, report.lines[:most], total=total)
        if width is None or max(map(cell_width, lines)) <= width:
            break
    yield from lines
    if rest := report.lines[most:]:
        hours = format_hours(sum(line.use.gpu for line in rest))
        where = "`gpuwatch report --by run` shows them" if is_short else "--json and --csv give all of them"
        yield f"{len(rest)} more with {hours} GPU·h: {where}"


def _title(report: UseReport, now: float) -> str:
    ends = [report.since, report.until] if report.until < math.inf else [report.since]
    span = " to ".join(time.strftime("%Y-%m-%d %H:%M", time.localtime(end)) for end in ends)
    hours = max(0.0, now - report.since) / HOUR
    whole = f"{round(hours, 1):g}" if hours >= 0.05 else "<0.1"
    watched = f"watched {format_hours(report.watched)} of {whole} h"
    return " · ".join(filter(None, (report.host, f"from {span}", watched)))


def total_cells(report: UseReport) -> list[str]:
    whole = whole_line(report)
    who = [column.cell(whole) if column in (_GPUS, *_TIMES) else "" for column in WHO[report.by][1:]]
    return ["all", *who, *(column.cell(whole) for column in SUMS)]


def whole_line(report: UseReport) -> UseLine:
    """Return the sum of all lines as a line."""
    watched, free = (sum(getattr(line, name) for line in report.lines) for name in ("watched", "free"))
    return UseLine("all", report.total, report.gpus, report.events, watched=watched, free=free)


def use_notes(total: Use) -> list[str]:
    """Return what a reader of the tables should know: how time is divided, and what is missing, a sentence each."""
    notes = [
        "GPU·h: hours of GPUs, divided among the users with memory on them, by memory",
        "idle h: the part of it in which the run computed nothing; events count for the user who caused them",
    ]
    if total.unknown > _DOUBT * total.gpu:
        part = percent(total.unknown, total.gpu)
        notes.append(f"for {part} % of GPU·h it is not known whether a process computed: busy % leaves it out")
    if total.unsized > _DOUBT * total.gpu:
        notes.append(
            f"for {percent(total.unsized, total.gpu)} % of it, the size of some memory is not known: GiB·h are too low"
        )
    return notes


def _fitted(text: str) -> str:
    return text if len(text) <= _WIDEST and text.isascii() else fit(text, min(_WIDEST, cell_width(text)))


def format_hours(seconds: float) -> str:
    """Format hours: with a decimal below 100, and never 0 for a time above 0."""
    hours = seconds / HOUR
    if 0 < hours < 0.05:
        return "<0.1"
    return f"{hours:.1f}" if hours < 99.95 else f"{hours:.0f}"


def _part(use: Use, seconds: float, missing: float, found: float) -> str:
    """Format hours of use: `—` where nothing was `found`, `≥` where more than a little is `missing`."""
    if missing and not found:
        return UNKNOWN
    hours = format_hours(seconds)
    return f"≥{'0.0' if hours.startswith('<') else hours}" if missing > _DOUBT * use.gpu else hours


def _busy(use: Use) -> str:
    """Format the busy part of the known time in percent: `·` where nobody held memory."""
    return percent(use.busy, use.busy + use.idle) if use.gpu else NONE


def _number(count: int) -> str:
    return str(count) if count else NONE


def _name(line: UseLine) -> str:
    return _fitted(line.name) or UNKNOWN


_GPUS: Final[TextColumn[UseLine]] = TextColumn("GPUs", lambda line: ranges(line.gpus) or NONE, right=False)
_TIMES: Final[tuple[TextColumn[UseLine], ...]] = (
    TextColumn("watched h", lambda line: format_hours(line.watched)),
    TextColumn("free h", lambda line: format_hours(line.free)),
)
"""Of a GPU; what was not free is its GPU·h."""

WHO: Final[dict[By, tuple[TextColumn[UseLine], ...]]] = {
    "user": (TextColumn("user", _name, right=False), _GPUS),
    "gpu": (
        TextColumn("GPU", lambda line: str(line.gpus[0]) if line.gpus else UNKNOWN),
        TextColumn("name", lambda line: _name(line).removeprefix("NVIDIA "), right=False),
        *_TIMES,
    ),
    "run": (
        TextColumn("run", _name, right=False),
        TextColumn("user", lambda line: _fitted(line.user) or UNKNOWN, right=False),
        TextColumn("launcher", lambda line: line.launcher or (UNKNOWN if line.uid is None else NONE), right=False),
        _GPUS,
    ),
}

SUMS: Final[tuple[TextColumn[UseLine], ...]] = (
    TextColumn("GPU·h", lambda line: format_hours(line.use.gpu)),
    TextColumn("idle h", lambda line: _part(line.use, line.use.idle, line.use.unknown, line.use.busy + line.use.idle)),
    TextColumn("busy %", lambda line: _busy(line.use)),
    TextColumn("GiB·h", lambda line: _part(line.use, line.use.memory / GIB, line.use.unsized, line.use.memory)),
    TextColumn("over declared", lambda line: _number(line.events.overshoots)),
    TextColumn("events", lambda line: _number(line.events.all)),
)


# ---------------------------------------------------------------------------------------------------------------
# For programs: seconds, byte-seconds, counts


def report_json(report: UseReport, now: float) -> str:
    """Return one object on one line: seconds, byte-seconds, counts."""
    return json.dumps(
        {
            "since": report.since,
            "until": now,
            "host": report.host,
            "by": report.by,
            "watched_s": round(report.watched, 3),
            "rows": [_fields(report, line) for line in report.lines],
            "total": {**_amounts(report.total), **_counts(report.events)},
        },
        ensure_ascii=False,
    )


def report_csv(report: UseReport, *, ascii_only: bool = False) -> str:
    """Return a line of headers and one for each row, the same as in JSON; formulas for spreadsheets are quoted.

    With `ascii_only` other characters in names are replaced.
    """
    rows = [_fields(report, line) for line in report.lines]
    head: Sequence[str] = list(_fields(report, UseLine("")))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_cell(row[name], ascii_only=ascii_only) for name in head] for row in rows)
    return file.getvalue()


_FORMULA: Final = r"""(?:^|(?<=[;\t\r\n]))(?=[\s"']*+[=+\-@＝＋－＠﹦﹢﹣﹫]|[\t\r\n])"""
"""Where a formula may begin: at the start, or after the separator of a spreadsheet that does not use the comma.

With East Asian settings, spreadsheets read full-width and small forms as the plain signs.
"""


def _cell(value: Any, *, ascii_only: bool) -> Any:
    """Return a value as a cell; text that a spreadsheet takes for a formula gets a `'`.

    Source: owasp.org/www-community/attacks/CSV_Injection, also for separators and quotes: where a
    spreadsheet separates cells at `;`, quotes around a text with a `;` are inside a cell and have no effect.
    """
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, str):
        return re.sub(_FORMULA, "'", in_ascii(value) if ascii_only else value)
    return "" if value is None else value


def _fields(report: UseReport, line: UseLine) -> dict[str, Any]:
    return {**dict(_who(report, line)), "gpus": list(line.gpus), **_amounts(line.use), **_counts(line.events)}


def _who(report: UseReport, line: UseLine) -> Iterator[tuple[str, Any]]:
    if report.by == "user":
        yield from (("user", line.name), ("uid", line.uid))
    elif report.by == "gpu":
        yield from (("index", line.gpus[0] if line.gpus else None), ("uuid", line.uuid), ("name", line.name))
        yield from (("watched_s", round(line.watched, 3)), ("free_s", round(line.free, 3)))
    else:
        yield from (("run", line.name), ("key", line.key), ("user", line.user), ("uid", line.uid))
        yield from (("launcher", line.launcher), ("first", line.first), ("last", line.last))


def _amounts(use: Use) -> dict[str, float]:
    return {
        "gpu_s": round(use.gpu, 3),
        "busy_s": round(use.busy, 3),
        "idle_s": round(use.idle, 3),
        "unknown_s": round(use.unknown, 3),
        "byte_s": round(use.memory),
        "unsized_s": round(use.unsized, 3),
    }


def _counts(events: EventCounts) -> dict[str, int]:
    return {"overshoots": events.overshoots, "events": events.all, "warnings": events.warnings}
