"""`gpuwatch --once` in front of a driver that takes its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gpuwatch.commands.console import Console
from gpuwatch.commands.once import once
from gpuwatch.declared.facts import Share
from gpuwatch.errors import UnavailableError
from gpuwatch.model import Snapshot, SourceState
from tests.support.builders import gpu, snapshot


@dataclass
class Starting:
    """A source that says every 150 ms of its clock that it starts, until it is there."""

    ready_at: float
    now: float = 0.0

    def next(self, timeout: float) -> Snapshot | None:
        """Return the next snapshot, as time passes."""
        self.now += min(0.15, timeout)
        return Snapshot(state=SourceState.OK if self.now >= self.ready_at else SourceState.STARTING)

    def set_interval(self, seconds: float) -> None:
        """Take note of nothing."""

    def poke(self) -> None:
        """Take note of nothing."""

    def set_shares(self, shares: Sequence[Share]) -> None:
        """Take note of nothing."""

    def close(self) -> None:
        """Have nothing to let go of."""


def test_a_driver_is_waited_for_in_seconds_and_not_in_snapshots(capsys: pytest.CaptureFixture[str]) -> None:
    source = Starting(ready_at=20.0)  # 8 GPUs without persistence
    assert once(source, Console(), as_json=True, monotonic=lambda: source.now) == 0
    assert '"ok"' in capsys.readouterr().out


def test_the_words_about_the_wait_are_true() -> None:
    source = Starting(ready_at=3600.0)
    with pytest.raises(UnavailableError, match="has not answered for 30 s"):
        once(source, Console(), as_json=True, monotonic=lambda: source.now)
    assert source.now == pytest.approx(30.0)


@dataclass
class Ready(Starting):
    """A source whose one snapshot is there."""

    snapshot: Snapshot = field(default_factory=Snapshot)

    def next(self, timeout: float) -> Snapshot | None:
        """Give it."""
        return self.snapshot


def test_memory_that_a_driver_takes_for_itself_is_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    cards = [gpu(index, used_gib=0.5) for index in range(7)]
    source = Ready(0.0, snapshot=snapshot([*cards, gpu(7, used_gib=8.0)]))
    assert once(source, Console(), as_json=False) == 0
    notes = capsys.readouterr().out.partition("no process holds a GPU\n")[2].splitlines()
    assert len(notes) == 2
    assert notes[1].startswith("GPU 7: 8.0 GiB of unknown processes: ")


def test_what_a_driver_takes_for_itself_is_no_line_in_a_container_either(capsys: pytest.CaptureFixture[str]) -> None:
    cards = [gpu(index, used_gib=0.5) for index in range(7)]
    source = Ready(0.0, snapshot=snapshot([*cards, gpu(7, used_gib=8.0)], confined=True))
    assert once(source, Console(), as_json=False) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if "of unknown processes: " in line]
    assert len(notes) == 1
    assert notes[0].startswith("GPU 7: 8.0 GiB of unknown processes: gpuwatch runs in a container")
