"""Delivery of messages: formats their texts, and sends them by a command or by apprise, with a time limit."""

from __future__ import annotations

import errno
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

import msgspec

from gpuwatch import text, units
from gpuwatch.alerts.alert import MARKS, Alert, Severity
from gpuwatch.child import run
from gpuwatch.files import check_source

TITLE: Final = 200
"""Characters of a title, at most: enough for a telephone's screen and for the subject of a mail."""
BODY: Final = 2000
"""Characters of a line of the body at most."""
LINES: Final = 10
"""Alerts that a digest lists, at most; the others are only counted."""

_OVER: Final = "✓"
_DAY: Final = 20 * 3600.0
"""Age in seconds from which a clock time is written with its date: it could be mistaken for today's."""


class Kind(StrEnum):
    """Event that a message reports."""

    RAISED = "raised"
    WORSE = "worse"
    CLEARED = "cleared"
    DIGEST = "digest"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Message that each notifier sends once; all its texts are clean."""

    title: str
    """Title with the severity's mark and the host: `▲ box3: GPU 3 full in about 4 min`."""
    body: str = ""
    """Evidence, start and owners, a line each."""
    kind: Kind
    severity: Severity
    """Severity of the alert; of a digest the worst one."""
    alerts: tuple[Alert, ...]
    """The alert of the message; of a digest all its alerts, the worst first."""
    host: str = ""
    line: str = ""
    """The title without the host, for a digest."""
    parts: tuple[Message, ...] = ()
    """The messages that a digest contains; empty for other messages."""

    @property
    def count(self) -> int:
        """Number of messages in a digest; 1 for other messages."""
        return len(self.parts) or 1


class Repeats(msgspec.Struct, frozen=True, kw_only=True):
    """Number of times that a condition was raised recently."""

    times: int = 1
    since: float = 0.0
    """Wall-clock time of the first time."""

    def words(self, now: float) -> str:
        """Return ` (3 times since 14:02)`; empty where the condition was raised only once."""
        return f" ({self.times} times since {clock_time(self.since, now)})" if self.times > 1 else ""


def raised(alert: Alert, kind: Kind, repeats: Repeats) -> Message:
    """Return the message about an alert that holds: its title, evidence, start and owners."""
    now = max(alert.seen, alert.raised)
    lines = [
        alert.evidence,
        f"{alert.severity.name.lower()} now" if kind is Kind.WORSE else "",
        f"since {clock_time(alert.raised, now)}",
        _owners(alert),
    ]
    return _message(kind, alert, f"{MARKS[alert.severity]} ", f"{alert.title}{repeats.words(now)}", lines)


def cleared(alert: Alert, title: str, repeats: Repeats) -> Message:
    """Return the message about an alert that has ended; `title` is the title of the message that reported it."""
    end = alert.ended if alert.ended is not None else max(alert.seen, alert.raised)
    lasted = alert.lasted or end - alert.raised
    lines = [
        alert.how,
        f"{clock_time(alert.raised, end)} to {clock_time(end, end)}",
        _owners(alert),
    ]
    words = f"over after {units.long_duration(lasted)}{repeats.words(end)}: {title}"
    return _message(Kind.CLEARED, alert, f"{_OVER} ", words, lines)


def digest(messages: Sequence[Message]) -> Message:
    """Return one message that contains several, which may be digests too: the worst first, ended alerts last."""
    parts = sorted((part for one in messages for part in one.parts or (one,)), key=_order)
    over = sum(part.kind is Kind.CLEARED for part in parts)
    hold = len(parts) - over
    host = _host(parts[0].host)
    if not hold:
        title = f"{_OVER} {over} alerts on {host} are over"
    else:
        count = f"{hold} alert{'s' * (hold > 1)} on {host}" + (f", {over} over" if over else "")
        mark, _, words = parts[0].line.partition(" ")
        title = f"{mark} {count}: {words}"
    lines = [part.line for part in parts[:LINES]]
    if len(parts) > LINES:
        lines.append(f"and {len(parts) - LINES} more")
    return Message(
        title=text.clean(title, TITLE),
        body="\n".join(lines),
        kind=Kind.DIGEST,
        severity=parts[0].severity,
        alerts=tuple(alert for part in parts for alert in part.alerts),
        host=parts[0].host,
        parts=tuple(parts),
    )


def clock_time(wall: float, now: float) -> str:
    """Return a wall-clock time in local time: `14:02`, with the date where that was not today."""
    return time.strftime("%H:%M" if abs(now - wall) < _DAY else "%Y-%m-%d %H:%M", time.localtime(wall))


