"""Whom the end of a whole run takes along, and above all whom not: what only shares its shell, agent or daemon."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import msgspec
import pytest

from gpuwatch.base import procfs
from gpuwatch.kill.pinned import PinnedProcess
from gpuwatch.kill.run import PinnedRun, find_run
from tests.support import builders
from tests.support.kill import POLICY, a_pinner, a_target
from tests.support.process import Family, Member, family

pytestmark = pytest.mark.slow

ME = os.getuid()
PYTHON = "/opt/conda/bin/python"
BOTH = ("a", "b")


def taken(tree: Family, folder: Path, target: str, on_gpu: Collection[str] = BOTH) -> set[str]:
    """Return the names of those that are ended with the run of one; `on_gpu` are listed, and hold device files."""
    held_by = {tree.pids[name] for name in on_gpu}
    rows, held = [], []
    for name in on_gpu:
        pid = tree.pids[name]
        start = procfs.read_stat(pid).start_ticks
        rows.append(builders.process(pid, "you", start=start, uid=ME, context=tree.around(name)))
        held.append(builders.holding(pid, 1.0, start=start))
    snapshot = builders.snapshot([builders.gpu(0, holdings=held)], rows, viewer=ME)
    pinner = a_pinner(folder, msgspec.structs.replace(POLICY, uid=ME, euid=ME, allow_root=True))
    pid = tree.pids[target]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(procfs, "has_gpu_open", lambda pid, *_: pid in held_by)
        pinned = pinner.pin(a_target(pid, procfs.read_stat(pid).start_ticks, ME))
        assert isinstance(pinned, PinnedProcess), pinned.sentence
        run = find_run(pinner, pinned, snapshot)
    assert isinstance(run, PinnedRun), run.sentence
    names = {pid: name for name, pid in tree.pids.items()}
    found = {names[member.pid] for member in run.members}
    for member in run.members:
        member.pinned.close()
    return found


def above_two(argv: tuple[str, ...], comm: str = "") -> Member:
    """Return what has started two trainings that have nothing else in common, each in a session of its own."""
    two = tuple(Member(name, (PYTHON, f"{name}.py"), {"A": name}, leads=True) for name in BOTH)
    return Member("agent", argv, comm=comm, leads=True, children=two)


@pytest.mark.parametrize(
    ("argv", "comm"),
    [
        (("/usr/bin/perl", "-w", "/usr/bin/parallel", "-j2", "python", "{}"), "perl"),
        ((PYTHON, "/opt/conda/bin/ray", "start", "--head", "--block"), "ray"),
        ((PYTHON, "/opt/conda/bin/clearml-agent", "daemon", "--queue", "default"), "clearml-agent"),
        (("/home/ada/.zed_server/zed-remote-server-stable-0.190.6", "run"), "zed-remote-serv"),
        (("vi", "train.py"), "vi"),
        ((PYTHON, "/opt/conda/bin/marimo", "edit"), "marimo"),
        ((PYTHON, "/opt/conda/bin/batchspawner-singleuser", "jupyterhub-singleuser", "--ip=::"), "batchspawner-si"),
        (("Apptainer runtime parent",), "starter"),
        ((PYTHON, "/opt/conda/bin/xonsh", "--no-rc", "sweep.xsh"), "xonsh"),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else value,
)
def test_what_starts_runs_of_others_is_in_none(argv: tuple[str, ...], comm: str, tmp_path: Path) -> None:
    with family(Member("shell", ("bash",), children=(above_two(argv, comm),))) as tree:
        assert tree.run_of("a").key == tree.identity("a")
        assert taken(tree, tmp_path, "a") == {"a"}


def test_a_launcher_whose_ranks_lead_sessions_is_the_head(tmp_path: Path) -> None:
    """Of ours by its name, of others by the ranks that they give."""
    for argv in ((PYTHON, "/opt/bin/torchrun", "train.py"), (PYTHON, "launch.py")):
        ranks = tuple(
            Member(name, (PYTHON, "train.py"), {"RANK": str(number), "WORLD_SIZE": "2"}, leads=True)
            for number, name in enumerate(BOTH)
        )
        with family(Member("launcher", argv, {"A": "1"}, children=ranks)) as tree:
            assert taken(tree, tmp_path, "b") == {"launcher", "a", "b"}


PMIX = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "gpu1",
    "PMIX_NAMESPACE": "slurm.pmix.4711.0",
    "PMIX_RANK": "0",
}


def test_what_the_shell_of_an_srun_with_one_task_has_started_is_no_run(tmp_path: Path) -> None:
    """Where MpiDefault is pmix all of it has PMIx's variables: two trainings, and the kernel of a notebook."""
    file = "/home/ada/.local/share/jupyter/runtime/kernel-8f2a9c11.json"
    kernel = Member("kernel", (PYTHON, "-m", "ipykernel_launcher", "-f", file), PMIX, leads=True)
    jupyter = Member("jupyter", (PYTHON, "/opt/conda/bin/jupyter-lab"), PMIX, (kernel,), comm="jupyter-lab")
    two = tuple(Member(name, (PYTHON, f"{name}.py"), PMIX) for name in BOTH)
    with family(Member("shell", ("bash",), PMIX, (*two, jupyter), leads=True)) as tree:
        assert taken(tree, tmp_path, "a", (*BOTH, "kernel")) == {"a"}
        assert taken(tree, tmp_path, "kernel", (*BOTH, "kernel")) == {"kernel"}


