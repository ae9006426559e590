"""`gpuwatch events`: the log as lines for people and for programs, without a driver and without a sampler."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gpuwatch.alerts.alert import Alert, AlertGpu, Severity
from gpuwatch.analysis.events import Gap, moment
from gpuwatch.base.files import FileLock
from gpuwatch.base.units import Unit, format_moment
from gpuwatch.cli import parse
from gpuwatch.commands import events
from gpuwatch.commands.flags import parse_span
from gpuwatch.model.values import DAY
from gpuwatch.recorder.schema import lock_path, own_store
from tests.support import store
from tests.support.builders import EPOCH, GIB
from tests.support.store import alert, batch, ended, save

NOW = EPOCH + 3600.0

FULL = ended(
    alert(
        "full",
        index=3,
        severity=Severity.CRITICAL,
        most=Severity.CRITICAL,
        title="GPU 3 full: 0.1 GiB of 79.0 free",
        owners=("ada", "ben"),
        peak=0.1 * GIB,
        mean=1.5 * GIB,
        unit=Unit.FREE,
        raised=EPOCH,
    ),
    after=389.0,
    how="GPU 3: 30.0 GiB of 79.0 free",
)
HOT = alert("hot", index=0, rule="temperature near slowdown", title="GPU 0 is hot", raised=EPOCH + 60, owners=("cyn",))
NOTED = ended(
    alert("noted", index=None, rule="power limit", severity=Severity.NOTE, most=Severity.NOTE, raised=EPOCH + 30)
)


@pytest.fixture
def own(own_home: Path) -> Path:
    """The user's own store, not yet there."""
    return own_store()


def write(path: Path, *alerts: Alert, now: float = NOW) -> Path:
    """Write a store of alerts as they are."""
    return store.write(path, *alerts, now=now)


def run(*arguments: str, now: float = NOW) -> int:
    """Run the command in this process."""
    return events.main(parse(["events", *arguments]), wall=lambda: now)


# ---------------------------------------------------------------------------------------------------------------
# Lines for people


