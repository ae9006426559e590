"""The engine raises, holds and clears alerts as observations come in; time is handed to it.

    fine ──raise_after samples at a level──► raised ──clear_after samples that keep less──► stepped down or fine
                                             raised ──raise_after samples at a worse level──► raised again

The samples that raise must also span `raise_for` seconds, and those that clear `clear_for`, by the sampler's clock. A
sample that gives no observation changes nothing: neither a missing reading nor a GPU left out clears an alert. What is
about a process or a scope ends with it, as soon as a list of its GPU's processes that can be trusted no longer has it.
In the first seconds nothing is raised and nothing ends. What gets better and worse again within seconds must be better
for longer before it ends (`condition.CALM`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from gpuwatch import text, units
from gpuwatch.alerts import table
from gpuwatch.alerts.alert import TROUBLE, Alert, Severity
from gpuwatch.alerts.condition import SLOW, UNSEEN, Condition, Moment, Turn
from gpuwatch.alerts.rules.custom import asks_the_same, is_of, own_rules
from gpuwatch.alerts.rules.devices import declared_devices
from gpuwatch.alerts.rules.hardware import hardware_rules
from gpuwatch.alerts.rules.idle import holder_rules
from gpuwatch.alerts.rules.memory import Limits, Observation, data_stale, gpu_health, memory_near_limit, time_to_full
from gpuwatch.alerts.rules.shares import declared_shares
from gpuwatch.history import HistoryView
from gpuwatch.model import Gpu, Health, Presence, Snapshot, SourceState
from gpuwatch.shares import was_read

FORGOTTEN: Final = 600.0
"""Seconds without an observation or the GPU in any snapshot after which an alert is cleared."""

Rule: TypeAlias = Callable[[Snapshot, HistoryView, Limits], Iterable[Observation]]

RULES: Final[tuple[Rule, ...]] = (
    data_stale,
    gpu_health,
    memory_near_limit,
    declared_shares,
    declared_devices,
    time_to_full,
    holder_rules,
    hardware_rules,
    own_rules,
)

_Key: TypeAlias = tuple[str, str, str]
"""The rule, the host, and the subject or the GPU: as in `Alert.key`."""


class Changes(NamedTuple):
    """What an update came to."""

    active: tuple[Alert, ...] = ()
    """All alerts that hold now: the worst first, then the oldest."""
    raised: tuple[Alert, ...] = ()
    """Those of them that are new, or got worse."""
    cleared: tuple[Alert, ...] = ()
    """Those that hold no longer, as they last were, with when and how they ended."""
    eased: tuple[Alert, ...] = ()
    """Those that hold and stepped down."""


class Engine:
    """Keeps one condition for each rule and GPU, process or scope; used from one thread."""

    def __init__(self, limits: Limits | None = None, *, rules: Sequence[Rule] = RULES) -> None:
        self.limits = limits or Limits()
        """May be replaced between two updates: what a rule that is off now has raised ends at the next."""
        self._rules = rules
        self._conditions: dict[_Key, Condition] = {}
        self._host = ""
        """The last one known."""
        self._began: float | None = None
        self._restoring: list[tuple[Alert, float, float]] = []
        """Alerts to go on with once the host is known; our monotonic clock then, and when they were raised by it."""
        self._applied: Limits | None = None
        """The limits by which conditions were last looked through for rules that are off."""
        self._failing: frozenset[str] = frozenset()
        """Names of the rules' functions that failed at this snapshot."""
        self._uuids: frozenset[str] = frozenset()
        """Of the GPUs of the last snapshot."""

    def update(self, snapshot: Snapshot, history: HistoryView, now_monotonic: float, now_wall: float) -> Changes:
        """Take in a snapshot that was received at `now_monotonic` (reader's clock) and `now_wall`."""
        self._began = now_monotonic if self._began is None else self._began
        self._know(snapshot.host)
        quiet = now_monotonic - self._began < self.limits.quiet
        at = Moment(now_monotonic, now_wall, self._host, quiet, max(UNSEEN, SLOW * snapshot.interval))
        changed: dict[Turn, list[Alert]] = {turn: [] for turn in Turn}
        ended = changed[Turn.ENDED]
        self._go_on()
        ended += self._turned_off(at)
        ended += self._adopt(snapshot, at)
        for maker, seen in self._observe(snapshot, history):
            key = (seen.rule, self._host, seen.subject or seen.gpu)
            condition = self._conditions.get(key)
            if condition is None:
                if seen.level is None:
                    continue
                condition = self._conditions[key] = Condition()
            condition.maker = maker
            turned = condition.take(seen, at)
            if turned is not None:
                changed[turned[0]].append(turned[1])
            if condition.is_idle(at.now):
                del self._conditions[key]
        ended += self._forget(snapshot, at)
        active = sorted([one.alert for one in self._conditions.values() if one.alert is not None], key=_weight)
        return Changes(
            tuple(active),
            tuple(sorted(changed[Turn.RAISED], key=_weight)),
            tuple(ended),
            tuple(changed[Turn.EASED]),
        )

    def restore(self, alerts: Iterable[Alert], now_monotonic: float, now_wall: float) -> None:
        """Go on with alerts that another gpuwatch raised: each is held until a sample says that it is over.

        They hold from the next update on, and are never in its `raised`. Those that have ended, those of another host
        and those about gpuwatch itself are left out. Where a condition is raised here already, the two are one.
        """
        for alert in alerts:
            if alert.ended is None and alert.rule != TROUBLE:
                age = max(0.0, now_wall - alert.raised)
                self._restoring.append((alert, now_monotonic, now_monotonic - age))

    # -----------------------------------------------------------------------------------------------------------
    # Before the observations

    def _know(self, host: str) -> None:
        """Take note of the host's name; what was found before it was known is of this host too."""
        if not host or host == self._host:
            return
        unnamed = [key for key in self._conditions if not key[1]]
        self._host = host
        for rule, _, subject in unnamed:
            condition = self._conditions.pop((rule, "", subject))
            condition.rename(condition.gpu, host)
            self._conditions.setdefault((rule, host, subject), condition)

    def _go_on(self) -> None:
        """Take over what `restore` was given, once it is known of which host we are."""
        if not self._restoring or not self._host:
            return
        for alert, now, raised in self._restoring:
            if alert.host in ("", self._host):
                ours = alert if alert.host else msgspec.structs.replace(alert, host=self._host)
                key = (alert.rule, self._host, alert.subject or alert.gpu)
                self._conditions.setdefault(key, Condition()).restore(ours, now, raised)
        self._restoring.clear()
        self._applied = None

    def _turned_off(self, at: Moment) -> list[Alert]:
        """End what is of a rule that is off, or is none any more, or judges something else by now."""
        if self._applied is self.limits:
            return []
        before = {one.name: one for one in self._applied.own} if self._applied is not None else {}
        own = {one.name: one for one in self.limits.own}
        off, known = self.limits.off | (before.keys() - own.keys()), table.names() | own.keys()
        self._applied = self.limits
        over: list[tuple[_Key, str]] = []
        for key, condition in self._conditions.items():
            name, restored = key[0], condition.alert if condition.unjudged else None
            if name in off or (restored is not None and name not in known):
                over.append((key, "the rule was turned off"))
            elif (rule := own.get(name)) is not None and (
                not asks_the_same(before.get(name, rule), rule) or (restored is not None and not is_of(rule, restored))
            ):
                over.append((key, "the rule was changed"))
        return self._end(over, at)

    def _adopt(self, snapshot: Snapshot, at: Moment) -> list[Alert]:
        # A GPU that never answered is known by its index; once it does, its conditions go on under its UUID, where that
        # has none of its own. One that was there before under its UUID has only moved to that index.
        there = {gpu.key for gpu in snapshot.gpus}
        nameless = [key for key in self._conditions if key[2].startswith("index-") and key[2] not in there]
        before, self._uuids = self._uuids, frozenset(gpu.uuid for gpu in snapshot.gpus)
        over: list[tuple[_Key, str]] = []
        for gpu in snapshot.gpus if nameless else ():
            for key in nameless if gpu.uuid else ():
                if key[2] != f"index-{gpu.index}":
                    continue
                rule, host, _ = key
                if gpu.uuid in before:
                    over.append((key, "another GPU has this index now"))
                elif (rule, host, gpu.key) in self._conditions:
                    over.append((key, "it goes on under the GPU's UUID"))
                else:
                    condition = self._conditions.pop(key)
                    self._conditions[rule, host, gpu.key] = condition
                    condition.rename(gpu.key, host)
        return self._end(over, at)

    # -----------------------------------------------------------------------------------------------------------
    # Observations

    def _observe(self, snapshot: Snapshot, history: HistoryView) -> Iterator[tuple[str, Observation]]:
        """Apply the rules; give what each function found, with its name."""
        off, failing = self.limits.off, set()
        for rule in self._rules:
            name = getattr(rule, "__name__", type(rule).__name__)
            try:
                # All of it or nothing: half of what a rule says would be news that it did not mean.
                found = list(rule(snapshot, history, self.limits))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one rule, the others go on
                failing.add(name)
                found = [_failure(name, error)]
            else:
                if name in self._failing or (TROUBLE, self._host, name) in self._conditions:
                    found.append(_success(name))
            for seen in found:
                if seen.rule not in off:
                    yield name, seen
        self._failing = frozenset(failing)

    # -----------------------------------------------------------------------------------------------------------
    # After the observations

    def _forget(self, snapshot: Snapshot, at: Moment) -> list[Alert]:
        gpus = {gpu.key: gpu for gpu in snapshot.gpus}
        over: list[tuple[_Key, str]] = []
        for key, condition in self._conditions.items():
            gpu = gpus.get(condition.gpu)
            about_gpu = not condition.subject and key[1] == self._host
            if condition.maker in self._failing or (about_gpu and (gpu is not None or not condition.gpu)):
                condition.seen = at.now
            if condition.seen == at.now or at.quiet:
                continue
            if at.now - condition.seen > FORGOTTEN:
                over.append((key, f"nothing was heard of it for {units.long_duration(FORGOTTEN)}"))
            elif condition.subject and _is_over(condition, gpu, snapshot):
                over.append((key, _gone(condition, gpu, snapshot)))
        return self._end(over, at)

    def _end(self, over: Iterable[tuple[_Key, str]], at: Moment) -> list[Alert]:
        """Drop conditions, each with how it ended; give the alerts of those that were raised."""
        ended = [self._conditions.pop(key).end(how, at) for key, how in over]
        return [alert for alert in ended if alert is not None]


