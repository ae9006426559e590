"""Hosts screen: one row for each machine, the one that needs a hand first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from rich.cells import cell_len
from textual.binding import Binding, BindingType

from gpuwatch.analysis.rows import StableOrder
from gpuwatch.fleet.host import HOST, Host
from gpuwatch.model import known
from gpuwatch.ui.screens.list_screen import SORT_KEYS, ListScreen, fact_lines
from gpuwatch.ui.theme import Background, Role, StyleSet
from gpuwatch.ui.view import mark_of
from gpuwatch.ui.widgets.footer import Hint
from gpuwatch.ui.widgets.lines import Line
from gpuwatch.ui.widgets.row_list import RowList
from gpuwatch.ui.widgets.table import Cell, Column, field_column
from gpuwatch.units import gib

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame

_CELLS: Final = {"gpus": 6, "free": 6, "memory": 6, "left": 9, "busy": 7, "people": 8, "age": 6}
_NEEDED: Final = ("gpus", "free", "memory", "busy", "age", "people", "left")
"""Columns beside the name and the worst alert, the most needed first: a narrow terminal shows fewer."""
_LEAST_WORDS: Final = 14
"""Cells of the worst alert, at least."""
_LONGEST_NAME: Final = 24
_MOST_NAMED: Final = 8
"""GPUs that are listed one by one below the list."""


class HostList(RowList[Host]):
    """List of hosts."""

    fields = HOST

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.by = "worst"
        self._order = StableOrder(HOST, lambda one: one.name, lambda one: one.weight)

    def identity(self, row: Host) -> Hashable:
        return row.name

    def ordered(self, rows: Sequence[Host]) -> list[Host]:
        return self._order.sort(rows, self.by, reverse=self.reverse)

    def columns(self, styles: StyleSet, width: int) -> list[Column]:
        longest = max((cell_len(one.name) for one in self.found), default=0)
        name = min(_LONGEST_NAME, max(6, longest), max(6, width // 4))
        room = width - name - _LEAST_WORDS - 6
        shown = []
        for key in _NEEDED:
            room -= _CELLS[key]
            if room >= 0:
                shown.append(key)
        figures = [field_column(HOST[key], _CELLS[key]) for key in _CELLS if key in shown]
        return [field_column(HOST["host"], name, gap=1), *figures, field_column(HOST["worst"], 0, gap=2)]

    def cells(self, place: int, styles: StyleSet, background: Background) -> tuple[Cell, ...]:
        one, glyphs = self.found[place], styles.glyphs
        cells: list[Cell] = []
        for column in self._columns:
            if column.id == "worst":
                cells.append(_worst(one, styles))
            else:
                role: Role = "strong" if column.id == "host" else "text"
                cells.append(((HOST[column.id].cell(one, glyphs.missing, glyphs.least), role),))
        return tuple(cells)


def _worst(one: Host, styles: StyleSet) -> Cell:
    """Return the trouble of a host, or else its worst alert."""
    if one.trouble:
        return ((f"{styles.glyphs.critical} ", "critical"), (one.trouble, "critical"))
    if one.severity is None:
        return (("connecting" if not one.gpus else "", "muted"),)
    mark, role = mark_of(one.severity, styles.glyphs)
    return ((f"{mark} ", role), (one.worst, "text"))


class HostsScreen(ListScreen[HostList]):
    """Screen that lists hosts, by their own figures: it needs no frame."""

    LIST = HostList
    NAME = TITLE = "hosts"
    KEYS = (
        Binding("enter", "choose", "open", id="hosts.choose", tooltip="Open this host as the dashboard"),
        Binding("escape,H", "close", "back", id="hosts.close", tooltip="Back to the host that is open"),
        *SORT_KEYS,
        Binding("r", "reverse", "reverse", id="hosts.reverse", tooltip="Reverse the order"),
        Binding("R", "retry", "retry", id="hosts.retry", tooltip="Try the hosts in trouble again now"),
        Binding("q", "app.quit", "quit", id="hosts.quit", tooltip="Quit; no other process ends"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    def __init__(
        self,
        read: Callable[[], Sequence[Host]],
        choose: Callable[[str], None],
        retry: Callable[[], None],
        is_open: Callable[[], bool],
        styles: StyleSet,
    ) -> None:
        """`choose` opens a host by its name; `is_open` returns whether one is open behind this screen."""
        super().__init__(None, styles)
        self._read, self._choose, self._retry, self._is_open = read, choose, retry, is_open

    def _beat(self) -> None:
        self.refresh_frame(None)

    def refresh_frame(self, frame: Frame | None) -> None:
        """Draw the newest rows, once a second; frames of the open host do not count here."""
        if frame is None:
            super().refresh_frame(None)

    def read_rows(self) -> None:
        self.rows.update_rows(self._read())

    def summary(self, room: int) -> list[tuple[str, Role]]:
        found = self.rows.found
        gpus = [gpu for one in found for gpu in one.gpus]
        troubles = sum(bool(one.trouble) for one in found)
        words = [f"{len(found)} host{'s' * (len(found) != 1)}"]
        words += [f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}, {sum(gpu.is_free for gpu in gpus)} free"] * bool(gpus)
        parts: list[tuple[str, Role]] = [(f" {self.style_set.glyphs.dot} ".join(words), "text")]
        return [*parts, (f"{troubles} in trouble", "critical")] if troubles else parts

    def detail(self, width: int, lines: int) -> list[Line]:
        chosen = self.rows.selected
        facts = [] if chosen is None else [("host", chosen.name), ("trouble", chosen.trouble), *self._facts(chosen)]
        return fact_lines(facts, self.style_set, width, lines, wrapped="trouble")

    def hints(self) -> list[Hint]:
        """Return the keys for the footer; no way back where no host is open."""
        return [hint for hint in super().hints() if hint[2] != "close" or self._is_open()]

    def _facts(self, one: Host) -> list[tuple[str, str]]:
        """Return the worst alert of a host, and a few words on each GPU."""
        glyphs = self.style_set.glyphs
        shown = []
        for gpu in one.gpus[:_MOST_NAMED]:
            used, total = (gib(size) if known(size) else glyphs.missing for size in (gpu.used, gpu.total))
            busy = f" {gpu.utilization:.0f} %" if known(gpu.utilization) else ""
            shown.append(f"{gpu.index}: {used}/{total}{busy}" if gpu.up else f"{gpu.index}: no answer")
        more = len(one.gpus) - len(shown)
        alerts = f"{one.worst}{f' and {one.alerts - 1} more' if one.alerts > 1 else ''}" if one.severity else ""
        return [("worst", alerts), ("GiB, busy", f" {glyphs.dot} ".join([*shown, *[f"+{more}"] * (more > 0)]))]

    def why_empty(self) -> Sequence[str]:
        return ["no host is named"]

    def action_choose(self) -> None:
        """Open the host under the cursor."""
        if (chosen := self.rows.selected) is not None:
            self._choose(chosen.name)

    def action_retry(self) -> None:
        """Try the hosts in trouble again at once."""
        self._retry()
        self.notify("trying again", markup=False, timeout=3)

    def action_close(self) -> None:
        """Go back to the host that is open; stay where none is."""
        if self._is_open():
            super().action_close()
