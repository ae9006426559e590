"""The fixtures that hand the tests' driver library out: `nvml_library`, and `driver` on top of it."""

import os
from pathlib import Path
from shutil import which

import pytest

from tests.driver import Driver, build


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled once. Where nothing can compile it, a test is skipped; in CI, it fails."""
    if which("cc") is None and not os.environ.get("CI"):
        pytest.skip("no C compiler (cc) to build the tests' driver library with")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(nvml_library: Path, tmp_path: Path) -> Driver:
    """A driver with one idle GPU, already in place."""
    return Driver(tmp_path, nvml_library).write()
