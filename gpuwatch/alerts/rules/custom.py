"""Rules that the user wrote: each `[[rule]]` compares figures of GPUs, processes or users, in the grammar of filters.

Everything present is observed in each snapshot, fine or not: the engine ends an alert that no rule observes any more.
Where a reading is missing the observation is `partial`, which neither raises nor clears.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

import msgspec

from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.limits import CustomRule, Limits, Scope
from gpuwatch.alerts.rule import (
    NAMED,
    SAMPLES,
    Observation,
    Rule,
    RuleContext,
    joined,
    largest_first,
    named_owners,
    owners_of,
    pid_and_user,
)
from gpuwatch.alerts.rules.memory import holders
from gpuwatch.base import units
from gpuwatch.base.units import Unit
from gpuwatch.model.fields import GPU, PROCESS, Amount, Field, Row, brief_command, compared
from gpuwatch.model.filters import (
    ROW_GRAMMAR,
    Comparison,
    FilterError,
    Grammar,
    Term,
    of_names,
    parse_gpus,
    parse_terms,
)
from gpuwatch.model.holdings import GpuOwner, GpuProcess
from gpuwatch.model.shares import usable
from gpuwatch.model.snapshot import Gpu, Holding, Process, Reason


class UserHoldings(NamedTuple):
    """One user on the GPUs of a rule, which the figures of a user are read from."""

    on: Sequence[GpuOwner]
    """At least one."""
    complete: bool
    """Whether the list of processes of each of these GPUs could be read."""
    whole: int | None
    """Bytes that these GPUs can give to programs; None unless this is known for each GPU."""

    @property
    def memory(self) -> int:
        """Bytes, as far as they are known."""
        return sum(one.memory for one in self.on)

    @property
    def pids(self) -> tuple[int, ...]:
        """PIDs, the largest holder first."""
        return largest_first(held for one in self.on for held in one.processes)

    @property
    def partial(self) -> bool:
        """Whether the user may hold more."""
        return not self.complete or not all(one.complete for one in self.on)


class GpuWithUsers(NamedTuple):
    """GPU, and its owners."""

    gpu: Gpu
    users: Sequence[GpuOwner]


USER: Final[Sequence[Field[UserHoldings]]] = (
    PROCESS["memory"].of(lambda user: Amount(user.memory, user.partial)),
    Field("gpus", "GPUs", lambda user: Amount(len(user.on), not user.complete), words="GPUs held", compare="gpus"),
    Field(
        "processes",
        "procs",
        lambda user: Amount(len(user.pids), not user.complete),
        words="processes",
        compare="processes",
    ),
    Field(
        "mem_percent",
        "mem %",
        lambda user: Amount(100 * user.memory / user.whole, user.partial) if user.whole else None,
        Unit.PERCENT,
        words="part of all GPU memory",
        compare="mem_percent",
    ),
)
"""Figures of a user that a rule can compare."""

_EVERYWHERE: Final = ("cpu", "rss", "age")
"""Figures of a process that are the same on each of its GPUs: it is judged once, not on each."""


def _of_gpu(field: Field[Gpu]) -> Field[GpuWithUsers]:
    return field.of(lambda one: field.read(one.gpu) if field.compare != "unknown" or one.gpu.is_listed else None)


def _on_gpu(value: str) -> Term[GpuWithUsers]:
    is_one = parse_gpus(value)
    return lambda one: is_one(one.gpu.index, one.gpu.uuid)


def _no_text(sought: str) -> Term[Any]:
    raise FilterError(f"{sought} is not a term of a rule about GPUs or users; only a rule about processes finds text")


_USERS: Callable[[str], Term[GpuWithUsers]] = of_names(
    lambda one: (user.name for user in one.users), lambda one: (user.uid for user in one.users)
)
_USER: Callable[[str], Term[UserHoldings]] = of_names(lambda user: (user.on[0].name,), lambda user: (user.on[0].uid,))
GRAMMARS: Final[Mapping[Scope, Grammar[Any]]] = {
    "gpu": Grammar({"gpu": _on_gpu, "user": _USERS}, _no_text, compared(map(_of_gpu, GPU.values()))),
    "process": msgspec.structs.replace(ROW_GRAMMAR, flags={}),
    "user": Grammar({"user": _USER}, _no_text, compared(USER)),
}
"""Terms of a rule, by what it is about. A rule about users takes `gpu:` too: only these GPUs are counted."""


class RuleCondition(NamedTuple):
    """Condition of a rule: what it compares, and what it is about."""

    comparisons: tuple[Comparison[Any], ...]
    selectors: tuple[Term[Any], ...]
    gpus: tuple[Term[GpuWithUsers], ...] = ()
    """Selectors of the GPUs on which a user's memory counts."""


