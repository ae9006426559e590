"""Whether the sampler says that it runs in a container's PID namespace, where it may not be told of all processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.model.snapshot import Presence
from gpuwatch.sampler import machine
from tests.driver import Driver
from tests.support.process import fixture_process, stat_line
from tests.support.sampler import ME, eight, once

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"


def confine(proc: Path, version: str = "", *, state: str = "S") -> None:
    """Make a tree of a container's PID namespace, in which this process has its own number; say what the module is."""
    fixture_process(proc, ME, stat_line(ME, state=state), threads=state)
    own = proc / "self/ns"
    own.mkdir(parents=True)
    (own / "pid").symlink_to("pid:[4026532555]")
    if version:
        (proc / "driver/nvidia").mkdir(parents=True)
        (proc / "driver/nvidia/version").write_text(f"{version}\nGCC version:  gcc version 13.3.0\n")


@pytest.mark.parametrize(
    ("version", "own"),
    [
        ("", False),
        ("nonsense", False),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Thu May  1 02:00:00 UTC 2025", False),
        (f"{OPEN}  525.60.11  Release Build", False),
        (f"{OPEN}  560.35.03  Release Build", False),
        (f"{OPEN}  565.57.01  Release Build", True),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build", True),
        (f"{OPEN}  1000.1  Release Build", True),
    ],
)
def test_whose_pids_the_driver_lists_is_told_by_its_kernel_module_alone(
    tmp_path: Path, version: str, *, own: bool
) -> None:
    confine(tmp_path, version)
    assert machine.lists_own_pids(tmp_path) is own


def test_no_device_that_a_process_has_open_proves_whose_pids_the_driver_lists(driver: Driver, tmp_path: Path) -> None:
    """Any CUDA program in the container has it open, also the one that is listed by chance."""
    confine(tmp_path / "proc")
    for number, name in enumerate(("nvidiactl", "nvidia-uvm", "nvidia0"), 3):
        (tmp_path / f"proc/{ME}/fd/{number}").symlink_to(f"/dev/{name}")
    snapshot, _ = once(eight(driver).env(), long_search=True, proc=str(tmp_path / "proc"))
    assert [(one.presence, one.uid) for one in snapshot.processes] == [(Presence.UNSURE, None)]
    assert snapshot.unlisted == ()


@pytest.mark.parametrize(("version", "presence"), [("", Presence.UNSURE), (f"{OPEN}  580.95.05", Presence.SEEN)])
def test_a_zombie_that_has_the_number_by_chance_is_not_said_to_hold_memory(
    driver: Driver, tmp_path: Path, version: str, presence: Presence
) -> None:
    """Who is unsure is no process of ours that has ended: no rule about these looks at it."""
    confine(tmp_path / "proc", version, state="Z")
    snapshot, _ = once(eight(driver).env(), proc=str(tmp_path / "proc"))
    assert snapshot.confined
    assert [(one.presence, one.state) for one in snapshot.processes] == [
        (presence, "zombie" if presence is Presence.SEEN else "")
    ]
