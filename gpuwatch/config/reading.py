"""Reader of the configuration files: opens and parses them, checks every key, and merges them."""

from __future__ import annotations

import codecs
import math
import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from gpuwatch.alerts.alert import RENAMED
from gpuwatch.alerts.limits import CustomRule
from gpuwatch.alerts.rules import RULE_NAMES
from gpuwatch.alerts.rules.custom import parse_condition
from gpuwatch.base import files, text
from gpuwatch.base.errors import UsageError
from gpuwatch.base.files import check_source, shown_path
from gpuwatch.config import keys
from gpuwatch.config.keymap import PRESETS, RESERVED, clash
from gpuwatch.config.keys import ConfigKey, shown, toml_string
from gpuwatch.config.paths import ADMINISTRATORS, FILE, SECRETS, path
from gpuwatch.config.types import Config, RemoteHost
from gpuwatch.declared.facts import Share
from gpuwatch.model.filters import FilterError, check_filter
from gpuwatch.model.values import LONGEST, MOST

_FILTER_NAME: Final = r"[A-Za-z0-9_-]{1,40}"
_FILTER: Final = f'the text of a filter, such as "mem>10GiB idle>30m", of 1 to {LONGEST} printable characters'
_TRUSTED: Final = (
    *("notify.command", "notify.urls", "fleet.prometheus", "fleet.token_file", "fleet.user", "fleet.password_file"),
    *("fleet.ca_file", "export.listen", "export.web_config", "export.textfile", "export.hosts"),
)
"""Keys that name a server, a token, an address or a command."""
_MOST_BYTES: Final = 1 << 20
"""Largest size of a file, which is read before the first screen; a file of 64 rules has 6 KiB."""
_MOST_PARTS: Final = 32
"""Parts of a dotted key, at most (ours have 2): the memory and time of `tomllib` grow with the square of them."""
_LONG_KEY: Final = rf"""(?x)(?<![A-Za-z0-9_\-])
    (?:(?:[A-Za-z0-9_\-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}"""


