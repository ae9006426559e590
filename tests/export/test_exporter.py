"""Server and file of the metrics: who may read them, what a bad setting says, and scrapers that stall."""

from __future__ import annotations

import argparse
import base64
import hashlib
import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import bcrypt
import pytest
from prometheus_client.core import Metric

from gpuwatch.base.errors import UsageError
from gpuwatch.commands.watch import start_export
from gpuwatch.config.types import Config
from gpuwatch.export import exporter as exporting
from gpuwatch.export.exporter import CONNECTIONS, Exporter, Server, TextFile, parse_address
from gpuwatch.history.history import History
from gpuwatch.monitor import Frame
from tests.support.builders import gpu, holding, snapshot
from tests.support.prometheus import certificate, exporter, free_port
from tests.support.waiting import PATIENCE, wait_for

TLS = "tls_server_config: {cert_file: 127.0.0.1.pem, key_file: 127.0.0.1.key}\n"
SHOWN = snapshot([gpu(0, holdings=[holding(7, 20)])])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a certificate, its key, and the hash of the password `right`."""
    certificate(tmp_path, "127.0.0.1")
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(f"{TLS}basic_auth_users: {{prometheus: '{hashed}'}}\n")
    return tmp_path


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server(exporter(SHOWN), "127.0.0.1", free_port())
    yield served
    served.close()


def port_of(served: Server) -> int:
    return int(served.url.split(":")[2].split("/")[0])


def get(served: Server, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(served), timeout=PATIENCE)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_metrics_are_at_one_path_and_are_only_read(server: Server) -> None:
    status, text = get(server)
    assert status == 200
    assert "gpuwatch_gpu_memory_used_bytes{" in text
    assert "gpuwatch_gpu_memory_used_bytes{" in get(server, Accept="application/openmetrics-text")[1]
    assert get(server, "/")[0] == 200
    assert get(server, "/other")[0] == 404
    assert get(server, method="POST")[0] == 405


def test_whoever_has_sent_no_request_gives_way(server: Server) -> None:
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", port_of(server))) for _ in range(2 * CONNECTIONS)]
    wait_for(lambda: sum(is_closed(one) for one in silent) >= CONNECTIONS)
    wait_for(lambda: threading.active_count() <= before + 2 * CONNECTIONS)  # each has a thread, and one that ends it
    assert [get(server)[0] for _ in range(20)] == [200] * 20
    for one in silent:
        one.close()
    wait_for(lambda: threading.active_count() <= before)


def test_whose_answer_takes_long_gives_way(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    answering, waiting, collect = threading.Event(), list[Exporter](), Exporter.collect

    def first_ones_wait(made: Exporter) -> Iterator[Metric]:
        if len(waiting) < CONNECTIONS:
            waiting.append(made)
            answering.wait(PATIENCE)
        return collect(made)

    monkeypatch.setattr(Exporter, "collect", first_ones_wait)
    monkeypatch.setattr(exporting, "REQUEST_PATIENCE", 0.5)
    slow = [threading.Thread(target=answers, args=(server,)) for _ in range(CONNECTIONS)]
    for one in slow:
        one.start()
    wait_for(lambda: len(waiting) == CONNECTIONS)
    wait_for(lambda: answers(server))
    answering.set()


def answers(served: Server) -> bool:
    with suppress(OSError, http.client.HTTPException):
        return get(served)[0] == 200
    return False


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_the_loopback_is_asked_by_its_own_names_alone() -> None:
    """A page in a browser on this machine can have its own name mean 127.0.0.1."""
    machine = os.uname().nodename
    own = ["localhost", "LOCALHOST.:9836", "127.0.0.1", "127.9.9.9:80", "[::1]:9836", "[::1]", machine, f"{machine}:99"]
    foreign = ["evil.example", "localhost.evil.example", "192.168.0.1", "", "[", "127.0.0.1@x"]
    served = Server(exporter(SHOWN), "127.0.0.1", free_port(), hosts=["GPU.example.org"])
    try:
        answers = {host: get(served, Host=host)[0] for host in [*own, "gpu.example.org:8080", *foreign]}
    finally:
        served.close()
    assert answers == {**dict.fromkeys([*own, "gpu.example.org:8080"], 200), **dict.fromkeys(foreign, 403)}


def test_a_wrong_password_holds_up_no_right_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = {name: bcrypt.hashpw(name.encode(), bcrypt.gensalt(4)).decode() for name in ("ada", "ben")}
    (folder / "web.yml").write_text(f"basic_auth_users: {hashes}\n")
    checked: list[bytes] = []
    check = bcrypt.checkpw

    def count_and_check(password: bytes, hashed: bytes) -> bool:
        checked.append(password)
        return check(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", count_and_check)
    monkeypatch.setattr(exporting, "WRONG_PASSWORD_PAUSE", PATIENCE)
    served = Server(exporter(SHOWN), "127.0.0.1", free_port(), folder / "web.yml")

    def ask(user: str) -> int:
        return get(served, Authorization=f"Basic {base64.b64encode(f'{user}:{user}'.encode()).decode()}")[0]

    guesses = [socket.create_connection(("127.0.0.1", port_of(served))) for _ in range(4)]
    try:
        assert [ask(one) for one in ("ada", "ben", "ada", "ben")] == [200] * 4
        assert checked == [b"ada", b"ben"], "what was right once is remembered"
        for one in guesses:
            one.sendall(b"GET / HTTP/1.1\r\nAuthorization: Basic YWRhOmd1ZXNz\r\n\r\n")
        wait_for(lambda: len(checked) > 2)
        assert [ask(one) for one in ("ada", "ben")] == [200] * 2
        assert len(checked) == 3, "one wrong password is checked at a time, and the next one after a pause"
    finally:
        served.close()
        for one in guesses:
            one.close()


def test_other_machines_read_by_tls_with_the_right_password(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "WRONG_PASSWORD_PAUSE", 0.0)
    served = Server(exporter(SHOWN), "0.0.0.0", free_port(), folder / "web.yml")
    try:
        context = ssl.create_default_context(cafile=str(folder / "127.0.0.1.pem"))

        def ask(credentials: str) -> int:
            at = http.client.HTTPSConnection("127.0.0.1", port_of(served), context=context, timeout=PATIENCE)
            at.request("GET", "/metrics", headers={"Authorization": credentials} if credentials else {})
            return at.getresponse().status

        right = "Basic cHJvbWV0aGV1czpyaWdodA=="  # prometheus:right
        assert [ask(right), ask(right)] == [200, 200], "the second time from what was found out the first time"
        wrong = ["Basic cHJvbWV0aGV1czp3cm9uZw==", "Basic bm9ib2R5OnJpZ2h0", "Basic %", "Bearer x", ""]
        assert [ask(one) for one in wrong] == [401] * 5
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):  # no TLS
            get(served)
    finally:
        served.close()


def test_a_connection_that_trickles_keeps_no_place(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "REQUEST_PATIENCE", 0.5)
    before = threading.active_count()
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=PATIENCE) as one:
        one.sendall(b"GET /metrics HTTP/1.1\r\n")
        with suppress(OSError):
            while one.send(b"X: 1\r\n"):
                time.sleep(0.02)
    wait_for(lambda: threading.active_count() <= before)
    assert get(server)[0] == 200


def test_a_renewed_certificate_and_a_removed_password_count_at_once(folder: Path) -> None:
    made = exporter(SHOWN)
    served = Server(made, "127.0.0.1", free_port(), folder / "web.yml")
    try:

        def serial() -> str:
            text = ssl.get_server_certificate(("127.0.0.1", port_of(served)), timeout=PATIENCE)
            return hashlib.sha256(text.encode()).hexdigest()

        first = serial()
        (folder / "127.0.0.1.pem").write_text("no certificate")
        assert serial() == first, "the old one stays"
        assert "127.0.0.1.pem or its key cannot be used" in made.trouble
        certificate(folder, "127.0.0.1")
        wait_for(lambda: serial() != first)
        assert not made.trouble
        context = ssl.create_default_context(cafile=str(folder / "127.0.0.1.pem"))
        hashed = bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()
        (folder / "web.yml").write_text(f"{TLS}basic_auth_users: {{prometheus: '{hashed}'}}\n")
        at = http.client.HTTPSConnection("127.0.0.1", port_of(served), context=context, timeout=PATIENCE)
        at.request("GET", "/metrics", headers={"Authorization": "Basic cHJvbWV0aGV1czpyaWdodA=="})
        assert at.getresponse().status == 401
    finally:
        served.close()


def test_the_last_password_is_not_taken_away_while_others_can_reach_the_port(folder: Path) -> None:
    made = exporter(SHOWN)
    served = Server(made, "0.0.0.0", free_port(), folder / "web.yml")
    try:
        context = ssl.create_default_context(cafile=str(folder / "127.0.0.1.pem"))
        (folder / "web.yml").write_text(TLS)
        at = http.client.HTTPSConnection("127.0.0.1", port_of(served), context=context, timeout=PATIENCE)
        at.request("GET", "/metrics")
        assert at.getresponse().status == 401
        assert "is not the loopback" in made.trouble
    finally:
        served.close()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("basic_auth_users: {ada: secret}", "the password of 'ada' is not a bcrypt hash"),
        ("tls_server_config: {cert_file: missing.pem, key_file: 127.0.0.1.key}", "missing.pem"),
        (
            "tls_server_config: {cert_file: 127.0.0.1.key, key_file: 127.0.0.1.key}",
            ".key or its key cannot be used",
        ),
        ("tls_server_config: {cert: 127.0.0.1.pem}", "allowed are tls_server_config"),
        ("http_server_config: {http2: true}", "http_server_config"),
        ("- [", "is not valid YAML"),
    ],
)
def test_a_wrong_web_configuration_is_one_line(content: str, words: str, folder: Path) -> None:
    (folder / "web.yml").write_text(content)
    with pytest.raises(UsageError, match="--web-config: ") as raised:
        Server(exporter(SHOWN), "127.0.0.1", free_port(), folder / "web.yml")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_nothing_is_served_beyond_the_loopback_without_tls_and_a_password(folder: Path) -> None:
    for content in ("basic_auth_users: {}", "tls_server_config: {cert_file: 127.0.0.1.pem, key_file: 127.0.0.1.key}"):
        (folder / "web.yml").write_text(content)
        with pytest.raises(UsageError, match="is not the loopback"):
            Server(exporter(SHOWN), "0.0.0.0", free_port(), folder / "web.yml")
    with pytest.raises(UsageError, match="is not the loopback"):
        Server(exporter(SHOWN), "::", free_port())


def test_a_port_that_is_taken_is_said(server: Server) -> None:
    with pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1 port .* in use"):
        Server(exporter(SHOWN), "127.0.0.1", port_of(server))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9836", ("127.0.0.1", 9836)),
        (":9836", ("::" if socket.has_dualstack_ipv6() else "0.0.0.0", 9836)),
        ("[::1]:80", ("::1", 80)),
        ("lab1:80", ("lab1", 80)),
        ("lab1", None),
        ("127.0.0.1:0", None),
        ("127.0.0.1:99999", None),
        ("::1:80", None),
    ],
)
def test_addresses(text: str, address: tuple[str, int] | None) -> None:
    if address is not None:
        assert parse_address(text) == address
        return
    with pytest.raises(UsageError, match=r"--listen: .* is not an address"):
        parse_address(text)


def test_the_file_of_node_exporter_is_whole_readable_and_gone_at_the_end(tmp_path: Path) -> None:
    written = TextFile(exporter(SHOWN), tmp_path, pace=0.01)
    file = tmp_path / "gpuwatch.prom"
    assert file.stat().st_mode & 0o777 == 0o644
    first = file.stat().st_ino
    wait_for(lambda: file.stat().st_ino != first)
    assert file.read_text().count("gpuwatch_build_info{") == 1
    written.close(PATIENCE)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_goes_away_is_a_trouble_and_no_end(tmp_path: Path) -> None:
    folder = tmp_path / "textfiles"
    with pytest.raises(UsageError, match=r"--textfile: .*textfiles cannot be used: No such file"):
        TextFile(exporter(SHOWN), folder)
    folder.mkdir()
    made = exporter(SHOWN)
    written = TextFile(made, folder, pace=0.01)
    folder.rename(tmp_path / "other")
    wait_for(lambda: "gpuwatch.prom cannot be written" in made.trouble)
    folder.mkdir()
    wait_for(lambda: not made.trouble)
    written.close(PATIENCE)


def test_the_file_is_never_empty_and_has_the_first_figures_at_once(tmp_path: Path) -> None:
    made = Exporter()
    written = TextFile(made, tmp_path, pace=1000.0)
    file = tmp_path / "gpuwatch.prom"
    assert file.read_text().startswith("# gpuwatch has no data yet")
    made.take(Frame(SHOWN, time.monotonic(), History().view))
    wait_for(lambda: "gpuwatch_driver_up 1.0" in file.read_text())
    written.close(PATIENCE)


@pytest.mark.skipif(os.geteuid() != 0, reason="the folder is checked for root alone")
def test_root_writes_no_metrics_where_others_can_write(tmp_path: Path) -> None:
    folder = tmp_path / "textfiles"
    folder.mkdir()
    folder.chmod(0o777)
    args = argparse.Namespace(textfile=str(folder))
    with ExitStack() as stack, pytest.raises(UsageError, match=rf"--textfile: others can write {folder} \(mode 0777\)"):
        start_export(args, Config(), stack)
    folder.chmod(0o755)
    with ExitStack() as stack:
        assert start_export(args, Config(), stack)[1] == f"metrics go to {folder}"
