"""What the rules make of whole stories, second by second: exactly the events that each recording expects."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from gpuwatch.alerts.rules import RULE_NAMES
from tests.timelines import player, recording


def named(name: str) -> recording.Recording:
    """Return the recording of a name."""
    return recording.read(recording.FOLDER / f"{name}.jsonl")


@pytest.mark.no_cover
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
    }
    assert RULE_NAMES - found == elsewhere


# ---------------------------------------------------------------------------------------------------------------
# That a recording which expects something else fails


STORY = """{"about": "a GPU that is full for a minute", "length": 120, "gpus": {"0": 80}, "people": {"ada": 1001}}
{"t": 0, "pid": 100, "user": "ada", "gpu": 0, "gib": 74, "sm": 90}
{"t": 60, "pid": 100, "ends": true}
"""
EVENT = {"event": "memory near limit", "gpu": 0, "severity": "warning", "raised": 2, "ended": 62, "peak": 5.5}


def not_so(folder: Path, *events: dict[str, object]) -> list[str]:
    """Return what is not so where the story must come to these events."""
    path = folder / "story.jsonl"
    path.write_text(STORY + "\n".join(msgspec.json.encode(event).decode() for event in events))
    one = recording.read(path)
    return player.differences(player.play(one), one.events)


def test_a_recording_that_expects_what_comes_has_no_differences(tmp_path: Path) -> None:
    assert not_so(tmp_path, EVENT) == []
    assert not_so(tmp_path, {**EVENT, "raised": 3, "ended": 61}) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"event": "uses more than declared"}, "event is 'memory near limit'"),
        ({"gpu": 1}, "gpu is 0"),
        ({"severity": "critical"}, "severity is 'warning', worst is warning"),
        ({"worst": "critical"}, "worst is warning"),
        ({"worse": [30]}, "worse never"),
        ({"raised": 5}, "raised 2"),
        ({"ended": 70}, "ended 62"),
        ({"ended": None}, "ended 62"),
        ({"peak": 5.0}, "peak is 5.5"),
        ({"owners": ["ben"]}, "owners is ('ada',)"),
        ({"how": "it blew up"}, "how is '79.5 of 79.5 GiB free again'"),
        ({"says": "GPU 7"}, "it says 'GPU 0 near limit: 5.5 GiB of 79.5 free'"),
        ({"silent": [[3, 9]]}, "silent never"),
    ],
)
def test_what_is_not_so_is_named(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    event = {**EVENT, **changes}
    assert not_so(tmp_path, event) == [f"1. {event['event']} at {event['raised']}: {words}"]


def test_an_event_that_is_missing_and_one_too_many_are_named(tmp_path: Path) -> None:
    assert not_so(tmp_path) == ["1. memory near limit at 2 is one too many"]
    assert not_so(tmp_path, EVENT, EVENT) == ["2. memory near limit at 2 never came"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"t": 61, "pid": 100, "gib": 3, "colour": 1}', "story.jsonl:4: Object contains unknown field `colour`"),
        ('{"t": 9, "gpu": 0, "temperature": 60}', "story.jsonl:4: a step after what comes later"),
        ('{"t": 61, "gpu": 0, "heat": 60}', "a GPU has no heat"),
        ('{"t": 61, "gpu": 0, "temperature": [60, 70]}', "a line from 60 to 70 that has no end"),
        ("{", "story.jsonl:4: Input data was truncated"),
    ],
)
def test_a_recording_that_makes_no_sense_is_refused(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "story.jsonl"
    path.write_text(STORY + line)
    with pytest.raises(ValueError, match=re.escape(words)):
        player.play(recording.read(path))
