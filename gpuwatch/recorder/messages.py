"""Messages: which alerts are sent and when, their texts, and delivery by a command of the user or by apprise.

An alert becomes a message when it is raised or gets worse, and when it ends; the engine's rules decide when that is.
Messages wait `gather` seconds for others, and many are sent as one digest. After a message about a rule its other
alerts wait for `cooldown` seconds, unless they are worse.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from gpuwatch.alerts.alert import MARKS, TROUBLE, Alert, Severity
from gpuwatch.base import text, units
from gpuwatch.base.child import Backoff, describe_exit, python_command, run
from gpuwatch.base.extras import install_hint
from gpuwatch.base.files import check_source
from gpuwatch.base.threads import Worker
from gpuwatch.config.types import Notify
from gpuwatch.monitor import Frame

TITLE: Final = 200
"""Characters of a title, at most: enough for a telephone's screen and for the subject of a mail."""
BODY: Final = 2000
"""Characters of a line of the body, at most."""
LINES: Final = 10
"""Alerts that a digest lists, at most; the others are only counted."""
_OVER: Final = "✓"
_DAY: Final = 20 * 3600.0
"""Age in seconds from which a clock time is written with its date: it could be mistaken for today's."""

Kind: TypeAlias = Literal["raised", "worse", "cleared", "digest"]
"""Event that a message reports."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Message that each route sends once; all its texts are clean."""

    title: str
    """Title with the severity's mark and the host: `▲ box3: GPU 3 full in about 4 min`."""
    body: str = ""
    """Evidence, start and owners, a line each."""
    kind: Kind
    severity: Severity
    """Severity of the alert; of a digest the worst one."""
    alerts: tuple[Alert, ...]
    """The alert of the message; of a digest all its alerts, the worst first and those that ended last."""
    host: str
    line: str = ""
    """The title without the host, for a digest."""
    is_over: bool = False
    """Whether all its alerts have ended."""


def raised(alert: Alert, kind: Kind = "raised") -> Message:
    """Return the message about an alert that holds, or of a moment: its title, evidence, start and owners."""
    level = f"{alert.severity.name.lower()} now" if kind == "worse" else ""
    since = f"since {clock_time(alert.raised, max(alert.seen, alert.raised))}" if alert.ended is None else ""
    return _message(kind, alert, MARKS[alert.severity], alert.title, alert.evidence, level, since)


def cleared(alert: Alert, title: str) -> Message:
    """Return the message about an alert that has ended; `title` is the title of the message that reported it."""
    end = alert.ended if alert.ended is not None else max(alert.seen, alert.raised)
    headline = f"ended after {units.long_duration(alert.lasted or end - alert.raised)}: {title}"
    times = f"{clock_time(alert.raised, end)} to {clock_time(end, end)}"
    return _message("cleared", alert, _OVER, headline, alert.how, times)


def _message(kind: Kind, alert: Alert, mark: str, headline: str, *lines: str) -> Message:
    host = alert.host or "this machine"
    owners = f"by {', '.join(alert.owners)}" if alert.owners else ""
    return Message(
        title=text.clean(f"{mark} {host}: {headline}", TITLE),
        body="\n".join(text.clean(line, BODY) for line in (*lines, owners) if line),
        kind=kind,
        severity=alert.severity,
        alerts=(alert,),
        host=host,
        line=text.clean(f"{mark} {headline}", TITLE),
        is_over=kind == "cleared",
    )


def digest(messages: Iterable[Message]) -> Message:
    """Return one message in place of several: the worst first, ended alerts last."""
    parts = sorted(messages, key=lambda one: (one.is_over, -one.severity, one.alerts[0].raised))
    over = sum(one.is_over for one in parts)
    active, host = len(parts) - over, parts[0].host
    mark, _, headline = parts[0].line.partition(" ")
    count = f"{active} alert{'s' * (active > 1)} on {host}" + (f", {over} ended" if over else "")
    more = [f"and {len(parts) - LINES} more"] if len(parts) > LINES else []
    return Message(
        title=text.clean(
            f"{mark} {count}: {headline}" if active else f"{_OVER} {over} alerts on {host} have ended", TITLE
        ),
        body="\n".join([*(one.line for one in parts[:LINES]), *more]),
        kind="digest",
        severity=parts[0].severity,
        alerts=tuple(one.alerts[0] for one in parts),
        host=host,
        is_over=not active,
    )


