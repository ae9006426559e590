"""`gpuwatch kill` on the driver of the tests: real processes, a real terminal, and who is spared."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.commands.kill import table
from gpuwatch.model.snapshot import Reason, Unlisted
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.builders import gpu, holding, process, snapshot, uid
from tests.support.kill import a_target
from tests.support.process import ROOT, SOMEBODY_ELSE, GpuHolder
from tests.support.program import Call, Run
from tests.support.terminal import Terminal, in_terminal
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

ROOT_FLAG = ["--allow-root-kill"] if ROOT else []


def on_record(home: Path) -> list[dict[str, Any]]:
    """The lines of the record; none where nothing was asked for."""
    files = list(home.rglob("actions.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def held(driver: Driver, *holders: GpuHolder) -> None:
    """Let the driver list these on GPU 0, a GiB each, for as long as they run."""
    handles = {os.pidfd_open(one.pid): one.pid for one in holders}

    def write() -> None:
        driver.gpus = [Gpu(0, memory_used=len(handles) * GIB)]
        driver.procs = [Proc(0, pid, sm=0) for pid in handles.values()]
        driver.write()

    def follow() -> None:
        while handles:
            for handle in select.select([*handles], [], [])[0]:
                del handles[handle]
                os.close(handle)
            write()

    write()
    threading.Thread(target=follow, daemon=True).start()


def mine(**changes: Any) -> GpuHolder:
    """A training of whoever runs the tests, left to init: a child of this process were a part of gpuwatch."""
    return GpuHolder(uid=os.getuid(), orphan=True, **changes)


def test_the_table() -> None:
    listed = [holding(7, 9.0, sm=0), holding(6, 1.0, sm=40), holding(5, memory=Reason.UNSUPPORTED, sm=Reason.ERROR)]
    cards = [gpu(0, holdings=listed), gpu(1), gpu(3, holdings=[holding(7, 3.0, sm=0)])]
    hidden = Unlisted(process=process(8, "ada"), gpus=(gpu(1).key, gpu(3).key))
    shown = snapshot(cards, [process(7, "ada")], unlisted=(hidden,))
    opened = {8: hidden.gpus}
    targets = [a_target(pid, 1, uid("ada"), "python", gpus=opened.get(pid, ())) for pid in (7, 6, 5, 8)]
    drawn = table([*targets, a_target(71234, 1, uid("ada"), "x" * 200)], shown, uid("ada"), 60)
    assert drawn[:5] == [
        "  PID  USER      GPU   GiB    SM  COMMAND",
        "    7  ada       0,3  12.0  idle  python",
        "    6  ada         0   1.0   40%  python",
        "    5  ada         0     —     —  python",
        "    8  ada   (1),(3)     —     —  python",
    ]
    assert drawn[5].startswith("71234  ada")
    assert len(drawn[5]) == 60


def test_one_is_ended_and_its_memory_comes_free(driver: Driver, call: Call, own_home: Path) -> None:
    with mine() as training, mine() as other:
        held(driver, training, other)
        code, out, err = call("kill", "--yes", *ROOT_FLAG, "1", str(training.pid), str(training.pid))
        assert not training.alive()
        assert other.alive()
        assert (code, err.count("\n")) == (1, 1), "PID 1 is refused, and does not keep the other"
        head, row, outcome = out.splitlines()
        assert head.split() == ["PID", "USER", "GPU", "GiB", "SM", "COMMAND"]
        assert row.split()[0] == str(training.pid)
        assert "  train.py" in row
        assert outcome.startswith(f"PID {training.pid}: exited after")
        assert "1.0 GiB freed" in outcome
    lines = [line for line in on_record(own_home) if line["pid"] != 1]
    assert [(line["event"], line["pid"], line["signals"]) for line in lines] == [("outcome", training.pid, ["SIGTERM"])]


def refused(done: tuple[int, str, str], pid: int, words: str, home: Path, result: str) -> None:
    """See that a process was refused with these words, and that this is on record."""
    code, _, err = done
    assert code == 1, err
    assert f"PID {pid} is not ended: " in err
    assert words in err
    assert [(line["event"], line["pid"], line["result"]) for line in on_record(home)] == [("refused", pid, result)]


@pytest.mark.skipif(not ROOT, reason="a process of another uid needs root")
@pytest.mark.parametrize(("listed", "flags"), [(True, ["--yes"]), (False, ["--yes"]), (True, [])])
def test_another_users_process(driver: Driver, call: Call, own_home: Path, listed: bool, flags: list[str]) -> None:
    """Whose it is comes before the question that nobody could answer without a terminal."""
    with GpuHolder(uid=SOMEBODY_ELSE, orphan=True) as theirs:
        held(driver, *([theirs] if listed else []))
        done = call("kill", *flags, *ROOT_FLAG, str(theirs.pid))
        said = "gpuwatch signals only your own" if listed else "it is not yours"
        refused(done, theirs.pid, said, own_home, "not yours")
        assert theirs.alive()


def test_without_a_terminal_it_is_shown_and_not_ended(driver: Driver, call: Call, own_home: Path) -> None:
    with mine() as training:
        held(driver, training)
        code, out, err = call("kill", *ROOT_FLAG, str(training.pid))
        assert code == 2
        assert str(training.pid) in out
        assert "--yes skips the question" in err
        assert training.alive()
    assert on_record(own_home) == []


def test_what_ignores_sigint_is_told_of_and_on_record(driver: Driver, call: Call, own_home: Path) -> None:
    with mine(background=True) as training:
        held(driver, training)
        done = call("kill", "--yes", "--signal", "INT", *ROOT_FLAG, str(training.pid))
        refused(done, training.pid, "use --signal TERM", own_home, "ignored")
        assert training.alive()


def test_another_start_time_is_another_process(driver: Driver, call: Call, own_home: Path) -> None:
    with mine() as training:
        held(driver, training)
        start = training.start_ticks
        done = call("kill", "--yes", *ROOT_FLAG, str(training.pid), "--start", str(start + 1))
        refused(done, training.pid, "it started at another time", own_home, "changed")
        for words in (["--start", "0"], ["--start", "x"], ["7", "--start", str(start)]):
            code, _, err = call("kill", "--yes", str(training.pid), *words)
            assert code == 2
            assert "--start: " in err
        assert training.alive()
        code, _, _ = call("kill", "--yes", *ROOT_FLAG, str(training.pid), "--start", str(start))
        assert (code, training.alive()) == (0, False)


def test_a_whole_run(driver: Driver, run: Run, own_home: Path) -> None:
    with mine(children=2) as training, mine() as other:
        held(driver, training, other)
        done = run("kill", "--yes", "--run", *ROOT_FLAG, str(training.pid), str(training.children[0]))
        assert done.returncode == 0, done.stderr
        assert f"PID {training.children[0]} belongs to the run of PID {training.pid}" in done.stderr
        assert f"run of PID {training.pid} (3 processes): all 3 exited after" in done.stdout
        listed = [line.split()[0] for line in done.stdout.splitlines()[1:4]]
        assert listed == [str(pid) for pid in (training.pid, *training.children)]
        assert not training.alive()
        assert other.alive()
    lines = on_record(own_home)
    assert [line["event"] for line in lines] == ["outcome"] * 3
    assert len({line["run"] for line in lines}) == 1


def test_where_nobody_reads_the_table_nothing_is_sent(driver: Driver, run: Run, own_home: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with mine() as training:
        held(driver, training)
        try:
            done = run("kill", "--yes", *ROOT_FLAG, str(training.pid), stdout=writes)
        finally:
            os.close(writes)
        assert (done.returncode, done.stderr) == (1, "gpuwatch: nothing was sent\n")
        assert training.alive()
    assert on_record(own_home) == []


def test_nothing_is_sent_unasked_that_cannot_be_put_on_record(driver: Driver, call: Call, tmp_path: Path) -> None:
    file = tmp_path / "no folder"
    file.touch()
    with mine() as training:
        held(driver, training)
        code, _, err = call("kill", "--yes", *ROOT_FLAG, str(training.pid), XDG_STATE_HOME=str(file))
        assert code == 1
        assert f"PID {training.pid} is not ended: " in err
        assert "without --yes gpuwatch asks first" in err
        assert training.alive()


# ---------------------------------------------------------------------------------------------------------------
# On a terminal


def terminal(driver: Driver, *words: str) -> Terminal:
    """The command in a terminal."""
    return in_terminal("kill", *ROOT_FLAG, *words, env=driver.env())


@pytest.mark.parametrize("answer", ["n", "yes please", "y"])
def test_only_yes_is_one_and_not_what_was_typed_before(driver: Driver, own_home: Path, answer: str) -> None:
    with mine() as training:
        held(driver, training)
        with terminal(driver, str(training.pid)) as screen:
            screen.send("y\r")
            screen.wait_for("End this process with SIGTERM? [y/N]", timeout=30.0)
            screen.send(f"{answer}\r")
            screen.wait_for("exited after" if answer == "y" else "nothing was sent", timeout=30.0)
            assert screen.wait_exit(30.0) == (0 if answer == "y" else 1)
        assert training.alive() is (answer != "y")
    assert [line["signals"] for line in on_record(own_home)] == ([["SIGTERM"]] if answer == "y" else [])


def is_pending(pid: int, sig: signal.Signals) -> bool:
    """Whether a signal waits for a process, which is stopped."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("ShdPnd:")]
    return bool(int(line.split()[1], 16) >> (sig - 1) & 1)


def test_ctrl_c_sends_nothing_more_and_is_on_record(driver: Driver, own_home: Path) -> None:
    with mine() as training, mine() as other:
        training.stop()
        held(driver, training, other)
        with terminal(driver, "--signal", "INT", str(training.pid), str(other.pid)) as screen:
            screen.wait_for("End these 2 processes with SIGINT? [y/N]", timeout=30.0)
            screen.send("y\r")
            wait_for(lambda: is_pending(training.pid, signal.SIGINT))
            screen.send("\x03")
            screen.wait_for("nothing more is sent", timeout=30.0)
            assert screen.wait_exit(30.0) == 130
        assert training.alive()
        assert other.alive()
    lines = on_record(own_home)
    assert [(line["pid"], line["signals"], line["result"]) for line in lines] == [(training.pid, ["SIGINT"], "stopped")]
