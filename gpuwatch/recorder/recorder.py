"""Recorder: one thread that writes events, marks and usage to the store, for any number of gpuwatches.

Of all gpuwatches of a user and host the one that holds the lock records: it writes events and usage, sends messages,
and writes the live file; another one takes over when it ends. A dashboard hands over to a `gpuwatch watch` that waits.
The next one continues the store's open events: an active alert with the key of one is the same event, and the
others have ended.

    start ──► lock held ──► read the store, hand over its open events ──► two snapshots later: compare ──► write news
              └─► somebody else has it: hand over what is open, write nothing, ask again

Marks: every gpuwatch writes what its user acknowledged and muted, in a transaction, and reads the changes of others.

The store may lie on a file system that hangs, so nothing but this thread touches it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Final, NamedTuple

from gpuwatch.alerts.alert import Alert, Attention
from gpuwatch.base import procfs, text
from gpuwatch.base.threads import Worker
from gpuwatch.config.types import Config
from gpuwatch.model.live import read_status
from gpuwatch.monitor import Frame, Monitor, Sink
from gpuwatch.recorder.events import EventsPart
from gpuwatch.recorder.live_writer import LiveFile
from gpuwatch.recorder.marks import MarksPart
from gpuwatch.recorder.messages import Messenger
from gpuwatch.recorder.part import Pace, Part, RecorderContext, RecorderLock
from gpuwatch.recorder.public import PublicDays, Publish, is_use_public
from gpuwatch.recorder.schema import own_store
from gpuwatch.recorder.store import KEEP, LARGEST, Store
from gpuwatch.recorder.use import Sums, UseCounter, write_use
from gpuwatch.sampler.owners import UserNames, terminal

_MOST_SUMS: Final = 1500
"""Sums that wait to be written, at most: the newest, of a day."""
_SHOWN: Final = 600.0
"""Seconds for which a message says that a damaged file was renamed."""


class UsageSettings(NamedTuple):
    """How much of the usage is kept."""

    is_kept: bool = True
    keep: float = KEEP
    """Age in seconds after which usage is deleted."""
    largest: int = LARGEST
    """Size of the file in bytes, at most."""


class UsagePart(Part):
    """Part that counts use, and writes it with the means of each minute, where it holds the lock.

    Two writers would count everything twice, so that without a lock nothing is written.
    """

    def __init__(
        self,
        context: RecorderContext,
        settings: UsageSettings,
        is_kept_elsewhere: Callable[[float], bool],
    ) -> None:
        """`is_kept_elsewhere` returns whether somebody else keeps use at a wall-clock time; means are kept anyway."""
        super().__init__(context)
        self._is_kept_elsewhere = is_kept_elsewhere
        self.settings = settings
        """May be replaced at any time."""
        self._counter: UseCounter | None = None
        """Guarded; None where nothing was counted since use is kept, or since another gpuwatch wrote."""
        self._waiting: deque[Sums] = deque(maxlen=_MOST_SUMS)
        """Sums that are not written yet."""
        self._set("usage", self._pace.usage)

    def take(self, frame: Frame) -> bool:
        """Count the use of a frame; a demo's is ignored."""
        if not frame.snapshot.demo and self.settings.is_kept:
            with self._guard:
                self._counter = self._counter or UseCounter(UserNames().name)
                self._counter.add(frame.snapshot, frame.history)
        return False

    def step(self) -> None:
        """Write the sums of the last minute, and delete old rows; events are deleted even where no use is kept."""
        self.store.keep, self.store.largest = self.settings.keep, self.settings.largest
        if not self.settings.is_kept:
            if self._counter is not None and self._lock.held:
                self._write(last=True)  # sums from before the configuration changed
            self._counter, self.error = None, ""
            if self._lock.held and self._is_due("usage") and not self.store.is_empty:
                self._prune()
            return
        if not self._is_due("retry") or not self._lock_held() or not (self._is_due("usage") or self.error):
            return
        self._set("usage", self._pace.usage)
        self._write()
        self._prune()
        self.error = ""

    def finish(self) -> None:
        if self._lock_held():
            self._write(last=True)

    def _prune(self) -> None:
        if self._is_due("prune"):
            self._set("prune", self._pace.prune)
            self.store.prune(self._wall())

    def _lock_held(self) -> bool:
        if not self._lock.acquire():
            with self._guard:  # the holder of the lock has written this too
                if self._counter is not None:
                    self._counter.pop()
            self._waiting.clear()
            self.error = ""
            return False
        return True

    def _write(self, *, last: bool = False) -> None:
        """Write the sums; where that fails, keep them and raise StoreError."""
        with self._guard:
            if self._counter is not None and (sums := self._counter.pop(last=last)):
                self._waiting.append(sums)
        if self._waiting and self._is_kept_elsewhere(self._wall()):
            for sums in self._waiting:
                sums.use.clear()

        def write(connection: Connection) -> None:
            for sums in self._waiting:
                write_use(connection, sums)

        if self._waiting:
            self.store.write(write)
        self._waiting.clear()