def clock_time(wall: float, now: float) -> str:
    """Return a wall-clock time in local time: `14:02`, with the date where that was not today."""
    return time.strftime("%H:%M" if abs(now - wall) < _DAY else "%Y-%m-%d %H:%M", time.localtime(wall))


# -- Which alerts are sent, and when ------------------------------------------------------------------------------


def others_alerts(frame: Frame) -> frozenset[str]:
    """Return the keys of the alerts that concern only others: other users, and GPUs where the viewer holds no memory.

    Where the processes of a GPU cannot be listed, those listed last count. An alert without user and GPU concerns all.
    """
    viewer, held = frame.snapshot.viewer, set()
    for gpu in frame.snapshot.gpus:
        listed, then = frame.history.gpu(gpu.key).listed or (gpu, frame.snapshot)
        own = {one.pid for one in then.processes if one.uid == viewer}
        if any(one.pid in own for one in listed.holdings):
            held.add(gpu.key)

    def is_mine(alert: Alert) -> bool:
        about = {alert.gpu, *(one.key for one in alert.gpus)} - {""}
        return alert.is_about(viewer) or not held.isdisjoint(about or (set() if alert.users else held))

    return frozenset(alert.key for alert in (*frame.alerts, *frame.cleared) if not is_mine(alert))


