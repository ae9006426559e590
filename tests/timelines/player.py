"""Feeds a recording to a watch, second by second, and compares the events that come with those that must come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle, zip_longest
from typing import Final

import msgspec

from gpuwatch.alerts.alert import TROUBLE, Alert
from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rule import Observation, Rule, RuleContext
from gpuwatch.alerts.rules import RULES
from gpuwatch.base.units import GIB, Unit
from gpuwatch.declared.facts import Share
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.monitor import Frame, Monitor
from tests.timelines.machine import Machine, Tick
from tests.timelines.recording import Event, Recording


@dataclass
class Happening:
    """One alert as it came; times are seconds of the recording."""

    first: Alert
    """As it was raised."""
    last: Alert
    raised: float
    worse: list[float] = field(default_factory=list)
    eased: list[float] = field(default_factory=list)
    ended: float | None = None
    silent: list[tuple[float, float]] = field(default_factory=list)
    """When it was seen acknowledged: first and last, again and again."""

    def note_silence(self, alert: Alert, t: float) -> None:
        """Note whether it is acknowledged at this second; `last` is still what it was before."""
        if not alert.acknowledged:
            return
        since = self.silent.pop()[0] if self.silent and self.last.acknowledged else t
        self.silent.append((since, t))

    def as_event(self) -> Event:
        """Give it as a recording has it."""
        alert = self.last
        return Event(
            event=alert.rule,
            gpu=alert.index,
            subject=alert.subject.removesuffix(alert.gpu).rstrip(),
            severity=self.first.severity.name.lower(),
            worst=alert.most.name.lower(),
            worse=tuple(self.worse),
            eased=tuple(self.eased),
            owners=alert.owners,
            raised=self.raised,
            ended=self.ended,
            how=alert.how,
            peak=_shown(alert.unit, alert.peak),
            says=alert.title,
            silent=tuple(self.silent),
        )


class Film:
    """A source that gives the snapshots of a recording, and tells what happens besides."""

    def __init__(self, ticks: Iterator[Tick], over: Callable[[], None], act: Callable[[Tick], None]) -> None:
        """`over` is called where another gpuwatch goes on, and at the end; `act` for what the user does at a tick."""
        self.tick: Tick | None = None
        self.ended = False
        self._ticks = ticks
        self._over, self._act = over, act
        self._kept: Tick | None = None

    def next(self, timeout: float) -> Snapshot | None:
        """Return the next snapshot, at once."""
        del timeout
        while (tick := self._kept or next(self._ticks, None)) is not None:
            if tick.restart and tick is not self._kept:
                self._kept = tick
                self._over()
                return None
            self._kept, self.tick = None, tick
            self._act(tick)
            if tick.snapshot is not None:
                return tick.snapshot
        self.ended = True
        self._over()
        return None

    def set_interval(self, seconds: float) -> None:
        """Nobody asks."""

    def poke(self) -> None:
        """Nobody asks."""

    def set_shares(self, shares: Sequence[Share]) -> None:
        """Nobody asks."""

    def set_focus(self, gpu: str | None) -> None:
        """Nobody asks."""

    def close(self) -> None:
        """There is nothing to let go of."""


class Player:
    """Plays seconds to the end, and keeps the alerts that came, in the order in which they were raised.

    What must hold of every frame, whatever happens, is checked on the way.
    """

    def __init__(
        self,
        ticks: Iterator[Tick],
        limits: Sequence[Limits],
        look: Callable[[Frame, Tick, Collection[tuple[str, str]]], None] = lambda frame, tick, watched: None,
    ) -> None:
        """Each gpuwatch has the next of the limits, and so has one that reads them again.

        `look` sees each frame, and the (rule, subject) of the conditions that the engine had before it.
        """
        self.happened: list[Happening] = []
        self._active: dict[str, Happening] = {}
        self._limits = cycle(limits)
        self._look = look
        self._ids: set[str] = set()
        self._watched: Collection[tuple[str, str]] = ()
        self._began = 0.0
        """When the last gpuwatch began."""
        self._frame: Frame | None = None
        self._film = Film(ticks, lambda: self._watch.stop(), self._act)
        self._watch = self._new_watch()

    def play(self) -> list[Happening]:
        """Run the watch, and another after it where gpuwatch is started anew; raises what a watch failed with."""
        while True:
            self._watch.run()
            if self._watch.failure is not None:
                raise self._watch.failure
            if self._film.ended:
                return self.happened
            before, self._watch = self._frame, self._new_watch()
            self._began = self._film.tick.t if self._film.tick else 0.0
            if before is not None:
                # From a file, where the one before left them.
                self._watch.attend(before.attention)
                # Of another process's monotonic clock nothing is known.
                held = [msgspec.structs.replace(one, raised_monotonic=0.0) for one in before.alerts]
                self._watch.restore(msgspec.json.decode(msgspec.json.encode(held), type=list[Alert]))

    def _new_watch(self) -> Monitor:
        film, self._engine = self._film, Engine(next(self._limits), rules=(Rule("probe", self._probe), *RULES))
        return Monitor(
            film,
            self._take,
            engine=self._engine,
            clock=lambda: film.tick.now if film.tick else 0.0,
            wall=lambda: film.tick.wall if film.tick else 0.0,
            patience=0.0,
        )

    def _probe(self, context: RuleContext) -> Iterable[Observation]:
        self._watched = context.watched or ()
        return ()

    def _act(self, tick: Tick) -> None:
        if tick.reload:
            self._engine.limits = next(self._limits)
        for alert in self._frame.alerts if self._frame is not None else ():
            if alert.rule in tick.acknowledge:
                self._watch.acknowledge(alert)

    def _take(self, frame: Frame) -> None:
        """Note what a frame says; raises AssertionError where its parts do not agree."""
        self._frame, tick = frame, self._film.tick
        assert tick is not None
        people = {one.user for one in frame.snapshot.processes}
        for alert in frame.raised:
            assert alert.rule != TROUBLE, alert
            assert people.issuperset(alert.owners), f"{alert.key} at {tick.t:g} s names {alert.owners}"
            before = self._active.get(alert.key)
            if before is not None:
                assert alert.id == before.first.id, f"{alert.key} is raised a second time at {tick.t:g} s"
                assert alert.severity > before.last.severity, f"{alert.key} is raised, no worse, at {tick.t:g} s"
                before.worse.append(tick.t)
                continue
            assert abs(alert.raised - tick.wall) < 0.1, f"{alert.key}: raised at {alert.raised}, not at {tick.wall}"
            assert alert.id not in self._ids, f"{alert.key} has the id of another at {tick.t:g} s"
            self._ids.add(alert.id)
            self._active[alert.key] = Happening(alert, alert, tick.t)
            self.happened.append(self._active[alert.key])
        for alert in frame.eased:
            self._active[alert.key].eased.append(tick.t)
        for alert in frame.cleared:
            one = self._active.pop(alert.key)
            one.ended, one.last = tick.t, alert
            assert alert.ended is not None
            assert abs(alert.ended - tick.wall) < 0.1, f"{alert.key}: ended at {alert.ended}, not at {tick.wall}"
            lasted = tick.t - one.raised
            # A clock that was set and a restart: then nobody knows.
            if one.raised >= self._began or abs(tick.wall - one.first.raised - lasted) < 0.1:
                assert abs(alert.lasted - lasted) < 0.1, f"{alert.key} lasted {alert.lasted:g} s"
            assert alert.how, f"{alert.key} ended, and does not say how"
        for alert in frame.alerts:
            one = self._active[alert.key]
            assert alert.id == one.first.id, f"{alert.key} has become another at {tick.t:g} s"
            assert alert.raised == one.first.raised, f"{alert.key} began anew at {tick.t:g} s"
            assert alert.raised_monotonic <= tick.now, f"{alert.key} is of the future at {tick.t:g} s"
            assert alert.ended is None, f"{alert.key} has ended at {tick.t:g} s"
            assert alert.lasted >= 0, f"{alert.key} lasted {alert.lasted:g} s"
            _check_mean(alert)
            one.note_silence(alert, tick.t)
            one.last = alert
        assert len(frame.alerts) == len(self._active), f"one is gone and was never cleared at {tick.t:g} s"
        self._look(frame, tick, self._watched)


LEAST_IS_WORST: Final = frozenset({"nearly full", "time to full", "throttled"})
"""Rules whose peak is their least value; a rule of the user's own says `below` in its name in these tests."""


