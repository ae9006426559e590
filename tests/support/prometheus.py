"""Prometheus: an exporter with one frame, a real server on a made-up fleet, and one that answers by a script.

The real server scrapes nothing, and has what recording rules would write. `python -m tests.bench.fleet` measures with
it, `tests/fleet/test_real_server.py` asserts with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpuwatch.export.exporter import Exporter
from gpuwatch.fleet.overview import QUERIES
from gpuwatch.fleet.prometheus import FleetSample
from gpuwatch.history.history import History
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.monitor import Frame
from tests.support.builders import at
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
            alert = f'{base},alertname="GpuwatchNearlyFull",severity="critical",gpu="1"'
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
    for name, labels, value, when in past(now):
        by_name.setdefault(name, []).append(f"{name}{{{labels}}} {value} {when:.3f}\n")
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


Fault = Callable[["Handler"], None]


def series(text: str) -> list[dict[str, Any]]:
    """Return the series of lines such as `up{job="a"} 1`, as the HTTP API has them."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, labels, value = re.fullmatch(r"([\w:]+)\{(.*)\} (\S+)", line).groups()  # type: ignore[union-attr]
        metric = {"__name__": name} | {
            key: json.loads(one) for key, one in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', labels)
        }
        found.append({"metric": metric, "value": [1.7e9, value]})
    return found


def decoded(text: str) -> list[FleetSample]:
    """Return the samples of such lines."""
    return msgspec.convert(series(text), list[FleetSample])


def a_fleet(hosts: int = 4, gpus: int = 4) -> str:
    """Return the lines of a made-up fleet."""
    every = samples(hosts, gpus)
    return "\n".join(f"{name}{{{labels}}} {value}" for name, labels, value in every if (name, value) != ("up", 1.0))


class FakePrometheus:
    """State of the server: what it has, its fault, and what it was asked."""

    def __init__(self, lines: str) -> None:
        self.lines = lines
        self.warnings: list[str] = []
        self.fault: Fault | None = None
        self.asked: list[dict[str, str]] = []
        """Fields of each request, with its path under `path`."""
        self.headers: list[Mapping[str, str]] = []
        self.over = threading.Event()
        """Set when the test is over: a late answer waits for it."""
        self.url = ""

    def answer(self, path: str, query: str) -> bytes:
        """Return the answer to a query."""
        every = series(self.lines)
        if path.endswith("query_range"):
            chosen = [one for one in every if one["metric"]["__name__"].startswith("gpuwatch_")]
            at = float(self.asked[-1]["end"])
            results = [{"metric": one["metric"], "values": [[at, one["value"][1]]]} for one in chosen]
            return self.document("matrix", results)
        patterns = ("gpuwatch:gpu_", "gpuwatch:(user|host)_", "up$", "ALERTS")
        pattern = patterns[QUERIES.index(query)] if query in QUERIES else "gpuwatch_user"
        return self.document("vector", [one for one in every if re.match(pattern, one["metric"]["__name__"])])

    def document(self, kind: str, results: Iterable[Any]) -> bytes:
        found: dict[str, Any] = {"status": "success", "data": {"resultType": kind, "result": list(results)}}
        return json.dumps(found | ({"warnings": self.warnings} if self.warnings else {})).encode()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    fake: FakePrometheus

    def do_POST(self) -> None:
        fake = self.fake
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        fake.asked.append({"path": self.path, **{key: one[0] for key, one in parse_qs(body).items()}})
        fake.headers.append({key.lower(): one for key, one in self.headers.items()})
        if fake.fault is not None:
            with contextlib.suppress(OSError):  # the client has hung up
                fake.fault(self)
            return
        self.reply(200, fake.answer(self.path, fake.asked[-1]["query"]))

    do_GET = do_POST

    def reply(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, one in headers.items():
            self.send_header(name, one)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Print nothing: a client that hangs up is what is tested."""


@contextlib.contextmanager
def fake_prometheus(lines: str = "", *, tls: Path | None = None) -> Iterator[FakePrometheus]:
    """Run a server on a free port; with `tls` by the certificate and key in that file."""
    fake = FakePrometheus(lines or a_fleet())
    server = _Server(("127.0.0.1", 0), type("Bound", (Handler,), {"fake": fake}))
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    fake.url = f"http{'s' * (tls is not None)}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        fake.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def certificate(folder: Path, name: str, *, days: int = 30) -> Path:
    """Return a file with a new key and a certificate that is its own CA, for an IP address or a host name."""
    key, file = folder / f"{name}.key", folder / f"{name}.pem"
    kind = "IP" if re.fullmatch(r"[\d.]+", name) else "DNS"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-keyout", str(key), "-out", str(file), "-days", str(days), "-subj", f"/CN={name}"]
    subprocess.run([*command, "-addext", f"subjectAltName={kind}:{name}"], check=True, capture_output=True)
    file.write_text(key.read_text() + file.read_text())
    return file


RECEIVED = 5000.0
Labels = Mapping[str, str]


def exporter(shown: Snapshot, *, age: float = 0.5, seconds: int = 0, **settings: Any) -> Exporter:
    """Return an exporter that has seen a snapshot for so many seconds, scraped `age` seconds after the last one."""
    made = Exporter(clock=lambda: RECEIVED + seconds + age, **settings)
    history = History()
    for second in range(seconds + 1):
        seen, now = at(shown, second) if seconds else shown, RECEIVED + second
        made.take(Frame(seen, now, history.add(seen, now), number=second))
    return made


def text_of(made: Exporter) -> str:
    """Return the metrics as Prometheus reads them."""
    return generate_latest(made.registry).decode()


def metrics(made: Exporter) -> dict[str, list[tuple[Labels, float]]]:
    """Return the samples of each metric, as a parser of its own reads them."""
    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(text_of(made)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def promtool(*words: str, content: str = "") -> str:
    """Run promtool, and return what it prints; fails with that where it finds fault."""
    done = subprocess.run([needs("promtool"), *words], input=content, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
