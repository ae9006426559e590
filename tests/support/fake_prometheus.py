"""Prometheus server that a test scripts: it answers queries with given series, or has one of many faults."""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec

from gpuwatch.fleet.overview import QUERIES
from gpuwatch.fleet.prometheus import FleetSample
from tests.support.prometheus import samples

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
