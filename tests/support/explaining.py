"""Real processes with scripts, environments and folders of their own, and what gpuwatch finds that they declared."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpuwatch.declared.facts import GpuFacts
from gpuwatch.declared.resolver import resolve
from gpuwatch.inspector import reader
from gpuwatch.model import Declaration, Declared
from tests.driver import GIB, Driver, Proc
from tests.support.launching import Launcher
from tests.support.sharer import sharing
from tests.support.waiting import PATIENCE


class Explainer:
    """Starts a process that never runs its script, puts it on GPUs of the fake driver, and asks about it."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver = driver
        self.folder = folder / "project"
        self.folder.mkdir()
        self._launch = Launcher(driver, folder)

    def write(self, **files: str) -> None:
        """Write `train="…"` to train.py; by `**{"utils/dist": "…"}` to utils/dist.py."""
        for name, source in files.items():
            path = self.folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)

    def text(
        self,
        *argv: str,
        environ: Mapping[str, str] | None = None,
        held: Mapping[int, float] | None = None,
        first: str = "",
        flags: tuple[str, ...] = (),
    ) -> str:
        """Explain `python argv` (train.py unless given), which holds so many GiB by the GPU's index."""
        with sharing(*(argv or ("train.py",)), environ=environ, cwd=self.folder, first=first) as process:
            self.driver.procs = [Proc(gpu, process.pid, memory=round(size * GIB)) for gpu, size in (held or {}).items()]
            self.driver.write()
            end = time.monotonic() + PATIENCE
            done = self._launch("explain", str(process.pid), *flags)
            while "not read yet" in done.stdout and time.monotonic() < end:  # a busy machine: it says so, and ends
                done = self._launch("explain", str(process.pid), *flags)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def declared(self, *argv: str, environ: Mapping[str, str] | None = None, first: str = "") -> Declared:
        """Return what the process declared, read and resolved here: no sampler is started."""
        gpus = [
            GpuFacts(
                index=gpu.index,
                uuid=str(gpu.uuid),
                bus_id=str(gpu.bus),
                name=str(gpu.name),
                total=gpu.memory_total,
                capability=None if gpu.cuda_major is None else gpu.cuda_major + (gpu.cuda_minor or 0) / 10,
                cores=gpu.cores,
                clock=gpu.clock_sm_max,
            )
            for gpu in self.driver.gpus
        ]
        with sharing(*(argv or ("train.py",)), environ=environ, cwd=self.folder, first=first) as process:
            return resolve(reader.read(process.pid), gpus)

    def sampled(self, *argv: str, environ: Mapping[str, str] | None = None, held: Mapping[int, float]) -> Declared:
        """Return what `gpuwatch explain --json` says that the process declared, which knows the GPUs that it holds."""
        text = self.text(*argv, environ=environ, held=held, flags=("--json",))
        return msgspec.convert(json.loads(text)["declared"], Declared)

    def limits(self, declared: Declared) -> dict[int, float]:
        """Return the limits by the GPU's index, in GiB."""
        indices = {gpu.uuid: place for place, gpu in enumerate(self.driver.gpus)}
        return {indices[limit.gpu]: round(limit.bytes / GIB, 2) for limit in declared.limits}


def said(declared: Declared, channel: str) -> Declaration:
    """Return the one declaration of a channel."""
    (found,) = [one for one in declared.declarations if one.channel == channel]
    return found
