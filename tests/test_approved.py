"""The outputs of all commands and screens are the approved ones: `tests/approved`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gpuwatch.commands.reference import COMMANDS, DASHBOARD
from tests.approve import APPROVED, PARTS, difference, main, names, render

pytestmark = pytest.mark.slow


_RENAMED = {"visible": "explain", "recording": "replay"}


@pytest.mark.parametrize("part", PARTS)
def test_what_is_shown_was_approved(part: str, tmp_path: Path, nvml_library: Path, own_pids: None) -> None:
    """All of a part in one test: to render it takes some ten seconds, in each process that runs one of several."""
    render(part, tmp_path)
    assert names(part, tmp_path) == names(part), "shown, and nobody approved it"
    found = "".join(difference(part, name, tmp_path) for name in names(part))
    if found:
        pytest.fail(f"a regression, or else run `python -m tests.approve` and name the decision:\n{found}", False)


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
