"""Reader of the reservations of `gpuwatch run`: files in the user's folder and in a folder that all users share.

Everybody may write into the shared folder. So a file counts only if it belongs to the user whose living process it
names. The name of a file contains its process, which limits the cost: files that name no living process are never
opened, and a folder with too many files is not listed: the file of each process of the machine is looked up instead.
Of each user a limited number of files count.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuwatch import procfs
from gpuwatch.shares import Reservation

SHARED = Path("/run/lock/gpuwatch")
"""Folder that all users of the machine share."""

EACH = 1024
"""Reservations of one user that count, at most; a busy machine has some tens. Each costs 0.1 ms, under the lock."""

PATIENCE = 2.0
"""Seconds that one reading may take: a fifth of the time that others wait for the lock."""

_EVERY = 5.0
"""Seconds after which the stream's reservations are read again without a changed file: a process may have ended."""

_PART = 20
"""At most 1/20 of the stream's time is spent on reading reservations."""

_STREAM_PATIENCE = 0.25
"""Seconds that one reading for the stream may take, since a sample waits for it."""

_LISTED = 1024
"""Files of a folder that are listed, at most; with more, the file of each process is looked up instead."""

_LARGEST = 1 << 14
"""Bytes of a file, at most; a file with 16 GPUs takes 1 kB."""

_MOST_GPUS = 64
"""GPUs of one reservation with its inner ones, at most: no machine has more, and invented names cost time too."""

_MOST_BYTES = 1 << 50

_NAME = re.compile(r"([0-9]{1,10})-[0-9]{1,20}\.json")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK, because opening a FIFO that somebody placed there would wait forever."""


class Place(NamedTuple):
    """Path of a folder, and whether all users share it."""

    path: Path
    shared: bool = False


class Folder(NamedTuple):
    """Open folder."""

    place: Place
    fd: int


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of one file."""

    pid: int
    start: int
    """Start of the process in clock ticks since boot: with the PID it identifies one process."""
    gpus: dict[str, int]
    """Bytes reserved, by the UUID of the GPU."""


class Found(NamedTuple):
    """Result of reading the reservations."""

    reserved: list[Reservation]
    """Outer reservations only: a run inside another run uses the memory that the outer run reserved."""
    words: list[str]
    """Warnings about reservations that do not count, with the reason; one line each."""


class UnsafeFolderError(OSError):
    """Error: a folder is not safe to use."""


def places(
    shared: Path = SHARED, environ: Mapping[str, str] | None = None, uid: int | None = None
) -> tuple[Place, ...]:
    """Return both folders, in the order in which they must be locked."""
    environ = os.environ if environ is None else environ
    uid = os.geteuid() if uid is None else uid
    given = environ.get("XDG_RUNTIME_DIR", "")
    runtime = Path(given) if given.startswith("/") else Path(f"/run/user/{uid}")
    if _belongs(runtime, uid):
        return Place(runtime / "gpuwatch"), Place(shared, shared=True)
    temporary = Path(environ.get("TMPDIR") or "/tmp")  # tempfile would cost the sampler's start 5 ms
    if not temporary.is_dir():
        temporary = Path("/tmp")
    return Place(temporary / f"gpuwatch-{uid}"), Place(shared, shared=True)


def _belongs(folder: Path, uid: int) -> bool:
    """Return whether a folder belongs to a user: under `sudo -E`, XDG_RUNTIME_DIR is the caller's folder."""
    try:
        facts = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == uid


def open_folder(place: Place, *, make: bool = True) -> int:
    """Open a folder, created if needed; raises OSError where it is missing or unsafe."""
    wanted = 0o1777 if place.shared else 0o700
    if make:
        with contextlib.suppress(FileExistsError):
            place.path.mkdir(mode=0o700)
    fd = os.open(place.path, _FOLDER)
    try:
        facts = os.fstat(fd)
        mode, ours = stat.S_IMODE(facts.st_mode), facts.st_uid == os.geteuid()
        if not place.shared and not ours:
            raise UnsafeFolderError(f"it belongs to uid {facts.st_uid}")
        if ours and mode != wanted:  # mkdir(2) heeds the umask; the mode is put right here
            os.fchmod(fd, wanted)
        elif mode != wanted:
            raise UnsafeFolderError(f"its mode is {mode:o} and not {wanted:o}")
    except OSError:
        os.close(fd)
        raise
    return fd


def file_name(pid: int, start: int) -> str:
    """Return the name of a process's file."""
    return f"{pid}-{start}.json"


# ---------------------------------------------------------------------------------------------------------------
# Reading


