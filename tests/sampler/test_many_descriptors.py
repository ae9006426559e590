"""Programs that hold more than 1,024 descriptors open: select(2) cannot name any above 1,023, poll(2) can."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.driver import GIB, Driver, Gpu, Proc
from tests.inspector.test_terminals import shown
from tests.support.gpuholder import ROOT, GpuHolder
from tests.support.panes import patient, session
from tests.support.sampling import Running, eight, well
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


def test_a_process_is_ended(driver: Driver) -> None:
    with GpuHolder(uid=os.getuid()) as training:
        driver.put(gpus=[Gpu(0, memory_used=GIB)], procs=[Proc(0, training.pid, sm=0)])
        words = [sys.executable, "-P", "-m", "gpuwatch", "kill", str(training.pid), "--yes"]
        words += ["--allow-root-kill"] * ROOT
        done = subprocess.run(
            [sys.executable, "-c", CROWDED, *words], env=driver.env(environment()), capture_output=True, check=False
        )
        assert f"PID {training.pid}: exited after".encode() in done.stdout, done.stderr
        assert not training.alive()


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
