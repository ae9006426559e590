"""Audit file of signals: one JSON line before each signal, one after it, never rewritten."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuwatch import files
from gpuwatch.errors import NoThreadError
from gpuwatch.threads import Worker

FILE_NAME = "actions.jsonl"

RECORD_SECONDS = 2.0
"""Seconds for which the file system is waited for; a home folder on NFS may never answer."""


def _local_time() -> datetime:
    return datetime.now().astimezone()


class Audit:
    """Audit file `actions.jsonl` in a private folder: appends lines; never raises, but returns errors as text.

    With `seconds` a call waits no longer than that; a late line is still written, in its order.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seconds: float | None = None,
        now: Callable[[], datetime] = _local_time,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        """`now` returns the local time with its time zone."""
        self.path = folder / FILE_NAME
        self._seconds = seconds
        self._now = now
        self._write = write
        self._torn = False
        self._worker = Worker("gpuwatch-audit")
        self._last: Future[Any] | None = None

    def problem(self) -> str | None:
        """Return why a line cannot be written now; None where it can."""
        return self._call(lambda: os.close(self._open()))

    def append(self, event: str, fields: Mapping[str, object]) -> str | None:
        """Append one line, in one write, with the wall-clock time and the event; return why it may not be written."""
        record = {"time": self._now().isoformat(timespec="milliseconds"), "event": event, **fields}
        # ASCII only: a surrogate from a file name cannot then fail the write.
        line = json.dumps(record, ensure_ascii=True, separators=(",", ":"), default=str).encode("ascii") + b"\n"
        return self._call(lambda: self._append(line))

    def _append(self, line: bytes) -> str | None:
        file = self._open()
        try:
            # After a torn line, begin on a fresh one: else both would be unreadable.
            line = b"\n" + line if self._torn else line
            written = self._write(file, line)
            self._torn = written < len(line) and (self._torn or written > 0)
            return "only part of the line was written" if written < len(line) else None
        finally:
            os.close(file)

    def _open(self) -> int:
        folder = files.open_folder(self.path.parent)
        try:
            return files.open_file(folder, FILE_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        finally:
            os.close(folder)

    def _call(self, call: Callable[[], str | None]) -> str | None:
        try:
            if self._seconds is None:
                problem = call()
            else:
                # Behind a call that hangs there is nothing to wait for: the call before has waited.
                hangs = self._last is not None and not self._last.done()
                self._last = self._worker(call)
                problem = self._last.result(0 if hangs else self._seconds)
        except TimeoutError:
            problem = "the file system does not answer"
        except NoThreadError as error:
            problem = str(error)
        except OSError as error:
            problem = files.reason(error)
        return f"cannot record actions in {self.path}: {problem}" if problem else None
