"""What containers are called: monitors' command lines, and Docker's sockets, with a server on a real one.

No runtime runs here. The answers have the fields that are documented: Docker's Engine API (ContainerInspect), conmon's
arguments in Podman's libpod/oci_conmon_common.go, and the kubelet's names in pkg/kubelet/dockershim/naming.go.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.declared.facts import Facts
from gpuwatch.declared.resolver import resolve
from gpuwatch.inspector import containers, context, reader
from gpuwatch.inspector.cgroups import ContainerId
from gpuwatch.inspector.containers import ContainerName, ContainerNames
from gpuwatch.model.snapshot import Container
from tests import CHECKOUT
from tests.declared.machines import A
from tests.inspector.test_cgroups import ID, OTHER
from tests.support.process import ME, ROOT, SOMEBODY_ELSE, Member, family, fixture_process, stat_line
from tests.support.waiting import Clock

needs_root = pytest.mark.skipif(not ROOT, reason="files of two users need root")

DOCKER, PODMAN = ContainerId("docker", ID), ContainerId("podman", ID)
SESSION = "/user.slice/user-1000.slice/session-3.scope"


def containers_of(folder: Path, **options: Any) -> ContainerNames:
    """A machine whose runtimes have their sockets below one folder."""
    return ContainerNames(folder / "docker.sock", folder / "run", **options)


def ask(
    names: ContainerNames, held: ContainerId = DOCKER, *, uid: int | None = None, proc: Path = Path("/nonexistent")
) -> ContainerName:
    """What a container is called that process 7 is in."""
    return names.find(held, 7, uid, proc=proc)


class Daemon(socketserver.ThreadingUnixStreamServer):
    """A daemon that gives one answer to whoever asks, once it is released, and counts what it was asked."""

    daemon_threads = True
    asked: list[str]
    answer: bytes
    status: int
    released: threading.Event


class Inspect(socketserver.StreamRequestHandler):
    """The one request."""

    server: Daemon

    def handle(self) -> None:
        self.server.asked.append(self.rfile.readline().split()[1].decode())
        self.server.released.wait()
        head = f"HTTP/1.0 {self.server.status} Status\r\nContent-Type: application/json\r\n\r\n"
        with suppress(OSError):  # who asked has gone
            self.wfile.write(head.encode() + self.server.answer)


@contextmanager
def daemon(path: Path, answer: object, *, status: int = 200, quiet: bool = False) -> Iterator[Daemon]:
    """Run a daemon that answers so, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Daemon(str(path), Inspect) as server:
        server.asked, server.status, server.released = [], status, threading.Event()
        server.answer = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        if not quiet:
            server.released.set()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()


INSPECTED = {"Id": ID, "Name": "/trainer", "Config": {"Labels": {}}, "State": {"Pid": 7}}
LABELS = {
    f"io.kubernetes.{key}": name
    for key, name in {"pod.name": "train-0", "pod.namespace": "vision", "container.name": "c"}.items()
}


def monitored(proc: Path, *argv: str) -> None:
    """Process 7 below a container's first process below its monitor."""
    fixture_process(proc, 7, stat_line(7, ppid=6))
    fixture_process(proc, 6, stat_line(6, b"catatonit", ppid=5))
    fixture_process(proc, 5, stat_line(5, b"conmon", ppid=1))
    (proc / "5/cmdline").write_text("\0".join(argv) + "\0")


@pytest.mark.parametrize("flag", [["-n", "tender_turing"], ["--name", "tender_turing"], ["--name=tender_turing"]])
def test_podmans_monitor_has_the_name_on_its_command_line(tmp_path: Path, public: Path, flag: list[str]) -> None:
    monitored(tmp_path, "/usr/bin/conmon", "--api-version", "1", "-c", ID, "-u", ID, "-r", "/usr/bin/crun", *flag)
    assert ask(containers_of(public), PODMAN, proc=tmp_path) == ContainerName("tender_turing")
    for cgroup in (
        f"/machine.slice/libpod-{ID}.scope/container",
        SESSION,
        "/",
        "",
        "/slurm/uid_7/job_4711/step_0/task_0",
    ):
        facts = Facts(pid=7, uid=1000, cgroup=cgroup, environ={})
        found = context.find_container(facts, proc=tmp_path, names=containers_of(public))
        assert found == Container(runtime="podman", id=ID[:12], name="tender_turing"), cgroup


def test_the_monitor_of_another_container_says_nothing(tmp_path: Path, public: Path) -> None:
    monitored(tmp_path, "/usr/bin/conmon", "-c", OTHER, "-n", "outer")
    for _ in range(2):
        assert ask(containers_of(public), PODMAN, proc=tmp_path) == ContainerName()
        (tmp_path / "5/cmdline").unlink(missing_ok=True)


