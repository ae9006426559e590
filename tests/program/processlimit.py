"""What the tests of a reached process limit share: a program under a uid with a limit of its own, set while it runs.

RLIMIT_NPROC counts the threads of all processes of a uid and does not hold for root (setrlimit(2)), so root's programs
run under a uid that nobody else has. They keep the right to read every file: the interpreter may lie in root's home.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.process import ROOT, unavailable
from tests.support.waiting import wait_for

UID = 55_000 + os.getpid() % 4_000 if ROOT else os.getuid()
"""Nobody else's, also where tests run beside each other."""
_READS = "+dac_override,+dac_read_search"
_LIMITED = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
resource.setrlimit(resource.RLIMIT_NPROC, (int(sys.argv[1]), hard))
os.execv(sys.argv[2], sys.argv[2:])
"""
_LIMIT = """
import resource, sys
pid, most = map(int, sys.argv[1:])
hard = resource.prlimit(pid, resource.RLIMIT_NPROC)[1]
resource.prlimit(pid, resource.RLIMIT_NPROC, (hard if most < 0 else most, hard))
"""


def as_uid(*command: str) -> list[str]:
    """Return a command line that runs a program under the uid."""
    if not ROOT:
        return list(command)
    if shutil.which("setpriv") is None:
        unavailable("setpriv is not installed")
    ids = ["--reuid", str(UID), "--regid", str(UID), "--clear-groups"]
    return ["setpriv", *ids, "--inh-caps", _READS, "--ambient-caps", _READS, *command]


def started_with(more: int, *command: str) -> list[str]:
    """Return a command line that starts a program with room for so many threads, its first one counted.

    What an earlier test has left under the uid is waited for, but for zombies: they count until they are reaped.
    """
    wait_for(lambda: set(_states()) <= {psutil.STATUS_ZOMBIE})
    return as_uid(sys.executable, "-c", _LIMITED, str(len(_states()) + more), *command)


def _states() -> list[str]:
    """Return the state of each process of the uid."""
    states: list[str] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.uids().real == UID:
                states.append(process.status())
    return states


def limit(pid: int, *, reached: bool) -> None:
    """Let a running program have no more threads and processes, or as many as before."""
    subprocess.run(as_uid(sys.executable, "-c", _LIMIT, str(pid), "1" if reached else "-1"), check=True)


def give(*folders: Path) -> None:
    """Give folders to the uid."""
    for folder in folders:
        os.chown(folder, UID, UID if ROOT else os.getgid())