class ConfigFile:
    """Configuration file, read and checked: its values by the full names of their keys, and its tables.

    The administrator's file must be an ordinary file that only its owner can write; its shares are upper bounds.
    `under` are the files whose values this one overrides. A missing file has no values, and `exists` is False. A file
    of `secrets` has only `[notify]`, and possibly only root can read it. The first mistake raises UsageError, in
    one line with the file, the key, what was found and what is allowed.
    """

    def __init__(
        self, path: Path, under: Sequence[ConfigFile] = (), *, administrators: bool = False, secrets: bool = False
    ) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        self.shares: list[Share] = []
        self.rules: dict[str, CustomRule] = {}
        """Custom rules by their names."""
        self.hosts: dict[str, RemoteHost] = {}
        """Other machines by their names."""
        self.filters: dict[str, str] = {}
        """Saved filters by their names."""
        self._stat: os.stat_result | None = None
        """Status of the file that was read; by now another file may have its name."""
        content = self._open(administrators=administrators, secrets=secrets)
        self.exists = content is not None
        self._document = self._parse(content or b"")
        if secrets and (others := self._document.keys() - {"notify"}):
            self._refuse(f"only [notify] is allowed here; write everything else into {FILE}", min(others))
        self._read_keys()
        self._refuse_untrusted()
        self._read_shares(ceiling=administrators)
        self._read_rules()
        self._read_hosts()
        self._check_order(under)
        self._check_keys(under)

    def _refuse(self, reason: str, *place: str | int) -> NoReturn:
        """Raise UsageError about the file, or about the key or table at a place: `("rule", 0, "above")`."""
        if place and isinstance(place[-1], int):
            reason = f"[[{place[0]}]] number {place[-1] + 1}: {reason}"
        elif place:
            reason = f"key {_name(place)}: {reason}"
        raise UsageError(f"{shown_path(self.path)}: {reason}")

    def _open(self, *, administrators: bool, secrets: bool) -> bytes | None:
        """Return the content of the file; None if there is no file."""
        try:
            with open(files.open_ordinary(self.path), "rb") as opened:
                self._stat = os.fstat(opened.fileno())
                mode = stat.S_IMODE(self._stat.st_mode)
                if administrators and mode & (stat.S_IWGRP | stat.S_IWOTH):
                    remedy = f"it counts only after `chmod go-w {self.path}`"
                    self._refuse(f"others than its owner can write it (mode {mode:04o}); {remedy}")
                if secrets and mode & (stat.S_IRGRP | stat.S_IROTH):
                    remedy = f"it counts only after `chmod go-r {self.path}`"
                    self._refuse(f"others than its owner can read its secrets (mode {mode:04o}); {remedy}")
                content = opened.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            # A file with the secrets of [notify] is only for root's service, and does not apply to others.
            if administrators and isinstance(error, NotADirectoryError | PermissionError):
                return None
            unsafe = isinstance(error, files.UnsafePathError)
            self._refuse(str(error) if unsafe else f"cannot be read ({error.strerror})")
        if len(content) > _MOST_BYTES:
            self._refuse(f"found more than {_MOST_BYTES >> 20} MiB; allowed is less")
        return content

    def _parse(self, raw: bytes) -> dict[str, Any]:
        try:
            content = raw.removeprefix(codecs.BOM_UTF8).decode()  # some editors begin with it
            if re.search(_LONG_KEY, content):
                self._refuse(f"found a key of more than {_MOST_PARTS} parts; allowed are fewer")
            return tomllib.loads(content)
        except RecursionError:
            self._refuse("not TOML: it is nested too deep")
        except UnicodeDecodeError:
            self._refuse("not TOML: it is not UTF-8")
        except ValueError as error:
            words = re.sub(r"Cannot declare \('(.+)',\) twice", r"found a second table [\1]", str(error))
            self._refuse(f"not TOML: {words}")

    def _read_keys(self) -> None:
        """Read all keys except those of `[[share]]`, `[[rule]]` and `[[host]]`."""
        top, tables = keys.sections()[""], [name for name in keys.sections() if name]
        for name, raw in self._document.items():
            if name in tables and isinstance(raw, dict):
                known = {key.name: key for key in keys.sections()[name].values()}
                self.values |= {f"{name}.{field}": one for field, one in self._read_table(raw, known, name).items()}
            elif name in tables:
                self._refuse(f"found {shown(raw)}; allowed is a table [{name}]", name)
            elif name in top:
                self.values |= self._read_table({name: raw}, top)
            elif name == "filters":
                self._read_filters(raw)
            elif name not in ("share", "rule", "host"):
                self._refuse_unknown((*top, *tables, "share", "rule", "host", "filters"), name)

    def _read_filters(self, table: object) -> None:
        """Read `[filters]`: names that the user chooses, and the text of a filter for each."""
        if not isinstance(table, dict):
            self._refuse(f"found {shown(table)}; allowed is a table [filters]", "filters")
        if len(table) > MOST:
            self._refuse(f"found {len(table)} filters; allowed are {MOST}", "filters")
        for name, raw in table.items():
            if not re.fullmatch(_FILTER_NAME, name):
                reason = f"found the name {shown(name)}; allowed are letters, digits, - and _, 40 at most"
                self._refuse(reason, "filters")
            if not isinstance(raw, str) or len(raw) > LONGEST or text.clean(raw) != raw or not raw.strip():
                self._refuse(f"found {shown(raw)}; allowed is {_FILTER}", "filters", name)
            try:
                check_filter(raw)
            except FilterError as error:
                self._refuse(f"found {shown(raw)}: {error}", "filters", name)
            self.filters[name] = raw

    def _read_table(
        self, table: Mapping[str, Any], known: Mapping[str, ConfigKey], *place: str | int
    ) -> dict[str, Any]:
        """Return the values of a table by the names of their fields."""
        found = {}
        for name, raw in table.items():
            if name not in known:
                self._refuse_unknown(known, *place, name)
            try:
                found[known[name].field] = known[name].read(raw)
            except ValueError as error:
                self._refuse(str(error), *place, name)
        return found

    def _refuse_unknown(self, known: Collection[str], *place: str | int) -> NoReturn:
        """Raise UsageError about an unknown key, with the most similar known one, here or in another table."""
        last = str(place[-1])
        others = () if place[0] in ("share", "rule", "host") else keys.all_keys()
        near = keys.nearest(last, known) or next((one for one in others if one.rpartition(".")[2] == last), "")
        hint = f"did you mean {near}?" if near else f"allowed are {', '.join(known)}"
        if near == last:  # a key of no table
            hint = f"{near} belongs above the first [table]"
        raise UsageError(f"{shown_path(self.path)}: unknown key {text.clean(_name(place), 80)}; {hint}")

    def _refuse_untrusted(self) -> None:
        """Refuse commands, servers, tokens and addresses that another user could have written."""
        named = [key for key in _TRUSTED if self.values.get(key)] + ["host"] * ("host" in self._document)
        if named and (reason := check_source(self.path, read=self._stat)):
            self._refuse(f"found in a file that others can change: {reason}", *named[0].split("."))
        if command := self.values.get("notify.command"):
            try:
                reason = check_source(Path(command[0]).expanduser(), missing_ok=True)
            except RuntimeError:
                reason = "your home folder is not known; allowed is an absolute path"
                self._refuse(f"found {shown(command[0])}, but {reason}", "notify", "command")
            if reason:
                self._refuse(f"found a program that others can change: {reason}", "notify", "command")

    def _tables(self, name: str, most: float = math.inf) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the tables of an array, `most` at most, with their numbers, from 0 on."""
        tables = self._document.get(name, [])
        if not isinstance(tables, list):
            self._refuse(f"found {shown(tables)}; allowed are tables, each with a line [[{name}]]", name)
        if len(tables) > most:
            self._refuse(f"found {len(tables)} {name}s; allowed are {most}", name)
        for number, table in enumerate(tables):
            if not isinstance(table, dict):
                self._refuse(f"found {shown(table)}; allowed is a table", name, number)
            yield number, table

    def _read_shares(self, *, ceiling: bool) -> None:
        for number, table in self._tables("share"):
            values = self._read_table(table, keys.keys_of(Share), "share", number)
            if ("share" in table) == ("memory" in table):
                both = "share and memory" if "share" in table else "neither share nor memory"
                self._refuse(f"found {both}; allowed is exactly one of them", "share", number)
            self.shares.append(Share(**values, where=shown_path(self.path), ceiling=ceiling))

    def _read_rules(self) -> None:
        for number, table in self._tables("rule", MOST):
            place = ("rule", number)
            if "metric" in table:
                self._refuse(
                    'found metric; allowed are on and when, such as on = "gpu" and when = "temperature>80"', *place
                )
            values = self._read_table(table, keys.keys_of(CustomRule), *place)
            for name in ("name", "when"):
                if name not in table:
                    self._refuse(f"found no {name}; a rule needs one", *place)
            name, rule = values["name"], CustomRule(**values)
            if name in self.rules or name in {"gpuwatch", *RULE_NAMES, *RENAMED}:
                taken = "another [[rule]]" if name in self.rules else "a rule of gpuwatch itself"
                self._refuse(f"found {shown(name)}, which is {taken}; allowed is a name of its own", *place, "name")
            try:
                parse_condition(rule.on, rule.when)
            except FilterError as error:
                self._refuse(f"found {shown(rule.when)}: {error}", *place, "when")
            self.rules[name] = rule

    def _read_hosts(self) -> None:
        for number, table in self._tables("host", MOST):
            values = self._read_table(table, keys.keys_of(RemoteHost), "host", number)
            for name in ("name", "address"):
                if name not in table:
                    self._refuse(f"found no {name}; a host needs one", "host", number)
            if (name := values["name"]) in self.hosts:
                reason = f"found {shown(name)}, which is another [[host]]; allowed is a name of its own"
                self._refuse(reason, "host", number, "name")
            self.hosts[name] = RemoteHost(**values)

    def _check_order(self, under: Sequence[ConfigFile]) -> None:
        """Refuse a limit of this file that is on the wrong side of another limit."""
        config = merge([*under, self])
        for low, high in keys.misordered(config.alerts):
            name, other, bound = (low, high, "at most") if f"alerts.{low}" in self.values else (high, low, "at least")
            name, other = f"alerts.{name}", f"alerts.{other}"
            value, limit = (keys.all_keys()[one].write(keys.value_of(config, one)) for one in (name, other))
            origin = _origins([*under, self]).get(other)
            whence = shown_path(origin) if origin is not None else "default"
            self._refuse(f"found {value}; allowed is {bound} {limit}, the value of {other} ({whence})", name)

    def _check_keys(self, under: Sequence[ConfigFile]) -> None:
        """Refuse a key that this file gives to two actions, or to one that shares it with another."""
        if not (found := clash(merge([*under, self]).keys)):
            return
        key, *names = found
        mine = next((name for name in reversed(names) if f"keys.{name}" in self.values), "")
        other = next(name for name in names if name != mine)
        taken = f"always the key to {other}" if RESERVED.get(key) == other else f"also the key of {other}"
        reason = f"found {toml_string(key)}, which is {taken}; choose a free key"
        self._refuse(reason, "keys", mine or "preset")


def _name(place: Iterable[str | int]) -> str:
    """Format a place, counted from 1: `rule[1].above`."""
    return "".join(f"[{one + 1}]" if isinstance(one, int) else f".{one}" for one in place).removeprefix(".")


# ---------------------------------------------------------------------------------------------------------------
# The user's own file over the administrator's


def load_traced(given: str | None, *, administrators: Path = ADMINISTRATORS) -> tuple[Config, dict[str, Path]]:
    """Read the configuration as `load` does; return with it the file of each value, filter, rule and host.

    A value and a filter have their full names, a rule `rule NAME`, a host `host NAME`.
    """
    config_files = read_administrators(administrators)
    named = Path(given) if given is not None else path()
    if named != administrators:  # else of the machine's service
        own = ConfigFile(named, config_files)
        if given is not None and not own.exists:
            raise UsageError(f"--config: no such file: {text.clean(given)}")
        if own.values.get("publish", publish := merge(config_files).publish) != publish:
            words = f"it sets what the machine's service publishes, and only applies in {administrators}"
            raise UsageError(f"{shown_path(named)}: key publish: {words}")
        config_files.append(own)
    return merge(config_files), _origins(config_files)


def read_administrators(path: Path) -> list[ConfigFile]:
    """Read the administrator's file, and for root the file next to it with the secrets of `[notify]`."""
    common = ConfigFile(path, administrators=True)
    if os.geteuid():
        return [common]
    return [common, ConfigFile(path.with_name(SECRETS), [common], administrators=True, secrets=True)]


