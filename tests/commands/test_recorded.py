"""`--recording`: events, the report and one snapshot, from a recording in place of the store and this machine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from gpuwatch.model import Snapshot, decode
from gpuwatch.units import format_moment
from tests.recorder.test_recording import demo, record
from tests.support.launching import Call


@cache
def snapshots() -> list[Snapshot]:
    """Return 250 s of the demo, with a gap; made by the first test, for each worker imports this file."""
    return [*demo(200), *demo(50, first=400)]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a recording of the demo, with a gap."""
    return str(record(tmp_path_factory.mktemp("recording") / "day.gpuwatch", snapshots()))


def time_of(second: int) -> str:
    """Return a second of the demo as a clock time."""
    return format_moment(snapshots()[0].taken + second)


def test_events_of_a_recording_are_those_that_were_raised(call: Call, day: str) -> None:
    code, out, err = call("events", "--recording", day, "--json", has_driver=False)
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {"GPU 5 lost: it needs a reset or a reboot", "GPU 4 overbooked: 120 % declared"} <= {
        one["title"] for one in events
    }
    lost = next(one for one in events if one["rule"] == "gpu health")
    assert lost["state"] == "ended"
    assert err == f"gpuwatch: the recording covers {time_of(0)} to {time_of(449)}\n"


def test_a_page_of_a_recording_has_its_minutes_events_and_span(call: Call, day: str, tmp_path: Path) -> None:
    code, out, err = call("report", "--recording", day, "--html", str(tmp_path / "page.html"), has_driver=False)
    text = (tmp_path / "page.html").read_text()
    assert (code, out, "page.html is written" in err) == (0, "", True)
    assert f"{time_of(0)[:16]} to " in text
    assert "from a recording" in text
    assert "GPU 5 lost: it needs a reset or a reboot" in text
    assert text.count("<svg") == 8
    assert "<bdi>ada</bdi>" in text


def test_since_counts_from_the_end_of_the_recording_and_filters_are_as_ever(call: Call, day: str) -> None:
    _, out, _ = call("events", "--recording", day, "--since", "40s", "--json", has_driver=False)
    assert all(
        (one := json.loads(line)).get("ended") is None or one["ended"] > snapshots()[-1].taken - 40
        for line in out.splitlines()
    )
    _, out, err = call("events", "--recording", day, "--user", "nobody-of-that-name", has_driver=False)
    assert out == ""
    assert "no such event; the recording covers" in err


def test_the_report_of_a_recording_adds_up_its_minutes(call: Call, day: str) -> None:
    code, out, err = call("report", "--recording", day, "--json", has_driver=False)
    report = json.loads(out)
    rows = {one["user"]: one for one in report["rows"]}
    assert (code, err) == (0, "")
    assert report["host"] == snapshots()[0].host
    assert report["until"] == snapshots()[-1].taken
    assert report["watched_s"] == pytest.approx(248, abs=3)
    assert rows["gus"]["held_s"] == pytest.approx(248, abs=3)
    assert rows["ada"]["overshoots"] == 1
    _, out, _ = call("report", "--recording", day, "--by", "gpu", "--json", has_driver=False)
    assert {one["index"] for one in json.loads(out)["rows"]} == set(range(8))


def test_the_report_of_several_recordings_adds_up_their_use(call: Call, tmp_path: Path) -> None:
    files = [str(record(tmp_path / name, part)) for name, part in (("a", demo(100)), ("b", demo(100, first=100)))]
    found = []
    for chosen in (files[:1], files[1:], files):
        flags = [word for file in chosen for word in ("--recording", file)]
        _, out, _ = call("report", *flags, "--json", has_driver=False)
        found.append(json.loads(out))
    held = [{one["user"]: one["held_s"] for one in report["rows"]} for report in found]
    assert held[2]["gus"] == pytest.approx(held[0]["gus"] + held[1]["gus"])
    assert found[2]["total"]["byte_s"] == pytest.approx(sum(one["total"]["byte_s"] for one in found[:2]))


@pytest.mark.parametrize(("second", "shown"), [(0, 0), (100, 100), (199, 199), (300, 199), (449, 449)])
def test_one_snapshot_of_a_recording(call: Call, day: str, second: int, shown: int) -> None:
    code, out, err = call("--once", "--json", "--recording", day, "--at", time_of(second), has_driver=False)
    snapshot = next(one for one in snapshots() if one.taken == snapshots()[0].taken + shown)
    assert code == 0
    assert decode(out.encode()) == snapshot
    said = f"nothing was recorded for 3 min 21 s, {time_of(199)} to {time_of(400)}; this is the snapshot before"
    assert err == (f"gpuwatch: {said}\n" if second == 300 else "")


def test_the_table_of_a_recorded_snapshot_has_its_time_and_one_users_rows(call: Call, day: str) -> None:
    code, out, _ = call("--once", "--recording", day, "--at", time_of(100)[-8:], "--user", "gus", has_driver=False)
    assert code == 0
    assert out.splitlines()[0].endswith(time_of(100))
    assert " gus " in out
    assert " ben " not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--once --recording DAY --at 2020-01-01", "--at: time '2020-01-01' is not understood"),
        (
            "--once --recording DAY --at 2020-01-01T03:10",
            "--at: 2020-01-01 03:10:00 is not in the recording, which covers",
        ),
        ("--once --at 03:10", "--at goes with --once --recording FILE"),
        ("--recording DAY", "`gpuwatch replay FILE` shows a recording"),
        ("--once --recording DAY --demo", "--recording does not go with --demo"),
        ("--once --recording DAY --only 0", "--recording does not go with --only"),
        ("--once --recording /nowhere", "/nowhere"),
        ("events --recording DAY --follow", "--recording does not go with --follow"),
        ("events --recording DAY --file x", "--recording does not go with --file"),
        ("events --recording /nowhere", "/nowhere"),
        ("report --recording DAY --file x", "--recording does not go with --file"),
    ],
)
def test_what_is_wrong_is_one_line(call: Call, day: str, words: str, said: str) -> None:
    code, out, err = call(*(day if word == "DAY" else word for word in words.split()), has_driver=False)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
