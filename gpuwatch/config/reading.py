"""One gpuwatch.toml: opened, parsed, and every key checked."""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpuwatch import files
from gpuwatch.alerts.rules.memory import OwnRule
from gpuwatch.config.keys import KEYS, SECTIONS, Section
from gpuwatch.config.report import Report
from gpuwatch.config.tables import rules, shares
from gpuwatch.config.values import shown
from gpuwatch.declared.facts import Share
from gpuwatch.files import check_source

MOST_BYTES: Final = 1 << 20
"""A file is read before anything is drawn; one of a thousand rules has 100 KiB."""
_MOST_PARTS: Final = 32
"""Parts of a dotted key, of which ours have 2: `tomllib` takes the square of them in memory and time."""
_LONG_KEY: Final = rf"""(?x)(?<![A-Za-z0-9_\-])
    (?:(?:[A-Za-z0-9_\-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}"""


class Found(NamedTuple):
    """What one file says."""

    report: Report
    values: Mapping[str, Any]
    """By the whole names of keys: those that stand in the file."""
    shares: tuple[Share, ...]
    rules: tuple[OwnRule, ...]

    @property
    def file(self) -> Path:
        """The file."""
        return self.report.file

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, a line each, from the top of the file down; the values then are of no use."""
        return self.report.sorted()

    def line(self, name: str) -> int:
        """Give the line of a key by its whole name, or 0 where that is not certain."""
        return self.report.line(*name.split("."))

    def rule_line(self, name: str) -> int:
        """Give the line of the `[[rule]]` of this name, or 0 where that is not certain."""
        tables = self.report.document.get("rule", [])
        numbers = [number for number, table in enumerate(tables) if table.get("name") == name]
        return self.report.line("rule", numbers[0]) if numbers else 0


def read(file: Path, *, administrators: bool = False) -> Found | None:
    """Read a file; None where there is none.

    That of the administrator must be an ordinary file that only its owner can write, and its shares are ceilings.
    """
    report = Report(file)
    content = _content(report, administrators=administrators)
    if content is None:
        return None
    _parse(report, content)
    values = _keys(report)
    _refuse_others(report, values)
    return Found(report, values, shares(report, ceiling=administrators), rules(report))


def _content(report: Report, *, administrators: bool) -> bytes | None:
    """Give what stands in the file, nothing where it cannot be read, and None where there is none."""
    try:
        with open(files.open_ordinary(report.file), "rb") as opened:
            report.facts = os.fstat(opened.fileno())
            mode = report.facts.st_mode
            if administrators and mode & (stat.S_IWGRP | stat.S_IWOTH):
                report.wrong(
                    f"others than its owner can write it (mode {stat.S_IMODE(mode):04o}); "
                    f"it counts only after `chmod go-w {report.file}`"
                )
                return b""
            content = opened.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        if administrators:
            return None
        report.wrong("cannot be read (Not a directory)")
        return b""
    except files.UnsafePathError as error:
        report.wrong(str(error))
        return b""
    except OSError as error:
        report.wrong(f"cannot be read ({error.strerror})")
        return b""
    if len(content) > MOST_BYTES:
        report.wrong(f"found more than {MOST_BYTES >> 20} MiB; allowed is less")
        return b""
    return content


def _parse(report: Report, content: bytes) -> None:
    """Parse the file into the report; what is no TOML is noted."""
    if not content:
        return
    import tomllib  # 3 ms, for those who have a file

    content = content.removeprefix(codecs.BOM_UTF8)  # some editors begin with it
    try:
        # The parser counts lines so, and the keys' lines are to be the same.
        report.content = content.decode().replace("\r\n", "\n")
        if found := re.search(_LONG_KEY, report.content):
            line = report.content.count("\n", 0, found.start()) + 1
            report.wrong(f"found a key of more than {_MOST_PARTS} parts; allowed are fewer", line)
            return
        report.document = tomllib.loads(report.content)
    except RecursionError:
        report.wrong("not TOML: it is nested too deep")
    except UnicodeDecodeError as error:
        report.wrong("not TOML: it is not UTF-8", content.count(b"\n", 0, error.start) + 1)
    except ValueError as error:
        words = str(error)
        place = re.search(r" \(at line ([0-9]+), column ([0-9]+)\)$", words)
        line, column = (int(place[1]), f" (column {place[2]})") if place else (0, "")
        report.wrong(f"not TOML: {words[: place.start()] if place else words}{column}", line)


def _keys(report: Report) -> dict[str, Any]:
    """Check all but the tables that may stand there several times."""
    top, *tables = SECTIONS
    sections = {section.name: section for section in tables}
    own = {key.name: key for key in top.keys}
    values: dict[str, Any] = {}
    for name, raw in report.document.items():
        if name in sections and isinstance(raw, dict):
            values |= _section(report, sections[name], raw)
        elif name in sections:
            report.wrong(f"key {name}: found {shown(raw)}; allowed is a table [{name}]", report.line(name))
        elif name in own:
            values[name] = report.read(own[name].kind, raw, name, name)
        elif name not in ("share", "rule"):
            report.unknown(name, (*own, *sections, "share", "rule"), name, others=KEYS)
    return values


def _section(report: Report, section: Section, table: Mapping[str, Any]) -> dict[str, Any]:
    known = {key.name: key for key in section.keys}
    values = {}
    for name, raw in table.items():
        whole = f"{section.name}.{name}"
        if name in known:
            values[whole] = report.read(known[name].kind, raw, whole, section.name, name)
        else:
            report.unknown(whole, known, section.name, name, others=KEYS)
    return values


def _refuse_others(report: Report, values: Mapping[str, Any]) -> None:
    """Refuse a command, or addresses to send to, that somebody else could have put there or written."""
    for key in ("command", "urls"):
        words = check_source(report.file, read=report.facts) if values.get(f"notify.{key}") else ""
        if words:
            report.wrong(
                f"key notify.{key}: found in a file that is not yours alone to write: {words}",
                report.line("notify", key),
            )
    if command := values.get("notify.command"):
        words = _program(command[0])
        if words:
            report.wrong(f"key notify.command: found {words}", report.line("notify", "command"))


def _program(word: str) -> str:
    """Say why a program is not to be run; empty where it may be, or is not there yet."""
    try:
        words = check_source(Path(word).expanduser(), missing_ok=True)
    except RuntimeError:
        return f"{shown(word)}, but your home folder is not known; allowed is an absolute path"
    return words and f"a program that is not yours alone to write: {words}"
