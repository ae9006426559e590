"""What the kernel says about one process, read from /proc without psutil.

Every function takes the root of the tree, so that a test can hand in a fixture. A process that has gone raises
`FileNotFoundError` or `ProcessLookupError` (`GONE`), whichever the kernel chose; text that is not what proc(5)
promises raises `ValueError`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")

GONE = (FileNotFoundError, ProcessLookupError)
"""A file of a dead process is missing when opened and ESRCH when read."""

PF_KTHREAD = 0x00200000
"""The flag of a kernel thread in field 9 of /proc/PID/stat (include/linux/sched.h)."""

DEAD = frozenset("ZXx")
"""States of a thread that runs no more: zombie, dead."""

STOPPED = frozenset("Tt")
"""States of a thread that is stopped by job control or by a debugger."""

UNINTERRUPTIBLE = "D"

_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO, a constant of the kernel (include/linux/proc_ns.h)."""

_CHUNK = 64 << 10
"""Bytes read at once: most files of /proc have fewer, and a buffer of this size costs nothing to get."""

_LARGEST = 16 << 20
"""Bytes of the largest file that is read whole: /proc/PID/maps with vm.max_map_count lines of long names."""

_OWNER = re.compile(rb"^Uid:\s+(\d+).*\nGid:\s+(\d+).*(?:\n(?:(?!Groups:).*\n){0,8}Groups:([\d \t]*))?", re.MULTILINE)

_ANCESTORS_MAX = 256
"""A bound for a tree that changes while it is read; real chains are some ten long."""

_DESCENDANTS_MAX = 4096
"""A bound against a fork bomb; a job with a loader for each of its cores has some hundred."""


class Stat(NamedTuple):
    """What we take of /proc/PID/stat: times in clock ticks (`start_ticks` since boot), `rss` in pages."""

    comm: bytes
    state: str
    ppid: int
    tty: int
    flags: int
    used: int
    """Time on the CPU, in the program and in the kernel for it."""
    start_ticks: int
    rss: int
    environ_end: int
    """Address of its environment's end; 0 where it has none (it has ended, it is in the middle of execve(2), it is a
    thread of the kernel) or where that is not ours to know."""

    @property
    def kernel_thread(self) -> bool:
        """Whether this is a thread of the kernel, which no signal ends."""
        return bool(self.flags & PF_KTHREAD)


def parse_stat(raw: bytes) -> Stat:
    """Read one /proc/PID/stat line, whose second field may itself hold spaces, parentheses and newlines.

    Raises `ValueError` for anything that is not such a line. Source: proc_pid_stat(5).
    """
    opened, closed = raw.find(b"("), raw.rfind(b")")
    if opened < 0 or closed < opened:
        raise ValueError("/proc/PID/stat: no command in parentheses")
    fields = raw[closed + 1 :].split()
    if len(fields) < 22:
        raise ValueError(f"/proc/PID/stat: {len(fields)} fields after the command, at least 22 expected")
    return Stat(
        comm=raw[opened + 1 : closed],
        state=fields[0].decode("ascii", "replace"),
        ppid=int(fields[1]),
        tty=int(fields[4]),
        flags=int(fields[6]),
        used=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
        rss=int(fields[21]),
        environ_end=int(fields[48]) if len(fields) > 48 else 0,
    )


