"""Hostile names and command lines of real processes, against every view and every output, byte for byte.

A widget test cannot see an escape sequence that leaks; a terminal acts on it.
"""

from __future__ import annotations

import lzma
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuwatch.base.errors import UsageError
from gpuwatch.model.snapshot import decode
from gpuwatch.recorder.recording import Recording
from gpuwatch.recorder.schema import own_store
from tests import GPUWATCH
from tests.driver import GIB, MIB, Driver, Gpu, Proc
from tests.support.environment import environment
from tests.support.process import Member, family
from tests.support.program import run_gpuwatch
from tests.support.store import ask, story
from tests.support.terminal import Terminal, foreign, in_terminal, modes_on
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

EVIL = b"\x1b]2;PWN\x07\x1b]52;c;UFdO\x07\x1b[2J\xc2\x9b31m\x9b31m\xe2\x80\xaeevil\t\r\nTORN\xff"
"""A window title, the clipboard, a cleared screen, C1 as UTF-8 and bare, a text turned round, and a torn line."""
COMMANDS: list[list[bytes]] = [
    [b"osc52-\x1b]52;c;UFdO\x07-end"],
    [b"title-\x1b]2;PWN\x1b\\-end"],
    [b"csi-\x1b[2J\x1b[31m-end"],
    [b"c1-\xc2\x9b31m\x9b31m\xc2\x9d2;PWN\xc2\x9c-end"],
    [b"bidi-\xe2\x80\xaelive\xe2\x81\xa6-end"],
    [b"lines-\t-\r-\n-\x08-\x7f-end"],
    [b"torn-\xff\xfe\xed\xb2\x80-end"],
    ["wide-日本語-end".encode()],
    [b"[/foo] [bold [link="],
    [b"args", b"-s", b"--", EVIL],
    [
        b"secrets",
        b"-s",
        b"--",
        b"--token",
        b"xSECRET1x",
        b"--hf-key=hf_SECRET2abcdefghijklmn",
        b"https://ada:SECRET3@h/x",
    ],
]
MARKS = [re.split(b"[- ]", line[0])[0].decode() for line in COMMANDS]


TITLES = [
    "serve --password SECRETLY/hush --data /srv/data --port 8000",
    "gunicorn: master [token=SECRETLY]",
    "api --name xxxxxxxxxxxxxxx --api-key=sk-SECRETLYa1b2c3d4e5f6",
]
"""Titles as setproctitle leaves them; each process is the head of its run. A name is cut in the secret of the last."""
NAMES = ["t --pwd=SECRETL", "x sk-SECRETLYa1"]
"""Names that processes give themselves, with prctl(2): the kernel cuts them after 15 bytes."""
SCRIPTS = {
    "api_key=SECRETLY/train.py": "import torch\ntorch.cuda.set_per_process_memory_fraction(0.3)\n",
    "password=SECRETLY.py": "",
}
"""Scripts by their path: one declares a share, and one cannot be read."""


@dataclass
class Machine:
    """A driver with hostile texts, and hostile processes on its first GPU."""

    driver: Driver
    pids: list[int]

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a gpuwatch on it."""
        return {**self.driver.env(environment()), "LC_ALL": "C.UTF-8", **more}


@pytest.fixture(scope="module")
def machine(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Start the processes; each waits for its input, and ends with it."""
    folder = tmp_path_factory.mktemp("hostile")
    nameless = folder / "\x1b]2;PWN\x07x"  # what a process is called that has no command line
    nameless.symlink_to("/bin/sh")
    with ExitStack() as running:
        pids = []
        for argv, program in [*((argv, Path("/bin/sh")) for argv in COMMANDS), ([b""], nameless)]:
            process = running.enter_context(subprocess.Popen(argv, executable=program, stdin=subprocess.PIPE))
            pids.append(process.pid)
        members = [Member(title.split()[0], (title,)) for title in TITLES]
        members += [Member(name.split()[0], (), comm=name) for name in NAMES]
        for path, source in SCRIPTS.items():
            (folder / path).parent.mkdir(exist_ok=True)
            if source:
                (folder / path).write_text(source)
            members.append(Member(path[-6:], ("python", str(folder / path), "--token", "SECRETLY")))
        pids += [pid for name, pid in running.enter_context(family(*members)).pids.items() if name != "root"]
        driver = Driver(folder, nvml_library, driver="580\x1b]2;PWN\x07")
        used = len(pids) * GIB
        driver.gpus = [Gpu(0, name=b"GPU-" + EVIL, memory_used=used, uuid=b"GPU-\x1b[2J\xff"), Gpu(1, util_gpu=37)]
        driver.procs = [Proc(0, pid, memory=GIB - at * MIB) for at, pid in enumerate(pids)]
        yield Machine(driver.write(), pids)


