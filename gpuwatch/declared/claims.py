"""A claim is what one channel says, before anybody asked which GPU it means or whether it is in effect.

The types are msgspec Structs because the scan of a script crosses a pipe: another process reads the file.
"""

from __future__ import annotations

import msgspec

from gpuwatch.model import Basis, Confidence, Hint, Kind, Margin


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One variable of an environment, and who set it."""

    value: str | None
    """None where a script sets it to what is only known at run time."""
    where: str = "environment"
    """As in `declarations.Declaration.where`."""
    line: int = 0
    text: str = ""
    """The line of source; empty where `NAME=value` says it all."""
    confidence: Confidence = Confidence.CERTAIN
    default: bool = False
    """A script sets it only if it is not set yet: what the environment says comes first."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One statement. The first fields are those of `declarations.Declaration`."""

    channel: str
    where: str = ""
    line: int = 0
    text: str = ""
    framework: str = ""
    """An id of `frameworks.NAMES`; empty for what holds whatever the process uses (MPS, HAMi, a scheduler)."""
    kind: Kind
    basis: Basis = Basis.NONE
    value: float | None = None
    """Fraction or bytes; None for no number, or one that is `dynamic`."""
    scope: str = ""
    confidence: Confidence = Confidence.CERTAIN
    margin: Margin = Margin.FRAMEWORK

    device: int | str | None = None
    """The GPU it is about: an ordinal among the visible ones, a UUID (or the start of one); None for each visible."""
    some_gpu: bool = False
    """It is about one GPU, which is only known at run time (`args.local_rank`); `device` is None."""
    rank: int = 0
    """Within one framework, GPU and scope the highest of the limiting kinds is in effect; of equals the last."""
    adds: str = ""
    """Claims with the same text here are parts of one sum: the memory_limits of one GPU's logical devices."""
    dynamic: bool = False
    """The value is only known at run time (`args.fraction`)."""
    unread: str = ""
    """Why the value is not known, where that is not it: the file in which it stands was not read."""
    lifts: bool = False
    """It sets no limit, and takes the place of those that do: `set_limit(0)`."""
    void: str = ""
    """Why it has no effect whatever else is said: `the platform allocator ignores it`; empty for none."""
    uncalled: bool = False
    """It stands in a function of a script that nothing is known to call."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of GPUs made in a script or by a flag, among those that are visible already."""

    channel: str
    """`set_visible_devices`, `visible_device_list`, `jax_cuda_visible_devices`."""
    framework: str
    ordinals: tuple[int, ...] | None
    """None where they are only known at run time."""
    where: str = ""
    line: int = 0
    text: str = ""


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """What is of interest in one Python source."""

    claims: tuple[Claim, ...] = ()
    settings: tuple[tuple[str, Setting], ...] = ()
    """(name, setting) of the environment variables that it sets, in the order of its lines."""
    selections: tuple[Selection, ...] = ()
    imports: tuple[str, ...] = ()
    """Names of the top-level packages that it imports, anywhere in it."""
    hints: tuple[Hint, ...] = ()
    error: str = ""
    """Why it could not be parsed; empty for all well."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """An agreement written down in gpuwatch.toml: what one person, or one command, may take of which GPUs."""

    user: str = ""
    """Name or uid in digits; empty for anybody."""
    command: str = ""
    """A regular expression, searched in the command line; empty for any."""
    gpus: tuple[int | str, ...] = ()
    """NVML indices, or (starts of) UUIDs; empty for all."""
    share: float | None = None
    """Fraction of the GPU, 0 to 1."""
    memory: int | None = None
    """Bytes; exactly one of both is given."""
    where: str = "gpuwatch.toml"
    """The file, as it is to be shown."""
    line: int = 0
    ceiling: bool = False
    """The administrator's: what others say can lower it, and never raise it."""
