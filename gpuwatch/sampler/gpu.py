"""One GPU: looks it up, reads its metrics and processes, and handles its failures and its recovery."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from gpuwatch.base import procfs
from gpuwatch.base.text import clean
from gpuwatch.model.snapshot import INDEX_UNKNOWN, Gpu, Health, Memory, Place, Reading, Reason, known
from gpuwatch.sampler import machine, nvml
from gpuwatch.sampler.metrics import (
    FAST,
    LINK_STATES,
    LINKS,
    MIG,
    NVLINK_BYTES,
    RARE,
    SLOW,
    STATIC,
    FallbackCalls,
    Figure,
    missing_memory,
    read_memory,
    unified_memory,
)
from gpuwatch.sampler.nvml import Calls, Code, Failed, Handle
from gpuwatch.sampler.processes import COMPUTE, GRAPHICS, MPS, GpuProcesses, MigInstances, ProcessLists
from gpuwatch.sampler.xid import Registration, XidCounter, XidEvents

Task = TypeVar("Task")
T = TypeVar("T")


class Schedule(Generic[Task]):
    """Schedule of repeated tasks; tasks of the same period are spread evenly over the period."""

    def __init__(self, tasks: Mapping[float, Sequence[Task]]) -> None:
        """`tasks` are the tasks by their period in seconds."""
        self._tasks = tasks
        self._due: list[tuple[float, float, Task]] | None = None

    def restart(self) -> None:
        self._due = None

    def hasten(self, task: Task) -> None:
        """Make one task due now, before all others."""
        self._due = [(0.0 if other == task else due, period, other) for due, period, other in self._due or []] or None

    def due(self, now: float, most: int) -> list[Task]:
        """Return up to `most` tasks that are due, the longest overdue first; all of them at the start."""
        if self._due is None:
            self._due = [
                (now + period * (place + 1) / len(tasks), period, task)
                for period, tasks in self._tasks.items()
                for place, task in enumerate(tasks)
            ]
            return [task for _, _, task in self._due]
        overdue = sorted((entry[0], place) for place, entry in enumerate(self._due) if entry[0] <= now)[:most]
        taken = []
        for due, place in overdue:
            _, period, task = self._due[place]
            # From its own time on, so that the spread holds; from now on where a whole round was missed.
            self._due[place] = (due + period if due + period > now else now + period, period, task)
            taken.append(task)
        return taken


SLOW_PERIOD = 10.0
RARE_PERIOD = 60.0
RETRY = 5.0
"""Seconds until a GPU that failed is looked up again."""

_TIMEOUTS = 3
"""Samples in a row, cut short by the driver's own timeout, after which the GPU counts as not responding."""

_SLOW_SAMPLE = 0.2
_REST = 4
"""A sample longer than `_SLOW_SAMPLE` seconds is followed by a pause of `_REST` times its length for the driver."""

_TASKS: dict[float, tuple[Figure | str, ...]] = {SLOW_PERIOD: (*SLOW, GRAPHICS, MPS), RARE_PERIOD: (MIG, *RARE)}

_LINK_PERIOD = 0.5
"""Seconds between two readings of PCIe and NVLink, at least: the driver measures for a while."""

_LINK_FIGURES = (*LINKS, NVLINK_BYTES, *LINK_STATES)
_LINK_TASKS = {_LINK_PERIOD: (*LINKS, NVLINK_BYTES), SLOW_PERIOD: LINK_STATES}


