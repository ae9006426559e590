"""Choices made in the dashboard, remembered in one small file of the user: theme, columns, interval.

The order and whatever hides processes (a filter, `mine`, a followed GPU) are not remembered: a start shows
everything, by `order` of the configuration. An order in an older file is ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from gpuwatch.base import files
from gpuwatch.base.text import clean
from gpuwatch.config.types import ColumnNames, Theme

if TYPE_CHECKING:  # the sampler waits for the interval, and need not wait for what the options import
    from gpuwatch.ui.options import Options

FILE: Final = "dashboard.json"


class Choices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Choices of the user; None for what was never chosen."""

    theme: Theme | None = None
    columns: ColumnNames | None = None
    interval: Annotated[float, Meta(ge=0.1, le=3600)] | None = None


class Remembered:
    """Choices of earlier starts, and the settings that the configuration or a flag has fixed."""

    def __init__(self, choices: Choices | None = None, fixed: Collection[str] = (), notice: str = "") -> None:
        self.choices = self._saved = choices or Choices()
        self.fixed = fixed
        self.notice = notice
        """Line about a file that could not be read; empty for none."""

    @property
    def interval(self) -> float | None:
        """Seconds between two samples that were chosen; None where there is no choice, or it does not count."""
        return None if "interval" in self.fixed else self.choices.interval

    def over(self, options: Options, fixed: Collection[str] | None = None) -> Options:
        """Return options with the choices that count; `fixed` replaces the fixed settings of the start."""
        names = {"theme", "columns"}.difference(self.fixed if fixed is None else fixed)
        chosen = {name: getattr(self.choices, name) for name in names if getattr(self.choices, name) is not None}
        return replace(options, **chosen)

    def save(self, changed: Mapping[str, object]) -> None:
        """Save further choices, by the fields of `Choices`; raises OSError."""
        self._saved = msgspec.structs.replace(self._saved, **changed)
        with files.opened_folder(files.state_folder()) as folder:
            files.replace_file(folder, FILE, msgspec.json.encode(self._saved), durable=False)


def read_choices(fixed: Collection[str] = ()) -> Remembered:
    """Read the file; one that cannot be read or is damaged counts as empty, and the notice says why."""
    path = files.state_folder() / FILE
    try:
        return Remembered(msgspec.json.decode(path.read_bytes(), type=Choices), fixed)
    except FileNotFoundError:
        notice = ""
    except OSError as error:
        notice = f"your saved choices cannot be used: {files.words(error, path)}"
    except ValueError as error:
        notice = clean(f"your saved choices cannot be used: {files.shown_path(path)} is damaged: {error}", 200)
    return Remembered(fixed=fixed, notice=notice)
