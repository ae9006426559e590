"""Processes in single looks of commands, read by psutil below any root of /proc.

psutil takes its root from a variable of the module. It does not notice a reused PID: start ticks show it
(`procfs.read_stat`). The sampler does without psutil: its import takes 9 ms before the first snapshot, and its readings
took a third of a sample, since the sampler reads the line of `stat` anyway to know the process.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from gpuwatch.base import procfs
from gpuwatch.base.procfs import PROC


@contextmanager
def _root(proc: Path) -> Iterator[None]:
    """Context in which psutil reads this root."""
    before, psutil.PROCFS_PATH = psutil.PROCFS_PATH, str(proc)
    try:
        yield
    finally:
        psutil.PROCFS_PATH = before


@contextmanager
def _os_errors() -> Iterator[None]:
    """Context in which psutil's errors are the `OSError` of procfs: see `procfs.GONE`."""
    try:
        yield
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(errno.ESRCH, "it has ended", str(error.pid)) from None
    except psutil.AccessDenied as error:
        raise PermissionError(errno.EACCES, "no permission to read it", str(error.pid)) from None
    except (IndexError, NotImplementedError) as error:
        raise ValueError(f"a file of /proc lacks a field: {error}") from error


class ProcessUsage(NamedTuple):
    """CPU time of a process."""

    cpu: float
    """CPU time in seconds, in the program and in the kernel for it."""
    children_cpu: float
    """CPU time in seconds of the children that it has waited for, and of their children."""


def read_usage(pid: int, proc: Path = PROC) -> ProcessUsage:
    """Return the CPU time of a process; raises `OSError` (see `procfs.GONE`) or `ValueError`."""
    with _os_errors(), _root(proc):
        user, system, below_user, below_system = psutil.Process(pid).cpu_times()[:4]
        return ProcessUsage(user + system, below_user + below_system)


def find_usage(pid: int, start_ticks: int, proc: Path = PROC) -> ProcessUsage | None:
    """Return the CPU time of the process of this start time; None where it has ended or cannot be read."""
    with suppress(OSError, ValueError):
        if procfs.find_stat(pid, proc, start_ticks) is not None:
            return read_usage(pid, proc)
    return None


def measure_cpu(
    processes: Collection[tuple[int, int]],
    seconds: float,
    *,
    proc: Path = PROC,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[tuple[int, int], tuple[float, ...]]:
    """Return the CPU use of processes (PID, start time), and that of their descendants, in percent of one core.

    It waits for some seconds between two looks; processes that have ended meanwhile are left out.
    """

    def look() -> dict[tuple[int, int], tuple[float, float]]:
        found = ((one, find_usage(*one, proc)) for one in processes)
        below = procfs.read_descendants_cpu
        return {
            one: (usage.cpu, below(one[0], round(usage.children_cpu * procfs.TICKS), proc) / procfs.TICKS)
            for one, usage in found
            if usage
        }

    before, began = look(), clock()
    pause(seconds)
    passed = max(clock() - began, 0.001)
    return {
        one: tuple(round(100 * max(0.0, new - old) / passed, 1) for old, new in zip(before[one], after, strict=True))
        for one, after in look().items()
        if one in before
    }


def is_running(name: str, proc: Path = PROC) -> bool:
    """Return whether a visible process has a name."""
    with _root(proc):
        return any(one.info["name"] == name for one in psutil.process_iter(["name"]))
