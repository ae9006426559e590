"""Monitor thread: turns each snapshot, or change of marks, into an immutable frame with history and alerts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from gpuwatch.alerts.alert import NO_ATTENTION, TROUBLE, Alert, Attention, Mute, Severity
from gpuwatch.alerts.condition import Tick, new_alert
from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.base import text
from gpuwatch.base.errors import GpuwatchError
from gpuwatch.declared.facts import Share
from gpuwatch.history.history import History, HistoryView
from gpuwatch.model.holdings import Holdings
from gpuwatch.model.snapshot import IdleTimes, Snapshot, SourceState
from gpuwatch.sources.source import Source

PATIENCE: Final = 0.25
"""Longest wait for a snapshot in seconds, and so the longest delay of a request (`poke`, `mute`), where the source
cannot be woken."""
LONG_PATIENCE: Final = 60.0
"""Longest wait where it can be woken."""


class Frame(msgspec.Struct, frozen=True):
    """Snapshot with its history and alerts: everything that is drawn at one time. It never changes."""

    snapshot: Snapshot
    received: float
    """Reader's monotonic time at which the snapshot came."""
    history: HistoryView
    alerts: tuple[Alert, ...] = ()
    """All active alerts with their marks: the worst first, then the oldest. Troubles of sinks are included."""
    raised: tuple[Alert, ...] = ()
    """Alerts that this snapshot raised, or made worse; never a sink's trouble. One of a moment is in `cleared` too.

    Where only marks changed, a frame has the snapshot of the frame before, and `raised`, `cleared` and `eased` are
    empty.
    """
    cleared: tuple[Alert, ...] = ()
    """Alerts that this snapshot ended, with the time and the reason."""
    attention: Attention = NO_ATTENTION
    """Alerts and rules that the user has acknowledged or muted."""
    number: int = 0
    """Number of the frame."""
    eased: tuple[Alert, ...] = ()
    """Active alerts whose severity this snapshot lowered."""
    attended: Attention = NO_ATTENTION
    """Argument of the last `attend`: where `attention` differs from it, the user of this gpuwatch changed it."""
    early: tuple[Alert, ...] = ()
    """Conditions that are true from the start and too new for an alert: shown in rows, without event or message."""
    restarts: int = 0
    """How often the monitor was restarted before this frame; greater than 0 in every frame of a replay."""
    holdings: Holdings = Holdings(Snapshot())
    """Holdings of the same snapshot, by owner and process."""

    def __post_init__(self) -> None:
        if self.holdings.snapshot is not self.snapshot:
            msgspec.structs.force_setattr(self, "holdings", Holdings(self.snapshot))


class Sink(Protocol):
    """Receiver of every frame, such as the events log. It works on its own threads.

    Its trouble is shown as an alert of the rule `gpuwatch`. The monitor never closes a sink: its creator does, after
    the monitor was stopped.
    """

    name: str
    """Name on screen: `events log`."""

    @property
    def trouble(self) -> str:
        """Why the sink cannot work, in one line; empty for no trouble. Read from the monitor thread."""

    def take(self, frame: Frame) -> None:
        """Accept a frame from the monitor thread, without waiting. An exception becomes the sink's trouble."""

    def close(self, seconds: float) -> None:
        """Finish the running work, and give up after `seconds`; from any thread."""


def seconds_suspended() -> float:
    """Return how long the machine has been suspended since its boot.

    CLOCK_BOOTTIME counts that time, and CLOCK_MONOTONIC does not (clock_gettime(2)).
    """
    awake = time.monotonic()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - awake


