"""Part of the recorder: its steps and their pace, and the lock that elects who records."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpuwatch.base import files
from gpuwatch.monitor import Frame
from gpuwatch.recorder.opening import DamagedError, StoreError
from gpuwatch.recorder.schema import lock_path
from gpuwatch.recorder.store import Store


class Pace(NamedTuple):
    """Intervals of the recorder in seconds; tests use shorter ones."""

    poll: float = 2.0
    """Between two checks of the locks and of the marks of other gpuwatches."""
    retry: float = 30.0
    """After an error."""
    touch: float = 10.0
    """Between two signs of life."""
    carry: float = 60.0
    """Between two writes of all open events, with their words and their worst values so far."""
    silent: float = 60.0
    """Time without a sign of life after which the lock's holder is reported as silent."""
    usage: float = 60.0
    prune: float = 3600.0


class RecorderLock(files.FileLock):
    """Lock that elects the gpuwatch of a user and host that records; `gpuwatch watch` comes before dashboards.

    The recorder's thread acquires and releases it; others look at `held`.
    """

    def __init__(self, store: Path, *, watch: bool = False) -> None:
        """`watch` is whether this is a `gpuwatch watch`."""
        super().__init__(lock_path(store))
        self._watches = lock_path(store, "watch")
        self._watch = files.FileLock(self._watches) if watch else None
        """Lock that a `gpuwatch watch` holds while it runs, which dashboards see."""

    @property
    def is_wanted(self) -> bool:
        """Whether this is a dashboard, and a `gpuwatch watch` runs, which comes first."""
        return self._watch is None and files.read_lock(self._watches)[0]

    def acquire(self) -> bool:
        """Try to get the lock, without waiting; return whether it is held. Raises OSError where locking fails."""
        if self._watch is not None:
            self._watch.acquire()
        elif not self.held and self.is_wanted:
            return False
        return super().acquire()

    def close(self) -> None:
        """Release it, and let dashboards record again."""
        self.release()
        if self._watch is not None:
            self._watch.release()


class RecorderContext(NamedTuple):
    """State that all parts of a recorder share."""

    store: Store
    lock: RecorderLock
    """Lock of the user's store."""
    pace: Pace
    wall: Callable[[], float]
    """Wall clock."""


class Part:
    """Part of the recorder: does a step again and again; after an error it waits before the next one."""

    def __init__(self, context: RecorderContext) -> None:
        self.store, self._lock, self._pace, self._wall = context
        self._guard = threading.Lock()
        """Guards the data that the monitor's thread hands over."""
        self._due: dict[str, float] = {}
        """Time of the next run of each task, on the machine's monotonic clock."""
        self.error = ""
        self.is_damaged = False
        """Whether the last step found the store damaged."""

    @property
    def waiting(self) -> str:
        """What is not written yet, in a few words; empty for nothing."""
        return ""

    def take(self, frame: Frame) -> bool:
        """Read a frame, in the monitor's thread; return whether there is something to write at once."""
        return False

    def step(self) -> None:
        """Do the work that is due; raises StoreError and OSError."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write everything that is left, before the lock is released."""
        raise NotImplementedError

    def run(self, step: Callable[[], None]) -> None:
        """Run a step; store the words of an exception in `error`."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - last handler of the thread: any error must reach the user
            known = isinstance(error, StoreError)
            self.error = str(error) if known else files.words(error, self.store.path)
            self.is_damaged = isinstance(error, DamagedError)
            self._set("retry", self._pace.retry)

    def begin_anew(self) -> None:
        """Try again at once, on a new and empty file."""
        self.is_damaged = False
        self._due.pop("retry", None)

    def _set(self, name: str, seconds: float) -> None:
        self._due[name] = time.monotonic() + seconds

    def _is_due(self, name: str) -> bool:
        return time.monotonic() >= self._due.get(name, 0.0)
