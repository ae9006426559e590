"""Builders for what tests hand in: a snapshot and its parts, with defaults for all that a test does not care about.

The default GPU is an H100 80GB as NVML shows it: 81559 MiB in all, 558 MiB of it reserved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gpuwatch.model.snapshot import (
    Basis,
    Declaration,
    Declared,
    Gpu,
    Holding,
    Kind,
    Limit,
    Memory,
    Process,
    Reading,
    Snapshot,
    known,
)

MIB = 1024**2
GIB = 1024**3
TOTAL = 81559 * MIB
RESERVED = 558 * MIB
USABLE_GIB = (TOTAL - RESERVED) / GIB
EPOCH = 1_700_000_000.0
"""Wall-clock time of the default snapshot."""


def memory(used_gib: float = 0.0, *, total: int = TOTAL, reserved: int = RESERVED, **changes: Any) -> Memory:
    """Return a memory reading whose parts add up: `used_gib` GiB used, the rest of total - reserved free."""
    used = min(round(used_gib * GIB), total - reserved)
    fields: dict[str, Any] = {"total": total, "used": used, "free": total - reserved - used, "reserved": reserved}
    return Memory(**{**fields, **changes})


def holding(pid: int, gib: float = 1.0, **changes: Any) -> Holding:
    """Return a compute holding of so many GiB that is 50 % busy."""
    fields: dict[str, Any] = {"pid": pid, "start": pid, "memory": round(gib * GIB), "sm": 50}
    return Holding(**{**fields, **changes})


def gpu(index: int, *, used_gib: float | None = None, holdings: Iterable[Holding] = (), **changes: Any) -> Gpu:
    """Return a healthy H100; `used_gib` is the sum of the holdings where it is not given."""
    held = tuple(holdings)
    total_held = _held(held)
    used = total_held / GIB if used_gib is None else used_gib
    card = changes.pop("memory", None) or memory(used)
    fields: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index:08x}-0000-4000-8000-000000000000",
        "name": "NVIDIA H100 80GB HBM3",
        "bus_id": f"00000000:{index + 1:02X}:00.0",
        "sampled": 1000.0,
        "slow_sampled": 1000.0,
        "memory": card,
        "utilization": 50 if held else 0,
        "memory_utilization": 20,
        "encoder": 0,
        "decoder": 0,
        "temperature": 55,
        "slowdown_temperature": 87,
        "power": 310.0,
        "power_limit": 700.0,
        "sm_clock": 1980,
        "memory_clock": 2619,
        "pstate": 0,
        "throttle": (),
        "ecc_uncorrected": 0,
        "remap_pending": False,
        "remap_failed": False,
        "xids": (),
        "persistence": True,
        "compute_mode": "default",
        "display_active": False,
        "mig": False,
        "holdings": held,
        "unattributed": max(0, int(card.used) - round(total_held)) if known(card.used) else card.used,
    }
    return Gpu(**{**fields, **changes})


def filled(free_percent: float, index: int = 0, **changes: Any) -> Gpu:
    """Return a GPU held by one process of ada's (pid 100 + index), with so much of its usable memory left."""
    used = USABLE_GIB * (1 - free_percent / 100)
    return gpu(index, used_gib=used, holdings=[holding(100 + index, used)], **changes)


def process(pid: int, user: str = "ada", **changes: Any) -> Process:
    """Return a running python process of `user`; its uid is made from the name and its start time is its pid."""
    fields: dict[str, Any] = {
        "pid": pid,
        "start": pid,
        "uid": uid(user),
        "user": user,
        "name": "python",
        "command": "python train.py",
        "state": "running",
        "ppid": 900,
        "parent": "bash",
        "terminal": "/dev/pts/1",
        "cpu": 100.0,
        "rss": 4 * GIB,
        "started": EPOCH - 3600,
    }
    return Process(**{**fields, **changes})


def uid(user: str) -> int:
    """Return the uid that `process` makes for a user's name."""
    return 1000 + sum(user.encode())


def snapshot(gpus: Iterable[Gpu] = (), processes: Iterable[Process] = (), **changes: Any) -> Snapshot:
    """Return a snapshot taken at monotonic 1000; processes that are held and not given are made up as ada's."""
    cards = tuple(gpus)
    given = {one.pid: one for one in processes}
    for card in cards:
        for held in card.holdings:
            given.setdefault(held.pid, process(held.pid, start=held.start))
    fields: dict[str, Any] = {
        "host": "box3",
        "taken": EPOCH,
        "monotonic": 1000.0,
        "viewer": uid("you"),
        "driver": "580.95.05",
        "cuda": "13.0",
        "gpus": cards,
        "processes": tuple(given[pid] for pid in sorted(given)),
    }
    return Snapshot(**{**fields, **changes})


def at(base: Snapshot, seconds: float, **changes: Any) -> Snapshot:
    """Give `base` as sampled afresh `seconds` after monotonic 1000: stamps and sequence move on with it."""
    now = 1000.0 + seconds
    gpus = tuple(msgspec.structs.replace(card, sampled=now, slow_sampled=now) for card in base.gpus)
    fields: dict[str, Any] = {"sequence": round(seconds * 1000), "monotonic": now, "taken": EPOCH + seconds}
    return msgspec.structs.replace(base, **{"gpus": gpus, **fields, **changes})


def _held(holdings: Iterable[Holding]) -> float:
    sizes: Iterable[Reading] = (one.memory for one in holdings)
    return sum(size for size in sizes if known(size))


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
