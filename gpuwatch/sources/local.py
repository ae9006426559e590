"""Local source: the sampler as a supervised child process, with a quarantine for GPUs that hang or crash it.

NVML hangs for minutes on a sick GPU and sometimes crashes; only a process can be given up. The child says on a shared
page which GPU and which call it is in. A call over its deadline costs the child its life: it is killed, never waited
for, and started again without that GPU, which is probed in a child of its own from time to time. A hang or a crash
while it listens for the driver's events costs no GPU: the next does not listen, and is told to after a while.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gpuwatch.child import describe_exit, start_error
from gpuwatch.declared.facts import Share
from gpuwatch.model import INDEX_UNKNOWN, SCHEMA, Gpu, Health, Place, Snapshot, SourceState, decode
from gpuwatch.sampler.protocol import sampler_arguments
from gpuwatch.sampler.shared_page import EVENT_CALLS, InFlight
from gpuwatch.sources.child import SAMPLER, Child
from gpuwatch.text import clean

_UNIDENTIFIED = "the driver lists other GPUs since, and this one never told its UUID: start gpuwatch anew"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the parent waits for what, in seconds; a test hands in shorter ones."""

    call: float = 2.0
    """One NVML call."""
    start: float = 10.0
    """nvmlInit and the look-up of a handle: with persistence off each GPU takes 1 to 3 s to wake."""
    probe: float = 30.0
    """From giving a GPU up to trying it again; doubled after each failure."""
    probe_most: float = 300.0
    restart: float = 5.0
    """From a driver that is not there to asking again; doubled after each failure."""
    restart_most: float = 60.0
    crashes: int = 3
    """So many crashes inside one GPU's calls …"""
    crash_window: float = 60.0
    """… within so many seconds put it in quarantine until the user asks."""
    silence: float = 10.0
    """From the last sign of a sampler, beyond its interval, that is in no call of the driver."""
    stuck: int = 2
    """Samplers that cannot be killed (they hang in the kernel) before nothing more is started."""

    def allows(self, call: str) -> float:
        """Return the seconds that a call may take."""
        return self.start if call.startswith(("nvmlInit", "nvmlDeviceGetHandle", "nvmlDeviceGetCount")) else self.call


@dataclass(slots=True)
class Parked:
    """One GPU that no sampler may touch, and why."""

    row: Gpu
    """The last figures with their old stamps, and why there are no newer ones."""
    listed: int
    """How many GPUs the driver listed when the row's index was right; INDEX_UNKNOWN where it is not."""
    probe_at: float | None
    """Monotonic time of the next probe; None for not before the user asks."""
    delay: float
    probe: Child | None = None


