"""Options, commands and exit codes of the sampler."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from gpuwatch.declared.facts import Share
from gpuwatch.model import Place

SHORTEST = 0.05
"""Seconds between two samples, at least; below 0.5 the driver itself has nothing new to tell."""


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of a sampler, as JSON: the first line on its stdin, or its only argument.

    A GPU is named by its UUID, or by its index as long as it has given none.
    """

    interval: float = 1.0
    only: tuple[int | str, ...] = ()
    """The GPUs to sample; empty for all."""
    skip: tuple[int | str, ...] = ()
    """The GPUs to leave alone, because a call would hang."""
    known: tuple[Place, ...] = ()
    """The GPUs that an earlier sampler found."""
    again: bool = False
    """An earlier sampler found all of `only`: a GPU that is not there now has gone."""
    once: bool = False
    """Take a single snapshot and end."""
    patient: bool = False
    """A single snapshot waits longer for the processes that have GPUs open without being listed."""
    events: bool = True
    """Take what the driver reports by itself (XIDs); a single snapshot never does."""
    shares: tuple[Share, ...] = ()
    """The shares that people agreed on."""
    tmux: bool = False
    """Ask our own tmux for the names of sessions and windows."""
    page: int = -1
    """Descriptor of the shared page; -1 for none."""
    reservations: str = ""
    """Folder of all users' reservations; empty for the machine's own."""
    proc: str = "/proc"
    """Root of /proc, for tests."""


class Command(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Command to a running sampler: a JSON object on its own line of stdin, after the options."""

    interval: float | None = None
    skip: tuple[int | str, ...] | None = None
    """All GPUs to leave alone, in place of those before."""
    events: bool = False
    """Take the driver's events, in spite of `Options.events`."""
    poke: bool = False
    """Take a sample at once."""


class Exit(IntEnum):
    """Exit codes of the sampler; each but `DONE` is preceded by a snapshot that says why."""

    DONE = 0
    """stdin or stdout was closed, or a single snapshot is done."""
    USAGE = 2
    NO_DRIVER = 3
    """The driver could not be asked at the start; a fresh process may find it later."""
    AGAIN = 4
    """The driver below changed: only a fresh process can see the new one."""
    BUG = 70
