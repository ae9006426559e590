"""What the dashboard draws, must not leave out and must not claim, by Pilot, with frames handed in and no thread."""

from __future__ import annotations

import re
from itertools import product
from typing import Any, get_args

import msgspec
import pytest

from gpuwatch.alerts.alert import AlertGpu, Severity
from gpuwatch.alerts.rules.devices import UNUSED
from gpuwatch.config.types import Theme
from gpuwatch.model.fields import PROCESS
from gpuwatch.model.snapshot import Health, Holding, Memory, Presence, Process, Reason, SourceState
from gpuwatch.ui.app import NewFrame
from gpuwatch.ui.draw.keys import KEYS, commands
from gpuwatch.ui.partial_updates import PartialUpdate
from tests.support.builders import EPOCH, gpu, holding, process, snapshot
from tests.support.screen import SIZES, alert, frame, hand, machine, press, resize, running, screen, table, text, until

HOSTILE = ["[/x]", "[/", "[b", "[red]hi", "[@click=app.quit]x", "$x", "{0}", "日本語", "é́x", "\ufffd]2;PWN"]


async def test_before_the_first_frame_it_says_that_it_starts() -> None:
    async with running() as (app, pilot):
        assert "starting" not in text(app)
        app._began -= 7
        app.paint()
        await pilot.pause()
        assert "starting: 7 s" in text(app)
        assert "q quit" in text(app)
        for key in ("down", "enter", "K", "less_than_sign", "slash", "escape", "p", "p", "m", "end"):
            await pilot.press(key)


EMPTY_STATES = [
    (SourceState.NO_DRIVER, "no NVIDIA driver"),
    (SourceState.DRIVER_DOWN, "retries automatically"),
    (SourceState.NO_GPU, "no GPU"),
    (SourceState.SILENT, "not responding since"),
    (SourceState.STARTING, ""),
]


async def test_each_empty_state_has_its_own_words() -> None:
    async with running(size=(60, 10)) as (app, pilot):
        for state, words in EMPTY_STATES:
            await hand(app, pilot, frame(snapshot(state=state, words="what the driver said", since=EPOCH)))
            assert words in text(app)
            assert state is SourceState.STARTING or "what the driver said" in text(app)


async def test_missing_readings_are_dashes_and_never_zero() -> None:
    nothing = Reason.UNSUPPORTED
    figures: dict[str, Any] = dict.fromkeys(
        ("utilization", "temperature", "power", "power_limit", "unattributed"), nothing
    )
    memory = Memory(total=nothing, used=nothing, free=nothing, reserved=nothing)
    card = gpu(0, holdings=[Holding(pid=1, start=1, memory=nothing, sm=nothing)], memory=memory, **figures)
    bare = process(1, cpu=nothing, rss=nothing, started=None)
    async with running(frame(snapshot([card], [bare])), (80, 24)) as (app, pilot):
        assert app.dashboard.gpu_panel.text[1].split()[1:] == ["memory:", "unsupported", *"————"]
        await resize(app, pilot, (160, 50))
        row = app.dashboard.gpu_panel.text[1]
        assert row.count("—") == 6
        assert "0" not in row.replace("0 H100 80GB", "")
        app.show_columns(tuple(PROCESS))  # those that are empty in all rows, too
        await pilot.pause()
        assert table(app)[0].count("—") == 7


async def test_hostile_names_are_drawn_as_they_are() -> None:
    async with running() as (app, pilot):
        for hostile in HOSTILE:
            owner = process(7, hostile, command=f"run {hostile}", name=hostile, parent=hostile)
            card = gpu(0, holdings=[holding(7, 40)], name=hostile, holdings_note=hostile)
            sick = gpu(1, health=Health.FAILED, words=hostile)
            seen = snapshot([card, sick], [owner], host=hostile, driver=hostile, cuda=hostile)
            for size in ((160, 50), (60, 10)):
                await resize(app, pilot, size, frame(seen, alert(0, title=hostile, evidence=hostile)))
                assert hostile in text(app)
        await pilot.press("slash", "[", "slash", "b", "escape", "enter", "escape")
        assert not app._exit


async def test_old_figures_are_dimmed_and_then_said_to_be_stale() -> None:
    async with running(frame(machine(1))) as (app, pilot):
        line = app.dashboard.gpu_panel.lines[1]
        await hand(app, pilot, frame(machine(1), age=3))
        assert app.dashboard.gpu_panel.lines[1] != line
        assert "stale" not in app.dashboard.gpu_panel.text[1]
        assert "stale 3 s" in app.dashboard.header.text[0]
        await hand(app, pilot, frame(machine(1), age=14))
        assert "stale 14 s" in app.dashboard.gpu_panel.text[1]