def _check_mean(alert: Alert) -> None:
    """Check that the mean is not beyond the worst value, but for rounding."""
    if alert.mean is None or alert.peak is None:
        return
    least = alert.rule in LEAST_IS_WORST or "below" in alert.rule
    beyond = alert.peak - alert.mean if least else alert.mean - alert.peak
    assert beyond <= 1e-9 * abs(alert.peak), f"{alert.key}: mean {alert.mean}, peak {alert.peak}"


def play(recording: Recording) -> list[Happening]:
    """Play a recording; give the alerts that came."""
    header = recording.header
    limits = msgspec.convert({"quiet": header.quiet, **header.limits}, Limits)
    return Player(Machine(recording).ticks(), [limits]).play()


# ---------------------------------------------------------------------------------------------------------------


def differences(happened: Sequence[Happening], events: Sequence[Event], sample: float = 1.0) -> list[str]:
    """Compare what came with what must come; give a line for each event that is not so, empty where all are.

    A moment may differ by one `sample`, in seconds.
    """
    found: list[str] = []
    for number, (one, event) in enumerate(zip_longest(happened, events), 1):
        if one is None or event is None:
            which = one.as_event() if one is not None else event
            assert which is not None
            missing = "never came" if one is None else "is one too many"
            found.append(f"{number}. {which.event} at {which.raised:g} {missing}")
            continue
        wrong = ", ".join(_different(one.as_event(), event, sample))
        if wrong:
            found.append(f"{number}. {event.event} at {event.raised:g}: {wrong}")
    return found


