"""Configuration from gpuwatch.toml: how it is loaded, and loaded again. Its types are in `config.types`.

A flag overrides the user's file, which overrides the administrator's file; only the administrator's `[[share]]`
tables are upper bounds that no other file can raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from gpuwatch.base import text
from gpuwatch.base.errors import GpuwatchError
from gpuwatch.config.paths import ADMINISTRATORS, SECRETS, path
from gpuwatch.config.types import Config


def load(given: str | None, *, administrators: Path = ADMINISTRATORS) -> Config:
    """Read `given`, or the user's own file if there is one, over the administrator's.

    The UsageError for the first mistake names the file, the key, the wrong value and the allowed values.
    """
    return _load(given, administrators)[0]


def keys_in_files(given: str | None) -> frozenset[str]:
    """Return the full names of the keys in the files that `load` reads; raises UsageError."""
    return frozenset(_load(given, ADMINISTRATORS)[1])


def _load(given: str | None, administrators: Path) -> tuple[Config, dict[str, Path]]:
    if given is None and all(map(_is_missing, (path(), administrators, administrators.with_name(SECRETS)))):
        return Config(), {}
    from gpuwatch.config.reading import load_traced  # only with a file

    return load_traced(given, administrators=administrators)


def _is_missing(file: Path) -> bool:
    try:
        file.lstat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


class Reloaded(msgspec.Struct, frozen=True):
    """Result of reading the files again."""

    config: Config
    """The new configuration; the old one if a file has a mistake."""
    changed: tuple[str, ...] = ()
    """Whole names of the keys that changed, `share`, `rule` and `host` for tables."""
    error: str = ""
    """Mistake in one line; empty for none."""


def reload(old: Config, read_again: Callable[[], Config]) -> Reloaded:
    """Read the files again; if a file has a mistake, the old configuration stays."""
    try:
        new = read_again()
    except GpuwatchError as error:
        return Reloaded(old, error=text.clean(str(error)))
    return Reloaded(new, tuple(_changes(old, new)))


def _changes(old: msgspec.Struct, new: msgspec.Struct, table: str = "") -> Iterator[str]:
    """Yield the full names of the keys that differ."""
    for name in old.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, msgspec.Struct):
            yield from _changes(before, after, f"{name}.")
        elif before != after:
            yield {"shares": "share", "rules": "rule", "hosts": "host"}.get(name, f"{table}{name}")
