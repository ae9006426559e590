"""Actions of the application: what screens and widgets may ask of it, as a protocol; none of them imports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from textual.command import Provider
    from textual.message_pump import MessagePump

    from gpuwatch.alerts.alert import Alert
    from gpuwatch.analysis.strays import Stray, StrayReport
    from gpuwatch.base.threads import Worker
    from gpuwatch.kill.ending import KillChoice
    from gpuwatch.kill.queue import KillQueue
    from gpuwatch.model.fields import Row, RowKey
    from gpuwatch.monitor import Frame
    from gpuwatch.ui.draw.keys import BoundKey
    from gpuwatch.ui.options import Options


class Actions(Protocol):
    """Methods and state of the application that screens and widgets use; a test passes an object of its own."""

    options: Options
    keys: Sequence[BoundKey]
    """Keys for the footer, the help and the palette."""
    newest: Frame | None

    @property
    def refused(self) -> frozenset[str]:
        """Actions that would only say why they are refused: no footer shows them."""

    @property
    def kill_queue(self) -> KillQueue | None:
        """Processes that are being ended; None before the first."""

    def paint(self) -> None:
        """Draw the dashboard."""

    def strays_of(self, frame: Frame) -> StrayReport:
        """Return the strays among the viewer's processes in a frame."""

    def background(self, name: str) -> Worker:
        """Return the background worker with this name, for slow calls."""

    def show_detail(self, key: RowKey) -> None:
        """Open the detail screen of a process."""

    def show_gpu(self, key: str) -> None:
        """Open the detail screen of a GPU (`Gpu.key`)."""

    def show_subject(self, alert: Alert) -> None:
        """Open the detail screen of an alert's process, or else show the processes of its GPU."""

    def show_only_user(self, uid: int | None) -> None:
        """Show only the processes of one user; None for those whose owner is not visible."""

    def write_to_owner(self, frame: Frame | None, is_meant: Callable[[Row], bool]) -> None:
        """Copy a message to the owner of these rows to the clipboard, and show it."""

    def action_acknowledge(self, alert: Alert | None = None) -> None:
        """Open the dialog about an alert, or about all that hold now."""

    def action_help(self) -> None:
        """Explain keys, marks and terms."""

    def may_end(self) -> bool:
        """Return whether processes can be ended; notify the user of the reason where not."""

    def ask_to_end(self, key: RowKey, *, whole_run: bool = False) -> None:
        """Ask whether to end a process, or its run."""

    def end_strays(self, strays: Sequence[Stray], choice: KillChoice, frame: Frame) -> None:
        """End strays one by one, by the signal that the user confirmed; requires `may_end`."""


def actions_of(asking: MessagePump | Provider) -> Actions:
    """Return the application of a screen, a widget or the palette, as far as that may use it."""
    return cast("Actions", asking.app)
