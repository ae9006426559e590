"""The thread between a source and its readers: history, alerts, one frozen frame a snapshot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, Protocol

import msgspec

from gpuwatch import text
from gpuwatch.alerts import Alert, Severity
from gpuwatch.alerts.attention import NO_ATTENTION, Attention, Mute
from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.rules import Limits
from gpuwatch.history import History, HistoryView
from gpuwatch.model import Snapshot, SourceState
from gpuwatch.sources.source import Source

PATIENCE: Final = 0.25
"""Seconds that one wait for a snapshot takes at most: how late `poke` and `set_interval` may reach the source."""


@dataclass(frozen=True, slots=True)
class Frame:
    """All that a reader draws at one moment; nothing in it ever changes."""

    snapshot: Snapshot
    received: float
    """Reader's monotonic clock when the snapshot came."""
    history: HistoryView
    alerts: tuple[Alert, ...] = ()
    """All that hold now, with their marks: the worst first, then the oldest. A sink's trouble is one of them."""
    raised: tuple[Alert, ...] = ()
    """Those that this snapshot raised, or made worse; never a sink's trouble."""
    cleared: tuple[Alert, ...] = ()
    """Those that it ended, with when and how."""
    attention: Attention = NO_ATTENTION
    """What the user has seen, and does not want to hear of."""
    number: int = 0
    """Counts up by one a frame."""


TROUBLE: Final = "gpuwatch"
"""The rule of an alert about gpuwatch itself: a log that cannot be written, a message that was not delivered."""


class Sink(Protocol):
    """Somebody who is told of every frame: the events log, messages. All its own work is done on threads of its own."""

    name: str
    """What the screen calls it: `events log`."""

    @property
    def trouble(self) -> str:
        """What keeps it from its work, in one line; empty when all is well. Read from the watch thread."""

    def take(self, frame: Frame) -> None:
        """Take in a frame, at once, from the watch thread; it must neither wait nor raise."""

    def close(self, seconds: float) -> None:
        """Finish what is under way, and give up after so many seconds; from any thread."""


