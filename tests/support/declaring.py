"""What tests of the screen hand in as declared: one limit on one GPU of `builders`."""

from __future__ import annotations

from gpuwatch.model.snapshot import Basis, Declaration, Declared, Kind, Limit
from tests.support.builders import gpu


def declares(index: int, size: float, *, scope: str = "") -> Declared:
    """Return a process that may have `size` bytes of the GPU with this index."""
    uuid, limit = gpu(index).uuid, round(size)
    declaration = Declaration(
        channel="CUPY_GPU_MEMORY_LIMIT",
        where="environment",
        text=f"CUPY_GPU_MEMORY_LIMIT={limit}",
        kind=Kind.CAP,
        basis=Basis.BYTES,
        value=limit,
        limits={uuid: limit},
        scope=scope,
        effective=True,
    )
    return Declared(declarations=(declaration,), limits=(Limit(gpu=uuid, bytes=limit, declaration=0, scope=scope),))
