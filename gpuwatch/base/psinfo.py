"""Figures of processes and of the host, read by psutil below any root of /proc.

psutil takes its root from a variable of the module; an object of its class `Process` keeps the root that it was made
with. Such an object does not notice a reused PID: start ticks show it (`procfs.read_stat`). Not taken from
psutil are start ticks, addresses, state and parent, for which a line of `stat` is read anyway, to know the process;
command lines and environments, which it reads without a bound; and terminals, since it reads the list of them once and
does not know those that are opened later.
"""

from __future__ import annotations

import errno
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

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
    """CPU time and memory of a process."""

    cpu: float
    """CPU time in seconds, in the program and in the kernel for it."""
    children_cpu: float
    """CPU time in seconds of the children that it has waited for, and of their children."""
    rss: int
    """Resident memory in bytes; 0 where its first thread has ended."""


class ProcessReader:
    """Reader of the figures of one process; its methods raise `OSError` (see `procfs.GONE`) or `ValueError`."""

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        with _os_errors(), _root(proc):
            self._process = psutil.Process(pid)

    def usage(self) -> ProcessUsage:
        """Read the two files that change every moment; `oneshot` would cost more than it saves."""
        with _os_errors():
            user, system, below_user, below_system = self._process.cpu_times()[:4]
            return ProcessUsage(user + system, below_user + below_system, self._process.memory_info().rss)


def read_uids(pid: int, proc: Path = PROC) -> tuple[int, int, int]:
    """Return the real, effective and saved uid of a process; raises `OSError` (see `procfs.GONE`)."""
    with _os_errors(), _root(proc):
        return psutil.Process(pid).uids()


def read_usage(pid: int, proc: Path = PROC) -> ProcessUsage:
    """Return the CPU time and memory of a process; raises `OSError` (see `procfs.GONE`) or `ValueError`."""
    return ProcessReader(pid, proc).usage()


def find_usage(pid: int, start_ticks: int, proc: Path = PROC) -> ProcessUsage | None:
    """Return the CPU time and memory of the process of this start time; None where it has ended or cannot be read."""
    with suppress(OSError, ValueError):
        if procfs.find_stat(pid, proc, start_ticks) is not None:
            return read_usage(pid, proc)
    return None


def read_descendants_cpu(pid: int, usage: ProcessUsage, proc: Path = PROC) -> float:
    """Return the CPU seconds of all descendants of a process, those that have ended included; it only ever grows.

    Only children of first threads count: other threads rarely start programs, and a training has hundreds of threads.
    """
    total, above, seen = usage.children_cpu, [pid], {pid}
    while above and len(seen) < procfs.DESCENDANTS_MAX:
        one = above.pop()
        with suppress(OSError, ValueError):  # it has ended, or a kernel without CONFIG_PROC_CHILDREN
            for child in procfs.read_thread_children(one, one, proc):
                if child not in seen:
                    seen.add(child)
                    above.append(child)
                    with suppress(OSError, ValueError):
                        below = read_usage(child, proc)
                        total += below.cpu + below.children_cpu
    return total


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
        return {one: (usage.cpu, read_descendants_cpu(one[0], usage, proc)) for one, usage in found if usage}

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


class HostMemory(NamedTuple):
    """The machine's memory in bytes."""

    total: int
    available: int


def _read_host(read: Callable[[], Any], proc: Path = PROC) -> Any:
    """Return a figure of the host; None where it cannot be read."""
    with suppress(OSError, KeyError, ValueError, IndexError), _root(proc), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it names other figures that a container does not show
        return read()
    return None


def host_memory(proc: Path = PROC) -> HostMemory | None:
    """Return the machine's memory, including what the kernel can reclaim; None where it cannot be read."""
    found = _read_host(psutil.virtual_memory, proc)
    return HostMemory(found.total, found.available) if found else None


def host_swap(proc: Path = PROC) -> HostMemory | None:
    """Return the machine's swap; None where it cannot be read."""
    found = _read_host(psutil.swap_memory, proc)
    return HostMemory(found.total, found.free) if found else None


class HostCpu(NamedTuple):
    """CPU time of the machine since boot, in seconds of all CPUs together."""

    busy: float
    total: float


def host_cpu(proc: Path = PROC) -> HostCpu | None:
    """Return the machine's CPU time; None where it cannot be read."""
    times = _read_host(psutil.cpu_times, proc)
    if not times:
        return None
    total = sum(times) - times.guest - times.guest_nice  # `user` and `nice` have them already
    return HostCpu(total - times.idle - times.iowait, total)


def host_load() -> float | None:
    """Return the load of the last minute; None where it cannot be read."""
    found = _read_host(psutil.getloadavg)
    return float(found[0]) if found else None
