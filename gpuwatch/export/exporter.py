"""Exporter: a sink whose newest frame Prometheus reads as metrics, over HTTP or from a file for node_exporter.

A scrape is answered from the newest frame, and nothing is kept from one to the next but counters for each GPU. At most
eight connections are served at a time: each has two seconds for its request and ten for its answer, and where all eight
are taken, a new one takes the place of one that has sent no request.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import os
import re
import socket
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final, Literal
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import bcrypt
import msgspec
from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpuwatch.alerts.limits import Allowances
from gpuwatch.base import files
from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import clean
from gpuwatch.base.threads import Worker, start_thread
from gpuwatch.config.keys import is_loopback
from gpuwatch.export.metrics import ALIASES, GROUPS, Group, ScrapedMachine
from gpuwatch.model.snapshot import Health
from gpuwatch.monitor import Frame

TEXTFILE: Final = "gpuwatch.prom"
PACE: Final = 15.0
"""Seconds between two writes of the file for node_exporter."""
_NOTHING: Final = b"# gpuwatch has no data yet\n"
CONNECTIONS: Final = 8
REQUEST_PATIENCE: Final = 2.0
"""Seconds in which a connection must have sent its headers, and after which it may lose its place to a new one."""
PATIENCE: Final = 10.0
"""Seconds that the answer to a connection may take."""
WRONG_PASSWORD_PAUSE: Final = 1.0
"""Seconds after a wrong password in which no other one is checked: bcrypt takes 50 ms of CPU and more."""


class Exporter:
    """Sink that keeps the newest frame, and collector of its metrics for prometheus_client."""

    name = "export"

    def __init__(
        self,
        *,
        per_process: int = 0,
        names: Literal["all", "own"] = "all",
        allowances: Allowances | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`per_process` is the number of processes with metrics of their own; `own` leaves out names of others."""
        self.trouble = ""
        self.allowances = allowances or Allowances()
        """Allowances of overshoots; may be replaced at any time."""
        self.registry = CollectorRegistry(auto_describe=False)
        self._per_process, self._clock = per_process, clock
        self._groups: tuple[Group, ...] = (*GROUPS, *(ALIASES if names == "all" else ()))
        self._frame: Frame | None = None
        self._failures: Mapping[str, int] = {}
        self._samples = 0
        self._taken = 0.0
        self.registry.register(self)

    def take(self, frame: Frame) -> None:
        snapshot = frame.snapshot
        if snapshot.monotonic != self._taken:  # else only marks have changed
            self._taken = snapshot.monotonic
            self._samples += 1
            before = self._failures
            self._failures = {gpu.key: before.get(gpu.key, 0) + (gpu.health is not Health.OK) for gpu in snapshot.gpus}
        self._frame = frame

    def close(self, seconds: float) -> None:
        """Do nothing: the server and the file have their own ends."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the newest frame; none before the first one."""
        frame = self._frame
        if frame is None:
            return
        machine = ScrapedMachine(
            frame, self._clock(), self._failures, self._samples, self.allowances, per_process=self._per_process
        )
        for group in self._groups:
            rows = list(group.rows(machine))
            for metric in group.metrics if rows else ():
                values = [(labels, value) for labels, row in rows if (value := metric.read(row)) is not None]
                if values:
                    family = CounterMetricFamily if metric.counter else GaugeMetricFamily
                    found = family(metric.name, metric.help, labels=group.labels)
                    for labels, value in values:
                        found.add_metric(labels, value)
                    yield found


class TextFile:
    """Writer of the metrics into a folder of node_exporter's textfile collector, every 15 s; removed at the end."""

    def __init__(self, exporter: Exporter, folder: Path, *, pace: float = PACE) -> None:
        """Raises UsageError where the folder cannot be written."""
        self._exporter, self._folder, self._pace = exporter, folder, pace
        try:
            self._write()
        except OSError as error:
            raise UsageError(f"--textfile: {clean(str(folder))} cannot be used: {files.reason(error)}") from None
        self._worker = Worker("gpuwatch-textfile", self._task, last=self._leave)
        self._worker.wake()

    def close(self, seconds: float) -> None:
        self._worker.close(seconds)

    def _task(self) -> float:
        written = False
        try:
            written = self._write()
            self._exporter.trouble = ""
        except OSError as error:
            self._exporter.trouble = f"{clean(str(self._folder / TEXTFILE))} cannot be written: {files.reason(error)}"
        return self._pace if written else min(self._pace, 1.0)

    def _write(self) -> bool:
        """Replace the file, and return whether there are figures yet."""
        content = generate_latest(self._exporter.registry)
        with files.opened_folder(self._folder, private=False) as folder:
            files.replace_file(folder, TEXTFILE, content or _NOTHING, durable=False, mode=0o644)
        return bool(content)

    def _leave(self) -> None:
        with contextlib.suppress(OSError):  # node_exporter shows its age
            (self._folder / TEXTFILE).unlink()


