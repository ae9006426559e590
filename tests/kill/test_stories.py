"""The protocol of ending processes, told as stories on a process table made of files; see `stories.txt`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kill.processtable import Story, table

FILE = Path(__file__).with_name("stories.txt")
STORIES = dict(story.split("\n", 1) for story in FILE.read_text().split("\n# ")[1:])


@pytest.mark.parametrize("title", STORIES)
def test_story(title: str, tmp_path: Path) -> None:
    told = STORIES[title].strip("\n").splitlines()
    with table(tmp_path) as processes:
        assert list(Story(processes).play(told)) == told
