"""Styled text is wrapped as Rich wraps it, cell by cell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from gpuwatch.ui.draw.lines import plain, wrapped_lines
from gpuwatch.ui.draw.theme import make_styles

STYLES = make_styles("gpuwatch-dark")
RUNS = st.lists(st.text(st.sampled_from("ab  日\n-"), max_size=30), min_size=1, max_size=3)


@given(RUNS, st.integers(3, 20), st.integers(0, 4))
def test_text_is_wrapped_as_by_rich(runs: list[str], width: int, margin: int) -> None:
    drawn = wrapped_lines([(text, STYLES("text")) for text in runs], STYLES, width + margin, margin)
    wanted = Text("".join(runs)).wrap(Console(width=80), width, overflow="fold") or [Text()]
    assert [plain(line).rstrip() for line in drawn] == [f"{' ' * margin}{line.plain}".rstrip() for line in wanted]


def test_each_run_keeps_its_style() -> None:
    first, second = wrapped_lines([("ab cd", STYLES("strong")), (" ef", STYLES("muted"))], STYLES, 6, 1)
    assert [span[:2] for span in first] == [(" ", STYLES("text")), ("ab cd", STYLES("strong"))]
    assert [span[:2] for span in second][1:] == [("ef", STYLES("muted")), ("   ", STYLES("text"))]
