"""The layout of the dashboard at any size, and what its widgets draw there, measured cell by cell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.pilot import Pilot

from gpuwatch.alerts.alert import Severity
from gpuwatch.base.text import clean
from gpuwatch.model.fields import PROCESS
from gpuwatch.model.snapshot import Gpu, Health, Instance, Memory, Presence, Process, Reason, Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.draw.dashboard import Drawn
from gpuwatch.ui.draw.layout import LEAST_ROWS, MIN_HEIGHT, MIN_WIDTH, Form, fit_layout, form_of, heat_map_grid
from gpuwatch.ui.draw.lines import plain
from gpuwatch.ui.draw.row_list import RowList
from gpuwatch.ui.draw.table import Column, Table
from gpuwatch.ui.draw.theme import make_styles
from gpuwatch.ui.widgets.panels import LinePanel
from tests.support.builders import gpu, holding, memory, process, snapshot
from tests.support.screen import HOSTILE, Clockwork, alert, frame, frame_clock, hand, press, set_size

Running = tuple[asyncio.Runner, GpuwatchApp, Pilot[int]]

NAMES: Final = [
    "ada",
    "日本語の名前",
    "e\u0301va",
    "[b]x[/b]",
    "x" * 40,
    "👩\N{ZERO WIDTH JOINER}🚀 user",
    "1001",
    "",
    *HOSTILE[:3],
]
KEYS: Final = ["tab", "down", "up", "left", "right", "end", "home", "pagedown", "f", "m", "r", "greater_than_sign", "p"]
"""Keys that leave the dashboard on screen."""


@pytest.fixture(scope="module")
def dashboard() -> Iterator[Running]:
    """Run one dashboard for all examples; each sets its size and hands in a frame."""
    with asyncio.Runner() as runner:
        app = GpuwatchApp(watch=Clockwork(), clock=frame_clock)
        running = app.run_test(size=(80, 24))
        pilot = runner.run(running.__aenter__())
        yield runner, app, pilot
        runner.run(running.__aexit__(None, None, None))


@st.composite
def gpus(draw: st.DrawFn) -> list[Gpu]:
    """Make up to 64 GPUs: a few kinds, and each of the others is like one of these."""
    kinds = draw(st.lists(_kinds(), min_size=1, max_size=4))
    count = draw(st.one_of(st.integers(0, 64), st.sampled_from([0, 1, 8, 16, 64])))
    first = draw(st.sampled_from([0, 0, 0, 98, 997]))
    return [_like(kinds[n % len(kinds)], first + n) for n in range(count)]


def _like(kind: dict[str, Any], index: int) -> Gpu:
    held = [holding(100 * index + k, gib, gpu_instance=k % 3) for k, gib in enumerate(kind["held"])]
    parts = tuple(
        Instance(
            uuid=f"MIG-{index}-{k}",
            name=f"MIG {kind['profile']}",
            gpu_instance=k,
            compute_instance=0,
            memory=memory(k),
        )
        for k in range(kind["instances"])
    )
    changes = {**kind["changes"], "mig": bool(parts), "instances": parts}
    return gpu(index, holdings=held, **changes)


@st.composite
def _kinds(draw: st.DrawFn) -> dict[str, Any]:
    reading = st.one_of(st.sampled_from(list(Reason)), st.integers(0, 10**6))
    unknown = Memory(total=Reason.UNSUPPORTED, used=Reason.DENIED, free=Reason.ERROR, reserved=Reason.NO_SAMPLE)
    changes = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(NAMES),
                "health": st.sampled_from(list(Health)),
                "words": st.sampled_from(HOSTILE).map(clean),
                "utilization": reading,
                "temperature": reading,
                "power": reading,
                "sampled": st.sampled_from([0.0, 990.0, 1000.0]),
                "memory": st.sampled_from([memory(0), memory(79), unknown]),
                "holdings_note": st.sampled_from(["", "x" * 70, "the driver has no process list"]),
                "throttle": st.sampled_from([(), ("hw thermal", "power brake"), ("power cap",), Reason.ERROR]),
                "ecc_uncorrected": reading,
            },
        )
    )
    return {
        "held": draw(st.lists(st.sampled_from([0, 0.1, 1, 7.5, 40, 700]), max_size=8)),
        "instances": draw(st.sampled_from([0, 0, 0, 1, 7])),
        "profile": draw(st.sampled_from(["1g.10gb", "", "日本語"])),
        "changes": changes,
    }


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    cards = draw(gpus())
    names = [clean(one) for one in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))]
    commands = [
        clean(one) for one in draw(st.lists(st.sampled_from([*HOSTILE, "python x.py"]), min_size=1, max_size=3))
    ]
    presence = draw(st.sampled_from(list(Presence)))
    pids = [one.pid for card in cards for one in card.holdings]
    people = [_person(pid, n, names, commands, presence) for n, pid in enumerate(pids)]
    severities = draw(st.lists(st.sampled_from(list(Severity)), max_size=9))
    title = draw(st.sampled_from([*HOSTILE[:6], "GPU 1 nearly full: 0.4 of 79.1 GiB free"]).map(clean))
    alerts = [
        alert(cards[n % len(cards)].index if cards else 1, one, title=title, rule=f"rule {n}")
        for n, one in enumerate(severities)
    ]
    host = draw(st.sampled_from(["box3", *NAMES]).map(clean))
    seen: Snapshot = snapshot(cards, people, host=host, demo=draw(st.booleans()))
    return frame(seen, *alerts, age=draw(st.sampled_from([0.0, 100.0, 1e6])))


def _person(pid: int, n: int, names: Sequence[str], commands: Sequence[str], presence: Presence) -> Process:
    odd = presence if n % 5 == 0 else Presence.SEEN
    user = names[n % len(names)]
    return process(pid, user or "x", command=commands[n % len(commands)], presence=odd)


SIZES: Final = st.one_of(
    st.tuples(st.integers(20, 400), st.integers(5, 120)),
    st.sampled_from([(160, 50), (80, 24), (60, 10), (40, 6), (39, 6), (70, 24), (100, 30), (150, 40)]),
)
STYLE_SETS: Final = [(1 << 24, False), (256, False), (16, False), (0, False), (0, True)]


@settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    shown=frames(),
    size=SIZES,
    styles=st.sampled_from(STYLE_SETS),
    order=st.sampled_from(list(PROCESS)),
    keys=st.lists(st.sampled_from(KEYS), max_size=4),
    columns=st.one_of(st.just(()), st.permutations(list(PROCESS)), st.just(["user", "idle"])),
)
@example(
    shown=frame(snapshot([gpu(n, holdings=[holding(n, 1)]) for n in range(64)])),
    size=(20, 5),
    styles=(0, True),
    order="memory",
    keys=["tab", "f"],
    columns=(),
)
def test_anything_fits_any_size(
    dashboard: Running,
    shown: Frame,
    size: tuple[int, int],
    styles: tuple[int, bool],
    order: str,
    keys: list[str],
    columns: Sequence[str],
) -> None:
    runner, app, pilot = dashboard
    app.dashboard.processes.chosen = tuple(columns)
    colors, ascii_only = styles
    app.style_set = make_styles(app.theme, colors=colors, ascii_only=ascii_only)
    frame_clock.now = max(frame_clock.now, shown.received + 100)
    runner.run(draw_and_check(app, pilot, shown, size, order, keys))


async def draw_and_check(
    app: GpuwatchApp, pilot: Pilot[int], shown: Frame, size: tuple[int, int], order: str, keys: Sequence[str]
) -> None:
    if app.size != size:
        await set_size(pilot, size)
    if app.paused:
        app.action_pause()
    app.action_clear()
    app.dashboard.state.activate(app.dashboard.processes)
    app.dashboard.processes.sort_by(order)
    await hand(app, pilot, shown)
    check(app, shown, size)
    if keys:
        await press(pilot, *keys)
        check(app, shown, size)


def check(app: GpuwatchApp, shown: Frame, size: tuple[int, int]) -> None:
    """Assert that the lines add up, that no two panels overlap, and that nothing is wider than its cell."""
    width, height = size
    dashboard, layout = app.dashboard, app.dashboard.drawn.layout
    assert app.screen is dashboard
    assert layout is not None
    assert layout.height == height
    assert (layout.form is Form.TINY) == (width < MIN_WIDTH or height < MIN_HEIGHT)
    panels = [one for one in dashboard.children if one.display]
    line = 0
    for panel in panels:
        assert isinstance(panel, LinePanel)
        region = panel.region
        assert (region.x, region.width) == (0, width)
        assert line <= region.y <= line + layout.gap, panel.id
        line = region.bottom
        assert len(panel.lines) <= region.height, panel.id
        for one in panel.lines:
            assert sum(span.cells for span in one) == width, panel.id
            assert all(cell_len(span.text) == span.cells for span in one), panel.id
    assert line == height
    strips = app.screen._compositor.render_strips()
    assert [strip.cell_length for strip in strips] == [width] * height
    assert [strip.text for strip in strips] == drawn_lines(dashboard.drawn, width), "no more than was drawn is shown"
    if layout.form is not Form.TINY and shown.snapshot.gpus:
        assert len(dashboard.gpu_panel.lines) == layout.gpu_title + layout.gpus + layout.detail
        assert len(dashboard.process_panel.lines) == layout.table_title + layout.rows
        for rows in (dashboard.gpus, dashboard.processes):
            check_cells(rows._table, rows)


def drawn_lines(drawn: Drawn, width: int) -> list[str]:
    """Return the lines of all panels, with the blank ones between."""
    gap = [" " * width] * drawn.gap
    lists, footer = (drawn.alerts.lines, drawn.processes), [drawn.footer.line] if drawn.footer else []
    spaced = [text for lines in lists if lines for text in (*gap, *map(plain, lines))]
    return [*map(plain, (*drawn.header, *drawn.gpus)), *spaced, *map(plain, (*drawn.notice, *footer))]


def check_cells(table: Table, rows: object) -> None:
    """Assert that each cell of a table takes the cells of its column, but for the last, which fills its line."""
    columns: Sequence[Column] = table._form[1]
    assert not isinstance(rows, RowList) or columns == rows._table_columns
    for drawn in table._drawn.values():
        for column, (spans, cells) in list(zip(columns, drawn.parts, strict=False))[:-1]:
            assert cells == sum(span.cells for span in spans) == column.gap + column.cells, (column.id, spans)


@given(
    width=st.integers(1, 300),
    height=st.integers(1, 100),
    n_gpus=st.integers(0, 64),
    n_alerts=st.integers(0, 70),
    n_rows=st.integers(0, 500),
    n_children=st.integers(0, 56),
)
@example(width=40, height=6, n_gpus=64, n_alerts=9, n_rows=40, n_children=0)
@example(width=1, height=1, n_gpus=8, n_alerts=1, n_rows=1, n_children=0)
def test_every_line_of_the_terminal_is_given_away_once(
    width: int, height: int, n_gpus: int, n_alerts: int, n_rows: int, n_children: int
) -> None:
    layout = fit_layout(width, height, n_gpus, n_alerts, n_rows, n_children=n_children)
    assert layout.height == height
    counts = (layout.header, layout.gpus, layout.alerts, layout.rows, layout.footer, layout.gap)
    assert min(counts) >= 0
    if layout.form is Form.TINY:
        assert width < MIN_WIDTH or height < MIN_HEIGHT
        return
    assert layout.form is form_of(width)
    assert layout.alerts >= min(n_alerts, 1)
    assert layout.alerts <= n_alerts
    if layout.gpu_form is not Form.HEAT_MAP:
        assert layout.gpus == n_gpus + (n_children if layout.children else 0)
        assert layout.rows >= min(n_rows, LEAST_ROWS)
    elif layout.rows >= LEAST_ROWS:
        assert layout.gpus == heat_map_grid(width, n_gpus).lines


@pytest.mark.parametrize(
    ("width", "height", "n_gpus", "n_children", "form", "least_rows", "children"),
    [
        (160, 50, 8, 7, Form.FULL, 18, True),
        (120, 36, 8, 0, Form.MEDIUM, 16, False),
        (80, 24, 8, 0, Form.COMPACT, 8, False),
        (80, 24, 8, 14, Form.COMPACT, 8, False),  # MIG instances lose their rows before processes do
        (80, 24, 16, 0, Form.COMPACT, 3, False),
        (160, 50, 16, 0, Form.FULL, 20, False),
        (160, 50, 16, 112, Form.FULL, 15, False),
        (160, 50, 64, 0, Form.HEAT_MAP, 25, False),
        (80, 24, 64, 0, Form.HEAT_MAP, 8, False),
        (60, 10, 8, 0, Form.HEAT_MAP, 3, False),
    ],
)
def test_the_promised_sizes(
    width: int, height: int, n_gpus: int, n_children: int, form: Form, least_rows: int, children: bool
) -> None:
    layout = fit_layout(width, height, n_gpus, 2, 43, n_children=n_children)
    assert layout.gpu_form is form
    assert layout.rows >= least_rows
    assert bool(layout.children and n_children) is children
