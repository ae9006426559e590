"""The fixtures that hand the tests' driver library out: `nvml_library`, and `driver` on top of it."""

import ctypes
import os
import subprocess
from pathlib import Path
from shutil import which

import pytest

from gpuwatch.base import procfs
from gpuwatch.sampler import machine
from tests.driver import Driver, build

_NEWNS, _REC_PRIVATE = 0x00020000, 0x4000 | 0x40000

_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled once. Where nothing can compile it, a test is skipped; in CI, it fails."""
    if which("cc") is None and not os.environ.get("CI"):
        pytest.skip("no C compiler (cc) to build the tests' driver library with")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def own_pids() -> None:
    """In a container, have a kernel module that lists processes by the container's PIDs, as the library does.

    It stands in a mount namespace that the tests enter for good; without the right to one, tests are skipped.
    """
    if not procfs.is_in_pid_namespace() or machine.lists_own_pids():
        return
    libc = ctypes.CDLL(None)
    if libc.unshare(_NEWNS) or libc.mount(b"none", b"/", None, _REC_PRIVATE, None):
        pytest.skip("in a container the tests need the right to mount, or --pid=host")
    subprocess.run(["mount", "-t", "tmpfs", "none", "/proc/driver"], check=True)
    Path("/proc/driver/nvidia").mkdir()
    Path("/proc/driver/nvidia/version").write_text(_MODULE)


@pytest.fixture
def driver(nvml_library: Path, own_pids: None, tmp_path: Path) -> Driver:
    """A driver with one idle GPU, already in place."""
    return Driver(tmp_path, nvml_library).write()
