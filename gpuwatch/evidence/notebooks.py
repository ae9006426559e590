"""The Jupyter kernel that a process is or works for, its notebook, and whether its server has left it behind."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuwatch import procfs
from gpuwatch.declared.facts import Kin, Unread
from gpuwatch.inspector import program
from gpuwatch.inspector.program import How
from gpuwatch.model import Notebook
from gpuwatch.text import clean

_CONNECTION = re.compile(r"(?:^|[/=])kernel-(?:v\d+-?)?([0-9A-Za-z][0-9A-Za-z-]{3,63})\.json$")
"""The file that tells a kernel its ports: `kernel-<uuid>.json`, VS Code's `kernel-v2-2107….json`."""

_KERNELS = frozenset({"ipykernel_launcher", "ipykernel", "colab_kernel_launcher"})
_KERNEL_SCRIPTS = frozenset({"ipykernel_launcher.py", "launch_ipykernel.py", "colab_kernel_launcher.py"})

_START_OF_ID = 8
_LONGEST_PATH = 200


@functools.lru_cache(maxsize=128)
def is_kernel(argv: tuple[str, ...]) -> bool:
    """Say whether a command line is that of a kernel; of another language it shows by the file of its ports."""
    found = program.find_outermost_program(argv)
    if found is not None and found.how is How.MODULE and found.text in _KERNELS:
        return True
    if found is not None and found.how is How.FILE and found.text.rpartition("/")[2] in _KERNEL_SCRIPTS:
        return True
    return "--existing" not in argv and len(argv) > 1 and any(_CONNECTION.search(word) for word in argv[1:])


def is_led(argv: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    """Say whether a kernel with this command line and environment leads a session of its own: its server saw to that.

    Who shows both and leads none is a fork of one.
    """
    return is_kernel(argv) and _pid(environ.get("JPY_PARENT_PID", "")) is not None


def _pid(text: str) -> int | None:
    """Read the PID of a server; 0 and 1 stand for none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 and int(text) > 1 else None


def read(line: Sequence[Kin], *, proc: Path = procfs.PROC) -> Notebook | None:
    """Tell of the nearest kernel on the way up from a process (`line`, itself first); None where there is none.

    A server that starts a kernel gives it its own PID as JPY_PARENT_PID and the notebook as JPY_SESSION_NAME, and puts
    it into a session of its own. 0 and 1 are given by those who want it to outlive them. Papermill and nbconvert do
    the same as a server: while they run nothing is left. Sources: jupyter_client/launcher.py (JPY_PARENT_PID,
    start_new_session), jupyter_server/services/sessions/sessionmanager.py, get_kernel_env (JPY_SESSION_NAME).
    """
    place = next((number for number, kin in enumerate(line) if is_kernel(kin.argv)), None)
    if place is None:
        return None
    while place + 1 < len(line) and line[place + 1].argv == line[place].argv:
        place += 1  # only its forks have its very arguments
    kernel = line[place]
    environ = {} if isinstance(kernel.environ, Unread) else kernel.environ
    server, left = _server(line[place:], _pid(environ.get("JPY_PARENT_PID", "")), proc)
    return Notebook(
        kernel=_start_of_id(kernel.argv) or clean(environ.get("KERNEL_ID", "")[:_START_OF_ID]),
        path=clean(environ.get("JPY_SESSION_NAME", ""), _LONGEST_PATH),
        server=server,
        left=left,
    )


def _start_of_id(argv: Sequence[str]) -> str:
    found = next((match for word in argv if (match := _CONNECTION.search(word))), None)
    return found[1][:_START_OF_ID] if found else ""


def _server(line: Sequence[Kin], pid: int | None, proc: Path) -> tuple[int | None, bool]:
    """Find the server of a kernel (the first of `line`) above it, and say whether it is known to be gone."""
    kernel, *above = line
    server = next((kin.pid for kin in above if program.is_jupyter(kin.argv)), None)
    if server is not None:
        return server, False
    if pid is None:
        return None, False
    try:
        stat = procfs.read_stat(kernel.pid, proc)
        if stat.session not in (kernel.pid, 0):  # a fork of a kernel that is gone: that says nothing of the server
            return None, False
        if any(procfs.own_number(kin.pid, proc)[0] == pid for kin in above):
            return None, False  # Papermill, a gateway's script: there, and no server
        ours = procfs.own_number(kernel.pid, proc)[1]
        gone = ours and not _exists(pid, proc)
        return None, procfs.adopted(kernel.pid, stat, proc) if not gone else True
    except (OSError, ValueError):  # it, or one of those above, has just gone or is hidden
        return None, False


def _exists(pid: int, proc: Path) -> bool:
    """Say whether there is such a process; one that is hidden may be there."""
    try:
        return procfs.read_stat(pid, proc).state not in procfs.DEAD
    except procfs.GONE:
        return False
    except (OSError, ValueError):
        return True