def test_the_tasks_of_a_larger_step_with_pmix_are_one_run(tmp_path: Path) -> None:
    """And so are the ranks of an mpirun in the shell of a step of one task, whose own size it hands on."""
    for size in ({"SLURM_STEP_NUM_TASKS": "2"}, {"OMPI_COMM_WORLD_SIZE": "2"}):
        ranks = [
            Member(name, (PYTHON, "t.py"), {**PMIX, **size, "SLURM_PROCID": rank, "OMPI_COMM_WORLD_RANK": rank})
            for name, rank in zip(BOTH, "01", strict=True)
        ]
        with family(*ranks) as tree:
            assert taken(tree, tmp_path, "a") == {"a", "b"}


def test_variables_that_somebody_exported_make_no_run_of_all_that_the_shell_starts(tmp_path: Path) -> None:
    """A run over two machines, started by hand, and an evaluation beside it: both say that they are rank 0."""
    hand = {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    loader = Member("loader", forks=True, comm="pt_data_worker")
    train = Member("a", (PYTHON, "train.py"), hand)
    other = Member("b", (PYTHON, "-m", "evaluate"), hand, children=(loader,))
    second = Member("c", (PYTHON, "train.py"), {**hand, "RANK": "1", "LOCAL_RANK": "1"})
    with family(Member("shell", ("bash",), hand, (train, other), leads=True), second) as tree:
        everybody = (*BOTH, "loader", "c")
        assert taken(tree, tmp_path, "a", everybody) == {"a", "c"}
        assert taken(tree, tmp_path, "loader", everybody) == {"b", "loader", "c"}
        assert taken(tree, tmp_path, "c", everybody) == {"c"}, "which of the two is its own nobody can tell"
        assert taken(tree, tmp_path, "c", ("a", "c")) == {"a", "c"}


def test_of_what_rays_daemon_has_started_only_what_is_surely_of_the_program_is_taken(tmp_path: Path) -> None:
    """A worker's title stands over its RAY_JOB_ID. Its own forks and what it starts are below it."""

    def worker(name: str, job: str) -> Member:
        loader = Member(f"{name}-tool", (PYTHON, "tool.py"), {"RAY_JOB_ID": job})
        return Member(name, (PYTHON, "default_worker.py"), {"RAY_JOB_ID": job}, (loader,), title=f"ray::{name}.train()")

    raylet = Member("raylet", ("/opt/ray/raylet", "--x"), children=(worker("a", "01"), worker("b", "02")))
    start = Member("start", (PYTHON, "/opt/bin/ray", "start", "--head", "--block"), {"A": "1"}, (raylet,))
    for top in (raylet, start):
        with family(Member("shell", ("bash",), children=(top,))) as tree:
            assert tree.run_of("a").key == tree.run_of("a-tool").key == tree.identity("a")
            assert taken(tree, tmp_path, "a") == {"a", "a-tool"}
            assert taken(tree, tmp_path, "a-tool", (*BOTH, "a-tool")) == {"a", "a-tool"}


@pytest.mark.parametrize(
    ("ended", "target", "left"),
    [
        (("torchrun", "r0", "r1"), "w00", ("w00", "w01", "w10", "w11")),
        (("torchrun", "r0"), "r1", ("w00", "w01", "r1", "w10", "w11")),
    ],
)
def test_what_dead_ranks_left_behind_is_of_the_run(
    ended: Collection[str], target: str, left: Collection[str], tmp_path: Path
) -> None:
    """The data workers of a rank have its variables: they are no second rank of that number."""
    names = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "4711"}

    def rank(number: str) -> Member:
        workers = tuple(Member(f"w{number}{one}", forks=True, comm="pt_data_worker") for one in "01")
        its = {**names, "RANK": number, "LOCAL_RANK": number}
        return Member(f"r{number}", (PYTHON, "train.py"), its, workers, leads=True)

    launcher = Member("torchrun", (PYTHON, "/opt/bin/torchrun", "train.py"), {"A": "1"}, (rank("0"), rank("1")))
    with family(launcher) as tree:
        for name in ended:
            tree.end(name)
        assert taken(tree, tmp_path, target, left) == {*left}


def test_a_logger_in_a_session_of_its_own_makes_no_agent_of_the_training(tmp_path: Path) -> None:
    """The training itself holds no GPU; what does is in its own session, and the logger (wandb) is not."""
    logger = Member("logger", ("/opt/conda/bin/wandb-core",), leads=True)
    workers = tuple(Member(name, (PYTHON, "worker.py", "--gpu", name), {"A": "1"}) for name in BOTH)
    with family(Member("main", (PYTHON, "train.py"), {"A": "1"}, (logger, *workers))) as tree:
        assert taken(tree, tmp_path, "a") == {"main", "a", "b", "logger"}
