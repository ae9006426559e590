"""`gpuwatch report --html`: what the page says, that nothing foreign becomes markup, and which files are replaced."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuwatch import cli
from gpuwatch.analysis.events import Events, Gap
from gpuwatch.base.units import GIB
from gpuwatch.commands import report_page
from gpuwatch.commands.report_page import Bar, Chart, PageSeries, read_series, render_chart, render_page, resampled
from tests import browser
from tests.commands.reporting import HOSTILE, SINCE, page_of, value_minute
from tests.support.store import HOUR, alert, batch, change, ended, hours, save


class Reader(HTMLParser):
    """Elements of a page, with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("href", "xlink:href", "src")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def plain() -> Reader:
    return Reader(render_page(page_of()))


def test_ids_are_unique_and_every_link_leads_to_one(plain: Reader) -> None:
    assert len(plain.ids) == len(set(plain.ids))
    assert {link[0] for link in plain.links} == {"#"}
    assert {link[1:] for link in plain.links} <= set(plain.ids)
    assert any(link.startswith("#event-") for link in plain.links)


def test_people_come_first_then_gpus_then_runs_then_charts() -> None:
    headings = re.findall(r"<h2>(.*?)</h2>", render_page(page_of()))
    assert headings == ["Users", "GPUs", "Runs", "GPUs over time", "Events"]


def test_a_hostile_name_stays_text(plain: Reader) -> None:
    assert Reader(render_page(page_of(HOSTILE[0]))).elements == plain.elements


def also_hostile(test: Any) -> Any:
    """Let a test try the hostile names too."""
    for name in HOSTILE:
        test = example(name, "")(test)
    return test


@cache
def elements_without_charts() -> list[tuple[str, tuple[str, ...]]]:
    """Return the elements of a page without charts, which have no names and take most of the time."""
    return Reader(render_page(page_of(means=[]))).elements


@pytest.mark.uncounted
@also_hostile
@settings(max_examples=25)
@given(name=st.text(min_size=1, max_size=80), title=st.text(st.sampled_from("<>&\"'/-!]=ab \n\u202e"), min_size=1))
def test_no_name_becomes_an_element_or_an_attribute(name: str, title: str) -> None:
    assert Reader(render_page(page_of(name, title, means=[]))).elements == elements_without_charts()


# ---------------------------------------------------------------------------------------------------------------
# Values


def test_a_time_without_values_is_a_gap_and_an_absent_user_holds_nothing() -> None:
    means = [
        value_minute(SINCE, used=8.0, u1=4.0),
        value_minute(SINCE + 60, used=8.0),
        value_minute(SINCE + 180, u1=2.0),
    ]
    edges, found = resampled(PageSeries(means), SINCE, SINCE + 240)
    assert edges.tolist() == [SINCE + 60 * at for at in range(5)]
    assert found["GPU-0"].used == pytest.approx([8.0, 8.0, nan, nan], nan_ok=True)
    assert found["GPU-0"].owners["user:1"] == pytest.approx([4.0, 0.0, nan, 2.0], nan_ok=True)


def test_a_chart_has_each_owner_and_gaps_as_gaps() -> None:
    edges, values = SINCE + 60 * np.arange(4.0), np.array([GIB, nan, GIB])
    bar = Bar(SINCE, SINCE + 60, "note", True, "e")
    svg = render_chart(Chart(edges, {3: values}, values, bars=[bar]), "x", "words")
    assert "fill: var(--owner3)" in svg
    area = re.search(r'd="([^"]*)"[^>]*style="fill: var\(--owner3\)"', svg)
    assert area is not None
    assert area[1].count("M") == 2
    assert re.search(r"<text[^>]*>3</text>", svg)
    assert '<a href="#e"' in svg
    assert "#00fe" not in svg


