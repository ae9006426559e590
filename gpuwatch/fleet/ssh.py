"""Hosts by ssh: commands of ssh, connections that start again after each trouble, and a row for each host.

gpuwatch runs on the host by the system's `ssh`, with the user's own configuration and agent, and prints a line a
second. All output is untrusted until it is checked: length and number of lines are bounded, each line is decoded into
strict types, numbers have bounds, and texts are cleaned. No password is asked for.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from gpuwatch.alerts.alert import Severity
from gpuwatch.base.child import Backoff, ChildProcess, describe_exit, start_error
from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import clean
from gpuwatch.base.threads import start_thread
from gpuwatch.config.types import ADDRESS, ADDRESSES, RemoteHost
from gpuwatch.fleet.host import GREATEST, MOST_GPUS, Host, HostGpu
from gpuwatch.model.live import SCHEMA, Status, StatusGpu
from gpuwatch.model.snapshot import Health, Reading, Reason, SourceState, known
from gpuwatch.model.values import MOST
from gpuwatch.version import __version__

INSTALL: Final = "python3 -m venv .venv && .venv/bin/pip install ."
"""Line that installs gpuwatch, in a clone of it."""
LONGEST_STATUS: Final = 1 << 18
"""Bytes of a line of status; 64 GPUs take 10 kB."""

_OPTIONS: Final = (
    # Neither the agent, nor the screen, nor a Kerberos ticket (GSSAPIDelegateCredentials) is lent to the other host.
    # Snapshots repeat themselves: compressed, 104 kB of them are 5.5 kB.
    *("-a", "-x", "-k", "-C"),
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=2"),
    # Settings of the user's configuration that would outlive this connection or disturb it.
    *("-o", "ControlMaster=no", "-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none", "-o", "LogLevel=ERROR"),
)
_MOST_ERRORS: Final = 4096
"""Bytes of ssh's stderr that are kept, the last ones."""
_COST: Final = 1 << 16
"""Bytes of a line that count as one line more."""
_DRIFT: Final = 2e-4
"""Largest drift between the clocks of two machines, in seconds a second: twice that of a bad oscillator."""
_SHORT: Final = 200
_USAGE, _NOT_FOUND, _SSH = 2, 127, 255
"""Exit codes: gpuwatch refuses a flag, the shell finds no program, ssh itself has failed."""


class Timing(msgspec.Struct, frozen=True):
    """Time limits and delays of a connection in seconds, and its largest rate of lines."""

    start: float = 25.0
    """Limit for the first line: the connection, and the answer of the host's driver."""
    silence: float = 10.0
    """Limit for each further line."""
    first: float = 1.0
    """Delay before the next attempt; doubled after each trouble."""
    most: float = 60.0
    steady: float = 30.0
    """Time after which a connection counts as good: the delay is the first again."""
    beat: float = 2.0
    """Time between two signs of life that are sent."""
    keepalive: float = 8.0
    """Time without a sign of life after which gpuwatch on the host ends."""
    rate: float = 40.0
    """Lines a second, in the long run."""
    burst: float = 200.0
    """Lines at once."""


TIMING: Final = Timing()


class RemoteLineError(Exception):
    """Line of another host that is not used; the message says why."""


def find_hosts(named: Iterable[str], configured: Sequence[RemoteHost]) -> tuple[RemoteHost, ...]:
    """Return the hosts that `--host` names, by the name of a `[[host]]` or an address; raises UsageError."""
    by_name = {one.name: one for one in configured}
    found: dict[str, RemoteHost] = {}
    for text in named:
        if text not in by_name and not re.match(ADDRESS, text):
            raise UsageError(f"--host: {text[:60]!a} is not a host; write {ADDRESSES}, or the name of a [[host]]")
        if text in found:
            raise UsageError(f"--host: {text} is given twice")
        found[text] = by_name.get(text) or RemoteHost(name=text, address=text)
    if len(found) > MOST:
        raise UsageError(f"--host: {len(found)} hosts are given; {MOST} are allowed")
    return tuple(found.values())


def ssh_command(host: RemoteHost, *words: str, terminal: bool = False) -> list[str]:
    """Return the command that runs gpuwatch with some words on a host."""
    return ["ssh", "-t" if terminal else "-T", *_OPTIONS, *_target(host), host.command, *words]


def _target(host: RemoteHost) -> list[str]:
    found = re.match(ADDRESS, host.address)
    assert found is not None  # a `RemoteHost` is checked where it is made
    return [
        *(["-p", found["port"]] if found["port"] else []),
        "--",
        (found["user"] or "") + (found["host"] or found["ip"]),
    ]


