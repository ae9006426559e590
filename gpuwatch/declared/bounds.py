"""How much is sent of what one process declared: a script says what it likes, and each viewer reads all of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuwatch.model import LIMITS, Declaration, Declared, Kind

ROOM = 16 << 10
"""Bytes of what one process declared, as JSON: some twenty statements on eight GPUs. People make a handful."""

MOST = 20
"""Statements of one process, and hints, beside those that its limits name."""

_encode = msgspec.json.Encoder().encode


def bounded(declared: Declared, room: int = ROOM) -> Declared:
    """Keep of what was declared what fits into `room` bytes, what is in effect first, and count what is left out.

    All limits stay, and the statements that they name; so does the first of those in effect that give no number. What
    was judged by all statements is so judged by those that are kept.
    """
    if len(declared.declarations) <= MOST and len(declared.hints) <= MOST and len(_encode(declared)) <= room:
        return declared
    named = max((limit.declaration + 1 for limit in declared.limits), default=0)
    room -= len(_encode(msgspec.structs.replace(declared, declarations=(), hints=())))
    room -= sum(len(_encode(one)) for one in declared.declarations[:named])
    rest = sorted(range(named, len(declared.declarations)), key=lambda place: _rank(declared.declarations[place]))
    kept = [*range(named), *sorted(_fitting([declared.declarations[place] for place in rest], rest, room))]
    room -= sum(len(_encode(declared.declarations[place])) for place in kept[named:])
    hints = _fitting(declared.hints, range(len(declared.hints)), room)
    return msgspec.structs.replace(
        declared,
        declarations=tuple(declared.declarations[place] for place in kept),
        left_out=declared.left_out + len(declared.declarations) - len(kept),
        hints=tuple(declared.hints[place] for place in hints),
        hints_left_out=declared.hints_left_out + len(declared.hints) - len(hints),
    )


def _rank(one: Declaration) -> tuple[bool, bool, bool]:
    """Sort statements by what is missed most: what lifts a limit, then a start size, then what else is in effect."""
    lifts = one.undecided or (one.kind in LIMITS and one.value is None)
    return (not one.effective, not lifts, one.kind is not Kind.START)


def _fitting(items: Sequence[msgspec.Struct], places: Sequence[int], room: int) -> list[int]:
    """Give the places of those of the items that fit, the first of them in any case."""
    kept: list[int] = []
    for item, place in zip(items, places, strict=True):
        room -= len(_encode(item))
        if kept and (room < 0 or len(kept) == MOST):
            break
        kept.append(place)
    return kept
