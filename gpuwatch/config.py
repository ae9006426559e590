"""gpuwatch.toml: what may stand in it, its defaults, and where it is read from. A flag beats the file.

The administrator's file lies beneath the user's own: its keys are defaults, and its `[[share]]` tables are ceilings
that no other file can raise.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from gpuwatch import text
from gpuwatch.alerts.rules import Allowances, Limits
from gpuwatch.declared.claims import Share
from gpuwatch.errors import UsageError
from gpuwatch.units import parse_interval, parse_share, parse_size

FILE: Final = "gpuwatch.toml"
ADMINISTRATORS: Final = Path("/etc/gpuwatch") / FILE

MOST_FREE: Final = 95
"""Percent. An alert clears 2 points above its limit, so one near 100 would never end."""
LONGEST_PATTERN: Final = 200
"""Characters. Each pattern is searched in the command line of every process."""

Size: TypeAlias = str | int
"""`"20GiB"`, or bytes."""

_Given = TypeVar("_Given")
_Checked = TypeVar("_Checked")


class Alerts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a GPU counts as near its memory limit, in percent of its memory that is still free."""

    memory_warning: Annotated[float, msgspec.Meta(ge=0, le=MOST_FREE)] = 10.0
    memory_critical: Annotated[float, msgspec.Meta(ge=0, le=MOST_FREE)] = 5.0

    def limits(self) -> Limits:
        """Give the limits that the rules take, with the default allowances."""
        return Limits(memory_warning=self.memory_warning, memory_critical=self.memory_critical)


class Allowance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far, and how long, a process may hold more than it declared; see `alerts.rules.Allowances`."""

    after: str | int | float = "10s"
    framework: Size = "600MiB"
    eager: Size = "1100MiB"
    budget: Size = "1GiB"
    exact: Size = "64MiB"
    collective: Size = "512MiB"
    second_step: Size = "1GiB"

    def allowances(self) -> Allowances:
        """Give what the rules take; ValueError names the key, what was found and what is allowed."""
        found: dict[str, Any] = {}
        for name in self.__struct_fields__:
            parse = parse_interval if name == "after" else parse_size
            try:
                found[name] = parse(str(getattr(self, name)))
            except ValueError as error:
                raise ValueError(f"key `allowance.{name}`: {error}") from None
        return Allowances(**found)


class ShareTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[share]]`: what one person, or one command, may take of which GPUs."""

    user: Annotated[str, msgspec.Meta(min_length=1)] = ""
    """Name or uid in digits; left out for anybody."""
    command: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_PATTERN)] = ""
    """A regular expression, searched in the command line; left out for any."""
    gpu: int | str | tuple[int | str, ...] | None = None
    """NVML indices, or starts of UUIDs; left out for each GPU."""
    share: float | str | None = None
    """0.4 or "40%"."""
    memory: Size | None = None


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
    allowance: Allowance = Allowance()
    shares: tuple[Share, ...] = msgspec.field(name="share", default=())
    """The `[[share]]` tables of both files, the administrator's first."""

    def limits(self) -> Limits:
        """Give the limits that the rules take."""
        return msgspec.structs.replace(self.alerts.limits(), allowances=self.allowance.allowances())


def path() -> Path:
    """Give the place of the user's own file."""
    from platformdirs import user_config_path

    return user_config_path("gpuwatch") / FILE


def load(given: str | None, *, administrators: Path = ADMINISTRATORS) -> Config:
    """Read `given`, or the user's own file if there is one, over the administrator's.

    UsageError names file, key, what was found and what is allowed.
    """
    beneath, ceilings = _administrators(administrators)
    file = Path(given) if given is not None else path()
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        if given is not None:
            raise UsageError(f"--config: there is no file {file}") from None
        return msgspec.structs.replace(_config(beneath, administrators), shares=ceilings)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from None
    own, shares = _read(content, file, ceiling=False)
    return msgspec.structs.replace(_config(_over(own, beneath), file), shares=(*ceilings, *shares))