def _message(kind: Kind, alert: Alert, mark: str, words: str, lines: Sequence[str]) -> Message:
    return Message(
        title=text.clean(f"{mark}{_host(alert.host)}: {words}", TITLE),
        body="\n".join(text.clean(line, BODY) for line in lines if line),
        kind=kind,
        severity=alert.severity,
        alerts=(alert,),
        host=alert.host,
        line=text.clean(mark + words, TITLE),
    )


def _owners(alert: Alert) -> str:
    return f"by {', '.join(alert.owners)}" if alert.owners else ""


def _host(host: str) -> str:
    return host or "this machine"


def _order(part: Message) -> tuple[bool, int, float]:
    return (part.kind is Kind.CLEARED, -part.severity, part.alerts[0].raised)


HEARD: Final = 64 * 1024
"""Bytes of a program's output that are kept: the last ones."""

COMMAND_LIMIT: Final = 10.0
"""Seconds that a command may run."""
APPRISE_LIMIT: Final = 30.0
"""Seconds that a service may take: apprise itself gives a server 4 s to connect and 4 s to answer, each time."""
NOT_INSTALLED: Final = "needs apprise: pip install '.[notify]' in the clone of gpuwatch"
_NAMED: Final = 200
"""Characters of a command's last line that an error shows, at most."""


class Notifier(Protocol):
    """Way to send messages. `send` may block: it is called from a thread that nothing else uses."""

    name: str
    """Name that stands before the reason of a failure: `slack`, `command tell`."""

    def send(self, message: Message) -> str:
        """Deliver a message; return the reason of a failure as words that follow the name, empty on success."""

    def close(self) -> None:
        """Abort a delivery that is running; from any thread, without waiting."""


class CommandNotifier:
    """Notifier that runs the user's program with one JSON object on stdin; no shell is involved.

    The object has the fields of the alert as the events log has them, `event` (raised, worse, cleared) and `message`
    (the words, lines); of a digest `event`, `message`, `host`, `severity` and `alerts`.
    """

    def __init__(self, command: Sequence[str], *, limit: float = COMMAND_LIMIT) -> None:
        """`command` is the program (absolute, or with ~) and its arguments, from a file that only we can write."""
        self._command = (str(Path(command[0]).expanduser()), *command[1:])
        self.name = f"command {text.clean(Path(command[0]).name, 40)}"
        self._limit = limit
        self._stop = threading.Event()

    def send(self, message: Message) -> str:
        """Run the program and wait for its end; after the limit it is killed with all that it started."""

        # As when the configuration was read; a program that is missing is reported by the attempt.
        if words := check_source(Path(self._command[0]), missing_ok=True):
            return f"is not run: {words}"
        try:
            code, received = run(
                self._command,
                _as_json(message),
                output=2,
                timeout=self._limit,
                is_stopped=self._stop.is_set,
                most=HEARD,
            )
        except OSError as error:
            return self._not_started(error)
        if code == 0:
            return ""
        if code is None:
            return "was stopped" if self._stop.is_set() else f"did not end within {self._limit:g} s"
        words = _last_line(received)
        how = f"ended with exit code {code}" if code > 0 else f"was ended by {_signal(-code)}"
        return f"{how}: {words}" if words else how

    def close(self) -> None:
        """Kill the program, if it runs."""
        self._stop.set()

    def _not_started(self, error: OSError) -> str:
        program = Path(self._command[0])
        if isinstance(error, FileNotFoundError):
            return "cannot be run: its interpreter is not found" if program.exists() else "is not found"
        if isinstance(error, PermissionError):
            return "is not executable"
        if error.errno == errno.ENOEXEC:
            return "is no program; a script begins with a line such as #!/bin/sh"
        return f"cannot be run: {text.clean(error.strerror or type(error).__name__, _NAMED)}"


SENDER: Final = (sys.executable, "-P", str(Path(__file__).with_name("apprise_child.py")))
"""The child that imports apprise. -P: nothing is imported from the working directory."""


class AppriseNotifier:
    """Notifier for one URL of apprise. The URL holds secrets: only the child process gets it, on stdin."""

    def __init__(
        self, url: str, *, name: str = "", command: Sequence[str] = SENDER, limit: float = APPRISE_LIMIT
    ) -> None:
        self.name = name or _scheme(url) or "apprise"
        self._url = url
        self._command = command
        self._limit = limit
        self._stop = threading.Event()

    def __repr__(self) -> str:
        return f"AppriseNotifier({_scheme(self._url)}://…)"

    def send(self, message: Message) -> str:
        """Send the message in a child process, and wait for the result."""
        order = _Order(urls=(self._url,), title=message.title, body=message.body, kind=_apprise_kind(message))
        return _ask(order, self._command, self._limit, self._stop)[0]

    def close(self) -> None:
        """Kill the child, if it runs."""
        self._stop.set()


