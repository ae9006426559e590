"""`gpuwatch watch`: a service that says what happened, ends when it is told to, and lives through the rest."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import pytest

from gpuwatch.recorder.live import read_status
from gpuwatch.recorder.store import own_store, read_events
from tests.commands.conftest import GPUWATCH
from tests.driver import GIB as GIBIBYTE
from tests.driver import Driver, Gpu, Proc
from tests.support.recording import story
from tests.support.terminal import Terminal
from tests.support.waiting import PATIENCE, wait_for


@pytest.fixture
def busy(driver: Driver) -> Driver:
    """Two GPUs; the second is full, by this process."""
    driver.gpus = [Gpu(0), Gpu(1, memory_used=79 * GIBIBYTE)]
    driver.procs = [Proc(1, os.getpid(), memory=79 * GIBIBYTE)]
    return driver.write()


@pytest.fixture
def eager(own_home: Path) -> Path:
    """A configuration by which alerts are raised from the start."""
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    file.parent.mkdir(parents=True)
    file.write_text('interval = "200ms"\n[alerts]\nquiet = 0\nmemory_for = 0\n')
    file.chmod(0o600)
    return file


class Watching:
    """A `gpuwatch watch` that runs, and its lines as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines = {name: self._collect(getattr(process, name)) for name in ("stdout", "stderr")}

    def _collect(self, stream: IO[str] | None) -> SimpleQueue[str]:
        lines: SimpleQueue[str] = SimpleQueue()

        def collect() -> None:
            for line in stream or ():
                lines.put(line)
            lines.put("")

        threading.Thread(target=collect, daemon=True).start()
        return lines

    def out(self) -> str:
        """Return the next line of stdout, empty at its end."""
        return self._lines["stdout"].get(timeout=PATIENCE)

    def err(self) -> str:
        """Return the next line of stderr, empty at its end."""
        return self._lines["stderr"].get(timeout=PATIENCE)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and give the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def watching(driver: Driver, *arguments: str, stdout: int = subprocess.PIPE, **env: str) -> Iterator[Watching]:
    """Start `gpuwatch watch`; it is gone afterwards."""
    command = [str(GPUWATCH), "watch", *arguments]
    with subprocess.Popen(
        command, env=driver.env() | env, stdout=stdout, stderr=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield Watching(process)
        finally:
            process.kill()


def test_it_says_what_happens_and_writes_it_down(busy: Driver, eager: Path, own_home: Path) -> None:
    with watching(busy) as watch:
        assert re.fullmatch(r"gpuwatch: watching 2 GPUs on .*; events go to .*/gpuwatch-.*\.sqlite\n", watch.err())
        line = watch.out()
        assert re.match(
            r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ● raised  GPU 1 full: 0\.1 GiB of 79\.1 free · .* holds 79", line
        )
        busy.gpus[1].memory_used = GIBIBYTE
        busy.procs[0].memory = GIBIBYTE
        busy.write()
        assert re.match(r"\d\d:\d\d:\d\d ✓ ended after .* s  .*GPU 1.* · at worst 0\.\d GiB free", watch.out())
        runtime = own_home / "runtime" / "gpuwatch"
        wait_for(lambda: (found := read_status(runtime)) and [row.near for row in found.gpus] == ["", ""])
        assert watch.end() == 0
    assert read_status(runtime) is None
    path = own_store()
    assert [line.split()[1] for line in story(path)] == ["ended"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=str)
def test_a_signal_ends_it(busy: Driver, number: signal.Signals, code: int) -> None:
    with watching(busy) as watch:
        watch.err()
        assert watch.end(number) == code
        assert watch.err() == ""


def test_json_lines_have_what_is_recorded(busy: Driver, eager: Path, tmp_path: Path) -> None:
    with watching(busy, "--json", "--events", str(tmp_path / "mine.sqlite")) as watch:
        record = json.loads(watch.out())
        assert (record["event"], record["alert"]["rule"]) == ("raised", "memory near limit")
        assert watch.err().endswith(f"events go to {tmp_path / 'mine.sqlite'}\n")
        wait_for(lambda: story(tmp_path / "mine.sqlite"))
        assert watch.end() == 0
    assert record["alert"]["id"] in [alert.id for alert in read_events(tmp_path / "mine.sqlite").alerts]


def test_quiet_says_nothing_of_events(busy: Driver, eager: Path, tmp_path: Path) -> None:
    log = tmp_path / "mine.sqlite"
    with watching(busy, "--quiet", "--events", str(log)) as watch:
        wait_for(lambda: story(log))
        assert watch.end() == 0
        assert (watch.out(), watch.err()) == ("", "")


def test_a_driver_that_is_not_there_yet_is_waited_for(driver: Driver, tmp_path: Path) -> None:
    with watching(driver, LD_LIBRARY_PATH=str(tmp_path)) as watch:
        assert re.match(r"gpuwatch: .*libnvidia-ml\.so\.1.*; gpuwatch waits until it is over", watch.err())
        assert watch.process.poll() is None
        assert watch.end() == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--events", "thesis.tex"], "thesis.tex"),
        (["--only", "9"], "gpuwatch: --only: there is no GPU 9; this machine has 0 to 1\n"),
    ],
)
def test_what_cannot_be_watched_or_written_ends_it(
    busy: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis.tex").write_text("all of it")
    with watching(busy, *flags) as watch:
        assert watch.process.wait(PATIENCE) == 2
        assert said in watch.err()
        assert watch.err() == ""
    assert (tmp_path / "thesis.tex").read_text() == "all of it"


def test_nobody_who_reads_is_no_reason_to_stop(busy: Driver, eager: Path, own_home: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with watching(busy, stdout=writer) as watch:
        os.close(writer)
        wait_for(lambda: "nobody reads what is printed any more" in watch.err())
        wait_for(lambda: (found := read_status(own_home / "runtime" / "gpuwatch")) and found.gpus)
        assert watch.end() == 0


def test_a_reader_that_takes_nothing_does_not_hold_up_the_end(busy: Driver, eager: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with watching(busy, stdout=writer) as watch:
        assert "watching 2 GPUs" in watch.err()
        assert watch.end() == 0
    os.close(reader)
    os.close(writer)


def test_the_configuration_is_read_again_on_sighup(busy: Driver, eager: Path) -> None:
    good = eager.read_text()
    with watching(busy) as watch:
        watch.err()
        assert "● raised" in watch.out()
        eager.write_text(good + "memory_warning = 'lots'\n")
        watch.process.send_signal(signal.SIGHUP)
        assert re.match(r"gpuwatch: configuration not changed: .*memory_warning", watch.err())
        eager.write_text(good + 'off = ["memory near limit"]\n')
        watch.process.send_signal(signal.SIGHUP)
        assert watch.err() == "gpuwatch: configuration read again: alerts.off changed\n"
        assert "✓ ended" in watch.out()
        watch.process.send_signal(signal.SIGHUP)
        assert watch.err() == "gpuwatch: configuration read again: nothing has changed\n"


def test_a_program_of_the_users_own_is_told_and_a_new_one_after_a_reload(
    busy: Driver, eager: Path, tmp_path: Path
) -> None:
    told, later = tmp_path / "told", tmp_path / "later"
    program = tmp_path / "tell"
    program.write_text('#!/bin/sh\ncat >> "$1"\necho >> "$1"\n')
    program.chmod(0o700)
    settings = eager.read_text()
    eager.write_text(f'{settings}[notify]\ngather = 0\ncooldown = 0\ncommand = ["{program}", "{told}"]\n')
    with watching(busy) as watch:
        assert "raised" in watch.out()
        wait_for(lambda: told.exists() and told.read_text().endswith("\n"))
        message = json.loads(told.read_text().splitlines()[0])
        assert (message["event"], message["rule"]) == ("raised", "memory near limit")
        eager.write_text(eager.read_text().replace(str(told), str(later)))
        watch.process.send_signal(signal.SIGHUP)
        assert "events go to" in watch.err()
        assert "notify.command changed" in watch.err()
        busy.gpus[1].memory_used = busy.procs[0].memory = GIBIBYTE
        busy.write()
        assert "ended" in watch.out()
        wait_for(lambda: later.exists() and '"cleared"' in later.read_text())
        assert watch.end() == 0
    assert '"cleared"' not in told.read_text()


def test_the_end_of_its_terminal_ends_it(busy: Driver) -> None:
    with Terminal([str(GPUWATCH), "watch"], columns=120, rows=30, env=busy.env()) as terminal:
        terminal.wait_for("watching 2 GPUs")
        terminal.process.send_signal(signal.SIGHUP)  # somebody's wish: the terminal is there
        terminal.wait_for("nothing has changed")
        terminal.hang_up()
        assert terminal.process.wait(PATIENCE) == 129
