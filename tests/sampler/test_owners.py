"""Who owns the processes that NVML lists: real children, and trees in place of /proc."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from gpuwatch.base import procfs
from gpuwatch.model.snapshot import Presence, Process, Reason
from gpuwatch.sampler.owners import Owners, UserNames, terminal
from tests.declared.tables import Case, cases
from tests.support.environment import environment
from tests.support.process import Member, family, fixture_process, stat_line
from tests.support.waiting import PATIENCE, wait_for

SLEEP = "import time; print(flush=True); time.sleep(600)"


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def child() -> Iterator[Start]:
    """Return a function that starts a process and waits until it runs; all are ended."""
    with ExitStack() as started:

        def start(*arguments: str, script: str = SLEEP) -> subprocess.Popen[str]:
            command = [sys.executable, "-S", "-c", script, *arguments]
            process = started.enter_context(
                subprocess.Popen(command, text=True, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            started.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
            return process

        yield start


def read(owners: Owners, pid: int) -> Process:
    """Read one process."""
    (row,) = owners.read([pid])
    return row


def test_a_process_of_our_own(child: Start) -> None:
    before = time.time()
    process = child("--rate", "0.5")
    row = read(Owners(), process.pid)
    assert (row.presence, row.uid) == (Presence.SEEN, os.getuid())
    assert row.user == pwd.getpwuid(os.getuid()).pw_name
    assert row.name == psutil.Process(process.pid).name()
    assert row.state in ("sleeping", "running")  # it reads its stdin, or is about to
    assert row.command.endswith("--rate 0.5")
    assert (row.ppid, row.parent) == (os.getpid(), psutil.Process().name())
    assert row.rss == psutil.Process(process.pid).memory_info().rss
    assert row.started is not None
    assert abs(row.started - before) < PATIENCE
    assert row.start == procfs.read_stat(process.pid).start_ticks


def test_cpu_of_a_fixed_time(tmp_path: Path) -> None:
    """50 ticks in 2 s are 25 % at 100 ticks a second."""
    now = [100.0]
    tree(tmp_path, 7, used=100)
    owners = Owners(proc=tmp_path, clock=lambda: now[0])
    assert read(owners, 7).cpu is Reason.NO_SAMPLE
    tree(tmp_path, 7, used=150)
    now[0] += 2.0
    assert read(owners, 7).cpu == 25.0 * 100 / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
def test_the_real_uid_of_a_process_counts_and_not_the_effective_one(child: Start) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    with subprocess.Popen(["/bin/sleep", "600"], user=nobody) as process:  # nobody may not run this interpreter
        row = read(Owners(), process.pid)
        process.kill()
    assert (row.uid, row.user) == (nobody, "nobody")
    script = f"import os, time; os.seteuid({nobody}); print(flush=True); time.sleep(600)"
    assert read(Owners(), child(script=script).pid).uid == 0


def test_a_process_whose_threads_cannot_be_read_is_not_said_to_be_a_zombie(tmp_path: Path) -> None:
    """As where its own state took the last file descriptor."""
    folder = fixture_process(tmp_path, 7, stat_line(7, state="Z"), threads="")
    assert read(Owners(proc=tmp_path), 7).state == "zombie"
    (folder / "task").touch()
    assert read(Owners(proc=tmp_path), 7).state == ""


BURN = "ulimit -t 60; while [ -d /proc/$STARTED_BY ]; do :; done"
"""Ends with the child that started it, also below another shell; at the latest after a minute of CPU."""


def test_the_cpu_of_what_a_process_has_started_is_known_to_the_viewer_alone(child: Start) -> None:
    """Of children and of their children; not at the first look."""
    run = (
        "import os, subprocess; os.environ['STARTED_BY'] = str(os.getpid()); print(flush=True);"
        f"subprocess.run(['sh', '-c', \"sh -c '{BURN}; :' & wait\"]); input()"
    )
    busy, still = child(script=run).pid, child().pid
    now = [100.0]
    owners, others = Owners(clock=lambda: now[0]), Owners(clock=lambda: now[0], viewer=os.getuid() + 1)
    assert {one.below for one in (*owners.read([busy, still]), *others.read([busy]))} == {Reason.NO_SAMPLE}
    before = procfs.read_descendants_cpu(busy, 0)
    wait_for(lambda: procfs.read_descendants_cpu(busy, 0) - before >= 5)
    now[0] += 10.0
    below = {one.pid: one.below for one in owners.read([busy, still])}
    assert float(below[busy]) > 0
    assert below[still] == 0.0
    assert read(others, busy).below is Reason.NO_SAMPLE


def test_a_zombie_is_named_so_and_keeps_what_it_was(child: Start) -> None:
    process = child("zombie")
    now = [0.0]
    owners = Owners(clock=lambda: now[0])
    alive = read(owners, process.pid)
    process.kill()
    wait_for(lambda: read(owners, process.pid).state == "zombie")
    now[0] = 60.0  # all facts are read anew
    dead = read(owners, process.pid)
    assert (dead.state, dead.presence, dead.command) == ("zombie", Presence.SEEN, alive.command)
    unknown = read(Owners(), process.pid)
    assert (unknown.state, unknown.command, unknown.uid) == ("zombie", "", os.getuid())
    process.wait()
    assert read(owners, process.pid).presence is not Presence.SEEN


def test_hostile_arguments_are_cleaned_and_secrets_masked(child: Start) -> None:
    hostile = ("\x1b[31m", "\x1b]52;c;ZXZpbA==\x07", "a\nb\rc\td", "\u202eevil", "[/foo] [bold")
    secrets = ("--token", "s3cr3t", "--hf-key=hf_abcdefghijklmnopqrstuvwxyz", "--lr", "0.1")
    command = read(Owners(), child(*hostile, *secrets).pid).command
    assert command.isprintable()
    assert not [text for text in ("\u202e", "s3cr3t", "hf_abc") if text in command]
    assert "[/foo] [bold" in command
    assert "--lr 0.1" in command


def tree(root: Path, pid: int, *, comm: str = "python", start: int = 4711, used: int = 0, tty: int = 0) -> Path:
    """Write a process into a tree; gives its folder."""
    folder = root / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = [f"{pid}", f"({comm})", "S", "1", "1", "1", str(tty), "-1", "0", "0", "0", "0", "0", str(used), "0"]
    fields += ["0", "0", "20", "0", "1", "0", str(start), "1000", "25", *["0"] * 28]
    (folder / "stat").write_text(" ".join(fields) + "\n")
    (folder / "statm").write_text("1000 25 10 1 0 10 0\n")
    (folder / "status").write_text(f"Name:\t{comm}\nUid:\t4242\t0\t0\t0\nGid:\t0\t0\t0\t0\n")
    (folder / "cmdline").write_bytes(b"python\0train.py\0")
    return folder


def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    now = [0.0]
    tree(tmp_path, 7, comm="first", used=100)
    owners = Owners(proc=tmp_path, clock=lambda: now[0])
    first = read(owners, 7)
    (tree(tmp_path, 7, comm="first", start=9000, used=5) / "cmdline").write_bytes(b"second\0")
    now[0] += 1.0
    second = read(owners, 7)
    assert (first.command, second.command) == ("python train.py", "second")
    assert first.key != second.key
    assert second.cpu is Reason.NO_SAMPLE


def test_the_command_line_is_read_anew_after_ten_seconds_and_at_another_name(tmp_path: Path) -> None:
    """setproctitle changes it while all else stays."""
    now = [0.0]
    folder = tree(tmp_path, 7)
    owners = Owners(proc=tmp_path, clock=lambda: now[0])
    read(owners, 7)
    (folder / "cmdline").write_bytes(b"vllm: worker 3\0")
    now[0] = 9.0
    assert read(owners, 7).command == "python train.py"
    now[0] = 11.0
    assert read(owners, 7).command == "vllm: worker 3"
    (tree(tmp_path, 7, comm="renamed") / "cmdline").write_bytes(b"renamed\0")
    assert (read(owners, 7).name, read(owners, 7).command) == ("renamed", "renamed")


def test_a_session_and_who_leads_it() -> None:
    """That the parent is another shows at once; that the leader alone has ended within ten seconds."""
    script = Member("script", ("bash", "x.sh"), children=(Member("below", ("python", "t.py")),))
    job = Member("job", ("python", "t.py"))
    alone = Member("alone", ("python", "t.py"), leads=True)
    shell = Member("shell", ("bash",), children=(job, alone, script), leads=True)
    now = [0.0]
    owners, others = Owners(clock=lambda: now[0]), Owners(clock=lambda: now[0])
    with family(shell) as tree:
        first, second = (read(owners, tree.pids[name]) for name in ("job", "alone"))
        assert (first.session, first.leader_alive, first.adopted) == (tree.pids["shell"], True, False)
        assert (second.session, second.leader_alive, second.adopted) == (tree.pids["alone"], True, False)
        assert read(others, tree.pids["below"]).leader_alive is True
        tree.end("shell")
        left, alone_now = owners.read([tree.pids["job"], tree.pids["alone"]])
        assert (left.session, left.leader_alive, left.adopted) == (tree.pids["shell"], False, True)
        assert (alone_now.leader_alive, alone_now.adopted) == (True, True)
        now[0] = 9.0
        assert read(others, tree.pids["below"]).leader_alive is True
        now[0] = 11.0
        below = read(others, tree.pids["below"])
        assert (below.leader_alive, below.adopted) == (False, False)


def test_a_steady_tick_reads_one_file(tmp_path: Path) -> None:
    tree(tmp_path, 1, comm="systemd")
    tree(tmp_path, 7)
    owners = Owners(proc=tmp_path, clock=lambda: 0.0)
    before = read(owners, 7)
    (tmp_path / "1/stat").unlink()
    after = read(owners, 7)
    assert (
        (before.leader_alive, before.adopted, before.session)
        == (after.leader_alive, after.adopted, after.session)
        == (True, True, 1)
    )


def test_a_leader_that_is_hidden_is_not_said_to_be_gone(tmp_path: Path) -> None:
    mounted(tree(tmp_path, 7).parent, "rw,hidepid=2")
    assert read(Owners(proc=tmp_path, sees_all=False), 7).leader_alive is None
    assert read(Owners(proc=tmp_path, sees_all=True), 7).leader_alive is False


@cases("sampler/adopted")
def test_who_was_adopted(tmp_path: Path, case: Case) -> None:
    """By what the parent is, and by who leads the session."""
    session = {"parent": 3, "itself": 7, "another": 9, "ended": 88}[case["leader"]]
    for pid in (3, 9):
        fixture_process(tmp_path, pid, related(case["parent"], 1, pid, 0))
    stat = procfs.parse_stat(related("python", 3, session, case["start"]))
    assert procfs.is_adopted(7, stat, tmp_path) is case["adopted"]


def related(comm: str, ppid: int, session: int, start: int) -> bytes:
    """Return a stat line of a process with this parent, session and start."""
    fields = [f"({comm})", "S", str(ppid), "5", str(session), *["0"] * 15, str(start), *["0"] * 30]
    return " ".join(["7", *fields]).encode()


def test_a_parent_that_cannot_be_read_and_a_leader_of_itself(tmp_path: Path) -> None:
    """PID 1 alone adopts unseen. A zombie leads nobody; a session outside of our namespace has no number."""
    for ppid, expected in ((1, True), (5, False), (0, False)):
        assert procfs.is_adopted(7, procfs.parse_stat(related("python", ppid, 88, 1)), tmp_path) is expected
    for session, state, alive in ((0, "S", None), (7, "S", True), (7, "Z", False)):
        stat = procfs.parse_stat(related("python", 1, session, 1))._replace(state=state)
        assert procfs.is_leader_alive(7, stat, tmp_path) is alive


def mounted(root: Path, options: str, *, namespace: int = 4026531836) -> Path:
    """Write a mount table in which /proc has these options, and which PID namespace we are in."""
    (root / "self/ns").mkdir(parents=True)
    (root / "self/ns/pid").symlink_to(f"pid:[{namespace}]")
    (root / "self/mountinfo").write_text(
        "21 26 0:20 / /sys rw,nosuid - sysfs sysfs rw\n"
        f"22 26 0:21 / /proc rw,nosuid,relatime shared:5 - proc proc {options}\n"
        "30 26 0:30 / /mnt/proc rw - proc proc rw,hidepid=2\n"
    )
    return root


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("rw", Presence.GONE),
        *((f"rw,hidepid={value}", Presence.GONE) for value in ("0", "off")),
        *(
            (f"rw,gid=4,hidepid={value}", Presence.HIDDEN)
            for value in ("1", "2", "noaccess", "invisible", "ptraceable")
        ),
    ],
)
def test_a_pid_that_is_not_there_is_gone_or_hidden(tmp_path: Path, options: str, expected: Presence) -> None:
    mounted(tmp_path, options)
    assert read(Owners(proc=tmp_path, sees_all=False), 99).presence is expected
    assert read(Owners(proc=tmp_path, sees_all=True), 99).presence is Presence.GONE


def test_a_pid_of_another_namespace(tmp_path: Path) -> None:
    """In a container the list may be the host's. One that exists here is shown, and not believed blindly."""
    mounted(tree(tmp_path, 7).parent, "rw", namespace=4026532555)
    owners = Owners(proc=tmp_path)
    assert read(owners, 99).presence is Presence.ELSEWHERE
    assert read(owners, 7).presence is Presence.SEEN


