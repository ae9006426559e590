"""Hosts by ssh: commands, what another host may send, and connections that fail; the ssh is one of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuwatch.alerts.alert import Severity
from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import clean
from gpuwatch.config.types import RemoteHost
from gpuwatch.fleet.host import HOST, Host, HostGpu
from gpuwatch.fleet.remote import RemoteSource, read_line
from gpuwatch.fleet.ssh import (
    INSTALL,
    Hosts,
    RemoteLineError,
    SshConnection,
    Timing,
    explain_exit,
    find_hosts,
    kill_command,
    make_host,
    read_status_line,
    ssh_command,
)
from gpuwatch.model.live import SCHEMA, StatusGpu
from gpuwatch.model.snapshot import Reason, Snapshot, SourceState, encode
from gpuwatch.ui.draw.notice import state_words
from tests.support.builders import GIB
from tests.support.fleet import GOOD, QUICK, SHOWN, WHOLE, line, put_ssh, repeat, status
from tests.support.sampler import until
from tests.support.waiting import Clock, wait_for

LAB = RemoteHost(name="lab", address="ada@lab2:2222", command="~/venv/bin/gpuwatch")


# ---------------------------------------------------------------------------------------------------------------
# Commands


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("lab1", ["--", "lab1"]),
        ("ada@lab2:2222", ["-p", "2222", "--", "ada@lab2"]),
        ("ada@[2001:db8::1]:22", ["-p", "22", "--", "ada@2001:db8::1"]),
        ("[::1]", ["--", "::1"]),
        ("10.0.0.3", ["--", "10.0.0.3"]),
    ],
)
def test_the_command_of_an_address(address: str, target: list[str]) -> None:
    command = ssh_command(RemoteHost(name="lab", address=address), "--stream")
    assert command[:2] == ["ssh", "-T"]
    assert "BatchMode=yes" in command
    assert command[-len(target) - 2 :] == [*target, "gpuwatch", "--stream"]


ASKED_FOR = """Host *
ForwardAgent yes
ForwardX11 yes
GSSAPIDelegateCredentials yes
BatchMode no
Compression no
ConnectTimeout 999
ControlMaster auto
LocalForward 9999 localhost:1
RemoteForward 9998 localhost:1
RemoteCommand top
LogLevel DEBUG
ServerAliveInterval 99
ServerAliveCountMax 99
"""
"""What a user's configuration may ask for."""
IN_EFFECT = {
    "forwardagent": "no",
    "forwardx11": "no",
    "gssapidelegatecredentials": "no",
    "batchmode": "yes",
    "compression": "yes",
    "connecttimeout": "10",
    "controlmaster": "false",
    "clearallforwardings": "yes",
    "localforward": None,
    "remoteforward": None,
    "remotecommand": None,
    "loglevel": "ERROR",
    "serveraliveinterval": "5",
    "serveralivecountmax": "2",
}


@pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh itself says what its options mean")
def test_what_ssh_is_called_with_overrules_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(ASKED_FOR)
    command = ssh_command(LAB, "--stream")
    command[1:1] = ["-G", "-F", str(tmp_path / "config")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(one.split(" ", 1) for one in printed.splitlines() if " " in one)
    # An ssh that knows no Kerberos has no such line.
    assert {key: found.get(key, "no" if key.startswith("gss") else None) for key in IN_EFFECT} == IN_EFFECT


def test_a_process_is_ended_over_there_by_its_pid_and_start() -> None:
    command = kill_command(LAB, 4711, 99, whole_run=True)
    assert command[1] == "-t"
    assert command[-7:] == ["ada@lab2", "~/venv/bin/gpuwatch", "kill", "4711", "--start", "99", "--run"]


def test_hosts_are_found_by_their_names_or_are_addresses() -> None:
    assert find_hosts(["lab", "lab1"], [LAB]) == (LAB, RemoteHost(name="lab1", address="lab1"))


@pytest.mark.parametrize(
    "text", ["-oProxyCommand=x", "", "a b", "lab:0", "lab:65536", "lab;x", "a@b@c", "lab\n", "[::1"]
)
def test_what_is_no_host_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"--host: .* is not a host; write lab1, "):
        find_hosts([text], [])