def test_the_monitor_of_several_processes_is_read_once_a_batch(tmp_path: Path) -> None:
    monitored(tmp_path, "/usr/bin/conmon", "-c", ID)
    fixture_process(tmp_path, 8, stat_line(8, ppid=6))
    batch: containers.Monitors = {}
    found = containers.find_container_id(7, SESSION, tmp_path, batch)
    (tmp_path / "5/cmdline").write_text(f"conmon\0-c\0{OTHER}\0")
    assert containers.find_container_id(8, SESSION, tmp_path, batch) == found == ContainerId("podman", ID)
    assert containers.find_container_id(8, SESSION, tmp_path, {}) == ContainerId("podman", OTHER)


@pytest.mark.parametrize(
    "argv", [(), ("-c",), ("-n", ID), ("-c", ID[:12]), ("-c", f"{ID}/../x"), ("-c", ID.upper()), ("-n", "-c", ID[1:])]
)
def test_a_monitor_without_an_id_is_of_no_container(tmp_path: Path, argv: tuple[str, ...]) -> None:
    monitored(tmp_path, "/usr/bin/conmon", *argv)
    assert containers.find_container_id(7, SESSION, tmp_path) is None


@pytest.mark.parametrize(
    ("cgroup", "argv", "mounted", "own", "expected"),
    [
        (SESSION, ("-c", ID), "", "", ID),
        (SESSION, (), ID, "", ""),
        (f"/docker/{OTHER}", ("-c", ID), "", "", OTHER),
        ("/", ("-c", ID), OTHER, "", ID),
        ("/", (), ID, OTHER, ID),
        ("/", (), ID, ID, ""),
        ("/", ("-c", ID), ID, ID, ""),
        ("/user.slice/user@7.service/app.slice/docker.service", (), ID, "", ID),
        ("/slurm/uid_7/job_4711/step_0", (), ID, "", ID),
    ],
    ids=["monitor", "mounts outside", "cgroup", "both", "mounts", "own", "own, seen from outside", "rootless", "job"],
)
def test_the_facts_of_a_process_have_its_container_unless_that_is_ours(
    tmp_path: Path, cgroup: str, argv: tuple[str, ...], mounted: str, own: str, expected: str
) -> None:
    """NVML lists the GPUs of the container in which gpuwatch runs itself."""
    monitored(tmp_path, "/usr/bin/conmon", *argv)
    (tmp_path / "7/status").write_text("Uid:\t7\t7\t7\t7\nGid:\t7\t7\t7\t7\nGroups:\t\n")
    (tmp_path / "7/cgroup").write_text(f"0::{cgroup}\n")
    (tmp_path / str(os.getpid())).mkdir()
    for pid, of in ((7, mounted), (os.getpid(), own)):
        line = f"600 599 0:50 /c/overlay-containers/{of}/userdata/hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
        (tmp_path / str(pid) / "mountinfo").write_text(line)
    assert reader.read(7, proc=tmp_path).container == expected


def test_a_rootless_container_is_known_by_the_command_line_of_its_monitor_alone() -> None:
    """The monitor has the user's uid, as root inside has; `podman run --user` has one of the user's subordinate uids.

    The ranks of two containers with one address on the loopback are two runs.
    """
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    argv = ("/usr/bin/conmon", "--api-version", "1", "-c")
    mapped = Member("mapped", uid=SOMEBODY_ELSE if ROOT else None)
    monitors = (
        Member(
            name, (*argv, ident, "-u", ident, "-r", "/usr/bin/runc", "-n", f"its_{name}"), children=of, comm="conmon"
        )
        for name, ident, of in (
            ("one", ID, (Member("rank0", environ=ranks),)),
            ("two", OTHER, (Member("rank1", environ=ranks), mapped)),
        )
    )
    with family(*monitors, uid=ME) as tree:
        for name, monitor, ident in (("rank0", "one", ID), ("rank1", "two", OTHER), ("mapped", "two", OTHER)):
            facts = reader.read(tree.pids[name])
            assert facts.container == ident
            assert tree.around(name).where == f"podman its_{monitor}"
            assert resolve(facts, A).visible is None, "which GPUs it was given is not known"
            assert reader.read(tree.pids[monitor]).container == ""
        keys = {tree.run_of(name).key for name in ("rank0", "rank1")}
        assert [key.partition(" ")[0] for key in keys] == ["ranks", "ranks"]


def test_cri_o_keeps_the_kubelets_names(tmp_path: Path, public: Path) -> None:
    monitored(tmp_path, "/usr/bin/conmon", "-b", "/x", "-c", ID, "-n", "k8s_trainer_train-0_vision_1fb2_0", "-u", ID)
    asked = ask(containers_of(public), ContainerId("cri-o", ID), proc=tmp_path)
    assert asked == ContainerName("trainer", "vision/train-0")
    assert containers.parse_name("k8s_mine") == ContainerName("k8s_mine")
    assert containers.parse_name("") is None


