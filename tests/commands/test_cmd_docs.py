"""`gpuwatch docs`: the list, pages in a pipe, and pages in a terminal with and without a pager."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from rich.text import Text

from gpuwatch import cli
from gpuwatch.commands.docs import FOLDER, PAGES, page_text, pager, render
from gpuwatch.errors import UsageError
from tests.support.terminal import Terminal
from tests.support.uncovered import environment

DOCS = [str(Path(sys.executable).parent / "gpuwatch"), "docs"]


def test_without_a_page_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs"], None) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_in_a_pipe_a_page_is_its_markdown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", name], None) == 0
    lines = [line for line in (FOLDER / f"{name}.md").read_text().splitlines() if not line.startswith("<!--")]
    assert capsys.readouterr().out.splitlines() == lines


def test_an_unknown_page_names_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", "nowhere\x1b[1m"], None) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "\x1b" not in err
    assert ", ".join(PAGES) in err


def test_a_page_is_no_path() -> None:
    with pytest.raises(UsageError):
        page_text("../docs/guide")


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [40, 60, 80, 110])
def test_a_page_fits_the_terminal(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # Rich takes a dumb terminal for 80 columns wide
    drawn = Text.from_ansi(render(page_text(name), width))
    assert [line.plain for line in drawn.split() if line.cell_len > width] == []
    assert "<!--" not in drawn.plain


def test_a_link_to_a_page_becomes_its_command() -> None:
    drawn = Text.from_ansi(render("See [the rules](alerts.md#rules).", 80))
    assert drawn.plain.strip() == "See the rules (gpuwatch docs alerts)."


@pytest.mark.parametrize("name", PAGES)
def test_in_ascii_nothing_is_outside_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", "--ascii", name], None) == 0
    assert capsys.readouterr().out.isascii()


@pytest.mark.parametrize(
    ("variable", "command"),
    [("cat -n", ["cat", "-n"]), ("", []), ("no-such-program -R", []), ("it's not quoted", [])],
)
def test_the_pager_is_that_of_the_user(variable: str, command: list[str]) -> None:
    assert list(pager({**os.environ, "PAGER": variable})) == command


def run(page: str, pager_command: str, *flags: str) -> str:
    """Return what a terminal shows of a page at the end."""
    with Terminal([*DOCS, page, *flags], columns=80, rows=24, env=environment() | {"PAGER": pager_command}) as terminal:
        assert terminal.wait_exit() == 0
        return "\n".join(terminal.lines)


def test_in_a_terminal_a_page_goes_through_the_pager() -> None:
    assert run("security", "sed 's/^/PAGED /'").count("PAGED ") > 10


def test_a_pager_that_does_not_read_all_is_no_error() -> None:
    assert "Design" in run("design", "head -n 5")


@pytest.mark.parametrize("pager_command", ["", "no-such-program"])
def test_without_a_pager_a_page_is_printed(pager_command: str) -> None:
    shown = run("security", pager_command)
    assert "In the demo nothing is ever signalled." in shown
    assert "**" not in shown


def test_in_a_terminal_of_ascii_a_page_is_ascii() -> None:
    assert run("guide", "", "--ascii").isascii()
