"""`gpuwatch run --share 0.4 -- COMMAND…`: choose GPUs, reserve them, tell every framework, and become the command."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuwatch.commands.answer import Answer, Ask, cards
from gpuwatch.commands.pick import PATIENCE, check_there, hidden, holders, ignored_lines, named, reasons
from gpuwatch.declared.facts import Facts, Share
from gpuwatch.declared.resolver import agreed_claims
from gpuwatch.errors import GpuwatchError, UsageError
from gpuwatch.launch.environment import Change, Grant, changes, why_not
from gpuwatch.launch.placement import Room, Wish, choose, rooms
from gpuwatch.launch.reservations import locked, release, reserve
from gpuwatch.model import Basis, Snapshot, number
from gpuwatch.sampler.owners import UserNames
from gpuwatch.sampler.reservations import Place, read
from gpuwatch.shares import standings, usable
from gpuwatch.text import clean
from gpuwatch.units import gib

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
"""What shells give back for a command that cannot be started."""


class NotStartedError(GpuwatchError):
    """The command cannot be started."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.exit_code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for."""

    wish: Wish
    command: tuple[str, ...]
    count: int = 1
    gpus: tuple[int, ...] = ()
    """Indices of GPUs to take; empty to choose."""
    ignore: bool = False
    """Whether what others reserved does not count."""
    quiet: bool = False


def gpus(text: str) -> tuple[int, ...]:
    """Understand `auto`, or indices of GPUs in the order in which the command is to see them; raises UsageError."""
    if text == "auto":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        raise UsageError(f"--gpu: {text[:40]!a} is no list of GPU indices; write auto, 3 or 0,2")
    found = tuple(map(int, parts))
    if len(set(found)) < len(found):
        raise UsageError(f"--gpu: {text[:40]!a} names a GPU twice")
    return found


def prepare(
    request: Request, environ: Mapping[str, str], folders: Sequence[Place], shares: tuple[Share, ...] = ()
) -> Ask:
    """Give the command, where what it is to start is there; raises UsageError or NotStartedError.

    `shares` are what was agreed on in gpuwatch.toml: to start more than that is said, and not refused.
    """
    if not request.command or not request.command[0]:
        raise UsageError(
            "run: COMMAND is missing; write it after --, as in: gpuwatch run --share 0.4 -- python train.py"
        )
    _check(request.command[0], environ)
    return functools.partial(_run, request, environ, folders, shares)


def _check(program: str, environ: Mapping[str, str]) -> None:
    """Raise NotStartedError before anything is reserved for what is not there."""
    path = environ.get("PATH", os.defpath)
    if shutil.which(program, path=path) is None:
        found = shutil.which(program, mode=os.F_OK, path=path)
        raise _not_started(program, OSError(errno.EACCES if found else errno.ENOENT, ""))


def _not_started(program: str, error: OSError) -> NotStartedError:
    missing = error.errno == errno.ENOENT
    why = "not found" if missing else os.strerror(error.errno or 0)
    return NotStartedError(f"{clean(program, 200)}: {why}", _NOT_FOUND if missing else _NOT_EXECUTABLE)


