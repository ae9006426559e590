"""`--recording`: events, the report and one snapshot, from a recording in place of the store and this machine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from gpuwatch.base.units import format_moment
from gpuwatch.model.snapshot import Snapshot, decode
from tests.support.environment import uncounted
from tests.support.program import Call
from tests.support.store import change, demo, record


@cache
def snapshots() -> list[Snapshot]:
    """Return 250 s of the demo, with a gap; made by the first test, for each worker imports this file."""
    return [*demo(200), *demo(50, first=400)]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a recording of the demo, with a gap."""
    with uncounted():
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


def test_the_report_of_a_recording_adds_up_its_minutes(call: Call, day: str) -> None:
    code, out, err = call("report", "--recording", day, "--json", has_driver=False)
    report = json.loads(out)
    rows = {one["user"]: one for one in report["rows"]}
    assert (code, err) == (0, "")
    assert report["host"] == snapshots()[0].host
    assert report["until"] == snapshots()[-1].taken
    assert report["watched_s"] == pytest.approx(248, abs=3)
    assert rows["ada"]["overshoots"] == 1
    _, out, _ = call("report", "--recording", day, "--by", "gpu", "--json", has_driver=False)
    gpus = json.loads(out)["rows"]
    assert [one["index"] for one in gpus] == list(range(8))
    assert (gpus[6]["watched_s"], gpus[6]["free_s"]) == (pytest.approx(248, abs=3), 0.0)
    assert sum(one["idle_s"] for one in gpus) == pytest.approx(sum(one["idle_s"] for one in rows.values()), abs=0.1)


def test_until_of_a_recording_needs_no_since(call: Call, day: str) -> None:
    code, out, _ = call("report", "--recording", day, "--until", time_of(240), "--json", has_driver=False)
    assert code == 0
    assert json.loads(out)["watched_s"] == pytest.approx(199, abs=3)
    for until, found in ((0, False), (240, True)):
        code, out, _ = call("events", "--recording", day, "--until", time_of(until), "--json", has_driver=False)
        assert (code, bool(out)) == (0, found)


@pytest.mark.parametrize(("second", "shown"), [(0, 0), (199, 199), (201, 199), (300, 199), (399, 199), (449, 449)])
def test_one_snapshot_of_a_recording(call: Call, day: str, second: int, shown: int) -> None:
    code, out, err = call("--once", "--json", "--recording", day, "--at", time_of(second), has_driver=False)
    snapshot = next(one for one in snapshots() if one.taken == snapshots()[0].taken + shown)
    assert code == 0
    assert decode(out.encode()) == snapshot
    said = f"nothing was recorded for 3 min 21 s, {time_of(199)} to {time_of(400)}; this is the snapshot before"
    assert err == (f"gpuwatch: {said}\n" if 199 < second < 400 else "")


def test_a_recording_of_which_no_snapshot_can_be_read_is_refused(call: Call, tmp_path: Path) -> None:
    day = record(tmp_path / "day", demo(9))
    change(day, "UPDATE snapshots SET body = x'00'")
    assert call("replay", str(day)) == (2, "", f"gpuwatch: {day}: no snapshot can be read\n")
