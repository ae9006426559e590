"""The outputs of all commands and screens are the approved ones: `tests/approved`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwatch.commands.reference import COMMANDS, DASHBOARD
from tests.approve import APPROVED, PARTS, difference, main, names, render

pytestmark = pytest.mark.slow


_RENAMED = {"visible": "explain", "recording": "replay"}


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path, own_pids: None) -> Callable[[str], Path]:
    """Return a function that gives the folder of what a part shows now, and makes it at the first call."""
    folder = tmp_path_factory.mktemp("approved")

    def make(part: str) -> Path:
        if not (folder / part).exists():
            render(part, folder)
        return folder

    return make


@pytest.mark.parametrize(("part", "name"), [(part, name) for part in PARTS for name in names(part)])
def test_what_is_shown_was_approved(part: str, name: str, now: Callable[[str], Path]) -> None:
    found = difference(part, name, now(part))
    if found:
        pytest.fail(f"a regression, or else run `python -m tests.approve` and name the decision:\n{found}", False)


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_shown_that_nobody_approved(part: str, now: Callable[[str], Path]) -> None:
    assert names(part, now(part)) == names(part)


def test_every_command_has_a_file() -> None:
    files = {file.stem for file in (APPROVED / "commands").iterdir()}
    assert files == {*COMMANDS, "gpuwatch", "once", "json"}


def test_every_exit_code_is_in_the_reference() -> None:
    text = "".join(file.read_text() for file in sorted((APPROVED / "commands").iterdir()))
    runs = re.findall(r"(?m)^\$ (?:\w+=\S* )*gpuwatch ?(.*)$(?s:.*?)^exit code (\d+)$", text)
    assert len(runs) > 300
    for line, code in runs:
        words = [_RENAMED.get(word, word) for word in shlex.split(line)]
        command = next((COMMANDS[word] for word in words if word in COMMANDS), DASHBOARD)
        assert int(code) in {**command.exit_codes(), 130: "Ctrl-C"}, line


def test_nothing_is_approved_by_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(SystemExit, match="not written by CI"):
        main()
