"""What holds of the engine on a machine where anything goes wrong at random, whatever that is.

More walks, each through a day: `GPUWATCH_TEST_SEEDS="3 4 5" pytest tests/test_engine_walk.py` (about half a minute
each).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

from gpuwatch.alerts.alert import TROUBLE, Alert
from tests.support.walking import HOUR, OWN, Step, Walk

pytestmark = pytest.mark.no_cover
"""Hours of simulation, which take ten times as long while lines are counted; what they run is counted elsewhere."""

TROUBLE_OF: Final = {1: (HOUR,), 2: (HOUR / 2,)}
"""Seconds of trouble, by seed."""
DAY: Final = (2 * HOUR, 4 * HOUR, 8 * HOUR, 2 * HOUR, 2 * HOUR)
MORE: Final = [int(seed) for seed in os.environ.get("GPUWATCH_TEST_SEEDS", "").split()]
SEEDS: Final = list(dict.fromkeys([*TROUBLE_OF, *MORE]))
SHOWN: Final = 5
"""Faults of one kind that are told of a walk."""
LASTING: Final = frozenset({"uncorrected ECC"})
"""Rules whose alerts hold when all is well again: memory that had an error is not to be trusted until a reset."""
LEAST_IS_WORST: Final = frozenset(
    {"memory near limit", "time to full", "throttled", *(rule.name for rule in OWN if rule.above is None)}
)
ROUNDING: Final = 1e-9
"""How far, as a part of it, the mean of equal figures may be beyond them."""


@dataclass
class Book:
    """What was known before a step, by an alert's key."""

    active: dict[str, Alert] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    """All that ever were active."""

    def before(self, step: Step) -> dict[str, Alert]:
        """Return what a step had to go on with."""
        return {key: one for key, one in self.active.items() if key not in step.lost}

    def turn(self, step: Step) -> None:
        """Take note of a step."""
        self.active = {one.key: one for one in step.changes.active}
        self.ids |= {one.id for one in step.changes.active}


# ---------------------------------------------------------------------------------------------------------------
# What must hold of a step: each gives what is wrong


def raised_and_cleared_take_turns(book: Book, step: Step) -> Iterator[str]:
    """An alert is cleared once after it was raised; while it holds it is raised again only where it got worse."""
    open_ = book.before(step)
    for alert in step.changes.cleared:
        if open_.pop(alert.key, None) is None:
            yield f"cleared, and was not raised: {_words(alert)}"
    for alert in step.changes.raised:
        before = open_.get(alert.key)
        if before is not None and alert.severity <= before.severity:
            yield f"raised twice: {_words(alert)}"
        open_[alert.key] = alert


def one_id_while_it_holds(book: Book, step: Step) -> Iterator[str]:
    """An alert has one id until it is cleared, and that is never another's."""
    open_ = book.before(step)
    for alert in step.changes.cleared:
        before = open_.pop(alert.key, alert)
        if before.id != alert.id:
            yield f"cleared under another id than {before.id}: {_words(alert)}"
    for alert in step.changes.active:
        if alert.key in open_ and open_[alert.key].id != alert.id:
            yield f"was {open_[alert.key].id}: {_words(alert)}"
        elif alert.key not in open_ and alert.id in book.ids:
            yield f"is new, under an id that was there before: {_words(alert)}"


def nothing_vanishes(book: Book, step: Step) -> Iterator[str]:
    """What was active is active, or is told to have been cleared."""
    known = {one.key for one in (*step.changes.active, *step.changes.cleared)}
    yield from (f"vanished: {_words(alert)}" for key, alert in book.before(step).items() if key not in known)


def nothing_holds_that_was_not_raised(book: Book, step: Step) -> Iterator[str]:
    """What is active was so before and did not end, or is told to be raised; all that is raised is active."""
    active, raised = ({one.key: one for one in some} for some in (step.changes.active, step.changes.raised))
    held = book.before(step).keys() - {one.key for one in step.changes.cleared}
    yield from (f"never raised: {_words(alert)}" for key, alert in active.items() if key not in held | raised.keys())
    yield from (f"raised, not active: {_words(alert)}" for key, alert in raised.items() if active.get(key) != alert)


def no_two_of_one_key(_book: Book, step: Step) -> Iterator[str]:
    """No two that are active are about the same."""
    counted = Counter(one.key for one in step.changes.active)
    yield from (f"{count} times: {key}" for key, count in counted.items() if count > 1)


def what_ends_says_when_and_how(_book: Book, step: Step) -> Iterator[str]:
    """A cleared alert has its end, how long it was, and how it ended; one that is active has no end."""
    for alert in step.changes.cleared:
        if alert.ended is None or not alert.how or alert.lasted < 0:
            yield f"ended {alert.ended}, how {alert.how!r}, lasted {alert.lasted}: {_words(alert)}"
    for alert in step.changes.active:
        if alert.ended is not None or alert.how or alert.lasted < 0:
            yield f"is over: {_words(alert)}"


