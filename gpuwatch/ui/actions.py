"""Actions of the application: their bindings to keys, and the protocol that screens and widgets use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast

from textual.binding import Binding

from gpuwatch.config.keymap import Keys
from gpuwatch.ui.draw.keys import BoundKey, keymap

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
    from gpuwatch.ui.options import Options


class Actions(Protocol):
    """Members of `GpuwatchApp` that screens and widgets use; the app of a test or a fleet has some of them."""

    options: Options
    keys: Sequence[BoundKey]
    newest: Frame | None

    @property
    def refused(self) -> frozenset[str]: ...
    @property
    def kill_queue(self) -> KillQueue | None: ...
    def paint(self) -> None: ...
    def strays_of(self, frame: Frame) -> StrayReport: ...
    def background(self, name: str) -> Worker: ...
    def show_detail(self, key: RowKey) -> None: ...
    def show_gpu(self, key: str) -> None: ...
    def show_subject(self, alert: Alert) -> None: ...
    def show_only_user(self, uid: int | None) -> None: ...
    def write_to_owner(self, frame: Frame | None, is_meant: Callable[[Row], bool]) -> None: ...
    def action_acknowledge(self, alert: Alert | None = None) -> None: ...
    def action_help(self) -> None: ...
    def may_end(self) -> bool: ...
    def ask_to_end(self, key: RowKey, *, whole_run: bool = False) -> None: ...
    def end_strays(self, strays: Sequence[Stray], choice: KillChoice, frame: Frame) -> None: ...


def actions_of(asking: MessagePump | Provider) -> Actions:
    """Return the application of a screen, a widget or the palette, as the protocol."""
    return cast("Actions", asking.app)


def make_bindings(keys: Iterable[BoundKey]) -> list[Binding]:
    return [
        Binding(one.key, one.action, one.description, one.show, one.key_display, one.priority, one.tooltip, one.id)
        for one in keys
    ]


def with_own_keys(bindings: Iterable[Binding], keys: Keys) -> list[Binding]:
    """Return the bindings of another screen with the user's keys; an action without a key has none."""
    own = keymap(keys)
    found = [replace(one, key=own.get(one.id or "", one.key)) for one in bindings]
    return [one for one in found if one.key]