def test_what_holds_is_ongoing_while_somebody_watches(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(own, HOT)
    lock = FileLock(lock_path(own))
    assert lock.acquire()
    assert run() == 0
    out, err = capsys.readouterr()
    assert "  ongoing  ▲ warning     0  cyn  GPU 0 is hot\n" in out
    assert err == ""
    assert run("--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "ongoing"
    lock.release()


def test_an_event_of_another_day_has_its_date_as_the_screen_of_events_has_it(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(own, FULL)
    assert run("--since", "3d", now=NOW + 2 * DAY) == 0
    assert time.strftime("%d %b %H:%M:%S ", time.localtime(EPOCH)) in capsys.readouterr().out


def test_an_event_of_several_gpus_names_each(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    on = tuple(AlertGpu(f"GPU-{index}", index) for index in (0, 1, 3))
    write(own, msgspec.structs.replace(FULL, title="ada opened GPUs", gpus=on))
    assert run() == 0
    assert "0-1,3  ada, ben  ada opened GPUs" in capsys.readouterr().out


def test_what_was_watched_is_said_beside_the_events(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, last = EPOCH - 6 * 3600, EPOCH - 3600
    save(own, batch(int(first)), batch(int(last)))
    store.write(own, FULL, gaps=[Gap(first + 3600, first + 5400)], now=last)
    for words, said in (
        ([], f"watched 4 h 30 min of 1 d, since {moment(first, NOW)}"),
        (["--since", format_moment(first + 60), "--until", format_moment(first + 3600)], "watched the whole time"),
        (["--rule", "XID"], "no matching event in the last 24h; watched 4 h 30 min of 1 d, since "),
    ):
        run(*words)
        assert said in capsys.readouterr().err


def test_an_event_of_a_clock_that_ran_ahead_is_found(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(own, msgspec.structs.replace(FULL, raised=NOW + DAY))
    for words, found in (([], True), (["--until", format_moment(NOW - 1)], False)):
        run(*words)
        assert (FULL.title in capsys.readouterr().out) is found


# ---------------------------------------------------------------------------------------------------------------
# Which ones


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--gpu", "0,3"], ["full", "hot"]),
        (["--user", "ben"], ["full"]),
        (["--rule", "MEM"], ["full"]),
        (["--rule", "nearly-full"], ["full"]),
        (["--rule", "memory-near-limit"], ["full"]),
        (["--rule", "power"], ["noted"]),
        (["--rule", "near"], ["full", "hot"]),
        (["--rule", "opened"], []),
        (["--since", "30min"], ["hot"]),
        (["--since", format_moment(EPOCH + 600)], ["hot"]),
        (["--until", format_moment(EPOCH + 10)], ["full"]),
        (["--since", "2h", "--until", format_moment(EPOCH + 45)], ["full", "noted"]),
        (["--gpu", "0", "--user", "ada"], []),
    ],
)
def test_what_is_asked_for(
    own: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: list[str]
) -> None:
    write(own, HOT, msgspec.structs.replace(FULL, rule="memory near limit"), NOTED)  # as an earlier version wrote it
    assert run("--json", *arguments) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["id"] for line in out.splitlines()] == [f"id-{name}" for name in expected]
    assert ("no event" in err.replace("matching ", "")) is not bool(expected)


@pytest.mark.parametrize(
    ("since", "until", "span"),
    [
        ("8h", None, (10, 18)),
        ("yesterday", None, (-24, 18)),
        ("yesterday", "today", (-24, 0)),
        ("22:00", "08:00", (-2, 8)),
        ("22:00", None, (-2, 18)),
        ("8h", "12:00", (10, 12)),
        (None, "12:00", (-12, 12)),
        (None, "2026-03-02", (-6 * 24, -5 * 24)),
        ("2026-03-06", "2026-03-07 01:00", (-24, 1)),
    ],
)
def test_times_are_those_before_now(since: str | None, until: str | None, span: tuple[int, int]) -> None:
    midnight = time.mktime((2026, 3, 7, 0, 0, 0, 0, 0, -1))
    args = argparse.Namespace(since=since, until=until)
    assert parse_span(args, DAY, midnight + 18 * 3600) == tuple(midnight + hours * 3600 for hours in span)


def test_a_clock_time_is_that_of_the_day_before_where_that_has_25_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        now = time.mktime((2026, 10, 25, 22, 30, 0, 0, 0, -1))
        since, _ = parse_span(argparse.Namespace(since="23:00", until=None), DAY, now)
        assert format_moment(since) == "2026-10-24 23:00:00"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("rule", "unit", "peaks", "worst"),
    [
        ("nearly full", Unit.FREE, (2.0 * GIB, 1.0 * GIB, 3.0 * GIB), "at worst 1.0 GiB free"),
        ("time to full", Unit.SECONDS, (120.0, 60.0, 180.0), "at worst 1 min"),
        ("idle but held", Unit.SECONDS, (1800.0, 3600.0, 2400.0), "longest 1 h"),
    ],
)
def test_what_was_raised_again_and_again_is_one_line_unless_a_filter_asks_for_it(
    rule: str, unit: Unit, peaks: tuple[float, ...], worst: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = [
        ended(alert(f"{at}", rule=rule, gpu="GPU-3", index=3, raised=EPOCH + 60 * at, unit=unit, peak=peak), after=10.0)
        for at, peak in enumerate(peaks)
    ]
    write(own, *times)
    assert run() == 0
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert f"{worst} · 3 times, 30s total" in line
    assert run("--gpu", "3") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


# ---------------------------------------------------------------------------------------------------------------
# The program


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_follow_prints_what_is_recorded_later(own: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    hot = msgspec.structs.replace(HOT, raised=NOW)
    steps: list[Callable[[], object]] = [
        lambda: write(own, hot),
        lambda: None,
        lambda: write(own, ended(hot, how="GPU 0 is cool")),
    ]
    printed: list[str] = []

    def sleep(_seconds: float) -> None:
        printed.append(capsys.readouterr().out)
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    write(own, FULL)
    args = parse(["events", "--follow", *flags])
    with pytest.raises(KeyboardInterrupt):
        events.main(args, wall=lambda: NOW, sleep=sleep)
    first, raised, nothing, over = printed
    assert FULL.title in first
    assert (raised.count("GPU 0 is hot"), nothing, over.count("GPU 0 is hot")) == (1, "", 1)
    assert "GPU 0 is cool" in over
    assert FULL.title not in raised + over