class MessageSchedule:
    """Schedule of messages: compares the alerts that hold with those reported; all times are of the caller's clock."""

    def __init__(self, policy: Notify) -> None:
        self.policy = policy
        """May be replaced at any time."""
        self.is_leader = True
        """Whether this gpuwatch sends; the others keep unsent alerts, until they know that it was sent."""
        self.others: Collection[str] = ()
        """Keys of alerts that are not wanted, because they concern only others."""
        self._active: dict[str, Alert] = {}
        self._reported: dict[str, Alert] = {}
        """Active alerts with the title of their last message, and the lowest severity since."""
        self._ended: dict[str, tuple[Alert, str]] = {}
        """Ends that are not sent yet, with the title of the last message."""
        self._moments: list[Alert] = []
        """Alerts of a moment that are not sent yet."""
        self._cooldowns: dict[str, tuple[float, Severity]] = {}
        """By rule the end of its cool-down, and the worst severity that was sent in it."""
        self._window: float | None = None
        """Time at which the messages that are being gathered are sent; None where none is."""
        self._inherited: set[str] = set()
        """Keys of active alerts that were never in `raised`, and that no gpuwatch is known to have sent."""
        self._sent: frozenset[str] = frozenset()
        """Keys of alerts whose message was sent, by this gpuwatch or by one that recorded before. Nobody else decides
        it: the recorder writes it to the store, and hands it to the schedule that comes next."""

    def was_sent(self, alert: Alert) -> bool:
        """Return whether the message about an alert that holds was sent; from any thread."""
        return alert.key in self._sent

    def restore(self, events: Sequence[Alert], now: float, wall: float) -> None:
        """Take over which of the store's events were sent, and the rest of their cool-downs.

        What counts as reported, and was not sent by the gpuwatch that recorded, is sent again. `now` and `wall` are the
        same moment, on the clock of the schedule and on that of the wall.
        """
        held = [alert for alert in events if alert.ended is None]
        self._sent |= {alert.key for alert in held if alert.sent}
        for alert in held:
            if alert.key in self._reported.keys() - self._sent:
                del self._reported[alert.key]
                self._inherited.add(alert.key)
                self._cooldowns.pop(alert.rule, None)
        for alert in events:
            if alert.sent:
                until = now + self.policy.cooldown - (wall - max(alert.raised, alert.worse))
                self._cool_down(alert.rule, alert.most, now, until)
        self._count_as_reported(self._active)

    def update(self, raised: Iterable[Alert], cleared: Iterable[Alert], active: Iterable[Alert]) -> None:
        """Add the alerts of a frame; `active` are the alerts that hold.

        An active or ended alert that was never in `raised` was raised by another gpuwatch, or before messages were
        sent: it counts as reported where it was sent. One that is missing in `active`, and was never in `cleared`
        (frames were lost), has ended.
        """
        before, new = self._active, {alert.key for alert in raised}
        # An error of a sink is only on screen: the messages themselves may be failing.
        self._active = {alert.key: alert for alert in active if alert.rule != TROUBLE}
        ended = {alert.key: alert for alert in cleared if alert.rule != TROUBLE}
        if self.policy.runs:
            self._moments += [alert for key, alert in ended.items() if key in new and not alert.quiet]
        keys = {alert.id: key for key, alert in self._active.items() if alert.id}
        for old in self._reported.keys() - self._active.keys():
            if (key := keys.get(self._reported[old].id)) is not None:  # its GPU has a name now
                self._reported[key] = self._reported.pop(old)
                self._sent |= {key} if old in self._sent else set()
        self._inherited |= (ended | self._active).keys() - before.keys() - new
        self._count_as_reported(ended | self._active)
        self._inherited &= self._active.keys()
        self._sent -= (ended.keys() | before.keys()) - self._active.keys()
        for key, reported in list(self._reported.items()):
            if key not in self._active:
                alert = ended.get(key) or before[key]
                del self._reported[key]
                if not alert.quiet:
                    self._ended[key] = (alert, reported.title)
            elif self._active[key].severity < reported.severity:
                self._reported[key] = msgspec.structs.replace(reported, severity=self._active[key].severity)

    def begin(self) -> None:
        """Send from now on, including alerts that hold and were not sent; before, there was no route."""
        self._inherited |= self._reported.keys() - self._sent
        self._reported = {key: alert for key, alert in self._reported.items() if key in self._sent}
        self._cooldowns.clear()

    def pop_due(self, now: float, *, flush: bool = False) -> list[Message]:
        """Return the messages that are due, with `flush` also those that wait for others; they count as sent."""
        news = self._news(now)
        if self._window is None and (news or self._ended or self._moments):
            self._window = now + self.policy.gather
        if self._window is None or (now < self._window and not flush):
            return []
        self._window = None
        messages = []
        for alert in news:
            messages.append(raised(alert, "worse" if alert.key in self._reported else "raised"))
            self._reported[alert.key] = alert
        if self.is_leader and self.policy.sends:
            self._sent |= {alert.key for alert in news}
        for alert in news:
            self._cool_down(alert.rule, alert.severity, now, now + self.policy.cooldown)
        messages += [cleared(alert, title) for alert, title in self._ended.values()]
        messages += map(raised, self._moments)
        self._ended.clear()
        self._moments.clear()
        return messages

    def next_due(self) -> float | None:
        """Return when `pop_due` will have something to send; None where nothing waits."""
        if self._window is not None:
            return self._window
        return min((self._cooldowns[alert.rule][0] for alert in self._news(math.inf)), default=None)

    def _news(self, now: float) -> list[Alert]:
        """Return the alerts that are to be reported, without those that wait for the cool-down of their rule."""
        found = []
        for key, alert in self._active.items():
            if key in self._inherited and not self.is_leader:
                continue
            reported = self._reported.get(key)
            until, worst = self._cooldowns.get(alert.rule, (-math.inf, alert.severity))
            is_news = reported is None or alert.severity > reported.severity
            if is_news and self._is_wanted(alert, alert.severity) and (now >= until or alert.severity > worst):
                found.append(alert)
        return found

    def _cool_down(self, rule: str, severity: Severity, now: float, until: float) -> None:
        """Let the alerts of a rule that are no worse than a severity wait until a time."""
        before, worst = self._cooldowns.get(rule, (-math.inf, severity))
        if until > now:
            self._cooldowns[rule] = (max(before, until), max(worst, severity) if now < before else severity)

    def _count_as_reported(self, alerts: Mapping[str, Alert]) -> None:
        """Count those of some alerts as reported that were found, and that another gpuwatch has sent."""
        for key in self._inherited & self._sent & alerts.keys():
            if self._is_wanted(alerts[key], max(alerts[key].severity, alerts[key].most)):
                self._reported.setdefault(key, alerts[key])
        self._inherited -= self._sent

    def _is_wanted(self, alert: Alert, severity: Severity) -> bool:
        return severity >= self.policy.least and not alert.quiet and alert.key not in self.others


# -- Delivery -----------------------------------------------------------------------------------------------------

Send = Callable[[Message, Callable[[], bool]], str]
"""Function that delivers a message, or gives up once its second argument returns True; it may take some seconds.

It returns the reason of a failure as words that follow the name of the route, empty on success.
"""
COMMAND_LIMIT: Final = 10.0
"""Seconds that a command may run."""
APPRISE_LIMIT: Final = 30.0
"""Seconds that a service may take: apprise itself gives a server 4 s to connect and 4 s to answer, each time."""
APPRISE: Final = python_command(str(Path(__file__).with_name("apprise_child.py")))
"""The child that imports apprise."""
_NOT_INSTALLED: Final = "needs apprise"
"""Answer of the child where apprise cannot be imported."""
_OUTPUT: Final = 64 * 1024
"""Bytes of a program's output that are read: the last ones."""
_QUOTED: Final = 200
"""Characters of an error, at most."""


