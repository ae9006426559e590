"""Facts about the machine and its users."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.model.snapshot import Reason
from gpuwatch.sampler import machine
from gpuwatch.sampler.owners import UserNames
from tests.support.waiting import PATIENCE


def test_an_unknown_uid_stays_a_number_and_a_hostile_name_is_cleaned() -> None:

    def look_up(uid: int) -> str:
        if uid == 4242:
            raise KeyError(uid)
        return "e\x1b[31mvil"

    users = UserNames(look_up)
    users.name(4242), users.name(1)
    assert users.wait(PATIENCE)
    assert (users.name(4242), users.name(1)) == ("4242", "e\ufffd[31mvil")


def test_a_name_is_looked_up_again_after_its_time() -> None:
    names = iter(["ada", "grace"])
    now = [0.0]
    users = UserNames(lambda uid: next(names), ttl=600, clock=lambda: now[0])
    assert users.name(7) == "7"
    users.wait(PATIENCE)
    now[0] = 599.0
    assert users.name(7) == "ada"
    assert users.pending == 0
    now[0] = 601.0
    assert users.name(7) == "ada"
    users.wait(PATIENCE)
    assert users.name(7) == "grace"


def test_facts_of_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert machine.pid_max(tmp_path) == 4194304
    assert machine.read_memory_use(tmp_path) is None
    assert not machine.in_container(tmp_path, tmp_path, {})
    assert not machine.hides_pids(tmp_path)
    assert machine.loaded_driver(tmp_path) == machine.library_version(tmp_path) == ""


def test_containers_are_known_by_several_signs(tmp_path: Path) -> None:
    """With cgroup v2 namespaces the cgroup file tells nothing."""
    assert machine.in_container(tmp_path, tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert machine.in_container(tmp_path, tmp_path, {"container": "podman"})
    (tmp_path / "1").mkdir()
    (tmp_path / "1/cgroup").write_text("0::/kubepods.slice/pod1\n")
    assert machine.in_container(tmp_path, tmp_path, {})
    (tmp_path / "1/cgroup").write_text("0::/user.slice\n")
    assert not machine.in_container(tmp_path, tmp_path, {})
    (tmp_path / ".dockerenv").touch()
    assert machine.in_container(tmp_path, tmp_path, {})


def test_this_machine() -> None:
    assert 300 <= machine.pid_max() <= 4194304
    memory = machine.read_memory_use()
    assert memory is not None
    assert 0 < memory.available <= memory.total


_STAT = "cpu  {user} 0 100 {idle} 50 0 0 0 {guest} 0\n"
_V2 = {
    "cgroup.controllers": "cpu memory",
    "pod/box/cpu.max": "max 100000",
    "pod/box/memory.max": "max",
    "pod/cpu.max": "250000 100000",
    "pod/memory.max": f"{8 << 30}",
    "pod/memory.current": f"{3 << 30}",
    "pod/memory.stat": f"anon 5\ninactive_file {1 << 30}\n",
    "memory.max": f"{16 << 30}",
}
_V1 = {
    "cpu/cpu.cfs_quota_us": "250000",
    "cpu/cpu.cfs_period_us": "100000",
    "memory/memory.limit_in_bytes": f"{8 << 30}",
    "memory/memory.usage_in_bytes": f"{3 << 30}",
    "memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {1 << 30}\n",
}


def _machine(folder: Path, cgroup: str = "0::/pod/box", **stat: int) -> Path:
    (folder / "self").mkdir(parents=True, exist_ok=True)
    (folder / "self/cgroup").write_text(cgroup + "\n")
    (folder / "meminfo").write_text("".join(f"{name}: {kib} kB\n" for name, kib in _KIB.items()))
    (folder / "stat").write_text(_STAT.format(**{"user": 0, "idle": 0, "guest": 0} | stat))
    return folder


_KIB = {"MemTotal": 64 << 20, "MemFree": 1 << 20, "MemAvailable": 40 << 20, "SwapTotal": 4 << 20, "SwapFree": 3 << 20}
_KIB |= dict.fromkeys(("Buffers", "Cached", "Active", "Inactive", "Shmem", "Slab", "SReclaimable"), 0)


def test_use_of_the_host_between_two_readings(tmp_path: Path) -> None:
    """A guest's time is in `user` too, and waiting for a disk is not use."""
    cores = os.cpu_count() or 1
    proc = _machine(tmp_path)
    reader = machine.HostReader(proc, contained=False)
    first = reader.read()
    assert first.cpu is Reason.NO_SAMPLE
    assert (first.memory_total, first.memory_used) == (64 << 30, 24 << 30)
    assert (first.swap_total, first.swap_used) == (4 << 30, 1 << 30)
    assert first.load == pytest.approx(os.getloadavg()[0], abs=5)
    assert {first.cpu_limit, first.memory_limit, first.memory_of_limit} == {Reason.UNSUPPORTED}
    _machine(tmp_path, user=30 * cores, guest=30 * cores, idle=70 * cores)
    assert reader.read().cpu == 30.0
    _machine(tmp_path, user=31 * cores, guest=30 * cores, idle=70 * cores)
    assert reader.read().cpu == 30.0  # a hundredth of a second is no measurement


def test_a_host_that_cannot_be_read(tmp_path: Path) -> None:
    usage = machine.HostReader(tmp_path, contained=False).read()
    assert {usage.cpu, usage.memory_total, usage.memory_used, usage.swap_total, usage.swap_used} == {Reason.ERROR}


@pytest.mark.parametrize(
    ("files", "cgroup", "expected"),
    [
        pytest.param(_V2, "0::/pod/box", (2.5, 8 << 30, 2 << 30), id="v2, the lowest of all levels"),
        pytest.param(_V2, "0::/../other", (Reason.UNSUPPORTED, 16 << 30, Reason.ERROR), id="v2, outside its namespace"),
        pytest.param(_V1, "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x", (2.5, 8 << 30, 2 << 30), id="v1, own mounts"),
        pytest.param(
            {"memory/memory.limit_in_bytes": "9223372036854771712", "cpu/cpu.cfs_quota_us": "-1"},
            "4:memory:/\n3:cpu:/",
            (Reason.UNSUPPORTED,) * 3,
            id="v1, no limits",
        ),
        pytest.param({}, "", (Reason.UNSUPPORTED,) * 3, id="no cgroups"),
    ],
)
def test_limits_of_a_container(
    files: dict[str, str], cgroup: str, expected: tuple[float | Reason, ...], tmp_path: Path
) -> None:
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    usage = machine.HostReader(_machine(tmp_path / "proc", cgroup), tmp_path / "cgroup", contained=True).read()
    assert (usage.cpu_limit, usage.memory_limit, usage.memory_of_limit) == expected
