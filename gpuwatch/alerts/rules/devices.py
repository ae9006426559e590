"""Which GPUs a process is on, against those it declared and those it computes on. Pure functions, as in `rules`.

Each rule speaks of a process only while something is wrong with it: the engine ends what no rule speaks of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from gpuwatch import text, units
from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.rules.memory import Limits, Observation
from gpuwatch.history import HistoryView
from gpuwatch.model import Gpu, Health, Order, Process, Snapshot, known
from gpuwatch.shares import usable, was_read

DISAGREE: Final = "outside visible devices"
STRAY: Final = "opened GPUs it does not use"
MISSPELT: Final = "misspelt variable"

WATCHED: Final = 60.0
"""Seconds without a kernel on a GPU after which a process counts as not computing there."""
_CONTEXT: Final = range(50 * units.MIB, units.GIB + 1)
"""Bytes of a context without work: 320 MiB without libraries, up to 1 GiB with them (pytorch/pytorch#28394)."""
_FULL: Final = 0.5
"""Part of a GPU, or of what the process holds where it computes, from which on another GPU is filled."""
_QUOTED: Final = 48
"""Characters of somebody's variable in a title."""


class _Place(NamedTuple):
    """What one process holds on one GPU."""

    gpu: Gpu
    memory: int | None
    """Bytes; None where a part is not known."""


@dataclass(frozen=True, slots=True)
class _Tenant:
    """One process, and where it computes or could, in the order of the GPUs' indices."""

    process: Process
    start: int
    """As in the holdings, for the history."""
    places: Sequence[_Place]

    @property
    def who(self) -> str:
        """Name it: `pid 123 (ada)`."""
        user = self.process.user
        return f"pid {self.process.pid} ({user})" if user else f"pid {self.process.pid}"

    def observation(self, rule: str, gpu: Gpu, title: str, limits: Limits, level: Severity | None) -> Observation:
        """Return an observation of this process on one of its GPUs."""
        return Observation(
            rule=rule,
            gpu=gpu.key,
            index=gpu.index,
            subject=f"{self.process.pid}:{self.process.start}",
            level=level,
            keeps=level,
            raise_after=limits.samples,
            stamp=gpu.sampled,
            title=title,
            evidence=self.process.command or self.process.name,
            pids=(self.process.pid,),
            owners=(self.process.user,) if self.process.user else (),
        )


def declared_devices(snapshot: Snapshot, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Apply the rules about devices to every process."""
    parents = {one.uuid: gpu.uuid for gpu in snapshot.gpus for one in gpu.instances}
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    for tenant in _tenants(snapshot):
        yield from disagreeing(tenant, parents, indices, limits)
        yield from misspelt(tenant, limits)
        if len(tenant.places) > 1:
            yield from stray(tenant, history, limits)


def _tenants(snapshot: Snapshot) -> Iterator[_Tenant]:
    people = {one.pid: one for one in snapshot.processes}
    places: defaultdict[tuple[int, int], dict[str, _Place]] = defaultdict(dict)
    for gpu in sorted(snapshot.gpus, key=lambda gpu: gpu.index):
        if not gpu.uuid or gpu.health is not Health.OK or gpu.unreliable:
            continue
        for one in gpu.holdings:
            if one.kind == "G" or one.memory == 0 or one.pid not in people:
                continue
            held = places[one.pid, one.start]
            size = int(one.memory) if known(one.memory) else None
            before = held.get(gpu.uuid)
            if before is not None:  # one that holds several MIG instances is listed once for each
                size = size + before.memory if size is not None and before.memory is not None else None
            held[gpu.uuid] = _Place(gpu, size)
    for (pid, start), found in places.items():
        yield _Tenant(people[pid], start, tuple(found.values()))


# ---------------------------------------------------------------------------------------------------------------


def disagreeing(
    tenant: _Tenant, parents: Mapping[str, str], indices: Mapping[str, int], limits: Limits
) -> Iterator[Observation]:
    """Find a process on a GPU that its own choice of devices does not show; MIG instances stand for their GPU.

    Where CUDA's order of different models can only be guessed, only their number is compared; a choice that may never
    have been made is not compared at all.
    """
    declared = tenant.process.declared
    if declared is None or not was_read(declared) or declared.visible is None or not declared.visible.text:
        return
    visible = declared.visible
    if visible.doubtful or all(place.gpu.uuid in visible.gpus for place in tenant.places):
        return
    shown = dict.fromkeys(parents.get(uuid, uuid) for uuid in visible.gpus)
    wrong = [place for place in tenant.places if place.gpu.uuid not in shown]
    guessed = visible.order is Order.HEURISTIC
    if not wrong or (guessed and len(tenant.places) <= len(shown)):
        return
    first = wrong[0].gpu
    said = text.clean(visible.text, _QUOTED)
    if guessed:
        title = f"{tenant.who} is on {len(tenant.places)} GPUs, its {said} shows only {len(shown)}"
    else:
        title = f"{tenant.who} {_holds(wrong)}, its {said} shows {_shown(shown, indices)}"
    seen = tenant.observation(DISAGREE, first, title, limits, Severity.WARNING)
    yield msgspec.structs.replace(
        seen,
        rests_on=(tenant.process.key,),
        raise_for=limits.allowances.after,
        evidence=" · ".join(filter(None, (f"{visible.where} {visible.text}".strip(), visible.note, seen.evidence))),
    )


def _holds(wrong: Sequence[_Place]) -> str:
    memory = [place.memory for place in wrong if place.memory is not None]
    size = f"holds {units.gib(sum(memory))} GiB on" if len(memory) == len(wrong) else "is on"
    return f"{size} {_numbers([place.gpu.index for place in wrong])}"


def _shown(shown: Mapping[str, None], indices: Mapping[str, int]) -> str:
    if not shown:
        return "none"
    known_here = sorted(indices[uuid] for uuid in shown if uuid in indices)
    return f"only {_numbers(known_here)}" if len(known_here) == len(shown) else "others"


# ---------------------------------------------------------------------------------------------------------------


def stray(tenant: _Tenant, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Find a process that is on several GPUs and has run kernels on one alone, for as long as we watch and a minute.

    Filled GPUs are a warning: nobody else can use them. Contexts are a note. Without the SM figure of each nothing is
    judged.
    """
    idle = [(place, history.idle(place.gpu.key, tenant.process.pid, tenant.start)) for place in tenant.places]
    if any(one is None for _, one in idle):
        yield _unjudged(tenant, limits)
        return
    working = [place for place, one in idle if one is not None and not one.at_least]
    waiting = [place for place, one in idle if one is not None and one.at_least and one.seconds >= WATCHED]
    if len(working) != 1 or len(waiting) != len(tenant.places) - 1:
        return
    if any(place.memory is None for place in tenant.places):
        yield _unjudged(tenant, limits)
        return
    (home,) = working
    filled = [place for place in waiting if _is_filled(place, home)]
    contexts = [place for place in waiting if (place.memory or 0) in _CONTEXT]
    if filled:
        title = f"{tenant.who} fills {_indices(filled)} and computes on GPU {home.gpu.index} alone"
        yield tenant.observation(STRAY, home.gpu, title, limits, Severity.WARNING)
    elif contexts:
        title = (
            f"{tenant.who} opened {_indices(contexts)} ({_each(contexts)}) and computes on GPU {home.gpu.index} alone"
        )
        yield tenant.observation(STRAY, home.gpu, title, limits, Severity.NOTE)


def _unjudged(tenant: _Tenant, limits: Limits) -> Observation:
    seen = tenant.observation(STRAY, tenant.places[0].gpu, "", limits, None)
    return msgspec.structs.replace(seen, partial=True)


def _is_filled(place: _Place, home: _Place) -> bool:
    held, room = place.memory or 0, usable(place.gpu)
    if held < _CONTEXT.stop:
        return False
    return held >= _FULL * (home.memory or 0) or (room is not None and held >= _FULL * room)


def _each(contexts: Sequence[_Place]) -> str:
    sizes = sorted(place.memory or 0 for place in contexts)
    least, most = units.size(sizes[0]), units.size(sizes[-1])
    if len(sizes) == 1:
        return least
    return f"{least} each" if least == most else f"{least} to {most}"


# ---------------------------------------------------------------------------------------------------------------


def misspelt(tenant: _Tenant, limits: Limits) -> Iterator[Observation]:
    """Find a process with a variable that surely was to be another; a warning where it is on more than one GPU."""
    declared = tenant.process.declared
    hints = [hint.words for hint in declared.hints if hint.rule == "misspelt"] if declared is not None else []
    if not hints:
        return
    several = len(tenant.places) > 1
    level = Severity.WARNING if several else Severity.NOTE
    seen = tenant.observation(MISSPELT, tenant.places[0].gpu, f"{tenant.who}: {hints[0]}", limits, level)
    on = f"on {_indices(tenant.places)}"
    yield msgspec.structs.replace(
        seen,
        rests_on=(tenant.process.key,),
        evidence=" · ".join((*hints[1:], on, seen.evidence)),
    )


def _indices(places: Sequence[_Place]) -> str:
    return _numbers([place.gpu.index for place in places])


def _numbers(indices: Sequence[int]) -> str:
    return f"GPU {', '.join(map(str, indices))}"
