"""Past of the demo: what its dashboard, `report --demo` and `events --demo` know of the day before."""

from __future__ import annotations

import json
import time
from math import floor
from typing import Any

import pytest

from gpuwatch import cli
from gpuwatch.history.timeline import Timeline
from gpuwatch.recorder import demo
from gpuwatch.sources.demo import DAY, DemoSource


@pytest.mark.uncounted
def test_a_day_of_minutes_and_of_events_that_have_ended_for_the_dashboard_and_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = floor(time.time()) + 0.99  # the timeline's clock is rounded to whole seconds
    source = DemoSource(clock=lambda: 0.3, wall=lambda: now)
    past = demo.make_past(source)
    assert all(one.values for one in past.sums.means)
    times = [one.at for one in past.sums.means]
    assert times == sorted(set(times))
    assert len(times) == pytest.approx(DAY / 60, abs=10)
    assert now - DAY - 60 <= times[0] < times[-1] < now
    assert {"gpu health", "temperature near slowdown", "idle but held"} <= {one.rule for one in past.events.alerts}
    assert all(one.raised < (one.ended or 0) <= now for one in past.events.alerts)
    timeline = Timeline()
    timeline.add(source.at(0.0), 0.0)
    timeline.load(past.sums.means)

    def run(*words: str) -> Any:
        assert cli.main([*words, "--demo", "--json"], None) == 0
        return json.loads(f"[{','.join(capsys.readouterr().out.splitlines())}]")

    monkeypatch.setattr(demo, "make_past", lambda _source: past)  # to make it takes a second
    (users,), (gpus,) = run("report"), run("report", "--by", "gpu")
    assert users["total"] == gpus["total"]
    assert {line["user"] for line in users["rows"]} >= {"ada", "ben", "you", "ivy"}
    assert {event["rule"] for event in run("events")} >= {"gpu health"}
