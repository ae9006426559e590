"""Keys of gpuwatch.toml, made from the fields of the structs: how their values are read, checked and written.

msgspec converts and checks by the types. This module adds what TOML and msgspec do not know (sizes and durations with
units, names of rules, programs, addresses), and describes the allowed values.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from ipaddress import ip_address
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec.structs import fields

from gpuwatch.alerts.alert import RENAMED, Severity
from gpuwatch.alerts.limits import MOST_FREE, Limits
from gpuwatch.alerts.rules import RULE_NAMES
from gpuwatch.base import text
from gpuwatch.base.errors import UsageError
from gpuwatch.base.units import MIB, parse_duration, parse_share, parse_size, write_duration, write_size
from gpuwatch.config.keymap import key_name
from gpuwatch.config.types import ADDRESSES, ColumnName, Config
from gpuwatch.model.values import HIGHEST_XID

_SHOWN: Final = 60
"""Characters of a wrong value that are quoted."""


class ConfigKey(NamedTuple):
    """One key of a table, made from a field of its struct."""

    name: str
    field: str
    """The name of the field, which differs where the key is a keyword of Python."""
    type: Any
    """Type of the values, without None, which TOML does not have."""
    bounds: Mapping[str, Any]
    """Bounds in the annotations of the type, by the names of `msgspec.Meta` and the keys of its `extra`."""

    @property
    def description(self) -> str:
        """Meaning of the key; a field without one is no key of the file."""
        return str(self.bounds.get("description", ""))

    @property
    def form(self) -> str:
        """Format of its values that TOML and msgspec do not know: `bytes`, `seconds`."""
        return str(self.bounds.get("form", ""))

    @property
    def allowed(self) -> str:
        """Allowed values, in words that follow `allowed is`."""
        type_ = get_args(self.type)[0] if self.bounds else self.type
        if get_origin(type_) is Literal:
            return " or ".join(", ".join(map(toml_string, get_args(type_))).rsplit(", ", 1))
        if self.form == "bytes":
            size = f"a size of {self.range}" if self.bounds["ge"] else f"a size, {self.range}"
            return f'{size}: bytes, or a text such as "512MiB" or "20GiB"'
        if self.form == "seconds":
            return f'seconds, or a text such as "30s", "10min" or "2h", from {self.range}'
        return _ALLOWED[self.form or type_.__name__].format_map({"min_length": 0, **self.bounds})

    @property
    def range(self) -> str:
        """Allowed values in short, without how sizes and durations are written."""
        if self.form == "bytes":
            return f"{write_size(self.bounds['ge'])} or more" if self.bounds["ge"] else "0 or 1MiB or more"
        if self.form == "seconds":
            return f"{write_duration(self.bounds['ge'])} to {write_duration(self.bounds['le'])}"
        return "a list of names of rules" if self.form == "rules" else self.allowed

    def read(self, raw: object) -> Any:
        """Convert and check a value from `tomllib`; raises ValueError with what was found, and what is allowed."""
        try:
            value = msgspec.convert(self._prepare(raw), self.type)
            wrong = self._check(value)
        except ValueError as error:
            wrong = self._found(raw, str(error))
        if wrong:
            raise ValueError(f"found {wrong}; allowed is {self.allowed}")
        return round(value, 3) if self.form == "seconds" else value

    def write(self, value: Any) -> str:
        """Write a value as the TOML that `read` reads as the same."""
        if self.form == "seconds":
            return f'"{write_duration(value)}"'
        if self.form == "bytes":
            size = write_size(value)
            return size if size.isdigit() else f'"{size}"'
        return repr(value) if self.form == "share" else _write(value)

    def _prepare(self, raw: object) -> object:
        """Return a raw value in the format that msgspec converts; raises ValueError."""
        if self.type is Severity or Severity in get_args(self.type):
            return {level.name.lower(): level for level in Severity}.get(str(raw))
        if self.form == "gpus":
            return raw if isinstance(raw, list) else [raw]
        if self.form == "rules" and isinstance(raw, list):
            return [RENAMED.get(one, one) if isinstance(one, str) else one for one in raw]
        if self.form == "keys":
            return [key_name(one) for one in (raw if isinstance(raw, list) else [raw])]
        return _PARSERS[self.form](raw) if isinstance(raw, str) and self.form in _PARSERS else raw

    def _check(self, value: Any) -> str:
        """Return the fault of a value that msgspec cannot check; empty for a good value."""
        match self.form:
            case "bytes" if 0 < value < MIB:
                return shown(value)
            case "text" | "url" | "path" if text.clean(value) != value:
                return shown(value)
            case "command" if value and not (value[0].startswith(("/", "~/")) and text.clean(value[0]) == value[0]):
                return f"{shown(value[0])} as the first"
            case "pattern" if error := _pattern_error(value):
                return f"{shown(value)}, which is not one ({error})"
            case "columns" if len({*value}) < len(value):
                return f"{shown(next(one for one in value if value.count(one) > 1))} twice"
            case "rules" if unknown := min(value - RULE_NAMES, default=""):
                near = nearest(unknown, RULE_NAMES)
                return shown(unknown) + (f" (did you mean {toml_string(near)}?)" if near else "")
        return ""

    def _found(self, raw: object, error: str) -> str:
        """Describe a wrong value, or the element of a list that msgspec names."""
        element = re.search(r"`\$\[([0-9]+)\]`$", error)
        if isinstance(raw, list) and not element and "of length" in error:
            return f"{len(raw)} of them" if raw else "an empty list"
        wrong = raw[int(element[1])] if isinstance(raw, list) and element else raw
        if self.form == "urls" and isinstance(wrong, str):
            return f'"{text.mask_url(wrong)}"{", which is none" if isinstance(raw, list) else " alone"}'
        if self.form == "url" and isinstance(wrong, str) and "@" in wrong:  # a password may come before it
            return f'"{text.mask_url(wrong)}" with an @'
        return shown(wrong)


_PARSERS: Final[Mapping[str, Callable[[str], float]]] = {
    "seconds": parse_duration,
    "bytes": partial(parse_size, plain=True),
    "share": parse_share,
}
_ALLOWED: Final = {
    "bool": "true or false",
    "int": "a whole number from {ge} to {le}",
    "float": "a number from {ge:g} to {le:g}",
    "Severity": '"note", "warning" or "critical"',
    "share": 'more than 0 and up to 1, such as 0.4 or "40%"',
    "text": "text of {min_length} to {max_length} printable characters",
    "pattern": "a regular expression of {min_length} to {max_length} characters",
    "rules": "a list of " + ", ".join(f'"{name}"' for name in sorted(RULE_NAMES)),
    "xids": f"a list of XID numbers from 1 to {HIGHEST_XID}",
    "gpus": 'indices from 0 on, or (starts of) UUIDs such as "GPU-8932f937"; one, or a list; for all leave it out',
    "keys": 'a key or a list of keys, such as "x", "/", "f5", "ctrl+r", "enter" or "pageup"',
    "columns": "a list of " + ", ".join(f'"{name}"' for name in get_args(ColumnName)) + ", each once",
    "command": 'a list such as ["/home/ada/bin/tell", "--loud"], whose first is an absolute path or begins with ~/',
    "url": 'a URL such as "https://prometheus.example.org:9090", without a user and a password',
    "path": "a path that begins with / or ~/",
    "address": f"an address of ssh: {ADDRESSES}",
    "program": 'the path of a program, such as "/opt/gpuwatch/bin/gpuwatch", of letters, digits and ._+~/-',
    "hosts": 'a list of names or addresses without ports, such as ["gpu.example.org"]',
    "urls": 'a list of apprise\'s URLs, such as ["slack://..."]',
}
"""Allowed values in words, by the format of a key or the name of a plain type."""


@cache
def keys_of(struct: type[msgspec.Struct]) -> dict[str, ConfigKey]:
    """Return the keys of a table by name: the fields of its struct that have a description."""
    found = {}
    for field in fields(struct):
        type_ = next((one for one in get_args(field.type) if get_origin(one) is Annotated), field.type)
        bounds: dict[str, Any] = {}
        for meta in get_args(type_)[1:] if get_origin(type_) is Annotated else ():
            names = ("ge", "le", "min_length", "max_length", "description", "examples")
            values = {name: value for name in names if (value := getattr(meta, name)) is not None}
            bounds |= values | (meta.extra or {})
        found[field.encode_name] = ConfigKey(field.encode_name, field.name, type_, bounds)
    return {name: key for name, key in found.items() if key.description}


@cache
def sections() -> dict[str, dict[str, ConfigKey]]:
    """Return the keys of each table by their full names, `alerts.memory_warning`; top-level keys under ""."""
    found: dict[str, dict[str, ConfigKey]] = {"": {}}
    for name, key in keys_of(Config).items():
        default = getattr(Config(), name)
        if isinstance(default, msgspec.Struct):
            found[name] = {f"{name}.{inner}": one for inner, one in keys_of(type(default)).items()}
        else:
            found[""][name] = key
    return found


@cache
def all_keys() -> dict[str, ConfigKey]:
    """Return all keys by their full names, in the order of the file."""
    return {whole: key for keys in sections().values() for whole, key in keys.items()}


def value_of(config: Config, name: str) -> Any:
    """Return the value of a key by its full name."""
    return attrgetter(name)(config)


def read_flag(table: type[msgspec.Struct], name: str, raw: str) -> Any:
    """Read the value of a flag for a key of a table; raises UsageError."""
    key = keys_of(table)[name]
    try:
        return key.read(int(raw) if get_args(key.type)[0] is int and re.fullmatch("[0-9]{1,20}", raw) else raw)
    except ValueError as error:
        raise UsageError(f"--{name.replace('_', '-')}: {error}") from None


def is_loopback(host: str) -> bool:
    """Return whether an address or a name is reached only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def misordered(limits: Limits) -> Iterator[tuple[str, str]]:
    """Yield pairs of limits in the wrong order: the first must not be above the second."""
    for name, key in keys_of(Limits).items():
        other = key.bounds.get("at_most")
        if other and getattr(limits, name) > getattr(limits, other):
            yield name, other


