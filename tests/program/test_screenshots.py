"""The pictures of the README are what the program draws: whole screens, the same bytes each time."""

from __future__ import annotations

import time

import pytest

from tests import CHECKOUT
from tests.screenshots import PICTURES, Picture, draw

pytestmark = pytest.mark.no_cover
"""Hours of simulation, which take ten times as long while lines are counted; what they run is counted elsewhere."""

FOLDER = CHECKOUT / "screenshots"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
async def test_a_picture_is_up_to_date(picture: Picture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    drawn = await draw(picture)
    monkeypatch.undo()
    time.tzset()
    same = drawn == (FOLDER / f"{picture.name}.svg").read_text()
    assert same, "it has changed: look at it, then `python -m tests.screenshots`"


def test_every_picture_of_the_readme_is_drawn_by_the_script() -> None:
    readme = (FOLDER.parent / "README.md").read_text()
    names = {f"screenshots/{picture.name}.svg" for picture in PICTURES}
    shown = {word for word in readme.replace(")", " ").replace("(", " ").split() if word.startswith("screenshots/")}
    assert shown <= names
    assert shown