def test_a_host_is_named_once() -> None:
    with pytest.raises(UsageError, match="lab1 is given twice"):
        find_hosts(["lab1", "lab1"], [])


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (255, "ada@lab2: Permission denied (publickey).", "`ssh -p 2222 ada@lab2`, which must not ask for a password"),
        (255, "Host key verification failed.", "run `ssh -p 2222 ada@lab2`, and check its key"),
        (255, "", "ssh ended without a message"),
        (127, "not found", f"~/venv/bin/gpuwatch was not found; install it there, in a clone of gpuwatch: {INSTALL}"),
        (2, "gpuwatch: argument --stream: ignored explicit argument 'live'", "too old; upgrade it there"),
        (2, "gpuwatch: unknown flag --keepalive=8", "its gpuwatch is too old"),
        (2, "gpuwatch: gpuwatch.toml: key alerts.off: found 1", "gpuwatch.toml: key alerts.off: found 1"),
        (3, "gpuwatch: no NVIDIA driver; try", "no NVIDIA driver; try"),
        (0, "", "gpuwatch has ended there"),
        (-9, "", "gpuwatch has ended there (signal 9)"),
    ],
)  # fmt: skip
def test_an_exit_is_explained(code: int, said: str, words: str) -> None:
    assert words in explain_exit(LAB, code, said)


# ---------------------------------------------------------------------------------------------------------------
# What another host sends


def test_a_line_of_status_becomes_a_row() -> None:
    found = read_status_line(line(alerts={"warning": 2, "note": 1}, worst="GPU 0 hot", severity="warning").encode())
    row = make_host("lab", found, 2.0)
    assert (row.name, row.alerts, row.worst, row.severity) == ("lab", 2, "GPU 0 hot", Severity.WARNING)
    assert (row.age, row.people, row.trouble) == (2.5, 1, "")
    assert [(gpu.used, gpu.processes, gpu.is_free) for gpu in row.gpus] == [(30 * GIB, 1, False), (0, 0, True)]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b'{"schema": 1, "version": "0.0.9"}', "gpuwatch 0.0.9 have schema 1, and this one reads 2; upgrade it there"),
        (b'{"schema": 99, "version": "9\\u001b[2J"}', "upgrade it here, where it is "),
        (b"{}", "upgrade it there"),
        (b'{"schema": 2, "gpus": "many"}', "it sent no status"),
        (b"{" * 100_000, "it sent no status"),
        (b'{"schema": 2, "x": ' + b"[" * 100_000, "it sent no status"),
        (b"\xff\xfe\x00", "it sent no status"),
        (msgspec.json.encode(status(gpus=tuple(StatusGpu(index=n) for n in range(300)))), "more than 256 GPUs"),
    ],
)  # fmt: skip
def test_a_line_that_is_not_used_says_why(sent: bytes, words: str) -> None:
    with pytest.raises(RemoteLineError) as raised:
        read_status_line(sent)
    assert words in str(raised.value)
    assert clean(str(raised.value)) == str(raised.value)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b'{"schema": 99}', "upgrade it here"),
        (b'{"schema": 1}', "upgrade it there"),
        (b"Welcome", "it sent no JSON"),
        (b'{"schema": 2, "gpus": 7}', "no snapshot that can be used"),
        (b'{"schema": 2, "interval": -1}', "no snapshot that can be used"),
        (encode(SHOWN).replace(b'"taken":1700000000.0', b'"taken":9e99'), "a number is out of range"),
    ],
)
def test_a_snapshot_that_is_not_used_says_why(sent: bytes, words: str) -> None:
    with pytest.raises(RemoteLineError, match=words):
        read_line(sent)


def test_texts_of_a_snapshot_are_cleaned() -> None:
    hostile = encode(SHOWN).replace(b"python train.py", b"\\u001b[31mpython \\u202e")
    (process,) = read_line(hostile).processes
    assert clean(process.command) == process.command
    assert "\x1b" not in process.command


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_status_or_a_trouble(sent: bytes) -> None:
    words = ""
    try:
        read_status_line(sent)
    except RemoteLineError as error:
        words = str(error)
    assert clean(words) == words


_NUMBERS = st.integers() | st.floats(allow_nan=False) | st.sampled_from([10**400, -1, 2**63, 1e308])


