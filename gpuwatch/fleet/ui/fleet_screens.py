"""Screens of a fleet: hosts as a heat map and as a table, free GPUs by model, people over all hosts, and alerts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, cast

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.message_pump import MessagePump

from gpuwatch.base.units import gib, long_duration, ranges, size
from gpuwatch.fleet.host import HOST, Host, HostGpu
from gpuwatch.fleet.overview import (
    ALERTS,
    FLEET_ALERT,
    FLEET_PERSON,
    FREE,
    FREE_GPUS,
    PEOPLE,
    Fleet,
    FleetAlert,
    FleetPerson,
    FreeGpus,
    hosts_grammar,
)
from gpuwatch.fleet.reader import FleetReader
from gpuwatch.fleet.ui.hosts_screen import HostList
from gpuwatch.model.filters import Grammar, ListFilter, Term, parse_most, parse_terms
from gpuwatch.model.snapshot import Reading, known
from gpuwatch.ui.draw.row_list import CURSOR_CELLS, LEAST_WORDS, NAME_CELLS, FieldList
from gpuwatch.ui.draw.table import Cell, Column
from gpuwatch.ui.draw.theme import Background, Role, StyleSet
from gpuwatch.ui.draw.view import mark_of
from gpuwatch.ui.screens.list_screen import FILTER_KEY, SORT_KEYS, FilteredListScreen

R = TypeVar("R")

CELL: Final = 5
"""Cells of a GPU in the heat map: its percent, a mark, and a blank."""


class FleetActions(Protocol):
    """Methods and state of the application that screens of a fleet use."""

    reader: FleetReader | None
    clock: Callable[[], float]

    def action_view(self, name: str, words: str = "") -> None:
        """Show one of the views, with a filter."""

    def show_host(self, name: str) -> None:
        """Open a host."""


def fleet_actions(asking: MessagePump) -> FleetActions:
    """Return the application of a screen, with the members that screens may use."""
    return cast("FleetActions", asking.app)


def old_words(fleet: Fleet, now: float, interval: float) -> str:
    """Return how old the figures are, `45 s old`; empty while they are new."""
    age = now - fleet.received if fleet.received is not None else 0.0
    return f"{long_duration(int(age))} old" if age > 2 * interval or (fleet.trouble and age >= 1) else ""


# ---------------------------------------------------------------------------------------------------------------
# Lists


class HeatMap(HostList):
    """Heat map: a line for each host, with a cell for each of its GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.figure = "memory"
        """Figure that the cells show: `memory` or `utilization`."""
        self.marks: Mapping[tuple[str, str], FleetAlert] = {}
        """Worst alert about a GPU, by the name of its host and its UUID."""
        self._shown_gpus = 0

    def columns(self, styles: StyleSet, width: int) -> list[Column]:
        names = min(NAME_CELLS, max([6, *(cell_len(host.name) for host in self.found)]))
        most = max((gpu.index + 1 for host in self.found for gpu in host.gpus), default=0)
        left = width - CURSOR_CELLS - 2 - names - 2
        self._shown_gpus = max(1, min(most, (left - 7) // CELL))
        used = self._shown_gpus * CELL
        title = "".join(f"{number:<{CELL}}" for number in range(self._shown_gpus))
        found = [
            Column("mark", "", 2, right=False),
            Column("host", "host", names, right=False),
            Column("cells", title, used, right=False, gap=2),
            Column("free", "free", 5, role="muted"),
        ]
        if left - used - 7 >= LEAST_WORDS:
            found.append(Column("worst", "worst alert", 0, right=False, role="muted", gap=2))
        return found

    def cells(self, place: int, styles: StyleSet, background: Background) -> tuple[Cell, ...]:
        host, glyphs = self.found[place], styles.glyphs
        mark, role = mark_of(host.severity, glyphs) if host.severity is not None else ("", "muted")
        if host.trouble:
            mark, role = glyphs.critical, "critical"
        runs: list[tuple[str, Any]] = []
        by_index = {gpu.index: gpu for gpu in host.gpus}  # one that is missing leaves its place empty
        for number in range(self._shown_gpus):
            gpu = by_index.get(number)
            runs += [(" " * (CELL - 1), "text") if gpu is None else self._cell(host, gpu, styles), (" ", "text")]
        more = sum(gpu.index >= self._shown_gpus for gpu in host.gpus)
        if more > 0:
            runs[-2:] = [(f"+{more + 1:<4}", "muted")]
        free = HOST["free"].cell(host, glyphs.missing)
        texts: dict[str, Cell] = {
            "mark": ((mark, role),),
            "host": ((host.name, "muted" if host.trouble else "text"),),
            "cells": (*runs, ("", "text")),
            "free": (
                (f"{free}/{len(host.gpus)}" if host.gpus else glyphs.missing, "muted" if free == "0" else "note"),
            ),
            "worst": ((host.trouble or host.worst, "warning" if host.trouble else "muted"),),
        }
        return tuple(texts[column.id] for column in self._columns)

    def _cell(self, host: Host, gpu: HostGpu, styles: StyleSet) -> tuple[str, Any]:
        alert = self.marks.get((host.name, gpu.uuid))
        mark = mark_of(alert.severity, styles.glyphs)[0] if alert is not None else " "
        percent = percent_of(gpu, self.figure)
        if not gpu.up:
            text, style = "down", "critical"
        elif gpu.is_free:
            text, style = "free", "note"
        elif not known(percent):
            text, style = f"{styles.glyphs.missing:>3}{mark}", "muted"
        else:
            text, style = f"{percent:>3.0f}{mark}", "text"
        if host.trouble:  # these are old figures
            style = "muted"
        return text, styles.heat(percent) if style == "text" and styles.has_heat and known(percent) else style


def percent_of(gpu: HostGpu, figure: str) -> Reading:
    """Return the memory in use, or the utilization, of a GPU in percent."""
    if figure == "utilization":
        return gpu.utilization
    if known(gpu.used) and known(gpu.total) and gpu.total > 0:
        return 100 * gpu.used / gpu.total
    return gpu.used if not known(gpu.used) else gpu.total


class FreeList(FieldList[FreeGpus]):
    """GPUs by model and memory."""

    fields = FREE_GPUS
    NAMES = "name"
    WIDTHS = MappingProxyType({"name": 0, "memory": 5, "gpus": 6, "free": 6, "most": 13, "where": 0})

    def identity(self, row: FreeGpus) -> Hashable:
        return (row.name, row.memory)


class FleetPeopleList(FieldList[FleetPerson]):
    """People over all hosts."""

    fields = FLEET_PERSON
    NAMES = "user"
    WIDTHS = MappingProxyType({"user": 0, "memory": 9, "part": 6, "gpus": 6, "hosts": 6, "idle": 9, "where": 0})

    def identity(self, row: FleetPerson) -> Hashable:
        return row.name


class FleetAlertList(FieldList[FleetAlert]):
    fields = FLEET_ALERT
    NAMES = "host"
    WIDTHS = MappingProxyType({"rank": 1, "host": 0, "lasted": 7, "title": 0})

    def identity(self, row: FleetAlert) -> Hashable:
        return (row.rule, row.severity, row.host, row.uuid, row.gpu, row.user)

    def cells(self, place: int, styles: StyleSet, background: Background) -> tuple[Cell, ...]:
        return ((mark_of(self.found[place].severity, styles.glyphs),), *super().cells(place, styles, background)[1:])


# ---------------------------------------------------------------------------------------------------------------
# Screens


class FleetScreen(FilteredListScreen[Any, R], Generic[R]):
    """Screen with one list about the fleet."""

    NAME: ClassVar[str]
    ROWS: ClassVar[str]
    """Field of `Fleet` that has its rows."""
    GRAMMAR: ClassVar[Grammar[Any]]
    """Terms by which the rows can be filtered."""
    NOTHING: ClassVar[str] = "none"
    """Why there are no rows on a server that has hosts."""
    VIEWS: ClassVar[Sequence[Binding]] = (
        Binding("m", "app.view('map')", "map", id="fleet.map", tooltip="Show the hosts as a heat map"),
        Binding("t", "app.view('hosts')", "table", id="fleet.hosts", tooltip="Show the hosts as a table"),
        Binding("f", "app.view('free')", "free", id="fleet.free", tooltip="Show free GPUs by model, with their hosts"),
        Binding("u", "app.view('people')", "people", id="fleet.people", tooltip="Show people over all hosts"),
        Binding("e", "app.view('alerts')", "alerts", id="fleet.alerts", tooltip="Show the firing alerts"),
    )
    PALETTE: ClassVar = Binding(
        "colon,ctrl+p",
        "app.command_palette",
        "commands",
        show=False,
        id="fleet.palette",
        tooltip="Find a command or a theme by name",
    )
    REST: ClassVar[Sequence[Binding]] = (
        PALETTE,
        Binding("R", "app.reload", "read", show=False, id="fleet.read", tooltip="Ask the server now"),
        Binding(
            "escape", "close", "back", show=False, id="fleet.close", tooltip="Clear the filter, or go back to the map"
        ),
        Binding("q", "app.quit", "quit", id="fleet.quit", tooltip="Quit"),
    )
    ENTER: ClassVar = Binding("enter", "choose", "host", id="fleet.choose", tooltip="Open the selected row")
    BINDINGS: ClassVar[list[BindingType]] = [FILTER_KEY, ENTER, *VIEWS, *SORT_KEYS, *REST]
    BINDINGS += [Binding("r", "reverse", "reverse", show=False, id="fleet.reverse", tooltip="Reverse the sort order")]
    KEYS = (ENTER, FILTER_KEY, *VIEWS, *SORT_KEYS, *REST)
    DETAIL_LINES = ((24, 5), (16, 4))

    def __init__(
        self,
        fleet: Fleet,
        styles: StyleSet,
        words: str = "",
        saved: Mapping[str, str] | None = None,
        *,
        interval: float,
    ) -> None:
        """`words` is the filter at first, `saved` are filters by name, `interval` the seconds between two readings."""
        super().__init__(None, styles)
        self.fleet, self.interval, self.saved = fleet, interval, saved or {}
        self.apply_filter(words)

    def apply_filter(self, words: str) -> None:
        """Filter the rows; a wrong term, such as an odd name from the server, is ignored."""
        self.filter, _ = parse_most(words, lambda text: ListFilter(text, self.parse_filter(text, self.saved)))

    @property
    def every(self) -> Sequence[R]:
        return cast("Sequence[R]", getattr(self.fleet, self.ROWS))

    def refresh_fleet(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.paint()

    def parse_filter(self, words: str, saved: Mapping[str, str]) -> tuple[Term[R], ...]:
        return parse_terms(words, self.GRAMMAR, saved)

    def read_rows(self) -> None:
        self.rows.update_rows([row for row in self.every if self.filter(row)])

    def paint(self) -> None:
        if self.ready:
            self.read_rows()
        super().paint()

    def old(self) -> str:
        return old_words(self.fleet, fleet_actions(self).clock(), self.interval)

    def notice(self) -> str:
        return self.fleet.trouble or "; ".join(self.fleet.notes)

    def summary(self, room: int) -> list[tuple[str, Role]]:
        words = [f"filter: {self.filter.text}"] * bool(self.filter.text) + self.counts()
        return [(f" {self.style_set.glyphs.dot} ".join(words), "muted")]

    def counts(self) -> list[str]:
        """Return the counts for the title."""
        found, every = len(self.rows.found), len(self.every)
        return [f"{found} of {every} {self.ROW}s" if found < every else f"{every} {self.ROW}{'s' * (every != 1)}"]

    def why_empty(self) -> Sequence[str]:
        fleet = self.fleet
        if fleet.received is None:
            return ["no data yet" if fleet.trouble else f"reading {fleet.server}"]
        if not fleet.hosts:
            return [f"{fleet.server} has no hosts: are gpuwatch's recording rules loaded there?"]
        if self.filter.text:
            return [f"no {self.ROW} matches “{self.filter.text}”: Esc clears the filter"]
        return [self.NOTHING]

    def leave(self) -> None:
        fleet_actions(self).action_view("map")


class TableScreen(FleetScreen[Host]):
    LIST: type[HostList] = HostList
    NAME = "hosts"
    TITLE = "fleet"
    ROW, ROWS = "host", "hosts"
    FILTER_HINT = "node01  H100  free>=4  left>70GiB  mem<50  busy>90  age>1m  user:ada  !text"

    def parse_filter(self, words: str, saved: Mapping[str, str]) -> tuple[Term[Host], ...]:
        return parse_terms(words, hosts_grammar(self.fleet), saved)

    def refresh_fleet(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.apply_filter(self.filter.text)  # the hosts of its users are others now
        super().refresh_fleet(fleet)

    def counts(self) -> list[str]:
        hosts: Collection[Host] = self.rows.found
        silent, alerts = sum(bool(host.trouble) for host in hosts), sum(host.alerts for host in hosts)
        free = sum(gpu.is_free for host in hosts if not host.trouble for gpu in host.gpus)
        words = [*super().counts(), f"{sum(len(host.gpus) for host in hosts)} GPUs", f"{free} free"]
        words += [f"{alerts} alert{'s' * (alerts != 1)}"] * bool(alerts)
        return [*words, *[f"{silent} without new data"] * bool(silent)]

    def facts(self, row: Host) -> Sequence[tuple[str, str]]:
        models = {gpu.name: sum(one.name == gpu.name for one in row.gpus) for gpu in row.gpus}
        free = ranges(gpu.index for gpu in row.gpus if gpu.is_free)
        alerts = [alert.title for alert in self.fleet.alerts if alert.host == row.name]
        left = HOST["left"].describe(row)
        return (
            ("problem", row.trouble),
            ("GPUs", ", ".join(f"{number} × {name}" for name, number in models.items())),
            ("free", free or "none" * bool(row.gpus)),
            ("left", left if isinstance(left, str) else ""),
            ("alerts", "; ".join(alerts)),
        )

    def choose(self, row: Host) -> None:
        fleet_actions(self).show_host(row.name)


class MapScreen(TableScreen):
    """Hosts as a heat map."""

    LIST = HeatMap
    NAME = "map"
    OWN = (Binding("v", "figure", "memory/util", id="fleet.figure", tooltip="Show memory in use, or utilization"),)
    BINDINGS: ClassVar[list[BindingType]] = [*OWN]
    KEYS = (FleetScreen.ENTER, FILTER_KEY, *OWN, *FleetScreen.VIEWS[1:], *FleetScreen.REST)

    rows: Any

    def read_rows(self) -> None:
        super().read_rows()
        self.rows.marks = {(alert.host, alert.uuid): alert for alert in reversed(self.fleet.alerts) if alert.uuid}

    def counts(self) -> list[str]:
        return [f"{self.rows.figure} %", *super().counts()]

    def action_figure(self) -> None:
        self.rows.figure = "utilization" if self.rows.figure == "memory" else "memory"
        self.paint()

    def leave(self) -> None:
        """Stay: there is no screen below."""


class FreeScreen(FleetScreen[FreeGpus]):
    """Free GPUs by model and memory."""

    LIST = FreeList
    NAME = "free"
    TITLE = "free GPUs"
    ROW, ROWS, GRAMMAR = "model", "free", FREE
    FILTER_HINT = "H100  free>=4  most>=4  mem>=80  node01  !text"
    NOTHING = "no host has a GPU"

    def facts(self, row: FreeGpus) -> Sequence[tuple[str, str]]:
        unknown = f"{row.unknown}: not known whether free" if row.unknown else ""
        return (("unknown", unknown), ("free on", FREE_GPUS["where"].cell(row) or "none"))

    def choose(self, row: FreeGpus) -> None:
        """Show the hosts that have the most free GPUs of this model."""
        fleet_actions(self).action_view("hosts", f"{row.name} free>={max(1, row.most)}")


class FleetPeopleScreen(FleetScreen[FleetPerson]):
    """People over all hosts."""

    LIST = FleetPeopleList
    NAME = "fleet-people"
    TITLE = "people"
    ROW, ROWS, GRAMMAR = "user", "people", PEOPLE
    FILTER_HINT = "ada  user:ada,ben  mem>100GiB  gpus>8  hosts>2  idle>10GiB  node01  !text"
    NOTHING = "nobody uses a GPU"

    def facts(self, row: FleetPerson) -> Sequence[tuple[str, str]]:
        idle = f", {gib(row.idle)} GiB of it idle" if row.idle else ""
        memory = "" if row.memory is None else f"{size(row.memory)}{idle}"
        return (("memory", memory), ("on", FLEET_PERSON["where"].cell(row)))

    def choose(self, row: FleetPerson) -> None:
        """Show the hosts on which this person holds memory."""
        fleet_actions(self).action_view("hosts", f"user:{row.name}")


class FleetAlertsScreen(FleetScreen[FleetAlert]):
    LIST = FleetAlertList
    NAME = "fleet-alerts"
    TITLE = "firing alerts"
    ROW, ROWS, GRAMMAR = "alert", "alerts", ALERTS
    FILTER_HINT = "rule:limit  user:ada  gpu:0,2-4  age>1h  node01  !text"
    NOTHING = "no alert is firing"

    def facts(self, row: FleetAlert) -> Sequence[tuple[str, str]]:
        lasted = "" if row.age is None else f"for {long_duration(row.age)}"
        return (("host", row.host), ("GPU", f"{row.gpu} {row.uuid}".strip()), ("user", row.user), ("firing", lasted))

    def choose(self, row: FleetAlert) -> None:
        if row.host:
            fleet_actions(self).show_host(row.host)


VIEWS: Final[Mapping[str, type[FleetScreen[Any]]]] = {
    "map": MapScreen,
    "hosts": TableScreen,
    "free": FreeScreen,
    "people": FleetPeopleScreen,
    "alerts": FleetAlertsScreen,
}
"""Screens by the names of their views."""