async def test_a_sick_gpu_keeps_its_row_with_words_for_figures() -> None:
    sick = gpu(1, health=Health.SILENT, words="no answer for 14 s (nvmlDeviceGetUtilizationRates)", since=EPOCH)
    async with running(frame(snapshot([gpu(0), sick])), (80, 24)) as (app, _):
        row = app.dashboard.gpu_panel.text[-1]
        assert row.startswith("▲  1")
        assert "not responding since" in row
        assert "no answer for 14 s" in row
        assert "55" not in row


async def test_a_process_that_is_gone_or_hidden_says_so() -> None:
    card = gpu(0, holdings=[holding(1, 9), holding(2, 8), holding(3, 7)])
    people = [
        Process(pid=1, start=1, presence=Presence.GONE),
        Process(pid=2, start=2, presence=Presence.HIDDEN),
        process(3, state="zombie"),
    ]
    async with running(frame(snapshot([card], people)), (160, 50)) as (app, _):
        rows = table(app)
        assert "  (ended: it still holds" in rows[0]
        assert "hidden: /proc shows only your own" in rows[1]
        assert "zombie train.py" in rows[2]


async def test_an_unchanged_frame_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = frame(machine(8), alert(0))
    async with running(first, (160, 50)) as (app, pilot):
        drawn: list[Any] = []
        shown = app.dashboard
        for panel in (shown.gpu_panel, shown.alerts, shown.process_panel, shown.header):
            monkeypatch.setattr(panel, "_set_dirty", lambda *regions: drawn.append(regions))
        await hand(app, pilot, frame(machine(8), alert(0), now=first.received))  # graphs move with the clock
        assert drawn == []


async def test_changed_cells_are_drawn_in_the_turn_that_receives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    first = frame(machine(8), alert(0))
    async with running(first, (160, 50)) as (app, _pilot):
        drawn: list[Any] = []
        seen = machine(8)
        seen = msgspec.structs.replace(seen, gpus=(msgspec.structs.replace(seen.gpus[0], power=7.0), *seen.gpus[1:]))
        with monkeypatch.context() as patched:
            patched.setattr(app, "_display", lambda screen, update: drawn.append(update))
            app.on_new_frame(NewFrame(frame(seen, alert(0), now=first.received)))
        assert [type(one) for one in drawn] == [PartialUpdate]


async def test_a_storm_of_sizes() -> None:
    async with running(size=(80, 24)) as (app, pilot):
        for gpus in (0, 16):
            for size in [(1, 1), (2, 3), (300, 5), (20, 80), (0, 0), (80, 24)]:
                await pilot.resize_terminal(*size)
                await hand(app, pilot, frame(machine(gpus), alert(0)))
            assert "box3" in text(app)
            await pilot.resize_terminal(36, 5)
            await pilot.pause()
            assert "needs 40×6" in text(app)
            assert "GPU 0 nearly full" in text(app)


UNUSUAL: list[tuple[dict[str, Any], bool, str]] = [
    ({"throttle": ("hw thermal",), "temperature": 91}, True, "hw thermal"),
    ({"throttle": ("power brake",)}, True, "power brake"),
    ({"throttle": ("power cap",)}, False, "power limit"),
    ({"ecc_uncorrected": 1}, False, "1 ECC error"),
    ({"ecc_uncorrected": 2}, False, "2 ECC errors"),
    ({"utilization": 0}, False, "free"),
    ({"utilization": Reason.UNSUPPORTED}, False, "free"),
    ({"utilization": 60}, False, "busy, no process"),
    ({"utilization": 19}, False, "unknown processes"),
    ({"utilization": 0, "used_gib": 20}, False, "unknown processes"),
    ({"used_gib": 40, "holdings_note": "you may not see this", "unattributed": Reason.DENIED}, False, "░░░░"),
]


async def test_a_row_says_what_is_unusual_about_a_gpu() -> None:
    async with running() as (app, pilot):
        for size, (changes, marked, words) in product([(160, 50), (80, 24)], UNUSUAL):
            await resize(app, pilot, size, frame(snapshot([gpu(3, **changes)])))
            row = app.dashboard.gpu_panel.text[-1]
            assert ("▲" in row) is marked
            assert words in row
            assert words == "free" or not row.rstrip().endswith(" free")


async def test_a_row_says_who_makes_its_gpu_full_and_nothing_of_other_gpus() -> None:
    cards = [gpu(n, holdings=[holding(7, 30.0 + n)]) for n in range(3)]
    blocked = tuple(AlertGpu(cards[n].key, n) for n in (1, 2))
    unused = alert(1, Severity.WARNING, rule=UNUSED, gpu=cards[1].key, gpus=blocked, pids=(7,), short="dov 31.0 unused")
    near = alert(2, gpu=cards[2].key, short="nearly full")
    async with running(frame(snapshot(cards, [process(7, "dov")]), near, unused), (160, 50)) as (app, pilot):
        for size, third in (((160, 50), "dov 32.0 unused · nearly full"), ((80, 24), "dov 32.0 unused +1")):
            await resize(app, pilot, size)
            states = [row[-31 if size[0] > 80 else -25 :].strip() for row in app.dashboard.gpu_panel.text[1:]]
            assert states == ["", "dov 31.0 unused", third]