def command_sender(command: Sequence[str], *, limit: float = COMMAND_LIMIT) -> Send:
    """Return the function that runs the user's program with one JSON object on stdin; no shell is involved.

    `command` is the program (absolute, or with ~) and its arguments; after `limit` seconds it is killed with all that
    it started. The object has the fields of the alert as the events log has them, `event` (raised, worse, cleared) and
    `message` (the title and the body); of a digest `event`, `message`, `host`, `severity` and `alerts`.
    """
    program = Path(command[0]).expanduser()

    def send(message: Message, is_stopped: Callable[[], bool]) -> str:
        # As when the configuration was read; a program that is missing is reported by the attempt.
        if unsafe := check_source(program, missing_ok=True):
            return f"is not run: {unsafe}"
        about: dict[str, object] = {"host": message.host, "severity": message.severity, "alerts": message.alerts}
        if message.kind != "digest":
            about = msgspec.to_builtins(message.alerts[0])
        about |= {"event": message.kind, "message": f"{message.title}\n{message.body}".rstrip()}
        line, data = (str(program), *command[1:]), msgspec.json.encode(about) + b"\n"
        try:
            code, output = run(line, data, output=2, timeout=limit, is_stopped=is_stopped, most=_OUTPUT)
        except OSError as error:
            return f"cannot be run: {error.strerror}"
        if code is None:
            return "was stopped" if is_stopped() else f"did not end within {limit:g} s"
        lines = [one for one in output[-4096:].decode("utf-8", "replace").splitlines() if one.strip()]
        # A client may print the URL that it failed with.
        last = text.clean(f": {' '.join(text.redact(lines[-1].split()))}", _QUOTED) if lines else ""
        return f"ended with {describe_exit(code)}{last}" if code else ""

    return send


def apprise_sender(url: str, *, command: Sequence[str] = APPRISE, limit: float = APPRISE_LIMIT) -> Send:
    """Return the function that sends to a URL of apprise, which holds secrets: only the child gets it, on stdin."""

    def send(message: Message, is_stopped: Callable[[], bool]) -> str:
        # Services choose a colour by it.
        kind = {Severity.CRITICAL: "failure", Severity.WARNING: "warning"}.get(message.severity, "info")
        order = {"title": message.title, "body": message.body, "kind": "success" if message.is_over else kind}
        return _ask_apprise([url], order, command, limit, is_stopped)[0]

    return send


def check_urls(urls: Sequence[str], command: Sequence[str] = APPRISE) -> list[str]:
    """Ask apprise whether it understands each URL; return for each why not, empty for a good one. Nothing is sent."""
    return _ask_apprise(urls, {}, command, APPRISE_LIMIT, lambda: False) if urls else []


def check_program(word: str) -> str:
    """Return why a program cannot be run; empty where it can."""
    program = Path(word).expanduser()
    if not program.is_file():
        return f"there is no file {text.clean(str(program))}"
    return "" if os.access(program, os.X_OK) else f"{text.clean(str(program))} cannot be executed"


def find_unreachable(policy: Notify, is_stopped: Callable[[], bool]) -> list[str]:
    """Return for each route of `make_routes` why it cannot work, as words that follow its name, or empty.

    It connects to the hosts that URLs name. Nothing is sent, and the command is not run.
    """
    found = [("command", check_program(word)) for word in policy.command[:1]]
    if policy.urls:
        reasons = _ask_apprise(policy.urls, {"reach": "yes"}, APPRISE, COMMAND_LIMIT, is_stopped)
        found += [("urls", reason) for reason in reasons]
    return [f"in notify.{key}: {reason}" if reason else "" for key, reason in found]


