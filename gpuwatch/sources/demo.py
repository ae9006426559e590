"""Demo source: plays a lab machine with eight H100s, ten people, and each trouble of a shared machine.

`demo.json` in this folder has the people, their processes and the troubles. In seconds of every two minutes:

    always    ada has the most memory, on four GPUs, and on GPU 0 more than the 0.4 that she declared; 3 × 0.4 is
              declared on GPU 4; hal's kernel misspelt CUDA_VISIBLE_DEVICES and has contexts on four GPUs; eve's holds
              40 GiB on GPU 3 and does nothing; a forgotten run of the viewer's own sits on GPU 4; 6 GiB on GPU 2
              belong to no listed process: a worker left from another run of the viewer holds them; GPU 6 is at
              its power limit
       0-80   a notebook fills GPU 1 until 0.1 GiB is free; at 80 it frees memory, from 100 on it takes it back
      20-60   GPU 5 is lost
      96      hal's trials on GPU 4 last this long each; one ends every 12 s
    before    ivy ran tests of 50 s on GPU 7, which only `report` and graphs know

and of every 15 minutes (later than the moment of the README's pictures): at 48 GPU 2 reports a
contained memory error, XID 94; from 50 to 250 dov's server on GPU 2 leaks 5 GiB a minute and would fill it in under
five; from 70 to 130 GPU 6 gets nearly as hot as the temperature at which it slows itself down.

A snapshot depends only on the seed, the time, the GPU in focus, and the processes that the viewer has ended
(`DemoSource.end`), so that a screenshot of the demo can be repeated.
"""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from math import cos, floor, inf, pi
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec.structs import replace

from gpuwatch.base import text
from gpuwatch.base.units import GIB, MIB
from gpuwatch.model.shares import add_promised
from gpuwatch.model.snapshot import Gpu, Holding, HostUsage, Memory, Presence, Process, Snapshot, Unlisted, Xid, number
from gpuwatch.sampler import nvml
from gpuwatch.sources.source import Source

GPUS: Final = 8
DAY: Final = 86400
TOTAL: Final = 81559 * MIB
RESERVED: Final = 558 * MIB
"""Total and reserved memory of an H100 80GB HBM3, as NVML reports them."""
TRIALS: Final = 8
"""Number of short runs of hal's sweep that run at a time."""
TRIAL_SECONDS: Final = 96.0
PAST_PACE: Final = 96.0
"""Factor by which the troubles were slower before the demo began: those of 15 minutes took a day."""
SWEEP_AGE: Final = 900.0
"""Age of the sweep in seconds when the demo begins."""
_UPTIME: Final = 20 * DAY
_PCIE_BYTES: Final = 9e9
"""Bytes per second over PCIe of a GPU that is busy; the link could carry seven times as much."""
_NVLINK_BYTES: Final = 180e9
"""Bytes per second over all NVLinks, in one direction, of a GPU that works with others; they could carry 450 GB/s."""


class Load(msgspec.Struct, frozen=True):
    """Utilization of a process over time, in percent: `high` for a part of each period, else `low`."""

    high: float = 0.0
    low: float = 0.0
    period: float = 1.0
    """Seconds of a period; each load has its own phase."""
    share: float = 1.0
    """Part of the period that is spent at `high`."""
    ramp: bool = False
    """Whether it rises slowly from `low` to `high`, instead of jumping."""
    wobble: float = 6.0
    """Percentage points of noise; none while the value is 0."""


class Course(msgspec.Struct, frozen=True):
    """Periodic value: lines between points, 0 before the first and after the last."""

    gpu: int = 0
    every: float = 1.0
    """Seconds."""
    points: tuple[tuple[float, float], ...] = ()
    """(second, value); a jump has two points at one second."""
    pid: int = 0
    gib: float = 0.0

    def at(self, t: float) -> float:
        """Return the value at a time in seconds."""
        second = t % self.every
        for (begin, first), (end, last) in pairwise(self.points):
            if begin <= second < end:
                return first + (last - first) * (second - begin) / (end - begin)
        return 0.0