async def test_a_gpu_that_is_full_at_the_start_is_marked_before_there_is_an_alert() -> None:
    full = alert(1, short="nearly full")
    async with running(frame(machine(2)), (160, 50)) as (app, pilot):
        await hand(app, pilot, msgspec.structs.replace(frame(machine(2)), early=(full,)))
        assert app.dashboard.gpu_panel.text[2].startswith("●")
        assert app.dashboard.gpu_panel.text[2].rstrip().endswith("nearly full")
        assert not app.dashboard.alerts.display
        assert not app._notifications


async def test_where_the_driver_lists_no_process_none_is_counted() -> None:
    card = gpu(0, used_gib=2, utilization=90, holdings_note="this driver does not list this GPU's processes")
    async with running(frame(snapshot([card])), (160, 50)) as (app, _):
        assert "1 GPU · processes not listed" in app.dashboard.header.text[0]
        assert "this driver does not list this GPU's processes" in text(app)
        assert not any(words in text(app) for words in ("0 process", "no process holds", "busy, no process"))


async def test_a_toast_tells_alerts_that_are_out_of_sight_and_covers_no_row() -> None:
    for size, keys, count, told in (
        ((80, 24), [], 1, []),
        ((80, 24), ["question_mark"], 1, ["● GPU 0 nearly full"]),
        ((60, 10), [], 4, ["● GPU 2 nearly full +1: e lists all"]),
    ):
        async with running(frame(machine(8)), size) as (app, pilot):
            await pilot.press(*keys)
            await hand(app, pilot, frame(machine(8), *[alert(n, title=f"GPU {n} nearly full") for n in range(count)]))
            assert [one.message for one in app._notifications] == told
            rows = screen(app)[:-1]
            app.notify("of long words " * 10, timeout=60)
            await until(pilot, lambda: bool(re.fullmatch(r"▌ of .*…", screen(app)[-1].strip())))
            assert screen(app)[:-1] == rows
            parts = [one.message.rstrip("…") for one in app._notifications][len(told) :]
            assert " ".join(reversed(parts)).split() == ["of", "long", "words"] * 10


def test_the_palette_has_every_order_and_theme_and_every_key_but_those_that_move_about() -> None:
    moving = {"up", "down", "left", "right", "pageup", "pagedown", "first", "last", "sort_left", "sort_right"}
    offered = {one.action for one in commands()}
    lacking = {one.id for one in KEYS if one.action not in offered}
    assert lacking == {*moving, "palette", "suspend"}
    assert {f"sort_by('{column}')" for column in PROCESS} | {f"theme('{name}')" for name in get_args(Theme)} <= offered
    assert len({one.name for one in commands()}) == len(commands())
    assert {one.action: one.help for one in commands()}["end_process"] == "K F9", "its name says the rest"


async def test_ascii_is_ascii_and_our_own_signs_are_spelled_in_it() -> None:
    seen = machine(8, words="")
    sick = msgspec.structs.replace(seen.gpus[3], health=Health.LOST, words="日本")
    seen = msgspec.structs.replace(seen, gpus=(*seen.gpus[:3], sick, *seen.gpus[4:]))
    async with running(frame(machine(1), alert(0, evidence="ben 40.0 · pid 7 1.4")), ascii=True) as (app, pilot):
        assert "ben 40.0 | pid 7" in text(app)
        await press(pilot, "slash", "z", "enter")
        assert 'no process matches "z"' in "\n".join(table(app))
        assert "?" not in text(app).replace("? help", "")
        for size in SIZES:
            await resize(app, pilot, size, frame(seen, alert(0), alert(1, Severity.WARNING)))
            assert text(app).isascii()


async def test_what_is_acknowledged_or_muted_is_dim_on_its_gpus_line_and_known_warnings_are_counted() -> None:
    old = [alert(n, Severity.WARNING, rule="throttled", raised=EPOCH - 700, title=f"GPU {n} throttled") for n in (2, 3)]
    heard = alert(0, title="GPU 0 full: 0.1 GiB of 79.1 free")
    async with running(frame(machine(4), heard, *old), (160, 50)) as (app, pilot):
        assert app.dashboard.gpu_panel.text[1].startswith("●")
        assert "GPU 0 full" in app.dashboard.alerts.text[0]
        assert "2 older: press e" in app.dashboard.alerts.text[0]
        assert not any("throttled" in line for line in app.dashboard.alerts.text)
        for mark in ("acknowledged", "muted"):
            await hand(app, pilot, frame(machine(4), msgspec.structs.replace(heard, **{mark: True}), *old))
            line = app.dashboard.gpu_panel.text[1]
            assert line.startswith(" ")
            assert line.rstrip().endswith("nearly full")
        await hand(app, pilot, frame(machine(4), *old))
        assert [line.strip() for line in app.dashboard.alerts.text] == ["2 older: press e"]