@cache
def parse_condition(on: Scope, when: str) -> RuleCondition:
    """Parse the condition of a rule; raises FilterError where it is wrong or compares nothing."""
    places = [word for word in when.split() if on == "user" and word.lstrip("!-").startswith("gpu:")]
    words = " ".join(word for word in when.split() if word not in places)
    terms = parse_terms(words, GRAMMARS[on])
    comparisons = tuple(term for term in terms if isinstance(term, Comparison))
    if not comparisons:
        raise FilterError(f"it compares nothing; {', '.join(GRAMMARS[on].figures)} can be compared with > >= < <= =")
    selectors = tuple(term for term in terms if not isinstance(term, Comparison))
    return RuleCondition(comparisons, selectors, parse_terms(" ".join(places), GRAMMARS["gpu"]))


_BACK: Final = "back within the limit"


class _Subject(NamedTuple):
    """Subject of an observation."""

    words: str
    """`GPU 3`, `pid 123 (ada) on GPU 3`, `ada`."""
    stamp: float | None
    gpu: Gpu | None = None
    subject: str = ""


class _Details(NamedTuple):
    evidence: str = ""
    owners: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()


def custom_rules(limits: Limits) -> tuple[Rule, ...]:
    return tuple(Rule(rule.name, partial(find_custom, rule)) for rule in limits.custom)


def find_custom(rule: CustomRule, context: RuleContext) -> Iterator[Observation]:
    """Apply a rule to all GPUs, processes or users that it selects."""
    find = {"gpu": _find_gpus, "process": _find_processes, "user": _find_users}[rule.on]
    yield from find(rule, parse_condition(rule.on, rule.when), context)


def judges(rule: CustomRule, alert: Alert) -> bool:
    """Return whether a rule still judges a restored alert of its name: the user may have rewritten the rule since."""
    unit = parse_condition(rule.on, rule.when).comparisons[0].field.unit
    return (rule.on == "gpu") == (not alert.subject) and unit is alert.unit


def asks_the_same(rule: CustomRule, other: CustomRule) -> bool:
    """Return whether two rules differ only in limits, times and selectors, so that one may judge the other's alerts."""
    return _asked(rule) == _asked(other)


def _asked(rule: CustomRule) -> tuple[str, ...]:
    comparisons = parse_condition(rule.on, rule.when).comparisons
    return (rule.on, *(f"{one.field.compare}{one.sign[0]}" for one in comparisons))


def _find_gpus(rule: CustomRule, condition: RuleCondition, context: RuleContext) -> Iterator[Observation]:
    """Judge every GPU that the rule selects; a rule with a user judges the GPUs where that user has processes."""
    for gpu in context.gpus:
        one = GpuWithUsers(gpu, context.owners(gpu))
        about = _Subject(f"GPU {gpu.index}", gpu.sampled, gpu)
        if all(selects(one) for selects in condition.selectors):
            if all(comparison.field.amount(one) is not None for comparison in condition.comparisons):
                yield _observation(rule, condition, one, about, partial(_gpu_details, gpu, context))
        elif gpu.is_listed:  # it may have been selected, before the configuration was read again
            words = f"the rule is not about {about.words} now"
            yield Observation(gpu=gpu, stamp=gpu.sampled, title=f"{rule.name}: {words}", how=words)


def _find_processes(rule: CustomRule, condition: RuleCondition, context: RuleContext) -> Iterator[Observation]:
    """Judge every process on each of its GPUs, or once where its figures are the same everywhere."""
    everywhere = all(one.field.key in _EVERYWHERE for one in condition.comparisons)
    done: set[tuple[int, int]] = set()
    for gpu in context.gpus:
        for held in context.on(gpu):
            process, row = held.process, _row(held, context)
            if (everywhere and process.key in done) or not all(selects(row) for selects in condition.selectors):
                continue
            done.add(process.key)
            who, subject = pid_and_user(process), f"{process.pid}:{process.start}"
            if not everywhere:
                who, subject = f"{who} on GPU {gpu.index}", f"{subject} {gpu.key}"
            about = _Subject(who, gpu.sampled, gpu, subject)
            yield _observation(rule, condition, row, about, partial(_process_details, process))


def _row(held: GpuProcess, context: RuleContext) -> Row:
    """Return the row of a process on one GPU, with all its MIG instances there added up."""
    process, missing = held.process, Reason.NO_SAMPLE
    return Row(
        gpu=held.gpu,
        holding=Holding(
            pid=process.pid,
            start=held.start,
            memory=held.memory if held.complete else missing,
            sm=held.sm if held.sm is not None and held.sm_complete else missing,
        ),
        process=process,
        mine=process.uid is not None and process.uid == context.snapshot.viewer,
        idle=context.history.idle(held.gpu.key, process.pid, held.start),
        age=None if process.started is None else max(0.0, context.snapshot.taken - process.started),
    )