class PublicPart(Part):
    """Part that publishes the days of the machine's service, where it holds the lock."""

    def __init__(self, context: RecorderContext, days: PublicDays, events: EventsPart, usage: UsagePart) -> None:
        super().__init__(context)
        self._days, self._events, self._usage = days, events, usage

    def configure(self, publish: Publish) -> None:
        self._days.publish = publish
        self._set("public", 0.0)

    def step(self) -> None:
        """Publish the days, once a minute; an event that is published without an end holds."""
        is_due = self._is_due("retry") and self._is_due("public")
        if self._lock.held and is_due and self._events.is_settled:
            self._set("public", self._pace.usage)
            with contextlib.suppress(FileNotFoundError):  # nothing was recorded yet
                self._days.write(self._wall(), self._usage.settings.keep)
            self.error = ""

    def finish(self) -> None:
        self._set("public", 0.0)
        self.step()


class Recorder:
    """Sink that saves events, marks and usage, on a thread of its own."""

    name = "recorder"

    def __init__(
        self,
        *,
        folder: Path | None = None,
        part: bool = False,
        watch: bool = False,
        days: PublicDays | None = None,
        restore: Callable[[Sequence[Alert]], object] = lambda alerts: None,
        attend: Callable[[Attention], object] = lambda attention: None,
        usage: UsageSettings | None = None,
        was_sent: Callable[[Alert], bool] = lambda alert: False,
        pace: Pace | None = None,
        wall: Callable[[], float] = time.time,
        make_store: Callable[..., Store] = Store,
    ) -> None:
        """`folder` replaces the user's state folder.

        `restore` and `attend` are called from the recorder's thread: with the events that held when a gpuwatch recorded
        last, or ended shortly before, and with what others acknowledged and muted. `was_sent` returns whether the
        message about an alert was sent. Where only a `part` of the GPUs is watched, only marks are kept. `watch` is
        whether this is a `gpuwatch watch`.
        """
        path = own_store(folder)
        self.lock = RecorderLock(path, watch=watch)
        """Lock of the user's store."""
        context = RecorderContext(make_store(path), self.lock, pace or Pace(), wall)
        self.events: EventsPart | None = None
        self.usage: UsagePart | None = None
        self._public: PublicPart | None = None
        self._parts: list[Part] = [MarksPart(context, attend)]
        if not part:
            self.events = EventsPart(context, restore, was_sent)
            self.usage = UsagePart(
                context, usage or UsageSettings(), is_use_public if days is None else lambda now: False
            )
            self._parts = [self.events, *self._parts, self.usage]
            if days is not None:
                self._public = PublicPart(context, days, self.events, self.usage)
                self._parts.append(self._public)
        self._context = context
        self._note: tuple[str, float] = ("", 0.0)
        """Message that a damaged file was renamed, and the time until which it is shown."""
        self._worker = Worker("gpuwatch-recorder", self._task, last=self._finish)

    @property
    def trouble(self) -> str:
        errors = dict.fromkeys(part.error for part in self._parts if part.error)
        if errors:
            waiting = ", ".join(filter(None, (part.waiting for part in self._parts)))
            return text.clean("; ".join(filter(None, (f"not recorded: {', '.join(errors)}", waiting))), 500)
        words, until = self._note
        return words if words and time.monotonic() < until else ""

    def start(self) -> None:
        """Start the thread, as the first frame would. Raises NoThreadError."""
        self._worker.wake()

    def take(self, frame: Frame) -> None:
        news = [part.take(frame) for part in self._parts]
        if any(news) or not self._worker.is_running:
            self._worker.wake()

    def configure(self, usage: UsageSettings, publish: Publish = "none") -> None:
        """Use other settings from now on; from any thread."""
        if self.usage is not None:
            self.usage.settings = usage
        if self._public is not None:
            self._public.configure(publish)

    def write_soon(self) -> None:
        """Write the open events with which messages were sent; from any thread, without waiting."""
        if self.events is not None:
            self.events.write_soon()
            self._worker.wake()

    def close(self, seconds: float) -> None:
        self._worker.close(seconds)

    def _task(self) -> float:
        if self.lock.held and self.lock.is_wanted:
            for part in self._parts:
                part.run(part.finish)
            self.lock.release()
        for part in self._parts:
            part.run(part.step)
        events = self.events
        # The public days are other files, and are written again by themselves.
        is_damaged = any(part.is_damaged for part in self._parts if part is not self._public)
        if events is not None and events.is_leader and is_damaged:
            events.run(self._set_aside)
        return self._context.pace.poll

    def _set_aside(self) -> None:
        """Rename the damaged file, and make every part write to a new one."""
        self._note = (self._context.store.set_aside(), time.monotonic() + _SHOWN)
        for part in self._parts:
            part.begin_anew()

    def _finish(self) -> None:
        for part in self._parts:
            part.run(part.finish)
        self.lock.close()


