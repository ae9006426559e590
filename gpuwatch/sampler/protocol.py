"""Options, commands and exit codes of the sampler."""

from enum import IntEnum

import msgspec

from gpuwatch.declared.facts import Share
from gpuwatch.model.snapshot import Place

SHORTEST = 0.05
"""Seconds between two samples, at least; at less than 0.5 the driver has no new values."""


class SamplerOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of a sampler, as JSON: the first line on its stdin, or its only argument.

    A GPU is named by its UUID, or by its index while its UUID is unknown.
    """

    interval: float = 1.0
    only: tuple[int | str, ...] = ()
    """The GPUs to sample; empty for all."""
    skip: tuple[int | str, ...] = ()
    """GPUs that must not be called, because a call would hang."""
    known: tuple[Place, ...] = ()
    """The GPUs that an earlier sampler found."""
    again: bool = False
    """An earlier sampler found all of `only`: a GPU that is missing now has disappeared."""
    once: bool = False
    """Write a single snapshot and end."""
    long_search: bool = False
    """Let a single snapshot wait longer for the search for processes that have GPUs open without being listed."""
    events: bool = True
    """Receive the driver's events (XIDs); a single snapshot never does."""
    focus: str = ""
    """Key of the GPU whose PCIe and NVLink are read; empty for none."""
    shares: tuple[Share, ...] = ()
    """The agreed shares."""
    tmux: bool = False
    """Ask our own tmux for the names of sessions and windows."""
    page: int = -1
    """Descriptor of the shared page; -1 for none."""
    reservations: str = ""
    """Folder of all users' reservations; empty for the default folder."""
    published: str = ""
    """Folder in which the machine's service publishes declared shares; empty for the default folder."""
    proc: str = "/proc"
    """Root of /proc, for tests."""


class SamplerCommand(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Command to a running sampler: a JSON object on its own line of stdin, after the options."""

    interval: float | None = None
    skip: tuple[int | str, ...] | None = None
    """All GPUs that must not be called; replaces the list before."""
    focus: str | None = None
    """Key of the GPU whose PCIe and NVLink are read from now on; empty for none."""
    events: bool = False
    """Receive the driver's events, in spite of `SamplerOptions.events`."""
    poke: bool = False
    """Take a sample at once."""


class Exit(IntEnum):
    """Exit codes of the sampler; before each except `DONE` it writes a snapshot with the reason."""

    DONE = 0
    """The parent has closed stdin or stdout, or a single snapshot is done."""
    USAGE = 2
    NO_DRIVER = 3
    """The driver did not answer at the start; a new sampler may reach it later."""
    AGAIN = 4
    """The driver was replaced: only a new sampler can use the new one."""
    BUG = 70
