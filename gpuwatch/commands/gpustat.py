"""JSON of `gpustat --json`, for scripts that read it: the same fields and units, made from a snapshot."""

from __future__ import annotations

import datetime
import posixpath
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuwatch.base import procfs
from gpuwatch.base.programs import split_command
from gpuwatch.base.units import MIB
from gpuwatch.model.holdings import GpuProcess, Holdings
from gpuwatch.model.snapshot import Gpu, Presence, Reading, Reason, Snapshot, known

_CPU_SECONDS: Final = 0.1

_UNKNOWN: Final = "?"
"""Text of gpustat for what it cannot read of a process."""


def gpustat_json(snapshot: Snapshot) -> bytes:
    """Return a snapshot as the JSON of gpustat 1.1; what is not known is null.

    Source: `GPUStatCollection.jsonify` and `get_gpu_info` in gpustat/core.py. Memory is in MiB, powers are whole watts.
    """
    holdings = Holdings(snapshot)
    document = {
        "hostname": snapshot.host,
        "driver_version": snapshot.driver or None,
        "query_time": datetime.datetime.fromtimestamp(snapshot.taken).isoformat(),
        "gpus": [_gpu(one, holdings) for one in snapshot.gpus],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=4)


def measure_cpu(
    snapshot: Snapshot, proc: Path = procfs.PROC, *, sleep: Callable[[float], object] = time.sleep
) -> Snapshot:
    """Return a snapshot of this machine in which the CPU use that one sample lacks was measured over 0.1 s.

    Source: `get_process_info` in gpustat/core.py, which waits as long between two calls of psutil's `cpu_percent`.
    """
    unmeasured = [one for one in snapshot.processes if one.cpu is Reason.NO_SAMPLE and one.presence is Presence.SEEN]
    if not unmeasured:
        return snapshot
    from gpuwatch.base import psinfo  # psutil, which `--once` needs for nothing else

    used = psinfo.measure_cpu([one.key for one in unmeasured], _CPU_SECONDS, proc=proc, pause=sleep)
    processes = [
        msgspec.structs.replace(one, cpu=used[one.key][0]) if one.key in used else one for one in snapshot.processes
    ]
    return msgspec.structs.replace(snapshot, processes=tuple(processes))


def _gpu(gpu: Gpu, holdings: Holdings) -> dict[str, Any]:
    processes = [_process(one) for one in holdings.on(gpu) if one.process.presence is not Presence.GONE]
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "temperature.gpu": _whole(gpu.temperature),
        "fan.speed": _whole(gpu.fan),
        "utilization.gpu": _whole(gpu.utilization),
        "utilization.enc": _whole(gpu.encoder),
        "utilization.dec": _whole(gpu.decoder),
        "power.draw": _whole(gpu.power),
        "enforced.power.limit": _whole(gpu.power_limit),
        "memory.used": _whole(gpu.memory.used, MIB),
        "memory.total": _whole(gpu.memory.total, MIB),
        "processes": None if gpu.holdings_note and not gpu.holdings else processes,
    }


def _process(held: GpuProcess) -> dict[str, Any]:
    process = held.process
    words = split_command(process.command)  # secrets stay masked
    return {
        "username": process.user or _UNKNOWN,
        "command": posixpath.basename(words[0]) if words else _UNKNOWN,
        "full_command": list(words) or [_UNKNOWN],
        "gpu_memory_usage": held.memory // MIB if held.complete else None,
        "cpu_percent": process.cpu if known(process.cpu) else None,
        "cpu_memory_usage": _whole(process.rss),
        "pid": process.pid,
    }


def _whole(reading: Reading, unit: int = 1) -> int | None:
    return int(reading // unit) if known(reading) else None
