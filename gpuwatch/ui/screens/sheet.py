"""Full screen of labelled facts: a title, one or two columns that scroll, and the keys at the bottom."""

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
"""Least width at which the two halves stand side by side."""

_SHORT = 30
"""Largest number of cells of an aside that stands after its value; a longer one has a line of its own."""

_LABEL = 15
"""Largest number of cells of the labels."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Label with a value, or with the reason why there is none."""

    label: str
    value: str
    missing: bool = False
    aside: str = ""
    """Less important words: the source of the value, how certain it is."""


@dataclass(frozen=True, slots=True)
class Section:
    """Facts under a heading."""

    title: str
    facts: tuple[Fact, ...]


class Sheet(ModalScreen[None]):
    """Screen of sections; modal, so that the dashboard's keys do nothing behind it."""

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
        super().__init__()
        self.glyphs = glyphs
        self.ready = False
        """Whether its widgets exist."""

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        yield Static(id="notice", markup=False)
        with VerticalScroll(id="body"), Container(id="halves"):
            yield Static(id="left", markup=False)
            yield Static(id="right", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Note that its widgets exist; a subclass then draws."""
        self.ready = True

    def show(self, title: str, left: Sequence[Section], right: Sequence[Section]) -> None:
        """Draw the sections of the left and the right half."""
        self.query_one("#title", Static).update(Content(self._plain(title)), layout=False)
        # The layout is asked for anew: a reading that turns into a reason takes more lines in a narrow terminal.
        # One above the other, both halves have their values after the same margin.
        other = (label_cells(right), label_cells(left)) if self.app.size.width < TWO_COLUMNS else (0, 0)
        self.query_one("#left", Static).update(draw(left, self._plain, other[0]))
        self.query_one("#right", Static).update(draw(right, self._plain, other[1]))

    def notice(self, text: str, *, over: bool = False) -> None:
        """Show a line below the title, or none; `over` dims the facts, which are no longer true."""
        self.set_class(bool(text), "-notice")
        self.set_class(over, "-over")
        self.query_one("#notice", Static).update(Content(self._plain(text)))

    def _plain(self, text: str) -> str:
        return plain(text) if self.glyphs.ascii else text

    def action_close(self) -> None:
        self.dismiss(None)

    def action_line(self, lines: int) -> None:
        self.query_one("#body").scroll_relative(y=lines, animate=False)

    def action_page(self, pages: int) -> None:
        """Scroll by pages, less one line."""
        body = self.query_one("#body")
        body.scroll_relative(y=pages * max(1, body.scrollable_content_region.height - 1), animate=False)

    def action_end(self, bottom: int) -> None:
        body = self.query_one("#body")
        body.scroll_to(y=body.max_scroll_y if bottom else 0, animate=False)


_NAMES = str.maketrans({"…": "...", "↑": "Up", "↓": "Down", "⇧": "S-"})
"""Signs that are spelled out."""


def plain(text: str) -> str:
    """Replace gpuwatch's symbols by ASCII; names that people chose stay unchanged."""
    return spell_signs(text.translate(_NAMES))


def label_cells(sections: Sequence[Section]) -> int:
    return min(max((len(fact.label) for section in sections for fact in section.facts), default=0), _LABEL)


def draw(sections: Sequence[Section], spell: Callable[[str], str] = str, least: int = 0) -> Group:
    """Draw sections as tables of labels and values; the values wrap, and may be any text.

    `least` is the least width of the labels, in cells.
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
