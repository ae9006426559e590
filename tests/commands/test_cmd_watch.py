"""`gpuwatch watch`: a service that says what happened, line by line, and ends when it is told to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import pytest

from gpuwatch.alerts.alert import TROUBLE, Alert, Severity
from gpuwatch.base.units import Unit
from gpuwatch.commands.watch import LineFormatter, TroubleFinder, find_changes
from gpuwatch.history.history import History
from gpuwatch.model.live import read_status
from gpuwatch.model.snapshot import SourceState
from gpuwatch.monitor import Frame
from gpuwatch.recorder.recording import Recording
from gpuwatch.recorder.schema import own_store
from tests import GPUWATCH
from tests.driver import GIB as GIBIBYTE
from tests.driver import Driver, Gpu, Proc
from tests.support.builders import EPOCH, GIB, gpu, snapshot
from tests.support.prometheus import free_port
from tests.support.store import story
from tests.support.terminal import in_terminal
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
def watching(
    driver: Driver, *arguments: str, command: str = "watch", stdout: int = subprocess.PIPE, **env: str
) -> Iterator[Watching]:
    """Start `gpuwatch watch`, or another command; it is gone afterwards."""
    words = [GPUWATCH, command, *arguments]
    with subprocess.Popen(
        words, env=driver.env() | env, stdout=stdout, stderr=subprocess.PIPE, text=True, bufsize=1
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


def test_it_says_what_it_records_and_ends_after_a_time(busy: Driver, own_home: Path) -> None:
    file = own_home / "day"
    with watching(busy, "--record", str(file), "--anonymise", "--for", "1h") as watch:
        assert watch.err().endswith(
            f"; snapshots go to {file}, with pseudonyms of people and programs; ends after 1 h\n"
        )
        assert watch.end() == 0  # what waits for a row of ten seconds is written at the end
    assert Recording([file]).host == "anonymous"
    with watching(busy, "--for", "500ms") as watch:
        assert watch.process.wait(PATIENCE) == 0


def test_it_serves_metrics_from_the_same_process(busy: Driver, eager: Path, own_home: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with watching(busy, "--export", "--listen", address) as watch:
        assert f"http://{address}/metrics\n" in watch.err()
        assert "; events go to " in watch.err()
        assert "GPU 1 full" in watch.out()
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
        assert 'gpuwatch_alerts{rule="nearly full",severity="critical"} 1.0\n' in text
        assert "gpuwatch_driver_up 1.0\n" in text
        assert watch.end() == 0


def test_full_pipes_hold_up_neither_the_watch_nor_its_end(busy: Driver, eager: Path, own_home: Path) -> None:
    reader, full = os.pipe()
    os.set_blocking(full, False)
    with suppress(BlockingIOError):
        while True:
            os.write(full, b"x" * 4096)
    os.set_blocking(full, True)
    runtime = own_home / "runtime" / "gpuwatch"
    with subprocess.Popen([GPUWATCH, "watch"], env=busy.env(), stdout=full, stderr=full) as process:
        os.close(full)
        wait_for(lambda: (found := read_status(runtime)) and found.gpus[1].near)
        busy.gpus[1].memory_used = GIBIBYTE
        busy.procs[0].memory = GIBIBYTE
        busy.write()
        wait_for(lambda: (found := read_status(runtime)) and not found.gpus[1].near)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert [line.split()[1] for line in story(own_store())] == ["ended"]
    os.close(reader)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=str)
def test_a_signal_ends_it(busy: Driver, number: signal.Signals, code: int) -> None:
    with watching(busy) as watch:
        watch.err()
        assert watch.end(number) == code
        assert watch.err() == ""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--record", "thesis.tex"], "thesis.tex"),
        (["--gpu", "9"], "gpuwatch: --gpu: there is no GPU 9; this machine has 0 to 1\n"),
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


def test_the_configuration_is_read_again_on_sighup(busy: Driver, eager: Path) -> None:
    good = eager.read_text()
    with watching(busy) as watch:
        watch.err()
        assert "● raised" in watch.out()
        eager.write_text(good + "memory_warning = 'lots'\n")
        watch.process.send_signal(signal.SIGHUP)
        assert re.match(r"gpuwatch: configuration not changed: .*memory_warning", watch.err())
        eager.write_text(good + 'off = ["nearly full"]\n')
        watch.process.send_signal(signal.SIGHUP)
        assert watch.err() == "gpuwatch: configuration reloaded: alerts.off changed\n"
        assert "✓ ended" in watch.out()
        watch.process.send_signal(signal.SIGHUP)
        assert watch.err() == "gpuwatch: configuration reloaded: nothing has changed\n"


def test_a_mistake_in_the_configuration_changes_no_export(busy: Driver, eager: Path) -> None:
    port = free_port()
    with watching(busy, "--listen", f"127.0.0.1:{port}", command="export") as export:
        assert "metrics are at" in export.err()
        assert "watching 2 GPUs" in export.err()
        eager.write_text("intervall = 2\n")
        export.process.send_signal(signal.SIGHUP)
        assert re.match(r"gpuwatch: configuration not changed: .*did you mean interval", export.err())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            assert b"gpuwatch_gpu_" in answer.read()


def test_the_end_of_its_terminal_ends_it(busy: Driver) -> None:
    with in_terminal("watch", env=busy.env()) as terminal:
        terminal.wait_for("watching 2 GPUs")
        terminal.process.send_signal(signal.SIGHUP)  # somebody's wish: the terminal is there
        terminal.wait_for("nothing has changed")
        terminal.hang_up()
        assert terminal.process.wait(PATIENCE) == 129


# ---------------------------------------------------------------------------------------------------------------
# What is printed, line by line, and how


def alert(rule: str = "nearly full", **changes: Any) -> Alert:
    """Return an alert that was raised at EPOCH."""
    fields: dict[str, Any] = {
        "rule": rule,
        "gpu": "GPU-1",
        "severity": Severity.WARNING,
        "title": "GPU 3 full in about 4 min",
        "raised": EPOCH,
    }
    return Alert(**{**fields, **changes})


def frame(*alerts: Alert, at: float = EPOCH, **changes: Any) -> Frame:
    """Return a frame with alerts that hold."""
    fields = {name: changes.pop(name, ()) for name in ("raised", "cleared", "eased")}
    return Frame(snapshot([gpu(0)], taken=at, **changes), 0.0, History().view, alerts, **fields)


def told(*frames: Frame) -> list[str]:
    """Return the lines that some frames come to, their clock times left out."""
    lines = LineFormatter()
    return [re.sub(r"^.*\d\d:\d\d:\d\d ", "", lines.format(one)) for each in frames for one in find_changes(each)]


def test_a_life_in_lines() -> None:
    first = alert(evidence="ada grew 9.0 GiB/min")
    bad = alert(severity=Severity.CRITICAL, raised_monotonic=-1.0, title="GPU 3 full", unit=Unit.FREE, peak=0.1 * GIB)
    over = alert(
        ended=EPOCH + 388,
        lasted=388.0,
        how="back within the limit",
        title="GPU 3 full",
        peak=0.1 * GIB,
        unit=Unit.FREE,
    )
    assert told(
        frame(first, raised=(first,)),
        frame(bad, raised=(bad,)),
        frame(first, eased=(first,)),
        frame(cleared=(over,)),
        frame(first, raised=(first,)),
    ) == [
        "▲ raised  GPU 3 full in about 4 min · ada grew 9.0 GiB/min",
        "● worse   GPU 3 full",
        "▲ eased   GPU 3 full in about 4 min · ada grew 9.0 GiB/min",
        "✓ ended after 6 min 28 s  GPU 3 full · back within the limit · at worst 0.1 GiB free",
        "▲ raised  GPU 3 full in about 4 min · ada grew 9.0 GiB/min",
    ]


def test_troubles_are_said_once_and_when_they_are_over() -> None:
    troubles = TroubleFinder()
    full = alert(TROUBLE, subject="recorder", title="not recorded: no space left")
    down: dict[str, Any] = {"state": SourceState.DRIVER_DOWN, "words": "the driver does not answer"}
    starting: dict[str, Any] = {"state": SourceState.STARTING}
    said = [
        list(troubles.find(each))
        for each in (
            frame(),
            frame(full),
            frame(full),
            frame(),
            frame(**down),
            frame(**starting),
            frame(**down),
            frame(),
        )
    ]
    assert said == [
        [],
        ["not recorded: no space left"],
        [],
        ["recorder: works again"],
        ["the driver does not answer; gpuwatch waits"],
        [],
        [],
        ["the driver answers: 1 GPU"],
    ]
