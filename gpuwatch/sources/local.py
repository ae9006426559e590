"""Local source: runs the sampler as a supervised child process, with a quarantine for GPUs that hang or crash it.

NVML hangs for minutes on a sick GPU and sometimes crashes; only a process can be abandoned safely. The sampler notes on
a shared page its present call and GPU. When a call exceeds its time limit, the sampler is killed, never waited for, and
started again without that GPU, which a separate sampler probes after a delay that doubles; `poke` probes it at once. A
crash in a call of a GPU is treated as a hang. Two kinds of calls cost no GPU: after a hang or a crash in a call about
the driver's events the next sampler does without them for such a delay, and after one in a call about PCIe or NVLink
without these on that GPU, until `poke`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from gpuwatch.base.child import Backoff, describe_exit, start_error
from gpuwatch.base.text import clean
from gpuwatch.declared.facts import Share
from gpuwatch.model.shares import was_read
from gpuwatch.model.snapshot import (
    INDEX_UNKNOWN,
    SCHEMA,
    Gpu,
    Health,
    Holding,
    Place,
    Presence,
    Process,
    Reason,
    Snapshot,
    SourceState,
    decode,
)
from gpuwatch.sampler.protocol import Exit, SamplerOptions
from gpuwatch.sampler.shared_page import EVENT_CALLS, LINK_CALLS, CallInFlight
from gpuwatch.sources.sampler_process import SAMPLER, SamplerProcess

_NO_UUID = "the driver's list of GPUs has changed, and this GPU's UUID is not known: restart gpuwatch"


class Timeouts(msgspec.Struct, frozen=True):
    """Time limits and delays of the supervision, in seconds."""

    call: float = 2.0
    """Limit for one NVML call."""
    start: float = 10.0
    """Limit for nvmlInit and the look-up of a handle: with persistence off each GPU takes 1 to 3 s to wake."""
    probe: float = 30.0
    """Delay until a GPU in quarantine is probed; doubled after each failure, and each time that it is put there."""
    probe_most: float = 300.0
    restart: float = 5.0
    """Delay until a sampler that found no driver is started again; doubled after each failure."""
    restart_most: float = 60.0
    silence: float = 10.0
    """Limit, beyond its interval, for a sampler that is in no NVML call and writes nothing."""
    stuck: int = 2
    """Number of samplers hanging in the kernel (they cannot be killed) at which no more are started."""

    def limit(self, call: str) -> float:
        """Return the seconds that a call may take."""
        return self.start if call.startswith(("nvmlInit", "nvmlDeviceGetHandle", "nvmlDeviceGetCount")) else self.call


class QuarantinedGpu(msgspec.Struct):
    """GPU that no sampler may call, except a probe."""

    row: Gpu
    """Last values of the GPU with their old times, and the reason why there are no newer values."""
    listed: int
    """Number of GPUs that the driver listed when the row's index was valid; INDEX_UNKNOWN where it is not."""
    probe_at: float
    """Monotonic time of the next probe."""
    probe: SamplerProcess | None = None


