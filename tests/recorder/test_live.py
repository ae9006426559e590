"""The live file: who writes it, who believes it, and what stands in it."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.rules.health import HEALTH
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.base import files
from gpuwatch.base.procfs import boot_id
from gpuwatch.commands.stray_inputs import read_idle
from gpuwatch.history.history import History
from gpuwatch.model.live import FILE, Status, read_status
from gpuwatch.model.snapshot import Health, Idle
from gpuwatch.monitor import Frame
from gpuwatch.recorder.live_writer import LiveFile, make_status
from tests.support.builders import GIB, at, gpu, holding, process, snapshot
from tests.support.waiting import wait_for

LONG = 30.0


def frame(used_gib: float = 20.0, *alerts: Alert, received: float | None = None, **changes: Any) -> Frame:
    """Return a frame of one GPU that came just now."""
    shown = snapshot([gpu(0, holdings=[holding(100, used_gib)])], **changes)
    return Frame(shown, time.monotonic() if received is None else received, History().view, alerts)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the file lies; not made yet."""
    return tmp_path / "gpuwatch"


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., LiveFile]]:
    """Return a function that starts a sink; all are closed."""
    started: list[LiveFile] = []

    def begin(pace: float = 0.01) -> LiveFile:
        started.append(LiveFile(lambda: True, folder, pace=pace))
        return started[-1]

    yield begin
    for sink in started:
        sink.close(LONG)


def test_what_was_written_is_read_and_goes_with_its_writer(folder: Path, start: Callable[[], LiveFile]) -> None:
    sink = start()
    sink.take(frame(30.0, interval=2.0))
    wait_for(lambda: read_status(folder))
    found = read_status(folder)
    assert found is not None
    assert (found.pid, found.host, found.interval, found.boot) == (os.getpid(), "box3", 2.0, boot_id())
    assert [(row.index, row.used, row.health) for row in found.gpus] == [(0, 30 * GIB, Health.OK)]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    sink.close(LONG)
    assert read_status(folder) is None
    assert not (folder / FILE).exists()
    assert not [thread for thread in threading.enumerate() if thread.name == "gpuwatch-live"]


def test_of_two_critical_alerts_a_gpu_that_does_not_answer_is_the_worst() -> None:
    near, lost, warned = (
        Alert(rule=rule, gpu="GPU-0", severity=severity, title=rule, evidence="", raised=0.0)
        for rule, severity in ((MEMORY, Severity.CRITICAL), (HEALTH, Severity.CRITICAL), (HEALTH, Severity.WARNING))
    )
    shown = snapshot([gpu(0)])
    assert make_status(shown, (near, lost), 0.0).worst == HEALTH
    assert make_status(shown, (near, warned), 0.0).worst == MEMORY


def test_who_leads_writes(folder: Path) -> None:
    leaders = {"elder"}
    elder, younger = (LiveFile(lambda name=name: name in leaders, folder, pace=0.01) for name in ("elder", "younger"))  # type: ignore[misc]
    elder.take(frame(10.0))
    younger.take(frame(20.0))
    wait_for(lambda: (found := read_status(folder)) and found.gpus[0].used == 10 * GIB)
    leaders |= {"younger"}
    leaders -= {"elder"}
    wait_for(lambda: (found := read_status(folder)) and found.gpus[0].used == 20 * GIB)
    for sink in (elder, younger):
        sink.close(LONG)
        assert not sink.trouble
    assert not (folder / FILE).exists()


def test_it_is_believed_for_three_intervals_and_a_little(folder: Path, start: Callable[[], LiveFile]) -> None:
    start().take(frame(received=500.0, interval=2.0))
    wait_for((folder / FILE).exists)
    for age, believed in ((0.0, True), (10.0, True), (10.1, False), (-1.0, False)):
        assert (read_status(folder, clock=lambda age=age: 500.0 + age) is not None) is believed  # type: ignore[misc]
    assert read_status(folder, clock=lambda: 501.0, boot_id=lambda: "another") is None


