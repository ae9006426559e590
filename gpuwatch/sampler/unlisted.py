"""Search for processes that have a GPU open without being listed by NVML, by the links in /proc/PID/fd.

A forked worker has its parent's device files open, and is not in NVML's lists. When the parent dies, its memory stays
allocated as long as such a worker lives, and NVML lists the dead process or none
(NVIDIA/Megatron-LM#3684, pytorch/pytorch#5736). Reading such a link touches neither the device nor the file.

A search of all processes takes many steps of some ms, between samples; see `OpenFileSearch`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpuwatch import procfs
from gpuwatch.model import Gpu, Health, Presence, Process, Unlisted, known
from gpuwatch.programs import is_monitor
from gpuwatch.sampler import machine

EVERY = 20.0
"""Seconds between the end of a search and the next one, at least."""

STEP = 0.002
"""Seconds of one step; it takes a little longer, since the present process is always read completely."""

PAUSE = 0.05
"""Seconds between two steps of a search, which takes no more than 1/25 of a core."""

SHARE = 100
"""A search is followed by a pause of 100 times its length: with thousands of processes searches are rarer."""

ONCE = 0.05
"""Seconds of the search for a single snapshot, at most: in that time it reads some 700 processes."""

PATIENT = 1.0
"""Seconds of the search for a single snapshot with `Options.patient`, at most."""

MOST_FILES = 1024
"""Open files of one process that are read, at most, the lowest numbers first: CUDA opens its files early."""

MOST = 256
"""Unlisted processes that are returned, at most, those with a context first: each is read again in every sample."""

_OPENERS = 16
"""PIDs that are returned for one GPU that is open without being listed, at most: what counts is whether there are any,
and the screen names three."""

_MOST_OPEN = 4096
"""Processes with device files that are remembered, at most; NVML may list most of them."""

_NOTHING = 64 << 20
"""Bytes of GPU memory below which no process can hold a GPU: a context takes some hundred MiB."""

_UVM = "/dev/nvidia-uvm"
_DXG = "/dev/dxg"
_CARD = "/dev/nvidia"
_CAPABILITY = "/dev/nvidia-caps/"
_DELETED = " (deleted)"
"""Suffix that the kernel adds to the name of a deleted file, such as in a container after a driver update."""

_THERE = (Presence.SEEN, Presence.UNREADABLE)

_KTHREADD = 2
"""PID of kthreadd, whose children are the threads of the kernel."""

_MPS_COMM = b"nvidia-cuda-mps"
"""Name of the MPS server and its control daemon, as the kernel cuts it: 15 characters."""
_MPS_SERVER = b"nvidia-cuda-mps-server"

_OURS = ("gpuwatch.sampler", "gpuwatch/sampler/__main__.py", "gpuwatch.inspector", "gpuwatch/inspector/__main__.py")
"""Parts of the command lines of gpuwatch's own processes: a module, or the path of its file."""


class Open(NamedTuple):
    """The GPU device files that one process has open."""

    pid: int
    start: int
    minors: frozenset[int] = frozenset()
    """The number N of each /dev/nvidiaN."""
    context: bool = False
    """Whether /dev/nvidia-uvm is open, which CUDA opens and NVML does not."""
    shared: bool = False
    """Whether /dev/dxg is open, the one file for all GPUs under WSL."""


def parse_device_files(names: Iterable[str]) -> tuple[frozenset[int], bool, bool] | None:
    """Return minor numbers, uvm and dxg from the names of open files; None where no GPU's is among them.

    /dev/nvidiactl and similar files do not count: a program that only reads the driver's version opens them. Source:
    nvml.h, nvmlDeviceGetMinorNumber (/dev/nvidiaN); the MIG user guide (/dev/nvidia-caps);
    docs.nvidia.com/cuda/wsl-user-guide.
    """
    paths = {name.removesuffix(_DELETED) for name in names}
    numbers = {path.removeprefix(_CARD) for path in paths if path.startswith(_CARD)}
    minors = frozenset(int(text) for text in numbers if text.isascii() and text.isdecimal() and len(text) < 10)
    context, shared = _UVM in paths, _DXG in paths
    if minors or context or shared or any(path.startswith(_CAPABILITY) for path in paths):
        return minors, context, shared
    return None


