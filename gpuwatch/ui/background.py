"""What ending a process needs behind the screen: calls that may wait, made in order and away from the UI's loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, TimeoutError
from queue import SimpleQueue
from typing import Any

from gpuwatch.errors import NoThreadError
from gpuwatch.kill.audit import Audit, state_folder
from gpuwatch.kill.target import Killer, Policy
from gpuwatch.sampler.owners import read_command
from gpuwatch.threads import start_thread

RECORD_SECONDS = 2.0
"""What the file system of the record is given to answer; a home folder on NFS may never do so."""


class Background:
    """A daemon thread that makes calls: an executor's thread would be waited for when the program quits."""

    def __init__(self, name: str) -> None:
        """The thread starts with the first call."""
        self._name = name
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, call: Callable[[], Any]) -> Future[Any]:
        """Make a call once those before it have returned; its result or its exception is in the future.

        Where the thread cannot be started, that is a NoThreadError, and the call is not made; the next one tries again.
        """
        future: Future[Any] = Future()
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            try:
                start_thread(thread)
            except NoThreadError as error:
                future.set_exception(error)
                return future
            self._thread = thread
        self._calls.put((call, future))
        return future

    def _work(self) -> None:
        while True:
            call, future = self._calls.get()
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - it is handed to the one who asked, as executors do
                future.set_exception(error)


class PatientAudit(Audit):
    """A record that waits two seconds at most; a line that comes late is still written, and in order."""

    def __init__(self, *args: Any, seconds: float = RECORD_SECONDS, **kwargs: Any) -> None:
        """The arguments are those of `Audit`."""
        super().__init__(*args, **kwargs)
        self._seconds = seconds
        self._background = Background("gpuwatch-record")
        self._last: Future[Any] | None = None

    def problem(self) -> str | None:
        """Why a line could not be written now, the file system not answering included."""
        return self._within(super().problem)

    def append(self, event: str, fields: Mapping[str, object]) -> str | None:
        """Write one line; returns why it is not known to be written."""
        append = super().append
        return self._within(lambda: append(event, fields))

    def _within(self, call: Callable[[], str | None]) -> str | None:
        # Behind a call that hangs there is nothing to wait for: the wait was had by the call before.
        hangs = self._last is not None and not self._last.done()
        self._last = self._background(call)
        try:
            answer: str | None = self._last.result(0 if hangs else self._seconds)
        except NoThreadError as error:
            return f"cannot record actions in {self.path}: {error}"
        except TimeoutError:
            return f"cannot record actions in {self.path}: the file system does not answer"
        return answer


def make_killer(*, read_only: bool, allow_root: bool) -> Killer:
    """Give what the dashboard ends processes with: the policy of this process, and a record that waits for nobody."""
    policy = Policy.of_this_process(read_only=read_only, allow_root=allow_root)
    return Killer(policy, PatientAudit(state_folder()), describe=shown_command)


def shown_command(pid: int) -> str | None:
    """Give the command line of a process as the sampler puts it on screen; None where it cannot be read."""
    try:
        return read_command(pid)
    except OSError:
        return None
