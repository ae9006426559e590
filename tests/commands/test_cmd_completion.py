"""`gpuwatch completion`, and the man page: fresh, whole, and completed by real shells."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.alerts.rules import RULE_NAMES
from gpuwatch.commands.completion import FOLDER, SHELLS
from gpuwatch.commands.reference import COMMANDS
from tests.shell import shell_files
from tests.support.program import Call


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse words its usage lines differently in each Python")
@pytest.mark.parametrize("name", ["gpuwatch.1", *(f"gpuwatch.{shell}" for shell in SHELLS)])
def test_the_files_are_those_of_the_parser(name: str) -> None:
    assert (FOLDER / name).read_text() == shell_files()[name], "write them with `python -m tests.docs`"


def test_each_completion_has_the_licence_of_its_template_and_is_printed(call: Call) -> None:
    for shell in SHELLS:
        text = (FOLDER / f"gpuwatch.{shell}").read_text()
        assert any("Mozilla Public License" in line for line in text.splitlines()[:6])
        assert call("completion", shell) == (0, text, "")


# ---------------------------------------------------------------------------------------------------------------
# Real shells


def bash(*words: str, cwd: Path) -> set[str]:
    """Return what bash offers for the last of some words."""
    script = f'source {FOLDER}/gpuwatch.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_gpuwatch'
    script += '; printf "%s\\n" "${COMPREPLY[@]}"'
    command = ["bash", "--norc", "-c", script, "bash", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, cwd=cwd)
    return set(done.stdout.split())


RULES = {name.replace(" ", "-") for name in RULE_NAMES}


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("gpuwatch", ""), set(COMMANDS)),
        (("gpuwatch", "--on"), {"--once"}),
        (("gpuwatch", "--theme", "li"), {"light"}),
        (("gpuwatch", "explain", "--order", "P"), {"PCI_BUS_ID"}),
        (("gpuwatch", "events", "--rule", "un"), {name for name in RULES if name.startswith("un")}),
        (("gpuwatch", "--config", "mi"), {"mine.toml"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bash_completes(tmp_path: Path, words: tuple[str, ...], offered: set[str]) -> None:
    (tmp_path / "mine.toml").touch()
    assert bash(*words, cwd=tmp_path) == offered
