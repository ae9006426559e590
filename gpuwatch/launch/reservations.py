"""Reservations of runs: a folder that is locked while GPUs are chosen, with a file for each run.

There are two folders: the user's own, and one that all users of the machine share. The lock is flock(2) on the folder
itself, so that there is no lock file to plant, to own or to remove. A reservation is advice to `gpuwatch pick` and
`run`, and grants nothing. Whoever made the shared folder first can spoil it, as they could the GPU itself.
`gpuwatch.sampler.reservations` reads the files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from gpuwatch import files, procfs
from gpuwatch.sampler.reservations import File, Folder, Place, file_name, open_folder
from gpuwatch.text import clean

PATIENCE = 10.0
"""Seconds to wait for a lock; a choice takes milliseconds, so that a longer holder is not choosing."""

_RETRY = 0.02

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def locked(
    folders: Sequence[Place],
    warn: Callable[[str], None],
    *,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[Folder]]:
    """Open and lock the folders in their order; `warn` gets a line for each folder that cannot be used."""
    opened: list[Folder] = []
    try:
        for place in folders:
            try:
                folder = Folder(place, open_folder(place))
                opened.append(folder)
                if not _lock(folder.fd, clock() + patience, clock):
                    warn(f"somebody has locked {place.path} for {patience:.0f} s; going on without waiting")
            except OSError as error:
                warn(_sentence(place, error))
        yield opened
    finally:
        for folder in opened:
            os.close(folder.fd)  # which ends the lock too


def _sentence(place: Place, error: OSError) -> str:
    whose = "no lock is shared with other users" if place.shared else "you have no lock of your own"
    linked = error.errno in (errno.ELOOP, errno.ENOTDIR)
    reason = "it is a link, or no folder" if linked else error.strerror or str(error)
    return f"{whose}: {clean(str(place.path))}: {reason}"


def _lock(fd: int, until: float, clock: Callable[[], float]) -> bool:
    """Lock a folder; return False where another process still has the lock at `until`."""
    while not files.try_lock(fd):
        if clock() >= until:
            return False
        time.sleep(_RETRY)
    return True


# ---------------------------------------------------------------------------------------------------------------
# Reservations


def reserve(
    folders: Sequence[Folder], gpus: Mapping[str, int], warn: Callable[[str], None], *, proc: Path = procfs.PROC
) -> None:
    """Reserve bytes by GPU for this process and the program it becomes, in the shared folder where possible."""
    pid = os.getpid()
    file = File(pid=pid, start=procfs.read_stat(pid, proc).start_ticks, gpus=dict(gpus))
    name = file_name(file.pid, file.start)
    for folder in sorted(folders, key=lambda folder: not folder.place.shared):
        try:
            _write(folder.fd, name, msgspec.json.encode(file))
        except OSError as error:
            warn(f"nothing is reserved in {clean(str(folder.place.path))}: {error.strerror}")
        else:
            return


def _write(folder: int, name: str, content: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)  # our own, of a run within this run
    file = os.open(name, _WRITE, 0o644, dir_fd=folder)
    try:
        os.fchmod(file, 0o644)  # others are to read it, whatever the umask
        os.write(file, content)
    finally:
        os.close(file)


def release(folders: Sequence[Place], *, proc: Path = procfs.PROC) -> None:
    """Remove the reservation of this process, because its program could not be started."""
    pid = os.getpid()
    name = file_name(pid, procfs.read_stat(pid, proc).start_ticks)
    for place in folders:
        with contextlib.suppress(OSError):  # it is in one of them at most, and dies with us in any case
            (place.path / name).unlink()
