"""Causes of memory that no listed process holds, the likeliest first, each with the step that confirms or mends it.

Only evidence decides the order. The step is a command to type or a thing to do; gpuwatch never does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuwatch import units
from gpuwatch.alerts.rule import NAMED
from gpuwatch.model import Gpu, Health, Presence, Process, Snapshot, Unlisted, known
from gpuwatch.text import fit

OWN: Final = 512 * units.MIB
"""Bytes that a driver may use for itself besides the reserved memory: page tables, channels, the display."""
OWN_EACH: Final = 32 * units.MIB
"""Bytes that a driver may use for itself per process that holds the GPU, in addition to `OWN`."""
SMALL: Final = 64 * units.MIB
"""Bytes below which a gap means nothing: process list and memory are read at different times, pages are rounded."""
_SMALL_SHARE: Final = 0.01
_SMALL_OF_LARGE: Final = 256 * units.MIB
"""On a large GPU a gap below a hundredth of its memory, and below this, means nothing: a driver needs more there."""
_LINE: Final = 110
"""Cells of a line."""


class CauseKind(StrEnum):
    """Kind of cause: who may hold the memory."""

    UNIFIED = "unified memory"
    """The GPU has no memory of its own: there is no gap to explain."""
    LIST = "incomplete list"
    COUNTED = "driver's share"
    """An older driver counts what it keeps for itself as used."""
    CONTAINER = "outside the container"
    LEFTOVER = "leftover worker"
    """Processes that have the GPU open, that NVML does not list, and whose parent has ended."""
    MPS = "MPS server"
    DRIVER = "driver"
    """The gap is no larger than the memory that the driver takes for contexts and the display."""
    UNLISTED = "unlisted process"
    """Other processes that have the GPU open with CUDA and are not listed."""
    ENDING = "ending"
    """A process that ended moments ago: its memory goes back piece by piece."""
    HIDDEN = "hidden"
    """Processes that gpuwatch may not read."""
    LEAK = "leak"
    """No process: the driver has lost track of the memory until the GPU is reset."""


class Cause(msgspec.Struct, frozen=True):
    """Likely cause of the gap."""

    kind: CauseKind
    words: str
    """Reason for this cause, in one line."""
    settle: str
    """Command or step that confirms or mends the cause, in one line."""
    pids: tuple[int, ...] = ()
    """Suspected processes."""
    harmless: bool = False
    """Whether nothing needs to be done about it."""


def causes(gpu: Gpu, snapshot: Snapshot) -> list[Cause]:
    """Return the likely causes of memory in use on a GPU that no listed process holds, the likeliest first.

    Empty where the gap is small or not known, and for a GPU in trouble. Words and `settle` have 110 cells at most.
    """
    if gpu.health is not Health.OK:
        return []
    if gpu.memory.unified:
        words = "this GPU shares the machine's memory: what programs use without it is theirs, and no gap can be told"
        return [Cause(CauseKind.UNIFIED, words, "nothing needs to be done", harmless=True)]
    gap = missing(gpu)
    if gap is None or not matters(gap, float(gpu.memory.total) if known(gpu.memory.total) else None):
        return []
    return [*_find(gpu, snapshot, gap)]


def likeliest(gpu: Gpu, snapshot: Snapshot) -> Cause | None:
    """Return the likeliest cause of a gap that is a minute old: processes that were ending have ended by then."""
    gap = missing(gpu)
    found = _find(gpu, snapshot, gap) if gap is not None else ()
    return next((one for one in found if one.kind is not CauseKind.ENDING), None)


def missing(gpu: Gpu) -> int | None:
    """Return the bytes in use that no listed process holds, as far as they are known; None where they are not.

    Where the driver does not say (`Gpu.unattributed` is a reason) the result is an upper bound: the used bytes less
    the listed ones.
    """
    if known(gpu.unattributed):
        return int(gpu.unattributed)
    if not known(gpu.memory.used):
        return None
    return max(0, int(gpu.memory.used) - sum(int(one.memory) for one in gpu.holdings if known(one.memory)))


def matters(gap: int, total: float | None) -> bool:
    """Return whether a gap of `gap` bytes is large enough to be shown, on a GPU of `total` bytes."""
    return gap >= SMALL and not (total is not None and gap < _SMALL_SHARE * total and gap < _SMALL_OF_LARGE)


def of_driver(gpu: Gpu) -> int:
    """Return the bytes that a driver may have taken for itself on a GPU: a smaller gap belongs to no process."""
    return OWN + OWN_EACH * len(gpu.holdings)


def find_leftovers(gpu: Gpu, snapshot: Snapshot) -> list[Unlisted]:
    """Return the processes that have this GPU open with CUDA, are not listed, and whose parent has ended.

    Left out are services, servers, processes of pods, parents of listed processes, and processes of unknown context.
    """
    parents = {one.ppid for one in snapshot.processes}
    return [
        one
        for one in snapshot.unlisted
        if _may_hold(one, gpu)
        and one.process.adopted
        and one.process.pid not in parents
        and not _is_attended(one.process)
    ]


# -- each cause ---------------------------------------------------------------------------------------------------


def _find(gpu: Gpu, snapshot: Snapshot, gap: int) -> Iterator[Cause]:
    """Yield the causes in order of likelihood, each at most once; the last two need no evidence."""
    for one in _candidates(gpu, snapshot, gap):
        if one is not None:
            yield replace(one, words=_fit(one.words), settle=_fit(one.settle))


def _candidates(gpu: Gpu, snapshot: Snapshot, gap: int) -> Iterator[Cause | None]:
    if gpu.holdings_note or gpu.unreliable:
        note = gpu.holdings_note or "it has entries that cannot be true"
        words = f"the driver's list of processes is not all: {note}"
        yield Cause(CauseKind.LIST, words, f"{_fuser(gpu)} shows who has it open")
    if not known(gpu.memory.reserved) and not gpu.memory.unified:
        yield Cause(
            CauseKind.COUNTED,
            "this driver counts what it keeps for itself as used, and does not tell how much that is",
            "a driver from R510 on tells it apart: `nvidia-smi -q -d MEMORY` has a line Reserved then",
        )
    if snapshot.confined or any(one.presence is Presence.ELSEWHERE for one in snapshot.processes):
        yield Cause(
            CauseKind.CONTAINER,
            "gpuwatch runs in a container, where the driver does not tell of processes outside",
            "start gpuwatch on the host, or in a container with `--pid=host`",
            harmless=gap <= of_driver(gpu),
        )
    yield _leftover(gpu, snapshot)
    yield _mps(gpu, snapshot, elsewhere=False)
    of_the_driver = gap <= of_driver(gpu)
    if of_the_driver:
        display = " and the display" if gpu.display_active is True else ""
        yield Cause(
            CauseKind.DRIVER,
            f"{units.size(gap)} is no more than a driver takes for itself, for contexts{display}",
            "nothing needs to be done; `nvidia-smi -q -d MEMORY` shows the driver's own figures",
            harmless=True,
        )
    yield _unlisted(gpu, snapshot)
    yield _mps(gpu, snapshot, elsewhere=True)
    held = {one.pid for one in gpu.holdings}
    ending = [one.pid for one in snapshot.processes if one.pid in held and one.has_ended]
    if ending:
        words = f"PID {ending[0]} has ended and is still being cleaned up: the driver gives its memory back bit by bit"
        settle = "wait some seconds; where it stays, see who else has the GPU open"
        yield Cause(CauseKind.ENDING, words, settle, tuple(ending))
    yield _hidden(gpu, snapshot)
    if of_the_driver or gpu.memory.unified:
        return
    if not ending:
        words = "a process that ended moments ago: its memory can take some seconds to be free"
        yield Cause(CauseKind.ENDING, words, "wait some seconds")
    yield _leak(gpu, snapshot)


def _leftover(gpu: Gpu, snapshot: Snapshot) -> Cause | None:
    left = [one.process for one in find_leftovers(gpu, snapshot)]
    if not left:
        return None
    mine = [one for one in left if one.uid == snapshot.viewer]
    has, them = ("has it open and is", "it") if len(left) == 1 else ("have it open and are", "them")
    words = f"{_named(left)} {has} not listed: what started {them} has ended"
    return Cause(CauseKind.LEFTOVER, words, _ended_by(mine, left), tuple(one.pid for one in left))


def _mps(gpu: Gpu, snapshot: Snapshot, *, elsewhere: bool) -> Cause | None:
    """Return MPS servers as the cause: servers listed only on other GPUs (`elsewhere`), or all other servers."""
    processes = (*snapshot.processes, *(one.process for one in snapshot.unlisted if _may_hold(one, gpu)))
    servers = {one.pid for one in processes if one.name == "nvidia-cuda-mps-server"} | {*snapshot.mps}
    servers -= {one.pid for one in gpu.holdings if known(one.memory)}  # what it holds there is known
    here = {one.pid for one in gpu.holdings}
    others = {one.pid for each in snapshot.gpus for one in each.holdings}
    if not servers or (servers <= others - here) is not elsewhere:
        return None
    return Cause(
        CauseKind.MPS,
        f"an MPS server runs ({_pids(sorted(servers))}): it may hold memory for programs that share the GPU",
        "when these have ended: `echo quit | nvidia-cuda-mps-control`, as who started it",
        tuple(sorted(servers)),
    )


def _unlisted(gpu: Gpu, snapshot: Snapshot) -> Cause | None:
    left = {one.process.key for one in find_leftovers(gpu, snapshot)}
    listed = {one.pid for one in snapshot.processes}
    parents = {one.ppid for one in snapshot.processes}
    above = {one.process.pid: one.process.ppid for one in snapshot.unlisted}
    others = [
        one.process
        for one in snapshot.unlisted
        if _may_hold(one, gpu)
        and one.process.key not in left
        and one.process.pid not in parents
        # Under a listed process it is one of its workers, and holds what that one holds.
        and not _is_under(one.process.pid, above, listed)
    ]
    if not others:
        return None
    has, them = ("has", "it") if len(others) == 1 else ("have", "them")
    whose = sorted({one.user for one in others if one.user and one.uid != snapshot.viewer})
    ask = f"ask {', '.join(whose[:NAMED])}" if whose else f"end {them}, where you no longer need {them}, and look again"
    words = f"{_named(others)} {has} it open with CUDA, and the driver does not list {them}"
    return Cause(CauseKind.UNLISTED, words, ask, tuple(one.pid for one in others))


def _hidden(gpu: Gpu, snapshot: Snapshot) -> Cause | None:
    if snapshot.hides or any(one.presence is Presence.HIDDEN for one in snapshot.processes):
        words = "/proc hides other people's processes (hidepid): one may have it open without being listed"
    elif gpu.mig is True and snapshot.viewer > 0:
        words = "it is cut into instances (MIG), where without root the driver may not tell of all processes"
    elif snapshot.blind:
        many = "process" if snapshot.blind == 1 else "processes"
        words = f"{snapshot.blind} {many} could not be looked into: any may have it open without being listed"
    else:
        return None
    as_root = "" if snapshot.viewer == 0 else "`sudo gpuwatch --once` looks into all, and "
    return Cause(CauseKind.HIDDEN, words, f"{as_root}{_fuser(gpu)} names them")


def _leak(gpu: Gpu, snapshot: Snapshot) -> Cause:
    reset = f"`nvidia-smi --gpu-reset -i {gpu.index}` as root, or a reboot"
    if gpu.opened_by:
        has, they = ("has", "it holds") if len(gpu.opened_by) == 1 else ("have", "they hold")
        words = f"{_pids(gpu.opened_by)} {has} it open too: if {they} none of this, only a reset frees it"
        return Cause(CauseKind.LEAK, words, f"where it is still in use when they have ended: {reset}")
    # Without its minor number nobody can tell whose open files are this GPU's.
    looked = snapshot.searched > 0 and known(gpu.minor)
    looked = looked and not snapshot.blind and not snapshot.hides and not snapshot.confined
    who = "no other process has it open:" if looked else "if nobody has it open,"
    words = f"{who} the driver has lost track of memory, and only a reset of the GPU frees it"
    return Cause(CauseKind.LEAK, words, f"{_fuser(gpu)} names nobody: {reset}")


def _is_attended(process: Process) -> bool:
    context = process.surroundings
    return context is None or bool(context.unit or context.server or context.pod)


def _may_hold(one: Unlisted, gpu: Gpu) -> bool:
    return one.context and gpu.uuid in one.gpus


def _is_under(pid: int, above: Mapping[int, int | None], listed: set[int]) -> bool:
    """Return whether an ancestor of a process is listed; `above` has the parents of processes that have GPUs open."""
    seen: set[int] = set()
    parent = above.get(pid)
    while parent is not None and parent not in seen:
        if parent in listed:
            return True
        seen.add(parent)
        parent = above.get(parent)
    return False


# -- words --------------------------------------------------------------------------------------------------------


def _named(processes: Sequence[Process]) -> str:
    """Name processes in one line: `PID 4711 python (ada)`, `PIDs 4711, 4712 and 3 more (ada, ben)`."""
    users = [*dict.fromkeys(one.user for one in processes if one.user)]
    more = f" +{len(users) - 2}" if len(users) > 2 else ""
    whose = f" ({', '.join(user[:16] for user in users[:2])}{more})" if users else ""
    name = f" {processes[0].name[:20]}".rstrip() if len(processes) == 1 else ""
    return f"{_pids([one.pid for one in processes])}{name}{whose}"


def _pids(pids: Sequence[int]) -> str:
    shown = ", ".join(map(str, pids[:NAMED]))
    more = f" and {len(pids) - NAMED} more" if len(pids) > NAMED else ""
    return f"PID{'s' if len(pids) > 1 else ''} {shown}{more}"


def _ended_by(mine: Sequence[Process], left: Sequence[Process]) -> str:
    """Return how to end leftover processes: the user's own by a command, those of others by their owners."""
    if mine:
        command = "gpuwatch kill " + " ".join(str(one.pid) for one in mine)
        whole = f"`{command}` ends {'it' if len(mine) == 1 else 'them'}, if you no longer want what was run"
        return whole if len(whole) <= _LINE else "`gpuwatch strays` lists yours, with how to end them"
    users = [*dict.fromkeys(one.user for one in left if one.user)]
    return f"{', '.join(users[:NAMED]) or 'their owner'} can end {'it' if len(left) == 1 else 'them'}"


def _fit(words: str) -> str:
    """Cut words that are too long for a line: names may be of any length and width."""
    return words if len(words) <= _LINE and words.isascii() else fit(words, _LINE).rstrip()


def _fuser(gpu: Gpu) -> str:
    number = gpu.minor if known(gpu.minor) else "*"
    return f"`sudo fuser -v /dev/nvidia{number}`"