class OpenFileSearch:
    """Repeated search of all processes that we may read, in small steps. No method raises or waits.

    A new process counts only after it was seen in two steps: between fork(2) and execve(2) every child of a CUDA
    program has its parent's files.
    """

    def __init__(
        self,
        *,
        proc: Path = procfs.PROC,
        uid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`uid` is our effective uid by default; root may read all processes."""
        self.found: tuple[Open, ...] = ()
        """Result of the last finished search; of a single snapshot whose search was cut short, the part so far."""
        self.ended_at = 0.0
        """Wall-clock time at which that search ended; 0 for not yet."""
        self.blind = 0
        """Processes whose open files we may not read, or could not read this time; with hidepid there may be any
        number more."""
        self.hides = False
        """Whether /proc hides other people's processes from us."""
        self.mps: tuple[int, ...] = ()
        """PIDs of the MPS servers among the processes that we may not read."""
        self._proc = proc
        self._uid = os.geteuid() if uid is None else uid
        self._clock = clock
        self._wall = wall
        self._search: Generator[None, None, None] | None = None
        self._due = clock()
        self._spent = 0.0
        self._open: dict[tuple[int, int], Open] = {}
        self._before: dict[int, Open] = {}
        self._unseen = 0
        self._servers: list[int] = []

    def pause(self) -> float:
        """Return the seconds until the next step is due."""
        return max(0.0, self._due - self._clock())

    def step(self, seconds: float = STEP) -> None:
        """Continue the search for about `seconds`, where a step is due."""
        began = self._clock()
        if began < self._due:
            return
        if self._search is None:
            self._search, self._spent = self._all(), 0.0
        for _ in self._search:
            if self._clock() - began >= seconds:
                break
        else:
            self._search = None
        now = self._clock()
        self._spent += now - began
        self._due = now + (PAUSE if self._search is not None else max(EVERY, SHARE * self._spent))

    def run_once(self, seconds: float = ONCE) -> None:
        """Search once, for at most `seconds`; a search that needs longer is cut short and does not count as ended."""
        self.step(seconds)
        if self._search is not None:
            self._search.close()
            self._search = None
            self._publish()

    def _all(self) -> Generator[None, None, None]:
        """Read all processes, one after the other."""
        self._open, self._unseen, self._servers = {}, 0, []
        self._before = {one.pid: one for one in self.found}
        kernel = self._kernel_threads()
        yield
        try:
            with os.scandir(self._proc) as entries:
                for entry in entries:
                    if not entry.name.isdecimal() or (pid := int(entry.name)) in kernel:
                        continue
                    if not self._is_ours(entry):
                        self._unseen += 1
                        self._note_server(pid)
                    elif (one := (yield from self._read(pid))) and len(self._open) < _MOST_OPEN:
                        self._open[one.pid, one.start] = one
                    yield
        except FileNotFoundError:  # there is no /proc: there never was anything to see
            pass
        except OSError:  # no file descriptor is left: what was found before is not known to be otherwise
            self.blind = max(self.blind, 1)
            return
        known_before = {(one.pid, one.start) for one in self.found}
        for key in self._open.keys() - known_before:
            yield
            one = yield from self._read(key[0])
            if one is None or (one.pid, one.start) != key:
                del self._open[key]
            else:
                self._open[key] = one
        self.hides = self._uid != 0 and machine.hides_pids(self._proc)
        self._publish()
        self.ended_at = self._wall()

    def _publish(self) -> None:
        self.found = tuple(sorted(self._open.values(), key=lambda one: one.pid))
        self.blind, self.mps = self._unseen, tuple(sorted(self._servers))

    def _is_ours(self, entry: os.DirEntry[str]) -> bool:
        """Return whether we may read a process: the owner of its folder is its effective uid, or root."""
        if self._uid == 0:
            return True
        try:
            return entry.stat(follow_symlinks=False).st_uid == self._uid
        except OSError:  # it has ended: whose it was does not matter, and reading finds nothing
            return True

    def _read(self, pid: int) -> Generator[None, None, Open | None]:
        """Return the device files that a process has open; None for none, or for a process that has ended."""
        names: set[str] = set()
        count = 0
        try:
            folder = os.open(f"{self._proc}/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with os.scandir(folder) as links:
                    for count, link in enumerate(islice(links, MOST_FILES), 1):
                        with suppress(OSError):  # closed while the folder was read
                            name = os.readlink(link.name, dir_fd=folder)
                            if name.startswith("/dev/"):
                                names.add(name)
                        if count % 64 == 0:
                            yield
            finally:
                os.close(folder)
            if not count and procfs.read_stat(pid, self._proc).state in procfs.DEAD:
                # The kernel shows the files of a process as those of its first thread, which may have ended.
                names = set(islice(procfs.read_open_files(pid, self._proc), MOST_FILES))
            found = parse_device_files(names) if names else None
            return found and Open(pid, procfs.read_stat(pid, self._proc).start_ticks, *found)
        except procfs.GONE:
            return None
        except PermissionError:  # ours, and not to be looked into: it has set its uid, or cannot be dumped
            self._unseen += 1
            return None
        except (OSError, ValueError):  # it cannot be read just now: what was found of it before stays
            self._unseen += 1
            return self._before.get(pid)

    def _kernel_threads(self) -> frozenset[int]:
        """Return the PIDs of the kernel's threads, which have no files; none where they cannot be found."""
        try:
            if procfs.read_file(_KTHREADD, "comm", self._proc) != b"kthreadd\n":
                return frozenset()
        except OSError:  # a PID namespace of its own: there are none
            return frozenset()
        return frozenset((_KTHREADD, *procfs.find_children(_KTHREADD, self._proc)))

    def _note_server(self, pid: int) -> None:
        """Remember a process where it is another user's MPS server."""
        with suppress(OSError):
            if procfs.read_file(pid, "comm", self._proc).startswith(_MPS_COMM):
                argv = procfs.read_file(pid, "cmdline", self._proc, 4096)
                if argv.partition(b"\0")[0].rpartition(b"/")[2] == _MPS_SERVER:
                    self._servers.append(pid)


# -- what is concluded from it -------------------------------------------------------------------------------------


def candidates(found: Sequence[Open], listed: Collection[int]) -> list[Open]:
    """Return up to `MOST` processes that NVML does not list, those with a context first."""
    rest = [one for one in found if one.pid not in listed]
    return sorted(rest, key=lambda one: (not one.context, one.pid))[:MOST]


def is_held(gpu: Gpu) -> bool:
    """Return whether any process may hold a GPU's memory; else a single snapshot need not wait for the search."""
    return bool(gpu.holdings) or not known(gpu.unattributed) or gpu.unattributed >= _NOTHING


class UnlistedFilter:
    """Filter that returns the processes with device files that NVML certainly does not list."""

    def __init__(self, *, pid: int, parent: int, proc: Path = procfs.PROC) -> None:
        """`pid` and `parent` are the PIDs of this process and of its parent."""
        self._own = {pid, parent}
        self._proc = proc

    def unlisted(
        self,
        found: Sequence[Open],
        processes: Mapping[int, Process],
        gpus: Sequence[Gpu],
        count: int,
    ) -> tuple[Unlisted, ...]:
        """Return the processes that have device files of the `gpus` open and that NVML does not list.

        To be called only where NVML lists the PIDs that we see: else a missing PID proves nothing. `processes` are the
        `found` and the listed processes as they are now; `count` is the number of GPUs. A process is left out where it
        has a GPU open whose list cannot be trusted, or that is not watched: it may be listed there.
        """
        listed = {of.pid for gpu in gpus for of in gpu.holdings}
        trusted = {int(gpu.minor): gpu.uuid for gpu in gpus if known(gpu.minor) and _is_trusted(gpu)}
        all_trusted = len(gpus) == count and all(map(_is_trusted, gpus))
        given = []
        for one in candidates(found, listed):
            process = processes.get(one.pid)
            if process is None or not self._counts(one, process):
                continue
            if one.minors <= trusted.keys() if one.minors else all_trusted:
                uuids = tuple(trusted[minor] for minor in sorted(one.minors))
                if one.shared:  # which GPU /dev/dxg means can only be told where there is no other
                    uuids = tuple(gpu.uuid for gpu in gpus) if len(gpus) == 1 else ()
                given.append(Unlisted(process=process, gpus=uuids, context=one.context))
        return tuple(sorted(given, key=lambda one: one.process.pid))

    def openers(self, found: Sequence[Open], processes: Mapping[int, Process], gpu: Gpu, count: int) -> tuple[int, ...]:
        """Return the PIDs of those `found` that have this GPU's file open without being in its list.

        A CUDA program opens the files of all GPUs that it can see, and is listed only where it has a context. Programs
        that only call the driver are left out. The arguments are as in `unlisted`; a process that has not been read yet
        counts.
        """
        listed = {of.pid for of in gpu.holdings}
        pids = (
            one.pid
            for one in found
            if (gpu.minor in one.minors or (one.shared and count == 1))
            and one.pid not in listed
            and (one.pid not in processes or self._counts(one, processes[one.pid]))
        )
        return tuple(islice(pids, _OPENERS))

    def _counts(self, one: Open, process: Process) -> bool:
        """Return whether a process is the one that was found, still runs, and does more than call the driver."""
        if process.start != one.start or process.presence not in _THERE or process.pid in self._own:
            return False
        if process.state in ("zombie", "dead") and self._has_ended(process.pid):
            return False
        return not _only_asks_driver(one, process)

    def _has_ended(self, pid: int) -> bool:
        try:
            return procfs.has_ended(pid, self._proc)
        except procfs.GONE:
            return True
        except (OSError, ValueError):  # not to be read just now
            return False


def _is_trusted(gpu: Gpu) -> bool:
    """Return whether this GPU's list is complete: a process that is not in it does not hold the GPU."""
    return gpu.health is Health.OK and gpu.sampled > 0 and not gpu.holdings_note and not gpu.unreliable


def _only_asks_driver(one: Open, process: Process) -> bool:
    """Return whether a process is gpuwatch's own, or a monitor without a context: it computes nothing."""
    words = process.command.split()[:8]
    if any(word.endswith(_OURS) for word in words):
        return True
    names = {process.name, *(word.rpartition("/")[2] for word in words[:2])}
    return not one.context and any(map(is_monitor, names))