class Actor(msgspec.Struct, frozen=True):
    """One process of the demo."""

    pid: int
    process: Process
    """Facts that stay the same, and the use of the CPU while it is busy. A run without a key has this process as its
    head, unless another is named, and its `head_start` counts from the process's start."""
    age: float
    """Age in seconds when the demo begins."""
    lasts: float = inf
    """Seconds from its start to its end."""
    argv: tuple[str, ...] = ()
    holds: tuple[tuple[int, float], ...] = ()
    """(GPU index, GiB) of each holding; the process computes on the first GPU."""
    opens: tuple[int, ...] = ()
    """Indices of the GPUs that it has open where NVML does not list it."""
    load: Load = Load()
    grows: Course = Course()
    """Further GiB that it holds."""
    ends_with: int = 0
    """PID of the process with which it ends; 0 for none."""
    host_gib: float = 3.0
    """Host memory."""
    breathes: bool = False
    """Whether its memory changes a little, as in a training loop."""


class DemoScript(msgspec.Struct, frozen=True):
    """Content of `demo.json`."""

    machine: Snapshot
    """Facts of the machine that stay the same."""
    gpu: Gpu
    """The same of each GPU."""
    readings: dict[str, Any]
    """The same of each GPU that answers, by the field of `Gpu`."""
    troubles: dict[str, Course]
    sweep: Actor
    """One of the trials of the sweep: the player sets its PID, its arguments and its memory."""
    processes: tuple[Actor, ...]


def uuid(gpu: int) -> str:
    return f"GPU-{crc32(b'demo%d' % gpu):08x}-5a1d-4c0e-9f3b-{gpu:012x}"


@cache
def script() -> DemoScript:
    """Read the script: `GPU3` is the UUID of GPU 3, and each process has the facts of `usual` that it does not name.

    A group of processes has one for each of its `copies`; `$gpu` is its fact `gpu`, and `$n` its number in the group.
    """
    raw = msgspec.json.decode(Path(__file__).with_name("demo.json").read_bytes())
    actors = []
    for group in (_merge(raw["usual"], group) for group in (raw["sweep"], *raw["processes"])):
        for place, copy in enumerate(group.get("copies", [{}])):
            facts = _filled({**_merge(group, copy), "n": place})
            actors.append({**facts, "process": facts})
    sweep, *processes = actors
    content = msgspec.json.encode({**raw, "sweep": sweep, "processes": processes}).decode()
    named = re.sub(r'"GPU(\d)"', lambda match: f'"{uuid(int(match[1]))}"', content)
    return msgspec.json.decode(named, type=DemoScript, strict=False)  # a number may be the text of one


def _filled(facts: dict[str, Any]) -> Any:
    content = msgspec.json.encode(facts).decode()
    return msgspec.json.decode(re.sub(r"\$([a-z]+)", lambda match: str(facts.get(match[1])), content))


