"""What is recorded: alerts, frames, recorders, use and replays on a clock of the test's own.

As a program: a recorder that records until it is killed.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from math import inf
from pathlib import Path
from sqlite3 import Connection
from typing import Any, TypeAlias

import msgspec

from gpuwatch.alerts.alert import NO_ATTENTION, Alert, Attention, Severity
from gpuwatch.analysis.events import Events, Gap
from gpuwatch.history.history import History, Use
from gpuwatch.history.timeline import Minute
from gpuwatch.model.snapshot import IdleHolding, Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.recorder import recording as files
from gpuwatch.recorder.anonymise import Commands
from gpuwatch.recorder.events import EventsPart, write_events
from gpuwatch.recorder.marks import read_marks
from gpuwatch.recorder.opening import StoreError, reading
from gpuwatch.recorder.part import Pace
from gpuwatch.recorder.recorder import Recorder, UsageSettings
from gpuwatch.recorder.recording_writer import MOST_WAITING, RecordingWriter
from gpuwatch.recorder.replay import Replay
from gpuwatch.recorder.schema import lock_path, own_store
from gpuwatch.recorder.store import Store
from gpuwatch.recorder.use import By, RunId, Sums, UsedGpu, UsedRun, UseReport, read_reports, write_use
from gpuwatch.sources.demo import DemoSource
from tests import CHECKOUT
from tests.support.builders import EPOCH, GIB, TOTAL, at, gpu, holding, snapshot
from tests.support.waiting import PATIENCE as PATIENCE
from tests.support.waiting import wait_for as wait_for

HOST = "box3"
QUICK = Pace(poll=0.02, retry=0.05, touch=0.05, usage=3600.0)
"""Fast enough for a test to wait for; usage is written when the recorder is closed."""


def alert(name: str = "a", **changes: Any) -> Alert:
    """Return an alert about a GPU called `name`, raised at the epoch of the tests."""
    fields: dict[str, Any] = {
        "id": f"id-{name}",
        "rule": "nearly full",
        "host": HOST,
        "gpu": f"GPU-{name}",
        "index": 0,
        "severity": Severity.WARNING,
        "most": Severity.WARNING,
        "title": f"GPU {name} nearly full",
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
    """Return a frame with a snapshot of its own, which raised all its alerts."""
    seen = shown or snapshot(host=changes.pop("host", HOST), **changes)
    view = History().view
    return Frame(seen, 0.0, view, held, raised=held, cleared=tuple(cleared), attention=attention, attended=attended)


def write(path: Path, *alerts: Alert, gaps: Iterable[Gap] = (), now: float = EPOCH) -> Path:
    """Write events to a store."""
    Store(path).write(lambda connection: write_events(connection, alerts, gaps, now))
    return path


def ask(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Return what a store answers."""
    with reading(path) as connection:
        return connection.execute(query).fetchall()


