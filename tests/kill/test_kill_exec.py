"""A process that starts another program (execve) between the question and the signal; one that changes its title."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuwatch import procfs
from gpuwatch.kill.outcome import Refusal
from gpuwatch.kill.session import GRACE_SECONDS, Choice, Phase
from gpuwatch.kill.target import Killer, Target, shown_command
from gpuwatch.model import Process, Snapshot
from gpuwatch.sampler.owners import Owners
from tests.commands.test_cmd_kill import code, held, mine, terminal
from tests.commands.test_cmd_kill import on_record as recorded
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.gpuholder import GpuHolder
from tests.support.killing import Clock, a_killer, asking, look, on_record, pinned, refused, sent, target_of
from tests.support.running import RealRun
from tests.support.sampling import running
from tests.support.screens import Host, text_of, until
from tests.ui.test_end_dialog import opened

pytestmark = pytest.mark.slow

OTHER = "it runs another program now: python important_new_run.py; nothing was sent"


def said_on(app: Host) -> str:
    """The words on the screen, without the frame and the ends of lines."""
    return " ".join(text_of(app).replace("│", " ").split())


def a_real_killer(folder: Path, **seams: Any) -> Killer:
    """A killer that reads commands as the program does."""
    return a_killer(folder, describe=shown_command, **seams)


def as_shown(holder: GpuHolder) -> Target:
    """The row of a holder, as the sampler has it now."""
    return target_of(holder, program=procfs.read_stat(holder.pid).program)


# ---------------------------------------------------------------------------------------------------------------
# The command


def answered_after(driver: Driver, training: GpuHolder, change: Callable[[], None]) -> tuple[str, int]:
    """Run `gpuwatch kill`, change the process while it asks, and say yes; give the screen and the exit code."""
    held(driver, training)
    with terminal(driver, str(training.pid)) as screen:
        screen.wait_for("End this process with SIGTERM? [y/N]", timeout=30.0)
        assert "python train.py" in screen.text
        change()
        screen.send("y\r")
        screen.wait_for(f"PID {training.pid}: ", timeout=30.0)
        ended = code(screen)
        return " ".join(screen.text.split()), ended


@pytest.mark.parametrize(
    ("what", "randomised", "words"),
    [
        ("exec", True, OTHER),
        ("let_go", True, "it has no GPU device open any more; nothing was sent"),
        # As under a debugger: nothing tells a new title from a new program, so neither is ended unasked.
        ("exec", False, "it may run another program now: python important_new_run.py; nothing was sent"),
        ("retitle", False, "it may run another program now: python"),
    ],
)
def test_what_is_no_longer_what_was_shown_is_not_ended_by_the_command(
    driver: Driver, own_home: Path, what: str, randomised: bool, words: str
) -> None:
    with mine(randomised=randomised) as training:
        assert (procfs.read_stat(training.pid).program == "") is not randomised
        said, ended = answered_after(driver, training, getattr(training, what))
        assert words in said
        assert "; nothing was sent" in said
        assert ended == 1
        assert training.alive()
    assert [(line["event"], line.get("result")) for line in recorded(own_home)] == [
        ("intent", None),
        ("outcome", "changed"),
    ]


# ---------------------------------------------------------------------------------------------------------------
# The session, as the dialog and the screen of strays have it


def test_another_program_is_not_ended_by_a_session(tmp_path: Path) -> None:
    with GpuHolder() as training:
        session = asking(a_real_killer(tmp_path), as_shown(training))
        training.exec()
        session.choose(Choice.TERMINATE)
        assert look(session) is Phase.OVER
        assert OTHER in session.view.message
        assert training.alive()


@pytest.mark.parametrize("what", ["exec", "retitle"])
def test_the_second_signal_is_for_what_got_the_first(what: str, tmp_path: Path) -> None:
    clock, killer = Clock(), a_real_killer(tmp_path)
    with GpuHolder(deaf=True) as training:
        session = asking(killer, as_shown(training), clock=clock)
        session.choose(Choice.TERMINATE)
        assert look(session) is Phase.STOPPING
        clock.now += GRACE_SECONDS
        assert look(session) is Phase.STILL_THERE
        getattr(training, what)()
        session.choose(Choice.KILL)
        look(session)
        if what == "retitle":
            training.wait_until_exited()
            return
        assert "important_new_run.py; SIGKILL was not sent" in session.view.message
        assert training.alive()
    sent = [line.get("signal") or line["result"] for line in on_record(killer)]
    assert sent == ["SIGTERM", "running", "SIGKILL", "changed"]


async def test_of_a_run_the_one_that_became_another_program_is_spared(tmp_path: Path) -> None:
    with RealRun(ranks=2, workers=0, launcher="dies") as run:
        killer = a_real_killer(tmp_path, dev=run.dev)
        app = Host(killer)
        first, second = run.of("rank")
        async with app.run_test(size=(100, 30)) as pilot:
            screen = await opened(pilot, run.snapshot(), first)
            await pilot.press("s")
            await until(pilot, lambda: "Terminate 3 (SIGTERM)" in text_of(app))
            run.exec(second)
            await pilot.press("right", "right", "enter")
            await until(pilot, lambda: screen.session.phase is Phase.OVER)
            await until(pilot, lambda: f"1 no longer what was shown, and not signalled: PID {second}" in said_on(app))
        assert run.alive() == {second}


# ---------------------------------------------------------------------------------------------------------------
# Between the sample and the question


def test_another_program_than_on_screen_is_refused_though_it_is_called_the_same(tmp_path: Path) -> None:
    with GpuHolder() as training:
        shown = replace(as_shown(training), command="python important_new_run.py")
        training.exec()
        assert shown_command(training.pid) == shown.command
        refusal = refused(a_real_killer(tmp_path), shown)
        assert refusal.reason is Refusal.CHANGED
        assert refusal.detail == "it runs another program now: python important_new_run.py"


def test_a_title_that_changed_since_it_was_drawn_is_the_same_process(tmp_path: Path) -> None:
    with GpuHolder() as training:
        shown = as_shown(training)
        training.retitle()
        with pinned(a_real_killer(tmp_path), shown) as process:
            assert sent(process, signal.SIGTERM) is None
            training.wait_until_exited()


def test_where_the_program_on_screen_is_not_known_the_command_is_compared(tmp_path: Path) -> None:
    with GpuHolder() as training:
        shown = target_of(training)
        training.retitle()
        assert refused(a_real_killer(tmp_path), shown).detail == "its command is another"


def test_one_whose_first_thread_has_ended_since_is_the_same_process(tmp_path: Path) -> None:
    """The kernel tells neither memory nor files of the first thread then, only of those that go on."""
    with GpuHolder() as training, pinned(a_real_killer(tmp_path), as_shown(training)) as process:
        training.end_first_thread()
        assert sent(process, signal.SIGKILL) is None
        training.wait_until_exited()


def test_one_whose_first_thread_ended_before_the_question_is_the_same_process(tmp_path: Path) -> None:
    """It is shown by the command line that it had; the kernel tells none of it any more."""
    with GpuHolder() as training:
        owners = Owners()
        owners.read([training.pid])
        training.end_first_thread()
        (row,) = owners.read([training.pid])
        assert row.command == "python train.py"
        shown = target_of(training, command=row.command, program=row.program)
        with pinned(a_real_killer(tmp_path), shown) as process:
            assert sent(process, signal.SIGKILL) is None
            training.wait_until_exited()


def only(snapshot: Snapshot, pid: int) -> Process:
    """Return the row of a process."""
    return next(one for one in snapshot.processes if one.pid == pid)


def test_the_sampler_tells_another_program_from_another_title(driver: Driver) -> None:
    with mine() as training:
        driver.gpus = [Gpu(0, memory_used=GIB)]
        driver.procs = [Proc(0, training.pid, sm=0)]
        driver.write()
        with running(driver.env()) as sampler:
            first = only(sampler.until(lambda seen: bool(seen.processes)), training.pid)
            assert first.command == "python train.py"
            training.retitle()
            titled = [only(sampler.next(), training.pid) for _ in range(3)]
            assert {one.program for one in titled} == {first.program} != {""}
            training.exec()
            other = only(sampler.until(lambda seen: only(seen, training.pid).program != first.program), training.pid)
            assert (other.command, other.name) == ("python important_new_run.py", first.name)
