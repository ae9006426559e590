"""The sampler where no file descriptor is left, and programs that hold more than 1,024 open.

What cannot be read has not ended. select(2) cannot name any descriptor above 1,023, poll(2) can.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from gpuwatch.analysis.rows import rows
from gpuwatch.model import Presence, Snapshot
from tests import CHECKOUT
from tests.driver import GIB, Driver, Gpu, Proc
from tests.inspector.test_terminals import shown
from tests.support.gpuholder import GpuHolder
from tests.support.panes import patient, session
from tests.support.sampling import Running, eight, running, well
from tests.support.tmux import Tmux, tmux
from tests.support.uncovered import environment

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
        seen = sampler.until(lambda snapshot: any(one.surroundings for one in snapshot.processes))
        assert len(well(seen)) == 8
        sampler.next()


def test_tmux_is_asked_for_its_names(tmux: Tmux) -> None:
    pid = session(tmux)
    with many_open():
        assert shown(pid, patient()) == ("train", "0:main")


CUDA = ("nvidiactl", "nvidia-uvm", "nvidia0")


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
            before = sampler.until(
                lambda snapshot: [one.surroundings is not None for one in snapshot.processes] == [True]
            )
            allow(sampler, 3)
            blind = sampler.until(all_are(Presence.UNREADABLE))
            allow(sampler, 256)
            after = sampler.until(all_are(Presence.SEEN))
    (was,), (now,), (later,) = before.processes, blind.processes, after.processes
    assert (now.key, now.uid, now.user, now.command) == (was.key, was.uid, was.user, was.command)
    assert (now.declared, now.surroundings) == (was.declared, was.surroundings)
    assert rows(blind)[0].key == rows(before)[0].key
    assert rows(blind)[0].command == f"(not readable just now) {held.command}"
    assert later.key == was.key
    assert later.state


SEARCHES = """
import json, resource, sys
from gpuwatch.sampler.unlisted import OpenFileSearch
now = [0.0]
survey = OpenFileSearch(clock=lambda: now[0], wall=lambda: now[0] + 1.0)
most = resource.getrlimit(resource.RLIMIT_NOFILE)
for allowed in json.loads(sys.argv[1]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed or most[0], most[1]))
    now[0] += 1000.0
    survey.step(3600.0)
    print(json.dumps([[one.pid for one in survey.found], survey.blind, survey.ended_at]), flush=True)
"""


@pytest.mark.parametrize("left", [0, 1], ids=["none is left", "one is left, for the list of processes"])
def test_a_search_for_who_has_gpus_open_that_sees_nothing_says_so(left: int) -> None:
    with GpuHolder(devices=CUDA) as held:
        script = [sys.executable, "-c", SEARCHES, json.dumps([0, 3 + left, 0])]
        done = subprocess.run(script, cwd=CHECKOUT, env=environment(), capture_output=True, text=True, check=True)
    first, blind, after = map(json.loads, done.stdout.splitlines())
    assert held.pid in first[0]
    assert blind[0] == first[0]
    assert blind[1] > first[1]
    assert (blind[2] > first[2]) is bool(left)
    assert after[:2] == first[:2]