class Quarantine:
    """GPUs that no sampler may call, by key, and the samplers that probe them."""

    def __init__(
        self,
        timeouts: Timeouts,
        start_probe: Callable[[QuarantinedGpu], SamplerProcess | None],
        abandon: Callable[[SamplerProcess], None],
    ) -> None:
        """`start_probe` returns None where no probe may be started; `abandon` is called with each killed probe."""
        self.gpus: dict[str, QuarantinedGpu] = {}
        self._timeouts, self._start_probe, self._abandon = timeouts, start_probe, abandon
        self._backoffs: dict[str, Backoff] = {}
        """Delays by key, also of GPUs that answer again: one that crashes samplers may answer each probe."""

    def gpus_to_skip(self) -> list[int | str]:
        """Return the GPUs that the sampler must skip."""
        return [gpu.row.uuid or gpu.row.index for gpu in self.gpus.values()]

    def add(self, row: Gpu, health: Health, words: str, *, listed: int, now: float, wall: float) -> None:
        """Add a GPU, and probe it after a while."""
        self.gpus[row.key] = QuarantinedGpu(
            row=replace(row, health=health, words=words, since=wall),
            listed=listed or INDEX_UNKNOWN,
            probe_at=now + self._delay(row.key),
        )

    def _delay(self, key: str) -> float:
        """Return the seconds until a GPU is probed, and double them for the next time."""
        return self._backoffs.setdefault(key, Backoff(self._timeouts.probe, self._timeouts.probe_most)).next()

    def renumber(self, snapshot: Snapshot, *, has_all: bool) -> bool:
        """Correct the indices after a change of the driver's list; return whether the sampler must be restarted.

        When a GPU drops out, those behind it move up (nvml.h): the GPUs here get the indices that no other GPU has, in
        the same order. Where the numbers differ, each index is unknown, and a GPU without a UUID is removed, to be
        found again. `has_all` is whether the snapshot has all GPUs: else nothing can be concluded from it.
        """
        others = {gpu.index for gpu in snapshot.gpus if gpu.health is Health.OK and gpu.key not in self.gpus}
        before = sorted(self.gpus.values(), key=lambda gpu: gpu.row.index)
        if all(gpu.listed == snapshot.listed and gpu.row.index not in others for gpu in before):
            return False
        free = [index for index in range(snapshot.listed) if index not in others]
        is_sure = has_all and len(free) == len(before)
        self.gpus = {}
        for position, gpu in enumerate(before):
            if is_sure:
                gpu.row, gpu.listed = replace(gpu.row, index=free[position]), snapshot.listed
            elif gpu.row.uuid:
                gpu.listed = INDEX_UNKNOWN
            elif has_all:
                self._end_probe(gpu)
                continue
            else:
                gpu.row = replace(gpu.row, words=_NO_UUID)
            self.gpus[gpu.row.key] = gpu
        return is_sure or len(self.gpus) < len(before)

    def retry_all(self, now: float) -> None:
        """Make the next `poll` probe every GPU, because the user asked."""
        for backoff in self._backoffs.values():
            backoff.reset()
        for gpu in self.gpus.values():
            if gpu.probe is None:
                gpu.probe_at = now

    @property
    def probes(self) -> list[SamplerProcess]:
        return [gpu.probe for gpu in self.gpus.values() if gpu.probe is not None]

    def poll(self, now: float, awake_since: float) -> bool:
        """Start the probes that are due and read the running ones; return whether a GPU answers again.

        The time of a call counts only from `awake_since`, the end of the last pause of this process.
        """
        back = [key for key, gpu in self.gpus.items() if self._poll_probe(gpu, now, awake_since)]
        for key in back:
            del self.gpus[key]
        return bool(back)

    def _poll_probe(self, gpu: QuarantinedGpu, now: float, awake_since: float) -> bool:
        probe = gpu.probe
        if probe is None:
            if gpu.probe_at <= now:
                gpu.probe = self._start_probe(gpu)
            return False
        if any(map(_has_answer, probe.read_lines())):
            self._end_probe(gpu)
            return True
        call = probe.in_flight()
        hangs = call is not None and now - max(call.started, awake_since) > self._timeouts.limit(call.call)
        if probe.eof or hangs or now - max(probe.started_at, awake_since) > 4 * self._timeouts.start:
            self._end_probe(gpu)
            gpu.probe_at = now + self._delay(gpu.row.key)
        return False

    def _end_probe(self, gpu: QuarantinedGpu) -> None:
        if gpu.probe is not None:
            gpu.probe.kill()
            self._abandon(gpu.probe)
            gpu.probe = None

    def close(self) -> None:
        for gpu in self.gpus.values():
            self._end_probe(gpu)


def _has_answer(line: bytes) -> bool:
    """Return whether a probe's snapshot has values of its GPU, or shows that the GPU is missing."""
    try:
        snapshot = decode(line)
    except ValueError:
        return False
    return snapshot.state is SourceState.OK and any(gpu.health is not Health.SILENT for gpu in snapshot.gpus)


_POLL = 0.25
"""Seconds between two looks at the samplers while one of them is in trouble."""

