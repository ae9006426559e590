"""The machine that both programs watch: 8 GPUs and 43 real processes whose figures change each second."""

from __future__ import annotations

import random
import subprocess
import threading
from pathlib import Path
from types import TracebackType

from tests.driver import GIB, MIB, Driver, build


class Machine:
    """The simulated driver with real processes behind it, moving until it is closed."""

    def __init__(self, folder: Path, gpus: int = 8, processes: int = 43) -> None:
        self.sleepers = [subprocess.Popen(["sleep", "3600"]) for _ in range(processes)]
        self.driver = Driver(folder, build(folder / "lib"))
        self.driver.lab(gpus, processes, [sleeper.pid for sleeper in self.sleepers])
        self.driver.write()
        self.in_order = False
        """Whether the processes' own figures stay: their list then keeps its order."""
        self._random = random.Random(7)
        self._stop = threading.Event()
        self._mover = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Machine:
        self._mover.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._mover.join()
        for sleeper in self.sleepers:
            sleeper.kill()
            sleeper.wait()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            self.move()

    def move(self) -> None:
        """Change every figure that moves on a real machine, once."""
        for gpu in self.driver.gpus:
            gpu.util_gpu = self._random.randint(0, 100)
            gpu.util_memory = self._random.randint(0, 60)
            gpu.temperature = self._random.randint(40, 80)
            gpu.power = self._random.randint(80_000, 680_000)
        for proc in () if self.in_order else self.driver.procs:
            proc.sm = self._random.randint(0, 99)
            proc.memory = max(256 * MIB, min((proc.memory or GIB) + self._random.randint(-200, 200) * MIB, 9 * GIB))
        for gpu in self.driver.gpus:
            held = sum(proc.memory or 0 for proc in self.driver.procs if proc.gpu == gpu.index)
            gpu.memory_used = min(held + 300 * MIB, (gpu.memory_total or 0) - GIB)
        self.driver.write()
