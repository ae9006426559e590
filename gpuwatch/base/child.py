"""Child processes: starts them, writes and reads without waiting, and kills them.

A child that hangs in the kernel (in a call to a sick GPU, or to a file server that is down) cannot be killed, so every
wait for a child has a limit. Imports little: the sampler is started before all else.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence

from gpuwatch.base.errors import PROCESS_LIMIT

_CHUNK = 1 << 16
"""Bytes of one read: a pipe holds as many."""
_STEP = 0.05
"""Seconds until `run` notices the end of a program whose pipe another process holds open."""
_GRACE = 2.0
"""Seconds that a killed program may take to end."""
_PR_SET_PDEATHSIG = 1

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def python_command(path: str) -> tuple[str, ...]:
    """Return the command that runs a file of gpuwatch. -P: nothing is imported from the current folder."""
    return (sys.executable, "-P", path)  # by path: -m looks the module up


def start_error(error: OSError) -> str:
    """Return why a child process could not be started."""
    return PROCESS_LIMIT if error.errno == errno.EAGAIN else str(error)


def describe_exit(code: int | None) -> str:
    """Describe how a child ended; None means a child that was killed and does not end."""
    if code is None:
        return "it hangs in the kernel"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, even inside a call that hangs (prctl(2))."""
    LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Backoff:
    """Delay before the next attempt: doubled after each failure, up to a limit."""

    def __init__(self, first: float, most: float) -> None:
        self._first, self._most = first, most
        self._next = first

    def next(self) -> float:
        """Return the seconds to wait now, and double them for the next call."""
        delay, self._next = self._next, min(2 * self._next, self._most)
        return delay

    def reset(self) -> None:
        """Start again with the first delay."""
        self._next = self._first


class ChildProcess:
    """Child process in its own session, with pipes that never block this process.

    Its stdin is a pipe, and its stdout or stderr another; the third stream is /dev/null.
    """

    def __init__(
        self,
        command: Sequence[str] | Callable[[], None],
        *,
        inherit: Sequence[int] = (),
        output: int = 1,
        longest_line: int = 1 << 20,
        errors: bool = False,
    ) -> None:
        """Start a program, or fork and call a function; raises OSError.

        `inherit` are descriptors that the child inherits. `output` is 1 to read its stdout and 2 to read its stderr.
        With `errors` a program's stderr is a third pipe, which `read_errors` reads.
        """
        self.started_at = time.monotonic()
        self.killed_at: float | None = None
        self.eof = False
        """Whether the output is closed, by the child or by us."""
        self.overflowed = False
        """Whether the child has written a line longer than allowed; that line is dropped."""
        self._longest_line = longest_line
        self._code: int | None = None
        self._received = bytearray()
        self._searched = 0
        """Number of received bytes that contain no end of a line."""
        self._unsent = bytearray()
        self._input_ends = False
        child_stdin, self._stdin = os.pipe()
        self._stdout, child_stdout = os.pipe()
        self._stderr, child_stderr = os.pipe() if errors else (-1, -1)
        try:
            if callable(command):
                self.pid = _fork(command, child_stdin, child_stdout, output, inherit)
            else:
                self.pid = _spawn(command, child_stdin, child_stdout, output, inherit, child_stderr)
        except OSError:
            self.close()
            raise
        finally:
            for descriptor in (child_stdin, child_stdout, *[child_stderr] * errors):
                os.close(descriptor)
        for descriptor in (self._stdin, self._stdout, *[self._stderr] * errors):
            os.set_blocking(descriptor, False)

    @property
    def descriptor(self) -> int | None:
        """Descriptor that becomes readable when there is output; None once the output has ended."""
        return None if self.eof else self._stdout

    def write(self, data: bytes) -> None:
        """Send bytes to the child's stdin; bytes that do not fit into the pipe are sent later, by any other call.

        A child that does not read is noticed by its missing output, not here.
        """
        self._unsent += data
        self._flush()

    def end_input(self) -> None:
        """Close the child's stdin after everything has been sent."""
        self._input_ends = True
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._stdin, self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
        if self._input_ends:
            self._close_stdin()

    def wait(self, timeout: float, *others: int) -> bool:
        """Wait up to `timeout` seconds for output, or for space to send the rest; return whether there is output.

        The wait ends, too, when one of the `others`, which are descriptors, becomes readable.
        """
        if self.eof:
            return False
        poller = select.poll()  # select(2) knows no descriptor above 1,023
        try:
            for descriptor in (self._stdout, *others):
                poller.register(descriptor, select.POLLIN)
            if self._unsent:
                poller.register(self._stdin, select.POLLOUT)
            ready = {descriptor for descriptor, _ in poller.poll(max(0.0, timeout) * 1000)}
        except (OSError, ValueError):  # closed by `kill` on another thread
            return False
        if self._stdin in ready:
            self._flush()
        return self._stdout in ready

    def read(self) -> bytes:
        """Return the available output; empty where there is none, or at its end (`eof`)."""
        try:
            chunk = os.read(self._stdout, _CHUNK)
        except BlockingIOError:
            return b""
        except OSError:  # closed by `kill` on another thread
            chunk = b""
        self.eof = not chunk
        return chunk

    def read_lines(self, timeout: float = 0.0) -> list[bytes]:
        """Wait up to `timeout` seconds for output, and return all complete lines."""
        if timeout > 0:
            self.wait(timeout)
        elif self._unsent:
            self._flush()
        if not self.eof:
            while len(self._received) <= self._longest_line and (chunk := self.read()):
                self._received += chunk
        end = self._received.rfind(b"\n", self._searched)
        lines = bytes(self._received[:end]).split(b"\n") if end >= 0 else []
        del self._received[: end + 1]
        if len(self._received) > self._longest_line:
            self._received.clear()
            self.overflowed = True
        self._searched = len(self._received)
        return lines

    def read_errors(self) -> bytes:
        try:
            return os.read(self._stderr, _CHUNK)
        except OSError:  # nothing is there, or the pipe is closed
            return b""

    def kill(self) -> None:
        """Kill the child and its session's first process group, and close the pipes. `exit_code` reaps it later."""
        if self.exit_code() is None:  # until it is reaped nothing else can have its number
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(OSError):  # it became another user's by a set-uid bit, or has no group yet
                    kill(self.pid, signal.SIGKILL)
        if self.killed_at is None:
            self.killed_at = time.monotonic()
        self.close()

    def close(self) -> None:
        """Close the pipes; most children then end."""
        self.eof = True
        self._close_stdin()
        for descriptor in (self._stdout, self._stderr):
            if descriptor >= 0:
                os.close(descriptor)
        self._stdout = self._stderr = -1

    def _close_stdin(self) -> None:
        descriptor, self._stdin = self._stdin, -1
        if descriptor >= 0:
            os.close(descriptor)

    def exit_code(self, timeout: float = 0.0) -> int | None:
        """Return the exit code (negative: the signal) of a child that has ended; None for a running child.

        Waits up to `timeout` seconds for its end.
        """
        end = time.monotonic() + timeout
        while self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # reaped by somebody else
                self._code = 0
                break
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= end:
                break
            else:
                time.sleep(0.001)
        return self._code


