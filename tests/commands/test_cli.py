"""The command line: output, errors and exit codes of all commands, on the fake driver, the demo and without a driver.

Exit codes: 0 done (an empty list too); 1 what a command needs is not there, or not all of it could be done; 2 bad
usage; 3 no driver or no GPU.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuwatch import __main__, __version__, cli
from gpuwatch.cli import COMMANDS
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


def test_once_as_json_is_one_snapshot(driver: Driver, run: Run) -> None:
    lab(driver)
    done = run("--once", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    snapshot = decode(done.stdout)
    assert snapshot.schema == json.loads(done.stdout)["schema"] == SCHEMA
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--once --only x", "--only: 'x' is not a list of GPU indices; write 3 or 0,2"),
        ("--once --interval 0", "--interval: interval '0' is out of range; 0.1 to 3600 seconds is allowed"),
        ("--once --interval soon", "--interval: interval 'soon' is not understood"),
        ("--once --memory-warning 120", "--memory-warning: percentage '120' is not allowed"),
        ("--once --memory-warning 3", "--memory-critical: 5 % is above --memory-warning, 3 %"),
        ("--once --memory-warning 99", "--memory-warning: 99 % is too much; 0 to 95 is allowed"),
        ("--once --wait", "--wait is for the dashboard"),
        ("--once --json --mine", "JSON always has the processes of all users"),
        ("--stream --filter mine", "JSON always has the processes of all users"),
        ("--once --filter mem>10", "--filter: size '10' has no unit; write 10GiB"),
        ("--once --filter @long", "--filter: no saved filter is called long"),
        ("watch --filter mine", "--filter does not go with `gpuwatch watch`"),
        ("--once --theme pink", "--theme: there is no theme 'pink'; allowed are dark, light, ansi-dark,"),
        ("--onec", "unknown flag --onec; did you mean --once?"),
        ("--frobnicate", "unknown flag --frobnicate; `gpuwatch --help` lists what there is"),
        ("train.py", "unknown command train.py"),
        ("--json", "--json goes with --once"),
        ("--once --stream", "--once and --stream exclude each other"),
        ("--once --config /nowhere/gpuwatch.toml", "--config: there is no file /nowhere/gpuwatch.toml"),
        ("--demo --once --only 8", "--only: there is no GPU 8; the demo has 0 to 7"),
        ("--demo", "try `gpuwatch --once`"),
        ("explian 5", "unknown command explian; did you mean explain?"),
        ("watsh", "unknown command watsh; did you mean watch?"),
        ("frobnicate", "unknown command frobnicate; `gpuwatch --help` lists what there is"),
        ("\x1b[2J", "unknown command \\x1b[2J; `gpuwatch --help` lists what there is"),
        ("explain", "the following arguments are required: PID"),
        ("explain -5", "-5"),
        ("explain 0", "'0' is not a PID"),
        ("explain \u0663", "is not a PID"),
        ("explain 99999999999", "is not a PID"),
        ("visible 1 2", "unknown argument 2"),
        ("pick --share 0.4 --memory 1G", "give --share or --memory, not both"),
        ("pick --share 1.4", "--share: share '1.4' is not allowed; write more than 0 and up to 1, such as 0.4 or 40%"),
        ("pick --share 30GiB", "--share: share '30GiB' is not allowed; write more than 0 and up to 1"),
        (
            "pick --memory 20x",
            "--memory: size '20x' is not understood; write a number with K, M, G or T, such as 20GiB",
        ),
        ("pick --memory 20480", "--memory: size '20480' has no unit; write 20480MiB"),
        ("pick --memory 1023k", "--memory: size '1023k' is too small; 1MiB or more is allowed"),
        ("pick --share 0.4 -n 0", "-n: '0' is not a number of GPUs; write 1 or more"),
        ("pick --share 0.4 -n 1025", "-n: '1025' is not a number of GPUs"),
        ("pick --share 0.4 --max-util 101", "--max-util: percentage '101' is not allowed"),
        ("pick --share 0.4 --only x", "--only: 'x' is not a list of GPU indices"),
        ("pick --share", "argument --share: expected one argument"),
        ("pick --share 0.4 extra", "unknown argument extra"),
        ("pick --demo --share 0.4 --only 1,9", "--only: there is no GPU 9; this machine has 0, 1, 2"),
        ("run --share 0.4", "COMMAND is missing; write it after --"),
        ("run --share 0.4 -- ''", "COMMAND is missing; write it after --"),
        ("run python train.py", "-- is missing before python; write: gpuwatch run --share 0.4 -- python train.py"),
        ("run --memory 2GiB 'my script' --json", "write: gpuwatch run --memory 2GiB -- 'my script' --json"),
        ("run --share 0.4 python -- train.py", "unknown argument python"),
        ("run --shar 0.4 python train.py", "unknown flag --shar; did you mean --share?"),
        ("run -- true", "give --share or --memory"),
        ("run --share 0.4 --gpu x -- true", "--gpu: 'x' is not a list of GPU indices; write auto, 3 or 0,2"),
        ("run --share 0.4 --gpu 0,0 -- true", "--gpu: '0,0' names a GPU twice"),
        ("run --share 0.4 --gpu 0 -n 1 -- true", "--gpu and -n exclude each other"),
        ("run --share 0.4 --demo -- true", "--demo does not go with `gpuwatch run`"),
        ("kill --yes --signal HUP 7", "--signal: 'HUP' is not allowed; INT, TERM and KILL are"),
        ("kill --yes --signal 9 7", "INT, TERM and KILL are"),
        ("kill --yes -- -7", "'-7' is not a PID"),
        ("kill --yes 4194305", "'4194305' is not a PID; a PID is a whole number from 1 to 4194304"),
        ("kill --yes \u00b2", "is not a PID"),
        ("kill --demo 7", "--demo"),
        ("kill 7", "kill asks before it ends anything, and stdin is not a terminal; --yes"),
        ("explain 5 --once", "--once does not go with `gpuwatch explain`"),
        ("explain 5 --config /nowhere/at.toml", "--config: there is no file /nowhere/at.toml"),
        ("--config /nowhere/at.toml explain 5", "--config: there is no file /nowhere/at.toml"),
        ("explain me", "me"),
        ("visible 0 --order SLOWEST_FIRST", "--order"),
        ("--interval 2 visible 0", "--interval does not go with `gpuwatch visible`"),
        ("--only 0 visible 0", "--only does not go with `gpuwatch visible`"),
        ("pick", "--share or --memory"),
        ("pick --shar 0.4", "unknown flag --shar; did you mean --share?"),
        ("--stream pick --share 0.4", "--stream does not go with `gpuwatch pick`"),
        ("run --share 2 -- true", "--share"),
        ("strays --nope", "unknown flag --nope"),
        ("kill me", "me"),
        ("report --since soon", "--since: duration 'soon' is not understood; write a number with s, min, h or d"),
        ("report --since 0", "--since: 0 is not allowed; write a duration such as 8h or 7d"),
        ("report --since 400d", "--since: duration '400d' is too long; at most 365d is allowed"),
        ("report --json --csv", "--json and --csv exclude each other"),
        ("report --by host", "--by: there is no 'host'; user, gpu and job are allowed"),
        ("report --demo", "--demo does not go with `gpuwatch report`"),
        ("report --file /nowhere", "--file: there is no /nowhere; allowed is a store that gpuwatch"),
        ("report --file /", "--file: /: it is not a regular file; allowed is a store that gpuwatch wrote"),
        ("report --file /etc/passwd", "--file: /etc/passwd: it is damaged"),
        ("events --since 8x", "--since: duration '8x' is not understood"),
        ("events --since 0", "--since: 0 is not allowed"),
        ("events --since 9999d", "at most 365d"),
        ("events --gpu a", "--gpu: 'a' is not a list of GPU indices; write 3 or 0,2"),
        ("events --rule zz", "--rule: no rule begins with 'zz'; there are: XID, "),
        ("events --rule Overshoot", "--rule: the rule 'overshoot' is called 'uses more than declared' now"),
        ("events --rule ''", "--rule: no rule begins with ''"),
        ("events --file /nowhere", "--file: there is no /nowhere"),
        ("events --file /", "--file: /: it is not a regular file; allowed is a store that gpuwatch wrote"),
        ("events --file /etc/passwd", "--file: /etc/passwd: it is damaged"),
        ("events --demo", "--demo does not go with `gpuwatch events`"),
        ("watch --once", "--once does not go with `gpuwatch watch`"),
        ("watch --json --quiet", "--quiet and --json exclude each other"),
        ("watch --interval 0", "--interval: interval '0' is out of range; 0.1 to 3600 seconds is allowed"),
        ("--theme pink watch", "--theme does not go with `gpuwatch watch`"),
        ("status --only 0", "--only does not go with `gpuwatch status`"),
        ("status --tmux --json", "--tmux and --json exclude each other"),
        ("config", "--show"),
        ("config --check --config /nowhere", "/nowhere"),
        ("docs nowhere", "unknown page nowhere"),
        ("doctor --demo", "--demo does not go with `gpuwatch doctor`"),
        ("completion nowhere", "invalid choice: 'nowhere'"),
        ("replay", "FILE"),
        ("replay /nowhere.gz", "/nowhere.gz"),
        ("recording copy /nowhere /tmp", "/nowhere"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(call: Call, arguments: str, said: str) -> None:
    code, out, err = call(*shlex.split(arguments), has_driver=False)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("gpuwatch: ")
    assert said in err


def test_a_gpu_that_is_not_there_is_bad_usage(driver: Driver, call: Call) -> None:
    driver.write()
    said = "gpuwatch: --only: there is no GPU 9; this machine has only GPU 0\n"
    assert call("--once", "--only", "9") == (2, "", said)


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


def test_each_command_is_in_the_table_of_bad_usage() -> None:
    (table,) = (
        mark.args[1]
        for mark in test_bad_usage_is_one_line_and_exit_code_2.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    )
    assert {word for arguments, _ in table for word in arguments.split()} >= COMMANDS.keys()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("intervall = 2", ":1: unknown key intervall; did you mean interval?"),
        ("[alerts]\nmemroy_warning = 2", ":2: unknown key alerts.memroy_warning; did you mean memory_warning?"),
        ("interval = 0", ":1: key interval: found 0; allowed is seconds"),
        ('theme = "pink"', ':1: key theme: found "pink"; allowed is "dark", "light", "ansi-dark",'),
        (
            "[alerts]\nmemory_warning = 400",
            ":2: key alerts.memory_warning: found 400; allowed is a number from 0 to",
        ),
        ("[alerts]\nmemory_critical = 40", ":2: key alerts.memory_critical: found 40; allowed is at most 10"),
        ("mine = 'yes'", ':1: key mine: found "yes"; allowed is true or false'),
        ("interval = \n", ":1: not TOML"),
    ],
)
def test_a_bad_file_is_named_with_its_key(call: Call, tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(content)
    code, _, err = call("--once", "--config", str(file), has_driver=False)
    assert code == 2
    assert f"gpuwatch: {file}{said}" in err
    assert file.read_text() == content


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
    ("command", "argument"), [("explain", "PID"), ("visible", "--order"), ("pick", "--index"), ("run", "-- COMMAND")]
)
def test_each_command_has_its_help(capsys: pytest.CaptureFixture[str], command: str, argument: str) -> None:
    for words, expected in (["--help"], f"\n    {command} "), ([command, "--help"], argument):
        with pytest.raises(SystemExit, match="0"):
            cli.main(words, None)
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["run", "--share", "1", "--", "x", "--demo", "--help"], True),
        (["--once"], True),
        (["--demo", "--once"], False),
        (["run", "--help", "--", "x"], False),
        (["watch"], True),
        (["status"], True),
        (["events"], False),
        (["--config", "status", "watch"], True),
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


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", ["--once", "events"])
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


def test_no_driver_is_exit_code_3_with_the_next_step(run: Run, tmp_path: Path) -> None:
    done = run("--once", LD_LIBRARY_PATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "libnvidia-ml.so.1" in done.stderr
    assert "gpuwatch --demo" in done.stderr
    stream = run("--stream", LD_LIBRARY_PATH=str(tmp_path))
    assert stream.returncode == 3
    assert "gpuwatch --demo" in stream.stderr
    assert decode(stream.stdout.splitlines()[-1]).state is SourceState.NO_DRIVER
    assert "libnvidia-ml.so.1" in stream.stderr


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
        *("--version", "events --since 365d", "report --since 365d --by user", "report --since 365d --by job"),
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


def test_once_shows_whose_processes_are_asked_for(call: Call) -> None:
    def printed(*words: str) -> str:
        return str(call("--demo", "--once", *words, has_driver=False)[1])

    assert "8 GPUs" in printed()
    assert "train_mine.py" in printed()
    assert "train_mine.py" in printed("--mine")
    assert "kernel-9e1ae93e" in printed("--user", "eve")
    assert "train_mine.py" not in printed("--user", "eve")
    assert "no process matches user:nobody" in printed("--user", "nobody")
    assert "train_mine.py" in printed("--filter", "idle>30m mem=12GiB")
    assert "kernel-9e1ae93e" not in printed("--filter", "idle>30m mem=12GiB")
    assert "no process matches user:eve !gpu:0-7" in printed("--user", "eve", "--filter", "!gpu:0-7")