def merge(config_files: Iterable[ConfigFile]) -> Config:
    """Merge the files, each over those before it: key by key, rule by rule."""
    tables: dict[str, dict[str, Any]] = {"": {}}
    for file in config_files:
        for whole, value in file.values.items():
            table, _, name = whole.rpartition(".")
            tables.setdefault(table, {})[name] = value
    top = tables.pop("")
    for table, values in tables.items():
        base = PRESETS[values.get("preset") or "gpuwatch"] if table == "keys" else getattr(Config(), table)
        top[table] = msgspec.structs.replace(base, **values)
    return Config(
        **top,
        shares=tuple(share for file in config_files for share in file.shares),
        rules=tuple({name: rule for file in config_files for name, rule in file.rules.items()}.values()),
        hosts=tuple({name: host for file in config_files for name, host in file.hosts.items()}.values()),
        filters={name: words for file in config_files for name, words in file.filters.items()},
    )


def _origins(config_files: Iterable[ConfigFile]) -> dict[str, Path]:
    origins: dict[str, Path] = {}
    for file in config_files:
        named = (*file.values, *(f"filters.{name}" for name in file.filters))
        named += (*(f"rule {name}" for name in file.rules), *(f"host {name}" for name in file.hosts))
        origins |= dict.fromkeys(named, file.path)
    return origins
