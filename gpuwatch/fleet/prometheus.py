"""Prometheus server: a client of its HTTP API, with credentials from files, verified TLS and bounds on each answer.

Source: prometheus.io/docs/prometheus/latest/querying/api, "Instant queries" and "Range queries".
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, SSLError, TimeoutError

from gpuwatch.base import files
from gpuwatch.base.errors import UnavailableError, UsageError
from gpuwatch.base.text import clean
from gpuwatch.base.units import size
from gpuwatch.config.keys import is_loopback, keys_of
from gpuwatch.config.types import FleetSettings
from gpuwatch.fleet.host import GREATEST

T = TypeVar("T")

MOST_BYTES: Final = 64 << 20
"""Size limit of an answer. The figures of 1,000 hosts with 8 GPUs have 11 MB."""
MOST_VALUES: Final = 500_000
"""Limit on the values of an answer, 300 bytes each in memory; 1,000 hosts with 8 GPUs have 56,000."""
_MOST_WARNINGS: Final = 5
_MOST_SECRET: Final = 64 << 10
_CHUNK: Final = 256 << 10
_MOST_WORDS: Final = 200
"""Characters of a server's own words that are shown."""


class PrometheusError(UnavailableError):
    """Error of a server that cannot be read now: one line with its address, the problem, and what to do."""


