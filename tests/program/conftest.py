"""Fixtures of the tests of the whole program."""

from __future__ import annotations

import os

import pytest

from tests.driver import GIB, Driver, Gpu, Proc


@pytest.fixture
def busy(driver: Driver) -> Driver:
    """Two GPUs; this process holds 12 GiB of the second."""
    driver.gpus = [Gpu(0, util_gpu=37), Gpu(1, memory_used=12 * GIB, util_gpu=99)]
    driver.procs = [Proc(1, os.getpid(), memory=12 * GIB, sm=98)]
    return driver.write()