def test_a_process_that_we_may_not_look_at(tmp_path: Path) -> None:
    """hidepid=1: its folder is there, and its files cannot be read."""
    stat = tree(tmp_path, 7) / "stat"
    stat.chmod(0)
    if os.geteuid() == 0:  # to root a file without rights is readable: a folder in its place is as little of a file
        stat.unlink()
        stat.mkdir()
        assert read(Owners(proc=tmp_path), 7).presence is Presence.UNREADABLE
    else:
        assert read(Owners(proc=tmp_path), 7).presence is Presence.HIDDEN


def test_terminals_by_their_number() -> None:
    numbers = (0, -1, 34816, 34819, 136 << 8 | 44 | 1 << 20, 1025, 4 << 8 | 64, 229 << 8)
    names = ["", "", "/dev/pts/0", "/dev/pts/3", "/dev/pts/300", "/dev/tty1", "/dev/ttyS0", "tty 229:0"]
    assert [terminal(number) for number in numbers] == names


def test_a_look_up_that_blocks_holds_up_nobody(tmp_path: Path) -> None:
    answer = threading.Event()

    def slow(uid: int) -> str:
        answer.wait(PATIENCE)
        return "ada"

    tree(tmp_path, 7)
    owners = Owners(proc=tmp_path, users=UserNames(slow))
    assert read(owners, 7).user == "4242"
    assert read(owners, 7).user == "4242"
    answer.set()
    assert owners.users.wait(PATIENCE)
    assert read(owners, 7).user == "ada"


