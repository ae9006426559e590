"""`gpuwatch events`: the log as lines for people and for programs, without a driver and without a sampler."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import Alert, Severity, Unit
from gpuwatch.analysis.events import value_words
from gpuwatch.cli import parse
from gpuwatch.commands import events
from gpuwatch.commands.events import events_rows, table
from gpuwatch.files import FileLock
from gpuwatch.recorder.store import Gap, lock_path, own_store
from tests.support import recording
from tests.support.builders import EPOCH, GIB
from tests.support.recording import alert, change, ended

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
    alert("noted", index=None, rule="power at limit", severity=Severity.NOTE, most=Severity.NOTE, raised=EPOCH + 30)
)


@pytest.fixture
def own(own_home: Path) -> Path:
    """The user's own store, not yet there."""
    return own_store()


def write(path: Path, *alerts: Alert, now: float = NOW) -> Path:
    """Write a store of alerts as they are."""
    return recording.write(path, *alerts, now=now)


def run(*arguments: str, now: float = NOW) -> int:
    """Run the command in this process."""
    return events.main(parse(["events", *arguments]), wall=lambda: now)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the lines that it prints for people, less the headers."""
    assert run(*arguments) == 0
    return capsys.readouterr().out.splitlines()[1:]


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


def test_a_line_is_cut_at_the_title_and_never_before() -> None:
    rows = events_rows([FULL, HOT], NOW)
    for width in (60, 80, 100):
        lines = table(rows, width=width)
        assert all(len(line) <= max(width, 70) for line in lines)
        assert all("critical    3  ada, ben  GPU 3 full" in line for line in lines[1:2])
    assert table(rows, width=80)[1].endswith("…")
    assert table(rows)[1].endswith("of 79.0 free")


def test_times_that_the_log_does_not_tell_of_are_lines_too() -> None:
    gaps = (Gap(EPOCH + 5, EPOCH + 65, 3), Gap(EPOCH + 100, EPOCH + 1300), Gap(EPOCH + 2000, EPOCH + 2060))
    rows = events_rows([FULL], NOW, gaps=gaps)
    assert [(row.severity, row.lasted, row.title) for row in rows[1:]] == [
        ("gap", "1m", "3 events could not be written"),
        ("gap", "20m", "gpuwatch was not running"),
    ]
    assert "  gap  " in table(rows)[2]


def test_severity_is_the_worst_that_it_was() -> None:
    eased = alert(severity=Severity.WARNING, most=Severity.CRITICAL)
    (row,) = events_rows([eased], NOW)
    assert (row.mark, row.severity, row.how) == ("●", "critical", "warning now")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"peak": 91.2, "mean": 88.0, "unit": Unit.CELSIUS}, "peak 91 °C, mean 88"),
        ({"peak": 91.2, "mean": 91.0, "unit": Unit.CELSIUS}, "peak 91 °C"),
        ({"peak": 3.5 * GIB, "unit": Unit.BYTES}, "peak 3.5 GiB"),
        ({"peak": 40.0, "mean": 300.0, "unit": Unit.SECONDS}, "at worst 40 s, mean 5 min"),
        ({"peak": 3.0, "unit": Unit.COUNT}, ""),
        ({"mean": 3.0, "unit": Unit.WATTS}, ""),
    ],
)
def test_values_have_their_unit(changes: dict[str, Any], words: str) -> None:
    assert value_words(alert(**changes)) == words


# ---------------------------------------------------------------------------------------------------------------
# Which ones


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--gpu", "3"], ["full"]),
        (["--gpu", "0,3"], ["full", "hot"]),
        (["--user", "ben"], ["full"]),
        (["--user", "be"], []),
        (["--rule", "memory near limit"], ["full"]),
        (["--rule", "MEM"], ["full"]),
        (["--rule", "memory-near-limit"], ["full"]),
        (["--rule", "p"], ["noted"]),
        (["--rule", "opened"], []),
        (["--since", "55min"], ["full", "hot"]),
        (["--since", "30min"], ["hot"]),
        (["--gpu", "0", "--user", "ada"], []),
    ],
)
def test_what_is_asked_for(
    own: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: list[str]
) -> None:
    write(own, HOT, FULL, NOTED)
    assert run("--json", *arguments) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["id"] for line in out.splitlines()] == [f"id-{name}" for name in expected]
    assert ("no event" in err) is not bool(expected)


def test_a_rule_of_the_users_own_is_known_from_the_log(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(own, ended(alert(rule="my lab's rule")))
    assert len(shown(capsys, "--rule", "my")) == 1


def test_without_an_event_it_says_so(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(own)
    assert run() == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "gpuwatch: no event in the last 24h; --since 7d looks further back"


def test_damaged_events_are_reported(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(own, FULL, HOT)
    change(own, "UPDATE events SET alert = 'rubbish' WHERE id = 'id-hot'")
    assert run() == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert f"gpuwatch: 1 event is damaged in {own}, and left out\n" in err


def test_json_is_the_alert_and_its_state(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(own, FULL, HOT)
    assert run("--json") == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["state"], second["state"]) == ("ended", "open")
    assert (first["rule"], first["owners"], first["most"], first["unit"]) == (
        "memory near limit",
        ["ada", "ben"],
        3,
        "bytes free",
    )


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


def test_a_store_of_version_1_is_named_and_left_alone(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    former = own.with_name(own.name.replace(".2.", "."))
    former.parent.mkdir(parents=True)
    former.write_bytes(b"what version 0.1 wrote")
    assert run() == 1
    assert f"{former.name} is of gpuwatch 0.1: it is left alone, and not read" in capsys.readouterr().err
    assert former.read_bytes() == b"what version 0.1 wrote"
