"""Who asks tmux for names: the reader, the sampler and the commands, where gpuwatch.toml says so and else nobody."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwatch import procfs
from gpuwatch.inspector.client import InspectorClient
from gpuwatch.inspector.protocol import Question
from gpuwatch.inspector.worker import Inspector
from gpuwatch.model import Pane, Snapshot, Surroundings, decode
from tests.commands.conftest import GPUWATCH
from tests.commands.test_cmd_watch import watching
from tests.driver import Driver, Gpu, Proc
from tests.sources.test_local import Start, start, until
from tests.support.panes import PANE, fake, session
from tests.support.tmux import Tmux, tmux
from tests.support.waiting import wait_for

__all__ = ["start", "tmux"]  # fixtures

pytestmark = pytest.mark.slow  # a real tmux

# -- who is told to ask --------------------------------------------------------------------------------------------


def answered(pid: int, client: InspectorClient) -> Surroundings:
    """Ask the real reader about one process."""
    try:
        client.ask(pid, procfs.read_stat(pid).start_ticks, "ada")
        answers = list(client.poll())
        while not answers:
            select.select([] if client.descriptor is None else [client.descriptor], [], [], 0.05)
            answers += client.poll()
    finally:
        client.close(5.0)
    assert answers[0].surroundings is not None, answers[0].declared.words
    return answers[0].surroundings


def test_nothing_is_run_unless_it_is_wanted(tmux: Tmux, tmp_path: Path) -> None:
    pid = session(tmux)
    mark = tmp_path / "mark"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", fake(tmp_path, f"touch {mark}"))
        assert answered(pid, InspectorClient()).pane == PANE
        assert not mark.exists()
        assert answered(pid, InspectorClient(tmux=True)).pane == PANE
        assert mark.exists()
    pane = answered(pid, InspectorClient(tmux=True)).pane
    assert pane == Pane(program="tmux", session="train", window="0:main", alive=True)


def test_a_tmux_that_hangs_costs_no_answer(tmux: Tmux, tmp_path: Path) -> None:
    pid = session(tmux)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", fake(tmp_path, "exec sleep 600"))
        around_it = answered(pid, InspectorClient(tmux=True, deadline=1.0))
    assert around_it.pane == PANE
    assert around_it.words.endswith("its pane's name: tmux does not answer within 0.5 s")


def test_the_reader_goes_by_what_it_was_told_last(tmux: Tmux) -> None:
    pid = session(tmux)
    question = Question(pid=pid, start=procfs.read_stat(pid).start_ticks)
    one = Inspector()
    windows = []
    for tmux_for in (None, 1.0, None, 0.0):
        answer = one.answer(Question(pid=question.pid, start=question.start, tmux=tmux_for))
        assert answer.surroundings is not None
        assert answer.surroundings.pane is not None
        windows.append(answer.surroundings.pane.window)
    assert windows == ["%0", "0:main", "0:main", "%0"]


# -- the whole way -------------------------------------------------------------------------------------------------


@pytest.fixture
def key(own_home: Path) -> Callable[..., None]:
    """Return what sets the key in the user's file."""
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    file.parent.mkdir(parents=True)

    def put(*, wanted: bool) -> None:
        file.write_text(f"tmux = {str(wanted).lower()}\n")

    return put


def on_a_gpu(driver: Driver, pid: int) -> Driver:
    """Let a process hold memory."""
    driver.gpus = [Gpu(0)]
    driver.procs = [Proc(0, pid, memory=2 << 30)]
    return driver.write()


def windows(snapshot: Snapshot) -> list[str]:
    """Return the windows of its processes, as far as they are known."""
    panes = [one.surroundings.pane for one in snapshot.processes if one.surroundings]
    return [pane.window for pane in panes if pane]


def test_the_key_in_the_file_is_what_counts(driver: Driver, tmux: Tmux, key: Callable[..., None]) -> None:
    env = on_a_gpu(driver, session(tmux)).env()
    found = []
    for wanted in (False, True):
        key(wanted=wanted)
        done = subprocess.run([GPUWATCH, "--once", "--json"], env=env, capture_output=True, check=True)
        found += windows(decode(done.stdout))
    assert found == ["%0", "0:main"]


def test_a_restarted_sampler_asks_again(driver: Driver, tmux: Tmux, start: Start) -> None:
    on_a_gpu(driver, session(tmux))
    source = start(tmux=True)
    until(source, lambda it: windows(it) == ["0:main"])
    tmux.run("rename-window", "evaluation")
    (sampler,) = source.pids
    os.kill(sampler, signal.SIGKILL)
    until(source, lambda it: windows(it) == ["0:evaluation"])
    assert sampler not in source.pids


def test_the_watch_asks_from_its_start_on(driver: Driver, tmux: Tmux, key: Callable[..., None], tmp_path: Path) -> None:
    on_a_gpu(driver, session(tmux))
    key(wanted=True)
    path = fake(tmp_path, f"touch {tmp_path}/mark") + ":" + os.environ["PATH"]
    with watching(driver, PATH=path) as watch:
        assert "watching 1 GPU" in watch.err()
        wait_for((tmp_path / "mark").exists)
        key(wanted=False)
        watch.process.send_signal(signal.SIGHUP)
        assert watch.err().endswith("configuration read again: tmux changed (from the next start on: tmux)\n")
        assert watch.end() == 0
