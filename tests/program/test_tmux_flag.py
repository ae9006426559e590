"""An alert raised in a tmux window that nobody looks at: tmux itself flags the window."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.tmux import Tmux

pytestmark = pytest.mark.slow

GPUWATCH = Path(sys.executable).parent / "gpuwatch"


def test_an_alert_flags_its_window(driver: Driver, tmux: Tmux) -> None:
    driver.gpus = [Gpu(0, util_gpu=37, memory_used=20 * GIB)]
    driver.procs = [Proc(0, os.getpid(), memory=20 * GIB, sm=98)]
    driver.write()
    tmux.start([str(GPUWATCH), "--bell", "--interval", "0.2"], driver.env())
    tmux.wait_for("memory by owner")
    tmux.run("new-window", "-d", "sleep 600")
    tmux.run("select-window", "-t", ":1")
    flags = ("list-windows", "-F", "#{window_index} #{window_bell_flag}")
    assert "0 0" in tmux.run(*flags).splitlines()
    driver.gpus[0].memory_used = driver.procs[0].memory = 78 * GIB  # of 79.6
    driver.write()
    tmux.wait_for(lambda _: "0 1" in tmux.run(*flags).splitlines())
    tmux.run("select-window", "-t", ":0")
    assert "GPU 0" in tmux.wait_for("near limit")
    assert "0 0" in tmux.run(*flags).splitlines()