_SETTLED_POLL = 1.25
"""Most seconds between two looks while there is no trouble: with a snapshot each second, only that wakes this process.
A hang is noticed in time: no call that has not begun can reach its limit before the next look."""

_ASLEEP = 0.75
"""Seconds by which a look is late that mean that this process was stopped, or the machine paused. With `_SETTLED_POLL`
no more than `Timeouts.call`: after a longer pause no call seems to hang."""

_EXIT_TIME = 1.0
"""Seconds that a killed process may take to end before it counts as hanging in the kernel."""

_REPEAT = 1.0
"""Seconds between two snapshots, at most, while no data comes: they show how long that has lasted."""

_LINK_FIELDS = ("pcie_rx", "pcie_tx", "pcie_link", "nvlinks", "nvlink_rx", "nvlink_tx")

_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that a crash of a library does not raise; the kernel sends SIGKILL when memory runs out."""


class LocalSource:
    """Source of snapshots of this machine. All methods but `close` are to be called from one thread."""

    def __init__(
        self,
        options: SamplerOptions | None = None,
        *,
        timeouts: Timeouts | None = None,
        command: Sequence[str] = SAMPLER,
        first: SamplerProcess | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Start the sampler at once, or use `first`, a sampler that was started before this module was imported."""
        self._options = options or SamplerOptions()
        self._only: list[int | str] = list(self._options.only)
        """The requested indices; each is replaced by the UUID of the first GPU that was seen there."""
        self._timeouts = timeouts or Timeouts()
        self._command = command
        self._clock, self._wall = clock, wall
        self._lock = threading.RLock()
        self._closed = False
        self._abandoned: list[SamplerProcess] = []
        """Killed samplers that have not ended yet."""
        self._quarantine = Quarantine(self._timeouts, self._start_probe, self._abandoned.append)
        self._events_at: float | None = None
        """Time at which the driver's events are received again; None while they are received."""
        self._events_backoff = Backoff(self._timeouts.probe, self._timeouts.probe_most)
        self._focus = ""
        """Key of the GPU whose PCIe and NVLink are requested; empty for none."""
        self._without_links: set[str] = set()
        """Keys of the GPUs on which a call about PCIe or NVLink hung or crashed."""
        self._ending: tuple[SamplerProcess, CallInFlight | None, float] | None = None
        """A sampler that has closed its output, its call at that time, and the time."""
        self._restart_at: float | None = None
        self._backoff = Backoff(self._timeouts.restart, self._timeouts.restart_most)
        self._known: dict[str, Gpu] = {}
        """Last rows of the GPUs by UUID, also of GPUs that have disappeared."""
        self._processes: dict[int, Process] = {}
        """Processes of the last snapshot with a known start time, by PID."""
        self._listed = 0
        """Number of GPUs that the driver listed last."""
        self._last = Snapshot(
            host=clean(os.uname().nodename),
            taken=wall(),
            monotonic=clock(),
            interval=self._options.interval,
            viewer=os.getuid(),
            state=SourceState.STARTING,
            since=wall(),
        )
        self._last_at = self._look_at = self._awake_since = self._sign_at = self._started_at = clock()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Event that ends a wait; -1 once the source was closed. Guarded by the lock."""
        self._child: SamplerProcess | None = first
        self._has_output = False
        """Whether the present sampler has written anything."""
        if first is None:
            self._start()

    # -- the calls of a source ------------------------------------------------------------------------------

    def next(self, timeout: float) -> Snapshot | None:
        """Wait up to `timeout` seconds for the next snapshot; see `gpuwatch.sources.source.Source`."""
        deadline = self._clock() + timeout
        while not self._closed:
            now = self._clock()
            with self._lock:
                fresh = self._supervise(now)
            if fresh is not None:
                return fresh
            is_ok = self._last.state is SourceState.OK
            interval = self._options.interval if is_ok else min(self._options.interval, _REPEAT)
            if now - self._last_at >= 1.5 * interval:
                return self._repeat(now)
            self._look_at = min(self._next_look(now), self._last_at + 1.5 * interval, deadline)
            came = self._wait(self._look_at - now)
            if self._take_wake() or (not came and self._clock() >= deadline):
                return None
        return None

    def wake(self) -> None:
        """Make a `next` that waits, or the next one, return None at once; from any thread."""
        with self._lock:
            if self._woken >= 0:
                os.eventfd_write(self._woken, 1)

    def _take_wake(self) -> bool:
        """Return whether `wake` was called since the last time."""
        with self._lock, contextlib.suppress(BlockingIOError):
            return self._woken >= 0 and os.eventfd_read(self._woken) > 0
        return False

    def _wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for output of the sampler, or for `wake`; return whether there is output."""
        if self._child is not None and not self._child.eof:
            return self._child.wait(seconds, self._woken)
        poller = select.poll()
        with contextlib.suppress(ValueError):  # closed by another thread
            poller.register(self._woken, select.POLLIN)
        poller.poll(max(0.0, seconds) * 1000)
        return False

    def _next_look(self, now: float) -> float:
        """Return the time by which the samplers must be looked at again."""
        if self._child is None or self._abandoned or self._quarantine.gpus or self._events_at is not None:
            return now + _POLL
        call = self._child.in_flight()
        if call is None:
            return now + min(self._timeouts.call, _SETTLED_POLL)
        limit = max(call.started, self._awake_since) + self._timeouts.limit(call.call)
        return min(max(limit, now + 0.01), now + _SETTLED_POLL)

    def set_interval(self, seconds: float) -> None:
        self._options = replace(self._options, interval=seconds)
        if self._child is not None:
            self._child.send(interval=seconds)

    def poke(self) -> None:
        """Sample at once, and retry everything that has been given up."""
        now = self._clock()
        self._quarantine.retry_all(now)
        self._events_backoff.reset()
        self._events_at = None if self._events_at is None else now
        self._without_links.clear()
        if self._child is not None:
            self._child.send(poke=True, focus=self._focus)
        elif self._last.state is not SourceState.ENDED:
            self._restart_at = now
            self._backoff.reset()

    def set_shares(self, shares: Sequence[Share]) -> None:
        """Read declarations by these agreed shares from now on: restart the sampler with them."""
        if tuple(shares) == self._options.shares:
            return
        with self._lock:
            self._options = replace(self._options, shares=tuple(shares))
            if self._child is not None and not self._closed:
                self._abandon(self._child)
                self._restart_at = self._clock()

    def set_focus(self, gpu: str | None) -> None:
        """Read PCIe and NVLink only of this GPU from now on."""
        self._focus = gpu or ""
        if self._child is not None:
            self._child.send(focus=self._allowed_focus)

    @property
    def _allowed_focus(self) -> str:
        """Key of the GPU in focus; empty for a GPU on which such a call hung or crashed."""
        return "" if self._focus in self._without_links else self._focus

    def close(self) -> None:
        """Kill every sampler and return at once; do not wait for a process that hangs in the kernel."""
        self._closed = True
        with self._lock:
            if self._woken >= 0:
                self.wake()  # a poll(2) that waits does not notice that its descriptor is closed
                os.close(self._woken)
                self._woken = -1
            ending = [child for child in (self._child, self._ending and self._ending[0]) if child is not None]
            for child in ending:
                child.kill()
            self._abandoned += ending
            self._quarantine.close()
            end = time.monotonic() + 0.2  # killed processes end within milliseconds, on a busy machine tens of them
            for child in self._abandoned:
                child.exit_code(end - time.monotonic())
            self._reap()

    # -- supervision -----------------------------------------------------------------------------------------------

    @property
    def pids(self) -> frozenset[int]:
        """PIDs of the running samplers."""
        running = (self._child, *self._quarantine.probes, *self._abandoned)
        return frozenset(child.pid for child in running if child is not None)

    def _supervise(self, now: float) -> Snapshot | None:
        """Return a new snapshot; without one check the running samplers, and start those that are due."""
        if now - self._look_at > _ASLEEP:
            self._awake_since = now
        self._look_at = now
        self._reap()
        if self._quarantine.poll(now, self._awake_since) and self._child is not None:
            self._child.send(skip=self._quarantine.gpus_to_skip())
        if self._ending is not None:
            self._check_exit(now)
            if self._ending is not None:
                return None
        if self._child is None:
            if self._restart_at is not None and now >= self._restart_at:
                self._start()
            return None
        fresh = self._read(self._child, now)
        if fresh is not None:
            return fresh
        # Not while a sampler that hung in such a call may still be in the kernel.
        if self._events_at is not None and now >= self._events_at and not self._abandoned:
            self._events_at = None
            self._child.send(events=True)
        call = self._child.in_flight()
        if self._child.eof:
            self._ending, self._child = (self._child, call, now), None
            self._check_exit(now)
        elif call is not None:
            self._sign_at = now
            if now - max(call.started, self._awake_since) > self._timeouts.limit(call.call):
                self._handle_hang(self._child, call, now)
        elif now - max(self._sign_at, self._awake_since) > self._timeouts.silence + self._options.interval:
            words = "the sampler hangs outside of driver calls (perhaps in reading /proc)"
            self._set_state(SourceState.SILENT, words, now)
            self._restart_at = now + self._backoff.next()
            self._abandon(self._child)
        return None

    def _read(self, child: SamplerProcess, now: float) -> Snapshot | None:
        newest = None
        for line in child.read_lines():
            self._has_output = True
            try:
                snapshot = decode(line)
            except ValueError:  # an incomplete or broken line: wait for the next one
                continue
            if snapshot.schema <= SCHEMA:
                newest = snapshot
        if newest is None:
            return None
        self._sign_at = now
        newest = keep_known(replace(newest, gpus=tuple(map(self._completed, newest.gpus))), self._processes)
        if newest.state is SourceState.OK:
            if now - self._started_at >= self._timeouts.restart_most:  # one that ends early would end again
                self._backoff.reset()
            self._remember(newest.gpus)
            self._listed = newest.listed
            if self._quarantine.renumber(newest, has_all=not self._only):
                self._abandon(child)  # a new sampler knows the present index of each GPU
                self._restart_at = now
        self._last, self._last_at = self._with_absent(newest), now
        if newest.state is SourceState.OK:
            here = (one for one in self._last.processes if one.presence is not Presence.UNSURE)
            self._processes = {one.pid: one for one in here if one.start}
        return self._last

    def _handle_hang(self, child: SamplerProcess, call: CallInFlight, now: float) -> None:
        """Kill a sampler that hangs, and start one without what it hangs in."""
        self._restart_at = now
        if not self._leave_out(call, Health.SILENT, f"no answer from {call.call}", now):
            words = f"the driver does not answer ({call.call}, {self._timeouts.limit(call.call):.0f} s)"
            self._set_state(SourceState.SILENT, words, now)
            self._restart_at = now + self._backoff.next()
        self._abandon(child)
        if now >= self._restart_at:
            self._start()

    def _leave_out(self, call: CallInFlight, health: Health, words: str, now: float) -> bool:
        """Exclude from the next sampler what hung or crashed in this call; return whether anything can be excluded."""
        if call.call in EVENT_CALLS:
            self._events_at = now + self._events_backoff.next()
        elif call.gpu < 0:
            return False
        elif call.call in LINK_CALLS:
            self._without_links.add(self._row(call).key)
        else:
            row = self._row(call)
            self._remember([row])
            self._quarantine.add(row, health, words, listed=call.listed, now=now, wall=self._wall())
            self._last_at = float("-inf")  # the row says so at the next look
        return True

    def _abandon(self, child: SamplerProcess) -> None:
        child.kill()
        self._abandoned.append(child)
        self._child = None

    def _check_exit(self, now: float) -> None:
        """Handle a sampler that has closed its output, by its exit code and its last call."""
        assert self._ending is not None
        child, call, since = self._ending
        code = child.exit_code()
        if code is None and now - since < _EXIT_TIME:
            return
        self._ending = None
        child.kill()
        if code is None:
            self._abandoned.append(child)
        if self._last.state is SourceState.ENDED:
            return  # it has reported this itself: a restart would not help
        crashed = code is not None and code < 0 and -code not in _FROM_OUTSIDE
        words = f"{call.call} crashed the sampler ({describe_exit(code)})" if call else ""
        if crashed and call is not None and self._leave_out(call, Health.QUARANTINED, words, now):
            self._restart_at = now
            return
        has_said_why = code in (Exit.NO_DRIVER, Exit.AGAIN)
        if not has_said_why and (not self._has_output or self._last.state is SourceState.OK):
            where = f" in {call.call}" if call else ""
            self._set_state(SourceState.DRIVER_DOWN, f"the sampler ended{where} ({describe_exit(code)})", now)
        self._restart_at = now + self._backoff.next()

    def _stuck(self) -> int:
        """Return the number of killed samplers that do not end."""
        now = time.monotonic()
        return sum(child.killed_at is not None and now - child.killed_at > _EXIT_TIME for child in self._abandoned)

    def _may_start(self) -> bool:
        return not self._closed and self._stuck() < self._timeouts.stuck

    def _start(self) -> None:
        self._restart_at = None
        self._has_output = False
        now = self._started_at = self._sign_at = self._clock()
        state, words = SourceState.SILENT, f"{self._stuck()} samplers hang in the kernel and cannot be killed"
        if self._may_start():
            options = replace(
                self._options,
                only=tuple(self._only),
                skip=tuple(self._quarantine.gpus_to_skip()),
                known=tuple(self._places()),
                again=bool(self._known),
                events=self._events_at is None,
                focus=self._allowed_focus,
            )
            try:
                self._child = SamplerProcess(msgspec.to_builtins(options), command=self._command)
            except OSError as error:  # no memory, no room for a process, no interpreter: each may pass
                state = SourceState.DRIVER_DOWN
                words = f"the sampler cannot be started: {clean(start_error(error), 300)}"
            else:
                return
        self._set_state(state, words, now)
        self._restart_at = now + self._backoff.next()

    def _places(self) -> list[Place]:
        """Return the last known place of each GPU, so that a sampler can find them again."""
        isolated = self._quarantine.gpus
        others = [row for key, row in self._known.items() if key not in isolated]
        return [
            *(_place(row, 0 if row.health is Health.MISSING else self._listed or INDEX_UNKNOWN) for row in others),
            *(_place(gpu.row, gpu.listed) for gpu in isolated.values()),
        ]

    def _start_probe(self, gpu: QuarantinedGpu) -> SamplerProcess | None:
        """Start a probe, unless with it more than `Timeouts.stuck` samplers could hang."""
        if self._closed or self._stuck() + len(self._quarantine.probes) >= self._timeouts.stuck:
            return None
        row = gpu.row
        if not row.uuid and gpu.listed != self._listed:  # nobody knows which GPU is at its index now
            return None
        options = SamplerOptions(once=True, only=(row.uuid or row.index,), known=(_place(row, gpu.listed),))
        try:
            return SamplerProcess(msgspec.to_builtins(options), command=(*self._command, "--no-declared"))
        except OSError:  # as above; the next look tries again, and the row says that nothing is known of the GPU
            return None

    def _reap(self) -> None:
        self._abandoned[:] = [child for child in self._abandoned if child.exit_code() is None]

    # -- snapshots -------------------------------------------------------------------------------------------------

    def _set_state(self, state: SourceState, words: str, now: float) -> None:
        """Make the next snapshot say that nothing new can be read, and why."""
        since = self._last.since if self._last.state is state else self._wall()
        self._last = replace(self._last, state=state, words=words, since=since)
        self._last_at = now - 2 * self._options.interval

    def _repeat(self, now: float) -> Snapshot:
        """Return the last snapshot again, with the present time and states."""
        last = self._last
        call = self._child.in_flight() if self._child is not None else None
        words = last.words
        if last.state is SourceState.STARTING and call is not None:
            words = f"waiting for the driver: {call.call}, {now - call.started:.0f} s"
        # By the longer of two intervals: values taken under another one are not late because this one is shorter.
        interval = max(last.interval, self._options.interval)
        moved = replace(last, taken=self._wall(), monotonic=now, interval=interval, words=words)
        self._last, self._last_at = self._with_absent(moved), now
        return self._last

    def _with_absent(self, snapshot: Snapshot) -> Snapshot:
        """Add the rows of the GPUs that this sampler must skip or no longer lists."""
        rows = {gpu.key: gpu for gpu in snapshot.gpus} | {key: gpu.row for key, gpu in self._quarantine.gpus.items()}
        if snapshot.state is SourceState.OK:  # one that was just given back is not in it yet
            rows = self._known | rows
        if not rows:
            return snapshot
        shown = {holding.pid for row in rows.values() for holding in row.holdings}
        there = {process.pid for process in snapshot.processes}
        kept = [process for process in self._last.processes if process.pid in shown - there]
        return replace(
            snapshot,
            gpus=tuple(sorted(rows.values(), key=lambda row: row.index)),
            processes=(*snapshot.processes, *kept),
        )

    def _completed(self, row: Gpu) -> Gpu:
        """Return the row of a GPU with the known times, where this sampler has never sampled it.

        Of the GPU in focus it also says that PCIe and NVLink are not read because such a call failed.
        """
        before = self._known.get(row.uuid)
        if before is not None and not row.sampled and row.health is not Health.OK:
            since = before.since if before.health is row.health else row.since
            row = replace(row, since=since, sampled=before.sampled, slow_sampled=before.slow_sampled)
        if row.key == self._focus and row.key in self._without_links:
            row = replace(row, **dict.fromkeys(_LINK_FIELDS, Reason.ERROR))
        return row

    def _remember(self, rows: Sequence[Gpu]) -> None:
        """Remember GPUs by UUID; where they were requested by index, request them by UUID from now on."""
        self._known |= {row.uuid: row for row in rows if row.uuid}
        for row in rows:
            if row.uuid and row.uuid not in self._only and row.index in self._only:
                self._only[self._only.index(row.index)] = row.uuid

    def _row(self, call: CallInFlight) -> Gpu:
        """Return the last row of the GPU of a call."""
        new = Gpu(index=call.gpu, uuid=call.uuid, bus_id=call.bus_id)
        found = [row for row in (*self._last.gpus, *self._known.values()) if row.key == new.key]
        return replace(found[0], index=new.index, bus_id=new.bus_id) if found else new


