"""Configuration from gpuwatch.toml: the user's own file over the administrator's. A flag beats both.

The keys of the administrator's file are defaults, and its `[[share]]` tables are ceilings that no other file can raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from platformdirs import user_config_path

from gpuwatch import files, text
from gpuwatch.alerts.rules.memory import MOST_FREE, Limits
from gpuwatch.config.reading import ConfigFile
from gpuwatch.config.schema import Config, Notify, Report, all_keys, misordered, value_of
from gpuwatch.errors import GpuwatchError, UsageError
from gpuwatch.files import shown_path

__all__ = [
    "ADMINISTRATORS",
    "FILE",
    "Config",
    "Notify",
    "Origin",
    "Reloaded",
    "Report",
    "check_limits",
    "load",
    "load_traced",
    "path",
    "problems",
    "reload",
]

FILE: Final = "gpuwatch.toml"
ADMINISTRATORS: Final = Path("/etc/gpuwatch") / FILE


class Origin(msgspec.Struct, frozen=True):
    """Where a value comes from: a flag, a file, or else it is the default."""

    file: Path | None = None
    line: int = 0
    """0 where it is not certain."""
    flag: str = ""

    def __str__(self) -> str:
        """Name it for people: `~/.config/gpuwatch/gpuwatch.toml:12`, `--bell`, `default`."""
        if self.flag:
            return self.flag
        if self.file is None:
            return "default"
        return f"{shown_path(self.file)}:{self.line}" if self.line else shown_path(self.file)


class Reloaded(msgspec.Struct, frozen=True):
    """Result of reading the files once more."""

    config: Config
    """The new one; the old one where something is wrong."""
    changed: tuple[str, ...] = ()
    """Whole names of the keys that changed, `share` and `rule` for tables."""
    error: str = ""
    """What is wrong, in one line; empty where nothing is."""


def path() -> Path:
    """Return the place of the user's own file."""
    try:
        found = user_config_path("gpuwatch") / FILE
    except RuntimeError:  # no HOME, and no user of this number
        found = Path()
    return found if found.is_absolute() else files.NO_HOME / ".config" / "gpuwatch" / FILE


def load(given: str | None, *, administrators: Path = ADMINISTRATORS) -> Config:
    """Read `given`, or the user's own file if there is one, over the administrator's.

    UsageError names file, line, key, what was found and what is allowed; of several mistakes the first, and
    how many more there are.
    """
    return _merge(_read_good(given, administrators))


def load_traced(given: str | None, *, administrators: Path = ADMINISTRATORS) -> tuple[Config, dict[str, Origin]]:
    """Read the same, with where each value comes from by its whole name; that of a rule by `rule NAME`."""
    both = _read_good(given, administrators)
    return _merge(both), _origins(both)


def problems(given: str | None, *, administrators: Path = ADMINISTRATORS) -> tuple[tuple[Path, tuple[str, ...]], ...]:
    """Return each file that is there, the administrator's first, with all that is wrong with it, a line each."""
    beneath, own = _read_both(given, administrators)
    # Where the administrator's is wrong in itself, that is not said of the user's own too.
    pairs = ((beneath, None), (own, None if _problems(beneath, None) else beneath))
    return tuple((one.path, _problems(one, under)) for one, under in pairs if one is not None)


def reload(old: Config, read_again: Callable[[], Config]) -> Reloaded:
    """Read the files once more; where something is wrong with them the old configuration stays."""
    try:
        new = read_again()
    except GpuwatchError as error:
        return Reloaded(old, error=text.clean(str(error)))
    changed = [name for name in all_keys() if value_of(new, name) != value_of(old, name)]
    changed += ["share"] * (new.shares != old.shares) + ["rule"] * (new.rules != old.rules)
    return Reloaded(new, tuple(changed))


def check_limits(limits: Limits) -> None:
    """Raise UsageError where the limits that a flag sets are too large, or the wrong way round."""
    if limits.memory_warning > MOST_FREE:
        raise UsageError(f"--memory-warning: {limits.memory_warning:g} % is too much; 0 to {MOST_FREE} is allowed")
    for low, high in misordered(limits):
        flag, other = (f"--{name.replace('_', '-')}" for name in (low, high))
        raise UsageError(
            f"{flag}: {getattr(limits, low):g} % is above {other}, {getattr(limits, high):g} %; it must be the smaller"
        )


# ---------------------------------------------------------------------------------------------------------------
# Two files, one over the other


_Files: TypeAlias = tuple[ConfigFile | None, ConfigFile | None]
"""The administrator's, and the user's own; None where there is none."""


def _read_both(given: str | None, administrators: Path) -> _Files:
    """Read both files, whatever is wrong with them."""
    beneath, own = ConfigFile(administrators), ConfigFile(Path(given) if given is not None else path())
    has_beneath, has_own = beneath.read(administrators=True), own.read(administrators=False)
    if not has_own and given is not None:
        raise UsageError(f"--config: there is no file {text.clean(given)}")
    return beneath if has_beneath else None, own if has_own else None


def _read_good(given: str | None, administrators: Path) -> _Files:
    """Read both files; UsageError names the first thing that is wrong, and how many more there are in that file."""
    beneath, own = _read_both(given, administrators)
    for one, under in ((beneath, None), (own, beneath)):
        first, *others = _problems(one, under) or ("",)
        if first:
            more = f" (and {len(others)} more: `gpuwatch config --check` lists them)" if others else ""
            raise UsageError(first + more)
    return beneath, own


def _problems(one: ConfigFile | None, under: ConfigFile | None) -> tuple[str, ...]:
    """Return what is wrong with a file, in itself or where it lies over another one."""
    return () if one is None else one.problems or tuple(_misordered(one, under))


def _merge(both: Iterable[ConfigFile | None]) -> Config:
    """Put the files together, each over those before it: key by key, rule by rule."""
    there = [one for one in both if one is not None]
    tables: dict[str, dict[str, Any]] = {}
    for one in there:
        for whole, value in one.values.items():
            table, _, name = whole.rpartition(".")
            tables.setdefault(table, {})[name] = value
    config = msgspec.structs.replace(Config(), **tables.pop("", {}))
    for table, values in tables.items():
        changed = msgspec.structs.replace(getattr(config, table), **values)
        config = msgspec.structs.replace(config, **{table: changed})
    rules = {rule.name: rule for one in there for rule in one.rules}
    shares = tuple(share for one in there for share in one.shares)
    return msgspec.structs.replace(config, shares=shares, rules=tuple(rules.values()))


def _origins(both: Iterable[ConfigFile | None]) -> dict[str, Origin]:
    origins = dict.fromkeys(all_keys(), Origin())
    for one in both:
        if one is not None:
            origins |= {name: Origin(one.path, one.line(name)) for name in one.values}
            origins |= {f"rule {rule.name}": Origin(one.path, one.rule_line(rule.name)) for rule in one.rules}
    return origins


def _misordered(one: ConfigFile, under: ConfigFile | None) -> Iterator[str]:
    """Say where a limit is above the one that it must not be above, by what this file sets of the two."""
    both = (under, one)
    config = _merge(both)
    for low, high in misordered(config.alerts):
        names = (f"alerts.{low}", f"alerts.{high}")
        if not one.values.keys() & set(names):
            continue
        (name, other), bound = (names, "at most") if names[0] in one.values else (names[::-1], "at least")
        value, limit = (all_keys()[key].write(value_of(config, key)) for key in (name, other))
        origins = _origins(both)
        yield (
            f"{origins[name]}: key {name}: found {value}; "
            f"allowed is {bound} {limit}, the value of {other} ({origins[other]})"
        )
