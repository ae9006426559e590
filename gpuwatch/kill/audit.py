"""Audit file of signals: one JSON line before each signal, one after it, never rewritten."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, TimeoutError
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuwatch import files
from gpuwatch.errors import NoThreadError
from gpuwatch.threads import Worker

FILE_NAME = "actions.jsonl"

RECORD_SECONDS = 2.0
"""Time that the file system of the record has to answer; a home folder on NFS may never do so."""


class Audit:
    """File `actions.jsonl` in a private folder, appended to; it raises nothing, and returns what is wrong."""

    def __init__(
        self, folder: Path, *, now: Callable[[], datetime] | None = None, write: Callable[[int, bytes], int] = os.write
    ) -> None:
        """`now` returns an aware wall time; `write` is os.write outside of tests."""
        self._folder = folder
        self._now = now or _local_time
        self._write = write
        self._torn = False

    @property
    def path(self) -> Path:
        return self._folder / FILE_NAME

    def problem(self) -> str | None:
        """Return why a line cannot be written now; None where it can."""
        try:
            os.close(self._open())
        except OSError as error:
            return self._sentence(error)
        return None

    def append(self, event: str, fields: Mapping[str, object]) -> str | None:
        """Write one line with the wall time and the event; return why it could not be written."""
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


class TimedAudit(Audit):
    """Audit file that is waited for two seconds at most; a late line is still written, and in order."""

    def __init__(self, *args: Any, seconds: float = RECORD_SECONDS, **kwargs: Any) -> None:
        """The arguments are those of `Audit`."""
        super().__init__(*args, **kwargs)
        self._seconds = seconds
        self._worker = Worker("gpuwatch-record")
        self._last: Future[Any] | None = None

    def problem(self) -> str | None:
        return self._within(super().problem)

    def append(self, event: str, fields: Mapping[str, object]) -> str | None:
        append = super().append
        return self._within(lambda: append(event, fields))

    def _within(self, call: Callable[[], str | None]) -> str | None:
        # Behind a call that hangs there is nothing to wait for: the call before has waited.
        hangs = self._last is not None and not self._last.done()
        self._last = self._worker(call)
        try:
            answer: str | None = self._last.result(0 if hangs else self._seconds)
        except NoThreadError as error:
            return f"cannot record actions in {self.path}: {error}"
        except TimeoutError:
            return f"cannot record actions in {self.path}: the file system does not answer"
        return answer


def _local_time() -> datetime:
    return datetime.now().astimezone()
