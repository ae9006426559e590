"""Sampler process as its parent sees it: the pipes, the shared page, the orders."""

from __future__ import annotations

import json
from collections.abc import Sequence

import gpuwatch.sampler
from gpuwatch.child import ChildProcess, python_command
from gpuwatch.sampler.shared_page import Board, InFlight

SAMPLER = python_command(gpuwatch.sampler.__path__[0] + "/__main__.py")

UNDECLARED = (*SAMPLER, "--no-declared")
"""One that does not read what processes declared, and needs no second child for that."""

ONE_SAMPLE = ("--once", "--interval", "1")
"""Orders for a single snapshot of all GPUs."""

LONGEST_LINE = 64 * 2**20
"""Bytes. 5,000 processes with 4 KiB of command line each, as much of surroundings and all that is sent of what they
declared take less; more is a sampler gone mad."""


class Child(ChildProcess):
    """Running sampler. It dies with us: by the end of its stdin, and by PDEATHSIG."""

    def __init__(self, arguments: Sequence[str] | None = None, *, command: Sequence[str] = SAMPLER) -> None:
        """Start it; without `arguments` it only gets ready, until `order` tells it what to do. Raises OSError."""
        self.board = Board.create()
        self.has_orders = False
        """Whether it was told what to do."""
        words = [*command, "--board", str(self.board.fd), "--orders"]
        try:
            super().__init__(words, inherit=[self.board.fd], longest_line=LONGEST_LINE)
        except OSError:
            self.board.close()
            raise
        if arguments is not None:
            self.order(arguments)

    def order(self, arguments: Sequence[str]) -> None:
        """Send what to sample: the rest of the sampler's command line. To be called once, before any command."""
        self.has_orders = True
        self._send(list(arguments))

    def send(self, **command: object) -> None:
        """Send the sampler a command."""
        self._send(command)

    def _send(self, message: object) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def in_flight(self) -> InFlight | None:
        """Return which NVML call the sampler is inside of, and since when."""
        return self.board.read()

    def close(self) -> None:
        """Close the pipes and the shared page."""
        super().close()
        self.board.close()