def read(
    folders: Sequence[Folder],
    holders: Collection[int],
    *,
    caller: int | None = None,
    proc: Path = procfs.PROC,
    sweep: bool = True,
    each: int = EACH,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Read the reservations of living processes.

    `holders` are the PIDs that hold a GPU: each is assigned to the reservation that it belongs to. Reservations of
    `caller`, or of a run that started it, are left out. With `sweep` our own files whose process has ended are removed.
    Of one user at most `each` count, and nothing is read after `patience` seconds; warnings report both. Processes that
    /proc hides from us (hidepid) count as ended.
    """
    reading = _Reading(proc, each, clock() + patience, clock)
    for folder in folders:
        reading.add(folder.fd, sweep=sweep)
    reading.remove_ancestry(caller)
    return Found(reading.reserved(holders), reading.words(patience))


def peek(
    folders: Sequence[Place],
    holders: Collection[int],
    *,
    caller: int | None = None,
    proc: Path = procfs.PROC,
    sweep: bool = True,
    each: int = EACH,
    patience: float = PATIENCE,
) -> Found:
    """Read as `read` does, without creating or locking a folder."""
    opened: list[Folder] = []
    try:
        for place in folders:
            with contextlib.suppress(OSError):  # nobody has reserved anything there, or it is not to be relied on
                opened.append(Folder(place, open_folder(place, make=False)))
        if not opened:
            return Found([], [])
        return read(opened, holders, caller=caller, proc=proc, sweep=sweep, each=each, patience=patience)
    finally:
        for folder in opened:
            os.close(folder.fd)


class _Entry(NamedTuple):
    """One valid file."""

    uid: int
    made: float
    gpus: Mapping[str, int]


class _Reading:
    """State of one reading: the files found, and the processes that they name."""

    def __init__(self, proc: Path, each: int, end: float, clock: Callable[[], float]) -> None:
        self._proc, self._each, self._end, self._clock = proc, each, end, clock
        self._stats: dict[int, procfs.Stat | None] = {}
        self._files: dict[int, _Entry] = {}
        self._count: Counter[int] = Counter()
        self._late = False

    def add(self, folder: int, *, sweep: bool) -> None:
        names = self._names(folder)
        for pid in self._everybody() if names is None else sorted(names):
            if self._clock() >= self._end:
                self._late = True
                return
            process = self._living(pid)
            name = file_name(pid, process.start_ticks) if process else ""
            if process and (names is None or name in names[pid]):
                self._add(folder, name, pid, process.start_ticks)
            if names is not None and sweep:
                _sweep(folder, names[pid] - {name})

    def _names(self, folder: int) -> dict[int, set[str]] | None:
        """List the valid file names by the PID in them; None where the folder has too many files to list."""
        names: defaultdict[int, set[str]] = defaultdict(set)
        with os.scandir(folder) as entries:
            for count, entry in enumerate(islice(entries, _LISTED + 1)):
                if count == _LISTED:
                    return None
                if found := _NAME.fullmatch(entry.name):
                    names[int(found[1])].add(entry.name)
        return dict(names)

    def _everybody(self) -> Iterator[int]:
        """Return the PIDs of all processes, in order."""
        return iter(sorted(int(name) for name in os.listdir(self._proc) if name.isdecimal()))  # noqa: PTH208

    def _living(self, pid: int) -> procfs.Stat | None:
        """Read a process, once; None where it has ended, or is hidden from us."""
        if pid not in self._stats:
            try:
                found: procfs.Stat | None = procfs.read_stat(pid, self._proc)
                if found is not None and found.state in procfs.DEAD and procfs.has_ended(pid, self._proc):
                    found = None
            except (OSError, ValueError):
                found = None
            self._stats[pid] = found
        return self._stats[pid]

    def _add(self, folder: int, name: str, pid: int, start: int) -> None:
        try:
            fd = os.open(name, _READ, dir_fd=folder)
        except OSError:  # none, a link, or one that we may not read
            return
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode) or not self._owns(facts.st_uid, pid):
                return
            self._count[facts.st_uid] += 1
            if self._count[facts.st_uid] > self._each:
                return
            file = msgspec.json.decode(os.read(fd, _LARGEST), type=File)
        except (OSError, ValueError):  # not from here, or cut short
            return
        finally:
            os.close(fd)
        sound = (file.pid, file.start) == (pid, start) and len(file.gpus) <= _MOST_GPUS
        if sound and all(0 <= amount <= _MOST_BYTES for amount in file.gpus.values()):
            # The time of the last change of the inode: unlike that of the contents its owner cannot set it (utime(2)).
            self._files[pid] = _Entry(facts.st_uid, facts.st_ctime, file.gpus)

    def _owns(self, uid: int, pid: int) -> bool:
        try:
            return uid == procfs.read_uids(pid, self._proc)[0]
        except (OSError, ValueError):  # it ended meanwhile
            return False

    def remove_ancestry(self, caller: int | None) -> None:
        """Remove the reservations of a process and its ancestors."""
        seen: set[int] = set()
        while caller and caller not in seen:
            seen.add(caller)
            self._files.pop(caller, None)
            process = self._living(caller)
            caller = process.ppid if process else None

    def reserved(self, holders: Collection[int]) -> list[Reservation]:
        """Return each outer reservation, merged with the reservations inside it."""
        nearest: dict[int, int] = {0: 0}
        within = {pid: self._nearest(self._parent(pid), nearest) for pid in self._files}
        inside: defaultdict[int, list[int]] = defaultdict(list)
        for pid, outer in within.items():
            inside[outer].append(pid)
        holding: defaultdict[int, list[int]] = defaultdict(list)
        for holder in holders:
            holding[self._nearest(holder, nearest)].append(holder)
        return [self._joined(pid, inside, holding) for pid in inside[0]]

    def _parent(self, pid: int) -> int:
        process = self._living(pid)
        return process.ppid if process else 0

    def _nearest(self, pid: int, known: dict[int, int]) -> int:
        """Return the reservation that a process belongs to: its own, or its nearest ancestor's; 0 for none."""
        passed = []
        while pid not in known:
            passed.append(pid)
            known[pid] = pid if pid in self._files else 0  # 0 for now: so a circle of numbers given away anew ends
            pid = pid if pid in self._files else self._parent(pid)
        for one in passed:
            known[one] = known[pid]
        return known[pid]

    def _joined(self, pid: int, inside: Mapping[int, list[int]], holding: Mapping[int, list[int]]) -> Reservation:
        """Merge a reservation with those inside it: they share its memory."""
        order = [pid]
        for one in order:  # it grows: the outer ones come before those within them
            order += inside.get(one, ())
        needs = {one: dict(self._files[one].gpus) for one in order}
        for one in reversed(order):
            sums: Counter[str] = Counter()
            for inner in inside.get(one, ()):
                sums.update(needs[inner])
            for gpu, amount in sums.items():
                if gpu in needs[one] or len(needs[one]) < _MOST_GPUS:
                    needs[one][gpu] = max(needs[one].get(gpu, 0), amount)
        return Reservation(
            pids=frozenset(holder for one in order for holder in holding.get(one, ())),
            uid=self._files[pid].uid,
            gpus=needs[pid],
            made=max(self._files[one].made for one in order),
        )

    def words(self, patience: float) -> list[str]:
        lines = [
            f"uid {uid} has {count} reservations; {self._each} of them count"
            for uid, count in sorted(self._count.items())
            if count > self._each
        ]
        if self._late:
            lines.append(f"reservations take more than {patience:g} s to read; those that are left do not count")
        return lines


def _sweep(folder: int, names: Iterable[str]) -> None:
    """Remove our own files whose process has ended."""
    for name in names:
        with contextlib.suppress(OSError):  # somebody else swept it
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid():
                os.unlink(name, dir_fd=folder)


# ---------------------------------------------------------------------------------------------------------------
# For the stream


class Reservations:
    """Reservations for a stream of snapshots: reads them again after a change, and every few seconds."""

    def __init__(
        self,
        folders: Sequence[Place],
        *,
        proc: Path = procfs.PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders, self._proc, self._clock = tuple(folders), proc, clock
        self._last: list[Reservation] = []
        self._state: object = None
        self._due = self._rest = float("-inf")

    def read(self, holders: Collection[int]) -> list[Reservation]:
        """Return the reservations, at most some seconds old; `holders` as in `read`."""
        now = self._clock()
        state = (frozenset(holders), *(_stamp(place) for place in self._folders))
        if now >= self._rest and (state != self._state or now >= self._due):
            found = peek(self._folders, holders, proc=self._proc, sweep=False, patience=_STREAM_PATIENCE)
            self._last = found.reserved
            end = self._clock()
            self._state, self._due, self._rest = state, end + _EVERY, end + _PART * (end - now)
        return self._last


def _stamp(place: Place) -> int:
    """Return the time at which a file was last added to or removed from a folder; 0 where the folder is missing."""
    try:
        return place.path.stat().st_mtime_ns
    except OSError:
        return 0
