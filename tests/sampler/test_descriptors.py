"""The sampler where no file descriptor is left, and programs that hold more than 1,024 open.

What cannot be read has not ended. select(2) cannot name any descriptor above 1,023, poll(2) can.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from gpuwatch.analysis.rows import rows
from gpuwatch.model.snapshot import Presence, Snapshot
from tests.driver import GIB, Driver, Gpu, Proc
from tests.inspector.panes import patient, session
from tests.inspector.test_terminals import shown
from tests.support.environment import environment
from tests.support.process import GpuHolder
from tests.support.sampler import Running, eight, running, well
from tests.support.terminal import Tmux, tmux

__all__ = ["tmux"]  # a fixture

MANY = 1100

CROWDED = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2 * {MANY}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
nothing = os.open("/dev/null", os.O_RDONLY)
for number in range(nothing + 1, {MANY}):
    os.dup2(nothing, number)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Becomes another program that has all numbers below `MANY` taken: what it opens itself gets higher ones."""

pytestmark = pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2 * MANY, reason="the hard limit of descriptors is too low here"
)


@contextmanager
def many_open() -> Iterator[None]:
    """Have more than 1,024 descriptors open in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * MANY), before[1]))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(MANY)]
    try:
        assert max(taken) > 1023
        yield
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_sampler_goes_on(driver: Driver) -> None:
    words = [sys.executable, "-P", "-m", "gpuwatch.sampler", '{"interval": 0.1}']
    script = f"import sys; sys.argv = {['', *words]!r}\n{CROWDED}"
    with closing(Running.script(script, eight(driver).env(environment()))) as sampler:
        # What is declared is read by a child of its own, whose pipe the sampler waits for beside its commands.
        seen = sampler.until(lambda snapshot: any(one.context for one in snapshot.processes))
        assert len(well(seen)) == 8
        sampler.next()


def test_tmux_is_asked_for_its_names(tmux: Tmux) -> None:
    pid = session(tmux)
    with many_open():
        assert shown(pid, patient()) == ("train", "0:main")


def allow(sampler: Running, descriptors: int) -> None:
    """Let the sampler open files with numbers below this one only; those that are open stay so."""
    _, most = resource.prlimit(sampler.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(sampler.process.pid, resource.RLIMIT_NOFILE, (descriptors, most))


def all_are(presence: Presence) -> Callable[[Snapshot], bool]:
    return lambda snapshot: {one.presence for one in snapshot.processes} == {presence}


def test_a_process_that_cannot_be_read_is_not_said_to_have_ended(driver: Driver) -> None:
    with GpuHolder() as held:
        driver.gpus = [Gpu(0, memory_used=8 * GIB)]
        driver.procs = [Proc(0, held.pid, memory=GIB, sm=50)]
        with running(driver.write().env()) as sampler:
            before = sampler.until(lambda snapshot: [one.context is not None for one in snapshot.processes] == [True])
            allow(sampler, 3)
            unsearched = sampler.until(all_are(Presence.UNREADABLE))
            allow(sampler, 256)
            after = sampler.until(all_are(Presence.SEEN))
    (was,), (now,), (later,) = before.processes, unsearched.processes, after.processes
    assert (now.key, now.uid, now.user, now.command) == (was.key, was.uid, was.user, was.command)
    assert (now.declared, now.context) == (was.declared, was.context)
    assert rows(unsearched)[0].key == rows(before)[0].key
    assert rows(unsearched)[0].command == f"(not readable just now) {held.command}"
    assert later.key == was.key
    assert later.state
