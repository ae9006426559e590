"""The process list drawn again: rows that show the same are kept, and every change of what they show is drawn."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.analysis.strays import Stray, StrayCause, StrayCertainty
from gpuwatch.history.history import History
from gpuwatch.model.snapshot import Idle, Presence, Reason
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.dashboard import DashboardState, draw
from gpuwatch.ui.draw.lines import Line, plain
from gpuwatch.ui.draw.theme import StyleSet, make_styles
from gpuwatch.ui.draw.view import View
from tests.support.alerts import cap
from tests.support.builders import EPOCH, gpu, holding, memory, process, snapshot
from tests.support.screen import alert

PID = 7
OVER = alert(0, rule=OVERSHOOT, pids=(PID,), severity=Severity.WARNING)


def shown(
    *alerts: Alert,
    held: dict[str, Any] | None = None,
    on: dict[str, Any] | None = None,
    taken: float = EPOCH,
    idle: Idle | None = None,
    **changes: Any,
) -> Frame:
    """Return a frame with two processes; `held`, `on` and `changes` are those of the first one.

    The second one has all that decides which columns are shown.
    """
    holdings = [holding(PID, **{"gib": 12.0, "sm": 0, **(held or {})}), holding(8, 9.0, sm=0)]
    card = replace(gpu(0, holdings=holdings), **(on or {}))
    people = [process(PID, **{"user": "ada", **changes}), process(8, declared=cap(9))]
    seen = snapshot([card], people, taken=taken)
    history = History()
    known = {8: Idle(300.0, at_least=False), PID: idle}
    history.restore_idle({(card.key, pid, pid): one for pid, one in known.items() if one is not None}, 100.0)
    return Frame(seen, 100.0, history.add(seen, 100.0), alerts)


def drawn(frame: Frame, state: DashboardState, styles: StyleSet, width: int = 160, **options: Any) -> list[Line]:
    view = View(frame, 100.0, styles, 1.0, **options)
    return list(draw(view, state, (width, 30), []).processes)


def test_a_row_that_shows_the_same_is_not_made_again() -> None:
    state, styles = DashboardState(), make_styles("gpuwatch-dark")
    first, again = (drawn(shown(on={"power": watts}), state, styles) for watts in (300.0, 310.0))
    assert all(before is after for before, after in zip(first[1:3], again[1:3], strict=True))
    busy = drawn(shown(cpu=42.0), state, styles)
    assert [before is after for before, after in zip(first[1:3], busy[1:3], strict=True)] == [False, True]


@pytest.mark.parametrize(
    "change",
    [
        {"command": "python other.py", "program": "another"},  # exec(2) in the same process
        {"user": "ben"},
        {"presence": Presence.GONE},
        {"state": "zombie"},
        {"cpu": 1.0},
        {"rss": Reason.DENIED},
        {"started": EPOCH - 7200},
        {"declared": cap(10)},
        {"taken": EPOCH + 120},
        {"idle": Idle(120.0, at_least=False)},
        {"idle": Idle(120.0, at_least=True)},
        {"held": {"gib": 13.0}},
        {"held": {"sm": 70}},
        {"on": {"memory": memory(21, total=40 << 30)}},
        {"on": {"index": 3}},
        {"on": {"sampled": 900.0}},  # dimmed
    ],
)
def test_each_change_is_drawn_as_if_it_were_new(change: dict[str, Any]) -> None:
    state, styles = DashboardState(), make_styles("gpuwatch-dark")
    drawn(shown(), state, styles)
    frame = shown(**change)
    assert drawn(frame, state, styles) == drawn(frame, DashboardState(), styles)
    assert drawn(frame, state, styles) != drawn(shown(), DashboardState(), styles)


def test_alerts_strays_widths_and_themes_are_drawn_too() -> None:
    state, styles = DashboardState(), make_styles("gpuwatch-dark")
    frame = shown(declared=cap(10))
    plainly = drawn(frame, state, styles)
    over = shown(OVER, declared=cap(10))
    assert "▲" in plain(drawn(over, state, styles)[1])
    assert drawn(frame, state, styles) == plainly
    stray = Stray(frame.snapshot.processes[0], (), (), 0, StrayCause.IDLE, StrayCertainty.CERTAIN, ())
    assert "stray" in plain(drawn(frame, state, styles, strays={(PID, PID): stray})[1])
    assert drawn(frame, state, styles) == plainly
    light = make_styles("gpuwatch-light")
    assert drawn(frame, state, light) == drawn(frame, DashboardState(), light)
    assert drawn(frame, state, light, 100) == drawn(frame, DashboardState(), light, 100)


def test_an_initial_that_changes_with_the_name_is_drawn() -> None:
    state, styles = DashboardState(), make_styles("gpuwatch-dark", colors=16)
    nameless: dict[str, Any] = {"uid": 4711, "user": "4711"}
    drawn(shown(**nameless), state, styles)
    named = shown(**{**nameless, "user": "zoe"})
    assert drawn(named, state, styles) == drawn(named, DashboardState(), styles)
    assert "z" in plain(drawn(named, state, styles)[1]).split("zoe")[0]
