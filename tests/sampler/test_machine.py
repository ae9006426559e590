"""Facts about the machine and its users."""

from __future__ import annotations

from pathlib import Path

from gpuwatch import psinfo
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
    assert psinfo.host_memory(tmp_path) is None
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
    memory = psinfo.host_memory()
    assert memory is not None
    assert 0 < memory.available <= memory.total
