"""Terminal of a process: finds the tmux, screen or Zellij pane in which it was started, and the login behind it.

tmux -u -S SOCKET list-panes -a -F FORMAT

The environment of a process has only numbers of sessions and panes. Only the user's own tmux is asked for names: a
server can make its client run a command (tmux/client.c, MSG_SHELL). In the answer a session's name has no `:`
(tmux/session.c, session_check_name), and names have no line breaks: backslashes replace them (utf8_stravis). The
user's hook `after-list-panes` runs in that server, as for every list of panes.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuwatch.base import procfs, programs
from gpuwatch.base.child import describe_exit, run
from gpuwatch.base.files import check_source
from gpuwatch.base.text import clean, mask
from gpuwatch.declared.facts import RelatedProcess, Unread
from gpuwatch.model.snapshot import Pane

LONGEST = 40
"""Characters of a name."""


class PanePlace(NamedTuple):
    """Pane in which a process was started, and the server of its multiplexer."""

    pane: Pane
    server: int = 0
    """PID of the server in our PID namespace; 0 where the server has ended, or is not known."""
    socket: str = ""
    """Path of tmux's socket, taken from the environment: not clean."""


# -- the environment -----------------------------------------------------------------------------------------------

_ADDRESS = r"[0-9A-Za-z.:%_-]{2,64}"
"""IPv4 or IPv6 address, also with a zone. sshd writes `UNKNOWN` where there is no address."""

_TMUX = re.compile(r"(.*),(\d{1,10}),(\d{1,10})", re.DOTALL)
"""TMUX: the socket, the server's PID, the number of the session. Source: tmux/environ.c, environ_for_session."""

_STY = re.compile(r"(\d{1,10})\.(.+)", re.DOTALL)
"""STY: the PID of the session's process, and its name. Source: screen(1), "ENVIRONMENT"."""


def read_environs(line: Sequence[RelatedProcess]) -> Iterator[Mapping[str, str]]:
    """Return the readable environments of a process and its ancestors: most variables are inherited."""
    for one in line:
        if not isinstance(one.environ, Unread):
            yield one.environ


def find_ssh(line: Sequence[RelatedProcess]) -> str:
    """Return the address from which the SSH login came; empty for a login without SSH, and for a batch job.

    Source: ssh(1), "ENVIRONMENT": client address, client port, server address, server port; SSH_CLIENT is older.
    """
    for environ in read_environs(line):
        if is_of_batch_job(environ):
            return ""
        words = (environ.get("SSH_CONNECTION") or environ.get("SSH_CLIENT") or "").split()
        if words and re.fullmatch(_ADDRESS, words[0]) and words[0] != "UNKNOWN":
            return clean(words[0])
    return ""


def is_of_batch_job(environ: Mapping[str, str]) -> bool:
    """Return whether an environment is a batch job's: the rest of it is that of its submission, often elsewhere."""
    return any(one.job in environ and one.mark in environ for one in programs.SCHEDULERS)


def find_pane(line: Sequence[RelatedProcess], *, proc: Path = procfs.PROC) -> PanePlace | None:
    """Return the pane in which a process (the first of `line`) was started; None where there is no such pane.

    The nearest ancestor that owns a terminal decides. Where none is left, the environment names the pane and its
    server, which may still run.
    """
    visible = _sees_our_pids(line[0].pid, proc)
    names = (programs.parse_command(one.argv).name or programs.name_from_comm(one.comm) for one in line[1:])
    owner = next(((one, name) for one, name in zip(line[1:], names, strict=True) if programs.is_terminal(name)), None)
    if owner is not None:
        process, name = owner[0], owner[1].lower()
        if name not in _PARSERS:
            return None
        found = [one for environ in read_environs(line) if (one := _PARSERS[name](environ)) is not None]
        own = (one for one in found if not one.server or one.server == process.pid or not visible)
        return _with_state(next(own, PanePlace(Pane(program=name))), alive=True, visible=visible)
    for environ in read_environs(line):
        if is_of_batch_job(environ):
            return None
        found = [one for parse in _PARSERS.values() if (one := parse(environ)) is not None]
        places = [_with_state(one, alive=_is_alive(one, proc) if visible else None, visible=visible) for one in found]
        if places:  # of one multiplexer in another, the one that runs
            return min(places, key=lambda place: place.pane.alive is not True)
    return None


def _with_state(place: PanePlace, *, alive: bool | None, visible: bool) -> PanePlace:
    pane = msgspec.structs.replace(place.pane, alive=alive)
    return place._replace(pane=pane) if alive and visible else PanePlace(pane)


def _sees_our_pids(pid: int, proc: Path) -> bool:
    try:
        return procfs.read_own_pid(pid, proc)[1]
    except (OSError, ValueError):
        return False


def _parse_tmux(environ: Mapping[str, str]) -> PanePlace | None:
    """Return the numbers of a session and a pane; `tmux attach -t '$0'` accepts these numbers like names."""
    match = _TMUX.fullmatch(environ.get("TMUX", ""))
    if not match:
        return None
    number = environ.get("TMUX_PANE", "")
    window = number if re.fullmatch(r"%\d{1,10}", number, re.ASCII) else ""
    return PanePlace(Pane(program="tmux", session=f"${int(match[3])}", window=window), int(match[2]), match[1])


def _parse_screen(environ: Mapping[str, str]) -> PanePlace | None:
    match = _STY.fullmatch(environ.get("STY", ""))
    if not match:
        return None
    window = clean(environ.get("WINDOW", ""), 8)
    return PanePlace(Pane(program="screen", session=mask(match[2], LONGEST), window=window), int(match[1]))


