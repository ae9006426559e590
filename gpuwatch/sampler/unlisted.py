"""Who has the GPUs' device files open, by the links in /proc/PID/fd: for the processes that NVML does not list.

A worker that was forked has its parent's device files open and no memory of its own in NVML's lists; when the parent
dies, what it held stays for as long as such a worker lives, and NVML names the dead or nobody (NVIDIA/Megatron-LM#3684,
pytorch/pytorch#5736). Reading such a link touches neither the device nor the file that it names.

A walk over all processes goes in steps of some ms between two samples; see `OpenFileSearch`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpuwatch import procfs, programs
from gpuwatch.model import Gpu, Health, Presence, Process, Unlisted, known
from gpuwatch.sampler import machine

EVERY = 20.0
"""Seconds from the end of a walk to the next, at least."""

STEP = 0.002
"""Seconds of one step, and a little more: the process that it looks at is looked at to the end."""

PAUSE = 0.05
"""Seconds between two steps of a walk: it takes no more than a twenty-fifth of a core while it goes on."""

SHARE = 100
"""A walk is followed by a rest of so many times what it took: with thousands of processes it comes less often."""

ONCE = 0.05
"""Seconds that a single snapshot spends on it, at most: it has looked at some 700 processes by then."""

PATIENT = 1.0
"""The same for one that is asked for strays: what the search does not come to is missing there."""

MOST_FILES = 1024
"""Open files of one process that are looked at, the lowest numbers first: CUDA opens its own when it starts."""

MOST = 256
"""Processes that are given, those with a context first: so many are read anew with each sample."""

_OPENERS = 16
"""PIDs that are given of those that have one GPU open without being listed there: whether there are any is what counts,
and a line names three."""

_MOST_OPEN = 4096
"""Processes with device files that are remembered, most of which NVML may list."""

_NOTHING = 64 << 20
"""Bytes below which nobody holds a GPU: a context takes some hundred MiB."""

_UVM = "/dev/nvidia-uvm"
_DXG = "/dev/dxg"
_CARD = "/dev/nvidia"
_CAPABILITY = "/dev/nvidia-caps/"
_DELETED = " (deleted)"
"""What the kernel writes behind the name of a file that has been deleted, as those of a container that was updated."""

_THERE = (Presence.SEEN, Presence.UNREADABLE)

_KERNEL = 2
"""PID of kthreadd, whose children are the threads of the kernel."""

_MPS_COMM = b"nvidia-cuda-mps"
"""What the kernel keeps of the names of the MPS server and its control daemon: 15 characters."""
_MPS_SERVER = b"nvidia-cuda-mps-server"

_OURS = ("gpuwatch.sampler", "gpuwatch/sampler/__main__.py", "gpuwatch.inspector", "gpuwatch/inspector/__main__.py")
"""How gpuwatch's own processes are started: by module, or by the path of its file."""


class Open(NamedTuple):
    """What one process has open of the GPUs' device files."""

    pid: int
    start: int
    minors: frozenset[int] = frozenset()
    """The N of each /dev/nvidiaN."""
    context: bool = False
    """/dev/nvidia-uvm, which CUDA opens and NVML does not."""
    shared: bool = False
    """/dev/dxg, the one file for all GPUs under WSL."""


def opened(names: Iterable[str]) -> tuple[frozenset[int], bool, bool] | None:
    """Give minor numbers, uvm and dxg from the names of open files; None where no GPU's is among them.

    /dev/nvidiactl and the like alone are none: who only asks the driver's version has them. Source: nvml.h,
    nvmlDeviceGetMinorNumber (/dev/nvidiaN); the MIG user guide (/dev/nvidia-caps); docs.nvidia.com/cuda/wsl-user-guide.
    """
    minors: set[int] = set()
    context = shared = instance = False
    for name in names:
        path = name.removesuffix(_DELETED)
        number = path.removeprefix(_CARD) if path.startswith(_CARD) else ""
        if number.isascii() and number.isdecimal() and len(number) < 10:
            minors.add(int(number))
        elif path == _UVM:
            context = True
        elif path == _DXG:
            shared = True
        elif path.startswith(_CAPABILITY):
            instance = True
    if not (minors or context or shared or instance):
        return None
    return frozenset(minors), context, shared


