"""The page of `gpuwatch report --html` in a real Chromium: colours, widths, requests, print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from gpuwatch.commands.report_page import render_page
from tests.support import browser
from tests.support.demo_store import WALL, save_demo, write_page
from tests.support.reporting import HOSTILE, page_colors, page_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not browser.CHROMIUM, reason="no Chromium here: apt-get install chromium-headless-shell"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page of 3 hours of the demo."""
    folder = tmp_path_factory.mktemp("page")
    save_demo(folder / "store.sqlite", WALL, hours=3.0)
    write_page(folder / "store.sqlite", folder / "page.html", WALL, "3h")
    return folder / "page.html"


def colors(file: Path) -> dict[str, int]:
    """Return how many pixels of a picture have each colour."""
    with Image.open(file) as picture:
        found = picture.convert("RGB").getcolors(1 << 24)
    return {"#{:02x}{:02x}{:02x}".format(*color): count for count, color in found or ()}  # type: ignore[misc]


@pytest.mark.parametrize("dark", [False, True])
def test_owners_alerts_and_ground_have_their_colours(page: Path, tmp_path: Path, dark: bool) -> None:
    browser.screenshot(page, tmp_path / "page.png", 1280, 2400, dark=dark)
    found = colors(tmp_path / "page.png")
    named = page_colors()[dark]
    assert max(found, key=found.__getitem__) in (named["base"], named["card"])
    # The demo's people have uids from 1001 to 1009.
    few = {slot: found.get(named[f"owner{slot}"], 0) for slot in range(1, 10)}
    assert min(few.values()) > 100, few
    assert all(found.get(named[name], 0) > 100 for name in ("note", "warning", "critical", "used", "line"))


@pytest.mark.parametrize("width", [1280, 390, 320])
def test_nothing_is_wider_than_the_window(page: Path, width: int) -> None:
    found = browser.measure(page, width)
    assert (found["width"], found["scroll"], found["wide"], found["texts"]) == (width, width, [], [])
    assert found["charts"] == 8


@pytest.mark.parametrize("width", [1280, 390])
def test_long_and_hostile_names_stay_inside(tmp_path: Path, width: int) -> None:
    for number, name in enumerate(HOSTILE):
        path = tmp_path / f"{number}.html"
        path.write_text(render_page(page_of(name)))
        found = browser.measure(path, width)
        assert (found["scroll"], found["wide"]) == (width, []), name


def test_no_request_leaves_the_page(page: Path, tmp_path: Path) -> None:
    assert browser.requests(page, tmp_path / "log.json") == set()
    outside = tmp_path / "outside.html"
    outside.write_text("<!DOCTYPE html><img src='http://example.invalid/x.png'>")
    assert browser.requests(outside, tmp_path / "other.json") == {"http://example.invalid/x.png"}


def test_it_can_be_printed(page: Path, tmp_path: Path) -> None:
    browser.print_page(page, tmp_path / "page.pdf")
    content = (tmp_path / "page.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type /Page\b(?!s)", content)) <= 8