def test_docker_is_asked_over_its_socket(public: Path) -> None:
    clock = Clock()
    names = containers_of(public, clock=clock)
    with daemon(public / "docker.sock", INSPECTED) as server:
        assert ask(names) == ContainerName("trainer")
        clock.now += containers.FRESH - 1
        assert ask(names) == ContainerName("trainer")
        assert server.asked == [f"/containers/{ID}/json"]
        clock.now += 2
        server.answer = json.dumps({"Name": "/renamed"}).encode()
        assert ask(names) == ContainerName("renamed")


@pytest.mark.parametrize(
    ("answer", "status", "expected"),
    [
        (INSPECTED | {"Config": {"Labels": LABELS}}, 200, ContainerName("c", "vision/train-0")),
        (INSPECTED | {"Config": None, "Name": "/a\u202eb"}, 200, ContainerName("a\ufffdb")),
        ({"message": f"No such container: {ID}"}, 404, ContainerName()),
        ({"Name": 3}, 200, ContainerName()),
        (b"", 200, ContainerName()),
        (b"<html>", 200, ContainerName()),
        (b"x" * (3 << 20), 200, ContainerName()),
    ],
    ids=["pod", "no config", "unknown", "a number", "nothing", "no JSON", "large"],
)
def test_what_docker_may_answer(public: Path, answer: object, status: int, expected: ContainerName) -> None:
    with daemon(public / "docker.sock", answer, status=status):
        assert ask(containers_of(public)) == expected


def test_the_pod_is_named_by_its_containers_labels(public: Path) -> None:
    facts = Facts(pid=7, uid=1000, cgroup=f"/kubepods/pod1fb25a5c-2a6e-4b9c-8f0e-0d1a2b3c4d5e/docker-{ID}.scope")
    with daemon(public / "docker.sock", INSPECTED | {"Config": {"Labels": LABELS}}):
        assert context.find_pod(facts, proc=public, names=containers_of(public)) == "vision/train-0"


def test_a_daemon_that_hangs_is_left_alone_for_a_while(public: Path) -> None:
    clock = Clock()
    names = containers_of(public, clock=clock)
    with daemon(public / "docker.sock", INSPECTED, quiet=True) as server:
        assert ask(names) == ContainerName()
        assert ask(names, ContainerId("docker", OTHER)) == ContainerName()
        assert len(server.asked) == 1
        server.released.set()
        clock.now += containers.FRESH + 1
        assert ask(names) == ContainerName("trainer")


def test_what_is_no_socket_is_not_asked(public: Path) -> None:
    path = public / "docker.sock"
    path.write_text("")
    assert ask(containers_of(public)) == ContainerName()
    path.unlink()
    with daemon(public / "real.sock", INSPECTED) as server:
        path.symlink_to("real.sock")
        assert ask(containers_of(public)) == ContainerName()
        assert server.asked == []
    path.unlink()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert ask(containers_of(public)) == ContainerName()


@needs_root
def test_a_rootless_daemon_is_asked_with_its_owners_rights(public: Path) -> None:
    path = public / f"run/{ME}/docker.sock"
    with daemon(path, INSPECTED) as server:
        os.chown(path, ME, ME)
        assert ask(containers_of(public), uid=ME) == ContainerName("trainer")
        os.chown(path, SOMEBODY_ELSE, SOMEBODY_ELSE)
        path.chmod(0o666)
        assert ask(containers_of(public), uid=ME) == ContainerName()
        assert len(server.asked) == 1


def test_no_more_is_remembered_than_a_bound(public: Path) -> None:
    names = containers_of(public)
    for number in range(containers.MOST + 10):
        ask(names, ContainerId("containerd", f"{number:064x}"))
    assert len(names._names) == containers.MOST


AS_USER = """
import json, os, socket, sys  # the user may not read our Python
from pathlib import Path
from gpuwatch.inspector.cgroups import ContainerId
from gpuwatch.inspector.containers import ContainerNames
uid, folder = int(sys.argv[1]), Path(sys.argv[2])
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
names = ContainerNames(folder / "docker.sock", folder / "run")
for ident, of in json.loads(sys.argv[3]):
    print(names.find(ContainerId("docker", ident), 7, of, proc=folder).name)
"""


@needs_root
def test_a_user_asks_their_own_daemon_and_nobody_elses(public: Path) -> None:
    own, other = public / f"run/{ME}/docker.sock", public / f"run/{SOMEBODY_ELSE}/docker.sock"
    questions = [[ID, None], [OTHER, ME], ["f" * 64, SOMEBODY_ELSE]]
    with daemon(public / "docker.sock", INSPECTED), daemon(own, INSPECTED), daemon(other, INSPECTED) as theirs:
        (public / "docker.sock").chmod(0o660)
        os.chown(own, ME, ME)
        other.chmod(0o666)
        command = [sys.executable, "-c", AS_USER, str(ME), str(public), json.dumps(questions)]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["", "trainer", "", ""]
    assert theirs.asked == []
