"""Terminal that a process was started in: tmux, screen or Zellij pane, and the login behind it.

tmux -S SOCKET list-panes -a -F FORMAT

The environment of a process has numbers only. A tmux of ours is asked, and no one else's: its client does what the
server tells it, to the point of running a command (tmux/client.c, MSG_SHELL). In the answer a session's name has no
`:` (tmux/session.c, session_check_name), and no name a line break: each is written with backslashes (utf8_stravis).
What the user has set for the hook `after-list-panes` runs in that server, as whenever panes are listed.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatch import procfs
from gpuwatch.child import die_with_parent
from gpuwatch.declared.facts import RelatedProcess, Unread
from gpuwatch.inspector import program
from gpuwatch.model import Pane
from gpuwatch.text import clean

if TYPE_CHECKING:
    from subprocess import Popen


_ADDRESS = re.compile(r"[0-9A-Za-z.:%_-]{2,64}")
"""IPv4, IPv6, one with a zone. `UNKNOWN` is what sshd says where there is no address."""

_TMUX = re.compile(r"(.*),(\d{1,10}),(\d{1,10})", re.DOTALL)
"""TMUX: the socket, the server's PID, the number of the session. Source: tmux/environ.c, environ_for_session."""

_STY = re.compile(r"(\d{1,10})\.(.+)", re.DOTALL)
"""STY: the PID of the session's process, and its name. Source: screen(1), "ENVIRONMENT"."""

_BATCH = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "SGE_TASK_ID")
"""A batch system copies the environment of who submitted, often on another machine: their terminal is not the job's."""

_LONGEST = 40


class Place(NamedTuple):
    """A pane, and who could say more of it."""

    pane: Pane
    server: int = 0
    """PID of the multiplexer's server, a number of ours; 0 where there is none that runs, or that cannot be told."""
    socket: str = ""
    """Where tmux's server listens, as the environment has it: not clean, for no screen."""


def environs(line: Sequence[RelatedProcess]) -> Iterator[Mapping[str, str]]:
    """Return the environments on the way up that could be read: what is not of the process it has mostly inherited."""
    for kin in line:
        if not isinstance(kin.environ, Unread):
            yield kin.environ


def ssh(line: Sequence[RelatedProcess]) -> str:
    """Give from where the login came, by SSH_CONNECTION; empty where it was no login by SSH.

    Source: ssh(1), "ENVIRONMENT": client address, client port, server address, server port; SSH_CLIENT is older.
    """
    for environ in environs(line):
        words = (environ.get("SSH_CONNECTION") or environ.get("SSH_CLIENT") or "").split()
        if words and _ADDRESS.fullmatch(words[0]) and words[0] != "UNKNOWN":
            return clean(words[0])
    return ""


def pane(line: Sequence[RelatedProcess], *, proc: Path = procfs.PROC) -> Pane | None:
    """Tell in which multiplexer a process was started, see `place`."""
    found = place(line, proc=proc)
    return None if found is None else found.pane


def place(line: Sequence[RelatedProcess], *, proc: Path = procfs.PROC) -> Place | None:
    """Tell in which multiplexer a process (the first of `line`) was started; None for another terminal, or none.

    The nearest that holds a terminal is right, whatever was inherited from around it. Where none is to be seen any
    more, the environment tells what there was, and whether that still runs.
    """
    holder = next((kin for kin in line[1:] if program.holds_terminal(kin)), None)
    ours = _ours(line[0].pid, proc)
    if holder is not None:
        word = program.outermost_name(holder.argv) or holder.comm.partition(":")[0]
        return _held(line, holder, word.lower(), ours=ours)
    for environ in environs(line):
        if any(name in environ for name in _BATCH):
            return None
        found = [one for one in (_tmux(environ), _screen(environ)) if one is not None]
        places = [(_alive(one.server, one.pane.program, proc) if ours else None, one) for one in found]
        for alive, one in sorted(places, key=lambda pair: pair[0] is not True):  # one in the other: that which runs
            return _seen(one, alive=alive, ours=ours)
        if zellij := _zellij(environ):
            return Place(zellij)
    return None


def _seen(place: Place, *, alive: bool | None, ours: bool) -> Place:
    """Add whether the server runs; one that does not, or whose number is not ours, can be asked nothing."""
    pane = msgspec.structs.replace(place.pane, alive=alive)
    return Place(pane, place.server, place.socket) if alive and ours else Place(pane)


def _held(line: Sequence[RelatedProcess], holder: RelatedProcess, word: str, *, ours: bool) -> Place | None:
    """Return the pane where its server is an ancestor, by the environment that was made for it."""
    if word not in ("tmux", "screen", "zellij"):
        return None
    for environ in environs(line):
        if word == "zellij":
            if found := _zellij(environ):
                return Place(msgspec.structs.replace(found, alive=True))
            continue
        one = _tmux(environ) if word == "tmux" else _screen(environ)
        if one is not None and (one.server == holder.pid or not ours):
            return _seen(one, alive=True, ours=ours)
    return Place(Pane(program=word, alive=True))


