"""Demo source: simulates a lab machine with eight H100s, nine people, and each trouble of a shared machine.

The script, in seconds of every two minutes:

    always    ada has the most memory, on four GPUs, and on GPU 0 more than the 0.4 that she declared; 3 × 0.4 is
              declared on GPU 4; hal's kernel misspelt CUDA_VISIBLE_DEVICES and has contexts on four GPUs; eve's holds
              40 GiB on GPU 3 and does nothing; a forgotten run of the viewer's own sits on GPU 4; 6 GiB on GPU 2
              belong to no listed process: a worker that is left of another run of the viewer holds them; GPU 6 is at
              its power limit
       0-80   a notebook fills GPU 1 until 0.1 GiB is free; at 80 it lets go of memory, from 100 on it takes it back
      20-60   GPU 5 is lost
      96      hal's trials on GPU 4 last this long each; one ends every 12 s

and of every 15 minutes, all of it after the moment at which the pictures of the README are taken:

      48      GPU 2 reports a contained memory error, XID 94
      50-250  dov's server on GPU 2 leaks 5 GiB a minute and would fill it in under five; then it lets go
      70-130  GPU 6 gets nearly as hot as the temperature at which it slows itself down

A snapshot depends only on the seed, the time, the GPU in focus, and the processes that the viewer has ended
(`DemoSource.end`), so that a screenshot of the demo can be repeated.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import cos, floor, pi
from typing import Final
from zlib import crc32

import msgspec

from gpuwatch import text
from gpuwatch.declared.facts import Share
from gpuwatch.model import Gpu, Holding, Memory, Presence, Process, Reason, Snapshot, Xid
from gpuwatch.sampler import nvml
from gpuwatch.shares import add_promised
from gpuwatch.sources import demo_machine as cast
from gpuwatch.sources.demo_machine import context, unlisted
from gpuwatch.units import GIB, MIB

GPUS: Final = 8
CYCLE: Final = 120.0
LONG_CYCLE: Final = 900.0
FILLING_GPU: Final = 1
UNATTRIBUTED_GPU: Final = 2
LOST_GPU: Final = 5
CAPPED_GPU: Final = 6
FREE_GPU: Final = 7
LOST_FROM: Final = 20.0
LOST_UNTIL: Final = 60.0
XID_GPU: Final = 2
XID_AT: Final = 48.0
LEAKING_GPU: Final = 2
LEAK_FROM: Final = 50.0
LEAK_UNTIL: Final = 250.0
HOT_GPU: Final = 6
HOT_FROM: Final = 70.0
HOT_UNTIL: Final = 130.0

_UPTIME: Final = 20 * cast.DAY
_TICKS: Final = 100
_SLOW: Final = 10.0
_SEARCH: Final = 20.0
"""Seconds between two searches for open device files."""
_LEAK: Final = 5 / 60
"""GiB per second."""
_HOT: Final = 84.0
"""Temperature in °C that GPU 6 reaches, within 20 s; at 87 it slows down."""
_PCIE_BYTES: Final = 9e9
"""Bytes per second over PCIe of a GPU that is busy; the link could carry seven times as much."""
_NVLINKS: Final = 18
_NVLINK_BYTES: Final = 180e9
"""Bytes per second over all NVLinks, in one direction, of a GPU that works with others; they could carry 450 GB/s."""
_CALLS: Final = 5
"""NVML calls per GPU and second of a real sampler."""


class DemoSource:
    """Source of the simulated machine; it starts `begin` seconds into its script; `only` limits the GPUs."""

    def __init__(
        self,
        seed: int = 1,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        interval: float = 1.0,
        begin: float = 0.0,
        only: Sequence[int] = (),
    ) -> None:
        self._seed = seed
        self._only = tuple(only) or tuple(range(GPUS))
        self._clock = clock
        self._interval = interval
        self._due = clock()
        self._zero = self._due - begin
        self._wall_zero = wall() - begin
        self._sequence = 0
        self._focus = ""
        self._ends: Mapping[int, float] = {}
        """End of the viewer's processes on the clock, by PID. Replaced as a whole: several threads read it."""
        self._closed = threading.Event()

    def next(self, timeout: float) -> Snapshot | None:
        """Wait up to `timeout` seconds for the next snapshot; None where none is due yet, or after `close`."""
        ahead = self._due - self._clock()
        if ahead > 0:
            self._closed.wait(min(ahead, timeout))
        now = self._clock()
        if self._closed.is_set() or now < self._due:
            return None
        # On the beat, unless more than one was missed.
        self._due = max(self._due + self._interval, now)
        snapshot = msgspec.structs.replace(self.at(now - self._zero), sequence=self._sequence)
        self._sequence += 1
        return snapshot

    def set_interval(self, seconds: float) -> None:
        """Make a snapshot every `seconds` from now on."""
        self._interval = seconds
        self._due = min(self._due, self._clock() + seconds)

    def poke(self) -> None:
        """Make the next snapshot due at once."""
        self._due = self._clock()

    def set_shares(self, _shares: Sequence[Share]) -> None:
        """Do nothing: the agreed shares of the demo are in its script."""

    def set_focus(self, gpu: str | None) -> None:
        """Give values of PCIe and NVLink for this GPU alone."""
        self._focus = gpu or ""

    def end(self, pid: int, after: float) -> None:
        """End a process of the viewer, with its workers, `after` this many seconds; from any thread."""
        at = self._clock() + after
        ends = dict(self._ends)
        for one in (pid, *(cast.RUN_WORKER_PIDS if pid == cast.RUN_PID else ())):
            ends[one] = min(at, ends.get(one, at))
        self._ends = ends

    def has_ended(self, pid: int) -> bool:
        """Return whether a process that the viewer ended has ended by now; from any thread."""
        at = self._ends.get(pid)
        return at is not None and self._clock() >= at

    def close(self) -> None:
        """Close the source; a waiting `next` returns."""
        self._closed.set()

    def at(self, t: float) -> Snapshot:
        """Return the snapshot at `t` seconds of the script; negative is before the demo began."""
        ended = frozenset(pid for pid, at in self._ends.items() if self._zero + t >= at)
        scene = _Scene(self._seed, t, zero=self._zero, wall_zero=self._wall_zero, ended=ended, focus=self._focus)
        gpus = tuple(scene.gpu(index) for index in self._only)
        listed = {one.pid for gpu in gpus for one in gpu.holdings}
        processes = [scene.process(actor, age) for actor, age in scene.actors if actor.pid in listed]
        starts = {one.pid: one.start for one in processes}
        booted = self._wall_zero - _UPTIME
        seen = Snapshot(
            host="lab-gpu-03",
            taken=self._wall_zero + t,
            monotonic=self._zero + t,
            interval=self._interval,
            viewer=cast.VIEWER_UID,
            driver="580.95.05",
            cuda="13.0",
            since=self._wall_zero,
            demo=True,
            nvml_calls=max(0, int(t)) * GPUS * _CALLS,
            listed=GPUS,
            gpus=gpus,
            processes=tuple(sorted(processes, key=lambda one: one.pid)),
            unlisted=unlisted(starts, booted, frozenset(gpu.key for gpu in gpus), ended),
            searched=self._wall_zero + floor(t / _SEARCH) * _SEARCH,
        )
        return add_promised(seen, ())


