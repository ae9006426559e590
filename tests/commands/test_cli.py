"""The command line: output, errors and exit codes of all commands, on the fake driver, the demo and without a driver.

Exit codes: 0 done (an empty list too); 1 what a command needs is not there, or not all of it could be done; 2 bad
usage; 3 no driver or no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuwatch import __main__, __version__, cli
from gpuwatch.model import SCHEMA, Snapshot, SourceState, decode
from gpuwatch.recorder.store import own_store
from gpuwatch.sources.sampler_process import SamplerProcess
from tests.commands.conftest import GPUWATCH
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.launching import Call, Run
from tests.support.recording import alert, ended, write
from tests.support.uncovered import environment

PIDS = {"ME": str(os.getpid()), "NOBODY": str(2**22)}

"""NOBODY is the first PID that no process of Linux has."""


def lab(driver: Driver) -> None:
    """Put two GPUs into the machine, one of them held by this process."""
    driver.gpus = [Gpu(0, util_gpu=37), Gpu(1, memory_used=12 * GIB, util_gpu=99)]
    driver.procs = [Proc(1, os.getpid(), memory=12 * GIB, sm=98)]
    driver.write()


def test_once_is_a_table_and_out(driver: Driver, call: Call) -> None:
    lab(driver)
    code, out, err = call("--once")
    assert (code, err) == (0, "")
    head, _, titles, first, second, *rest = out.splitlines()
    assert "2 GPUs · 1 process · 1 person · driver 580.95.05 · CUDA 13.0" in head
    assert titles.split()[:3] == ["GPU", "name", "used"]
    assert first.split()[0] == "0"
    assert second.split()[:5] == ["1", "H100", "80GB", "HBM3", "12.0"]
    assert any(str(os.getpid()) in line and "98" in line for line in rest)


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
    command = [str(GPUWATCH), "--stream", "--interval", "0.1"]
    with subprocess.Popen(command, env=driver.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as stream:
        assert stream.stdout is not None
        assert stream.stderr is not None
        snapshots: list[Snapshot] = [decode(stream.stdout.readline()) for _ in range(5)]
        stream.stdout.close()
        assert stream.wait(timeout=30) == 0
        assert stream.stderr.read() == b""
    monotonic = [snapshot.monotonic for snapshot in snapshots]
    assert monotonic == sorted(monotonic)


def test_only_some_gpus_are_called(driver: Driver, call: Call) -> None:
    lab(driver)
    assert [gpu.index for gpu in decode(call("--once", "--json", "--only", "1")[1]).gpus] == [1]
    assert not driver.calls(gpu=0).total()


def test_a_gpu_that_is_not_there_is_bad_usage(driver: Driver, call: Call) -> None:
    driver.write()
    said = "gpuwatch: --only: there is no GPU 9; this machine has only GPU 0\n"
    assert call("--once", "--only", "9") == (2, "", said)


def test_an_unknown_command_is_named_without_its_escapes(call: Call) -> None:
    code, out, err = call("\x1b[2J", has_driver=False)
    assert (code, out) == (2, "")
    assert "\x1b" not in err
    assert "\\x1b[2J" in err


@pytest.mark.parametrize(
    ("arguments", "with_gpu", "without_driver"),
    [
        ("--once", 0, 3),
        ("--once --json", 0, 3),
        ("--once --user nobody-of-that-name", 0, 3),
        ("explain ME", 0, 3),
        ("explain NOBODY", 1, 1),
        ("visible 0", 0, 3),
        ("visible -1", 1, 3),
        ("pick --share 0.5", 0, 3),
        ("pick --memory 500GiB", 1, 3),
        ("run --memory 500GiB -- true", 1, 3),
        ("strays", 0, 3),
        ("kill --yes NOBODY", 1, 3),
        ("status", 0, 3),
        ("events", 1, 1),
        ("events --json", 1, 1),
        ("report", 1, 1),
        ("report --csv", 1, 1),
        ("config --check", 0, 0),
        ("config --show", 0, 0),
        ("docs", 0, 0),
        ("completion bash", 0, 0),
    ],
)
def test_exit_codes(driver: Driver, call: Call, arguments: str, with_gpu: int, without_driver: int) -> None:
    driver.gpus = [Gpu(0)]
    driver.write()
    for has_driver, expected in ((True, with_gpu), (False, without_driver)):
        words = [PIDS.get(word, word) for word in arguments.split()]
        code, out, err = call(*words, has_driver=has_driver)
        assert code == expected, err
        assert all(line.startswith("gpuwatch: ") for line in err.splitlines())
        assert not code or out or err
        if expected == 1 and arguments.split()[0] in ("events", "report"):
            assert (out, err.count("\n")) == ("", 1)
            assert "`gpuwatch watch`" in err


def test_the_users_own_file_is_read_and_a_flag_beats_it(call: Call, own_home: Path) -> None:
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    file.parent.mkdir(parents=True)
    file.write_text('interval = "7s"\nascii = true\n')
    assert decode(call("--demo", "--once", "--json")[1]).interval == 7
    assert decode(call("--demo", "--once", "--json", "--interval", "3")[1]).interval == 3
    assert call("--demo", "--once")[1].isascii()


def test_version_and_help_need_no_driver(run: Run) -> None:
    done = run("--version", LD_LIBRARY_PATH="/nowhere")
    assert (done.returncode, done.stdout) == (0, f"gpuwatch {__version__}\n")
    assert "--once" in run("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["run", "--share", "1", "--", "x", "--demo", "--help"], True),
        (["--once"], True),
        (["--demo", "--once"], False),
        (["run", "--help", "--", "x"], False),
        (["watch"], True),
        (["status"], False),
        (["events"], False),
        (["--config", "status", "watch"], False),  # it is started later
        (["--config=x", "config", "--show"], False),
    ],
)
def test_a_sampler_is_started_by_what_is_ours_of_the_command_line(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, arguments: list[str], wanted: bool
) -> None:
    for name, value in driver.env().items():
        monkeypatch.setenv(name, value)
    started: list[bool] = []

    def main(words: Sequence[str], sampler: SamplerProcess | None) -> int:
        started.append(sampler is not None)
        return 0

    monkeypatch.setattr(sys, "argv", ["gpuwatch", *arguments])
    monkeypatch.setattr(cli, "main", main)
    monkeypatch.setattr(os, "_exit", lambda code: None)
    __main__.main()
    assert started == [wanted]


@pytest.mark.parametrize(
    ("arguments", "closed"),
    [*(("--once", closed) for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")), ("events", "<&- >&- 2>&-")],
)
def test_a_stream_that_is_closed_is_nothing_to_fall_over(run: Run, arguments: str, closed: str) -> None:
    done = run(shell=f"exec gpuwatch {arguments} {closed}")
    assert done.returncode == (1 if arguments == "events" else 0)  # there is no log yet
    assert "Traceback" not in done.stderr
    assert "the sampler" not in done.stderr
    assert bool(done.stdout) == (closed in ("<&-", "2>&-") and arguments != "events")


@pytest.mark.parametrize("arguments", ["--once", "config --show"])
def test_a_full_disk_is_said_in_one_line(run: Run, arguments: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(*arguments.split(), stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr == "gpuwatch: what was asked for cannot be printed: no space left on device\n"


def test_no_driver_is_exit_code_3_with_the_next_step(call: Call) -> None:
    code, out, err = call("--once", has_driver=False)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "libnvidia-ml.so.1" in err
    assert "gpuwatch --demo" in err
    code, out, err = call("--stream", has_driver=False)
    assert code == 3
    assert "gpuwatch --demo" in err
    assert decode(out.splitlines()[-1]).state is SourceState.NO_DRIVER
    assert "libnvidia-ml.so.1" in err


def test_no_gpu_is_exit_code_3(driver: Driver, call: Call) -> None:
    driver.gpus = []
    driver.write()
    code, _, err = call("--once")
    assert code == 3
    assert "lists no GPU" in err


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
        *("--once", "--once --json", "--demo --once", "explain 1", "--demo explain 15226", "visible 0", "status"),
        *("--demo pick --share 0.1", "run --share 0.1 -- no-such-program", "strays", "config --show"),
    ]
    command = [sys.executable, "-c", LIGHT, json.dumps(commands)]
    env = driver.write().env(environment())
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_no_room_for_the_sampler_is_said_in_one_line(run: Run) -> None:
    done = run(shell="ulimit -n 5 && exec gpuwatch --once")  # stands for EAGAIN and ENOMEM too
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("gpuwatch: the sampler cannot be started: ")
    assert done.stderr.count("\n") == 1
