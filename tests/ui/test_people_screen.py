"""The screen of people: its columns at every width, order, cursor, detail, and what it asks the dashboard for."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from gpuwatch.analysis.people import PERSON
from gpuwatch.model.snapshot import Process, Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.theme import StyleSet, make_styles
from gpuwatch.ui.screens.people import PeopleList, PeopleScreen, columns
from gpuwatch.ui.widgets.panels import ListPanel
from tests.analysis.test_people import a_person
from tests.support.builders import GIB, gpu, holding, process, snapshot, uid
from tests.support.screen import Host, click, frame, frame_clock, press

NAMES = ["ada", "ben", "cyn", "dov", "eve", "fay", "gus", "hal", "you"]
SKIN = make_styles("gpuwatch-dark")


class Desk(Host):
    """An app around the screen."""

    @property
    def list(self) -> PeopleList:
        assert isinstance(self.screen, PeopleScreen)
        return self.screen.rows


def uid_of(name: str, place: int = 0) -> int:
    """Return a uid of their own to each of `NAMES`, and to others by their place."""
    return uid(name) if name == "you" else 2000 + NAMES.index(name) if name in NAMES else 3000 + place


def crowd(names: list[str], *, unseen: bool = False, gib: float = 1.0) -> Snapshot:
    """Eight GPUs on which each of these people holds memory: the first most, in two processes."""
    held: list[list[Any]] = [[] for _ in range(8)]
    owners = []
    for place, name in enumerate(names):
        size = gib * (1 + (len(names) - place) / 4)
        for pid in (100 + 10 * place, 101 + 10 * place):
            held[pid % 8].append(holding(pid, size, sm=0 if name == "eve" else 30))
            owners.append(process(pid, name, uid=uid_of(name, place)))
    if unseen:
        held[0].append(holding(9, 0.5))
    cards = [gpu(n, holdings=some) for n, some in enumerate(held)]
    return snapshot(cards, [*owners, Process(pid=9)] if unseen else owners)


async def opened(pilot: Pilot[Any], shown: Frame, drawn_with: StyleSet = SKIN) -> Desk:
    app = pilot.app
    assert isinstance(app, Desk)
    await app.push_screen(PeopleScreen(shown, drawn_with, clock=frame_clock))
    await pilot.pause()
    return app


async def test_what_enter_y_and_two_clicks_ask_for() -> None:
    async with Desk().run_test(size=(120, 36)) as pilot:
        app = await opened(pilot, frame(crowd(NAMES, unseen=True)))
        await click(pilot, ListPanel, 20, 4)
        assert app.list.selected is not None
        assert app.list.selected.name == "dov"
        await pilot.click(ListPanel, offset=(20, 30))
        assert app.list.selected.name == "dov"
        await pilot.press("j", "y")
        assert app.asked == [("message", uid_of("eve"))]
        await press(pilot, "enter")
        assert app.asked[1:] == [("user", uid_of("eve"))]
        assert not isinstance(app.screen, PeopleScreen)
        await opened(pilot, frame(crowd(NAMES, unseen=True)))
        await press(pilot, "G", "y", "enter")
        assert app.asked[2:] == [("message", None), ("user", None)]
        await opened(pilot, frame(crowd(NAMES, unseen=True)))
        await click(pilot, ListPanel, 20, 3, times=2)
        assert app.asked[4:] == [("user", uid_of("cyn"))]


def test_a_wider_terminal_never_lacks_a_column_of_a_narrower_one() -> None:
    for found in ([], [a_person()], [a_person(name="x" * 30, gpus=tuple(range(0, 16, 2)))]):
        before: set[str] = set()
        for width in range(1, 200):
            shown = columns(width, found)
            names = {one.id for one in shown}
            if width not in (50, 70, 100):  # there a name gets more room
                assert before <= names
            before = names
            assert width < 12 or 2 + sum(one.gap + one.cells for one in shown) <= width


@pytest.mark.parametrize(
    ("column", "changes", "words"),
    [
        ("memory", {"at_least": True}, "≥40.0"),
        ("memory", {"at_least": True, "memory": 0}, "—"),
        ("part", {}, "6"),
        ("part", {"share": None}, "—"),
        ("declared", {}, "·"),
        ("declared", {"unread": True}, ""),
        ("declared", {"declared": 16 * GIB, "unread": True}, "≥16.0"),
        ("sm", {"sm": 250.4, "sm_at_least": True}, "≥250"),
        ("sm", {"sm": None}, "—"),
        ("use", {}, "—"),
        ("waste", {}, "—"),
        ("longest", {"sm": 40.0}, ""),
        ("longest", {"sm": None}, "—"),
        ("gpus", {"gpus": tuple(range(0, 16, 2))}, "8 GPUs"),
        ("gpus", {"gpus": (0, 1, 2, 5)}, "0-2,5"),
        ("processes", {}, "1"),
    ],
)
def test_a_cell(column: str, changes: dict[str, object], words: str) -> None:
    assert PERSON[column].cell(a_person(**changes), SKIN.glyphs.missing, SKIN.glyphs.least) == words


def test_bars_have_the_scale_of_the_largest() -> None:
    people, plain = PeopleList(), make_styles("gpuwatch-dark", colors=1, ascii_only=True)
    people.update_rows([a_person(uid=uid, memory=size * GIB) for uid, size in ((1, 20), (2, 10), (3, 0))])
    lines = ["".join(span[0] for span in line) for line in people.lines(plain, 120, 4)[1:]]
    full, half, none = (line.count(plain.glyphs.fill) for line in lines)
    assert (round(full / 2), 0) == (half, none)
    assert full > 30
