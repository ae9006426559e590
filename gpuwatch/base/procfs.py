"""Reader of one process's facts in /proc, within bounds.

Every function takes the root of /proc, so that a test can pass a fixture. For a process that has ended the kernel gives
`FileNotFoundError` or `ProcessLookupError` (`GONE`); malformed text raises `ValueError`.
"""

from __future__ import annotations

import binascii
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from gpuwatch.base import programs
from gpuwatch.base.text import Clean, mask

PROC = Path("/proc")

GONE = (FileNotFoundError, ProcessLookupError)
"""Errors for a process that has ended: its files are missing when opened, and ESRCH when read."""

PF_KTHREAD = 0x00200000
"""The flag of a kernel thread in field 9 of /proc/PID/stat (include/linux/sched.h)."""

PF_EXITING = 0x00000004
"""The flag of a thread that is ending (include/linux/sched.h)."""

DEAD = frozenset("ZXx")
"""States of a thread that has ended: zombie, dead."""

STOPPED = frozenset("Tt")
"""States of a thread that is stopped by job control or by a debugger."""

UNINTERRUPTIBLE = "D"

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "disk sleep",
    "T": "stopped",
    "t": "tracing stop",
    "Z": "zombie",
    "X": "dead",
    "x": "dead",
    "I": "idle",
    "P": "parked",
}
"""Names of the states of a thread. Source: State in proc_pid_stat(5)."""

_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO, a constant of the kernel (include/linux/proc_ns.h)."""

_CHUNK = 64 << 10
"""Bytes per read: most files of /proc have fewer."""

LONGEST = 64 << 10
"""Bytes that are read of a process's file by default. Its owner controls the content: PR_SET_MM_MAP(2const), which
needs no privileges, can set a command line or an environment of hundreds of MiB (prctl_set_mm in kernel/sys.c)."""

_LONGEST_STATUS = 1 << 20
"""Bytes of /proc/PID/status, read completely: 65,536 groups (NGROUPS_MAX, limits.h) of ten digits are 720 kB."""

_LONGEST_PATH = 4096
"""Bytes of the command line that are read to find the name of its program: PATH_MAX (limits.h)."""

_LONGEST_NAME = 64
"""Characters of a name that is completed from the command line, at most."""

_NUMBERS = re.compile(rb"^NSpid:([\d \t]+)", re.MULTILINE)
_UIDS = re.compile(rb"^Uid:\t(\d+)\t(\d+)\t(\d+)", re.MULTILINE)

TICKS = os.sysconf("SC_CLK_TCK")
"""Clock ticks per second, the unit of times in /proc."""

_AT_ONCE = 10 * TICKS
"""Ticks within which the init of a container starts its program; other children were adopted."""

THREADS_MAX = 64
"""Threads of a process that are examined, at most."""

_STARTERS_MAX = 1024
"""Threads of a process whose children are read, at most; a training has some hundred threads."""

_PAGE = os.sysconf("SC_PAGESIZE")

_TOP = _PAGE + 8192
"""Bytes from the end of the environment to the top of the memory without address randomization, at most: a guard page,
and the path of the program (PATH_MAX). With it they are GiBs apart: one in a million is within these bytes."""

_LONGEST_STAT = 4096
"""Bytes of /proc/PID/stat, at most: a name of 64 bytes, and 51 numbers of up to 20 digits."""

_ANCESTORS_MAX = 256
"""Ancestors of a process, at most, since the tree may change while it is read; real chains have about ten."""

DESCENDANTS_MAX = 4096
"""Descendants of a process, at most, as a protection from fork bombs; a job may have some hundred."""


class Stat(NamedTuple):
    """Fields of /proc/PID/stat: times in clock ticks, `start_ticks` since boot."""

    comm: bytes
    state: str
    ppid: int
    group: int
    """Number of the process group; the kernel does not reuse it while any member lives."""
    session: int
    """PID of the session's leader."""
    tty: int
    flags: int
    start_ticks: int
    environ_end: int
    """End address of the environment; 0 where there is none (the process has ended, is in execve(2), or is a kernel
    thread), and where it is not readable."""
    start_code: int = 0
    """Address of the program; 1 where it is not readable, 0 where there is none."""
    start_stack: int = 0
    """Address of the start of the stack; 0 as for `environ_end`."""
    cpu: int = 0
    """CPU time, in the program and in the kernel for it."""
    children_cpu: int = 0
    """CPU time of the children that it has waited for, and of their children."""

    @property
    def program(self) -> str:
        """Mark of the running program: it changes with each execve(2), and not with the title.

        The kernel puts the stack of each program, and the code of most, at a random address; a title is written over
        the memory of the arguments, which moves nothing (seen with setproctitle 1.3.8). The mark is a sum of 32 bits,
        since the addresses themselves are secret.

        Empty where the addresses are not readable or not random (under a debugger, after `setarch -R`, with
        kernel.randomize_va_space=0): the environment then ends at the very top of the memory.
        Source: load_elf_binary in fs/binfmt_elf.c; startcode, startstack and env_end in proc_pid_stat(5).
        """
        top = 1 << self.environ_end.bit_length()
        if not (self.start_stack and self.environ_end) or top - self.environ_end < _TOP:
            return ""
        return f"{binascii.crc32(b'%d %d' % (self.start_code, self.start_stack)):08x}"

    @property
    def is_ending(self) -> bool:
        """Whether the first thread has ended or is ending: then it has no command line, environment and addresses."""
        return self.state in DEAD or bool(self.flags & PF_EXITING)

    @property
    def kernel_thread(self) -> bool:
        """Whether it is a kernel thread, which no signal ends."""
        return bool(self.flags & PF_KTHREAD)


