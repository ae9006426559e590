"""`gpuwatch completion`, and the man page: fresh, whole, and completed by real shells."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch import cli
from gpuwatch.alerts.rules import RULE_NAMES
from gpuwatch.cli import COMMANDS
from gpuwatch.commands.completion import FOLDER, SHELLS
from tests.shell import shell_files, whole_parser
from tests.support.launching import Call
from tests.support.terminal import Terminal


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse words its usage lines differently in each Python")
@pytest.mark.parametrize("name", ["gpuwatch.1", *(f"gpuwatch.{shell}" for shell in SHELLS)])
def test_the_files_are_those_of_the_parser(name: str) -> None:
    assert (FOLDER / name).read_text() == shell_files()[name], "write them with `python -m tests.docs`"


def test_no_other_file_is_shipped() -> None:
    assert sorted(file.name for file in FOLDER.iterdir()) == sorted(shell_files())


@pytest.mark.parametrize("shell", SHELLS)
def test_each_completion_has_the_licence_of_its_template(shell: str) -> None:
    head = (FOLDER / f"gpuwatch.{shell}").read_text().splitlines()[:6]
    assert any("Mozilla Public License" in line for line in head)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_the_file(call: Call, shell: str) -> None:
    assert call("completion", shell) == (0, (FOLDER / f"gpuwatch.{shell}").read_text(), "")


def test_an_unknown_shell_is_an_error(call: Call) -> None:
    code, out, err = call("completion", "nu")
    assert (code, out) == (2, "")
    assert all(shell in err for shell in SHELLS)


def test_the_man_page_has_each_command_and_each_flag() -> None:
    page = (FOLDER / "gpuwatch.1").read_text().replace("\\-", "-")
    top = whole_parser()
    for name, one in cli.commands_of(top).items():
        assert f".SS \\fBgpuwatch {name}\\fR" in page
        shown = [action for action in one._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
        flags = [flag for action in shown for flag in action.option_strings]
        assert [flag for flag in flags if flag not in page] == []


@pytest.mark.skipif(not shutil.which("man"), reason="needs man")
def test_man_shows_the_page() -> None:
    command = ["man", "--warnings", "-l", str(FOLDER / "gpuwatch.1")]
    env = {**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "live monitor for NVIDIA GPUs" in done.stdout


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
        (("gpuwatch", "ex"), {"explain"}),
        (("gpuwatch", "--on"), {"--once", "--only"}),
        (("gpuwatch", "--theme", ""), {"dark", "light"}),
        (("gpuwatch", "pick", "--s"), {"--share"}),
        (("gpuwatch", "visible", "--order", "P"), {"PCI_BUS_ID"}),
        (("gpuwatch", "docs", "gui"), {"guide"}),
        (("gpuwatch", "completion", ""), set(SHELLS)),
        (("gpuwatch", "events", "--rule", ""), RULES),
        (("gpuwatch", "events", "--rule", "un"), {name for name in RULES if name.startswith("un")}),
        (("gpuwatch", "--config", "mi"), {"mine.toml"}),
        (("gpuwatch", "replay", "mi"), {"mine.toml"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bash_completes(tmp_path: Path, words: tuple[str, ...], offered: set[str]) -> None:
    (tmp_path / "mine.toml").touch()
    assert bash(*words, cwd=tmp_path) == offered


SETUPS = {
    "bash": (["bash", "--norc", "--noprofile"], f"PS1='ready> '; source {FOLDER}/gpuwatch.bash"),
    "zsh": (["zsh", "-f"], "PS1='ready> '; fpath=($PWD $fpath); autoload -Uz compinit; compinit -D -u"),
    "tcsh": (["tcsh", "-f"], f"set prompt='ready> '; source {FOLDER}/gpuwatch.tcsh"),
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SETUPS)
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("gpuwatch expl", "gpuwatch explain"),
        ("gpuwatch --stre", "gpuwatch --stream"),
        ("gpuwatch docs secu", "gpuwatch docs security"),
        ("gpuwatch events --rule temp", "gpuwatch events --rule temperature-near-slowdown"),
        ("gpuwatch --config mine.t", "gpuwatch --config mine.toml"),
        ("gpuwatch replay mine.t", "gpuwatch replay mine.toml"),
        ("gpuwatch completion tc", "gpuwatch completion tcsh "),
    ],
)
def test_a_real_shell_completes(tmp_path: Path, shell: str, typed: str, completed: str) -> None:
    command, setup = SETUPS[shell]
    if not shutil.which(command[0]):
        pytest.skip(f"needs {shell}")
    (tmp_path / "mine.toml").touch()
    (tmp_path / "tcsh").mkdir()  # a word that is offered is no folder, also where one has its name
    shutil.copy(FOLDER / "gpuwatch.zsh", tmp_path / "_gpuwatch")  # the name under which zsh looks for it
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    with Terminal(command, columns=200, rows=20, env=env) as terminal:
        terminal.send(f"cd {tmp_path}; {setup}; clear\r")
        terminal.wait_for(lambda one: one.lines[0].strip() == "ready>")
        terminal.send(f"{typed}\t")
        terminal.wait_for(lambda one: f"ready> {completed}" in one.lines[0])


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("gpuwatch expl", {"explain"}),
        ("gpuwatch --stre", {"--stream"}),
        ("gpuwatch docs secu", {"security"}),
        ("gpuwatch events --rule temp", {"temperature-near-slowdown"}),
        ("gpuwatch --config mine.t", {"mine.toml"}),
        ("gpuwatch completion ", set(SHELLS)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fish_completes(tmp_path: Path, typed: str, offered: set[str]) -> None:
    (tmp_path / "mine.toml").touch()
    command = ["fish", "-N", "-c", f"source {FOLDER}/gpuwatch.fish; complete -C '{typed}'"]
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True)
    assert {line.partition("\t")[0] for line in done.stdout.splitlines()} == offered
