"""An `ssh` of the tests on the PATH: for each host a shell script in place of the connection."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from gpuwatch.config.types import RemoteHost
from gpuwatch.fleet.remote import RemoteSource
from gpuwatch.fleet.ssh import Timing
from gpuwatch.model.live import Status
from gpuwatch.model.snapshot import Snapshot, encode
from gpuwatch.recorder.live_writer import make_status
from tests.support.builders import gpu, holding, process, snapshot
from tests.support.waiting import wait_for

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


def wait_for_snapshot(source: RemoteSource, holds: Callable[[Snapshot], object]) -> Snapshot:
    """Return the next snapshot of a source that satisfies a condition."""
    found: list[Snapshot] = []

    def came() -> bool:
        snapshot = source.next(0.1)
        found.extend([snapshot] if snapshot is not None and holds(snapshot) else [])
        return bool(found)

    wait_for(came)
    return found[-1]


def put_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch, scripts: Mapping[str, str]) -> list[RemoteHost]:
    """Put an ssh on the PATH that runs a script for each host, and return these hosts."""
    cases = "\n".join(f"{name})\n{script}\n;;" for name, script in scripts.items())
    text = f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nhost=$2; shift 2\ncase $host in\n{cases}\nesac\n'
    (folder / "ssh").write_text(text)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return [RemoteHost(name=name, address=name) for name in scripts]
