"""Hosts screen: one row for each machine, the one with the worst trouble first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType

from gpuwatch.analysis.rows import StableOrder
from gpuwatch.base.units import gib
from gpuwatch.fleet.host import HOST, Host
from gpuwatch.model.snapshot import known
from gpuwatch.ui.draw.row_list import CURSOR_CELLS, FieldList
from gpuwatch.ui.draw.table import Cell, Column, bar_cell
from gpuwatch.ui.draw.theme import Role, StyleSet
from gpuwatch.ui.draw.view import mark_of
from gpuwatch.ui.screens.list_screen import SORT_KEYS, ListScreen

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame

_LEAST_ALERT: Final = 56
"""Cells of the worst alert, at least, where there is a bar."""
_LEAST_BAR: Final = 10
_LONGEST_BAR: Final = 40
_MOST_NAMED: Final = 8
"""GPUs that are listed one by one below the list."""


class HostList(FieldList[Host]):
    fields = HOST
    NAMES = "host"
    WIDTHS = MappingProxyType(
        {"host": 0, "gpus": 5, "free": 5, "memory": 6, "left": 9, "busy": 7, "people": 7, "age": 5, "worst": 0}
    )
    NEEDED = ("host", "gpus", "free", "memory", "busy", "age", "people", "left")

    def __init__(self) -> None:
        super().__init__()
        self.by = "worst"
        self._order = StableOrder(HOST, self.identity, lambda one: one.weight)
        self._largest = 1.0
        """Bytes of the host with the most memory."""

    def identity(self, row: Host) -> Hashable:
        return row.name

    def columns(self, styles: StyleSet, width: int) -> list[Column]:
        """Return the columns of the fields, and where the last one has room to spare, a bar of the memory."""
        self._largest = max([1.0, *(one.memory[1] for one in self.found)])
        *found, last = super().columns(styles, width)
        left = width - CURSOR_CELLS - sum(column.gap + column.cells for column in found) - 2 - _LEAST_ALERT
        if left >= _LEAST_BAR:
            place = 1 + next(place for place, column in enumerate(found) if column.id == "memory")
            found.insert(place, Column("bar", "", min(_LONGEST_BAR, left), right=False, gap=2))
        return [*found, last]

    def cell(self, column: Column, row: Host, styles: StyleSet) -> Cell:
        """Return a figure, or a bar; the bars of all hosts have the scale of the one with the most memory."""
        if column.id == "worst":
            return _worst(row, styles)
        if column.id != "bar":
            return super().cell(column, row, styles)
        used, total = row.memory
        return bar_cell(used / self._largest, None, column.cells, styles, total / self._largest)


def _worst(one: Host, styles: StyleSet) -> Cell:
    """Return the trouble of a host, or else its worst alert."""
    if one.trouble:
        return ((f"{styles.glyphs.critical} ", "critical"), (one.trouble, "critical"))
    if one.severity is None:
        return (("connecting" if not one.gpus else "", "muted"),)
    mark, role = mark_of(one.severity, styles.glyphs)
    return ((f"{mark} ", role), (one.worst, "text"))


class HostsScreen(ListScreen[HostList, Host]):
    """Screen that lists hosts. It has its own figures and needs no frame."""

    LIST = HostList
    NAME = TITLE = "hosts"
    KEYS = (
        Binding("enter", "choose", "open", id="hosts.choose", tooltip="Open this host as the dashboard"),
        Binding("escape,H", "close", "back", id="hosts.close", tooltip="Go back to the open host"),
        *SORT_KEYS,
        Binding("r", "reverse", "reverse", id="hosts.reverse", tooltip="Reverse the sort order"),
        Binding("R", "retry", "retry", id="hosts.retry", tooltip="Retry the hosts with a problem now"),
        Binding("q", "app.quit", "quit", id="hosts.quit", tooltip="Quit; your processes keep running"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    def __init__(
        self,
        read: Callable[[], Sequence[Host]],
        open_host: Callable[[str], None],
        retry: Callable[[], None],
        is_open: Callable[[], bool],
        styles: StyleSet,
    ) -> None:
        """`open_host` opens a host by its name; `is_open` returns whether one is open behind this screen."""
        super().__init__(None, styles)
        self._read, self._open, self._retry, self._is_open = read, open_host, retry, is_open

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
        return [*parts, (f"{troubles} with a problem", "critical")] if troubles else parts

    def key_words(self) -> Mapping[str, str]:
        """Leave out the key to go back if no host is open."""
        return {} if self._is_open() else {"close": ""}

    def facts(self, row: Host) -> Sequence[tuple[str, str]]:
        """Return the trouble and the worst alert of a host, and a few words on each GPU."""
        glyphs = self.style_set.glyphs
        shown = []
        for gpu in row.gpus[:_MOST_NAMED]:
            used, total = (gib(size) if known(size) else glyphs.missing for size in (gpu.used, gpu.total))
            busy = f" {gpu.utilization:.0f} %" if known(gpu.utilization) else ""
            shown.append(f"{gpu.index}: {used}/{total}{busy}" if gpu.up else f"{gpu.index}: no answer")
        more = len(row.gpus) - len(shown)
        alerts = f"{row.worst}{f'; {row.alerts - 1} more' if row.alerts > 1 else ''}" if row.severity else ""
        figures = f" {glyphs.dot} ".join([*shown, *[f"+{more}"] * (more > 0)])
        return [("host", row.name), ("problem", row.trouble), ("worst", alerts), ("GiB, busy", figures)]

    def why_empty(self) -> Sequence[str]:
        return ["no hosts"]

    def choose(self, row: Host) -> None:
        self._open(row.name)

    def action_retry(self) -> None:
        self._retry()
        self.notify("retrying", markup=False, timeout=3)

    def action_close(self) -> None:
        """Go back to the host that is open; stay where none is."""
        if self._is_open():
            super().action_close()
