"""The pictures of the README are what the program draws: whole screens, the same bytes each time."""

from __future__ import annotations

import time

import pytest

from tests import CHECKOUT
from tests.screenshots import PICTURES, REPORT, draw

pytestmark = [pytest.mark.uncounted, pytest.mark.slow]
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


def test_the_readme_shows_each_picture_that_the_script_draws() -> None:
    readme = (FOLDER.parent / "README.md").read_text()
    names = {f"screenshots/{name}" for name in (REPORT, *(f"{picture.name}.svg" for picture in PICTURES))}
    shown = {word for word in readme.replace(")", " ").replace("(", " ").split() if word.startswith("screenshots/")}
    assert shown == names