def keep_known(snapshot: Snapshot, before: Mapping[int, Process]) -> Snapshot:
    """Return a snapshot in which ended processes keep the facts that were known while they ran.

    `before` are the processes of the snapshot before, by PID: the driver has listed them since without a break. It
    lists only PIDs, so a new process under such a PID is another one, and takes its place.
    """
    kept = {}
    for process in snapshot.processes:
        known = before.get(process.pid)
        if known is not None and (now := _with_known(process, known)) is not process:
            kept[process.pid] = now
    if not kept:
        return snapshot

    def with_start(holding: Holding) -> Holding:
        return replace(holding, start=kept[holding.pid].start) if holding.pid in kept else holding

    processes = tuple(kept.get(process.pid, process) for process in snapshot.processes)
    gpus = tuple(replace(gpu, holdings=tuple(map(with_start, gpu.holdings))) for gpu in snapshot.gpus)
    return replace(snapshot, processes=processes, gpus=gpus)


def _with_known(process: Process, known: Process) -> Process:
    """Return a process with the facts that were known of it and cannot be read any more; else the same object."""
    declared = known.declared if was_read(known.declared) else process.declared
    if not process.start:  # it is not in /proc, or not to be seen or read there
        presence = process.presence
        if presence is Presence.ELSEWHERE:  # but it was here, and the driver lists only PIDs of this container
            presence = Presence.GONE
        return replace(
            known, presence=presence, state="", cpu=process.cpu, below=process.below, rss=process.rss, declared=declared
        )
    if process.key == known.key and known.command and not process.command:  # a new sampler, after its main thread ended
        facts = {"name": known.name, "command": known.command, "program": known.program, "context": known.context}
        return replace(process, declared=declared, **facts)
    return process


def _place(row: Gpu, listed: int) -> Place:
    return Place(row.index, listed, row.uuid, row.name, row.bus_id)
