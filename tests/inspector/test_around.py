"""What a process runs in: terminals, logins and notebooks of real processes; whatever it wrote, nothing raises."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch import procfs
from gpuwatch.declared.facts import Facts, RelatedProcess, Unread
from gpuwatch.inspector import context, jobs, reader, terminals
from gpuwatch.inspector.cgroups import ContainerId
from gpuwatch.inspector.containers import ContainerName, ContainerNames
from gpuwatch.inspector.protocol import Question
from gpuwatch.inspector.worker import Reader
from gpuwatch.model import Pane
from gpuwatch.text import clean
from tests.support.families import Member, family
from tests.support.tmux import Tmux, tmux
from tests.support.waiting import wait_for
from tests.test_procfs import fixture_process, stat_line

__all__ = ["tmux"]  # a fixture

PYTHON = "/opt/conda/bin/python"
# -- terminals -----------------------------------------------------------------------------------------------------


def test_a_pane_of_a_real_tmux_and_what_outlives_it(tmux: Tmux) -> None:
    """Its number while it is there; once its server is gone, that it has gone."""
    tmux.run("new-session", "-d", "-s", "train", "sh -c 'trap \"\" HUP; exec sleep 600'")
    pid = int(tmux.run("list-panes", "-F", "#{pane_pid}"))
    server = int(tmux.run("display-message", "-p", "#{pid}"))
    wait_for(lambda: procfs.read_stat(pid).comm == b"sleep")
    try:
        expected = Pane(program="tmux", session="$0", window="%0", alive=True)
        assert context.read_context(reader.read(pid)).pane == expected
        tmux.run("kill-server")
        wait_for(lambda: not (procfs.PROC / str(server)).exists())
        assert context.read_context(reader.read(pid)).pane == Pane(
            program="tmux", session="$0", window="%0", alive=False
        )
    finally:
        os.kill(pid, signal.SIGKILL)


def pane(line: list[RelatedProcess], *, proc: Path) -> Pane | None:
    """Return the pane of a process."""
    found = terminals.find_pane(line, proc=proc)
    return None if found is None else found.pane


@pytest.mark.parametrize("argv", [("sshd: ada@pts/0",), ("/usr/share/code/code", "--x"), ("alacritty",)])
def test_a_nearer_terminal_counts_and_not_what_was_inherited(argv: tuple[str, ...]) -> None:
    """A terminal that was opened from a pane has its variables."""
    given = {"TMUX": f"/tmp/tmux-1000/default,{os.getpid()},4", "TMUX_PANE": "%12"}
    python = Member("python", (PYTHON, "t.py"), given)
    terminal = Member("terminal", argv, children=(Member("sh", ("bash",), children=(python,)),))
    with family(terminal) as tree:
        assert tree.around("python").pane is None


def test_what_is_started_from_a_file_manager_is_in_the_pane_of_that() -> None:
    server = ("tmux", "new")
    with family(
        Member("tmux", server, children=(Member("mc", ("mc",), children=(Member("python", (PYTHON, "t.py")),)),))
    ) as tree:
        assert tree.around("python").pane == Pane(program="tmux", alive=True)


def test_panes_by_an_ancestor_that_is_the_server() -> None:
    """Of another tmux than the variables say, only that it is in one."""
    below = tuple(
        Member(name, (PYTHON, "t.py"), environ)
        for name, environ in (
            ("stale", {"TMUX": "/tmp/x,1,0"}),
            ("screen", {"STY": "1.other", "WINDOW": "2"}),
            ("none", {}),
        )
    )
    with family(Member("server", ("tmux", "new"), children=below, comm="tmux: server")) as tree:
        assert tree.around("stale").pane == Pane(program="tmux", alive=True)
        assert tree.around("screen").pane == Pane(program="tmux", alive=True)
    with family(Member("server", ("SCREEN", "-S", "train"), children=below, comm="screen")) as tree:
        assert tree.around("none").pane == Pane(program="screen", alive=True)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TMUX": "/tmp/a,b,7,3", "TMUX_PANE": "%1"}, Pane(program="tmux", session="$3", window="%1", alive=True)),
        ({"TMUX": "/tmp/a,8,3", "TMUX_PANE": "\x1b"}, Pane(program="tmux", session="$3", alive=False)),
        ({"TMUX": "/tmp/a,9,3"}, Pane(program="tmux", session="$3", alive=False)),
        ({"STY": "8.train", "WINDOW": "2"}, Pane(program="screen", session="train", window="2", alive=True)),
        ({"STY": "8.x", "TMUX": "/t,99,3"}, Pane(program="screen", session="x", alive=True)),
        ({"STY": "99.x", "TMUX": "/t,7,3"}, Pane(program="tmux", session="$3", alive=True)),
        ({"ZELLIJ_SESSION_NAME": "lab", "ZELLIJ_PANE_ID": "4"}, Pane(program="zellij", session="lab", window="4")),
        ({"TMUX": "/tmp/a,7,3", "SLURM_JOB_ID": "1"}, None),
        ({"TMUX": "nonsense", "STY": "x.y"}, None),
        ({}, None),
    ],
)
def test_panes_by_the_environment(tmp_path: Path, environ: dict[str, str], expected: Pane | None) -> None:
    """Where the server is no ancestor (any more): whether it runs is told by its number and name."""
    for pid, comm, state in ((5, "python", "S"), (7, "tmux: server", "S"), (8, "screen", "S"), (9, "bash", "S")):
        fixture_process(tmp_path, pid, stat_line(comm=comm.encode(), state=state))
    assert pane([RelatedProcess(pid=5, environ=environ)], proc=tmp_path) == expected


def test_numbers_of_another_pid_namespace_are_not_ours(tmp_path: Path) -> None:
    """What a container calls 7 is another process here."""
    folder = fixture_process(tmp_path, 5, stat_line())
    (folder / "status").write_text("Name:\tx\nUid:\t1\t1\t1\t1\nNSpid:\t5\t1\n")
    fixture_process(tmp_path, 7, stat_line(comm=b"tmux: server"))
    found = pane([RelatedProcess(pid=5, environ={"TMUX": "/t,7,0"})], proc=tmp_path)
    assert found == Pane(program="tmux", session="$0", alive=None)
    assert procfs.own_number(5, tmp_path) == (1, False)


def test_ssh_logins() -> None:
    """By the variable, the process's own or an inherited one; what is no address is none."""
    above = RelatedProcess(pid=2, environ={"SSH_CONNECTION": "10.0.0.7 51234 10.0.0.1 22"})
    assert terminals.find_ssh([RelatedProcess(pid=1, environ={}), above]) == "10.0.0.7"
    assert (
        terminals.find_ssh([RelatedProcess(pid=1, environ={"SSH_CLIENT": "fe80::1%eth0 5 22"}), above])
        == "fe80::1%eth0"
    )
    assert terminals.find_ssh([RelatedProcess(pid=1, environ=Unread.DENIED)]) == ""
    assert terminals.find_ssh([RelatedProcess(pid=1, environ={"SSH_CONNECTION": "\x1b[31m 1 2 3"})]) == ""
    assert terminals.find_ssh([RelatedProcess(pid=1, environ={"SSH_CONNECTION": "UNKNOWN 65535 UNKNOWN 65535"})]) == ""


