"""What people agreed on in gpuwatch.toml, where it is about this process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpuwatch.declared.facts import Card, Claim, Facts, Share, shown
from gpuwatch.model import Basis, Kind
from gpuwatch.text import clean
from gpuwatch.units import size

_SEARCHED = 4096
"""Characters of a command line in which a pattern is searched."""


def claims(facts: Facts, cards: Sequence[Card]) -> list[Claim]:
    """Give the shares that match a process, one claim for each GPU of each; of one GPU the least comes last.

    A share is one person's: all processes of that person under one table count together, and so the scope names the
    person, the table's pattern and the GPU. Where several tables of one scope match, the least counts, so that nobody
    is above the administrator's ceiling. Patterns must compile; nothing else raises.
    """
    line = " ".join(facts.argv)[:_SEARCHED]
    found = [
        (_bytes(share, card), _claim(share, card, facts))
        for share in facts.shares
        if _is_about(share, facts, line)
        for card in _chosen(share, cards)
    ]
    return [claim for _, claim in sorted(found, key=lambda one: -one[0])]


def _is_about(share: Share, facts: Facts, line: str) -> bool:
    """Say whether a share is about a process: its owner's and, where it has a pattern, its command's."""
    if share.user and share.user not in (facts.user, str(facts.uid)):
        return False
    return not share.command or re.search(share.command, line) is not None


def _chosen(share: Share, cards: Sequence[Card]) -> Iterable[Card]:
    """Give the GPUs of a share, in the machine's order; a start of a UUID that fits several means none."""
    if not share.gpus:
        return cards
    named = {gpu for gpu in share.gpus if isinstance(gpu, int)}
    for start in share.gpus:
        fitting = [card.index for card in cards if isinstance(start, str) and card.uuid.startswith(start)]
        named.update(fitting if len(fitting) == 1 else ())
    return [card for card in cards if card.index in named]


def _bytes(share: Share, card: Card) -> float:
    return share.memory if share.memory is not None else (share.share or 0.0) * (card.total or 0)


def _claim(share: Share, card: Card, facts: Facts) -> Claim:
    who = facts.user or ("anybody" if facts.uid is None else str(facts.uid))
    what = f" for {shown(share.command)}" if share.command else ""
    said = f"share = {share.share:g}" if share.share is not None else f"memory = {size(share.memory or 0)}"
    return Claim(
        channel="gpuwatch.toml",
        where=clean(share.where),
        line=share.line,
        text=f"ceiling, {said}" if share.ceiling else said,
        kind=Kind.GRANT,
        basis=Basis.TOTAL if share.share is not None else Basis.BYTES,
        value=share.share if share.share is not None else share.memory,
        scope=f"share of {clean(who)}{what} on GPU {card.index}",
        device=card.uuid,
    )