def assert_clean(raw: bytes) -> None:
    """Nothing got through, and no secret is told."""
    assert foreign(raw) == []
    for what in (b"\x1b]2;PWN", b"\x1b]52", b"\x07PWN"):
        assert what not in raw
    assert_clean_of_secrets(raw)


def assert_clean_of_secrets(raw: bytes) -> None:
    """No secret is in what was kept, whatever else a file of SQLite has."""
    assert [raw[max(0, at.start() - 60) : at.end() + 30] for at in re.finditer(b"SECR|hush", raw)] == []


def test_every_view_of_the_dashboard(machine: Machine) -> None:
    with in_terminal(columns=160, rows=50, env=machine.env()) as terminal:
        terminal.wait_for(lambda one: all(mark in one.text for mark in MARKS))
        assert "�]52;c;UFdO�" in terminal.text  # shown for what it is
        assert "[/foo] [bold [link=" in terminal.text
        assert "wide-日" in terminal.text.replace("日 ", "日")
        assert "--token *** --hf-key=*** " in terminal.text
        for key, title in (("u", "mem %"), ("t", "procs/ranks"), ("S", "your strays")):
            terminal.send(key)
            terminal.wait_for(title)
            leave(terminal, title)
        for at, pid in enumerate(machine.pids):
            terminal.send("\r")
            terminal.wait_for(lambda one, pid=pid: "host memory" in one.text and str(pid) in one.text)  # type: ignore[misc]
            leave(terminal, "host memory")
            if at == MARKS.index("args"):
                terminal.send("K")
                terminal.wait_for("not ended:")
            terminal.send("j")
        terminal.send("/")
        terminal.wait_for("user:ada")
        terminal.send(b"\xff")  # no UTF-8: dropped, and typing goes on
        terminal.wait_for(lambda one: typed(one, "Q"))
        terminal.send("\x1b[200~" + "\u202e\x9b31m\x9d2;PWN\t\u2066PASTED" + "\x1b[201~")
        terminal.wait_for("PASTED")
        terminal.wait_for("no process matches")
        leave(terminal, "user:ada")
        terminal.send("?")
        terminal.wait_for("Explain the keys, marks and terms")
        leave(terminal, "Explain the keys, marks and terms")
        # An alert about the GPU with the hostile name, as a toast while the strip is frozen, and then in the strip.
        terminal.send("p")
        terminal.wait_for("PAUSED")
        machine.driver.gpus[0].memory_used = 80_500 * MIB
        machine.driver.write()
        terminal.wait_for(lambda one: re.search(r"GPU 0 \w+", one.text) is not None)
        terminal.send("p")
        told = re.compile(r"^\S \S+ +GPU 0 \w+", re.MULTILINE)
        terminal.wait_for(lambda one: "PAUSED" not in one.text and told.search(one.text) is not None)
        terminal.quit()
        assert_clean(bytes(terminal.raw))
        assert modes_on(bytes(terminal.raw)) == {7, 25}


def typed(terminal: Terminal, key: str) -> bool:
    """Type a key again and again until it is on the bottom line."""
    terminal.send(key)
    terminal.read(0.2)
    return key in terminal.lines[-1]


def leave(terminal: Terminal, text: str) -> None:
    """Go back to the dashboard from where a text stands."""
    terminal.send("\x1b")
    terminal.wait_for(lambda one: text not in one.text and "used/total" in one.text and "1 s  " in one.lines[0])


@pytest.mark.parametrize("flags", [["--once"], ["--once", "--json"], ["--stream"]], ids=" ".join)
def test_every_output(machine: Machine, flags: list[str]) -> None:
    with in_terminal(*flags, columns=400, rows=50, env=machine.env(), draw=False) as terminal:
        if flags == ["--stream"]:
            terminal.wait_for(lambda one: one.raw.count(b"\n") >= 2)
            terminal.send("\x03")
            assert terminal.wait_exit() == 130
        else:
            assert terminal.wait_exit() == 0
        raw = bytes(terminal.raw)
    raw = raw.replace(b"^C", b"")
    assert_clean(raw)
    assert b"\x1b" not in raw
    text = raw.decode()
    assert all(mark in text for mark in MARKS)
    assert "--token *** --hf-key=*** https://***@h/x" in text
    if "--once" not in flags or "--json" in flags:
        snapshot = decode(raw.splitlines()[0])
        texts = [snapshot.driver, *(gpu.name for gpu in snapshot.gpus)]
        texts += [text for process in snapshot.processes for text in (process.command, process.name, process.user)]
        assert [text for text in texts if not text.isprintable()] == []
        assert {process.pid for process in snapshot.processes} == set(machine.pids)