@dataclass(slots=True)
class Lot:
    """All GPUs that are parked, by key: UUID, or index for one that has never given it."""

    patience: Patience
    start_probe: Callable[[Parked], Child | None]
    """Starts a sampler for one GPU alone and one sample; None where none may be started."""
    abandon: Callable[[Child], None]
    """Takes over a probe that was killed, until it is reaped."""
    parked: dict[str, Parked] = field(default_factory=dict)

    def names(self) -> list[int | str]:
        """Return the GPUs that the sampler must skip, as it is told of them."""
        return [parked.row.uuid or parked.row.index for parked in self.parked.values()]

    def park(self, row: Gpu, health: Health, words: str, *, listed: int, now: float, wall: float) -> None:
        """Return a GPU up: silent ones are probed after a while, quarantined ones when the user asks."""
        quiet = health is Health.QUARANTINED
        self.parked[row.key] = Parked(
            row=msgspec.structs.replace(row, health=health, words=words, since=wall),
            listed=listed or INDEX_UNKNOWN,
            probe_at=None if quiet else now + self.patience.probe,
            delay=self.patience.probe,
        )

    def renumber(self, snapshot: Snapshot, *, whole: bool) -> bool:
        """Return the parked GPUs their indices where the driver's list has changed; True when the sampler must be told.

        They are those that no other GPU has, in the same order: when one drops out, those behind it move up (nvml.h).
        Where these are more or fewer it is not known which is whose; one without a UUID is then known by nothing, and
        let go, to be found anew. `whole` says whether the snapshot has all GPUs: else there is nothing to go by.
        """
        others = {gpu.index for gpu in snapshot.gpus if gpu.health is Health.OK and gpu.key not in self.parked}
        before = sorted(self.parked.values(), key=lambda parked: parked.row.index)
        if all(parked.listed == snapshot.listed and parked.row.index not in others for parked in before):
            return False
        free = [index for index in range(snapshot.listed) if index not in others]
        sure = whole and len(free) == len(before)
        self.parked = {}
        for place, parked in enumerate(before):
            if sure:
                parked.row, parked.listed = msgspec.structs.replace(parked.row, index=free[place]), snapshot.listed
            elif parked.row.uuid:
                parked.listed = INDEX_UNKNOWN
            elif whole:
                self._drop(parked)
                continue
            else:
                parked.row = msgspec.structs.replace(parked.row, words=_UNIDENTIFIED)
            self.parked[parked.row.key] = parked
        return sure or len(self.parked) < len(before)

    def ask_again(self, now: float) -> None:
        """Probe every parked GPU at the next occasion, because the user asked."""
        for parked in self.parked.values():
            if parked.probe is None:
                parked.probe_at = now

    @property
    def probes(self) -> list[Child]:
        """Return the probes that run."""
        return [parked.probe for parked in self.parked.values() if parked.probe is not None]

    def step(self, now: float, awake: float) -> bool:
        """Start the probes that are due and look at those that run; True when a GPU came back.

        `awake` is since when we have been running ourselves: no call's time counts before it.
        """
        back = [key for key, parked in self.parked.items() if self._answers(parked, now, awake)]
        for key in back:
            del self.parked[key]
        return bool(back)

    def _answers(self, parked: Parked, now: float, awake: float) -> bool:
        if parked.probe is None:
            if parked.probe_at is not None and parked.probe_at <= now:
                parked.probe = self.start_probe(parked)
            return False
        for line in parked.probe.read_lines():
            if _answered(line):
                self._drop(parked)
                return True
        call = parked.probe.in_flight()
        hung = call is not None and now - max(call.started, awake) > self.patience.allows(call.call)
        late = now - max(parked.probe.started_at, awake) > 4 * self.patience.start
        if parked.probe.eof or hung or late:
            self._drop(parked)
            parked.delay = min(2 * parked.delay, self.patience.probe_most)
            parked.probe_at = None if parked.row.health is Health.QUARANTINED else now + parked.delay
        return False

    def _drop(self, parked: Parked) -> None:
        if parked.probe is not None:
            parked.probe.kill()
            self.abandon(parked.probe)
            parked.probe = None

    def close(self) -> None:
        """End every probe."""
        for parked in self.parked.values():
            self._drop(parked)


def _answered(line: bytes) -> bool:
    """Return whether the snapshot of a probe, which asks one GPU, has an answer, if only that it is no longer there."""
    try:
        snapshot: Snapshot = decode(line)
    except msgspec.MsgspecError:
        return False
    return snapshot.state is SourceState.OK and any(gpu.health is not Health.SILENT for gpu in snapshot.gpus)


@dataclass(slots=True)
class Crashes:
    """When the sampler crashed inside which GPU's calls, by the key of the GPU."""

    times: dict[str, list[float]] = field(default_factory=dict)

    def add(self, key: str, now: float, window: float) -> int:
        """Note a crash and count those within the window."""
        recent = [then for then in self.times.get(key, []) if now - then < window]
        self.times[key] = [*recent, now]
        return len(self.times[key])


