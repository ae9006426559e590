"""Client of a Prometheus server: credentials, TLS, bounds, and one clear line for each trouble."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.base.errors import UsageError
from gpuwatch.config.types import FleetSettings
from gpuwatch.fleet import prometheus
from gpuwatch.fleet.overview import QUERIES
from gpuwatch.fleet.prometheus import PrometheusClient, PrometheusError, read_secret
from tests.support.prometheus import FakePrometheus, Handler, certificate, fake_prometheus

QUERY = QUERIES[0]


@pytest.fixture
def fake() -> Iterator[FakePrometheus]:
    with fake_prometheus() as found:
        yield found


def secret(folder: Path, text: str = "s3cret", mode: int = 0o600) -> str:
    """Return the path of a file with a secret."""
    file = folder / "secret"
    file.write_text(f"{text}\n")
    file.chmod(mode)
    return str(file)


def trouble(url: str, **settings: Any) -> str:
    """Return the line about a server that cannot be read."""
    with pytest.raises(PrometheusError) as caught:
        PrometheusClient(FleetSettings(**settings), url).query(QUERY)
    line = str(caught.value)
    assert line.isprintable()
    return line


def test_a_query_is_posted_as_a_form_with_a_time_limit(fake: FakePrometheus) -> None:
    found = PrometheusClient(FleetSettings(timeout=7.0), f"{fake.url}/prefix/").query(QUERY)
    assert fake.asked == [{"path": "/prefix/api/v1/query", "query": QUERY, "timeout": "7"}]
    assert "authorization" not in fake.headers[0]
    assert {one.labels.instance for one in found} == {f"node000{n}:9400" for n in range(4)}
    assert found[0].number is not None


# -- credentials ----------------------------------------------------------------------------------------------------


def test_a_token_or_a_password_is_read_from_its_file_each_time(fake: FakePrometheus, tmp_path: Path) -> None:
    file = secret(tmp_path, "one")
    client = PrometheusClient(FleetSettings(prometheus=fake.url, token_file=file))
    client.query(QUERY)
    secret(tmp_path, "two")
    client.query(QUERY)
    PrometheusClient(FleetSettings(user="ada", password_file=file), fake.url).query(QUERY)
    basic = base64.b64encode(b"ada:two").decode()
    assert [one["authorization"] for one in fake.headers] == ["Bearer one", "Bearer two", f"Basic {basic}"]


def test_credentials_go_to_the_server_of_the_configuration_alone(fake: FakePrometheus, tmp_path: Path) -> None:
    settings = FleetSettings(prometheus="https://metrics.example.org", token_file=secret(tmp_path))
    client = PrometheusClient(settings, fake.url)
    client.query(QUERY)
    assert "authorization" not in fake.headers[0]
    fake.fault = lambda handler: handler.reply(401, b"")
    with pytest.raises(PrometheusError, match="those in \\[fleet\\] are sent only to the server"):
        client.query(QUERY)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(UsageError, match=f"fleet.token_file: others can read .*mode {mode:04o}.*chmod 600"):
        PrometheusClient(FleetSettings(token_file=secret(tmp_path, mode=mode)), "https://localhost")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda place: None, "No such file"),
        (lambda place: place.mkdir(), "not a regular file"),
        (lambda place: os.mkfifo(place), "not a regular file"),
        (lambda place: secret(place.parent, ""), "one line of printable"),
        (lambda place: secret(place.parent, "two\nlines"), "one line of printable"),
    ],
)
def test_a_secret_must_be_one_line_of_an_ordinary_file(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path / "secret")
    with pytest.raises(UsageError, match=words):
        read_secret(str(tmp_path / "secret"), "fleet.token_file")


@pytest.mark.parametrize(
    ("settings", "url", "words"),
    [
        ({}, "", "no server is set: give --prometheus URL"),
        ({}, "prometheus:9090", '--prometheus: found "prometheus:9090"; allowed is a URL'),
        ({}, "ftp://host", '--prometheus: found "ftp://host"'),
        ({}, "http://host:99999", "--prometheus: Port out of range"),
        ({}, "http://host/?a=b", "--prometheus: found"),
        ({}, "https://ada:pw@host", 'found "https://…" with an @'),
        (
            {"token_file": "SECRET"},
            "http://metrics.example.org",
            "fleet.token_file: it would be sent to metrics.example.org un",
        ),
        ({"token_file": "SECRET", "user": "ada"}, "https://host", "fleet.token_file, fleet.user: both are set"),
        ({"user": "ada"}, "https://host", "fleet.user, fleet.password_file: only one is set"),
        ({"ca_file": "/nonexistent/ca.pem"}, "https://host", "fleet.ca_file: /nonexistent/ca.pem cannot be used"),
        ({"ca_file": "SECRET"}, "https://host", "it has no certificate"),
    ],
)
def test_a_setting_that_cannot_be_used(tmp_path: Path, settings: dict[str, str], url: str, words: str) -> None:
    file = secret(tmp_path)
    given: dict[str, Any] = {key: one.replace("SECRET", file) for key, one in settings.items()}
    with pytest.raises(UsageError) as caught:
        PrometheusClient(FleetSettings(**given), url)
    assert words in str(caught.value)
    assert "pw" not in str(caught.value)


# -- troubles -------------------------------------------------------------------------------------------------------


def page(status: int) -> Callable[[Handler], None]:
    return lambda handler: handler.reply(status, b"<html>\x1b[2J</html>", "text/html")


def failing(status: int, error: str) -> Callable[[Handler], None]:
    return lambda handler: handler.reply(status, b'{"status":"error","errorType":"x","error":"%s"}' % error.encode())


def torn(handler: Handler) -> None:
    handler.reply(200, handler.fake.answer("query", QUERY)[:-40])


def cut(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"status":')
    handler.close_connection = True


def late(handler: Handler) -> None:
    handler.fake.over.wait()


def flood(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while not handler.fake.over.is_set():
        handler.wfile.write(b"40000\r\n" + b" " * 0x40000 + b"\r\n")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (page(200), "the answer is text/html, and not from Prometheus"),
        (lambda handler: handler.reply(200, b"[" * 200_000), "the answer is incomplete"),
        (page(404), "answer 404 (text/html); is a Prometheus server there?"),
        (page(502), "answer 502 (text/html); it answers with an error page"),
        (failing(401, "no"), "it requires credentials (401): set token_file, or user and password_file, in [fleet]"),
        (failing(403, "no"), "it requires credentials (403)"),
        (failing(422, "too many\\u001b[2J samples"), "it rejects a query (422): too many�[2J samples"),
        (failing(503, "query timed out"), "it rejects a query (503): query timed out"),
        (torn, "the answer is incomplete"),
        (cut, "the connection failed"),
        (lambda handler: handler.reply(200, b'{"status":"success"}'), "the answer is incomplete"),
        (lambda handler: handler.reply(200, handler.fake.document("matrix", [])), "wrong kind of values"),
        (lambda handler: handler.reply(302, b"", Location="https://other/\u00e9"), "it redirects to https://other/"),
    ],
)
def test_a_trouble_is_one_clear_line(fake: FakePrometheus, fault: Callable[[Handler], None], words: str) -> None:
    fake.fault = fault
    line = trouble(fake.url)
    assert line.startswith(f"{fake.url}: ")
    assert words in line
    assert len(fake.asked) == 1, "nothing is asked again at once, and nobody else"


def test_refused_credentials_are_named(fake: FakePrometheus, tmp_path: Path) -> None:
    fake.fault = page(401)
    file = secret(tmp_path)
    assert trouble(fake.url, token_file=file).endswith("it refuses fleet.token_file (401)")
    assert "fleet.user and fleet.password_file" in trouble(fake.url, user="ada", password_file=file)


def test_a_secret_that_is_opened_to_others_while_gpuwatch_runs(fake: FakePrometheus, tmp_path: Path) -> None:
    client = PrometheusClient(FleetSettings(token_file=secret(tmp_path)), fake.url)
    secret(tmp_path, mode=0o644)
    with pytest.raises(PrometheusError, match="others can read"):
        client.query(QUERY)
    assert not fake.asked


def test_a_late_answer_is_given_up(fake: FakePrometheus) -> None:
    fake.fault = late
    assert trouble(fake.url, timeout=0.2).endswith("no answer within 0.2 s")


def test_an_answer_without_end_is_cut_by_size(fake: FakePrometheus, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.fault = flood
    monkeypatch.setattr(prometheus, "MOST_BYTES", 1 << 20)
    assert "the answer has more than 1 MiB" in trouble(fake.url)


_BEGIN = b'{"status":"success","data":{"resultType":"vector","result":['
ODD = {
    b"\xff\xfe": "not from Prometheus",
    _BEGIN + b'{"metric":{"user":"\xff"},"value":[1,"1"]}]}}': "utf-8",
    _BEGIN + b"[" * 600_000: "the answer has more than 500,000",
}


@pytest.mark.parametrize("body", ODD, ids=["no text", "no text in a label", "too many"])
@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_that_cannot_be_read_is_one_line(fake: FakePrometheus, body: bytes, status: int) -> None:
    fake.fault = lambda handler: handler.reply(status, body)
    words = trouble(fake.url)
    assert (ODD[body] if status == 200 else "answer 400") in words
    assert words.isprintable()


@pytest.mark.parametrize("part", ["headers", "body", "continue"])
def test_an_answer_that_trickles_is_given_up(fake: FakePrometheus, part: str) -> None:
    def drip(handler: Handler) -> None:
        if part == "body":
            handler.send_response(200)
            handler.send_header("Content-Length", "1000000")
            handler.end_headers()
        each = {"headers": b"X-More: 1\r\n", "body": b" ", "continue": b"HTTP/1.1 100 Continue\r\n\r\n"}[part]
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" * (part == "headers"))
        with suppress(OSError):
            while not handler.fake.over.wait(0.05):
                handler.wfile.write(each)

    fake.fault = drip
    assert trouble(fake.url, timeout=1.0).endswith("no answer within 1 s")


def test_nobody_listens_and_no_such_host() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert "connection refused: nothing listens there" in trouble(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert "there is no such host" in trouble("http://no-such-host.invalid")


def test_certificates(tmp_path: Path) -> None:
    good, other = certificate(tmp_path, "127.0.0.1"), certificate(tmp_path, "other.example.org")
    with fake_prometheus(tls=good) as fake:
        assert PrometheusClient(FleetSettings(ca_file=str(good)), fake.url).query(QUERY)
        line = trouble(fake.url)
        assert "its certificate is not valid: self-signed certificate; for a CA of your own" in line
        assert "its certificate is not valid: self-signed certificate" in trouble(fake.url, ca_file=str(other))
        assert "the connection failed" in trouble(fake.url.replace("https", "http"))
    with fake_prometheus(tls=other) as fake:
        assert "certificate is not valid for '127.0.0.1'" in trouble(fake.url, ca_file=str(other))
    with fake_prometheus() as fake:
        assert "does the server use http:// only?" in trouble(fake.url.replace("http", "https"))


def test_warnings_of_a_partial_answer_are_kept(fake: FakePrometheus) -> None:
    fake.warnings = ["store eu-1 does not answer"]
    client = PrometheusClient(FleetSettings(), fake.url)
    assert client.query(QUERY)
    assert client.warnings == fake.warnings


def test_of_many_warnings_a_few_are_kept(fake: FakePrometheus) -> None:
    fake.warnings = [f"store {number} does not answer" for number in range(20_000)]
    client = PrometheusClient(FleetSettings(), fake.url)
    for _ in range(3):
        client.query(QUERY)
    assert client.warnings == fake.warnings[:5]


@pytest.mark.parametrize("text", ["1e308", "-1e308", "1e19", "NaN", "+Inf", "1_0.x"])
def test_a_value_beyond_all_bounds_is_none(text: str) -> None:
    labels = prometheus.Labels()
    assert prometheus.FleetSample(labels=labels, value=(1.0, text)).number is None
    odd = [(110.0, text), (1e308, "1"), (-1e308, "1"), (120.0, "1")]
    assert prometheus.Range(labels=labels, values=odd).numbers(100.0, 1e-3, 3) == [None] * 3
    assert prometheus.Range(labels=labels, values=odd).numbers(100.0, 10.0, 3) == [None, 1.0, None]


def test_values_over_time_have_gaps() -> None:
    values = prometheus.Range(
        labels=prometheus.Labels(), values=[(110.0, "1"), (130.0, "NaN"), (140.2, "4"), (999.0, "9")]
    )
    assert values.numbers(100.0, 10.0, 5) == [1.0, None, None, 4.0, None]
