"""Audit file of signals, bounded in size: one JSON line for each process that was signalled, or refused."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gpuwatch.base import files
from gpuwatch.base.errors import NoThreadError
from gpuwatch.base.threads import Worker

FILE_NAME: Final = "actions.jsonl"

LARGEST: Final = 4 << 20
"""Bytes after which a new file is started; the previous one is kept as `actions.jsonl.1`."""

ANSWER_SECONDS: Final = 2.0
"""Seconds for which the file system is waited for; a home folder on NFS may never answer."""


class Audit:
    """Audit file `actions.jsonl` in a private folder; never raises, but returns errors as text.

    A thread writes the lines, in their order, so that a file system that does not answer blocks nothing.
    """

    def __init__(self, folder: Path, *, write: Callable[[int, bytes], int] = os.write) -> None:
        self.path = folder / FILE_NAME
        self._write = write
        self._worker = Worker("gpuwatch-audit")
        self._lines: list[Future[Any]] = []

    def problem(self) -> str | None:
        """Return why a line cannot be written now; None where it can."""
        return self._result(self._worker(lambda: os.close(self._open())), ANSWER_SECONDS)

    def append(self, event: str, fields: Mapping[str, object]) -> None:
        """Append one line, in one write, with the wall-clock time and the event; `flush` returns a failure."""
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        record = {"time": now, "event": event, **fields}
        # ASCII only: a surrogate from a file name cannot then fail the write.
        line = json.dumps(record, ensure_ascii=True, separators=(",", ":"), default=str).encode("ascii") + b"\n"
        self._lines.append(self._worker(lambda: self._append(line)))

    def flush(self, seconds: float = ANSWER_SECONDS) -> str | None:
        """Wait until the lines are written; return why one of them is not, once."""
        done, waiting = wait(self._lines, seconds)
        self._lines = list(waiting)
        late = [*waiting][: seconds > 0]
        return next((problem for line in (*done, *late) if (problem := self._result(line, 0.0))), None)

    def _append(self, line: bytes) -> None:
        file = self._open()
        try:
            if self._write(file, line) < len(line):
                raise OSError("only part of the line was written")
        finally:
            os.close(file)

    def _open(self) -> int:
        with files.opened_folder(self.path.parent) as folder:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(FILE_NAME, dir_fd=folder, follow_symlinks=False).st_size > LARGEST:
                    os.replace(FILE_NAME, f"{FILE_NAME}.1", src_dir_fd=folder, dst_dir_fd=folder)
            return files.open_file(folder, FILE_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def _result(self, call: Future[Any], seconds: float) -> str | None:
        try:
            call.result(seconds)
        except TimeoutError:
            problem = "the file system does not answer"
        except NoThreadError as error:
            problem = str(error)
        except OSError as error:
            problem = files.reason(error)
        else:
            return None
        return f"cannot record actions in {self.path}: {problem}"
