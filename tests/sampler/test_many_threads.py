"""A process whose first thread has ended, and whose thousands of others sleep: it costs no more than any other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gpuwatch import procfs
from gpuwatch.sampler.unlisted import OpenFileSearch
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.sampling import running
from tests.support.uncovered import environment
from tests.support.waiting import wait_for

THREADS = 2000

PROGRAM = """
import ctypes, os, sys, threading
threading.stack_size(64 << 10)
held = threading.Lock()
held.acquire()
for _ in range(int(sys.argv[1])):
    threading.Thread(target=held.acquire, daemon=True).start()
print(flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # exit(2) ends this thread alone
"""


@contextmanager
def many_threads(number: int = THREADS) -> Iterator[int]:
    """Run a process with so many threads that sleep, and a first one that has ended; give its PID."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(number)], env=environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"\n"
        wait_for(lambda: procfs.read_stat(process.pid).state == "Z")
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def reads(pid: int) -> int:
    """Count the calls of read(2) that a process has made so far: `syscr` in proc_pid_io(5)."""
    return int(procfs.read_file(pid, "io").split()[5])


def test_a_tick_reads_few_of_its_threads(driver: Driver) -> None:
    driver.gpus = [Gpu(0, memory_used=8 * GIB)]
    with many_threads() as pid:
        driver.procs = [Proc(0, pid, memory=GIB, sm=50)]
        with running(driver.write().env()) as sampler:
            sampler.until(lambda snapshot: snapshot.searched > 0)  # after the first search for who has GPUs open
            assert reads(sampler.process.pid) < THREADS
            for child in procfs.find_children(sampler.process.pid):
                assert reads(child) < THREADS
            before = reads(sampler.process.pid)
            looks = [sampler.next() for _ in range(5)]
            assert reads(sampler.process.pid) - before < THREADS
    assert {one.state for look in looks for one in look.processes} == {"sleeping"}
    assert {one.pid for look in looks for one in look.processes} == {pid}


def test_what_else_asks_whether_it_has_ended_reads_few_of_them() -> None:
    with many_threads() as pid:
        before = reads(os.getpid())
        assert not procfs.has_ended(pid)
        assert list(procfs.read_open_files(pid))
        assert procfs.read_threads(pid)
        OpenFileSearch().run_once(60.0)
        assert reads(os.getpid()) - before < THREADS
    assert procfs.has_ended(pid)
