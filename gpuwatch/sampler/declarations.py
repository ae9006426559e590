"""Declarations of processes: asks the inspector once about each process, and again after a change.

A tick without changes only compares a few values of each process.
"""

from __future__ import annotations

import os
import select
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpuwatch.declared.contradictions import HeldGpus, without_contradicted
from gpuwatch.declared.facts import GpuFacts, gpu_facts
from gpuwatch.inspector.client import InspectorClient
from gpuwatch.inspector.protocol import ROOM, bounded
from gpuwatch.model.snapshot import Declared, Gpu, Health, Knowledge, Presence, Process, ProcessContext, Reason

AGAIN = 20.0
"""Seconds after the first reading at which a process that has used the CPU since is read again: until then it has
imported its modules and started its workers."""

OWN = 60.0
"""Seconds after which those of the viewer's own processes are read again that may be leftovers, because they have lost
their parent or their login: one may now listen on a port."""

ALL_OWN = 5
"""Every so many of these times all of the viewer's own processes are read again: a process may have lost what it was
started for. Each time would keep the inspector in memory."""

POLL = 0.2
"""Seconds between two polls, at most, while answers are expected: a hang may be noticed later by so much."""

_ROOM = 8 << 20
"""Bytes of the declarations of all processes together: of thousands of processes each sends less."""

_PENDING = Declared(knowledge=Knowledge.PENDING)

_ABSENT = {
    Presence.GONE: Declared(knowledge=Knowledge.UNREADABLE, words="the kernel has no such process"),
    Presence.HIDDEN: Declared(knowledge=Knowledge.UNREADABLE, words="/proc is mounted with hidepid, which hides it"),
    Presence.ELSEWHERE: Declared(knowledge=Knowledge.UNREADABLE, words="it is in another PID namespace"),
    Presence.UNREADABLE: Declared(knowledge=Knowledge.UNREADABLE, words="it could not be read this time"),
    Presence.UNSURE: Declared(knowledge=Knowledge.UNREADABLE, words="it may be a process outside this container"),
}


class _Entry(msgspec.Struct):
    """State of one process: its properties when the inspector was asked about it, and the answer."""

    seen: tuple[object, ...] = ()
    again: float | None = None
    """Time to ask about the process again even without a change, if it `ran`."""
    ran: bool = False
    """Whether it has used the CPU since it was asked about, or may have."""
    bonds: tuple[bool | None, bool] = (None, False)
    """At that time: whether its session's leader ran, and whether it was adopted."""
    calm: float = 0.0
    """Time before which a change does not count: some processes change their title at every training step."""
    waiting: bool = False
    declared: Declared = _PENDING
    sent: Declared = _PENDING
    """The part of `declared` that is sent, within `room` bytes."""
    room: int = ROOM
    context: ProcessContext | None = None


