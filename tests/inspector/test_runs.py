"""Which run a process belongs to: real trees of launchers, ranks, workers and shells, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwatch.inspector.runs import format_run_name
from tests.support.families import Family, Member, family
from tests.support.gpuholder import ME, ROOT

pytestmark = pytest.mark.slow  # trees of real processes

SHELL = ("bash",)
TORCHRUN = ("/opt/conda/bin/python", "/opt/conda/bin/torchrun", "--nproc-per-node", "8", "train.py", "--lr", "1")
PYTHON = "/opt/conda/bin/python"


def torch(rank: int, world: int = 8) -> dict[str, str]:
    """What torchrun gives to a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        "GROUP_RANK": "0",
    }


def rank(number: int, *children: Member) -> Member:
    """One rank of torchrun, which leads a session of its own as torchrun's do."""
    return Member(f"r{number}", (PYTHON, "-u", "train.py", "--lr", "1"), torch(number), children, leads=True)


@pytest.mark.parametrize("uid", [None, pytest.param(ME, marks=pytest.mark.skipif(not ROOT, reason="needs root"))])
def test_the_ranks_of_a_launcher_are_one_run(uid: int | None) -> None:
    loader = Member("loader", forks=True, comm="pt_data_worker")
    ranks = [rank(0, loader), rank(1), rank(7)]
    shell = Member("shell", ("-bash",), children=(Member("torchrun", TORCHRUN, children=tuple(ranks)),))
    with family(shell, uid=uid) as tree:
        runs = [tree.run_of(f"r{number}") for number in (0, 1, 7)]
        worker = tree.run_of("loader")
        head = tree.run_of("torchrun")
        key = tree.identity("torchrun")
    assert {run.key for run in (*runs, worker, head)} == {key}
    assert [(run.rank, run.local_rank, run.world) for run in runs] == [(number, number, 8) for number in (0, 1, 7)]
    assert {(run.name, run.launcher, run.worker_of, run.orphaned) for run in runs} == {
        ("train.py", "torchrun", None, False)
    }
    assert {run.head for run in runs} == {int(key.partition(":")[0])}
    assert (worker.rank, worker.worker_of, worker.name) == (None, tree.pids["r0"], "train.py")
    assert (head.rank, head.worker_of, head.name) == (None, None, "train.py")


def test_ranks_whose_launcher_was_killed_are_still_one_run_and_orphans() -> None:
    ranks = (rank(0, Member("loader", forks=True)), rank(1))
    shell = Member("shell", SHELL, children=(Member("torchrun", TORCHRUN, children=ranks),))
    with family(shell) as tree:
        tree.end("torchrun")
        left = [tree.run_of(name) for name in ("r0", "r1", "loader")]
    assert len({run.key for run in left}) == 1
    assert all(run.orphaned and run.head == 0 and run.launcher == "torchrun" for run in left)
    assert [run.rank for run in left] == [0, 1, None]
    assert left[2].worker_of == tree.pids["r0"]


def test_a_script_of_the_shell_starts_runs_and_is_none() -> None:
    one = Member("one", (PYTHON, "train.py", "--lr", "1"))
    two = Member("two", ("timeout", "9h", "python", "b.py"), children=(Member("deep", (PYTHON, "b.py")),))
    script = Member("script", ("bash", "-e", "sweep.sh"), children=(one, two))
    with family(
        Member("tmux", ("tmux", "new", "-s", "x"), children=(Member("sh", SHELL, children=(script,)),))
    ) as tree:
        first, second = tree.run_of("one"), tree.run_of("deep")
        assert (first.key, second.key) == (tree.identity("one"), tree.identity("deep"))
    assert (first.name, second.name, first.launcher, first.rank) == ("train.py", "b.py", "", None)


OMPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
LAUNCHERS: list[tuple[tuple[str, ...], dict[str, str], str, tuple[int | None, ...]]] = [
    ((PYTHON, "-m", "torch.distributed.run", "t.py"), torch(3), "torchrun", (3, 8)),
    ((PYTHON, "/opt/bin/accelerate", "launch", "t.py"), torch(1), "accelerate", (1, 8)),
    ((PYTHON, "-m", "deepspeed.launcher.launch", "t.py"), torch(1), "deepspeed", (1, 8)),
    (("/usr/bin/mpirun", "-np", "4", "python", "t.py"), {"RANK": "0", "WORLD_SIZE": "2", **OMPI}, "mpirun", (3, 4)),
    (("/usr/bin/hydra_pmi_proxy",), {"PMI_RANK": "1", "PMI_SIZE": "2"}, "mpirun", (1, 2)),
    (("/usr/bin/horovodrun", "python", "t.py"), {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, "horovodrun", (0, 2)),
    (("/usr/bin/mpirun", "./t.py"), {**OMPI, "OMPI_COMM_WORLD_RANK": "9"}, "mpirun", (None, None)),
    (("/usr/bin/mpirun", "./t.py"), {"RANK": "abc", "WORLD_SIZE": "-4"}, "mpirun", (None, None)),
]


def test_launchers() -> None:
    members = [
        Member(f"launcher{place}", argv, children=(Member(f"rank{place}", (PYTHON, "t.py"), environ),))
        for place, (argv, environ, _, _) in enumerate(LAUNCHERS)
    ]
    with family(*members) as tree:
        for place, (argv, _, label, expected) in enumerate(LAUNCHERS):
            run = tree.run_of(f"rank{place}")
            assert run.key == tree.identity(f"launcher{place}"), argv
            assert (run.launcher, run.name, (run.rank, run.world)) == (label, "t.py", expected), argv


def test_tasks_of_srun_have_no_ancestor_in_common() -> None:
    """slurmstepd is root's: the step joins them. One task, or the batch script, is a run of its own."""
    step = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    tasks = [Member(f"t{number}", (PYTHON, "t.py"), {**step, "SLURM_PROCID": str(number)}) for number in (0, 1)]
    batch = Member("batch", (PYTHON, "t.py"), {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"})
    pty = Member("pty", (PYTHON, "t.py"), {**step, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"})
    with family(*tasks, batch, pty) as tree:
        first, second, alone, shell = (tree.run_of(name) for name in ("t0", "t1", "batch", "pty"))
        assert alone.key == tree.identity("batch")
    assert first.key == second.key
    assert (first.launcher, first.rank, second.rank, second.world, first.head) == ("srun", 0, 1, 2, 0)
    assert not first.orphaned
    assert (alone.launcher, alone.rank, shell.launcher, shell.rank) == ("", None, "", None)


@pytest.mark.parametrize(
    "names", [{"PMIX_NAMESPACE": "slurm.pmix.4711.0", "PMIX_RANK": "0"}, {"PMI_RANK": "0", "PMI_SIZE": "1"}]
)
def test_what_a_script_left_in_a_step_of_one_task_is_no_rank_without_its_launcher(names: dict[str, str]) -> None:
    """`./start.sh` with an `&` in the shell of `srun --pty bash`: only the script has ended."""
    step = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", **names}
    script = Member("script", ("bash", "start.sh"), step, (Member("t", (PYTHON, "t.py"), step),), leads=True)
    with family(script) as tree:
        tree.end("script")
        run = tree.run_of("t")
        assert (run.key, run.rank, run.orphaned) == (tree.identity("t"), None, False)


def test_tf_config() -> None:
    cluster = {"worker": ["a:1", "b:1"], "chief": ["c:1"], "ps": ["d:1"]}

    def task(kind: str, index: object) -> dict[str, str]:
        return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}

    places = {"chief": ("chief", 0), "w1": ("worker", 1), "ps": ("ps", 0), "bad": ("worker", 7)}
    with family(*(Member(name, (PYTHON, "t.py"), task(*place)) for name, place in places.items())) as tree:
        runs = {name: tree.run_of(name) for name in places}
    assert [runs[name].rank for name in places] == [0, 2, None, None]
    assert {runs[name].key for name in ("chief", "w1", "ps")} == {runs["w1"].key}
    assert (runs["w1"].world, runs["w1"].launcher) == (3, "TF_CONFIG")
    assert runs["bad"].launcher == ""


def test_ranks_started_by_hand_are_one_run_and_no_orphans() -> None:
    """`for rank in …; do RANK=$rank nohup python train.py & done`, and the shell is gone."""
    hand = {name: value for name, value in torch(0, 2).items() if "ELASTIC" not in name and name != "GROUP_RANK"}
    ranks = tuple(Member(f"r{number}", (PYTHON, "t.py"), {**hand, "RANK": str(number)}) for number in (0, 1))
    with family(Member("shell", SHELL, children=ranks, leads=True)) as tree:
        tree.end("shell")
        first, second = tree.run_of("r0"), tree.run_of("r1")
    assert first.key == second.key
    assert (first.rank, second.rank, first.launcher, first.orphaned) == (0, 1, "", False)


def test_lightning_starts_the_others_itself() -> None:
    argv = (PYTHON, "fit.py", "--devices", "2")
    other = Member("other", argv, {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"})
    with family(Member("main", argv, {"A": "1"}, children=(other,))) as tree:
        main, second = tree.run_of("main"), tree.run_of("other")
    assert main.key == second.key
    assert [(run.rank, run.world, run.launcher, run.worker_of) for run in (main, second)] == [
        (0, 2, "lightning", None),
        (1, 2, "lightning", None),
    ]


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("serve --password hunter2/abc --data /srv/data",), "serve --password *** --data /srv/data"),
        (
            ("/usr/bin/api --workers 4 --xxxxxxxxxxxxxx x --api-key hunter2",),
            "api --workers 4 --xxxxxxxxxxxxxx x --ap…",
        ),
        (("gunicorn: master [app:main]",), "gunicorn: master [app:main]"),
        (("gunicorn: master [token=hunter2]",), "gunicorn: master [token=***"),
        (("ray::Trainer[token=hunter2.train()",), "ray::Trainer[token=***)"),
        ((PYTHON, "/home/ada/password=hunter2/train.py"), "password=***"),
        ((PYTHON, "-m", "password=hunter2"), "password=***"),
        (("/opt/my tools/password=hunter2/serve", "run"), "password=*** run"),
        (("torchrun", "/home/ada/password=hunter2/train.py"), "password=***"),
    ],
)
def test_the_name_of_a_run_has_no_secret(argv: tuple[str, ...], name: str) -> None:
    assert format_run_name(argv) == name


def test_rays_workers_belong_to_the_program_that_asked_for_them() -> None:
    argv = ("/opt/ray/raylet", "--x")
    worker = Member("worker", (PYTHON, "default_worker.py"), {"RAY_JOB_ID": "01000000"}, title="ray::Trainer.train()")
    raylet = Member("raylet", argv, children=(worker,))
    two = [
        Member(f"w{number}", ("ray::IDLE",), {"RAY_JOB_ID": f"0{run}000000", "RAY_RAYLET_PID": "7"})
        for number, run in enumerate((1, 1, 2))
    ]
    driver = Member("driver", (PYTHON, "tune.py"), children=(raylet,))
    with family(driver, Member("daemon", argv, children=tuple(two))) as tree:
        run, *daemons = (tree.run_of(name) for name in ("worker", "w0", "w1", "w2"))
        assert (run.key, run.worker_of) == (tree.identity("driver"), tree.pids["driver"])
    assert (run.name, run.launcher, run.rank) == ("tune.py", "ray", None)
    assert daemons[0].key == daemons[1].key != daemons[2].key
    assert (daemons[0].name, daemons[0].head) == ("ray::IDLE", 0)


def test_vllms_engine_is_a_worker_of_its_server_and_an_orphan_without() -> None:
    engine = Member("engine", (PYTHON, "-c", "from multiprocessing.spawn import spawn_main"), title="VLLM::EngineCore")
    server = Member("server", (PYTHON, "/opt/bin/vllm", "serve", "m"), {"A": "1"}, children=(engine,))
    with family(Member("shell", SHELL, children=(server,), leads=True)) as tree:
        run = tree.run_of("engine")
        assert (run.key, run.worker_of) == (tree.identity("server"), tree.pids["server"])
        assert (run.name, run.orphaned) == ("vllm serve", False)
        tree.end("server")
        left = tree.run_of("engine")
    assert (left.orphaned, left.name, left.head, left.worker_of) == (True, "VLLM::EngineCore", 0, None)


MAIN = """
import multiprocessing, os, sys, threading, time

def say(name):
    os.write(1, b"%s %d\\n" % (name.encode(), os.getpid()))

def work(name):
    if name == "two" and len(sys.argv) > 2:
        multiprocessing.get_context("fork").Process(target=work, args=("below",)).start()
    say(name)
    time.sleep(600)

if __name__ == "__main__":
    for name in ("one", "two"):
        multiprocessing.get_context(sys.argv[1]).Process(target=work, args=(name,)).start()
    say("main")
    os.read(0, 1)
"""


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Family]:
    """Run real workers of a real program below a shell; all are ended."""
    (folder / "main.py").write_text(MAIN)
    main = Member("first", (sys.executable, str(folder / "main.py"), *arguments), {"A": "1"}, runs=True)
    with family(Member("shell", SHELL, children=(main,), leads=True)) as tree:
        try:
            tree.wait(["main", "one", "two", *(["below"] if len(arguments) > 1 else [])])
            yield tree
        finally:
            for name in {"one", "two", "below"} & set(tree.pids):
                os.kill(tree.pids[name], signal.SIGKILL)  # they sleep for 600 s: none has gone


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_multiprocessing(tmp_path: Path, method: str) -> None:
    with started(tmp_path, method) as tree:
        runs = [tree.run_of(name) for name in ("main", "one", "two")]
        assert {run.key for run in runs} == {tree.identity("main")}
        assert [run.worker_of for run in runs] == [None, tree.pids["main"], tree.pids["main"]]
    assert {(run.orphaned, run.name, run.rank) for run in runs} == {(False, "main.py", None)}


def test_spawned_workers_whose_program_was_killed(tmp_path: Path) -> None:
    with started(tmp_path, "spawn", "deep") as tree:
        assert tree.run_of("below").worker_of == tree.pids["main"]
        assert not tree.run_of("below").orphaned
        tree.end("main")
        left = [tree.run_of(name) for name in ("one", "two", "below")]
    assert all(run.orphaned and run.head == 0 for run in left)
    assert len({run.key for run in left}) == 1
    assert [run.worker_of for run in left] == [None, None, tree.pids["two"]]


def test_a_loader_whose_training_was_killed() -> None:
    main = Member("main", (PYTHON, "t.py"), children=(Member("loader", forks=True, comm="pt_data_worker"),))
    with family(Member("shell", SHELL, children=(main,), leads=True)) as tree:
        tree.end("shell")
        assert [tree.run_of(name).orphaned for name in ("main", "loader")] == [False, False]
        assert tree.run_of("main").key == tree.identity("main")
        tree.end("main")
        assert tree.run_of("loader").orphaned


def test_the_only_rank_of_an_mpirun_that_was_killed_is_left_behind() -> None:
    """Open MPI's own variables are no shell's: srun sets PMIx's alone."""
    names = {
        "OMPI_COMM_WORLD_SIZE": "1",
        "OMPI_COMM_WORLD_RANK": "0",
        "PMIX_RANK": "0",
        "PMIX_NAMESPACE": "prterun-1@1",
    }
    rank = Member("rank", (PYTHON, "train.py"), names)
    with family(Member("mpirun", ("/usr/bin/mpirun", "-np", "1", "python"), {"A": "1"}, (rank,))) as tree:
        assert not tree.run_of("rank").orphaned
        tree.end("mpirun")
        assert tree.run_of("rank").orphaned
