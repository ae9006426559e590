"""Several hosts: a fleet of demos as ssh and Prometheus show it, and an `ssh` on the PATH that runs a script a host."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.commands.export import FILES, FOLDER
from gpuwatch.config.types import RemoteHost
from gpuwatch.fleet.host import Host
from gpuwatch.fleet.overview import Fleet, HostPast, make_fleet
from gpuwatch.fleet.prometheus import FleetSample, Labels
from gpuwatch.fleet.remote import RemoteHosts
from gpuwatch.fleet.ssh import Hosts, Timing, make_host
from gpuwatch.history.history import History
from gpuwatch.model.live import Status
from gpuwatch.model.shares import usable
from gpuwatch.model.snapshot import Health, Snapshot, encode
from gpuwatch.monitor import Frame
from gpuwatch.recorder.live_writer import make_status
from gpuwatch.sources.demo import DemoSource
from tests.support.builders import gpu, holding, process, snapshot
from tests.support.demo import WALL
from tests.support.prometheus import exporter, metrics

NAMES = tuple(f"{rack}-gpu-{number:02}" for rack in ("lab", "vision", "speech") for number in range(1, 9))
"""Hosts of the fleet."""
SILENT = "vision-gpu-03"
"""Host that does not answer."""
SERVER = "http://prometheus:9090"
_RULE = re.compile(r"record: (\S+)\n\s+expr: (gpuwatch_\w+)\n")


@cache
def demo_frame(number: int) -> Frame:
    """Return the newest frame of a host: a quarter of a minute of the demo, with other GPUs free on each host."""
    engine, history = Engine(), History()
    source = DemoSource(clock=lambda: 0.0, wall=lambda: WALL)
    first = 40 + 45 * number
    for second in map(float, range(first, first + 17)):
        snapshot = _with_free(source.at(second), number)
        view = history.add(snapshot, second)
        changes = engine.update(snapshot, view, second, snapshot.taken)
    return Frame(snapshot, second, view, changes.active)


def _with_free(snapshot: Snapshot, number: int) -> Snapshot:
    """Return a snapshot in which nobody holds some of the GPUs."""
    gpus = []
    for card in snapshot.gpus:
        whole = usable(card)
        if (card.index * 5 + number * 3) % 7 < number % 4 and card.health is Health.OK and whole is not None:
            memory = replace(card.memory, used=0, free=whole)
            nobody = {"holdings": (), "unattributed": 0, "promised": 0, "promises": (), "utilization": 0}
            card = replace(card, memory=memory, power=70.0, temperature=34, **nobody)
        gpus.append(card)
    held = {one.pid for card in gpus for one in card.holdings}
    return replace(snapshot, gpus=tuple(gpus), processes=tuple(one for one in snapshot.processes if one.pid in held))


def demo_hosts(count: int = 6) -> list[Host]:
    """Return the rows of hosts by ssh; the last one cannot be reached."""
    rows = []
    for number, name in enumerate(NAMES[:count]):
        frame = demo_frame(number)
        status = make_status(frame.snapshot, frame.alerts, frame.snapshot.monotonic)
        rows.append(make_host(name, status, 0.4))
    trouble = "ssh: connect to host old-gpu port 22: No route to host"
    return [*rows, Host(name="old-gpu", trouble=trouble)]


def samples() -> Iterator[FleetSample]:
    """Yield what the recording rules make of the metrics of each host, and the alerts that fire."""
    rules = dict(_RULE.findall((FOLDER / FILES["rules"]).read_text()))
    for number, name in enumerate(NAMES):
        base = {"instance": f"{name}:9836", "job": "gpuwatch"}
        if name == SILENT:
            yield _sample("up", base, 0.0)
            continue
        shown = demo_frame(number)
        made = exporter(shown.snapshot, age=0.4)
        made.take(replace(shown, received=5000.0))
        found = metrics(made)
        for rule, metric in rules.items():
            yield from (_sample(rule, {**base, **labels}, value) for labels, value in found.get(metric, ()))
        held: dict[str, list[float]] = defaultdict(list)
        for labels, value in found.get("gpuwatch_user_memory_bytes", ()):
            held[labels["user"]].append(value)
        for user, sizes in held.items():
            yield _sample("gpuwatch:user_memory:bytes", {**base, "user": user}, sum(sizes))
            yield _sample("gpuwatch:user_gpus:count", {**base, "user": user}, len(sizes))
        for alertname, severity, metric, fires in _ALERTS:
            for labels, value in found.get(metric, ()):
                if fires(value):
                    fired = {**base, **labels, "alertname": alertname, "severity": severity}
                    yield _sample("ALERTS", {**fired, "alertstate": "firing"}, 1.0)
                    yield _sample("ALERTS_FOR_STATE", fired, WALL - 60 * (1 + number))


_Fires = Callable[[float], bool]
_ALERTS: tuple[tuple[str, str, str, _Fires], ...] = (
    ("GpuwatchGpuLost", "critical", "gpuwatch_gpu_up", lambda value: value == 0),
    ("GpuwatchNearLimit", "critical", "gpuwatch_gpu_memory_free_bytes", lambda value: value < 4e9),
    ("GpuwatchOvershoot", "critical", "gpuwatch_user_over_bytes", lambda value: value > 8e9),
)


def _sample(metric: str, labels: dict[str, str], value: float) -> FleetSample:
    known = {name: text for name, text in labels.items() if name in Labels.__struct_fields__}
    return FleetSample(labels=Labels(metric=metric, **known), value=(WALL, repr(value)))


@cache
def demo_fleet() -> Fleet:
    """Return the fleet as a Prometheus server has it."""
    return make_fleet(samples(), server=SERVER, taken=WALL, received=0.0, notes=())


class DemoReader:
    """Stands in for the reader of a fleet: it has one, and no past of a host."""

    def __init__(self) -> None:
        self.newest = demo_fleet()

    def start(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def past(self, host: str, start: float, step: float, count: int) -> Future[HostPast]:
        """Return a future that stays open."""
        return Future()


class DemoHosts(RemoteHosts):
    """Hosts by ssh without a connection."""

    def __init__(self) -> None:
        super().__init__(Hosts([RemoteHost(name=name, address=name) for name in NAMES]), Limits())

    def begin(self) -> None:
        """Do nothing."""

    def rows(self) -> list[Host]:
        return demo_hosts()


QUICK = Timing(start=2.0, silence=1.0, first=0.1, most=0.2, beat=0.1, keepalive=3.0)
"""Short delays: a test waits for what they lead to."""

SHOWN = snapshot(
    [gpu(0, holdings=[holding(11, 30)]), gpu(1)],
    [process(11, "ada", command="python train.py")],
    host="elsewhere",
)
"""What the machine behind a good connection has."""


def status(**changes: object) -> Status:
    """Return the status of `SHOWN`, which was sampled half a second before."""
    made = make_status(SHOWN, (), 0.0)
    return msgspec.structs.replace(made, **{"monotonic": 1000.5, "sampled": 1000.0, **changes})


def line(**changes: object) -> str:
    """Return a line of `--stream=live`."""
    return msgspec.json.encode(status(**changes)).decode()


def repeat(text: str, seconds: float = 0.1) -> str:
    """Return the script that prints a line again and again."""
    return f"while printf '%s\\n' '{text}'; do sleep {seconds}; done"


GOOD = repeat(line())
WHOLE = repeat(encode(SHOWN).decode())


def put_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch, scripts: Mapping[str, str]) -> list[RemoteHost]:
    """Put an ssh on the PATH that runs a script for each host, and return these hosts."""
    cases = "\n".join(f"{name})\n{script}\n;;" for name, script in scripts.items())
    text = f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nhost=$2; shift 2\ncase $host in\n{cases}\nesac\n'
    (folder / "ssh").write_text(text)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return [RemoteHost(name=name, address=name) for name in scripts]
