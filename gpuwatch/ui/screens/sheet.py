"""A full screen of labelled facts: a title, one or two columns that scroll, and the keys at the bottom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from gpuwatch.text import spell_signs
from gpuwatch.ui.theme import UNICODE, Glyphs

TWO_COLUMNS = 110
"""From this width on the two halves stand side by side."""

_SHORT = 30
"""Cells of an aside that stands behind its value; a longer one has a line of its own, lest two figures run together."""

_LABEL = 15
"""Cells for the labels, which all values of a half stand behind."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One line: a label, and what is known or why it is not."""

    label: str
    value: str
    missing: bool = False
    aside: str = ""
    """Less important words: where it stands, how sure it is."""


@dataclass(frozen=True, slots=True)
class Section:
    """Facts under a heading."""

    title: str
    facts: tuple[Fact, ...]


class Sheet(ModalScreen[None]):
    """A screen that shows sections of facts; modal, so that the dashboard's keys do nothing behind it."""

    DEFAULT_CSS = """
    Sheet {
        background: $background;
    }
    Sheet #title {
        height: 1;
        padding: 0 1;
        background: $panel;
        color: $foreground;
        text-style: bold;
    }
    Sheet #notice {
        height: auto;
        padding: 0 1;
        color: $text-warning;
        display: none;
    }
    Sheet.-notice #notice {
        display: block;
    }
    Sheet #body {
        height: 1fr;
        padding: 0 1;
        scrollbar-size-vertical: 1;
    }
    Sheet.-high #body {
        padding: 1 2 1 1;
    }
    Sheet Footer {
        padding-left: 1;
    }
    Sheet FooterKey .footer-key--key {
        color: $foreground;
    }
    Sheet FooterKey .footer-key--description {
        color: $text-muted;
        padding-right: 1;
    }
    Sheet #halves {
        layout: vertical;
        height: auto;
    }
    Sheet #halves > Static {
        height: auto;
        width: 1fr;
    }
    Sheet.-one #right {
        margin-top: 1;
    }
    Sheet.-two #halves {
        layout: horizontal;
    }
    Sheet.-two #left {
        margin-right: 3;
    }
    Sheet.-over #halves {
        color: $text-muted;
    }
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-one"), (TWO_COLUMNS, "-two")]  # noqa: RUF012 - Textual declares it so
    VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-high")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "back", id="sheet.close", tooltip="Back to the dashboard", key_display="Esc"),
        Binding("down,j", "line(1)", "down", show=False, id="sheet.down", tooltip="Scroll down"),
        Binding("up,k", "line(-1)", "up", show=False, id="sheet.up", tooltip="Scroll up"),
        Binding("pagedown,space", "page(1)", "scroll", id="sheet.page_down", tooltip="Next page", key_display="Space"),
        Binding("pageup,b", "page(-1)", "page up", show=False, id="sheet.page_up", tooltip="Previous page"),
        Binding("home,g", "end(0)", "top", show=False, id="sheet.top", tooltip="Scroll to the top"),
        Binding("end,G", "end(1)", "bottom", show=False, id="sheet.bottom", tooltip="Scroll to the bottom"),
    ]

    AUTO_FOCUS = "#body"

    def __init__(self, glyphs: Glyphs = UNICODE) -> None:
        """`glyphs` are those of the dashboard; with the plain ones nothing outside ASCII is drawn."""
        super().__init__()
        self.glyphs = glyphs
        self.ready = False
        """Whether there are widgets to show something in."""

    def compose(self) -> ComposeResult:
        """Build the title, the notice below it, the two halves and the keys."""
        yield Static(id="title", markup=False)
        yield Static(id="notice", markup=False)
        with VerticalScroll(id="body"), Container(id="halves"):
            yield Static(id="left", markup=False)
            yield Static(id="right", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Remember that there is something to draw on; a screen calls its own drawing after this."""
        self.ready = True

    def show(self, title: str, left: Sequence[Section], right: Sequence[Section]) -> None:
        """Draw the sections; what is known stands out against what is not."""
        self.query_one("#title", Static).update(Content(self._plain(title)), layout=False)
        # The layout is asked for anew: a reading that turns into a reason takes more lines in a narrow terminal.
        # One above the other, both halves have their values behind the same margin.
        other = (label_cells(right), label_cells(left)) if self.app.size.width < TWO_COLUMNS else (0, 0)
        self.query_one("#left", Static).update(draw(left, self._plain, other[0]))
        self.query_one("#right", Static).update(draw(right, self._plain, other[1]))

    def notice(self, text: str, *, over: bool = False) -> None:
        """Put a line below the title, or take it away; `over` dims what is shown as no longer true."""
        self.set_class(bool(text), "-notice")
        self.set_class(over, "-over")
        self.query_one("#notice", Static).update(Content(self._plain(text)))

    def _plain(self, text: str) -> str:
        return plain(text) if self.glyphs.ascii else text

    def action_close(self) -> None:
        """Go back."""
        self.dismiss(None)

    def action_line(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one("#body").scroll_relative(y=lines, animate=False)

    def action_page(self, pages: int) -> None:
        """Scroll by pages, less one line to keep the place."""
        body = self.query_one("#body")
        body.scroll_relative(y=pages * max(1, body.scrollable_content_region.height - 1), animate=False)

    def action_end(self, bottom: int) -> None:
        """Scroll to the top or the bottom."""
        body = self.query_one("#body")
        body.scroll_to(y=body.max_scroll_y if bottom else 0, animate=False)


_NAMES = str.maketrans({"…": "...", "↑": "Up", "↓": "Down", "⇧": "S-"})
"""Signs that are spelled at length where there is room."""


def plain(text: str) -> str:
    """Spell our own signs in ASCII; what is left is what people themselves have called their things."""
    return spell_signs(text.translate(_NAMES))


def label_cells(sections: Sequence[Section]) -> int:
    """Return the cells that the labels of sections take."""
    return min(max((len(fact.label) for section in sections for fact in section.facts), default=0), _LABEL)


def draw(sections: Sequence[Section], spell: Callable[[str], str] = str, least: int = 0) -> Group:
    """Draw sections as a table of two columns each: labels, and values that wrap and may hold any text.

    `least` is how many cells the labels take at least.
    """
    parts: list[Text | Table] = []
    width = max(label_cells(sections), least)
    for section in sections:
        if parts:
            parts.append(Text(""))
        parts.append(Text(section.title, style="bold"))
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(width=width + 1, no_wrap=True, overflow="ellipsis")
        grid.add_column(ratio=1, overflow="fold")
        for fact in section.facts:
            style = "dim italic" if fact.missing else ""
            value = Text(spell(fact.value), style=style)
            if fact.aside:
                between = "  " if len(fact.aside) <= _SHORT else "\n"
                value.append(f"{between}{spell(fact.aside)}", style="dim")
            grid.add_row(Text(spell(fact.label), style="dim"), value)
        parts.append(grid)
    return Group(*parts)
