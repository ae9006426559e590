"""First frame, drawn before Textual is imported: Textual takes over without a change, and no signal or key is lost."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil
import pyte
import pytest

from tests.driver import Driver
from tests.support.environment import environment
from tests.support.terminal import Terminal, assert_given_back, in_terminal, modes_on

pytestmark = pytest.mark.slow

TAKEN = b"\x1b[?1049h"
TEXTUAL = b"\x1b[?1000h"
"""The mouse, which Textual turns on."""
_BETWEEN = re.compile(rb"(?<=.)(?=\x1b\[\d+;\d+H)")

HELD = """
import gpuwatch.ui.first_frame as first_frame
show = first_frame.FirstFrame.show

def held(self, frame):
    show(self, frame)
    {then}

first_frame.FirstFrame.show = held
from gpuwatch.__main__ import main
main()
"""
"""The program, which does something between its first frame and the import of Textual."""


ONE_FRAME = """
from gpuwatch.monitor import Monitor
from gpuwatch.ui.draw.view import View
send = Monitor._send
Monitor._send = lambda self, frame: self.newest is not None or send(self, frame)
View.since_received = 0.0
"""
"""Whatever differs between two drawings is then drawn in another way, and neither newly read nor old."""


def held(
    then: str,
    busy: Driver,
    env: Mapping[str, str] | None = None,
    size: tuple[int, int] = (120, 30),
    term: str = "xterm-256color",
    before: str = "",
) -> Terminal:
    program = [sys.executable, "-c", before + HELD.format(then=then)]
    return Terminal(program, columns=size[0], rows=size[1], env=busy.env(env or environment()), term=term)


def shown(screen: pyte.Screen) -> list[list[tuple[object, ...]]]:
    """Return what each cell looks like; a blank has no colour of text."""
    rows = [[screen.buffer[y][x] for x in range(screen.columns)] for y in range(screen.lines)]
    return [
        [(one.data, one.bg, one.reverse, *(() if one.data == " " else (one.fg, one.bold))) for one in row]
        for row in rows
    ]


LOOKS: Final[dict[str, tuple[tuple[int, int], dict[str, str], str]]] = {
    "true colours": ((160, 50), {"COLORTERM": "truecolor"}, ""),
    "256 colours": ((80, 24), {}, ""),
    "16 colours": ((80, 24), {"TERM": "xterm"}, ""),
    "no colours": ((100, 30), {"NO_COLOR": "1"}, ""),
    "ASCII": ((60, 10), {"COLORTERM": "truecolor"}, "ascii = true"),
    "theme of Textual": ((160, 50), {"COLORTERM": "truecolor"}, 'theme = "nord"'),
    "tiny": ((39, 5), {"COLORTERM": "truecolor"}, ""),
}


@pytest.mark.parametrize("look", LOOKS)
def test_textual_takes_over_without_a_change(busy: Driver, own_home: Path, look: str) -> None:
    size, settings, config = LOOKS[look]
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    file.parent.mkdir(parents=True)
    file.write_text(config)
    env = {"COLORTERM": "", **environment(), **settings}
    term = settings.get("TERM", "xterm-256color")
    with held("pass", busy, env, size, term, before=ONE_FRAME) as terminal:
        terminal.wait_for(lambda one: one.raw.count(b"\x1b[1;1H") >= 2 and TEXTUAL in one.raw)
        while terminal.pump(0.3):
            pass
        raw = bytes(terminal.raw)
        terminal.quit()
    assert raw.count(TAKEN) == 1
    screen = pyte.Screen(*size)
    stream = pyte.ByteStream(screen)
    early, _, later = raw.partition(TEXTUAL)
    stream.feed(early)
    first = shown(screen)
    assert any(cell[0] != " " for row in first for cell in row)
    for part in _BETWEEN.split(later):  # each row as it is drawn
        stream.feed(part)
        now = shown(screen)
        differ = [(y, x) for y, row in enumerate(now) for x, cell in enumerate(row) if cell != first[y][x]]
        assert differ == [], (first[differ[0][0]][differ[0][1]], now[differ[0][0]][differ[0][1]])


def test_without_a_driver_the_terminal_is_left_alone() -> None:
    with in_terminal(env=environment()) as terminal:
        assert terminal.wait_exit() == 3
        assert TAKEN not in terminal.raw
        assert terminal.modes() == terminal.modes_before


def test_without_a_gpu_textual_draws_first(driver: Driver) -> None:
    driver.gpus = []
    driver.write()
    with in_terminal(env=driver.env(environment())) as terminal:
        terminal.wait_for("no GPU since")
        assert terminal.raw.index(TAKEN) < terminal.raw.index(TEXTUAL) < terminal.raw.index(b"gpuwatch")
        terminal.quit()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=lambda one: str(one))
def test_a_signal_before_textual_ends_the_program(busy: Driver, number: signal.Signals, code: int) -> None:
    with held(f"import os; os.kill(os.getpid(), {int(number)})", busy) as terminal:
        assert terminal.wait_exit() == code
        assert_given_back(terminal)


def test_a_signal_ends_the_program_while_the_import_hangs(busy: Driver) -> None:
    with held("import time; time.sleep(600)", busy) as terminal:
        terminal.wait_for("used/total")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.wait_exit(5.0) == 143
        assert modes_on(bytes(terminal.raw)) == {7, 25}
        assert terminal.modes() == terminal.modes_before


def test_a_failure_before_textual_gives_the_terminal_back(busy: Driver) -> None:
    with held("raise OSError('no room')", busy) as terminal:
        assert terminal.wait_exit() != 0
        assert terminal.modes() == terminal.modes_before
        assert modes_on(bytes(terminal.raw)) == {7, 25}
        assert b"no room" in terminal.raw.partition(b"\x1b[?1049l")[2]


def test_a_lost_terminal_ends_the_program(busy: Driver) -> None:
    with held("import time; time.sleep(600)", busy) as terminal:
        terminal.wait_for("used/total")
        everybody = terminal.tree()
        terminal.hang_up()
        assert terminal.process.wait(10.0) == 129
        assert psutil.wait_procs(everybody, timeout=5.0)[1] == []


def test_a_stop_waits_for_textual(busy: Driver) -> None:
    with held("import os; os.kill(os.getpid(), 20)", busy) as terminal:  # SIGTSTP
        program = psutil.Process(terminal.process.pid)
        terminal.wait_for(lambda _: program.status() == psutil.STATUS_STOPPED)
        while terminal.read(0.1):
            pass
        assert_given_back(terminal)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for(lambda one: one.raw.count(TAKEN) == 2 and "used/total" in one.text)
        terminal.quit()


def test_keys_typed_before_textual_are_not_lost(busy: Driver) -> None:
    with held("import time; time.sleep(0.2)", busy) as terminal:
        terminal.wait_for(lambda one: TAKEN in one.raw)
        assert TEXTUAL not in terminal.raw
        terminal.send("?")
        terminal.wait_for("Processes and GPUs")
        terminal.send("q")
        terminal.quit()


def test_a_resize_before_textual_is_drawn(busy: Driver) -> None:
    with held("import time; time.sleep(0.2)", busy) as terminal:
        terminal.wait_for(lambda one: TAKEN in one.raw)
        terminal.resize(90, 26)
        terminal.wait_for(lambda one: "q quit" in one.lines[25])
        terminal.quit()


def test_a_terminal_that_takes_nothing_does_not_hold_up_the_end(busy: Driver) -> None:
    """The kernel keeps a few kB of what nobody reads: the first frame of a large terminal waits in its write."""
    with in_terminal(columns=1000, rows=400, env=busy.env(environment()), draw=False) as terminal:
        while not terminal.read(1.0):  # the first bytes; nothing is read from here on
            pass
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(10.0) == 143


def test_people_keep_their_letters_and_the_cursor_its_row(busy: Driver) -> None:
    """A second snapshot between the two frames must not give letters anew."""
    with held("import time; time.sleep(1.5)", busy) as terminal:
        terminal.wait_for(lambda one: TAKEN in one.raw and "used/total" in one.text)
        first = terminal.lines[2:4]
        terminal.wait_for(lambda one: TEXTUAL in one.raw)
        while terminal.pump(0.2):
            pass
        marks = [[line[:24] for line in lines] for lines in (first, terminal.lines[2:4])]
        assert all(one == other for one, other in pairwise(marks))
        terminal.quit()
