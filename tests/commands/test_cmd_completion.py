"""`gpuwatch completion`, and the man page: fresh, whole, and completed by real shells."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.alerts.rules import RULE_NAMES
from gpuwatch.commands.completion import FOLDER, SHELLS
from gpuwatch.commands.reference import COMMANDS
from tests.docs import PACKAGE
from tests.shell import ENVIRONMENT, shell_files
from tests.support.program import Call


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse words its usage lines differently in each Python")
@pytest.mark.parametrize("name", ["gpuwatch.1", *(f"gpuwatch.{shell}" for shell in SHELLS)])
def test_the_files_are_those_of_the_parser(name: str) -> None:
    assert (FOLDER / name).read_text() == shell_files()[name], "write them with `python -m tests.docs`"


@pytest.mark.skipif(not shutil.which("man"), reason="needs man")
def test_man_finds_the_page_next_to_a_folder_of_the_path(tmp_path: Path) -> None:
    """As the installation of the README links it: ~/.local/bin in PATH leads man to ~/.local/share/man."""
    page = tmp_path / ".local/share/man/man1/gpuwatch.1"
    page.parent.mkdir(parents=True)
    page.symlink_to(FOLDER / "gpuwatch.1")
    (tmp_path / ".local/bin").mkdir()
    environ = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/.local/bin:/usr/bin:/bin", "MANWIDTH": "80"}
    text = subprocess.run(["man", "gpuwatch"], env=environ, capture_output=True, text=True, check=True).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert re.findall(r"(?m)^(\S.*)$", re.sub(".\b", "", text))[1:4] == ["NAME", "SYNOPSIS", "DESCRIPTION"]


def test_the_page_has_every_variable_that_is_read_and_every_command_once() -> None:
    """Those of other processes (`declared`, `inspector`) and of requests (`export`) are not meant."""
    sources = [file for file in PACKAGE.rglob("*.py") if not {"declared", "export", "inspector"} & {*file.parts}]
    names = {name for file in sources for name in re.findall(r'environ(?:\.get\(|\[)"(\w+)"', file.read_text())}
    assert len(names) > 10
    assert sorted(name for name in names if name not in " ".join(ENVIRONMENT)) == sorted(_OTHERS)
    assert all((FOLDER / "gpuwatch.1").read_text().count(f".SS {name}") == 1 for name in COMMANDS)


_OTHERS = {"XLA_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH", "PYTORCH_ALLOC_CONF", "RES_OPTIONS", "API_KEY"}
"""Variables that `run` may set, one of a child process, and one of a comment."""


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
