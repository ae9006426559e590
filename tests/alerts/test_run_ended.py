"""The note that a run of the viewer's own has ended: when it comes, what it says, and what is no end."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rules.runs import LEAST, RUN_ENDED, SURE, RunFollower
from gpuwatch.model.snapshot import Presence, Process, ProcessContext, Reason, Run
from tests.support.alerts import Bench
from tests.support.builders import EPOCH, gpu, holding, process, uid

STEP = 5.0


class Machine:
    """Two GPUs with a process on each."""

    def __init__(self, *pids: int, **facts: Any) -> None:
        self.alive, self.listed = {*pids}, {*pids}
        self.facts = {"user": "you", "started": EPOCH - 100.0, **facts}
        self.run = Run(key="torchrun-1", name="train.py")
        self.held: dict[str, Any] = {"sm": 50}
        self.bench = Bench(Limits(quiet=0), rules=(RunFollower(lambda pid, start: pid in self.alive).rule,))

    def person(self, pid: int) -> Process:
        gone = {} if pid in self.alive else {"presence": Presence.GONE}
        return process(pid, **{"context": ProcessContext(run=self.run), **self.facts, **gone})

    def watch(self, seconds: float) -> list[Alert]:
        """Let time pass; return the notes."""
        found: list[Alert] = []
        for _ in range(round(seconds / STEP)):
            cards = [gpu(pid - 1, holdings=[holding(pid, 20.0, **self.held)] * (pid in self.listed)) for pid in (1, 2)]
            came = self.bench.feed(*cards, people=map(self.person, self.listed), seconds=STEP, interval=STEP)
            assert (came.active, came.raised) == ((), came.cleared), "what has no duration is over at once"
            found += came.raised
        return found

    def end(self, *pids: int, keeps: bool = False) -> None:
        """End processes, whose memory the driver frees unless it `keeps` it."""
        self.alive -= {*pids}
        self.listed -= set() if keeps else {*pids}


def test_a_run_that_has_ended_is_a_note_with_all_that_is_known_of_it() -> None:
    machine = Machine(1, 2)
    assert machine.watch(300) == []
    machine.held = {"sm": 0}
    assert machine.watch(LEAST - 300) == []
    machine.end(1)
    assert machine.watch(60) == [], "another rank runs on"
    machine.end(2, keeps=True)
    (note,) = machine.watch(60)
    assert (note.rule, note.severity, note.owners) == (RUN_ENDED, Severity.NOTE, ("you",))
    assert note.title == "run train.py has ended after 12 min"
    left = "pid 2 has ended and still holds 20.0 GiB on GPU 1"
    assert note.evidence == f"peak 40.0 GiB on GPU 0-1 · idle 53 % of 20 min 50 s of GPU time · {left}"
    assert note.ended == note.raised == machine.bench.wall - 60 + SURE + STEP
    assert machine.watch(60) == [], "once"


@pytest.mark.parametrize(
    ("facts", "held", "notes"),
    [
        ({"user": "ada", "uid": uid("ada")}, LEAST + 300, 0),  # somebody else's
        ({"context": None}, LEAST + 300, 0),  # which run it belongs to was not read
        ({"started": EPOCH - 30.0}, LEAST - 60, 0),  # too short
        ({"started": EPOCH - 7200.0}, 30, 1),  # it held the GPU before gpuwatch began
    ],
)
def test_it_is_about_own_runs_of_ten_minutes(facts: dict[str, Any], held: float, notes: int) -> None:
    machine = Machine(1, **facts)
    machine.held = {"sm": Reason.UNSUPPORTED, "memory": Reason.UNSUPPORTED}
    machine.watch(held)
    machine.end(1)
    assert [note.evidence for note in machine.watch(60)] == ["its memory is not known on GPU 0"] * notes


def test_what_only_leaves_the_list_or_is_restarted_has_not_ended() -> None:
    machine = Machine(1)
    machine.watch(LEAST)
    machine.listed.clear()
    assert machine.watch(120) == [], "it goes on without a GPU"
    machine.run = Run(key="torchrun-1", name="train.py", head=900, head_start=900)
    machine.alive.add(900)
    machine.listed.add(1)
    machine.watch(STEP)
    machine.end(1)
    assert machine.watch(300) == [], "its launcher starts the rank again"
    machine.end(900)
    assert machine.watch(SURE - STEP) == []
    machine.alive.add(2)
    machine.listed.add(2)
    assert machine.watch(60) == [], "another rank of it came"
    machine.run = Run(key="2:2", name="train.py", orphaned=True)
    assert machine.watch(60) == [], "it goes on under another key"
    machine.end(2)
    assert len(machine.watch(60)) == 1
