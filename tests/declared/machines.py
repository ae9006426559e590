"""Machines full of GPUs for the tests of visible devices, as the resolver is given them."""

from __future__ import annotations

from gpuwatch.declared.facts import GpuFacts, MigFacts
from tests.support.builders import GIB, MIB


def gpu(index: int, uuid: str, **changes: object) -> GpuFacts:
    """Return an 11 GB gpu, in a slot that follows its index."""
    fields = {"bus_id": f"00000000:{index + 1:02X}:00.0", "name": "GeForce RTX 2080 Ti", "total": 11019 * MIB}
    return GpuFacts(index=index, uuid=uuid, **{**fields, **changes})  # type: ignore[arg-type]


def part(uuid: str, gpu_instance: int) -> MigFacts:
    return MigFacts(uuid=uuid, gpu_instance=gpu_instance, total=10 * GIB)


A = [gpu(i, uuid) for i, uuid in enumerate(("GPU-aaaa0001", "GPU-bbbb0002", "GPU-bbcc0003", "GPU-dddd0004"))]
"""Four identical ones."""
B = [
    gpu(0, "GPU-51000000", name="GeForce GTX 960M", total=2048 * MIB),
    gpu(1, "GPU-fa570000", name="GeForce RTX 3090", total=24576 * MIB),
]
"""A slow one, and a fast one that CUDA would count first."""
D = [gpu(0, "GPU-aaaa0001", mig=True, slices=(part("MIG-1111", 7), part("MIG-2222", 8)))]
"""One gpu with two MIG instances."""
MIXED = [
    gpu(0, "GPU-aaaa0001", mig=True, slices=(part("MIG-1111", 1), part("MIG-1112", 1), part("MIG-2222", 2))),
    gpu(1, "GPU-bbbb0002"),
    gpu(2, "GPU-bbcc0003", mig=True),
    gpu(3, "GPU-dddd0004"),
]
"""One gpu with three instances, two of them in one GPU instance; one in MIG mode without any; two whole ones."""
