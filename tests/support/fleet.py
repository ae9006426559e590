"""Several hosts: a fleet of demos as ssh and Prometheus show it, and an `ssh` on the PATH that runs a script a host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.config.types import RemoteHost
from gpuwatch.fleet.demo import NAMES, DemoClient, machine
from gpuwatch.fleet.host import Host
from gpuwatch.fleet.overview import Fleet, HostPast
from gpuwatch.fleet.reader import read_fleet
from gpuwatch.fleet.remote import RemoteHosts
from gpuwatch.fleet.ssh import Hosts, Timing, make_host
from gpuwatch.history.history import History
from gpuwatch.model.live import Status
from gpuwatch.model.snapshot import encode
from gpuwatch.monitor import Frame
from gpuwatch.recorder.live_writer import make_status
from gpuwatch.sources.demo import DemoSource
from tests.support.builders import gpu, holding, process, snapshot
from tests.support.demo import WALL


@cache
def demo_frame(number: int) -> Frame:
    """Return the newest frame of a host: a quarter of a minute of the demo, with other GPUs free on each host."""
    engine, history = Engine(), History()
    source = DemoSource(clock=lambda: 0.0, wall=lambda: WALL)
    for second in map(float, range(17)):
        snapshot = machine(source, number, second)
        view = history.add(snapshot, snapshot.monotonic)
        changes = engine.update(snapshot, view, snapshot.monotonic, snapshot.taken)
    return Frame(snapshot, snapshot.monotonic, view, changes.active)


def demo_hosts(count: int = 6) -> list[Host]:
    """Return the rows of hosts by ssh; the last one cannot be reached."""
    rows = []
    for number, name in enumerate(NAMES[:count]):
        frame = demo_frame(number)
        status = make_status(frame.snapshot, frame.alerts, frame.snapshot.monotonic)
        rows.append(make_host(name, status, 0.4))
    trouble = "ssh: connect to host old-gpu port 22: No route to host"
    return [*rows, Host(name="old-gpu", trouble=trouble)]


@cache
def demo_fleet() -> Fleet:
    """Return the fleet of the demo at its first moment."""
    return replace(read_fleet(DemoClient(lambda: WALL)), taken=WALL, received=0.0)


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