def change(path: Path, *statements: str) -> None:
    """Change a store behind gpuwatch's back."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def damage(path: Path, content: bytes) -> None:
    """Put a damaged file in the place of a store, in one step, and not within a transaction.

    SQLite would roll the journal of that one back into the damaged file.
    """
    journal = path.with_name(f"{path.name}-journal")
    wait_for(lambda: not journal.exists())
    draft = path.with_name("draft")
    draft.write_bytes(content)
    draft.chmod(0o600)
    draft.replace(path)


def story(path: Path) -> list[str]:
    """Return the recorded events in the order in which they were first written: `id-a warning`, `id-b ended`."""
    try:
        rows = ask(path, "SELECT id, ended, json_extract(alert, '$.severity') FROM events ORDER BY rowid")
    except (FileNotFoundError, StoreError):
        return []
    return [f"{id} {'ended' if end is not None else Severity(level).name.lower()}" for id, end, level in rows]


def saved_marks(path: Path) -> set[str]:
    """Return the marks in a store, as `marks` does."""
    try:
        with reading(path) as connection:
            return marks(read_marks(connection))
    except FileNotFoundError:
        return set()
    except StoreError as error:
        return {str(error)}


def marks(attention: Attention) -> set[str]:
    """Return the GPUs whose alert is acknowledged, and the rules that are muted."""
    return {one.key.rpartition("-")[2] for one in attention.acks} | {one.rule for one in attention.mutes}


class FailingStore(Store):
    """Store whose writes fail, or wait, as a test says."""

    failure: Exception | None = None
    before_write: Callable[[], object] | None = None
    after_write: Callable[[], object] | None = None

    def write(self, change: Callable[[sqlite3.Connection], None]) -> None:
        """Write, or fail."""
        if self.before_write is not None:
            self.before_write()
        if self.failure is not None:
            raise self.failure
        super().write(change)
        if self.after_write is not None:
            self.after_write()


class Recording:
    """A recorder that is fed frames by a test; what it hands over comes back in frames, as from a monitor."""

    def __init__(self, folder: Path, *, now: float = EPOCH + 1000.0, **options: Any) -> None:
        self.now = now
        self.restored: list[tuple[Alert, ...]] = []
        self.attention = self.attended = NO_ATTENTION
        self._held: tuple[Alert, ...] = ()
        self._guard = threading.RLock()
        self.attended_count = 0
        """How often marks were handed over."""
        self.path: Path = options.get("named") or own_store(folder)
        self.stores: list[FailingStore] = []
        self.recorder = Recorder(
            folder=folder,
            restore=self._restore,
            attend=self._attend,
            **{
                "usage": UsageSettings(is_kept=False),
                "pace": QUICK,
                "wall": lambda: self.now,
                "make_store": self._make_store,
                **options,
            },
        )

    def _restore(self, events: Iterable[Alert]) -> None:
        if held := tuple(one for one in events if one.ended is None):
            self.restored.append(held)

    def _make_store(self, path: Path, **options: Any) -> Store:
        self.stores.append(FailingStore(path, **options))
        return self.stores[-1]

    def _attend(self, attention: Attention) -> None:
        with self._guard:
            self.attention = self.attended = attention
            self.attended_count += 1
            self._take(*self._held)

    @property
    def events(self) -> EventsPart:
        """Its part that writes events."""
        assert self.recorder.events is not None
        return self.recorder.events

    @property
    def is_leader(self) -> bool:
        """Whether it is the one that writes events."""
        return self.events.is_leader

    @property
    def trouble(self) -> str:
        """What keeps it from its work."""
        return self.recorder.trouble

    def start(self) -> Recording:
        """Start it without a frame."""
        self.recorder.start()
        return self

    def settle(self, *held: Alert, **changes: Any) -> Recording:
        """Start it, have it take over, and let it find out what holds: it touches its lock in the same step."""

        lock = lock_path(self.path)

        def is_there() -> bool:
            self._take(*held, **changes)
            return self.is_leader and lock.exists() and lock.stat().st_mtime == self.now

        for _ in range(2):  # when it has read the store, and three snapshots later
            self.now += 0.5
            wait_for(is_there, "it did not take over")
            for _ in range(3):
                self._take(*held, **changes)
        return self

    def feed(self, *held: Alert, cleared: Iterable[Alert] = (), **changes: Any) -> None:
        """Let a frame come, a second later."""
        self.now += 1.0
        self._take(*held, cleared=cleared, **changes)

    def _take(self, *held: Alert, **changes: Any) -> None:
        with self._guard:
            self._held = held
            self.recorder.take(frame(*held, attention=self.attention, attended=self.attended, **changes))

    def mark(self, change: Callable[[Attention], Attention]) -> None:
        """Let the user acknowledge or mute something."""
        with self._guard:
            self.attention = change(self.attention)
            self._take(*self._held)

    def expect(self, *events: str) -> None:
        """Wait until these events are recorded, and nothing else."""
        wait_for(lambda: story(self.path) == list(events), "other events are recorded")

    def close(self) -> None:
        """End it, and see that it ends."""
        self.recorder.close(PATIENCE)
        assert not self.recorder._worker.is_running


Record: TypeAlias = Callable[..., Recording]


@contextlib.contextmanager
def recording(folder: Path) -> Iterator[Record]:
    """Return a function that makes a recorder in a folder; all are closed."""
    made: list[Recording] = []

    def make(**options: Any) -> Recording:
        made.append(Recording(folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def start_program(folder: Path, count: int = 1) -> subprocess.Popen[bytes]:
    """Start another gpuwatch that holds the lock and has recorded so many events, which hold."""
    command = [sys.executable, "-m", "tests.support.store", str(folder), str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=CHECKOUT)
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        kill(process)
        raise AssertionError("the other gpuwatch does not record")
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill another gpuwatch."""
    process.kill()
    process.communicate()


