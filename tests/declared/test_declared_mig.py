"""What a process sees of several MIG instances, by the version of the driver: real processes on the fake one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.driver import Driver, Gpu, Mig
from tests.support.explaining import Explainer
from tests.support.launching import Launcher

BOTH = "cuda:0 → MIG 7/0 of GPU 0, cuda:1 → MIG 9/0 of GPU 0"
FIRST = "drivers before R570 show only the first MIG instance, and no other GPU"


@pytest.fixture
def cut(driver: Driver) -> Driver:
    """Return a machine with one GPU that is cut into two instances, and a whole one."""
    migs = [Mig(gi=7, uuid="MIG-first"), Mig(gi=9, uuid="MIG-second")]
    driver.gpus = [Gpu(0, mig_mode=1, migs=migs), Gpu(1)]
    return driver.write()


@pytest.mark.parametrize(("version", "both"), [("550.54.15", False), ("570.86.10", True)])
def test_a_process_with_two_instances_sees_both_since_r570(
    cut: Driver, tmp_path: Path, version: str, *, both: bool
) -> None:
    cut.driver = version
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-first,MIG-second"}
    text = Explainer(cut, tmp_path).text("-c", "import torch", environ=environ)
    assert (BOTH in text) is both
    assert (FIRST in text) is not both
    assert "cuda:0 → MIG 7/0 of GPU 0" in text


@pytest.mark.parametrize(("version", "hidden"), [("550.54.15", True), ("570.86.10", False)])
def test_a_whole_gpu_is_not_seen_beside_an_instance_before_r570(
    cut: Driver, tmp_path: Path, version: str, *, hidden: bool
) -> None:
    cut.driver = version
    cut.write()
    done = Launcher(cut, tmp_path)("visible", "0,1")
    assert ("hidden  GPU 1" in done.stdout) is hidden
    assert (FIRST in done.stdout) is hidden
