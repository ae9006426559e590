"""Apply the rules to all of the viewer's processes, and put together what they say of each."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final, NamedTuple

from gpuwatch.history import HistoryView, IdleTimes
from gpuwatch.model import Gpu, Snapshot
from gpuwatch.strays import rules
from gpuwatch.strays.cases import Case, Scene, unjudged
from gpuwatch.strays.rules import Finding
from gpuwatch.strays.stray import USUAL, Cause, Stray, Sureness, Tending

_NOTHING: Final[IdleTimes] = MappingProxyType({})
_WITH_IDLE_TIME: Final = frozenset({Cause.WORKER, Cause.KERNEL, Cause.ORPHANED, Cause.IDLE})
"""Causes among whose reasons is for how long it has run nothing."""


class Judged(NamedTuple):
    """What came of judging all of the viewer's processes."""

    strays: list[Stray]
    """Those that are certain first, then by the memory they hold."""
    possible: list[Stray]
    """Those of which it is not known yet whether they are idle; else they would be strays."""
    unjudged: list[Gpu]
    """GPUs of which nothing can be said now."""


def judge(
    snapshot: Snapshot, history: HistoryView | None, tending: Tending = USUAL, *, known: IdleTimes | None = None
) -> Judged:
    """Judge the viewer's own processes, each once.

    `known` are idle times that another gpuwatch has kept, for where the history is too short. Neither a young process
    is judged, nor what is held on a GPU in trouble, with old samples, or with a list of processes that has gaps.
    """
    scene = Scene(snapshot, history, tending, _NOTHING if known is None else known)
    strays, possible = [], []
    for case in _worth(scene):
        findings = [one for rule in rules.RULES if (one := rule(case, scene)) is not None]
        if findings:
            strays.append(_stray(case, findings))
        elif (finding := rules.possible(case, scene)) is not None:
            possible.append(_stray(case, [finding]))
    for found in strays, possible:
        found.sort(key=lambda one: (one.sure is not Sureness.CERTAIN, -(one.held or 0), one.process.pid))
    return Judged(strays, possible, unjudged(snapshot))


def _worth(scene: Scene) -> Iterable[Case]:
    """Give those that are neither too young nor too small to be judged; a size that is not known may be any."""
    limits = scene.tending
    for case in (*scene.cases, *scene.unlisted):
        if case.age >= limits.settled_after and (case.held is None or case.held >= limits.least):
            yield case


def _stray(case: Case, findings: list[Finding]) -> Stray:
    findings.sort(key=lambda one: one.sure is not Sureness.CERTAIN)  # it keeps the order of the rules otherwise
    strongest, idle = findings[0], case.idle
    why = [words for one in findings for words in one.why]
    if idle is not None and idle.seconds >= 1 and any(one.cause in _WITH_IDLE_TIME for one in findings):
        why.insert(0 if strongest.cause is Cause.IDLE else len(why), rules.idle_words(idle))
    gpus = [part.gpu for part in case.parts] or list(case.open)
    return Stray(
        process=case.process,
        gpus=tuple(gpu.key for gpu in gpus),
        indices=tuple(gpu.index for gpu in gpus),
        held=case.held,
        cause=strongest.cause,
        sure=strongest.sure,
        why=tuple(dict.fromkeys(why)),
        idle=idle.seconds if idle is not None else None,
        idle_at_least=idle.at_least if idle is not None else False,
        listed=case.listed,
        ends=all(one.ends for one in findings),
    )