def _find_users(rule: CustomRule, condition: RuleCondition, context: RuleContext) -> Iterator[Observation]:
    """Judge every known user who holds memory, over all GPUs of the rule together."""
    gpus = [gpu for gpu in context.snapshot.gpus if all(term(GpuWithUsers(gpu, ())) for term in condition.gpus)]
    sizes = [size for gpu in gpus if (size := usable(gpu)) is not None]
    whole = sum(sizes) if len(sizes) == len(gpus) else None
    complete = all(gpu.is_listed for gpu in gpus)
    keys = {gpu.key for gpu in gpus}
    users: defaultdict[int, list[GpuOwner]] = defaultdict(list)
    for owner in (owner for gpu in context.gpus if gpu.key in keys for owner in context.owners(gpu)):
        if owner.uid is not None:
            users[owner.uid].append(owner)
    stamp = max((gpu.sampled for gpu in context.gpus if gpu.key in keys), default=None)
    for uid, on in users.items():
        user = UserHoldings(on, complete, whole)
        if all(selects(user) for selects in condition.selectors):
            about = _Subject(on[0].name, stamp, subject=f"uid:{uid}")
            yield _observation(rule, condition, user, about, partial(_user_details, user))


# -- observations -------------------------------------------------------------------------------------------------


def _observation(
    rule: CustomRule, condition: RuleCondition, one: Any, about: _Subject, details: Callable[[], _Details]
) -> Observation:
    """Return the observation of an item; `details` is called only for one that is not fine."""
    answers = [comparison.holds(one) for comparison in condition.comparisons]
    amounts = [comparison.field.amount(one) for comparison in condition.comparisons]
    level = rule.severity if all(answers) else None
    samples = SAMPLES if rule.after else 1
    first = condition.comparisons[0]
    title, how, found = f"{rule.name}: {about.words} {_BACK}", _BACK, _Details()
    if level is not None:
        how, found = "", details()
        figures = "; ".join(map(_figure, condition.comparisons, amounts))
        title = f"{rule.name}: {about.words} {rule.message or figures}"
        if rule.message:
            found = found._replace(evidence=joined(figures, found.evidence))
    return Observation(
        gpu=about.gpu,
        subject=about.subject,
        level=level,
        partial=False not in answers and (None in answers or any(one is not None and one.at_least for one in amounts)),
        raise_after=samples,
        raise_for=rule.after,
        clear_after=samples,
        clear_for=rule.after,
        stamp=about.stamp,
        title=title,
        evidence=found.evidence,
        value=amounts[0].number if amounts[0] is not None else None,
        unit=first.field.unit,
        least_is_worst="<" in first.sign,
        pids=found.pids,
        owners=found.owners,
        how=how,
    )


_SIDES: Final = {">": "above", ">=": "at least", "<": "below", "<=": "at most", "=": "equal to"}
_AFTER: Final = frozenset({Unit.CELSIUS, Unit.WATTS, Unit.PERCENT, Unit.MHZ})
"""Units that are written after the first number only."""


def _figure(comparison: Comparison[Any], value: Amount | None) -> str:
    """Format a figure and its limit: `temperature 83 °C, above 80`."""
    field = comparison.field
    shown = _plain(field.unit, value.number if value else 0.0)
    shown += f" {field.unit.value}" if field.unit in _AFTER else ""
    least = "at least " if value is not None and value.at_least else ""
    limit = f"{_SIDES[comparison.sign]} {_plain(field.unit, comparison.wanted)}"
    return f"{field.phrase or field.name} {least}{shown}, {limit}"


def _plain(unit: Unit, number: float) -> str:
    if unit in (Unit.BYTES, Unit.FREE):
        return units.size(number)
    if unit is Unit.SECONDS:
        return units.long_duration(number)
    return f"{number:.1f}".removesuffix(".0")


def _gpu_details(gpu: Gpu, context: RuleContext) -> _Details:
    pids = largest_first(context.holdings.on(gpu))
    found = holders(gpu, context.holdings.owners(gpu), context.history)
    parts = [f"{one.name} {'at least ' if one.partial else ''}{units.gib(one.memory)}" for one in found[:NAMED]]
    evidence = f"held by {joined(*parts)} GiB" if parts else ""
    owners = named_owners((one.name for one in found), owners_of(pids, context.processes))
    return _Details(evidence, owners, pids)


def _process_details(process: Process) -> _Details:
    return _Details(brief_command(process), (process.user,) if process.user else (), (process.pid,))


def _user_details(user: UserHoldings) -> _Details:
    places = sorted(user.on, key=lambda one: (-one.memory, one.gpu.index))
    evidence = joined(*(f"GPU {one.gpu.index} {units.gib(one.memory)}" for one in places[:NAMED])) + " GiB"
    more = len(places) - NAMED
    return _Details(evidence + (f" and {more} more" if more > 0 else ""), (user.on[0].name,), user.pids)
