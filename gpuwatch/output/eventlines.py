"""What `gpuwatch watch` prints: one line an event, as it comes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatch.alerts.alert import MARKS, TROUBLE, Alert
from gpuwatch.model import SourceState
from gpuwatch.output.events import value_words
from gpuwatch.output.plain import COLORS
from gpuwatch.units import long_duration

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame

_ENDED: Final = "✓"
_FINE: Final = "32"

_QUIET_STATES: Final = frozenset({SourceState.OK, SourceState.STARTING, SourceState.ENDED})
"""States of the whole that are no trouble, or are told elsewhere."""


class Happening(NamedTuple):
    """Something that a frame brought."""

    at: float
    """Wall-clock time."""
    kind: str
    """`raised`, `worse`, `eased` or `ended`."""
    alert: Alert


class Happenings:
    """Finds what is new in each frame; remembers no more than what holds."""

    def __init__(self) -> None:
        self._holding: frozenset[str] = frozenset()

    def of(self, frame: Frame) -> list[Happening]:
        """Give what a frame brought, in the order in which it is best read: what ended, then what began."""
        now = frame.snapshot.taken
        found = [Happening(one.ended or now, "ended", one) for one in frame.cleared]
        found += [Happening(now, "eased", one) for one in frame.eased]
        for one in frame.raised:
            is_new = _identity(one) not in self._holding
            found.append(Happening(one.raised if is_new else now, "raised" if is_new else "worse", one))
        self._holding = frozenset(map(_identity, frame.alerts))
        return [event for event in found if event.alert.rule != TROUBLE]  # those are told by `Troubles`


def _identity(alert: Alert) -> str:
    return alert.id or alert.key


class Lines:
    """Turns events into lines: with the date where it is another than that of the line before."""

    def __init__(self, *, color: bool = False) -> None:
        self._color = color
        self._day = ""

    def line(self, event: Happening) -> str:
        """Give one event's line."""
        moment = time.localtime(event.at)
        day = time.strftime("%Y-%m-%d ", moment)
        date, self._day = ("" if day == self._day else day), day
        alert = event.alert
        if event.kind == "ended":
            mark, color = _ENDED, _FINE
            verb = f"ended after {long_duration(alert.lasted)}"
            facts = [alert.title, alert.how if alert.how != alert.title else "", value_words(alert)]
        else:
            mark, color = MARKS[alert.severity], COLORS[alert.severity]
            verb = f"{event.kind:<6}"
            facts = [alert.title, alert.evidence]
        head = f"{mark} {verb}"
        if self._color:
            head = f"\x1b[{color}m{head}\x1b[0m"
        return f"{date}{time.strftime('%H:%M:%S', moment)} {head}  {' · '.join(filter(None, facts))}"


class Troubles:
    """What goes wrong with the watching itself: each is said once, and once more when it is over."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        """By whose trouble it is, what it is."""
        self._state = SourceState.OK

    def of(self, frame: Frame) -> Iterator[str]:
        """Give what is new in a frame."""
        yield from self._source(frame)
        troubles = [one for one in frame.alerts if one.rule == TROUBLE]
        now = {one.subject: _gist(one.title) for one in troubles}
        for one in troubles:
            if self._known.get(one.subject) != now[one.subject]:
                yield one.title
        for subject in self._known.keys() - now.keys():
            yield f"{subject}: all is well again"
        self._known = now

    def _source(self, frame: Frame) -> Iterator[str]:
        snapshot = frame.snapshot
        if snapshot.state not in _QUIET_STATES and snapshot.state is not self._state:
            self._state = snapshot.state
            yield f"{snapshot.words or snapshot.state.value}; gpuwatch waits until it is over"
        elif snapshot.state is SourceState.OK and self._state is not SourceState.OK:
            self._state = SourceState.OK
            yield f"the driver answers: {_several(snapshot.gpus)}"


def _gist(words: str) -> str:
    """Give what a trouble is, less how many wait because of it and for how long it has been so: those only grow."""
    parts = [re.sub(r" for [0-9].*", "", part) for part in words.split("; ")]
    return "; ".join(part for part in parts if not part[:1].isdigit())


def greeting(frame: Frame, log: str) -> str:
    """Say what is watched, once it is."""
    host = f" on {frame.snapshot.host}" if frame.snapshot.host else ""
    return f"watching {_several(frame.snapshot.gpus)}{host}" + (f"; events go to {log}" if log else "")


def _several(gpus: Iterable[object]) -> str:
    count = len(tuple(gpus))
    return f"{count} GPU{'s' * (count != 1)}"
