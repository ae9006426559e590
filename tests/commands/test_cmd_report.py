"""`gpuwatch report`: what was kept as lines for people and for programs, without a driver and without a sampler."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.commands import report
from gpuwatch.commands.report_formats import report_csv, report_json, report_lines
from gpuwatch.errors import GpuwatchError, UsageError
from gpuwatch.history import Use
from gpuwatch.recorder.store import own_store
from gpuwatch.recorder.usage import Batch, By, EventCounts, UsageLine, UsageReport, joined, read_usage
from tests.support.builders import GIB
from tests.support.recording import alert, ended
from tests.support.storing import HOUR, batch, hours, save
from tests.support.uncovered import environment

NOW = HOUR + 5 * 3600.0
DAY = 24 * 3600


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this be a machine whose clock shows UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def lab() -> Batch:
    """Return what a lab of two cards did: ada with torchrun on both, ben on one; one overshoot, and a full card."""
    over = ended(alert("over", rule="uses more than declared", gpu="GPU-0", raised=HOUR + 60.0, seen=HOUR + 90.0))
    full = alert("full", gpu="GPU-0", raised=HOUR + 60.0, seen=HOUR + 90.0)
    return joined(
        [
            batch(HOUR, 0, use=hours(1, gib=20), job="run", launcher="torchrun", events=[over, full]),
            batch(HOUR, 1, use=hours(1, gib=20), job="run", launcher="torchrun"),
            batch(HOUR + 3600, 0, use=hours(0.5), user="ben", uid=1001, job="7:7", name="=cmd", events=[full]),
            batch(HOUR - 30 * DAY, 0, use=hours(0.5), user="cyn", uid=1002, job="8:8"),
        ]
    )


@pytest.fixture
def own(own_home: Path) -> Path:
    """The user's own store, with what the lab did."""
    path = own_store()
    save(path, lab())
    return path


def run(*arguments: str, now: float = NOW) -> int:
    """Run the command in this process."""
    from gpuwatch.cli import parse

    return report.main(parse(["report", *arguments]), wall=lambda: now)


