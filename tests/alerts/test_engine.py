"""Engine: how observations become alerts over time, and how alerts end, are restored, and follow changed limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import TROUBLE, Alert, AlertCause, AlertGpu, AlertUser, Severity
from gpuwatch.alerts.engine import FORGOTTEN
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rule import Observation, Rule, RuleContext
from gpuwatch.alerts.rules import RULES, devices, memory, shares
from gpuwatch.alerts.rules.health import HEALTH
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.model.snapshot import Declared, Gpu, Health, Hint, Margin, Reason, SourceState
from tests.analysis import machines
from tests.support.alerts import Bench, cap, card, only, overshooting, uuid, words
from tests.support.builders import EPOCH, filled, gpu, holding, process, uid

NOTE, WARNING, CRITICAL = Severity
LOST = gpu(1, health=Health.LOST)


@pytest.mark.parametrize(
    ("gap", "interval", "counts"),
    [(2, 1.0, True), (60, 1.0, True), (61, 1.0, False), (900, 1.0, False), (150, 60.0, True), (151, 60.0, False)],
)
def test_samples_before_a_gap_do_not_count(gap: float, interval: float, counts: bool) -> None:
    """Two that are bad, a minute or two and a half intervals without a sample, and three more that are bad."""
    bench = Bench()
    before = bench.feed_free(4, 4)
    after = [
        words(bench.feed(filled(4), seconds=gap, interval=interval)),
        *(words(bench.feed(filled(4), interval=interval)) for _ in range(2)),
    ]
    raised = ("+critical",)
    assert (before, after) == ([(), ()], [raised, (), ()] if counts else [(), (), raised])


def cleared(bench: Bench) -> Alert:
    """Return the one alert that the last snapshot ended."""
    (alert,) = bench.last.cleared
    return alert


class Story(msgspec.Struct, forbid_unknown_fields=True):
    """Line of engine.jsonl: snapshots, a second apart, and what becomes of them; `@1` is the UUID of GPU 1."""

    about: str
    steps: list[dict[str, Any]]
    """New `limits`, alerts to `restore`, or `gpus` and `people` that are fed so many `times`.

    `came` has what was raised and cleared, by the number of the time; `over` how alerts ended; `holds` the alerts after
    the step, where these are not as before.
    """
    limits: dict[str, Any] = {}
    rules: str = ""
    alert: dict[str, Any] = {}
    """Figures of the alert that ended last, or holds."""


TEXT = (Path(__file__).parent / "engine.jsonl").read_text()
for place in range(6):
    TEXT = TEXT.replace(f"@{place}", uuid(place))
STORIES = [msgspec.json.decode(line, type=Story) for line in TEXT.splitlines()]
SETS: dict[str, Sequence[Rule]] = {"": RULES, "shares": shares.RULES, "own": ()}


def limits(fields: dict[str, Any]) -> Limits:
    return msgspec.convert({"quiet": 0.0, **fields}, Limits)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.about)
def test_story(story: Story) -> None:
    bench = Bench(limits(story.limits), SETS[story.rules])
    ids: dict[str, str] = {}
    for step in story.steps:
        if "limits" in step:
            bench.engine.limits = limits(step["limits"])
            continue
        if "restore" in step:
            bench.restore(*(RAISED[name](**changes) for name, changes in step["restore"]))
            continue
        came, over = {}, []
        changes = dict(step.get("changes", {}))
        if "state" in changes:
            changes["state"] = SourceState(changes["state"])
        options = {key: step[key] for key in ("seconds", "fresh") if key in step} | changes
        for number in range(1, step.get("times", 1) + 1):
            people = map(machines.person, step.get("people", []))
            found = bench.feed(*map(machines.card, step.get("gpus", [])), people=people, **options)
            if words(found):
                came[str(number)] = " ".join(words(found))
            over += [f"{alert.title}: {alert.how}" for alert in found.cleared]
            known, ids = ids, {alert.key: alert.id for alert in found.active}
            assert all(known[key] == one for key, one in ids.items() if key in known), "it has become another"
        assert (came, over) == (step.get("came", {}), step.get("over", []))
        if "holds" in step:
            assert [f"{alert.severity.name.lower()} {alert.title}" for alert in found.active] == step["holds"]
    if story.alert:
        alert = [*bench.last.cleared, *bench.last.active][0]
        shown = msgspec.structs.asdict(alert) | {"key": alert.key, "pids": list(alert.pids)}
        shown = {key: round(one, 3) if isinstance(one, float) else one for key, one in shown.items()}
        assert {key: shown[key] for key in story.alert} == story.alert


def flickering(context: RuleContext) -> Iterator[Observation]:
    for one in context.snapshot.gpus:
        level = WARNING if one.throttle else None
        if not isinstance(one.throttle, Reason):
            yield Observation(
                gpu=one, level=level, keeps=level, title="x", stamp=one.sampled, raise_after=1, raise_for=5, forgives=2
            )


@pytest.mark.parametrize(
    ("samples", "raised"),
    [("xx.x.xx", True), ("x..x..x", True), ("x...xxx", False), ("xx?x?.x", True), ("xxxxx..", False)],
)
def test_fine_samples_that_are_forgiven_do_not_break_a_rise(samples: str, raised: bool) -> None:
    bench = Bench(rules=[Rule("flicker", flickering)])
    readings = {"x": ("power brake",), ".": (), "?": Reason.NO_SAMPLE}
    for each in samples:
        bench.feed(gpu(0, throttle=readings[each]))
    assert bool(bench.last.active) is raised


def test_it_lists_gpus_users_and_the_processes_that_cause_it() -> None:
    over = only(overshooting(cap(10)), OVERSHOOT)
    ada = AlertUser(uid("ada"), "ada")
    assert (over.gpus, over.users) == ((AlertGpu(uuid(), 0),), (ada,))
    assert over.causes == (AlertCause(uid=ada.uid, user="ada", pid=100, start=100, run="100:100"),)
    assert over.indices == {0}
    assert over.people == {"ada"}


def test_what_is_about_a_process_lists_all_gpus_that_it_fills() -> None:
    hints = Declared(hints=(Hint(rule="misspelt", words="CUDA_VISIBLE_DIVICES has no effect"),))
    bench = Bench(rules=devices.RULES)
    for _ in range(3):
        bench.feed(*(card((100, 5), index=index) for index in (2, 3)), gpu(4), people=[process(100, declared=hints)])
    found = only(bench, devices.MISSPELT)
    assert (found.index, set(found.indices)) == (2, {2, 3})


def test_hundreds_of_short_lived_processes_leave_nothing_behind() -> None:
    bench = Bench(rules=shares.RULES)
    for generation in range(5):
        pids = range(1000 + 100 * generation, 1100 + 100 * generation)
        people = [process(pid, declared=cap(0.01, margin=Margin.EXACT)) for pid in pids]
        bench.feed(card(*((pid, 0.1) for pid in pids)), people=people)
        assert len(bench.watched) <= 100
    bench.feed(gpu(0, used_gib=40))
    bench.feed(gpu(0, used_gib=40))
    assert bench.watched == set()
    for pid in range(20):
        people = [process(pid, declared=cap(0.01, margin=Margin.EXACT))]
        bench.feed(card((pid, 0.1), holdings_note="never complete"), people=people, seconds=100.0)
    assert 1 <= len(bench.watched) <= FORGOTTEN / 100 + 1


def of_user(context: RuleContext) -> Iterator[Observation]:
    pids = tuple(one.pid for gpu in context.snapshot.gpus for one in gpu.holdings)
    if pids:
        yield Observation(subject="uid:1000", level=WARNING, keeps=WARNING, raise_after=1, title="hog", pids=pids)


@pytest.mark.parametrize(
    ("cards", "over"),
    [
        ((gpu(0), gpu(1)), True),
        ((gpu(0), LOST), False),
        ((gpu(0), gpu(1, holdings_note="incomplete")), False),
        ((), False),
    ],
)
def test_what_is_about_a_user_ends_once_no_gpu_has_them(cards: tuple[Gpu, ...], over: bool) -> None:
    bench = Bench(rules=[Rule("hog", of_user)])
    assert words(bench.feed(gpu(0, holdings=[holding(7)]), gpu(1, holdings=[holding(8)]))) == ("+warning",)
    assert words(bench.feed(gpu(0), gpu(1), state=SourceState.SILENT)) == ()
    bench.feed(*cards)
    assert [alert.how for alert in bench.last.cleared] == (["its processes have ended or left the GPU"] if over else [])


# Rules that are off, changed, or fail


OFF = Limits(quiet=0, off=frozenset({MEMORY}))


def test_a_rule_that_is_off_says_nothing_and_ends_what_it_raised() -> None:
    bench = Bench(OFF)
    assert bench.feed_free(4, 4, 4, 4) == [()] * 4
    assert bench.watched == set()
    bench.engine.limits = Limits(quiet=0)
    for _ in range(3):
        bench.feed(filled(4), LOST)
    before = only(bench, MEMORY)
    bench.engine.limits = OFF
    changes = bench.feed(filled(4), LOST)
    assert [(alert.rule, alert.how) for alert in changes.cleared] == [(MEMORY, "the rule was turned off")]
    assert [alert.rule for alert in changes.active] == [HEALTH]
    bench.restore(before, msgspec.structs.replace(before, rule="a rule of before"))
    assert [alert.how for alert in bench.feed(filled(4), LOST).cleared] == ["the rule was turned off"] * 2


class Shaky:
    """Rule that finds one thing on each GPU, and fails when a test sets an error, halfway through."""

    def __init__(self, subject: str = "") -> None:
        self.error: Exception | None = None
        self.subject = subject
        self.rule = Rule("shaky", self._find)

    def _find(self, context: RuleContext) -> Iterator[Observation]:
        for one in context.snapshot.gpus:
            subject = f"{self.subject} {one.key}" if self.subject else ""
            yield Observation(
                gpu=one, subject=subject, level=WARNING, keeps=WARNING, raise_after=1, clear_after=1, title="it shakes"
            )
            if self.error is not None:
                raise self.error


def test_a_rule_that_fails_is_reported_once_and_the_others_go_on() -> None:
    shaky = Shaky()
    bench = Bench(rules=[shaky.rule, *memory.RULES])
    shaky.error = TypeError("no \x1b[31mway")
    told = [words(bench.feed(filled(4))) for _ in range(20)]
    assert told == [("+warning",), (), ("+critical",), *[()] * 17]
    alert = only(bench, TROUBLE)
    assert (alert.subject, alert.severity, alert.host) == ("shaky", WARNING, "box3")
    assert alert.title.startswith("the rule shaky failed: TypeError: no ")
    assert alert.title.isprintable()
    shaky.error = None
    changes = bench.feed(filled(4))
    assert [alert.how for alert in changes.cleared] == ["the rule shaky works again"]
    assert [alert.rule for alert in changes.raised] == ["shaky"]


@pytest.mark.parametrize("subject", ["", "7:7"])
def test_what_a_failing_rule_raised_goes_on(subject: str) -> None:
    shaky = Shaky(subject)
    bench = Bench(rules=[shaky.rule])
    assert words(bench.feed(gpu(0), gpu(1))) == ("+warning", "+warning")
    shaky.error = ValueError("no")
    for _ in range(3):
        bench.feed(gpu(0), gpu(1), seconds=FORGOTTEN)
    shaky.error = None
    bench.feed(gpu(0))
    assert len({alert.key for alert in bench.of("shaky")}) == 2


# Alerts that another gpuwatch raised


def near(**changes: Any) -> Alert:
    """Return the alert of a GPU near its limit that somebody else raised a minute before the first snapshot."""
    bench = Bench()
    bench.feed_free(4, 3, 4)
    fields = {"id": "0123456789", "raised": EPOCH - 60, "raised_monotonic": 7.0, **changes}
    return msgspec.convert(msgspec.to_builtins(only(bench, MEMORY)) | fields, Alert)


def held(**changes: Any) -> Alert:
    """Return an overshoot that somebody else raised."""
    over = only(overshooting(cap(10)), OVERSHOOT)
    return msgspec.convert(msgspec.to_builtins(over) | {"raised": EPOCH - 60, **changes}, Alert)


def test_of_two_alerts_the_older_is_the_event() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4)
    young = only(bench, MEMORY)
    for alert in (near(peak=12.0, severity=WARNING), young):
        bench.restore(alert)
        assert bench.feed_free(4) == [()]
        older = only(bench, MEMORY)
        assert (older.id, older.raised, older.peak, older.severity) == ("0123456789", EPOCH - 60, 12.0, CRITICAL)


def test_what_is_so_from_the_start_is_there_for_rows_until_it_is_raised_or_over() -> None:
    bench, seen = Bench(Limits()), []
    for second in range(8):
        full, freed, later = filled(4), filled(4 if second < 3 else 50), filled(50 if second < 6 else 4)
        cards = [msgspec.structs.replace(one, index=n, uuid=uuid(n)) for n, one in enumerate((full, freed, later))]
        changes = bench.feed(*cards)
        seen.append("".join(one.gpu[11] for one in found) for found in (changes.early, changes.active))
    assert [" ".join(one).strip() for one in seen] == ["01", "01", "01", "0", "0", "0", "0", "0"]
    assert not changes.early


RAISED = {"near": near, "held": held}
"""Alerts that a story restores."""
