"""Bytes, shares, durations and clock times: formatted for tables and sentences, and parsed from people's input.

Formatting never raises: a negative number (a clock that stepped back) is shown as zero, and a number that is not finite
as a dash. Parsing raises ValueError with one line that has the input and the allowed values.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from enum import StrEnum
from itertools import pairwise


class Unit(StrEnum):
    NONE = ""
    FREE = "bytes free"
    BYTES = "bytes"
    SECONDS = "s"
    CELSIUS = "°C"
    WATTS = "W"
    PERCENT = "%"
    COUNT = "count"
    MHZ = "MHz"


KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

MAX_SIZE = 2**63 - 1

UNKNOWN = "—"
"""Sign for a value that is not known."""
NONE = "·"
"""Sign for nothing declared, and for none at all."""

MIN_INTERVAL_S = 0.1
MAX_INTERVAL_S = 3600.0
MAX_DURATION_S = 365 * 24 * 3600.0

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_YEAR = 365 * _DAY

# Digits are bounded so that a conversion can neither overflow nor meet CPython's limit for long integers.
_NUMBER_UNIT = r"([0-9]{1,19}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})[ ]?([A-Za-z%]*)"

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **dict.fromkeys(("k", "kib"), KIB),
    **dict.fromkeys(("m", "mib"), MIB),
    **dict.fromkeys(("g", "gib"), GIB),
    **dict.fromkeys(("t", "tib"), TIB),
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_DURATION_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": _MINUTE, "min": _MINUTE, "h": _HOUR, "d": _DAY}
_PERCENT_UNITS = {"": 1, "%": 1}


def gib(n: float) -> str:
    """Return bytes as GiB with one decimal and no unit, in at most 5 cells: "12.0".

    Above zero it is never shown as zero: below 0.05 GiB it is "<0.1". From 1000 GiB on there is no decimal.
    """
    if not math.isfinite(n):
        return UNKNOWN
    value = max(n, 0) / GIB
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:.1f}" if value < 999.95 else f"{value:.0f}"


def size(n: float) -> str:
    """Return bytes with a unit, in at most 9 cells: "12.0 GiB", "512 MiB", "3 KiB". Units are powers of 1024."""
    if not math.isfinite(n):
        return UNKNOWN
    value = float(max(n, 0))
    for unit in ("B", "KiB", "MiB"):
        if value < 1023.5:
            return f"{value:.0f} {unit}"
        value /= 1024
    for unit in ("GiB", "TiB", "PiB"):
        if value < 999.95:
            return f"{value:.1f} {unit}"
        value /= 1024
    return f"{min(value, 999.9):.1f} EiB"


def percent(part: float, whole: float) -> str:
    """Return a part of a whole as a percentage without the sign, in at most 4 cells: "41".

    Above zero it is never shown as zero ("<1"), and below the whole never as the whole ("99"). Above 999 it is ">999".
    Without a positive whole the result is a dash.
    """
    if not (math.isfinite(part) and math.isfinite(whole)) or whole <= 0:
        return UNKNOWN
    value = 100 * (max(part, 0) / whole)  # exactly 100 for the whole
    if 0 < value <= 0.5:
        return "<1"
    if value < 100:
        return f"{min(value, 99):.0f}"
    return f"{value:.0f}" if value < 999.5 else ">999"


def ranges(numbers: Iterable[int]) -> str:
    """Format whole numbers as ranges: `0-3,5`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def duration(seconds: float) -> str:
    """Return a duration for a table column, rounded down, in at most 6 cells: "14s", "12m", "2h10m", "3d04h"."""
    if not math.isfinite(seconds):
        return UNKNOWN
    whole = int(max(seconds, 0))
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    days = whole // _DAY
    if days < 100:
        return f"{days}d{whole % _DAY // _HOUR:02}h"
    return f"{days}d" if days < 10_000 else f"{whole // _YEAR}y"


