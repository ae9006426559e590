"""Run the benchmark and print its table: `python -m tests.bench [--only FIGURES] [--baseline PATH] [--rounds 3]`.

The programs take turns; each figure is the median over the rounds, with the least and the greatest. nvitop is installed
from PyPI into a temporary environment of its own, unless `--nvitop` names one that is there. `--baseline` is the
gpuwatch of another checkout. The labs, which processes they have and what changes in them, are those of `machine.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
import pyte

from tests.bench.machine import Lab, Machine
from tests.support.terminal import Terminal

COLUMNS, ROWS = 160, 50
SMALL = 80, 24
GPUS = 8
KEYS = 30
MEMORY = re.compile(r"\d(?:[GM]iB)? ?/ ?79\.")
"""A real number that all write at both sizes: the used memory of a GPU of 79 GiB. (nvitop may list the processes a
second later, and at 80×24 not at all; there gpuwatch leaves out the power.)"""
STARTED = 2.0
"""Seconds in which there is a first number."""
SETTLED = 8.0
"""Seconds from the start until a dashboard has all that it starts with."""
AGED = 60.0
"""Seconds after which the age of a process is shown in minutes: before, every row of a list changes each second."""
CALM = 150.0
"""Seconds in which an inspector that has nothing to do ends; one that runs on has no figure without it."""
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""
INSPECTOR = 3
"""Processes of gpuwatch with the inspector: it is a fork of the sampler."""
LABS = {
    "quiet": Lab(),
    "steady": Lab(turnover=False),
    "holders": Lab(holders=300),
    "moving": Lab(moving=True),
}
ONLY = {
    "start": ("start",),
    "once": ("once",),
    "cpu": ("quiet", "steady", "holders"),
    "bytes": ("quiet", "moving"),
    "memory": ("memory",),
    "keys": ("keys",),
    **{name: (name,) for name in LABS},
}
"""What is measured for each word of `--only`."""


@dataclass
class Program:
    """One of the monitors, and its figures round by round."""

    name: str
    live: list[str]
    once: list[str]
    keys: tuple[bytes, bytes]
    """Those that move the cursor up and down."""
    home: Path
    figures: dict[str, list[float]] = field(default_factory=dict)

    def env(self, machine: Machine) -> dict[str, str]:
        """Return its environment: the simulated driver, and settings and state of its own."""
        home = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"), str(self.home))
        return machine.driver.env() | home

    def start(self, machine: Machine, columns: int = COLUMNS, rows: int = ROWS) -> Terminal:
        """Start its dashboard. What it draws is not drawn: that would take a core away from it."""
        return Terminal(self.live, columns=columns, rows=rows, env=self.env(machine), draw=False)

    def note(self, what: str, value: float) -> None:
        """Keep one round's figure."""
        self.figures.setdefault(what, []).append(value)

    def median(self, what: str) -> float:
        """Return a figure's median; NaN for a figure that it does not have."""
        return median(self.figures.get(what, [float("nan")]))

    def cell(self, what: str) -> str:
        """Return a figure's median and spread."""
        if what not in self.figures:
            return "—"
        values = self.figures[what]
        return f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def cpu_seconds(terminal: Terminal) -> float:
    """Return the CPU time of a program's processes; what has ended counts among the ended children of its parent."""
    total = 0.0
    for process in terminal.tree():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def dashboard(program: Program, machine: Machine, lab: str, seconds: float) -> None:
    """Measure one run of a dashboard, after its start."""
    with program.start(machine) as terminal:
        terminal.pump(SETTLED)
        calls, busy, began = machine.driver.calls().total(), cpu_seconds(terminal), time.monotonic()
        sent = len(terminal.pump(seconds))
        took = time.monotonic() - began
        program.note(f"CPU, {lab} lab, %", 100 * (cpu_seconds(terminal) - busy) / took)
        program.note(f"bytes to the terminal, {lab} lab, kB/s", sent / took / 1000)
        program.note(f"NVML calls a GPU a second, {lab} lab", (machine.driver.calls().total() - calls) / took / GPUS)


