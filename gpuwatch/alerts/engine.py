"""Engine that raises and ends alerts by the observations of rules. Callers pass in the time.

    fine ──raise_after samples at a level──► raised ──clear_after samples below it──► stepped down or fine
                                             raised ──raise_after samples at a worse level──► raised again

The samples that raise must also span `raise_for` seconds, and those that clear `clear_for`, by the sampler's clock. A
sample that gives no observation changes nothing: neither a missing reading nor a GPU left out clears an alert. An alert
about a process or a scope ends when a complete list of its GPU's processes no longer contains that process or scope.
In the first seconds nothing is raised and nothing ends. A condition that comes and goes within seconds must stay better
for longer before it ends (`condition.CALM`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from gpuwatch.alerts.alert import TROUBLE, Alert, Severity
from gpuwatch.alerts.condition import UNSEEN, UNSEEN_INTERVALS, Condition, Tick, Transition, new_alert
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rule import Observation, Rule, RuleContext
from gpuwatch.alerts.rules import RULES
from gpuwatch.alerts.rules.custom import asks_the_same, custom_rules, judges
from gpuwatch.alerts.rules.idle import DEAD
from gpuwatch.alerts.rules.shares import AT_ONCE
from gpuwatch.base import text, units
from gpuwatch.history.history import HistoryView
from gpuwatch.model.holdings import Holdings
from gpuwatch.model.shares import was_read
from gpuwatch.model.snapshot import Gpu, Snapshot, SourceState

FORGOTTEN: Final = 600.0
"""Seconds without an observation or the GPU in any snapshot after which an alert is cleared."""

_AT_ONCE: Final = frozenset(rule.name for rule in AT_ONCE)
_Key: TypeAlias = tuple[str, str, str]
"""Rule, host, and the subject or the GPU: as in `Alert.key`."""


class Changes(NamedTuple):
    """Result of an update."""

    active: tuple[Alert, ...] = ()
    """All alerts that hold now: the worst first, then the oldest."""
    raised: tuple[Alert, ...] = ()
    """Alerts that are new, or got worse; one of a moment is in `cleared` too."""
    cleared: tuple[Alert, ...] = ()
    """Alerts that have ended: their last state, with the time and the reason of the end."""
    eased: tuple[Alert, ...] = ()
    """Alerts that hold and stepped down."""
    early: tuple[Alert, ...] = ()
    """What was so from the start, and is not raised yet, as alerts to show only in rows."""


class Engine:
    """Alert engine with one condition for each rule and GPU, process or scope; used from one thread."""

    def __init__(self, limits: Limits | None = None, *, rules: Sequence[Rule] = RULES) -> None:
        self.limits = limits or Limits()
        """Limits of the rules; may be replaced between two updates: the next one ends alerts of rules that are off."""
        self._built_in = tuple(rules)
        self._rules = self._built_in
        """Rules that are on: the built-in rules and the user's own."""
        self._conditions: dict[_Key, Condition] = {}
        self._host = ""
        """Last known name of the host."""
        self._began: float | None = None
        self._restoring: list[tuple[Alert, float, float]] = []
        """Alerts to continue once the host is known, each with the monotonic times of `restore` and of its start."""
        self._applied: Limits | None = None
        """Limits by which conditions were last checked for rules that are off."""
        self._failing: frozenset[str] = frozenset()
        """Rules that failed at this snapshot."""
        self._uuids: frozenset[str] = frozenset()
        """UUIDs of the GPUs in the last snapshot."""

    def update(
        self,
        snapshot: Snapshot,
        history: HistoryView,
        now_monotonic: float,
        now_wall: float,
        holdings: Holdings | None = None,
    ) -> Changes:
        """Add a snapshot that was received at `now_monotonic` (reader's clock) and `now_wall`."""
        self._began = now_monotonic if self._began is None else self._began
        self._set_host(snapshot.host)
        quiet = now_monotonic - self._began < self.limits.quiet
        gap = max(UNSEEN, UNSEEN_INTERVALS * snapshot.interval)
        tick = Tick(now_monotonic, now_wall, self._host, quiet, gap)
        changed: dict[Transition, list[Alert]] = {transition: [] for transition in Transition}
        ended = changed[Transition.ENDED]
        at_start: list[Alert] = []
        self._continue_restored()
        ended += self._apply_limits(tick)
        ended += self._adopt(snapshot, tick)
        watched = {(rule, subject) for rule, _, subject in self._conditions}
        context = RuleContext(snapshot, history, self.limits, watched, holdings)
        for rule, seen in self._observe(context):
            key = (rule, self._host, seen.subject or (seen.gpu.key if seen.gpu else ""))
            condition = self._conditions.get(key)
            if condition is None:
                if seen.level is None:
                    continue
                early = rule in _AT_ONCE and (quiet or now_monotonic == self._began)
                condition = self._conditions[key] = Condition(rule, early=early)
            change = condition.update(seen, tick, context)
            if change is not None and seen.momentary:
                over = self._end([(key, "")], tick)
                changed[change[0]] += over
                ended += over
                continue
            if change is not None:
                changed[change[0]].append(change[1])
            condition.early = condition.early and condition.alert is None and seen.level is not None
            if condition.early and seen.level is not None:
                alert = new_alert(rule, tick, severity=seen.level, gpu=condition.gpu, subject=seen.subject)
                words = {name: getattr(seen, name) for name in ("title", "short", "forecast", "pids")}
                at_start.append(msgspec.structs.replace(alert, **words))
            if condition.is_idle(tick.now):
                del self._conditions[key]
        ended += self._forget(snapshot, tick)
        return Changes(
            _sorted(one.alert for one in self._conditions.values() if one.alert is not None),
            _sorted(changed[Transition.RAISED]),
            tuple(ended),
            tuple(changed[Transition.EASED]),
            tuple(at_start),
        )

    def restore(self, alerts: Iterable[Alert], now_monotonic: float, now_wall: float) -> None:
        """Continue alerts that another gpuwatch raised: each holds until a sample shows that it is over.

        The alerts hold from the next update on, and are never in `Changes.raised`. Alerts that have ended, of another
        host, or about gpuwatch itself are left out. An alert that this engine has raised already is merged.
        """
        for alert in alerts:
            if alert.ended is None and alert.rule != TROUBLE:
                age = max(0.0, now_wall - alert.raised)
                self._restoring.append((alert, now_monotonic, now_monotonic - age))

    def _set_host(self, host: str) -> None:
        """Set the host's name, also in conditions that were found before the name was known."""
        if not host or host == self._host:
            return
        unnamed = [key for key in self._conditions if not key[1]]
        self._host = host
        for rule, _, subject in unnamed:
            condition = self._conditions.pop((rule, "", subject))
            condition.rename(condition.gpu, host)
            self._conditions.setdefault((rule, host, subject), condition)

    def _continue_restored(self) -> None:
        """Continue the alerts passed to `restore`, once this host's name is known."""
        if not self._restoring or not self._host:
            return
        for alert, now, raised in self._restoring:
            if alert.host in ("", self._host):
                ours = alert if alert.host else msgspec.structs.replace(alert, host=self._host)
                key = (alert.rule, self._host, alert.subject or alert.gpu)
                self._conditions.setdefault(key, Condition(alert.rule)).restore(ours, now, raised)
        self._restoring.clear()
        self._applied = None

    def _apply_limits(self, tick: Tick) -> list[Alert]:
        """End alerts of rules that are off, no longer exist, or now judge another metric."""
        if self._applied is self.limits:
            return []
        before = {one.name: one for one in self._applied.custom} if self._applied is not None else {}
        custom = {one.name: one for one in self.limits.custom}
        rules = (*self._built_in, *custom_rules(self.limits))
        self._rules = tuple(rule for rule in rules if rule.name not in self.limits.off)
        self._applied = self.limits
        names = {rule.name for rule in self._rules} | {TROUBLE}
        over: list[tuple[_Key, str]] = []
        for key, condition in self._conditions.items():
            rule, restored = custom.get(key[0]), condition.alert if condition.unjudged else None
            if key[0] not in names:
                over.append((key, "the rule was turned off"))
            elif rule is not None and (
                not asks_the_same(before.get(rule.name, rule), rule)
                or (restored is not None and not judges(rule, restored))
            ):
                over.append((key, "the rule was changed"))
        return self._end(over, tick)

    def _adopt(self, snapshot: Snapshot, tick: Tick) -> list[Alert]:
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
                    over.append((key, "it continues under the GPU's UUID"))
                else:
                    condition = self._conditions.pop(key)
                    self._conditions[rule, host, gpu.key] = condition
                    condition.rename(gpu.key, host)
        return self._end(over, tick)

    def _observe(self, context: RuleContext) -> Iterator[tuple[str, Observation]]:
        """Apply the rules; yield each observation with the name of its rule."""
        failing = set()
        for rule in self._rules:
            try:
                # All of it or nothing: half of what a rule finds would be news that it did not mean.
                found = list(rule.find(context))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one rule, the others go on
                failing.add(rule.name)
                words = text.clean(f"the rule {rule.name} failed: {type(error).__name__}: {error}", limit=300)
                yield TROUBLE, Observation(subject=rule.name, level=Severity.WARNING, raise_after=1, title=words)
                continue
            for seen in found:
                yield rule.name, seen
            if (TROUBLE, self._host, rule.name) in self._conditions:
                yield TROUBLE, Observation(subject=rule.name, clear_after=1, title=f"the rule {rule.name} works again")
        self._failing = frozenset(failing)

    def _forget(self, snapshot: Snapshot, tick: Tick) -> list[Alert]:
        """End conditions that are over, or that no rule has observed for `FORGOTTEN` seconds."""
        gpus = {gpu.key: gpu for gpu in snapshot.gpus}
        over: list[tuple[_Key, str]] = []
        for key, condition in self._conditions.items():
            gpu = gpus.get(condition.gpu)
            about_gpu = not condition.subject and key[1] == self._host
            if condition.rule in self._failing or (about_gpu and (gpu is not None or not condition.gpu)):
                condition.seen = tick.now
            if condition.seen == tick.now or tick.quiet:
                continue
            if tick.now - condition.seen > FORGOTTEN:
                over.append((key, f"no data about it for {units.long_duration(FORGOTTEN)}"))
            elif condition.subject and _is_over(condition, gpu, snapshot):
                over.append((key, _describe_end(condition, gpu, snapshot)))
        return self._end(over, tick)

    def _end(self, over: Iterable[tuple[_Key, str]], tick: Tick) -> list[Alert]:
        """Remove conditions, each with the reason of its end; return the alerts that ended with them."""
        ended = [self._conditions.pop(key).end(how, tick) for key, how in over]
        return [alert for alert in ended if alert is not None]


