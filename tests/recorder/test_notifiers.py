"""The ways out: a command of the user's own, and apprise, against servers of our own on 127.0.0.1."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiosmtpd.smtp import SMTP, Envelope, Session

from gpuwatch import text
from gpuwatch.alerts.alert import Severity
from gpuwatch.procfs import PROC
from gpuwatch.recorder.delivery import (
    NOT_INSTALLED,
    AppriseNotifier,
    CommandNotifier,
    Kind,
    Message,
    Repeats,
    check_urls,
    cleared,
    digest,
    make_notifiers,
    raised,
)
from tests.support.telling import alert, ended
from tests.support.waiting import wait_for


def message(title: str = "GPU 3 full in about 4 min", **changes: Any) -> Message:
    return raised(alert(title=title, **changes), Kind.RAISED, Repeats())


def script(folder: Path, body: str, name: str = "tell", interpreter: str = "#!/bin/sh") -> Path:
    """Write a program, and give where it is."""
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


# ---------------------------------------------------------------------------------------------------------------
# A command


def told(tmp_path: Path, one: Message) -> dict[str, Any]:
    """Return what a command is told of a message."""
    command = CommandNotifier([str(script(tmp_path, f"cat > {tmp_path}/told"))])
    assert command.send(one) == ""
    found: dict[str, Any] = json.loads((tmp_path / "told").read_bytes())
    return found


def test_a_command_is_told_the_alert_and_the_words(tmp_path: Path) -> None:
    found = told(tmp_path, message())
    assert found["event"] == "raised"
    assert found["message"].splitlines()[0] == "▲ box3: GPU 3 full in about 4 min"
    assert (found["rule"], found["host"], found["index"], found["severity"]) == ("time to full", "box3", 3, 2)
    assert (found["title"], found["owners"], found["pids"]) == ("GPU 3 full in about 4 min", ["ada"], [100])
    found = told(tmp_path, cleared(ended(alert(), 60), "GPU 3 full", Repeats()))
    assert (found["event"], found["lasted"], found["how"]) == ("cleared", 60, "back within the limit")


def test_a_command_is_told_all_alerts_of_a_digest(tmp_path: Path) -> None:
    # More than a pipe holds.
    many = digest([message(subject=str(number), evidence="e" * 2000) for number in range(100)])
    found = told(tmp_path, many)
    assert (found["event"], found["host"], found["severity"]) == ("digest", "box3", Severity.WARNING)
    assert [one["subject"] for one in found["alerts"]] == [str(number) for number in range(100)]


def test_a_command_gets_its_arguments_as_they_are_and_no_shell_reads_them(tmp_path: Path) -> None:
    program = script(tmp_path, f'printf "%s\\n" "$@" > {tmp_path}/arguments')
    assert CommandNotifier([str(program), "--loud", "$(touch x); `id`", ""]).send(message()) == ""
    assert (tmp_path / "arguments").read_text() == "--loud\n$(touch x); `id`\n\n"


def test_home_is_found(tmp_path: Path, own_home: Path) -> None:
    script(own_home, f"touch {tmp_path}/ran")
    assert CommandNotifier(["~/tell"]).send(message()) == ""
    assert (tmp_path / "ran").exists()


def test_a_command_that_does_not_listen_is_fine(tmp_path: Path) -> None:
    long = message(evidence="e" * 2000)
    many = digest([long] * 100)
    assert CommandNotifier([str(script(tmp_path, "exec <&-; exit 0"))]).send(many) == ""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("exit 3", "ended with exit code 3"),
        ("echo first >&2; echo 'no route to host' >&2; echo >&2; exit 1", "ended with exit code 1: no route to host"),
        ("kill -TERM $$", "was ended by SIGTERM"),
        ("printf 'a\\033]0;x\\007b' >&2; exit 1", "ended with exit code 1: a\ufffd]0;x\ufffdb"),
    ],
)
def test_a_command_that_fails_says_how(tmp_path: Path, body: str, why: str) -> None:
    assert CommandNotifier([str(script(tmp_path, body))]).send(message()) == why


def test_a_secret_in_what_a_command_says_is_masked(tmp_path: Path) -> None:
    program = script(tmp_path, "echo 'cannot post to https://ada:geheim@example.org with --token abcdef' >&2; exit 1")
    why = CommandNotifier([str(program)]).send(message())
    assert "geheim" not in why
    assert "abcdef" not in why
    assert why.startswith("ended with exit code 1: cannot post to")


def test_a_command_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    assert CommandNotifier([str(tmp_path / "missing")]).send(message()) == "is not found"
    lost = script(tmp_path, "", "lost", "#!/no/such/interpreter")
    assert CommandNotifier([str(lost)]).send(message()) == "cannot be run: its interpreter is not found"
    plain = tmp_path / "plain"
    plain.write_text("echo")
    plain.chmod(0o644)
    assert CommandNotifier([str(plain)]).send(message()) == "is not executable"
    plain.chmod(0o755)
    assert CommandNotifier([str(plain)]).send(message()).startswith("is no program")
    assert CommandNotifier([str(tmp_path)]).send(message()) == f"is not run: {tmp_path} is no ordinary file"


def test_a_command_that_others_can_write_by_now_is_not_run(tmp_path: Path) -> None:
    program = script(tmp_path, f"touch {tmp_path}/ran")
    command = CommandNotifier([str(program)])
    program.chmod(0o777)
    assert command.send(message()).startswith(f"is not run: others can write {program} (mode 0777)")
    assert not (tmp_path / "ran").exists()
    program.chmod(0o755)
    assert command.send(message()) == ""
    assert (tmp_path / "ran").exists()


def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    program = script(tmp_path, f"sleep 1000 & echo $! $$ > {tmp_path}/pids; trap '' TERM; wait")
    assert CommandNotifier([str(program)], limit=0.5).send(message()) == "did not end within 0.5 s"
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_a_command_that_is_done_is_not_waited_for_because_of_what_it_left(tmp_path: Path) -> None:
    program = script(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/pid; echo oh >&2; exit 4")
    # Its child holds the pipe open; with a limit of 1000 s this test would not end.
    assert CommandNotifier([str(program)], limit=1000).send(message()) == "ended with exit code 4: oh"
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_a_command_that_floods_is_read_to_its_end(tmp_path: Path) -> None:
    program = script(tmp_path, "head -c 30000000 /dev/zero | tr '\\0' 'x' >&2; echo >&2; echo the end >&2; exit 2")
    assert CommandNotifier([str(program)]).send(message()) == "ended with exit code 2: the end"


def test_closing_ends_a_command_at_once(tmp_path: Path) -> None:
    command = CommandNotifier([str(script(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000"))], limit=1000)
    why: list[str] = []
    sender = threading.Thread(target=lambda: why.append(command.send(message())))
    sender.start()
    wait_for(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
    command.close()
    sender.join(30)
    assert why == ["was stopped"]
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_command_sees_neither_our_terminal_nor_our_files(tmp_path: Path) -> None:
    body = f"""
