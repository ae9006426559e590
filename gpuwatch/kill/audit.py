"""The record of what gpuwatch was asked to do to a process: one JSON line before, one after, never rewritten."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from gpuwatch import files

FILE_NAME = "actions.jsonl"


def state_folder(euid: int | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """The folder of the record: the user's state folder, and root's own under sudo or su.

    Root never writes below another user's HOME: that would leave files there which their owner cannot remove,
    or follow links that they planted.
    """
    # 5 ms to import, and wanted only once an action is at hand.
    import platformdirs

    euid = os.geteuid() if euid is None else euid
    environ = os.environ if environ is None else environ
    try:
        folder = Path(platformdirs.user_state_dir("gpuwatch"))
    except RuntimeError:  # no HOME, and no user of this number
        folder = Path()
    if not folder.is_absolute():  # whoever writes there is told that it cannot be
        folder = files.NO_HOME / ".local" / "state" / "gpuwatch"
    if euid == 0 and ("SUDO_UID" in environ or _owner_of_nearest(folder) != 0):
        return Path(pwd.getpwuid(0).pw_dir) / ".local" / "state" / "gpuwatch"
    return folder


def _owner_of_nearest(folder: Path) -> int | None:
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):  # missing: ask the folder above
            return place.stat().st_uid
    return None


class Audit:
    """Appends to `actions.jsonl` in a folder of its own; never raises, tells what is wrong in a sentence."""

    def __init__(
        self, folder: Path, *, now: Callable[[], datetime] | None = None, write: Callable[[int, bytes], int] = os.write
    ) -> None:
        """`now` gives the wall time of a line, aware of its zone; `write` is os.write outside of tests."""
        self._folder = folder
        self._now = now or _local_time
        self._write = write
        self._torn = False

    @property
    def path(self) -> Path:
        """Where the lines go."""
        return self._folder / FILE_NAME

    def problem(self) -> str | None:
        """Why a line could not be written now, for the dialog to warn with before it asks; None when it could."""
        try:
            os.close(self._open())
        except OSError as error:
            return self._sentence(error)
        return None

    def append(self, event: str, fields: Mapping[str, object]) -> str | None:
        """Write one line, in one write, with the wall time and the event; returns why it could not be written."""
        record = {"time": self._now().isoformat(timespec="milliseconds"), "event": event, **fields}
        # ASCII only: a surrogate from a file name cannot then fail the write.
        line = json.dumps(record, ensure_ascii=True, separators=(",", ":"), default=str).encode("ascii") + b"\n"
        try:
            file = self._open()
        except OSError as error:
            return self._sentence(error)
        try:
            return self._write_line(file, line)
        except OSError as error:
            return self._sentence(error)
        finally:
            os.close(file)

    def _write_line(self, file: int, line: bytes) -> str | None:
        # After a torn line, begin on a fresh one: else both would be unreadable.
        line = b"\n" + line if self._torn else line
        written = self._write(file, line)
        self._torn = written < len(line) and (self._torn or written > 0)
        if written < len(line):
            return f"cannot record actions in {self.path}: only part of the line was written"
        return None

    def _open(self) -> int:
        folder = files.open_folder(self._folder)
        try:
            return files.open_file(folder, FILE_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        finally:
            os.close(folder)

    def _sentence(self, error: OSError) -> str:
        return f"cannot record actions in {self.path}: {files.reason(error)}"


def _local_time() -> datetime:
    return datetime.now().astimezone()