def _weight(alert: Alert) -> tuple[int, float, int, str, str]:
    return alert.weight


def _failure(rule: str, error: Exception) -> Observation:
    words = text.clean(f"the rule {rule} failed: {type(error).__name__}: {error}", limit=300)
    level = Severity.WARNING
    return Observation(rule=TROUBLE, subject=rule, level=level, keeps=level, title=words)


def _success(rule: str) -> Observation:
    return Observation(rule=TROUBLE, subject=rule, title=f"the rule {rule} works again")


# ---------------------------------------------------------------------------------------------------------------
# What no rule speaks of any more


def _is_over(condition: Condition, gpu: Gpu | None, snapshot: Snapshot) -> bool:
    """Return whether what a condition is about is gone, where no rule speaks of it any more."""
    if snapshot.state is not SourceState.OK or not snapshot.gpus:
        return False
    # What is about no GPU, but about a user, is on any of them.
    if not (all(map(_trusted, snapshot.gpus)) if not condition.gpu else gpu is not None and _trusted(gpu)):
        return False
    if condition.unjudged:
        return _left(condition, gpu, snapshot)
    rests_on = set(condition.rests_on)
    return not any(one.key in rests_on and not was_read(one.declared) for one in snapshot.processes)


def _trusted(gpu: Gpu) -> bool:
    """Return whether a process that a GPU does not list is not there."""
    return gpu.health is Health.OK and gpu.sampled > 0 and not gpu.holdings_note and not gpu.unreliable


