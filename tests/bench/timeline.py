"""What the timeline costs the monitor: `python -m tests.bench.timeline [--gpus 8] [--processes 43] [--hours 24]`.

Snapshots of a machine whose figures all change are added to a timeline alone; then graphs are read. Times are CPU time,
the memory is what the process has gained. The budget is 0.15 % of a core with 8 GPUs and 43 processes.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import zlib
from statistics import mean, median

import msgspec
import psutil

from gpuwatch.history.history import HistoryView
from gpuwatch.history.timeline import Key, Metric, Timeline
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.recorder.use import UseCounter
from tests.bench.alerts import Crowd
from tests.support.builders import EPOCH

BUDGET = 0.15
"""Percent of a core at one snapshot a second."""
SPANS = {"1 min": 60, "10 min": 600, "1 h": 3600, "6 h": 21600, "24 h": 86400}
POINTS = 300
"""Points of a graph in braille on 150 columns."""


class Timing:
    """CPU milliseconds of a piece of work that is done again and again."""

    def __init__(self) -> None:
        self.spent: list[float] = []

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *error: object) -> None:
        self.spent.append(1000 * (time.thread_time() - self._began))

    def __str__(self) -> str:
        share = mean(self.spent) / 10
        return f"{median(self.spent):.3f} ms median, {max(self.spent):.3f} ms most, {share:.3f} % of a core"


def fill(base: list[Snapshot], seconds: int) -> tuple[Timeline, int]:
    """Return a timeline after some seconds, and the bytes that it takes.

    Only the last ten minutes are sampled each second: the rest is in the coarser resolutions, which are as full so.
    """
    gc.collect()
    before = psutil.Process().memory_info().rss
    timeline = Timeline()
    for number in range(1, seconds - 600, 60):
        timeline.add(msgspec.structs.replace(later(base, number), interval=60.0), float(number))
    for number in range(seconds - 600, seconds + 1):
        timeline.add(later(base, number), float(number))
    gc.collect()
    return timeline, psutil.Process().memory_info().rss - before


def later(base: list[Snapshot], number: int) -> Snapshot:
    """Return one of some snapshots, as if it was taken at a second."""
    one = base[number % len(base)]
    gpus = tuple(msgspec.structs.replace(gpu, sampled=number - 0.02) for gpu in one.gpus)
    return msgspec.structs.replace(one, gpus=gpus, monotonic=float(number), taken=EPOCH + number)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--processes", type=int, default=43)
    parser.add_argument("--hours", type=float, default=24.0)
    options = parser.parse_args()
    base = list(Crowd(options.gpus, options.processes).snapshots(100))
    seconds = round(3600 * options.hours)
    timeline, size = fill(base, seconds)
    adding, making, counter = Timing(), Timing(), UseCounter()
    for number in range(seconds + 1, seconds + 601):
        seen = later(base, number)
        with adding:
            timeline.add(seen, float(number))
        view = HistoryView(timeline=timeline)
        with making:
            counter.add(seen, view)
    print(f"{options.gpus} GPUs, {options.processes} processes, {len(timeline.means(EPOCH + seconds, 60))} series")
    print(f"add a snapshot   {adding}")
    print(f"make minutes     {making}")
    body = msgspec.json.encode(counter.pop().means[-1])
    print(f"a minute         {len(body)} bytes of JSON, {len(zlib.compress(body))} compressed")
    print(f"memory           {size / 2**20:.1f} MiB after {options.hours:g} h")
    gpu = base[0].gpus[0].key
    for words, span in SPANS.items():
        reading, owning = Timing(), Timing()
        for _ in range(20):
            with reading:
                timeline.read(Key(gpu, "", Metric.USED), EPOCH + seconds, span, POINTS)
            with owning:
                timeline.owners(gpu, EPOCH + seconds, span)
        print(f"read {words:<12}{median(reading.spent):.3f} ms a series; its owners {median(owning.spent):.3f} ms")
    share = (mean(adding.spent) + mean(making.spent)) / 10
    if options.processes <= 43 and share > BUDGET:
        sys.exit(f"over the budget of {BUDGET} % of a core: {share:.3f} %")


if __name__ == "__main__":
    main()
