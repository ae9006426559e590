"""The console: what it prints in ASCII and to whom, in the background too, its text table, and its errors."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuwatch.alerts.alert import MARKS
from gpuwatch.base.text import cell_width, spell_signs
from gpuwatch.commands.console import RED, BackgroundConsole, Console, TextColumn, escape_json, format_table, in_ascii
from gpuwatch.ui.desktop import notification
from gpuwatch.ui.draw import sheet
from gpuwatch.ui.draw.lines import LineBuilder, plain
from gpuwatch.ui.draw.theme import make_styles
from tests.support.terminal import Terminal
from tests.support.waiting import PATIENCE, wait_for

ASCII = make_styles("gpuwatch-dark", ascii_only=True)
SAID = {
    "≥59.7": ">=59.7",
    "84 °C": "84 C",
    "30Σ": "30S",
    "GiB·h": "GiB*h",
    "ada 12.0 · ben 3.0": "ada 12.0 | ben 3.0",
    "3 × 0.4": "3 x 0.4",
    "cuda:0 → GPU 2": "cuda:0 -> GPU 2",
    "1–33 of 46": "1-33 of 46",
    "−0.3": "-0.3",
    "62/—": "62/-",
    "62/·": "62/.",
    "“z”": '"z"',
}

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


# ---------------------------------------------------------------------------------------------------------------
# ASCII


def test_a_sign_says_in_ascii_what_it_said_wherever_it_stands() -> None:
    for sign, spelled in SAID.items():
        assert in_ascii(sign) == spelled
        assert plain(LineBuilder(ASCII).write(sign).build(len(spelled))) == spelled
        assert sheet.plain(sign) == spelled
        assert notification("osc9", "box", sign, ascii_only=True) == f"\x1b]9;box: {spelled}\a"


def test_no_two_marks_are_spelled_alike() -> None:
    marks = [*MARKS.values(), "✓", "—", "≥", "Σ"]
    assert len({spell_signs(mark) for mark in marks}) == len(marks)
    glyphs = ASCII.glyphs
    drawn = [glyphs.critical, glyphs.warning, glyphs.note, glyphs.dot, glyphs.least, glyphs.declared, glyphs.hatch]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("sign", ["≥", "→", "°"])
def test_a_sign_that_takes_more_or_less_moves_no_column(sign: str) -> None:
    line = f"  GPU 1     {sign}6m  ada   12.0   {sign}C  end"
    spelled = in_ascii(line)
    assert len(spelled) == len(line)
    assert spelled.index("ada") == line.index("ada")
    assert spelled.endswith("  end")
    assert "1  " in spelled  # the cell before is not touched


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
    assert (console.width, console.color) == (None, False)
    console.print("≥1", "é")
    console.print_json('{"é":1}')
    console.warn("a\x1b[2J", "b")
    assert written(out) == '≥1\né\n{"é":1}\n'
    assert written(err) == "gpuwatch: a\N{REPLACEMENT CHARACTER}[2J\ngpuwatch: b\n"


@pytest.mark.parametrize(("setting", "colored"), [("A=1", True), ("NO_COLOR=1", False)])
def test_a_terminal_has_colour_unless_it_is_refused(setting: str, colored: bool) -> None:
    program = "from gpuwatch.commands.console import Console; c = Console(); c.print(f'{c.width} {c.color}')"
    command = ["env", setting, sys.executable, "-c", program]
    with Terminal(command, columns=70, rows=5, env=dict(os.environ)) as terminal:
        terminal.wait_for(lambda one: f"70 {colored}" in one.lines[0])


@given(st.text())
def test_escaped_json_says_the_same(text: str) -> None:
    whole = json.dumps({"text": text}, ensure_ascii=False)
    assert escape_json(whole).isascii()
    assert json.loads(escape_json(whole)) == json.loads(whole)


@given(st.text(alphabet="·—–−…≥×→←↑↓°“”●▲✓Σ▾▴" + "a é名\u0301"))
def test_the_width_of_a_text_is_that_of_the_terminal(text: str) -> None:
    assert cell_width(text) == cell_len(text)


# ---------------------------------------------------------------------------------------------------------------
# The table


@pytest.mark.parametrize("width", [1, 5, 12, 40, 200])
def test_no_line_is_wider_than_the_terminal_and_only_what_is_cut_says_so(width: int) -> None:
    lines = format_table(COLUMNS, ROWS, width=width)
    whole = format_table(COLUMNS, ROWS)
    assert all(cell_len(line) <= width for line in lines)
    fitting = [full for full in whole if cell_len(full) <= width]
    assert [line for line, full in zip(lines, whole, strict=True) if full in fitting] == fitting


# ---------------------------------------------------------------------------------------------------------------
# In the background


def test_a_console_in_the_background_never_waits_and_says_what_it_dropped() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out:
        console = BackgroundConsole(out=out, waiting=10)
        line = "x" * 8000
        for number in range(100):  # 64 KiB fit into the pipe
            console.print(f"{number} {line}")
        chunks = []

        def have_all() -> bool:
            chunks.append(os.read(reader, 1 << 16))
            return b"99 xxx" in b"".join(chunks[-2:])

        wait_for(have_all)
        assert b"lines were not printed: nobody reads the output" in b"".join(chunks)
        console.print("the end")
        console.close(PATIENCE)
        assert os.read(reader, 1 << 16).endswith(b"the end\n")
    os.close(reader)


def test_a_console_in_the_background_outlives_its_reader() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out:
        console = BackgroundConsole(out=out)
        os.close(reader)
        console.print("nobody hears it")
        wait_for(lambda: console.unread)
        console.print("nor this")
        console.close(PATIENCE)