class OpenFileSearch:
    """Walks over all processes that we may look into, again and again. Nothing here ever raises or waits.

    A process that is new to it counts once it was seen twice, a step apart: between fork(2) and execve(2) any child
    of a CUDA program has its parent's files.
    """

    def __init__(
        self,
        *,
        proc: Path = procfs.PROC,
        uid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Take the root of /proc, and who we are (our effective uid, root is 0)."""
        self.found: tuple[Open, ...] = ()
        """By the last walk that has ended; of a single snapshot that had no time to end, what it came to."""
        self.ended_at = 0.0
        """Wall-clock time at which that walk ended; 0 for not yet."""
        self.blind = 0
        """Processes whose open files were not ours to see, or could not be read just now; with hidepid there may be
        any number more."""
        self.hides = False
        """Whether /proc hides other people's processes from us."""
        self.mps: tuple[int, ...] = ()
        """MPS servers among those that we may not look into."""
        self._proc = str(proc)
        self._uid = os.geteuid() if uid is None else uid
        self._clock = clock
        self._wall = wall
        self._walk: Generator[None, None, None] | None = None
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
        """Go on for about so many seconds, where it is due."""
        began = self._clock()
        if began < self._due:
            return
        if self._walk is None:
            self._walk, self._spent = self._all(), 0.0
        for _ in self._walk:
            if self._clock() - began >= seconds:
                break
        else:
            self._walk = None
        now = self._clock()
        self._spent += now - began
        self._due = now + (PAUSE if self._walk is not None else max(EVERY, SHARE * self._spent))

    def run_once(self, seconds: float = ONCE) -> None:
        """Make one walk within so many seconds; one that takes longer is cut short, and has then not ended."""
        self.step(seconds)
        if self._walk is not None:
            self._walk.close()
            self._walk = None
            self._publish()

    def _all(self) -> Generator[None, None, None]:
        """Look at one process after the other."""
        self._open, self._unseen, self._servers = {}, 0, []
        self._before = {one.pid: one for one in self.found}
        kernel = self._kernel_threads()
        yield
        try:
            with os.scandir(self._proc) as entries:
                for entry in entries:
                    if not entry.name.isdecimal() or int(entry.name) in kernel:
                        continue
                    if self._is_ours(entry):
                        one = yield from self._look(int(entry.name))
                        if one is not None and len(self._open) < _MOST_OPEN:
                            self._open[one.pid, one.start] = one
                    else:
                        self._unseen += 1
                        self._note_server(int(entry.name))
                    yield
        except FileNotFoundError:  # there is no /proc: there never was anything to see
            pass
        except OSError:  # no file descriptor is left: what was found before is not known to be otherwise
            self.blind = max(self.blind, 1)
            return
        yield from self._confirm()
        self.hides = self._uid != 0 and machine.hides_pids(Path(self._proc))
        self._publish()
        self.ended_at = self._wall()

    def _confirm(self) -> Generator[None, None, None]:
        """Look once more at those that the last walk did not know."""
        before = {(one.pid, one.start) for one in self.found}
        for key in [key for key in self._open if key not in before]:
            yield
            one = yield from self._look(key[0])
            if one is None or (one.pid, one.start) != key:
                del self._open[key]
            else:
                self._open[key] = one

    def _publish(self) -> None:
        self.found = tuple(sorted(self._open.values(), key=lambda one: one.pid))
        self.blind, self.mps = self._unseen, tuple(sorted(self._servers))

    def _is_ours(self, entry: os.DirEntry[str]) -> bool:
        """Say cheaply whether we may look into a process: the owner of its folder is its effective uid, or root."""
        if self._uid == 0:
            return True
        try:
            return entry.stat(follow_symlinks=False).st_uid == self._uid
        except OSError:  # it has gone: whose it was does not matter, and looking finds nothing
            return True

    def _look(self, pid: int) -> Generator[None, None, Open | None]:
        """Return what a process has open of the GPUs' files; None for nothing, for one that has gone or is not ours."""
        names: set[str] = set()
        some = False
        try:
            folder = os.open(f"{self._proc}/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except procfs.GONE:
            return None
        except PermissionError:  # ours, and not to be looked into: it has set its uid, or cannot be dumped
            self._unseen += 1
            return None
        except OSError:
            return self._not_read(pid)
        try:
            with os.scandir(folder) as links:
                for count, link in enumerate(links):
                    some = True
                    if count == MOST_FILES:
                        break
                    with suppress(OSError):  # closed while the folder was read
                        name = os.readlink(link.name, dir_fd=folder)
                        if name.startswith("/dev/"):
                            names.add(name)
                    if count % 64 == 63:
                        yield
        except procfs.GONE:
            return None
        except OSError:
            return self._not_read(pid)
        finally:
            os.close(folder)
        return self._entry(pid, names) if some else self._led_by_a_dead(pid)

    def _led_by_a_dead(self, pid: int) -> Open | None:
        """Give what the threads have open of a process whose first thread has ended; that of most without files, None.

        The kernel shows the files of a process as those of its first thread.
        """
        try:
            if procfs.read_stat(pid, Path(self._proc)).state not in procfs.DEAD:
                return None
            files = procfs.open_files(pid, Path(self._proc))
            return self._entry(pid, {name for name, _ in zip(files, range(MOST_FILES), strict=False)})
        except procfs.GONE:  # as nearly all that have no files
            return None
        except (OSError, ValueError):
            return self._not_read(pid)

    def _entry(self, pid: int, names: Collection[str]) -> Open | None:
        found = opened(names) if names else None
        if found is None:
            return None
        try:
            start = procfs.read_stat(pid, Path(self._proc)).start_ticks
        except procfs.GONE:
            return None
        except (OSError, ValueError):
            return self._not_read(pid)
        return Open(pid, start, *found)

    def _not_read(self, pid: int) -> Open | None:
        """Count a process that could not be looked into just now; what the last walk found of it stays."""
        self._unseen += 1
        return self._before.get(pid)

    def _kernel_threads(self) -> frozenset[int]:
        """Return the threads of the kernel, which have no files and are nobody's; none where they cannot be told."""
        try:
            if procfs.read_file(_KERNEL, "comm", Path(self._proc)) != b"kthreadd\n":
                return frozenset()
        except OSError:  # a PID namespace of its own: there are none
            return frozenset()
        return frozenset((_KERNEL, *procfs.children(_KERNEL, Path(self._proc))))

    def _note_server(self, pid: int) -> None:
        """Remember an MPS server of somebody else's."""
        with suppress(OSError):
            if procfs.read_file(pid, "comm", Path(self._proc)).startswith(_MPS_COMM):
                argv = procfs.read_file(pid, "cmdline", Path(self._proc), 4096)
                if argv.partition(b"\0")[0].rpartition(b"/")[2] == _MPS_SERVER:
                    self._servers.append(pid)


# -- what is told of it --------------------------------------------------------------------------------------------


def candidates(found: Sequence[Open], listed: Collection[int]) -> list[Open]:
    """Return those that NVML does not list and that are to be read, no more than `MOST`, those with a context first."""
    rest = [one for one in found if one.pid not in listed]
    return sorted(rest, key=lambda one: (not one.context, one.pid))[:MOST]


def is_held(gpu: Gpu) -> bool:
    """Return whether somebody may hold a GPU's memory; else a single snapshot need not wait for who has it open."""
    return bool(gpu.holdings) or not known(gpu.unattributed) or gpu.unattributed >= _NOTHING


class UnlistedFilter:
    """Says which of the processes with device files NVML does not list, for sure."""

    def __init__(self, *, pid: int, parent: int, proc: Path = procfs.PROC) -> None:
        """Take who we are and who started us."""
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

        To be asked only where NVML is known to list by the PIDs that we see: else not to be listed says nothing.
        `processes` are those of the `found` and those listed, as they are now; `count` is how many GPUs there are.
        One that has a GPU's file open whose list cannot be trusted, or that we do not ask, may be listed there:
        it is left out.
        """
        listed = {of.pid for gpu in gpus for of in gpu.holdings}
        sure = {int(gpu.minor): gpu.uuid for gpu in gpus if known(gpu.minor) and _trusted(gpu)}
        whole = len(gpus) == count and all(map(_trusted, gpus))
        given = []
        for one in candidates(found, listed):
            process = processes.get(one.pid)
            if process is None or not self._is_told(one, process):
                continue
            if one.minors <= sure.keys() if one.minors else whole:
                uuids = _of_one(gpus) if one.shared else tuple(sure[minor] for minor in sorted(one.minors))
                given.append(Unlisted(process=process, gpus=uuids, context=one.context))
        return tuple(sorted(given, key=lambda one: one.process.pid))

    def openers(self, found: Sequence[Open], processes: Mapping[int, Process], gpu: Gpu, count: int) -> tuple[int, ...]:
        """Return the PIDs of those `found` that have this GPU's file open without being on its list.

        A CUDA program opens the files of all GPUs that it can see, and is listed only where it has a context. Programs
        that only ask the driver are left out. Takes what `unlisted` does, to be called after it; a process that nobody
        read since it was found counts.
        """
        listed = {of.pid for of in gpu.holdings}
        pids = (
            one.pid
            for one in found
            if (gpu.minor in one.minors or (one.shared and count == 1))
            and one.pid not in listed
            and (one.pid not in processes or self._is_told(one, processes[one.pid]))
        )
        return tuple(islice(pids, _OPENERS))

    def _is_told(self, one: Open, process: Process) -> bool:
        """Return whether it is the process that was found, still runs, and is none that only asks the driver."""
        if process.start != one.start or process.presence not in _THERE or process.pid in self._own:
            return False
        if process.state in ("zombie", "dead") and self._ended(process.pid):
            return False
        return not _is_gpuwatch(process) and (one.context or not asks_only(process))

    def _ended(self, pid: int) -> bool:
        try:
            return procfs.ended(pid, self._proc)
        except procfs.GONE:
            return True
        except (OSError, ValueError):  # not to be read just now
            return False


def _trusted(gpu: Gpu) -> bool:
    """Return whether who is not on this GPU's list does not hold it, as far as NVML knows."""
    return gpu.health is Health.OK and gpu.sampled > 0 and not gpu.holdings_note and not gpu.unreliable


def _of_one(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the GPU that /dev/dxg means: which one it is can only be told where there is no other."""
    return tuple(gpu.uuid for gpu in gpus) if len(gpus) == 1 else ()


def asks_only(process: Process) -> bool:
    """Return whether a process without a context is known to only ask the driver: a monitor, an exporter, a display."""
    words = process.command.split()[:2]
    names = {process.name, *(word.rpartition("/")[2] for word in words)}
    return any(map(programs.is_monitor, names))


def _is_gpuwatch(process: Process) -> bool:
    return any(word.endswith(_OURS) for word in process.command.split()[:8])
