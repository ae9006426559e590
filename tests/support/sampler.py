"""The sampler as a test runs it: the real child process on the tests' driver library, by the real binding."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from gpuwatch.model.snapshot import Gpu, Health, Snapshot, decode
from gpuwatch.sources.local import LocalSource
from gpuwatch.sources.source import Source
from tests import CHECKOUT
from tests import driver as fake
from tests.driver import GIB, Driver, Proc
from tests.support.waiting import PATIENCE, describe, wait_for

ME = os.getpid()
ALL_BUT_3 = [0, 1, 2, 4, 5, 6, 7]


def close(source: LocalSource) -> None:
    """Close a source and wait until its samplers are gone; the source itself waits a fifth of a second for that."""

    def gone() -> bool:
        source._reap()
        return not source._abandoned

    source.close()
    wait_for(gone, "a sampler that was killed is still there")


def until(source: Source, holds: Callable[[Snapshot], object], patience: float = PATIENCE) -> Snapshot:
    """Return the next snapshot of a source that satisfies a condition; where none does, fail with the last one."""
    end, last = time.monotonic() + patience, None
    while time.monotonic() < end:
        last = source.next(0.1) or last
        if last is not None and holds(last):
            return last
    raise AssertionError(f"{describe(holds)}\ndid not come about; the last snapshot: {str(last)[:4000]}")


class Running:
    """A sampler that runs; its snapshots are read one by one."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        page: int = -1,
        declared: bool = True,
        retry: float | None = None,
        **options: object,
    ) -> None:
        """Start it with `Options`, without the inspector unless what is `declared` is read.

        `retry` are the seconds until a GPU that failed is looked up again, in place of the sampler's own.
        """
        words = [*([] if declared else ["--no-declared"]), json.dumps({"page": page, **options})]
        command = ["-P", "-m", "gpuwatch.sampler", *words]
        if retry is not None:
            script = f"from gpuwatch.sampler import gpu, main\ngpu.RETRY = {retry}\nmain.main({words}, None)"
            command = ["-P", "-c", script]
        self._start(command, env, () if page < 0 else (page,))

    @classmethod
    def script(cls, script: str, env: Mapping[str, str]) -> Running:
        """Run another program, whose lines are read in the same way."""
        running = cls.__new__(cls)
        running._start(["-c", script], env, ())
        return running

    def _start(self, command: list[str], env: Mapping[str, str], handed: tuple[int, ...]) -> None:
        path = [env.get("PYTHONPATH", ""), str(CHECKOUT)]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env={**env, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=handed,
            bufsize=0,
        )
        self._rest = b""

    def line(self, timeout: float = PATIENCE) -> bytes | None:
        """Wait for the next line; None for the end of the output."""
        assert self.process.stdout is not None
        end = time.monotonic() + timeout
        while b"\n" not in self._rest:
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not readable:
                raise AssertionError(f"the sampler says nothing for {timeout} s; so far {self._rest!r}")
            chunk = self.process.stdout.read(1 << 16)
            if not chunk:
                assert not self._rest, "half a line at the end"
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def next(self) -> Snapshot:
        """Wait for the next snapshot."""
        line = self.line()
        assert line is not None, f"the sampler ended: {self.errors()}"
        return decode(line)

    def until(self, holds: Callable[[Snapshot], bool]) -> Snapshot:
        """Read snapshots until one satisfies a condition."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            snapshot = self.next()
            if holds(snapshot):
                return snapshot
        raise AssertionError(f"{describe(holds)}\ndid not come about; the last snapshot: {str(snapshot)[:4000]}")

    def send(self, **command: object) -> None:
        """Give it a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")

    def ends(self) -> int:
        """Wait for its end and give the exit code."""
        return self.process.wait(PATIENCE)

    def errors(self) -> str:
        """What it wrote on stderr until it ended."""
        assert self.process.stderr is not None
        self.process.wait(PATIENCE)
        return self.process.stderr.read().decode()

    def close(self) -> None:
        """End it: by the end of its stdin, so that its coverage is written; where it hangs, by force."""
        assert self.process.stdin is not None
        with self.process:  # it closes the pipes
            self.process.stdin.close()
            try:
                self.process.wait(1.0)
            except subprocess.TimeoutExpired:
                self.process.kill()


@contextmanager
def running(env: Mapping[str, str], **options: Any) -> Iterator[Running]:
    """Run a sampler for as long as a test needs it; ten samples a second, unless the options say otherwise."""
    with closing(Running(env, **{"interval": 0.1, **options})) as sampler:
        yield sampler


def once(env: Mapping[str, str], **options: Any) -> tuple[Snapshot, int]:
    """Run a sampler for one snapshot; give it and the exit code."""
    with running(env, once=True, **options) as sampler:
        snapshot = sampler.next()
        assert sampler.line() is None
        code = sampler.ends()
        assert sampler.errors() == ""
        return snapshot, code


def gpu(snapshot: Snapshot, index: int) -> Gpu:
    """Return the row of a GPU by its index."""
    return next(row for row in snapshot.gpus if row.index == index)


def eight(driver: Driver, *faults: str) -> Driver:
    """Put eight GPUs into the machine, a process of ours on each, and faults."""
    return driver.put(
        gpus=[fake.Gpu(index, memory_used=3 * GIB, util_gpu=50) for index in range(8)],
        procs=[Proc(index, ME, memory=2 * GIB, sm=40) for index in range(8)],
        faults=list(faults),
    )


def well(snapshot: Snapshot) -> list[int]:
    """Return the indices of the GPUs that are well and were sampled."""
    return [row.index for row in snapshot.gpus if row.health is Health.OK and row.sampled]


def all_are_well(snapshot: Snapshot) -> bool:
    """Return whether all of the eight GPUs are well and were sampled."""
    return well(snapshot) == list(range(8))
