"""A real process that makes its command line and its environment as long as it likes, as any user can.

PR_SET_MM_MAP(2const) tells the kernel where in memory both lie. It asks for no privileges (prctl_set_mm in
kernel/sys.c), and the memory need never have been touched: /proc/PID/cmdline hands it out as zeros.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gpuwatch.base import procfs
from tests.support.process import unavailable

_PROGRAM = r"""
import ctypes, mmap, os, sys
size, name, title, environ = int(sys.argv[1]), sys.argv[2].encode(), sys.argv[3].encode(), sys.argv[4].encode()
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.sbrk.restype = ctypes.c_void_p, ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP, NORESERVE = 15, 35, 14, 0x4000
def block(text):
    place = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANON | NORESERVE, -1, 0)
    ctypes.memmove(place, text, len(text))
    return [place, place + size]
with open("/proc/self/stat") as file:
    fields = [0, 0, 0, *file.read().rpartition(")")[2].split()]
number = lambda place: int(fields[place])
words = [number(26), number(27), number(45), number(46), number(47), libc.sbrk(0), number(28)]
words += block(title.replace(b" ", b"\0")) + block(environ.replace(b" ", b"\0"))
map = (ctypes.c_uint64 * 13)(*words, 0, 0xFFFFFFFF << 32)
libc.prctl(PR_SET_NAME, name, 0, 0, 0)
failed = libc.prctl(PR_SET_MM, PR_SET_MM_MAP, map, ctypes.sizeof(map), 0)
children = []
for _ in range(int(sys.argv[5])):
    child = os.fork()
    if not child:
        libc.prctl(1, 9, 0, 0, 0)
        while True:
            os.read(0, 1) or os._exit(0)
    children.append(child)
print(os.strerror(ctypes.get_errno()) if failed else "", *children, sep="\t", flush=True)
while os.read(0, 1):
    pass
os._exit(0)
"""


class LongLines(NamedTuple):
    """The process, and what it has forked, which has the very same lines."""

    pid: int
    children: tuple[int, ...]


@contextmanager
def long_lines(
    size: int = 256 << 20,
    *,
    name: str = "python",
    title: str = "python train.py",
    environ: str = "CUDA_VISIBLE_DEVICES=0",
    children: int = 0,
) -> Iterator[LongLines]:
    """Run a process of `size` bytes of command line, which begins with `title`, and as many of environment."""
    command = [sys.executable, "-S", "-c", _PROGRAM, str(size), name, title, environ, str(children)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        error, *forked = process.stdout.readline().rstrip("\n").split("\t")
        if error:
            unavailable(f"the kernel does not let a process move its command line here: {error}")
        yield LongLines(process.pid, tuple(map(int, forked)))
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()


def bytes_read(pid: int) -> int:
    """Count the bytes that a process has read so far, of files of /proc too: `rchar` in proc_pid_io(5)."""
    return int(procfs.read_file(pid, "io").split()[1])


def most_memory(pid: int) -> int:
    """Return the most bytes that a process has had in memory, `VmHWM` in proc_pid_status(5); 0 where it has ended."""
    lines = procfs.read_file(pid, "status").splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(b"VmHWM:")), 0)