def as_lines(happened: Sequence[Happening]) -> str:
    """Return what came as the lines of a recording."""
    return "\n".join(msgspec.json.encode(one.as_event()).decode() for one in happened)


def _different(came: Event, must: Event, sample: float) -> Iterator[str]:
    for name in ("event", "gpu", "severity"):
        if getattr(came, name) != getattr(must, name):
            yield f"{name} is {getattr(came, name)!r}"
    if came.worst != (must.worst or must.severity):
        yield f"worst is {came.worst}"
    for name in ("subject", "owners", "how"):
        if getattr(must, name) not in (None, "", getattr(came, name)):
            yield f"{name} is {getattr(came, name)!r}"
    times = {name: (getattr(came, name), getattr(must, name)) for name in ("worse", "eased")}
    times |= {"raised": ((came.raised,), (must.raised,)), "ended": (_times(came.ended), _times(must.ended))}
    times["silent"] = (tuple(chain(*came.silent)), tuple(chain(*must.silent)))
    for name, (was, said) in times.items():
        if len(was) != len(said) or any(abs(one - other) > sample for one, other in zip(was, said, strict=True)):
            yield f"{name} {' and '.join(f'{one:g}' for one in was) or 'never'}"
    if must.peak is not None and (came.peak is None or abs(came.peak - must.peak) > must.within * abs(must.peak)):
        yield f"peak is {came.peak}"
    if must.says not in came.says:
        yield f"it says {came.says!r}"


def _times(moment: float | None) -> tuple[float, ...]:
    return () if moment is None else (moment,)


def _shown(unit: Unit, value: float | None) -> float | None:
    return value / GIB if value is not None and unit in (Unit.BYTES, Unit.FREE) else value
