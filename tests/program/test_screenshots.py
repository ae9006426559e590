"""The pictures of README and pages are what the program draws: whole screens, the same bytes each time."""

from __future__ import annotations

import re
import time

import pytest

from tests import CHECKOUT
from tests.docs import documents
from tests.screenshots import PICTURES, REPORT, draw

pytestmark = pytest.mark.slow
"""Minutes of simulation, which take ten times as long while lines are counted; their code is counted elsewhere."""

FOLDER = CHECKOUT / "screenshots"


async def test_the_pictures_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    drawn = {picture.name: await draw(picture) for picture in PICTURES}
    monkeypatch.undo()
    time.tzset()
    stale = [name for name, svg in drawn.items() if svg != (FOLDER / f"{name}.svg").read_text()]
    assert not stale, "look at these screens, then run `python -m tests.screenshots`"


def test_readme_and_pages_show_each_picture_that_the_script_draws() -> None:
    shown = {name for file in documents() for name in re.findall(r"\(\S*screenshots/(\S+)\)", file.read_text())}
    assert shown == {REPORT, *(f"{picture.name}.svg" for picture in PICTURES)}
