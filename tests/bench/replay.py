"""Time to open a recording of a day and to seek in it: `python -m tests.bench.replay FILE [HOURS]`.

A missing file is made first: the demo (8 GPUs, 43 processes) at one snapshot a second, on a simulated clock, which
takes ten minutes for a day.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from statistics import median

from gpuwatch.recorder.recording import Recording
from gpuwatch.recorder.recording_writer import RecordingWriter
from gpuwatch.recorder.replay import Replay
from gpuwatch.sources.demo import DemoSource
from tests.support.store import frame

BEGAN = 1_795_219_200.0
"""Saturday 21 November 2026, 00:00 UTC."""


def record(path: Path, hours: float) -> None:
    """Record the demo for so many hours of its clock."""
    source = DemoSource(clock=lambda: 0.0, wall=lambda: BEGAN)
    writer = RecordingWriter(path, size=0)
    for second in range(int(hours * 3600)):
        while len(writer._waiting) > 100:
            time.sleep(0.01)
        writer.take(frame(shown=source.at(float(second))))
        if second % 3600 == 0:
            print(f"{second // 3600} h", file=sys.stderr)
    writer.close(600.0)


def main(path: Path, hours: float) -> None:
    """Print the times in seconds."""
    if not path.exists():
        record(path, hours)
    began = time.perf_counter()
    recording = Recording([path])
    opened = time.perf_counter() - began
    replay = Replay(recording)
    replay.play(False)
    replay.next(60.0)
    shown = time.perf_counter() - began
    rng = random.Random(1)
    seeks = []
    for _ in range(20):
        at = time.perf_counter()
        replay.seek(rng.uniform(recording.first, recording.last))
        replay.next(60.0)
        seeks.append(time.perf_counter() - at)
    hours = (recording.last - recording.first) / 3600
    print(f"{path.stat().st_size / 1e6:.0f} MB, {hours:.1f} h, {len(recording.rows)} rows")
    print(f"open {opened:.2f} s, first snapshot {shown:.2f} s")
    print(f"seek {median(seeks):.2f} s in the middle, {max(seeks):.2f} s at most")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 24.0)
