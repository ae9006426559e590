"""The outputs of all commands and screens are the approved ones: `tests/approved`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.cli import COMMANDS
from tests.approve import APPROVED, differences, main, render

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("nvml_library", "own_pids")
def test_commands_print_what_was_approved(tmp_path: Path) -> None:
    check("commands", tmp_path)


def test_screens_show_what_was_approved(tmp_path: Path) -> None:
    check("screens", tmp_path)


def check(part: str, folder: Path) -> None:
    """Fail with the differences between what was approved and what is there now."""
    render(part, folder)
    found = differences(part, folder)
    if found:
        pytest.fail(f"a regression, or else run `python -m tests.approve` and name the decision:\n{found}", False)


def test_every_command_has_a_file() -> None:
    files = {file.stem for file in (APPROVED / "commands").iterdir()}
    assert files == {*COMMANDS, "gpuwatch", "once", "json"}


def test_nothing_is_approved_by_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(SystemExit, match="not written by CI"):
        main()
