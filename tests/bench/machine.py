"""The machine that the programs watch: GPUs, and real jobs that come, go, compute and have device files open."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import psutil

from tests.driver import GIB, MIB, Driver, build

HERE = Path(__file__).parent
PROJECTS = ("vision", "speech", "llm", "robots", "graphs", "audio")
"""Folders with a training script."""
EPOCH = 4.0
"""Seconds after which a job's workers are replaced, and after which one job ends and another one starts."""


class Lab(NamedTuple):
    """Parameters of a machine."""

    processes: int = 43
    """Jobs that the driver lists."""
    holders: int = 0
    """Workers of these jobs, forked once, that only have the device files open."""
    turnover: bool = True
    """Whether jobs end and others start, and some jobs replace their workers."""
    moving: bool = False
    """Whether every figure changes each second; else those of two GPUs do."""


class Machine:
    """The simulated driver with real jobs behind it, until it is closed.

    One job in four uses 0.5 % of a core. With turnover one in ten replaces its two workers again and again, and another
    one in ten is replaced from time to time; all others have the holders.
    """

    def __init__(self, folder: Path, lab: Lab = Lab(), gpus: int = 8) -> None:  # noqa: B008 - a tuple
        self.lab = lab
        self.in_order = False
        """Whether the processes' own figures stay: their list then keeps its order."""
        self._folder = folder
        for name in (*PROJECTS, "bin"):
            (folder / name).mkdir(exist_ok=True)
            shutil.copy(HERE / "train.py", folder / name)
        # A Python of their own: the programs that are measured share no memory with it.
        self._python = shutil.copy(Path(sys.executable).resolve(), folder / "bin" / "python")
        (folder / "pyvenv.cfg").write_text(f"home = {sys.base_exec_prefix}/bin\n")
        self._launcher = subprocess.Popen(
            [self._python, "-I", HERE / "launcher.py", str(gpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        holding = [rank for rank in range(lab.processes) if rank % 5]
        self._workers = Counter(islice(cycle(holding), lab.holders))
        self.driver = Driver(folder, build(folder / "lib"))
        for rank in range(lab.processes):
            self._start(rank)
        started = dict(self._read_started() for _ in range(lab.processes))
        self.driver.lab(gpus, lab.processes, [started[rank] for rank in range(lab.processes)])
        self.driver.write()
        self.started = time.monotonic()
        self._random = random.Random(7)
        self._places = cycle(range(gpus))
        self._replaced = cycle(range(5, lab.processes, 10))
        self._stop = threading.Event()
        self._mover = threading.Thread(target=self._run, daemon=True)

    def _start(self, rank: int) -> None:
        """Ask for a job; it prints its rank and PID when it is there."""
        words = {"batch-size": 64, "rank": rank, "busy": 0.005 if rank % 4 == 0 else 0.0}
        if rank % 5:
            words["workers"] = self._workers[rank]
        elif rank % 10 == 0 and self.lab.turnover:
            words |= {"workers": 2, "epoch": EPOCH}
        command = [str(self._python), "train.py", *(word for name in words for word in (f"--{name}", str(words[name])))]
        assert self._launcher.stdin is not None
        print(json.dumps([str(self._folder / PROJECTS[rank % len(PROJECTS)]), command]), file=self._launcher.stdin)
        self._launcher.stdin.flush()

    def _read_started(self) -> tuple[int, int]:
        assert self._launcher.stdout is not None
        line = self._launcher.stdout.readline()
        if not line:
            raise RuntimeError("a job or its launcher did not start")
        rank, pid = map(int, line.split())
        return rank, pid

    def __enter__(self) -> Machine:
        self._mover.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._mover.join()
        with self._launcher:  # it closes the pipes, and waits
            pass

    def tree(self) -> list[psutil.Process]:
        """Return all processes of all jobs."""
        return psutil.Process(self._launcher.pid).children(recursive=True)

    def _run(self) -> None:
        seconds = 0
        while not self._stop.wait(1.0):
            seconds += 1
            if self.lab.turnover and seconds % EPOCH == 0:
                self.replace(next(self._replaced))
            self.move()

    def replace(self, rank: int) -> None:
        """End a job and start another one in its place."""
        psutil.Process(self.driver.procs[rank].pid).kill()
        self._start(rank)
        self.driver.procs[rank].pid = self._read_started()[1]

    def move(self) -> None:
        """Change figures once: all that move on a real machine, or a little those of two GPUs in turn."""
        places = range(len(self.driver.gpus)) if self.lab.moving else (next(self._places), next(self._places))
        for gpu in (self.driver.gpus[place] for place in places):
            gpu.util_gpu = self._near(gpu.util_gpu, 0, 100)
            gpu.util_memory = self._near(gpu.util_memory, 0, 60)
            gpu.temperature = self._near(gpu.temperature, 40, 80)
            gpu.power = self._near(gpu.power, 80_000, 680_000)
        for proc in self.driver.procs if self.lab.moving and not self.in_order else ():
            proc.sm = self._random.randint(0, 99)
            proc.memory = max(256 * MIB, min((proc.memory or GIB) + self._random.randint(-200, 200) * MIB, 9 * GIB))
        for gpu in self.driver.gpus:
            held = sum(proc.memory or 0 for proc in self.driver.procs if proc.gpu == gpu.index)
            gpu.memory_used = min(held + 300 * MIB, (gpu.memory_total or 0) - GIB)
        self.driver.write()

    def _near(self, value: int | None, low: int, high: int) -> int:
        """Return any figure between these two; where not everything moves, one within 2 % of the present one."""
        if not self.lab.moving:
            step, now = max(1, (high - low) // 50), value or 0
            low, high = max(low, min(now - step, high)), min(high, max(now + step, low))
        return self._random.randint(low, high)
