"""What is wrong with a file: one line each, with the line it stands on where that is certain."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatch import text
from gpuwatch.config.values import Kind, NotAllowedError, nearest
from gpuwatch.files import shown_path

if TYPE_CHECKING:
    from gpuwatch.config.lines import Place


class Report:
    """Gathers what is wrong with one file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.facts: os.stat_result | None = None
        """Of the file that was read, which need not be the one that stands under its name by now."""
        self.content = ""
        self.document: Mapping[str, Any] = {}
        self.problems: list[tuple[int, str]] = []
        """(line, or 0; the whole words), as they were found."""

    @cached_property
    def lines(self) -> dict[Place, int]:
        """The line of each key; worked out once somebody asks, for a good file has no need of most."""
        from gpuwatch.config.lines import lines_of

        return lines_of(self.content, self.document)

    def line(self, *place: str | int) -> int:
        """Give the line of a key, or 0."""
        return self.lines.get(place, 0)

    def wrong(self, words: str, line: int = 0) -> None:
        """Note that something is wrong."""
        where = f"{shown_path(self.file)}:{line}" if line else shown_path(self.file)
        self.problems.append((line, f"{where}: {words}"))

    def sorted(self) -> tuple[str, ...]:
        """Give all that is wrong, from the top of the file down; what has no line comes first."""
        return tuple(words for _, words in sorted(self.problems, key=lambda one: one[0]))

    def read(self, kind: Kind, raw: object, name: str, *place: str | int) -> Any:
        """Give a checked value; None where it is wrong, which is noted."""
        try:
            return kind.read(raw)
        except NotAllowedError as error:
            self.wrong(f"key {name}: {error}", self.line(*place))
            return None

    def unknown(self, name: str, known: Iterable[str], *place: str | int, others: Iterable[str] = ()) -> None:
        """Note an unknown key; `others` are good names elsewhere that may have been meant."""
        known = tuple(known)
        last = name.rpartition(".")[2]
        near = nearest(last, known) or next((one for one in others if one.rpartition(".")[2] == last), "")
        hint = f"did you mean {near}?" if near else f"allowed are {', '.join(known)}"
        self.wrong(f"unknown key {text.clean(name, 80)}; {hint}", self.line(*place))
