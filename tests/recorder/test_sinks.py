"""Contract of all sinks: a frame is taken without waiting, a failure is one line, and closing has a deadline."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from sqlite3 import Connection
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import Alert
from gpuwatch.config.types import Config, Notify
from gpuwatch.history.history import History
from gpuwatch.monitor import Frame, Sink
from gpuwatch.recorder import recording_writer
from gpuwatch.recorder.events import read_events
from gpuwatch.recorder.live_writer import LiveFile
from gpuwatch.recorder.messages import Message, Messenger, Route
from gpuwatch.recorder.recorder import Recorder, Sinks, UsageSettings
from gpuwatch.recorder.recording_writer import RecordingWriter
from gpuwatch.recorder.schema import own_store
from tests.support.builders import EPOCH, gpu, snapshot
from tests.support.store import QUICK, FailingStore, alert, ended
from tests.support.waiting import PATIENCE, wait_for


@dataclass
class Work:
    """Work of a sink, which waits or fails as a test says."""

    gate: threading.Event = field(default_factory=threading.Event)
    """While it is not set, the work hangs."""
    began: threading.Event = field(default_factory=threading.Event)
    error: str = ""
    """What the work fails with; empty where it succeeds."""
    done: int = 0

    def __call__(self) -> None:
        """Hang, fail, or succeed."""
        self.began.set()
        assert self.gate.wait(PATIENCE)
        if self.error:
            raise OSError(self.error)
        self.done += 1


def live(folder: Path, work: Work) -> Sink:
    def is_leader() -> bool:
        work()
        return True

    return LiveFile(is_leader, folder, pace=0.01)


class HangingRecording(RecordingWriter):
    def __init__(self, folder: Path, work: Work) -> None:
        super().__init__(folder / "box", pace=0.01)
        self._work = work

    def _write_row(self, connection: Connection) -> None:
        self._work()
        super()._write_row(connection)


def recorder(folder: Path, work: Work) -> Sink:
    def make_store(path: Path, **options: bool) -> FailingStore:
        store = FailingStore(path, **options)
        store.before_write = work
        return store

    return Recorder(
        folder=folder, usage=UsageSettings(is_kept=False), pace=QUICK, wall=lambda: EPOCH, make_store=make_store
    )


def messenger(_folder: Path, work: Work) -> Sink:
    def send(_message: Message, _is_stopped: Callable[[], bool]) -> str:
        try:
            work()
        except OSError as error:
            return str(error)
        return ""

    policy = Notify(gather=0.02, cooldown=0.0)
    return Messenger(policy, lambda: True, routes=lambda _: [Route("outbox", send, retry=0.01)])


SINKS: dict[str, Callable[[Path, Work], Sink]] = {
    "recorder": recorder,
    "messages": messenger,
    "live": live,
    "recording": HangingRecording,
}


@pytest.fixture
def work() -> Iterator[Work]:
    """Return the work of the sink under test; it goes on after the test, whatever the test did."""
    work = Work()
    yield work
    work.error = ""
    work.gate.set()


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest, tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    """Return each sink in turn."""
    monkeypatch.setattr(recording_writer, "ROW_S", 0.01)  # after an error it tries again after a row's time
    made = SINKS[request.param](tmp_path, work)
    assert made.name == request.param
    yield made
    work.error = ""
    work.gate.set()
    made.close(PATIENCE)


def frames() -> Iterator[Frame]:
    """Yield frames without end, each with an alert that is new."""
    for number in range(1 << 30):
        new = (alert(str(number), raised=EPOCH + number, seen=EPOCH + number),)
        seen = msgspec.structs.replace(snapshot([gpu(0)]), taken=EPOCH + number)
        yield Frame(seen, time.monotonic(), History().view, alerts=new, raised=new, number=number)


def begin(sink: Sink, work: Work, coming: Iterator[Frame]) -> None:
    """Hand over frames until the sink works on one."""

    def has_begun() -> bool:
        sink.take(next(coming))
        return work.began.wait(0.01)

    wait_for(has_begun)


def returns(call: Callable[[], object]) -> bool:
    """Return whether a call comes back, in a thread of its own: one that does not would hold up the test."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


def test_frames_are_taken_while_its_work_hangs(sink: Sink, work: Work) -> None:
    coming = frames()
    begin(sink, work, coming)

    def take_many() -> None:
        for frame in islice(coming, 50):
            sink.take(frame)

    assert returns(take_many)
    assert not work.done
    work.gate.set()
    wait_for(lambda: work.done)


def test_an_error_in_its_work_is_one_line_until_the_work_succeeds_again(sink: Sink, work: Work) -> None:
    work.error = "no space\nleft \x1b[31mon it"
    work.gate.set()
    coming = frames()

    def fails() -> bool:
        sink.take(next(coming))
        return bool(sink.trouble)

    wait_for(fails)
    assert "no space" in sink.trouble
    assert sink.trouble.isprintable(), "one line, without escapes"
    assert len(sink.trouble) <= 500
    work.error = ""

    def works() -> bool:
        sink.take(next(coming))
        return not sink.trouble and work.done > 0

    wait_for(works)


def test_closing_without_a_frame_starts_nothing(sink: Sink, tmp_path: Path) -> None:
    before, found = threading.active_count(), list(tmp_path.iterdir())
    sink.close(PATIENCE)
    assert (threading.active_count(), list(tmp_path.iterdir()), sink.trouble) == (before, found, "")


def test_closing_gives_up_at_its_deadline(sink: Sink, work: Work) -> None:
    begin(sink, work, frames())
    assert returns(lambda: sink.close(0.01))
    assert not work.done
    assert returns(lambda: sink.close(0.0)), "closing twice changes nothing"


@pytest.mark.usefixtures("own_home")
def test_what_was_sent_before_a_restart_is_not_sent_again_and_its_end_is(tmp_path: Path) -> None:
    mails, now = tmp_path / "mails", time.time()
    one = alert(raised=now, seen=now)
    config = Config(notify=Notify(command=("/bin/sh", "-c", 'cat >> "$0"', str(mails)), gather=1.0))

    def events() -> list[str]:
        return [json.loads(line)["event"] for line in mails.read_text().splitlines()] if mails.exists() else []

    for raised in ([one], []):
        added: list[Sink] = []
        restored: list[Alert] = []
        monitor: Any = SimpleNamespace(add=lambda *sinks: added.extend(sinks), attend=print, restore=restored.extend)  # noqa: B023
        sinks = Sinks(monitor, config)
        wait_for(lambda: raised or restored)  # noqa: B023 - at once, as all that follows

        def is_sent(new: tuple[Alert, ...] = ()) -> bool:
            """Take a frame, as a machine would go on: a sink that begins late compares with the frames after that."""
            for sink in added:  # noqa: B023 - called within this turn alone
                sink.take(Frame(snapshot([gpu(0)]), 0.0, History().view, alerts=(one,), raised=new))
            return [held.sent for held in read_events(own_store()).open] == [True]

        is_sent(tuple(raised))
        wait_for(is_sent)
        assert events() == ["raised"]
        if not raised:
            for sink in added:
                sink.take(Frame(snapshot([gpu(0)]), 0.0, History().view, cleared=(ended(one),)))
            wait_for(lambda: events() == ["raised", "cleared"])
        sinks.close(PATIENCE)
