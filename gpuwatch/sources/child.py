"""One sampler process as its parent holds it: the pipe, the shared page, the death. Nothing here ever waits."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

import gpuwatch.sampler
from gpuwatch.sampler.shared_page import Board, InFlight

TYPE_CHECKING = False  # typing itself takes 7 ms to import, and this stands before the sampler's start
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import IO

    from gpuwatch.declared.facts import Share
    from gpuwatch.model import Place

SAMPLER = (sys.executable, "-P", gpuwatch.sampler.__path__[0] + "/__main__.py")
"""-P: nothing is imported from the folder that the user happens to stand in. By path: -m costs 3 ms more."""

UNDECLARED = (*SAMPLER, "--no-declared")
"""One that does not read what processes declared, and needs no second child for that."""

ONE_SAMPLE = ("--once", "--interval", "1")
"""Orders for a single snapshot of all GPUs."""

LONGEST_LINE = 64 * 2**20
"""Bytes. 5,000 processes with 4 KiB of command line each, as much of surroundings and all that is sent of what they
declared take less; more is a sampler gone mad."""


class Child:
    """A running sampler. It dies with us: by the end of its stdin, and by PDEATHSIG."""

    def __init__(self, arguments: Sequence[str] | None = None, *, command: Sequence[str] = SAMPLER) -> None:
        """Start it; without `arguments` it only gets ready, until `order` tells it what to do. Raises OSError."""
        self.board = Board.create()
        self.born = time.monotonic()
        self.killed: float | None = None
        """Monotonic time at which it was killed."""
        self.eof = False
        self.spoke = False
        self.has_orders = False
        """Whether it was told what to do."""
        self._buffer = bytearray()
        self._looked = 0
        """Bytes of it in which there is no end of a line."""
        self._unsent = bytearray()
        try:
            self._process = subprocess.Popen(
                [*command, "--board", str(self.board.fd), "--orders"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # the driver's library may print; the dashboard draws there
                pass_fds=(self.board.fd,),
                start_new_session=True,
                bufsize=0,
            )
        except OSError:
            self.board.close()
            raise
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe.fileno(), False)
        if arguments is not None:
            self.order(arguments)

    def order(self, arguments: Sequence[str]) -> None:
        """Return what to sample: the rest of the sampler's command line. To be called once, before any command."""
        self.has_orders = True
        self._tell(list(arguments))

    @property
    def pid(self) -> int:
        """PID of the sampler."""
        return self._process.pid

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def in_flight(self) -> InFlight | None:
        """Return which NVML call the sampler is inside of, and since when."""
        return self.board.read()

    def send(self, **command: object) -> None:
        """Send the sampler a command; one that no longer listens is noticed elsewhere."""
        self._tell(command)

    def _tell(self, words: object) -> None:
        import json  # 2 ms that the sampler's start need not wait for

        self._unsent += json.dumps(words).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        """Send what there is room for in the pipe, which has 64 KiB: many shares take more."""
        try:
            while self._unsent and (written := self._stdin.write(self._unsent)):
                del self._unsent[:written]
        except (OSError, ValueError):
            self._unsent.clear()  # it is dead, dying or deaf: its end of stdout or its deadline will tell

    def lines(self, timeout: float) -> list[bytes]:
        """Wait up to `timeout` seconds for output and give every whole line there is."""
        if self.wait(timeout):
            try:
                self._drain()
            except (OSError, ValueError):  # closed under us by `kill` on another thread
                self.eof = True
        end = self._buffer.rfind(b"\n", self._looked)
        whole = bytes(self._buffer[:end]).split(b"\n") if end >= 0 else []
        if whole:
            self.spoke = True
            del self._buffer[: end + 1]
        if len(self._buffer) > LONGEST_LINE:
            self._buffer.clear()
        self._looked = len(self._buffer)
        return whole

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until there is output to read, or room for what it is to be told."""
        if self.eof:
            return False
        try:
            output, orders = self._stdout.fileno(), self._stdin.fileno()
            poller = select.poll()  # select(2) knows no descriptor above 1,023
            poller.register(output, select.POLLIN)
            if self._unsent:
                poller.register(orders, select.POLLOUT)
            ready = {descriptor for descriptor, _ in poller.poll(max(0.0, timeout) * 1000)}
            if orders in ready:
                self._flush()
            return output in ready
        except (OSError, ValueError):
            self.eof = True
            return False

    def _drain(self) -> None:
        while chunk := self._stdout.read(1 << 20):
            self._buffer += chunk
            if len(self._buffer) > LONGEST_LINE:
                return
        self.eof = chunk is not None  # b"" is the end; None is nothing more for now

    def kill(self) -> None:
        """End the sampler at once and let go of its pipes; it is reaped by `exit_code`, whenever that may be."""
        self._process.kill()
        if self.killed is None:
            self.killed = time.monotonic()
        self.close()

    def close(self) -> None:
        """Let go of the pipes and of the shared page."""
        self.eof = True
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self.board.close()

    def exit_code(self) -> int | None:
        """Return the exit code (negative: the signal) once the process is reaped; None until then. Does not wait."""
        return self._process.poll()


def sampler_arguments(
    interval: float,
    only: Sequence[int | str],
    skip: Sequence[int | str] = (),
    known: Sequence[Place] = (),
    *,
    again: bool = False,
    events: bool = True,
    shares: Sequence[Share] = (),
    tmux: bool = False,
    reservations: Path | None = None,
) -> list[str]:
    """Return the sampler's command line: seconds between two samples, which GPUs, and what people agreed on.

    A GPU is named by its UUID, or by its index as long as it has given none; `known` are those that were found before.
    `again` is for a sampler that takes the place of one that worked: GPUs of `only` may have gone since. Without
    `events` it does not listen for what the driver reports by itself. With `tmux` it asks our own tmux for names.
    `reservations` is the folder of all users' reservations where it is not the machine's own.
    """
    arguments = ["--interval", f"{interval:g}"]
    if only:
        arguments += ["--only", ",".join(map(str, only))]
    if skip:
        arguments += ["--skip", ",".join(map(str, skip))]
    if known:
        import msgspec  # 20 ms that the sampler's start need not wait for

        arguments += ["--known", msgspec.json.encode(list(known)).decode()]
    if again:
        arguments.append("--again")
    if not events:
        arguments.append("--no-events")
    if shares:
        import msgspec  # as above

        arguments += ["--shares", msgspec.json.encode(list(shares)).decode()]
    if tmux:
        arguments.append("--tmux")
    if reservations:
        arguments += ["--reservations", str(reservations)]
    return arguments