def starts(programs: list[Program], machine: Machine, runs: int) -> None:
    """Measure how soon there is a number, in turn."""
    for _, (columns, rows), program in itertools.product(range(runs), ((COLUMNS, ROWS), SMALL), programs):
        with program.start(machine, columns, rows) as terminal:
            program.note(f"first number, {columns}×{rows}, s", first_number(terminal, columns, rows))


def first_number(terminal: Terminal, columns: int, rows: int) -> float:
    """Read what comes in the first seconds, and draw it afterwards: when was there a number?"""
    chunks = []
    while (since := time.monotonic() - terminal.started) < STARTED:
        if chunk := terminal.read(STARTED - since):
            chunks.append((time.monotonic() - terminal.started, chunk))
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    for came, chunk in chunks:
        stream.feed(chunk)
        if MEMORY.search("\n".join(screen.display)):
            return came
    raise AssertionError("no number came; the screen:\n" + "\n".join(screen.display))


def keys(program: Program, machine: Machine) -> None:
    """Measure a key, CPU in the second after it and the time until the screen changes, and how soon it quits.

    Up and down in turn: at the end of the list a key would change nothing.
    """
    with program.start(machine) as terminal:
        terminal.pump(SETTLED)
        typed, spent, waits = itertools.cycle(program.keys), [], []
        for _ in range(5):
            terminal.pump(1.0)
            busy = cpu_seconds(terminal)
            terminal.send(next(typed))
            terminal.pump(1.0)
            spent.append(100 * (cpu_seconds(terminal) - busy))
        program.note("CPU in the second after a key, %", median(spent))
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
        began = time.monotonic()
        terminal.send(b"q")
        while terminal.process.poll() is None and time.monotonic() - began < 5:
            terminal.read(0.01)
        program.note("quit, s", time.monotonic() - began)


def memory(program: Program, machine: Machine) -> None:
    """Measure the memory of a program that has settled, and of one whose inspector has ended."""
    with program.start(machine) as terminal:
        terminal.pump(SETTLED)
        program.note("memory (PSS), MiB", pss(terminal))
        while time.monotonic() - terminal.started < CALM:
            if len(terminal.tree()) < INSPECTOR:
                program.note("memory (PSS) without the inspector, MiB", pss(terminal))
                if len(terminal.tree()) > 1:
                    program.note("end of the inspector, s", time.monotonic() - terminal.started)
                return
            terminal.pump(1.0)


def pss(terminal: Terminal) -> float:
    """Return the proportional set size of all of a program's processes, in MiB."""
    return sum(process.memory_full_info().pss for process in terminal.tree()) / 2**20


def one_shot(programs: list[Program], machine: Machine, runs: int) -> None:
    """Measure `--once` against `-1`, in turn, with the CPU of all their processes.

    gpuwatch does not wait for its inspector, which is killed at the end: it becomes our child, and is counted.
    """
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    for _, program in itertools.product(range(runs), programs):
        others = psutil.Process().children()
        began = time.monotonic()
        pid = subprocess.Popen(program.once, env=program.env(machine), stdout=subprocess.DEVNULL).pid
        _, status, used = os.wait4(pid, 0)
        program.note("one shot, s", time.monotonic() - began)
        assert status == 0, f"{program.name} failed"
        orphans = [os.wait4(child.pid, 0)[2] for child in psutil.Process().children() if child not in others]
        program.note("one shot, s of CPU", sum(one.ru_utime + one.ru_stime for one in (used, *orphans)))


