"""Output of the commands: what holds for all of them, in text, JSON and ASCII, on the demo and on a real machine."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from gpuwatch.recorder.schema import own_store
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.program import Call
from tests.support.store import alert, batch, ended, save

LISTS = {
    "--once --demo": "GPU  name",
    "explain 15226 --demo": "per_process_gpu_memory_fraction",
    "visible 7 --demo": "cuda:0 → GPU 7",
    "pick --memory 20GiB --index --demo": "7",
    "strays --demo": "leftover, likely",
    "status --demo": " · 1 nearly full · ",
    "events --since 365d": "▲ warning",
    "report --since 365d": "größe",
    "report --since 365d --by gpu": "H100",
    "report --since 365d --by run": "größe.py",
    "config --show": "[alerts]",
    "docs": "screen",
}
"""Commands that print data of the demo or of what was recorded, with something that each prints."""


CONTROLS = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(autouse=True)
def recorded(own_home: Path) -> None:
    """Put an alert and the use of somebody whose names are not ASCII into the user's store."""
    hour = int(time.time() // 3600) * 3600
    one = ended(alert(title="GPU 0 größer · 84 °C", owners=("größe",), raised=hour - 60.0, seen=hour - 60.0))
    save(own_store(), batch(hour, user="größe", name="größe.py", launcher="→"), events=[one])


@pytest.mark.parametrize("arguments", LISTS)
def test_text_is_the_same_in_ascii(call: Call, arguments: str) -> None:
    code, out, _ = call(*arguments.split())
    assert code == 0
    assert LISTS[arguments] in out
    code, plain, err = call(*arguments.split(), "--ascii")
    assert code == 0
    assert (plain + err).isascii()
    assert plain.count("\n") == out.count("\n")
    assert not CONTROLS.search(out)
    assert all(line == line.rstrip() for line in out.splitlines())


@pytest.mark.parametrize("arguments", ["--once", "explain PID", "strays", "visible", "visible \x1b[2J,\u202e1"])
def test_no_escape_of_a_gpu_or_a_variable_reaches_the_output(
    call: Call, driver: Driver, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    hostile = "\x1b[2J\u202eevil\x9b0m"
    driver.gpus = [Gpu(0, name=hostile, memory_used=2 * GIB)]
    driver.procs = [Proc(0, os.getpid(), memory=2 * GIB)]
    driver.write()
    for flags in ([], ["--json"]):
        monkeypatch.setenv("CUDA_DEVICE_ORDER", hostile)
        _, out, err = call(*arguments.replace("PID", str(os.getpid())).split(" "), *flags)
        assert not CONTROLS.search(out + err)


def test_where_the_driver_lists_no_process_none_is_counted(call: Call, driver: Driver) -> None:
    """GTX 660: the lists are not supported, and so nobody is known to hold the GPU, or not to."""
    kinds = ("Compute", "Graphics", "MPSCompute")
    driver.faults = [f"nvmlDeviceGet{kind}RunningProcesses_v3 ret=3" for kind in kinds]
    driver.put(gpus=[Gpu(0, memory_used=2 * GIB, util_gpu=90)])
    _, out, _ = call("--once")
    assert " · 1 GPU · processes not listed · " in out
    assert "\nprocesses not listed\n" in out
    assert "\nGPU 0: this driver does not list this GPU's processes\n" in out
    assert not any(words in out for words in ("0 process", "0 people", "no process"))
