"""Whose turn it is to send messages: of all that a user runs on a host and that have somebody to tell, one sends.

It has a lock of its own: whoever writes the events log may have nobody to tell, as one that was started before
`[notify]` was written, and two that write different logs see the same alerts.
"""

from __future__ import annotations

from pathlib import Path

from gpuwatch.recorder.events_log import Lock, for_host


class Turn:
    """Takes the turn when it is asked for, and keeps it; the kernel gives it on when its holder dies.

    To be called from one thread, which may have to wait for a file system.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` stands in for the user's state folder."""
        self._folder = folder
        self._lock: Lock | None = None

    def __call__(self) -> bool:
        """Return whether it is ours; also where no lock can be had: a message that comes twice is better than none."""
        try:
            lock = self._lock = self._lock or self._made()
            if lock.held and not lock.is_there():  # taken away: others would find a new one
                lock.release()
            return lock.held or lock.take()
        except OSError:
            return True

    def release(self) -> None:
        """Leave it to others."""
        if self._lock is not None:
            self._lock.release()

    def _made(self) -> Lock:
        from gpuwatch.files import state_folder

        return Lock((self._folder or state_folder()) / f"{for_host('messages')}.jsonl", private_folder=True)