@dataclass(slots=True)
class Listening:
    """Whether a sampler takes the driver's events (XIDs): not for a while after one hung or crashed over them."""

    patience: Patience
    wanted: bool = True
    retry_at: float | None = None
    """When to try again; None for not before the user asks, or for nothing to try."""
    _failures: int = 0
    _failed: float = float("-inf")

    def failed(self, now: float) -> None:
        """Do without from now on, longer after each failure; after too many, until the user asks."""
        patience = self.patience
        if now - self._failed > 10 * patience.probe_most:  # it went well for long
            self._failures = 0
        delay = min(patience.probe * 2**self._failures, patience.probe_most)
        self._failures += 1
        self._failed = now
        self.wanted = False
        self.retry_at = now + delay if self._failures < patience.crashes else None

    def ask_again(self, now: float) -> None:
        """Try at the next occasion, because the user asked."""
        if not self.wanted:
            self._failures, self.retry_at = 0, now

    def due(self, now: float) -> bool:
        """Say, once, that it is time to listen again."""
        if self.retry_at is None or now < self.retry_at:
            return False
        self.wanted, self.retry_at = True, None
        return True


_POLL = 0.2
"""Seconds between two looks at the shared page: a hang is noticed so much later than its deadline."""

_ASLEEP = 1.0
"""Seconds between two looks that only pass where we did not run: stopped, or on a machine that was paused."""

_DYING = 1.0
"""Seconds that a killed process may take to go before it counts as one that hangs in the kernel."""

_RESTLESS = 1.0
"""Seconds between two snapshots, at most, while there is nothing to see but how long it takes."""

_EXIT_NO_DRIVER = 3
_EXIT_AGAIN = 4
"""The sampler's exit codes for what it has said itself; see `gpuwatch.sampler.loop.Exit`."""

_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that no library's crash ends in; the kernel kills by the first one when memory runs out."""