class DeclarationCache:
    """Cache of the declarations and contexts of the processes in the last annotation."""

    def __init__(
        self, inspector: InspectorClient, clock: Callable[[], float] = time.monotonic, *, viewer: int | None = None
    ) -> None:
        """`viewer` is this process's uid by default."""
        self.news = False
        """Whether answers have come since the last annotation."""
        self.published: Mapping[tuple[int, int], Declared] = {}
        """Declarations from the machine's service for processes that gpuwatch may not read, by PID and start time."""
        self._inspector = inspector
        self._clock = clock
        self._known: dict[tuple[int, int], _Entry] = {}
        self._facts: dict[str, GpuFacts] = {}
        self._viewer = os.getuid() if viewer is None else viewer
        self._own = clock() + OWN
        """Time to read the viewer's own processes again."""
        self._turn = 0
        """Number of those times so far."""

    def annotate(
        self, processes: Sequence[Process], gpus: Sequence[Gpu], count: int, driver: str = ""
    ) -> tuple[Process, ...]:
        """Return the processes with their declarations, and ask about new and changed processes.

        `gpus` are those of the machine's `count` GPUs that are watched, `driver` is the version of the driver. Nothing
        is asked before every GPU was looked up once: which GPU an ordinal means depends on all of them. Never waits.
        """
        if all(gpu.uuid or gpu.health is not Health.OK for gpu in gpus):
            self._set_gpus(gpus, count)
            self._inspector.driver = driver
            self._ask(processes)
        self.collect()
        self.news = False
        room = ROOM
        while (
            room * len(processes) > _ROOM
        ):  # by halves, so that one process more or less rarely changes the texts of all
            room //= 2
        held: defaultdict[int, HeldGpus] = defaultdict(HeldGpus)
        for gpu in gpus:
            for one in gpu.holdings:
                if one.memory != 0 and one.kind != "G":  # graphics ignore CUDA's variables
                    before = held[one.pid]
                    held[one.pid] = HeldGpus(before.gpus | {gpu.uuid}, before.confined or "M" in one.kind)
        return tuple(self._annotated(process, room, held.get(process.pid, HeldGpus()), gpus) for process in processes)

    def collect(self) -> None:
        """Read the answers that have come; to be called when a descriptor is readable, and from time to time."""
        for answer in self._inspector.poll():
            entry = self._known.get((answer.pid, answer.start))
            if entry is None:
                continue
            entry.waiting = False
            if not answer.ended or entry.context is None:  # else the declarations that were read while it ran stay
                entry.declared = entry.sent = answer.declared
                entry.context, entry.room = answer.context, ROOM
                self.news = True

    @property
    def busy(self) -> bool:
        """Whether more answers are expected."""
        return self._inspector.busy

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that become readable when there are answers to collect."""
        descriptor = self._inspector.descriptor
        return [] if descriptor is None else [descriptor]

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for all answers."""
        end = self._clock() + seconds
        while self.busy and (left := end - self._clock()) > 0:
            poller = select.poll()  # select(2) knows no descriptor above 1,023
            for descriptor in self.descriptors:
                poller.register(descriptor, select.POLLIN)
            poller.poll(min(left, POLL) * 1000)
            self.collect()

    def _annotated(self, process: Process, room: int, held: HeldGpus, gpus: Sequence[Gpu]) -> Process:
        entry = self._known.get(process.key)
        if entry is None:
            declared = _ABSENT.get(process.presence, _PENDING)
            return msgspec.structs.replace(process, declared=declared, context=None)
        if entry.room != room:
            entry.sent, entry.room = bounded(entry.declared, room), room
        around = entry.context
        if around is None or around.container or around.pod or around.batch_job:
            held = held._replace(confined=True)
        declared = without_contradicted(entry.sent, held, gpus)
        if declared.knowledge is Knowledge.UNREADABLE and process.uid != self._viewer:
            declared = self.published.get(process.key, declared)
        return msgspec.structs.replace(process, declared=declared, context=entry.context)

    def _ask(self, processes: Sequence[Process]) -> None:
        now, facts = self._clock(), self._inspector.gpus
        before, self._known = self._known, {}
        again = now >= self._own
        if again:
            self._own, self._turn = now + OWN, self._turn + 1
        for process in processes:
            if process.presence is Presence.UNREADABLE and process.key in before:
                self._known[process.key] = before[process.key]
            if process.presence is not Presence.SEEN:
                continue
            entry = self._known[process.key] = before.get(process.key) or _Entry()
            # The first sample has no value yet: the second counts from the first.
            entry.ran = entry.ran or process.cpu not in (0, Reason.NO_SAMPLE)
            if entry.waiting:
                continue
            bonds = (process.leader_alive, process.adopted)
            seen = (process.name, process.command, process.ppid, process.user, facts)
            due = entry.again is not None and now >= entry.again
            if due:
                entry.again = None
            if seen != entry.seen and now >= entry.calm:
                entry.again = now + AGAIN
                entry.calm = now + AGAIN if entry.seen else 0.0
            elif bonds == entry.bonds and not (due and entry.ran) and not (again and self._is_due(process)):
                continue
            entry.seen, entry.bonds, entry.waiting, entry.ran = seen, bonds, True, False
            self._inspector.ask(process.pid, process.start, process.user)
        if len(self._known) < len(before) or any(key not in self._known for key in before):
            self._inspector.retain(self._known)

    def _is_due(self, process: Process) -> bool:
        """Return whether a process is read again this time: one of the viewer's own, see `OWN` and `ALL_OWN`."""
        may_be_left = process.adopted or process.leader_alive is False
        return process.uid == self._viewer and (may_be_left or self._turn % ALL_OWN == 0)

    def _set_gpus(self, gpus: Sequence[Gpu], count: int) -> None:
        """Send the machine's GPUs to the inspector; for a GPU in trouble the last known values."""
        by_index = {gpu.index: gpu_facts(gpu, self._facts.get(gpu.uuid)) for gpu in gpus}
        self._facts |= {one.uuid: one for one in by_index.values()}
        absent = [index for index in range(count) if index not in by_index]  # skipped by the user or by gpuwatch
        facts = (*by_index.values(), *(GpuFacts(index=index, uuid=f"index-{index}") for index in absent))
        ordered = tuple(sorted(facts, key=lambda one: one.index))
        if ordered != self._inspector.gpus:  # else the very same stays, which is quickly compared
            self._inspector.gpus = ordered
