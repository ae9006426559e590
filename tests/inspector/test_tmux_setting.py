"""Who asks tmux for names: the reader and the sampler, where gpuwatch.toml says so and else nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.base import procfs
from gpuwatch.inspector.protocol import Question
from gpuwatch.inspector.worker import Inspector
from gpuwatch.model.snapshot import Pane
from tests.driver import Driver, Gpu, Proc
from tests.inspector.panes import PANE, fake, session
from tests.support.program import Launcher
from tests.support.terminal import Tmux, tmux

__all__ = ["tmux"]  # a fixture

pytestmark = pytest.mark.slow  # a real tmux


def answered(inspector: Inspector, pid: int, tmux_for: float | None) -> Pane | None:
    """Return the pane that the reader names of a process, which may ask tmux for so many seconds."""
    answer = inspector.answer(Question(pid=pid, start=procfs.read_stat(pid).start_ticks, tmux=tmux_for))
    assert answer.context is not None, answer.declared.words
    return answer.context.pane


def test_nothing_is_run_unless_it_is_wanted(tmux: Tmux, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid, mark = session(tmux), tmp_path / "mark"
    monkeypatch.setenv("PATH", fake(tmp_path, f": > {mark}"))
    for seconds in (None, 1.0):
        assert answered(Inspector(), pid, seconds) == PANE
        assert mark.exists() is (seconds is not None)


def test_the_reader_goes_by_what_it_was_told_last(tmux: Tmux) -> None:
    pid, one = session(tmux), Inspector()
    named = Pane(program="tmux", session="train", window="0:main", alive=True)
    assert [answered(one, pid, seconds) for seconds in (None, 1.0, None, 0.0)] == [PANE, named, named, PANE]


def test_the_key_in_the_file_is_what_counts(driver: Driver, tmux: Tmux, own_home: Path, tmp_path: Path) -> None:
    """The whole way, from the user's file to the answer of a sampler's reader."""
    driver.gpus, driver.procs = [Gpu(0)], [Proc(0, session(tmux), memory=2 << 30)]
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    file.parent.mkdir(parents=True)
    gpuwatch = Launcher(driver.write(), tmp_path, in_process=True)
    for wanted, window in ((False, "%0"), (True, "0:main")):
        file.write_text(f"tmux = {str(wanted).lower()}\n")
        assert f'"window":"{window}"' in gpuwatch("--once", "--json").stdout