class Monitor(threading.Thread):
    """Thread that turns snapshots into frames until the source ends or `stop` is called; quitting never waits for it.

    `publish` is called with each frame from this thread, and must not block. Where it raises RuntimeError (a UI that is
    closing) the thread ends quietly. Any other failure is published as a last frame whose snapshot has ended and says
    why. All public methods may be called from any thread; a frame shows changed marks at once.
    """

    def __init__(
        self,
        source: Source,
        publish: Callable[[Frame], object] = lambda frame: None,
        *,
        engine: Engine | None = None,
        history: History | None = None,
        sinks: Sequence[Sink] = (),
        known_idle: Callable[[Snapshot], IdleTimes | None] = lambda snapshot: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        slept: Callable[[], float] = seconds_suspended,
        patience: float | None = None,
    ) -> None:
        """`known_idle` returns the idle times that another gpuwatch has counted; it must neither wait nor raise.

        The thread calls it once, for the first snapshot with GPUs.
        """
        super().__init__(name="gpuwatch-monitor", daemon=True)
        self.newest: Frame | None = None
        """The last frame; may be read from any thread."""
        self.failure: Exception | None = None
        """Exception that ended the thread; None where there was none."""
        self.publish = publish
        """Receiver of each frame; may be replaced at any time."""
        self._source = source
        self._engine = engine or Engine()
        self._history = history or History()
        self._sinks = list(sinks)
        self._known_idle: Callable[[Snapshot], IdleTimes | None] | None = known_idle
        """None once they are in the history."""
        self._restarts = 0
        self._attention = self._attended = NO_ATTENTION
        self._marks_changed = False
        """Whether changed marks wait to be shown."""
        self._troubles: dict[str, Alert] = {}
        self._failed: dict[str, str] = {}
        """By sink, the error that it raised for the last frame."""
        self._clock = clock
        self._wall = wall
        self._slept = slept
        wake = getattr(source, "wake", None)
        self._wake: Callable[[], object] = wake or (lambda: None)
        self._woken = False
        """Whether a request came since the last wait."""
        self._patience = patience if patience is not None else PATIENCE if wake is None else LONG_PATIENCE
        self._stopping = threading.Event()
        self._requests: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._attending: SimpleQueue[Attention] = SimpleQueue()
        """Arguments of `attend` that no frame contains yet."""

    def run(self) -> None:
        try:
            while not self._stopping.is_set() and self._step():
                pass
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
            if not self._stopping.is_set():
                self._fail(error)
        finally:
            self._source.close()

    def stop(self) -> None:
        """End the thread and close its source, without waiting."""
        self._stopping.set()
        self._source.close()

    def set_interval(self, seconds: float) -> None:
        """Request a snapshot every `seconds` from the source."""
        self._request(lambda: self._source.set_interval(seconds))

    def poke(self) -> None:
        """Request a sample at once from the source."""
        self._request(self._source.poke)

    def set_shares(self, shares: Sequence[Share]) -> None:
        """Make the source read declarations with other agreed shares."""
        self._request(lambda: self._source.set_shares(shares))

    def set_focus(self, gpu: str | None) -> None:
        """Make the source read PCIe and NVLink only of this GPU (`Gpu.key`); None for no GPU."""
        self._request(lambda: self._source.set_focus(gpu))

    def add(self, *sinks: Sink) -> None:
        """Pass every frame to these sinks too, from the next frame on."""
        self._request(lambda: self._sinks.extend(sinks))

    def acknowledge(self, alert: Alert) -> None:
        """Acknowledge an alert: no notices until it gets worse or ends."""
        self._mark(lambda: self._attention.acknowledged(alert, self._wall()))

    def unacknowledge(self, alert: Alert) -> None:
        """Take back the acknowledgement of an alert."""
        self._mark(lambda: self._attention.unacknowledged(alert))

    def mute(self, mute: Mute) -> None:
        """Mute a rule, or one alert of it."""
        self._mark(lambda: self._attention.muted(mute))

    def unmute(self, rule: str, key: str = "") -> None:
        """Unmute a rule, or one alert of it."""
        self._mark(lambda: self._attention.unmuted(rule, key))

    def attend(self, attention: Attention) -> None:
        """Replace the acknowledgements and mutes by those of another gpuwatch, or of an earlier one.

        The next frame shows them, together with the marks that this gpuwatch's user changed since the frame before.
        """
        self._attending.put(attention)
        self._request(lambda: None)

    def restore(self, alerts: Iterable[Alert]) -> None:
        """Continue alerts that held when another gpuwatch stopped, as if this one had raised them."""
        held = tuple(alerts)
        self._request(lambda: self._engine.restore(held, self._clock(), self._wall()))

    def restart(self, history: History, engine: Engine) -> None:
        """Use another history and engine from the next snapshot on: a replay shows another time of its recording."""

        def apply() -> None:
            self._history, self._engine = history, engine
            self._restarts += 1

        self._request(apply)

    def set_limits(self, limits: Limits) -> None:
        """Use other limits from the next snapshot on."""
        self._request(lambda: setattr(self._engine, "limits", limits))

    def _mark(self, change: Callable[[], Attention]) -> None:
        def apply() -> None:
            self._attention, self._marks_changed = change(), True

        self._request(apply)

    def _step(self) -> bool:
        """Publish the frame of one snapshot, if one comes; return False where there is no receiver any more."""
        self._apply_requests()
        if self._marks_changed and not self._publish_marks():
            return False
        # Real time, whatever clock the frames are stamped with.
        began = time.monotonic()
        snapshot = self._source.next(self._patience)
        if snapshot is not None:
            self._apply_requests()  # requests so far count for this snapshot
            return self._send(self._frame(snapshot))
        woken, self._woken = self._woken, False
        # A source that has ended answers None at once: wait here, or the loop would spin.
        if not woken:
            self._stopping.wait(min(self._patience, PATIENCE) - (time.monotonic() - began))
        return True

    def _request(self, call: Callable[[], object]) -> None:
        """Let the thread make a call at once."""
        self._requests.put(call)
        self._woken = True
        self._wake()

    def _apply_requests(self) -> None:
        # Before the user's own marks, whichever came first: taken over after them, it would undo them.
        while not self._attending.empty():  # only this thread takes from the queues
            self._attention = self._attended = self._attending.get()
        while not self._requests.empty():
            self._requests.get()()

    def _publish_marks(self) -> bool:
        """Publish the newest frame again with the present marks; return False where there is no receiver any more."""
        self._marks_changed = False
        if self.newest is None:
            return True
        alerts = self._marked(self.newest.alerts, self._wall())
        return self._send(self._next(self.newest, alerts=alerts, raised=(), cleared=(), eased=()))

    def _next(self, frame: Frame, **changes: Any) -> Frame:
        """Return a frame with the present marks and the next number."""
        number = self.newest.number + 1 if self.newest else 0
        changes |= {"attention": self._attention, "attended": self._attended}
        return replace(frame, number=number, restarts=self._restarts, **changes)

    def _marked(self, alerts: Iterable[Alert], wall: float) -> tuple[Alert, ...]:
        return tuple([self._attention.mark(alert, wall) for alert in alerts])

    def _frame(self, snapshot: Snapshot) -> Frame:
        now, wall, slept = self._clock(), self._wall(), self._slept()
        if self._known_idle is not None and snapshot.gpus:
            self._history.restore_idle(self._known_idle(snapshot) or {}, now + slept)
            self._known_idle = None
        view = self._history.add(snapshot, now, slept)
        holdings = Holdings(snapshot)
        changes = self._engine.update(snapshot, view, now, wall, holdings)
        troubles, over = self._check_sinks(snapshot, now, wall)
        active = sorted((*troubles, *changes.active), key=lambda alert: alert.weight) if troubles else changes.active
        alerts, cleared = self._marked(active, wall), self._marked(changes.cleared, wall)
        frame = Frame(
            snapshot,
            now,
            view,
            alerts=alerts,
            raised=self._marked(changes.raised, wall),
            cleared=cleared,
            eased=self._marked(changes.eased, wall),
            early=self._marked(changes.early, wall),
            holdings=holdings,
        )
        self._attention = self._attention.pruned((*changes.cleared, *over), wall)
        self._marks_changed = False
        return self._next(frame)

    def _check_sinks(self, snapshot: Snapshot, now: float, wall: float) -> tuple[list[Alert], list[Alert]]:
        """Return the troubles of sinks as alerts about gpuwatch itself, and the alerts of troubles that have ended."""
        before, self._troubles = self._troubles, {}
        for sink in self._sinks:
            try:
                words = self._failed.get(sink.name) or sink.trouble
            except Exception as error:  # noqa: BLE001 - a sink that is broken must not end the monitor
                words = _failure(sink, error)
            if not words:
                continue
            alert = before.get(sink.name)
            if alert is None:
                tick = Tick(now, wall, snapshot.host, quiet=False)
                alert = new_alert(TROUBLE, tick, severity=Severity.WARNING, subject=sink.name)
            lasted = max(0.0, now - alert.raised_monotonic)
            self._troubles[sink.name] = msgspec.structs.replace(alert, title=words, seen=wall, lasted=lasted)
        over = [alert for name, alert in before.items() if name not in self._troubles]
        return list(self._troubles.values()), over

    def _send(self, frame: Frame) -> bool:
        self.newest = frame
        for sink in self._sinks:
            try:
                sink.take(frame)
            except Exception as error:  # noqa: BLE001 - a sink that is broken must not end the monitor
                self._failed[sink.name] = _failure(sink, error)
            else:
                self._failed.pop(sink.name, None)
        try:
            self.publish(frame)
        except RuntimeError:
            # The reader's event loop is closed: the program is on its way out.
            return False
        return True

    def _fail(self, error: Exception) -> None:
        """Publish a last frame with the error that ended the thread."""
        self.failure = error
        last = self.newest
        words = text.clean(f"gpuwatch stopped watching: {type(error).__name__}: {error}", limit=400)
        snapshot = msgspec.structs.replace(
            last.snapshot if last else Snapshot(),
            state=SourceState.ENDED,
            since=self._wall(),
            words=f"{words} (this is a fault in gpuwatch; start it again)",
        )
        frame = Frame(snapshot, self._clock(), self._history.view, alerts=last.alerts if last else ())
        with contextlib.suppress(Exception):  # `publish` itself may be what fails, and `failure` already says so
            self._send(self._next(frame))


def _failure(sink: Sink, error: Exception) -> str:
    kind = "" if isinstance(error, GpuwatchError) else f"{type(error).__name__}: "
    return text.clean(f"{sink.name}: {kind}{error}", limit=300)
