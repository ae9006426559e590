"""`gpuwatch fleet` and `gpuwatch pick --fleet`: what they print, their exit codes, and the screen in a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import GPUWATCH
from tests.fleet.test_overview import ROOM, alert, card
from tests.support.environment import environment
from tests.support.program import Call
from tests.support.prometheus import FakePrometheus, a_fleet, certificate, fake_prometheus
from tests.support.terminal import Terminal, foreign, modes_on


@pytest.fixture
def fake() -> Iterator[FakePrometheus]:
    with fake_prometheus(ROOM) as found:
        yield found


def config(folder: Path, text: str) -> str:
    """Return the path of a configuration with a table [fleet]."""
    file = folder / "gpuwatch.toml"
    file.write_text(f"[fleet]\n{text}\n")
    return str(file)


# -- fleet ----------------------------------------------------------------------------------------------------------


def test_json_is_one_object_with_all_lists(call: Call, fake: FakePrometheus) -> None:
    fake.lines = a_fleet()
    code, out, err = call("fleet", "--json", "--prometheus", fake.url, has_driver=False)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {*found} == {"server", "taken", "notes", "hosts", "instances", "people", "alerts", "free"}
    first = found["hosts"][0]
    assert (first["name"], first["severity"], first["age"]) == ("node0001", 3, 7.0)
    assert (first["gpus"][0]["index"], first["gpus"][0]["utilization"]) == (0, 1.0)
    assert found["people"][0]["hosts"]
    assert found["alerts"][0]["rule"] == "nearly full"
    assert {one["name"] for one in found["free"]} == {"H100 80GB HBM3", "A100-SXM4-80GB", "L40S"}


def test_a_process_of_its_own_reads_over_tls(tmp_path: Path) -> None:
    authority = certificate(tmp_path, "127.0.0.1")
    with fake_prometheus(a_fleet(), tls=authority) as fake:
        file = config(tmp_path, f'ca_file = "{authority}"')
        command = [GPUWATCH, "fleet", "--json", "--prometheus", fake.url, "--config", file]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert json.loads(done.stdout)["hosts"][0]["name"] == "node0001"


def test_the_demo_asks_no_server(call: Call) -> None:
    code, out, err = call("fleet", "--demo", "--json", has_driver=False)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (len(found["hosts"]), found["free"][0]["gpus"]) == (24, 184)
    assert {one["rule"] for one in found["alerts"]} >= {"over declared", "nearly full"}
    assert "ada" in {one["name"] for one in found["people"]}


def test_a_partial_answer_is_printed_and_said(call: Call, fake: FakePrometheus) -> None:
    fake.warnings = ["store eu-1\x1b[2J is down"]
    code, out, err = call("fleet", "--json", "--prometheus", fake.url)
    assert code == 0
    assert json.loads(out)["notes"]
    assert err.endswith("store eu-1�[2J is down\n")


def test_the_server_and_its_credentials_are_configured(call: Call, fake: FakePrometheus, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    file = config(tmp_path, f'prometheus = "{fake.url}"\ntoken_file = "{token}"')
    token.chmod(0o644)
    code, out, err = call("fleet", "--json", "--config", file)
    assert (code, out) == (2, "")
    assert "fleet.token_file: others can read" in err
    token.chmod(0o600)
    assert call("fleet", "--json", "--config", file)[0] == 0
    assert fake.headers[0]["authorization"] == "Bearer s3cret"


@pytest.mark.parametrize("arguments", ["fleet", "fleet --json --filter foo>3", "pick --fleet --empty --gpu 0"])
def test_a_mistake_is_found_before_the_server_is_asked(call: Call, fake: FakePrometheus, arguments: str) -> None:
    code, out, err = call(*arguments.split(), "--prometheus", fake.url)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not fake.asked


def test_foreign_text_is_clean_in_json_too(call: Call, fake: FakePrometheus) -> None:
    odd = "c\\u202e\\u001b"
    fake.lines = card(0, 0.0, host=f"x{odd}:1", name=odd) + "\n" + alert("GpuwatchX", user=odd, instance=f"{odd}:1")
    out = call("fleet", "--json", "--prometheus", fake.url)[1]
    assert all(ord(each) not in (0x202E, 0x1B) for each in out)
    assert "\\u001b" not in out


@pytest.mark.parametrize("command", ["fleet --json", "pick --fleet --empty"])
def test_an_answer_that_is_no_text_is_one_line(call: Call, fake: FakePrometheus, command: str) -> None:
    fake.fault = lambda handler: handler.reply(200, b"\xff\xfe")
    code, out, err = call(*command.split(), "--prometheus", fake.url)
    assert (code, out, err.count("\n")) == (3, "", 1)


# -- pick -----------------------------------------------------------------------------------------------------------


def test_hosts_with_room_are_printed_best_first(call: Call, fake: FakePrometheus) -> None:
    ask = ("pick", "--fleet", "--memory", "70GiB", "--prometheus", fake.url)
    assert call(*ask) == (0, "b\nc\na\n", "")
    assert call(*ask, "-n", "3") == (0, "b\na\n", "")
    document = json.loads(call(*ask, "-n", "2", "--json")[1])
    assert [one["host"] for one in document["hosts"]] == ["b", "a"]
    assert [(gpu["index"], gpu["chosen"]) for gpu in document["hosts"][0]["gpus"]] == [(0, True), (1, True), (2, False)]


def test_a_name_that_is_no_address_is_left_out_and_counted(call: Call, fake: FakePrometheus) -> None:
    odd = ("-oProxyCommand=x", ":1", "a b", "x;y", "eve@lab", "$(x)")
    fake.lines = "\n".join(card(0, 0.0, host=host, utilization__ratio=0.0) for host in ("lab1:1", "[::1]:1", *odd))
    ask = ("pick", "--fleet", "--empty", "--prometheus", fake.url)
    words = f"gpuwatch: {len(odd)} hosts are left out: an `instance` that is not an address\n"
    assert call(*ask) == (0, "[::1]\nlab1\n", words)
    document = json.loads(call(*ask, "--json")[1])
    assert [one["host"] for one in document["hosts"]] == ["[::1]", "lab1"]


def test_where_no_host_has_room_the_nearest_are_named(call: Call, fake: FakePrometheus) -> None:
    code, out, err = call("pick", "--fleet", "--memory", "70GiB", "-n", "4", "--prometheus", fake.url)
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "gpuwatch: 4 GPUs on one host wanted, but no host has room",
        "gpuwatch: b: 3 of 3 with room (80.0, 80.0, 75.0 GiB left)",
        "gpuwatch: a: 3 of 3 with room (70.0, 70.0, 70.0 GiB left)",
        "gpuwatch: c: 1 of 3 with room (80.0 GiB left)",
        "gpuwatch: 1 host is left out: no new values",
    ]
    fake.lines = 'up{instance="x"} 1'
    fake.lines = "other{} 1"
    assert (
        "knows no host: are gpuwatch's recording rules loaded there?"
        in call("pick", "--fleet", "--empty", "--prometheus", fake.url)[2]
    )


# -- the screen -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_screen_in_a_terminal(fake: FakePrometheus, own_home: Path) -> None:
    fake.lines = a_fleet(40, 8)
    command = [GPUWATCH, "fleet", "--prometheus", fake.url]
    with Terminal(command, columns=120, rows=30, env=dict(os.environ)) as terminal:
        terminal.wait_for(lambda one: "node0001" in one.text and "q quit" in one.lines[29])
        assert "40 hosts · 320 GPUs" in terminal.lines[0]
        fake.fault = lambda handler: handler.reply(401, b"")
        terminal.process.send_signal(signal.SIGHUP)  # read it now
        terminal.wait_for("it requires credentials (401)")
        assert "node0001" in terminal.text
        fake.fault = None
        terminal.send("R")
        terminal.wait_for(lambda one: "401" not in one.text)
        terminal.send("f")
        terminal.wait_for("H100 80GB HBM3")
        terminal.send("\r")
        terminal.wait_for("filter: H100 80GB HBM3 free>=4")
        terminal.send("q")
        assert terminal.wait_exit() == 0
        assert modes_on(bytes(terminal.raw)) == {7, 25}
        assert foreign(bytes(terminal.raw)) == []
