"""`gpuwatch visible 'VALUE'`: the table, what is hidden, how sure it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuwatch.commands.visible import visible_lines
from gpuwatch.declared.facts import gpu_facts
from gpuwatch.declared.visible_devices import parse
from gpuwatch.model import Instance
from tests.driver import Driver, Gpu
from tests.support.builders import gpu, snapshot
from tests.support.launching import Launcher


@pytest.fixture
def launch(driver: Driver, tmp_path: Path) -> Launcher:
    """Give gpuwatch on a machine with three GPUs of one model."""
    driver.gpus = [Gpu(index) for index in range(3)]
    driver.write()
    return Launcher(driver, tmp_path, in_process=True)


def uuids(driver: Driver) -> list[str]:
    return [str(gpu.uuid) for gpu in driver.gpus]


def test_a_value_is_a_table_of_the_gpus_in_cudas_order(launch: Launcher, driver: Driver) -> None:
    done = launch("visible", "2,0")
    assert (done.returncode, done.stderr) == (0, "")
    name, (first, _, third) = "NVIDIA H100 80GB HBM3", uuids(driver)
    assert done.stdout.splitlines() == [
        "CUDA_VISIBLE_DEVICES=2,0",
        "",
        f"cuda:0 → GPU 2  {name}  {third}",
        f"cuda:1 → GPU 0  {name}  {first}",
        "",
        "order   likely: GPUs of one model, which CUDA numbers as NVML does",
        "hidden  GPU 1",
    ]


def test_the_order_can_be_given(launch: Launcher) -> None:
    done = launch("visible", "2,0", "--order", "PCI_BUS_ID")
    assert done.stdout.startswith("CUDA_VISIBLE_DEVICES=2,0, CUDA_DEVICE_ORDER=PCI_BUS_ID\n")
    assert "order   exact" in done.stdout


@pytest.mark.parametrize(
    ("value", "seen", "note"),
    [
        ("-1,0", [], "-1 hides all that follow"),
        ("0,2,-1,1", [0, 2], "-1 hides all that follow"),
        ("", [], ""),
        ("0,0", [], "twice"),
    ],
)
def test_what_hides_is_said_and_nothing_visible_is_exit_code_1(
    launch: Launcher, value: str, seen: list[int], note: str
) -> None:
    done = launch("visible", value)
    assert done.returncode == (0 if seen else 1)
    assert [f"→ GPU {index}" in done.stdout for index in range(3)] == [index in seen for index in range(3)]
    assert ("no GPU is visible" in done.stdout) is not bool(seen)
    assert note in done.stdout


def test_a_value_that_begins_like_a_flag_needs_no_dashes(launch: Launcher) -> None:
    for arguments in (["-1,0", "--ascii"], ["--ascii", "-1,0"], ["--ascii", "--", "-1,0"]):
        done = launch("visible", *arguments)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.startswith("CUDA_VISIBLE_DEVICES=-1,0\n")
        assert done.stdout.isascii()


def test_without_a_value_it_is_the_callers_own(launch: Launcher, driver: Driver) -> None:
    unset = launch("visible")
    assert unset.stdout.startswith("CUDA_VISIBLE_DEVICES is not set in your environment\n")
    assert "cuda:2 → GPU 2" in unset.stdout
    own = launch("visible", CUDA_VISIBLE_DEVICES=uuids(driver)[1], CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert own.stdout.startswith(f"CUDA_VISIBLE_DEVICES={uuids(driver)[1]}, CUDA_DEVICE_ORDER=PCI_BUS_ID in your env")
    assert "cuda:0 → GPU 1" in own.stdout


def test_json_has_the_same(launch: Launcher, driver: Driver) -> None:
    done = launch("visible", "1,7", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["devices"] == [{"ordinal": 0, "gpu": 1, "name": "NVIDIA H100 80GB HBM3", "uuid": uuids(driver)[1]}]
    assert found["order"] == "identical GPUs"
    assert found["hidden"] == [0, 2]
    assert "7" in found["note"]


def test_a_mig_instance_is_a_device_of_its_own() -> None:
    instance = Instance(uuid="MIG-1111", name="H100 MIG 1g.10gb", gpu_instance=7, compute_instance=0)
    shown = snapshot([gpu(0), gpu(1, mig=True, instances=(instance,))])
    lines = visible_lines(parse("MIG-1111", tuple(map(gpu_facts, shown.gpus)), None, driver=shown.driver), shown)
    assert "cuda:0 → GPU 1  H100 MIG 1g.10gb  MIG-1111" in lines
    assert "hidden  GPU 0" in lines
