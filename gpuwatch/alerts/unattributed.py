"""Causes of memory that no listed process holds, the likeliest first, each with the step that confirms or fixes it.

Only evidence decides the order. The step is a command to type or a thing to do; gpuwatch never does it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from math import inf
from types import MappingProxyType
from typing import Final

import msgspec

from gpuwatch.base import units
from gpuwatch.base.text import fit
from gpuwatch.model.shares import UnknownMemoryStart, of_driver
from gpuwatch.model.snapshot import Gpu, Health, Presence, Process, Snapshot, Unlisted, known

SMALL: Final = 64 * units.MIB
"""Bytes below which a gap means nothing: process list and memory are read at different times, pages are rounded."""
_SMALL_SHARE: Final = 0.01
_SMALL_OF_LARGE: Final = 256 * units.MIB
"""On a large GPU a gap below a hundredth of its memory, and below this, means nothing: a driver needs more there."""
_LINE: Final = 110
"""Cells of a line."""
_NAMED: Final = 3
"""Names in a line, at most."""
_MPS_SERVER: Final = "nvidia-cuda-mps-server"
_UNDATED: Final = "it is not known when the memory was taken, so no owner is named"


class GapKind(Enum):
    """Kind of cause: who may hold the memory."""

    LIST = auto()
    COUNTED = auto()
    CONTAINER = auto()
    LEFTOVER = auto()
    MPS = auto()
    DRIVER = auto()
    UNLISTED = auto()
    ENDING = auto()
    HIDDEN = auto()
    LEAK = auto()


class GapCause(msgspec.Struct, frozen=True):
    """Likely cause of the gap, in lines of 110 cells at most."""

    kind: GapKind
    reason: str
    step: str
    """Command or step that confirms or fixes the cause."""
    pids: tuple[int, ...] = ()
    """Suspected processes."""
    harmless: bool = False
    """Whether nothing needs to be done about it."""


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


def cut_words(snapshot: Snapshot) -> str:
    """Return how far a search that was cut short got; empty for one that was not."""
    if snapshot.reached >= snapshot.existing:
        return ""
    return f"the search was cut short: {snapshot.reached} of {snapshot.existing} processes were examined"


class GapEvidence:
    """Evidence of one snapshot about memory that no listed process holds.

    Each process of the snapshot is looked at once, however many GPUs there are.
    """

    def __init__(self, snapshot: Snapshot, starts: Mapping[str, UnknownMemoryStart] = MappingProxyType({})) -> None:
        """`starts` are the times at which memory of unknown processes was taken, by `Gpu.key`, as far as known."""
        self._snapshot = snapshot
        self._starts = starts
        self._holders = {one.pid for gpu in snapshot.gpus for one in gpu.holdings}
        self._ended = {one.pid for one in snapshot.processes if one.has_ended}
        self._servers = {one.pid for one in snapshot.processes if one.name == _MPS_SERVER} | {*snapshot.mps}
        presences = {one.presence for one in snapshot.processes}
        self._confined = snapshot.confined or Presence.ELSEWHERE in presences
        self._hides = snapshot.hides or Presence.HIDDEN in presences
        parents = {one.ppid for one in snapshot.processes}
        self._unlisted = [one for one in snapshot.unlisted if one.cuda_context]
        self._workers = _find_workers(snapshot)
        self._leftovers = [
            one
            for one in self._unlisted
            if one.process.adopted and one.process.pid not in parents
            if (place := one.process.context) is not None and not (place.unit or place.server or place.pod)
        ]
        left = {one.process.key for one in self._leftovers}
        self._others = [
            one
            for one in self._unlisted
            if one.process.key not in left and one.process.pid not in parents | self._workers
        ]

    def causes(self, gpu: Gpu) -> list[GapCause]:
        """Return the likely causes of a gap, the likeliest first; none of a small or unknown one, and in trouble."""
        if gpu.health is not Health.OK or gpu.memory.unified:  # which other programs use without the GPU
            return []
        gap = missing(gpu)
        if gap is None or not matters(gap, float(gpu.memory.total) if known(gpu.memory.total) else None):
            return []
        return [*self._fitting(gpu, gap)]

    def likeliest(self, gpu: Gpu) -> GapCause | None:
        """Return the likeliest cause of a gap that is a minute old: processes that were ending have ended by then."""
        gap = missing(gpu)
        found = self._fitting(gpu, gap) if gap is not None else ()
        return next((one for one in found if one.kind is not GapKind.ENDING), None)

    def leftovers(self, gpu: Gpu) -> list[Unlisted]:
        """Return the processes that have this GPU open with CUDA, are not listed, and whose parent has ended.

        Left out are services, servers, processes of pods, parents of listed processes, and processes of unknown
        context.
        """
        return [one for one in self._leftovers if gpu.uuid in one.gpus]

    def _fitting(self, gpu: Gpu, gap: int) -> Iterator[GapCause]:
        for one in self._find(gpu, gap):
            yield msgspec.structs.replace(one, reason=_fit(one.reason), step=_fit(one.step))

    def _find(self, gpu: Gpu, gap: int) -> Iterator[GapCause]:
        """Yield the causes in order of likelihood, each at most once; the last two need no evidence."""
        is_drivers = gap <= of_driver(gpu)
        if gpu.holdings_note or gpu.unreliable:
            note = gpu.holdings_note or "it has entries that cannot be true"
            reason = f"the driver's list of processes is not complete: {note}"
            yield GapCause(GapKind.LIST, reason, f"{fuser(gpu, self._snapshot.viewer)} shows who has it open")
        if not known(gpu.memory.reserved) and not gpu.memory.unified:
            yield GapCause(
                GapKind.COUNTED,
                "this driver counts its own memory as used, and does not report how much that is",
                "drivers from R510 on report it: `nvidia-smi -q -d MEMORY` then has a line Reserved",
            )
        if self._confined:
            yield GapCause(
                GapKind.CONTAINER,
                "gpuwatch runs in a container, where the driver does not list processes outside",
                "start gpuwatch on the host, or in a container with `--pid=host`",
                harmless=is_drivers,
            )
        start = self._starts.get(gpu.key)
        is_dated = start is not None and not start.at_least
        if left := _before(start, self.leftovers(gpu)):
            has = "has it open and is not listed: its parent or run has"
            have = "have it open and are not listed: their parents or runs have"
            reason = f"{_named(left)} {has if len(left) == 1 else have} ended"
            mine = any(one.uid == self._snapshot.viewer for one in left)
            step = self._ended_by(left) if is_dated else _UNDATED + "; `gpuwatch strays` lists yours" * mine
            yield GapCause(GapKind.LEFTOVER, reason, step, tuple(one.pid for one in left))
        if servers := self._find_servers(gpu):
            yield GapCause(
                GapKind.MPS,
                f"an MPS server runs ({_pids(servers)}): it may hold memory for programs that share the GPU",
                "after these have ended: `echo quit | nvidia-cuda-mps-control`, as the user who started it",
                tuple(servers),
            )
        if is_drivers:
            display = " and the display" if gpu.display_active is True else ""
            yield GapCause(
                GapKind.DRIVER,
                f"{units.size(gap)} is normal: the driver itself needs it for contexts{display}",
                "nothing to do; `nvidia-smi -q -d MEMORY` shows the driver's own figures",
                harmless=True,
            )
        if others := _before(start, [one for one in self._others if gpu.uuid in one.gpus]):
            has, them = ("has", "it") if len(others) == 1 else ("have", "them")
            users = sorted({one.user for one in others if one.user and one.uid != self._snapshot.viewer})
            ending = f"end {them}, if you no longer need {them}, and look again"
            reason = f"{_named(others)} {has} the GPU open"
            step = _UNDATED
            if is_dated:
                reason = f"{_named(others)} {has} it open with CUDA, and the driver does not list {them}"
                step = f"ask {', '.join(users[:_NAMED])}" if users else ending
            yield GapCause(GapKind.UNLISTED, reason, step, tuple(one.pid for one in others))
        # What is listed of a process that has ended is no part of the gap.
        unlisted = {one.pid for one in gpu.holdings if not known(one.memory) or one.memory < SMALL}
        ended = tuple(sorted(unlisted & self._ended))
        if ended:
            reason = f"PID {ended[0]} has ended and is still being cleaned up: its memory becomes free step by step"
            yield GapCause(
                GapKind.ENDING, reason, "wait a few seconds; if it stays, find out who else has the GPU open", ended
            )
        if reason := self._hidden(gpu):
            yield GapCause(GapKind.HIDDEN, reason, f"{fuser(gpu, self._snapshot.viewer)} names them")
        if is_drivers or gpu.memory.unified:
            return
        if not ended:
            reason = "a process that ended moments ago: its memory can take some seconds to be free"
            yield GapCause(GapKind.ENDING, reason, "wait a few seconds")
        yield self._leak(gpu)

    def _find_servers(self, gpu: Gpu) -> list[int]:
        """Return the MPS servers that may hold memory here: not those whose memory is known or only on other GPUs."""
        here = {one.process.pid for one in self._unlisted if one.process.name == _MPS_SERVER and gpu.uuid in one.gpus}
        here |= self._servers - self._holders
        here |= {one.pid for one in gpu.holdings} & self._servers
        return sorted(here - {one.pid for one in gpu.holdings if known(one.memory)})

    def _hidden(self, gpu: Gpu) -> str:
        """Return why a process may have the GPU open unseen; empty where none can."""
        unread = self._snapshot.unsearched
        if cut := cut_words(self._snapshot):
            return f"{cut}, and any other may have it open"
        if self._hides:
            return "/proc hides other people's processes (hidepid): one may have it open without being listed"
        if gpu.mig is True and self._snapshot.viewer > 0:
            return "it is split into MIG instances: without root, the driver may not list all processes"
        many = "process" if unread == 1 else "processes"
        return f"{unread} {many} could not be read, and any of them may have it open" if unread else ""

    def _leak(self, gpu: Gpu) -> GapCause:
        snapshot = self._snapshot
        reset = f"`nvidia-smi --gpu-reset -i {gpu.index}` as root, or a reboot"
        if gpu.opened_by:
            has, they = ("has", "it holds") if len(gpu.opened_by) == 1 else ("have", "they hold")
            reason = f"{_pids(gpu.opened_by)} {has} it open too: if {they} none of this, only a reset frees it"
            return GapCause(GapKind.LEAK, reason, f"if it is still in use after they have ended: {reset}")
        # Without its minor number nobody can tell whose open files are this GPU's.
        is_complete = snapshot.searched > 0 and known(gpu.minor)
        is_complete = is_complete and not snapshot.unsearched and not snapshot.hides and not snapshot.confined
        who = "no other process has it open:" if is_complete else "if nobody has it open,"
        reason = f"{who} the driver has lost track of memory, and only a reset of the GPU frees it"
        return GapCause(GapKind.LEAK, reason, f"{fuser(gpu, self._snapshot.viewer)} names nobody: {reset}")

    def _ended_by(self, left: Sequence[Process]) -> str:
        """Return how to end leftover processes: the user's own by a command, those of others by their owners."""
        mine = [one for one in left if one.uid == self._snapshot.viewer]
        if mine:
            command = "gpuwatch kill " + " ".join(str(one.pid) for one in mine)
            step = f"`{command}` ends {'it' if len(mine) == 1 else 'them'}, if you no longer want what was run"
            return step if len(step) <= _LINE else "`gpuwatch strays` lists yours, with how to end them"
        users = [*dict.fromkeys(one.user for one in left if one.user)]
        return f"{', '.join(users[:_NAMED]) or 'their owner'} can end {'it' if len(left) == 1 else 'them'}"


