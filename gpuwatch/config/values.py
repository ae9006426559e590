"""The kinds of values that a key may have: read from TOML, checked, and written as TOML again.

They are structs: a dataclass takes half a millisecond to make, and each start of gpuwatch would wait for all of them.
Each `read` takes what `tomllib` gave and raises NotAllowedError, which names what was found and what is allowed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any, Final, Protocol

import msgspec

from gpuwatch import text, units
from gpuwatch.alerts.alert import Severity

LONGEST_TEXT: Final = 200
"""Characters of a name or a pattern. Each pattern is searched in the command line of every process."""
_SHOWN: Final = 60
"""Characters of a wrong value that are quoted."""

_DURATIONS: Final = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_SIZES: Final = (("TiB", units.TIB), ("GiB", units.GIB), ("MiB", units.MIB), ("KiB", units.KIB))


class NotAllowedError(ValueError):
    """A value that a key may not have; one line with what was found and what is allowed."""

    def __init__(self, allowed: str, found: str) -> None:
        super().__init__(f"found {found}; allowed is {allowed}")


class Kind(Protocol):
    """What a key may hold."""

    @property
    def allowed(self) -> str:
        """What is allowed, to stand after `allowed is`."""

    def read(self, raw: object) -> Any:
        """Give the checked value; NotAllowedError otherwise."""

    def write(self, value: Any) -> str:
        """Give the TOML that `read` reads as this value."""


def shown(raw: object) -> str:
    """Quote a wrong value on one line, at most about 60 characters of it."""
    if isinstance(raw, str):
        return toml_string(raw if len(raw) <= _SHOWN else f"{raw[: _SHOWN - 3]}...", ascii_only=True)
    if isinstance(raw, bool):
        return "true" if raw else "false"
    if isinstance(raw, int):
        return str(raw) if abs(raw) < 10**30 else "a number beyond all bounds"
    if isinstance(raw, float):
        return repr(raw)
    return "a list" if isinstance(raw, list) else "a table" if isinstance(raw, dict) else "a date or a time"


def toml_string(value: str, *, ascii_only: bool = False) -> str:
    """Write a TOML string, on one line and with nothing that a terminal acts on."""

    def written(char: str) -> str:
        if char in '"\\':
            return f"\\{char}"
        return char if char.isprintable() and (char.isascii() or not ascii_only) else escaped(char)

    return '"' + "".join(map(written, value)) + '"'


def escaped(char: str) -> str:
    """Give a character as TOML escapes it in a string."""
    return f"\\u{ord(char):04X}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08X}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Give the known word that was probably meant; empty where none is near."""
    import difflib  # 5 ms, for mistakes alone

    lower = {one.lower(): one for one in known}
    return next((lower[one] for one in difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.7)), "")


def mask_url(url: str) -> str:
    """Give what may be shown of a URL that holds a secret: `slack://…`."""
    found = re.match(r"([A-Za-z][A-Za-z0-9.+-]{0,30})://", url)
    return f"{found[1]}://…" if found else "…"


# ---------------------------------------------------------------------------------------------------------------
# One value


class Flag(msgspec.Struct, frozen=True):
    """True or false."""

    allowed: str = "true or false"

    def read(self, raw: object) -> bool:
        """Read it."""
        if not isinstance(raw, bool):
            raise NotAllowedError(self.allowed, shown(raw))
        return raw

    def write(self, value: bool) -> str:
        """Write it."""
        return "true" if value else "false"


class Text(msgspec.Struct, frozen=True):
    """Printable text, bounded."""

    least: int = 0
    most: int = LONGEST_TEXT

    @property
    def allowed(self) -> str:
        """What is allowed."""
        return f"text of {self.least} to {self.most} printable characters"

    def read(self, raw: object) -> str:
        """Read it."""
        if not isinstance(raw, str) or not self.least <= len(raw) <= self.most or text.clean(raw) != raw:
            raise NotAllowedError(self.allowed, shown(raw))
        return raw

    def write(self, value: str) -> str:
        """Write it."""
        return toml_string(value)


