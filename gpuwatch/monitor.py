"""The thread between a source and its readers: history, alerts, one frozen frame a snapshot or change of marks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from gpuwatch import text
from gpuwatch.alerts.alert import NO_ATTENTION, TROUBLE, Alert, Attention, Mute, Severity
from gpuwatch.alerts.condition import Tick, new_alert
from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.errors import GpuwatchError
from gpuwatch.history import History, HistoryView, IdleTimes
from gpuwatch.model import Snapshot, SourceState
from gpuwatch.sources.source import Source

if TYPE_CHECKING:
    from gpuwatch.declared.facts import Share

PATIENCE: Final = 0.25
"""Seconds that one wait for a snapshot takes at most: how late a request (`poke`, `mute`) may be heard."""


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
    """Those that this snapshot raised, or made worse; never a sink's trouble.

    Where only marks changed, a frame has the snapshot of the one before, and nothing here, in `cleared` and `eased`.
    """
    cleared: tuple[Alert, ...] = ()
    """Those that it ended, with when and how."""
    attention: Attention = NO_ATTENTION
    """What the user has seen, and does not want to hear of."""
    number: int = 0
    """Counts up by one a frame."""
    eased: tuple[Alert, ...] = ()
    """Those that hold and that this snapshot let step down."""
    attended: Attention = NO_ATTENTION
    """What `Watch.attend` was given last: where `attention` differs from it, the user of this gpuwatch changed it."""
    kept: IdleTimes | None = None
    """Idle times that a `gpuwatch watch` has kept, for where the history is too short; None where none runs."""


class Sink(Protocol):
    """Somebody who is told of every frame: the events log, messages. All its own work is done on threads of its own.

    Its trouble is shown as an alert of the rule `gpuwatch`. The watch never closes it: who made it does, once the watch
    has been stopped.
    """

    name: str
    """What the screen calls it: `events log`."""

    @property
    def trouble(self) -> str:
        """What keeps it from its work, in one line; empty when all is well. Read from the watch thread."""

    def take(self, frame: Frame) -> None:
        """Take in a frame, at once, from the watch thread; it must not wait. What it raises is its trouble."""

    def close(self, seconds: float) -> None:
        """Finish what is under way, and give up after so many seconds; from any thread."""


def seconds_suspended() -> float:
    """Return how long the machine has been suspended since its boot.

    CLOCK_BOOTTIME counts that time, and CLOCK_MONOTONIC does not (clock_gettime(2)).
    """
    awake = time.monotonic()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - awake


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
        kept: Callable[[Snapshot], IdleTimes | None] = lambda snapshot: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        slept: Callable[[], float] = seconds_suspended,
        patience: float = PATIENCE,
    ) -> None:
        """`kept` gives `Frame.kept`; called from the thread for each snapshot, it must neither wait nor raise."""
        super().__init__(name="gpuwatch-watch", daemon=True)
        self.newest: Frame | None = None
        """The last frame; may be read from any thread."""
        self.failure: Exception | None = None
        """What ended the watch, where something unexpected did."""
        self._source = source
        self._publish = publish
        self._engine = engine or Engine()
        self._history = history or History()
        self._sinks = list(sinks)
        self._kept = kept
        self._attention = self._attended = NO_ATTENTION
        self._marks_changed = False
        """Somebody waits to see what they acknowledged or muted."""
        self._troubles: dict[str, Alert] = {}
        self._failed: dict[str, str] = {}
        """By sink, what it raised when it was told of the last frame."""
        self._clock = clock
        self._wall = wall
        self._slept = slept
        self._patience = patience
        self._stopping = threading.Event()
        self._requests: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._attending: SimpleQueue[Attention] = SimpleQueue()
        """What `attend` was given and no frame has yet."""

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

    def set_shares(self, shares: Sequence[Share]) -> None:
        """Let the source read declarations by other agreed shares; from any thread."""
        self._requests.put(lambda: self._source.set_shares(shares))

    def add(self, *sinks: Sink) -> None:
        """Tell these of every frame too, from the next on; from any thread."""
        self._requests.put(lambda: self._sinks.extend(sinks))

    def acknowledge(self, alert: Alert) -> None:
        """Let an alert say nothing more until it gets worse or ends; from any thread. A frame shows it at once."""
        self._requests.put(lambda: self._mark(self._attention.acknowledged(alert, self._wall())))

    def unacknowledge(self, alert: Alert) -> None:
        """Take back the acknowledgement of an alert; from any thread. A frame shows it at once."""
        self._requests.put(lambda: self._mark(self._attention.unacknowledged(alert)))

    def mute(self, mute: Mute) -> None:
        """Let a rule, or one alert of it, say nothing for a while; from any thread. A frame shows it at once."""
        self._requests.put(lambda: self._mark(self._attention.muted(mute)))

    def unmute(self, rule: str, key: str = "") -> None:
        """Let a rule, or one alert of it, speak again; from any thread. A frame shows it at once."""
        self._requests.put(lambda: self._mark(self._attention.unmuted(rule, key)))

    def attend(self, attention: Attention) -> None:
        """Take over what was acknowledged and muted by another gpuwatch, or before; from any thread.

        The next frame shows it, with what the user of this one acknowledged or muted since the frame before.
        """
        self._attending.put(attention)

    def restore(self, alerts: Iterable[Alert]) -> None:
        """Go on with alerts that held when another gpuwatch stopped, as if we had raised them; from any thread."""
        held = tuple(alerts)
        self._requests.put(lambda: self._engine.restore(held, self._clock(), self._wall()))

    def set_limits(self, limits: Limits) -> None:
        """Judge by other limits from the next snapshot on; from any thread."""
        self._requests.put(lambda: setattr(self._engine, "limits", limits))

    def _mark(self, attention: Attention) -> None:
        self._attention, self._marks_changed = attention, True

    def _step(self) -> bool:
        """Take one snapshot, if one comes, and publish its frame; False where nobody listens any more."""
        self._pass_requests()
        if self._marks_changed and not self._tell_marks():
            return False
        # Time that really passes, whatever clock the frames are stamped with.
        began = time.monotonic()
        snapshot = self._source.next(self._patience)
        if snapshot is not None:
            # What was asked for meanwhile counts for this snapshot.
            self._pass_requests()
            return self._tell(self._frame(snapshot))
        # A source that has ended answers None at once: wait here, or the loop would spin.
        self._stopping.wait(self._patience - (time.monotonic() - began))
        return True

    def _pass_requests(self) -> None:
        # Before the user's own marks, whichever came first: taken over after them, it would undo them.
        with contextlib.suppress(Empty):
            while True:
                self._attention = self._attended = self._attending.get_nowait()
        while True:
            try:
                request = self._requests.get_nowait()
            except Empty:
                return
            request()

    def _tell_marks(self) -> bool:
        """Publish the newest frame again with the marks as they are now; False where nobody listens any more."""
        self._marks_changed = False
        last = self.newest
        if last is None:
            return True
        return self._tell(
            replace(
                last,
                alerts=self._marked(last.alerts, self._wall()),
                raised=(),
                cleared=(),
                eased=(),
                attention=self._attention,
                number=self._next_number(),
                attended=self._attended,
            )
        )

    def _marked(self, alerts: Iterable[Alert], wall: float) -> tuple[Alert, ...]:
        return tuple([self._attention.mark(alert, wall) for alert in alerts])

    def _frame(self, snapshot: Snapshot) -> Frame:
        now, wall = self._clock(), self._wall()
        view = self._history.add(snapshot, now, self._slept())
        changes = self._engine.update(snapshot, view, now, wall)
        troubles, over = self._troubled(snapshot, now, wall)
        active = sorted((*troubles, *changes.active), key=lambda alert: alert.weight) if troubles else changes.active
        shown = self._marked(active, wall)
        raised, cleared = self._marked(changes.raised, wall), self._marked(changes.cleared, wall)
        eased = self._marked(changes.eased, wall)
        self._attention = self._attention.pruned((*changes.cleared, *over), wall)
        self._marks_changed = False
        return Frame(
            snapshot,
            now,
            view,
            shown,
            raised,
            cleared,
            self._attention,
            self._next_number(),
            eased,
            self._attended,
            self._kept(snapshot),
        )

    def _troubled(self, snapshot: Snapshot, now: float, wall: float) -> tuple[list[Alert], list[Alert]]:
        """Return what keeps sinks from their work, as alerts about ourselves, and those that are over."""
        before, self._troubles = self._troubles, {}
        for sink in self._sinks:
            words = self._trouble_of(sink)
            if not words:
                continue
            alert = before.get(sink.name)
            if alert is None:
                at = Tick(now, wall, snapshot.host, quiet=False)
                alert = new_alert(TROUBLE, at, severity=Severity.WARNING, subject=sink.name)
            lasted = max(0.0, now - alert.raised_monotonic)
            self._troubles[sink.name] = msgspec.structs.replace(alert, title=words, seen=wall, lasted=lasted)
        over = [alert for name, alert in before.items() if name not in self._troubles]
        return list(self._troubles.values()), over

    def _trouble_of(self, sink: Sink) -> str:
        try:
            return self._failed.get(sink.name) or sink.trouble
        except Exception as error:  # noqa: BLE001 - a sink that is broken must not end the watch
            return _failure(sink, error)

    def _tell(self, frame: Frame) -> bool:
        self.newest = frame
        for sink in self._sinks:
            try:
                sink.take(frame)
            except Exception as error:  # noqa: BLE001 - a sink that is broken must not end the watch
                self._failed[sink.name] = _failure(sink, error)
            else:
                self._failed.pop(sink.name, None)
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
        self._tell_last(
            Frame(
                snapshot,
                self._clock(),
                self._history.view,
                alerts,
                attention=self._attention,
                number=self._next_number(),
                attended=self._attended,
            )
        )

    def _tell_last(self, frame: Frame) -> None:
        try:
            self._tell(frame)
        except Exception:  # noqa: BLE001 - `publish` itself is what fails, and `failure` already says so
            return

    def _next_number(self) -> int:
        return self.newest.number + 1 if self.newest else 0


def _failure(sink: Sink, error: Exception) -> str:
    kind = "" if isinstance(error, GpuwatchError) else f"{type(error).__name__}: "
    return text.clean(f"{sink.name}: {kind}{error}", limit=300)
