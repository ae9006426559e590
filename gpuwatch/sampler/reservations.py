"""Reservations of `gpuwatch run`: a folder that is locked while GPUs are chosen, with a file for each run.

All users of a machine share the folder; where it cannot be used, the runs of one user share theirs. A reservation is an
agreement and grants nothing: it counts while the process that its file names lives and belongs to the file's owner. The
lock is flock(2) on the folder itself, so that there is no lock file to own or to remove.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from gpuwatch.base import files, procfs
from gpuwatch.base.text import clean
from gpuwatch.model.shares import Reservation

SHARED = Path("/run/lock/gpuwatch")
"""Folder that all users of the machine share."""
PATIENCE = 10.0
"""Seconds to wait for the lock; a choice takes milliseconds, so that a longer holder is not choosing."""
_RETRY = 0.02
_EVERY = 2.0
"""Seconds after which the stream's reservations are read again."""
MOST = 512
"""Files of one owner that are read, at most; a busy machine has some tens."""
_MOST_NAMES = 1 << 16
"""Files of a folder whose owners are looked at, at most."""
_SWEEP = 60.0
"""Seconds after which a stream removes the files of ended runs: its user's own, as root everybody's."""
_LARGEST = 1 << 14
"""Bytes of a file, at most; a file with 16 GPUs takes 1 kB."""
_NAME = re.compile(r"([0-9]{1,10})-([0-9]{1,20})\.json")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LACKING = ("not locked against other users", "not locked against your other runs")


class _File(msgspec.Struct):
    """Contents of one file, which has `pid` and `start` too, as its name."""

    gpus: Annotated[dict[str, Annotated[int, Meta(ge=0, le=1 << 50)]], Meta(max_length=64)]
    """Bytes reserved, by the UUID of the GPU."""


def reservation_folders(shared: Path = SHARED) -> tuple[Path, Path]:
    """Return the folder of all users, and that of this user."""
    return shared, files.runtime_folder()


# ---------------------------------------------------------------------------------------------------------------
# Reading


class _Entry(NamedTuple):
    """Valid file of a living process."""

    uid: int
    made: float
    gpus: Mapping[str, int]


def _read_folder(
    path: Path, proc: Path, *, sweep: bool, warn: Callable[[str], None] | None
) -> Iterator[tuple[int, _Entry]]:
    """Yield the files of living processes, by PID; raises OSError. `warn` gets a line about an owner of too many."""
    count: Counter[int] = Counter()
    with contextlib.ExitStack() as opened:
        folder = os.open(path, _FOLDER)
        opened.callback(os.close, folder)
        with os.scandir(folder) as entries:
            names = [_NAME.fullmatch(entry.name) for entry in islice(entries, _MOST_NAMES)]
        for name in filter(None, names):
            with contextlib.suppress(OSError, ValueError, RecursionError):  # it ended meanwhile, or is another file
                pid = int(name[1])
                maker = os.stat(name[0], dir_fd=folder, follow_symlinks=False).st_uid
                count[maker] += 1
                if count[maker] > MOST:
                    if warn is not None and count[maker] == MOST + 1:
                        warn(f"uid {maker} has more than {MOST} files in {clean(str(path))}; the rest is not read")
                    continue
                if not procfs.is_living(pid, int(name[2]), proc):
                    if sweep and os.geteuid() in (0, maker):
                        os.unlink(name[0], dir_fd=folder)
                    continue
                owner = procfs.read_uids(pid, proc)[0]
                with open(files.open_ordinary(name[0], folder=folder, links=False, owner=owner), "rb") as file:
                    gpus = msgspec.json.decode(file.read(_LARGEST), type=_File).gpus
                    # The owner can set the time of the contents (utime(2)), and not this one.
                    yield pid, _Entry(owner, os.fstat(file.fileno()).st_ctime, gpus)