class Choice(msgspec.Struct, frozen=True):
    """One of some words."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """What is allowed."""
        quoted = [f'"{word}"' for word in self.words]
        return f"{', '.join(quoted[:-1])} or {quoted[-1]}" if len(quoted) > 1 else quoted[0]

    def read(self, raw: object) -> str:
        """Read it."""
        if not isinstance(raw, str) or raw not in self.words:
            raise NotAllowedError(self.allowed, shown(raw))
        return raw

    def write(self, value: str) -> str:
        """Write it."""
        return toml_string(value)


class Level(msgspec.Struct, frozen=True):
    """A severity by its word."""

    allowed: str = '"note", "warning" or "critical"'

    def read(self, raw: object) -> Severity:
        """Read it."""
        found = {level.name.lower(): level for level in Severity}.get(raw) if isinstance(raw, str) else None
        if found is None:
            raise NotAllowedError(self.allowed, shown(raw))
        return found

    def write(self, value: Severity) -> str:
        """Write it."""
        return f'"{value.name.lower()}"'


class Number(msgspec.Struct, frozen=True):
    """A number within bounds; without bounds any that is finite."""

    least: float = -1e18
    most: float = 1e18

    @property
    def allowed(self) -> str:
        """What is allowed."""
        return (
            "a number" if (self.least, self.most) == (-1e18, 1e18) else f"a number from {self.least:g} to {self.most:g}"
        )

    def read(self, raw: object) -> float:
        """Read it."""
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not self.least <= raw <= self.most:
            raise NotAllowedError(self.allowed, shown(raw))
        return float(raw)

    def write(self, value: float) -> str:
        """Write it."""
        return repr(float(value)).removesuffix(".0")


class Count(msgspec.Struct, frozen=True):
    """A whole number within bounds."""

    least: int
    most: int

    @property
    def allowed(self) -> str:
        """What is allowed."""
        return f"a whole number from {self.least} to {self.most}"

    def read(self, raw: object) -> int:
        """Read it."""
        if isinstance(raw, bool) or not isinstance(raw, int) or not self.least <= raw <= self.most:
            raise NotAllowedError(self.allowed, shown(raw))
        return raw

    def write(self, value: int) -> str:
        """Write it."""
        return str(value)


class Duration(msgspec.Struct, frozen=True):
    """Seconds, or text such as `10min`; kept to the millisecond."""

    least: float = 0.0
    most: float = units.MAX_DURATION_S

    @property
    def allowed(self) -> str:
        """What is allowed."""
        return f'seconds, or a text such as "30s", "10min" or "2h", from {_span(self.least)} to {_span(self.most)}'

    def read(self, raw: object) -> float:
        """Read it."""
        try:
            if isinstance(raw, bool) or not isinstance(raw, int | float | str):
                raise NotAllowedError(self.allowed, shown(raw))
            seconds = units.parse_duration(raw) if isinstance(raw, str) else raw
        except ValueError:
            raise NotAllowedError(self.allowed, shown(raw)) from None
        if not self.least <= seconds <= self.most:
            raise NotAllowedError(self.allowed, shown(raw))
        return round(float(seconds), 3)

    def write(self, value: float) -> str:
        """Write it."""
        return f'"{_span(value)}"'


def _span(seconds: float) -> str:
    """Write seconds in the largest unit that divides them."""
    if seconds != int(seconds):
        return f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:.3f}".rstrip("0") + "s"
    unit, size = next(((unit, size) for unit, size in _DURATIONS if seconds and seconds % size == 0), ("s", 1))
    return f"{int(seconds) // size}{unit}"


class Size(msgspec.Struct, frozen=True):
    """Bytes, or text such as `20GiB`.

    A number below 1 MiB was meant to be in another unit, but for 0.
    """

    least: int = 0

    @property
    def allowed(self) -> str:
        """What is allowed."""
        least = f" of {_bytes(self.least)} or more" if self.least else ", 0 or 1MiB or more"
        return f'a size{least}: bytes, or a text such as "512MiB" or "20GiB"'

    def read(self, raw: object) -> int:
        """Read it."""
        try:
            if isinstance(raw, bool) or not isinstance(raw, int | str):
                raise NotAllowedError(self.allowed, shown(raw))
            size = units.parse_size(raw, plain=True) if isinstance(raw, str) else raw
        except ValueError:
            raise NotAllowedError(self.allowed, shown(raw)) from None
        if not self.least <= size <= units.MAX_SIZE or 0 < size < units.MIB:
            raise NotAllowedError(self.allowed, shown(raw))
        return size

    def write(self, value: int) -> str:
        """Write it."""
        written = _bytes(value)
        return written if written.isdigit() else f'"{written}"'


def _bytes(size: int) -> str:
    """Write bytes in the largest unit that divides them."""
    for unit, many in _SIZES:
        if size and size % many == 0:
            return f"{size // many}{unit}"
    return str(size)


class Fraction(msgspec.Struct, frozen=True):
    """A share of a GPU, as 0.4 or "40%"."""

    allowed: str = 'more than 0 and up to 1, such as 0.4 or "40%"'

    def read(self, raw: object) -> float:
        """Read it."""
        try:
            if isinstance(raw, str):
                return units.parse_share(raw)
        except ValueError:
            raise NotAllowedError(self.allowed, shown(raw)) from None
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0 < raw <= 1:
            raise NotAllowedError(self.allowed, shown(raw))
        return float(raw)

    def write(self, value: float) -> str:
        """Write it."""
        return repr(value)


class Pattern(msgspec.Struct, frozen=True):
    """A regular expression."""

    allowed: str = f"a regular expression of 1 to {LONGEST_TEXT} characters"

    def read(self, raw: object) -> str:
        """Read it."""
        if not isinstance(raw, str) or not 1 <= len(raw) <= LONGEST_TEXT:
            raise NotAllowedError(self.allowed, shown(raw))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # "possible nested set": it would come to mean something else
                re.compile(raw)
        except (re.error, OverflowError, RecursionError, Warning) as error:
            raise NotAllowedError(self.allowed, f"{shown(raw)}, which is none ({error})") from None
        return raw

    def write(self, value: str) -> str:
        """Write it."""
        return toml_string(value)
