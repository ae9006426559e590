"""Types of configurable values: plain types with bounds that msgspec checks.

`form` in a type's extra names how its values are written in gpuwatch.toml; see `config.keys.ConfigKey`.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from gpuwatch.base.units import MAX_SIZE

MOST: Final = 64
"""Elements of a list, at most."""
LONGEST: Final = 200
"""Characters of a text, at most. Each pattern is searched in the command line of every process."""
HIGHEST_XID: Final = 999
"""Largest XID that is accepted; NVIDIA has numbered errors up to 172 so far."""

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR

_UUID: Final = r"^GPU-[0-9A-Fa-f][0-9A-Fa-f-]{0,35}\Z"

Seconds: TypeAlias = Annotated[float, Meta(extra={"form": "seconds"})]
"""Seconds, written as 2, "500ms" or "10min"; rounded to milliseconds."""
Bytes: TypeAlias = Annotated[int, Meta(le=MAX_SIZE, extra={"form": "bytes"})]
"""Bytes, written as 20000000 or "20GiB". A number from 1 to 1048575 is refused: probably another unit was meant."""
Fraction: TypeAlias = Annotated[float, Meta(gt=0, le=1, extra={"form": "share"})]
"""Fraction of a GPU, written as 0.4 or "40%"."""
Text: TypeAlias = Annotated[str, Meta(max_length=LONGEST, extra={"form": "text"})]
"""Text of printable characters."""
Pattern: TypeAlias = Annotated[str, Meta(min_length=1, max_length=LONGEST, extra={"form": "pattern"})]
"""Regular expression."""
RuleNames: TypeAlias = Annotated[frozenset[str], Meta(max_length=MOST, extra={"form": "rules"})]
"""Names of gpuwatch's built-in rules."""
XidCodes: TypeAlias = Annotated[
    frozenset[Annotated[int, Meta(ge=1, le=HIGHEST_XID)]], Meta(max_length=MOST, extra={"form": "xids"})
]
"""Numbers of the NVIDIA driver's errors."""
Gpus: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=0, lt=10**6)] | Annotated[str, Meta(pattern=_UUID)], ...],
    Meta(min_length=1, max_length=MOST, extra={"form": "gpus"}),
]
"""NVML indices, or UUIDs or their beginnings; a single one is written without a list."""
Url: TypeAlias = Annotated[
    str, Meta(max_length=LONGEST, pattern=r"^(https?://[^\s@/?#]+(/[^\s@?#]*)?)?\Z", extra={"form": "url"})
]
"""URL of a server, without a user or a password; empty for none."""
FilePath: TypeAlias = Annotated[str, Meta(max_length=LONGEST, pattern=r"^((/|~/)[^\0]+)?\Z", extra={"form": "path"})]
"""Path of a file, absolute or below the home folder; empty for none."""
