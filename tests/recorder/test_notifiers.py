"""Delivery of messages by a command of the user's own, and by apprise, against a server of our own on 127.0.0.1."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import pytest

from gpuwatch import cli
from gpuwatch.base.extras import install_hint
from gpuwatch.base.procfs import PROC
from gpuwatch.config.types import Notify
from gpuwatch.recorder.apprise_child import NO_ADDRESS, NOT_INSTALLED, UNKNOWN, carry_out
from gpuwatch.recorder.messages import (
    APPRISE,
    Message,
    Messenger,
    Send,
    apprise_sender,
    check_urls,
    cleared,
    command_sender,
    digest,
    find_unreachable,
    make_routes,
    raised,
)
from tests.recorder.telling import alert, ended, frame
from tests.support.waiting import wait_for


def script(folder: Path, body: str, name: str = "tell", interpreter: str = "#!/bin/sh") -> Path:
    """Write a program, and return its path."""
    path = folder / name
    path.write_text(f"{interpreter}\n{body}\n")
    path.chmod(0o755)
    return path


def is_running(pid: int) -> bool:
    """Whether a process lives; one that nobody has reaped does not."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def deliver(send: Send, message: Message | None = None) -> str:
    return send(message or raised(alert()), lambda: False)


def run_body(tmp_path: Path, body: str, message: Message | None = None, **options: Any) -> str:
    return deliver(command_sender([str(script(tmp_path, body))], **options), message)


# ---------------------------------------------------------------------------------------------------------------
# A command


def received(tmp_path: Path, message: Message) -> dict[str, Any]:
    """Return what a command gets of a message."""
    assert run_body(tmp_path, f"cat > {tmp_path}/received", message) == ""
    found: dict[str, Any] = json.loads((tmp_path / "received").read_bytes())
    return found


def test_a_command_gets_the_alert_the_words_and_its_arguments_as_they_are(tmp_path: Path, own_home: Path) -> None:
    found = received(tmp_path, raised(alert()))
    assert found["message"].splitlines()[0] == "▲ box3: GPU 3 full in about 4 min"
    expected = {"event": "raised", "rule": "time to full", "host": "box3", "index": 3, "severity": 2, "pids": [100]}
    assert found.items() >= ({**expected, "owners": ["ada"]}).items()
    found = received(tmp_path, cleared(ended(alert(), 60), "GPU 3 full"))
    assert (found["event"], found["lasted"], found["how"]) == ("cleared", 60, "back within the limit")
    # More than a pipe holds.
    found = received(tmp_path, digest([raised(alert(str(number), evidence="e" * 2000)) for number in range(100)]))
    assert (found["event"], found["host"], found["severity"]) == ("digest", "box3", 2)
    assert [one["subject"] for one in found["alerts"]] == [str(number) for number in range(100)]
    script(own_home, f'printf "%s\\n" "$@" > {tmp_path}/arguments')
    assert deliver(command_sender(["~/tell", "--loud", "$(touch x); `id`", ""])) == ""
    assert (tmp_path / "arguments").read_text() == "--loud\n$(touch x); `id`\n\n"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("exec <&-; exit 0", ""),
        ("echo first >&2; echo 'no route to host' >&2; echo >&2; exit 1", "ended with exit code 1: no route to host"),
        ("printf 'a\\033]0;x\\007b' >&2; exit 1", "ended with exit code 1: a\ufffd]0;x\ufffdb"),
        ("echo 'to https://ada:geheim@example.org' >&2; exit 1", "ended with exit code 1: to https://***@example.org"),
        ("head -c 3000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo end >&2; exit 2", "ended with exit code 2: end"),
    ],
)
def test_what_a_command_says_when_it_fails(tmp_path: Path, body: str, why: str) -> None:
    assert run_body(tmp_path, body, digest([raised(alert(evidence="e" * 2000))] * 100)) == why


def test_a_command_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    program = script(tmp_path, f"touch {tmp_path}/ran")
    send = command_sender([str(program)])
    program.chmod(0o777)  # by now others can write it
    assert deliver(send).startswith(f"is not run: others can write {program} (mode 0777)")
    program.chmod(0o644)
    assert deliver(send) == "cannot be run: Permission denied"
    assert deliver(command_sender([str(tmp_path)])) == f"is not run: {tmp_path} is not a regular file"
    assert deliver(command_sender([str(tmp_path / "no")])) == "cannot be run: No such file or directory"
    assert not (tmp_path / "ran").exists()


