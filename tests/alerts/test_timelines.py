"""What the rules make of whole stories, second by second: exactly the events that each recording expects."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpuwatch.alerts.rules import RULE_NAMES
from tests.timelines import player, recording


def named(name: str) -> recording.Recording:
    """Return the recording of a name."""
    return recording.read(recording.FOLDER / f"{name}.jsonl")


@pytest.mark.uncounted
@pytest.mark.parametrize("name", recording.names())
def test_exactly_the_expected_events_come_of_a_recording(name: str) -> None:
    story = named(name)
    happened = player.play(story)
    wrong = player.differences(happened, story.events, story.header.interval)
    assert not wrong, "\n".join([story.header.about, *wrong, "what came:", player.as_lines(happened)])


def test_nearly_every_rule_is_in_a_recording() -> None:
    found = {event.event for name in recording.names() for event in named(name).events}
    elsewhere = {
        "overbooked",
        "past start size",
        "outside visible devices",
        "opened GPUs it does not use",
        "misspelt variable",
        "run ended",
    }
    assert RULE_NAMES - found == elsewhere


# ---------------------------------------------------------------------------------------------------------------
# That a recording which expects something else fails


STORY = """{"about": "a GPU that is full for a minute", "length": 120, "gpus": {"0": 80}, "people": {"ada": 1001}}
{"t": 0, "pid": 100, "user": "ada", "gpu": 0, "gib": 74, "sm": 90}
{"t": 60, "pid": 100, "ends": true}
"""
EVENT = {"event": "nearly full", "gpu": 0, "severity": "warning", "raised": 2, "ended": 62, "peak": 5.5}


def not_so(folder: Path, *events: dict[str, object]) -> list[str]:
    """Return what is not so where the story must come to these events."""
    path = folder / "story.jsonl"
    path.write_text(STORY + "\n".join(msgspec.json.encode(event).decode() for event in events))
    one = recording.read(path)
    return player.differences(player.play(one), one.events)


def test_a_recording_that_expects_what_comes_has_no_differences(tmp_path: Path) -> None:
    assert not_so(tmp_path, EVENT) == []
    assert not_so(tmp_path, {**EVENT, "raised": 3, "ended": 61}) == []


def test_an_event_that_is_missing_and_one_too_many_are_named(tmp_path: Path) -> None:
    assert not_so(tmp_path) == ["1. nearly full at 2 is one too many"]
    assert not_so(tmp_path, EVENT, EVENT) == ["2. nearly full at 2 never came"]
