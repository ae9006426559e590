"""Past of the demo: what its dashboard, `report --demo` and `events --demo` know of the day before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuwatch import cli
from gpuwatch.recorder.demo import make_past
from gpuwatch.sources.demo import DAY, DemoSource
from gpuwatch.timeline import Timeline

WALL = 1_795_269_780.0


def test_a_day_of_minutes_and_of_events_that_have_ended() -> None:
    source = DemoSource(clock=lambda: 0.0, wall=lambda: WALL)
    past = make_past(source)
    times = [one.at for one in past.sums.means]
    assert times == sorted(set(times))
    assert len(times) == pytest.approx(DAY / 60, abs=10)
    assert WALL - DAY - 60 <= times[0] < times[-1] < WALL
    assert {"gpu health", "temperature near slowdown", "idle but held"} <= {one.rule for one in past.events.alerts}
    assert all(one.raised < (one.ended or 0) <= WALL for one in past.events.alerts)
    timeline = Timeline()
    timeline.add(source.at(0.0), 0.0)
    timeline.load(past.sums.means)


def test_commands_on_the_demo(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def run(*words: str) -> Any:
        assert cli.main([*words, "--demo", "--json"], None) == 0
        return json.loads(f"[{','.join(capsys.readouterr().out.splitlines())}]")

    (users,), (gpus,) = run("report"), run("report", "--by", "gpu")
    assert users["total"] == gpus["total"]
    assert {line["user"] for line in users["rows"]} >= {"ada", "ben", "you"}
    assert {event["rule"] for event in run("events")} >= {"gpu health"}
    assert cli.main(["events", "--demo", "--file", str(tmp_path)], None) == 2
    assert "--demo does not go with --file" in capsys.readouterr().err