import os
with open({str(tmp_path / "seen")!r}, "w") as seen:
    print(os.getsid(0) == os.getpid(), os.listdir("/proc/self/fd"), file=seen)
"""
    program = script(tmp_path, body, interpreter=f"#!{sys.executable}")
    with (tmp_path / "ours").open("w"):
        assert CommandNotifier([str(program)]).send(message()) == ""
    own_session, _, open_files = (tmp_path / "seen").read_text().partition(" ")
    assert own_session == "True"
    # 0 to 2, the file that it writes, and the listing itself.
    assert open_files.count(",") <= 4


def test_secrets_of_a_command_line_stay_masked(tmp_path: Path) -> None:
    line = text.format_command_line(
        ["python", "train.py", "--token", "hf_geheimgeheimgeheim", "--wandb-api-key=abc123"]
    )
    one = message(title=f"ada's {line} holds 50.0 GiB", evidence=line)
    raw = json.dumps(told(tmp_path, one))
    assert "train.py" in raw
    assert "geheim" not in raw
    assert "abc123" not in raw


# ---------------------------------------------------------------------------------------------------------------
# AppriseNotifier


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


@dataclass
class Web:
    """A web server of this test's."""

    port: int
    posts: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def web() -> Iterator[Web]:
    handler = type("Handler", (Post,), {"posts": [], "over": threading.Event()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield Web(server.server_address[1], handler.posts)  # type: ignore[attr-defined]
        handler.over.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join(30)


@dataclass
class Office:
    """A mail server of this test's."""

    port: int
    mails: list[bytes] = field(default_factory=list)

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        self.mails.append(envelope.content)
        return "250 OK"


@pytest.fixture
def mail() -> Iterator[Office]:
    office = Office(0)
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(lambda: SMTP(office, loop=loop), "127.0.0.1", 0))
    office.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield office

    async def end() -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


def test_apprise_posts_to_a_web_server(web: Web) -> None:
    outlet = AppriseNotifier(f"json://ada:geheim@127.0.0.1:{web.port}/")
    assert outlet.name == "json"
    assert outlet.send(message(evidence="a <b>bold</b> *claim* \\n & more")) == ""
    (post,) = web.posts
    assert post["title"] == "▲ box3: GPU 3 full in about 4 min"
    assert post["message"].splitlines()[0] == "a <b>bold</b> *claim* \\n & more"
    assert post["type"] == "warning"
    assert outlet.send(cleared(ended(alert(), 60), "GPU 3 full", Repeats())) == ""
    assert web.posts[1]["type"] == "success"
    assert "geheim" not in repr(outlet)


def test_apprise_sends_a_mail(mail: Office) -> None:
    url = f"mailto://127.0.0.1:{mail.port}?from=gpuwatch@example.org&to=ada@example.org&mode=insecure"
    assert AppriseNotifier(url).send(message()) == ""
    (sent,) = mail.mails
    read = message_from_bytes(sent, policy=policy.default)
    assert (read["Subject"], read["To"]) == ("▲ box3: GPU 3 full in about 4 min", "ada@example.org")
    assert "ada grew 9.0 GiB/min" in read.get_content()


def test_apprise_says_what_went_wrong_and_no_more(web: Web, tmp_path: Path) -> None:
    secret = "ada:geheim"
    assert AppriseNotifier(f"json://{secret}@127.0.0.1:{web.port}/401").send(message()) == "refuses (HTTP 401)"
    assert (
        AppriseNotifier(f"json://{secret}@127.0.0.1:{web.port}/hang?rto=0.2").send(message())
        == "does not answer (timeout)"
    )
    assert AppriseNotifier(f"json://{secret}@127.0.0.1:1/").send(message()) == "cannot be reached (connection refused)"


def test_a_child_that_hangs_is_killed(tmp_path: Path) -> None:
    hanging = script(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    outlet = AppriseNotifier("slack://a/b/c", command=[str(hanging)], limit=0.5)
    assert outlet.send(message()) == "does not answer (timeout)"
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("exit 1", "could not be asked: the child that sends ended with 1"),
        ("echo slack://a/b/c", "could not be asked: the child that sends ended with 0"),
        ("""echo '{"installed": false}'""", NOT_INSTALLED),
        ("""echo '{"installed": true, "results": []}'""", "did not take the message"),
        ("""echo '{"installed": true, "results": [{"ok": false, "why": "slack://a"}]}'""", "did not take the message"),
    ],
)
def test_only_known_words_of_a_child_are_believed(tmp_path: Path, body: str, why: str) -> None:
    assert AppriseNotifier("slack://a/b/c", command=[str(script(tmp_path, body))]).send(message()) == why