def kill_command(host: RemoteHost, pid: int, start: int, *, whole_run: bool = False) -> list[str]:
    """Return the command that asks on the host whether to end a process, and ends it by the host's own checks."""
    words = ["kill", str(pid), "--start", str(start), *["--run"] * whole_run]
    return ssh_command(host, *words, terminal=True)


# -- Connections --------------------------------------------------------------------------------------------------


class SshConnection:
    """Connection to a host: an ssh process that is started again with back-off and jitter after each trouble.

    No method waits. Call all methods from one thread, or under one lock. Each line is requested by a `.`: on a slow
    connection only one line is under way, and the next one is the newest.
    """

    def __init__(
        self,
        host: RemoteHost,
        words: Sequence[str],
        *,
        longest: int,
        timing: Timing = TIMING,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(0.75, 1.25),
    ) -> None:
        """`words` are the arguments of gpuwatch on the host, and `longest` the bytes of its longest line."""
        self.trouble = ""
        """Why no line comes; empty while lines come, and before the first attempt has failed."""
        self._host, self._longest, self._timing = host, longest, timing
        self._words = (*words, f"--keepalive={timing.keepalive:g}")
        self._clock, self._jitter = clock, jitter
        self._backoff = Backoff(timing.first, timing.most)
        self._child: ChildProcess | None = None
        self._killed: list[ChildProcess] = []
        """Killed children that have not ended yet."""
        self._due = 0.0
        """Time of the next attempt."""
        self._began = self._heard = self._beat_at = self._ended = 0.0
        self._budget = 0.0
        """Lines that may still come, and the time of that number."""
        self._counted = 0.0
        self._works = False
        """Whether a line of this attempt was good."""
        self._least = 0.0
        """Least delay of a line of this attempt, with an unknown offset: the two clocks have no common zero."""
        self._other = b""
        """Last line before the first good one that is not JSON, such as the output of a login script."""
        self._errors = b""

    def read_lines(self) -> list[bytes]:
        """Return the lines since the last call; start ssh when it is due, and end it after a trouble."""
        now = self._clock()
        self._killed = [one for one in self._killed if one.exit_code() is None]
        child = self._child
        if child is None:
            if now >= self._due:
                self._start(now)
            return []
        if now >= self._beat_at:
            self._beat_at = now + self._timing.beat
            child.write(b"\n")
        lines = child.read_lines()
        self._errors = (self._errors + child.read_errors())[-_MOST_ERRORS:]
        self._budget = min(self._timing.burst, self._budget + (now - self._counted) * self._timing.rate)
        self._budget -= sum(1 + len(line) // _COST for line in lines)
        self._counted = now
        if child.overflowed or self._budget < 0:
            what = f"a line of more than {self._longest >> 10} KiB" if child.overflowed else "a flood of lines"
            self.fail(f"it sent {what}, and was cut off")
            return []
        if not self._works:
            others = [line for line in lines if not line.startswith(b"{")]
            self._other = others[-1] if others else self._other
            lines = [line for line in lines if line.startswith(b"{")]
        if lines:
            self._heard = now
            child.write(b".")
        elif child.eof:
            self._check_exit(child, now)
        else:
            self._check_silence(now)
        return lines

    def accept(self, sent: float) -> float:
        """Note that a line was good; return by how many seconds it came later than the fastest one of this attempt.

        `sent` is the time at which it was sent, by the monotonic clock of the host.
        """
        now = self._clock()
        delay = (1 - _DRIFT) * now - sent
        self._least = min(delay, self._least) if self._works else delay
        self._works, self.trouble = True, ""
        return min(delay - self._least, now - self._began)

    def fail(self, words: str) -> None:
        """End this attempt with a trouble, and wait for the next one."""
        now = self._clock()
        if self._works and now - self._began >= self._timing.steady:
            self._backoff.reset()
        self.trouble = words
        self._due = now + self._backoff.next() * self._jitter()
        self.close()

    def retry(self) -> None:
        """Make the next attempt at once, as the user asked."""
        self._backoff.reset()
        self._due = 0.0

    def wait(self, timeout: float) -> None:
        """Wait for output, up to `timeout` seconds."""
        child = self._child
        if child is None or child.eof:
            time.sleep(timeout)
        else:
            child.wait(timeout)

    def close(self) -> None:
        """Kill ssh and its children, and return at once; gpuwatch on the host reads the end of its stdin."""
        if self._child is not None:
            self._child.kill()
            self._killed.append(self._child)
            self._child = None

    def _start(self, now: float) -> None:
        self._began = self._heard = self._counted = now
        self._beat_at, self._ended = 0.0, 0.0
        self._budget = self._timing.burst
        self._works, self._other, self._errors = False, b"", b""
        try:
            command = ssh_command(self._host, *self._words)
            self._child = ChildProcess(command, longest_line=self._longest, errors=True)
            self._child.write(b".")
        except OSError as error:  # no ssh, no memory, no room for a process
            self.fail(f"ssh cannot be started: {clean(start_error(error), _SHORT)}")

    def _check_silence(self, now: float) -> None:
        if self._works and now - self._heard > self._timing.silence:
            self.fail(f"no data for {self._timing.silence:.0f} s")
        elif not self._works and now - self._heard > self._timing.start:
            said = clean(self._errors.strip().rpartition(b"\n")[2] or self._other, _SHORT)
            self.fail(f"no data from gpuwatch in {self._timing.start:.0f} s{f'; it said: {said}' if said else ''}")

    def _check_exit(self, child: ChildProcess, now: float) -> None:
        """Fail with the reason why ssh has ended; one that closed its output and still runs gets a second."""
        self._ended = self._ended or now
        code = child.exit_code()
        if code is not None or now - self._ended > 1.0:
            self._errors = (self._errors + child.read_errors())[-_MOST_ERRORS:]
            said = next((line for line in reversed(self._errors.splitlines()) if line.strip()), b"")
            self.fail(explain_exit(self._host, code, clean(said.strip() or self._other.strip(), _SHORT)))


def explain_exit(host: RemoteHost, code: int | None, said: str) -> str:
    """Return why a connection has ended, and what to do: `code` is that of ssh, `said` its last line on stderr."""
    if code == _SSH:
        by_hand = " ".join(["ssh", *(word for word in _target(host) if word != "--")])
        hints = {"Host key": "and check its key", "Permission denied": "which must not ask for a password"}
        hint = next((f"; run `{by_hand}`, {what}" for start, what in hints.items() if start in said), "")
        return f"{said.rstrip('.') or 'ssh ended without a message'}{hint}"
    if code == _NOT_FOUND:
        path = "" if host.command != "gpuwatch" else ", or set its path as `command` of a [[host]]"
        return f"{host.command} was not found; install it there, in a clone of gpuwatch: {INSTALL}{path}"
    if code == _USAGE and ("--stream" in said or "--keepalive" in said):
        return f"its gpuwatch is too old; upgrade it there, in a clone of gpuwatch: {INSTALL}"
    if code in (0, None):
        return said or "gpuwatch has ended there"
    return said.removeprefix("gpuwatch: ") or f"gpuwatch has ended there ({describe_exit(code)})"


# -- Rows ---------------------------------------------------------------------------------------------------------


class _Head(msgspec.Struct):
    schema: int = 0
    version: str = ""


def check_schema(line: bytes, ours: int) -> None:
    """Raise RemoteLineError, which says which side has to be upgraded, for a line of another schema; else ValueError.

    The ValueError, or RecursionError, is for a line that is not JSON.
    """
    head = msgspec.json.decode(line, type=_Head)
    if head.schema != ours:
        of = f" of gpuwatch {clean(head.version, 20)}" if head.version else ""
        where = "there" if head.schema < ours else f"here, where it is {__version__}"
        words = f"its lines{of} have schema {head.schema % 10**6}, and this one reads {ours}; upgrade it {where}"
        raise RemoteLineError(words)


def read_status_line(line: bytes) -> Status:
    """Decode a line of status; raises RemoteLineError."""
    try:
        check_schema(line, SCHEMA)
        status = msgspec.json.decode(line, type=Status)
    except (ValueError, RecursionError):
        raise RemoteLineError(f"it sent no status: {clean(line[:40])}") from None
    if len(status.gpus) > MOST_GPUS:
        raise RemoteLineError(f"it sent a line with more than {MOST_GPUS} GPUs")
    return status


def make_host(name: str, status: Status, since: float, trouble: str = "") -> Host:
    """Return the row of a host from its status, which came `since` seconds ago; each number has bounds."""
    severities = {one.name.lower(): one for one in Severity}
    age = None
    if status.sampled is not None and -GREATEST < status.sampled <= status.monotonic < GREATEST:
        age = status.monotonic - status.sampled + since
    if not trouble and status.state not in (SourceState.OK, SourceState.STARTING):
        trouble = clean(status.words, 2 * _SHORT) or status.state.value
    return Host(
        name=name,
        gpus=tuple(_make_gpu(one) for one in status.gpus),
        people=_count(status.people),
        alerts=sum(_count(status.alerts.get(name)) or 0 for name in ("warning", "critical")),
        worst=clean(status.worst, _SHORT),
        severity=severities.get(status.severity),
        age=age,
        trouble=trouble,
    )


def _make_gpu(gpu: StatusGpu) -> HostGpu:
    return HostGpu(
        index=_count(gpu.index) or 0,
        uuid=clean(gpu.uuid, 64),
        used=_bounded(gpu.used),
        total=_bounded(gpu.total),
        free=Reason.NO_SAMPLE,
        left=_bounded(gpu.left),
        utilization=_bounded(gpu.utilization),
        processes=_count(gpu.processes),
        up=gpu.health is Health.OK,
        near={"warning": Severity.WARNING, "critical": Severity.CRITICAL}.get(gpu.near),
    )


def _bounded(reading: Reading) -> Reading:
    return Reason.ERROR if known(reading) and not 0 <= reading < GREATEST else reading


def _count(number: int | None) -> int | None:
    return number if number is not None and 0 <= number < 10**6 else None


class _Watched:
    """One host of the thread: its connection, and the last status that came."""

    def __init__(self, host: RemoteHost, timing: Timing) -> None:
        self.host = host
        self.connection = SshConnection(host, ["--stream=live"], longest=LONGEST_STATUS, timing=timing)
        self.status: Status | None = None
        self.received = 0.0
        self.paused = False

    def read(self, now: float) -> None:
        """Read what came; the newest line counts."""
        if self.paused:
            return
        lines = self.connection.read_lines()
        if lines:
            try:
                self.status = read_status_line(lines[-1])
                self.received = now - self.connection.accept(self.status.monotonic)
            except RemoteLineError as error:
                self.connection.fail(str(error))

    def row(self, now: float) -> Host:
        trouble = self.connection.trouble
        if self.status is None:
            return Host(name=self.host.name, trouble=trouble)
        return make_host(self.host.name, self.status, max(0.0, now - self.received), trouble)


class Hosts(threading.Thread):
    """Thread that keeps a connection and a row for each host. It never waits for a host.

    The methods may be called from any thread.
    """

    def __init__(self, hosts: Sequence[RemoteHost], *, timing: Timing = TIMING, pause: float = 0.2) -> None:
        """`pause` is the time between two reads in seconds: reading all hosts at once is cheaper than line by line."""
        super().__init__(name="gpuwatch-hosts", daemon=True)
        self._pause = pause
        self._watched = {one.name: _Watched(one, timing) for one in hosts}
        self._guard = threading.Lock()
        self._closed = threading.Event()

    @property
    def hosts(self) -> dict[str, RemoteHost]:
        return {name: one.host for name, one in self._watched.items()}

    def run(self) -> None:
        while not self._closed.wait(self._pause):
            for one in self._watched.values():
                with self._guard:
                    if self._closed.is_set():
                        return
                    try:
                        one.read(time.monotonic())
                    except Exception as error:  # noqa: BLE001 - the thread's edge: whatever it is must reach the user
                        one.connection.fail(clean(f"{type(error).__name__}: {error} (a fault in gpuwatch)", _SHORT))

    def begin(self) -> None:
        """Start the thread unless it runs; raises NoThreadError."""
        if self.ident is None:
            start_thread(self)

    def rows(self) -> list[Host]:
        """Return the row of each host, in the order in which they were named."""
        now = time.monotonic()
        with self._guard:
            return [one.row(now) for one in self._watched.values()]

    def show(self, name: str, status: Status) -> None:
        """Set the status of the open host, which comes from its snapshots as they are judged here."""
        with self._guard:
            one = self._watched[name]
            one.status, one.received = status, time.monotonic()

    def open(self, name: str | None) -> None:
        """End the connection of the host that is opened (None: no host), and resume all others."""
        with self._guard:
            for each, one in self._watched.items():
                one.paused = each == name
                if one.paused:
                    one.connection.close()
                    one.connection.trouble = ""

    def retry(self) -> None:
        with self._guard:
            for one in self._watched.values():
                one.connection.retry()

    def close(self) -> None:
        """Kill every ssh and return at once."""
        self._closed.set()
        with self._guard:
            for one in self._watched.values():
                one.connection.close()
