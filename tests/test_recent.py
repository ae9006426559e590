"""The memory of the demo's events."""

from __future__ import annotations

import dataclasses

from gpuwatch.sinks.recent import MOST, Recent
from tests.dashboards import alert, frame, machine


def test_an_event_is_remembered_once_and_as_it_was_last() -> None:
    recent = Recent()
    seen = frame(machine(1))
    recent.take(dataclasses.replace(seen, raised=(alert(0, id="a"), alert(1, id="b", rule="gpuwatch"))))
    recent.take(dataclasses.replace(seen, cleared=(alert(0, id="a", ended=5.0),)))
    recent.close(0.0)
    assert [(one.id, one.ended) for one in recent.events().alerts] == [("a", 5.0)]
    assert recent.trouble == ""


def test_the_oldest_are_forgotten() -> None:
    recent = Recent()
    for number in range(MOST + 10):
        recent.take(dataclasses.replace(frame(machine(1)), raised=(alert(0, id=str(number)),)))
    kept = recent.events().alerts
    assert len(kept) == MOST
    assert kept[0].id == "10"
