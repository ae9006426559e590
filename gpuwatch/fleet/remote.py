"""Opened host: a source of its snapshots by `gpuwatch --stream`, and the fleet that opens one host after the other.

Each line of another host is untrusted until it is checked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.base.threads import start_thread
from gpuwatch.config.types import RemoteHost
from gpuwatch.fleet.host import Host
from gpuwatch.fleet.ssh import TIMING, Hosts, RemoteLineError, SshConnection, Timing, check_schema, make_host
from gpuwatch.model.live import Status
from gpuwatch.model.snapshot import SCHEMA, Snapshot, SourceState
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.recorder.live_writer import make_status
from gpuwatch.recorder.recording import DamagedRowError, read_snapshot
from gpuwatch.sources.source import Source

LONGEST_SNAPSHOT: Final = 8 << 20
"""Bytes of a line, at most: 8 GPUs and 43 processes take 40 kB, 2,000 processes 3 MB."""
_REPEAT: Final = 1.0
"""Seconds between two snapshots, at most, while none comes: they show how long that has lasted."""


def read_line(line: bytes) -> Snapshot:
    """Decode a snapshot of another host; raises RemoteLineError."""
    try:
        check_schema(line, SCHEMA)
        return read_snapshot(line)
    except (ValueError, RecursionError):
        words = "it sent no JSON"
    except DamagedRowError as error:
        words = f"it sent no snapshot that can be used: {error}"
    raise RemoteLineError(words)


class RemoteSource(Source):
    """Source of the snapshots of another host; all methods but `close` are to be called from one thread.

    Agreed shares and PCIe are not requested: the configuration of the other host counts.
    """

    def __init__(
        self,
        host: RemoteHost,
        *,
        interval: float = 1.0,
        timing: Timing = TIMING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._interval, self._timing = host, interval, timing
        self._clock = clock
        self._guard = threading.Lock()
        self._closed = False
        self._connection = self._connect()
        now = time.time()
        starting, words = SourceState.STARTING, f"connecting to {host.address} by ssh"
        self._last = Snapshot(host=host.name, taken=now, since=now, interval=interval, state=starting, words=words)
        self._received = self._sent = clock()
        """Times of the last snapshot that came, and of the last one that was returned."""

    def next(self, timeout: float) -> Snapshot | None:
        """Wait up to `timeout` seconds for the next snapshot; see `gpuwatch.sources.source.Source`."""
        end = self._clock() + timeout
        while not self._closed:
            with self._guard:
                fresh = None if self._closed else self._read()
            now = self._clock()
            if fresh is not None:
                self._last, self._received, self._sent = fresh, now, now
                return fresh
            if now - self._sent >= max(_REPEAT, 1.5 * self._interval):
                self._sent = now
                return self._repeat(now)
            if now >= end:
                return None
            self._connection.wait(min(0.1, end - now))
        return None

    def set_interval(self, seconds: float) -> None:
        """Connect again: gpuwatch on the host gets its interval at its start."""
        if seconds != self._interval:
            with self._guard:
                self._interval = seconds
                self._connection.close()
                self._connection = self._connect()

    def poke(self) -> None:
        """Try again at once where there is no connection."""
        with self._guard:
            self._connection.retry()

    def close(self) -> None:
        """Kill ssh and return at once."""
        self._closed = True
        with self._guard:
            self._connection.close()

    def _connect(self) -> SshConnection:
        # Each line is longer than one second's worth where the interval is longer than that.
        timing = replace(self._timing, silence=max(self._timing.silence, 3 * self._interval))
        words = ["--stream", f"--interval={self._interval:g}"]
        return SshConnection(self._host, words, longest=LONGEST_SNAPSHOT, timing=timing, clock=self._clock)

    def _read(self) -> Snapshot | None:
        """Return the newest snapshot that came; any other line ends the connection."""
        lines = self._connection.read_lines()
        if not lines:
            return None
        try:
            snapshot = read_line(lines[-1])
        except RemoteLineError as error:
            self._connection.fail(str(error))
            return None
        late = self._connection.accept(snapshot.monotonic)
        if snapshot.state is SourceState.ENDED:  # this reader goes on
            snapshot = replace(snapshot, state=SourceState.UNREACHABLE)
        return replace(snapshot, host=self._host.name, taken=snapshot.taken + late, monotonic=snapshot.monotonic + late)

    def _repeat(self, now: float) -> Snapshot:
        """Return the last snapshot again: its figures keep their age, by this machine's clock."""
        last, trouble, passed = self._last, self._connection.trouble, max(0.0, now - self._received)
        if trouble:
            is_new = last.state is not SourceState.UNREACHABLE
            since = 0.0 if last.state is SourceState.STARTING else last.taken + passed if is_new else last.since
            self._last = last = replace(last, state=SourceState.UNREACHABLE, since=since, words=trouble)
        return replace(last, taken=last.taken + passed, monotonic=last.monotonic + passed)


def _status(frame: Frame) -> Status:
    """Return the status of a frame; its age is that of the snapshot, by the clock of its host."""
    return make_status(frame.snapshot, frame.alerts, frame.snapshot.monotonic)


class RemoteHosts:
    """Hosts of a dashboard, at most one of them open; this machine is one of them if it has a monitor."""

    def __init__(self, hosts: Hosts, limits: Limits, *, local: Monitor | None = None, here: str = "") -> None:
        """`limits` judge the host that is opened; `here` is the name of this machine, of the monitor `local`."""
        self.limits = limits
        self.here = here
        """Name of this machine; empty where it is not shown."""
        self.opened: str | None = None
        """Name of the host that is opened by ssh."""
        self._hosts, self._local = hosts, local
        self._monitor: Monitor | None = None

    @property
    def host(self) -> RemoteHost | None:
        """The host that is opened by ssh."""
        return None if self.opened is None else self._hosts.hosts[self.opened]

    def begin(self) -> None:
        """Connect to the hosts, once; raises NoThreadError."""
        self._hosts.begin()

    def rows(self) -> list[Host]:
        found, frame = self._hosts.rows(), self._local.newest if self._local is not None else None
        if self._local is not None and frame is None:
            return [Host(name=self.here), *found]
        mine = [make_host(self.here, _status(frame), time.monotonic() - frame.received)] if frame is not None else []
        return [*mine, *found]

    def open(self, name: str | None, interval: float, publish: Callable[[Frame, object], object]) -> Monitor | None:
        """Open a host in place of the one before, and return its monitor; None for this machine's own.

        `publish` is called with each frame and this monitor. Raises NoThreadError.
        """
        if self._monitor is not None:
            self._monitor.stop()
        self.opened, self._monitor = name, None
        self._hosts.open(name)
        if name is None:
            return self._local

        def show(frame: Frame) -> None:
            self._hosts.show(name, _status(frame))
            publish(frame, monitor)

        source = RemoteSource(self._hosts.hosts[name], interval=interval)
        self._monitor = monitor = Monitor(source, show, engine=Engine(self.limits))
        start_thread(monitor)
        return monitor

    def set_limits(self, limits: Limits) -> None:
        self.limits = limits
        if self._monitor is not None:
            self._monitor.set_limits(limits)

    def retry(self) -> None:
        self._hosts.retry()

    def close(self) -> None:
        self._hosts.close()
        if self._monitor is not None:
            self._monitor.stop()
