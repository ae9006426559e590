"""Messages between sampler and inspector: a JSON object per line, and one answer for each question.

The inspector writes an empty line when it is ready.
"""

from collections.abc import Sequence

import msgspec

from gpuwatch.declared.facts import GpuFacts, Share
from gpuwatch.model.snapshot import LIMITS, Declaration, Declared, Kind, ProcessContext


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Question about one process."""

    pid: int
    start: int
    """Start time in clock ticks since boot, as in `model.snapshot.Process`."""
    user: str = ""
    """Name of the process's owner."""
    gpus: tuple[GpuFacts, ...] | None = None
    """The machine's GPUs; None for no change since the last question."""
    driver: str | None = None
    """Version of the driver; None for no change."""
    shares: tuple[Share, ...] | None = None
    """Agreed shares; None for no change."""
    proc: str | None = None
    """Root of /proc; None for no change."""
    tmux: float | None = None
    """Seconds that the user's tmux may take to name its panes; 0 for not asking tmux; None for no change."""
    in_two: bool | None = None
    """Whether two processes answer a batch, since a single snapshot waits for it; None for no change."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer about one process."""

    pid: int
    start: int
    declared: Declared
    context: ProcessContext | None = None
    """Terminal, container, job and other context of the process; None where nothing could be read."""
    ended: bool = False
    """Whether its first thread has ended or is ending: then most facts of its start can no longer be read."""
    took: float = 0.0
    """Seconds that reading the process took."""


ROOM = 16 << 10
"""Bytes of one process's declarations as JSON, at most: some twenty statements on eight GPUs."""

MOST = 20
"""Statements of one process, and hints, that are kept in addition to those that limits name."""

_encode = msgspec.json.Encoder().encode


def bounded(declared: Declared, room: int = ROOM) -> Declared:
    """Shorten the declarations of a process to `room` bytes; keep those in effect first, and count the others.

    All limits stay, and the statements that they name, and the first statement in effect without a number.
    `shares.is_conclusive` gives the same answer before and after.
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


def _rank(said: Declaration) -> tuple[bool, bool, bool]:
    """Return the sort key of a declaration: those that leave a limit open, then start sizes, then others in effect."""
    lifts = said.undecided or (said.effective and said.kind in LIMITS and said.value is None)
    return (not lifts, not said.effective, said.kind is not Kind.START)


def _fitting(items: Sequence[msgspec.Struct], places: Sequence[int], room: int) -> list[int]:
    """Return the places of the items that fit; the first item always fits."""
    kept: list[int] = []
    for item, place in zip(items, places, strict=True):
        room -= len(_encode(item))
        if kept and (room < 0 or len(kept) == MOST):
            break
        kept.append(place)
    return kept
