"""The sampler where no file descriptor is left: what it cannot read has not ended."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

from gpuwatch.analysis.rows import rows
from gpuwatch.model import Presence, Snapshot
from tests import CHECKOUT
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.gpuholder import GpuHolder
from tests.support.sampling import Running, running
from tests.support.uncovered import environment

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
