"""Real Prometheus server on blocks of a made-up fleet: it scrapes nothing, and has what recording rules would write.

`python -m tests.bench.fleet` measures with it, `tests/fleet/test_real_server.py` asserts with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.waiting import wait_for

GIB: Final = 1 << 30
JOB: Final = "gpuwatch"
MODELS: Final = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S")
PEOPLE: Final = ("ada", "ben", "cyn", "dov", "eve", "fay", "gus", "hal")
STEP: Final = 300
"""Seconds between two samples of the raw metrics of the first host, over the last day."""
GAP: Final = (2 * 3600, 6 * 3600)
"""Seconds before now between which the first host was not sampled."""


def needs(program: str) -> str:
    """Return the path of a program of Prometheus; skips the test where there is none, but not in CI."""
    path = shutil.which(program)
    if path is None:
        assert not os.environ.get("CI"), f"{program} is not installed"
        pytest.skip(f"needs {program}, of Debian's package prometheus")
    return path


def free_port() -> int:
    """Return a port of the loopback on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def host_of(number: int) -> str:
    return f"node{number:04}"


def instance_of(number: int) -> str:
    return f"{host_of(number)}:9400"


def is_free(host: int, gpu: int) -> bool:
    """Return whether nobody holds the GPU: half of every tenth host, and the last GPU of every third one."""
    return (host % 10 == 0 and gpu >= 4) or (host % 3 == 0 and gpu == 7)


def samples(hosts: int, gpus: int) -> Iterator[tuple[str, str, float]]:
    """Yield names, labels and values of the rules for each host."""
    for host in range(hosts):
        base = f'instance="{instance_of(host)}",job="{JOB}"'
        held: dict[str, float] = {}
        for gpu in range(gpus):
            model = MODELS[host % len(MODELS)]
            labels = f'{base},uuid="GPU-{host:08x}-0000-4000-8000-{gpu:012x}",gpu="{gpu}",name="{model}"'
            total = 80 * GIB
            used = 0.0 if is_free(host, gpu) else (10 + (host * 7 + gpu * 11) % 60) * GIB
            user = PEOPLE[(host + gpu) % len(PEOPLE)]
            if used:
                held[user] = held.get(user, 0.0) + used
            yield "gpuwatch:gpu_memory_used:bytes", labels, used
            yield "gpuwatch:gpu_memory_total:bytes", labels, total
            yield "gpuwatch:gpu_memory_free:bytes", labels, total - used
            yield "gpuwatch:gpu_memory_left:bytes", labels, total - used
            yield "gpuwatch:gpu_utilization:ratio", labels, (host + gpu) % 100 / 100 if used else 0.0
            yield "gpuwatch:gpu_processes:count", labels, float(used > 0)
            yield "gpuwatch:gpu_up:bool", labels, 1.0
        for user, memory in held.items():
            yield "gpuwatch:user_memory:bytes", f'{base},user="{user}"', memory
            yield "gpuwatch:user_gpus:count", f'{base},user="{user}"', 1.0
        yield "gpuwatch:host_age:seconds", base, 7.0
        yield "gpuwatch:host_driver_up:bool", base, 1.0
        yield "up", base, float(host % 100 != 99)
        if host % 50 == 1:
            alert = f'{base},alertname="GpuwatchMemoryNearLimit",severity="critical",gpu="1"'
            alert += f',uuid="GPU-{host:08x}-0000-4000-8000-{1:012x}"'
            yield "ALERTS", f'{alert},alertstate="firing"', 1.0
            yield "ALERTS_FOR_STATE", alert, time.time() - 600


def past(now: float) -> Iterator[tuple[str, str, float, float]]:
    """Yield names, labels, values and times of the raw metrics of the first host over the last day, but for `GAP`."""
    for gpu in range(2):
        labels = f'instance="{instance_of(0)}",job="{JOB}",uuid="GPU-{0:08x}-0000-4000-8000-{gpu:012x}",gpu="{gpu}"'
        labels += f',name="{MODELS[0]}"'
        for name, value in (
            ("gpuwatch_gpu_memory_used_bytes", 10.0 * GIB),
            ("gpuwatch_gpu_utilization_ratio", 0.5),
            ("gpuwatch_gpu_power_watts", 300.0),
            ("gpuwatch_gpu_temperature_celsius", 60.0),
            ("gpuwatch_user_memory_bytes", 9.0 * GIB),
        ):
            whose = f'{labels},user="ada"' if "user" in name else labels
            for back in range(24 * 3600, -1, -STEP):  # the oldest first: promtool drops what comes out of order
                if not GAP[0] < back < GAP[1]:
                    yield name, whose, value, now - back


def write_openmetrics(file: Path, hosts: int, gpus: int, now: float) -> None:
    """Write the samples of a fleet as OpenMetrics text, the samples of a metric together."""
    by_name: dict[str, list[str]] = {}
    for name, labels, value in samples(hosts, gpus):
        by_name.setdefault(name, []).append(f"{name}{{{labels}}} {value} {now:.3f}\n")
    for name, labels, value, at in past(now):
        by_name.setdefault(name, []).append(f"{name}{{{labels}}} {value} {at:.3f}\n")
    with file.open("w") as out:
        for name, lines in by_name.items():
            out.write(f"# TYPE {name} unknown\n")
            out.writelines(lines)
        out.write("# EOF\n")


@contextlib.contextmanager
def serving(folder: Path, hosts: int, gpus: int, *, now: float | None = None) -> Iterator[str]:
    """Run a server on the blocks of a fleet, and yield its URL; the server and nothing else is ended at the end."""
    text = folder / "fleet.om"
    write_openmetrics(text, hosts, gpus, time.time() if now is None else now)
    data = folder / "data"
    make = [needs("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)]
    subprocess.run(make, check=True, capture_output=True, timeout=300)
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    port = free_port()
    command = [
        needs("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--query.lookback-delta=1h",  # what was sampled once stays in sight of a slow test
        "--storage.tsdb.retention.time=30d",
        "--log.level=error",
    ]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(lambda: server.poll() is not None or _is_ready(url), "Prometheus did not start")
            assert server.poll() is None, "Prometheus has ended"
            yield url
        finally:
            server.terminate()


def _is_ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
        return bool(answer.status == 200)
    return False
