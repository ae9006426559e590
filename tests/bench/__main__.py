"""Run the benchmark and print its table: `python -m tests.bench [--seconds 20] [--rounds 3] [--nvitop PATH]`.

Each figure is the median over the rounds; the two programs take turns. nvitop is installed from PyPI into a temporary
environment of its own, unless `--nvitop` names one that is there.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
import pyte

from tests.bench.machine import Machine
from tests.support.terminal import Terminal

COLUMNS, ROWS = 160, 50
GPUS = 8
KEYS = 30
POWER = re.compile(r"\d\dW? ?/ ?700")
"""A real number, as both write it: what a GPU draws of its 700 W. (nvitop may tell the processes a second later.)"""
STARTED = 2.0
"""Seconds in which there is a first number."""
SETTLED = 6.0
"""Seconds from the start until a dashboard has all that it starts with."""


@dataclass
class Program:
    """One of the two monitors, and its figures round by round."""

    name: str
    live: list[str]
    once: list[str]
    keys: tuple[bytes, bytes]
    """Those that move the cursor up and down."""
    figures: dict[str, list[float]] = field(default_factory=dict)

    def note(self, what: str, value: float) -> None:
        """Keep one round's figure."""
        self.figures.setdefault(what, []).append(value)

    def median(self, what: str) -> float:
        """Return a figure's median."""
        return median(self.figures[what])


def cpu_seconds(tree: list[psutil.Process]) -> float:
    """Return the CPU time of a process tree; what has ended counts among the ended children of its parent."""
    total = 0.0
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def dashboard(program: Program, machine: Machine, seconds: float) -> None:
    """Measure one run of a dashboard."""
    with Terminal(program.live, columns=COLUMNS, rows=ROWS, env=machine.driver.env(), draw=False) as terminal:
        terminal.pump(SETTLED)
        tree = terminal.tree()
        calls, busy, began = machine.driver.calls().total(), cpu_seconds(tree), time.monotonic()
        sent = len(terminal.pump(seconds))
        took = time.monotonic() - began
        program.note("CPU, %", 100 * (cpu_seconds(tree) - busy) / took)
        program.note("bytes to the terminal, kB/s", sent / took / 1000)
        program.note("NVML calls a GPU a second", (machine.driver.calls().total() - calls) / took / GPUS)
        program.note("memory (PSS), MiB", sum(process.memory_full_info().pss for process in terminal.tree()) / 2**20)
        machine.in_order = True  # or the chosen row would move by itself
        keys(program, terminal)
        machine.in_order = False
        began = time.monotonic()
        terminal.send(b"q")
        while terminal.process.poll() is None and time.monotonic() - began < 5:
            terminal.read(0.01)
        program.note("quit, s", time.monotonic() - began)


def starts(programs: list[Program], machine: Machine, runs: int) -> None:
    """Measure how soon there is a number, in turn."""
    for _ in range(runs):
        for program in programs:
            # Drawing would take a core away from the program.
            with Terminal(program.live, columns=COLUMNS, rows=ROWS, env=machine.driver.env(), draw=False) as terminal:
                program.note("first number, s", first_number(terminal))


def first_number(terminal: Terminal) -> float:
    """Read what comes in the first seconds, and draw it afterwards: when was there a number?"""
    chunks = []
    while (since := time.monotonic() - terminal.started) < STARTED:
        if chunk := terminal.read(STARTED - since):
            chunks.append((time.monotonic() - terminal.started, chunk))
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    for came, chunk in chunks:
        stream.feed(chunk)
        if POWER.search("\n".join(screen.display)):
            return came
    raise AssertionError("no number came; the screen:\n" + "\n".join(screen.display))


def keys(program: Program, terminal: Terminal) -> None:
    """Measure a key: CPU in the second after it, and the time until the screen changes.

    Up and down in turn: at the end of the list a key would change nothing.
    """
    tree, typed = terminal.tree(), itertools.cycle(program.keys)
    spent = []
    for _ in range(5):
        terminal.pump(1.0)
        busy = cpu_seconds(tree)
        terminal.send(next(typed))
        terminal.pump(1.0)
        spent.append(100 * (cpu_seconds(tree) - busy))
    program.note("CPU in the second after a key, %", median(spent))
    waits = []
    for _ in range(KEYS):
        while terminal.pump(0.2):  # between two repaints of its own
            pass
        began = time.monotonic()
        terminal.send(next(typed))
        if terminal.read(0.5):
            waits.append(time.monotonic() - began)
    waits.sort()
    program.note("key to changed screen, ms (median)", 1000 * median(waits))
    program.note("key to changed screen, ms (p99)", 1000 * waits[min(len(waits) - 1, int(len(waits) * 0.99))])


def one_shot(programs: list[Program], machine: Machine, runs: int) -> None:
    """Measure `--once` against `-1`, in turn."""
    for _ in range(runs):
        for program in programs:
            began = time.monotonic()
            subprocess.run(program.once, env=machine.driver.env(), stdout=subprocess.DEVNULL, check=True)
            program.note("one shot, s", time.monotonic() - began)


def install_nvitop(folder: Path) -> Path:
    """Install nvitop from PyPI into an environment of its own."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "-q", "nvitop==1.7.2"], check=True)
    subprocess.run([folder / "bin" / "python", "-m", "compileall", "-q", folder / "lib"], check=False)
    return folder / "bin" / "nvitop"


def report(ours: Program, theirs: Program) -> None:
    """Print the table."""
    version = platform.python_version()
    print(f"\n{GPUS} GPUs, 43 processes, {COLUMNS}×{ROWS}, every second; Python {version}, {os.cpu_count()} cores\n")
    print("| what | gpuwatch | nvitop 1.7.2 | ratio |\n|---|---:|---:|---:|")
    for what in ours.figures:
        mine, other = ours.median(what), theirs.median(what)
        print(f"| {what} | {mine:.3g} | {other:.3g} | {mine / other if other else float('nan'):.2f} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nvitop", type=Path)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nvitop = options.nvitop or install_nvitop(folder / "nvitop")
        gpuwatch = Path(sys.executable).parent / "gpuwatch"
        ours = Program("gpuwatch", [str(gpuwatch)], [str(gpuwatch), "--once"], (b"k", b"j"))
        theirs = Program("nvitop", [str(nvitop), "--interval", "1"], [str(nvitop), "-1"], (b"\x1bOA", b"\x1bOB"))
        os.environ |= {"HOME": name, "XDG_CONFIG_HOME": name, "XDG_STATE_HOME": name}
        with Machine(folder) as machine:
            starts([ours, theirs], machine, 10)
            for _ in range(options.rounds):
                for program in (ours, theirs):
                    dashboard(program, machine, options.seconds)
            one_shot([ours, theirs], machine, 10)
        report(ours, theirs)


if __name__ == "__main__":
    main()
