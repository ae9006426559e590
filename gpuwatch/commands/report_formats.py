"""Formats of use: the table, JSON and CSV of `gpuwatch report`, and the columns that its page has too."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gpuwatch.commands.console import TextColumn, format_table, in_ascii
from gpuwatch.history import Use
from gpuwatch.recorder.use import By, EventCounts, UseLine, UseReport
from gpuwatch.text import cell_width, fit
from gpuwatch.units import GIB, UNKNOWN, percent, ranges

MOST: Final = 100
"""Lines of a table. A week of a busy machine has a thousand runs."""

_HOUR: Final = 3600.0
_WIDEST: Final = 32
"""Cells of a name."""
_DOUBT: Final = 0.01
"""Part of the time without values above which a sum is marked `≥`."""


def report_lines(kept: UseReport, now: float, most: int = MOST) -> list[str]:
    """Return a line with the time span, a table with a line for each user, GPU or run, and the sum.

    The table has at most `most` lines, and counts the others; the sum includes all.
    """
    if not kept.lines:
        return [_title(kept, now)]
    columns = [*WHO[kept.by], *SUMS]
    # With one line the sum is that line, but for events that are nobody's.
    total = total_cells(kept) if len(kept.lines) > 1 or kept.events != kept.lines[0].events else None
    drawn = format_table(columns, kept.lines[:most], total=total)
    more = len(kept.lines) - most
    notes = [f"{more} more with less; --json and --csv give all of them"] if more > 0 else []
    notes += use_notes(kept.total)
    return [_title(kept, now), *drawn, *(["", *notes] if notes else [])]


def _title(kept: UseReport, now: float) -> str:
    ends = [kept.since, kept.until] if kept.until < math.inf else [kept.since]
    span = " to ".join(time.strftime("%Y-%m-%d %H:%M", time.localtime(end)) for end in ends)
    hours = max(0.0, now - kept.since) / _HOUR
    watched = f"watched {format_hours(kept.watched)} of {hours:.{0 if hours >= 1 else 1}f} h"
    return " · ".join(filter(None, (kept.host, f"from {span}", watched)))


def total_cells(kept: UseReport) -> list[str]:
    """Return the cells of the sum of all lines."""
    whole = UseLine("all", kept.total, gpus=kept.gpus, events=kept.events)
    who = [column.cell(whole) if column is _GPUS else "" for column in WHO[kept.by][1:]]
    return ["all", *who, *(column.cell(whole) for column in SUMS)]


def use_notes(total: Use) -> list[str]:
    """Return what a reader of a sum should know: that GPUs were shared, and what is missing, a sentence each."""
    notes = []
    if total.held > (1 + _DOUBT) * total.gpu:
        notes.append("GPU·h divides the time of a GPU among its holders by memory; held h counts it for each of them")
    if total.unknown > _DOUBT * total.held:
        part = percent(total.unknown, total.held)
        notes.append(f"for {part} % of the time held nothing says whether it was used: busy is of the rest")
    if total.unsized > _DOUBT * total.held:
        notes.append(f"for {percent(total.unsized, total.held)} % of it some memory has no figure: GiB·h are too few")
    return notes


def _fitted(text: str) -> str:
    return text if len(text) <= _WIDEST and text.isascii() else fit(text, min(_WIDEST, cell_width(text)))


def format_hours(seconds: float) -> str:
    """Format hours: with a decimal below 100, and never 0 for a time above 0."""
    hours = seconds / _HOUR
    if 0 < hours < 0.05:
        return "<0.1"
    return f"{hours:.1f}" if hours < 99.95 else f"{hours:.0f}"


def _gib_hours(use: Use, amount: float) -> str:
    """Format byte-seconds as GiB·h; a dash where no size was known, `≥` where some were not."""
    if use.unsized >= use.held > 0 and not amount:
        return UNKNOWN
    return ("≥" if use.unsized > _DOUBT * use.held else "") + format_hours(amount / GIB)


def _idle(use: Use) -> str:
    """Format the memory held without use; a dash where that is not known, `≥` where it is known in part."""
    if use.unknown >= use.held > 0 and not use.idle:
        return UNKNOWN
    return ("≥" if use.unknown + use.unsized > _DOUBT * use.held else "") + format_hours(use.idle / GIB)


def _idle_part(use: Use) -> str:
    if use.unknown >= use.held > 0 and not use.idle:
        return UNKNOWN
    return ("≥" if use.unknown > _DOUBT * use.held and use.memory else "") + percent(use.idle, use.memory)


def _number(count: int) -> str:
    return str(count) if count else "·"


def _name(line: UseLine) -> str:
    return _fitted(line.name) or UNKNOWN


_GPUS: Final[TextColumn[UseLine]] = TextColumn("GPUs", lambda line: ranges(line.gpus) or UNKNOWN, right=False)

WHO: Final[dict[By, tuple[TextColumn[UseLine], ...]]] = {
    "user": (TextColumn("user", _name, right=False), _GPUS),
    "gpu": (
        TextColumn("GPU", lambda line: str(line.gpus[0]) if line.gpus else UNKNOWN),
        TextColumn("name", lambda line: _name(line).removeprefix("NVIDIA "), right=False),
        TextColumn("watched h", lambda line: format_hours(line.watched or 0.0)),
    ),
    "run": (
        TextColumn("run", _name, right=False),
        TextColumn("user", lambda line: _fitted(line.user) or UNKNOWN, right=False),
        TextColumn("launcher", lambda line: line.launcher or UNKNOWN, right=False),
        _GPUS,
    ),
}

SUMS: Final[tuple[TextColumn[UseLine], ...]] = (
    TextColumn("GPU·h", lambda line: format_hours(line.use.gpu)),
    TextColumn("held h", lambda line: format_hours(line.use.held)),
    TextColumn("busy %", lambda line: percent(line.use.busy, line.use.held - line.use.unknown)),
    TextColumn("GiB·h", lambda line: _gib_hours(line.use, line.use.memory)),
    TextColumn("idle GiB·h", lambda line: _idle(line.use)),
    TextColumn("idle %", lambda line: _idle_part(line.use)),
    TextColumn("overshoots", lambda line: _number(line.events.overshoots)),
    TextColumn("events", lambda line: _number(line.events.all)),
    TextColumn("warnings", lambda line: _number(line.events.warnings)),
)


# ---------------------------------------------------------------------------------------------------------------
# For programs: seconds, byte-seconds, counts


def report_json(kept: UseReport, now: float) -> str:
    """Return one object on one line: seconds, byte-seconds, counts."""
    return json.dumps(
        {
            "since": kept.since,
            "until": now,
            "host": kept.host,
            "by": kept.by,
            "watched_s": round(kept.watched, 3),
            "rows": [_fields(kept, line) for line in kept.lines],
            "total": {**_amounts(kept.total), **_counts(kept.events)},
        },
        ensure_ascii=False,
    )


def report_csv(kept: UseReport, *, ascii_only: bool = False) -> str:
    """Return a line of headers and one for each row, the same as in JSON; formulas for spreadsheets are quoted.

    With `ascii_only` other characters in names are replaced.
    """
    rows = [_fields(kept, line) for line in kept.lines]
    head: Sequence[str] = list(_fields(kept, UseLine("")))
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


def _fields(kept: UseReport, line: UseLine) -> dict[str, Any]:
    return {**dict(_who(kept, line)), "gpus": list(line.gpus), **_amounts(line.use), **_counts(line.events)}


def _who(kept: UseReport, line: UseLine) -> Iterator[tuple[str, Any]]:
    if kept.by == "user":
        yield from (("user", line.name), ("uid", line.uid))
    elif kept.by == "gpu":
        yield from (("index", line.gpus[0] if line.gpus else None), ("uuid", line.uuid), ("name", line.name))
        yield "watched_s", round(line.watched or 0.0, 3)
    else:
        yield from (("run", line.name), ("key", line.key), ("user", line.user), ("uid", line.uid))
        yield from (("launcher", line.launcher), ("first", line.first), ("last", line.last))


def _amounts(use: Use) -> dict[str, float]:
    return {
        "gpu_s": round(use.gpu, 3),
        "held_s": round(use.held, 3),
        "busy_s": round(use.busy, 3),
        "unknown_s": round(use.unknown, 3),
        "byte_s": round(use.memory),
        "idle_byte_s": round(use.idle),
        "unsized_s": round(use.unsized, 3),
    }


def _counts(events: EventCounts) -> dict[str, int]:
    return {"overshoots": events.overshoots, "events": events.all, "warnings": events.warnings}
