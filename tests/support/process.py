"""A real process that holds what looks like a GPU open, on a machine without one.

The process enters a mount namespace of its own, in which /dev is an empty tmpfs, and opens a plain file there
called nvidia0. Seen from outside, /proc/PID/fd names it /dev/nvidia0: the very text that gpuwatch asks for, so the
check under test stays as it is shipped. The machine's /dev is not touched, and all of it goes with the process.
Root needs only the mount namespace; others get it inside a user namespace, where the kernel allows these.
"""

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
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import pytest

from gpuwatch.base import procfs

ROOT = os.geteuid() == 0

ME = 54321 if ROOT else os.getuid()
"""The person in these tests: an unprivileged uid, that need not be in the user database."""

SOMEBODY_ELSE = 54322

PROGRAM = r"""
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
        (folder / self.argv[1]).write_text(PROGRAM)
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
