"""The GPUs of a machine as the resolver takes them."""

from __future__ import annotations

from msgspec.structs import replace

from gpuwatch.declared.facts import Card, Slice
from gpuwatch.model import Gpu, Health, Memory, Reading, known, number


def card(gpu: Gpu, last: Card | None = None) -> Card:
    """Give a GPU of a snapshot; what it does not say of itself now is as it was in `last`."""
    if last is not None and gpu.health is not Health.OK:
        return replace(last, index=gpu.index)
    totals = {one.uuid: one.total for one in last.slices} if last else {}
    slices = (
        Slice(
            uuid=one.uuid,
            gpu_instance=one.gpu_instance,
            compute_instance=one.compute_instance,
            total=_total(one.memory, totals.get(one.uuid)),
        )
        for one in gpu.instances
    )
    return Card(
        index=gpu.index,
        uuid=gpu.key,
        bus_id=gpu.bus_id,
        name=gpu.name,
        total=_total(gpu.memory, last.total if last else None),
        capability=number(gpu.compute_capability),
        cores=_integer(gpu.cores),
        clock=_integer(gpu.sm_clock_max),
        mig=gpu.mig is True,
        slices=tuple(slices),
    )


def _integer(reading: Reading) -> int | None:
    return int(reading) if known(reading) else None


def _total(memory: Memory, last: int | None) -> int | None:
    return int(memory.total) if known(memory.total) else last
