"""Real trees of processes with command lines, environments, sessions and uids of a test's choice, which do nothing.

Each is a Python that writes another command line over its own and stops before it runs anything, so that /proc shows
what a real torchrun or tmux would show. The tree hangs on one that takes in orphans and is called as `systemd --user`
is. All end when the test closes their common stdin, whatever became of their parents.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuwatch.base import procfs
from gpuwatch.inspector import context, reader
from gpuwatch.model.snapshot import ProcessContext, Run
from tests.support.waiting import wait_for

PROGRAM = r"""
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
        (folder / "sitecustomize.py").write_text(PROGRAM)
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