def test_a_span_of_more_than_a_day_is_made_from_hours(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    save(store, *(batch(HOUR + 3600 * at, use=hours(0.5, gib=10.0, busy=0.5), watched=3600.0) for at in range(2)))
    series = read_series([store], SINCE, SINCE + 40 * 3600)
    assert (series.step, len(series.means)) == (3600, 2)
    values = series.means[0].values
    assert values == pytest.approx(
        {"GPU-0//used": 5 * GIB, "GPU-0//utilization": 25.0, "GPU-0/user:1000/memory": 5 * GIB}
    )


@pytest.mark.parametrize("at", ["9223372036854775807", "-9223372036854775808", "'x'", "x'00'"])
def test_an_hour_of_a_damaged_store_is_left_out(tmp_path: Path, at: str) -> None:
    store = tmp_path / "store.sqlite"
    save(store, batch(use=hours(1.0)))
    change(store, f"UPDATE use SET at = {at} WHERE at = {HOUR}")
    assert report(store, tmp_path / "page.html") == 0


def test_an_alert_has_no_bar_while_nobody_watched() -> None:
    event = ended(alert(title="hot", gpu="GPU-0", raised=SINCE + 600.0), after=3000.0)
    gaps = (Gap(SINCE + 1200, SINCE + 2400), Gap(SINCE + 1800, SINCE + 1900, lost=3))
    found = page_of(series=PageSeries(events=Events(alerts=(event,), gaps=gaps, exists=True)))
    bars = [(bar.since - SINCE, bar.until - SINCE) for bar in report_page.alert_bars(event, "event-1", found)]
    assert bars == [(600.0, 1200.0), (2400.0, 3600.0)]


def test_each_bar_of_what_was_raised_again_and_again_leads_to_its_line() -> None:
    times = [ended(alert(str(at), gpu="GPU-0", raised=SINCE + 600.0 * at), after=60.0) for at in range(4)]
    series = PageSeries([value_minute(SINCE, used=1.0)], events=Events(alerts=tuple(times), exists=True))
    page = Reader(render_page(page_of(series=series)))
    assert [one for one in page.ids if one.startswith("event-")] == ["event-1"]
    assert page.links.count("#event-1") == 4


def test_a_page_has_no_event_of_later(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    save(store, batch(), events=[ended(alert(str(at), raised=SINCE + at * 3600.0)) for at in range(3)])
    assert len(read_series([store], SINCE, SINCE + 5400.0).events.alerts) == 2


# ---------------------------------------------------------------------------------------------------------------
# The command and its file


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.sqlite"
    save(path, batch(use=hours(1.0)))
    return path


def report(store: Path, target: Path, *more: str) -> int:
    return cli.main(["report", "--file", str(store), "--since", "365d", "--html", str(target), *more], None)


def test_a_page_is_replaced_with_its_permissions(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text(report_page.START)
    target.chmod(0o644)
    assert report(store, target) == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert len(target.read_text()) > 1000


def other_targets(folder: Path) -> Iterator[Path]:
    """Yield paths at which something else is: a file, links, a folder, a pipe."""
    (folder / "thesis.html").write_text("<!DOCTYPE html>\n<html>my thesis")
    yield folder / "thesis.html"
    (folder / "page.html").write_text(report_page.START)
    (folder / "link.html").symlink_to(folder / "page.html")
    yield folder / "link.html"
    (folder / "folder.html").mkdir()
    yield folder / "folder.html"
    os.mkfifo(folder / "pipe.html")
    yield folder / "pipe.html"
    yield folder / "missing" / "page.html"


def test_nothing_else_is_replaced(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for target in other_targets(tmp_path):
        assert report(store, target) == 2
        assert capsys.readouterr().err.startswith("gpuwatch: --html: ")
    assert (tmp_path / "thesis.html").read_text().endswith("my thesis")
    assert not [one.name for one in tmp_path.iterdir() if one.name.startswith(".")]


# ---------------------------------------------------------------------------------------------------------------
# In a real Chromium


def in_browser(test: Any) -> Any:
    """Mark a test that needs Chromium."""
    why = "no Chromium here: apt-get install chromium-headless-shell"
    return pytest.mark.slow(pytest.mark.skipif(not browser.CHROMIUM, reason=why)(test))


@pytest.mark.uncounted
@in_browser
def test_nothing_is_wider_than_the_window(tmp_path: Path) -> None:
    for number, (name, width) in enumerate([("ada", 1280), ("x" * 300, 320), ("שלום", 320)]):
        path = tmp_path / f"{number}.html"
        path.write_text(render_page(page_of(name)))
        found = browser.measure(path, width)
        assert (found["scroll"], found["wide"]) == (width, []), name


@in_browser
def test_no_request_leaves_the_page(tmp_path: Path) -> None:
    page, outside = tmp_path / "page.html", tmp_path / "outside.html"
    page.write_text(render_page(page_of()))
    assert browser.requests(page, tmp_path / "log.json") == set()
    outside.write_text("<!DOCTYPE html><img src='http://example.invalid/x.png'>")
    assert browser.requests(outside, tmp_path / "other.json") == {"http://example.invalid/x.png"}
