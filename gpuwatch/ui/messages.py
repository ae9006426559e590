"""The messages that reach the dashboard from outside it."""

from __future__ import annotations

from textual.message import Message

from gpuwatch.monitor import Frame


class Framed(Message):
    """A new frame from the watch thread; a slow painter skips to the newest, but never past one that ended an alert."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        super().__init__()

    def can_replace(self, message: Message) -> bool:
        """Say whether a newer frame may take the place of this one, which waits.

        History and alerts that hold are in the newer one too. What a frame ended is in that frame alone, and without a
        log (the demo) nobody else remembers it.
        """
        return isinstance(message, Framed) and not self.frame.cleared