def _ask_apprise(
    urls: Sequence[str], order: dict[str, str], command: Sequence[str], limit: float, is_stopped: Callable[[], bool]
) -> list[str]:
    """Run an order in the child; return for each URL why it failed, or empty."""
    data = msgspec.json.encode({"urls": urls, **order})
    try:
        code, output = run(command, data, output=1, timeout=limit, is_stopped=is_stopped, most=_OUTPUT)
        reasons = msgspec.json.decode(output, type=list[str]) if code is not None else []
    except OSError as error:
        return [f"cannot be checked: {error.strerror}"] * len(urls)
    except ValueError:
        reasons = []
    if len(reasons) == len(urls):
        hint = f"{_NOT_INSTALLED}: {install_hint('notify')}" if _NOT_INSTALLED in reasons else ""
        return [hint if reason == _NOT_INSTALLED else text.clean(reason, _QUOTED) for reason in reasons]
    if code is None:
        return ["was stopped" if is_stopped() else "does not answer (timeout)"] * len(urls)
    return [f"could not be checked: the sending process ended with {describe_exit(code)}"] * len(urls)


RETRY: Final = 30.0
"""Seconds after the first failure of a route until the next attempt; doubled after each further one."""
_LONGEST_RETRY: Final = 600.0
_ATTEMPTS: Final = 5
"""Failures in a row after which waiting messages are dropped and counted."""
WAITING: Final = 1000
"""Messages that wait for one route, at most; beyond that the oldest are dropped and counted."""