def _silent_leader() -> str:
    """Return a sentence about a gpuwatch of this user that records and sends no messages; empty for none."""
    found = read_status()
    if found is None or found.sends or found.pid == os.getpid():
        return ""
    who = f"the gpuwatch that records ({find_place(found.pid)})"
    return f"{who} started without [notify]; press L there, or run `kill -HUP {found.pid}`"


def find_place(pid: int, proc: Path = procfs.PROC) -> str:
    """Return where a process of this user runs: `PID 4711, /dev/pts/3, tmux pane %5`, as far as that can be read."""
    stat, pane = procfs.find_stat(pid, proc), None
    with contextlib.suppress(OSError):
        pane = re.search(rb"(?:^|\0)TMUX_PANE=(%\d{1,10})\0", procfs.read_file(pid, "environ", proc))
    words = [f"PID {pid}", terminal(stat.tty) if stat else "", f"tmux pane {pane[1].decode()}" if pane else ""]
    return ", ".join(filter(None, words))


class Sinks:
    """Sinks of one run: the recorder, the messenger and the live file. A demo has none."""

    def __init__(
        self,
        monitor: Monitor,
        config: Config,
        *,
        demo: bool = False,
        watch: bool = False,
        part: bool = False,
        service: bool = False,
    ) -> None:
        """Make the sinks and add them to the monitor.

        `watch` is whether this is a `gpuwatch watch`, which comes before dashboards and keeps usage even where the
        configuration says that a dashboard keeps none. Where only a `part` of the GPUs is watched, only marks are
        written. A `service` publishes for everybody what `publish` in the configuration says.
        """
        self._watch, self._service, self._monitor = watch, service, monitor
        self._recorder: Recorder | None = None
        self._messenger: Messenger | None = None
        self._live: LiveFile | None = None
        self._sinks: list[Sink] = []
        if demo:
            return
        self._recorder = recorder = Recorder(
            part=part,
            watch=watch,
            restore=self._restore,
            was_sent=lambda alert: self._messenger is not None and self._messenger.was_sent(alert),
            attend=monitor.attend,
            days=PublicDays(own_store(), config.publish) if service else None,
        )
        self._sinks.append(recorder)
        if not part:
            lock = recorder.lock
            self._messenger = Messenger(
                config.notify, lambda: lock.held, silent_leader=_silent_leader, on_sent=recorder.write_soon
            )
            self._live = LiveFile(lambda: lock.held, public=service)
            self._sinks += [self._messenger, self._live]
        self.configure(config, config)
        monitor.add(*self._sinks)
        recorder.start()  # earlier alerts must be known before the first snapshot is judged

    def configure(self, old: Config, new: Config) -> None:
        if self._messenger is not None and new.notify != old.notify:
            self._messenger.configure(new.notify)
        if self._recorder is not None:
            usage = UsageSettings(self._watch or new.report.dashboard, new.report.keep, new.report.largest)
            self._recorder.configure(usage, new.publish)
        if self._live is not None:
            self._live.is_wanted, self._live.sends = new.publish != "none" or not self._service, new.notify.sends

    def _restore(self, events: Sequence[Alert]) -> None:
        """Continue the store's events: the messenger must know which were sent before the monitor has them."""
        if self._messenger is not None:
            self._messenger.restore(events)
        self._monitor.restore(events)

    def close(self, seconds: float) -> None:
        """Close every sink, the recorder last; give up after `seconds`."""
        end = time.monotonic() + seconds
        sinks = list(reversed(self._sinks))
        for number, sink in enumerate(sinks):
            sink.close(max(0.0, end - time.monotonic()) / (len(sinks) - number))
