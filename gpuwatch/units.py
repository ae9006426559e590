"""Bytes, shares and durations: printed at widths that a table can rely on, and parsed from what people write.

Printing never raises: a negative number (a clock that stepped back) prints as zero, and what is not a finite
number prints as the dash that stands for "not known". Parsing raises ValueError with one line that names what
was found and what is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

MAX_SIZE = 2**63 - 1

UNKNOWN = "—"

# The most cells that each printer uses, for any finite input up to 1e12 (durations in seconds, sizes in bytes).
DURATION_CELLS = 6
GIB_CELLS = 5
SIZE_CELLS = 9
PERCENT_CELLS = 4

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
_INTERVAL_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001}
_DURATION_UNITS = {
    **_INTERVAL_UNITS,
    **dict.fromkeys(("m", "min"), float(_MINUTE)),
    "h": float(_HOUR),
    "d": float(_DAY),
}
_PERCENT_UNITS = {"": 1.0, "%": 1.0}
_SHARE_UNITS = {"": 1.0, "%": 100.0}


def gib(n: float) -> str:
    """Print *n* bytes as GiB with one decimal and no unit, in at most `GIB_CELLS` cells.

    More than nothing never prints as nothing: it is "<0.1" below 0.05 GiB. From 1000 GiB on the decimal goes.
    """
    if not math.isfinite(n):
        return UNKNOWN
    value = max(n, 0) / GIB
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:.1f}" if value < 999.95 else f"{value:.0f}"


def size(n: float) -> str:
    """Print *n* bytes with a unit a person would choose ("12.0 GiB", "512 MiB", "3 KiB"), at most `SIZE_CELLS`.

    Units are powers of 1024. One decimal from GiB on, none below.
    """
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
    """Print *part* of *whole* as a whole percent without the sign ("41"), in at most `PERCENT_CELLS` cells.

    More than nothing never prints as nothing ("<1"), and less than all never as all ("99"). Above 999 it is
    ">999". Without a positive whole it is not known.
    """
    if not (math.isfinite(part) and math.isfinite(whole)) or whole <= 0:
        return UNKNOWN
    value = 100 * max(part, 0) / whole
    if 0 < value <= 0.5:
        return "<1"
    if value < 100:
        return f"{min(value, 99):.0f}"
    return f"{value:.0f}" if value < 999.5 else ">999"


def ranges(numbers: Iterable[int]) -> str:
    """Print whole numbers in short: `0-3,5`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def duration(seconds: float) -> str:
    """Print *seconds* for a table column ("14s", "12m", "2h10m", "3d04h"), in at most `DURATION_CELLS` cells.

    Rounded down, so that an age is never ahead of its time.
    """
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


def long_duration(seconds: float) -> str:
    """Print *seconds* for a sentence ("1.4 s", "40 s", "3 h 12 min", "2 d 4 h"): the two largest units, rounded down.

    Below ten seconds it has one decimal. A second unit of zero is left out.
    """
    if not math.isfinite(seconds):
        return UNKNOWN
    seconds = max(seconds, 0)
    if seconds < 10:
        tenths = int(seconds * 10)
        return f"{tenths // 10}.{tenths % 10} s" if tenths % 10 else f"{tenths // 10} s"
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _two(whole, (_MINUTE, "min"), (1, "s"))
    if whole < _DAY:
        return _two(whole, (_HOUR, "h"), (_MINUTE, "min"))
    if whole < _YEAR:
        return _two(whole, (_DAY, "d"), (_HOUR, "h"))
    return _two(whole, (_YEAR, "y"), (_DAY, "d"))


def _two(whole: int, large: tuple[int, str], small: tuple[int, str]) -> str:
    count, rest = divmod(whole, large[0])
    remainder = rest // small[0]
    head = f"{count} {large[1]}"
    return f"{head} {remainder} {small[1]}" if remainder else head


