"""Alerts, frames and a log on disk, for the tests of what keeps them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from gpuwatch.alerts.alert import NO_ATTENTION, Alert, Attention, Severity
from gpuwatch.history import History
from gpuwatch.model import Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.recorder.event_writer import EventsLog, Pace
from gpuwatch.recorder.events_log import log_name
from tests.support.builders import EPOCH, snapshot
from tests.support.waiting import PATIENCE as PATIENCE
from tests.support.waiting import wait_for as wait_for

HOST = "box3"
QUICK = Pace(retry=0.05, lock=0.02, touch=0.05, carry=3600.0)
"""Fast enough for a test to wait for."""


def alert(name: str = "a", **changes: Any) -> Alert:
    """Return an alert about a GPU called `name`, raised at the epoch of the tests."""
    fields: dict[str, Any] = {
        "id": f"id-{name}",
        "rule": "memory near limit",
        "host": HOST,
        "gpu": f"GPU-{name}",
        "index": 0,
        "severity": Severity.WARNING,
        "most": Severity.WARNING,
        "title": f"GPU {name} near limit",
        "raised": EPOCH,
        "seen": EPOCH,
    }
    return Alert(**{**fields, **changes})


def ended(one: Alert, *, after: float = 60.0, how: str = "back within the limit") -> Alert:
    """Return an alert as it ended."""
    return msgspec.structs.replace(one, ended=one.raised + after, lasted=after, how=how)


def frame(
    *held: Alert,
    cleared: Iterable[Alert] = (),
    attention: Attention = NO_ATTENTION,
    attended: Attention = NO_ATTENTION,
    shown: Snapshot | None = None,
    **changes: Any,
) -> Frame:
    """Return a frame with a snapshot of its own."""
    seen = shown or snapshot(host=changes.pop("host", HOST), **changes)
    view = History().view
    return Frame(seen, 0.0, view, tuple(held), cleared=tuple(cleared), attention=attention, attended=attended)


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log that are whole."""
    found: list[dict[str, Any]] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def story(path: Path) -> list[str]:
    """Return what the lines of a log tell, in short: `raised id-a`, `began`."""
    return [" ".join(filter(None, (one["event"], one.get("alert", {}).get("id", "")))) for one in lines(path)]


class Keeper:
    """An events log that is fed frames by a test, on a clock of the test's own."""

    def __init__(self, folder: Path, *, now: float = EPOCH + 1000.0, path: Path | None = None, **options: Any) -> None:
        self.now = now
        self.restored: list[tuple[Alert, ...]] = []
        self.path = path or folder / log_name()
        self.log = EventsLog(
            path=path,
            folder=folder,
            restore=lambda alerts: self.restored.append(tuple(alerts)),
            pace=options.pop("pace", QUICK),
            wall=lambda: self.now,
            **options,
        )

    def settle(self, *held: Alert, **changes: Any) -> Keeper:
        """Start it, have it take over, and let it find out what holds."""
        self.log.start()
        wait_for(lambda: self.log._settle_at is not None, "the log was not begun")
        for _ in range(3):
            self.log.take(frame(*held, **changes))
        wait_for(lambda: self.log._settle_at is None, "it did not settle")
        return self

    def feed(self, *held: Alert, cleared: Iterable[Alert] = ()) -> None:
        """Let a frame come, a second later."""
        self.now += 1.0
        self.log.take(frame(*held, cleared=cleared))

    def expect(self, *told: str) -> None:
        """Wait until the log tells these, of alerts and gaps, and nothing else."""
        wait_for(lambda: self.told() == list(told), f"{list(told)} was to be told")

    def told(self) -> list[str]:
        """Return what the log tells of alerts and gaps."""
        return [line for line in story(self.path) if line.split()[0] not in ("began", "stopped")]

    def close(self) -> None:
        """End it, and see that it ends."""
        self.log.close(PATIENCE)
        assert not self.log._thread.is_alive()


Keep: TypeAlias = Callable[..., Keeper]


@contextlib.contextmanager
def keeping(folder: Path) -> Iterator[Keep]:
    """Return a function that makes a log in a folder; all are closed."""
    made: list[Keeper] = []

    def make(**options: Any) -> Keeper:
        made.append(Keeper(folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