def _run(
    request: Request,
    environ: Mapping[str, str],
    folders: Sequence[Place],
    shares: tuple[Share, ...],
    snapshot: Snapshot,
) -> Answer:
    check_there("--gpu", request.gpus, snapshot)
    count = len(request.gpus) or request.count
    unwanted = {} if request.gpus else hidden(snapshot, environ)
    words: list[str] = []
    with locked(folders, words.append) as opened:
        found = read(opened, holders(snapshot), caller=os.getpid())
        offers = rooms(snapshot, request.wish, found.reserved, hidden=unwanted, ignore=request.ignore)
        chosen = _named(offers, request.gpus) if request.gpus else choose(offers, count)
        if len(chosen) == count:
            reserve(opened, {room.gpu.uuid: room.wanted for room in chosen}, words.append)
    words += found.words
    if request.ignore or len(chosen) < count:  # the same with names, which are not waited for under the lock
        offers = rooms(snapshot, request.wish, named(found.reserved, snapshot), hidden=unwanted, ignore=request.ignore)
    asked = [room for room in offers if not request.gpus or room.gpu.index in request.gpus]
    words += ignored_lines(asked, unwanted)
    if len(chosen) < count:
        return Answer(words=[*words, *reasons(asked, count)], code=1)
    grant = Grant(
        gpus=[room.gpu.uuid for room in chosen],
        amounts=[room.wanted for room in chosen],
        wholes=[usable(room.gpu) or room.wanted for room in chosen],
        share=request.wish.share,
    )
    told = list(changes(grant, environ, torch=why_not(request.command, environ)))
    words += _beyond(request, shares, chosen, snapshot)
    if not request.quiet:
        words += _words(told, chosen, grant)
    new = {**environ, **{one.name: one.value for one in told if one.value is not None}}
    return Answer(words=words, then=_start(request.command, new, folders))


def _named(offers: Sequence[Room], wanted: Sequence[int]) -> list[Room]:
    fit = {room.gpu.index: room for room in offers if not room.why}
    return [fit[index] for index in wanted if index in fit]


def _beyond(request: Request, shares: tuple[Share, ...], chosen: Sequence[Room], snapshot: Snapshot) -> Iterator[str]:
    """Say where the command, with what its person holds already, would take more than was agreed on."""
    if not shares:
        return
    uid, users = os.geteuid(), UserNames()
    users.name(uid)
    users.settle(PATIENCE)  # without the name only tables that give the uid are about them
    facts = Facts(pid=os.getpid(), uid=uid, user=users.name(uid), argv=request.command, shares=shares)
    held = {(one.gpu, one.scope): one.held for one in standings(snapshot)}
    least = {
        (claim.device, claim.scope): claim for claim in agreed_claims(facts, cards(snapshot))
    }  # the least comes last
    for room in chosen:
        for (uuid, scope), claim in least.items():
            whole, value = number(room.gpu.memory.total), claim.value or 0.0
            allowed = value if claim.basis is Basis.BYTES else value * (whole or 0)
            before = held.get((room.gpu.uuid, scope), 0)
            if uuid == room.gpu.key and before + room.wanted > allowed:
                also = f", {gib(before)} held" if before else ""
                yield (
                    f"more than was agreed on: GPU {room.gpu.index}: {gib(room.wanted)} GiB wanted{also}; "
                    f"{gib(allowed)} GiB allowed: {claim.text}, {claim.where}:{claim.line}"
                )


def _words(told: Sequence[Change], chosen: Sequence[Room], grant: Grant) -> list[str]:
    """Say what was set, one line each, and what was not."""
    where = ", ".join(f"cuda:{place} is GPU {room.gpu.index}" for place, room in enumerate(chosen))
    lines = []
    for one in told:
        note = where if one.name == "CUDA_VISIBLE_DEVICES" else ""
        note = "; ".join(filter(None, (note, one.words)))
        head = f"{one.name} stays as it is" if one.value is None else f"{one.name}={clean(one.value)}"
        lines.append(f"{head}   ({note})" if note else head)
    if grant.share is None and len(set(grant.wholes)) > 1:
        lines.append(
            f"these GPUs differ in size: {grant.fraction:g} is no more than what was asked for on the largest, "
            "and less on the others"
        )
    return lines


def _start(command: Sequence[str], environ: Mapping[str, str], folders: Sequence[Place]) -> Callable[[], int]:
    """Give what becomes the command: it returns only where that fails, and raises NotStartedError then."""

    def start() -> int:
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores both, and what it starts would inherit that
            signal.signal(ignored, signal.SIG_DFL)
        try:
            os.execvpe(command[0], list(command), dict(environ))
        except OSError as error:
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            release(folders)
            raise _not_started(command[0], error) from None

    return start
