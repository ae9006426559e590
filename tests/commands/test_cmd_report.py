"""`gpuwatch report`: use as lines for people and for programs, without a driver and without a sampler."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import AlertCause, AlertGpu
from gpuwatch.base.errors import GpuwatchError, UsageError
from gpuwatch.base.units import format_moment
from gpuwatch.cli import parse
from gpuwatch.commands import report
from gpuwatch.commands.report_formats import report_csv, report_json, report_lines
from gpuwatch.history.history import Use
from gpuwatch.recorder.events import write_events
from gpuwatch.recorder.schema import own_store, public_file
from gpuwatch.recorder.store import Store
from gpuwatch.recorder.use import By, EventCounts, UseLine, UseReport
from tests.support.builders import GIB
from tests.support.store import HOUR, alert, batch, ended, hours, read_report, save

NOW = HOUR + 5 * 3600.0
DAY = 24 * 3600


@pytest.fixture
def own(own_home: Path) -> Path:
    """The user's own store, with what a lab did: ada with torchrun on two GPUs, ben on one; two events."""
    causes = (AlertCause(uid=1000, pid=1, run="run"), AlertCause(uid=1001, pid=7, run="7:7"))
    over = ended(
        alert("over", rule="over declared", raised=HOUR + 60.0, causes=causes[:1], gpus=(AlertGpu("GPU-0", 0),))
    )
    full = alert("full", gpus=(AlertGpu("GPU-0", 0),), causes=causes, raised=HOUR + 60.0, seen=HOUR + 90.0)
    save(
        own_store(),
        batch(HOUR, 0, use=hours(1, gib=20), run="run", launcher="torchrun"),
        batch(HOUR, 1, use=hours(1, gib=20), run="run", launcher="torchrun"),
        batch(HOUR + 3600, 0, use=hours(0.5), user="ben", uid=1001, run="7:7", name="=cmd"),
        batch(HOUR - 30 * DAY, 0, use=hours(0.5), user="cyn", uid=1002, run="8:8"),
        events=[over, full],
    )
    return own_store()


