"""Ctrl-C in `gpuwatch kill` at any moment: what was sent is on record with what became of it, and is told."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gpuwatch.commands.kill import DialogConsole, Interrupted, KillCommand, catch_signals
from tests.commands.test_cmd_kill_told import Shown
from tests.support.kill import a_pinner, held_by, outcomes
from tests.support.process import GpuHolder

pytestmark = pytest.mark.slow

MOMENTS = range(1, 160, 2)
"""Calls and returns of Python functions, counted from the signal: it is given to the request's owner within 100."""


class Interrupt:
    """Sends SIGINT to this process at a call or a return of its own, so many after a signal was sent to another."""

    def __init__(self, moment: int) -> None:
        self.sent = False
        self._left = moment
        self._counts = False

    def __call__(self, _frame: FrameType, event: str, arg: Any) -> None:
        """See what the interpreter does: a profile function."""
        if event == "c_return" and arg is signal.pidfd_send_signal:
            self._counts = True
        elif self._counts:
            self._left -= 1
            if self._left == 0:
                self._counts, self.sent = False, True
                signal.raise_signal(signal.SIGINT)


@contextmanager
def interrupted(moment: int) -> Iterator[Interrupt]:
    """Have it interrupted at a moment."""
    interrupt = Interrupt(moment)
    sys.setprofile(interrupt)
    try:
        yield interrupt
    finally:
        sys.setprofile(None)


def test_the_record_of_a_signal_survives_ctrl_c_at_any_moment_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with GpuHolder(deaf=True) as training:
        for moment in MOMENTS:
            pinner, shown = a_pinner(tmp_path / str(moment)), Shown(held_by(training))
            with catch_signals() as check:
                ends = KillCommand(shown, pinner, DialogConsole(), check, signal.SIGTERM, ask=False, clock=shown.clock)
                with interrupted(moment) as interrupt, pytest.raises(Interrupted) as told:
                    ends.run([training.pid])
            assert interrupt.sent
            assert told.value.number == signal.SIGINT
            assert outcomes(pinner) == [(["SIGTERM"], "running")], f"moment {moment}"
            said = capsys.readouterr().err
            assert f"PID {training.pid} got the signal, and gpuwatch does not wait for it\n" in said, f"moment {moment}"
            assert "interrupted: nothing more is sent\n" in said
        assert training.alive()


class Slow(Shown):
    """A driver that says nothing until long after Ctrl-C."""

    def next(self, timeout: float) -> Any:
        """Wait as long as it was told to, as a sampler does, and give nothing."""
        self.waited = timeout
        signal.raise_signal(signal.SIGINT)
        return None


def test_ctrl_c_is_heard_before_the_first_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with GpuHolder() as training:
        shown = Slow(held_by(training))
        with catch_signals() as check, pytest.raises(Interrupted):
            KillCommand(shown, a_pinner(tmp_path), DialogConsole(), check, signal.SIGTERM, ask=False).run(
                [training.pid]
            )
        assert shown.waited < 1.0, "a driver that does not answer would hold Ctrl-C up for so long"
        assert training.alive()
    assert "nothing more is sent" in capsys.readouterr().err
