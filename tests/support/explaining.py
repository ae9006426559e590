"""Real processes with scripts, environments and folders of their own, and what gpuwatch finds that they declared."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpuwatch.commands.explain import explanation_lines
from gpuwatch.config.types import Config
from gpuwatch.declared.facts import Share
from gpuwatch.inspector.client import InspectorClient
from gpuwatch.inspector.protocol import Answer, Question
from gpuwatch.inspector.worker import Inspector
from gpuwatch.model.snapshot import Declaration, Declared, Gpu, Process, Snapshot
from gpuwatch.sampler.declarations import DeclarationCache
from gpuwatch.sampler.owners import Owners
from tests.support import builders
from tests.support.builders import GIB
from tests.support.sharer import sharing


def card(index: int, total: float = 80, **changes: Any) -> Gpu:
    """Return a GPU of so many GiB."""
    return builders.gpu(index, memory=builders.memory(total=round(total * GIB), reserved=0), **changes)


class InProcessInspector(InspectorClient):
    """Inspector that answers in this process."""

    def __init__(self, shares: tuple[Share, ...] = ()) -> None:
        super().__init__()
        self._inspector = Inspector()
        self._shares = shares
        self._answers: list[Answer] = []

    @property
    def busy(self) -> bool:
        return False

    def ask(self, pid: int, start: int, user: str) -> None:
        question = Question(pid=pid, start=start, user=user, cards=self.cards, driver=self.driver, shares=self._shares)
        self._answers.append(self._inspector.answer(question))

    def retain(self, wanted: Collection[tuple[int, int]]) -> None:
        pass

    def poll(self) -> list[Answer]:
        answers, self._answers = self._answers, []
        return answers


class Explainer:
    """Starts a process that never runs its script, puts it on GPUs, and reads what it declares."""

    def __init__(self, folder: Path, gpus: Iterable[Gpu]) -> None:
        self.gpus = list(gpus)
        self.folder = folder / "project"
        self.folder.mkdir()

    def write(self, **files: str) -> None:
        """Write `train="…"` to train.py; by `**{"utils/dist": "…"}` to utils/dist.py."""
        for name, source in files.items():
            path = self.folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)

    def declared(
        self, *argv: str, environ: Mapping[str, str] | None = None, held: Mapping[int, float] | None = None
    ) -> Declared:
        """Return what `python argv` (train.py by default) declares while it holds so many GiB by the GPU's index."""
        process, _ = self._read(argv, environ, held or {})
        assert process.declared is not None
        return process.declared

    def text(
        self, *argv: str, environ: Mapping[str, str] | None = None, held: Mapping[int, float] | None = None
    ) -> str:
        """Return the lines of `gpuwatch explain` about such a process."""
        return "\n".join(explanation_lines(*self._read(argv, environ, held or {}), Config()))

    def limits(self, declared: Declared) -> dict[int, float]:
        """Return the limits by the GPU's index, in GiB."""
        indices = {gpu.uuid: gpu.index for gpu in self.gpus}
        return {indices[limit.gpu]: round(limit.bytes / GIB, 2) for limit in declared.limits}

    def _read(
        self, argv: tuple[str, ...], environ: Mapping[str, str] | None, held: Mapping[int, float]
    ) -> tuple[Process, Snapshot]:
        with sharing(*(argv or ("train.py",)), environ=environ, cwd=self.folder) as running:
            (process,) = Owners().read([running.pid])
            gpus = [
                replace(gpu, holdings=(builders.holding(process.pid, held[gpu.index], start=process.start),))
                if gpu.index in held
                else gpu
                for gpu in self.gpus
            ]
            declarations = DeclarationCache(InProcessInspector())
            (process,) = declarations.annotate([process], gpus, len(gpus), "580.95.05")
        return process, builders.snapshot(gpus, [process])


def said(declared: Declared, channel: str) -> Declaration:
    """Return the one declaration of a channel."""
    (found,) = [one for one in declared.declarations if one.channel == channel]
    return found