def _sorted(alerts: Iterable[Alert]) -> tuple[Alert, ...]:
    return tuple(sorted(alerts, key=lambda alert: alert.weight))


def _is_over(condition: Condition, gpu: Gpu | None, snapshot: Snapshot) -> bool:
    """Return whether a condition that no rule observes any more has lost its subject."""
    if snapshot.state is not SourceState.OK or not snapshot.gpus:
        return False
    # A user may be on any of them.
    about = snapshot.gpus if not condition.gpu else (gpu,)
    if not all(one is not None and one.sampled > 0 and one.is_listed for one in about):
        return False
    if condition.unjudged:
        return _has_left(condition, gpu, snapshot)
    rests_on = set(condition.rests_on)
    return not any(one.key in rests_on and not was_read(one.declared) for one in snapshot.processes)


def _has_left(condition: Condition, gpu: Gpu | None, snapshot: Snapshot) -> bool:
    """Return whether no process of a restored alert is listed any more; False for an alert that names no process."""
    pids = _pids_of(condition)
    shown = (gpu,) if gpu is not None else snapshot.gpus
    return bool(pids) and not any(_is_one_of(pids, one.pid, one.start) for each in shown for one in each.holdings)


def _describe_end(condition: Condition, gpu: Gpu | None, snapshot: Snapshot) -> str:
    """Return the reason why no rule observes a condition any more: `process 123 has ended`.

    A snapshot has only processes on GPUs: one that is not there may go on without a GPU.
    """
    pids = _pids_of(condition)
    who = f"process {next(iter(pids))} has" if len(pids) == 1 else "its processes have"
    there = [one for one in snapshot.processes if _is_one_of(pids, *one.key)]
    if not there and condition.rule == DEAD:  # it had ended before
        return f"the driver no longer lists {who.removesuffix(' has')}"
    if pids and all(one.has_ended for one in there):
        return f"{who} ended" if there else f"{who} ended or left the GPU"
    if gpu is not None and _has_left(condition, gpu, snapshot):
        return f"{who} left GPU {gpu.index}"
    return "it is over"


def _pids_of(condition: Condition) -> Mapping[int, int]:
    """Return the processes that a condition is about, with their start times; 0 for an unknown start time."""
    first, _, start = condition.subject.partition(" ")[0].partition(":")
    if first.isdecimal() and start.isdecimal():
        return {int(first): int(start)}
    pids = dict.fromkeys(condition.alert.pids, 0) if condition.alert is not None else {}
    return {**pids, **dict(condition.rests_on)}


def _is_one_of(pids: Mapping[int, int], pid: int, start: int) -> bool:
    return pid in pids and (not start or pids[pid] in (0, start))