class Labels(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Labels of a series that the fleet uses; others are ignored. A missing label is empty."""

    metric: str = msgspec.field(default="", name="__name__")
    instance: str = ""
    uuid: str = ""
    gpu: str = ""
    name: str = ""
    user: str = ""
    alertname: str = ""
    alertstate: str = ""
    severity: str = ""


class FleetSample(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Newest value of a series."""

    labels: Labels = msgspec.field(name="metric")
    value: tuple[float, str]

    @property
    def number(self) -> float | None:
        """The value; None where it is no finite number."""
        return _number(self.value[1])


class Range(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Values of a series over time."""

    labels: Labels = msgspec.field(name="metric")
    values: list[tuple[float, str]]

    def numbers(self, start: float, step: float, count: int) -> list[float | None]:
        """Return a value for each of `count` steps from `start` on; None where the server has none."""
        found: list[float | None] = [None] * count
        for at, text in self.values:
            place = round((at - start) / step) - 1 if abs(at) < GREATEST else -1
            if 0 <= place < count:
                found[place] = _number(text)
        return found


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < GREATEST else None  # finite, and small enough to be drawn


class _Failure(msgspec.Struct, frozen=True):
    error: str


class _Vector(msgspec.Struct, frozen=True, tag_field="resultType", tag="vector"):
    result: list[FleetSample]


class _Matrix(msgspec.Struct, frozen=True, tag_field="resultType", tag="matrix"):
    result: list[Range]


class _Answer(msgspec.Struct, frozen=True, tag_field="status", tag="success"):
    data: _Vector | _Matrix
    warnings: list[str] = []


class PrometheusClient:
    """Client of one Prometheus server. Its calls raise PrometheusError; one thread at a time may use it."""

    def __init__(self, settings: FleetSettings, url: str = "") -> None:
        """`url` comes from the flag; the credentials of `settings` are sent only to the server of `settings`.

        Raises UsageError for settings that cannot be used.
        """
        name = "--prometheus" if url else "fleet.prometheus"
        self.url = (url or settings.prometheus).rstrip("/")
        if not self.url:
            raise UsageError("no server is set: give --prometheus URL, or set prometheus in [fleet]")
        try:
            keys_of(FleetSettings)["prometheus"].read(self.url)
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None
        self.warnings: list[str] = []
        """Warnings of the answers since they were cleared, a few: of a partial answer, as of Thanos or remote reads."""
        self._timeout = settings.timeout
        own = urlsplit(settings.prometheus)
        self._foreign = bool(settings.prometheus) and (own.scheme, own.netloc) != (parts.scheme, parts.netloc)
        self._settings = FleetSettings(ca_file=settings.ca_file) if self._foreign else settings
        _check_credentials(self._settings, parts)
        self._pool = urllib3.PoolManager(
            retries=False,
            timeout=urllib3.Timeout(connect=settings.timeout, read=settings.timeout),
            ssl_context=_tls(settings.ca_file) if parts.scheme == "https" else None,
        )
        self._sockets: list[socket.socket] = []
        """Sockets of the connections that were made, the last one is in use."""
        self._pool.pool_classes_by_scheme = {
            "http": _pool_of(urllib3.HTTPConnectionPool, self._sockets),
            "https": _pool_of(urllib3.HTTPSConnectionPool, self._sockets),
        }

    def query(self, expression: str) -> list[FleetSample]:
        """Return the newest values of an expression."""
        return self._post("query", {"query": expression}, _Vector).result

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Range]:
        """Return the values of an expression from `start` to `end` (wall-clock times), one each `step` seconds."""
        fields = {"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._post("query_range", fields, _Matrix).result

    def close(self) -> None:
        self._pool.clear()

    # -- one request -----------------------------------------------------------------------------------------------

    def _post(self, path: str, fields: dict[str, str], kind: type[T]) -> T:
        status, type_, body = self._request(path, {**fields, "timeout": f"{self._timeout:g}"})
        if status != 200:
            raise self._error(self._refusal(status, type_, body))
        if body.count(b"[") > MOST_VALUES:  # each value is in brackets
            raise self._error(f"the answer has more than {MOST_VALUES:,} values: too large")
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except (ValueError, RecursionError) as error:
            what = "the answer is incomplete" if "json" in type_ else f"the answer is {clean(type_, 60) or 'untyped'}"
            raise self._error(f"{what}, and not from Prometheus: {error}") from None
        if not isinstance(answer.data, kind):
            raise self._error("the answer has the wrong kind of values")
        more = [one for one in dict.fromkeys(answer.warnings) if one not in self.warnings]
        self.warnings += more[: _MOST_WARNINGS - len(self.warnings)]
        return answer.data

    def _request(self, path: str, fields: dict[str, str]) -> tuple[int, str, bytes]:
        """Return status, type and body of an answer that came in time and is not too large."""
        headers = {"Accept-Encoding": "gzip", "Accept": "application/json", **self._credentials()}
        with self._deadline() as is_over:
            try:
                answer = self._pool.request(
                    "POST",
                    f"{self.url}/api/v1/{path}",
                    fields=fields,
                    headers=headers,
                    encode_multipart=False,
                    redirect=False,
                    preload_content=False,
                )
                try:
                    body = bytearray()
                    while chunk := answer.read(_CHUNK, decode_content=True):
                        body += chunk
                        if len(body) > MOST_BYTES:
                            raise self._error(f"the answer has more than {size(MOST_BYTES)}: too large")
                    answer.release_conn()
                finally:
                    answer.close()
            except (HTTPError, OSError) as error:
                if not is_over.is_set():
                    raise self._error(self._failure(error)) from None
            if is_over.is_set():
                raise self._error(f"no answer within {self._timeout:g} s")
        target = f" {answer.headers.get('Location', '')}" if 300 <= answer.status < 400 else ""
        return answer.status, target or answer.headers.get("Content-Type", ""), bytes(body)

    @contextmanager
    def _deadline(self) -> Iterator[threading.Event]:
        """Limit the time of the whole request (urllib3 limits only each read); yield the event that says it is over."""
        is_over = threading.Event()

        def end() -> None:
            is_over.set()
            for one in self._sockets:
                with suppress(OSError):
                    socket.socket.shutdown(one, socket.SHUT_RDWR)

        timer = threading.Timer(self._timeout, end)
        timer.daemon = True
        timer.start()
        try:
            yield is_over
        finally:
            timer.cancel()

    def _error(self, words: str) -> PrometheusError:
        return PrometheusError(clean(f"{self.url}: {words}", 500))

    def _failure(self, error: Exception) -> str:
        """Return why there is no answer."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLError | socket.gaierror | ConnectionError):
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, ssl.SSLCertVerificationError):
            hint = "" if self._settings.ca_file else "; for a CA of your own set fleet.ca_file"
            return f"its certificate is not valid: {cause.verify_message}{hint}"
        if isinstance(cause, ssl.SSLError) or isinstance(error, SSLError):
            return f"TLS failed ({cause or error}); does the server use http:// only?"
        if isinstance(cause, socket.gaierror):
            return f"there is no such host ({cause.strerror})"
        if isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError):
            return f"no answer within {self._timeout:g} s"
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused: nothing listens there"
        return f"the connection failed: {getattr(cause, 'strerror', None) or cause or error}"

    def _refusal(self, status: int, type_: str, body: bytes) -> str:
        """Return the meaning of an answer whose status is not 200."""
        if 300 <= status < 400:
            return f"it redirects to{type_}, which gpuwatch does not follow; give that URL if it is right"
        if status in (401, 403):
            one = self._settings
            sent = "fleet.token_file" if one.token_file else "fleet.user and fleet.password_file" if one.user else ""
            if sent:
                return f"it refuses {sent} ({status})"
            if self._foreign:
                return f"it requires credentials ({status}); those in [fleet] are sent only to the server in [fleet]"
            return f"it requires credentials ({status}): set token_file, or user and password_file, in [fleet]"
        try:
            words = msgspec.json.decode(body, type=_Failure).error
        except (ValueError, RecursionError):
            what = "is a Prometheus server there?" if status in (404, 405) else "it answers with an error page"
            return f"answer {status} ({clean(type_, 60) or 'of no type'}); {what}"
        return f"it rejects a query ({status}): {words[:_MOST_WORDS]}"

    # -- credentials -----------------------------------------------------------------------------------------------

    def _credentials(self) -> dict[str, str]:
        """Return the header with the credentials; their files are read each time, since tokens are replaced."""
        one = self._settings
        try:
            if one.token_file:
                return {"Authorization": f"Bearer {read_secret(one.token_file, 'fleet.token_file')}"}
            if one.user:
                pair = f"{one.user}:{read_secret(one.password_file, 'fleet.password_file')}"
                return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        except UsageError as error:
            raise PrometheusError(str(error)) from None
        return {}


