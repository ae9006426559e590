"""Types of the values that people configure: plain types with the bounds that msgspec checks.

`form` in a type's extra names how its values are written in gpuwatch.toml; see `config.keys.Key`.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from gpuwatch.units import MAX_SIZE

MOST: Final = 64
"""Elements of a list."""
LONGEST: Final = 200
"""Characters of a text. Each pattern is searched in the command line of every process."""
HIGHEST_XID: Final = 999
"""NVIDIA has numbered errors up to 172 so far."""

ANY: Final = 1e18
"""Bound of numbers that may be any."""
HOUR: Final = 3600.0
DAY: Final = 24 * HOUR

_UUID: Final = r"^GPU-[0-9A-Fa-f][0-9A-Fa-f-]{0,35}\Z"

Number: TypeAlias = Annotated[float, Meta(ge=-ANY, le=ANY)]
"""Any finite number."""
Seconds: TypeAlias = Annotated[float, Meta(extra={"form": "seconds"})]
"""Written as 2, "500ms" or "10min"; kept to the millisecond."""
Bytes: TypeAlias = Annotated[int, Meta(le=MAX_SIZE, extra={"form": "bytes"})]
"""Written as 20000000 or "20GiB". A number from 1 to 1048575 is refused: it was meant in another unit."""
Fraction: TypeAlias = Annotated[float, Meta(gt=0, le=1, extra={"form": "share"})]
"""Fraction of a GPU, written as 0.4 or "40%"."""
Text: TypeAlias = Annotated[str, Meta(max_length=LONGEST, extra={"form": "text"})]
"""Printable characters."""
Pattern: TypeAlias = Annotated[str, Meta(min_length=1, max_length=LONGEST, extra={"form": "pattern"})]
"""A regular expression."""
RuleNames: TypeAlias = Annotated[frozenset[str], Meta(max_length=MOST, extra={"form": "rules"})]
"""Names of rules that gpuwatch comes with."""
XidCodes: TypeAlias = Annotated[
    frozenset[Annotated[int, Meta(ge=1, le=HIGHEST_XID)]], Meta(max_length=MOST, extra={"form": "xids"})
]
"""Numbers of the NVIDIA driver's errors."""
Gpus: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=0, lt=10**6)] | Annotated[str, Meta(pattern=_UUID)], ...],
    Meta(min_length=1, max_length=MOST, extra={"form": "gpus"}),
]
"""NVML indices, or (starts of) UUIDs; one alone is written without a list."""
