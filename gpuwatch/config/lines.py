"""On which line of a TOML file a key stands: the parser of the standard library does not say.

This is a second, smaller reader of the same text. It is believed only where it found the very keys that the parser
found: where anything differs it gives no line at all, for a wrong one is worse than none.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

Place: TypeAlias = tuple[str | int, ...]
"""Names of keys, and numbers (from 0) in arrays: `("rule", 1, "above")`."""

_SPACE: Final = re.compile(r"[ \t]*")
_GAP: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE: Final = re.compile(r"[^,\[\]{}\"'#\r\n]+")
_STRINGS: Final = {
    # Up to two quotes before the three that end a long string are its own.
    '"""': re.compile(r'"""(?:[^"\\]|\\.|"(?!"")|"(?="{3}))*"""', re.DOTALL),
    "'''": re.compile(r"'''(?:[^']|'(?!'')|'(?='{3}))*'''"),
    '"': re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    "'": re.compile(r"'[^'\n]*'"),
}
"""By how they begin, the longer beginnings first."""


class _LostError(Exception):
    """The text is not what this reader takes it for."""


def lines_of(content: str, document: Mapping[str, object]) -> dict[Place, int]:
    """Give the line, from 1 on, of each key and each element of an array in `content`, which `document` was read from.

    Empty where the two do not agree.
    """
    try:
        found = _Reader(content).read()
        return found if found.keys() == set(_places(document, ())) else {}
    except (_LostError, RecursionError):
        return {}


def _places(value: object, place: Place) -> Iterator[Place]:
    children = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield (*place, name)
        yield from _places(child, (*place, name))


class _Reader:
    """Goes through a text once, and notes where each key stands."""

    def __init__(self, content: str) -> None:
        self._text = content
        self._at = 0
        self._ends = [match.start() for match in re.finditer("\n", content)]
        self._found: dict[Place, int] = {}
        self._tables: dict[Place, int] = {}
        """How many tables each array of tables has so far."""

    def read(self) -> dict[Place, int]:
        table: Place = ()
        while self._skip(_GAP) < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
        return self._found

    def _header(self) -> Place:
        """Take in a `[table]` or `[[table]]`, and give its place."""
        line, many = self._line(), self._text.startswith("[[", self._at)
        self._at += 2 if many else 1
        names = self._key()
        self._expect("]]" if many else "]")
        place = self._implied((), names[:-1], line)
        place = (*place, names[-1])
        if many:
            self._found.setdefault(place, line)
            number = self._tables.get(place, 0)
            self._tables[place] = number + 1
            place = (*place, number)
        elif place in self._tables:
            raise _LostError
        self._found[place] = line
        return place

    def _pair(self, table: Place) -> None:
        """Take in a `key = value` of a table."""
        line, names = self._line(), self._key()
        self._expect("=")
        place = (*self._implied(table, names[:-1], line), names[-1])
        self._found[place] = line
        self._value(place)

    def _implied(self, table: Place, names: list[str], line: int) -> Place:
        """Go down to the table that `names` lead to; of an array of tables the last is meant."""
        for name in names:
            table = (*table, name)
            self._found.setdefault(table, line)
            if table in self._tables:
                table = (*table, self._tables[table] - 1)
        return table

    def _value(self, place: Place) -> None:
        self._skip(_SPACE)
        if self._text.startswith("[", self._at):
            self._array(place)
        elif self._text.startswith("{", self._at):
            self._inline_table(place)
        elif self._quoted():
            self._string()
        else:
            self._take(_BARE_VALUE)

    def _array(self, place: Place) -> None:
        self._expect("[")
        number = 0
        while not self._passes("]", _GAP):
            self._found[*place, number] = self._line()
            self._value((*place, number))
            number += 1
            if not self._passes(",", _GAP):
                self._expect("]", _GAP)
                return

    def _inline_table(self, place: Place) -> None:
        self._expect("{")
        while not self._passes("}", _GAP):
            self._pair(place)
            if not self._passes(",", _GAP):
                self._expect("}", _GAP)
                return

    def _key(self) -> list[str]:
        """Take in a dotted key."""
        names: list[str] = []
        while True:
            self._skip(_SPACE)
            names.append(_unquoted(self._string()) if self._quoted() else self._take(_BARE_KEY))
            if not self._passes("."):
                return names

    def _quoted(self) -> bool:
        return self._text.startswith(('"', "'"), self._at)

    def _string(self) -> str:
        for quotes, pattern in _STRINGS.items():
            if self._text.startswith(quotes, self._at):
                return self._take(pattern)
        raise _LostError

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise _LostError
        self._at = match.end()
        return match[0]

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _passes(self, word: str, before: re.Pattern[str] = _SPACE) -> bool:
        self._skip(before)
        if not self._text.startswith(word, self._at):
            return False
        self._at += len(word)
        return True

    def _expect(self, word: str, before: re.Pattern[str] = _SPACE) -> None:
        if not self._passes(word, before):
            raise _LostError

    def _line(self) -> int:
        return bisect.bisect_left(self._ends, self._at) + 1


def _unquoted(literal: str) -> str:
    """Give what a quoted key says."""
    import tomllib

    name = tomllib.loads(f"key = {literal}")["key"]
    return str(name)
