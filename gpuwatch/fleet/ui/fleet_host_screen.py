"""Screen of one host of a fleet: its GPUs and their owners, and graphs of the last hours from the server."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import ClassVar, Final

from msgspec.structs import replace
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuwatch.base.units import GIB, duration, gib
from gpuwatch.fleet.host import HOST, Host, HostGpu
from gpuwatch.fleet.overview import Fleet, HostOwner, HostPast, PastKey
from gpuwatch.fleet.ui.fleet_screens import FleetScreen, fleet_actions, old_words
from gpuwatch.model.snapshot import Reading, known
from gpuwatch.ui.draw.graph import Curve, Graph, Values, axis_top
from gpuwatch.ui.draw.lines import Line, LineBuilder
from gpuwatch.ui.draw.row_list import ItemCursor
from gpuwatch.ui.draw.sheet import Canvas, Fact, Part, Section, SheetPage
from gpuwatch.ui.draw.theme import Role, StyleSet
from gpuwatch.ui.draw.time_axis import SPANS
from gpuwatch.ui.draw.time_graphs import SMALL, TimeGraphs, largest
from gpuwatch.ui.screens.sheet import TimeSheet

MOST_VALUES: Final = 240
"""Values of a graph that are asked for, at most."""
_LEAST_STEP: Final = 15.0
"""Seconds between two of them, at least: a server scrapes no more often."""


def span_step(span: float) -> tuple[float, int]:
    """Return the seconds of each value of a span, and the number of values."""
    count = max(1, min(MOST_VALUES, int(span / _LEAST_STEP)))
    return span / count, count


class HostGpus(ItemCursor[HostGpu | None]):
    """List of a host's GPUs with their owners; the first item means all GPUs."""

    gap = 1

    def __init__(self) -> None:
        super().__init__()
        self.host = Host(name="")
        self.owners: Sequence[HostOwner] = ()

    def identity(self, row: HostGpu | None) -> str:
        return row.uuid if row is not None else ""

    def draw(self, styles: StyleSet, width: int) -> list[Line]:
        missing = styles.glyphs.missing
        lines = []
        owners: dict[str, list[HostOwner]] = defaultdict(list)
        for owner in self.owners:
            owners[owner.uuid].append(owner)
        for place, gpu in enumerate(self.found):
            one = self.host if gpu is None else Host(name="", gpus=(gpu,))
            builder = LineBuilder(styles, "cursor" if place == self.cursor else "base")
            builder.write(styles.glyphs.cursor if place == self.cursor else "", "strong", 2)
            builder.write("all GPUs" if gpu is None else f"{gpu.index:>3}", "strong", 8)
            builder.write(
                "" if gpu is None else f"{_gib(gpu.used, missing)}/{_gib(gpu.total, missing)}", "text", 12, right=True
            )
            for key, words, cells in (("left", "left", 12), ("memory", "%", 7), ("busy", "% busy", 11)):
                builder.write(f"{HOST[key].cell(one, missing, styles.glyphs.least)} {words}", "text", cells, right=True)
            if gpu is not None:
                state: tuple[str, Role] = ("", "text") if gpu.up else ("down", "critical")
                builder.gap(2).write(*(("free", "note") if gpu.is_free else state), 5)
            lines.append(builder.build(width))
            for owner in owners[gpu.uuid] if gpu is not None else ():
                words = f"{owner.user} {owner_words(owner, missing)}"
                lines.append(LineBuilder(styles).gap(6).write(words, "muted").build(width))
        return lines


def _gib(reading: Reading, missing: str) -> str:
    return gib(reading) if known(reading) else missing


def owner_words(one: HostOwner, missing: str) -> str:
    """Return what one person holds on a GPU: `40.0 of 32.0 GiB declared, 8.0 over, idle 3h00m`."""
    words = f"{missing if one.memory is None else gib(one.memory)} GiB"
    if one.declared:
        words = words.replace(" GiB", f" of {gib(one.declared)} GiB declared")
    words += f", {gib(one.over)} over" if one.over else ""
    return words + (f", idle {duration(one.idle)}" if one.idle and one.idle >= 60 else "")