class LocalSource:
    """Snapshots of this machine. All but `close` are to be called from one thread."""

    def __init__(
        self,
        *,
        interval: float = 1.0,
        only: Sequence[int] = (),
        shares: Sequence[Share] = (),
        tmux: bool = False,
        reservations: Path | None = None,
        patience: Patience | None = None,
        command: Sequence[str] = SAMPLER,
        first: Child | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Start the sampler at once, or take over `first`, one that was started before this module was imported.

        `reservations` is the folder of all users' reservations where it is not the machine's own.
        """
        self._interval = interval
        self._only: list[int | str] = list(only)
        """The indices that were asked for; each is replaced by the UUID of the first GPU that was seen there."""
        self._shares = tuple(shares)
        self._tmux = tmux
        self._reservations = reservations
        self._patience = patience or Patience()
        self._command = command
        self._clock, self._wall = clock, wall
        self._lock = threading.RLock()
        self._closed = False
        self._abandoned: list[Child] = []
        self._lot = Lot(self._patience, self._start_probe, self._abandoned.append)
        self._crashes = Crashes()
        self._listening = Listening(self._patience)
        self._dying: tuple[Child, InFlight | None, float] | None = None
        self._restart_at: float | None = None
        self._restart_delay = self._patience.restart
        self._known: dict[str, Gpu] = {}
        """By UUID: the GPUs as they last were, with those that have gone."""
        self._listed = 0
        """How many the driver listed last."""
        self._last = self._blank(SourceState.STARTING)
        self._last_at = self._looked = self._awake = self._heard = self._started = clock()
        self._child: Child | None = first
        self._has_output = False
        """Whether this child has written anything."""
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
            if now - self._last_at >= self._patient():
                return self._again(now)
            if now >= deadline:
                return None
            self._wait(min(_POLL, deadline - now))
        return None

    def set_interval(self, seconds: float) -> None:
        """Ask for a snapshot every so many seconds from now on."""
        self._interval = seconds
        if self._child is not None:
            self._child.send(interval=seconds)

    def poke(self) -> None:
        """Sample at once, and try again all that was given up."""
        now = self._clock()
        self._lot.ask_again(now)
        self._crashes.times.clear()
        self._listening.ask_again(now)
        if self._child is not None:
            self._child.send(poke=True)
        elif self._last.state is not SourceState.ENDED:
            self._restart_at, self._restart_delay = now, self._patience.restart

    def set_shares(self, shares: Sequence[Share]) -> None:
        """Read declarations by these agreed shares from now on: another sampler takes the place of this one."""
        if tuple(shares) == self._shares:
            return
        with self._lock:
            self._shares = tuple(shares)
            if self._child is not None and not self._closed:
                self._give_up(self._child)
                self._restart_at = self._clock()

    def close(self) -> None:
        """Kill every sampler and return at once; a process that hangs in the kernel is left behind."""
        self._closed = True
        with self._lock:
            ending = [child for child in (self._child, self._dying and self._dying[0]) if child is not None]
            for child in ending:
                child.kill()
            self._abandoned += ending
            self._lot.close()
            for _ in range(200):  # killed processes are gone within milliseconds, on a busy machine within tens of them
                self._reap()
                if not self._abandoned:
                    break
                time.sleep(0.001)

    # -- supervision -----------------------------------------------------------------------------------------------

    @property
    def pids(self) -> frozenset[int]:
        """PIDs of the samplers that run."""
        return frozenset(one.pid for one in (self._child, *self._lot.probes, *self._abandoned) if one is not None)

    def _wait(self, seconds: float) -> None:
        """Sleep until the sampler says something, at most `seconds`."""
        if self._child is not None and not self._child.eof:
            self._child.wait(seconds)
        else:
            time.sleep(max(0.0, seconds))

    def _patient(self) -> float:
        """Return the seconds after which the last snapshot is given again."""
        interval = self._interval if self._last.state is SourceState.OK else min(self._interval, _RESTLESS)
        return 1.5 * interval

    def _supervise(self, now: float) -> Snapshot | None:
        if now - self._looked > _ASLEEP:
            self._awake = now
        self._looked = now
        self._reap()
        if self._lot.step(now, self._awake) and self._child is not None:
            self._child.send(skip=self._lot.names())
        if self._dying is not None:
            self._bury(now)
            if self._dying is not None:
                return None
        if self._child is None:
            if self._restart_at is not None and now >= self._restart_at:
                self._start()
            return None
        fresh = self._read(self._child, now)
        if fresh is not None:
            return fresh
        if not self._abandoned and self._listening.due(now):  # not while one that hung may be in the kernel still
            self._child.send(events=True)
        call = self._child.in_flight()
        if self._child.eof:
            self._dying, self._child = (self._child, call, now), None
            self._bury(now)
        elif call is not None:
            self._heard = now
            if now - max(call.started, self._awake) > self._patience.allows(call.call):
                self._hung(self._child, call, now)
        elif now - max(self._heard, self._awake) > self._patience.silence + self._interval:
            words = "the sampler hangs, and not in a call of the driver (does a file in /proc not answer?)"
            self._report(SourceState.SILENT, words, now)
            self._restart_later(now)
            self._give_up(self._child)
        return None

    def _read(self, child: Child, now: float) -> Snapshot | None:
        newest = None
        lines = child.read_lines()
        self._has_output = self._has_output or bool(lines)
        for line in lines:
            try:
                snapshot = decode(line)
            except msgspec.MsgspecError:  # half a line, or a sampler gone mad: the next line is as good
                continue
            if snapshot.schema <= SCHEMA:
                newest = snapshot
        if newest is None:
            return None
        self._heard = now
        newest = msgspec.structs.replace(newest, gpus=tuple(map(self._with_times, newest.gpus)))
        if newest.state is SourceState.OK:
            if now - self._started >= self._patience.restart_most:  # one that ends soon ends again
                self._restart_delay = self._patience.restart
            self._remember(newest.gpus)
            self._listed = newest.listed
            if self._lot.renumber(newest, whole=not self._only):
                self._give_up(child)  # one that begins afresh knows where each GPU is now
                self._restart_at = now
        self._last, self._last_at = self._compose(newest), now
        return self._last

    def _hung(self, child: Child, call: InFlight, now: float) -> None:
        """Give up the sampler that hangs, and the GPU that it hangs on."""
        if call.call in EVENT_CALLS:
            self._listening.failed(now)
            self._restart_at = now
        elif call.gpu < 0:
            words = f"the driver does not answer ({call.call}, {self._patience.allows(call.call):.0f} s)"
            self._report(SourceState.SILENT, words, now)
            self._restart_later(now)
        else:
            self._park(call, Health.SILENT, f"no answer from {call.call}", now)
            self._restart_at = now
            self._last_at = float("-inf")  # the row says so at the next look
        self._give_up(child)
        if self._restart_at is not None and now >= self._restart_at:
            self._start()

    def _give_up(self, child: Child) -> None:
        child.kill()
        self._abandoned.append(child)
        self._child = None

    def _bury(self, now: float) -> None:
        """Judge a sampler that closed its output, by how it ended and by where it was."""
        assert self._dying is not None
        child, call, since = self._dying
        code = child.exit_code()
        if code is None and now - since < 1.0:
            return  # it is on its way out; look again
        self._dying = None
        child.kill()
        if code is None:
            self._abandoned.append(child)
        if self._last.state is SourceState.ENDED:
            return  # it has said so itself: starting it again would not help
        died = 0 if code is None else -code
        crashed = died > 0 and died not in _FROM_OUTSIDE
        if crashed and call is not None and (call.gpu >= 0 or call.call in EVENT_CALLS):
            self._crashed(call, died, now)
        elif code in (_EXIT_NO_DRIVER, _EXIT_AGAIN):
            self._restart_later(now)
        else:
            if not self._has_output or self._last.state is SourceState.OK:
                where = f" in {call.call}" if call else ""
                self._report(SourceState.DRIVER_DOWN, f"the sampler ended{where} ({describe_exit(code)})", now)
            self._restart_later(now)

    def _crashed(self, call: InFlight, signal: int, now: float) -> None:
        self._restart_at = now
        if call.call in EVENT_CALLS:
            self._listening.failed(now)
            return
        count = self._crashes.add(self._row(call).key, now, self._patience.crash_window)
        if count >= self._patience.crashes:
            words = f"{call.call} crashed the sampler {count} times (signal {signal}); R tries it again"
            self._park(call, Health.QUARANTINED, words, now)

    def _park(self, call: InFlight, health: Health, words: str, now: float) -> None:
        row = self._row(call)
        self._remember([row])
        self._lot.park(row, health, words, listed=call.listed, now=now, wall=self._wall())

    def _restart_later(self, now: float) -> None:
        self._restart_at = now + self._restart_delay
        self._restart_delay = min(2 * self._restart_delay, self._patience.restart_most)

    def _stuck(self) -> int:
        """Count the samplers that were killed and do not go."""
        now = time.monotonic()
        return sum(child.killed_at is not None and now - child.killed_at > _DYING for child in self._abandoned)

    def _may_start(self) -> bool:
        return not self._closed and self._stuck() < self._patience.stuck

    def _start(self) -> None:
        self._restart_at = None
        now = self._started = self._clock()
        if not self._may_start():
            words = f"{self._stuck()} samplers hang in the kernel and cannot be ended"
            self._report(SourceState.SILENT, words, now)
            self._restart_later(now)
            return
        arguments = sampler_arguments(
            self._interval,
            self._only,
            self._lot.names(),
            self._places(),
            again=bool(self._known),
            events=self._listening.wanted,
            shares=self._shares,
            tmux=self._tmux,
            reservations=self._reservations,
        )
        self._has_output = False
        try:
            self._child = Child(arguments, command=self._command)
        except OSError as error:  # no memory, no room for a process, no interpreter: each may pass
            words = f"the sampler cannot be started: {clean(start_error(error), 300)}"
            self._report(SourceState.DRIVER_DOWN, words, now)
            self._restart_later(now)
        self._heard = now

    def _places(self) -> list[Place]:
        """Return all that is known of where the GPUs are, for a sampler to find each of them again."""
        parked = self._lot.parked
        others = [row for key, row in self._known.items() if key not in parked]
        return [
            *(_place(row, 0 if row.health is Health.MISSING else self._listed or INDEX_UNKNOWN) for row in others),
            *(_place(one.row, one.listed) for one in parked.values()),
        ]

    def _start_probe(self, parked: Parked) -> Child | None:
        """Start a probe, unless it and those that run could become more samplers than may hang for good."""
        if self._closed or self._stuck() + len(self._lot.probes) >= self._patience.stuck:
            return None
        row = parked.row
        if not row.uuid and parked.listed != self._listed:  # who knows which is at its index now
            return None
        try:
            known = [_place(row, parked.listed)]
            arguments = ["--once", *sampler_arguments(self._interval, [row.uuid or row.index], known=known)]
            return Child(arguments, command=(*self._command, "--no-declared"))
        except OSError:  # as above; the next look tries again, and the row says that nothing is known of the GPU
            return None

    def _reap(self) -> None:
        self._abandoned[:] = [child for child in self._abandoned if child.exit_code() is None]

    # -- snapshots -------------------------------------------------------------------------------------------------

    def _blank(self, state: SourceState, words: str = "") -> Snapshot:
        return Snapshot(
            host=clean(socket.gethostname()),
            taken=self._wall(),
            monotonic=self._clock(),
            interval=self._interval,
            viewer=os.getuid(),
            state=state,
            words=words,
            since=self._wall(),
        )

    def _report(self, state: SourceState, words: str, now: float) -> None:
        """Make it known at the next look that nothing new can be read, and why."""
        since = self._last.since if self._last.state is state else self._wall()
        self._last = msgspec.structs.replace(self._last, state=state, words=words, since=since)
        self._last_at = now - 2 * self._interval

    def _again(self, now: float) -> Snapshot:
        """Return the last snapshot once more, its clock moved on and its states brought up to date."""
        last = self._last
        call = self._child.in_flight() if self._child is not None else None
        words = last.words
        if last.state is SourceState.STARTING and call is not None:
            words = f"waiting for the driver: {call.call}, {now - call.started:.0f} s"
        # By the longer of two intervals: figures taken under another one are not late because this one is shorter.
        interval = max(last.interval, self._interval)
        moved = msgspec.structs.replace(last, taken=self._wall(), monotonic=now, interval=interval, words=words)
        self._last, self._last_at = self._compose(moved), now
        return self._last

    def _compose(self, snapshot: Snapshot) -> Snapshot:
        """Add the rows of the GPUs that this sampler was told to leave alone, or no longer sees."""
        rows = {gpu.key: gpu for gpu in snapshot.gpus} | {key: one.row for key, one in self._lot.parked.items()}
        if snapshot.state is SourceState.OK:  # one that was just given back is not in it yet
            rows = self._known | rows
        if not rows:
            return snapshot
        shown = {holding.pid for row in rows.values() for holding in row.holdings}
        there = {process.pid for process in snapshot.processes}
        kept = [process for process in self._last.processes if process.pid in shown - there]
        return msgspec.structs.replace(
            snapshot,
            gpus=tuple(sorted(rows.values(), key=lambda row: row.index)),
            processes=(*snapshot.processes, *kept),
        )

    def _with_times(self, row: Gpu) -> Gpu:
        """Return GPU that is not well, and that a fresh sampler never sampled, the times that are known from before."""
        before = self._known.get(row.uuid)
        if before is None or row.sampled or row.health is Health.OK:
            return row
        since = before.since if before.health is row.health else row.since
        return msgspec.structs.replace(row, since=since, sampled=before.sampled, slow_sampled=before.slow_sampled)

    def _remember(self, rows: Sequence[Gpu]) -> None:
        """Remember GPUs by UUID, and ask for them by it where they were asked for by their index."""
        self._known |= {row.uuid: row for row in rows if row.uuid}
        for row in rows:
            if row.uuid and row.uuid not in self._only and row.index in self._only:
                self._only[self._only.index(row.index)] = row.uuid

    def _row(self, call: InFlight) -> Gpu:
        """Return what is known of the GPU that a call is about."""
        told = Gpu(index=call.gpu, uuid=call.uuid, bus_id=call.bus_id)
        found = [row for row in (*self._last.gpus, *self._known.values()) if row.key == told.key]
        return msgspec.structs.replace(found[0], index=told.index, bus_id=told.bus_id) if found else told


def _place(row: Gpu, listed: int) -> Place:
    return Place(row.index, listed, row.uuid, row.name, row.bus_id)
