"""What goes in and out of the sampler: snapshots on what was stdout, commands on stdin."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence

import msgspec


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """A line on stdin."""

    interval: float | None = None
    skip: tuple[int | str, ...] | None = None
    events: bool = False
    poke: bool = False


class Closed(Exception):
    """Nobody listens any more."""


class Output:
    """Where the lines go: what was stdout. From now on anything the driver's library prints goes to stderr."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def write(self, line: bytes) -> None:
        """Write a whole line; raises Closed."""
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except BrokenPipeError:
            raise Closed from None


class Input:
    """Commands as they come; a half line waits for its other half."""

    def __init__(self) -> None:
        self._buffer = b""
        self._decoder = msgspec.json.Decoder(Command)

    def wait(self, seconds: float, also: Sequence[int] = ()) -> list[Command]:
        """Wait up to so many seconds for commands, or until one of `also` is readable.

        Raises Closed, or msgspec.MsgspecError for what is no command.
        """
        poller = select.poll()  # select(2) knows no descriptor above 1,023
        for descriptor in (0, *also):
            poller.register(descriptor, select.POLLIN)
        if 0 not in (descriptor for descriptor, _ in poller.poll(max(0.0, seconds) * 1000)):
            return []
        chunk = os.read(0, 1 << 16)
        if not chunk:
            raise Closed
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [self._decoder.decode(line) for line in lines if line.strip()]