def make_notifiers(command: Sequence[str], urls: Sequence[str]) -> list[Notifier]:
    """Return a notifier for the command and for each URL, named by its scheme: `slack`, `mailto`, `mailto 2`."""
    notifiers: list[Notifier] = [CommandNotifier(command)] if command else []
    seen: Counter[str] = Counter()
    for url in urls:
        name = _scheme(url) or "apprise"
        seen[name] += 1
        notifiers.append(AppriseNotifier(url, name=name if seen[name] == 1 else f"{name} {seen[name]}"))
    return notifiers


def check_urls(urls: Sequence[str], command: Sequence[str] = SENDER) -> tuple[str, ...]:
    """Ask apprise whether it understands each URL; return for each why not, empty for a good one. Nothing is sent."""
    if not urls:
        return ()
    return _ask(_Order(urls=tuple(urls), check=True), command, APPRISE_LIMIT, threading.Event())


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """Order for the child."""

    urls: tuple[str, ...]
    title: str = ""
    body: str = ""
    kind: str = "info"
    check: bool = False


class _Result(msgspec.Struct, frozen=True):
    ok: bool
    why: str = ""
    """One of `_WHY`, or `http` and a number."""


class _Answer(msgspec.Struct, frozen=True):
    """Answer of the child, in the order of the URLs."""

    installed: bool
    results: tuple[_Result, ...] = ()


_WHY: Final = {
    "form": "has an address that apprise does not understand",
    "timeout": "does not answer (timeout)",
    "refused": "cannot be reached (connection refused)",
    "host": "cannot be reached (unknown host)",
    "route": "cannot be reached (no route)",
    "certificate": "cannot be trusted (its certificate)",
    "login": "does not accept the login",
}
_UNSENT: Final = "did not take the message"


def _ask(order: _Order, command: Sequence[str], limit: float, stop: threading.Event) -> tuple[str, ...]:
    """Let the child carry out an order; return for each URL why it failed, or empty."""

    asked = tuple(url for url in order.urls if _scheme(url))
    try:
        code, received = run(
            command,
            msgspec.json.encode(msgspec.structs.replace(order, urls=asked)),
            output=1,
            timeout=limit,
            is_stopped=stop.is_set,
            most=HEARD,
        )
    except OSError as error:
        return (f"cannot be asked: {text.clean(error.strerror or type(error).__name__, _NAMED)}",) * len(order.urls)
    found = iter(_answers(code, received, len(asked), stopped=stop.is_set()))
    return tuple(next(found) if _scheme(url) else "is no address: one begins like mailto://" for url in order.urls)


def _answers(code: int | None, heard: bytes, count: int, *, stopped: bool) -> tuple[str, ...]:
    if code is None:
        return ("was stopped" if stopped else _WHY["timeout"],) * count
    try:
        answer = msgspec.json.decode(heard, type=_Answer)
    except ValueError:
        return (f"could not be asked: the child that sends ended with {code}",) * count
    if not answer.installed:
        return (NOT_INSTALLED,) * count
    if len(answer.results) != count:
        return (_UNSENT,) * count
    return tuple("" if one.ok else _words(one.why) for one in answer.results)


def _words(why: str) -> str:
    """Return words for a reason; only known reasons have some, since apprise's own words may hold the URL."""
    if re.fullmatch(r"http [1-5][0-9]{2}", why):
        return f"refuses (HTTP {why[5:]})"
    return _WHY.get(why, _UNSENT)


def _scheme(url: str) -> str:
    """Return the scheme of a URL in lower case; empty where it is too short, too long or missing."""
    found = re.match(r"([a-zA-Z][a-zA-Z0-9]{1,30})://.", url)
    return found[1].lower() if found else ""


def _apprise_kind(message: Message) -> str:
    """Return apprise's word for the severity; services choose a colour by it."""
    if all(part.kind is Kind.CLEARED for part in message.parts or (message,)):
        return "success"
    return {Severity.CRITICAL: "failure", Severity.WARNING: "warning"}.get(message.severity, "info")


def _as_json(message: Message) -> bytes:
    words = f"{message.title}\n{message.body}" if message.body else message.title
    about: dict[str, object] = {"event": message.kind, "message": words}
    if message.kind is Kind.DIGEST:
        about |= {"host": message.host, "severity": message.severity, "alerts": message.alerts}
    else:
        about = msgspec.to_builtins(message.alerts[0]) | about
    return msgspec.json.encode(about) + b"\n"


def _last_line(heard: bytes) -> str:
    """Return the last line that says something, with secrets masked: a client may print the URL it failed with."""
    lines = [line for line in heard[-4096:].decode("utf-8", "replace").splitlines() if line.strip()]
    return text.clean(" ".join(text.redact(lines[-1].split())), _NAMED) if lines else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
