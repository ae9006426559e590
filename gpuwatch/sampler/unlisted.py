"""Search for processes that have a GPU open without being listed by NVML, by the links in /proc/PID/fd.

A forked worker has its parent's device files open, and is not in NVML's lists. When the parent dies, its memory stays
allocated as long as such a worker lives, and NVML lists the dead process or none
(NVIDIA/Megatron-LM#3684, pytorch/pytorch#5736). Reading such a link touches neither the device nor the file.

A search of all processes takes many short steps between samples; see `OpenFileSearch`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpuwatch.base import procfs
from gpuwatch.base.programs import is_monitor
from gpuwatch.model.snapshot import Gpu, Presence, Process, Unlisted, known
from gpuwatch.sampler import machine

EVERY = 20.0
"""Seconds between the end of a search and the next one, at least."""
OLD = 60.0
"""Seconds after which a process is searched again that had no GPU open when it was `OLD` seconds known."""
STEP = 0.002
"""Seconds of one step; it takes a little longer, since the present process is always read completely."""
PAUSE = 0.05
"""Seconds between two steps of a search, which takes no more than 1/25 of a core."""
ONCE = 0.05
"""Seconds of the search for a single snapshot, at most: in that time it reads some 700 processes."""
LONG = 1.0
"""The same with `SamplerOptions.long_search`, or with memory to explain."""
MOST_FILES = 1024
"""Open files of one process that are read, at most, the lowest numbers first: CUDA opens its files early."""
MOST = 256
"""Unlisted processes that are returned, at most, those with a context first: each is read again every 5 s."""
_OPENERS = 16
"""PIDs that are returned for one GPU that is open without being listed, at most; the screen names three."""
_MOST_OPEN = 4096
"""Processes with device files that are remembered, at most; NVML may list most of them."""
_NOTHING = 64 << 20
"""Bytes of GPU memory below which no process can hold a GPU: a context takes some hundred MiB."""
_DELETED = " (deleted)"
"""Suffix that the kernel adds to the name of a deleted file, such as in a container after a driver update."""
_MPS_COMM = b"nvidia-cuda-mps"
"""Name of the MPS server and its control daemon, as the kernel cuts it: 15 characters."""
_OURS = ("gpuwatch.sampler", "gpuwatch/sampler/__main__.py", "gpuwatch.inspector", "gpuwatch/inspector/__main__.py")
"""Parts of the command lines of gpuwatch's own processes: a module, or the path of its file."""


class OpenGpuFiles(NamedTuple):
    """Device files of GPUs that one process has open."""

    pid: int
    start: int
    minors: frozenset[int] = frozenset()
    """The number N of each /dev/nvidiaN."""
    cuda_context: bool = False
    """Whether /dev/nvidia-uvm is open, which CUDA opens and NVML does not."""
    shared: bool = False
    """Whether /dev/dxg is open, the one file for all GPUs under WSL."""


def parse_device_files(names: Iterable[str]) -> tuple[frozenset[int], bool, bool] | None:
    """Return minor numbers, uvm and dxg from the names of open files; None where no GPU's is among them.

    /dev/nvidiactl and similar files do not count: a program that only reads the driver's version opens them. Source:
    nvml.h, nvmlDeviceGetMinorNumber (/dev/nvidiaN); docs.nvidia.com/cuda/wsl-user-guide.
    """
    paths = {name.removesuffix(_DELETED) for name in names}
    numbers = {path.removeprefix("/dev/nvidia") for path in paths if path.startswith("/dev/nvidia")}
    minors = frozenset(int(text) for text in numbers if text.isascii() and text.isdecimal() and len(text) < 10)
    found = minors, "/dev/nvidia-uvm" in paths, "/dev/dxg" in paths
    return found if any(found) else None