def read_reservations(
    folders: Sequence[Path],
    holders: Collection[int],
    *,
    caller: int = 0,
    sweep: bool = False,
    warn: Callable[[str], None] | None = None,
    proc: Path = procfs.PROC,
) -> list[Reservation]:
    """Return the outer reservations: a run inside another run uses the memory that the outer run reserved.

    `holders` are the PIDs that hold a GPU: each is assigned to the reservation that it belongs to. Reservations of
    `caller`, or of a run that started it, are left out. With `sweep` our files whose process has ended are removed, and
    by root all such files. Processes that /proc hides from us (hidepid) count as ended.
    """
    entries: dict[int, _Entry] = {}
    for path in folders:
        with contextlib.suppress(OSError):  # nobody has reserved anything there
            entries.update(_read_folder(path, proc, sweep=sweep, warn=warn))
    if not entries:  # as most of the time: no ancestors need to be read
        return []
    parents: dict[int, int] = {}

    def lineage(pid: int) -> dict[int, None]:
        """Return a process and its ancestors, in order."""
        found: dict[int, None] = {}
        while pid and pid not in found:  # reused PIDs may make a circle
            found[pid] = None
            if pid not in parents:
                with contextlib.suppress(OSError, ValueError):
                    parents[pid] = procfs.read_stat(pid, proc).ppid
            pid = parents.get(pid, 0)
        return found

    for pid in lineage(caller):
        entries.pop(pid, None)
    runs: defaultdict[int, list[int]] = defaultdict(list)
    holding: defaultdict[int, list[int]] = defaultdict(list)
    for pids, found in ((entries, runs), (holders, holding)):
        for pid in pids:
            found[next((one for one in reversed(lineage(pid)) if one in entries), 0)].append(pid)
    reserved = []
    for outer, inside in runs.items():
        gpus: Counter[str] = Counter()
        for pid in inside:
            gpus |= Counter(entries[pid].gpus)  # the larger of both
        made = max(entries[pid].made for pid in inside)
        reserved.append(Reservation(frozenset(holding[outer]), entries[outer].uid, dict(gpus), made))
    return reserved


class ReservationReader:
    """Reservations for a stream of snapshots: reads them again where the holders changed, and every few seconds."""

    def __init__(
        self, folders: Sequence[Path], *, proc: Path = procfs.PROC, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folders, self._proc, self._clock = folders, proc, clock
        self._last: list[Reservation] = []
        self._holders: frozenset[int] | None = None
        self._due = self._sweep = 0.0

    def read(self, holders: Collection[int]) -> list[Reservation]:
        """Return the reservations, at most some seconds old; `holders` as in `read_reservations`."""
        now = self._clock()
        if now >= self._due or holders != self._holders:
            sweep, self._sweep = now >= self._sweep, now + _SWEEP if now >= self._sweep else self._sweep
            self._last = read_reservations(self._folders, holders, sweep=sweep, proc=self._proc)
            self._holders, self._due = frozenset(holders), now + _EVERY
        return self._last


# ---------------------------------------------------------------------------------------------------------------
# Writing


@contextlib.contextmanager
def locked_folder(
    folders: Sequence[Path],
    warn: Callable[[str], None],
    *,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[int | None]:
    """Open and lock the folder of all users, else that of this user; `warn` gets a line where one cannot be used.

    The value is its descriptor; None where there is no folder.
    """
    with contextlib.ExitStack() as opened:
        folder, until = None, clock() + patience
        for path, opener, lacking in zip(folders, (_open_shared, files.open_folder), _LACKING, strict=True):
            try:
                folder = opener(path)
                opened.callback(os.close, folder)  # which ends the lock too
                while not files.try_lock(folder):
                    if clock() >= until:
                        warn(f"{path} has been locked for {patience:.0f} s; continuing without the lock")
                        break
                    time.sleep(_RETRY)
                break
            except OSError as error:
                linked = error.errno in (errno.ELOOP, errno.ENOTDIR)
                why = "it is a link or not a folder" if linked else error.strerror or str(error)
                warn(f"{lacking}: {clean(str(path))}: {why}")
        yield folder


def _open_shared(path: Path) -> int:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    folder = os.open(path, _FOLDER)
    facts = os.fstat(folder)
    if facts.st_uid == os.geteuid():
        os.fchmod(folder, 0o1777)  # mkdir(2) applies the umask; this sets the full mode
    elif (mode := stat.S_IMODE(facts.st_mode)) != 0o1777:
        os.close(folder)
        raise files.UnsafePathError(f"its mode is {mode:o}, not 1777")
    return folder


def reserve(folder: int, gpus: Mapping[str, int], warn: Callable[[str], None]) -> bool:
    """Reserve bytes by GPU for this process and the program it becomes, also where it had a reservation.

    Returns False, and `warn` gets a line, where nothing could be written.
    """
    pid, start = os.getpid(), procfs.read_stat(os.getpid()).start_ticks
    content = msgspec.json.encode({"pid": pid, "start": start, "gpus": gpus})
    try:
        files.replace_file(folder, f"{pid}-{start}.json", content, durable=False, mode=0o644)
    except OSError as error:
        warn(f"nothing is reserved: {error.strerror}")
        return False
    return True