def test_what_is_kept_and_printed_of_it(machine: Machine, tmp_path: Path, own_home: Path) -> None:
    config, recording = tmp_path / "gpuwatch.toml", tmp_path / "day"
    rule = '[[rule]]\nname = "held"\non = "process"\nwhen = "mem>1MiB"\nfor = 0\n'
    config.write_text(f'interval = "200ms"\n[alerts]\nquiet = 0\n{rule}')
    argv = [GPUWATCH, "watch", "--config", str(config), "--record", str(recording)]
    with ExitStack() as ending:
        output = ending.enter_context((tmp_path / "output").open("wb+"))
        watch = ending.enter_context(subprocess.Popen(argv, env=machine.env(), stdout=output, stderr=output))
        ending.callback(watch.kill)
        wait_for(lambda: watch.poll() is not None or len(story(own_store())) >= len(machine.pids))
        assert watch.poll() is None, (tmp_path / "output").read_text(errors="replace")
        wait_for(lambda: {"serve", "gunicorn", "api"} <= recorded_runs(recording))
        watch.terminate()
        assert watch.wait() == 0
        output.seek(0)
        assert_clean(output.read().replace(b"\n", b"\r\n"))
    kept = own_store().read_bytes()
    assert_clean_of_secrets(kept)
    assert b"--password ***" in kept
    bodies = b"".join(lzma.decompress(body) for (body,) in ask(recording, "SELECT body FROM snapshots"))
    played = recording.read_bytes() + bodies
    assert_clean_of_secrets(played)
    assert b"/srv/data" not in played
    assert b"master" not in played
    explained = (["explain", str(pid)] for pid in machine.pids[len(COMMANDS) + 1 :])
    reported = (["report", "--by", "run"], ["events", "--json"], ["events", "--recording", str(recording)])
    for command in (*explained, *reported):
        printed = run_gpuwatch(*command, env=machine.env())
        assert printed.returncode == 0
        assert_clean((printed.stdout + printed.stderr).replace("\n", "\r\n").encode())


def recorded_runs(path: Path) -> set[str]:
    """Return the names of the runs in a recording, as far as it is written."""
    try:
        recording = Recording([path])
    except UsageError:
        return set()
    places = [process.context for one in recording.snapshots() for process in one.processes]
    return {place.run.name for place in places if place is not None and place.run is not None}


def test_without_colour_and_outside_ascii_nothing_is_sent(machine: Machine) -> None:
    """NO_COLOR and a locale of C in one run, through all that is drawn over the dashboard as well."""
    argv = [GPUWATCH, "--user", "\x9b31m\u202e"]
    with Terminal(argv, columns=120, rows=36, env=machine.env(NO_COLOR="1", LC_ALL="C")) as terminal:
        terminal.wait_for("no process matches")
        terminal.send("\x1b")
        terminal.wait_for(lambda one: all(mark in one.text for mark in MARKS[:8]))
        for key, text in (("?", "Moving"), ("\r", "host memory"), (":", "Search")):
            terminal.send(key)
            terminal.wait_for(text)
            leave(terminal, text)
        terminal.send("K")
        terminal.wait_for("not ended:")
        terminal.send("/")
        terminal.wait_for("user:ada")
        terminal.send("ada[")
        terminal.wait_for("ada[")
        terminal.send("\x03")
        assert terminal.wait_exit() == 0
        raw = bytes(terminal.raw)
    assert_clean(raw)
    assert raw.isascii(), sorted({char for char in raw.decode() if ord(char) > 127})
    assert colours(raw) == set()


def colours(raw: bytes) -> set[int]:
    """Return the codes in some output that set a colour."""
    codes = {int(code or 0) for found in re.findall(rb"\x1b\[([0-9;]*)m", raw) for code in found.split(b";")}
    return codes - {0, 1, 2, 3, 4, 7, 22, 23, 24, 27}
