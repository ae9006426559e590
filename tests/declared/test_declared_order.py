"""GPUs that an ordinal means where CUDA puts the fastest first: real processes on a machine of different models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuwatch.model.snapshot import Confidence, Order, Reason
from tests.driver import Driver, Gpu, Mig
from tests.support.builders import MIB
from tests.support.declared import Explainer, gpu, said
from tests.support.program import Launcher
from tests.support.sampler import once

pytestmark = pytest.mark.slow  # real processes

HALF = "import torch\ntorch.cuda.set_per_process_memory_fraction(0.5, 0)\n"
LIMIT = """
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=10240)])
"""


QUADRO = {"name": "Quadro P400", "compute_capability": 6.1, "cores": 256, "sm_clock_max": 1252}
RTX = {"name": "NVIDIA GeForce RTX 3090", "compute_capability": 8.6, "cores": 10496, "sm_clock_max": 2100}
GTX = {"name": "GTX 1080", "compute_capability": 6.1, "cores": 2560, "sm_clock_max": 1733}
TI = {"name": "GTX 1080 Ti", "compute_capability": 6.1, "cores": 3584, "sm_clock_max": 1582}
UNKNOWN = dict.fromkeys(("compute_capability", "cores", "sm_clock_max"), Reason.UNSUPPORTED)


@pytest.fixture
def explain(tmp_path: Path) -> Explainer:
    return Explainer(tmp_path, [gpu(0, 2, **QUADRO), gpu(1, 24, **RTX)])


@pytest.mark.parametrize(
    ("environ", "order", "limits", "confidence"),
    [
        ({}, Order.HEURISTIC, {1: 12}, Confidence.GUESS),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, Order.EXACT, {0: 1}, Confidence.LIKELY),
    ],
)
def test_the_first_gpu_is_the_fastest_by_a_guess_or_the_first_of_the_slots(
    explain: Explainer, environ: dict[str, str], order: Order, limits: dict[int, float], confidence: Confidence
) -> None:
    explain.write(train=HALF)
    declared = explain.declared(environ=environ)
    assert declared.visible is not None
    assert declared.visible.order is order
    assert explain.limits(declared) == limits
    assert said(declared, "set_per_process_memory_fraction").confidence is confidence


ON_BOTH = HALF + HALF.replace("0)", "1)")


@pytest.mark.parametrize(
    ("source", "environ", "held", "expected"),
    [
        pytest.param("import jax", {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}, {}, {0: 1, 1: 12}, id="every GPU"),
        pytest.param(
            "import cupy", {"CUPY_GPU_MEMORY_LIMIT": str(10240 * MIB)}, {}, {0: 10, 1: 10}, id="more than one has"
        ),
        pytest.param(ON_BOTH, {}, {}, {0: 1, 1: 12}, id="one limit is on a gpu that it holds"),
        pytest.param(
            HALF, {"GPUWATCH_SHARE": "0.25"}, {0: 0.25}, {0: 0.5, 1: 6}, id="an agreement beside a wrong guess"
        ),
    ],
)
def test_limits_on_gpus_of_different_models(
    explain: Explainer, source: str, environ: dict[str, str], held: dict[int, float], expected: dict[int, float]
) -> None:
    explain.write(train=source)
    declared = explain.declared(environ=environ, held=held)
    assert explain.limits(declared) == expected


def test_the_figures_that_the_order_rests_on_are_in_the_stream(driver: Driver) -> None:
    driver.gpus = [Gpu(0, cuda_major=6, cuda_minor=1, cores=256, clock_sm_max=1252)]
    snapshot, _ = once(driver.write().env())
    (gpu,) = snapshot.gpus
    assert (gpu.compute_capability, gpu.cores, gpu.sm_clock_max) == (6.1, 256, 1252)
    calls = driver.calls(gpu=0)
    names = ("nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMaxClockInfo")
    assert [calls[name] for name in names] == [1, 1, 1]


@pytest.mark.parametrize(
    ("gpus", "order"),
    [
        pytest.param([(8, GTX), (8, TI)], [1, 0], id="more cores before a higher clock"),
        pytest.param(
            [(8, {**GTX, "cores": Reason.UNSUPPORTED}), (11, {**TI, "cores": Reason.UNSUPPORTED})],
            [1, 0],
            id="more memory where the driver does not count cores",
        ),
        pytest.param([(2, {**QUADRO, **UNKNOWN}), (24, {**RTX, **UNKNOWN})], [0, 1], id="no figures"),
        pytest.param(
            [(2, QUADRO), (24, RTX), (24, {**RTX, "sm_clock_max": 2115})], [1, 2, 0], id="equal gpus stay in order"
        ),
    ],
)
def test_cuda_puts_the_fastest_gpu_first(
    tmp_path: Path, gpus: list[tuple[int, dict[str, Any]]], order: list[int]
) -> None:
    explain = Explainer(tmp_path, [gpu(index, total, **facts) for index, (total, facts) in enumerate(gpus)])
    expected = ", ".join(f"cuda:{ordinal} → GPU {index}" for ordinal, index in enumerate(order))
    assert expected in explain.text("-c", "import torch")


def test_a_limit_larger_than_the_gpu_that_was_guessed_is_not_drawn(explain: Explainer) -> None:
    explain.gpus[1] = gpu(1, 8, **RTX)
    explain.write(train=LIMIT)
    declared = explain.declared()
    assert declared.limits == ()
    limit = said(declared, "memory_limit")
    assert limit.limits == {}
    assert "more than the guessed GPU has" in limit.why
    assert "not known whether it declared a share" in explain.text(held={1: 7})


def test_a_limit_on_a_gpu_that_the_process_does_not_hold_is_not_drawn(explain: Explainer) -> None:
    explain.write(train=HALF)
    declared = explain.declared(held={0: 1.5})
    assert declared.limits == ()
    fraction = said(declared, "set_per_process_memory_fraction")
    assert fraction.limits == {}
    assert "not on the GPU that was guessed" in fraction.why
    text = explain.text(held={0: 1.5})
    assert "not known whether it declared a share" in text
    assert "more than the allowance" not in text


def test_the_other_gpu_is_not_said_to_be_under_no_limit_by_a_guess(explain: Explainer) -> None:
    explain.write(train=HALF)
    text = explain.text(held={0: 1.5, 1: 0.5})
    assert "12.0 GiB on GPU 1" in text
    assert "1.5 GiB on GPU 0\n            not known whether it declared a share" in text
    assert "no share declared" not in text


def test_a_gpu_that_was_guessed_and_is_not_held_is_said_to_be_so(explain: Explainer) -> None:
    text = explain.text("-c", "import torch", environ={"CUDA_VISIBLE_DEVICES": "0"}, held={0: 1})
    assert "cuda:0" not in text
    assert "its memory is on GPU 0, which CUDA_VISIBLE_DEVICES=0 in environment should hide (GPU order guessed)" in text


@pytest.mark.parametrize(("version", "hidden"), [("550.54.15", True), ("570.86.10", False)])
def test_a_whole_gpu_is_not_seen_beside_a_mig_instance_before_r570(
    driver: Driver, tmp_path: Path, version: str, *, hidden: bool
) -> None:
    driver.gpus = [Gpu(0, mig_mode=1, migs=[Mig(gi=7, uuid="MIG-first"), Mig(gi=9, uuid="MIG-second")]), Gpu(1)]
    driver.driver = version
    done = Launcher(driver.write(), tmp_path, in_process=True)("visible", "0,1")
    assert ("hidden  GPU 1" in done.stdout) is hidden
    assert ("drivers before R570 show only the first MIG instance, and no other GPU" in done.stdout) is hidden
