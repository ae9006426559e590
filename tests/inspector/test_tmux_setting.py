"""Who asks tmux for names: the reader and the sampler, where gpuwatch.toml says so and else nobody."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

from gpuwatch.base import procfs
from gpuwatch.inspector.client import InspectorClient
from gpuwatch.inspector.protocol import Question
from gpuwatch.inspector.worker import Inspector
from gpuwatch.model.snapshot import Pane, ProcessContext
from tests.driver import Driver, Gpu, Proc
from tests.inspector.panes import PANE, fake, session
from tests.support.program import Launcher
from tests.support.terminal import Tmux, tmux

__all__ = ["tmux"]  # a fixture

pytestmark = pytest.mark.slow  # a real tmux


def answered(pid: int, client: InspectorClient) -> ProcessContext:
    """Ask the real reader about one process."""
    try:
        client.ask(pid, procfs.read_stat(pid).start_ticks, "ada")
        answers = list(client.poll())
        while not answers:
            select.select([] if client.descriptor is None else [client.descriptor], [], [], 0.05)
            answers += client.poll()
    finally:
        client.close(5.0)
    assert answers[0].context is not None, answers[0].declared.words
    return answers[0].context


def test_nothing_is_run_unless_it_is_wanted(tmux: Tmux, tmp_path: Path) -> None:
    pid = session(tmux)
    mark = tmp_path / "mark"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", fake(tmp_path, f": > {mark}"))
        assert answered(pid, InspectorClient()).pane == PANE
        assert not mark.exists()
        assert answered(pid, InspectorClient(tmux=True)).pane == PANE
        assert mark.exists()
    pane = answered(pid, InspectorClient(tmux=True)).pane
    assert pane == Pane(program="tmux", session="train", window="0:main", alive=True)


def test_the_reader_goes_by_what_it_was_told_last(tmux: Tmux) -> None:
    pid = session(tmux)
    question = Question(pid=pid, start=procfs.read_stat(pid).start_ticks)
    one = Inspector()
    windows = []
    for tmux_for in (None, 1.0, None, 0.0):
        answer = one.answer(Question(pid=question.pid, start=question.start, tmux=tmux_for))
        assert answer.context is not None
        assert answer.context.pane is not None
        windows.append(answer.context.pane.window)
    assert windows == ["%0", "0:main", "0:main", "%0"]


def test_the_key_in_the_file_is_what_counts(driver: Driver, tmux: Tmux, own_home: Path, tmp_path: Path) -> None:
    """The whole way, from the user's file to the answer of a sampler's reader."""
    driver.gpus, driver.procs = [Gpu(0)], [Proc(0, session(tmux), memory=2 << 30)]
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    file.parent.mkdir(parents=True)
    gpuwatch = Launcher(driver.write(), tmp_path, in_process=True)
    for wanted, window in ((False, "%0"), (True, "0:main")):
        file.write_text(f"tmux = {str(wanted).lower()}\n")
        assert f'"window":"{window}"' in gpuwatch("--once", "--json").stdout
