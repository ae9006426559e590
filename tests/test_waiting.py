"""What a test says that has waited in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.waiting import wait_for


def test_a_wait_in_vain_says_what_was_there_instead(tmp_path: Path) -> None:
    events = ["a raised"]

    def is_written() -> bool:
        return "b" in events

    def failure(*arguments: object) -> str:
        with pytest.raises(AssertionError) as error:
            wait_for(*arguments, patience=0.0)  # type: ignore[arg-type]
        return str(error.value)

    compared = failure(lambda: len(events) > 1 and events == ["a raised", "a ended"], "no end was recorded")
    assert compared.startswith("no end was recorded")
    assert "events = ['a raised']" in compared
    assert "len(events) = 1" in compared
    assert "events = ['a raised']" in failure(is_written)
    assert str(tmp_path / "file") in failure((tmp_path / "file").exists)