def graph_heights(room: int, *, two_columns: bool) -> tuple[int, int]:
    """Return the height of the graph of memory, the highest, and of each other graph."""
    if room < SMALL:
        return 4, 1
    if not two_columns:
        return 8, 6
    each = max(5, (room - 1) // 5)
    return max(8, room - 1 - 3 * each), each


class FleetHostScreen(TimeSheet):
    class PastRead(Message):
        """Message: the server has answered."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "GPU", id="host.down", key_display="↓ ↑", tooltip="Show the next GPU"),
        Binding("up,k", "move(-1)", "GPU", show=False, id="host.up", tooltip="Show the previous GPU"),
        FleetScreen.PALETTE,
    ]
    LEFT = 0.55

    def __init__(self, name: str, fleet: Fleet, styles: StyleSet, *, interval: float) -> None:
        super().__init__(styles)
        self.host_name, self.fleet, self.interval = name, fleet, interval
        self.graphs = TimeGraphs(styles, 3600.0)
        self.gpus = HostGpus()
        self._host: Host | None = None
        """The host as it was last listed."""
        self._past: HostPast | None = None
        self._asked: Future[HostPast] | None = None
        self._trouble = ""

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(1.0, self._beat)
        self._ask()

    def _beat(self) -> None:
        if old_words(self.fleet, fleet_actions(self).clock(), self.interval):
            self.redraw()

    def refresh_fleet(self, fleet: Fleet) -> None:
        self.fleet = fleet
        if self.ready:
            self.redraw()
            self._ask()

    # -- the past --------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask the server for the past, unless an answer is on its way."""
        self.graphs.now = self.fleet.taken or 0.0
        step, count = span_step(self.graphs.span)
        reader = fleet_actions(self).reader
        if reader is None or self.fleet.taken is None or self._asked is not None:
            return
        self._asked = reader.past(self.host_name, self.graphs.start, step, count)
        self._asked.add_done_callback(lambda _: self.post_message(self.PastRead()))

    def on_fleet_host_screen_past_read(self) -> None:
        if self._asked is None:
            return
        error = self._asked.exception()
        self._trouble = str(error) if error is not None else ""
        if error is None:
            self._past = self._asked.result()
        self._asked = None
        self.redraw()
        if error is None and self._past is not None and not self._is_current:  # the span was changed meanwhile
            self._ask()

    @property
    def _is_current(self) -> bool:
        """Whether the past is of the span on screen."""
        past = self._past
        return past is not None and (past.start, past.step) == (self.graphs.start, span_step(self.graphs.span)[0])

    def read(self, uuid: str, user: str, figure: str) -> Values:
        """Return the values of a series over the span on screen; gaps where they are not known."""
        step, count = span_step(self.graphs.span)
        past = self._past
        if past is None or past.step != step:
            return [None] * count
        values = past.series.get(PastKey(uuid, user, figure), [None] * count)
        moved = round((self.graphs.start - past.start) / step)  # the axis has moved on since
        return [*values[moved:], *[None] * moved][:count] if 0 <= moved <= count else [None] * count

    def _newest(self, values: Values) -> float | None:
        """Return the value of now, for a legend; None where the last two are not known."""
        step, _ = span_step(self.graphs.span)
        end = max(2, int((self.graphs.now - self.graphs.start) / step))
        return next((one for one in reversed(values[end - 2 : end]) if one is not None), None)

    def added(self, figure: str, combine: Callable[[Sequence[float]], float]) -> Values:
        """Return a figure of the chosen GPU, or of all GPUs; a gap where it is not known for one of them."""
        every = [self.read(gpu.uuid, "", figure) for gpu in self._chosen]
        every = [one for one in every if any(value is not None for value in one)]
        if not every:
            return [None] * span_step(self.graphs.span)[1]
        return [
            combine([one for one in values if one is not None]) if all(one is not None for one in values) else None
            for values in zip(*every, strict=True)
        ]

    @property
    def _chosen(self) -> Sequence[HostGpu]:
        selected = self.gpus.selected
        return (selected,) if selected is not None else self.gpus.host.gpus

    # -- drawing ---------------------------------------------------------------------------------------------------

    def make_page(self, canvas: Canvas) -> SheetPage:
        listed = next((host for host in self.fleet.hosts if host.name == self.host_name), None)
        self._host = listed or self._host
        host = self._host or Host(name=self.host_name)
        if not host.gpus and self._past is not None:  # it does not answer, and has a past
            host = replace(host, gpus=self._past.gpus)
        self.gpus.host = host
        self.gpus.owners = self._past.owners if self._past is not None else ()
        self.gpus.update_rows([None, *host.gpus])
        gone = "" if listed is not None else "the server no longer lists this host"
        notice = "; ".join(filter(None, (self.fleet.trouble or self._trouble, gone, host.trouble)))
        self.graphs.now = self.fleet.taken or 0.0
        self.graphs.fit(canvas.styles, canvas.widths[0])
        first, each = graph_heights(canvas.room(notice), two_columns=canvas.two_columns)
        drawn = self._graphs()
        heights = [first, *[each] * (len(drawn) - 1)]
        blocks = self.graphs.place(drawn, heights, int(not canvas.two_columns))
        lists: list[Part] = [self.gpus, self._alerts()]
        old = old_words(self.fleet, fleet_actions(self).clock(), self.interval)
        reading = ", reading" if not self._is_current and self._asked is not None else ""
        title = " · ".join(filter(None, (host.name, self._subject, old)))
        left, right = (blocks, lists) if canvas.two_columns else (lists, blocks)
        return SheetPage(title, left, right, f"last {SPANS[self.graphs.span]}{reading}", notice, over=listed is None)

    @property
    def _subject(self) -> str:
        selected, models = self.gpus.selected, {gpu.name.removeprefix("NVIDIA ") for gpu in self._chosen}
        count = len(self._chosen)
        which = f"GPU {selected.index}" if selected is not None else f"{count} GPU{'s' * (count != 1)}"
        return " ".join([which, *sorted(models)])

    def _alerts(self) -> Section:
        facts = [
            Fact(one.severity.name.lower(), one.title, aside=f"for {duration(one.age)}" if one.age is not None else "")
            for one in self.fleet.alerts
            if one.host == self.host_name
        ]
        return Section("Alerts", tuple(facts) or (Fact("none", "no alert is firing", missing=True),))

    def _graphs(self) -> Sequence[Graph]:
        lines: tuple[tuple[str, str, str, Callable[[Sequence[float]], float], float], ...] = (
            ("utilization", "%", "utilization", lambda values: 100 * sum(values) / len(values), 100.0),
            ("power", "W", "power", sum, 20.0),
            ("temperature", self.style_set.glyphs.celsius, "temperature", max, 40.0),
        )
        found = [self._memory(self._chosen)]
        for title, unit, figure, combine, least in lines:
            values = self.added(figure, combine)
            curve = Curve("", values, self.style_set("note"), now=self._newest(values))
            found.append(
                self.graphs.graph(title, unit, [curve], axis_top(largest(values, least=least)), empty=self._empty)
            )
        return found

    @property
    def _empty(self) -> str:
        """Return why a graph has no value yet; empty where the server has none."""
        return "" if self._is_current else self._trouble or "reading"

    def _memory(self, chosen: Sequence[HostGpu]) -> Graph:
        """Return the graph of the memory by person, with the remaining used memory on top."""
        styles = self.style_set
        used = self.added("used", sum)
        uuids = {gpu.uuid for gpu in chosen}
        series = self._past.series if self._past is not None else {}
        held: dict[str, list[Values]] = defaultdict(list)
        for key in series:
            if key.user and key.uuid in uuids:
                held[key.user].append(self.read(*key))
        uids = {user: zlib.crc32(user.encode()) for user in sorted(held)}
        styles.add_people({uid: user for user, uid in uids.items()})
        curves, below = [], [0.0 for _ in used]
        for user, uid in uids.items():
            values = [
                None if total is None else sum(one or 0.0 for one in some)  # who is not listed held nothing
                for total, *some in zip(used, *held[user], strict=True)
            ]
            below = [base + (value or 0.0) for base, value in zip(below, values, strict=True)]
            curves.append(Curve(user, values, styles.owner(uid).fill, styles.initial(uid), self._newest(values)))
        rest = [None if one is None else max(0.0, one - held) for one, held in zip(used, below, strict=True)]
        curves.append(Curve("rest", rest, styles("muted"), styles.glyphs.hatch, self._newest(rest), hatched=True))
        whole = sum(float(gpu.total) for gpu in chosen if known(gpu.total))
        return self.graphs.graph(
            "memory, GiB by person",
            "GiB",
            curves,
            axis_top(max(whole, largest(used, least=0.1 * GIB)), GIB),
            show=gib,
            scale=GIB,
            stacked=True,
            empty=self._empty,
            whole=whole or None,
        )

    # -- what the user does ----------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave out earlier windows: the server is asked for the newest values."""
        return action != "window"

    def action_span(self, seconds: float) -> None:
        self.graphs.set_span(float(seconds))
        self._ask()
        self.redraw()

    def action_move(self, by: int) -> None:
        self.gpus.point(self.gpus.cursor + by)
        self.redraw()