def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    body = f"sleep 1000 & echo $! $$ > {tmp_path}/pids; trap '' TERM; wait"
    assert run_body(tmp_path, body, limit=0.5) == "did not end within 0.5 s"
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_a_command_that_is_done_is_not_waited_for_because_of_what_it_left(tmp_path: Path) -> None:
    # Its child holds the pipe open; with a limit of 1000 s this test would not end.
    body = f"sleep 1000 & echo $! > {tmp_path}/pid; echo oh >&2; exit 4"
    assert run_body(tmp_path, body, limit=1000) == "ended with exit code 4: oh"
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_stopping_ends_a_command_at_once(tmp_path: Path) -> None:
    send = command_sender([str(script(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000"))], limit=1000)

    def has_started() -> bool:
        return (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text())

    assert send(raised(alert()), has_started) == "was stopped"
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_command_sees_neither_our_terminal_nor_our_files(tmp_path: Path) -> None:
    body = f"ls -l /proc/$$/fd > {tmp_path}/seen; [ $(ps -o sid= -p $$) = $$ ]"
    with (tmp_path / "ours").open("w"):
        assert run_body(tmp_path, body) == ""
    assert "ours" not in (tmp_path / "seen").read_text()


# ---------------------------------------------------------------------------------------------------------------
# apprise


class Post(BaseHTTPRequestHandler):
    """Takes JSON, and answers as the path says: `/401` refuses, `/hang` says nothing."""

    posts: ClassVar[list[dict[str, Any]]]
    over: ClassVar[threading.Event]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/hang"):
            self.over.wait(60)
            return
        self.posts.append(json.loads(body))
        self.send_response(401 if self.path.startswith("/401") else 200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


Web: TypeAlias = tuple[int, list[dict[str, Any]]]


@pytest.fixture
def web() -> Iterator[Web]:
    """Return the port of a web server, and what is posted to it."""
    handler = type("Handler", (Post,), {"posts": [], "over": threading.Event()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_address[1], handler.posts  # type: ignore[attr-defined]
        handler.over.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join(30)


def test_apprise_sends_the_words_and_says_no_more_than_what_went_wrong(web: Web) -> None:
    port, posts = web
    url = f"json://ada:geheim@127.0.0.1:{port}/"
    send = apprise_sender(url)
    assert "geheim" not in repr(make_routes(Notify(urls=(url,)))) + repr(send)
    assert deliver(send, raised(alert(evidence="a <b>bold</b> *claim* \\n & more"))) == ""
    assert deliver(send, cleared(ended(alert(), 60), "GPU 3 full")) == ""
    (post, over) = posts
    assert (post["title"], post["type"], over["type"]) == ("▲ box3: GPU 3 full in about 4 min", "warning", "success")
    assert post["message"].splitlines()[0] == "a <b>bold</b> *claim* \\n & more"


def test_a_test_message_says_what_came_of_it(web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port, posts = web
    file = tmp_path / "gpuwatch.toml"
    file.write_text(f'[notify]\nurls = ["json://127.0.0.1:{port}/", "json://ada:geheim@127.0.0.1:{port}/401"]\n')
    file.chmod(0o600)
    assert cli.main(["notify", "--test", "--config", str(file)], None) == 1
    said = capsys.readouterr()
    assert said.out == "json accepted the message\n"
    assert said.err == "gpuwatch: json 2 refuses (HTTP 401)\n"
    assert posts[0]["title"].endswith(": test message")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_child_says_no_more_than_what_went_wrong(web: Web) -> None:
    """It runs in this process here."""
    port, posts = web
    secret = "json://ada:geheim@127.0.0.1"
    for url, reason in (
        (f"{secret}:{port}/", ""),
        (f"{secret}:{port}/401", "refuses (HTTP 401)"),
        (f"{secret}:{port}/hang?rto=0.2", "does not answer (timeout)"),
        (f"{secret}:1/", "cannot be reached (connection refused)"),
        ("nosuch://ada:geheim", UNKNOWN),
    ):
        assert carry_out({"urls": [url], "title": "GPU 3 full", "body": "", "kind": "warning"}) == [reason]
    assert [post["message"] for post in posts] == ["GPU 3 full"] * 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo slack://a/b/c", "could not be checked: the sending process ended with exit code 0"),
        ("exec sleep 1000", "does not answer (timeout)"),
    ],
)
def test_what_is_said_of_a_child_that_does_not_answer(tmp_path: Path, body: str, why: str) -> None:
    command = [str(script(tmp_path, body))]
    assert deliver(apprise_sender("slack://a/b/c", command=command, limit=0.5)) == why
    assert deliver(apprise_sender("slack://a/b/c", command=["/nowhere"])).startswith("cannot be checked: No such file")


def test_a_url_is_on_no_command_line_and_in_no_environment(tmp_path: Path) -> None:
    spy = script(tmp_path, f"cat /proc/$$/cmdline /proc/$$/environ > {tmp_path}/seen; cat > {tmp_path}/stdin")
    deliver(apprise_sender("slack://geheim/b/c", command=[str(spy)]))
    assert b"geheim" not in (tmp_path / "seen").read_bytes()
    assert b"geheim" in (tmp_path / "stdin").read_bytes()


def test_urls_are_checked_without_a_network_and_their_routes_numbered(tmp_path: Path) -> None:
    urls = ["json://127.0.0.1:1/", "nosuch://a", "slack://tooshort", "words", "mailto://ada:geheim@example.org"]
    assert check_urls(urls) == ["", UNKNOWN, UNKNOWN, NO_ADDRESS, ""]
    policy = Notify(command=("/bin/tell", "x"), urls=("slack://a/b", "json://c", "SLACK://d/e"))
    assert [one.name for one in make_routes(policy)] == ["command tell", "slack", "json", "slack 2"]
    # A module in its place that cannot be imported, as where it is not installed.
    (tmp_path / "apprise.py").write_text("raise ImportError")
    bare = [str(script(tmp_path, f"PYTHONPATH={tmp_path} exec {' '.join(APPRISE)}"))]
    assert check_urls(["slack://a/b/c"], bare) == [f"{NOT_INSTALLED}: {install_hint('notify')}"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_hosts_are_checked_without_a_message_and_without_a_secret(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child runs in this process here."""
    port, posts = web
    monkeypatch.setenv("RES_OPTIONS", "")  # which it sets
    refused = "127.0.0.1:1 cannot be reached (connection refused)"
    cases = {
        f"json://ada:geheim@127.0.0.1:{port}/geheim": "",
        "json://ada:geheim@127.0.0.1:1/geheim": refused,
        "mailto://ada:geheim@example.org:1?smtp=127.0.0.1": refused,
        "ntfy://geheim@127.0.0.1:1/geheim": refused,
        "ntfy://geheim": "",  # of a service that has an address of its own
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/": "",
        "nosuch://ada:geheim": UNKNOWN,
    }
    assert carry_out({"urls": [*cases], "reach": "yes"}) == [*cases.values()]
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:2")
    urls = ["json://127.0.0.1:1/", "mailto://ada:geheim@example.org:1?smtp=127.0.0.1"]
    assert carry_out({"urls": urls, "reach": "yes"}) == ["", refused], "mail takes no proxy"
    assert posts == []


def test_what_cannot_work_is_a_trouble_at_the_start_until_it_can(tmp_path: Path) -> None:
    program, now = tmp_path / "tell", 0.0
    leads, asked = threading.Event(), threading.Event()

    def is_leader() -> bool:
        asked.set()
        return leads.is_set()

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{server.getsockname()[1]}"
        policy = Notify(command=(str(program),), urls=(f"json://ada:geheim@{where}/geheim",))
        messenger = Messenger(policy, is_leader, clock=lambda: now)
        for _ in range(2):  # the first frame was handled when it asks again
            messenger.take(frame())
            assert asked.wait(30)
            asked.clear()
        assert messenger.trouble == "", "who does not send checks nothing"
        leads.set()
        messenger.take(frame())
        wait_for(lambda: messenger.trouble)
        refused = f"json in notify.urls: {where} cannot be reached (connection refused)"
        assert messenger.trouble == f"messages: command tell in notify.command: there is no file {program}; {refused}"
        server.listen()
        script(tmp_path, f"touch {tmp_path}/ran").chmod(0o644)
        assert find_unreachable(policy, lambda: False) == [f"in notify.command: {program} cannot be executed", ""]
        program.chmod(0o755)
        now = 30.0
        messenger.take(frame())
        wait_for(lambda: not messenger.trouble)
        messenger.close(30)
    assert not (tmp_path / "ran").exists()
