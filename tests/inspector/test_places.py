r"""Where a process runs, by its cgroup: paths as each runtime documents them, and a real cgroup where one may be made.

The paths are those of docs.docker.com (runtime metrics), podman-run(1) and Podman's own issues (`--cgroups=split`),
the kubelet's cgroup_manager_linux.go, lxc.container.conf(5), systemd-nspawn(1), slurm.schedmd.com/cgroup_v2.html,
systemd.slice(5) and systemd.io/DESKTOP_ENVIRONMENTS; none was recorded on this machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.facts import Facts, RelatedProcess, Unread
from gpuwatch.inspector import cgroups, context, reader
from gpuwatch.inspector.cgroups import ContainerId, SlurmStep, Unit
from gpuwatch.inspector.containers import ContainerNames, Roots
from gpuwatch.model import Container, Surroundings, is_service
from gpuwatch.text import clean

ID = "4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970"
OTHER = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d"
POD = "1fb25a5c-2a6e-4b9c-8f0e-0d1a2b3c4d5e"
BELOW = POD.replace("-", "_")
NOBODY = ContainerNames(
    Roots(docker=Path("/nonexistent"), docker_socket=Path("/nonexistent"), storage=Path("/nonexistent"))
)


def facts(cgroup: str = "/", **environ: str) -> Facts:
    """A process of this cgroup and environment."""
    return Facts(pid=7, uid=1000, cgroup=cgroup, environ=environ)


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
    """Version 1 and 2, the systemd driver and the other, of every runtime; the innermost counts."""
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
    """A container's monitor, a virtual machine, a login, a service."""
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
    """Its uid with dashes by either driver; of a static pod 32 digits. A pod of Podman's is none of these."""
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
    """Only below Slurm's own folder: anybody may call a cgroup `job_1`."""
    assert cgroups.parse_slurm(path) == expected


USER = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/system.slice/ollama.service", Unit("ollama.service", False)),
        (r"/system.slice/system-vllm.slice/vllm@llama\x2d3.service", Unit(r"vllm@llama\x2d3.service", False)),
        (f"{USER}/app.slice/embeddings.service", Unit("embeddings.service", True)),
        ("/system.slice/triton.service/workers/3", Unit("triton.service", False)),
        (f"/system.slice/app_name.service/libpod-payload-{ID}", Unit("app_name.service", False)),
        ("/lxc.payload.gpu1/system.slice/ollama.service", Unit("ollama.service", False)),
        ("/system.slice/_cgroup.odd.service", Unit("cgroup.odd.service", False)),
        ("/system.slice/run-u123.service", Unit("run-u123.service", False)),
        ("/system.slice/app-embeddings.service", Unit("app-embeddings.service", False)),
        ("/system.slice/jupyterhub.service", Unit("jupyterhub.service", False)),
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
def test_the_unit_on_a_path(path: str, expected: Unit | None) -> None:
    """A service with its name as systemctl takes it; not what only carries logins, desktops, jobs and containers."""
    assert cgroups.parse_unit(path) == expected


def test_a_notebook_below_a_unit_is_not_its_service() -> None:
    """People start and leave it by hand, and the unit knows nothing of it."""
    names = ("jupyterhub", "jupyter", "jupyter-ada", "code-server@ada", "code-tunnel")
    for unit in (*(f"{name}.service" for name in names), ""):
        assert not is_service(unit)
        assert not Surroundings(unit=unit).service
    assert Surroundings(unit="ollama.service").service


def test_whose_login_a_path_lies_in() -> None:
    """The owner of a rootless container, whose processes have uids of nobody."""
    assert cgroups.parse_user(f"{USER}/user.slice/libpod-{ID}.scope") == 1000
    assert cgroups.parse_user(f"/machine.slice/libpod-{ID}.scope") is None


