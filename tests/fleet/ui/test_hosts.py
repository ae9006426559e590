"""The dashboard of several hosts: its list, what opening one changes, and how a process over there is ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from textual.app import App
from textual.pilot import Pilot

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import Limits
from gpuwatch.config.types import RemoteHost
from gpuwatch.fleet.host import Host, HostGpu
from gpuwatch.fleet.remote import RemoteHosts
from gpuwatch.fleet.ssh import Hosts
from gpuwatch.fleet.ui.hosts_app import HostsApp
from gpuwatch.fleet.ui.hosts_screen import HostsScreen
from gpuwatch.model.snapshot import ProcessContext, Snapshot, SourceState
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.ui.app import NewFrame
from gpuwatch.ui.options import Helpers, Options
from tests.support.builders import GIB, gpu, holding, process, snapshot
from tests.support.screen import (
    HOSTILE,
    Clockwork,
    alert,
    fits,
    frame,
    frame_clock,
    press,
    running,
    set_size,
    text,
    top,
    until,
)

ROWS = [
    Host(name="idle", gpus=(HostGpu(index=0, used=0, total=80 * GIB, utilization=0, processes=0),), age=0.4),
    Host(name="busy", gpus=(HostGpu(index=0, used=40 * GIB, total=80 * GIB, utilization=97, processes=3),), people=2,
         alerts=2, worst="GPU 0 nearly full", severity=Severity.CRITICAL, age=0.4),
    Host(name="lost", trouble="ssh: connect to host lost port 22: No route to host", age=None),
]  # fmt: skip


class StubHosts(RemoteHosts):
    """Fleet without a connection: its rows are given, and an opened host has no frames but those of the test."""

    def __init__(self, rows: Sequence[Host] = ROWS, *, here: str = "") -> None:
        hosts = [RemoteHost(name=one.name, address="ada@lab2:2222") for one in rows if one.name != here]
        super().__init__(Hosts(hosts), Limits(), here=here)
        self.shown = list(rows)
        self.asked: list[Any] = []

    def begin(self) -> None:
        self.asked.append("begin")

    def rows(self) -> list[Host]:
        return self.shown

    def open(self, name: str | None, interval: float, publish: Callable[[Frame, object], object]) -> Monitor | None:
        self.opened = name
        self.asked.append(("open", name))
        return Clockwork() if name is not None else None

    def retry(self) -> None:
        self.asked.append("retry")

    def close(self) -> None:
        self.asked.append("close")


class Recorder:
    """What runs programs in the terminal: it notes them."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __call__(self, app: App[int], command: Sequence[str]) -> None:
        self.commands.append([*command])


@asynccontextmanager
async def hosting(
    fleet: StubHosts | None = None, size: tuple[int, int] = (120, 36), **options: Any
) -> AsyncIterator[tuple[HostsApp, Pilot[int], StubHosts, list[list[str]]]]:
    fleet, run = fleet or StubHosts(), Recorder()
    app = HostsApp(fleet, options=Options(**options), run=run, clock=frame_clock)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        yield app, pilot, fleet, run.commands


def seen(host: str, pid: int = 11, **changes: Any) -> Snapshot:
    """Return a machine with one process of the one who logged in."""
    return snapshot([gpu(0, holdings=[holding(pid, 30)])], [process(pid, "you")], host=host, **changes)


async def show(app: HostsApp, pilot: Pilot[int], new: Frame) -> None:
    """Hand a frame of the open host to the app."""
    app.post_message(NewFrame(new, app.watching))
    await pilot.pause()


async def open_busy(app: HostsApp, pilot: Pilot[int], new: Frame | None = None) -> None:
    """Open the host that needs a hand most."""
    await press(pilot, "enter")
    await show(app, pilot, new or frame(seen("busy")))


def lines(app: HostsApp) -> list[str]:
    return text(app).split("\n")


