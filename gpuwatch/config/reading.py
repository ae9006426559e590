"""Files of the configuration: opened, parsed by tomllib, every key checked, and one put over the other."""

from __future__ import annotations

import codecs
import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from gpuwatch import files, text
from gpuwatch.alerts import table as rule_table
from gpuwatch.alerts.rules.custom import METRICS
from gpuwatch.alerts.rules.memory import OwnRule
from gpuwatch.config import ADMINISTRATORS, Config, path
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
    share_keys,
    shown,
    toml_string,
    value_of,
)
from gpuwatch.declared.facts import Share
from gpuwatch.errors import UsageError
from gpuwatch.files import check_source, shown_path

_MOST_BYTES: Final = 1 << 20
"""A file is read before anything is drawn; one of a thousand rules has 100 KiB."""
_MOST_PARTS: Final = 32
"""Parts of a dotted key, of which ours have 2: `tomllib` needs the square of them in memory and time."""
_LONG_KEY: Final = rf"""(?x)(?<![A-Za-z0-9_\-])
    (?:(?:[A-Za-z0-9_\-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}"""


class ConfigFile:
    """One file: its values by the whole names of their keys, and what is wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        self.shares: tuple[Share, ...] = ()
        self.rules: tuple[OwnRule, ...] = ()
        self._stat: os.stat_result | None = None
        """Of the file that was read, which need not be the one that has its name by now."""
        self._content = ""
        self._document: dict[str, Any] = {}
        self._problems: list[tuple[int, str]] = []
        """(line, or 0; the whole words), as they were found."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, a line each, from the top of the file down; the values then are of no use."""
        return tuple(words for _, words in sorted(self._problems, key=lambda one: one[0]))

    def line(self, name: str) -> int:
        """Return the line of a key by its whole name, or 0 where that is not certain."""
        return self._lines.find(*name.split("."))

    def rule_line(self, name: str) -> int:
        """Return the line of the `[[rule]]` of this name, or 0 where that is not certain."""
        names = [table["name"] for table in self._document["rule"]]
        return self._lines.find("rule", names.index(name))

    def read(self, *, administrators: bool) -> bool:
        """Read and check the file; False where there is none.

        That of the administrator must be an ordinary file that only its owner can write, and its shares are ceilings.
        """
        content = self._open(administrators=administrators)
        if content is None:
            return False
        self._parse(content)
        self._read_keys()
        self._refuse_untrusted()
        self.shares = tuple(self._read_shares(ceiling=administrators))
        self.rules = tuple(self._read_rules().values())
        return True

    # -----------------------------------------------------------------------------------------------------------
    # What is wrong, and where

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self._content, self._document)

    def _wrong(self, words: str, *place: str | int) -> None:
        """Note that something is wrong with the table or the key at a place: `("rule", 0, "above")`."""
        self._wrong_at(self._lines.find(*place) if place else 0, words)

    def _wrong_key(self, words: str, *place: str | int) -> None:
        self._wrong(f"key {_name(place)}: {words}", *place)

    def _wrong_at(self, line: int, words: str) -> None:
        where = f"{shown_path(self.path)}:{line}" if line else shown_path(self.path)
        self._problems.append((line, f"{where}: {words}"))

    def _value(self, key: Key, raw: object, *place: str | int) -> Any:
        """Return a checked value; None where it is wrong, which is noted."""
        try:
            return key.read(raw)
        except NotAllowedError as error:
            self._wrong_key(str(error), *place)
            return None

    def _unknown(self, known: Collection[str], *place: str | int, others: Collection[str] = ()) -> None:
        """Note an unknown key; `others` are good names elsewhere that may have been meant."""
        last = str(place[-1])
        near = nearest(last, known) or next((one for one in others if one.rpartition(".")[2] == last), "")
        hint = f"did you mean {near}?" if near else f"allowed are {', '.join(known)}"
        self._wrong(f"unknown key {text.clean(_name(place), 80)}; {hint}", *place)

    # -----------------------------------------------------------------------------------------------------------
    # The file

    def _open(self, *, administrators: bool) -> bytes | None:
        """Return what stands in the file, nothing where it cannot be read, and None where there is none."""
        content = b""
        try:
            with open(files.open_ordinary(self.path), "rb") as opened:
                self._stat = os.fstat(opened.fileno())
                mode = self._stat.st_mode
                if administrators and mode & (stat.S_IWGRP | stat.S_IWOTH):
                    self._wrong(
                        f"others than its owner can write it (mode {stat.S_IMODE(mode):04o}); "
                        f"it counts only after `chmod go-w {self.path}`"
                    )
                    return b""
                content = opened.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            if administrators:
                return None
            self._wrong("cannot be read (Not a directory)")
        except files.UnsafePathError as error:
            self._wrong(str(error))
        except OSError as error:
            self._wrong(f"cannot be read ({error.strerror})")
        if len(content) > _MOST_BYTES:
            self._wrong(f"found more than {_MOST_BYTES >> 20} MiB; allowed is less")
            return b""
        return content

    def _parse(self, content: bytes) -> None:
        """Parse the content; what is no TOML is noted."""
        if not content:
            return
        content = content.removeprefix(codecs.BOM_UTF8)  # some editors begin with it
        try:
            # The parser counts lines so, and the keys' lines are to be the same.
            self._content = content.decode().replace("\r\n", "\n")
            if found := re.search(_LONG_KEY, self._content):
                line = self._content.count("\n", 0, found.start()) + 1
                self._wrong_at(line, f"found a key of more than {_MOST_PARTS} parts; allowed are fewer")
                return
            self._document = tomllib.loads(self._content)
        except RecursionError:
            self._wrong("not TOML: it is nested too deep")
        except UnicodeDecodeError as error:
            self._wrong_at(content.count(b"\n", 0, error.start) + 1, "not TOML: it is not UTF-8")
        except ValueError as error:
            words = str(error)
            place = re.search(r" \(at line ([0-9]+), column ([0-9]+)\)$", words)
            line, column = (int(place[1]), f" (column {place[2]})") if place else (0, "")
            self._wrong_at(line, f"not TOML: {words[: place.start()] if place else words}{column}")

    # -----------------------------------------------------------------------------------------------------------
    # The keys

    def _read_keys(self) -> None:
        """Check all but the tables that may stand there several times."""
        tables = [name for name in sections() if name]
        top = sections()[""]
        for name, raw in self._document.items():
            if name in tables and isinstance(raw, dict):
                self._read_section(name, raw)
            elif name in tables:
                self._wrong_key(f"found {shown(raw)}; allowed is a table [{name}]", name)
            elif name in top:
                self.values[name] = self._value(top[name], raw, name)
            elif name not in ("share", "rule"):
                self._unknown((*top, *tables, "share", "rule"), name, others=all_keys())

    def _read_section(self, section: str, table: Mapping[str, Any]) -> None:
        keys = {key.name: key for key in sections()[section].values()}
        for name, raw in table.items():
            if name in keys:
                self.values[f"{section}.{name}"] = self._value(keys[name], raw, section, name)
            else:
                self._unknown(keys, section, name, others=all_keys())

    def _refuse_untrusted(self) -> None:
        """Refuse a command, or addresses to send to, that somebody else could have put there or written."""
        for key in ("command", "urls"):
            words = check_source(self.path, read=self._stat) if self.values.get(f"notify.{key}") else ""
            if words:
                self._wrong_key(f"found in a file that is not yours alone to write: {words}", "notify", key)
        command = self.values.get("notify.command")
        if command and (words := _check_program(command[0])):
            self._wrong_key(f"found {words}", "notify", "command")

    # -----------------------------------------------------------------------------------------------------------
    # [[share]] and [[rule]]

    def _tables(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the tables of a name with their numbers, from 0 on; what is none is noted."""
        tables = self._document.get(name, [])
        if not isinstance(tables, list):
            self._wrong_key(f"found {shown(tables)}; allowed are tables, each with a line [[{name}]]", name)
            return
        for number, table in enumerate(tables):
            if isinstance(table, dict):
                yield number, table
            else:
                self._wrong_table(f"found {shown(table)}; allowed is a table", name, number)

    def _wrong_table(self, words: str, name: str, number: int) -> None:
        self._wrong(f"[[{name}]] number {number + 1}: {words}", name, number)

    def _read_table(self, table: Mapping[str, Any], keys: Mapping[str, Key], *place: str | int) -> dict[str, Any]:
        """Return the values of one table by the names of their fields; unknown keys are noted."""
        found = {}
        for name, raw in table.items():
            if name in keys:
                found[keys[name].field] = self._value(keys[name], raw, *place, name)
            else:
                self._unknown(keys, *place, name)
        return found

    def _check_one_of(self, table: Mapping[str, Any], first: str, second: str, name: str, number: int) -> None:
        if (first in table) == (second in table):
            both = f"{first} and {second}" if first in table else f"neither {first} nor {second}"
            self._wrong_table(f"found {both}; allowed is exactly one of them", name, number)

    def _read_shares(self, *, ceiling: bool) -> Iterator[Share]:
        """Yield the good ones."""
        for number, table in self._tables("share"):
            before = len(self._problems)
            values = self._read_table(table, share_keys(), "share", number)
            self._check_one_of(table, "share", "memory", "share", number)
            if len(self._problems) == before:
                where, line = shown_path(self.path), self._lines.find("share", number)
                yield Share(**values, where=where, line=line, ceiling=ceiling)

    def _read_rules(self) -> dict[str, OwnRule]:
        """Return the good ones by name."""
        found: dict[str, OwnRule] = {}
        for number, table in self._tables("rule"):
            before = len(self._problems)
            # The metric decides how an amount is written.
            plain = {name: raw for name, raw in table.items() if name not in AMOUNTS}
            values = self._read_table(plain, keys_of(OwnRule), "rule", number)
            for name in ("name", "metric"):
                if name not in table:
                    self._wrong_table(f"found no {name}; a rule needs one", "rule", number)
            if len(self._problems) == before:
                self._check_name(values["name"], found, number)
                self._check_metric(values["metric"], values.get("scope"), number)
            if len(self._problems) == before:
                keys = amount_keys(values["metric"])
                amounts = {name: raw for name, raw in table.items() if name in AMOUNTS}
                values |= self._read_table(amounts, keys, "rule", number)
                self._check_one_of(table, "above", "below", "rule", number)
            if len(self._problems) == before:
                rule = OwnRule(**values)
                self._check_clear(rule, keys["clear"], number)
                found[rule.name] = rule
        return found

    def _check_name(self, name: str, others: Collection[str], number: int) -> None:
        own = name in {"gpuwatch", *rule_table.names()}
        if own or name in others:
            taken = "a rule of gpuwatch itself" if own else "another [[rule]]"
            words = f"found {shown(name)}, which is {taken}; allowed is a name of its own"
            self._wrong_key(words, "rule", number, "name")

    def _check_metric(self, metric: str, scope: str | None, number: int) -> None:
        if metric not in METRICS:
            words = f"found {shown(metric)}{maybe(metric, METRICS)}; allowed is {', '.join(METRICS)}"
            self._wrong_key(words, "rule", number, "metric")
        elif (scope or "gpu") not in METRICS[metric].scopes:
            allowed = " or ".join(map(toml_string, METRICS[metric].scopes))
            found = shown(scope) if scope else '"gpu" (the default)'
            words = f"key rule[{number + 1}].scope: found {found} with the metric {metric}; allowed is {allowed}"
            self._wrong(words, "rule", number, "scope" if scope else "metric")

    def _check_clear(self, rule: OwnRule, key: Key, number: int) -> None:
        """Note a value to clear at that lies beyond the one that raises."""
        clear = rule.clear
        if clear is not None and rule.above is not None and clear > rule.above:
            allowed = f"at most {key.write(rule.above)}, the value of above"
        elif clear is not None and rule.below is not None and clear < rule.below:
            allowed = f"at least {key.write(rule.below)}, the value of below"
        else:
            return
        self._wrong_key(f"found {key.write(clear)}; allowed is {allowed}", "rule", number, "clear")


def _name(place: Iterable[str | int]) -> str:
    """Name a place as people count: `rule[1].above`."""
    return "".join(f"[{one + 1}]" if isinstance(one, int) else f".{one}" for one in place).removeprefix(".")


def _check_program(word: str) -> str:
    """Return why a program is not to be run; empty where it may be, or is not there yet."""
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
_HEADER: Final = re.compile(r"^[ \t]*\[\[?([^\[\]\n]*)\]\]?[ \t]*$", re.MULTILINE)


class Lines:
    """Lines of the keys of a TOML text, found by searching it: tomllib does not keep them.

    A key has a line where it is found once in its table, written plainly; one in quotes has none.
    """

    def __init__(self, content: str, document: Mapping[str, Any]) -> None:
        # As long as before; quotes stay, so that a name in quotes is not taken for none.
        blank = {"#": " "}
        self._text = _OPAQUE.sub(lambda found: re.sub(r"[^\n]", blank.get(found[0][0], '"'), found[0]), content)
        self._document = document
        headers = list(_HEADER.finditer(self._text))
        ends = [*(header.start() for header in headers), len(self._text)]
        self._top = (0, ends[0])
        self._tables: dict[str, list[tuple[int, int]]] = {}
        """Where the tables of a name begin and end."""
        for header, end in zip(headers, ends[1:], strict=True):
            self._tables.setdefault(header[1].strip(), []).append((header.start(1), end))

    def find(self, *place: str | int) -> int:
        """Return the line of a key, a table, a key of a table, or one of several tables by its number; or 0."""
        name, *rest = place
        tables = self._tables.get(str(name), [])
        numbered = bool(rest) and isinstance(rest[0], int)
        if not tables:
            inner = re.escape(str(rest[0])) if rest and not numbered else ""
            inner = inner and rf"[ \t]*(?:\.[ \t]*|=[ \t]*\{{(?:[^\n]*[,\t ])?){inner}"
            return self._search(f"{re.escape(str(name))}{inner}", self._top)
        if len(tables) != (len(self._document[str(name)]) if numbered else 1):
            return 0
        table = tables[int(rest.pop(0)) if numbered else 0]
        return self._search(re.escape(str(rest[0])), table) if rest else self._line(table[0])

    def _search(self, key: str, within: tuple[int, int]) -> int:
        """Return the line that begins with a key, where only one does."""
        pattern = rf"(?m)^[ \t]*{key}[ \t]*[=.]"
        found = [match.start() for match in re.finditer(pattern, self._text[slice(*within)])]
        return self._line(within[0] + found[0]) if len(found) == 1 else 0

    def _line(self, at: int) -> int:
        return self._text.count("\n", 0, at) + 1


# ---------------------------------------------------------------------------------------------------------------
# Two files, one over the other


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
