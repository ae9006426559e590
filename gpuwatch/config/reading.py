"""Reader of the configuration files: opens and parses them, checks every key, and merges them."""

from __future__ import annotations

import codecs
import os
import re
import stat
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuwatch import files, text
from gpuwatch.alerts.limits import CustomRule
from gpuwatch.alerts.rules import FORMER_NAMES, RULE_NAMES
from gpuwatch.alerts.rules.custom import METRICS
from gpuwatch.analysis.filters import FilterError
from gpuwatch.analysis.rows import check_filter
from gpuwatch.config import ADMINISTRATORS, Config, path
from gpuwatch.config.keymap import PRESETS, RESERVED, clash
from gpuwatch.config.keys import (
    AMOUNTS,
    Key,
    NotAllowedError,
    all_keys,
    amount_keys,
    keys_of,
    maybe,
    misordered,
    nearest,
    sections,
    shown,
    toml_string,
)
from gpuwatch.declared.facts import Share
from gpuwatch.errors import UsageError
from gpuwatch.fields import LONGEST, MOST
from gpuwatch.files import check_source, shown_path

FILTER_NAME: Final = r"[A-Za-z0-9_-]{1,40}"
_FILTER: Final = f'the text of a filter, such as "mem>10GiB idle>30m", of 1 to {LONGEST} printable characters'
_MOST_BYTES: Final = 1 << 20
"""Largest size of a file, which is read before the first screen; a file of 64 rules has 6 KiB."""
_MOST_PARTS: Final = 32
"""Parts of a dotted key, at most (ours have 2): the memory and time of `tomllib` grow with the square of them."""
_LONG_KEY: Final = rf"""(?x)(?<![A-Za-z0-9_\-])
    (?:(?:[A-Za-z0-9_\-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}"""


