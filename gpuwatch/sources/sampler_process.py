"""Sampler process, seen from its parent. This module imports little: the sampler is started first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

import gpuwatch.sampler
from gpuwatch.base.child import ChildProcess, python_command
from gpuwatch.sampler.shared_page import CallInFlight, SharedPage

SAMPLER = python_command(gpuwatch.sampler.__path__[0] + "/__main__.py")

WITHOUT_INSPECTOR = (*SAMPLER, "--no-declared")
"""A sampler that does not read what processes declared."""

ONE_SAMPLE: Mapping[str, object] = {"once": True}
"""Options for a single snapshot of all GPUs."""

LONGEST_LINE = 64 * 2**20
"""Bytes. A snapshot of 5,000 processes, each with 4 KiB of command line and of context, takes less."""


class SamplerProcess(ChildProcess):
    """Running sampler. It ends with this process: by the end of its stdin, and by PDEATHSIG."""

    def __init__(
        self, options: Mapping[str, object] | None = None, *, command: Sequence[str] | Callable[[], None] = SAMPLER
    ) -> None:
        """Start the sampler; without options it waits until `configure` is called. Raises OSError."""
        self.page = SharedPage.create()
        self.is_configured = False
        try:
            super().__init__(command, inherit=[self.page.fd], longest_line=LONGEST_LINE)
        except OSError:
            self.page.close()
            raise
        if options is not None:
            self.configure(options)

    def configure(self, options: Mapping[str, object]) -> None:
        """Send the options (`sampler.protocol.SamplerOptions` as a mapping); to be called once, before any `send`."""
        self.is_configured = True
        self.send(**options, page=self.page.fd)

    def send(self, **command: object) -> None:
        """Send a command (`sampler.protocol.SamplerCommand`)."""
        self.write(msgspec.json.encode(command) + b"\n")

    def in_flight(self) -> CallInFlight | None:
        """Return the present NVML call of the sampler; None between two calls."""
        return self.page.read()

    def close(self) -> None:
        """Close the pipes and the shared page."""
        super().close()
        self.page.close()