def _spawn(
    command: Sequence[str], stdin: int, stdout: int, output: int, inherit: Sequence[int], stderr: int = -1
) -> int:
    """Start a program; return its PID. Raises OSError. posix_spawn(3) needs no import, unlike subprocess."""
    actions = [
        (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_DUP2, stdout, output),
        (os.POSIX_SPAWN_OPEN, 3 - output, os.devnull, os.O_WRONLY, 0)
        if stderr < 0
        else (os.POSIX_SPAWN_DUP2, stderr, 2),
    ]
    for descriptor in inherit:
        os.set_inheritable(descriptor, True)
    try:
        return os.posix_spawnp(
            command[0],
            list(command),
            os.environ,
            file_actions=actions,
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
        )
    finally:
        for descriptor in inherit:
            os.set_inheritable(descriptor, False)


def _fork(main: Callable[[], None], stdin: int, stdout: int, output: int, inherit: Sequence[int]) -> int:
    """Fork and call a function in the child; return the child's PID. Only before there are threads. Raises OSError."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent()
        if os.getppid() != parent:  # it died before the kernel was asked
            os._exit(1)
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 3 - output)
        os.dup2(stdout, output)
        lowest = 3
        for descriptor in (*sorted(inherit), os.sysconf("SC_OPEN_MAX")):
            os.closerange(lowest, descriptor)
            lowest = descriptor + 1
        main()
        os._exit(0)
    finally:
        os._exit(1)


def run(
    command: Sequence[str] | Callable[[], None],
    data: bytes,
    *,
    output: int,
    timeout: float,
    is_stopped: Callable[[], bool],
    most: int,
    grace: float = _GRACE,
) -> tuple[int | None, bytes]:
    """Run a program with `data` on its stdin; return its exit code and the last `most` bytes of its output.

    The exit code is None where the program was killed with its process group: after `timeout` seconds, or when
    `is_stopped` is true. The call returns when the program has ended, even if another process still holds its pipe;
    for one that was killed and hangs in the kernel it waits `grace` seconds. Raises OSError.
    """
    child = ChildProcess(command, output=output)
    received = b""
    try:
        child.write(data)
        child.end_input()
        end = time.monotonic() + timeout
        while (code := child.exit_code()) is None and not is_stopped() and (left := end - time.monotonic()) > 0:
            if child.eof:
                child.exit_code(min(_STEP, left))
            elif child.wait(min(_STEP, left)):
                received = (received + child.read())[-most:]
        if not child.eof:
            received = (received + child.read())[-most:]
        return code, received
    finally:
        child.kill()
        child.exit_code(grace)