class _Scene:
    """State of the machine at one time of the script."""

    def __init__(
        self,
        seed: int,
        t: float,
        *,
        zero: float,
        wall_zero: float,
        ended: frozenset[int] = frozenset(),
        focus: str = "",
    ) -> None:
        """`ended` are PIDs of processes that have ended, `focus` is the key of a GPU."""
        self._seed = seed
        self._t = t
        self._zero = zero
        self._wall_zero = wall_zero
        self._lost = LOST_FROM <= t % CYCLE < LOST_UNTIL
        self._ended = ended
        self._focus = focus
        self.actors = [(actor, actor.age + t) for actor in cast.ACTORS if actor.pid not in ended]
        self.actors += [cast.trial(slot, t) for slot in range(cast.TRIALS)]
        """Running processes, each with its age in seconds."""

    def gpu(self, index: int) -> Gpu:
        plain = Gpu(
            index=index,
            uuid=cast.uuid(index),
            name="NVIDIA H100 80GB HBM3",
            minor=index,
            compute_capability=9.0,
            cores=16896,
            sm_clock_max=1980,
            bus_id=f"00000000:{(0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)[index]:02X}:00.0",
            fan=Reason.UNSUPPORTED,
            persistence=True,
            compute_mode="default",
            display_active=False,
            mig=False,
        )
        return self._lost_gpu(plain) if index == LOST_GPU and self._lost else self._live_gpu(plain)

    def _lost_gpu(self, plain: Gpu) -> Gpu:
        fell = floor(self._t / CYCLE) * CYCLE + LOST_FROM
        health, words = nvml.health(nvml.Failed("nvmlDeviceGetUtilizationRates", nvml.Code.GPU_IS_LOST))
        return msgspec.structs.replace(
            plain,
            health=health,
            words=words,
            since=self._wall_zero + fell,
            sampled=self._zero + fell,
            slow_sampled=self._zero + fell,
            memory=Memory(total=cast.TOTAL),
            xids=(),
            holdings_note="the GPU does not answer",
        )

    def _live_gpu(self, plain: Gpu) -> Gpu:
        index, t = plain.index, self._t
        holdings = self._holdings(index)
        orphaned = index == UNATTRIBUTED_GPU and cast.LEFTOVER_PID not in self._ended
        unattributed = 6 * GIB if orphaned else 4 * MIB
        used = sum(int(one.memory) for one in holdings if not isinstance(one.memory, Reason)) + unattributed
        utilization = self._utilization(index, t)
        heat = sum(self._utilization(index, t - back) for back in (0, 4, 8, 12)) / 4
        power = self._power(index, heat)
        temperature = self._temperature(index, heat)
        live = msgspec.structs.replace(
            plain,
            sampled=self._zero + t,
            slow_sampled=self._zero + floor(t / _SLOW) * _SLOW,
            memory=Memory(total=cast.TOTAL, used=used, free=cast.TOTAL - cast.RESERVED - used, reserved=cast.RESERVED),
            utilization=utilization,
            memory_utilization=round(utilization * 0.42),
            encoder=0,
            decoder=0,
            temperature=temperature,
            slowdown_temperature=87,
            power=round(power, 1),
            power_limit=700.0,
            sm_clock=1980 if power < 690 else 1755,
            memory_clock=2619,
            pstate=0,
            throttle=("power cap",) if power >= 690 else (),
            ecc_uncorrected=0,
            remap_pending=False,
            remap_failed=False,
            xids=self._xids(index),
            holdings=holdings,
            unattributed=unattributed,
        )
        return self._with_links(live, utilization) if live.key == self._focus else live

    def _with_links(self, gpu: Gpu, utilization: int) -> Gpu:
        """Return the GPU in focus with values of PCIe and NVLink; only the processes on several GPUs use NVLink."""
        loads = self._loads(gpu.index, self._t)
        shared = {actor.pid for actor, _ in self.actors if len(actor.holds) > 1 or actor.parent == "mpirun"}
        together = sum(load for pid, load in loads.items() if pid in shared)
        wave = {what: 1 + 0.4 * self._noise(what, gpu.index, self._t / 2) for what in ("rx", "tx", "nvrx", "nvtx")}
        return msgspec.structs.replace(
            gpu,
            pcie_rx=round(_PCIE_BYTES * utilization / 100 * wave["rx"], -6),
            pcie_tx=round(_PCIE_BYTES / 3 * utilization / 100 * wave["tx"], -6),
            pcie_link="gen5 x16" if utilization else "gen1 x16",
            nvlinks=_NVLINKS,
            nvlink_rx=round(_NVLINK_BYTES * together / 100 * wave["nvrx"]),
            nvlink_tx=round(_NVLINK_BYTES * together / 100 * wave["nvtx"]),
        )

    def process(self, actor: cast.Actor, age: float) -> Process:
        if actor.presence is not Presence.SEEN:
            return Process(pid=actor.pid, presence=actor.presence)
        sm = self._load(actor, self._t)
        start = self._start(actor, age)
        return Process(
            pid=actor.pid,
            start=start,
            uid=cast.UIDS.get(actor.user, cast.VIEWER_UID),
            user=actor.user,
            name=text.clean(actor.name),
            command=text.format_command_line(actor.argv),
            state="running" if sm else "sleeping",
            ppid=actor.ppid,
            parent=actor.parent,
            terminal=actor.terminal,
            session=14877 if actor.ppid == 1 else actor.ppid,
            led=actor.pid != cast.STRAY_PID,
            adopted=actor.pid == cast.STRAY_PID,
            cpu=round(max(0.0, actor.cpu * (0.9 + 0.1 * self._noise("cpu", actor.pid, self._t))), 1) if sm else 0.0,
            rss=round(actor.rss * GIB),
            started=self._wall_zero + self._t - age,
            declared=actor.declared,
            surroundings=context(actor, start),
        )

    def _holdings(self, index: int) -> tuple[Holding, ...]:
        loads = self._loads(index, self._t)
        found = []
        for actor, age in self.actors:
            for gpu, gib in actor.holds:
                if gpu != index:
                    continue
                gone = actor.presence is not Presence.SEEN
                held = Holding(
                    pid=actor.pid,
                    start=self._start(actor, age),
                    memory=self._size(actor, gib),
                    sm=Reason.NO_SAMPLE if gone else round(loads[actor.pid]),
                    memory_utilization=Reason.NO_SAMPLE if gone else round(loads[actor.pid] * 0.4),
                    encoder=Reason.NO_SAMPLE if gone else 0,
                    decoder=Reason.NO_SAMPLE if gone else 0,
                )
                found.append(held)
        return tuple(found)

    def _size(self, actor: cast.Actor, gib: float) -> int:
        if actor.pid == cast.GROWING_PID:
            return _filling(self._t % CYCLE)
        if actor.pid == cast.TRITON_PID:
            gib += _leaked(self._t % LONG_CYCLE)
        if actor.breathes:
            gib += 0.1 * self._noise("memory", actor.pid, self._t / 30)
        return _pages(gib)

    def _xids(self, index: int) -> tuple[Xid, ...]:
        past = floor((self._t - XID_AT) / LONG_CYCLE)
        if index != XID_GPU or past < 0:
            return ()
        return (Xid(code=94, count=past + 1, last=self._wall_zero + past * LONG_CYCLE + XID_AT),)

    def _start(self, actor: cast.Actor, age: float) -> int:
        return round((_UPTIME + self._t - age) * _TICKS) if actor.presence is Presence.SEEN else 0

    def _utilization(self, index: int, t: float) -> int:
        return min(100, round(sum(self._loads(index, t).values())))

    def _loads(self, index: int, t: float) -> defaultdict[int, float]:
        """Return the utilization in percent by PID of one GPU; the sum is at most 100."""
        loads: defaultdict[int, float] = defaultdict(float)
        for actor, _ in self.actors:
            # A process drives the first of its GPUs, and all of them where it has no other reason to be on two.
            on = [
                gpu
                for gpu, gib in actor.holds
                if gib >= 1.0 or actor.pid == cast.GROWING_PID or gpu == actor.holds[0][0]
            ]
            if index in on:
                loads[actor.pid] = self._load(actor, t)
        over = sum(loads.values()) / 100
        return defaultdict(float, {pid: load / over for pid, load in loads.items()}) if over > 1 else loads

    def _load(self, actor: cast.Actor, t: float) -> float:
        load = actor.load
        if load.high == 0:
            return 0.0
        # The ranks of one job work in step; everybody else has a beat of their own.
        beat = actor.ppid if actor.parent == "mpirun" else actor.pid
        place = (t / load.period + beat * 0.618) % 1
        level = load.low
        if place < load.share:
            level = load.low + (load.high - load.low) * (place / load.share) ** 0.4 if load.ramp else load.high
        if level == 0:
            return 0.0
        return min(100.0, max(1.0, level + load.wobble * self._noise("sm", actor.pid, t / 2)))

    def _temperature(self, index: int, heat: float) -> int:
        noise = self._noise("heat", index, self._t / 20)
        degrees = 29 + 0.38 * heat + 2 * noise + (15 if index == FILLING_GPU else 0)
        if index == HOT_GPU:
            degrees += _hot(self._t % LONG_CYCLE) * (_HOT + noise - degrees)
        return min(round(degrees), 86)

    def _power(self, index: int, heat: float) -> float:
        watts = 71 + 5.4 * heat + 6 * self._noise("power", index, self._t / 3)
        if index == CAPPED_GPU:
            return 699.0 + 0.9 * self._noise("power", index, self._t)
        return min(watts, 680.0)

    def _noise(self, what: str, who: int, x: float) -> float:
        """Return a smooth value in [-1, 1] that depends only on the seed, the names and `x`."""
        knot = floor(x)
        mix = (1 - cos(pi * (x - knot))) / 2
        return (1 - mix) * self._knot(what, who, knot) + mix * self._knot(what, who, knot + 1)

    def _knot(self, what: str, who: int, knot: int) -> float:
        return crc32(f"{self._seed}:{what}:{who}:{knot}".encode()) / 2**31 - 1


def _filling(second: float) -> int:
    """Return the memory in bytes of the notebook that fills GPU 1, by the second of the cycle."""
    if second < 80:
        return _pages(10.7 + 3.45 * second / 80)
    if second < 100:
        return _pages(2.3)
    return _pages(2.3 + 8.4 * (second - 100) / 20)


def _leaked(second: float) -> float:
    """Return the GiB that the server on GPU 2 has leaked, by the second of the long cycle."""
    return _LEAK * (second - LEAK_FROM) if LEAK_FROM <= second < LEAK_UNTIL else 0.0


def _hot(second: float) -> float:
    """Return how far GPU 6 has heated up, from 0 to 1, by the second of the long cycle."""
    return max(0.0, min(1.0, (second - HOT_FROM) / 20, (HOT_UNTIL - second) / 20))


def _pages(gib: float) -> int:
    """Return GiB in bytes, rounded to whole pages of 2 MiB, as the driver allocates memory."""
    return round(gib * GIB / (2 * MIB)) * 2 * MIB