class Shared:
    """State that all GPUs of a sampler share."""

    def __init__(
        self,
        calls: Calls,
        *,
        interval: float = 1.0,
        listens: bool = True,
        focus: str = "",
        proc: Path = procfs.PROC,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`listens` is whether to receive the driver's events.

        `focus` is the key of the GPU whose PCIe and NVLink are read; empty for none.
        """
        self.calls = calls
        self.driver = ""
        self.interval = interval
        self.focus = focus
        self.proc = proc
        self.clock = clock
        self.wall = wall
        self.fallback = FallbackCalls(calls)
        self.lists = ProcessLists(calls)
        self.events = XidEvents(calls, on=listens, clock=clock, wall=wall)
        self.pid_max = machine.pid_max(proc)


class Device:
    """One GPU, from the first look-up to the last. Failures of its calls are stored in `failure`, never raised."""

    def __init__(self, place: Place, shared: Shared) -> None:
        self.xid_counter = XidCounter(shared.events.missing)
        self.row = Gpu(
            index=place.index, uuid=place.uuid, name=place.name, bus_id=place.bus_id, xids=self.xid_counter.xids
        )
        self.listed = place.listed
        """How many GPUs the driver listed when its index was right; INDEX_UNKNOWN where it may have moved since."""
        self.left_alone = False
        """Whether no call may be made to this GPU, since a call would hang."""
        self.failure: Failed | None = None
        """Failure of the whole GPU in the last sample."""
        self._shared = shared
        self._calls = shared.calls
        self._handle: Handle = None
        self.missing = False
        """Whether the driver no longer lists it."""
        self.moved = False
        """Whether the GPU was found at another index than before: other GPUs may have moved too."""
        self._asked: dict[Figure | str, float] = {}
        self._due = 0.0
        self._timeouts = 0
        self._answers = 0
        self._errors: list[Failed] = []
        self._forget()
        if place.uuid and not place.listed:
            self.mark_missing()

    def _forget(self) -> None:
        """Drop the handle, and all values that were read through it."""
        shared = self._shared
        self._handle = None
        self._figures: dict[str, Any] = {}
        self._unsupported: set[tuple[str, ...]] = set()
        self._memory = Memory()
        self._mig: bool | None = None
        self._instances = MigInstances(shared.fallback, shared.lists)
        self._processes = GpuProcesses(shared.lists, self._instances, self._excuse, shared.pid_max)
        self._schedule: Schedule[Figure | str] = Schedule(_TASKS)
        self._link_schedule: Schedule[Figure] = Schedule(_LINK_TASKS)
        self._nvlink_read: tuple[float, int, int] | None = None
        """Time of the last reading of NVLink's counters, and the bytes sent and received until then."""
        self._asked.clear()

    # -- one sample ------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether this GPU must not be called now: after a slow sample or a failure, or because it is missing."""
        return self.missing or self._shared.clock() < self._due

    def sample(self) -> None:
        """Sample the GPU into `row`; where it did not answer at all, set `failure`."""
        clock = self._shared.clock
        started = clock()
        try:
            with self._about():
                if self._handle is None:
                    self._open()
                    started = clock()  # waking a GPU takes seconds and is not a failure
                self._read(started)
        except Failed as failed:
            self._fail(failed)
            return
        self._timeouts = 0
        self.failure = None
        took = clock() - started
        self._due = clock() + max(self._shared.interval, _REST * took) if took > _SLOW_SAMPLE else 0.0

    def _about(self) -> AbstractContextManager[None]:
        return self._calls.about(self.row.index, self.listed, self.row.uuid, self.row.bus_id)

    def _open(self) -> None:
        """Look the GPU up and read the figures that never change; raises Failed."""
        handle, index, uuid = self._find()
        if index != self.row.index:
            self.moved, self.listed = True, INDEX_UNKNOWN
        self.row = msgspec.structs.replace(
            self.row,
            index=index,
            uuid=uuid or self.row.uuid,
            name=self._text("nvmlDeviceGetName", handle) or self.row.name,
            bus_id=self._try(lambda: clean(self._calls.ask("nvmlDeviceGetPciInfo", handle).busId), "")
            or self.row.bus_id,
        )
        self._handle = handle
        self.xid_counter.reset_registration()
        for figure in STATIC:
            self._figure(figure)

    def _find(self) -> tuple[Handle, int, str]:
        """Return handle, index and UUID, and check that it is the same GPU as before; raises Failed.

        The look-up is by PCI address, once that is known: then NVML attaches this GPU only. The index may mean another
        GPU that hangs, and a look-up by UUID may attach others (nvml.h, nvmlDeviceGetHandleByPciBusId_v2 and ByUUID).
        Where the driver gives no addresses, the look-up is by index.
        """
        row = self.row
        index, handle = row.index, None
        if row.bus_id:
            try:
                handle = self._calls.ask("nvmlDeviceGetHandleByPciBusId", row.bus_id)
            except Failed as failed:
                if failed.code not in nvml.UNSUPPORTED:
                    raise
        by_address = handle is not None
        if not by_address:
            handle = self._calls.ask("nvmlDeviceGetHandleByIndex", row.index)
        uuid = self._text("nvmlDeviceGetUUID", handle)
        if uuid and row.uuid and uuid != row.uuid:
            raise Failed("nvmlDeviceGetUUID", Code.NOT_FOUND)
        if by_address:
            index = self._try(lambda: int(self._calls.ask("nvmlDeviceGetIndex", handle)), row.index)
        return handle, index, uuid

    def _try(self, ask: Callable[[], T], default: T) -> T:
        """Return the result of a call, or the default where the GPU has no value; raises as `_excuse` does."""
        try:
            return ask()
        except Failed as failed:
            self._excuse(failed)
        except UnicodeDecodeError:  # the binding decodes each text of a structure strictly
            pass
        return default

    def _text(self, symbol: str, handle: Handle) -> str:
        return self._try(lambda: clean(self._calls.text(symbol, handle)), "")

    def _read(self, now: float) -> None:
        """Make all calls that are due, and update the row; raises a failure that concerns the whole GPU."""
        self._answers, self._errors = 0, []
        seconds = max(1, int(now - self.row.sampled)) if self.row.sampled else 1
        due = self._schedule.due(now, most=seconds)  # one more call a second
        if MIG in due:
            self._read_mig()
        self._read_memory()
        if self._mig and not self._instances.refresh(seconds):  # two more; of seven instances each every 7 s
            self._look_up_instances()
        for figure in FAST:
            self._figure(figure)
        for task in due:
            if isinstance(task, Figure) and task is not MIG:
                self._figure(task)
        lists = [COMPUTE, *(task for task in due if isinstance(task, str))]
        hurry = self._processes.read(self._handle, lists, self._memory.total, mig=bool(self._mig))
        if hurry:
            self._schedule.hasten(GRAPHICS)
        self._processes.read_utilization(self._handle, round(self._shared.wall() * 1e6), mig=bool(self._mig))
        self._read_links(now)
        self._asked |= dict.fromkeys(due, now)
        if self._errors and not self._answers:
            raise self._errors[0]
        self._make_row(now)

    def _excuse(self, failed: Failed) -> Reason:
        """Return the reason why one figure is missing; raises a failure that concerns the whole GPU."""
        if failed.code in nvml.WHOLE_GPU or failed.code in (Code.UNINITIALIZED, Code.TIMEOUT):
            raise failed
        why = nvml.reason(failed.code)
        if why is Reason.ERROR:
            self._errors.append(failed)
        else:
            self._answers += 1
        return why

    def _figure(self, figure: Figure) -> None:
        """Read one figure, unless it is known not to exist."""
        if figure.fields in self._unsupported:
            return
        values: tuple[Any, ...]
        if self._mig and not figure.under_mig:
            values = (Reason.UNSUPPORTED,) * len(figure.fields)
        else:
            try:
                values = self._shared.fallback.read(figure, self._handle)
                self._answers += 1
            except Failed as failed:
                values = (self._excuse(failed),) * len(figure.fields)
                if failed.code in nvml.UNSUPPORTED:
                    self._unsupported.add(figure.fields)
        self._figures.update(zip(figure.fields, values, strict=True))

    def _read_links(self, now: float) -> None:
        """Read PCIe and NVLink where this GPU is in focus, else forget them."""
        if self._shared.focus != self.row.key:
            for figure in _LINK_FIGURES:
                if figure.fields not in self._unsupported:
                    for field in figure.fields:
                        self._figures.pop(field, None)
            self._link_schedule.restart()
            self._nvlink_read = None
            return
        for figure in self._link_schedule.due(now, most=len(_LINK_FIGURES)):
            try:
                self._figure(figure)
            except Failed as failed:
                if failed.code != Code.TIMEOUT:
                    raise
                self._figures.update(dict.fromkeys(figure.fields, Reason.ERROR))
            if figure is NVLINK_BYTES:
                self._make_nvlink_rates()

    def _make_nvlink_rates(self) -> None:
        """Replace the counters of NVLink by bytes per second since the reading before."""
        sent, received = self._figures["nvlink_tx"], self._figures["nvlink_rx"]
        if not known(sent) or not known(received):
            return
        now = self._shared.clock()
        before, self._nvlink_read = self._nvlink_read, (now, int(sent), int(received))
        rates: tuple[Reading, Reading] = (Reason.NO_SAMPLE, Reason.NO_SAMPLE)
        # A counter goes back when the driver is loaded again.
        if before and now > before[0] and sent >= before[1] and received >= before[2]:
            seconds = now - before[0]
            rates = (sent - before[1]) / seconds, (received - before[2]) / seconds
        self._figures["nvlink_tx"], self._figures["nvlink_rx"] = rates

    def _read_mig(self) -> None:
        """Read whether the GPU is divided into MIG instances, and look up the instances."""
        before = self._mig
        self._figure(MIG)
        self._mig = self._figures["mig"] is True
        if before is not None and self._mig is not before:  # the supported figures depend on it
            self._unsupported.clear()
            shared = self._shared
            self._processes = GpuProcesses(shared.lists, self._instances, self._excuse, shared.pid_max)
            self._schedule.restart()
        if self._mig:
            self._look_up_instances()
        else:
            self._instances.clear()

    def _look_up_instances(self) -> None:
        try:
            self._instances.look_up(self._handle)
        except Failed as failed:
            self._instances.clear()
            self._excuse(failed)

    def _read_memory(self) -> None:
        if ("memory",) not in self._unsupported:
            try:
                memory = read_memory(self._shared.fallback, self._handle)
                self._answers += 1
            except Failed as failed:
                memory = missing_memory(self._excuse(failed))
            if memory is None:
                self._unsupported.add(("memory",))
                memory = Memory(reserved=Reason.UNSUPPORTED, unified=True)
            self._memory = memory

    def _make_row(self, now: float) -> None:
        shared, row = self._shared, self.row
        memory = self._memory
        if memory.unified:
            memory = unified_memory(self._processes.memory, shared.proc)
        stamps = [self._asked[task] for task in _TASKS[SLOW_PERIOD] if task in self._asked]
        self.row = Gpu(
            index=row.index,
            uuid=row.uuid,
            name=row.name,
            bus_id=row.bus_id,
            since=row.since if row.health is Health.OK else shared.wall(),
            sampled=now,
            slow_sampled=min(stamps, default=0.0),
            memory=memory,
            instances=self._instances.rows,
            holdings=self._processes.holdings,
            holdings_note=self._processes.note(shared.driver),
            unreliable=self._processes.unreliable,
            unattributed=self._unattributed(memory),
            xids=self.xid_counter.xids,
            **self._figures,
        )

    def _unattributed(self, memory: Memory) -> Reading:
        if memory.unified or memory.reserved is Reason.UNSUPPORTED:
            return Reason.UNSUPPORTED  # the driver's own part of the used memory is not known
        held = self._processes.memory
        if not known(memory.used) or not known(held) or not self._processes.complete:
            return Reason.NO_SAMPLE
        return max(0, memory.used - held)

    # -- failures --------------------------------------------------------------------------------------------------

    def _fail(self, failed: Failed) -> None:
        health, words = nvml.health(failed)
        if failed.code == Code.TIMEOUT:
            self._timeouts += 1
            if self._timeouts >= _TIMEOUTS:
                health = Health.SILENT
            elif self._handle is not None:  # once is no failure: the figures stay, and their age grows on screen
                self.row = msgspec.structs.replace(self.row, words=words)
                return
        self.failure = failed
        self._due = self._shared.clock() + RETRY
        self._clear_row(health, words)

    def _clear_row(self, health: Health, words: str) -> None:
        """Replace the row by a row with only health, words and XIDs: figures cannot be trusted in this state."""
        row = self.row
        self._forget()
        self.row = Gpu(
            index=row.index,
            uuid=row.uuid,
            name=row.name,
            bus_id=row.bus_id,
            health=health,
            words=words,
            since=row.since if row.health is health else self._shared.wall(),
            sampled=row.sampled,
            slow_sampled=row.slow_sampled,
            xids=self.xid_counter.xids,
        )

    @property
    def registration(self) -> Registration | None:
        """Registration of the GPU for the driver's events; None while the GPU cannot be called."""
        if self._handle is None or self.waits:
            return None
        return Registration(self.row.index, self._handle, self.xid_counter)

    def update_xids(self) -> None:
        """Copy the counted XIDs into the row."""
        xids = self.xid_counter.xids
        if xids != self.row.xids:
            self.row = msgspec.structs.replace(self.row, xids=xids)

    def mark_missing(self) -> None:
        """Mark the GPU as no longer listed by the driver; no call is made to it until `set_place`."""
        if not self.missing:
            self.missing = True
            self.failure = None
            self._clear_row(Health.MISSING, "the driver no longer lists it")

    def locate(self, listed: int) -> bool:
        """Look up the GPU's index after the driver's list has changed to `listed` GPUs; return whether it was found."""
        if not self.row.uuid:
            return False
        try:
            with self._about():
                _, index, _ = self._find()
        except Failed as failed:  # the next sample reports other failures
            if failed.code in nvml.NOT_THERE:
                self.mark_missing()
            return False
        self.set_place(Place(index, listed, bus_id=self.row.bus_id))
        return True

    def set_place(self, place: Place) -> None:
        """Set the place (index and address) at which the driver lists this GPU now."""
        if self.missing or place.index != self.row.index:
            self._handle = None
        self.missing = self.moved = False
        self.listed = place.listed
        self._due = 0.0
        self.row = msgspec.structs.replace(self.row, index=place.index, bus_id=place.bus_id)

    def leave_alone(self, left: bool) -> bool:
        """Stop making calls to the GPU, or allow them again; return whether this call allowed them again."""
        back = self.left_alone and not left
        self.left_alone = left
        if back:
            self._handle, self._due = None, 0.0
        return back
