"""Real processes that look like training: one that holds a GPU open, trees of them, and a Python that never runs."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import pytest

from gpuwatch.base import procfs
from gpuwatch.inspector import context, reader
from gpuwatch.model.snapshot import ProcessContext, Run
from tests.support.waiting import wait_for

ROOT = os.geteuid() == 0

ME = 54321 if ROOT else os.getuid()
"""The person in these tests: an unprivileged uid, that need not be in the user database."""

SOMEBODY_ELSE = 54322

HOLDER_PROGRAM = r"""
import ctypes, json, os, signal, sys, threading, time
spec = json.loads(os.environ.pop("GPUHOLDER"))
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER, VFORK = 0x00020000, 0x10000000, 0x4000
REC_PRIVATE, DUMPABLE = 0x4000 | 0x40000, 4

def say(**words):
    os.write(1, json.dumps(words).encode() + b"\n")

def check(what, result):
    if result != 0:
        say(error=f"{what}: {os.strerror(ctypes.get_errno())}")
        os._exit(1)

uid, gid = os.getuid(), os.getgid()
check("unshare", libc.unshare(NEWNS if uid == 0 else NEWNS | NEWUSER))
if uid != 0:
    for name, text in ("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
check("make mounts private", libc.mount(b"none", b"/", None, REC_PRIVATE, None))
check("mount a tmpfs", libc.mount(b"tmpfs", b"/dev", b"tmpfs", 0, b"mode=755"))
held = [os.open(f"/dev/{name}", os.O_CREAT | os.O_RDWR) for name in spec["devices"]]
if spec["uid"] != uid:
    os.setgroups([])
    os.setresgid(spec["uid"], spec["uid"], spec["uid"])
    os.setresuid(*spec["uids"])
    libc.prctl(DUMPABLE, 1, 0, 0, 0)

def stop(number, frame):
    time.sleep(spec["delay"])
    os._exit(0)

def retitle():  # as setproctitle does: over the memory of the arguments
    fields = open("/proc/self/stat", "rb").read().rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    title = b"python: step 1200"[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, title, len(title))

def become():  # another program of the same name, in the same process, that has the same files open
    for file in held:
        os.set_inheritable(file, True)
    os.execv("./python", ["python", "important_new_run.py"])

def stay():
    while word := os.read(0, 1):
        if word == b"e":
            become()
        if word == b"t":
            retitle()
        say(done=True)
        if word == b"m":
            threading.Thread(target=time.sleep, args=(1000.0,), daemon=True).start()
            libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # exit(2), of this thread alone
    os._exit(0)

if spec["orphan"] and os.fork():
    os._exit(0)
children = []
for _ in range(spec["children"]):
    child = os.fork()
    if not child:
        stay()
    children.append(child)
signal.signal(signal.SIGTERM, signal.SIG_IGN if spec["deaf"] else stop)
interrupted = (lambda number, frame: None) if spec["deaf"] else stop
signal.signal(signal.SIGINT, signal.SIG_IGN if spec["background"] else interrupted)
if spec["stuck"]:
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    parent = os.getpid()
    if libc.syscall(number, VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        say(pid=parent, children=[], blocker=int(os.readlink("/proc/self")))
        stay()
say(pid=os.getpid(), children=children)
stay()
"""


def unavailable(reason: str) -> NoReturn:
    """Skip aloud; where CI runs, a check that cannot be made is a failure."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def need_the_machines_own_pids() -> None:
    """Skip aloud in a container: whom NVML does not list by a PID of ours is not told to be unlisted there."""
    if procfs.is_in_pid_namespace():
        pytest.skip("this runs in a PID namespace, where nobody is told to be on no list of NVML's")


class GpuHolder:
    """A process called `argv` that holds `devices` open, and ends with this context at the latest.

    `uid` (or the triple `uids` of real, effective and saved) needs root when it is another's. `background` ignores
    SIGINT, as what a script starts with `&`; `deaf` ignores SIGTERM and is not moved by SIGINT, else it exits `delay`
    seconds after either. `children` more processes share its open files. `orphan` lets its parent exit. `stuck` sleeps
    in the kernel in state D, where SIGTERM does not reach it. With `reap=False` its parent, this process,
    leaves it a zombie. Without `randomised` its addresses are those of each program of its kind, as under a debugger.
    """

    pid: int
    start_ticks: int
    children: tuple[int, ...]

    def __init__(
        self,
        argv: Sequence[str] = ("python", "train.py"),
        *,
        uid: int = ME,
        uids: tuple[int, int, int] | None = None,
        devices: Sequence[str] = ("nvidiactl", "nvidia0"),
        deaf: bool = False,
        background: bool = False,
        delay: float = 0.0,
        children: int = 0,
        orphan: bool = False,
        stuck: bool = False,
        reap: bool = True,
        randomised: bool = True,
    ) -> None:
        self.argv = tuple(argv)
        self.uid = uid
        self._reap = reap
        self._orphan = orphan
        self._stuck = stuck
        self._randomised = randomised
        self._handles: list[int] = []
        self._spec = {
            "uid": uid,
            "uids": uids or (uid, uid, uid),
            "devices": list(devices),
            "deaf": deaf,
            "background": background,
            "delay": delay,
            "children": children,
            "orphan": orphan,
            "stuck": stuck,
        }

    @property
    def command(self) -> str:
        """The command line, joined with spaces."""
        return " ".join(self.argv)

    def __enter__(self) -> GpuHolder:
        if not ROOT and self._spec["uids"] != (os.getuid(),) * 3:
            pytest.skip(f"a process of uid {self.uid} needs root")
        self._folder = tempfile.TemporaryDirectory()
        try:
            self._start(Path(self._folder.name))
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def _start(self, folder: Path) -> None:
        folder.chmod(0o755)  # it looks into it as another user
        (folder / self.argv[1]).write_text(HOLDER_PROGRAM)
        (folder / "python").symlink_to("/bin/sh")
        (folder / "important_new_run.py").write_text("echo '{}'\nread line\n")
        environment = {
            "GPUHOLDER": json.dumps(self._spec),
            "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._process = subprocess.Popen(
            self.argv,
            executable=sys.executable,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=None if self._randomised else _randomise_nothing,
            start_new_session=True,  # where init does not lead a session of its own, nothing tells who was left to it
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process ended at once"}
        if "error" in answer:
            self._close_pipes()
            self._process.wait()
            unavailable(f"no process can hold a stand-in for a GPU here: {answer['error']}")
        self.pid = int(answer["pid"])
        self.children = tuple(answer["children"])
        self.start_ticks = procfs.read_stat(self.pid).start_ticks
        everyone = (self.pid, *self.children, *([answer["blocker"]] if self._stuck else []))
        self._handles = [os.pidfd_open(pid) for pid in everyone]
        if self._orphan:
            self._process.wait()
        elif self._reap:
            threading.Thread(target=self._process.wait, daemon=True).start()
        while self._stuck and procfs.read_stat(self.pid).state != "D":
            os.sched_yield()

    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return not _ended(self._handles[0])

    def stop(self) -> None:
        """Stop it as Ctrl-Z does, and wait until it is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        while procfs.read_stat(self.pid).state != "T":
            os.sched_yield()

    def exec(self) -> None:
        """Let it run `python important_new_run.py` in its place: the same process, with the same files open."""
        self._do(b"e")

    def retitle(self) -> None:
        """Let it write `python: step 1200` over its command line, as much of that as there is room for."""
        self._do(b"t")

    def end_first_thread(self) -> None:
        """Let its first thread end, while another goes on and holds the devices."""
        self._do(b"m")
        while procfs.read_stat(self.pid).state != "Z":
            os.sched_yield()

    def _do(self, word: bytes) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(word)
        self._process.stdin.flush()
        self._process.stdout.readline()

    def wait_until_exited(self) -> None:
        """Wait until it has ended, reaped or not."""
        select.select([self._handles[0]], [], [])

    def reap(self) -> None:
        """Do what a parent ought to do."""
        self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            if not _ended(handle):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [])
            os.close(handle)
        self._process.wait()
        self._close_pipes()
        self._folder.cleanup()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def _randomise_nothing() -> None:
    """Have what is started next at the same addresses each time: personality(2), ADDR_NO_RANDOMIZE."""
    ctypes.CDLL(None).personality(0x0040000)


def _ended(handle: int) -> bool:
    return bool(select.select([handle], [], [], 0)[0])


FAMILY_PROGRAM = r"""
import ctypes, json, os, signal, subprocess, sys

def write_over(words, last):  # over its arguments, or over these and its environment
    fields = open("/proc/self/stat", "rb").read().rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[last])
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, words, len(words))

def live(spec):
    libc = ctypes.CDLL(None)
    if not spec["forks"] and not spec["runs"]:
        write_over(b"".join(word.encode() + b"\0" for word in spec["argv"]), 46)
    if spec["leads"]:
        os.setsid()
    if spec["comm"]:
        libc.prctl(15, spec["comm"].encode())  # PR_SET_NAME
    if spec["reaps"]:
        libc.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for child in spec["children"]:
        if child["forks"]:
            if not os.fork():
                live(child)
            continue
        environ = {**child["environ"], **{name: os.environ[name] for name in ("PYTHONPATH", "PYTHONHOME")}}
        environ["PYTHONDONTWRITEBYTECODE"] = "1"
        path = os.path.join(os.environ["PYTHONPATH"], child["name"] + ".json")
        with open(path, "w") as file:
            json.dump(child, file)
        command = child["argv"] if child["runs"] else [sys.executable, "-c", "#" * len("".join(child["argv"])) + "####"]
        subprocess.Popen(command, env={**environ, "FAMILY": path})
    if spec["runs"]:
        os.write(1, b"%s %d\n" % (spec["name"].encode(), os.getpid()))
        return
    if spec["uid"] != os.getuid():
        os.setgroups([])
        os.setresgid(spec["uid"], spec["uid"], spec["uid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
        libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: as after an execve
    if spec["title"]:
        write_over(spec["title"].encode(), 48)
    os.write(1, b"%s %d\n" % (spec["name"].encode(), os.getpid()))
    while os.read(0, 1):
        pass
    os._exit(0)

with open(os.environ["FAMILY"]) as file:
    spec = json.load(file)
live(spec)
"""


@dataclass
class Member:
    """One process of a family."""

    name: str
    argv: tuple[str, ...] = ("python", "train.py")
    environ: Mapping[str, str] = field(default_factory=dict)
    children: tuple[Member, ...] = ()
    forks: bool = False
    """It is a fork of its parent: no command line and no environment of its own."""
    leads: bool = False
    """It leads a session of its own."""
    reaps: bool = False
    comm: str = ""
    title: str = ""
    runs: bool = False
    """It really runs its script."""
    uid: int | None = None
    """Its uid, where that is another than the family's."""

    def spec(self, uid: int) -> dict[str, Any]:
        """Return what it is to do."""
        given = {name: getattr(self, name) for name in ("name", "forks", "leads", "reaps", "comm", "title", "runs")}
        children = [child.spec(uid) for child in self.children]
        own = uid if self.uid is None else self.uid
        return {**given, "argv": list(self.argv), "environ": dict(self.environ), "uid": own, "children": children}

    @property
    def names(self) -> list[str]:
        """Return its name and those below it."""
        return [self.name, *(name for child in self.children for name in child.names)]


class Family:
    """A tree that runs."""

    def __init__(self, process: subprocess.Popen[bytes], names: list[str]) -> None:
        self.process = process
        self.pids: dict[str, int] = {}
        self.wait(names)

    def wait(self, names: list[str]) -> None:
        """Wait until all of these have said that they are there."""
        assert self.process.stdout is not None
        while not set(names) <= set(self.pids):
            line = self.process.stdout.readline()
            assert line, f"of {names} only {self.pids} came"
            name, _, pid = line.decode().partition(" ")
            self.pids[name] = int(pid)

    def around(self, name: str) -> ProcessContext:
        """Return where one of them runs."""
        return context.read_context(reader.read(self.pids[name]))

    def run_of(self, name: str) -> Run:
        """Return the run of one of them."""
        found = self.around(name).run
        assert found is not None
        return found

    def identity(self, name: str) -> str:
        """Return the key of a run that it is the head of."""
        return f"{self.pids[name]}:{procfs.read_stat(self.pids[name]).start_ticks}"

    def end(self, name: str) -> None:
        """Kill one, and wait until nothing has it for a parent any more."""
        pid = self.pids[name]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not (procfs.PROC / str(pid)).exists(), f"{name} did not end")


MANAGER = ("/usr/lib/systemd/systemd", "--user")


@contextmanager
def family(
    *members: Member, uid: int | None = None, argv: tuple[str, ...] = MANAGER, comm: str = "systemd"
) -> Iterator[Family]:
    """Run a tree below one that takes in orphans, called `argv` and `comm`, for as long as the block takes."""
    owner = os.getuid() if uid is None else uid
    root = Member("root", argv=argv, children=members, leads=False, reaps=True, comm=comm)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "sitecustomize.py").write_text(FAMILY_PROGRAM)
        (folder / "root.json").write_text(json.dumps(root.spec(owner)))
        process = subprocess.Popen(
            [sys.executable, "-c", "#" * 1000],
            env={
                "PYTHONPATH": name,
                "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}",
                "FAMILY": str(folder / "root.json"),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Family(process, root.names)
        finally:
            process.stdin.close()
            process.stdout.read()  # each has it open until it has ended
            process.stdout.close()
            process.wait()


PREPARED = """
import os, sys
os.unlink(__file__)  # what it starts runs as usual
def keep():
    os.write(1, b"ready\\n")
    while os.read(0, 1):
        pass
    os._exit(0)
"""

TITLE = """
import ctypes
def set_title(title, environ=True):  # as setproctitle does, over the arguments and the environment
    fields = open("/proc/self/stat", "rb").read().rpartition(b")")[2].split()
    begin, args_end, end = int(fields[45]), int(fields[46]), int(fields[48])
    end = end if environ else args_end
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, title, min(len(title), end - begin - 1))
"""

DROP = """
import ctypes
def drop(uid, groups=()):
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: as after an execve
"""

CHILD = """
import subprocess
def run(environ):
    child = subprocess.Popen(["sleep", "600"], env=environ)
    os.write(1, b"%d\\n" % child.pid)
    return child
"""


LAUNCHER = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import os; os.write(1, b'x'); os.read(0, 1)"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"A": "1"})
child.stdout.read(1)
os.write(1, b"%d\\n" % child.pid)
"""
"""As `first`: start a Python of another environment, and print its PID."""


class Sharing:
    """A process that waits to be looked at."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid
        self.said: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            if line == b"ready\n":
                break
            self.said.append(line.decode().strip())
        else:
            raise AssertionError("the process ended before it was ready")
        self.start = procfs.read_stat(self.pid).start_ticks


@contextmanager
def sharing(
    *argv: str,
    environ: Mapping[str, str] | Mapping[bytes, bytes] | None = None,
    cwd: Path | None = None,
    first: str = "",
    name: str = "",
) -> Iterator[Sharing]:
    """Run `python` with these arguments and exactly this environment (and PATH) for as long as the block takes.

    Its parent is this process. `first` may use `drop`, `set_title` and `run`; what it prints is in `said`. A `name` is
    its first argument in place of `python`, and of its path.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        (folder / "bin").mkdir()
        python = folder / "bin" / (name or "python")
        python.symlink_to(Path(sys.executable).resolve())
        (folder / "pyvenv.cfg").write_text(f"home = {sys.base_exec_prefix}/bin\n")
        site = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        site.mkdir(parents=True)
        (site / "sitecustomize.py").write_text(PREPARED + TITLE + DROP + CHILD + first + "\nkeep()\n")
        given = {
            b"PATH": os.fsencode(f"{python.parent}:/usr/bin:/bin")
        }  # by which Python finds itself where it has no path
        for key, value in (environ or {}).items():
            given[_bytes(key)] = _bytes(value)
        process = subprocess.Popen(
            [name or python, *argv],
            executable=python,
            env=given,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield Sharing(process)
        finally:
            _end(process)


def until_asleep(*pids: int) -> None:
    """Wait until `sleep` sleeps in each: in the middle of execve(2) a process has no environment."""
    wait_for(lambda: {(stat.comm, stat.state) for stat in map(procfs.read_stat, pids)} == {(b"sleep", "S")})


@contextmanager
def sleeping(*environ: bytes) -> Iterator[int]:
    """Run a program that is no Python with exactly this environment, entry by entry, and give its PID."""
    code = (
        "import ctypes, sys\n"
        "entries = [*(bytes.fromhex(word) for word in sys.argv[1:]), None]\n"
        "strings = ctypes.c_char_p * len(entries)\n"
        "ctypes.CDLL(None).execve(b'/bin/sleep', (ctypes.c_char_p * 3)(b'sleep', b'600', None), strings(*entries))"
    )
    with subprocess.Popen([sys.executable, "-c", code, *(entry.hex() for entry in environ)]) as process:
        try:
            until_asleep(process.pid)
            yield process.pid
        finally:
            process.kill()


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:  # it closes the pipes, and waits
        os.killpg(process.pid, signal.SIGKILL)  # with its workers


def stat_line(
    pid: int = 7, comm: bytes = b"python", state: str = "S", ppid: int = 1, flags: int = 0, start_ticks: int = 900
) -> bytes:
    """One line of /proc/PID/stat as proc(5) lays it out."""
    zeros = b" 0"
    return (
        f"{pid} (".encode()
        + comm
        + f") {state} {ppid} 7 7 0 -1 {flags}".encode()
        + zeros * 12
        + f" {start_ticks}".encode()
        + zeros * 30
        + b"\n"
    )


def fixture_process(proc: Path, pid: int, stat: bytes, *, uid: int = 1000, threads: str = "S") -> Path:
    """Write a process into a fixture tree; `threads` has the state of each."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_bytes(stat)
    (folder / "statm").write_text("0 0 0 0 0 0 0\n")
    (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    for number, state in enumerate(threads):
        thread = folder / "task" / str(pid + number)
        thread.mkdir(parents=True)
        (thread / "stat").write_bytes(stat_line(pid + number, state=state))
        (thread / "children").write_text("")
    return folder
