"""The terminal that a process was started in: a pane of tmux, screen or Zellij, and from where the login came."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuwatch import procfs
from gpuwatch.declared.facts import Kin, Unread
from gpuwatch.inspector import program
from gpuwatch.model import Pane
from gpuwatch.text import clean

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


def environs(line: Sequence[Kin]) -> Iterator[Mapping[str, str]]:
    """Give the environments on the way up that could be read: what is not of the process it has mostly inherited."""
    for kin in line:
        if not isinstance(kin.environ, Unread):
            yield kin.environ


def ssh(line: Sequence[Kin]) -> str:
    """Give from where the login came, by SSH_CONNECTION; empty where it was no login by SSH.

    Source: ssh(1), "ENVIRONMENT": client address, client port, server address, server port; SSH_CLIENT is older.
    """
    for environ in environs(line):
        words = (environ.get("SSH_CONNECTION") or environ.get("SSH_CLIENT") or "").split()
        if words and _ADDRESS.fullmatch(words[0]) and words[0] != "UNKNOWN":
            return clean(words[0])
    return ""


def pane(line: Sequence[Kin], *, proc: Path = procfs.PROC) -> Pane | None:
    """Tell in which multiplexer a process was started, see `place`."""
    found = place(line, proc=proc)
    return None if found is None else found.pane


def place(line: Sequence[Kin], *, proc: Path = procfs.PROC) -> Place | None:
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


def _held(line: Sequence[Kin], holder: Kin, word: str, *, ours: bool) -> Place | None:
    """Give the pane where its server is an ancestor, by the environment that was made for it."""
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
    """Say whether the PIDs that a process knows are ours."""
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
    """Say whether a multiplexer still runs: tmux's server calls itself `tmux: server`, screen's `screen`."""
    try:
        stat = procfs.read_stat(pid, proc)
    except procfs.GONE:
        return False
    except (OSError, ValueError):
        return None
    return stat.state not in procfs.DEAD and stat.comm.lower().startswith(name.encode())
