"""What alerts cost the monitor: `python -m tests.bench.alerts [--gpus 16] [--processes 500] [--samples 600]`.

History and engine are fed one snapshot a second of a machine whose figures all change, each process with a declared
limit: as the watch does it, without the decoding before and the drawing after. Then the same with 20 rules of the
user's own on top. Times are CPU time, so that other programs do not count. The budget is 2 % of a core.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import random
import time
from collections.abc import Iterator
from statistics import median

import msgspec

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import CustomRule, Limits
from gpuwatch.alerts.rules.custom import GRAMMARS
from gpuwatch.base.units import Unit
from gpuwatch.history.history import History
from gpuwatch.model.snapshot import Gpu, Process, Snapshot
from tests.support.alerts import cap
from tests.support.builders import EPOCH, GIB, gpu, holding, memory, process, snapshot

BUDGET = 2.0
"""Percent of a core at one snapshot a second."""
WARM = 330
"""Snapshots before those that are measured: five minutes of growth are looked at, and a half."""
USERS = ("ada", "ben", "cyn", "dan", "eve", "fay", "gus", "hal")
LIMIT = 2.4
"""GiB that each process declared; it holds less."""


class Crowd:
    """Processes spread over GPUs; all that moves on a real machine moves at each step."""

    def __init__(self, gpus: int, processes: int, seed: int = 7) -> None:
        self._random = random.Random(seed)
        self._on: list[list[int]] = [[] for _ in range(gpus)]
        self._sizes: dict[int, float] = {}
        self._people: dict[int, Process] = {}
        for place in range(processes):
            pid, index = 1000 + place, place % gpus
            self._on[index].append(pid)
            self._sizes[pid] = self._random.uniform(0.5, 2.0)
            user = USERS[place % len(USERS)]
            self._people[pid] = process(pid, user, declared=cap(LIMIT, index))
        self._time = 0.0

    def snapshots(self, count: int) -> Iterator[Snapshot]:
        """Give so many, a second apart."""
        for _ in range(count):
            self._time += 1.0
            self._people = {pid: self._lived(one) for pid, one in self._people.items()}
            yield snapshot(
                [self._card(index) for index in range(len(self._on))],
                self._people.values(),
                sequence=int(self._time),
                monotonic=self._time,
                taken=EPOCH + self._time,
            )

    def _lived(self, one: Process) -> Process:
        return msgspec.structs.replace(one, cpu=self._random.uniform(0, 100), rss=4 * GIB + self._random.randrange(GIB))

    def _card(self, index: int) -> Gpu:
        drawn = self._random
        for pid in self._on[index]:
            size = self._sizes[pid] + drawn.uniform(-0.02, 0.02)
            self._sizes[pid] = min(2.0, max(0.3, size))
        held = [holding(pid, self._sizes[pid], sm=drawn.randrange(100)) for pid in self._on[index]]
        used = sum(self._sizes[pid] for pid in self._on[index]) + 0.3
        return gpu(
            index,
            holdings=held,
            memory=memory(used),
            sampled=self._time - 0.02,
            slow_sampled=self._time - 0.02,
            utilization=drawn.randrange(101),
            temperature=drawn.randrange(50, 75),
            power=drawn.uniform(200, 690),
            throttle=("power cap",) if drawn.random() < 0.3 else (),
        )


def own(count: int) -> tuple[CustomRule, ...]:
    """Give so many rules of each kind in turn, none of which is broken."""
    never = {Unit.BYTES: "8000TiB", Unit.FREE: "8000TiB", Unit.PERCENT: "100", Unit.SECONDS: "365d"}
    kinds = [
        (on, f"{name}>{never.get(field.unit, '1000000')}")
        for on, grammar in GRAMMARS.items()
        for name, field in grammar.figures.items()
    ]
    return tuple(
        CustomRule(name=f"own {place}", on=on, when=when, severity=Severity.WARNING)
        for place, (on, when) in enumerate((kinds[place % len(kinds)] for place in range(count)), 1)
    )


def measure(crowd: Crowd, limits: Limits, samples: int, profile: cProfile.Profile | None) -> tuple[list[float], int]:
    """Return the CPU milliseconds of each update, and how many alerts there were in all."""
    history, engine, spent, raised = History(), Engine(limits), [], 0
    for number, seen in enumerate(crowd.snapshots(WARM + samples)):
        now = 5000.0 + number
        counts = number >= WARM
        if profile is not None and counts:
            profile.enable()
        began = time.thread_time()
        changes = engine.update(seen, history.add(seen, now), now, EPOCH + number)
        took = time.thread_time() - began
        if profile is not None and counts:
            profile.disable()
        if counts:
            spent.append(1000 * took)
        raised += len(changes.raised)
    return spent, raised


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--own", type=int, default=20, help="rules of the user's own in the second run")
    parser.add_argument("--profile", action="store_true", help="say where the time of the first run goes")
    options = parser.parse_args()
    print(f"{options.gpus} GPUs, {options.processes} processes with limits, {options.samples} snapshots a second apart")
    print(f"{'':<24}{'median, ms':>12}{'p99, ms':>12}{'mean, % of a core':>20}{'alerts':>10}")
    for count in (0, options.own):
        profile = cProfile.Profile() if options.profile and not count else None
        gc.collect()
        spent, raised = measure(
            Crowd(options.gpus, options.processes), Limits(custom=own(count)), options.samples, profile
        )
        spent.sort()
        p99 = spent[min(len(spent) - 1, int(0.99 * len(spent)))]
        percent = sum(spent) / len(spent) / 10
        name = f"with {count} own rules" if count else "rules that come with it"
        over = "" if percent <= BUDGET else f"  over {BUDGET:g} %"
        print(f"{name:<24}{median(spent):>12.2f}{p99:>12.2f}{percent:>20.2f}{raised:>10}{over}")
        if profile is not None:
            profile.print_stats("tottime")


if __name__ == "__main__":
    main()