class OpenFileSearch:
    """Repeated search of all processes that we may read, in small steps. No method raises or waits."""

    def __init__(
        self,
        *,
        proc: Path = procfs.PROC,
        uid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`uid` is our effective uid by default; root may read all processes."""
        self.found: tuple[OpenGpuFiles, ...] = ()
        """Result of the last finished search; of a single snapshot whose search was cut short, the part so far."""
        self.ended_at = 0.0
        """Wall-clock time at which that search ended; 0 for not yet."""
        self.unsearched = 0
        """Processes whose open files we may not read, or could not read this time; with hidepid there may be any
        number more."""
        self.cut = (0, 0)
        """Processes that a search which was cut short looked at, and how many there were; zeros for a whole one."""
        self.hides = False
        """Whether /proc hides other people's processes from us."""
        self.mps: tuple[int, ...] = ()
        """PIDs of the MPS servers among the processes that we may not read."""
        self._proc = proc
        self._uid = os.geteuid() if uid is None else uid
        self._clock = clock
        self._wall = wall
        self._search: Iterator[None] | None = None
        self._due = clock()
        self._open: dict[int, OpenGpuFiles] = {}
        self._empty: dict[tuple[int, int], tuple[float, float]] = {}
        """When each process without a GPU was first searched, and when last, by PID and the inode of its folder.

        The kernel gives the folder of each new process another inode, so that a PID that is used again is a new one.
        """
        self._unseen = self._reached = self._existing = 0
        self._servers: list[int] = []
        self._listed: frozenset[int] = frozenset()

    def pause(self) -> float:
        """Return the seconds until the next step is due."""
        return max(0.0, self._due - self._clock())

    def step(self, seconds: float = STEP) -> None:
        """Continue the search for about `seconds`, where a step is due."""
        began = self._clock()
        if began < self._due:
            return
        if self._search is None:
            self._search = self._all()
        for _ in self._search:
            if self._clock() - began >= seconds:
                break
        else:
            self._search = None
        self._due = self._clock() + (EVERY if self._search is None else PAUSE)

    def run_once(self, seconds: float = ONCE, listed: Collection[int] = ()) -> None:
        """Search once, for at most `seconds`; a search that needs longer is cut short and does not count as ended.

        Processes that NVML lists are read once: they are no children that have not yet started their program.
        """
        self._listed = frozenset(listed)
        self.step(seconds)
        if self._search is not None:
            self._search = None
            self._publish()
            self.cut = (self._reached, self._existing)

    def _all(self) -> Iterator[None]:
        self._open, self._unseen, self._servers = {}, 0, []
        try:
            with os.scandir(self._proc) as entries:
                pids = [(int(entry.name), entry.inode()) for entry in entries if entry.name.isdecimal()]
        except OSError:  # no file descriptor is left: the previous result stays, with its age
            self.unsearched = max(self.unsearched, 1)
            return
        self._existing, before, self._empty = len(pids), self._empty, {}
        now = self._clock()
        for self._reached, (pid, inode) in enumerate(pids, 1):
            unseen = self._unseen
            first, last = before.get((pid, inode), (now, -OLD))
            if last - first >= OLD > now - last:
                self._empty[pid, inode] = first, last
                continue
            if not self._is_ours(pid):
                self._note_unseen(pid)
            elif one := self._read(pid):
                if len(self._open) < _MOST_OPEN:
                    self._open[pid] = one
            elif unseen == self._unseen:
                self._empty[pid, inode] = first, now
            yield
        # Between fork(2) and execve(2) every child of a CUDA program has its parent's files: a new one is read twice.
        for pid in self._open.keys() - {one.pid for one in self.found} - self._listed:
            yield
            if (again := self._read(pid)) and again.start == self._open[pid].start:
                self._open[pid] = again
            else:
                del self._open[pid]
        self.hides = self._uid != 0 and machine.hides_pids(self._proc)
        self._publish()
        self.ended_at = self._wall()

    def forget(self, pids: Collection[int]) -> None:
        """Remove processes that have ended from the result: until the next search nobody needs to read them."""
        self.found = tuple(one for one in self.found if one.pid not in pids)

    def _publish(self) -> None:
        self.found = tuple(sorted(self._open.values()))
        self.unsearched, self.mps = self._unseen, tuple(sorted(self._servers))

    def _is_ours(self, pid: int) -> bool:
        """Return whether we may read a process: the owner of its folder is its effective uid, or root."""
        try:
            return self._uid == 0 or self._uid == os.stat(f"{self._proc}/{pid}").st_uid  # noqa: PTH116 - twice as fast
        except OSError:  # it has ended: its owner does not matter, and reading finds nothing
            return True

    def _read(self, pid: int) -> OpenGpuFiles | None:
        """Return the device files that a process has open; None for none, or for a process that has ended."""
        try:
            stat = procfs.read_stat(pid, self._proc)
            found = parse_device_files(islice(procfs.read_open_files(pid, self._proc, stat), MOST_FILES))
            return found and OpenGpuFiles(pid, stat.start_ticks, *found)
        except procfs.GONE:
            return None
        except (OSError, ValueError):  # it has set its uid, cannot be dumped, or cannot be read just now
            self._unseen += 1
            return None

    def _note_unseen(self, pid: int) -> None:
        """Count another user's process, except a thread of the kernel; remember it where it is an MPS server."""
        self._unseen += 1
        with suppress(OSError, ValueError):  # it has ended, or is hidden
            stat = procfs.read_stat(pid, self._proc)
            if stat.flags & procfs.PF_KTHREAD:
                self._unseen -= 1
            elif stat.comm.startswith(_MPS_COMM):
                program = procfs.read_file(pid, "cmdline", self._proc, 4096).partition(b"\0")[0]
                if program.endswith(b"nvidia-cuda-mps-server"):
                    self._servers.append(pid)


# -- conclusions ------------------------------------------------------------------------------------------------------


def candidates(opened: Sequence[OpenGpuFiles], listed: Collection[int]) -> list[OpenGpuFiles]:
    """Return up to `MOST` processes that NVML does not list, those with a context first."""
    rest = [one for one in opened if one.pid not in listed]
    return sorted(rest, key=lambda one: (not one.cuda_context, one.pid))[:MOST]


def is_held(gpu: Gpu) -> bool:
    """Return whether any process may hold a GPU's memory; else a single snapshot need not wait for the search."""
    return bool(gpu.holdings) or not known(gpu.unattributed) or gpu.unattributed >= _NOTHING


def find_unlisted(
    opened: Sequence[OpenGpuFiles], processes: Mapping[int, Process], gpus: Sequence[Gpu]
) -> tuple[Unlisted, ...]:
    """Return the processes that have device files of the `gpus` open and that NVML certainly does not list.

    To be called only where NVML lists the PIDs that we see: else a missing PID proves nothing. `processes` are those of
    `opened` and the listed ones as they are now. A process is left out where it has a GPU open whose list cannot be
    trusted, or that is not watched: it may be listed there. Under WSL it is not known which GPUs are open.
    """
    listed = {of.pid for gpu in gpus for of in gpu.holdings}
    trusted = {int(gpu.minor): gpu.uuid for gpu in gpus if known(gpu.minor) and gpu.sampled > 0 and gpu.is_listed}
    unlisted = []
    for one in candidates(opened, listed):
        process = processes.get(one.pid)
        if process is not None and one.minors and one.minors <= trusted.keys() and _counts(one, process):
            uuids = tuple(trusted[minor] for minor in sorted(one.minors))
            unlisted.append(Unlisted(process=process, gpus=uuids, cuda_context=one.cuda_context))
    return tuple(sorted(unlisted, key=lambda one: one.process.pid))


def find_openers(
    opened: Sequence[OpenGpuFiles], processes: Mapping[int, Process], gpus: Sequence[Gpu]
) -> dict[str, tuple[int, ...]]:
    """Return the PIDs of those `opened` that have a GPU's file open without being in its list, by the GPU's key.

    A CUDA program opens the files of all GPUs that it can see, and is listed only where it has a context. Programs
    that only call the driver are left out; a process that has not been read yet counts.
    """
    found = {}
    counted = [one for one in opened if one.pid not in processes or _counts(one, processes[one.pid])]
    for gpu in gpus:
        listed, minor = {of.pid for of in gpu.holdings}, gpu.minor
        pids = (one.pid for one in counted if (minor in one.minors or one.shared) and one.pid not in listed)
        found[gpu.key] = tuple(islice(pids, _OPENERS))
    return found


def _counts(opened: OpenGpuFiles, process: Process) -> bool:
    """Return whether a process is the one that was found, still runs, and does more than call the driver.

    Left out are gpuwatch's own processes, and monitors without a context: they compute nothing.
    """
    there = process.presence in (Presence.SEEN, Presence.UNREADABLE) and not process.has_ended
    if process.start != opened.start or not there:
        return False
    if opened.cuda_context:
        return True
    words = process.command.split(maxsplit=8)[:8]
    names = {process.name, *(word.rpartition("/")[2] for word in words[:2])}
    return not (any(word.endswith(_OURS) for word in words) or any(map(is_monitor, names)))