async def test_the_list_comes_first_the_worst_host_at_the_top() -> None:
    async with hosting() as (app, pilot, fleet, _):
        assert isinstance(top(app), HostsScreen)
        drawn = lines(app)
        assert [line.split()[0] for line in drawn[2:5]] == ["›", "lost", "idle"]
        assert drawn[2].split()[1:7] == ["busy", "1", "0", "50", "—", "97"]
        assert "● GPU 0 nearly full" in drawn[2]
        assert "No route to host" in drawn[3]
        assert "3 hosts · 2 GPUs, 1 free  1 with a problem" in drawn[0]
        await press(pilot, "down")
        assert "ssh: connect to host lost port 22: No route to host" in "\n".join(drawn[5:] + lines(app)[5:])
        await press(pilot, "R")
        assert fleet.asked == ["begin", "retry"]
        await press(pilot, "escape")
        assert isinstance(top(app), HostsScreen), "nothing is open behind it"


async def test_a_host_that_cannot_be_reached_leads_back_to_the_list() -> None:
    async with hosting() as (app, pilot, _, _):
        silent = Snapshot(host="lost", state=SourceState.UNREACHABLE, words="No route to host")
        await open_busy(app, pilot, frame(silent))
        assert "No route to host" in text(app)
        assert "H hosts" in lines(app)[-1]
        await press(pilot, "H")
        assert isinstance(top(app), HostsScreen)


@pytest.mark.parametrize("size", [(160, 50), (80, 24), (60, 10), (40, 6)])
async def test_hostile_names_and_troubles_fit_every_size(size: tuple[int, int]) -> None:
    rows = [Host(name=f"{number}{name[:38]}", trouble=name, worst=name) for number, name in enumerate(HOSTILE)]
    async with hosting(StubHosts(rows), size) as (app, pilot, _, _):
        await until(pilot, lambda: "[b" in text(app) and fits(app))
        await set_size(pilot, (120, 36))
        await until(pilot, lambda: fits(app))


async def test_an_opened_host_is_the_dashboard_and_named_on_its_screens() -> None:
    async with hosting() as (app, pilot, fleet, _):
        await open_busy(app, pilot)
        assert top(app) is app.dashboard
        assert fleet.asked[-1] == ("open", "busy")
        assert "busy · 1 GPU" in lines(app)[0]
        await press(pilot, "u")
        assert lines(app)[0].split()[:2] == ["people", "busy"]
        await press(pilot, "q", "e")
        assert lines(app)[0].split()[:2] == ["events", "busy"]
        await press(pilot, "q", "escape")
        assert isinstance(top(app), HostsScreen)
        await press(pilot, "escape")
        assert top(app) is app.dashboard


async def test_escape_clears_a_filter_before_it_goes_back() -> None:
    async with hosting(filter="user:you") as (app, pilot, _, _):
        await open_busy(app, pilot)
        assert app.dashboard.processes.filter.text == "user:you", "that of --filter holds on each host"
        await press(pilot, "slash", *"ada", "enter", "escape")
        assert top(app) is app.dashboard
        await press(pilot, "escape")
        assert isinstance(top(app), HostsScreen)


async def test_another_host_begins_afresh_and_drops_frames_of_the_one_before() -> None:
    async with hosting() as (app, pilot, fleet, _):
        await open_busy(app, pilot, frame(seen("busy"), alert(0)))
        before = app.watching
        await press(pilot, "H", "down", "down", "enter")
        assert fleet.opened == "idle"
        assert app.newest is None
        app.post_message(NewFrame(frame(seen("busy", 99)), before))
        await pilot.pause()
        assert app.newest is None
        await show(app, pilot, frame(seen("idle", 12)))
        assert "idle · 1 GPU" in lines(app)[0]


