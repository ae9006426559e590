"""gpuwatch.toml: what may stand in it, its defaults, and where it is read from. A flag beats the file.

The administrator's file lies beneath the user's own: its keys are defaults, and its `[[share]]` tables are ceilings
that no other file can raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from gpuwatch import files as private
from gpuwatch import text
from gpuwatch.config.keys import KEYS, MOST_FREE, ORDERED, SECTIONS, value_of
from gpuwatch.config.reading import Found, read
from gpuwatch.config.settings import Alerts, Allowance, Config, Notify
from gpuwatch.errors import GpuwatchError, UsageError
from gpuwatch.files import shown_path

__all__ = [
    "ADMINISTRATORS",
    "FILE",
    "Alerts",
    "Allowance",
    "Config",
    "Notify",
    "Origin",
    "Reloaded",
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
        """Give it for people: `~/.config/gpuwatch/gpuwatch.toml:12`, `--bell`, `default`."""
        if self.flag:
            return self.flag
        if self.file is None:
            return "default"
        return f"{shown_path(self.file)}:{self.line}" if self.line else shown_path(self.file)


class Reloaded(msgspec.Struct, frozen=True):
    """What came of reading the files once more."""

    config: Config
    """The new one; the old one where something is wrong."""
    changed: tuple[str, ...] = ()
    """Whole names of the keys that changed, `share` and `rule` for tables."""
    error: str = ""
    """What is wrong, in one line; empty where nothing is."""


def path() -> Path:
    """Give the place of the user's own file."""
    from platformdirs import user_config_path

    try:
        found = user_config_path("gpuwatch") / FILE
    except RuntimeError:  # no HOME, and no user of this number
        found = Path()
    return found if found.is_absolute() else private.NO_HOME / ".config" / "gpuwatch" / FILE


def load(given: str | None, *, administrators: Path = ADMINISTRATORS) -> Config:
    """Read `given`, or the user's own file if there is one, over the administrator's.

    UsageError names file, line, key, what was found and what is allowed; of several mistakes the first, and
    how many more there are.
    """
    return _config(_good(given, administrators))


def load_traced(given: str | None, *, administrators: Path = ADMINISTRATORS) -> tuple[Config, dict[str, Origin]]:
    """Read the same, and tell where each value comes from, by its whole name; of a rule by `rule NAME`."""
    files = _good(given, administrators)
    return _config(files), _origins(files)


def problems(given: str | None, *, administrators: Path = ADMINISTRATORS) -> tuple[tuple[Path, tuple[str, ...]], ...]:
    """Give each file that is there, the administrator's first, with all that is wrong with it, a line each."""
    beneath, own = _files(given, administrators)
    # Where the administrator's is wrong in itself, that is not said of the user's own too.
    pairs = ((beneath, None), (own, None if _wrong(beneath, None) else beneath))
    return tuple((one.file, _wrong(one, under)) for one, under in pairs if one is not None)


def reload(old: Config, read_again: Callable[[], Config]) -> Reloaded:
    """Read the files once more; where something is wrong with them the old configuration stays."""
    try:
        new = read_again()
    except GpuwatchError as error:
        return Reloaded(old, error=text.clean(str(error)))
    changed = [name for name in KEYS if value_of(new, name) != value_of(old, name)]
    changed += ["share"] * (new.shares != old.shares) + ["rule"] * (new.rules != old.rules)
    return Reloaded(new, tuple(changed))


def check_limits(
    alerts: Alerts, where: str, critical: str = "memory_critical", warning: str = "memory_warning"
) -> None:
    """Raise UsageError where the critical limit would be reached before the warning, or a warning never end."""
    if alerts.memory_warning > MOST_FREE:
        raise UsageError(f"{where}{warning}: {alerts.memory_warning:g} % is too much; 0 to {MOST_FREE} is allowed")
    prefix = "--" if where == "--" else ""
    if alerts.memory_critical > alerts.memory_warning:
        raise UsageError(
            f"{where}{critical}: {alerts.memory_critical:g} % is above {prefix}{warning}, "
            f"{alerts.memory_warning:g} %; it must be the smaller"
        )


# ---------------------------------------------------------------------------------------------------------------
# Two files, one over the other


_Files: TypeAlias = tuple[Found | None, Found | None]
"""The administrator's, and the user's own; None where there is none."""


def _files(given: str | None, administrators: Path) -> _Files:
    """Read both files, whatever is wrong with them."""
    beneath = read(administrators, administrators=True)
    own = read(Path(given) if given is not None else path())
    if own is None and given is not None:
        raise UsageError(f"--config: there is no file {text.clean(given)}")
    return beneath, own


def _good(given: str | None, administrators: Path) -> _Files:
    """Read both files; UsageError names the first thing that is wrong, and how many more there are in that file."""
    beneath, own = _files(given, administrators)
    for one, under in ((beneath, None), (own, beneath)):
        first, *others = _wrong(one, under) or ("",)
        if first:
            more = f" (and {len(others)} more: `gpuwatch config --check` lists them)" if others else ""
            raise UsageError(first + more)
    return beneath, own


def _wrong(one: Found | None, under: Found | None) -> tuple[str, ...]:
    """Give what is wrong with a file, in itself or where it lies over another one."""
    return () if one is None else one.problems or tuple(_order(one, under))


def _config(files: Iterable[Found | None]) -> Config:
    """Put the files together, each over those before it: key by key, rule by rule."""
    there = [one for one in files if one is not None]
    values: dict[str, Any] = {}
    for one in there:
        values.update(one.values)
    rules = {rule.name: rule for one in there for rule in one.rules}
    config = Config(shares=tuple(share for one in there for share in one.shares), rules=tuple(rules.values()))
    top: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
    for section in filter(None, (section.name for section in SECTIONS)):
        table = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{section}.")}
        if table:
            top[section] = msgspec.structs.replace(getattr(config, section), **table)
    return msgspec.structs.replace(config, **top)


def _origins(files: Iterable[Found | None]) -> dict[str, Origin]:
    origins = dict.fromkeys(KEYS, Origin())
    for one in files:
        if one is not None:
            origins |= {name: Origin(one.file, one.line(name)) for name in one.values}
            origins |= {f"rule {rule.name}": Origin(one.file, one.rule_line(rule.name)) for rule in one.rules}
    return origins


def _order(one: Found, under: Found | None) -> Iterator[str]:
    """Say where a limit is above the one that it must not be above, by what this file sets of the two."""
    files = (under, one)
    config = _config(files)
    for low, high in ORDERED:
        if value_of(config, low) <= value_of(config, high) or not {low, high} & one.values.keys():
            continue
        name, other, bound = (low, high, "at most") if low in one.values else (high, low, "at least")
        value, limit = (KEYS[key].kind.write(value_of(config, key)) for key in (name, other))
        origins = _origins(files)
        yield (
            f"{origins[name]}: key {name}: found {value}; "
            f"allowed is {bound} {limit}, the value of {other} ({origins[other]})"
        )