def install_nvitop(folder: Path) -> Path:
    """Install nvitop from PyPI into an environment of its own."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "-q", "nvitop==1.7.2"], check=True)
    subprocess.run([folder / "bin" / "python", "-m", "compileall", "-q", folder / "lib"], check=False)
    return folder / "bin" / "nvitop"


def check_nvitop(program: Program, machine: Machine) -> None:
    """Raise AssertionError where nvitop does not list every process of the driver: a comparison would be void."""
    done = subprocess.run(program.once, env=program.env(machine), stdout=subprocess.PIPE, text=True, check=True)
    listed = set(re.findall(r"(?m)^│ +\d+ +(\d+) [CGX]", done.stdout))
    missing = {str(proc.pid) for proc in machine.driver.procs} - listed
    assert not missing, f"nvitop does not list {missing}"


def measure(what: str, programs: list[Program], machine: Machine, options: argparse.Namespace) -> None:
    """Measure what one of the values of `ONLY` names, in turn."""
    if what == "start":
        starts(programs, machine, options.runs)
    elif what == "once":
        one_shot(programs, machine, options.runs)
    else:
        time.sleep(max(0.0, machine.started + AGED - time.monotonic()))
        for _, program in itertools.product(range(options.rounds), programs):
            if what == "keys":
                keys(program, machine)
            elif what == "memory":
                memory(program, machine)
            else:
                dashboard(program, machine, what, options.seconds)


def report(programs: list[Program], lab: Lab) -> Iterator[str]:
    """Yield the lines of the table; a ratio is that of the first program to another one."""
    ours, *others = programs
    version, cores = platform.python_version(), os.cpu_count()
    yield f"\n{GPUS} GPUs, {lab.processes} processes, {COLUMNS}×{ROWS}, every second; Python {version}, {cores} cores\n"
    yield f"| what | {' | '.join([one.name for one in programs] + [f'× {one.name}' for one in others])} |"
    yield "|---|" + "---:|" * (len(programs) + len(others))
    for what in ours.figures:
        ratios = [f"{ours.median(what) / other:.2f}" if (other := one.median(what)) else "—" for one in others]
        yield f"| {what} | {' | '.join([one.cell(what) for one in programs] + ratios)} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ONLY, help="measure these figures, or in these labs")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each dashboard")
    parser.add_argument("--runs", type=int, default=10, help="starts, and runs of --once")
    parser.add_argument("--seconds", type=float, default=21.0, help="length of a run in a lab; one search of /proc")
    parser.add_argument("--processes", type=int, default=43, help="processes that the driver lists")
    parser.add_argument("--holders", type=int, default=300, help="processes that only have a device file open")
    parser.add_argument("--baseline", type=Path, help="the gpuwatch of another checkout")
    parser.add_argument("--nvitop", type=Path, help="an installed nvitop 1.7.2")
    parser.add_argument("--no-nvitop", action="store_true", help="compare with the baseline alone")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode
    wanted = dict.fromkeys(what for word in options.only or ONLY for what in ONLY[word])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {"gpuwatch": Path(sys.executable).parent / "gpuwatch", "baseline": options.baseline}
        programs = [
            Program(key, [str(path)], [str(path), "--once"], (b"k", b"j"), folder / key)
            for key, path in paths.items()
            if path
        ]
        if not options.no_nvitop:
            nvitop = str(options.nvitop or install_nvitop(folder / "installed"))
            arrows = b"\x1bOA", b"\x1bOB"
            programs.append(Program("nvitop", [nvitop, "--interval", "1"], [nvitop, "-1"], arrows, folder / "nvitop"))
        for program in programs:
            program.home.mkdir()
        for what in wanted:
            lab = LABS.get("steady" if what == "memory" else what, LABS["quiet"])._replace(processes=options.processes)
            if lab.holders:
                lab = lab._replace(holders=options.holders)
            with tempfile.TemporaryDirectory() as place, Machine(Path(place), lab, GPUS) as machine:
                if not options.no_nvitop:
                    check_nvitop(programs[-1], machine)
                machine.in_order = what == "keys"  # or the chosen row would move by itself
                measure(what, programs, machine, options)
        print("\n".join(report(programs, lab)))


if __name__ == "__main__":
    main()
