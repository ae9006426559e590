"""Recording and replay in a real pseudo-terminal: the demo is recorded for some seconds, and played."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.recorder.recording import Recording
from gpuwatch.units import format_moment
from tests.driver import Driver
from tests.support.terminal import Terminal, foreign

pytestmark = pytest.mark.slow

GPUWATCH = str(Path(sys.executable).parent / "gpuwatch")
CLOCK = re.compile(r"\d\d:\d\d:\d\d(?= *\n)")
"""Time at the end of the first line."""


def clock(terminal: Terminal) -> str:
    """Return the time in the header."""
    found = CLOCK.search(f"{terminal.lines[0]}\n")
    return found[0] if found else ""


def test_the_demo_is_recorded_and_played(driver: Driver, tmp_path: Path) -> None:
    day, env = str(tmp_path / "day"), driver.write().env()
    seen: set[str] = set()
    with Terminal([GPUWATCH, "--demo", "--record", day], columns=160, rows=50, env=env) as live:

        def has_many_seconds(terminal: Terminal) -> bool:
            seen.add(clock(terminal))
            return len(seen - {""}) >= 6

        live.wait_for(has_many_seconds)
        live.send("q")
        assert live.wait_exit() == 0

    recording = Recording([Path(day)])
    first, last = (format_moment(time)[-8:] for time in (recording.first, recording.last))
    with Terminal([GPUWATCH, "replay", day], columns=160, rows=50, env=env) as replay:
        replay.wait_for(lambda one: "REPLAY" in one.lines[0] and "? help" in one.lines[49])
        replay.send(" ")
        replay.wait_for(lambda one: "PAUSED" in one.lines[0])
        replay.send("[")
        replay.wait_for("start of the recording")
        replay.wait_for(lambda one: clock(one) == first)
        replay.send("..")  # the second snapshot may be of the same second as the first
        replay.wait_for(lambda one: clock(one) > first)
        replay.send(",,")
        replay.wait_for(lambda one: clock(one) == first)
        replay.send("T")
        replay.wait_for(" runs · ")
        replay.send("\x1b")
        replay.wait_for(lambda one: "PAUSED" in one.lines[0])
        replay.send("++ ")
        replay.wait_for(lambda one: "END OF THE RECORDING" in one.lines[0])
        assert "4×" in replay.lines[0]
        assert clock(replay) == last
        replay.send("q")
        assert replay.wait_exit() == 0
        assert foreign(bytes(replay.raw)) == []

    once = [GPUWATCH, "--once", "--json", "--recording", day, "--at", last]
    done = subprocess.run(once, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["host"] == "lab-gpu-03"
    assert done.stderr == ""
