"""The whole program on the fake driver, in a real tmux: read the screen, end a real process, leave, flag a window."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests import GPUWATCH
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.process import ROOT, GpuHolder
from tests.support.terminal import Tmux

pytestmark = pytest.mark.slow


def test_a_real_process_is_seen_ended_and_gone(driver: Driver, tmux: Tmux, own_home: Path) -> None:
    with GpuHolder(["python", "train_mine.py"], uid=os.getuid()) as mine:
        driver.gpus = [Gpu(0, util_gpu=37), Gpu(1, memory_used=12 * GIB, util_gpu=99)]
        driver.procs = [Proc(1, mine.pid, memory=12 * GIB, sm=98)]
        driver.write()
        tmux.start([GPUWATCH, *(["--allow-root-kill"] if ROOT else [])], driver.env())
        screen = tmux.wait_for(lambda screen: str(mine.pid) in screen and "· load " in screen)
        (line,) = [line for line in screen.splitlines() if str(mine.pid) in line]
        assert "12.0" in line
        assert "  train_mine.py" in line

        tmux.keys("K")
        tmux.wait_for("Terminate (SIGTERM)")
        tmux.keys("Enter")  # the default is to let it live
        tmux.wait_for(lambda screen: "End process" not in screen)
        assert mine.alive()

        tmux.keys("K")
        tmux.wait_for("Terminate (SIGTERM)")
        tmux.keys("Right", "Right", "Enter")
        tmux.wait_for(lambda _: not mine.alive())
        driver.procs, driver.gpus[1].memory_used = [], 0
        driver.write()
        tmux.wait_for(lambda screen: "exited after" in screen and "12.0 GiB freed" in screen)
        tmux.keys("Escape")
        screen = tmux.wait_for("no process uses a GPU")
        assert str(mine.pid) not in screen, "what the dialog has told is not told again"

        tmux.keys("q")
        tmux.wait_for("exit code 0")
    (audit,) = own_home.rglob("actions.jsonl")
    lines = [json.loads(line) for line in audit.read_text().splitlines() if str(mine.pid) in line]
    assert [line["event"] for line in lines] == ["outcome"]


def test_an_alert_flags_its_window(driver: Driver, tmux: Tmux) -> None:
    driver.gpus = [Gpu(0, util_gpu=37, memory_used=20 * GIB)]
    driver.procs = [Proc(0, os.getpid(), memory=20 * GIB, sm=98)]
    driver.write()
    tmux.start([GPUWATCH, "--bell", "--interval", "0.2"], driver.env())
    tmux.wait_for("used/total")
    tmux.run("new-window", "-d", "sleep 600")
    tmux.run("select-window", "-t", ":1")
    flags = ("list-windows", "-F", "#{window_index} #{window_bell_flag}")
    assert "0 0" in tmux.run(*flags).splitlines()
    driver.gpus[0].memory_used = driver.procs[0].memory = 78 * GIB  # of 79.6
    driver.write()
    tmux.wait_for(lambda _: "0 1" in tmux.run(*flags).splitlines())
    tmux.run("select-window", "-t", ":0")
    assert "GPU 0" in tmux.wait_for("nearly full")
    assert "0 0" in tmux.run(*flags).splitlines()
