r"""Where a process runs, by its cgroup: paths as each runtime documents them, and a real cgroup where one may be made.

The paths are those of docs.docker.com (runtime metrics), podman-run(1) and Podman's own issues (`--cgroups=split`),
the kubelet's cgroup_manager_linux.go, lxc.container.conf(5), systemd-nspawn(1), slurm.schedmd.com/cgroup_v2.html,
systemd.slice(5) and systemd.io/DESKTOP_ENVIRONMENTS; none was recorded on this machine.
"""

from __future__ import annotations

import pytest

from gpuwatch.inspector import cgroups
from gpuwatch.inspector.cgroups import ContainerId, SlurmStep, SystemdUnit
from gpuwatch.model import Surroundings, is_service

ID = "4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970"
OTHER = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d"
POD = "1fb25a5c-2a6e-4b9c-8f0e-0d1a2b3c4d5e"
BELOW = POD.replace("-", "_")


CONTAINERS = [
    (f"/docker/{ID}", "docker", ID, ""),
    (f"/system.slice/docker-{ID}.scope", "docker", ID, ""),
    (f"/../../docker/{ID}", "docker", ID, ""),
    (f"/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope", "docker", ID, ""),
    (f"/ecs/train/6f1e/{ID}", "", ID, ""),
    (f"/ecs/6f1e/{ID}", "docker", ID, ""),
    (f"/machine.slice/libpod-{ID}.scope/container", "podman", ID, ""),
    (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", "podman", ID, ""),
    (f"/libpod_parent/libpod-{ID}", "podman", ID, ""),
    (f"/system.slice/app_name.service/libpod-payload-{ID}", "podman", ID, ""),
    (f"/default/{ID}", "containerd", ID, ""),
    (f"/system.slice/nerdctl-{ID}.scope", "containerd", ID, ""),
    (f"/kubepods.slice/kubepods-pod{BELOW}.slice/cri-containerd-{ID}.scope", "containerd", ID, ""),
    (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{BELOW}.slice/crio-{ID}.scope", "cri-o", ID, ""),
    (f"/kubepods/burstable/pod{POD}/{ID}", "", ID, ""),
    (f"/docker/{OTHER}/kubelet/kubepods/besteffort/pod{POD}/{ID}", "", ID, ""),
    (
        f"/system.slice/containerd.service/kubepods-besteffort-pod{BELOW}.slice:cri-containerd:{ID}",
        "containerd",
        ID,
        "",
    ),
    ("/lxc.payload.gpu1/system.slice/ollama.service", "lxc", "", "gpu1"),
    ("/lxc/101/ns/init.scope", "lxc", "", "101"),
    (r"/machine.slice/machine-deep\x2dlab.scope/payload", "systemd-nspawn", "", "deep-lab"),
    ("/machine.slice/systemd-nspawn@lab.service/payload", "systemd-nspawn", "", "lab"),
]


@pytest.mark.parametrize(("path", "runtime", "ident", "name"), CONTAINERS)
def test_the_container_on_a_path(path: str, runtime: str, ident: str, name: str) -> None:
    assert cgroups.parse_container(path) == ContainerId(runtime, ident, name)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/user.slice/user-1000.slice/session-3.scope", "/system.slice/ollama.service", "/docker", "/lxc"),
        f"/machine.slice/libpod-conmon-{ID}.scope",
        f"/machine.slice/crio-conmon-{ID}.scope",
        f"/machine.slice/machine-libpod_pod_{ID}.slice",
        r"/machine.slice/machine-qemu\x2d1\x2dwindows.scope/libvirt/emulator",
        "/lxc.monitor.gpu1",
        "/system.slice/slurmstepd.scope/job_1/step_0/user/task_0",
        f"/docker/{ID[:40]}",
        f"/docker/{ID.upper()}",
    ],
)
def test_what_is_no_container(path: str) -> None:
    assert cgroups.parse_container(path) is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        *((path, POD) for path, *_ in CONTAINERS if "pod1fb25a5c" in path),
        ("/kubepods/burstable/pod" + "5" * 32 + "/" + ID, "5" * 32),
        (f"/machine.slice/libpod-{ID}.scope", ""),
        (f"/machine.slice/machine-libpod_pod_{ID}.slice/libpod-{OTHER}.scope", ""),
        ("/kubepods.slice", ""),
    ],
)
def test_the_pod_on_a_path(path: str, expected: str) -> None:
    assert cgroups.parse_pod(path) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/slurm/uid_1000/job_4711/step_0/task_0", SlurmStep("4711", "0")),
        ("/slurm_gpu01/uid_1000/job_4711/step_batch/task_special", SlurmStep("4711", "batch")),
        ("/system.slice/slurmstepd.scope/job_1392969/step_0/user/task_0", SlurmStep("1392969", "0")),
        ("/system.slice/gpu01_slurmstepd.scope/job_42/step_extern/user", SlurmStep("42", "extern")),
        ("/slurm/uid_1000/job_4711", SlurmStep("4711", "")),
        ("/system.slice/slurmstepd.scope/system", None),
        ("/user.slice/user-1000.slice/job_4711/step_0", None),
        ("/system.slice/slurmd.service", None),
    ],
)
def test_the_batch_job_on_a_path(path: str, expected: SlurmStep | None) -> None:
    assert cgroups.parse_slurm(path) == expected


