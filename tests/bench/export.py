"""What a scrape costs: `python -m tests.bench.export [--gpus 8] [--processes 43] [--scrapes 200]`.

The metrics of one frame, each process with a declared limit, as text. The budget is 10 ms a scrape with 8 GPUs and 43
processes. The second line is 60 people with a process of their own on each GPU.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from tests.bench.alerts import Crowd
from tests.support.builders import gpu, holding, process, snapshot
from tests.support.prometheus import exporter, text_of

BUDGET = 10.0
"""Milliseconds."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.export")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--processes", type=int, default=43)
    parser.add_argument("--scrapes", type=int, default=200)
    args = parser.parse_args()
    crowd = next(Crowd(args.gpus, args.processes).snapshots(1))
    cards = [gpu(index, holdings=[holding(1 + 60 * index + user) for user in range(60)]) for index in range(args.gpus)]
    people = [process(1 + 60 * index + user, f"user{user}") for index in range(args.gpus) for user in range(60)]
    for words, shown in (
        (f"{args.gpus} GPUs, {args.processes} processes", crowd),
        (f"{args.gpus} GPUs, 60 people on each", snapshot(cards, people)),
    ):
        for names in ("all", "own"):
            made = exporter(shown, names=names)
            times = []
            for _ in range(args.scrapes):
                began = time.perf_counter()
                text = text_of(made)
                times.append(1000 * (time.perf_counter() - began))
            print(
                f"{words}, names {names}: {median(times):.1f} ms, at most {max(times):.1f}; {len(text) / 1000:.0f} kB"
            )
    print(f"budget: {BUDGET:g} ms")


if __name__ == "__main__":
    main()
