"""The command line: output, errors and exit codes of all commands, on the fake driver, the demo and without a driver.

Exit codes: 0 done (an empty list too); 1 what a command needs is not there, or not all of it could be done; 2 bad
usage; 3 no driver or no GPU. `tests/approved` has those of many command lines without a driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuwatch import __main__, cli
from gpuwatch.base.errors import UnavailableError
from gpuwatch.commands.console import Console
from gpuwatch.commands.snapshot_table import once
from gpuwatch.model.snapshot import SCHEMA, Snapshot, SourceState, decode
from gpuwatch.recorder.schema import own_store
from gpuwatch.sources.sampler_process import SamplerProcess
from tests import GPUWATCH
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.alerts import Script
from tests.support.environment import environment
from tests.support.program import Call, Run
from tests.support.store import alert, ended, write


def lab(driver: Driver) -> None:
    """Put two GPUs into the machine, one of them held by this process."""
    driver.gpus = [Gpu(0, util_gpu=37), Gpu(1, memory_used=12 * GIB, util_gpu=99)]
    driver.procs = [Proc(1, os.getpid(), memory=12 * GIB, sm=98)]
    driver.write()


def test_once_as_json_is_one_snapshot(driver: Driver, call: Call) -> None:
    lab(driver)
    code, out, err = call("--once", "--json")
    assert (code, err) == (0, "")
    snapshot = decode(out)
    assert snapshot.schema == json.loads(out)["schema"] == SCHEMA
    assert [gpu.utilization for gpu in snapshot.gpus] == [37, 99]
    (holding,) = snapshot.gpus[1].holdings
    assert (holding.pid, holding.memory, holding.sm) == (os.getpid(), 12 * GIB, 98)
    (process,) = snapshot.processes
    assert (process.pid, process.uid) == (os.getpid(), os.getuid())


def test_the_stream_goes_on_until_nobody_reads(driver: Driver) -> None:
    lab(driver)
    command = [GPUWATCH, "--stream", "--interval", "0.1"]
    with subprocess.Popen(command, env=driver.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as stream:
        assert stream.stdout is not None
        assert stream.stderr is not None
        snapshots: list[Snapshot] = [decode(stream.stdout.readline()) for _ in range(5)]
        stream.stdout.close()
        assert stream.wait(timeout=30) == 0
        assert stream.stderr.read() == b""
    monotonic = [snapshot.monotonic for snapshot in snapshots]
    assert monotonic == sorted(monotonic)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--once --user nobody-of-that-name", 0),
        ("pick --memory 500GiB", 1),
        ("explain --visible -1,0", 1),
        ("replay /nowhere --copy /nowhere2", 2),
        ("--once --recording /nowhere", 2),
        ("pick --share 0.00001", 2),
        ("\x1b[2J", 2),
    ],
)
def test_exit_codes(driver: Driver, call: Call, arguments: str, expected: int) -> None:
    driver.write()
    code, out, err = call(*arguments.split())
    assert code == expected, err
    assert all(line.startswith("gpuwatch: ") and line.isprintable() for line in err.splitlines())
    assert not code or out or err


def test_no_driver_and_no_gpu_are_exit_code_3_with_the_next_step(driver: Driver, call: Call) -> None:
    for command in ("--once", "--stream"):
        code, out, err = call(command, has_driver=False)
        assert (code, err.count("\n")) == (3, 1)
        assert "libnvidia-ml.so.1" in err
        assert "gpuwatch --demo" in err
        assert not out or decode(out.splitlines()[-1]).state is SourceState.NO_DRIVER
    driver.gpus = []
    driver.write()
    for flags in (["--once"], ["--once", "--json"]):
        code, out, err = call(*flags)
        assert (code, err.count("\n")) == (3, 1)
        assert "lists no GPU" in err
        assert out == "" or json.loads(out)["gpus"] == []


def test_the_users_own_file_is_read_and_a_flag_beats_it(call: Call, own_home: Path) -> None:
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    file.parent.mkdir(parents=True)
    file.write_text('interval = "7s"\nascii = true\n')
    assert decode(call("--demo", "--once", "--json")[1]).interval == 7
    assert decode(call("--demo", "--once", "--json", "--interval", "3")[1]).interval == 3
    assert call("--demo", "--once")[1].isascii()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("run --share 1 -- x --demo --help", True),
        ("--once", True),
        ("--demo --once", False),
        ("--host lab", False),
        ("--host=lab", False),
        ("run --help -- x", False),
        ("status", False),
        ("--config status watch", False),  # it is started later
        ("--config=x config --show", False),
    ],
)
def test_a_sampler_is_started_by_what_is_ours_of_the_command_line(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, arguments: str, wanted: bool
) -> None:
    for name, value in driver.env().items():
        monkeypatch.setenv(name, value)
    started: list[bool] = []

    def main(words: Sequence[str], sampler: SamplerProcess | None) -> int:
        started.append(sampler is not None)
        return 0

    monkeypatch.setattr(sys, "argv", ["gpuwatch", *arguments.split()])
    monkeypatch.setattr(cli, "main", main)
    monkeypatch.setattr(os, "_exit", lambda code: None)
    __main__.main()
    assert started == [wanted]


class Starting(Script):
    """A source that says every 150 ms of its clock that it starts, until it is there."""

    def __init__(self, ready_at: float) -> None:
        super().__init__()
        self._ready_at = ready_at
        self.now = 0.0

    def next(self, timeout: float) -> Snapshot | None:
        """Return the next snapshot, as time passes."""
        self.now += min(0.15, timeout)
        return Snapshot(state=SourceState.OK if self.now >= self._ready_at else SourceState.STARTING)


def test_a_driver_is_waited_for_in_seconds_and_not_in_snapshots() -> None:
    source = Starting(ready_at=20.0)  # 8 GPUs without persistence
    assert once(source, Console(), as_json=True, monotonic=lambda: source.now) == 0
    source = Starting(ready_at=3600.0)
    with pytest.raises(UnavailableError, match="has not answered for 30 s"):
        once(source, Console(), as_json=True, monotonic=lambda: source.now)
    assert source.now == pytest.approx(30.0)


# ---------------------------------------------------------------------------------------------------------------
# The start of the real program


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_nothing_to_fall_over(run: Run, closed: str) -> None:
    done = run(shell=f"exec gpuwatch --once {closed}")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "the sampler" not in done.stderr
    assert bool(done.stdout) == (closed == "<&-")


def test_a_full_disk_is_said_in_one_line(run: Run) -> None:
    with Path("/dev/full").open("w") as full:
        done = run("--once", stdout=full.fileno())
    assert done.returncode == 1
    assert "no space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_room_for_the_sampler_is_said_in_one_line(run: Run) -> None:
    done = run(shell="ulimit -n 5 && exec gpuwatch --once")  # stands for EAGAIN and ENOMEM too
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("gpuwatch: the sampler cannot be started: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "known"),
    [([], False), (["--once", "--gpu", "0"], False), (["--help"], True), (["status"], True), (["--", "status"], True)],
)
def test_only_a_command_or_help_makes_the_parsers_of_commands(
    line: list[str], known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(cli.CommandParser, "__init__", lambda one, **_: made.append(one))
    with contextlib.suppress(Exception, SystemExit):  # these parsers are no parsers
        cli.parse(line)
    assert bool(made) == known


LIGHT = """
import json, os, sys
from gpuwatch import __main__
os._exit = lambda code: None
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments.split()
    try:
        __main__.main()
    except SystemExit:
        pass
    heavy = {"textual", "pynvml"}
    if arguments.startswith(("events", "report")):
        heavy |= {"rich", "psutil", "subprocess", "apprise"}
    if not heavy.isdisjoint(sys.modules):
        sys.exit(arguments + " imports " + ", ".join(heavy & set(sys.modules)))
"""


def test_no_command_but_the_dashboard_imports_textual_or_pynvml(driver: Driver, own_home: Path) -> None:
    write(own_store(), ended(alert()))
    commands = [
        *("--version", "events --since 365d", "report --since 365d --by user", "report --since 365d --by run"),
        *("--once", "--json", "--demo --once", "explain 1", "--demo explain 15226", "explain --visible 0", "status"),
        *("--demo pick --share 0.1", "run --share 0.1 -- no-such-program", "strays", "config --show"),
    ]
    command = [sys.executable, "-c", LIGHT, json.dumps(commands)]
    env = driver.write().env(environment())
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