# -- the whole -----------------------------------------------------------------------------------------------------


def test_what_could_not_be_read_is_said() -> None:
    """An environment under a title; its ancestors' is as good for what is inherited."""
    python = Member("python", (PYTHON, "t.py"), {"SSH_CONNECTION": "10.0.0.7 1 2 3"}, title="step 7 = 3")
    with family(Member("sh", ("bash",), {"SSH_CONNECTION": "10.0.0.8 1 2 3"}, children=(python,))) as tree:
        found = tree.around("python")
    assert found.words == "its environment was overwritten by a title"
    assert found.ssh == "10.0.0.8"


def test_a_process_that_has_gone_is_said_to_have(tmp_path: Path) -> None:
    """Nothing raises, and what its facts alone tell is still told."""
    found = context.read_context(Facts(pid=99, environ={"SSH_CONNECTION": "10.0.0.7 1 2 3"}), proc=tmp_path)
    assert (found.job, found.ssh, found.words) == (None, "10.0.0.7", "its state: it has ended")


def test_a_fault_in_one_part_costs_no_other() -> None:
    """A name book that fails: the container is missing, and it is said why."""

    class Broken(ContainerNames):
        def find(self, container: ContainerId, pid: int, uid: int | None, *, proc: Path) -> ContainerName:
            raise TypeError("odd\x1b[31m")

    cgroup = "/system.slice/docker-" + "3f" * 32 + ".scope"
    facts = Facts(pid=os.getpid(), uid=os.getuid(), environ={"SSH_CLIENT": "::1 1 2"}, cgroup=cgroup)
    found = context.read_context(facts, names=Broken())
    assert found.container is None
    assert (found.ssh, found.job is None) == ("::1", False)
    assert found.words.startswith("its container: a fault in gpuwatch: TypeError: odd")
    assert found.words == clean(found.words)


