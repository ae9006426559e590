"""What the sampler and its parent send each other: the sampler's command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpuwatch.declared.facts import Share
from gpuwatch.model import Place


def sampler_arguments(
    interval: float,
    only: Sequence[int | str],
    skip: Sequence[int | str] = (),
    known: Sequence[Place] = (),
    *,
    again: bool = False,
    events: bool = True,
    shares: Sequence[Share] = (),
    tmux: bool = False,
    reservations: Path | None = None,
) -> list[str]:
    """Return the sampler's command line: seconds between two samples, which GPUs, and what people agreed on.

    A GPU is named by its UUID, or by its index as long as it has given none; `known` are those that were found before.
    `again` is for a sampler that takes the place of one that worked: GPUs of `only` may have gone since. Without
    `events` it does not listen for what the driver reports by itself. With `tmux` it asks our own tmux for names.
    `reservations` is the folder of all users' reservations where it is not the machine's own.
    """
    arguments = ["--interval", f"{interval:g}"]
    if only:
        arguments += ["--only", ",".join(map(str, only))]
    if skip:
        arguments += ["--skip", ",".join(map(str, skip))]
    if known:
        arguments += ["--known", msgspec.json.encode(list(known)).decode()]
    if again:
        arguments.append("--again")
    if not events:
        arguments.append("--no-events")
    if shares:
        arguments += ["--shares", msgspec.json.encode(list(shares)).decode()]
    if tmux:
        arguments.append("--tmux")
    if reservations:
        arguments += ["--reservations", str(reservations)]
    return arguments
