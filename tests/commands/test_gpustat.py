"""`--once --json=gpustat`: the fields, units and nulls that gpustat 1.1.1 wrote on this driver."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
from pathlib import Path

import msgspec
import pytest

from gpuwatch.base.units import GIB, MIB
from gpuwatch.commands.gpustat import gpustat_json, measure_cpu
from gpuwatch.model.snapshot import Holding, Presence, Process, Reason
from tests.driver import Driver, Gpu, Proc
from tests.support.builders import gpu, snapshot
from tests.support.program import Call

GPU_FIELDS = {
    "index": 0,
    "uuid": "GPU-00000000-5c1e-4a57-9f00-00000000a100",
    "name": "NVIDIA H100 80GB HBM3",
    "temperature.gpu": 31,
    "fan.speed": None,
    "utilization.gpu": 37,
    "utilization.enc": 5,
    "utilization.dec": 0,
    "power.draw": 71,
    "enforced.power.limit": 700,
    "memory.used": 12288,
    "memory.total": 81559,
}
"""Values that gpustat 1.1.1 wrote for the first GPU of `lab`, in its order; `processes` follows."""

PROCESS_FIELDS = [
    "username",
    "command",
    "full_command",
    "gpu_memory_usage",
    "cpu_percent",
    "cpu_memory_usage",
    "pid",
]


def lab(driver: Driver) -> None:
    driver.gpus = [Gpu(0, util_gpu=37, util_encoder=5, memory_used=12 * GIB), Gpu(1, fan=43, power=None)]
    driver.procs = [Proc(0, os.getpid(), memory=12 * GIB, sm=98), Proc(1, os.getpid(), memory=None)]
    driver.write()


def test_it_is_what_gpustat_wrote(driver: Driver, call: Call) -> None:
    lab(driver)
    code, out, err = call("--once", "--json=gpustat")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ["hostname", "driver_version", "query_time", "gpus"]
    assert (found["hostname"], found["driver_version"]) == (platform.node(), "580.95.05")
    assert datetime.datetime.fromisoformat(found["query_time"]).tzinfo is None
    first, second = found["gpus"]
    (process,) = first.pop("processes")
    assert list(first.items()) == list(GPU_FIELDS.items())
    assert list(process) == PROCESS_FIELDS
    assert (process["pid"], process["gpu_memory_usage"]) == (os.getpid(), 12288)
    assert process["command"] == Path(process["full_command"][0]).name
    assert process["cpu_memory_usage"] > MIB
    assert isinstance(process["cpu_percent"], float)
    assert (second["fan.speed"], second["power.draw"]) == (43, None)
    assert second["processes"][0]["gpu_memory_usage"] is None


def test_what_is_unknown_is_null_and_never_0() -> None:
    lost = gpu(0)
    empty = type(lost)(index=1, uuid="GPU-1", name="NVIDIA A100", holdings_note="the list is not readable")
    first, second = json.loads(gpustat_json(snapshot([lost, empty])).decode())["gpus"]
    assert first["processes"] == []
    assert second["processes"] is None
    assert {second[name] for name in GPU_FIELDS if name not in ("index", "uuid", "name")} == {None}


@pytest.mark.parametrize(
    ("process", "username", "command", "full"),
    [
        (Process(pid=7, user="ada", command="/usr/bin/python 'my train.py' -x"), "ada", "python", 3),
        (Process(pid=7, user="ada", command="python 'cut in a quo…"), "ada", "python", 5),
        (Process(pid=7, user="", command="", presence=Presence.HIDDEN), "?", "?", 1),
        (None, "?", "?", 1),
    ],
)
def test_a_process(process: Process | None, username: str, command: str, full: int) -> None:
    holdings = (Holding(pid=7, memory=GIB), Holding(pid=7, memory=GIB))
    seen = msgspec.structs.replace(
        snapshot([msgspec.structs.replace(gpu(0), holdings=holdings)]), processes=(process,) if process else ()
    )
    (found,) = json.loads(gpustat_json(seen).decode())["gpus"][0]["processes"]
    assert (found["username"], found["command"], len(found["full_command"])) == (username, command, full)
    assert (found["gpu_memory_usage"], found["cpu_percent"]) == (2048, None)


def test_cpu_use_is_measured_where_one_sample_has_none(tmp_path: Path) -> None:
    """Of five processes: one is busy, one is idle, one ends, one PID gets another process, one was measured already."""

    def write(used: dict[int, int]) -> None:
        for pid, ticks in used.items():
            (tmp_path / str(pid)).mkdir(exist_ok=True)
            line = (
                f"{pid} (python) R 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {pid}{' 0' * 30}\n"  # started at its PID
            )
            (tmp_path / str(pid) / "stat").write_text(line)
            (tmp_path / str(pid) / "statm").write_text("0 0 0 0 0 0 0\n")

    def work(_seconds: float) -> None:
        write({1: 150, 2: 7})
        shutil.rmtree(tmp_path / "3")

    write({1: 100, 2: 7, 3: 7, 4: 7})
    starts = {1: 1, 2: 2, 3: 3, 4: 99}
    found = [Process(pid=pid, start=start) for pid, start in starts.items()]
    seen = msgspec.structs.replace(snapshot([]), processes=(*found, Process(pid=5, cpu=12.5)))
    busy, *others = (one.cpu for one in measure_cpu(seen, tmp_path, sleep=work).processes)
    assert isinstance(busy, float)
    assert busy > 0
    assert others == [0.0, Reason.NO_SAMPLE, Reason.NO_SAMPLE, 12.5]
