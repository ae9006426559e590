"""What processes declare: facts for the resolver, and real processes whose declarations gpuwatch reads.

Figures of facts are in MiB, as people and frameworks write them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpuwatch.commands.explain import explanation_lines
from gpuwatch.config.types import Config
from gpuwatch.declared.facts import Facts, GpuFacts, MigFacts, Script, Share, Unread
from gpuwatch.declared.script import read_script
from gpuwatch.inspector.client import InspectorClient
from gpuwatch.inspector.protocol import Answer, Question
from gpuwatch.inspector.worker import Inspector
from gpuwatch.model.snapshot import Declaration, Declared, Gpu, Process, Snapshot
from gpuwatch.sampler.declarations import DeclarationCache
from gpuwatch.sampler.owners import Owners
from tests.support import builders
from tests.support.builders import GIB, MIB
from tests.support.process import sharing

JAX = frozenset({"libc.so.6", "xla_cuda_plugin.so"})
TORCH = frozenset({"libc.so.6", "libtorch_cuda.so", "libc10_cuda.so", "libcudart.so.12"})
TENSORFLOW = frozenset({"libc.so.6", "libtensorflow_framework.so.2", "_pywrap_tensorflow_internal.so"})


def gpus(*totals: int, uuids: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[GpuFacts, ...]:
    """Return a machine of GPUs with so many MiB each."""
    return tuple(
        GpuFacts(
            index=index,
            uuid=uuids[index] if uuids else f"GPU-{index:08x}",
            bus_id=f"00000000:{index + 1:02X}:00.0",
            name=names[index] if names else "NVIDIA GeForce RTX 2080 Ti",
            total=total * MIB,
        )
        for index, total in enumerate(totals)
    )


A = gpus(11019, 11019, 11019, 11019, uuids=("GPU-aaaa0001", "GPU-bbbb0002", "GPU-bbcc0003", "GPU-dddd0004"))
B = gpus(2048, 24576, names=("NVIDIA Quadro P400", "NVIDIA GeForce RTX 3090"))
C = gpus(2002)
D = (
    GpuFacts(
        index=0,
        uuid="GPU-mig",
        total=40960 * MIB,
        mig=True,
        slices=(
            MigFacts(uuid="MIG-1111", gpu_instance=1, total=9856 * MIB),
            MigFacts(uuid="MIG-2222", gpu_instance=2, total=9856 * MIB),
        ),
    ),
)
E = gpus(81920, 81920)
T = gpus(15109)
M = gpus(2048)
DOCKER = "/system.slice/docker-" + "3f9a1c" + "0" * 58 + ".scope"


def facts(
    environ: Mapping[str, str] | Unread | None = None,
    *argv: str,
    libraries: frozenset[str] = frozenset(),
    script: str = "",
    **more: Any,
) -> Facts:
    """Return a process that could be read; without libraries given, none of a framework's is mapped."""
    variables = tuple(environ.items()) if isinstance(environ, Mapping) else ()
    source = Script(path="train.py", contents=read_script(script, "train.py", variables)) if script else None
    known: dict[str, Any] = {"pid": 4711, "uid": 1001, "user": "ada", "script": source, **more}
    return Facts(
        environ={} if environ is None else environ,
        argv=argv or ("python", "train.py"),
        libraries=libraries | {"libc.so.6"},
        **known,
    )


def limits(declared: Declared, machine: Sequence[GpuFacts]) -> dict[int, float]:
    """Return the limits by index, in MiB."""
    indices = {gpu.uuid: gpu.index for gpu in machine}
    return {indices[limit.gpu]: limit.bytes / MIB for limit in declared.limits}


def visible(declared: Declared, machine: Sequence[GpuFacts]) -> list[int] | None:
    """Return the indices of what a process can see."""
    if declared.visible is None:
        return None
    return [next(gpu.index for gpu in machine if gpu.uuid == uuid) for uuid in declared.visible.gpus]


def gpu(index: int, total: float = 80, **changes: Any) -> Gpu:
    """Return a GPU of so many GiB."""
    return builders.gpu(index, memory=builders.memory(total=round(total * GIB), reserved=0), **changes)


class InProcessInspector(InspectorClient):
    """Inspector that answers in this process: what it reads, or as `answer` does."""

    def __init__(self, shares: tuple[Share, ...] = (), answer: Callable[[Question], Answer] | None = None) -> None:
        super().__init__()
        self._answer = answer or Inspector().answer
        self._shares = shares
        self._answers: list[Answer] = []

    @property
    def busy(self) -> bool:
        return False

    def ask(self, pid: int, start: int, user: str) -> None:
        question = Question(pid=pid, start=start, user=user, gpus=self.gpus, driver=self.driver, shares=self._shares)
        self._answers.append(self._answer(question))

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