USER = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/system.slice/ollama.service", SystemdUnit("ollama.service", False)),
        (r"/system.slice/system-vllm.slice/vllm@llama\x2d3.service", SystemdUnit(r"vllm@llama\x2d3.service", False)),
        (f"{USER}/app.slice/embeddings.service", SystemdUnit("embeddings.service", True)),
        ("/system.slice/triton.service/workers/3", SystemdUnit("triton.service", False)),
        (f"/system.slice/app_name.service/libpod-payload-{ID}", SystemdUnit("app_name.service", False)),
        ("/lxc.payload.gpu1/system.slice/ollama.service", SystemdUnit("ollama.service", False)),
        ("/system.slice/_cgroup.odd.service", SystemdUnit("cgroup.odd.service", False)),
        ("/system.slice/run-u123.service", SystemdUnit("run-u123.service", False)),
        ("/system.slice/app-embeddings.service", SystemdUnit("app-embeddings.service", False)),
        ("/system.slice/jupyterhub.service", SystemdUnit("jupyterhub.service", False)),
        *(
            (path, None)
            for path in (
                *("", "/", "/system.slice", "/user.slice/user-1000.slice/session-3.scope", "/init.scope"),
                *(USER, f"{USER}/init.scope", f"{USER}/app.slice/run-r1f.scope"),
                f"{USER}/app.slice/app-gnome-org.gnome.Terminal-2107.scope",
                f"{USER}/app.slice/app-org.kde.konsole@3fa9.service",
                f"{USER}/app.slice/app-org.gnome.Terminal.slice/vte-spawn-1fb25a5c.scope",
                f"{USER}/app.slice/gnome-terminal-server.service",
                f"{USER}/tmux-spawn-1fb25a5c.scope",
                f"{USER}/app.slice/tmux.service/tmux-spawn-1fb25a5c.scope",
                *(f"/system.slice/{name}.service" for name in ("ssh", "sshd", "cron", "crond", "slurmd", "docker")),
                *(f"/system.slice/{name}.service" for name in ("containerd", "systemd-logind", "kubelet", "gdm3")),
                *(f"/system.slice/{name}.service" for name in ("nxserver", "dcvserver", "chrome-remote-desktop@ada")),
                "/system.slice/system-sshd.slice/sshd@0-10.0.0.1:22-10.0.0.2:514.service",
                "/system.slice/system-getty.slice/getty@tty1.service",
                f"/system.slice/docker-{ID}.scope",
            )
        ),
    ],
)
def test_the_unit_on_a_path(path: str, expected: SystemdUnit | None) -> None:
    assert cgroups.parse_unit(path) == expected


def test_a_notebook_below_a_unit_is_not_its_service() -> None:
    names = ("jupyterhub", "jupyter", "jupyter-ada", "code-server@ada", "code-tunnel")
    for unit in (*(f"{name}.service" for name in names), ""):
        assert not is_service(unit)
        assert not Surroundings(unit=unit).service
    assert Surroundings(unit="ollama.service").service


def test_whose_login_a_path_lies_in() -> None:
    assert cgroups.parse_user(f"{USER}/user.slice/libpod-{ID}.scope") == 1000
    assert cgroups.parse_user(f"/machine.slice/libpod-{ID}.scope") is None
