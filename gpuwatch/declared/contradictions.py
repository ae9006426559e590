"""Contradictions between what a process declares and where NVML lists its memory, which is certain.

The sampler corrects the declarations in every sample, without importing any reader of declarations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from msgspec.structs import replace

from gpuwatch.declared.facts import CVD, NO_GPU, WITHIN
from gpuwatch.model.snapshot import Declared, Gpu, Knowledge, Order


class HeldGpus(NamedTuple):
    """GPUs on which NVML lists a process with memory, and whether something else may number its GPUs."""

    gpus: frozenset[str] = frozenset()
    """UUIDs."""
    confined: bool = False
    """Whether it is in a container or a batch job, whose device cgroup may hide GPUs, or is a client of MPS."""


def without_contradicted(declared: Declared, listed: HeldGpus, gpus: Sequence[Gpu]) -> Declared:
    """Correct the visible GPUs and the limits of a process that NVML lists on other GPUs: NVML is certain.

    A process on a GPU that it is said not to see has another mapping than was read: a script has chosen after CUDA's
    start, or a device cgroup numbers the GPUs. Its limits by ordinal are then not known on any GPU. One for each GPU
    that it sees is known where all GPUs that are in question are of one size. The mapping itself is kept only where the
    process's own environment decides, and all code that may change it was read: then it is the process that disagrees.
    """
    seen, held = declared.visible, listed.gpus
    if seen is None or not held:
        return declared
    parents = {one.uuid: gpu.uuid for gpu in gpus for one in gpu.instances}
    shown = frozenset(parents.get(uuid, uuid) for uuid in seen.gpus)
    if held <= shown:  # most of them
        return _without_guessed(declared, held)
    outside = ", ".join(f"GPU {gpu.index}" for gpu in gpus if gpu.uuid in held - shown)
    hides = "should hide (GPU order guessed)" if seen.order is Order.HEURISTIC else "should hide"
    words = f"its memory is on {outside}, which {_joined(seen.text, seen.where, ' in ')} {hides}"
    sizes = {gpu.memory.total if gpu.mig is not True else gpu.uuid for gpu in gpus if gpu.uuid in held | shown}
    said = declared.declarations
    moves = len(sizes) == 1 and not any(one.ordinal and (one.limits or one.undecided) for one in said)
    changed = []
    for one in said:
        mapped = (one.each or one.ordinal) and bool(one.limits or one.why == NO_GPU)
        limits = dict.fromkeys(sorted(held), next(iter(one.limits.values()))) if moves and one.limits else {}
        if mapped:
            one = replace(one, limits=limits, why=one.why if limits else words, undecided=one.undecided or not limits)
        changed.append(one)
    first = {one.scope: one for one in reversed(declared.limits) if said[one.declaration].each}
    kept = [one for one in declared.limits if not (said[one.declaration].each or said[one.declaration].ordinal)]
    kept += [replace(one, gpu=gpu) for one in first.values() if moves for gpu in sorted(held)]
    declared = replace(declared, declarations=tuple(changed), limits=tuple(kept))
    own = seen.text.startswith(f"{CVD}=") and seen.where == "environment" and WITHIN not in seen.note
    counts = seen.order is not Order.HEURISTIC or len(held) > len(shown)
    read = declared.knowledge is Knowledge.READ and not declared.incomplete  # else other code may have set it
    if own and read and counts and not seen.doubtful and not listed.confined:
        return replace(declared, visible=replace(seen, note=_joined(seen.note, f"its memory is on {outside}", "; ")))
    return replace(declared, visible=None, unseen=words)


def _joined(first: str, second: str, between: str) -> str:
    return between.join(filter(None, (first, second)))


def _without_guessed(declared: Declared, held: AbstractSet[str]) -> Declared:
    """Drop a framework's limits on guessed GPUs where the process holds memory only on other GPUs.

    All limits of the framework are dropped: one that was meant for a held GPU would replace others on that GPU.
    """
    guessed: defaultdict[str, set[str]] = defaultdict(set)
    for one in declared.declarations:
        if one.guessed and one.effective:
            guessed[one.framework or one.channel] |= one.limits.keys()
    wrong = {name for name, gpus in guessed.items() if gpus and gpus.isdisjoint(held)}
    if not wrong:
        return declared
    why = "its memory is not on the GPU that was guessed"
    of = [one.framework or one.channel for one in declared.declarations]
    changed = [
        replace(one, limits={}, why=why, undecided=True) if one.limits and one.effective and name in wrong else one
        for one, name in zip(declared.declarations, of, strict=True)
    ]
    limits = [one for one in declared.limits if of[one.declaration] not in wrong]
    return replace(declared, declarations=tuple(changed), limits=tuple(limits))
