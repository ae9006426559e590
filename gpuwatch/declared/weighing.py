"""Which of several claims holds on a GPU.

Within one framework the claim of the highest rank counts. Frameworks that share an allocator (vLLM and PyTorch) are
held to the least of theirs; those with allocators of their own to the sum: CuPy's fifth and PyTorch's two fifths may
take three. Of that and what lies below the frameworks (MPS, HAMi, an agreement) the least holds. What is shared (a
container, an agreement) stands beside what binds the process alone, and the two are never compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from gpuwatch.declared import frameworks
from gpuwatch.declared.facts import Claim
from gpuwatch.model import Kind, Limit

_STRONGEST = (Kind.HARD, Kind.CAP, Kind.GRANT)
"""Which of two equal limits is named."""


class Weighed(msgspec.Struct):
    """One claim, and what has become of it."""

    claim: Claim
    place: int
    why: str = ""
    """Why it is not in effect, or is no limit."""
    applies: bool = True
    limits: dict[str, int] = msgspec.field(default_factory=dict)
    lifted: frozenset[str] = frozenset()
    """GPUs on which it takes the place of others and gives no number: it is dynamic, or sets no limit."""
    tentative: bool = False
    """It stands in a script at a place that may not have run."""
    guessed: bool = False
    """Its GPU is a guess, see `declarations.Declaration`."""
    undecided: bool = False
    """As in `declarations.Declaration`."""
    on: set[str] = msgspec.field(default_factory=set)
    """Those of its GPUs on which it is the limit, or a part of it."""


class _Held(NamedTuple):
    """What a process is held to on one GPU: by one claim, or by the sum of several, the largest first."""

    bytes: int
    members: tuple[Weighed, ...]


_Rivals: TypeAlias = tuple[str, str, str]
"""Scope, GPU, and the framework or channel of which only one claim can be in effect."""


def hold(weighed: Sequence[Weighed]) -> list[tuple[Limit, Weighed]]:
    """Decide which claim holds on each GPU, scope by scope; each limit with the claim that it is named by."""
    rivals: defaultdict[_Rivals, list[Weighed]] = defaultdict(list)
    for one in weighed:
        for gpu in (*one.limits, *one.lifted):
            rivals[one.claim.scope, gpu, _rival(one.claim)].append(one)
    best = {key: _winner(several, key[1]) for key, several in rivals.items()}
    least = _least(best)
    for (_, gpu), held in least.items():
        for one in held.members:
            one.on.add(gpu)
            if one is not held.members[0]:
                one.why = f"it adds to {called(held.members[0], one)}: each has an allocator of its own"
    for one in weighed:
        others = [gpu for gpu in one.limits if gpu not in one.on]
        if others and not one.on:
            one.why = _beaten(one, others, best, least)
        elif others and not one.why:
            one.why = f"elsewhere {_beaten(one, others, best, least)}"
    return [
        (
            Limit(gpu=gpu, bytes=held.bytes, declaration=named.place, scope=scope, margin=named.claim.margin),
            named,
        )
        for (scope, gpu), held in sorted(least.items(), key=lambda item: item[0][0])
        for named in held.members[:1]
    ]


def _least(best: Mapping[_Rivals, Weighed]) -> dict[tuple[str, str], _Held]:
    """Give what holds on each GPU in each scope; nothing where all is lifted."""
    allocators: defaultdict[tuple[str, str], defaultdict[str, list[Weighed]]] = defaultdict(lambda: defaultdict(list))
    layers: defaultdict[tuple[str, str], list[_Held]] = defaultdict(list)
    for (scope, gpu, _), one in best.items():
        if one.claim.framework:
            allocators[scope, gpu][frameworks.allocator(one.claim.framework)].append(one)
        elif gpu not in one.lifted:
            layers[scope, gpu].append(_Held(one.limits[gpu], (one,)))
    for (scope, gpu), families in allocators.items():
        found = [_of_family(family, gpu) for family in families.values()]
        largest = sorted((one for one in found if one is not None), key=lambda one: -one.limits[gpu])
        if len(largest) == len(families):  # else one of them may take any amount
            layers[scope, gpu].append(_Held(sum(one.limits[gpu] for one in largest), tuple(largest)))
    return {key: min(several, key=_order) for key, several in layers.items()}


def _of_family(family: Iterable[Weighed], gpu: str) -> Weighed | None:
    """Give the least of frameworks that share an allocator; None where none of them gives a number."""
    return min(
        (one for one in family if gpu not in one.lifted),
        key=lambda one: _order(_Held(one.limits[gpu], (one,))),
        default=None,
    )


def _order(held: _Held) -> tuple[int, int, int]:
    first = held.members[0]
    return (held.bytes, _STRONGEST.index(first.claim.kind), first.place)


def _winner(several: Sequence[Weighed], gpu: str) -> Weighed:
    """Give the claim of the highest rank, of equals the last; where that may not have run, the loosest that may hold.

    Nobody is held to less than what may be in effect: `if args.small:` is no limit on those who did not say so.
    """
    may_hold: list[Weighed] = []
    for one in sorted(several, key=lambda one: (one.claim.rank, one.place), reverse=True):
        may_hold.append(one)
        if not one.tentative:
            break
    return next((one for one in may_hold if gpu in one.lifted), None) or max(may_hold, key=lambda one: one.limits[gpu])


def _rival(claim: Claim) -> str:
    """Name those of which only one can be in effect: all of a framework's; of layers, each channel's own."""
    return claim.framework or claim.channel


def _beaten(
    one: Weighed, gpus: Sequence[str], best: Mapping[_Rivals, Weighed], least: Mapping[tuple[str, str], _Held]
) -> str:
    """Say which claim counts in the place of one on these GPUs."""
    claim = one.claim
    for gpu in gpus:
        winner = best[claim.scope, gpu, _rival(claim)]
        if winner is not one:
            name = called(winner, one)
            later = (one.claim.rank, one.place) > (winner.claim.rank, winner.place)
            return f"it may not have run, and {name} allows more" if later else f"{name} comes before it"
    held = least.get((claim.scope, gpus[0]))
    if held is None:
        return "another framework of the process may take any amount"
    return f"{called(held.members[0], one)} is less"


def called(winner: Weighed, loser: Weighed) -> str:
    """Name a claim so that it can be told from another."""
    claim = winner.claim
    if claim.channel != loser.claim.channel:
        return claim.channel
    return f"the one in {claim.where}:{claim.line}" if claim.line else f"the one in the {claim.where}"