def _find_workers(snapshot: Snapshot) -> set[int]:
    """Return the unlisted processes that are workers of a listed one, and hold what that one holds."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for one in snapshot.unlisted:
        if one.process.ppid is not None:
            children[one.process.ppid].append(one.process.pid)
    found: set[int] = set()
    above = [one.pid for one in snapshot.processes]
    while above:
        new = [pid for pid in children.pop(above.pop(), ()) if pid not in found]
        found.update(new)
        above += new
    return found


def _before(start: UnknownMemoryStart | None, found: Iterable[Unlisted]) -> list[Process]:
    """Return the processes that were there when the memory was taken, as far as that is known."""
    began = inf if start is None else start.at
    return [one.process for one in found if one.process.started is None or one.process.started <= began]


def _named(processes: Sequence[Process]) -> str:
    """Name processes in one line: `PID 4711 python (ada)`, `PIDs 4711, 4712 and 3 more (ada, ben)`."""
    users = [*dict.fromkeys(one.user for one in processes if one.user)]
    more = f" +{len(users) - 2}" if len(users) > 2 else ""
    owners = f" ({', '.join(user[:16] for user in users[:2])}{more})" if users else ""
    name = f" {processes[0].name[:20]}".rstrip() if len(processes) == 1 else ""
    return f"{_pids([one.pid for one in processes])}{name}{owners}"


def _pids(pids: Sequence[int]) -> str:
    shown = ", ".join(map(str, pids[:_NAMED]))
    more = f" and {len(pids) - _NAMED} more" if len(pids) > _NAMED else ""
    return f"PID{'s' if len(pids) > 1 else ''} {shown}{more}"


def _fit(line: str) -> str:
    """Cut a line that is too long: names may be of any length and width."""
    return line if len(line) <= _LINE and line.isascii() else fit(line, _LINE).rstrip()


def fuser(gpu: Gpu, viewer: int) -> str:
    """Return the command that shows who has a GPU open, for a viewer by uid."""
    number = gpu.minor if known(gpu.minor) else "*"
    return f"`{'sudo ' * (viewer != 0)}fuser -v /dev/nvidia{number}`"
