"""Which GPU an ordinal means where CUDA puts the fastest first: real processes on a machine of different models."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.model import Confidence, Order
from tests.driver import GIB, MIB, Driver, Gpu, build
from tests.support.explaining import Explainer, said
from tests.support.sampling import once

HALF = "import torch\ntorch.cuda.set_per_process_memory_fraction(0.5, 0)\n"
LIMIT = """
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=10240)])
"""


def small(index: int = 0) -> Gpu:
    """Return a card for the desktop."""
    return Gpu(
        index, name="Quadro P400", memory_total=2 * GIB, cuda_major=6, cuda_minor=1, cores=256, clock_sm_max=1252
    )


def large(index: int = 1) -> Gpu:
    return Gpu(
        index,
        name="NVIDIA GeForce RTX 3090",
        memory_total=24 * GIB,
        cuda_major=8,
        cuda_minor=6,
        cores=10496,
        clock_sm_max=2100,
    )


@pytest.fixture
def explain(driver: Driver, tmp_path: Path) -> Explainer:
    driver.gpus = [small(), large()]
    return Explainer(driver, tmp_path)


def test_the_limit_of_the_first_gpu_is_that_of_the_fastest_and_a_guess(explain: Explainer) -> None:
    explain.write(train=HALF)
    declared = explain.declared()
    assert declared.visible is not None
    assert declared.visible.gpus == tuple(str(gpu.uuid) for gpu in reversed(explain.driver.gpus))
    assert declared.visible.order is Order.HEURISTIC
    assert explain.limits(declared) == {1: 12}
    assert said(declared, "set_per_process_memory_fraction").confidence is Confidence.GUESS


def test_the_order_of_the_slots_is_no_guess(explain: Explainer) -> None:
    explain.write(train=HALF)
    declared = explain.declared(environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert explain.limits(declared) == {0: 1}
    assert said(declared, "set_per_process_memory_fraction").confidence is Confidence.LIKELY


def test_a_variable_counts_the_fastest_first(explain: Explainer) -> None:
    text = explain.text("-c", "import torch", environ={"CUDA_VISIBLE_DEVICES": "0"}, held={1: 10})
    assert "cuda:0 → GPU 1" in text
    assert "a guess: of different models CUDA puts the fastest first" in text


def test_the_figures_that_it_rests_on_are_in_the_stream(explain: Explainer) -> None:
    snapshot, _ = once(explain.driver.write().env())
    assert [(gpu.compute_capability, gpu.cores, gpu.sm_clock_max) for gpu in snapshot.gpus] == [
        (6.1, 256, 1252),
        (8.6, 10496, 2100),
    ]
    calls = explain.driver.calls(gpu=1)
    assert calls["nvmlDeviceGetCudaComputeCapability"] == 1
    assert calls["nvmlDeviceGetNumGpuCores"] == 1
    assert calls["nvmlDeviceGetMaxClockInfo"] == 1


def test_of_one_generation_more_cores_count_before_a_higher_clock(explain: Explainer) -> None:
    explain.driver.gpus = [
        Gpu(0, name="GTX 1080", cuda_major=6, cuda_minor=1, cores=2560, clock_sm_max=1733),
        Gpu(1, name="GTX 1080 Ti", cuda_major=6, cuda_minor=1, cores=3584, clock_sm_max=1582),
    ]
    assert "cuda:0 → GPU 1, cuda:1 → GPU 0" in explain.text("-c", "import torch")


def test_a_driver_that_does_not_count_cores_leaves_generation_and_memory(tmp_path: Path) -> None:
    old = Driver(tmp_path, build(tmp_path / "old", absent=["nvmlDeviceGetNumGpuCores"]))
    old.gpus = [
        Gpu(0, name="GTX 1080", memory_total=8 * GIB, cuda_major=6, cuda_minor=1, clock_sm_max=1733),
        Gpu(1, name="GTX 1080 Ti", memory_total=11 * GIB, cuda_major=6, cuda_minor=1, clock_sm_max=1582),
    ]
    assert "cuda:0 → GPU 1, cuda:1 → GPU 0" in Explainer(old, tmp_path).text("-c", "import torch")


def test_where_nothing_tells_the_speed_the_order_stays_that_of_nvml(explain: Explainer) -> None:
    for gpu in explain.driver.gpus:
        gpu.cuda_major = gpu.cores = gpu.clock_sm_max = None
    assert "cuda:0 → GPU 0, cuda:1 → GPU 1" in explain.text("-c", "import torch")


def test_equal_cards_of_a_mixed_machine_stay_in_their_order(explain: Explainer) -> None:
    explain.driver.gpus = [small(0), large(1), large(2)]
    explain.driver.gpus[2].clock_sm_max = 2115  # the same model with a faster BIOS
    assert "cuda:0 → GPU 1, cuda:1 → GPU 2, cuda:2 → GPU 0" in explain.text("-c", "import torch")


def test_a_limit_larger_than_the_card_that_was_guessed_is_not_drawn(explain: Explainer) -> None:
    explain.driver.gpus[1].memory_total = 8 * GIB
    explain.write(train=LIMIT)
    declared = explain.declared()
    assert declared.limits == ()
    limit = said(declared, "memory_limit")
    assert limit.limits == {}
    assert limit.why == "it is more than the GPU has that it was guessed to mean"
    assert "not known to be under a limit" in explain.text(held={1: 7})


def test_a_limit_on_a_card_that_the_process_does_not_hold_is_not_drawn(explain: Explainer) -> None:
    explain.write(train=HALF)
    declared = explain.sampled(held={0: 1.5})
    assert declared.limits == ()
    fraction = said(declared, "set_per_process_memory_fraction")
    assert fraction.limits == {}
    assert fraction.why == "its memory is on another GPU than the one that it was guessed to mean"
    text = explain.text(held={0: 1.5})
    assert "not known to be under a limit" in text
    assert "overshoot" not in text


def test_the_other_card_is_not_said_to_be_under_no_limit_by_a_guess(explain: Explainer) -> None:
    explain.write(train=HALF)
    text = explain.text(held={0: 1.5, 1: 0.5})
    assert "12.0 GiB on GPU 1" in text
    assert "1.5 GiB on GPU 0\n            not known to be under a limit" in text
    assert "under no limit" not in text


def test_a_gpu_that_was_guessed_and_is_not_held_is_said_to_be_so(explain: Explainer) -> None:
    declared = explain.sampled("-c", "import torch", environ={"CUDA_VISIBLE_DEVICES": "0"}, held={0: 1})
    assert declared.visible is not None
    assert "its memory is on another GPU" in declared.visible.note


def test_a_fraction_for_every_gpu_is_no_guess(explain: Explainer) -> None:
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}
    declared = explain.declared("-c", "import jax", environ=environ)
    assert explain.limits(declared) == {0: 1, 1: 12}


def test_a_size_for_every_gpu_may_be_more_than_the_small_one_has(explain: Explainer) -> None:
    environ = {"CUPY_GPU_MEMORY_LIMIT": str(10240 * MIB)}
    declared = explain.declared("-c", "import cupy", environ=environ)
    assert explain.limits(declared) == {0: 10, 1: 10}


def test_one_of_several_limits_is_on_a_card_that_it_holds(explain: Explainer) -> None:
    explain.write(train=HALF + HALF.replace("0)", "1)"))
    assert explain.limits(explain.declared()) == {0: 1, 1: 12}


def test_what_people_agreed_on_stands_where_the_guess_was_wrong(explain: Explainer) -> None:
    explain.write(train=HALF)
    declared = explain.sampled(environ={"GPUWATCH_SHARE": "0.25"}, held={0: 0.25})
    assert explain.limits(declared) == {0: 0.5, 1: 6}