class ConfigFile:
    """Configuration file: its values by the full names of their keys, and its mistakes.

    The administrator's file must be an ordinary file that only its owner can write; its shares are upper bounds.
    """

    def __init__(self, path: Path, *, administrators: bool = False) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        self.shares: list[Share] = []
        self.rules: dict[str, CustomRule] = {}
        """Custom rules by their names."""
        self.filters: dict[str, str] = {}
        """Saved filters by their names."""
        self._stat: os.stat_result | None = None
        """Status of the file that was read; by now another file may have its name."""
        self._content = ""
        self._document: dict[str, Any] = {}
        self._problems: list[tuple[int, str]] = []
        """(line number, or 0; message) of each mistake, in the order in which they were found."""
        content = self._open(administrators=administrators)
        self.exists = content is not None
        if content:
            self._parse(content)
            self._read_keys()
            self._refuse_untrusted()
            self._read_shares(ceiling=administrators)
            self._read_rules()

    @property
    def problems(self) -> tuple[str, ...]:
        """Mistakes in the order of their lines, one line each; the values of a file with a mistake must not be used."""
        return tuple(words for _, words in sorted(self._problems, key=lambda one: one[0]))

    def origins(self) -> Iterator[tuple[str, Origin]]:
        """Yield the origin of each value and each saved filter, by its full name, and of `[[rule]]`, by `rule NAME`."""
        for name in self.values:
            yield name, Origin(self.path, self._lines.find(*name.split(".")))
        for name in self.filters:
            yield f"filters.{name}", Origin(self.path, self._lines.find("filters", name))
        for number, table in enumerate(self._document.get("rule", ())):
            yield f"rule {table['name']}", Origin(self.path, self._lines.find("rule", number))

    def wrong(self, words: str, *place: str | int) -> None:
        """Add a mistake of the file, or of the key or table at a place: `("rule", 0, "above")`."""
        if place and isinstance(place[-1], int):
            words = f"[[{place[0]}]] number {place[-1] + 1}: {words}"
        elif place:
            words = f"key {_name(place)}: {words}"
        self._add(self._lines.find(*place) if place else 0, words)

    def _add(self, line: int, words: str) -> None:
        self._problems.append((line, f"{Origin(self.path, line)}: {words}"))

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self._content, self._document)

    # -----------------------------------------------------------------------------------------------------------
    # The text

    def _open(self, *, administrators: bool) -> bytes | None:
        """Return the content of the file; empty where it cannot be read, None where there is no file."""
        content = b""
        try:
            with open(files.open_ordinary(self.path), "rb") as opened:
                self._stat = os.fstat(opened.fileno())
                mode = self._stat.st_mode
                if administrators and mode & (stat.S_IWGRP | stat.S_IWOTH):
                    self.wrong(
                        f"others than its owner can write it (mode {stat.S_IMODE(mode):04o}); "
                        f"it counts only after `chmod go-w {self.path}`"
                    )
                    return b""
                content = opened.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            if administrators and isinstance(error, NotADirectoryError):
                return None
            unsafe = isinstance(error, files.UnsafePathError)
            self.wrong(str(error) if unsafe else f"cannot be read ({error.strerror})")
        if len(content) > _MOST_BYTES:
            self.wrong(f"found more than {_MOST_BYTES >> 20} MiB; allowed is less")
            return b""
        return content

    def _parse(self, content: bytes) -> None:
        content = content.removeprefix(codecs.BOM_UTF8)  # some editors begin with it
        try:
            # The parser counts lines so, and the keys' lines are to be the same.
            self._content = content.decode().replace("\r\n", "\n")
            if found := re.search(_LONG_KEY, self._content):
                line = self._content.count("\n", 0, found.start()) + 1
                self._add(line, f"found a key of more than {_MOST_PARTS} parts; allowed are fewer")
                return
            self._document = tomllib.loads(self._content)
        except RecursionError:
            self.wrong("not TOML: it is nested too deep")
        except UnicodeDecodeError as error:
            self._add(content.count(b"\n", 0, error.start) + 1, "not TOML: it is not UTF-8")
        except ValueError as error:
            words = str(error)
            place = re.search(r" \(at line ([0-9]+), column ([0-9]+)\)$", words)
            line, column = (int(place[1]), f" (column {place[2]})") if place else (0, "")
            self._add(line, f"not TOML: {words[: place.start()] if place else words}{column}")

    # -----------------------------------------------------------------------------------------------------------
    # The keys

    def _read_keys(self) -> None:
        """Read all keys but those of `[[share]]` and `[[rule]]`."""
        tables = [name for name in sections() if name]
        top = sections()[""]
        for name, raw in self._document.items():
            if name in tables and isinstance(raw, dict):
                keys = {key.name: key for key in sections()[name].values()}
                self.values |= {f"{name}.{inner}": value for inner, value in self._read_table(raw, keys, name).items()}
            elif name in tables:
                self.wrong(f"found {shown(raw)}; allowed is a table [{name}]", name)
            elif name in top:
                self.values |= self._read_table({name: raw}, top)
            elif name == "filters":
                self._read_filters(raw)
            elif name not in ("share", "rule"):
                self._unknown((*top, *tables, "share", "rule", "filters"), name)

    def _read_filters(self, table: object) -> None:
        """Read `[filters]`: names that the user chooses, and the text of a filter for each."""
        if not isinstance(table, dict):
            self.wrong(f"found {shown(table)}; allowed is a table [filters]", "filters")
            return
        if len(table) > MOST:
            self.wrong(f"found {len(table)} filters; allowed are {MOST}", "filters")
            return
        for name, raw in table.items():
            if not re.fullmatch(FILTER_NAME, name):
                words = f"found the name {shown(name)}; allowed are letters, digits, - and _, 40 at most"
                self.wrong(words, "filters")
            elif not isinstance(raw, str) or len(raw) > LONGEST or text.clean(raw) != raw or not raw.strip():
                self.wrong(f"found {shown(raw)}; allowed is {_FILTER}", "filters", name)
            elif mistake := _filter_mistake(raw):
                self.wrong(f"found {shown(raw)}: {mistake}", "filters", name)
            else:
                self.filters[name] = raw

    def _read_table(self, table: Mapping[str, Any], keys: Mapping[str, Key], *place: str | int) -> dict[str, Any]:
        """Return the values of a table by the names of their fields, None for each that is wrong."""
        found = {}
        for name, raw in table.items():
            if name not in keys:
                self._unknown(keys, *place, name)
                continue
            try:
                found[keys[name].field] = keys[name].read(raw)
            except NotAllowedError as error:
                found[keys[name].field] = None
                self.wrong(str(error), *place, name)
        return found

    def _unknown(self, known: Collection[str], *place: str | int) -> None:
        """Add the mistake of an unknown key, with the most similar known one, here or in another table."""
        last = str(place[-1])
        if last in FORMER_NAMES and place[0] == "alerts":
            self._add(self._lines.find(*place), f"unknown key {_name(place)}; it is called {FORMER_NAMES[last]} now")
            return
        others = () if place[0] in ("share", "rule") else all_keys()
        near = nearest(last, known) or next((one for one in others if one.rpartition(".")[2] == last), "")
        hint = f"did you mean {near}?" if near else f"allowed are {', '.join(known)}"
        self._add(self._lines.find(*place), f"unknown key {text.clean(_name(place), 80)}; {hint}")

    def _refuse_untrusted(self) -> None:
        """Add a mistake for a command or addresses that another user could have written."""
        for key in ("command", "urls"):
            words = check_source(self.path, read=self._stat) if self.values.get(f"notify.{key}") else ""
            if words:
                self.wrong(f"found in a file that is not yours alone to write: {words}", "notify", key)
        command = self.values.get("notify.command")
        if command and (words := _check_program(command[0])):
            self.wrong(f"found {words}", "notify", "command")

    # -----------------------------------------------------------------------------------------------------------
    # [[share]] and [[rule]]

    def _tables(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the tables of an array with their numbers, from 0 on."""
        tables = self._document.get(name, [])
        if not isinstance(tables, list):
            self.wrong(f"found {shown(tables)}; allowed are tables, each with a line [[{name}]]", name)
            return
        for number, table in enumerate(tables):
            if isinstance(table, dict):
                yield number, table
            else:
                self.wrong(f"found {shown(table)}; allowed is a table", name, number)

    def _check_one_of(self, first: str, second: str, table: Mapping[str, Any], *place: str | int) -> None:
        if (first in table) == (second in table):
            both = f"{first} and {second}" if first in table else f"neither {first} nor {second}"
            self.wrong(f"found {both}; allowed is exactly one of them", *place)

    def _read_shares(self, *, ceiling: bool) -> None:
        where = shown_path(self.path)
        for number, table in self._tables("share"):
            before, place = len(self._problems), ("share", number)
            values = self._read_table(table, keys_of(Share), *place)
            self._check_one_of("share", "memory", table, *place)
            if len(self._problems) == before:
                self.shares.append(Share(**values, where=where, line=self._lines.find(*place), ceiling=ceiling))

    def _read_rules(self) -> None:
        rules = self._document.get("rule")
        if isinstance(rules, list) and len(rules) > MOST:
            self.wrong(f"found {len(rules)} rules; allowed are {MOST}", "rule")
            return
        for number, table in self._tables("rule"):
            before, place = len(self._problems), ("rule", number)
            plain = {name: raw for name, raw in table.items() if name not in AMOUNTS}
            values = self._read_table(plain, keys_of(CustomRule), *place)
            for name in ("name", "metric"):
                if name not in table:
                    self.wrong(f"found no {name}; a rule needs one", *place)
            if len(self._problems) == before:
                self._check_name(values["name"], *place)
                self._check_metric(values["metric"], values.get("scope"), *place)
            if len(self._problems) > before:
                continue
            # The metric decides how an amount is written.
            keys = amount_keys(values["metric"])
            values |= self._read_table({name: raw for name, raw in table.items() if name in AMOUNTS}, keys, *place)
            self._check_one_of("above", "below", table, *place)
            if len(self._problems) == before:
                rule = CustomRule(**values)
                self._check_clear(rule, keys["clear"], *place)
                self.rules[rule.name] = rule

    def _check_name(self, name: str, *place: str | int) -> None:
        own = name in {"gpuwatch", *RULE_NAMES}
        if own or name in self.rules:
            taken = "a rule of gpuwatch itself" if own else "another [[rule]]"
            self.wrong(f"found {shown(name)}, which is {taken}; allowed is a name of its own", *place, "name")

    def _check_metric(self, metric: str, scope: str | None, *place: str | int) -> None:
        if metric not in METRICS:
            words = f"found {shown(metric)}{maybe(metric, METRICS)}; allowed is {', '.join(METRICS)}"
            self.wrong(words, *place, "metric")
        elif (scope or "gpu") not in METRICS[metric].scopes:
            allowed = " or ".join(map(toml_string, METRICS[metric].scopes))
            found = shown(scope) if scope else '"gpu" (the default)'
            line = self._lines.find(*place, "scope" if scope else "metric")
            self._add(
                line, f"key {_name((*place, 'scope'))}: found {found} with the metric {metric}; allowed is {allowed}"
            )

    def _check_clear(self, rule: CustomRule, key: Key, *place: str | int) -> None:
        """Check that the value that clears is on the right side of the value that raises."""
        clear = rule.clear
        if clear is not None and rule.above is not None and clear > rule.above:
            allowed = f"at most {key.write(rule.above)}, the value of above"
        elif clear is not None and rule.below is not None and clear < rule.below:
            allowed = f"at least {key.write(rule.below)}, the value of below"
        else:
            return
        self.wrong(f"found {key.write(clear)}; allowed is {allowed}", *place, "clear")


def _name(place: Iterable[str | int]) -> str:
    """Format a place, counted from 1: `rule[1].above`."""
    return "".join(f"[{one + 1}]" if isinstance(one, int) else f".{one}" for one in place).removeprefix(".")


def _filter_mistake(words: str) -> str:
    """Return why a text is no filter; empty where it is one."""
    try:
        check_filter(words)
    except FilterError as error:
        return str(error)
    return ""


def _check_program(word: str) -> str:
    """Return why a program must not be run; empty where it may be run, or does not exist yet."""
    try:
        words = check_source(Path(word).expanduser(), missing_ok=True)
    except RuntimeError:
        return f"{shown(word)}, but your home folder is not known; allowed is an absolute path"
    return words and f"a program that is not yours alone to write: {words}"


# ---------------------------------------------------------------------------------------------------------------
# Lines


_OPAQUE: Final = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5} | \'\'\'.*?'{3,5} | "(?:\\.|[^"\\\n])*" | '[^'\n]*' | \#[^\n]*''',
    re.DOTALL | re.VERBOSE,
)
"""Strings and comments: nothing in them is a key."""
_HEADER: Final = re.compile(r"[ \t]*(\[\[?)([^\[\]]*)\]\]?[ \t]*")
_KEY: Final = re.compile(r"[ \t]*([A-Za-z0-9_-]+(?:[ \t]*\.[ \t]*[A-Za-z0-9_-]+)*)[ \t]*=")
_INNER: Final = re.compile(r"[{,][ \t]*([A-Za-z0-9_-]+)[ \t]*=")
"""A key of an inline table."""


class Lines:
    """Lines of the keys of a TOML text, found by searching it: tomllib does not keep them.

    Only a key that is written without quotes, and once in its table, is found.
    """

    def __init__(self, content: str, document: Mapping[str, Any]) -> None:
        self._document = document
        self._found: defaultdict[tuple[str | int, ...], list[int]] = defaultdict(list)
        table: tuple[str | int, ...] = ()
        for number, line in enumerate(_OPAQUE.sub(_blank, content).split("\n"), 1):
            if header := _HEADER.fullmatch(line):
                name = header[2].strip()
                table = (name, len(self._found[name,])) if header[1] == "[[" else (name,)
                self._found[name,].append(number)
                if header[1] == "[[":
                    self._found[table].append(number)
            elif key := _KEY.match(line):
                place = table
                for name in key[1].split("."):
                    place = (*place, name.strip())
                    self._found[place].append(number)
                for name in _INNER.findall(line):
                    self._found[*place, name].append(number)

    def find(self, *place: str | int) -> int:
        """Return the line of a key, a table, a key of a table, or one of several tables by its number; 0 if unknown."""
        if len(place) > 1 and isinstance(place[1], int):
            name = str(place[0])
            if (name, 0) not in self._found:
                place = (name,)  # all in one array
            elif len(self._found[name,]) != len(self._document[name]):
                return 0
        lines = self._found.get(place, [])
        return lines[0] if len(lines) == 1 else 0


def _blank(found: re.Match[str]) -> str:
    """Return an empty text for a comment, and one quote for each line of a string."""
    return "" if found[0].startswith("#") else re.sub(r"[^\n]+", '"', found[0])


# ---------------------------------------------------------------------------------------------------------------
# The user's own file over the administrator's


class Origin(msgspec.Struct, frozen=True):
    """Origin of a value: a flag, a file, or else the default."""

    file: Path | None = None
    line: int = 0
    """0 where it is not certain."""
    flag: str = ""

    def __str__(self) -> str:
        """Return `~/.config/gpuwatch/gpuwatch.toml:12`, `--bell` or `default`."""
        if self.flag:
            return self.flag
        if self.file is None:
            return "default"
        return f"{shown_path(self.file)}:{self.line}" if self.line else shown_path(self.file)


def load_traced(given: str | None, *, administrators: Path = ADMINISTRATORS) -> tuple[Config, dict[str, Origin]]:
    """Read the configuration as `load` does, with the origin of each value: see `ConfigFile.origins`."""
    both = _read_both(given, administrators)
    for first, *others in (one.problems for one in both if one.problems):
        more = f" (and {len(others)} more: `gpuwatch config --check` lists them)" if others else ""
        raise UsageError(first + more)
    return _merge(both), _origins(both)


def problems(given: str | None, *, administrators: Path = ADMINISTRATORS) -> tuple[tuple[Path, tuple[str, ...]], ...]:
    """Return each existing file, the administrator's first, with its mistakes, a line each."""
    return tuple((one.path, one.problems) for one in _read_both(given, administrators) if one.exists)


def _read_both(given: str | None, administrators: Path) -> list[ConfigFile]:
    """Read the administrator's file and the user's own, with their mistakes."""
    own = ConfigFile(Path(given) if given is not None else path())
    if given is not None and not own.exists:
        raise UsageError(f"--config: there is no file {text.clean(given)}")
    both = [ConfigFile(administrators, administrators=True), own]
    good: list[ConfigFile] = []
    for one in both:
        if not one.problems:
            _check_order(one, good)
            _check_keys(one, good)
        if not one.problems:
            good.append(one)
    return both


def _check_order(one: ConfigFile, under: list[ConfigFile]) -> None:
    """Add a mistake about the limit that this file sets, where two limits are in the wrong order."""
    config = _merge([*under, one])
    for low, high in misordered(config.alerts):
        if f"alerts.{low}" in one.values:
            name, other, bound = low, high, "at most"
        elif f"alerts.{high}" in one.values:
            name, other, bound = high, low, "at least"
        else:
            continue
        value, limit = (all_keys()[f"alerts.{key}"].write(getattr(config.alerts, key)) for key in (name, other))
        origin = _origins([*under, one])[f"alerts.{other}"]
        words = f"found {value}; allowed is {bound} {limit}, the value of alerts.{other} ({origin})"
        one.wrong(words, "alerts", name)


def _check_keys(one: ConfigFile, under: list[ConfigFile]) -> None:
    """Add a mistake about a key that this file gives to two actions, or to one that shares it with another."""
    found = clash(_merge([*under, one]).keys)
    if found is None:
        return
    key, *names = found
    mine = next((name for name in reversed(names) if f"keys.{name}" in one.values), "")
    if not mine and not any(name.startswith("keys.") for name in one.values):
        return  # the mistake is in the file before
    other = next(name for name in names if name != mine)
    whose = f"always the key to {other}" if RESERVED.get(key) == other else f"the key of {other} too"
    one.wrong(
        f"found {toml_string(key)}, which is {whose}; allowed is a key of no other action", "keys", mine or "preset"
    )


def _merge(both: Iterable[ConfigFile]) -> Config:
    """Merge the files, each over those before it: key by key, rule by rule."""
    tables: dict[str, dict[str, Any]] = {"": {}}
    for one in both:
        for whole, value in one.values.items():
            table, _, name = whole.rpartition(".")
            tables.setdefault(table, {})[name] = value
    top = tables.pop("")
    for table, values in tables.items():
        base = PRESETS[values.get("preset") or "gpuwatch"] if table == "keys" else getattr(Config(), table)
        top[table] = msgspec.structs.replace(base, **values)
    rules = {name: rule for one in both for name, rule in one.rules.items()}
    shares = tuple(share for one in both for share in one.shares)
    filters = {name: words for one in both for name, words in one.filters.items()}
    return Config(**top, shares=shares, rules=tuple(rules.values()), filters=filters)


def _origins(both: Iterable[ConfigFile]) -> dict[str, Origin]:
    return dict.fromkeys(all_keys(), Origin()) | {name: origin for one in both for name, origin in one.origins()}
