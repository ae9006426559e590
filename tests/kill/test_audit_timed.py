"""A record on a file system that does not answer, and the killer made of it."""

from __future__ import annotations

import threading
from pathlib import Path

from gpuwatch.kill.audit import TimedAudit
from gpuwatch.kill.target import make_killer, shown_command
from tests.support.gpuholder import GpuHolder
from tests.support.killing import NO_PROCESS


def test_a_record_that_does_not_answer_is_given_up_and_written_later(tmp_path: Path) -> None:
    answer = threading.Event()

    def write(descriptor: int, line: bytes) -> int:
        answer.wait()
        return len(line)

    audit = TimedAudit(tmp_path, write=write, seconds=0.01)
    assert "the file system does not answer" in (audit.append("intent", {}) or "")
    assert "the file system does not answer" in (audit.problem() or "")
    answer.set()


def test_a_record_that_answers(tmp_path: Path) -> None:
    audit = TimedAudit(tmp_path, seconds=30)
    assert audit.problem() is None
    assert audit.append("intent", {"pid": 1}) is None
    assert '"event":"intent"' in audit.path.read_text()


def test_the_killer_of_the_dashboard_knows_the_command_as_it_is_shown() -> None:
    killer = make_killer(read_only=True, allow_root=False)
    assert killer.policy.read_only
    assert isinstance(killer.audit, TimedAudit)
    with GpuHolder(["python", "train.py", "--token", "hunter2hunter2"]) as training:
        assert shown_command(training.pid) == "python train.py --token ***"
    assert shown_command(NO_PROCESS) is None