def main(folder: str, count: str) -> None:
    """Record, and write at every moment, until somebody ends us."""
    held = [alert(str(number)) for number in range(int(count))]
    one = Recording(Path(folder)).settle(*held[:-1])
    one.feed(*held)
    wait_for(lambda: len(story(one.path)) >= int(count))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for level in range(1, 1 << 30):
        one.feed(*(msgspec.structs.replace(each, severity=Severity(1 + level % 3)) for each in held))
        time.sleep(0.005)


def read_report(paths: Sequence[Path], by: By, since: float, until: float = inf, *, named: bool = False) -> UseReport:
    """Return the use of stores in one way."""
    return read_reports(paths, (by,), since, until, named=named)[0]


HOUR = int(EPOCH // 3600) * 3600
ONE = Use(1.0, 0.5, 0.25, 10.0, 5.0, 0.0, 1.0)


def batch(
    hour: int = HOUR,
    gpu: int = 0,
    user: str = "ada",
    run: str = "1:1",
    use: Use = ONE,
    *,
    uid: int = 1000,
    name: str = "train.py",
    launcher: str = "",
    watched: float | None = None,
) -> Sums:
    """Return the use by one run of one GPU in one hour; what is more than a minute is spread over its minutes."""
    uuid, id = f"GPU-{gpu}", RunId(uid, run)
    count = 60 if use.held > 60 else 1
    part = Use(*(value / count for value in use))
    free = 0.0 if watched is None else watched / count - part.held
    whole = Use(part.held, part.busy, part.unknown, gpu=free)
    rows = {(hour + 60 * each, uuid): each for each in range(count)}
    return Sums(
        host="box3",
        use={(*at, id): part for at in rows} | {(*at, None): whole for at in rows},
        gpus={uuid: UsedGpu(gpu, "NVIDIA H100", TOTAL)},
        users={uid: user},
        runs={id: UsedRun(name, launcher, float(hour), hour + 60.0)},
    )


def hours(count: float, busy: float = 0.5, gib: float = 10.0, idle: float = 0.25, unknown: float = 0.0) -> Use:
    """Return so many hours of a GPU of one's own, with the parts that were busy, unknown, and held idle."""
    seconds = count * 3600
    return Use(
        *(seconds, busy * seconds, unknown * seconds, gib * GIB * seconds, idle * gib * GIB * seconds), gpu=seconds
    )


def save(path: Path, *sums: Sums, events: Collection[Alert] = (), **options: Any) -> None:
    """Write use and events to a store."""

    def write(connection: Connection) -> None:
        write_events(connection, events, (), EPOCH)
        for one in sums:
            write_use(connection, one)

    Store(path, **options).write(write)


class Frames:
    """Makes the frames of a watch, a second apart."""

    def __init__(self) -> None:
        self._history = History()
        self._number = 0

    def __call__(
        self,
        base: Snapshot,
        *,
        step: float = 1.0,
        alerts: tuple[Alert, ...] = (),
        raised: tuple[Alert, ...] = (),
        cleared: tuple[Alert, ...] = (),
    ) -> Frame:
        """Return the next frame: `base`, sampled afresh."""
        self._number += 1
        seconds = self._number * step
        shown = at(base, seconds)
        view = self._history.add(shown, 5000.0 + seconds)
        return Frame(shown, time.monotonic(), view, alerts, raised, cleared, number=self._number)


ROW = 10.0
"""Seconds of a row, as in a file."""


@cache
def machine(second: float) -> Snapshot:
    """Return one GPU at so many seconds; its memory in GiB is the seconds, up to 60."""
    return at(snapshot([gpu(0, holdings=[holding(100, min(second, 60.0))])]), second)


class MemoryRecording(files.Recording):
    """Recording whose snapshots and events are lists, with no file: it has what a replay reads, and no more."""

    def __init__(
        self,
        snapshots: Iterable[Snapshot],
        events: Sequence[Alert] = (),
        *,
        idle: Sequence[IdleHolding] = (),
        minutes: Sequence[Minute] = (),
    ) -> None:
        """`idle` are the idle times before each row; the alerts that held then are among `events`."""
        self._minutes = list(minutes)
        self._snapshots, self._events, self._idle = list(snapshots), Events(alerts=tuple(events)), tuple(idle)
        self.first, self.last = self._snapshots[0].taken, self._snapshots[-1].taken
        self.notes: list[str] = []
        self.limits = ""
        self.begun: list[float] = []
        """Arguments of `play`."""

    def events(self, since: float | None = None) -> Events:
        return self._events

    def minutes(self, since: float = 0.0, until: float = inf) -> Iterator[Minute]:
        return (one for one in self._minutes if since <= one.at < until)

    def play(self, at: float) -> tuple[files.Standing, Iterator[Snapshot]]:
        self.begun.append(at)
        rows = [one.taken // ROW for one in self._snapshots]
        row = max((one for one in rows if one <= at // ROW), default=rows[0])
        held = [one for one in self._events.alerts if one.raised < row * ROW and (one.ended or inf) >= row * ROW]
        after = (one for one in self._snapshots if one.taken // ROW >= row)
        return files.Standing(self._idle, tuple(msgspec.structs.replace(one, ended=None) for one in held)), after


def seconds(*spans: tuple[int, int]) -> MemoryRecording:
    """Return a recording with a snapshot for each second of some spans: from the first up to before the second."""
    return MemoryRecording(machine(float(second)) for first, until in spans for second in range(first, until))


class Player:
    """Replay of a recording that a test moves on by hand."""

    def __init__(self, recording: MemoryRecording, *, at: float | None = None) -> None:
        self.now = 1000.0
        """Seconds on the clock of the person who looks."""
        self.restarts = 0
        self.replay = Replay(recording, at=None if at is None else EPOCH + at, clock=lambda: self.now)
        self.replay.restart = self._restart

    def _restart(self, *_: object) -> None:
        self.restarts += 1

    def next(self, seconds: float = 0.0) -> float | None:
        """Let time pass; return the second of the snapshot that comes, None for none."""
        self.now += seconds
        shown = self.replay.next(0.0)
        return None if shown is None else shown.taken - EPOCH

    def seek(self, second: float) -> float | None:
        """Move to a second; return the second of the snapshot that comes."""
        self.replay.seek(EPOCH + second)
        return self.next()


_DEMO = DemoSource(wall=lambda: 1795269780.0)


def demo(seconds: int, *, first: int = 0, step: int = 1) -> list[Snapshot]:
    """Return a snapshot of the demo every `step` seconds; the wall clock begins at a full minute."""
    return [_demo_at(second) for second in range(first, first + seconds, step)]


@cache
def _demo_at(second: int) -> Snapshot:
    return _DEMO.at(float(second))


def small(seconds: int) -> list[Snapshot]:
    """Return a snapshot of a single GPU every second, for what does not care what is recorded."""
    return [machine(float(second)) for second in range(seconds)]


def record(path: Path, snapshots: Iterable[Snapshot], **options: Any) -> Path:
    """Write a recording, complete, and return its path; with whole command lines where nothing else is said."""
    writer = RecordingWriter(path, **{"commands": Commands.ALL, **options})
    for one in snapshots:
        writer.take(frame(shown=one))
        wait_for(lambda: len(writer._waiting) < MOST_WAITING)
    writer.close(30.0)
    assert not writer.trouble
    return path


if __name__ == "__main__":
    main(*sys.argv[1:])
