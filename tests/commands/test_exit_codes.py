"""Exit codes: one rule for all commands, on the fake driver and without any.

0 done, an empty list too; 1 what a command needs is not there, or not all of it could be done; 2 bad usage; 3 no driver
or no GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwatch import cli
from gpuwatch.cli import COMMANDS
from gpuwatch.recorder.events_log import Event, Record, encode, own_log
from gpuwatch.recorder.store import own_store
from tests.driver import Driver, Gpu
from tests.support.builders import EPOCH
from tests.support.launching import PROGRAM
from tests.support.storing import batch, store

ME = str(os.getpid())
NOBODY = str(2**22)
"""The first number that no process of Linux has."""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(driver: Driver, tmp_path: Path) -> Run:
    """Return function that runs gpuwatch to its end, without a terminal; its reservations are in the test's folder."""

    def begin(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "shared"), *arguments]
        unset = {name: value for name, value in driver.env().items() if name != "CUDA_VISIBLE_DEVICES"}
        return subprocess.run(command, env=unset | env, capture_output=True, text=True, timeout=60, check=False)

    return begin


def check(done: subprocess.CompletedProcess[str], code: int) -> None:
    """Require an exit code, of all but 0 a word why, and no traceback."""
    assert done.returncode == code, done.stderr
    assert all(line.startswith("gpuwatch: ") for line in done.stderr.splitlines())
    assert not code or done.stdout or done.stderr


WITH_A_GPU = [
    (["--once"], 0),
    (["--once", "--json"], 0),
    (["--once", "--user", "nobody-of-that-name"], 0),
    (["explain", ME], 0),
    (["explain", NOBODY], 1),
    (["visible", "0"], 0),
    (["visible", "-1"], 1),
    (["pick", "--share", "0.5"], 0),
    (["pick", "--memory", "500GiB"], 1),
    (["run", "--share", "0.5", "--", "true"], 0),
    (["run", "--memory", "500GiB", "--", "true"], 1),
    (["strays"], 0),
    (["kill", "--yes", NOBODY], 1),
    (["status"], 0),
]
WITHOUT_A_DRIVER = [
    (["--once"], 3),
    (["--once", "--json"], 3),
    (["--stream"], 3),
    (["explain", ME], 3),
    (["explain", NOBODY], 1),
    (["visible", "0"], 3),
    (["pick", "--share", "0.5"], 3),
    (["run", "--share", "0.5", "--", "true"], 3),
    (["strays"], 3),
    (["kill", "--yes", ME], 3),
    (["status"], 3),
]
WITHOUT_ANYTHING_KEPT = [(["events"], 1), (["events", "--json"], 1), (["report"], 1), (["report", "--csv"], 1)]
BAD_USAGE = [
    ["--once", "--stream"],
    ["explain", "me"],
    ["visible", "0", "--order", "SLOWEST_FIRST"],
    ["pick"],
    ["run", "--share", "2", "--", "true"],
    ["strays", "--nope"],
    ["kill", "me"],
    ["report", "--by", "host"],
    ["report", "--file", "/nowhere"],
    ["events", "--since", "soon"],
    ["events", "--file", "/nowhere"],
    ["watch", "--quiet", "--json"],
    ["status", "--tmux", "--json"],
    ["config"],
    ["docs", "nowhere"],
    ["config", "--check", "--config", "/nowhere"],
]


@pytest.mark.parametrize(("arguments", "code"), WITH_A_GPU)
def test_with_a_gpu(run: Run, driver: Driver, arguments: list[str], code: int) -> None:
    driver.gpus = [Gpu(0)]
    driver.write()
    check(run(*arguments), code)


@pytest.mark.parametrize(("arguments", "code"), WITHOUT_A_DRIVER)
def test_without_a_driver(run: Run, arguments: list[str], code: int) -> None:
    done = run(*arguments, LD_LIBRARY_PATH="/nowhere")
    check(done, code)
    assert arguments == ["status"] or done.stderr
    if arguments == ["explain", ME]:
        assert done.stdout.startswith(f"PID {ME} ")


def code_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command that asks no driver in this process; give its exit code, stdout and stderr."""
    code = cli.main(arguments, None)
    return code, *capsys.readouterr()


@pytest.mark.parametrize(("arguments", "code"), WITHOUT_ANYTHING_KEPT)
def test_where_nothing_was_kept_yet(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int) -> None:
    ended, out, err = code_of(capsys, *arguments)
    assert (ended, out, err.count("\n")) == (code, "", 1)
    assert "`gpuwatch watch`" in err


def test_where_nothing_happened_of_late(capsys: pytest.CaptureFixture[str]) -> None:
    store(own_store()).write(batch())
    own_log().write_bytes(encode(Record(schema=1, at=EPOCH, event=Event.BEGAN)))
    for arguments in (["events"], ["events", "--json"], ["report"], ["report", "--json"], ["report", "--csv"]):
        assert code_of(capsys, *arguments)[0] == 0


def test_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in ((["--check"], 0), (["--show"], 0), (["--init"], 0), (["--init"], 2), (["--check"], 0)):
        assert code_of(capsys, "config", *arguments)[0] == code


@pytest.mark.parametrize("arguments", BAD_USAGE, ids=" ".join)
def test_bad_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, out, err = code_of(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("gpuwatch: ")


def test_each_command_is_in_the_tables() -> None:
    used = {words[0] for words in (*BAD_USAGE, *(one for one, _ in (*WITH_A_GPU, *WITHOUT_A_DRIVER)))}
    assert used >= COMMANDS.keys()