def test_the_reader_answers_with_both() -> None:
    """What was declared, and what it runs in."""
    with family(Member("python", (PYTHON, "t.py"), {"SSH_CLIENT": "10.0.0.7 1 2"})) as tree:
        pid = tree.pids["python"]
        answer = Reader().answer(Question(pid=pid, start=procfs.read_stat(pid).start_ticks))
    assert answer.surroundings is not None
    assert answer.surroundings.ssh == "10.0.0.7"
    assert answer.surroundings.job is not None


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
            *(
                "python",
                "bash",
                "torchrun",
                "-m",
                "-c",
                "torch.distributed.run",
                "mpirun",
                "raylet",
                "tmux",
                "train.py",
            ),
            *("from multiprocessing.spawn import spawn_main; spawn_main(parent_pid=1)", "ray::A", "jupyter-lab", "-f"),
            *("ipykernel_launcher", "kernel-3f9a1c22-aa.json", "VLLM::EngineCore", "busybox", "--"),
        ]
    ),
)
ARGV = st.lists(WORDS, max_size=5).map(tuple)
KIN = st.builds(RelatedProcess, pid=st.integers(2, 9), argv=ARGV, environ=ENVIRONS, start=st.integers(0, 9), comm=ODD)


@given(argv=ARGV, environ=ENVIRONS, above=st.lists(KIN, max_size=5), cgroup=ODD)
def test_nothing_that_a_process_writes_raises(
    argv: tuple[str, ...], environ: dict[str, str] | Unread, above: list[RelatedProcess], cgroup: str
) -> None:
    """All is clean, and no part of it fails."""
    facts = Facts(pid=os.getpid(), uid=1, argv=argv, environ=environ, ancestors=tuple(above), cgroup=cgroup)
    found = context.read_context(facts)
    assert "fault" not in found.words
    assert found.job is not None
    texts = [found.ssh, found.job.name, found.job.key, found.job.launcher, found.words]
    if found.pane is not None:
        texts += [found.pane.session, found.pane.window]
    if found.notebook is not None:
        texts += [found.notebook.path, found.notebook.kernel]
    assert all(text == clean(text) for text in texts)
    assert len(found.job.name) <= jobs.LONGEST_NAME
    job = found.job
    assert job.rank is None or job.world is None or 0 <= job.rank < job.world


@given(first=ARGV, second=ARGV, environs=st.tuples(ENVIRONS, ENVIRONS), above=st.lists(KIN, max_size=3))
def test_siblings_below_a_launcher_are_one_run(
    first: tuple[str, ...],
    second: tuple[str, ...],
    environs: tuple[dict[str, str] | Unread, dict[str, str] | Unread],
    above: list[RelatedProcess],
) -> None:
    """Whatever they wrote; its name may be told by each alone, where the launcher started no Python."""
    line = (RelatedProcess(pid=5, argv=("torchrun", "t.py"), start=7), *above)
    pid, stat = os.getpid(), procfs.read_stat(os.getpid())
    found = []
    for argv, environ in zip((first, second), environs, strict=True):
        facts = Facts(pid=pid, argv=argv, environ=environ, ancestors=line)
        job = jobs.read_run(facts, RelatedProcess(pid=pid, argv=argv, environ=environ), stat)
        if not job.orphaned and job.head != pid:
            found.append((job.key, job.head))
    assert len(set(found)) <= 1
