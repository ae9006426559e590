"""Whole processes and machines for the resolver; figures are in MiB, as people and frameworks write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuwatch.declared.facts import Facts, GpuFacts, MigFacts, Script, Unread
from gpuwatch.declared.script import read_script
from gpuwatch.model.snapshot import Declared
from tests.support.builders import MIB

JAX = frozenset({"libc.so.6", "xla_cuda_plugin.so"})
TORCH = frozenset({"libc.so.6", "libtorch_cuda.so", "libc10_cuda.so", "libcudart.so.12"})
TENSORFLOW = frozenset({"libc.so.6", "libtensorflow_framework.so.2", "_pywrap_tensorflow_internal.so"})


def cards(*totals: int, uuids: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[GpuFacts, ...]:
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


A = cards(11019, 11019, 11019, 11019, uuids=("GPU-aaaa0001", "GPU-bbbb0002", "GPU-bbcc0003", "GPU-dddd0004"))
B = cards(2048, 24576, names=("NVIDIA Quadro P400", "NVIDIA GeForce RTX 3090"))
C = cards(2002)
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
E = cards(81920, 81920)
T = cards(15109)
M = cards(2048)
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
    indices = {card.uuid: card.index for card in machine}
    return {indices[limit.gpu]: limit.bytes / MIB for limit in declared.limits}


def visible(declared: Declared, machine: Sequence[GpuFacts]) -> list[int] | None:
    """Return the indices of what a process can see."""
    if declared.visible is None:
        return None
    return [next(card.index for card in machine if card.uuid == uuid) for uuid in declared.visible.gpus]