@given(_NUMBERS, _NUMBERS, st.text(max_size=300), st.sampled_from(["critical", "warning", "note", "", "\x1b"]))
def test_any_numbers_and_texts_make_a_row_that_can_be_drawn(number: Any, other: Any, words: str, severity: str) -> None:
    count = number if isinstance(number, int) else 7
    card = StatusGpu(index=count, used=number, total=other, left=other, utilization=number, processes=count)
    sent = status(
        gpus=(card,), alerts={"critical": count}, worst=words, severity=severity, words=words, people=count,
        monotonic=float(other) if abs(other) < 1e300 else 0.0, sampled=1.0, state=SourceState.SILENT,
    )  # fmt: skip
    row = make_host("lab", sent, 1.0)
    cells = [field.cell(one) for one in (row, replace(row, trouble="")) for field in HOST.values()]
    assert all(clean(cell, 10_000) == cell for cell in cells)
    assert all(len(cell) < 210 for cell in cells)


# ---------------------------------------------------------------------------------------------------------------
# Connections


@contextmanager
def watching(hosts: list[RemoteHost]) -> Iterator[Callable[[], dict[str, Host]]]:
    """Watch hosts, and yield what reads their rows by name; no ssh is left afterwards."""
    thread = Hosts(hosts, timing=QUICK, pause=0.02)
    thread.begin()
    try:
        yield lambda: {row.name: row for row in thread.rows()}
    finally:
        thread.close()
        thread.join()
        wait_for(lambda: not running(), "a process of an ssh is left")


def running() -> list[str]:
    """Return the names of what runs of the ssh of the tests, and of what it has started, in whose groups it is."""
    mine = os.getpid()
    found = []
    for one in psutil.process_iter():
        try:
            is_child = one.ppid() == mine or os.getpgid(one.pid) != one.pid
            name = one.name()
            if is_child and name in ("ssh", "yes", "sleep") and one.environ().get("FAKE_SSH") == str(mine):
                found.append(name)
        except (psutil.Error, ProcessLookupError):  # it has ended, or is a zombie
            continue
    return found


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[RemoteHost]]:
    """Return what puts an ssh on the PATH with a script for each host."""
    monkeypatch.setenv("FAKE_SSH", str(os.getpid()))
    return lambda **scripts: put_ssh(tmp_path, monkeypatch, scripts)


TROUBLES = {
    "flood": ("yes '{}'", "a flood of lines"),
    "long": ("head -c 400000 /dev/zero; sleep 1000", "a line of more than 256 KiB"),
    "garbage": (f"printf '%s\\n' '{line()}'; sleep 0.3; echo Oops; sleep 1000", "it sent no status: Oops"),
    "greeting": (
        "echo 'This account is not available'; sleep 1000",
        "no data from gpuwatch in 2 s; it said: This account",
    ),
    "silent": (f"printf '%s\\n' '{line()}'; sleep 1000", "no data for 1 s"),
    "hangs": ("sleep 1000", "no data from gpuwatch in 2 s"),
    "other": ("echo '{\"schema\": 99}'; sleep 1000", "upgrade it here"),
    "closed": ("exec >&- 2>&-; sleep 1000", "gpuwatch has ended there"),
    "noisy": ("yes no entry >&2 & sleep 0.3; exit 255", "no entry"),
    "gone": ("echo 'ssh: connect to host gone port 22: No route to host' >&2; exit 255", "No route to host"),
    "none": ("exit 127", "gpuwatch was not found; install it"),
}


def test_each_trouble_is_said_in_its_row_and_holds_no_other_up(put: Callable[..., list[RemoteHost]]) -> None:
    hosts = put(**{name: script for name, (script, _) in TROUBLES.items()}, good=GOOD)
    with watching(hosts) as rows:
        said: dict[str, set[str]] = {name: set() for name in TROUBLES}

        def all_said() -> bool:
            now = rows()
            assert not now["good"].trouble
            for name in said:
                said[name].add(now[name].trouble)
            missing = [name for name, (_, words) in TROUBLES.items() if not any(words in one for one in said[name])]
            return not missing

        wait_for(all_said)
        wait_for(lambda: rows()["good"].gpus)
        assert rows()["silent"].gpus, "old figures stay"