_LONG_UNITS = ((_YEAR, "y"), (_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1, "s"))


def long_duration(seconds: float) -> str:
    """Return a duration for a sentence, rounded down to its two largest units: "1.4 s", "40 s", "3 h 12 min".

    Below ten seconds it has one decimal. A second unit of zero is left out.
    """
    if not math.isfinite(seconds):
        return UNKNOWN
    whole = int(max(seconds, 0))
    if whole < 10 and (tenths := int(max(seconds, 0) * 10) % 10):
        return f"{whole}.{tenths} s"
    for (large, name), (small, second) in pairwise(_LONG_UNITS):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {name}" + (f" {rest} {second}" if rest else "")
    return f"{whole} s"


def steady_duration(seconds: float) -> str:
    """Return a long duration, from one minute on in whole minutes, so that a line does not change each second."""
    return long_duration(seconds - seconds % 60 if seconds >= 60 else seconds)


def parse_size(text: str, *, plain: bool = False) -> int:
    """Return the bytes of a size such as "20GiB", "16G" or "512 MiB", in upper or lower case.

    K, M, G and T mean KiB, MiB, GiB and TiB, as GPU memory is counted; KB, MB, GB and TB are powers of 1000.
    Raises ValueError for anything else, for a number without a unit, below 1 MiB and above 2**63 - 1. With `plain` a
    number without a unit is bytes, and there is no lower bound: for callers with bounds of their own.
    """
    hint = f"size {_quote(text)} is not understood; write a number with K, M, G or T, such as 20GiB"
    number, unit = _parse(text, _SIZE_UNITS, hint)
    # A number without a point is kept exact: a float would round above 2**53.
    result = int(number) * _SIZE_UNITS[unit] if "." not in number else int(float(number) * _SIZE_UNITS[unit])
    if result > MAX_SIZE:
        raise ValueError(f"size {_quote(text)} is too large; at most 8388607TiB is allowed")
    if plain:
        return result
    if not unit and float(number) > 0:
        # No GPU has 1024 GiB or 2**20 MiB.
        likely = "GiB" if float(number) < KIB else "MiB" if float(number) < MIB else "B"
        raise ValueError(f"size {_quote(text)} has no unit; write {number}{likely}")
    if result < MIB:
        raise ValueError(f"size {_quote(text)} is too small; 1MiB or more is allowed, such as 512MiB or 20GiB")
    return result


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as "30s", "10min" or "10m", "2h", "7d"; the default unit is seconds.

    Raises ValueError for anything else, and above 365 days.
    """
    found = _quote(text)
    hint = f"duration {found} is not understood; write a number with s, min, h or d, such as 30s, 10min or 2h"
    number, unit = _parse(text, _DURATION_UNITS, hint)
    seconds = float(number) * _DURATION_UNITS[unit]
    if seconds > MAX_DURATION_S:
        raise ValueError(f"duration {found} is too long; at most 365d is allowed")
    return seconds


def parse_percent(text: str, most: int = 100) -> float:
    """Return a percentage such as "10" or "10%" as a number from 0 to `most`; raises ValueError for anything else."""
    hint = f"percentage {_quote(text)} is not allowed; write a number from 0 to {most}, such as 10 or 10%"
    number = float(_parse(text, _PERCENT_UNITS, hint)[0])
    if number > most:
        raise ValueError(hint)
    return number


def parse_ratio(text: str) -> float:
    """Return a ratio such as "1", "1.5" or "150%" as a number; raises ValueError for anything else."""
    hint = f"ratio {_quote(text)} is not understood; write a number, such as 1, 1.5 or 150%"
    number, unit = _parse(text, _PERCENT_UNITS, hint)
    if not unit and float(number) >= 10:
        raise ValueError(f"ratio {_quote(text)} is ten times the limit or more; write {text.strip()}% for percent")
    return float(number) / (100 if unit else 1)


def parse_share(text: str) -> float:
    """Return a share of a GPU such as "0.4" or "40%" as a fraction, above 0 and up to 1.

    Raises ValueError for anything else: "40" without its sign is no share.
    """
    hint = f"share {_quote(text)} is not allowed; write more than 0 and up to 1, such as 0.4 or 40%"
    number, unit = _parse(text, _PERCENT_UNITS, hint)
    fraction = float(number) / (100 if unit else 1)
    if not 0 < fraction <= 1:
        raise ValueError(hint)
    return fraction


def parse_moment(text: str, first: float, last: float, near: float) -> float:
    """Return the wall-clock time of a text such as "2026-11-21 03:10", "03:10" or "03:10:22", in the local time zone.

    A time without its date is on the day that puts it into the span from `first` to `last`: if several do, the nearest
    to `near`. So is a time that the end of daylight saving time repeats. The second, or without one the minute, in
    which the span begins is its first moment. Raises ValueError for anything else. The result may be outside the span.
    """
    hint = f"time {_quote(text)} is not understood; write 03:10, 03:10:22 or '2026-11-21 03:10'"
    match = re.fullmatch(r"(?:(\d{4}-\d\d-\d\d)[ T]+)?(\d?\d:\d\d)(?::(\d\d))?", text.strip(), re.ASCII)
    if match is None:
        raise ValueError(hint)
    given, minute, second = match.groups()
    days = [given] if given else _days(first, last)
    try:
        read = [time.strptime(f"{day} {minute}:{second or '00'}", "%Y-%m-%d %H:%M:%S") for day in days]
        found = [at for one in read for at in _moments(one)]
    except (ValueError, OverflowError):
        raise ValueError(hint) from None
    found = [first if at < first < at + (1 if second else 60) else at for at in found]
    return min(found, key=lambda at: (max(first - at, at - last, 0.0), abs(at - near)))


def _moments(read: time.struct_time) -> set[float]:
    """Return each wall-clock time at which clocks show a local time; one where they skip it."""
    found = {time.mktime((*read[:8], summer)) for summer in (0, 1)}
    return {at for at in found if time.localtime(at)[:6] == read[:6]} or {time.mktime(read)}


def _days(first: float, last: float) -> list[str]:
    """Return each local day of a span, and those before and after it: `2026-11-21`. Not each has 24 hours."""
    begin, end = date.fromtimestamp(first), date.fromtimestamp(last)
    return [str(begin + timedelta(days=number)) for number in range(-1, (end - begin).days + 2)]


def format_moment(at: float) -> str:
    """Format a wall-clock time with its date in the local time zone, as `parse_moment` reads it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def write_duration(seconds: float) -> str:
    """Return a duration in the largest unit that divides it ("10min", "1.5s"), as `parse_duration` reads it."""
    if seconds != int(seconds):
        return f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:.3f}".rstrip("0") + "s"
    return _write(int(seconds), (("d", _DAY), ("h", _HOUR), ("min", _MINUTE), ("s", 1)))


def write_size(size: int) -> str:
    """Return bytes in the largest unit that divides them ("20GiB", "1000"), as `parse_size` reads them."""
    return _write(size, (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("", 1)))


def _write(number: int, units: tuple[tuple[str, int], ...]) -> str:
    unit, factor = next(((unit, factor) for unit, factor in units if number and number % factor == 0), units[-1])
    return f"{number // factor}{unit}"


def _parse(text: str, units: Mapping[str, float], hint: str) -> tuple[str, str]:
    """Return the number and the unit of a text; raises ValueError with the hint where it is not such a text."""
    match = re.fullmatch(_NUMBER_UNIT, text.strip())
    if match is None or match[2].lower() not in units:
        raise ValueError(hint)
    return match[1], match[2].lower()


def _quote(text: str) -> str:
    """Quote a text for an error: short, and in ASCII."""
    return ascii(text if len(text) <= 40 else text[:39] + "...")