def test_what_programs_read_is_whole_where_the_locale_has_nothing_but_ascii(own_home: Path) -> None:
    save(own_store(), batch(int(time.time() // 3600) * 3600, name="größe.py"))
    env = environment() | {"PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "gpuwatch", "report", "--since", "8h", "--by", "job"]
    said = subprocess.run([*words, "--json"], env=env, capture_output=True, check=True).stdout
    assert said.isascii()
    assert json.loads(said)["rows"][0]["job"] == "größe.py"
    table = subprocess.run([*words, "--csv"], env=env, capture_output=True, check=True).stdout
    assert "größe.py" in table.decode()


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the lines that it prints."""
    assert run(*arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


# ---------------------------------------------------------------------------------------------------------------
# For people


@pytest.mark.usefixtures("own", "zone")
def test_by_user(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys) == [
        "box3 · from 2023-11-08 03:00 · watched 1.5 of 168 h",
        "user  GPUs  GPU·h  busy %  GiB·h  idle GiB·h  idle %  overshoots  events  warnings",
        "ada   0-1     2.0      50   40.0        10.0      25           1       2         2",
        "ben   0       0.5      50    5.0         1.2      25           ·       1         1",
        "all   0-1     2.5      50   45.0        11.2      25           1       2         2",
    ]


@pytest.mark.usefixtures("own", "zone")
def test_by_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--by", "gpu") == [
        "box3 · from 2023-11-08 03:00 · watched 1.5 of 168 h",
        "GPU  name  watched h  GPU·h  busy %  GiB·h  idle GiB·h  idle %  overshoots  events  warnings",
        "  0  H100        1.5    1.5      50   25.0         6.2      25           1       2         2",
        "  1  H100        1.0    1.0      50   20.0         5.0      25           ·       ·         ·",
        "all                     2.5      50   45.0        11.2      25           1       2         2",
    ]


@pytest.mark.usefixtures("own", "zone")
def test_by_job(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "--by", "job")
    assert lines[1].startswith("run       user  launcher  GPUs  GPU·h  busy %")
    assert [line.split()[:5] for line in lines[2:]] == [
        ["train.py", "ada", "torchrun", "0-1", "2.0"],
        ["=cmd", "ben", "—", "0", "0.5"],
        ["all", "0-1", "2.5", "50", "45.0"],
    ]


@pytest.mark.usefixtures("own", "zone")
def test_since_is_whole_hours(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "--since", "239min")
    assert lines[0] == "box3 · from 2023-11-14 23:00 · watched 0.5 of 4 h"
    assert [line.split()[0] for line in lines[1:]] == ["user", "ben"]
    assert [line.split()[0] for line in shown(capsys, "--since", "40d")[2:]] == ["ada", "ben", "cyn", "all"]


@pytest.mark.usefixtures("own")
def test_a_terminal_of_ascii_gets_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    assert "".join(shown(capsys, "--ascii")).isascii()


@pytest.mark.usefixtures("own", "zone")
def test_where_nobody_watched_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--since", "1h", now=NOW + 40 * DAY) == 0
    captured = capsys.readouterr()
    assert captured.out == "box3 · from 2023-12-25 02:00 · watched 0.0 of 1 h\n"
    assert captured.err.startswith("gpuwatch: gpuwatch was not running in that time, or no GPU listed its processes; ")


def one(use: Use, **changes: Any) -> list[str]:
    """Return the cells of a table of one user."""
    kept = UsageReport("user", 0.0, lines=(UsageLine("ada", use, (0,), **changes),), watched=3600.0, total=use)
    return report_lines(kept, 3600.0)[2].split()[2:6]


def test_what_has_no_figure_is_no_nought() -> None:
    assert one(Use(3600.0, 0.0, 3600.0, 3600.0 * GIB)) == ["1.0", "—", "1.0", "—"]
    assert one(Use(3600.0, 1800.0, 0.0, 0.0, 0.0, 3600.0)) == ["1.0", "50", "—", "≥0.0"]
    assert one(Use(3600.0, 900.0, 1800.0, 3600.0 * GIB, 900.0 * GIB)) == ["1.0", "50", "1.0", "≥0.2"]
    assert one(Use(3600.0, 1800.0, 0.0, 1800.0 * GIB, 0.0, 1800.0)) == ["1.0", "50", "≥0.5", "≥0.0"]
    assert one(Use(1.0, 1.0, 0.0, GIB)) == ["<0.1", "100", "<0.1", "0.0"]


def test_doubt_is_said_below() -> None:
    use = Use(3600.0, 900.0, 1800.0, 3600.0 * GIB, 900.0 * GIB, 900.0)
    kept = UsageReport("user", 0.0, lines=(UsageLine("ada", use, (0,)),), watched=3600.0, total=use)
    assert report_lines(kept, 3600.0)[-3:] == [
        "",
        "for 50 % of the time held nothing says whether it was used: busy is of the rest",
        "for 25 % of it some memory has no figure: GiB·h are too few",
    ]


def test_a_long_table_is_cut_and_says_so() -> None:
    lines = tuple(UsageLine(f"run{number}", hours(1), (0, 1, 2, 5), key=str(number)) for number in range(9))
    kept = UsageReport("job", 0.0, lines=lines, watched=3600.0, total=hours(9), events=EventCounts(1, 2, 1))
    table = report_lines(kept, 3600.0, most=4)
    assert [line.split()[0] for line in table[2:7]] == ["run0", "run1", "run2", "run3", "all"]
    assert table[2].split()[3] == "0-2,5"
    assert table[-1] == "5 more with less; --json and --csv give all of them"
    assert len(json.loads(report_json(kept, 3600.0))["rows"]) == 9
    assert len(report_csv(kept).splitlines()) == 10


def test_wide_names_are_cut_by_their_cells() -> None:
    lines = (UsageLine("漢" * 40, hours(1), (0,)), UsageLine("ada", hours(1), (0,)))
    kept = UsageReport("user", 0.0, lines=lines, watched=3600.0, total=hours(2))
    table = report_lines(kept, 3600.0)
    assert table[2].startswith("漢" * 15)
    assert len(table[2].split()[0]) < 17


# ---------------------------------------------------------------------------------------------------------------
# For programs


@pytest.mark.usefixtures("own")
def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = shown(capsys, "--json", "--by", "job")
    found = json.loads(line)
    assert {name: found[name] for name in ("until", "host", "by", "watched_s")} == {
        "until": NOW,
        "host": "box3",
        "by": "job",
        "watched_s": 5400.0,
    }
    assert found["since"] <= NOW - 7 * DAY
    assert found["rows"][0] == {
        "job": "train.py",
        "key": "run",
        "user": "ada",
        "uid": 1000,
        "launcher": "torchrun",
        "first": HOUR,
        "last": HOUR + 60,
        "gpus": [0, 1],
        "held_s": 7200.0,
        "busy_s": 3600.0,
        "unknown_s": 0.0,
        "byte_s": 7200 * 20 * GIB,
        "idle_byte_s": 1800 * 20 * GIB,
        "unsized_s": 0.0,
        "overshoots": 1,
        "events": 2,
        "warnings": 2,
    }
    assert found["total"]["held_s"] == 9000.0


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("by", ["user", "gpu", "job"])
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


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", " =1", "＝1", "＋1", "－1", "＠A1", "﹦1"])
def test_no_cell_is_a_formula(name: str) -> None:
    kept = UsageReport("user", 0.0, lines=(UsageLine(name, hours(1), (0,)),))
    (_, row) = csv.reader(io.StringIO(report_csv(kept), newline=""))
    assert row[0] == f"'{name}"


@pytest.mark.parametrize("name", ["train.py", "a-b=c+d@e", "x; y", "größe=1", "'", "", "—2+3"])
def test_what_is_no_formula_stays(name: str) -> None:
    kept = UsageReport("user", 0.0, lines=(UsageLine(name, hours(1), (0,)),))
    (_, row) = csv.reader(io.StringIO(report_csv(kept), newline=""))
    assert row[0] == name


@pytest.mark.parametrize(
    ("name", "cell"),
    [("—2+3", "'-2+3"), ("→1", "'->1"), ("✓1", "'=1"), ("＝1", "?1"), ("a;—1", "a;'-1")],
)
def test_a_formula_that_ascii_makes_is_one_too(
    own_home: Path, capsys: pytest.CaptureFixture[str], name: str, cell: str
) -> None:
    save(own_store(), batch(user=name, name=name))
    for by in ("user", "job"):
        (row,) = csv.DictReader(io.StringIO("\n".join(shown(capsys, "--csv", "--ascii", "--by", by))))
        assert row[by] == cell


@given(st.text("a=+-@;,|\"' \t\r\n＝＋－＠—→✓\xa0", max_size=12), st.sampled_from(",;\t"), st.booleans())
def test_no_cell_is_a_formula_whatever_parts_the_cells(name: str, separator: str, ascii_only: bool) -> None:
    lines = (UsageLine(name, hours(1), (0,), user=name, launcher=name, key=name),) * 2
    by: By
    for by in ("user", "job"):
        text = report_csv(UsageReport(by, 0.0, lines=lines), ascii_only=ascii_only)
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            for cell in row:
                assert not cell.lstrip().startswith(tuple("=+-@＝＋－＠")), text


# ---------------------------------------------------------------------------------------------------------------
# What is wrong


@pytest.mark.parametrize("content", [b"", b"shopping list", b"SQLite format 3\0" + b"\0" * 4096, None])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "x"
    if content is None:
        os.mkfifo(file)  # it holds nobody up
    else:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=r"--file: .*; allowed is a store that gpuwatch wrote"):
        run("--file", str(file))
    assert content is None or file.read_bytes() == content


def test_nothing_was_kept_yet(own_home: Path) -> None:
    with pytest.raises(
        GpuwatchError, match="nothing was recorded yet: leave a dashboard or `gpuwatch watch` running"
    ) as caught:
        run()
    assert caught.value.exit_code == 1
    assert not own_store().parent.exists()


def test_ones_own_store_that_is_something_else_is_told_of(own_home: Path) -> None:
    own_store().parent.mkdir(parents=True)
    own_store().write_text("shopping list")
    with pytest.raises(GpuwatchError, match="it is damaged") as caught:
        run()
    assert caught.value.exit_code == 1


def test_another_file_may_be_a_link(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link").symlink_to(own)
    assert shown(capsys, "--file", str(tmp_path / "link"))[2].startswith("ada")


def test_of_many_runs_those_that_held_most_are_looked_up_and_all_are_summed(own: Path) -> None:
    save(own, joined([batch(HOUR, 0, use=hours(n / 100), job=f"{n}:{n}", name=f"run{n}") for n in range(1, 10)]))
    all_of_them = read_usage(own, "job", float(HOUR))
    most = read_usage(own, "job", float(HOUR), most=4)
    assert most.lines == all_of_them.lines[:4]
    assert (most.more, all_of_them.more) == (len(all_of_them.lines) - 4, 0)
    assert most.total == pytest.approx(all_of_them.total)
    assert report_lines(most, NOW, most=4)[1:] == report_lines(all_of_them, NOW, most=4)[1:]
    few = read_usage(own, "job", float(HOUR), most=len(all_of_them.lines))
    assert (few.more, few.lines) == (0, all_of_them.lines)


def test_an_hour_has_no_more_than_an_hour_where_the_clock_was_set_back(own: Path) -> None:
    save(own, batch(HOUR + 3600, 0, use=hours(1.5)))
    assert read_usage(own, "user", float(HOUR + 3600)).watched == 3600.0
