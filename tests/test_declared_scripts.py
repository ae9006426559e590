"""What processes declared in scripts as people write them: real processes on the fake driver, told by `explain`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.driver import GIB, Driver, Gpu
from tests.explaining import Explainer, said


@pytest.fixture
def explain(driver: Driver, tmp_path: Path) -> Explainer:
    driver.gpus = [Gpu(index, memory_total=80 * GIB) for index in range(2)]
    return Explainer(driver, tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# CuPy

TEN = {"CUPY_GPU_MEMORY_LIMIT": str(10 * GIB)}
POOL = """
import cupy as cp

mempool = cp.get_default_memory_pool()
with cp.cuda.Device(0):
    mempool.set_limit(size=20 * 1024**3)
"""
POOL_OF_A_CLASS = """
import cupy as cp

class Solver:
    def __init__(self):
        self.pool = cp.get_default_memory_pool()
        self.pool.set_limit(size=20 * 1024**3)

Solver().run()
"""
POOL_AS_ARGUMENT = """
import cupy as cp

def limit(pool, gib):
    pool.set_limit(size=gib * 1024**3)

def main():
    limit(cp.get_default_memory_pool(), 20)

if __name__ == "__main__":
    main()
"""


def test_cupys_call_takes_the_place_of_its_variable_on_its_gpu_alone(explain: Explainer) -> None:
    explain.write(train=POOL)
    declared = explain.declared(environ=TEN, held={0: 15})
    assert explain.limits(declared) == {0: 20, 1: 10}
    first, second = (str(gpu.uuid) for gpu in explain.driver.gpus)
    assert said(declared, "set_limit").limits == {first: 20 * GIB}
    variable = said(declared, "CUPY_GPU_MEMORY_LIMIT")
    assert variable.limits == {second: 10 * GIB}
    assert (variable.effective, variable.why) == (True, "elsewhere set_limit comes before it")
    text = explain.text(environ=TEN, held={0: 15})
    assert "cap 10.0 GiB on GPU 1\n" in text
    assert "5.0 GiB under the 20.0 GiB that were declared" in text


@pytest.mark.parametrize("source", [POOL_OF_A_CLASS, POOL_AS_ARGUMENT])
def test_a_pool_that_is_not_followed_raises_no_overshoot_of_the_variable(explain: Explainer, source: str) -> None:
    explain.write(train=source)
    text = explain.text(environ=TEN, held={0: 15})
    assert "overshoot" not in text
    assert "set_limit" in text


def test_where_only_the_pool_of_a_class_is_limited_it_is_a_guess(explain: Explainer) -> None:
    explain.write(train=POOL_OF_A_CLASS)
    text = explain.text(held={0: 25})
    assert "guess" in text
    assert "cap 20.0 GiB" in text