def test_how_long_each_was_idle_is_there_for_a_moment(
    folder: Path, start: Callable[..., LiveFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History()
    for second, busy in ((0, 90), (1, 0), (31, 0)):
        held = [holding(100, sm=0, start=5), holding(101, sm=busy, start=6), holding(102, sm=0)]
        people = [process(100, start=5, uid=7), process(101, start=6, uid=7), process(102, uid=8)]
        shown = at(snapshot([gpu(0, holdings=held)], people, viewer=7, interval=2.0), second)
        view = history.add(shown, 500.0 + second)
    start(LONG).take(Frame(shown, 500.0, view))  # it is written once, by this process
    wait_for((folder / FILE).exists)
    assert read_idle(folder, clock=lambda: 501.0) is None, "of our own we know more"
    monkeypatch.setattr(os, "getpid", lambda: 1)
    found = read_idle(folder, clock=lambda: 506.0)
    key = gpu(0).key
    times = {(key, 100, 5): Idle(31.0, at_least=True), (key, 101, 6): Idle(31.0, at_least=False)}
    assert found == times | {(key, 102, 102): Idle(31.0, at_least=True)}
    assert read_idle(folder, clock=lambda: 506.1) == {}, "somebody watches"


@pytest.mark.parametrize("what", ["link", "fifo", "folder", "junk", "future", "others", "empty"])
def test_what_is_not_ours_is_not_believed(folder: Path, what: str) -> None:
    good = msgspec.json.encode(Status(monotonic=500.0, boot=boot_id()))
    folder.mkdir(mode=0o700)
    file = folder / FILE
    if what == "link":
        (folder / "elsewhere").write_bytes(good)
        file.symlink_to(folder / "elsewhere")
    elif what == "fifo":
        os.mkfifo(file)
    elif what == "folder":
        file.mkdir()
    else:
        content = {"junk": b'{"gpus": 3}', "future": msgspec.json.encode(Status(schema=99)), "empty": b""}
        file.write_bytes(content.get(what, good))
        file.chmod(0o666 if what == "others" else 0o600)
    assert read_status(folder, clock=lambda: 501.0) is None
    file.rmdir() if what == "folder" else file.unlink()
    file.write_bytes(good)
    assert read_status(folder, clock=lambda: 501.0) is not None


def test_a_folder_that_is_a_link_is_neither_written_nor_read(
    folder: Path, tmp_path: Path, start: Callable[[], LiveFile]
) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    folder.symlink_to(other)
    sink = start()
    sink.take(frame())
    wait_for(lambda: sink.trouble)
    assert "`gpuwatch status` cannot be written" in sink.trouble
    assert list(other.iterdir()) == []
    (other / FILE).write_bytes(msgspec.json.encode(Status(monotonic=500.0, boot=boot_id())))
    assert read_status(folder, clock=lambda: 501.0) is None
    folder.unlink()
    sink.take(frame())
    wait_for(lambda: not sink.trouble and read_status(folder))


def test_the_place_is_the_runtime_folder_that_is_ours(tmp_path: Path) -> None:
    given, runtimes = tmp_path / "given", tmp_path / "user"
    uid = os.getuid()
    (runtimes / str(uid)).mkdir(parents=True)
    environ = {"XDG_RUNTIME_DIR": str(given)}
    assert files.runtime_folder(environ, uid, str(runtimes)) == runtimes / str(uid) / "gpuwatch"
    given.mkdir()
    assert files.runtime_folder(environ, uid, str(runtimes)) == given / "gpuwatch"
    assert files.runtime_folder({"XDG_RUNTIME_DIR": "given"}, uid, str(runtimes)) == runtimes / str(uid) / "gpuwatch"
    stranger = uid + 1
    assert files.runtime_folder(environ, stranger, str(runtimes)).name == f"gpuwatch-{stranger}"