class Watch(threading.Thread):
    """Turns snapshots into frames until the source ends or `stop` is called; a daemon, so that quitting never waits.

    `publish` is called from this thread and must not block. Where it raises RuntimeError (a UI that is closing) the
    watch ends quietly. Any other failure is published as a last frame whose snapshot has ended and says why.
    """

    def __init__(
        self,
        source: Source,
        publish: Callable[[Frame], object],
        *,
        engine: Engine | None = None,
        history: History | None = None,
        sinks: Sequence[Sink] = (),
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(name="gpuwatch-watch", daemon=True)
        self.newest: Frame | None = None
        """The last frame; may be read from any thread."""
        self.failure: Exception | None = None
        """What ended the watch, where something unexpected did."""
        self._source = source
        self._publish = publish
        self._engine = engine or Engine()
        self._history = history or History()
        self._sinks = sinks
        self._attention = Attention()
        self._troubles: dict[str, Alert] = {}
        self._clock = clock
        self._wall = wall
        self._patience = patience
        self._stopping = threading.Event()
        self._requests: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run(self) -> None:
        """Watch; called by `start`."""
        try:
            while not self._stopping.is_set() and self._step():
                pass
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
            if not self._stopping.is_set():
                self._fail(error)
        finally:
            self._source.close()

    def stop(self) -> None:
        """End the watch and close its source; from any thread, without waiting."""
        self._stopping.set()
        self._source.close()

    def set_interval(self, seconds: float) -> None:
        """Ask the source for a snapshot every so many seconds; from any thread."""
        self._requests.put(lambda: self._source.set_interval(seconds))

    def poke(self) -> None:
        """Ask the source for a sample at once; from any thread."""
        self._requests.put(self._source.poke)

    def acknowledge(self, alert: Alert) -> None:
        """Let an alert say nothing more for as long as it lasts; from any thread."""
        self._requests.put(lambda: self._attend(self._attention.acknowledged(alert, self._wall())))

    def mute(self, mute: Mute) -> None:
        """Let a rule, or one alert of it, say nothing for a while; from any thread."""
        self._requests.put(lambda: self._attend(self._attention.muted(mute)))

    def unmute(self, rule: str, key: str = "") -> None:
        """Let a rule, or one alert of it, speak again; from any thread."""
        self._requests.put(lambda: self._attend(self._attention.unmuted(rule, key)))

    def attend(self, attention: Attention) -> None:
        """Take over what was acknowledged and muted by another gpuwatch, or before; from any thread."""
        self._requests.put(lambda: self._attend(attention))

    def restore(self, alerts: Iterable[Alert]) -> None:
        """Go on with alerts that held when another gpuwatch stopped, as if we had raised them; from any thread."""
        held = tuple(alerts)
        self._requests.put(lambda: self._engine.restore(held, self._clock(), self._wall()))

    def set_limits(self, limits: Limits) -> None:
        """Judge by other limits from the next snapshot on; from any thread."""
        self._requests.put(lambda: setattr(self._engine, "limits", limits))

    def _attend(self, attention: Attention) -> None:
        self._attention = attention

    def _step(self) -> bool:
        """Take one snapshot, if one comes, and publish its frame; False where nobody listens any more."""
        self._pass_requests()
        # Time that really passes, whatever clock the frames are stamped with.
        began = time.monotonic()
        snapshot = self._source.next(self._patience)
        if snapshot is not None:
            return self._tell(self._frame(snapshot))
        # A source that has ended answers None at once: wait here, or the loop would spin.
        self._stopping.wait(self._patience - (time.monotonic() - began))
        return True

    def _pass_requests(self) -> None:
        while True:
            try:
                request = self._requests.get_nowait()
            except Empty:
                return
            request()

    def _frame(self, snapshot: Snapshot) -> Frame:
        now = self._clock()
        view = self._history.add(snapshot, now)
        wall = self._wall()
        changes = self._engine.update(snapshot, view, now, wall)
        mark = self._attention.mark
        active, raised, cleared = (
            tuple([mark(alert, wall) for alert in alerts])
            for alerts in (changes.active, changes.raised, changes.cleared)
        )
        self._attention = self._attention.pruned(changes.cleared, wall)
        active = (*self._troubled(now, wall), *active)
        return Frame(snapshot, now, view, active, raised, cleared, self._attention, self._next_number())

    def _troubled(self, now: float, wall: float) -> list[Alert]:
        """Give what keeps sinks from their work, as alerts about ourselves."""
        troubles = {sink.name: sink.trouble for sink in self._sinks}
        for name, words in troubles.items():
            before = self._troubles.get(name)
            if not words:
                self._troubles.pop(name, None)
            elif before is None or before.title != words:
                since = (before.raised, before.raised_monotonic) if before else (wall, now)
                self._troubles[name] = Alert(
                    rule=TROUBLE,
                    subject=name,
                    severity=Severity.WARNING,
                    most=Severity.WARNING,
                    title=words,
                    raised=since[0],
                    raised_monotonic=since[1],
                )
        return list(self._troubles.values())

    def _tell(self, frame: Frame) -> bool:
        self.newest = frame
        for sink in self._sinks:
            sink.take(frame)
        try:
            self._publish(frame)
        except RuntimeError:
            # The reader's event loop is closed: the program is on its way out.
            return False
        return True

    def _fail(self, error: Exception) -> None:
        self.failure = error
        last = self.newest
        words = text.clean(f"gpuwatch stopped watching: {type(error).__name__}: {error}", limit=400)
        snapshot = msgspec.structs.replace(
            last.snapshot if last else Snapshot(),
            state=SourceState.ENDED,
            since=self._wall(),
            words=f"{words} (this is a fault in gpuwatch; start it again)",
        )
        alerts = last.alerts if last else ()
        number = self._next_number()
        self._tell_last(Frame(snapshot, self._clock(), self._history.view, alerts, number=number))

    def _tell_last(self, frame: Frame) -> None:
        try:
            self._tell(frame)
        except Exception:  # noqa: BLE001 - `publish` itself is what fails, and `failure` already says so
            return

    def _next_number(self) -> int:
        return self.newest.number + 1 if self.newest else 0
