"""`gpuwatch watch`: the watch without a screen, for a service manager or a spare terminal; one line an event."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Final, TextIO

from gpuwatch.errors import GpuwatchError, NoThreadError, UsageError
from gpuwatch.output.eventlines import Happenings, Lines, Troubles, greeting
from gpuwatch.output.plain import in_ascii, may_color, speaks_unicode
from gpuwatch.output.printer import Printer
from gpuwatch.spawn import start_thread
from gpuwatch.text import clean
from gpuwatch.wiring import (
    Reloader,
    Ways,
    applied,
    configured,
    indices,
    interval_of,
    ordered,
    record,
    said,
    source_of,
)

if TYPE_CHECKING:
    import argparse

    from gpuwatch.config import Config
    from gpuwatch.monitor import Frame, Watch
    from gpuwatch.sources.child import Child

CODES: Final = {signal.SIGTERM: 0, signal.SIGINT: 130, signal.SIGHUP: 129}
"""What the program ends with after a signal: to be told to end is no failure of a service."""

_CLOSING: Final = 0.9
"""Seconds that the sinks have to finish; with what else there is to do it is gone within 2 s."""
_LOOK: Final = 5.0
"""Seconds between two looks whether the watch is still there, where nothing has been heard."""
_LAST_WORDS: Final = 0.2
"""Seconds that the watch, and each of stdout and stderr, has to finish."""


def main(args: argparse.Namespace, sampler: Child | None) -> int:
    """Watch until a signal says otherwise, and give the exit code."""
    if args.quiet and args.json:
        raise UsageError("--quiet and --json exclude each other")
    config = configured(args)
    interval, only = interval_of(args, config), indices(args.only)
    child = None
    with _signals() as news:
        if not args.demo:
            from gpuwatch.sources.child import sampler_arguments

            child = ordered(sampler, sampler_arguments(interval, only, shares=config.shares, tmux=config.tmux))
        source = source_of(child, interval, only, config)
        try:
            from gpuwatch.alerts.engine import Engine
            from gpuwatch.monitor import Watch

            desk = _Desk(args, config, news)
            watch = Watch(source, desk.publish, engine=Engine(config.limits()))
            events = Path(args.events) if args.events else None
            ways = Ways(watch, demo=args.demo, events=events, newest=True, keeps=True, only=only)
            try:
                ways.open(config)
                desk.log = str(ways.log or "")
                start_thread(watch)
                return desk.serve(watch, Reloader(args, config, lambda old, new: _apply(args, watch, ways, old, new)))
            finally:
                watch.stop()
                if watch.ident is not None:
                    watch.join(_LAST_WORDS)
                ways.close(_CLOSING)
                desk.close()
        finally:
            source.close()


def _apply(args: argparse.Namespace, watch: Watch, ways: Ways, old: Config, new: Config) -> None:
    applied(watch, ways, old, new)
    if args.interval is None and new.interval != old.interval:
        watch.set_interval(interval_of(args, new))


@contextmanager
def _signals() -> Iterator[SimpleQueue[signal.Signals | None]]:
    """Hand out what is told when a signal comes; one that we were started deaf to (nohup) stays unheard.

    After a good end none is heard any more: a second SIGTERM on the way out would change the exit code, or come in the
    middle of whatever else runs at exit.
    """
    news: SimpleQueue[signal.Signals | None] = SimpleQueue()

    def tell(number: int, _frame: FrameType | None) -> None:
        news.put(signal.Signals(number))

    before = {number: signal.signal(number, tell) for number in CODES if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield news
    except BaseException:  # whoever tells of it may hang in that, and is to be ended then
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    for number in before:
        signal.signal(number, signal.SIG_IGN)


class _Desk:
    """Prints what comes from the watch thread, and waits for signals on the main one."""

    def __init__(self, args: argparse.Namespace, config: Config, news: SimpleQueue[signal.Signals | None]) -> None:
        self.log = ""
        """Where the events go, for the greeting."""
        self._args = args
        self._ascii = config.ascii
        self._news = news
        self._out, self._err = _printer(sys.stdout), _printer(sys.stderr)
        self._unicode = [speaks_unicode(stream) for stream in (sys.stdout, sys.stderr)]
        self._events, self._troubles = Happenings(), Troubles()
        self._lines = Lines(color=may_color(sys.stdout, os.environ))
        self._greeted = args.quiet
        self._told_broken = False
        self._last: Frame | None = None
        self._terminals = [fd for fd in (0, 1, 2) if os.isatty(fd)]

    def publish(self, frame: Frame) -> None:
        """Print what a frame brought; from the watch thread."""
        from gpuwatch.model import SourceState

        for words in self._troubles.of(frame):
            self.say(words)
        state = frame.snapshot.state
        if not self._greeted and state is SourceState.OK:
            self._greeted = True
            self.say(greeting(frame, self.log))
        for event in self._events.of(frame):
            if self._args.json:
                self._out.put(record(event.at, event.kind, event.alert))
            elif not self._args.quiet:
                self._put(self._lines.line(event))
        if self._out.broken and not self._told_broken and not self._args.quiet:
            self._told_broken = True
            self.say("nobody reads what is printed any more; the watch goes on")
        if state is SourceState.ENDED:
            self._last = frame
            self._news.put(None)

    def _put(self, line: str) -> None:
        self._out.put(in_ascii(line) if self._ascii or not self._unicode[0] else line)

    def say(self, words: str) -> None:
        """Print words on stderr."""
        line = f"gpuwatch: {clean(words)}"
        self._err.put(in_ascii(line) if self._ascii or not self._unicode[1] else line)

    def serve(self, watch: Watch, reloader: Reloader) -> int:
        """Wait until a signal says that it is over, and give the exit code; raises what the watch ended of."""
        again = _Again(lambda: self._reload(reloader))
        while True:
            try:
                number = self._news.get(timeout=_LOOK)
            except Empty:
                if watch.is_alive():
                    continue
                number = None
            if number is None:
                words = self._last.snapshot.words if self._last else f"gpuwatch stopped watching: {watch.failure!r}"
                raise UsageError(words) if watch.failure is None else GpuwatchError(words)
            if number is signal.SIGHUP and self._terminal_is_there():
                try:
                    again.ask()
                except NoThreadError as error:
                    self.say(f"configuration not changed: {error}")
                continue
            return CODES[number]

    def _reload(self, reloader: Reloader) -> None:
        try:
            words = said(reloader(), later=("tmux",))
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
            words = f"configuration not changed: {type(error).__name__}: {error}"
        self.say(words)

    def _terminal_is_there(self) -> bool:
        """Say whether a SIGHUP is somebody's wish, and not the end of the terminal that we were started on."""
        return all(os.isatty(fd) for fd in self._terminals)

    def close(self) -> None:
        """Write what waits to be printed."""
        for printer in (self._out, self._err):
            printer.close(_LAST_WORDS)


class _Again:
    """Does something on a thread of its own, which may hang; asked meanwhile, once more after that."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._running = self._wanted = False

    def ask(self) -> None:
        """Have it done; never waits. Raises NoThreadError, and it is not done then."""
        with self._lock:
            if not self._running:
                start_thread(threading.Thread(target=self._run, name="gpuwatch-reload", daemon=True))
            self._running = self._wanted = True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._running = False
                    return
                self._wanted = False
            self._work()


def _printer(stream: TextIO | None) -> Printer:
    # By the descriptor: the stream's own buffer would be flushed at the end, and that may wait for ever.
    return Printer(None if stream is None else stream.fileno())
