"""From the text of a value to claims: what env, flags and rc have in common."""

from __future__ import annotations

from msgspec.structs import replace

from gpuwatch.declared.claims import Claim
from gpuwatch.declared.sizes import Reader
from gpuwatch.text import LIMIT, Clean, clean, ends, redact

SHOWN = 80
"""Characters of what a claim shows of the text that it was read from."""


def shown(text: str) -> Clean:
    """Make a piece of a command line or an environment fit to be shown: its secrets masked, cleaned, `SHOWN` long.

    Of a long one both ends are shown, unless it is too long to be searched for secrets to its end.
    """
    shorten = clean if len(text) > LIMIT else ends
    return shorten(redact([text[:LIMIT]])[0], SHOWN)


def said(claim: Claim, value: str | None, reads: Reader) -> list[Claim]:
    """Give a claim with what its value says: once for each GPU that it names, not at all where it says `off`.

    A value of None is only known at run time; one that cannot be read makes the claim void.
    """
    if value is None:
        return [replace(claim, dynamic=True)]
    try:
        sizes = reads(value)
    except ValueError as error:
        return [void(claim, str(error))]
    return [
        replace(claim, value=size.value, basis=size.basis, device=claim.device if size.device is None else size.device)
        for size in sizes
    ]


def void(claim: Claim, why: str) -> Claim:
    """Give a claim that has no effect."""
    return replace(claim, void=clean(why, 2 * SHOWN))