# -- with the environment ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cgroup", "environ", "expected"),
    [
        ("/slurm/uid_7/job_4711/step_0/task_0", {}, "4711.0"),
        ("/slurm/uid_7/job_4711/step_0/task_0", {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3"}, "4711.0"),
        (
            "/slurm/uid_7/job_4714/step_0",
            {"SLURM_JOB_ID": "4714", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"},
            "4711_3.0",
        ),
        ("/slurm/uid_7/job_9/step_0", {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"}, "9.0"),
        ("/slurm/uid_7/job_4711/step_4294967290", {}, "4711.interactive"),
        ("/", {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0"}, "4711.batch"),
        ("/", {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0"}, "4711"),
        ("/", {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "x", "SLURM_PROCID": "0"}, "4711"),
        ("/", {"SLURM_JOB_ID": "47\n11", "SLURM_PROCID": "0"}, ""),
        ("/user.slice/user-7.slice/session-1.scope", {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "gpu01"}, ""),
    ],
)
def test_the_batch_job(cgroup: str, environ: dict[str, str], expected: str) -> None:
    """The kernel's word before the environment's, and no job for a shell that only asked for one."""
    assert context.find_slurm_job(facts(cgroup, **environ)) == expected


def test_an_environment_that_was_written_over_is_replaced_by_an_ancestors() -> None:
    """A rank that shows a title has its launcher's array task."""
    above = (
        RelatedProcess(pid=3),
        RelatedProcess(pid=2, environ={"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}),
    )
    unread = Facts(pid=7, environ=Unread.OVERWRITTEN, ancestors=above)
    assert context.find_slurm_job(unread) == "5.0"
    assert context.find_slurm_job(Facts(pid=7)) == ""


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, POD),
        ({"HOSTNAME": "gpu01"}, POD),
        ({"HOSTNAME": "train-0", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "train-0"),
        ({"POD_NAME": "train-0", "POD_NAMESPACE": "vision"}, "vision/train-0"),
        ({"POD_NAME": "a\x1b[2Jb"}, "a\ufffd[2Jb"),
    ],
)
def test_the_pod(tmp_path: Path, environ: dict[str, str], expected: str) -> None:
    """Its name where the environment has it, else its uid."""
    assert context.find_pod(facts(f"/kubepods/pod{POD}/{ID}", **environ), proc=tmp_path, names=NOBODY) == expected


def test_no_pod_without_a_cluster(tmp_path: Path) -> None:
    """POD_NAME is anybody's to set."""
    assert context.find_pod(facts("/user.slice", POD_NAME="x", HOSTNAME="y"), proc=tmp_path, names=NOBODY) == ""
    inside = facts("/", HOSTNAME="train-0", KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert context.find_pod(inside, proc=tmp_path, names=NOBODY) == "train-0"


def test_the_unit() -> None:
    """With whether it is one of the user's own manager."""
    assert context.find_unit(facts(f"{USER}/app.slice/embeddings.service")) == ("embeddings.service", True)
    assert context.find_unit(facts("/user.slice")) == ("", False)


# -- from inside, and without a cgroup -----------------------------------------------------------------------------


def mounted(proc: Path, *lines: str) -> None:
    """Write what is mounted for process 7: path, place."""
    (proc / "7").mkdir(exist_ok=True)
    rows = (f"{600 + number} 599 0:50 {line} rw,relatime - ext4 /dev/sda1 rw\n" for number, line in enumerate(lines))
    (proc / "7/mountinfo").write_text("".join(rows) + "cut sh")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((f"/var/lib/docker/containers/{ID}/hostname /etc/hostname",), Container(runtime="docker", id=ID[:12])),
        (
            (f"/containers/overlay-containers/{ID}/userdata/resolv.conf /etc/resolv.conf",),
            Container(runtime="podman", id=ID[:12]),
        ),
        ((f"/var/lib/docker/containers/{ID}/hostname /srv/shown",), None),
        (("/data/user-7/pyxis\\0404711.0/.lock /.lock",), Container(runtime="enroot", name="pyxis 4711.0")),
        (("/ /",), None),
    ],
)
def test_a_container_that_hides_its_cgroup_is_seen_by_its_mounts(
    tmp_path: Path, lines: tuple[str, ...], expected: Container | None
) -> None:
    """Lines as moby's, Podman's and Enroot's (src/runtime.sh) containers show them in proc_pid_mountinfo(5)."""
    mounted(tmp_path, *lines)
    assert context.find_container(facts("/"), proc=tmp_path, names=NOBODY) == expected
    outside = facts("/user.slice/user-1000.slice/session-3.scope")
    assert context.find_container(outside, proc=tmp_path, names=NOBODY) is None


def test_a_pod_that_hides_its_cgroup_is_seen_by_its_mounts(tmp_path: Path) -> None:
    """The kubelet mounts each container's hosts from the pod's folder."""
    mounted(tmp_path, f"/var/lib/kubelet/pods/{POD}/etc-hosts /etc/hosts")
    assert context.find_pod(facts("/"), proc=tmp_path, names=NOBODY) == POD


def test_the_runtime_says_what_it_is_where_nothing_else_does(tmp_path: Path) -> None:
    """`container=podman`, by systemd's container interface; nobody's own variable of that name."""
    assert context.find_container(facts(container="podman"), proc=tmp_path, names=NOBODY) == Container(runtime="podman")
    assert context.find_container(facts(container="mine"), proc=tmp_path, names=NOBODY) is None
    assert context.find_container(facts("/user.slice", container="podman"), proc=tmp_path, names=NOBODY) is None


def test_apptainer_is_its_variable_and_its_folder(tmp_path: Path) -> None:
    """A batch job that was submitted from inside one has the variable alone."""
    job = facts(
        "/slurm/uid_7/job_4711/step_0", APPTAINER_CONTAINER="/images/torch 2.sif", SINGULARITY_CONTAINER="/x.sif"
    )
    assert context.find_container(job, proc=tmp_path, names=NOBODY) is None
    (tmp_path / "7/root/.singularity.d").mkdir(parents=True)
    assert context.find_container(job, proc=tmp_path, names=NOBODY) == Container(runtime="apptainer", name="torch 2")
    older = facts(SINGULARITY_NAME="torch.sif")
    assert context.find_container(older, proc=tmp_path, names=NOBODY) == Container(runtime="singularity", name="torch")


# -- who logged in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("3999999999", ("3999999999", 3_999_999_999)),
        *((written, ("", None)) for written in ("0", "4294967295", "-1", "", "x", None)),
    ],
)
def test_who_is_behind_root(tmp_path: Path, written: str | None, expected: tuple[str, int | None]) -> None:
    """The kernel keeps who logged in through sudo, as proc_pid_loginuid(5) shows it; an unknown uid is its digits."""
    if written is not None:
        (tmp_path / "7").mkdir()
        (tmp_path / "7/loginuid").write_text(written)
    assert context.find_login(7, 0, proc=tmp_path) == expected


# -- any text, and the real thing ----------------------------------------------------------------------------------

PARTS = st.one_of(
    st.sampled_from(
        [
            *("docker", "lxc", "slurm", "kubepods", "..", "", ID, f"docker-{ID}.scope", f"libpod-{ID}.scope", "job_1"),
            *(f"pod{POD}", f"kubepods-pod{BELOW}.slice", "user@1000.service", "a.service", "machine-\\x1b\\xff.scope"),
            *("lxc.payload.\x1b[2J", "slurmstepd.scope", "step_batch", "_x\u202e.service", "systemd-nspawn@.service"),
        ]
    ),
    st.text(max_size=20),
)


@given(st.lists(PARTS, max_size=6).map("/".join), st.dictionaries(st.text(max_size=9), st.text(max_size=9)))
def test_no_cgroup_and_no_environment_breaks_anything(path: str, environ: dict[str, str]) -> None:
    """Users name their own cgroups and containers as they like."""
    given_facts = Facts(pid=7, uid=1000, cgroup=path, environ=environ)
    proc = Path("/nonexistent")
    held = context.find_container(given_facts, proc=proc, names=NOBODY)
    shown = [
        context.find_pod(given_facts, proc=proc, names=NOBODY),
        context.find_slurm_job(given_facts),
        context.find_unit(given_facts)[0],
    ]
    shown += [held.runtime, held.id, held.name] if held else []
    assert shown == [clean(text) for text in shown]


@pytest.fixture
def made() -> Path:
    """A new cgroup of a Docker container's name, in the first hierarchy in which we may make one."""
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/devices", "/sys/fs/cgroup/memory"):
        folder = Path(root) / f"gpuwatch-test-{uuid.uuid4().hex}"
        if not (Path(root) / "cgroup.procs").exists():
            continue
        try:
            folder.mkdir()
        except OSError:
            continue
        return folder
    pytest.skip("no cgroup may be made here: it needs root and a cgroup hierarchy that can be written")


def test_a_real_cgroup(made: Path) -> None:
    """A process that the kernel has put there is read as in that container."""
    inner = made / f"docker-{ID}.scope"
    process = subprocess.Popen(["sleep", "600"])
    try:
        inner.mkdir()
        (inner / "cgroup.procs").write_text(str(process.pid))
        found = reader.read(process.pid)
        if cgroups.parse_container(found.cgroup) is None:
            pytest.skip(f"another hierarchy tells more here: {found.cgroup}")
        assert found.cgroup.endswith(f"/{made.name}/docker-{ID}.scope")
        held = context.find_container(found, proc=Path("/proc"), names=NOBODY)
        assert held == Container(runtime="docker", id=ID[:12])
        assert context.find_unit(found) == ("", False)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if inner.exists():
            inner.rmdir()
        made.rmdir()
