"""A real Python process with a command line, an environment and a folder of a test's choice, that never gets to run.

It stops where Python imports the `sitecustomize` of a virtual environment of its own, before it opens its script: so
/proc has exactly what a training of that command line would show, whatever the script is, and no variable is set for
that. `first` is code that it runs before it says that it is ready: with it a test lets go of root's rights, sets a
title, or starts workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuwatch.base import procfs

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
    end = time.monotonic() + 30
    for pid in pids:
        while (stat := procfs.read_stat(pid)).comm != b"sleep" or stat.state != "S":
            assert time.monotonic() < end


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
