"""The program records: wrong flags are refused, and a recording survives the death of gpuwatch at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuwatch.recorder.recording import Recording
from tests import CHECKOUT
from tests.support.waiting import wait_for

WRITE = """
import sys
from pathlib import Path
from gpuwatch.history import History
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


@pytest.mark.slow
def test_whatever_was_written_can_be_read_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    path, chance, written = tmp_path / "day", random.Random(7), set()
    for run in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITE, path, str(run * 100_000)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
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


@pytest.mark.slow
def test_watch_records_and_says_what_is_wrong_with_the_flags(tmp_path: Path) -> None:
    path = tmp_path / "day"
    command = [sys.executable, "-m", "gpuwatch", "watch", "--demo", "--interval", "100ms", "--quiet"]
    with subprocess.Popen([*command, "--record", path, "--anonymise"], cwd=CHECKOUT) as child:
        wait_for(path.exists)
        time.sleep(1.0)
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
    recording = Recording([path])
    assert recording.host == "anonymous"
    assert len(list(recording.snapshots())) > 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--once --record x", "--record is for the dashboard and for `gpuwatch watch`"),
        ("--stream --anonymise", "--anonymise is for the dashboard"),
        ("watch --record-size 1GiB", "--record-size goes with --record FILE"),
        ("watch --anonymise", "--anonymise goes with --record FILE"),
        ("watch --record x --anonymise --record-commands", "--record-commands and --anonymise exclude each other"),
        ("watch --record x.gz", "a recording is no .gz file; try x.gpuwatch"),
        ("watch --record x --record-size 5", "size '5' has no unit"),
        ("watch --record x --record-size 1KiB", "is too small"),
        ("watch --record /nonexistent/x", "No such file or directory"),
        ("report --record x", "--record does not go with `gpuwatch report`"),
    ],
)
def test_wrong_flags_are_refused_with_one_line(tmp_path: Path, flags: str, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuwatch", "--demo", *flags.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr
    assert not [*tmp_path.iterdir()]