def parse_stat(raw: bytes) -> Stat:
    """Parse a line of /proc/PID/stat; its second field may have spaces, parentheses and newlines.

    Raises `ValueError` for another text. Source: proc_pid_stat(5).
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
        group=int(fields[2]),
        session=int(fields[3]),
        tty=int(fields[4]),
        flags=int(fields[6]),
        start_ticks=int(fields[19]),
        environ_end=int(fields[48]) if len(fields) > 48 else 0,
        start_code=int(fields[23]) if len(fields) > 23 else 0,
        start_stack=int(fields[25]) if len(fields) > 25 else 0,
        cpu=int(fields[11]) + int(fields[12]),
        children_cpu=int(fields[13]) + int(fields[14]),
    )


def is_leader_alive(pid: int, stat: Stat, proc: Path = PROC) -> bool | None:
    """Return whether the leader of a process's session still runs; None where that is not known.

    No other process can have its PID: the kernel does not reuse it while the session exists (alloc_pid). With
    hidepid the leader may only be hidden: the caller has to check how /proc is mounted.
    """
    if stat.session <= 0:  # hidden, or in a PID namespace that is not below ours
        return None
    if stat.session == pid:
        return stat.state not in DEAD
    return is_alive(stat.session, proc)


def is_adopted(pid: int, stat: Stat, proc: Path = PROC) -> bool:
    """Return whether the process that started another has ended, so that its parent has only adopted it.

    Init, `systemd --user` and the first process of a container adopt. They also start services, which count as adopted
    here: only the cgroup shows a service. Under any other parent the session decides: a process starts in the session
    of its parent, and can leave it only for one of its own. So a process in a third session, whose leader has ended,
    was started by another process. Source: setsid(2), PR_SET_CHILD_SUBREAPER(2const).
    """
    if stat.ppid <= 0:  # it was put into its PID namespace from outside
        return False
    parent = find_stat(stat.ppid, proc)
    if parent is None:  # hidden from us, or just ended
        return stat.ppid == 1
    name = parent.comm.decode("ascii", "replace")
    if programs.is_init(name) or name in programs.IDLE_INITS:
        return True
    stranger = stat.session not in (pid, parent.session)
    if name in programs.CONTAINER_INITS:
        return stranger or stat.start_ticks - parent.start_ticks > _AT_ONCE
    return stranger and (stat.ppid == 1 or is_leader_alive(pid, stat, proc) is False)


def read_own_pid(pid: int, proc: Path = PROC) -> tuple[int, bool]:
    """Return the PID of a process in its own PID namespace, and whether that is our namespace, too.

    Source: `NSpid:` in proc_pid_status(5): its number in each namespace, the innermost last; kernels before 4.1 have
    no such line. Raises `OSError` (see `GONE`).
    """
    found = _NUMBERS.search(read_status(pid, proc))
    numbers = found[1].split() if found else []
    return (int(numbers[-1]), len(numbers) == 1) if numbers else (pid, True)


def read_file(pid: int, name: str, proc: Path = PROC, limit: int = LONGEST) -> bytes:
    """Read the first `limit` bytes of a file of a process; raises `OSError` (see `GONE`)."""
    return b"".join(read_chunks(pid, name, proc, limit))


def read_chunks(pid: int, name: str, proc: Path = PROC, limit: int = LONGEST) -> Iterator[bytes]:
    """Yield the first `limit` bytes of a file of a process piece by piece; raises `OSError` (see `GONE`)."""
    descriptor = os.open(f"{proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)  # a Path would take twice as long
    try:
        while limit > 0 and (part := os.read(descriptor, min(limit, _CHUNK))):
            yield part
            limit -= len(part)
    finally:
        os.close(descriptor)


class Arguments(NamedTuple):
    """Command line of a process, as far as it was read."""

    words: tuple[str, ...]
    """Its arguments without the empty ones at the end; undecodable bytes are surrogates. A title is one word."""
    cut: bool
    """Whether the command line may be longer: the rest was not read, and the last word may be incomplete."""


def read_arguments(pid: int, proc: Path = PROC, limit: int = LONGEST) -> Arguments:
    """Read the first `limit` bytes of a command line; raises `OSError` (see `GONE`).

    Empty for a kernel thread, a zombie, and during execve(2). Source: proc_pid_cmdline(5).
    """
    raw = read_file(pid, "cmdline", proc, limit)
    written = raw.rstrip(b"\0")
    words = written.decode("utf-8", "surrogateescape").split("\0") if written else []
    return Arguments(tuple(words), len(raw) == limit)


def format_name(comm: bytes) -> Clean:
    """Return the kernel's name of a process for display, with its secrets masked.

    A program may set a title as its name. The kernel cuts it after 15 bytes: the last word of such a title is left out,
    since a secret that is cut may not be known.
    """
    cut = len(comm) >= programs.COMM_MAX and b" " in comm
    return mask(comm.rpartition(b" ")[0] if cut else comm, _LONGEST_NAME)


def read_name(pid: int, stat: Stat, proc: Path = PROC) -> Clean:
    """Return the name of a process for display; never raises.

    Where the kernel has cut it, it is completed if the program in the command line begins with it.
    """
    if len(stat.comm) < programs.COMM_MAX:
        return format_name(stat.comm)
    try:
        first = read_file(pid, "cmdline", proc, _LONGEST_PATH).partition(b"\0")[0]
    except OSError:  # it has just ended
        return format_name(stat.comm)
    program = first.partition(b" ")[0].rpartition(b"/")[2]  # of a title only the first word
    return mask(program, _LONGEST_NAME) if program.startswith(stat.comm) else format_name(stat.comm)


def read_stat(pid: int, proc: Path = PROC) -> Stat:
    """Read /proc/PID/stat; raises `OSError` (see `GONE`) or `ValueError`."""
    return parse_stat(read_line(pid, "stat", proc))


def read_line(pid: int, name: str, proc: Path = PROC) -> bytes:
    """Read `stat` or `statm` of a process, which the kernel hands out whole (single_open); raises `OSError`."""
    descriptor = os.open(f"{proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _LONGEST_STAT)
    finally:
        os.close(descriptor)


def read_rss(pid: int, proc: Path = PROC) -> int:
    """Return the resident memory of a process in bytes; 0 where its first thread has ended.

    Newer kernels sum it up for `statm`, while the field of `stat` may be off by many pages. Raises `OSError` (see
    `GONE`) or `ValueError`.
    """
    fields = read_line(pid, "statm", proc).split(maxsplit=2)
    if len(fields) < 2:
        raise ValueError("a file of /proc lacks a field: resident in statm")
    return int(fields[1]) * _PAGE


def read_uids(pid: int, proc: Path = PROC) -> tuple[int, int, int]:
    """Return the real, effective and saved uid of a process; raises `OSError` (see `GONE`) or `ValueError`."""
    found = _UIDS.search(read_status(pid, proc))
    if found is None:
        raise ValueError("a file of /proc lacks a field: Uid in status")
    return int(found[1]), int(found[2]), int(found[3])


def find_stat(pid: int, proc: Path = PROC, start_ticks: int | None = None) -> Stat | None:
    """Return the stat line of a process; None where it has ended, is hidden, or has not started at `start_ticks`."""
    try:
        stat = read_stat(pid, proc)
    except (OSError, ValueError):
        return None
    return stat if start_ticks in (None, stat.start_ticks) else None


def is_alive(pid: int, proc: Path = PROC) -> bool | None:
    """Return whether a process exists and its first thread has not ended; None where that cannot be read."""
    try:
        return read_stat(pid, proc).state not in DEAD
    except GONE:
        return False
    except (OSError, ValueError):
        return None


def read_status(pid: int, proc: Path = PROC) -> bytes:
    """Read all of /proc/PID/status; raises `OSError` (see `GONE`)."""
    return read_file(pid, "status", proc, _LONGEST_STATUS)


def read_threads(pid: int, proc: Path = PROC) -> Iterator[tuple[int, Stat]]:
    """Yield the number and the stat of each thread of a process; none where the process has ended.

    Raises `OSError` for other failures, `ValueError` for malformed text.
    """
    with suppress(*GONE), os.scandir(f"{proc}/{pid}/task") as threads:
        for thread in threads:
            with suppress(*GONE):  # this thread ended while the others were read
                yield int(thread.name), read_thread(pid, int(thread.name), proc)


def read_thread(pid: int, thread: int, proc: Path = PROC) -> Stat:
    """Read the stat of one thread of a process; raises `OSError` (see `GONE`) or `ValueError`."""
    return parse_stat(read_file(pid, f"task/{thread}/stat", proc))


def find_living_thread(pid: int, proc: Path = PROC) -> int | None:
    """Return the number of a thread that has not ended; None where all have, reaped or not.

    At most `THREADS_MAX` ended threads are looked at, and the next thread counts as living: the kernel keeps ended
    ones only for a debugger, and the first one (exit_notify in kernel/exit.c). Raises as `read_threads` does.
    """
    for count, (thread, stat) in enumerate(read_threads(pid, proc)):
        if stat.state not in DEAD or count == THREADS_MAX:
            return thread
    return None


def read_living_stat(pid: int, proc: Path = PROC) -> Stat | None:
    """Read /proc/PID/stat, or that of another thread where the first has ended; None where all have ended.

    The kernel hides the addresses of a first thread that has ended, though others go on. `start_ticks` is that of the
    process. Raises `OSError` (see `GONE`) or `ValueError`.
    """
    first = read_stat(pid, proc)
    threads = (stat for _, stat in islice(read_threads(pid, proc), THREADS_MAX))
    stat = next(
        (stat for stat in chain([first], threads) if stat.state not in DEAD and not stat.flags & PF_EXITING), None
    )
    return None if stat is None else stat._replace(start_ticks=first.start_ticks)


def has_ended(pid: int, proc: Path = PROC) -> bool:
    """Return whether every thread of a process has ended, reaped or not.

    The state of the process is zombie as soon as the main thread has ended, while others may go on and hold memory.
    Raises as `read_threads` does.
    """
    return find_living_thread(pid, proc) is None


def is_living(pid: int, start_ticks: int, proc: Path = PROC) -> bool:
    """Return whether a process of this start time is visible and a thread of it lives, also where that is not known."""
    try:
        stat = read_stat(pid, proc)
        return stat.start_ticks == start_ticks and not (stat.state in DEAD and has_ended(pid, proc))
    except GONE:
        return False
    except (OSError, ValueError):  # no file descriptor is left
        return True


def find_ancestors(pid: int, proc: Path = PROC) -> tuple[int, ...]:
    """Return the PIDs of the visible ancestors of a process, its parent first."""
    chain: list[int] = []
    while len(chain) < _ANCESTORS_MAX:
        stat = find_stat(pid, proc)  # the ancestors of a hidden process are not known
        if stat is None or stat.ppid <= 0 or stat.ppid in chain:
            break
        pid = stat.ppid
        chain.append(pid)
    return tuple(chain)


def find_descendants(pid: int, proc: Path = PROC) -> dict[int, int]:
    """Return the start ticks of all descendants of a process by PID; empty where the kernel has no list of children.

    Source: /proc/PID/task/TID/children, which costs one small file a thread instead of a walk over all processes.
    """
    found: dict[int, int] = {}
    above = [pid]
    while above and len(found) < DESCENDANTS_MAX:
        for child in find_children(above.pop(), proc):
            stat = None if child in found or child == pid else find_stat(child, proc)
            if stat is not None:
                found[child] = stat.start_ticks
                above.append(child)
    return found


def find_children(pid: int, proc: Path = PROC) -> list[int]:
    """Return the PIDs of the children of a process; empty where the kernel has no list of them."""
    found: list[int] = []
    with suppress(OSError), os.scandir(f"{proc}/{pid}/task") as threads:
        for thread in islice(threads, _STARTERS_MAX):
            with suppress(OSError):  # it has ended, or a kernel without CONFIG_PROC_CHILDREN
                found += read_thread_children(pid, thread.name, proc)
    return found


def read_thread_children(pid: int, thread: str | int, proc: Path) -> list[int]:
    """Return the children of one thread, from the first `LONGEST` bytes; raises `OSError`, also without such a list."""
    raw = read_file(pid, f"task/{thread}/children", proc)
    if len(raw) == LONGEST:
        raw = raw[: raw.rfind(b" ") + 1]
    return list(map(int, raw.split()))


def read_descendants_cpu(pid: int, children_cpu: int, proc: Path = PROC) -> int:
    """Return the CPU time of all descendants of a process in ticks, those that have ended included; it only ever grows.

    `children_cpu` is that of its `Stat`. Only children of first threads count: other threads rarely start programs, and
    a training has hundreds of threads.
    """
    total, above, seen = children_cpu, [pid], {pid}
    while above and len(seen) < DESCENDANTS_MAX:
        one = above.pop()
        with suppress(OSError, ValueError):  # it has ended, or a kernel without CONFIG_PROC_CHILDREN
            for child in read_thread_children(one, one, proc):
                if child not in seen:
                    seen.add(child)
                    above.append(child)
                    if stat := find_stat(child, proc):
                        total += stat.cpu + stat.children_cpu
    return total


def read_open_files(pid: int, proc: Path = PROC, stat: Stat | None = None) -> Iterator[str]:
    """Yield the name of each open file of a process, from the links in /proc/PID/fd; `stat` was read just before.

    Where the main thread has ended, another thread has the same files (CLONE_FILES). Raises `OSError`
    (`PermissionError` where the folder is not readable).
    """
    folder = f"{proc}/{pid}/fd"
    if (stat or read_stat(pid, proc)).state in DEAD and (thread := find_living_thread(pid, proc)) is not None:
        folder = f"{proc}/{pid}/task/{thread}/fd"
    with os.scandir(folder) as links:
        for link in links:
            try:
                yield os.readlink(link.path)  # noqa: PTH115 - a Path would take twice as long
            except GONE:
                continue  # closed while the folder was read


def has_gpu_open(pid: int, proc: Path = PROC, dev: str = "/dev") -> bool:
    """Return whether a process holds a GPU's device file open: /dev/nvidia… natively, /dev/dxg under WSL.

    Raises `OSError`: `PermissionError` where the process is not ours.
    """
    nvidia, dxg = f"{dev}/nvidia", f"{dev}/dxg"
    return any(name.startswith(nvidia) or name == dxg for name in read_open_files(pid, proc))


def read_pid_and_name(pid: int, proc: Path = PROC) -> tuple[int, str]:
    """Return a PID with the name of its process, for a sentence."""
    stat = find_stat(pid, proc)
    return pid, format_name(stat.comm) if stat else "unknown"


def is_in_pid_namespace(proc: Path = PROC) -> bool:
    """Return whether gpuwatch runs in a PID namespace of its own (a container)."""
    try:
        return str((proc / "self" / "ns" / "pid").readlink()) != _INITIAL_PID_NAMESPACE
    except OSError:  # no evidence of a namespace
        return False


def ignores_signal(pid: int, number: int, proc: Path = PROC) -> bool:
    """Return whether a process ignores a signal; False where that cannot be read.

    A process that a script has started with `&` ignores SIGINT: POSIX demands it, and Python does not change it.
    Source: the mask SigIgn of /proc/PID/status, proc_pid_status(5).
    """
    try:
        lines = read_status(pid, proc).splitlines()
        mask = next((int(line.split()[1], 16) for line in lines if line.startswith(b"SigIgn:")), 0)
    except (OSError, ValueError, IndexError):
        return False
    return bool(mask >> (number - 1) & 1)


def pid_namespace() -> int:
    """Return the number of our PID namespace; 0 where the kernel has none."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def boot_id() -> str:
    """Return the kernel's id of this boot; empty where it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(64).strip()
    except OSError:
        return ""