def nothing_began_in_the_future(_book: Book, step: Step) -> Iterator[str]:
    """No alert was raised later than now, by the reader's clock."""
    yield from (f"is of the future: {_words(one)}" for one in step.changes.active if one.raised_monotonic > step.now)


def owners_are_people_in_the_snapshot(_book: Book, step: Step) -> Iterator[str]:
    """Whom an alert names when it is raised has a process on a GPU."""
    people = {one.user for one in step.snapshot.processes}
    yield from (
        f"names {one.owners}: {_words(one)}" for one in step.changes.raised if not people.issuperset(one.owners)
    )


def the_mean_is_no_worse_than_the_peak(_book: Book, step: Step) -> Iterator[str]:
    """The peak is the worst value there was, so that no mean is beyond it."""
    for alert in (*step.changes.active, *step.changes.cleared):
        if alert.mean is None or alert.peak is None:
            continue
        beyond = alert.peak - alert.mean if alert.rule in LEAST_IS_WORST else alert.mean - alert.peak
        if beyond > ROUNDING * abs(alert.peak):
            yield f"mean {alert.mean}, peak {alert.peak}: {_words(alert)}"


def no_rule_fails(_book: Book, step: Step) -> Iterator[str]:
    """No rule raises an exception."""
    yield from (_words(alert) for alert in step.changes.raised if alert.rule == TROUBLE)


def an_hour_after_nothing_holds(_book: Book, step: Step) -> Iterator[str]:
    """An hour after all is well, no alert holds but those that last."""
    if step.well_for > HOUR:
        yield from (f"still holds: {_words(one)}" for one in step.changes.active if one.rule not in LASTING)


def an_hour_after_nothing_is_kept(_book: Book, step: Step) -> Iterator[str]:
    """An hour after all is well, the engine keeps nothing but the alerts that hold."""
    if step.well_for > HOUR and step.conditions > len(step.changes.active):
        yield f"{step.conditions} conditions for {len(step.changes.active)} alerts"


Check = Callable[[Book, Step], Iterator[str]]

CHECKS: Final[tuple[Check, ...]] = (
    raised_and_cleared_take_turns,
    one_id_while_it_holds,
    nothing_vanishes,
    nothing_holds_that_was_not_raised,
    no_two_of_one_key,
    what_ends_says_when_and_how,
    nothing_began_in_the_future,
    owners_are_people_in_the_snapshot,
    the_mean_is_no_worse_than_the_peak,
    no_rule_fails,
    an_hour_after_nothing_holds,
    an_hour_after_nothing_is_kept,
)


@dataclass
class Found:
    """What one walk came to."""

    faults: dict[str, list[str]]
    """The first of each check, by its name."""
    raised: Counter[str] = field(default_factory=Counter)
    """How often each rule raised something."""
    cleared: int = 0
    restored: int = 0
    """Alerts that another gpuwatch went on with."""
    hours_well: int = 0
    """Samples that were taken more than an hour after all was well."""


def walk(seed: int) -> Found:
    """Go through the walk of a seed."""
    found, book = Found({check.__name__: [] for check in CHECKS}), Book()
    for step in Walk(seed).steps(DAY if seed in MORE else TROUBLE_OF[seed]):
        for check in CHECKS:
            faults = found.faults[check.__name__]
            if len(faults) < SHOWN:
                faults += [f"at {step.at:.0f} s {words}" for words in check(book, step)]
        found.raised.update(one.rule for one in step.changes.raised)
        found.cleared += len(step.changes.cleared)
        found.restored += len(step.changes.active) if step.restarted else 0
        found.hours_well += step.well_for > HOUR
        book.turn(step)
    return found


def test_nothing_that_goes_wrong_at_random_breaks_a_promise() -> None:
    walks = [walk(seed) for seed in SEEDS]
    for seed, found in zip(SEEDS, walks, strict=True):
        for name, faults in found.faults.items():
            assert not faults, "\n".join([f"seed {seed}: {name}", *faults])
    # And the walks are as bad as they should be.
    raised = sum((found.raised for found in walks), Counter[str]())
    assert len(raised) >= 15, raised
    assert sum(raised.values()) > 100
    assert sum(found.cleared for found in walks) > 100
    assert sum(found.restored for found in walks) > 3
    assert all(found.hours_well for found in walks)


def _words(alert: Alert) -> str:
    return f"{alert.key} ({alert.id}, {alert.severity.name.lower()}): {alert.title} {alert.how}".rstrip()
