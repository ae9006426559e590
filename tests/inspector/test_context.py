"""Context of a process: batch job, pod, unit, container, login; whatever a process wrote, nothing raises."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.base.text import clean
from gpuwatch.declared.facts import Facts, RelatedProcess, Unread
from gpuwatch.inspector import cgroups, context, runs
from gpuwatch.inspector.cgroups import ContainerId
from gpuwatch.inspector.containers import ContainerName, ContainerNames
from gpuwatch.model.snapshot import ProcessContext
from tests.declared.tables import Case, cases
from tests.inspector.test_cgroups import BELOW, ID, POD

NOBODY = ContainerNames(Path("/nonexistent"))


PYTHON = "/opt/conda/bin/python"


@cases("inspector/contexts")
def test_what_a_process_runs_in(tmp_path: Path, case: Case) -> None:
    """`mounts` are paths with their places in proc_pid_mountinfo(5); a container has its runtime, id and name.

    NODE in an environment is the name of this machine.
    """
    (tmp_path / "7" / case.get("folder", "")).mkdir(parents=True)
    mounts = (f"600 599 0:50 {line} rw,relatime - ext4 /dev/sda1 rw\n" for line in case.get("mounts", ()))
    (tmp_path / "7/mountinfo").write_text("".join(mounts) + "cut sh")
    if "loginuid" in case:
        (tmp_path / "7/loginuid").write_text(case["loginuid"])
    environ = {key: os.uname().nodename if value == "NODE" else value for key, value in case.get("environ", {}).items()}
    process = Facts(pid=7, uid=1000, cgroup=case["cgroup"], environ=environ)
    ((name, expected),) = case["expect"].items()
    if name == "container":
        held = context.find_container(process, proc=tmp_path, names=NOBODY)
        assert (held and [held.runtime, held.id, held.name]) == expected
    elif name == "pod":
        assert context.find_pod(process, proc=tmp_path, names=NOBODY) == expected
    elif name == "unit":
        assert context.find_unit(process) == tuple(expected)
    elif name == "login":
        assert context.find_login(7, 0, proc=tmp_path) == tuple(expected)
    elif name == "slurm":
        assert context.find_slurm_job(process) == expected
    else:
        assert context.find_batch_job(process) == expected
        assert ProcessContext(batch=expected, unit="x.service").where == (expected or "x")
        assert cgroups.parse_unit(case["cgroup"]) is None


def test_an_environment_that_was_written_over_is_replaced_by_an_ancestors() -> None:
    above = (
        RelatedProcess(pid=3),
        RelatedProcess(pid=2, environ={"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}),
    )
    unread = Facts(pid=7, environ=Unread.OVERWRITTEN, ancestors=above)
    assert context.find_slurm_job(unread) == "5.0"
    assert context.find_slurm_job(Facts(pid=7)) == ""


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