def _pool_of(kind: Any, sockets: list[socket.socket]) -> Any:
    """Return a kind of pool whose connections note their socket, the last one in place of those before."""

    class NotedConnection(kind.ConnectionCls):  # type: ignore[misc]
        def connect(self) -> None:
            super().connect()
            sockets[:] = [self.sock]

    class Pool(kind):  # type: ignore[misc]
        ConnectionCls = NotedConnection

    return Pool


def read_secret(path: str, key: str) -> str:
    """Return the one line of a private file of the user or of root; raises UsageError."""
    place = Path(path).expanduser()
    try:
        with open(files.open_ordinary(place), "rb") as file:
            facts = os.fstat(file.fileno())
            content = file.read(_MOST_SECRET)
    except OSError as error:
        raise UsageError(f"{key}: {files.shown_path(place)} cannot be read ({files.reason(error)})") from None
    mode = stat.S_IMODE(facts.st_mode)
    if facts.st_uid not in (os.geteuid(), 0):
        raise UsageError(f"{key}: {files.shown_path(place)} belongs to uid {facts.st_uid}; it must be yours")
    if mode & 0o077:
        fix = f"run `chmod 600 {files.shown_path(place)}`"
        raise UsageError(f"{key}: others can read {files.shown_path(place)} (mode {mode:04o}); {fix}")
    secret = content.decode("utf-8", "replace").strip()
    if not secret or not (secret.isascii() and secret.isprintable()):
        raise UsageError(f"{key}: {files.shown_path(place)} must have one line of printable characters")
    return secret


def _check_credentials(settings: FleetSettings, url: SplitResult) -> None:
    """Raise UsageError for credentials that are not complete, not private, or would be sent unencrypted."""
    if settings.token_file and settings.user:
        raise UsageError("fleet.token_file, fleet.user: both are set; set only one")
    if bool(settings.user) != bool(settings.password_file):
        raise UsageError("fleet.user, fleet.password_file: only one is set; set both")
    for path, key in ((settings.token_file, "fleet.token_file"), (settings.password_file, "fleet.password_file")):
        if path:
            host = url.hostname or ""
            if url.scheme == "http" and not is_loopback(host):
                raise UsageError(f"{key}: it would be sent to {host} unencrypted; write https:// in fleet.prometheus")
            read_secret(path, key)


def _tls(ca_file: str) -> ssl.SSLContext:
    """Return a context that verifies certificates by the system's CAs, or only by those of a file."""
    try:
        return ssl.create_default_context(cafile=str(Path(ca_file).expanduser()) if ca_file else None)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "it has no certificate"
        raise UsageError(f"fleet.ca_file: {clean(ca_file)} cannot be used ({why})") from None
