"""Python API: `snapshot`, `stream` and `recording`, for notebooks, schedulers and scripts; see `docs/python.md`."""

from __future__ import annotations

import argparse
import math
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from gpuwatch.alerts.limits import Allowances
from gpuwatch.alerts.rules.shares import Overshoot as Overshoot
from gpuwatch.alerts.rules.shares import overshoots
from gpuwatch.base.errors import UsageError
from gpuwatch.base.units import MAX_INTERVAL_S, MIN_INTERVAL_S, gib
from gpuwatch.commands.snapshot_table import table
from gpuwatch.commands.startup import check_snapshot, first_snapshot, open_source
from gpuwatch.config import load
from gpuwatch.config.types import Config
from gpuwatch.model import snapshot as model
from gpuwatch.model.fields import brief_command
from gpuwatch.model.holdings import Holdings
from gpuwatch.model.snapshot import Reading, Reason, SourceState, known
from gpuwatch.recorder.recording import Recording
from gpuwatch.sources.source import Source

_LOOK = 1.0
"""Seconds between two checks whether another thread has closed the stream."""


class Process(model.Process, frozen=True, kw_only=True):
    """Process with its GPU memory."""

    memory: Reading = Reason.NO_SAMPLE
    """Bytes on all of its GPUs together; the reason where the driver does not report it per process."""
    gpus: tuple[int, ...] = ()
    """Indices of the GPUs on which it holds memory."""

    def __repr__(self) -> str:
        """Return the user, program, memory and GPUs: `<Process 15226 ada: train.py, 49.5 GiB on GPU 0>`."""
        held = f"{gib(self.memory)} GiB" if known(self.memory) else f"memory {self.memory}"
        where = f" on GPU {','.join(map(str, self.gpus))}" if self.gpus else ""
        return f"<Process {self.pid} {self.user or '?'}: {brief_command(self)}, {held}{where}>"


class Snapshot(model.Snapshot, frozen=True, kw_only=True):
    """Snapshot with its processes and overshoots."""

    processes: tuple[Process, ...] = ()
    overshoots: tuple[Overshoot, ...] = ()
    """Processes that hold more than they declared plus the allowance, the largest excess first; a process that is
    above its limit only for a moment is included. Processes whose declared share cannot be read are not."""

    def __repr__(self) -> str:
        """Return its host, time and size in a line."""
        counts = f"{len(self.gpus)} GPUs, {len(self.processes)} processes"
        return f"<Snapshot {self.host} {self._clock}: {counts if self.gpus else self.words or self.state.value}>"

    def __str__(self) -> str:
        """Return the table of `gpuwatch --once`."""
        return "\n".join(table(self, clock=self._clock)) if self.gpus else repr(self)

    @property
    def _clock(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.taken))


def _judged(found: model.Snapshot, allowances: Allowances | None = None) -> Snapshot:
    held, processes = Holdings(found).by_process, []
    for one in found.processes:
        parts = held.get(one.key, ())
        sizes = [holding.memory for part in parts for holding in part.holdings] or [Reason.NO_SAMPLE]
        memory = next((size for size in sizes if not known(size)), sum(size for size in sizes if known(size)))
        processes.append(Process(**_fields(one), memory=memory, gpus=tuple(part.gpu.index for part in parts)))
    fields = _fields(found) | {"processes": tuple(processes)}
    return Snapshot(**fields, overshoots=overshoots(found, allowances))


def _fields(one: model.Process | model.Snapshot) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def snapshot(*, only: Sequence[int] = (), demo: bool = False, config: str | os.PathLike[str] | None = None) -> Snapshot:
    """Return one snapshot of this machine, or of the demo.

    `only` are the indices of the GPUs to read (default: all); `config` is read instead of your gpuwatch.toml. It takes
    as long as `gpuwatch --once`, about 0.2 s. Raises UnavailableError without a driver or a GPU, and where the driver
    has not answered for 30 s; raises UsageError for an unknown GPU and for a mistake in gpuwatch.toml.
    """
    read = _read(config)
    source = _open(only, demo, read, 1.0, once=True)
    try:
        found = first_snapshot(source)
    finally:
        source.close()
    check_snapshot(found, python=True)
    return _judged(found, read.limits().allowances)


class Stream(Iterator[Snapshot]):
    """Endless iterator of snapshots, one each interval; a context manager that ends the sampler.

    It is used from one thread; `close` may be called from any. The sampler also ends when the stream is no longer
    referenced, and when Python exits. No signal handler and no thread is needed.
    """

    def __init__(self, source: Source, allowances: Allowances | None = None) -> None:
        self._source = source
        self._allowances = allowances
        self._began = False
        self._close = weakref.finalize(self, source.close)  # it is called at the exit of Python, too

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Snapshot:
        """Wait for the next snapshot.

        Raises UnavailableError where there is no driver or GPU from the start, and UsageError where `only` names no
        GPU. What fails later is in the snapshot: `state` and `words`, and `health` and `words` of each GPU.
        """
        if not self._began and self._close.alive:
            first = first_snapshot(self._source)
            check_snapshot(first, python=True)
            self._began = True
            return _judged(first, self._allowances)
        while self._close.alive:
            found = self._source.next(timeout=_LOOK)
            if found is not None and self._close.alive:
                if found.state is SourceState.ENDED:
                    raise UsageError(found.words)
                return _judged(found, self._allowances)
        raise StopIteration

    def close(self) -> None:
        """End the sampler at once; the iterator ends. It never waits for the driver."""
        self._close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def stream(
    interval: float = 1.0,
    *,
    only: Sequence[int] = (),
    demo: bool = False,
    config: str | os.PathLike[str] | None = None,
) -> Stream:
    """Return a stream of snapshots, one each `interval` seconds (0.1 to 3600).

    `only`, `demo` and `config` are those of `snapshot`. Raises UsageError for a wrong interval and for a mistake in
    gpuwatch.toml, UnavailableError where the sampler cannot be started.
    """
    if not MIN_INTERVAL_S <= interval <= MAX_INTERVAL_S:
        raise UsageError(f"interval: {interval!r} is not allowed; {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g} s is")
    read = _read(config)
    return Stream(_open(only, demo, read, interval), read.limits().allowances)


def recording(file: str | os.PathLike[str], since: float = 0.0, until: float = math.inf) -> Iterator[Snapshot]:
    """Yield the snapshots of a recording that were taken between two wall-clock times, oldest first.

    A row that is damaged is left out. Raises UsageError where the file is no recording.
    """
    for found in Recording([Path(file)]).snapshots(since, until):
        if since <= found.taken <= until:
            yield _judged(found)


def _read(config: str | os.PathLike[str] | None) -> Config:
    return load(None if config is None else os.fspath(config))


def _open(only: Sequence[int], demo: bool, read: Config, interval: float, *, once: bool = False) -> Source:
    if not all(isinstance(index, int) and index >= 0 for index in only):
        raise UsageError(f"only: {list(only)} is not a list of GPU indices; write only=[0, 2]")
    args = argparse.Namespace(demo=demo, reservations=None)
    return open_source(args, read, None, interval=interval, only=sorted(set(only)), once=once)
