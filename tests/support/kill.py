"""Ending processes: a pinner with its audit file, endings that a test drives, and a real run of processes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from msgspec.structs import replace

from gpuwatch.base import procfs
from gpuwatch.kill.audit import Audit
from gpuwatch.kill.ending import Ending, KillState
from gpuwatch.kill.outcome import Refusal, Refused
from gpuwatch.kill.pinned import KillTarget, PinnedProcess, Pinner
from gpuwatch.kill.policy import Policy
from gpuwatch.model.snapshot import Process, ProcessContext, Run, Snapshot
from tests.support import builders
from tests.support.process import ME, ROOT, GpuHolder
from tests.support.waiting import wait_for

NO_PROCESS = 2**22 + 1
"""Above the largest pid_max of Linux. The holders are children of pytest, so its own PID would shield them."""

POLICY = Policy(uid=ME, euid=ME, pid=NO_PROCESS)


def a_pinner(folder: Path, policy: Policy = POLICY, **seams: Any) -> Pinner:
    """The program as this person runs it, with its audit file in `folder`."""
    return Pinner(policy, Audit(folder), **seams)


def a_target(
    pid: int, start: int, uid: int | None = ME, command: str = "", program: str = "", **more: Any
) -> KillTarget:
    """A process as a row of the screen has it."""
    return KillTarget(Process(pid=pid, start=start, uid=uid, command=command, program=program), **more)


def target_of(holder: GpuHolder, **changes: Any) -> KillTarget:
    """The row of a holder on screen; `changes` are of its process."""
    shown = a_target(holder.pid, holder.start_ticks, holder.uid, holder.command, gpus=("GPU-4",), memory=12 << 30)
    return replace(shown, process=replace(shown.process, **changes))


def pinned(pinner: Pinner, target: KillTarget) -> PinnedProcess:
    """Pin what must not be refused."""
    result = pinner.pin(target)
    assert isinstance(result, PinnedProcess), result.sentence
    return result


def refused(pinner: Pinner, target: KillTarget) -> Refused:
    """Try what must be refused, and see that it is on record."""
    result = pinner.pin(target)
    if isinstance(result, PinnedProcess):
        result.close()
        raise AssertionError(f"PID {target.pid} was not refused")
    last = on_record(pinner)[-1]
    assert (last["event"], last["pid"], last["result"]) == ("refused", target.pid, result.reason.word)
    return result


def reason(pinner: Pinner, target: KillTarget) -> Refusal:
    """Why a target is refused."""
    return refused(pinner, target).reason


def asking(
    pinner: Pinner,
    target: KillTarget,
    snapshot: Snapshot | None = None,
    *,
    whole_run: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Ending:
    """An ending that was checked at once and has come to the question."""
    ending = Ending(pinner, target, snapshot or Snapshot(), whole_run=whole_run, clock=clock)
    ending.tick()
    assert ending.state is KillState.ASKING, ending.message
    return ending


def look(ending: Ending) -> KillState:
    """Let an ending look where it is time to look, and go on by what it saw."""
    for _ in range(3):
        ending.tick()
    return ending.state


def has_exited(ending: Ending) -> bool:
    """Let an ending look; whether all of it has come to its end."""
    look(ending)
    return ending.exited


def on_record(pinner: Pinner) -> list[dict[str, Any]]:
    """The lines of the audit file."""
    assert pinner.audit.flush(30.0) is None
    return [json.loads(line) for line in pinner.audit.path.read_text().splitlines()]


def outcomes(pinner: Pinner) -> list[tuple[list[str], str]]:
    """The signals and the result of each line about an outcome."""
    return [(line["signals"], line["result"]) for line in on_record(pinner) if line["event"] == "outcome"]


def sent(process: PinnedProcess, sig: signal.Signals) -> bool:
    """Signal a process; whether the signal was sent."""
    return process.send(sig) is None


RUN_PROGRAM = r"""
import json, os, signal, sys, time

spec = json.loads(sys.argv[1])
folder, children, role = spec["folder"], [], "launcher"

def heard(number, frame):
    with open(f"{folder}/{os.getpid()}.heard", "a") as file:
        file.write(signal.Signals(number).name + "\n")
    if role == "launcher" and spec["launcher"] == "forks":
        child = os.fork()
        if not child:
            begin("late")
            stay()
    if role == "launcher" and spec["launcher"] == "passes":
        for child in children:
            os.kill(child, number)
        for child in children:
            os.waitpid(child, 0)
    if role == spec["deaf"]:
        return
    if role == "rank":
        time.sleep(spec["saving"])
    os._exit(0)

def stay():
    while True:
        signal.pause()

def become(number, frame):
    os.execv(f"{folder}/python", ["python", f"{folder}/important_new_run.py"])

def begin(name):
    global role
    role = name
    children.clear()
    signal.signal(signal.SIGTERM, heard)
    signal.signal(signal.SIGINT, heard)
    signal.signal(signal.SIGUSR1, become)
    with open(f"{folder}/{os.getpid()}.new", "w") as file:
        file.write(role)
    os.rename(f"{folder}/{os.getpid()}.new", f"{folder}/{os.getpid()}.ready")

def start(name, then=None):
    child = os.fork()
    if not child:
        if then:
            then()
        begin(name)
        stay()
    children.append(child)

def rank():
    os.set_inheritable(os.open(folder + "/dev/nvidia0", os.O_RDWR), True)
    for _ in range(spec["workers"]):
        start("worker")

def belong_to(uid):
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)

if spec["odd"]:
    start("odd", lambda: belong_to(spec["odd"]))
