"""Strays that are real: processes that were stopped, left and not reaped, as the sampler sees them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec
import pytest

from gpuwatch.analysis.stray_facts import StrayLimits
from gpuwatch.analysis.strays import Stray, StrayCause, StrayCertainty
from gpuwatch.base import procfs
from gpuwatch.model.snapshot import Idle, IdleTimes, Process, Snapshot
from tests.driver import GIB, Driver, Proc
from tests.support.process import ME, ROOT, SOMEBODY_ELSE
from tests.support.sampler import running
from tests.support.strays import find, suspects
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

AT_ONCE = StrayLimits(settled_after=0.0)
"""The processes of a test are young."""

LEADER = """
import os, sys
uid = int(sys.argv[1])
if uid != os.getuid():
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
if not os.fork():
    os.write(1, b"%d\\n" % os.getpid())
    os.execv("/bin/sleep", ["sleep", "600"])
sys.stdin.read()
"""
"""The leader of a session, as a shell is, with one process in it; it ends with its stdin."""


@contextmanager
def two(*command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a program in a session of its own; give it and the PID that it prints. Both are ended."""
    with ExitStack() as ended:
        parent = ended.enter_context(
            subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        )
        ended.callback(parent.kill)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        handle = os.pidfd_open(child)
        ended.callback(os.close, handle)
        ended.callback(signal.pidfd_send_signal, handle, signal.SIGKILL)
        yield parent, child


@contextmanager
def alone(uid: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that does nothing, as some uid."""
    options = {"user": uid, "group": uid, "extra_groups": []} if uid != os.getuid() else {}
    with subprocess.Popen(["sleep", "600"], **options) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def sampled(driver: Driver, *pids: int) -> Snapshot:
    """Sample a machine on whose GPU these hold 2 GiB each and run nothing, until what they run in was read."""
    driver.gpus[0].memory_used = 3 * GIB * len(pids)
    driver.procs = [Proc(0, pid, memory=2 * GIB) for pid in pids]
    driver.write()
    with running(driver.env()) as sampler:
        snapshot = sampler.until(lambda it: len(it.processes) == len(pids) and is_read(it))
    return msgspec.structs.replace(snapshot, unlisted=())  # those of other tests, on this machine at the same time


def seen_by(base: Snapshot, viewer: int) -> Snapshot:
    return msgspec.structs.replace(base, viewer=viewer)


def process(base: Snapshot, pid: int) -> Process:
    (found,) = [one for one in base.processes if one.pid == pid]
    return found


def is_read(base: Snapshot) -> bool:
    """Whether what the processes run in was read; of a zombie nothing can be."""
    return all(one.context is not None or one.state == "zombie" for one in base.processes)


def judged(base: Snapshot, viewer: int = ME, idle: float | None = None) -> list[Stray]:
    """Judge all, of whom it is known that they have been idle for so long."""
    known: IdleTimes = {}
    if idle is not None:
        known = {(base.gpus[0].key, one.pid, one.start): Idle(idle, at_least=False) for one in base.processes}
    return find(seen_by(base, viewer), None, AT_ONCE, known=known)


def test_a_process_that_was_stopped_and_one_that_nobody_reaps(driver: Driver) -> None:
    with alone(ME) as stopped, alone(ME) as zombie, alone(ME) as other:
        stopped.send_signal(signal.SIGSTOP)
        zombie.kill()
        wait_for(lambda: [procfs.read_stat(one.pid).state for one in (stopped, zombie)] == ["T", "Z"])
        seen = sampled(driver, stopped.pid, zombie.pid, other.pid)
        assert not judged(seen), "nobody knows for how long"
        found = judged(seen, idle=60.0)
    assert [(one.process.pid, one.cause, one.ends) for one in found] == [
        (zombie.pid, StrayCause.ZOMBIE, False),
        (stopped.pid, StrayCause.STOPPED, True),
    ]
    assert str(os.getpid()) in found[0].why[0]


def test_a_process_whose_login_has_ended(driver: Driver) -> None:
    with two("-c", LEADER, str(ME)) as (login, pid):
        wait_for(lambda: procfs.read_stat(pid).comm == b"sleep")
        before = sampled(driver, pid)
        assert not judged(before, idle=600.0)
        assert not suspects(seen_by(before, ME), None, AT_ONCE)
        assert login.stdin is not None
        login.stdin.close()
        login.wait()
        wait_for(lambda: procfs.read_stat(pid).ppid != login.pid)
        after = sampled(driver, pid)
        shown = process(after, pid)
        assert (shown.leader_alive, shown.adopted, shown.session) == (False, True, login.pid)
        (found,) = judged(after, idle=600.0)
        assert (found.cause, found.sure) == (StrayCause.LEFTOVER, StrayCertainty.LIKELY)
        assert found.why == ("its login has ended", "its parent has ended", "no SM use for 10 min")
        (found,) = judged(after, idle=90000.0)
        assert (found.cause, found.sure) == (StrayCause.LEFTOVER, StrayCertainty.CERTAIN)
        assert not judged(after)
        assert [one.pid for one in suspects(seen_by(after, ME), None, AT_ONCE)] == [pid]
        assert not judged(after, viewer=SOMEBODY_ELSE, idle=600.0)
        assert not ROOT or not judged(after, viewer=0, idle=600.0)