def test_a_row_is_kept_while_the_line_of_stat_is_the_same(tmp_path: Path) -> None:
    """Not longer than 10 s: the line does not show another uid, another title, or memory that was swapped out."""
    now = [100.0]
    folder = tree(tmp_path, 7)
    owners = Owners(proc=tmp_path, clock=lambda: now[0])

    def again(seconds: float) -> Process:
        now[0] += seconds
        return read(owners, 7)

    assert (again(0.0).cpu, again(1.0).cpu) == (Reason.NO_SAMPLE, 0.0)
    kept = again(1.0)
    (folder / "status").write_text("Uid:\t2\t2\t2\t2\n")
    (folder / "cmdline").write_bytes(b"other\0")
    (folder / "statm").write_text("9 6 1 1 0 1 0\n")
    assert again(1.0) is kept
    later = again(10.0)
    assert (later.uid, later.command, later.rss) == (2, "other", 6 * os.sysconf("SC_PAGESIZE"))
    tree(tmp_path, 7, used=procfs.TICKS)
    assert [again(2.0).cpu, again(2.0).cpu] == [50.0, 0.0]


def test_a_process_without_gpu_memory_is_read_every_five_seconds(tmp_path: Path) -> None:
    """At once where it is new, or where NVML lists it now."""
    now = [100.0]
    tree(tmp_path, 7)
    owners = Owners(proc=tmp_path, clock=lambda: now[0])
    assert owners.read([7], [7])[0].ppid == 1
    (tree(tmp_path, 7, comm="other") / "stat").write_bytes(stat_line(7, ppid=2))
    now[0] += 4.9
    assert owners.read([7], [7])[0].ppid == 1
    now[0] += 0.1
    assert owners.read([7], [7])[0].ppid == 2
    (tmp_path / "7/stat").write_bytes(stat_line(7, ppid=3))
    assert owners.read([7])[0].ppid == 3
    (tmp_path / "7/stat").unlink()
    assert owners.read([7], [7])[0].presence is not Presence.SEEN
