"""The messages that reach the dashboard from outside it."""

from __future__ import annotations

from textual.message import Message

from gpuwatch.watch import Frame


class Framed(Message):
    """A new frame from the watch thread. A slow painter sees only the newest; history and alerts live in the thread."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        super().__init__()

    def can_replace(self, message: Message) -> bool:
        """Let a newer frame take the place of one that waits."""
        return isinstance(message, Framed)