def _ours(pid: int, proc: Path) -> bool:
    """Return whether the PIDs that a process knows are ours."""
    try:
        return procfs.own_number(pid, proc)[1]
    except (OSError, ValueError):
        return False


def _tmux(environ: Mapping[str, str]) -> Place | None:
    """tmux gives the number of a session and of a pane; `tmux attach -t '$0'` takes them as it takes names."""
    match = _TMUX.fullmatch(environ.get("TMUX", ""))
    if not match:
        return None
    number = environ.get("TMUX_PANE", "")
    window = number if re.fullmatch(r"%\d{1,10}", number, re.ASCII) else ""
    return Place(Pane(program="tmux", session=f"${int(match[3])}", window=window), int(match[2]), match[1])


def _screen(environ: Mapping[str, str]) -> Place | None:
    match = _STY.fullmatch(environ.get("STY", ""))
    if not match:
        return None
    window = clean(environ.get("WINDOW", ""), 8)
    return Place(Pane(program="screen", session=clean(match[2], _LONGEST), window=window), int(match[1]))


def _zellij(environ: Mapping[str, str]) -> Pane | None:
    name = clean(environ.get("ZELLIJ_SESSION_NAME", ""), _LONGEST)
    return Pane(program="zellij", session=name, window=clean(environ.get("ZELLIJ_PANE_ID", ""), 8)) if name else None


def _alive(pid: int, name: str, proc: Path) -> bool | None:
    """Return whether a multiplexer still runs: tmux's server calls itself `tmux: server`, screen's `screen`."""
    try:
        stat = procfs.read_stat(pid, proc)
    except procfs.GONE:
        return False
    except (OSError, ValueError):
        return None
    return stat.state not in procfs.DEAD and stat.comm.lower().startswith(name.encode())


PATIENCE = 1.0
"""Seconds that one answer may take."""

FRESH = 30.0
"""Seconds for which an answer is remembered."""

SILENT = 60.0
"""Seconds for which a server that gave none is left alone."""

MOST = 64
"""Servers that are remembered."""

LONGEST = 40
"""Characters of a name."""

_LARGEST = 256 << 10
"""Bytes of an answer: a thousand panes have 100 kB."""

_DYING = 0.2
"""Seconds that what was killed may take to go; what hangs in the kernel is reaped later."""

_LOOK = 0.02
"""Seconds between two looks whether it has ended: a server that was handed its output may keep that open."""

_FORMAT = "#{pid} #{pane_id} #{session_id} #{window_index}:#{session_name}:#{window_name}"
_LINE = re.compile(rb"(\d{1,10}) (%\d{1,10}) (\$\d{1,10}) (\d{1,10}):([^:]+):(.*)")

_LONGEST_WORDS = 200

_ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
"""No TMUX; by LC_ALL it knows that we take UTF-8, else all but ASCII comes as `_` (tmux(1), -u)."""

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class _Row(NamedTuple):
    """Where a pane is shown; a window that is linked is in several sessions."""

    number: str
    """Of the session."""
    session: str
    window: str


_Listed = dict[tuple[int, str], list[_Row]]
"""By PID of the server and number of the pane."""


class _Answer(NamedTuple):
    until: float
    listed: _Listed
    failure: str = ""


