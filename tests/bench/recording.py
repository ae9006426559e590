"""Size and cost of a recording: `python -m tests.bench.recording [SECONDS]`.

The snapshots are those of the bench machine (8 GPUs and 43 processes whose figures change each second), taken once a
second by the real sampler. They are recorded in each form; a day is made of them by repetition.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median

import msgspec

from gpuwatch.alerts.engine import Engine
from gpuwatch.history import History
from gpuwatch.minute import MinuteMaker
from gpuwatch.model import Snapshot, decode
from gpuwatch.monitor import Frame
from gpuwatch.recorder.recording import Recording
from gpuwatch.recorder.recording_format import Commands
from gpuwatch.recorder.recording_writer import MOST_WAITING, RecordingWriter
from tests.bench.machine import Machine

DAY = 86_400


def sample(seconds: int) -> list[Snapshot]:
    """Return the machine's snapshots, one a second; the first ones are left out, in which processes are still read."""
    skipped = 30
    with tempfile.TemporaryDirectory() as folder, Machine(Path(folder)) as machine:
        command = [sys.executable, "-m", "gpuwatch", "--stream"]
        with subprocess.Popen(command, env=machine.driver.env(), stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(seconds + skipped)]
            child.terminate()
    return [decode(line) for line in lines[skipped:]]


def frames(snapshots: list[Snapshot]) -> list[Frame]:
    """Return the frames that the monitor makes of snapshots."""
    history, engine, maker, found = History(), Engine(), MinuteMaker(), []
    for one in snapshots:
        view = history.add(one, one.monotonic)
        changes = engine.update(one, view, one.monotonic, one.taken)
        minute = maker.add(one, view, changes.active, changes.cleared)
        found.append(Frame(one, one.monotonic, view, changes.active, cleared=changes.cleared, minute=minute))
    return found


def day(some: list[Frame]) -> Iterator[Frame]:
    """Yield the frames of a day: the same ones again and again, with other times."""
    minutes = [frame.minute for frame in some if frame.minute is not None]
    began = some[0].snapshot.taken // 60 * 60
    for second in range(DAY):
        frame = some[second % len(some)]
        taken = began + second
        snapshot = msgspec.structs.replace(frame.snapshot, taken=taken, sequence=second, monotonic=float(second))
        minute = None
        if second and second % 60 == 0:
            minute = msgspec.structs.replace(minutes[second // 60 % len(minutes)], at=taken - 60)
        yield Frame(snapshot, float(second), frame.history, minute=minute)


def record(path: Path, some: Iterator[Frame], commands: Commands) -> tuple[int, float, int]:
    """Record frames; return the bytes, the CPU seconds, and the number of frames."""
    writer, number, spent = RecordingWriter(path, size=0, commands=commands), count(), 0.0
    for frame in some:
        began = time.process_time()
        writer.take(frame)
        next(number)
        while len(writer._waiting) > MOST_WAITING // 2:
            time.sleep(0.001)
        spent += time.process_time() - began
    began = time.process_time()
    writer.close(60.0)
    return path.stat().st_size, spent + time.process_time() - began, next(number)


def main(seconds: int) -> None:
    """Print the figures."""
    some = frames(sample(seconds))
    print(
        f"{len(some)} snapshots of {sum(len(msgspec.json.encode(one.snapshot)) for one in some) // len(some):,} bytes"
    )
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("gz", "zst"):
            for commands in Commands:
                path = Path(folder) / f"{commands.value}.{suffix}"
                size, spent, number = record(path, iter(some), commands)
                print(
                    f"{suffix:<4}{commands.value:<11}{size / number * DAY / 1e6:6.0f} MB a day, "
                    f"{100 * spent / number:.3f} % of a core at one snapshot a second"
                )
        for suffix in ("gz", "zst"):
            path = Path(folder) / f"day.{suffix}"
            size, _, _ = record(path, day(some), Commands.NAMES)
            began = time.perf_counter()
            with Recording([path]) as recording:
                opened = time.perf_counter() - began
                began = time.perf_counter()
                minutes = sum(1 for _ in recording.minutes())
                read = time.perf_counter() - began
                seeks, chance = [], random.Random(1)
                for _ in range(20):
                    at = chance.uniform(recording.first, recording.last)
                    began = time.perf_counter()
                    with contextlib.suppress(StopIteration):
                        shots = recording.snapshots(at)
                        while next(shots).taken < at:
                            pass
                    seeks.append(time.perf_counter() - began)
            print(
                f"a day in {suffix}, {size / 1e6:.0f} MB: opened in {opened:.2f} s, "
                f"{minutes} minutes read in {read:.2f} s, "
                f"a snapshot found in {median(seeks):.3f} s (at most {max(seeks):.3f} s)"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 240)
