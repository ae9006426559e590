"""The sink that keeps what `gpuwatch report` is made from: of all that a user runs on a host one adds it up.

    take (watch thread) ──► tally ──► each minute: a batch ──► written, or kept and tried again
                              └─► somebody else has the lock: forgotten, and the lock asked for again

All that may wait is on a thread of its own; the tally is arithmetic, a millisecond a frame on a large machine.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatch.sinks.tally import Batch, Tally, joined
from gpuwatch.spawn import start_thread

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame
    from gpuwatch.recorder.events_log import Lock
    from gpuwatch.recorder.store import Store

MOST: Final = 60
"""Batches that wait to be written: an hour of minutes. Of more the oldest are lost, and counted."""


class Pace(NamedTuple):
    """Seconds between two of what is done again and again; tests hand in less."""

    write: float = 60.0
    retry: float = 30.0
    """After an error."""
    lock: float = 2.0
    """Asking for the lock."""
    prune: float = 3600.0


class Wish(NamedTuple):
    """What is wanted of the sink."""

    writes: bool = True
    """Whether anything is kept at all."""
    keep: float = 90 * 24 * 3600.0
    """Seconds."""
    largest: int = 64 << 20
    """Bytes."""


class UsageKeeper:
    """A `watch.Sink` that adds what was held and used to the store, once a minute and at the end."""

    name = "usage"

    def __init__(
        self,
        wish: Wish | None = None,
        *,
        folder: Path | None = None,
        pace: Pace | None = None,
        wall: Callable[[], float] = time.time,
        patience: float | None = None,
    ) -> None:
        """`folder` stands in for the user's state folder; `patience` (seconds) for how long another is waited for."""
        self._wish = wish or Wish()
        self._folder = folder
        self._pace = pace or Pace()
        self._wall = wall
        self._patience = patience
        # What both threads use, under the guard.
        self._guard = threading.Lock()
        self._tally = Tally()
        # What is the thread's own.
        self._store: Store | None = None
        self._lock: Lock | None = None
        self._waiting: deque[Batch] = deque(maxlen=MOST)
        self._lost = 0
        self._error = ""
        self._due: dict[str, float] = {}
        """When to do what next, on the machine's monotonic clock."""
        self._bell = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuwatch-usage", daemon=True)
        self._started = False

    # -----------------------------------------------------------------------------------------------------------
    # For the watch thread, and for everybody

    @property
    def is_keeper(self) -> bool:
        """Whether this gpuwatch is the one that writes."""
        return self._lock is not None and self._lock.held

    @property
    def trouble(self) -> str:
        """What keeps it from writing, in one line; empty when all is well."""
        if not self._error or not self._wish.writes:
            return ""
        count = len(self._waiting)
        wait = f"; {count} {'minute waits' if count == 1 else 'minutes wait'} to be written" if count else ""
        lost = f", {self._lost} {'is' if self._lost == 1 else 'are'} lost" if self._lost else ""
        return f"nothing is kept for `gpuwatch report`: {self._error}{wait}{lost}"

    def take(self, frame: Frame) -> None:
        """Add up what a frame tells. Made-up figures go nowhere."""
        if frame.snapshot.demo or not self._wish.writes:
            return
        with self._guard:
            self._tally.add(frame)
        if not self._started:
            self._set("write", self._pace.write)
            start_thread(self._thread)
            self._started = True

    def settle(self, wish: Wish) -> None:
        """Go by another wish from now on; from any thread."""
        self._wish = wish
        self._bell.set()

    def close(self, seconds: float) -> None:
        """Write what there is, and give up after so many seconds."""
        self._closing.set()
        self._bell.set()
        if self._started:
            self._thread.join(seconds)

    # -----------------------------------------------------------------------------------------------------------
    # The thread

    def _run(self) -> None:
        while not self._closing.is_set():
            self._bell.clear()
            self._try(self._step)
            if not self._closing.is_set():
                self._bell.wait(self._pause())
        self._try(self._leave)
        self._release()

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
            from gpuwatch.recorder.store import own_store, store_words

            path = self._store.path if self._store is not None else own_store(self._folder)
            self._error = store_words(error, path)
            self._set("retry", self._pace.retry)

    def _step(self) -> None:
        if not self._wish.writes:
            try:
                self._leave()
            finally:
                self._release()
            return
        if not self._have_lock():
            return
        if self._is_due("write"):
            self._set("write", self._pace.write)
            self._collect()
        if not self._is_due("retry"):
            return
        if self._waiting or self._error:
            self._put()
            if self._is_due("prune"):
                self._made().prune(self._wall())
                self._set("prune", self._pace.prune)

    def _leave(self) -> None:
        """Write what there is."""
        if self.is_keeper:
            self._collect()
            self._put()

    def _collect(self) -> None:
        """Put what was added up since the last time with what waits."""
        with self._guard:
            batch = self._tally.take()
        if batch:
            self._lost += len(self._waiting) == MOST
            self._waiting.append(batch)

    def _put(self) -> None:
        """Write what waits; raises what the store raises, and keeps it then."""
        if self._waiting:
            self._made().write(joined(self._waiting))
        self._waiting.clear()
        self._error, self._lost = "", 0

    def _made(self) -> Store:
        from gpuwatch.recorder.store import PATIENCE, Store, own_store

        if self._store is None:
            patience = PATIENCE if self._patience is None else self._patience
            self._store = Store(own_store(self._folder), patience=patience)
        self._store.keep, self._store.largest = self._wish.keep, self._wish.largest
        return self._store

    # -----------------------------------------------------------------------------------------------------------
    # Who writes

    def _have_lock(self) -> bool:
        """Say whether it is ours to write; raises OSError where no lock can be had at all.

        Two that both write would count everything twice, so that without a lock nobody does.
        """
        lock = self._lock = self._lock or self._new_lock()
        if lock.held:
            if lock.is_there():
                return True
            lock.release()
        elif not self._is_due("lock") or not self._is_due("retry"):
            return False
        self._set("lock", self._pace.lock)
        if lock.take():
            self._error = ""
            return True
        with self._guard:  # whoever has it has written this too
            self._tally.forget()
        self._waiting.clear()
        self._set("write", self._pace.write)
        self._error, self._lost = "", 0
        return False

    def _new_lock(self) -> Lock:
        from gpuwatch.recorder.events_log import Lock
        from gpuwatch.recorder.store import own_store

        return Lock(own_store(self._folder), private_folder=True)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _pause(self) -> float | None:
        if not self._wish.writes:
            return None
        names = ["write", *["retry"] * bool(self._error)] if self.is_keeper else ["retry" if self._error else "lock"]
        now = time.monotonic()
        return max(0.001, min(self._due.get(name, now) - now for name in names))

    def _set(self, name: str, seconds: float) -> None:
        self._due[name] = time.monotonic() + seconds

    def _is_due(self, name: str) -> bool:
        return time.monotonic() >= self._due.get(name, 0.0)