def _merge(facts: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Return facts in which others replace those of the same name, part by part."""
    parts = {key: part for key, part in others.items() if isinstance(part, dict) and key in facts}
    return {**facts, **others, **{key: _merge(facts[key], part) for key, part in parts.items()}}


class DemoSource(Source):
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
        self._seed, self._only = seed, tuple(only) or tuple(range(GPUS))
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
        snapshot = replace(self.at(now - self._zero), sequence=self._sequence)
        self._sequence += 1
        return snapshot

    def set_interval(self, seconds: float) -> None:
        self._interval = seconds
        self._due = min(self._due, self._clock() + seconds)

    def poke(self) -> None:
        self._due = self._clock()

    def set_focus(self, gpu: str | None) -> None:
        """Give values of PCIe and NVLink only for this GPU."""
        self._focus = gpu or ""

    def end(self, pid: int) -> None:
        """End a process of the viewer, with its workers; from any thread."""
        now = self._clock()
        ended = {actor.pid: now for actor in script().processes if pid in (actor.pid, actor.ends_with)}
        self._ends = {**ended, **self._ends}

    def close(self) -> None:
        self._closed.set()

    def at(self, t: float) -> Snapshot:
        """Return the snapshot at `t` seconds of the script; negative is before the demo began."""
        ended = frozenset(pid for pid, at in self._ends.items() if self._zero + t >= at)
        scene = _Scene(self._seed, t, self._zero, self._wall_zero, ended, self._focus)
        gpus = tuple(scene.gpu(index) for index in self._only)
        listed = {holding.pid for gpu in gpus for holding in gpu.holdings}
        processes = [scene.process(actor, age) for actor, age in scene.actors if actor.pid in listed]
        seen = replace(
            script().machine,
            host_usage=scene.host_usage(),
            taken=self._wall_zero + t,
            monotonic=self._zero + t,
            interval=self._interval,
            since=self._wall_zero,
            nvml_calls=max(0, int(t)) * GPUS * 5,
            gpus=gpus,
            processes=tuple(sorted(processes, key=lambda process: process.pid)),
            unlisted=tuple(scene.unlisted(listed, frozenset(self._only))),
            searched=self._wall_zero + floor(t / 20) * 20,
        )
        return add_promised(seen, ())


class _Scene(msgspec.Struct, dict=True):
    """State of the machine at one time of the script."""

    seed: int
    t: float
    """Seconds of the script."""
    zero: float
    """Beginning of the script on the monotonic clock."""
    wall_zero: float
    ended: frozenset[int] = frozenset()
    """PIDs of processes that have ended."""
    focus: str = ""
    """Key of the GPU in focus."""

    @cached_property
    def actors(self) -> list[tuple[Actor, float]]:
        """Running processes, each with its age in seconds."""
        ages = [(actor, actor.age + self.t) for actor in script().processes if actor.pid not in self.ended]
        trials = [_trial(slot, self.t) for slot in range(TRIALS if self.t >= -SWEEP_AGE else 0)]
        return [(actor, age) for actor, age in ages if 0 <= age < actor.lasts] + trials

    @property
    def pace(self) -> float:
        """Length of a second of the troubles: before the demo began they were rarer and lasted longer."""
        return 1.0 if self.t >= -SWEEP_AGE else PAST_PACE

    def host_usage(self) -> HostUsage:
        """Return the use of a machine with 128 CPUs that varies slowly around what the people's processes take."""
        slow = self._noise("host", 0, self.t / 30)
        cpu = 37.0 + 4 * slow + self._noise("host cpu", 0, self.t / 3)
        used, load = round((212 + 3 * slow) * GIB), round(1.28 * (37.0 + 4 * slow), 2)
        return replace(script().machine.host_usage, cpu=round(cpu, 1), memory_used=used, load=load)

    def gpu(self, index: int) -> Gpu:
        bus = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)[index]
        plain = replace(script().gpu, index=index, uuid=uuid(index), minor=index, bus_id=f"00000000:{bus:02X}:00.0")
        return self._lost_gpu(plain) if self._trouble("lost", index) else self._live_gpu(plain)

    def _trouble(self, name: str, gpu: int) -> float:
        """Return the course of a trouble on a GPU; 0 on the other GPUs."""
        course, story = script().troubles[name], self.t / self.pace
        came = self.pace == 1 or floor(story / course.every) % 4 == 3  # twice in the day before
        return course.at(story) if course.gpu == gpu and came else 0.0

    def _lost_gpu(self, plain: Gpu) -> Gpu:
        course = script().troubles["lost"]
        fell = (floor(self.t / self.pace / course.every) * course.every + course.points[0][0]) * self.pace
        health, words = nvml.health(nvml.Failed("nvmlDeviceGetUtilizationRates", nvml.Code.GPU_IS_LOST))
        return replace(
            plain,
            health=health,
            words=words,
            since=self.wall_zero + fell,
            sampled=self.zero + fell,
            slow_sampled=self.zero + fell,
            memory=Memory(total=TOTAL),
            xids=(),
            holdings_note="the GPU does not answer",
        )

    def _live_gpu(self, plain: Gpu) -> Gpu:
        index, t = plain.index, self.t
        holdings = self._holdings(index)
        unknown = script().troubles["unknown memory"]
        is_held = index == unknown.gpu and unknown.pid not in self.ended
        unattributed = round(unknown.gib * GIB) if is_held else 4 * MIB
        used = sum(int(number(holding.memory) or 0) for holding in holdings) + unattributed
        recent = [min(100, round(sum(self._loads(index, t - back).values()))) for back in (0, 4, 8, 12)]
        utilization, heat = recent[0], sum(recent) / 4
        power = min(680.0, 71 + 5.4 * heat + 6 * self._noise("power", index, t / 3))
        if index == script().troubles["power cap"].gpu:
            power = 699.0 + 0.9 * self._noise("power", index, t)
        live = replace(
            plain,
            **script().readings,
            sampled=self.zero + t,
            slow_sampled=self.zero + floor(t / 10) * 10,
            memory=Memory(total=TOTAL, used=used, free=TOTAL - RESERVED - used, reserved=RESERVED),
            utilization=utilization,
            memory_utilization=round(utilization * 0.42),
            temperature=self._temperature(index, heat),
            power=round(power, 1),
            sm_clock=1980 if power < 690 else 1755,
            throttle=("power cap",) if power >= 690 else (),
            xids=self._xids(index),
            holdings=holdings,
            unattributed=unattributed,
        )
        return self._with_links(live, utilization) if live.key == self.focus else live

    def _with_links(self, gpu: Gpu, utilization: int) -> Gpu:
        """Return the GPU in focus with values of PCIe and NVLink; only the processes on several GPUs use NVLink."""
        loads = self._loads(gpu.index, self.t)
        shared = {actor.pid for actor, _ in self.actors if len(actor.holds) > 1 or actor.process.parent == "mpirun"}
        together = sum(load for pid, load in loads.items() if pid in shared)
        wave = {what: 1 + 0.4 * self._noise(what, gpu.index, self.t / 2) for what in ("rx", "tx", "nvrx", "nvtx")}
        return replace(
            gpu,
            pcie_rx=round(_PCIE_BYTES * utilization / 100 * wave["rx"], -6),
            pcie_tx=round(_PCIE_BYTES / 3 * utilization / 100 * wave["tx"], -6),
            pcie_link="gen5 x16" if utilization else "gen1 x16",
            nvlinks=18,
            nvlink_rx=round(_NVLINK_BYTES * together / 100 * wave["nvrx"]),
            nvlink_tx=round(_NVLINK_BYTES * together / 100 * wave["nvtx"]),
        )

    def process(self, actor: Actor, age: float) -> Process:
        plain = actor.process
        if plain.presence is not Presence.SEEN:
            return Process(pid=actor.pid, presence=plain.presence)
        sm = self._load(actor, self.t)
        cpu = (number(plain.cpu) or 0.0) * (0.9 + 0.1 * self._noise("cpu", actor.pid, self.t)) if sm else 0.0
        start, run = self._start(actor, age), plain.run
        if run is not None and not run.key:
            head, head_start = run.head or actor.pid, start + run.head_start
            run = replace(run, key=f"{head}:{head_start}", head=head, head_start=head_start)
        return replace(
            plain,
            pid=actor.pid,
            start=start,
            command=text.format_command_line(actor.argv),
            state="running" if sm else "sleeping",
            session=plain.session or plain.ppid or 0,
            cpu=round(max(0.0, cpu), 1),
            rss=round(actor.host_gib * GIB),
            started=self.wall_zero + self.t - age,
            context=plain.context and replace(plain.context, run=run),
        )

    def unlisted(self, listed: Collection[int], gpus: frozenset[int]) -> Iterator[Unlisted]:
        """Yield the processes that have GPUs of `gpus` open, and that NVML does not list; `listed` are the others."""
        for actor, age in self.actors:
            if actor.opens and gpus.issuperset(actor.opens) and (not actor.ends_with or actor.ends_with in listed):
                process = replace(self.process(actor, age), declared=None)
                yield Unlisted(process=process, gpus=tuple(map(uuid, actor.opens)), cuda_context=True)

    def _holdings(self, index: int) -> tuple[Holding, ...]:
        loads = self._loads(index, self.t)
        holdings = []
        for actor, age in self.actors:
            for gib in [gib for gpu, gib in actor.holds if gpu == index]:
                size = gib + actor.grows.at(self.t / self.pace)
                if actor.breathes:
                    size += 0.1 * self._noise("memory", actor.pid, self.t / 30)
                memory = round(size * GIB / (2 * MIB)) * 2 * MIB  # whole pages, as the driver allocates memory
                held = Holding(pid=actor.pid, start=self._start(actor, age), memory=memory)
                if actor.process.presence is Presence.SEEN:
                    sm = loads[actor.pid]
                    held = replace(held, sm=round(sm), memory_utilization=round(sm * 0.4), encoder=0, decoder=0)
                holdings.append(held)
        return tuple(holdings)

    def _xids(self, index: int) -> tuple[Xid, ...]:
        course = script().troubles["xid"]
        ((second, code),) = course.points
        past = floor((self.t - second) / course.every)
        if index != course.gpu or past < 0:
            return ()
        return (Xid(code=int(code), count=past + 1, last=self.wall_zero + past * course.every + second),)

    def _start(self, actor: Actor, age: float) -> int:
        return round((_UPTIME + self.t - age) * 100) if actor.process.presence is Presence.SEEN else 0

    def _loads(self, index: int, t: float) -> defaultdict[int, float]:
        """Return the utilization in percent by PID of one GPU; the sum is at most 100."""
        loads: defaultdict[int, float] = defaultdict(float)
        for actor, _ in self.actors:
            # A process drives the first of its GPUs, and all of them where it has no other reason to be on two.
            if index in [gpu for gpu, gib in actor.holds if gib >= 1.0 or gpu == actor.holds[0][0]]:
                loads[actor.pid] = self._load(actor, t)
        over = max(1.0, sum(loads.values()) / 100)
        return defaultdict(float, {pid: load / over for pid, load in loads.items()})

    def _load(self, actor: Actor, t: float) -> float:
        load = actor.load
        # The ranks of one run work in step; everybody else has a beat of their own.
        beat = actor.process.ppid if actor.process.parent == "mpirun" else None
        place = (t / load.period + (beat or actor.pid) * 0.618) % 1
        level = load.low
        if place < load.share:
            level = load.low + (load.high - load.low) * (place / load.share) ** 0.4 if load.ramp else load.high
        if level == 0:
            return 0.0
        return min(100.0, max(1.0, level + load.wobble * self._noise("sm", actor.pid, t / 2)))

    def _temperature(self, index: int, heat: float) -> int:
        noise = self._noise("heat", index, self.t / 20)
        degrees = 29 + 0.38 * heat + 2 * noise + (15 if index == script().troubles["warm"].gpu else 0)
        degrees += self._trouble("hot", index) * (84 + noise - degrees)  # at 87 it slows itself down
        return min(round(degrees), 86)

    def _noise(self, what: str, who: int, x: float) -> float:
        """Return a smooth value in [-1, 1] that depends only on the seed, the names and `x`."""
        knot = floor(x)
        mix = (1 - cos(pi * (x - knot))) / 2
        before, after = (crc32(f"{self.seed}:{what}:{who}:{at}".encode()) / 2**31 - 1 for at in (knot, knot + 1))
        return (1 - mix) * before + mix * after


def _trial(slot: int, t: float) -> tuple[Actor, float]:
    """Return the trial of the sweep that runs in a slot at `t`, and its age in seconds."""
    generation, ran = divmod(t + slot * TRIAL_SECONDS / TRIALS, TRIAL_SECONDS)
    count = int(generation) * TRIALS + slot
    plain = script().sweep
    ((gpu, gib),) = plain.holds
    return replace(
        plain,
        pid=plain.pid + count % 8000,  # far below every pid_max
        argv=tuple(word.format(trial=212 + count, rate=3e-4 * 0.8 ** (count % 6)) for word in plain.argv),
        holds=((gpu, round(0.5 + (gib - 0.5) * min(1.0, ran / 8.0), 1)),),  # it loads for 8 s
        load=plain.load if ran > 8.0 else Load(),
    ), ran