def run(*arguments: str, now: float = NOW) -> int:
    """Run the command in this process."""
    return report.main(parse(["report", *arguments]), wall=lambda: now)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the lines that it prints."""
    assert run(*arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


# ---------------------------------------------------------------------------------------------------------------
# For people; the tables are in tests/approved


@pytest.mark.usefixtures("own")
def test_until_ends_what_counts(capsys: pytest.CaptureFixture[str]) -> None:
    end = format_moment(HOUR + 3600)
    (title, _, *lines) = shown(capsys, "--since", format_moment(HOUR), "--until", end, "--by", "user")
    assert f" to {end[:16]} · watched 1.0 of 1 h" in title
    assert [line.split()[0] for line in lines[: lines.index("")]] == ["ada"]
    with pytest.raises(UsageError, match=r"--since: .* is not before the end, "):
        run("--since", end, "--until", format_moment(HOUR))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("since", "hours"), [("7d", "168"), ("90min", "1.5"), ("30s", "<0.1")])
def test_a_span_is_as_long_as_asked(capsys: pytest.CaptureFixture[str], since: str, hours: str) -> None:
    assert run("--since", since, now=NOW + 1799.0) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(f" of {hours} h")


def test_a_damaged_store_is_a_mistake_in_a_file_as_it_is_for_events() -> None:
    own_store().parent.mkdir(parents=True)
    own_store().write_bytes(b"no database" * 100)
    with pytest.raises(UsageError, match="it is damaged"):
        run()


@pytest.mark.usefixtures("own")
def test_where_nobody_watched_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--since", "1h", now=NOW + 40 * DAY) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith(" · watched 0.0 of 1 h\n")
    assert captured.err.startswith("gpuwatch: gpuwatch was not running in that time, or no GPU listed its processes; ")


def test_beside_a_service_that_publishes_no_use_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "stores_read", lambda since, warn: [own_store()])
    with pytest.raises(GpuwatchError, match="nothing was recorded yet: leave a dashboard"):
        run()
    day = public_file(tmp_path, "2026-11-24")
    Store(day).write(lambda one: write_events(one, [], [], NOW))
    monkeypatch.setattr(report, "stores_read", lambda since, warn: [day, own_store()])
    with pytest.raises(GpuwatchError, match=r"not published who used how much.*ask an administrator"):
        run()


def used(seconds: float, **fields: float) -> Use:
    """Return a use of so many GPU-seconds."""
    return Use(held=seconds, gpu=seconds, **fields)


@pytest.mark.parametrize(
    ("use", "cells"),
    [
        (used(1800.0, unknown=1800.0, memory=3600.0 * GIB), ["0.5", "—", "—", "1.0"]),
        (used(3600.0, busy=1800.0, unsized=3600.0), ["1.0", "0.5", "50", "—"]),
        (used(3600.0, busy=900.0, unknown=1800.0, memory=3600.0 * GIB), ["1.0", "≥0.2", "50", "1.0"]),
        (used(3600.0, busy=3600.0, memory=1800.0 * GIB, unsized=1800.0), ["1.0", "0.0", "100", "≥0.5"]),
        (used(1.0, busy=0.5, memory=GIB), ["<0.1", "<0.1", "50", "<0.1"]),
    ],
)
def test_what_has_no_figure_is_no_nought(use: Use, cells: list[str]) -> None:
    kept = UseReport("user", 0.0, lines=[UseLine("ada", use, (0,))], watched=3600.0, total=use)
    assert report_lines([kept], 3600.0)[2].split()[2:6] == cells


def test_a_long_table_is_cut_and_says_so() -> None:
    lines = [UseLine(f"run{number}", used(3600.0), (0, 1, 2, 5), key=str(number)) for number in range(9)]
    kept = UseReport("run", 0.0, lines=lines, watched=3600.0, total=used(9 * 3600.0), events=EventCounts(1, 2, 1))
    table = report_lines([kept], 3600.0, most=4)
    assert [line.split()[0] for line in table[2:7]] == ["run0", "run1", "run2", "run3", "all"]
    assert table[2].split()[3] == "0-2,5"
    assert table[7].startswith("5 more with 5.0 GPU·h: ")
    assert len(json.loads(report_json(kept, 3600.0))["rows"]) == 9
    assert len(report_csv(kept).splitlines()) == 10


# ---------------------------------------------------------------------------------------------------------------
# For programs


@pytest.mark.usefixtures("own")
def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(capsys, "--json", "--by", "run")[0])
    assert (found["until"], found["host"], found["by"]) == (NOW, "box3", "run")
    assert found["since"] == NOW - 7 * DAY
    first = found["rows"][0]
    assert (first["run"], first["user"], first["uid"], first["gpus"]) == ("train.py", "ada", 1000, [0, 1])
    assert (first["first"], first["last"]) == (HOUR, HOUR + 60)
    assert (first["gpu_s"], first["busy_s"], first["byte_s"]) == (7200.0, 3600.0, 7200 * 20 * GIB)
    assert (first["overshoots"], first["events"], first["warnings"]) == (1, 2, 2)
    assert found["total"]["gpu_s"] == 9000.0


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("by", ["user", "gpu", "run"])
def test_as_csv_it_says_the_same(capsys: pytest.CaptureFixture[str], by: str) -> None:
    rows = list(csv.DictReader(io.StringIO("\n".join(shown(capsys, "--csv", "--by", by)))))
    found = json.loads(shown(capsys, "--json", "--by", by)[0])["rows"]
    assert [{**row, "gpus": row["gpus"].split()} for row in rows] == [
        {
            name: [str(gpu) for gpu in value] if name == "gpus" else f"'{value}" if value == "=cmd" else str(value)
            for name, value in row.items()
        }
        for row in found
    ]


@given(st.text("a=+-@;,|\"' \t\r\n＝＋－＠—→✓\xa0", max_size=12), st.sampled_from(",;\t"), st.booleans())
def test_no_cell_is_a_formula_whatever_parts_the_cells(name: str, separator: str, ascii_only: bool) -> None:
    lines = [UseLine(name, used(3600.0), (0,), user=name, launcher=name, key=name)] * 2
    by: By
    for by in ("user", "run"):
        text = report_csv(UseReport(by, 0.0, lines=lines), ascii_only=ascii_only)
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            for cell in row:
                assert not cell.lstrip().startswith(tuple("=+-@＝＋－＠")), text


# ---------------------------------------------------------------------------------------------------------------
# What is wrong, and several files


@pytest.mark.parametrize("by", ["user", "gpu", "run"])
def test_several_stores_are_added_up_whatever_their_ids(own: Path, tmp_path: Path, by: By) -> None:
    other = tmp_path / "other"
    save(other, batch(HOUR + 7200, 1, use=hours(1), user="ben", uid=1001, run="7:7", name="=cmd"), events=[alert("x")])
    save(other, batch(HOUR + 7200, 0, use=hours(1), run="run"), events=[alert("x")])
    parts, whole = [read_report([path], by, float(HOUR)) for path in (own, other)], read_report([own, other], by, HOUR)
    assert whole.total == pytest.approx(parts[0].total.plus(parts[1].total))
    assert whole.watched == pytest.approx(sum(part.watched for part in parts))
    assert whole.events.all == 3
    assert len(whole.lines) == 2
    assert {line.gpus for line in whole.lines} == ({(0,), (1,)} if by == "gpu" else {(0, 1)})


# ---------------------------------------------------------------------------------------------------------------
# --forget


def typed(monkeypatch: pytest.MonkeyPatch, words: str, *, terminal: bool = True) -> None:
    """Let a user type words."""
    stdin = io.StringIO(words)
    monkeypatch.setattr(stdin, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", stdin)


def test_a_person_is_deleted_after_a_question(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "n\n")
    with pytest.raises(GpuwatchError, match="nothing was deleted"):
        run("--forget", "ada")
    typed(monkeypatch, "y\n")
    assert run("--forget", "ada") == 0
    captured = capsys.readouterr()
    assert str(own) in captured.err
    (line,) = captured.out.splitlines()
    assert line.startswith("ada (uid 1000) in ")
    assert "names 1, use 120, runs 1, events 2" in line
    assert [words.split()[0] for words in shown(capsys, "--by", "user", "--since", "7d")[2:4]] == ["?", "ben"]


def test_a_person_is_found_by_uid_and_without_a_terminal_yes_is_needed(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "y\n", terminal=False)
    with pytest.raises(UsageError, match="--yes"):
        run("--forget", "1000")
    assert run("--forget", "1000", "--yes") == 0
    assert b"ada" not in own.read_bytes()
    assert run("--forget", "1000", "--yes") == 0
    assert "nothing was stored" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("words", [["--forget", "nobody-here"], ["--forget", "ada", "--json"], ["--yes"]])
def test_who_is_to_be_forgotten_must_be_known(words: list[str]) -> None:
    with pytest.raises(UsageError, match="--forget"):
        run(*words)


@pytest.mark.usefixtures("own_home")
def test_nothing_is_created_where_nothing_was_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--forget", "1000") == 0
    assert "nothing was recorded yet" in capsys.readouterr().err
    assert not own_store().exists()