def test_figures_keep_their_age_while_nothing_comes(put: Callable[..., list[RemoteHost]]) -> None:
    hosts = put(lab=f"printf '%s\\n' '{line()}'; exit 255")
    with watching(hosts) as rows:
        wait_for(lambda: rows()["lab"].gpus)
        first = rows()["lab"].age
        assert first is not None
        assert first >= 0.5, "sampled half a second before it was sent"
        wait_for(lambda: rows()["lab"].trouble)


@pytest.mark.parametrize("script", ["exit 255", f"printf '%s\\n' '{line()}'; exit 255"], ids=["dead", "a line"])
def test_after_each_trouble_it_waits_longer(put: Callable[..., list[RemoteHost]], script: str) -> None:
    """Also where each login brings a line before it dies: else there would be one a second."""
    (lab,) = put(lab=script)
    clock, failed = Clock(), list[float]()

    def jitter() -> float:
        failed.append(clock.now)
        return 1.0

    connection = SshConnection(lab, [], longest=1000, clock=clock, jitter=jitter)

    def fails(times: int) -> bool:
        clock.now += 0.02
        for sent in connection.read_lines():
            connection.accept(read_status_line(sent).monotonic)
        return len(failed) == times

    wait_for(lambda: fails(4))
    waited = [after - before for before, after in pairwise(failed)]
    assert [int(one >= least) for one, least in zip(waited, (1.0, 2.0, 4.0), strict=True)] == [1, 1, 1]
    connection.retry()
    wait_for(lambda: fails(5))
    assert failed[4] - failed[3] < 8.0, "the user has asked for it"
    connection.close()


def test_without_ssh_the_row_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with watching([LAB]) as rows:
        wait_for(lambda: "ssh cannot be started" in rows()["lab"].trouble)


def test_what_ssh_has_started_ends_with_it(put: Callable[..., list[RemoteHost]]) -> None:
    """As a ProxyCommand does, it is in the process group of ssh."""
    with watching(put(lab=f"sleep 1000 & {GOOD}")) as rows:
        wait_for(lambda: rows()["lab"].gpus)
        assert "sleep" in running()


# ---------------------------------------------------------------------------------------------------------------
# The opened host


def test_an_opened_host_is_a_source_with_its_name(put: Callable[..., list[RemoteHost]]) -> None:
    (lab,) = put(lab=WHOLE)
    source = RemoteSource(lab, timing=QUICK)
    found = until(source, lambda one: one.gpus)
    assert (found.host, [one.pid for one in found.processes]) == ("lab", [11])
    source.close()
    assert source.next(0.1) is None


def test_a_lost_host_says_why_and_its_figures_grow_old(put: Callable[..., list[RemoteHost]]) -> None:
    (lab,) = put(lab=f"printf '%s\\n' '{encode(SHOWN).decode()}'; echo gone >&2; exit 255")
    clock = Clock()
    source = RemoteSource(lab, clock=clock)
    seen: list[Snapshot] = []

    def until(state: SourceState) -> Snapshot:
        def came() -> bool:
            clock.now += 0.2
            seen.extend([one] if (one := source.next(0.0)) else [])
            return bool(seen) and seen[-1].state is state

        wait_for(came)
        return seen[-1]

    fresh = until(SourceState.OK)
    lost = until(SourceState.UNREACHABLE)
    assert lost.words == "gone"
    assert lost.gpus == fresh.gpus
    assert lost.monotonic > fresh.monotonic
    assert lost.taken - fresh.taken == pytest.approx(lost.monotonic - fresh.monotonic)
    source.close()


DELAYS = ((0.3, 0.0), (0.3, 0.0), (2.5, 2.2), (0.1, 0.0), (1.1, 1.0), (29.1, 29.0))
"""Delay of each line on its way, and how much older than the fastest so far it is."""


def test_a_line_that_was_long_on_its_way_is_as_old_as_it_is(put: Callable[..., list[RemoteHost]]) -> None:
    (lab,) = put(lab=GOOD)
    clock, theirs = Clock(), -5000.0
    connection = SshConnection(lab, [], longest=10_000, clock=clock)
    wait_for(connection.read_lines)
    for delay, late in DELAYS:
        clock.now += 60.0
        assert connection.accept(clock.now + theirs - delay) == pytest.approx(late, abs=0.1)
    for _ in range(60):  # a slower clock over there is no delay, nor is a time that nobody can send
        clock.now += 3600.0
        theirs -= 0.1
        assert connection.accept(clock.now + theirs) == pytest.approx(0.0, abs=0.1)
    assert 0 <= connection.accept(-1e300) <= clock.now
    connection.accept(1e300)
    assert 0 <= connection.accept(clock.now) <= clock.now
    connection.close()