class Route:
    """Route of messages: its name, waiting messages, and the time of the next attempt; used from one thread."""

    def __init__(
        self, name: str, send: Send, *, retry: float = RETRY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`name` precedes the reason of a failure: `slack`, `command tell`."""
        self.name, self._send, self._clock = name, send, clock
        self._waiting: deque[Message] = deque()
        self._backoff = Backoff(retry, _LONGEST_RETRY)
        self._not_before = -math.inf
        self._failures = self._lost = 0
        self._error = ""
        self._was_used = False

    @property
    def trouble(self) -> str:
        """Why messages are not delivered, until one is: `slack does not answer (timeout)`; empty for no failure."""
        lost = f"; {self._lost} message{'s' * (self._lost > 1)} not delivered" if self._lost else ""
        return text.clean(f"{self.name} {self._error}{lost}", 300) if self._error else ""

    @property
    def next_due(self) -> float | None:
        """Time of the next attempt on the clock; None where nothing waits."""
        return self._not_before if self._waiting else None

    def report(self, error: str) -> None:
        """Set why it cannot work, as was found without a message; empty for nothing. Ignored after a message."""
        if not self._was_used:
            self._error = error

    def deliver(self, messages: Iterable[Message], *, together: int, is_stopped: Callable[[], bool]) -> None:
        """Send messages and those that wait, as one digest where they are more than `together` or others failed."""
        self._waiting += messages
        while len(self._waiting) > WAITING:
            self._waiting.popleft()
            self._lost += 1
        while self._waiting and not is_stopped() and self._clock() >= self._not_before:
            count = len(self._waiting) if len(self._waiting) > together or self._failures else 1
            batch = [self._waiting[place] for place in range(count)]
            self._was_used = True
            try:
                self._error = self._send(digest(batch) if count > 1 else batch[0], is_stopped)
            except Exception as error:  # noqa: BLE001 - whatever a route does, the others go on
                self._error = f"failed: {type(error).__name__}: {error}"
            self._failures = self._failures + 1 if self._error else 0
            if self._error:
                self._not_before = self._clock() + self._backoff.next()
            else:
                self._lost, self._not_before = 0, -math.inf
                self._backoff.reset()
            if self._failures % _ATTEMPTS == 0:
                self._lost += count if self._error else 0
                for _ in batch:
                    self._waiting.popleft()


def make_routes(policy: Notify) -> list[Route]:
    """Return a route for the command and for each URL, named by its scheme: `slack`, `mailto`, `mailto 2`."""
    routes, seen = [], Counter[str]()
    if policy.command:
        routes.append(Route(f"command {text.clean(Path(policy.command[0]).name, 40)}", command_sender(policy.command)))
    for url in policy.urls:
        name = url.partition("://")[0].lower()
        seen[name] += 1
        routes.append(Route(name if seen[name] == 1 else f"{name} {seen[name]}", apprise_sender(url)))
    return routes


# -- The sink -----------------------------------------------------------------------------------------------------

FRAMES: Final = 600
"""Frames that wait, at most: those of ten minutes, longer than all routes may take together."""
_PAUSE: Final = 1.0
"""Seconds until the next attempt after a bug raised an exception."""
_STOP_WAIT: Final = 0.5
"""Seconds that a delivery may take to stop."""


class Messenger:
    """Sink that sends messages, while this gpuwatch is the one of its user and host that records.

    The others keep track of the alerts, so that one of them can go on when the sender stops. One thread sends to one
    route after the other. A failure is `trouble` until that route delivers again. The sender checks at its start, and
    later where it failed, whether the routes can be reached.
    """

    name = "messages"

    def __init__(
        self,
        policy: Notify,
        is_leader: Callable[[], bool],
        *,
        routes: Callable[[Notify], Sequence[Route]] = make_routes,
        silent_leader: Callable[[], str] = str,
        on_sent: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`silent_leader` returns a sentence about the gpuwatch that records if it sends no messages, with the fix.

        `on_sent` is called from the messenger's thread where `was_sent` is true of more alerts than before.
        """
        self._silent_leader, self._on_sent = silent_leader, on_sent
        self._schedule = MessageSchedule(policy)
        self._is_leader, self._make_routes, self._clock = is_leader, routes, clock
        self._routes = routes(policy)
        self._check_at, self._check_backoff = -math.inf, Backoff(RETRY, _LONGEST_RETRY)
        self._frames: deque[Frame] = deque(maxlen=FRAMES)
        self._failure = ""
        self._stopped = threading.Event()
        self._worker = Worker("gpuwatch-messages", self._task, last=lambda: self._task(flush=True))

    @property
    def trouble(self) -> str:
        """Reasons why messages were not delivered, in one line; empty where all were."""
        reasons = [one for one in (self._failure, *(route.trouble for route in self._routes)) if one]
        return f"messages: {'; '.join(reasons)}" if reasons else ""

    def take(self, frame: Frame) -> None:
        if not self._worker.is_closing:
            self._frames.append(frame)
            self._worker.wake()

    def was_sent(self, alert: Alert) -> bool:
        """Return whether the message about an alert that holds was sent; from any thread."""
        return self._schedule.was_sent(alert)

    def restore(self, events: Sequence[Alert]) -> None:
        """Take over from the store's events which were sent; from any thread, without waiting."""
        self._worker(lambda: self._schedule.restore(events, self._clock(), time.time()))

    def configure(self, policy: Notify) -> None:
        """Use another policy from now on; from any thread, without waiting."""

        def change() -> None:
            if not self._schedule.policy.sends:
                self._schedule.begin()
            self._schedule.policy, self._routes = policy, self._make_routes(policy)
            self._check_at = -math.inf

        self._worker(change)

    def close(self, seconds: float) -> None:
        """Send also the messages that wait for others, and give up after `seconds`; from any thread."""
        self._worker.close(seconds)
        self._stopped.set()
        self._worker.close(_STOP_WAIT)

    def _task(self, *, flush: bool = False) -> float | None:
        try:
            while self._frames:
                frame = self._frames.popleft()
                self._schedule.others = others_alerts(frame) if self._schedule.policy.mine else ()
                self._schedule.update(frame.raised, frame.cleared, frame.alerts)
            is_leader = self._schedule.is_leader = self._is_leader()
            messages = self._schedule.pop_due(self._clock(), flush=flush)
            if messages and is_leader:
                self._on_sent()
            for route in self._routes:
                route.deliver(
                    messages if is_leader else (),
                    together=self._schedule.policy.digest,
                    is_stopped=self._stopped.is_set,
                )
            if is_leader and not flush and self._clock() >= self._check_at:
                self._check()
            self._failure = ""
            if not is_leader and self._schedule.policy.sends and (words := self._silent_leader()):
                self._failure = f"none are sent: {words}"
        except Exception as error:  # noqa: BLE001 - a bug in gpuwatch must be reported, and must not stop the messages
            self._failure = text.clean(f"failed: {type(error).__name__}: {error}", 200)
            return _PAUSE
        check_at = self._check_at if is_leader and self._check_at < math.inf else None
        times = (check_at, self._schedule.next_due(), *(route.next_due for route in self._routes))
        due = min((one for one in times if one is not None), default=None)
        return None if due is None else max(0.0, due - self._clock())

    def _check(self) -> None:
        """Check whether the routes can be reached, and plan the next check where one cannot."""
        self._check_at = math.inf
        found = find_unreachable(self._schedule.policy, lambda: self._worker.is_closing)
        for route, reason in zip(self._routes, found, strict=False):
            route.report(reason)
        if any(found):
            self._check_at = self._clock() + self._check_backoff.next()
