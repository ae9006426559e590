"""Units: printed within their cells for any number, and parsed as people write them."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuwatch.base import units
from gpuwatch.base.units import GIB, KIB, MIB, TIB, format_moment, parse_moment


def percent_of_100(part: float) -> str:
    return units.percent(part, 100)


amounts = st.one_of(st.floats(0, 1e12), st.integers(0, 10**12))
anything = st.one_of(st.floats(), st.integers(-(10**400), 10**400).filter(lambda n: abs(n) < 10**300))


@pytest.mark.parametrize(("show", "cells"), [(units.gib, 5), (units.size, 9), (units.duration, 6), (percent_of_100, 4)])
@given(n=amounts)
def test_printing_stays_within_its_cells(show: Callable[[float], str], cells: int, n: float) -> None:
    assert 0 < len(show(n)) <= cells


@given(anything, anything)
@example(sys.float_info.max, -sys.float_info.max)
def test_printing_never_raises(n: float, whole: float) -> None:
    for text in (units.gib(n), units.size(n), units.duration(n), units.long_duration(n), units.percent(n, whole)):
        assert text.isprintable()


@pytest.mark.parametrize("n", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_not_known(n: float) -> None:
    for show in (units.gib, units.size, units.duration, units.long_duration):
        assert show(n) == units.UNKNOWN
    assert units.percent(n, 1) == units.percent(1, n) == units.percent(1, 0) == units.percent(1, -1) == units.UNKNOWN


def test_all_is_100_percent() -> None:
    assert units.percent(3050.7614529740376, 3050.7614529740376) == "100"  # 100 * n / n is a little less


@pytest.mark.parametrize(
    ("show", "n", "expected"),
    [
        *((units.gib, n, text) for n, text in ((0, "0.0"), (-GIB, "0.0"), (1, "<0.1"), (0.049 * GIB, "<0.1"))),
        *((units.gib, n * GIB, text) for n, text in ((0.05, "0.1"), (999.94, "999.9"), (999.96, "1000"))),
        *((units.size, n, text) for n, text in ((0, "0 B"), (-5, "0 B"), (17, "17 B"), (3 * KIB, "3 KiB"))),
        *((units.size, n * MIB, text) for n, text in ((512, "512 MiB"), (1023.6, "1.0 GiB"))),
        *((units.size, n * GIB, text) for n, text in ((12, "12.0 GiB"), (141.1, "141.1 GiB"), (1000, "1.0 TiB"))),
        *((units.size, n * TIB, text) for n, text in ((2, "2.0 TiB"), (2000, "2.0 PiB"))),
        *((units.size, n, text) for n, text in ((2**60, "1.0 EiB"), (2**90, "999.9 EiB"))),
        *((percent_of_100, n, text) for n, text in ((0, "0"), (-3, "0"), (0.4, "<1"), (0.5, "<1"), (0.6, "1"))),
        *((percent_of_100, n, text) for n, text in ((41.2, "41"), (99.9, "99"), (100, "100"), (1e9, ">999"))),
    ],
)
def test_amounts(show: Callable[[float], str], n: float, expected: str) -> None:
    assert show(n) == expected


@pytest.mark.parametrize(
    ("seconds", "short", "long"),
    [
        (-5, "0s", "0 s"),
        (0, "0s", "0 s"),
        (1.49, "1s", "1.4 s"),
        (2, "2s", "2 s"),
        (9.99, "9s", "9.9 s"),
        (40, "40s", "40 s"),
        (59.99, "59s", "59 s"),
        (60, "1m", "1 min"),
        (185, "3m", "3 min 5 s"),
        (3599, "59m", "59 min 59 s"),
        (3600, "1h00m", "1 h"),
        (7800, "2h10m", "2 h 10 min"),
        (34860, "9h41m", "9 h 41 min"),
        (86399, "23h59m", "23 h 59 min"),
        (187200, "2d04h", "2 d 4 h"),
        (100 * 86400, "100d", "100 d"),
        (366 * 86400, "366d", "1 y 1 d"),
        (1e12, "31709y", "31709 y 289 d"),
    ],
)
def test_durations(seconds: float, short: str, long: str) -> None:
    assert units.duration(seconds) == short
    assert units.long_duration(seconds) == long


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        *((units.parse_size, text, n * MIB) for text, n in (("1048576B", 1), ("4096k", 4), ("512MiB", 512))),
        *((units.parse_size, text, n * GIB) for text, n in ((" 20 gib ", 20), ("1.5G", 1.5), (".5G", 0.5))),
        *((units.parse_size, text, n) for text, n in (("80GB", 80 * 10**9), ("2T", 2 * TIB))),
        (units.parse_size, "9223372036854775807B", 2**63 - 1),
        *((units.parse_share, text, n) for text, n in (("0.4", 0.4), ("40%", 0.4), (" 57 % ", 0.57), (".25", 0.25))),
        (units.parse_share, "1", 1),
        *((units.parse_percent, text, n) for text, n in (("10", 10), ("10%", 10), ("0.1", 0.1), ("100 %", 100))),
        *((units.parse_duration, text, n) for text, n in (("30s", 30), ("500ms", 0.5), ("10min", 600), ("10m", 600))),
        *((units.parse_duration, text, n) for text, n in (("2h", 7200), ("1.5h", 5400), ("7d", 604_800), ("90", 90))),
        *((units.parse_duration, text, n) for text, n in (("0", 0), ("365d", 31_536_000), (" 2 H ", 7200))),
    ],
)
def test_parsing(parse: Callable[[str], float], text: str, expected: float) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("1024", 1024), ("0", 0), ("512B", 512), ("4k", 4 * KIB)])
def test_a_caller_with_bounds_of_its_own_reads_plain_bytes(text: str, expected: int) -> None:
    assert units.parse_size(text, plain=True) == expected


@given(st.integers(MIB, units.MAX_SIZE))
def test_a_size_in_bytes_is_read_exactly(n: int) -> None:
    assert units.parse_size(f"{n}B") == units.parse_size(str(n), plain=True) == n


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("30", "30GiB"),
        ("0.5", "0.5GiB"),
        (" 1.5 ", "1.5GiB"),
        ("1023", "1023GiB"),
        ("20480", "20480MiB"),
        ("81559", "81559MiB"),
        ("32212254720", "32212254720B"),
    ],
)
def test_a_size_without_a_unit_is_refused_with_the_likely_one(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"size '{text}' has no unit; write {meant}$"):
        units.parse_size(text)
    assert units.parse_size(meant) >= MIB


@pytest.mark.parametrize("text", ["0", "0GiB", "30B", "30k", "1023KiB", "0.9MiB"])
def test_a_size_below_one_mebibyte_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"size '{text}' is too small; 1MiB or more is allowed"):
        units.parse_size(text)


@given(st.floats(MIB, 1e12))
def test_a_printed_size_is_read_back_within_its_rounding(n: float) -> None:
    assert units.parse_size(units.size(n)) == pytest.approx(n, rel=0.34, abs=1)


@pytest.mark.parametrize(
    ("parse", "text", "allowed"),
    [
        (units.parse_size, "20 potatoes", "20GiB"),
        (units.parse_size, "-1", "20GiB"),
        (units.parse_size, "20x", "20GiB"),
        (units.parse_size, "nan", "20GiB"),
        (units.parse_size, "٣G", "20GiB"),
        (units.parse_size, "9" * 5000, "20GiB"),
        (units.parse_size, "8388608TiB", "8388607TiB"),
        (units.parse_share, "1.4", "up to 1"),
        (units.parse_share, "0", "more than 0"),
        (units.parse_share, "40", "40%"),
        (units.parse_share, "0.4GiB", "0.4 or 40%"),
        *((units.parse_duration, text, "s, min, h or d") for text in ("", "h", "-5s", "2 weeks", "1h30min", "1e3")),
        *(
            (units.parse_duration, text, "s, min, h or d")
            for text in ("٣h", "2h\n3", "nan", "9" * 5000, "\x1b]2;x\x07")
        ),
        (units.parse_duration, "366d", "at most 365d"),
        (units.parse_percent, "101", "0 to 100"),
        (units.parse_percent, "a%", "0 to 100"),
    ],
)
def test_a_refusal_names_what_was_found_and_what_is_allowed(
    parse: Callable[[str], float], text: str, allowed: str
) -> None:
    with pytest.raises(ValueError, match=r"not|too|out") as refusal:
        parse(text)
    message = str(refusal.value)
    assert allowed in message
    assert ascii(text[:20])[1:-1] in message
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 160


@given(st.text())
def test_parsing_raises_nothing_but_value_error(text: str) -> None:
    for parse in (units.parse_size, units.parse_share, units.parse_percent, units.parse_duration):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0


@pytest.mark.parametrize(
    ("numbers", "words"),
    [([], ""), ([3], "3"), ([0, 1, 2, 3, 5], "0-3,5"), ([7, 0, 0], "0,7"), (range(8), "0-7"), ([1, 3], "1,3")],
)
def test_numbers_in_short(numbers: list[int], words: str) -> None:
    assert units.ranges(numbers) == words


@pytest.mark.parametrize(
    ("text", "near", "expected"),
    [
        ("2026-11-21 03:10", 0, "2026-11-21 03:10:00"),
        (" 2026-11-21T03:10:22 ", 0, "2026-11-21 03:10:22"),
        ("2020-01-01 03:10", 0, "2020-01-01 03:10:00"),
        ("13:00", 0, "2026-11-20 13:00:00"),
        ("13:00", 48, "2026-11-21 13:00:00"),
        ("4:05:06", 0, "2026-11-21 04:05:06"),
        ("12:30", 0, "2026-11-20 12:30:20"),  # the minute in which the span begins
        ("12:30:20", 0, "2026-11-20 12:30:20"),
        ("12:30:20", 48, "2026-11-21 12:30:20"),
    ],
)
def test_a_clock_time_is_on_the_day_that_puts_it_into_the_span(text: str, near: float, expected: str) -> None:
    first = time.mktime((2026, 11, 20, 12, 30, 20, 0, 0, -1))
    last = time.mktime((2026, 11, 21, 18, 0, 0, 0, 0, -1))
    found = parse_moment(text, first, last, first + near * 3600)
    assert format_moment(found) == expected


@pytest.mark.parametrize(
    ("text", "near", "hour"),
    [
        ("02:30", 0.0, 0.5),
        ("02:30", 2.0, 1.5),
        ("2026-10-25 02:30", 2.0, 1.5),
        ("01:30", 2.0, -0.5),
        ("03:30", 0.0, 2.5),
    ],
)
def test_a_clock_time_that_the_end_of_summer_time_repeats_is_the_nearest(
    text: str, near: float, hour: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        two = 1792886400.0  # 02:00 in summer time
        assert parse_moment(text, two - 7200, two + 3 * 3600, two + near * 3600) == two + hour * 3600
        before = parse_moment("23:30", two + 12 * 3600, two + 24 * 3600, two + 24 * 3600)
        assert format_moment(before) == "2026-10-25 23:30:00"  # a day of 25 hours is not skipped, and none comes twice
        skipped = parse_moment("2026-03-29 02:30", 0.0, 2e9, 0.0)
        assert format_moment(skipped) == "2026-03-29 03:30:00"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "noon", "25:00", "12:60", "12:00:99", "2026-13-01 03:10", "2026-11-21", "1" * 99])
def test_what_is_no_clock_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not understood; write 03:10, 03:10:22 or '2026-11-21 03:10'"):
        parse_moment(text, 0.0, 1e9, 0.0)