async def test_an_open_host_that_is_lost_says_why_beside_its_old_figures() -> None:
    async with hosting() as (app, pilot, fleet, _):
        await open_busy(app, pilot)
        lost = seen("busy", state=SourceState.UNREACHABLE, words="No route to host", monotonic=1060.0)
        await show(app, pilot, frame(lost))
        assert "No route to host" in text(app)
        assert " 30.0 " in text(app)
        ended = frame(seen("busy", state=SourceState.ENDED, words="a fault"))
        await show(app, pilot, ended)
        assert isinstance(top(app), HostsScreen), "the program goes on"
        await press(pilot, "enter")
        assert fleet.asked.count(("open", "busy")) == 2


async def test_no_process_of_the_host_before_is_asked_for_on_the_next_one() -> None:
    async with hosting() as (app, pilot, _, commands):
        await open_busy(app, pilot)
        await press(pilot, "H", "end", "enter")
        assert app.fleet.opened == "idle"
        await press(pilot, "K")
        assert not commands, "nothing of this host is on the screen yet"


async def test_a_process_is_ended_over_there() -> None:
    async with hosting() as (app, pilot, _, commands):
        await open_busy(app, pilot)
        await press(pilot, "K")
        app.ask_to_end(("GPU-0", 11, 11), whole_run=True)
        for command, run in zip(commands, ([], ["--run"]), strict=True):
            assert command[:2] == ["ssh", "-t"]
            at = command.index("-p")
            assert command[at:] == ["-p", "2222", "--", "ada@lab2", "gpuwatch", "kill", "11", "--start", "11", *run]
        assert app.end_dialogs is None, "nothing here could signal it"


@pytest.mark.parametrize(
    ("pid", "start", "options", "words"),
    [
        (11, 0, {}, "its start time is not known"),
        (-1, 5, {}, "its start time"),
        (11, 11, {"read_only": True}, "read-only"),
    ],
)
async def test_a_pid_is_never_sent_blind(pid: int, start: int, options: dict[str, Any], words: str) -> None:
    async with hosting(**options) as (app, pilot, _, commands):
        await open_busy(app, pilot)
        app.ask_to_end(("GPU-0", pid, start))
        await until(pilot, lambda: words in text(app))
        assert commands == []


async def test_strays_of_another_host_are_ended_one_by_one() -> None:
    async with hosting() as (app, pilot, _, commands):
        await open_busy(app, pilot)
        assert not app.may_end()
        await until(pilot, lambda: "end the processes of busy one at a time" in text(app))
        stopped = process(11, "you", context=ProcessContext(), state="stopped", cpu=0.0)
        resting = (gpu(0, holdings=[holding(11, 30, sm=0)]),)
        await show(app, pilot, frame(replace(seen("busy"), gpus=resting, processes=(stopped,))))
        await press(pilot, "S", "enter")
        assert "1 of your processes may be a stray (11)" in text(app)
        (command,) = commands
        assert command[-5:] == ["gpuwatch", "kill", "11", "--start", "11"]


async def test_this_machine_is_one_of_the_hosts_and_ends_its_own_processes_here() -> None:
    fleet = StubHosts([*ROWS, Host(name="here")], here="here")
    local = Clockwork(frame(seen("here")))
    app = HostsApp(fleet, watch=local, options=Options(caller=7), helpers=Helpers(), run=Recorder(), clock=frame_clock)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await pilot.pause()
        assert "here · 1 GPU" in lines(app)[0]
        assert fleet.asked == [], "no connection before the list is asked for"
        await press(pilot, "H", "enter")
        assert (app.options.host, app.options.caller) == ("busy", None)
        fleet.shown = [Host(name="here"), *ROWS]
        await press(pilot, "H", "home")
        app.open_host("here")
        await pilot.pause()
        assert (app.options.host, app.options.caller, app.watching) == ("here", 7, None)


async def test_without_hosts_the_key_says_how_they_are_named() -> None:
    async with running(frame(seen("box"))) as (app, pilot):
        await press(pilot, "H")
        await until(pilot, lambda: "add one with --host" in text(app))
