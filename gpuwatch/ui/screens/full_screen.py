"""Full screen over the dashboard: a title, a body that a subclass draws, and the keys at the bottom."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from textual.screen import ModalScreen

from gpuwatch.ui.partial_updates import PartialUpdateCompositor, is_covered
from gpuwatch.ui.theme import StyleSet
from gpuwatch.ui.widgets.footer import Footer
from gpuwatch.ui.widgets.lines import LinePanel


class FullScreen(ModalScreen[None]):
    """Screen in place of the dashboard; modal, so that the dashboard's keys do nothing behind it."""

    DEFAULT_CSS = """
    FullScreen {
        background: $background;
        layout: vertical;
        overflow: hidden;
    }
    """
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
        self._footer = Footer(id=f"{self.NAME}-keys")

    @abstractmethod
    def paint(self) -> None:
        """Draw what has changed; nothing while the screen is hidden."""

    @property
    def hidden(self) -> bool:
        """Whether nothing is to be drawn: it is being made, or taken away, or covered by another screen."""
        return not self.ready or not self.children or is_covered(self)

    def on_mount(self) -> None:
        """Note that its widgets exist; a subclass then draws."""
        self.ready = True

    def restyle(self, styles: StyleSet) -> None:
        self.style_set = styles
        self.redraw()

    def redraw(self) -> None:
        """Draw in a new size or styles."""
        self.paint()

    def on_resize(self) -> None:
        self.redraw()

    def on_screen_resume(self) -> None:
        """Draw what came while another screen was above."""
        self.redraw()

    def on_footer_pressed(self, message: Footer.Pressed) -> None:
        """Run the action of the key that was clicked."""
        message.stop()
        self.call_later(self._press, message.action)

    async def _press(self, action: str) -> None:
        if self.is_active:  # not where the click before has opened something over this
            await self.run_action(action)

    def action_close(self) -> None:
        self.dismiss(None)