def _parse_zellij(environ: Mapping[str, str]) -> PanePlace | None:
    if not (name := environ.get("ZELLIJ_SESSION_NAME", "")):
        return None
    session, window = mask(name, LONGEST), clean(environ.get("ZELLIJ_PANE_ID", ""), 8)
    return PanePlace(Pane(program="zellij", session=session, window=window)) if session else None


_PARSERS = {"tmux": _parse_tmux, "screen": _parse_screen, "zellij": _parse_zellij}


def _is_alive(place: PanePlace, proc: Path) -> bool | None:
    """Return whether a multiplexer still runs: tmux's server calls itself `tmux: server`, screen's `screen`."""
    if not place.server:
        return None
    try:
        stat = procfs.read_stat(place.server, proc)
    except procfs.GONE:
        return False
    except (OSError, ValueError):
        return None
    return stat.state not in procfs.DEAD and stat.comm.lower().startswith(place.pane.program.encode())


# -- tmux ----------------------------------------------------------------------------------------------------------

PATIENCE = 1.0
"""Seconds that one answer may take."""

FRESH = 30.0
"""Seconds for which an answer is remembered."""

SILENT = 60.0
"""Seconds for which a server that did not answer is not asked again."""

MOST = 64
"""Servers whose answers are remembered, at most."""

_LARGEST = 256 << 10
"""Bytes of an answer, at most, from its end: a thousand panes have 100 kB."""

_GRACE = 0.2
"""Seconds to wait for a client that was killed, at most: the whole answer has two."""

_FORMAT = "#{pid} #{pane_id} #{session_id} #{window_index}:#{session_name}:#{window_name}"
_LIST = ("list-panes", "-a", "-F", _FORMAT)
_LINE = rb"(\d{1,10}) (%\d{1,10}) (\$\d{1,10}) (\d{1,10}):([^:]+):(.*)"


class _Row(NamedTuple):
    """Session and window of a pane; a linked window is in several sessions."""

    number: str
    """Number of the session."""
    session: str
    window: str


_Listed = dict[tuple[int, str], list[_Row]]
"""Rows by PID of the server and number of the pane."""


class _Answer(NamedTuple):
    until: float
    listed: _Listed
    failure: str = ""


class PaneNames:
    """Cache of tmux's names of sessions and windows."""

    def __init__(
        self,
        patience: float = PATIENCE,
        *,
        uid: int | None = None,
        path: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`uid` is the owner of the servers to ask (default: ours), `path` the PATH to find tmux on (default: ours)."""
        self.uid = os.geteuid() if uid is None else uid
        self._patience = patience
        self._path = os.environ.get("PATH", "") if path is None else path
        self._clock = clock
        self._answers: dict[str, _Answer] = {}

    def find(self, place: PanePlace) -> Pane:
        """Return a pane with its present names; with its numbers where it is not of tmux, or has ended.

        Raises OSError, in plain words, where its server cannot be asked.
        """
        if place.pane.program != "tmux" or not (place.server and place.pane.window):
            return place.pane
        rows = self._list(place.socket).get((place.server, place.pane.window))
        if not rows:
            return place.pane
        row = next((row for row in rows if row.number == place.pane.session), rows[0])
        return msgspec.structs.replace(place.pane, session=row.session, window=row.window)

    def _list(self, socket: str) -> _Listed:
        answer = self._answers.pop(socket, None)
        if answer is None or self._clock() >= answer.until:
            try:
                answer = _Answer(self._clock() + FRESH, _parse_answer(self.ask(Path(socket), *_LIST)))
            except (OSError, ValueError) as error:
                answer = _Answer(self._clock() + SILENT, {}, _format_error(error))
        self._answers[socket] = answer
        while len(self._answers) > MOST:
            del self._answers[next(iter(self._answers))]
        if answer.failure:
            raise OSError(answer.failure)
        return answer.listed

    def ask(self, socket: Path, *arguments: str) -> bytes:
        """Run tmux on the server of a socket of the user's own; raises OSError, in plain words."""
        import shutil  # for those who use tmux

        program = shutil.which("tmux", path=self._path)
        if program is None:
            raise OSError("tmux is not on PATH")
        if not socket.is_absolute() or socket.stat().st_uid != self.uid:
            raise OSError(f"TMUX does not name a socket of uid {self.uid}")
        # Any process may name any socket, and root may have the PATH of another user.
        unsafe = check_source(socket, self.uid, kind=stat.S_IFSOCK) or check_source(Path(program), self.uid)
        if unsafe:
            raise OSError(f"tmux is not run: {unsafe}")
        path = str(Path(program).absolute())
        # Forked, and so killed with this process: the reader may be killed while a server hangs.
        client = partial(os.execv, path, (path, "-u", "-S", str(socket), *arguments))
        code, answer = run(
            client, b"", output=1, timeout=self._patience, is_stopped=lambda: False, most=_LARGEST, grace=_GRACE
        )
        if code is None:
            raise OSError(f"tmux does not answer within {self._patience:g} s")
        if code:
            raise OSError(f"tmux: {describe_exit(code)}")
        return answer


def _format_error(error: Exception) -> str:
    words = str(error)
    if isinstance(error, OSError) and error.strerror:
        words = f"{error.strerror}: {error.filename or 'tmux'}"
    return clean(words, 200)


def _parse_answer(output: bytes) -> _Listed:
    """Return the rows of tmux's answer; other lines are ignored."""
    listed: _Listed = {}
    for line in output.split(b"\n"):
        if match := re.fullmatch(_LINE, line):
            server, pane, number, index, session, window = match.groups()
            title = f"{index.decode()}:{mask(window, LONGEST)}".rstrip(":")
            rows = listed.setdefault((int(server), pane.decode()), [])
            rows.append(_Row(number.decode(), mask(session, LONGEST), title))
    return listed
