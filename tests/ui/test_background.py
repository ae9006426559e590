"""Calls behind the screen, a record on a file system that does not answer, and the killer made of them."""

from __future__ import annotations

import threading
from pathlib import Path

from gpuwatch.ui.background import Background, PatientAudit, make_killer, shown_command
from tests.support.gpuholder import GpuHolder
from tests.support.killing import NO_PROCESS


def test_background_calls_are_made_in_order_and_hand_over_errors() -> None:
    background = Background("test-background")
    done: list[int] = []
    first, second = background(lambda: done.append(1)), background(lambda: done.append(2))
    failed = background(lambda: 1 / 0)
    assert isinstance(failed.exception(10), ZeroDivisionError)
    assert first.done()
    assert second.done()
    assert done == [1, 2]


def test_a_record_that_does_not_answer_is_given_up_and_written_later(tmp_path: Path) -> None:
    answer = threading.Event()

    def write(descriptor: int, line: bytes) -> int:
        answer.wait()
        return len(line)

    audit = PatientAudit(tmp_path, write=write, seconds=0.01)
    assert "the file system does not answer" in (audit.append("intent", {}) or "")
    assert "the file system does not answer" in (audit.problem() or "")
    answer.set()


def test_a_record_that_answers(tmp_path: Path) -> None:
    audit = PatientAudit(tmp_path, seconds=30)
    assert audit.problem() is None
    assert audit.append("intent", {"pid": 1}) is None
    assert '"event":"intent"' in audit.path.read_text()


def test_the_killer_of_the_dashboard_knows_the_command_as_it_is_shown() -> None:
    killer = make_killer(read_only=True, allow_root=False)
    assert killer.policy.read_only
    assert isinstance(killer.audit, PatientAudit)
    with GpuHolder(["python", "train.py", "--token", "hunter2hunter2"]) as training:
        assert shown_command(training.pid) == "python train.py --token ***"
    assert shown_command(NO_PROCESS) is None