def test_time_never_goes_back_where_an_opened_host_sends_late(put: Callable[..., list[RemoteHost]]) -> None:
    sent = [replace(SHOWN, sequence=at, taken=5000.0 + at, monotonic=900.0 + at) for at in (0, 1, 2, 40)]
    lines = "; ".join(f"printf '%s\\n' '{encode(one).decode()}'; sleep 0.3" for one in sent)
    (lab,) = put(lab=f"{lines}; sleep 1000")
    clock = Clock()
    source = RemoteSource(lab, clock=clock, timing=Timing(silence=1000.0))
    seen: list[Snapshot] = []

    def came() -> bool:
        clock.now += 0.05
        seen.extend([one] if (one := source.next(0.0)) else [])
        return bool(seen) and seen[-1].sequence == 40

    wait_for(came)
    source.close()
    had = [one for one in seen if one.gpus]
    assert [one.monotonic for one in had] == sorted(one.monotonic for one in had)
    assert {round(one.taken - one.monotonic, 3) for one in had} == {4100.0}


def test_a_host_that_never_answered_has_no_time_since_which_it_sends_nothing(
    put: Callable[..., list[RemoteHost]],
) -> None:
    (lab,) = put(lab="exit 255")
    source = RemoteSource(lab, timing=QUICK)
    seen = until(source, lambda one: one.state is SourceState.UNREACHABLE)
    source.close()
    assert state_words(seen)[0][0] == "the host has sent no data yet"
    assert " since " in state_words(replace(seen, since=5.0))[0][0]


def test_a_source_that_ends_over_there_does_not_end_this_one(put: Callable[..., list[RemoteHost]]) -> None:
    (lab,) = put(lab=repeat(encode(msgspec.structs.replace(SHOWN, state=SourceState.ENDED)).decode()))
    source = RemoteSource(lab, timing=QUICK)
    until(source, lambda one: one.state is SourceState.UNREACHABLE)
    source.close()


def test_another_interval_is_asked_for_over_there(put: Callable[..., list[RemoteHost]], tmp_path: Path) -> None:
    (lab,) = put(lab=f'echo "$@" >> {tmp_path}/asked; {WHOLE}')
    source = RemoteSource(lab, timing=QUICK)
    wait_for(lambda: source.next(0.1))
    source.set_interval(5.0)
    wait_for(lambda: source.next(0.1) and "--interval=5" in (tmp_path / "asked").read_text())
    source.close()
    assert (tmp_path / "asked").read_text().splitlines()[0] == "gpuwatch --stream --interval=1 --keepalive=3"


# ---------------------------------------------------------------------------------------------------------------
# Rows


def test_the_worst_host_is_the_first() -> None:
    named = [
        Host(name="fine"),
        Host(name="warned", severity=Severity.WARNING, alerts=9),
        Host(name="lost", trouble="no route"),
        Host(name="full", severity=Severity.CRITICAL, alerts=2),
    ]
    assert [one.name for one in sorted(named, key=lambda host: host.weight)] == ["full", "lost", "warned", "fine"]


def test_sums_over_gpus_say_what_is_not_known() -> None:
    cards = (
        HostGpu(index=0, used=40, total=80, left=2 * GIB, utilization=50, processes=0),
        HostGpu(index=1, used=Reason.ERROR, total=80, left=Reason.ERROR, utilization=Reason.ERROR, processes=None),
        HostGpu(index=2, processes=0, up=False),
    )
    row = {key: field.cell(Host(name="lab", gpus=cards)) for key, field in HOST.items()}
    assert (row["gpus"], row["free"], row["memory"], row["left"], row["busy"]) == ("3", "1", "50", "≥2.0", "50")
    nothing = {key: field.cell(Host(name="lab")) for key, field in HOST.items()}
    assert [nothing[key] for key in ("gpus", "free", "memory", "left", "busy", "people", "age")] == ["—"] * 7


def test_the_schema_is_the_one_of_the_live_file() -> None:
    assert status().schema == SCHEMA