class PaneNames:
    """Asks tmux what its sessions and windows are called, and remembers it."""

    def __init__(
        self,
        patience: float = PATIENCE,
        *,
        uid: int | None = None,
        path: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`uid` is whose servers are asked (ours, if it is not given), `path` is a PATH to find tmux on (our own)."""
        self.uid = os.geteuid() if uid is None else uid
        self._patience = patience
        self._path = os.environ.get("PATH", "") if path is None else path
        self._clock = clock
        self._answers: dict[str, _Answer] = {}

    def named(self, place: Place) -> Pane:
        """Return a pane with the names of today; with its numbers where it is no pane of tmux, or is gone.

        Raises OSError, in plain words, where its server cannot be asked.
        """
        if place.pane.program != "tmux" or not (place.server and place.pane.window):
            return place.pane
        rows = self._listed(place.socket).get((place.server, place.pane.window))
        if not rows:
            return place.pane
        row = next((row for row in rows if row.number == place.pane.session), rows[0])
        return msgspec.structs.replace(place.pane, session=row.session, window=row.window)

    def _listed(self, place: str) -> _Listed:
        answer = self._answers.pop(place, None)
        if answer is None or self._clock() >= answer.until:
            try:
                listed = _parsed(self._asked(Path(place)))
                answer = _Answer(self._clock() + FRESH, listed)
            except (OSError, ValueError) as error:
                answer = _Answer(self._clock() + SILENT, {}, _words(error))
        self._answers[place] = answer
        while len(self._answers) > MOST:
            del self._answers[next(iter(self._answers))]
        if answer.failure:
            raise OSError(answer.failure)
        return answer.listed

    def _asked(self, place: Path) -> bytes:
        """Ask the server behind a socket; raises OSError."""
        if not place.is_absolute():
            raise OSError("TMUX names no socket")
        place = Path(os.path.realpath(place))
        state = place.lstat()
        if not stat.S_ISSOCK(state.st_mode):
            raise OSError(f"{place} is no socket")
        if words := _distrusted(place, state, {self.uid}) or _distrusted_folders(place, self.uid):
            raise OSError(words)
        return _run(self._program(), ("-S", str(place), "list-panes", "-a", "-F", _FORMAT), self._patience)

    def _program(self) -> str:
        """Return the first tmux on PATH that nobody else could have put there; raises OSError where there is none."""
        refused = "there is no tmux on PATH"
        for folder in self._path.split(":"):
            if not folder.startswith("/"):
                continue
            place = Path(os.path.realpath(f"{folder}/tmux"))
            try:
                state = place.lstat()
                if not (stat.S_ISREG(state.st_mode) and os.access(place, os.X_OK)):
                    continue
                words = _distrusted(place, state, {self.uid, 0}, others=_OTHERS)
                words = words or _distrusted_folders(place, self.uid)
            except OSError:  # not here, or not for us to see
                continue
            if not words:
                return str(place)
            refused = f"it is not run: {words}"
        raise OSError(refused)


def _distrusted(place: Path, state: os.stat_result, owners: set[int], *, others: int = 0) -> str:
    """Return why a file is not to be believed, by who owns it and by the bits of its mode; empty where it is."""
    if state.st_uid not in owners:
        return f"uid {state.st_uid} owns {place}"
    return f"others can write {place}" if state.st_mode & others else ""


def _distrusted_folders(place: Path, uid: int) -> str:
    """Say which folder above lets others put something else there; empty where none does. Raises OSError.

    In a sticky one, such as /tmp, others cannot replace our folder; but they could make what we have removed.
    """
    for folder in place.parents:
        state = folder.lstat()
        sticky = folder != place.parent and state.st_mode & stat.S_ISVTX
        if words := _distrusted(folder, state, {uid, 0}, others=0 if sticky else _OTHERS):
            return words
    return ""


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return clean(f"{error.strerror}: {error.filename or 'tmux'}", _LONGEST_WORDS)
    return clean(str(error), _LONGEST_WORDS)


def _parsed(output: bytes) -> _Listed:
    """Understand an answer; lines that are none are none of ours."""
    listed: _Listed = {}
    for line in output.split(b"\n"):
        if match := _LINE.fullmatch(line):
            server, pane, number, index, session, window = match.groups()
            row = _Row(
                number.decode(), clean(session, LONGEST), f"{index.decode()}:{clean(window, LONGEST)}".rstrip(":")
            )
            listed.setdefault((int(server), pane.decode()), []).append(row)
    return listed


# -- the program ---------------------------------------------------------------------------------------------------


def _run(program: str, arguments: Sequence[str], patience: float) -> bytes:
    """Run tmux and give what it printed; it ends with us. Raises OSError where it fails, hangs, or never stops."""
    import subprocess  # 8 ms that nobody else's start need wait for

    process = subprocess.Popen(
        ["tmux", *arguments],
        executable=program,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        cwd="/",
        env=_ENVIRON,
        start_new_session=True,
        preexec_fn=die_with_parent,  # the reader has one thread, and may be killed while this hangs
    )
    try:
        output = b"".join(_chunks(process, patience))
    finally:
        _end(process)
    if process.returncode:
        said = output.rstrip().rpartition(b"\n")[2]
        raise OSError(f"tmux: exit code {process.returncode}: {clean(said, 60)}")
    return output


def _chunks(process: Popen[bytes], patience: float) -> Iterator[bytes]:
    """Return what it prints until it has ended, and reap it; raises OSError after so many seconds, or bytes."""
    assert process.stdout is not None
    pipe, length, end = process.stdout.fileno(), 0, time.monotonic() + patience
    poller = select.poll()  # select(2) knows no descriptor above 1,023
    poller.register(pipe, select.POLLIN)
    done = False
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise OSError(f"tmux does not answer within {patience:g} s")
        if poller.poll(0 if done else min(left, _LOOK) * 1000):
            chunk = os.read(pipe, 1 << 16)
            length += len(chunk)
            if length > _LARGEST:
                raise OSError("tmux says more than makes sense")
            if chunk:
                yield chunk
                continue
            _await(process, end, patience)
            return
        if done:
            return
        done = process.poll() is not None


def _await(process: Popen[bytes], end: float, patience: float) -> None:
    """Wait for the end of one that has closed its output; raises OSError where it does not come in time."""
    import subprocess

    try:
        process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise OSError(f"tmux does not end within {patience:g} s") from None


def _end(process: Popen[bytes]) -> None:
    """Kill it, with all that it started, where it runs."""
    import subprocess

    assert process.stdout is not None
    process.stdout.close()
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the number is still its own
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DYING)