def _administrators(file: Path) -> tuple[dict[str, Any], tuple[Share, ...]]:
    """Read the administrator's file, if there is one; nobody but its owner may be able to write it."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise UsageError(f"{file}: is no ordinary file")
            if mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise UsageError(
                    f"{file}: others than its owner can write it (mode {stat.S_IMODE(mode):04o}); "
                    f"it counts only after `chmod go-w {file}`"
                )
            content = opened.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}, ()
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from None
    keys, shares = _read(content, file, ceiling=True)
    _config(keys, file)  # so that what is wrong in it is not said to be in the user's own
    return keys, shares


def _read(content: bytes, file: Path, *, ceiling: bool) -> tuple[dict[str, Any], tuple[Share, ...]]:
    """Give the keys of a file as they stand there, and its `[[share]]` tables."""
    try:
        keys: dict[str, Any] = msgspec.toml.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{file}: not TOML: it is nested too deep") from None
    tables = keys.pop("share", [])
    lines = _headers(content, len(tables) if isinstance(tables, list) else 0)
    return keys, _shares(tables, lines, file, ceiling=ceiling)


def _over(own: dict[str, Any], beneath: dict[str, Any]) -> dict[str, Any]:
    """Give the keys of both files; a table is put together key by key."""
    merged = {**beneath, **own}
    for key, table in own.items():
        other = beneath.get(key)
        if isinstance(table, dict) and isinstance(other, dict):
            merged[key] = {**other, **table}
    return merged


def _config(keys: dict[str, Any], file: Path) -> Config:
    """Give all but the shares, checked."""
    try:
        config = msgspec.convert(keys, Config)
    except msgspec.ValidationError as error:
        raise UsageError(f"{file}: {_plain(str(error), Config)}") from None
    try:
        parse_interval(str(config.interval))
    except ValueError as error:
        raise UsageError(f"{file}: key `interval`: {error}") from None
    try:
        config.allowance.allowances()
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from None
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


def _plain(error: str, whole: type[msgspec.Struct]) -> str:
    """Put msgspec's words in our order: the key first, then what is wrong, then what is allowed."""
    what, _, where = error.partition(" - at `$")
    where = where.strip("`.")
    if "unknown field" in what:
        key = what.split("`")[1]
        table = {"alerts": Alerts, "allowance": Allowance}.get(where, whole)
        name = f"{where}.{key}" if where else key
        return f"unknown key `{name}`; allowed are {', '.join(table.__struct_encode_fields__)}"
    return f"key `{where}`: {what}" if where else what


# ---------------------------------------------------------------------------------------------------------------
# Shares


def _headers(content: bytes, tables: int) -> Sequence[int]:
    """Give the line of each `[[share]]`; zeros where they cannot be told, as in an inline array."""
    header = re.compile(rb"""[ \t]*\[\[[ \t]*["']?share["']?[ \t]*\]\]""")
    lines = [number for number, line in enumerate(content.split(b"\n"), 1) if header.match(line)]
    return lines if len(lines) == tables else [0] * tables


def _shares(tables: object, lines: Sequence[int], file: Path, *, ceiling: bool) -> tuple[Share, ...]:
    if not isinstance(tables, list):
        raise UsageError(f"{file}: key `share`: a `{type(tables).__name__}` is not allowed; write tables: [[share]]")
    home, where = os.environ.get("HOME", ""), str(file)
    where = text.clean(f"~{where.removeprefix(home)}" if home and where.startswith(f"{home}/") else where)
    found = []
    for number, (table, line) in enumerate(zip(tables, lines, strict=True), 1):
        try:
            share = _share(table)
        except ValueError as error:
            place = f" (line {line})" if line else ""
            raise UsageError(f"{file}: [[share]] number {number}{place}: {error}") from None
        found.append(msgspec.structs.replace(share, where=where, line=line, ceiling=ceiling))
    return tuple(found)


def _share(raw: object) -> Share:
    """Check one table; ValueError names the key, what was found and what is allowed."""
    try:
        table = msgspec.convert(raw, ShareTable)
    except msgspec.ValidationError as error:
        raise ValueError(_plain(str(error), ShareTable)) from None
    if (table.share is None) == (table.memory is None):
        both = "both `share` and `memory` are given" if table.share is not None else "`share` or `memory` is missing"
        raise ValueError(f"{both}; exactly one of them is needed")
    gpus = table.gpu if isinstance(table.gpu, tuple) else () if table.gpu is None else (table.gpu,)
    return Share(
        user=table.user,
        command=_checked("command", _pattern, table.command) if table.command else "",
        gpus=_checked("gpu", _gpus, gpus) if table.gpu is not None else (),
        share=_checked("share", _fraction, table.share) if table.share is not None else None,
        memory=_checked("memory", _memory, table.memory) if table.memory is not None else None,
    )


def _checked(key: str, check: Callable[[_Given], _Checked], value: _Given) -> _Checked:
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f"key `{key}`: {error}") from None


def _pattern(pattern: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "possible nested set": it would come to mean something else
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise ValueError(f"{pattern!a} is no regular expression: {error}") from None
    return pattern


def _gpus(gpus: tuple[int | str, ...]) -> tuple[int | str, ...]:
    for one in gpus:
        good = one >= 0 if isinstance(one, int) else re.fullmatch(r"GPU-[0-9A-Fa-f][0-9A-Fa-f-]{0,35}", one)
        if not good:
            raise ValueError(f"{one!a} is no GPU; write indices from 0 on, or (starts of) UUIDs such as GPU-8932f937")
    if not gpus:
        raise ValueError("the list is empty; leave the key out for all GPUs")
    return gpus


def _fraction(share: float | str) -> float:
    if isinstance(share, str):
        return parse_share(share)
    if not 0 < share <= 1:
        raise ValueError(f"share {share:g} is not allowed; write more than 0 and up to 1, such as 0.4")
    return share


def _memory(size: Size) -> int:
    memory = parse_size(str(size))
    if memory == 0:
        raise ValueError("a size of 0 is not allowed; write what may be taken, such as 20GiB")
    return memory