# -- Prometheus's web configuration file --------------------------------------------------------------------------


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tls_server_config`; paths count from the folder of the file."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = "NoClientCert"
    min_version: Literal["TLS12", "TLS13"] = "TLS12"


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Web configuration file, as Prometheus and its exporters read it.

    Source: prometheus.io/docs/prometheus/latest/configuration/https/.
    """

    tls_server_config: TlsConfig | None = None
    basic_auth_users: dict[str, str] = {}
    """Passwords by user, hashed with bcrypt."""

    @property
    def protects(self) -> bool:
        """Whether only those who were let in can read, and nobody on the way: TLS, and a password or a certificate."""
        tls = self.tls_server_config
        return tls is not None and bool(self.basic_auth_users or tls.client_auth_type == "RequireAndVerifyClientCert")


def read_web_config(path: Path) -> WebConfig:
    """Read a web configuration file; raises UsageError, which names the file and the key."""
    named = clean(str(path))
    try:
        found = msgspec.yaml.decode(path.read_bytes(), type=WebConfig)
    except OSError as error:
        raise UsageError(f"--web-config: {named} cannot be read: {files.reason(error)}") from None
    except msgspec.ValidationError as error:
        raise UsageError(
            f"--web-config: {named}: {clean(str(error), 200)}; allowed are tls_server_config (cert_file, key_file, "
            "client_ca_file, client_auth_type, min_version) and basic_auth_users"
        ) from None
    except msgspec.DecodeError as error:
        words = clean(" ".join(str(error).split()), 200)
        raise UsageError(f"--web-config: {named} is not valid YAML: {words}") from None
    tls = found.tls_server_config
    if tls is not None and (not tls.client_ca_file) is not (tls.client_auth_type == "NoClientCert"):
        raise UsageError(f"--web-config: {named}: client_auth_type and client_ca_file go together; one is missing")
    for user, hashed in found.basic_auth_users.items():
        if not re.fullmatch(r"\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}", hashed):
            raise UsageError(f"--web-config: {named}: the password of {clean(user, 60)!a} is not a bcrypt hash")
    return found


def tls_context(config: WebConfig, folder: Path) -> ssl.SSLContext | None:
    """Return the TLS settings of a web configuration file in a folder; raises UsageError."""
    tls = config.tls_server_config
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if tls.min_version == "TLS13" else ssl.TLSVersion.TLSv1_2
    load_certificate(context, tls, folder)
    return context


def load_certificate(context: ssl.SSLContext, tls: TlsConfig, folder: Path) -> None:
    """Load the certificate, and the CA of those of clients; raises UsageError."""
    path = folder / tls.cert_file
    try:
        context.load_cert_chain(path, folder / tls.key_file, password=_no_password)
        if tls.client_auth_type != "NoClientCert":
            path = folder / tls.client_ca_file
            context.load_verify_locations(path)
            required = tls.client_auth_type == "RequireAndVerifyClientCert"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except (OSError, ValueError) as error:  # SSLError is an OSError
        words = files.reason(error) if isinstance(error, OSError) and error.filename else str(error)
        if isinstance(error, ssl.SSLError):
            words = "they do not match, or one of them is not in PEM format"
        raise UsageError(f"--web-config: {clean(str(path))} or its key cannot be used: {clean(words, 120)}") from None


def _no_password() -> str:
    raise ValueError("it needs a password, and an exporter cannot ask for one")


# -- HTTP ---------------------------------------------------------------------------------------------------------


def parse_address(text: str) -> tuple[str, int]:
    """Parse `127.0.0.1:9836`, `[::1]:9836`, `:9836` (all addresses) or `9836`; raises UsageError."""
    match = re.fullmatch(r"(?:(\[[0-9a-fA-F:.]+\]|[^:\s\[\]]*):)?(\d{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise UsageError(f"--listen: {text[:80]!a} is not an address; write 127.0.0.1:9836 or [::1]:9836")
    everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    host = "127.0.0.1" if match[1] is None else match[1].strip("[]") or everywhere
    return host, int(match[2])


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        if isinstance(self.request, ssl.SSLSocket):
            self.request.do_handshake()
        super().setup()

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        if isinstance(self.server, _Server):
            self.server.start_answer(self.request)
        return parsed

    def address_string(self) -> str:
        return str(self.client_address[0])  # not by its name: asking for that may hang

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def get_stderr(self) -> Any:
        return io.StringIO()  # wsgiref would print a traceback of a request that makes no sense


class _Connection:
    """Connection that has a place, and the timer that shuts it down.

    The timer is for the whole connection: one that sends a byte now and then is never silent for long.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.began = time.monotonic()
        self.has_asked = False
        """Whether its headers have arrived."""
        self._socket = connection
        self._timer = threading.Timer(REQUEST_PATIENCE, self.shut_down)

    def start_timer(self, seconds: float) -> None:
        """Restart the timer; raises RuntimeError where the system starts no more threads."""
        self._timer.cancel()
        self._timer = threading.Timer(seconds, self.shut_down)
        self._timer.daemon = True
        self._timer.start()

    def shut_down(self) -> None:
        """Shut the connection down, which wakes the thread that serves it."""
        self._timer.cancel()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, *args: Any, **others: Any) -> None:
        self.refresh: Callable[[], None] = lambda: None
        """Called before each connection is answered."""
        self._places: dict[Any, _Connection] = {}
        """Connections that are served, the oldest first."""
        self._lock = threading.Lock()
        super().__init__(*args, **others)

    def server_bind(self) -> None:
        # Not as HTTPServer does, which asks for the machine's name: that may hang.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def _has_place(self, request: Any) -> bool:
        """Give a connection a place, at need that of the oldest one that has sent no request, or that takes long."""
        with self._lock:
            if len(self._places) >= CONNECTIONS:
                late = time.monotonic() - REQUEST_PATIENCE
                silent = (held for held, one in self._places.items() if not one.has_asked)
                slow = (held for held, one in self._places.items() if one.began < late)
                given_up = next(silent, None) or next(slow, None)
                if given_up is None:
                    return False
                self._places.pop(given_up).shut_down()
            self._places[request] = _Connection(request)
            return True

    def process_request(self, request: Any, client_address: Any) -> None:
        self.refresh()
        if not self._has_place(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system starts no more threads
            self.shutdown_request(request)
            self._leave(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._lock:
            connection = self._places.get(request) or _Connection(request)  # that has lost its place already
        try:
            connection.start_timer(REQUEST_PATIENCE)
            super().process_request_thread(request, client_address)
        except RuntimeError:  # the system starts no more threads
            self.shutdown_request(request)
        finally:
            connection.shut_down()
            self._leave(request)

    def start_answer(self, request: Any) -> None:
        """Give a connection whose headers have arrived the time for its answer."""
        with self._lock:
            connection = self._places.get(request)
        if connection is not None:
            connection.has_asked = True
            connection.start_timer(PATIENCE)

    def _leave(self, request: Any) -> None:
        with self._lock:
            self._places.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a scraper that went away, or that speaks no TLS, is no trouble of this machine."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class Server:
    """HTTP server of an exporter's metrics, on threads of its own."""

    def __init__(
        self, exporter: Exporter, host: str, port: int, web_config: Path | None = None, hosts: Iterable[str] = ()
    ) -> None:
        """Listen and serve; raises UsageError.

        Beyond the loopback only with a web configuration file that has TLS, and passwords or client certificates.
        `hosts` are names, besides the machine's own, under which the loopback is asked.
        """
        self._exporter, self._host, self._path = exporter, host, web_config
        config = self._read_config()
        context = None if web_config is None else tls_context(config, web_config.absolute().parent)
        self._app = app = _Application(make_wsgi_app(exporter.registry), config.basic_auth_users)
        if is_loopback(host):
            machine = os.uname().nodename.lower()
            app.hosts = frozenset({machine, machine.partition(".")[0], *(one.lower() for one in hosts)})
        self._context, self._config = context, config
        self._stamp = self._read_stamp()
        kind = _Server6 if ":" in host else _Server
        try:
            self._server = make_server(host, port, app, server_class=kind, handler_class=_Handler)
        except OSError as error:
            raise UsageError(f"--listen: cannot listen on {host} port {port}: {files.reason(error)}") from None
        if context is not None:
            # The handshake is made in the connection's own thread: a client may be slow.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._server.refresh = self._refresh
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http{'s' * (context is not None)}://{shown}:{self._server.server_port}/metrics"
        start_thread(threading.Thread(target=self._server.serve_forever, name="gpuwatch-export", daemon=True))

    def _read_config(self) -> WebConfig:
        """Read the web configuration; raises UsageError, also where all could read beyond the loopback."""
        config = WebConfig() if self._path is None else read_web_config(self._path)
        if not is_loopback(self._host) and not config.protects:
            raise UsageError(
                f"--listen: {self._host} is not the loopback, so everybody could read who uses the GPUs; give "
                "--web-config FILE with tls_server_config, and basic_auth_users or client certificates"
            )
        return config

    def _read_stamp(self) -> list[float]:
        """Return when the web configuration, the certificate and the key were changed."""
        if self._path is None:
            return []
        tls, folder = self._config.tls_server_config, self._path.absolute().parent
        paths = [self._path, *((folder / tls.cert_file, folder / tls.key_file) if tls else ())]
        stamps = []
        for path in paths:
            with contextlib.suppress(OSError):
                stamps.append(path.stat().st_mtime)
        return stamps

    def _refresh(self) -> None:
        """Use a replaced certificate and replaced passwords; the old ones stay where these cannot be used, a trouble.

        Called before a connection is answered. Whether there is TLS at all is fixed from the start.
        """
        stamp = self._read_stamp()
        if self._path is None or stamp == self._stamp:
            return
        try:
            config = self._read_config()
            tls_context(config, self._path.absolute().parent)  # the one in use is changed only by files that are sound
            if self._context is not None and config.tls_server_config is not None:
                load_certificate(self._context, config.tls_server_config, self._path.absolute().parent)
        except UsageError as error:
            self._exporter.trouble = str(error)
            return
        self._config, self._app.users, self._exporter.trouble = config, config.basic_auth_users, ""
        self._stamp = self._read_stamp()

    def close(self) -> None:
        """Close the port; running answers are not waited for."""
        self._server.shutdown()
        self._server.server_close()


_PAGE: Final = b'<html><head><title>gpuwatch</title></head><body><a href="/metrics">Metrics</a></body></html>\n'
_HOST: Final = re.compile(r"\[([0-9a-fA-F:.]+)\](?::\d*)?|([^:\s]*?)\.?(?::\d*)?")
"""Host header: an address in brackets or a name, and the port."""


class _Application:
    """WSGI application: the metrics at /metrics for users with a password, where passwords are configured."""

    def __init__(self, metrics: Any, users: Mapping[str, str]) -> None:
        self._metrics = metrics
        self.users = users
        """Passwords by user, hashed; may be replaced at any time."""
        self.hosts: frozenset[str] | None = None
        """Names that a request may have as its Host, besides those of the loopback; None for any.

        A page of a browser on this machine can let its own name mean the loopback, and read what is there."""
        self._known: dict[str, bytes] = {}
        """Keyed hash of the right credentials of each user, which is checked without bcrypt."""
        self._key = os.urandom(16)
        self._checking = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        found = _HOST.fullmatch(str(environ.get("HTTP_HOST", "localhost")))
        host = ((found[1] or found[2]) if found else "").lower()
        if self.hosts is not None and host not in self.hosts and not is_loopback(host):
            start("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"Forbidden: this Host is not served here; the key hosts of [export] allows more\n"]
        if self.users and not self._may_read(str(environ.get("HTTP_AUTHORIZATION", ""))):
            start("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Basic")])
            return [b"Unauthorized\n"]
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Content-Type", "text/plain"), ("Allow", "GET, HEAD")])
            return [b"Method not allowed\n"]
        if environ["PATH_INFO"] == "/metrics":
            metrics: Iterable[bytes] = self._metrics(environ, start)
            return metrics
        known = environ["PATH_INFO"] == "/"
        start("200 OK" if known else "404 Not Found", [("Content-Type", "text/html")])
        return [_PAGE if known else b"Not found: /metrics has the metrics\n"]

    def _may_read(self, header: str) -> bool:
        """Return whether credentials are right; those that were right before wait for nobody."""
        scheme, _, encoded = header.partition(" ")
        users = self.users
        try:
            user, _, password = b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return False
        if scheme.lower() != "basic":
            return False
        hashed = users.get(user, next(iter(users.values())))  # an unknown user takes as long
        digest = hashlib.blake2b(f"{encoded} {hashed}".encode(), key=self._key).digest()
        if hmac.compare_digest(digest, self._known.get(user, b"")):
            return True
        if not self._checking.acquire(timeout=PATIENCE / 2):
            return False
        try:
            right = bcrypt.checkpw(password.encode(), hashed.encode()) and user in users
            if right:
                self._known[user] = digest
            else:
                time.sleep(WRONG_PASSWORD_PAUSE)
        except ValueError:  # a password with a NUL, or too long
            return False
        finally:
            self._checking.release()
        return right
