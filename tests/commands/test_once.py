"""`gpuwatch --once` in front of a driver that takes its time."""

from __future__ import annotations

import pytest

from gpuwatch.commands.console import Console
from gpuwatch.commands.once import once
from gpuwatch.errors import UnavailableError
from gpuwatch.model import Snapshot, SourceState
from tests.support.builders import gpu, snapshot
from tests.support.watches import Script


class Starting(Script):
    """A source that says every 150 ms of its clock that it starts, until it is there."""

    def __init__(self, ready_at: float) -> None:
        super().__init__()
        self._ready_at = ready_at
        self.now = 0.0

    def next(self, timeout: float) -> Snapshot | None:
        """Return the next snapshot, as time passes."""
        self.now += min(0.15, timeout)
        return Snapshot(state=SourceState.OK if self.now >= self._ready_at else SourceState.STARTING)


def test_a_driver_is_waited_for_in_seconds_and_not_in_snapshots(capsys: pytest.CaptureFixture[str]) -> None:
    source = Starting(ready_at=20.0)  # 8 GPUs without persistence
    assert once(source, Console(), as_json=True, monotonic=lambda: source.now) == 0
    assert '"ok"' in capsys.readouterr().out


def test_the_words_about_the_wait_are_true() -> None:
    source = Starting(ready_at=3600.0)
    with pytest.raises(UnavailableError, match="has not answered for 30 s"):
        once(source, Console(), as_json=True, monotonic=lambda: source.now)
    assert source.now == pytest.approx(30.0)


@pytest.mark.parametrize(("confined", "why"), [(False, ""), (True, "gpuwatch runs in a container")])
def test_memory_that_a_driver_takes_for_itself_is_no_line(
    capsys: pytest.CaptureFixture[str], confined: bool, why: str
) -> None:
    cards = [gpu(index, used_gib=0.5) for index in range(7)]
    source = Script([snapshot([*cards, gpu(7, used_gib=8.0)], confined=confined)])
    assert once(source, Console(), as_json=False) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if "of unknown processes: " in line]
    assert len(notes) == 1
    assert notes[0].startswith(f"GPU 7: 8.0 GiB of unknown processes: {why}")
