"""Size and cost of a recording: `python -m tests.bench.recording [SECONDS]`.

The snapshots are those of the bench machine (8 GPUs and 43 processes whose figures change each second), taken once a
second by the real sampler. They are recorded with each kind of command lines; a day is made of them by repetition.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

import msgspec

from gpuwatch.model.snapshot import Snapshot, decode
from gpuwatch.recorder.anonymise import Commands
from gpuwatch.recorder.recording import Recording
from gpuwatch.recorder.recording_writer import MOST_WAITING, RecordingWriter
from tests.bench.machine import Lab, Machine
from tests.support.store import frame

DAY = 86_400


def sample(seconds: int) -> list[Snapshot]:
    """Return the machine's snapshots, one a second; the first ones are left out, in which processes are still read."""
    skipped = 30
    with tempfile.TemporaryDirectory() as folder, Machine(Path(folder), Lab(moving=True)) as machine:
        command = [sys.executable, "-m", "gpuwatch", "--stream"]
        with subprocess.Popen(command, env=machine.driver.env(), stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(seconds + skipped)]
            child.terminate()
    return [decode(line) for line in lines[skipped:]]


def day(some: list[Snapshot]) -> Iterator[Snapshot]:
    """Yield the snapshots of a day: the same ones again and again, with other times."""
    began = some[0].taken // 60 * 60
    for second in range(DAY):
        shown = some[second % len(some)]
        late = second - second % len(some)
        gpus = tuple(msgspec.structs.replace(one, sampled=one.sampled + late) for one in shown.gpus)
        monotonic = shown.monotonic + late
        yield msgspec.structs.replace(shown, taken=began + second, sequence=second, monotonic=monotonic, gpus=gpus)


def record(path: Path, some: Iterable[Snapshot], commands: Commands) -> tuple[int, float, int]:
    """Record snapshots; return the bytes, the CPU seconds, and the number of snapshots."""
    writer, number, spent = RecordingWriter(path, size=0, commands=commands), 0, 0.0
    for shown in some:
        began = time.process_time()
        writer.take(frame(shown=shown))
        number += 1
        while len(writer._waiting) > MOST_WAITING // 2:
            time.sleep(0.001)
        spent += time.process_time() - began
    began = time.process_time()
    writer.close(60.0)
    return path.stat().st_size, spent + time.process_time() - began, number


def main(seconds: int) -> None:
    """Print the figures."""
    some = sample(seconds)
    print(f"{len(some)} snapshots of {sum(len(msgspec.json.encode(one)) for one in some) // len(some):,} bytes")
    with tempfile.TemporaryDirectory() as folder:
        for commands in Commands:
            size, spent, number = record(Path(folder) / commands.value, some, commands)
            print(
                f"{commands.value:<11}{size / number * DAY / 1e6:6.0f} MB a day, "
                f"{100 * spent / number:.3f} % of a core at one snapshot a second"
            )
        path = Path(folder) / "day"
        size, _, _ = record(path, day(some), Commands.NAMES)
        began = time.perf_counter()
        recording = Recording([path])
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
            f"a day of {size / 1e6:.0f} MB: opened in {opened:.2f} s, {minutes} minutes read in {read:.2f} s, "
            f"a snapshot found in {median(seeks):.3f} s (at most {max(seeks):.3f} s)"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 240)
