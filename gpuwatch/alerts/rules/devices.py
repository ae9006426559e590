"""Rules about processes on GPUs that they did not choose, or do not compute on.

Each rule observes a process only while something is wrong with it: the engine ends the alert after that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.rule import Observation, Rule, RuleContext, holder_name, identity, joined, pid_and_user
from gpuwatch.base import text, units
from gpuwatch.model.fields import brief_command
from gpuwatch.model.holdings import GpuProcess
from gpuwatch.model.shares import usable, was_read
from gpuwatch.model.snapshot import Order, Process

DISAGREE: Final = "outside visible devices"
UNUSED: Final = "opened GPUs it does not use"
MISSPELT: Final = "misspelt variable"

IDLE_AFTER: Final = 60.0
"""Seconds without a kernel on a GPU after which a process counts as not computing there."""
_CONTEXT: Final = range(50 * units.MIB, units.GIB + 1)
"""Bytes of a context that does nothing: 320 MiB without libraries, up to 1 GiB with them (pytorch/pytorch#28394)."""
_FULL: Final = 0.5
"""Part of a GPU, or of what the process holds where it computes, from which on it fills a GPU that it does not use."""
_QUOTED: Final = 48
"""Most characters of an environment variable in a title."""


def _observation(
    process: Process, about: Sequence[GpuProcess], title: str, level: Severity | None, **fields: Any
) -> Observation:
    """Return an observation about a process on some of its GPUs, and use the first of them."""
    gpu = about[0].gpu
    return Observation(
        gpu=gpu,
        gpus=tuple(one.gpu for one in about),
        subject=identity(process),
        level=level,
        stamp=gpu.sampled,
        title=title,
        **{"evidence": brief_command(process), **fields},
        pids=(process.pid,),
        owners=(process.user,) if process.user else (),
    )


# -- outside visible devices --------------------------------------------------------------------------------------


def find_outside_visible(context: RuleContext) -> Iterator[Observation]:
    """Find processes on a GPU that is not among their visible devices; a MIG instance counts as its GPU.

    Where CUDA's order of different models can only be guessed, only the number of GPUs is compared. Nothing is
    compared where the choice itself is doubtful.
    """
    for places in context.placements:
        process = places[0].process
        visible = process.declared.visible if process.declared is not None and was_read(process.declared) else None
        if visible is None or not visible.text or visible.doubtful:
            continue
        if all(place.gpu.uuid in visible.gpus for place in places):
            continue
        gpus = context.snapshot.gpus
        parents = {one.uuid: gpu.uuid for gpu in gpus for one in gpu.instances}
        shown = dict.fromkeys(parents.get(uuid, uuid) for uuid in visible.gpus)
        wrong = [place for place in places if place.gpu.uuid not in shown]
        guessed = visible.order is Order.HEURISTIC
        if not wrong or (guessed and len(places) <= len(shown)):
            continue
        name = text.clean(visible.text, _QUOTED)
        if guessed:
            words = f"is on {len(places)} GPUs, its {name} shows only {len(shown)}"
        else:
            size = f"holds {units.gib(sum(place.memory for place in wrong))} GiB"
            holds = size if all(place.complete for place in wrong) else "is"
            here = sorted(gpu.index for gpu in gpus if gpu.uuid in shown)
            only = f"only {_numbers(here)}" if len(here) == len(shown) else "others"
            words = f"{holds} on {_indices(wrong)}, its {name} shows {only if shown else 'none'}"
        yield _observation(
            process,
            wrong,
            f"{pid_and_user(process)} {words}",
            Severity.WARNING,
            short=f"{holder_name(process.pid, process)} {DISAGREE}",
            rests_on=(process.key,),
            raise_for=context.limits.allowances.after,
            evidence=joined(f"{visible.where} {visible.text}".strip(), visible.note, brief_command(process)),
        )


# -- opened GPUs it does not use ----------------------------------------------------------------------------------


def find_unused(context: RuleContext) -> Iterator[Observation]:
    """Find processes on several GPUs that have run kernels on only one of them for a minute or more.

    A filled GPU is a warning: nobody else can use it. A mere context is a note. A process is judged only where the SM
    value on each GPU is known.
    """
    for places in context.placements:
        if len(places) == 1:
            continue
        process = places[0].process
        idle = [context.history.idle(one.gpu.key, process.pid, one.start) for one in places]
        pairs = [(place, one) for place, one in zip(places, idle, strict=True) if one is not None]
        working = [place for place, one in pairs if not one.at_least]
        waiting = [place for place, one in pairs if one.at_least and one.seconds >= IDLE_AFTER]
        judged = len(pairs) == len(places)
        if judged and (len(working) != 1 or len(waiting) != len(places) - 1):
            continue
        if not judged or not all(place.complete for place in places):
            yield _observation(process, places, "", None, partial=True)
            continue
        (home,) = working
        home_words = f"computes only on GPU {home.gpu.index}"
        if filled := [place for place in waiting if _is_filled(place, home)]:
            title = f"{pid_and_user(process)} fills {_indices(filled)} and {home_words}"
            yield _observation(process, filled, title, Severity.WARNING, short=unused_words(process, filled[0]))
        elif contexts := [place for place in waiting if place.memory in _CONTEXT]:
            least, most = (units.size(pick(place.memory for place in contexts)) for pick in (min, max))
            each = least if len(contexts) == 1 else f"{least} each" if least == most else f"{least} to {most}"
            title = f"{pid_and_user(process)} opened {_indices(contexts)} ({each}) and {home_words}"
            yield _observation(process, contexts, title, Severity.NOTE, short=unused_words(process, contexts[0]))


def unused_words(process: Process, place: GpuProcess) -> str:
    """Return who holds how much of a GPU without computing there: `dov 30.0 unused`."""
    return f"{holder_name(process.pid, process)} {units.gib(place.memory)} unused"


def _is_filled(place: GpuProcess, home: GpuProcess) -> bool:
    room = usable(place.gpu)
    if place.memory < _CONTEXT.stop:
        return False
    return place.memory >= _FULL * home.memory or (room is not None and place.memory >= _FULL * room)


# -- misspelt variable --------------------------------------------------------------------------------------------


def find_misspelt(context: RuleContext) -> Iterator[Observation]:
    """Find processes that set a variable with a misspelt name; a warning where they use more than one GPU."""
    for places in context.placements:
        process = places[0].process
        hints = process.declared.hints if process.declared is not None else ()
        words = [hint.words for hint in hints if hint.rule == "misspelt"]
        if words:
            level = Severity.WARNING if len(places) > 1 else Severity.NOTE
            evidence = joined(*words[1:], f"on {_indices(places)}", brief_command(process))
            title = f"{pid_and_user(process)}: {words[0]}"
            short = f"{holder_name(process.pid, process)} {MISSPELT}"
            yield _observation(process, places, title, level, short=short, rests_on=(process.key,), evidence=evidence)


def _indices(places: Sequence[GpuProcess]) -> str:
    return _numbers([place.gpu.index for place in places])


def _numbers(indices: Sequence[int]) -> str:
    return f"GPU {', '.join(map(str, indices))}"


RULES: Final = (
    Rule(DISAGREE, find_outside_visible),
    Rule(UNUSED, find_unused),
    Rule(MISSPELT, find_misspelt),
)
