"""Processes that are long or have thousands of threads: they cost no more than any other.

Command lines and environments have hundreds of MiB; a first thread has ended while the others sleep.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from gpuwatch.base import procfs
from gpuwatch.kill.pinned import shown_command
from gpuwatch.model.snapshot import Knowledge, Presence, Snapshot
from gpuwatch.sampler.owners import Owners
from gpuwatch.sampler.unlisted import OpenFileSearch
from tests.driver import GIB, Driver, Gpu, Proc
from tests.sampler.longlines import bytes_read, long_lines, most_memory
from tests.sampler.test_owners import read, tree
from tests.support.environment import environment
from tests.support.sampler import Running, running
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
            # The search reads a few files of each process of the machine, which runs other tests.
            assert reads(sampler.process.pid) < THREADS + 4 * len(psutil.pids())
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


LITTLE = 32 << 20
"""Bytes that the sampler and its reader may read in these tests; most of them are their own modules' code."""


def listing(driver: Driver, *pids: int) -> Driver:
    """Let the driver list these processes on one GPU."""
    return driver.put(gpus=[Gpu(0, memory_used=8 * GIB)], procs=[Proc(0, pid, memory=1 << 20, sm=1) for pid in pids])


def until_known(sampler: Running, *pids: int) -> Snapshot:
    """Wait until all that is asked of these processes is known."""
    return sampler.until(
        lambda snapshot: (
            {one.pid for one in snapshot.processes} == {*pids}
            and all(one.declared and one.declared.knowledge is not Knowledge.PENDING for one in snapshot.processes)
        )
    )


def assert_little_was_read(sampler: Running) -> None:
    for pid in (sampler.process.pid, *procfs.find_children(sampler.process.pid)):
        assert bytes_read(pid) < LITTLE
        assert most_memory(pid) < 8 * LITTLE


def test_a_command_line_of_256_mib_is_not_read_to_its_end(driver: Driver) -> None:
    """What may stand in the rest of it, and of its environment, is said to be unknown."""
    title = "/opt/a-name-of-15-bytes-and-more train.py"
    with long_lines(name="a-name-of-15-by", title=title, children=1) as long:
        pids = (long.pid, *long.children)
        with running(listing(driver, *pids).env()) as sampler:
            snapshot = until_known(sampler, *pids)
            assert_little_was_read(sampler)
    assert [(one.command, one.name) for one in snapshot.processes] == [(title, "a-name-of-15-bytes-and-more")] * 2
    (child,) = [one for one in snapshot.processes if one.pid in long.children]
    assert child.parent == "a-name-of-15-bytes-and-more"
    (process,) = [one for one in snapshot.processes if one.pid == long.pid]
    assert process.declared is not None
    assert process.context is not None
    assert process.declared.knowledge is Knowledge.UNREADABLE
    assert "its command line is too long to read in full" in process.declared.words
    for words in (process.declared.words, process.context.words):
        assert "its environment is too long to read" in words


def test_a_file_of_proc_without_an_end_is_read_up_to_a_bound(driver: Driver, tmp_path: Path) -> None:
    folder = tree(tmp_path, 7)
    for name in ("cmdline", "environ", "cgroup", "maps", "mountinfo", "loginuid"):
        with (folder / name).open("wb") as file:
            file.write(b"python\0" if name == "cmdline" else b"1:/x\n")
            file.truncate(256 << 20)
    with running(listing(driver, 7).env(), proc=str(tmp_path)) as sampler:
        (process,) = until_known(sampler, 7).processes
        assert_little_was_read(sampler)
    assert (process.presence, process.command) == (Presence.SEEN, "python")


def test_what_ends_a_process_shows_its_command_without_reading_all_of_it() -> None:
    with long_lines() as long:
        before = bytes_read(os.getpid())
        assert shown_command(long.pid) == "python train.py"
        assert bytes_read(os.getpid()) - before < LITTLE


def test_a_process_whose_first_thread_has_ended_is_no_zombie() -> None:
    with many_threads(2) as pid:
        assert read(Owners(), pid).state == "sleeping"
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: read(Owners(), pid).state == "zombie")
