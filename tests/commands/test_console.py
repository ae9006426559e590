"""The console: what it prints in ASCII, to whom, and its text table."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuwatch.commands.console import RED, Console, TextColumn, escape_json, format_table, report_error
from gpuwatch.errors import UnavailableError, UsageError
from gpuwatch.text import cell_width, spell_signs
from tests.support.terminal import Terminal

SIGNS = "·—–−…≥×→←↑↓°“”●▲✓Σ▾▴"

COLUMNS: tuple[TextColumn[tuple[str, str, str]], ...] = (
    TextColumn("PID", lambda row: row[0]),
    TextColumn("user", lambda row: row[1], right=False, color=lambda row: RED),
    TextColumn("command", lambda row: row[2], right=False),
)
ROWS = [("7", "ada", "python train.py"), ("4711", "名前", "x" * 60)]


def stream(encoding: str) -> io.TextIOWrapper:
    """Return a stream of an encoding that goes nowhere."""
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")


def written(out: io.TextIOWrapper) -> str:
    """Return what was written to a stream."""
    assert isinstance(out.buffer, io.BytesIO)
    return out.buffer.getvalue().decode(out.encoding)


@pytest.mark.parametrize(("encoding", "ascii_only"), [("ascii", False), ("utf-8", True)])
def test_in_ascii_data_and_words_are_spelled_and_json_is_escaped(encoding: str, ascii_only: bool) -> None:
    out, err = stream(encoding), stream(encoding)
    console = Console(ascii_only=ascii_only, out=out, err=err)
    console.print("≥1 GiB · 84 °C")
    console.print_json('{"é":"→😀"}')
    console.warn("no room — wait")
    assert written(out) == '>=1 GiB | 84 C\n{"\\u00e9":"\\u2192\\ud83d\\ude00"}\n'
    assert written(err) == "gpuwatch: no room - wait\n"


def test_in_unicode_nothing_is_changed_but_controls_in_words() -> None:
    out, err = stream("utf-8"), stream("utf-8")
    console = Console(out=out, err=err)
    console.print("≥1", "é")
    console.print_json('{"é":1}')
    console.warn("a\x1b[2J", "b")
    assert written(out) == '≥1\né\n{"é":1}\n'
    assert written(err) == "gpuwatch: a\N{REPLACEMENT CHARACTER}[2J\ngpuwatch: b\n"


def test_what_is_no_terminal_has_no_width_and_no_colour() -> None:
    console = Console(out=stream("utf-8"), err=stream("utf-8"))
    assert (console.width, console.color) == (None, False)


@pytest.mark.parametrize(("setting", "colored"), [("A=1", True), ("NO_COLOR=1", False), ("TERM=dumb", False)])
def test_a_terminal_has_colour_unless_it_is_refused(setting: str, colored: bool) -> None:
    program = "from gpuwatch.commands.console import Console; c = Console(); c.print(f'{c.width} {c.color}')"
    with Terminal(
        ["env", setting, sys.executable, "-c", program], columns=70, rows=5, env=dict(os.environ)
    ) as terminal:
        terminal.wait_for(lambda one: f"70 {colored}" in one.lines[0])


@given(st.text())
def test_escaped_json_says_the_same(text: str) -> None:
    whole = json.dumps({"text": text}, ensure_ascii=False)
    assert escape_json(whole).isascii()
    assert json.loads(escape_json(whole)) == json.loads(whole)


@given(st.text(alphabet=SIGNS + "a é名\u0301"))
def test_the_width_of_a_text_is_that_of_the_terminal(text: str) -> None:
    assert cell_width(text) == cell_len(text)


def test_all_signs_of_ours_are_tested() -> None:
    assert all(spell_signs(sign) != sign for sign in SIGNS)


# ---------------------------------------------------------------------------------------------------------------
# The table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert format_table(COLUMNS, ROWS, total=("all", "", "2")) == [
        " PID  user  command",
        "   7  ada   python train.py",
        "4711  名前  " + "x" * 60,
        " all        2",
    ]


@pytest.mark.parametrize("width", [1, 5, 12, 40, 200])
def test_no_line_is_wider_than_the_terminal_and_only_what_is_cut_says_so(width: int) -> None:
    lines = format_table(COLUMNS, ROWS, width=width)
    whole = format_table(COLUMNS, ROWS)
    assert all(cell_len(line) <= width for line in lines)
    assert [line for line, full in zip(lines, whole, strict=True) if cell_len(full) <= width] == [
        full for full in whole if cell_len(full) <= width
    ]


def test_the_last_column_keeps_what_it_needs() -> None:
    assert format_table(COLUMNS, ROWS, width=5, least=8) == [
        " PID  user  command",
        "   7  ada   python …",
        "4711  名前  xxxxxxx…",
    ]


def test_colour_moves_nothing() -> None:
    lines = format_table(COLUMNS, ROWS, color=True, total=("all", "", ""))
    assert lines[1] == "   7  \x1b[31mada \x1b[0m  python train.py"
    assert lines[0].startswith(" PID  \x1b[2muser\x1b[0m  ")
    assert "\x1b" not in lines[3]


def test_a_table_without_headers_has_rows_alone() -> None:
    columns: list[TextColumn[int]] = [TextColumn("", str), TextColumn("", lambda one: str(one * 10), gap=" → ")]
    assert format_table(columns, [1, 10]) == [" 1 →  10", "10 → 100"]
    assert format_table(columns, []) == []


# ---------------------------------------------------------------------------------------------------------------
# Errors


@pytest.mark.parametrize(("error", "code"), [(UsageError("wrong"), 2), (UnavailableError("wrong"), 3)])
def test_an_error_is_one_line_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], error: UsageError | UnavailableError, code: int
) -> None:
    assert report_error(error) == code
    assert capsys.readouterr() == ("", "gpuwatch: wrong\n")


def test_an_error_that_is_not_of_printing_is_raised() -> None:
    with pytest.raises(FileNotFoundError):
        report_error(FileNotFoundError(2, "no such file", str(Path("/nowhere"))))
