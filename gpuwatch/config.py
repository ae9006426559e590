"""gpuwatch.toml: what may stand in it, its defaults, and where it is read from. A flag beats the file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gpuwatch.alerts.rules import Limits
from gpuwatch.errors import UsageError
from gpuwatch.units import parse_interval

FILE = "gpuwatch.toml"


MOST_FREE = 95
"""Percent. An alert clears 2 points above its limit, so one near 100 would never end."""


class Alerts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a GPU counts as near its memory limit, in percent of its memory that is still free."""

    memory_warning: Annotated[float, msgspec.Meta(ge=0, le=MOST_FREE)] = 10.0
    memory_critical: Annotated[float, msgspec.Meta(ge=0, le=MOST_FREE)] = 5.0

    def limits(self) -> Limits:
        """Give the limits that the rules take."""
        return Limits(memory_warning=self.memory_warning, memory_critical=self.memory_critical)


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that may stand in gpuwatch.toml."""

    interval: str | int | float = 1
    """Seconds between two samples: `2`, `"500ms"`."""
    user: str = ""
    mine: bool = False
    read_only: bool = False
    ascii: bool = False
    theme: Literal["dark", "light"] = "dark"
    bell: bool = False
    alerts: Alerts = Alerts()


def path() -> Path:
    """Give the place of the user's own file."""
    from platformdirs import user_config_path

    return user_config_path("gpuwatch") / FILE


def load(given: str | None) -> Config:
    """Read `given`, or the user's own file if there is one; UsageError names file, key and what is allowed."""
    file = Path(given) if given is not None else path()
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        if given is None:
            return Config()
        raise UsageError(f"--config: there is no file {file}") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from None
    try:
        config = msgspec.toml.decode(content, type=Config)
        parse_interval(str(config.interval))
    except msgspec.ValidationError as error:
        raise UsageError(f"{file}: {_plain(str(error))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not TOML: {error}") from None
    except ValueError as error:
        raise UsageError(f"{file}: key `interval`: {error}") from None
    check_limits(config.alerts, f"{file}: key ")
    return config


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


def _plain(error: str) -> str:
    """Put msgspec's words in our order: the key first, then what is wrong, then what is allowed."""
    if "unknown field" in error:
        key = error.split("`")[1]
        inside = "alerts." if "$.alerts" in error else ""
        fields = Alerts.__struct_fields__ if inside else Config.__struct_fields__
        return f"unknown key `{inside}{key}`; allowed are {', '.join(fields)}"
    what, _, where = error.partition(" - at `$.")
    return f"key `{where.rstrip('`')}`: {what}" if where else what