def parse_size(text: str, *, plain: bool = False) -> int:
    """Read a size such as "20GiB", "16G" or "512 MiB" and return bytes.

    K, M, G and T alone mean KiB, MiB, GiB and TiB, as GPU memory is counted; KB, MB, GB and TB are powers of
    1000. Upper and lower case are the same. Raises ValueError for anything else, for a number without a unit, below
    1 MiB and above 2**63 - 1. With `plain` a number without a unit is bytes, and any size up to the largest is read:
    for callers with bounds of their own.
    """
    found = re.fullmatch(_NUMBER_UNIT, text.strip())
    if found is None or (factor := _SIZE_UNITS.get(found[2].lower())) is None:
        raise ValueError(f"size {_shown(text)} is not understood; write a number with K, M, G or T, such as 20GiB")
    number, unit = found.groups()
    # A number without a point is kept exact: a float would round above 2**53.
    result = int(number) * factor if "." not in number else int(float(number) * factor)
    if result > MAX_SIZE:
        raise ValueError(f"size {_shown(text)} is too large; at most 8388607TiB is allowed")
    if plain:
        return result
    if not unit and float(number) > 0:
        raise ValueError(f"size {_shown(text)} has no unit; write {number}{_likely_unit(float(number))}")
    if result < MIB:
        raise ValueError(f"size {_shown(text)} is too small; 1MiB or more is allowed, such as 512MiB or 20GiB")
    return result


def _likely_unit(number: float) -> str:
    """Guess the unit of an amount of GPU memory: no GPU has 1024 GiB or 2**20 MiB."""
    return "GiB" if number < KIB else "MiB" if number < MIB else "B"


def parse_interval(text: str) -> float:
    """Read a time between samples such as "0.5", "2s" or "500ms" and return seconds.

    Raises ValueError for anything else, and outside 0.1 s to 3600 s.
    """
    found = _number_and_unit(text, _INTERVAL_UNITS)
    if found is None:
        raise ValueError(f"interval {_shown(text)} is not understood; write seconds, such as 0.5, 2s or 500ms")
    seconds = float(found[0]) * found[1]
    if not MIN_INTERVAL_S <= seconds <= MAX_INTERVAL_S:
        raise ValueError(
            f"interval {_shown(text)} is out of range; {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g} seconds is allowed"
        )
    return seconds


def parse_duration(text: str) -> float:
    """Read how long something lasts, such as "30s", "10min" or "10m", "2h", "7d", and return seconds.

    A number alone is seconds. Raises ValueError for anything else, and above 365 days.
    """
    found = _number_and_unit(text, _DURATION_UNITS)
    if found is None:
        raise ValueError(
            f"duration {_shown(text)} is not understood; write a number with s, min, h or d, such as 30s, 10min or 2h"
        )
    seconds = float(found[0]) * found[1]
    if seconds > MAX_DURATION_S:
        raise ValueError(f"duration {_shown(text)} is too long; at most 365d is allowed")
    return seconds


def parse_percent(text: str) -> float:
    """Read a percentage such as "10" or "10%" and return it as a number from 0 to 100.

    Raises ValueError for anything else. "0.1" is a tenth of a percent, not ten.
    """
    found = _number_and_unit(text, _PERCENT_UNITS)
    if found is None or not 0 <= float(found[0]) <= 100:
        raise ValueError(f"percentage {_shown(text)} is not allowed; write a number from 0 to 100, such as 10 or 10%")
    return float(found[0])


def parse_share(text: str) -> float:
    """Read a share of a GPU such as "0.4" or "40%" and return it as a fraction, above 0 and up to 1.

    Raises ValueError for anything else: "40" without its sign is no share.
    """
    found = _number_and_unit(text, _SHARE_UNITS)
    fraction = float(found[0]) / found[1] if found else 0.0
    if not 0 < fraction <= 1:
        raise ValueError(f"share {_shown(text)} is not allowed; write more than 0 and up to 1, such as 0.4 or 40%")
    return fraction


def write_duration(seconds: float) -> str:
    """Write *seconds* in the largest unit that divides them ("10min", "1.5s"), as `parse_duration` reads them."""
    if seconds != int(seconds):
        return f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:.3f}".rstrip("0") + "s"
    for unit, length in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds and seconds % length == 0:
            return f"{int(seconds) // length}{unit}"
    return f"{int(seconds)}s"


def write_size(size: int) -> str:
    """Write bytes in the largest unit that divides them ("20GiB", "1000"), as `parse_size` reads them."""
    for unit, bytes_ in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size and size % bytes_ == 0:
            return f"{size // bytes_}{unit}"
    return str(size)


def _number_and_unit(text: str, units: dict[str, int] | dict[str, float]) -> tuple[str, float] | None:
    match = re.fullmatch(_NUMBER_UNIT, text.strip())
    if match is None or match[2].lower() not in units:
        return None
    return match[1], units[match[2].lower()]


def _shown(text: str) -> str:
    """Quote what somebody wrote so that it fits a line and a terminal takes no orders from it."""
    return ascii(text if len(text) <= 40 else text[:39] + "...")
