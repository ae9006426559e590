"""The whole program in a real pseudo-terminal: what it draws first, where it draws nothing, and what it waits for."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import psutil
import pytest

from gpuwatch.ui.terminal import LARGEST
from tests import GPUWATCH
from tests.driver import Driver
from tests.support.terminal import OURS, Terminal, in_terminal

pytestmark = pytest.mark.slow


def test_the_first_picture_is_whole_and_of_the_right_size(busy: Driver) -> None:
    """Row 1 to the last, 160 cells each, with figures in it, however wrong the size in the environment is."""
    env = {**busy.env(), "COLUMNS": "40", "LINES": "10"}
    with in_terminal(columns=160, rows=50, env=env) as terminal:
        drawn = b"\x1b[?1000h"  # before it is the first frame, which Textual has not drawn
        terminal.wait_for(lambda one: one.raw.partition(drawn)[2].count(b"\n") >= 49 and "q quit" in one.lines[49])
        first = bytes(terminal.raw).partition(drawn)[2].partition(b"\x1b[1;1H")[2]
        lines = OURS.sub(b"", first).decode().split("\r\n")
        assert [len(line) for line in lines[:49]] == [160] * 49
        picture = "\n".join(lines[:50])
        for figure in ("· load ", "37", "12.0", "71/700", str(os.getpid())):
            assert figure in picture
        terminal.resize(100, 30)
        terminal.wait_for(lambda one: "q quit" in one.lines[29] and "12.0" in one.text)
        terminal.quit()


@pytest.mark.parametrize("way", ["at the start", "by the terminal itself"])
def test_of_a_size_that_no_terminal_has_only_a_part_is_drawn(busy: Driver, way: str) -> None:
    start = (9999, 9999) if way == "at the start" else (120, 30)
    with in_terminal(columns=start[0], rows=start[1], env=busy.env(), draw=False) as terminal:
        terminal.wait_for(lambda one: b"used/total" in one.raw)
        if way == "by the terminal itself":
            terminal.send("\x1b[48;9999;9999;0;0t")
        terminal.wait_for(lambda one: f"\x1b[{LARGEST[1]};1H".encode() in one.raw)
        terminal.quit()
        places = [(int(column), int(row)) for row, column in re.findall(rb"\x1b\[(\d+);(\d+)H", terminal.raw)]
        assert max(row for _, row in places) == LARGEST[1]
        assert max(column for column, _ in places) <= LARGEST[0]


def test_a_storm_of_sizes(busy: Driver) -> None:
    sizes = random.Random(7)
    with in_terminal(columns=80, rows=24, env=busy.env(), draw=False) as terminal:
        terminal.wait_for(lambda one: b"q quit" in OURS.sub(b"", one.raw))
        for turn in range(200):
            columns, rows = (1, 1) if turn % 20 == 0 else (sizes.randint(1, 300), sizes.randint(1, 90))
            terminal.resize(columns, rows)
            terminal.read(0.002)
        terminal.resize(80, 24)
        while terminal.pump(0.2):  # until nothing more comes: the pictures of the other sizes pass, each as a whole
            pass
        terminal.forget(80, 24)
        busy.gpus[1].util_gpu = 63
        busy.write()
        terminal.wait_for(lambda one: "12.0" in one.text and " 63 " in one.lines[3] and "q quit" in one.lines[23])
        assert " 99 " not in terminal.lines[3]
        terminal.quit()


@pytest.mark.parametrize("term", ["screen", "vt100"])
def test_any_terminal_that_can_move_its_cursor(busy: Driver, term: str) -> None:
    env = {name: value for name, value in busy.env().items() if name != "COLORTERM"}
    with in_terminal(columns=100, env=env, term=term) as terminal:
        terminal.wait_for(lambda one: "12.0" in one.text and "q quit" in one.lines[29])
        terminal.quit()
        assert re.search(rb"[;\[][34]8;", bytes(terminal.raw)) is None  # 16 colours


@pytest.mark.parametrize(
    ("term", "shell", "why"),
    [
        ("xterm", 'exec "$0" < /dev/null', "stdin is not one"),
        ("xterm", '"$0" | cat; exit 2', "stdout is not one"),
        ("xterm", '"$0" 2> said; code=$?; cat said; exit $code', "stderr is not one"),
        ("dumb", 'exec "$0"', "TERM is dumb"),
        (None, 'unset TERM; exec "$0"', "TERM is dumb"),
    ],
)
def test_where_no_dashboard_can_be_drawn(
    busy: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, term: str | None, shell: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with Terminal(["sh", "-c", shell, GPUWATCH], columns=200, rows=30, env=busy.env(), term=term) as terminal:
        assert terminal.wait_exit() == 2
        said = bytes(terminal.raw).decode()
    assert why in said
    assert "try `gpuwatch --once`" in said
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert busy.calls() == {}


@pytest.mark.parametrize("content", [None, b"this is no library\n"], ids=["none", "broken"])
def test_no_driver_is_one_line_and_nothing_of_a_screen(tmp_path: Path, content: bytes | None) -> None:
    env = no_driver(tmp_path, content)
    with in_terminal(columns=300, env=env) as terminal:
        assert terminal.wait_exit() == 3
        said = bytes(terminal.raw).decode()
    assert said.startswith("gpuwatch: no usable NVIDIA driver library (libnvidia-ml.so.1)")
    assert "gpuwatch --demo" in said or "--gpus all" in said
    assert said.count("\n") == 1
    assert "\x1b" not in said


def test_it_waits_for_a_driver_and_starts_with_it(tmp_path: Path, busy: Driver) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    env = {**busy.env(), **no_driver(folder, b"not yet\n")}
    with in_terminal("--wait", env=env) as terminal:
        terminal.wait_for(lambda one: "no NVIDIA driver" in one.text and "q quit" in one.lines[29])
        fresh = folder / "new"
        fresh.write_bytes(busy.library.read_bytes())
        fresh.replace(folder / "libnvidia-ml.so.1")
        terminal.send("R")
        terminal.wait_for(lambda one: "· RAM " in one.text and "12.0" in one.text)
        terminal.quit()


def test_a_driver_that_hangs_when_it_is_started(busy: Driver) -> None:
    busy.faults = ["nvmlInitWithFlags hang"]
    busy.write()
    with in_terminal(env=busy.env()) as terminal:
        terminal.wait_for(lambda one: "waiting for the driver" in one.text or "starting" in one.text)
        terminal.wait_for(lambda one: "q quit" in one.lines[29])
        everybody = terminal.tree()
        terminal.quit(timeout=5.0)
    assert psutil.wait_procs(everybody, timeout=5.0)[1] == []


def no_driver(folder: Path, content: bytes | None) -> dict[str, str]:
    """Return the environment of a machine without a driver, or with a broken one."""
    if content is not None:
        (folder / "libnvidia-ml.so.1").write_bytes(content)
    elif any(Path(place, "libnvidia-ml.so.1").exists() for place in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu")):
        pytest.skip("this machine has a driver of its own")
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def test_what_is_typed_with_the_slash_goes_into_the_filter(busy: Driver) -> None:
    with in_terminal(env=busy.env()) as terminal:
        terminal.wait_for("1 row")
        terminal.send("/qK/nobody")  # one read, as a slow line delivers it: q must not quit, nor K ask
        terminal.wait_for("no process matches “qK/nobody”")
        assert terminal.process.poll() is None