def read_file(pid: int, name: str, proc: Path = PROC, limit: int = _LARGEST) -> bytes:
    """Read the first `limit` bytes of a file of a process; raises `OSError` (see `GONE`)."""
    descriptor = os.open(f"{proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)  # a Path would take twice as long
    parts = []
    try:
        while limit > 0 and (part := os.read(descriptor, min(limit, _CHUNK))):
            parts.append(part)
            limit -= len(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def read_stat(pid: int, proc: Path = PROC) -> Stat:
    """Read /proc/PID/stat; raises `OSError` (see `GONE`) or `ValueError`."""
    return parse_stat(read_file(pid, "stat", proc))


def read_uids(pid: int, proc: Path = PROC) -> tuple[int, int, int]:
    """The real, effective and saved uid of a process, from the `Uid:` line of /proc/PID/status.

    Raises `OSError` (see `GONE`) or `ValueError`.
    """
    for line in read_file(pid, "status", proc).splitlines():
        if line.startswith(b"Uid:"):
            real, effective, saved = line.split()[1:4]
            return int(real), int(effective), int(saved)
    raise ValueError("/proc/PID/status: no Uid line")


class Owner(NamedTuple):
    """Who a process belongs to: its real uid and gid, and its supplementary groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def read_owner(pid: int, proc: Path = PROC) -> Owner:
    """Read whose a process is from /proc/PID/status; raises `OSError` (see `GONE`) or `ValueError`."""
    found = _OWNER.search(read_file(pid, "status", proc))
    if found is None:
        raise ValueError("/proc/PID/status: no Uid or no Gid line")
    uid, gid, groups = found.groups()
    return Owner(int(uid), int(gid), tuple(map(int, (groups or b"").split())))


def thread_states(pid: int, proc: Path = PROC) -> tuple[str, ...]:
    """The state letter of every thread of a process; empty when the process has gone.

    Raises `OSError` for other failures, `ValueError` for text that is not a stat line.
    """
    states = []
    try:
        threads = sorted((proc / str(pid) / "task").iterdir())
    except GONE:
        return ()
    for thread in threads:
        try:
            states.append(parse_stat((thread / "stat").read_bytes()).state)
        except GONE:
            continue  # this thread ended while the others were read
    return tuple(states)


def ended(pid: int, proc: Path = PROC) -> bool:
    """Whether every thread of a process has ended, reaped or not.

    The state of the process alone does not tell: it is zombie as soon as the main thread has ended, while others
    may go on and hold their memory. Raises as `thread_states` does.
    """
    return all(state in DEAD for state in thread_states(pid, proc))


def ancestors(pid: int, proc: Path = PROC) -> tuple[int, ...]:
    """The PIDs above a process, its parent first; as far as /proc shows them."""
    chain: list[int] = []
    while len(chain) < _ANCESTORS_MAX:
        try:
            pid = read_stat(pid, proc).ppid
        except (OSError, ValueError):
            break  # hidden or gone: what lies above it cannot be known from here
        if pid <= 0 or pid in chain:
            break
        chain.append(pid)
    return tuple(chain)


def descendants(pid: int, proc: Path = PROC) -> dict[int, int]:
    """The processes below a process and their start ticks; empty where the kernel has no list of children.

    Source: /proc/PID/task/TID/children, which costs one small file a thread instead of a walk over all processes.
    """
    found: dict[int, int] = {}
    above = [pid]
    while above and len(found) < _DESCENDANTS_MAX:
        for child in children(above.pop(), proc):
            if child in found or child == pid:
                continue
            try:
                found[child] = read_stat(child, proc).start_ticks
            except (OSError, ValueError):
                continue  # it ended meanwhile: nothing of it is left to find
            above.append(child)
    return found


def children(pid: int, proc: Path = PROC) -> list[int]:
    """The processes that a process has started; empty where the kernel has no list of them."""
    found: list[int] = []
    try:
        with os.scandir(f"{proc}/{pid}/task") as threads:
            for thread in threads:
                found += map(int, read_file(pid, f"task/{thread.name}/children", proc).split())
    except OSError:
        return found  # gone, or a kernel without CONFIG_PROC_CHILDREN
    return found


def open_files(pid: int, proc: Path = PROC) -> Iterator[str]:
    """What each open file of a process is called, from the links in /proc/PID/fd.

    Where the main thread has ended but others live on, the files are theirs and are read from each thread.
    Raises `OSError` (`PermissionError` where the folder is closed to us).
    """
    process = proc / str(pid)
    folders = [process / "fd"]
    if read_stat(pid, proc).state in DEAD:
        folders = [thread / "fd" for thread in sorted((process / "task").iterdir())]
    for folder in folders:
        with os.scandir(folder) as links:
            for link in links:
                try:
                    yield str(Path(link).readlink())
                except GONE:
                    continue  # closed while the folder was read


def in_pid_namespace(proc: Path = PROC) -> bool:
    """Whether this program's PIDs are not the machine's own."""
    try:
        return str((proc / "self" / "ns" / "pid").readlink()) != _INITIAL_PID_NAMESPACE
    except OSError:  # no evidence of a namespace
        return False