if os.getuid() != spec["uid"]:
    belong_to(spec["uid"])
for _ in range(spec["ranks"]):
    start("rank", rank)
mine = list(children)
begin("launcher")
children[:] = mine
stay()
"""


class RealRun:
    """A launcher with `ranks`, each with `workers`; a context manager that leaves nothing behind.

    The launcher `passes` a signal on and waits, `dies` of it alone, or `forks` one more process and dies. `deaf` names
    the role that hears signals and does not end. `odd` is the uid of one more child of the launcher, as root alone can.
    """

    def __init__(
        self,
        *,
        ranks: int = 4,
        workers: int = 2,
        launcher: str = "passes",
        deaf: str = "",
        saving: float = 0.0,
        odd: int = 0,
        uid: int = ME,
        around: Sequence[str] = (),
    ) -> None:
        """`around` is a command that the launcher's own is put behind, such as a shell."""
        if odd and not ROOT:
            pytest.skip("a process of another uid needs root")
        self.uid = uid
        self.around = tuple(around)
        self._count = 1 + ranks * (1 + workers) + bool(odd)
        self._spec: dict[str, Any] = {
            "ranks": ranks,
            "workers": workers,
            "launcher": launcher,
            "deaf": deaf,
            "saving": saving,
            "odd": odd,
            "uid": uid,
        }
        self._handles: dict[int, int] = {}

    def __enter__(self) -> RealRun:
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        self.folder.chmod(0o777)
        (self.folder / "dev").mkdir()
        (self.folder / "dev" / "nvidia0").touch()
        (self.folder / "dev" / "nvidia0").chmod(0o666)
        (self.folder / "python").symlink_to("/bin/sh")
        os.mkfifo(self.folder / "never")
        (self.folder / "never").chmod(0o666)
        stay = f'cd "{self.folder}"\nexec 3<>never\n: >$$.became\nread line <&3\n'
        (self.folder / "important_new_run.py").write_text(stay)
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", RUN_PROGRAM, json.dumps({**self._spec, "folder": str(self.folder)})],
            start_new_session=True,
        )
        try:
            wait_for(lambda: len(self._ready()) == self._count, "the run did not start")
            self.roles = {int(file.stem): file.read_text() for file in self._ready()}
            self.starts = {pid: procfs.read_stat(pid).start_ticks for pid in self.roles}
            self._handles = {pid: os.pidfd_open(pid) for pid in self.roles}
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _ready(self) -> list[Path]:
        return list(self.folder.glob("*.ready"))

    @property
    def dev(self) -> str:
        """What a pinner is to take for /dev."""
        return str(self.folder / "dev")

    @property
    def launcher(self) -> int:
        """PID of the launcher."""
        return self.of("launcher")[0]

    def of(self, role: str) -> list[int]:
        """PIDs of a role, in order."""
        return sorted(pid for pid, one in self.roles.items() if one == role)

    def exec(self, pid: int) -> None:
        """Let one of them run `python important_new_run.py` in its place: the same process, with the GPU open."""
        os.kill(pid, signal.SIGUSR1)
        wait_for((self.folder / f"{pid}.became").exists, f"{pid} started no other program")

    def alive(self) -> set[int]:
        """Those that still run."""
        return {pid for pid, handle in self._handles.items() if not select.select([handle], [], [], 0)[0]}

    def heard(self) -> dict[int, list[str]]:
        """By PID, the signals that it got."""
        return {int(file.stem): file.read_text().split() for file in self.folder.glob("*.heard")}

    def late(self) -> list[int]:
        """PIDs of what the launcher has forked when it was signalled."""
        return sorted(int(file.stem) for file in self._ready() if file.read_text() == "late")

    def as_run(self, **changes: Any) -> Run:
        """What the sampler says of it."""
        fields: dict[str, Any] = {
            "key": f"{self.launcher}:{self.starts[self.launcher]}",
            "launcher": "torchrun",
            "head": self.launcher,
            "head_start": self.starts[self.launcher],
        }
        return Run(**{**fields, **changes})

    def processes(self, job: Run | None = None) -> list[Process]:
        """The ranks as a snapshot has them."""
        around = ProcessContext(run=job or self.as_run())
        return [
            builders.process(
                pid,
                "you",
                start=self.starts[pid],
                uid=self.uid,
                command="python train.py",
                program=procfs.read_stat(pid).program,
                context=around,
            )
            for pid in self.of("rank")
        ]

    def snapshot(self, job: Run | None = None, *others: Process) -> Snapshot:
        """What the sampler sees: the ranks on GPU 0, a GiB each."""
        held = [builders.holding(pid, 1.0, start=self.starts[pid]) for pid in self.of("rank")]
        return builders.snapshot([builders.gpu(0, holdings=held)], [*self.processes(job), *others], viewer=self.uid)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for file in self._ready():
            pid = int(file.stem)
            if pid not in self._handles:
                try:
                    self._handles[pid] = os.pidfd_open(pid)
                except ProcessLookupError:
                    continue
        for handle in self._handles.values():
            if not select.select([handle], [], [], 0)[0]:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [])
            os.close(handle)
        self._folder.cleanup()


def held_by(holder: GpuHolder, gib: float = 12.0, **changes: Any) -> Snapshot:
    """A snapshot in which a real process holds GPU 4."""
    held = [builders.holding(holder.pid, gib, start=holder.start_ticks)] if gib else []
    process = builders.process(
        holder.pid, "you", start=holder.start_ticks, uid=holder.uid, command=holder.command, ppid=1
    )
    return builders.snapshot([builders.gpu(4, holdings=held)], [process], viewer=ME, **changes)
