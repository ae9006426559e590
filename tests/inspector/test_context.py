"""Context of a process: batch job, pod, unit, container, login; whatever a process wrote, nothing raises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.declared.facts import Facts, RelatedProcess, Unread
from gpuwatch.inspector import cgroups, context, runs
from gpuwatch.inspector.cgroups import ContainerId
from gpuwatch.inspector.containers import ContainerName, ContainerNames, Roots
from gpuwatch.model import Container, Surroundings
from gpuwatch.text import clean
from tests.declared.tables import Case, cases
from tests.inspector.test_cgroups import BELOW, ID, POD, USER

NOBODY = ContainerNames(
    Roots(docker=Path("/nonexistent"), docker_socket=Path("/nonexistent"), storage=Path("/nonexistent"))
)


PYTHON = "/opt/conda/bin/python"


def facts(cgroup: str = "/", **environ: str) -> Facts:
    """A process of this cgroup and environment."""
    return Facts(pid=7, uid=1000, cgroup=cgroup, environ=environ)


@cases("inspector/jobs")
def test_the_batch_job(case: Case) -> None:
    """A job of Slurm's, which its cgroup names with its step, or one of another scheduler's."""
    found = facts(case["cgroup"], **case["environ"])
    if "slurm" in case:
        assert context.find_slurm_job(found) == case["slurm"]
    else:
        assert context.find_batch_job(found) == case["batch"]
        assert Surroundings(batch=case["batch"], unit="x.service").where == (case["batch"] or "x")
        assert cgroups.parse_unit(case["cgroup"]) is None


def test_an_environment_that_was_written_over_is_replaced_by_an_ancestors() -> None:
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
    assert context.find_pod(facts(f"/kubepods/pod{POD}/{ID}", **environ), proc=tmp_path, names=NOBODY) == expected


def test_a_pod_and_a_unit_are_told_by_the_cgroup_or_from_inside(tmp_path: Path) -> None:
    assert context.find_pod(facts("/user.slice", POD_NAME="x", HOSTNAME="y"), proc=tmp_path, names=NOBODY) == ""
    inside = facts("/", HOSTNAME="train-0", KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert context.find_pod(inside, proc=tmp_path, names=NOBODY) == "train-0"
    assert context.find_unit(facts(f"{USER}/app.slice/embeddings.service")) == ("embeddings.service", True)
    assert context.find_unit(facts("/user.slice")) == ("", False)


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


def test_a_process_that_has_gone_is_said_to_have(tmp_path: Path) -> None:
    found = context.read_context(Facts(pid=99, environ={"SSH_CONNECTION": "10.0.0.7 1 2 3"}), proc=tmp_path)
    assert (found.run, found.ssh, found.words) == (None, "10.0.0.7", "its state: it has ended")


def test_a_fault_in_one_part_costs_no_other() -> None:

    class Broken(ContainerNames):
        def find(self, container: ContainerId, pid: int, uid: int | None, *, proc: Path) -> ContainerName:
            raise TypeError("odd\x1b[31m")

    cgroup = "/system.slice/docker-" + "3f" * 32 + ".scope"
    facts = Facts(pid=os.getpid(), uid=os.getuid(), environ={"SSH_CLIENT": "::1 1 2"}, cgroup=cgroup)
    found = context.read_context(facts, names=Broken())
    assert found.container is None
    assert (found.ssh, found.run is None) == ("::1", False)
    assert found.words.startswith("its container: a fault in gpuwatch: TypeError: odd")
    assert found.words == clean(found.words)


ODD = st.text(st.characters(codec=None), max_size=20)
NAMES = st.sampled_from(
    [
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"),
        *("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "TF_CONFIG", "RAY_JOB_ID", "RAY_RAYLET_PID", "TMUX", "TMUX_PANE"),
        *("STY", "WINDOW", "ZELLIJ_SESSION_NAME", "SSH_CONNECTION", "JPY_PARENT_PID", "JPY_SESSION_NAME"),
    ]
)
VALUES = st.one_of(
    ODD,
    st.integers(-3, 12).map(str),
    st.sampled_from(["/t,1,0", "1.x", "127.0.0.1", "[1]", '{"cluster": {"a": 3}, "task": []}', "9" * 5000, "²", "٣"]),
)
ENVIRONS = st.one_of(st.dictionaries(NAMES, VALUES, max_size=8), st.sampled_from(Unread))
WORDS = st.one_of(
    ODD,
    st.sampled_from(
        [
            *("python", "bash", "torchrun", "-m", "-c", "torch.distributed.run", "mpirun", "raylet", "tmux"),
            "train.py",
            *("from multiprocessing.spawn import spawn_main; spawn_main(parent_pid=1)", "ray::A", "jupyter-lab", "-f"),
            *("ipykernel_launcher", "kernel-3f9a1c22-aa.json", "VLLM::EngineCore", "busybox", "--"),
        ]
    ),
)
ARGV = st.lists(WORDS, max_size=5).map(tuple)
KIN = st.builds(RelatedProcess, pid=st.integers(2, 9), argv=ARGV, environ=ENVIRONS, start=st.integers(0, 9), comm=ODD)


@settings(max_examples=15)
@given(argv=ARGV, environ=ENVIRONS, above=st.lists(KIN, max_size=5), cgroup=st.lists(PARTS, max_size=6).map("/".join))
def test_nothing_that_a_process_writes_raises(
    argv: tuple[str, ...], environ: dict[str, str] | Unread, above: list[RelatedProcess], cgroup: str
) -> None:
    facts = Facts(pid=os.getpid(), uid=1, argv=argv, environ=environ, ancestors=tuple(above), cgroup=cgroup)
    found = context.read_context(facts, names=NOBODY)
    assert "fault" not in found.words
    assert found.run is not None
    texts = [found.ssh, found.run.name, found.run.key, found.run.launcher, found.words, found.pod, found.batch_job]
    texts += [found.unit, found.where]
    if found.pane is not None:
        texts += [found.pane.session, found.pane.window]
    if found.notebook is not None:
        texts += [found.notebook.path, found.notebook.kernel]
    assert all(text == clean(text) for text in texts)
    assert len(found.run.name) <= runs.LONGEST_NAME
    job = found.run
    assert job.rank is None or job.world is None or 0 <= job.rank < job.world