def _left(condition: Condition, gpu: Gpu | None, snapshot: Snapshot) -> bool:
    """Return whether none of the processes of a restored alert is listed; where it names none, that is not known."""
    pids = _pids(condition)
    shown = (gpu,) if gpu is not None else snapshot.gpus
    return bool(pids) and not any(_is_one_of(pids, one.pid, one.start) for each in shown for one in each.holdings)


def _gone(condition: Condition, gpu: Gpu | None, snapshot: Snapshot) -> str:
    """Say in plain words why no rule speaks of a condition any more."""
    pids = _pids(condition)
    who = f"process {next(iter(pids))} has" if len(pids) == 1 else "its processes have"
    there = [one for one in snapshot.processes if _is_one_of(pids, *one.key)]
    if not there and any(condition.subject.startswith(f"{pid}:0 ") for pid in pids):  # it had ended before
        return f"the driver no longer lists {who.removesuffix(' has')}"
    if pids and all(one.presence is Presence.GONE for one in there):
        return f"{who} ended"
    if gpu is not None and _left(condition, gpu, snapshot):
        return f"{who} left GPU {gpu.index}"
    return "it is no longer so"


def _pids(condition: Condition) -> Mapping[int, int]:
    """Return the processes that a condition is about, with their start times; 0 where that is not known."""
    first, _, start = condition.subject.partition(" ")[0].partition(":")
    if first.isdecimal() and start.isdecimal():
        return {int(first): int(start)}
    pids = dict.fromkeys(condition.alert.pids, 0) if condition.alert is not None else {}
    return {**pids, **dict(condition.rests_on)}


def _is_one_of(pids: Mapping[int, int], pid: int, start: int) -> bool:
    return pid in pids and (not start or pids[pid] in (0, start))