def check_limits(limits: Limits) -> None:
    """Raise UsageError where the limits that a flag sets are too large, or in the wrong order."""
    if limits.memory_warning > MOST_FREE:
        raise UsageError(f"--memory-warning: {limits.memory_warning:g} % is too much; 0 to {MOST_FREE} is allowed")
    for low, high in misordered(limits):
        flag, other = (f"--{name.replace('_', '-')}" for name in (low, high))
        raise UsageError(
            f"{flag}: {getattr(limits, low):g} % is above {other}, {getattr(limits, high):g} %; it must be the smaller"
        )


# ---------------------------------------------------------------------------------------------------------------
# Words


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Severity):
        return f'"{value.name.lower()}"'
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, frozenset | tuple):
        return f"[{', '.join(map(_write, sorted(value) if isinstance(value, frozenset) else value))}]"
    return repr(value).removesuffix(".0")


def _pattern_error(pattern: str) -> str:
    """Return the fault of a regular expression; empty if it is valid."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "possible nested set": it would come to mean something else
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        return str(error) or type(error).__name__
    return ""


def shown(raw: object) -> str:
    """Quote a wrong value on one line, cut to about 60 characters."""
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
    """Write a TOML string on one line, without control characters."""

    def written(char: str) -> str:
        if char in '"\\':
            return f"\\{char}"
        return char if char.isprintable() and (char.isascii() or not ascii_only) else escaped(char)

    return '"' + "".join(map(written, value)) + '"'


def escaped(char: str) -> str:
    """Escape a character as TOML does in a string."""
    return f"\\u{ord(char):04X}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08X}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the most similar known word; empty where none is similar."""
    lower = {one.lower(): one for one in known}
    return next((lower[one] for one in difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.7)), "")
