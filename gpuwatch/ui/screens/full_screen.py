"""Full screen over the dashboard: a title, a body that a subclass draws, and the keys at the bottom."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from gpuwatch.ui.actions import actions_of, with_own_keys
from gpuwatch.ui.draw.footer import Hint
from gpuwatch.ui.draw.lines import Line
from gpuwatch.ui.draw.theme import StyleSet
from gpuwatch.ui.partial_updates import PartialUpdateCompositor, is_covered
from gpuwatch.ui.widgets.panels import Footer, LinePanel


class FullScreen(ModalScreen[None]):
    """Screen in place of the dashboard; modal, so that the dashboard's keys do nothing behind it."""

    DEFAULT_CSS = """
    FullScreen {
        background: $background;
        layout: vertical;
        overflow: hidden;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "help", "help", show=False, id="screen.help", tooltip="Keys, marks and terms"),
    ]
    AUTO_FOCUS = ""
    NAME: ClassVar[str] = "sheet"
    """Prefix of the ids of its widgets: `tree` for `tree-keys`."""

    def __init__(self, styles: StyleSet) -> None:
        super().__init__()
        self._compositor = PartialUpdateCompositor()
        self.style_set = styles
        self.ready = False
        """Whether its widgets exist."""
        self._title_panel = LinePanel(id=f"{self.NAME}-title")
        self._notice_panel = LinePanel(id=f"{self.NAME}-notice")
        self._footer = Footer(id=f"{self.NAME}-keys")

    @abstractmethod
    def paint(self) -> None:
        """Draw what has changed; nothing while the screen is hidden."""

    def draw_frame(self, title: Line, notice: Sequence[Line], keys: Sequence[Hint], *, has_footer: bool = True) -> None:
        """Draw the title, a notice of some lines below it, and the keys where the terminal is high enough."""
        width, height = self.app.size
        self._title_panel.show([title])
        self._notice_panel.display = bool(notice)
        self._notice_panel.set_height(max(1, len(notice)))
        self._notice_panel.show(notice)
        self._footer.display = has_footer and height >= 4
        self._footer.draw(keys, self.style_set, width)

    @property
    def hidden(self) -> bool:
        """Whether nothing is to be drawn: it is being made, or taken away, or covered by another screen."""
        return not self.ready or not self.children or is_covered(self)

    def own_keys(self, bindings: Iterable[Binding]) -> list[Binding]:
        """Return bindings of this screen with the user's keys, for the footer."""
        return with_own_keys(bindings, actions_of(self).options.keys)

    def on_mount(self) -> None:
        """Note that its widgets exist; a subclass then draws."""
        self.ready = True

    def restyle(self, styles: StyleSet) -> None:
        self.style_set = styles
        self.redraw()

    def redraw(self) -> None:
        self.paint()

    def on_resize(self) -> None:
        self.redraw()

    def on_screen_resume(self) -> None:
        """Draw what came while another screen was above."""
        self.redraw()

    def on_footer_pressed(self, message: Footer.Pressed) -> None:
        message.stop()
        self.call_later(self._press, message.action)

    async def _press(self, action: str) -> None:
        if self.is_active:  # not where the click before has opened something over this
            await self.run_action(action)

    def action_help(self) -> None:
        actions_of(self).action_help()

    def action_close(self) -> None:
        self.dismiss(None)
