"""`gpuwatch docs`: the list, pages in a pipe, and pages in a terminal with and without a pager."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from rich.text import Text

from gpuwatch import cli
from gpuwatch.commands.docs import FOLDER, PAGES, page_text, pager, render
from tests.support.environment import environment
from tests.support.terminal import Terminal

DOCS = [str(Path(sys.executable).parent / "gpuwatch"), "docs"]


@pytest.mark.parametrize("name", PAGES)
def test_in_a_pipe_a_page_is_its_markdown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", name], None) == 0
    page = re.sub(r"(?m)^(?:!\[.*\n)+\n", "", (FOLDER / f"{name}.md").read_text())  # there are no pictures
    lines = [line for line in page.splitlines() if not line.startswith("<!--")]
    assert capsys.readouterr().out.splitlines() == lines
    assert cli.main(["docs", "--ascii", name], None) == 0
    assert capsys.readouterr().out.isascii()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_the_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # Rich takes a dumb terminal for 80 columns wide
    drawn = Text.from_ansi(render(page_text(name), 40))
    assert [line.plain for line in drawn.split() if line.cell_len > 40] == []
    assert "<!--" not in drawn.plain
    assert re.findall(r"\(\w+\.md", drawn.plain) == [], "a link to a page is the command that shows it"


@pytest.mark.parametrize(
    ("variable", "command"),
    [("cat -n", ["cat", "-n"]), ("", []), ("no-such-program -R", []), ("it's not quoted", [])],
)
def test_the_pager_is_that_of_the_user(variable: str, command: list[str]) -> None:
    assert list(pager({**os.environ, "PAGER": variable})) == command


@pytest.mark.parametrize(
    ("page", "pager_command", "shown"),
    [
        ("screen", "head -n 5", "The screen"),  # a pager that does not read all is no error
        ("data", "no-such-program", "Nothing from another host"),
    ],
)
def test_in_a_terminal_a_page_goes_through_the_pager_if_there_is_one(page: str, pager_command: str, shown: str) -> None:
    env = environment() | {"PAGER": pager_command}
    with Terminal([*DOCS, page], columns=80, rows=24, env=env) as terminal:
        assert terminal.wait_exit() == 0
        drawn = "\n".join(terminal.lines)
    assert shown in drawn
    assert "**" not in drawn
