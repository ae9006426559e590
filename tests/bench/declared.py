"""What declarations cost the sampler: `python -m tests.bench.declared [--processes 500] [--seconds 5] [--rounds 5]`.

Two samplers on one simulated driver, with and without them, take turns to sample as fast as they can, each process
known already. Then a process is new, again and again: the time that the reader is busy for it, and until it is known.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

from gpuwatch.base import procfs
from gpuwatch.model.snapshot import Knowledge, Snapshot
from tests.driver import GIB, Driver, Proc, build
from tests.support.sampler import Running

ENVIRON = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".3"}
GPUS = 8
NEW = 30

SCRIPT = """import os
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
import torch
torch.cuda.set_per_process_memory_fraction(0.4)
"""


def known(snapshot: Snapshot, count: int) -> bool:
    """Return whether all of so many processes were read."""
    read = [one for one in snapshot.processes if one.declared and one.declared.knowledge is Knowledge.READ]
    return len(read) == count


def rate(sampler: Running, seconds: float) -> float:
    """Return the samples a second of a sampler that is asked for the next one as soon as it gave the last."""
    began, samples = time.monotonic(), 0
    while (took := time.monotonic() - began) < seconds:
        sampler.send(poke=True)
        sampler.line()
        samples += 1
    return samples / took


def newcomers(sampler: Running, driver: Driver, folder: Path, others: int) -> tuple[float, float]:
    """Start processes one by one; give the ms that the reader was busy for each, and until it was known."""
    (folder / "train.py").write_text(SCRIPT + "#\n" * 5000)
    (reader,) = procfs.find_children(sampler.process.pid)
    busy, waits = [], []
    for _ in range(NEW):
        with subprocess.Popen(["sleep", "3600"], cwd=folder, env=ENVIRON) as process:
            driver.procs.append(Proc(0, process.pid, memory=GIB))
            driver.write()
            before, began = _cpu(reader), time.monotonic()
            sampler.send(poke=True)
            while not known(sampler.next(), others + 1):
                sampler.send(poke=True)
            waits.append(time.monotonic() - began)
            busy.append(_cpu(reader) - before)
            driver.procs.pop()
            process.kill()
    return 1000 * sum(busy) / NEW, 1000 * median(waits)


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    count = options.processes
    sleepers = [subprocess.Popen(["sleep", "3600"], env=ENVIRON) for _ in range(count)]
    try:
        with tempfile.TemporaryDirectory() as name:
            driver = Driver(Path(name), build(Path(name) / "lib"))
            driver.lab(GPUS, count, [sleeper.pid for sleeper in sleepers])
            driver.write()
            measure(driver, Path(name), options)
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def measure(driver: Driver, folder: Path, options: argparse.Namespace) -> None:
    """Run both samplers and print what was measured."""
    count = options.processes
    interval = 3600.0  # they sample when they are told to
    samplers = {
        "with": Running(driver.env(), interval=interval),
        "without": Running(driver.env(), interval=interval, declared=False),
    }
    began = time.monotonic()
    while not known(samplers["with"].next(), count):
        pass
    first = time.monotonic() - began
    samplers["without"].next()
    rates: dict[str, list[float]] = {which: [] for which in samplers}
    for _ in range(options.rounds):
        for which, sampler in samplers.items():
            rates[which].append(rate(sampler, options.seconds))
    for which, found in rates.items():
        print(f"samples a second, {count} processes, {which}: {median(found):.2f} ({min(found):.2f}-{max(found):.2f})")
    for which, sampler in samplers.items():
        sampler.send(poke=True)
        print(f"bytes a snapshot, {which}: {len(sampler.line() or b'')}")
    busy, wait = newcomers(samplers["with"], driver, folder, count)
    print(f"all {count} known after {first:.2f} s; a new process: reader busy {busy:.1f} ms, known after {wait:.0f} ms")
    for sampler in samplers.values():
        sampler.close()


if __name__ == "__main__":
    main()
