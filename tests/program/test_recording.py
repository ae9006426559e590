"""The program records and plays, and a recording survives the death of gpuwatch at any moment."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuwatch.base.units import format_moment
from gpuwatch.recorder.recording import Recording
from tests import CHECKOUT
from tests.driver import Driver
from tests.support.environment import environment
from tests.support.terminal import Terminal, foreign, in_terminal

pytestmark = pytest.mark.slow

WRITE = """
import sys
from pathlib import Path
from gpuwatch.history.history import History
from gpuwatch.monitor import Frame
from gpuwatch.recorder.recording_writer import RecordingWriter
from gpuwatch.sources.demo import DemoSource

source, history = DemoSource(wall=lambda: 1795269780.0 + int(sys.argv[2])), History()
writer = RecordingWriter(Path(sys.argv[1]), pace=0.0)
for second in range(100_000):
    snapshot = source.at(float(second))
    writer.take(Frame(snapshot, float(second), history.view))
    while writer._last is None or writer._last.taken != snapshot.taken or writer._lines or writer._rows:
        pass
    print(int(snapshot.taken), flush=True)
"""


def test_whatever_was_written_can_be_read_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    path, chance, written = tmp_path / "day", random.Random(7), set()
    for run in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITE, path, str(run * 100_000)],
            cwd=CHECKOUT,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            first = child.stdout.readline()
            time.sleep(chance.uniform(0.0, 1.0))  # the moment is the test's own condition
            child.kill()
            written |= {
                float(one) for one in (first + child.stdout.read()).splitlines(keepends=True) if one.endswith("\n")
            }
        recording = Recording([path])
        played = [one.taken for one in recording.snapshots()]
        assert written <= {*played}
        assert played == sorted(played)
        assert not recording.notes


def test_the_demo_is_recorded_and_played(driver: Driver, tmp_path: Path) -> None:
    path, env, clocks = tmp_path / "day", driver.write().env(), set[str]()

    def has_had_three_snapshots(one: Terminal) -> bool:
        clocks.update(re.findall(r"\d\d:\d\d:\d\d$", one.lines[0].rstrip()))
        return len(clocks) >= 3

    with in_terminal("--demo", "--record", str(path), columns=160, rows=50, env=env) as live:
        live.wait_for(has_had_three_snapshots)
        live.quit()
    assert len(list(Recording([path]).snapshots())) >= 3
    last = format_moment(Recording([path]).last)[-8:]
    with in_terminal("replay", str(path), columns=160, rows=50, env=env) as replay:
        replay.wait_for(lambda one: "REPLAY" in one.lines[0] and "? help" in one.lines[49])
        replay.send("[++")
        replay.wait_for(lambda one: "END OF THE RECORDING" in one.lines[0])
        assert replay.lines[0].rstrip().endswith(last)
        replay.quit()
        assert foreign(bytes(replay.raw)) == []