def test_without_apprise_it_says_how_to_get_it(tmp_path: Path) -> None:
    # A module in its place that cannot be imported, as where it is not installed.
    (tmp_path / "apprise.py").write_text("raise ImportError")
    send = Path(sys.modules["gpuwatch.recorder.delivery"].__file__ or "").with_name("apprise_child.py")
    bare = script(tmp_path, f'PYTHONPATH={tmp_path} exec {sys.executable} -P "{send}"')
    assert AppriseNotifier("slack://a/b/c", command=[str(bare)]).send(message()) == NOT_INSTALLED
    assert check_urls(["slack://a/b/c"], [str(bare)]) == (NOT_INSTALLED,)


def test_a_url_is_on_no_command_line_and_in_no_environment(tmp_path: Path) -> None:
    spy = script(tmp_path, f"cat /proc/$$/cmdline /proc/$$/environ > {tmp_path}/seen; cat > {tmp_path}/stdin")
    AppriseNotifier("slack://geheim/b/c", command=[str(spy)]).send(message())
    assert b"geheim" not in (tmp_path / "seen").read_bytes()
    assert b"geheim" in (tmp_path / "stdin").read_bytes()


def test_urls_are_checked_without_a_network() -> None:
    urls = ["json://127.0.0.1:1/", "nosuch://a", "slack://tooshort", "words", "mailto://ada:geheim@example.org"]
    assert check_urls(urls) == (
        "",
        "has an address that apprise does not understand",
        "has an address that apprise does not understand",
        "is no address: one begins like mailto://",
        "",
    )
    assert check_urls([]) == ()


def test_notifiers_of_one_kind_are_numbered() -> None:
    assert [one.name for one in make_notifiers((), ["slack://a/b", "json://c", "SLACK://d/e", "odd"])] == [
        "slack",
        "json",
        "slack 2",
        "apprise",
    ]
    assert [one.name for one in make_notifiers(["/bin/tell", "x"], ["json://c"])] == ["command tell", "json"]
    assert make_notifiers([], []) == []


def test_the_child_imports_nothing_of_ours() -> None:
    source = Path(sys.modules["gpuwatch.recorder.delivery"].__file__ or "").with_name("apprise_child.py")
    assert "from gpuwatch" not in source.read_text()
    assert not source.stat().st_mode & stat.S_IXUSR
