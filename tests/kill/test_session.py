"""The steps of a session: a scripted process, a clock that is told, no widget."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, cast

import pytest

from gpuwatch.analysis.rows import rows
from gpuwatch.kill.outcome import MEMORY_PATIENCE, End, Outcome, Refusal, Refused
from gpuwatch.kill.policy import Policy
from gpuwatch.kill.run import Run
from gpuwatch.kill.session import (
    CHOICES,
    DEMO_NOTICE,
    GRACE_SECONDS,
    KILL_SECONDS,
    LOOK_EVERY,
    REAP_SECONDS,
    Choice,
    Phase,
    PinnedProcess,
    Session,
    call_now,
)
from gpuwatch.kill.target import Killer, Pinned, Target, target_of
from gpuwatch.model import Snapshot
from tests.support import builders
from tests.support.killing import Clock

PID = 15260
POLICY = Policy(uid=builders.uid("you"), euid=builders.uid("you"), pid=1)


class Scripted:
    """A pinned process that does what the test says."""

    def __init__(self) -> None:
        self.target = Target(PID, PID, 1000, "python train.py")
        self.weaker = ""
        self.run = ""
        self.sent: list[signal.Signals] = []
        self.gone = False
        self.closed = 0
        self.fails: Outcome | None = None
        self.end = End.EXITED
        self.alive_as = End.RUNNING
        self.holders: tuple[int, ...] = ()
        self.ignored: tuple[signal.Signals, ...] = ()
        self.recorded: list[tuple[str, dict[str, object]]] = []
        self.unwritable: str | None = None

    def send(self, sig: signal.Signals) -> Outcome | None:
        assert not self.closed
        assert self.recorded[-1] == ("intent", {"signal": sig.name})
        if self.fails is None:
            self.sent.append(sig)
        return self.fails

    def exited(self) -> bool:
        assert not self.closed
        return self.gone

    def look(self, *, seconds: float = 0.0, killed: bool = False) -> Outcome:
        if self.gone:
            return Outcome(self.end, seconds, killed, (4711, "bash") if self.end is End.ZOMBIE else None)
        return Outcome(self.alive_as, seconds, killed)

    def leftovers(self, listed: Collection[int] = ()) -> tuple[int, ...]:
        return self.holders

    def ignores(self, sig: signal.Signals) -> bool:
        return sig in self.ignored

    def record(self, event: str, **fields: object) -> str | None:
        self.recorded.append((event, fields))
        return self.unwritable

    def find_family(self) -> None:
        assert not self.closed

    def family(self) -> tuple[int, ...]:
        return ()

    def on_gpu(self) -> bool:
        return not self.gone

    def close(self) -> None:
        self.closed += 1


class Stage:
    """A session with all that is around it, the access to processes included."""

    def __init__(self, **changes: Any) -> None:
        self.clock = Clock()
        self.policy = changes.pop("policy", POLICY)
        self.notice = changes.pop("notice", "")
        self.process = Scripted()
        self.unwritable: str | None = changes.pop("problem", None)
        self.process.weaker = changes.pop("weaker", "")
        self.process.ignored = changes.pop("ignored", ())
        self.name = changes.pop("name", "NVIDIA H100 80GB HBM3")
        self.refusal: Refused | None = changes.pop("refusal", None)
        held = {PID: 12.0}
        self.snapshot = self.seen(0, held)
        target = target_of(rows(self.snapshot), self.snapshot)
        self.session = Session(
            cast(Killer, self),
            target,
            self.snapshot,
            submit=changes.pop("submit", call_now),
            clock=self.clock,
            **changes,
        )

    def problem(self) -> str | None:
        return self.unwritable

    def pin(self, target: Target) -> PinnedProcess | Refused:
        return self.refusal or cast(Pinned, self.process)

    def pin_run(self, held: PinnedProcess, snapshot: Snapshot, *, asked: bool = True) -> Run | Refused:
        raise AssertionError("nobody asked for its run")

    def refuse(self, target: Target, refused: Refused, **more: object) -> None:
        raise AssertionError("what is refused here is on record already")

    def seen(self, seconds: float, held: dict[int, float]) -> Snapshot:
        """What is sampled so many seconds after the first snapshot."""
        gpu = builders.gpu(4, holdings=[builders.holding(pid, gib) for pid, gib in held.items()], name=self.name)
        return builders.at(builders.snapshot([gpu], [builders.process(PID, "you")]), seconds)

    def show(self, *moments: tuple[float, dict[int, float]]) -> None:
        """Hand in snapshots."""
        for seconds, held in moments:
            self.session.observe(self.seen(seconds, held))

    def tick(self, seconds: float = 0.0) -> Phase:
        """Let time pass, then look until nothing more happens at this moment."""
        self.clock.now += seconds
        for _ in range(4):
            self.session.tick()
        return self.session.phase

    def asked(self) -> Stage:
        """Go on to the question."""
        assert self.tick() is Phase.ASKING
        return self

    def terminated(self) -> Stage:
        """Go on to the countdown."""
        self.asked().session.choose(Choice.TERMINATE)
        assert self.tick() is Phase.STOPPING
        return self


def test_the_first_choice_never_signals() -> None:
    """Whatever the phase, Enter on a fresh row of buttons is harmless."""
    for choices in CHOICES.values():
        assert choices[0].signal is None


def test_pinning_comes_first_and_the_question_after_it() -> None:
    stage = Stage()
    assert stage.session.phase is Phase.CHECKING
    stage.asked()
    assert stage.session.view.choices == (Choice.CANCEL, Choice.INTERRUPT, Choice.TERMINATE)
    assert stage.session.view.message == ""
    assert not stage.process.sent


@pytest.mark.parametrize("choice", [Choice.KILL, Choice.WAIT, Choice.LEAVE, Choice.CLOSE])
def test_a_button_of_another_phase_does_nothing(choice: Choice) -> None:
    stage = Stage().asked()
    assert not stage.session.choose(choice)
    assert stage.tick() is Phase.ASKING
    assert not stage.process.sent


def test_cancel_gives_the_handle_back_and_records_nothing() -> None:
    stage = Stage().asked()
    assert stage.session.choose(Choice.CANCEL)
    assert (stage.session.over, stage.process.closed, stage.process.recorded) == (True, 1, [])


def test_cancel_while_it_is_checked_closes_what_comes_of_it() -> None:
    jobs: list[tuple[Callable[[], Any], Future[Any]]] = []

    def later(call: Callable[[], Any]) -> Future[Any]:
        jobs.append((call, Future()))
        return jobs[-1][1]

    stage = Stage(submit=later)
    assert stage.session.choose(Choice.CANCEL)
    assert stage.tick() is Phase.CHECKING
    jobs[0][1].set_result(jobs[0][0]())
    assert stage.tick() is Phase.OVER
    jobs[1][0]()
    assert (stage.process.closed, stage.process.sent) == (1, [])


def test_a_refusal_says_why_and_offers_only_to_close() -> None:
    stage = Stage(refusal=Refused(Refusal.NO_DEVICE, PID))
    assert stage.tick() is Phase.REFUSED
    assert "no GPU device" in stage.session.view.message
    assert stage.session.view.choices == (Choice.CLOSE,)


def test_a_refusal_of_somebody_elses_process_names_them() -> None:
    stage = Stage(refusal=Refused(Refusal.NOT_YOURS, PID), policy=Policy(uid=1, euid=1, pid=1))
    stage.tick()
    assert stage.session.view.message == "it belongs to you, and gpuwatch signals only your own processes"


def test_what_is_not_real_is_refused_without_a_look() -> None:
    stage = Stage(notice=DEMO_NOTICE)
    assert stage.session.phase is Phase.REFUSED
    assert stage.session.message == "a demo can end no real process"
    assert stage.session.choose(Choice.CLOSE)
    assert stage.tick() is Phase.REFUSED


def test_sigterm_exit_and_memory_freed() -> None:
    stage = Stage().terminated()
    assert stage.process.sent == [signal.SIGTERM]
    assert stage.session.view.message == "asked to stop, 10 s …"
    stage.tick(1.4)
    assert stage.session.view.message == "asked to stop, 9 s …"
    stage.process.gone = True
    assert stage.tick(LOOK_EVERY) is Phase.FREEING
    stage.show((1, {}))
    assert stage.tick() is Phase.FREEING  # the first sample may have begun before the exit
    stage.show((2, {}))
    assert stage.tick() is Phase.OVER
    assert stage.session.view.message == "exited after 1.5 s, 12.0 GiB freed on GPU 4"
    assert stage.process.closed == 1


def test_the_same_sample_again_is_not_a_fresh_one() -> None:
    stage = Stage().terminated()
    stage.process.gone = True
    stage.tick(1)
    stage.show((1, {}), (1, {}), (1, {}))
    assert stage.tick() is Phase.FREEING


FREED: dict[int, float] = {}
STILL = {PID: 12.0}


@pytest.mark.parametrize(
    ("changes", "holders", "moments", "message"),
    [
        ({}, (), [(1, STILL), (2, STILL), (3, FREED)], "exited after 1 s, 12.0 GiB freed on GPU 4"),  # freed late
        ({}, (), [(1, STILL), (2, STILL)], "exited after 1 s, memory not yet freed"),
        ({}, (15261, 15262), [(1, STILL), (2, STILL)], "exited after 1 s; still held by PIDs 15261, 15262"),
        ({}, (), [], "exited after 1 s"),  # no sample shows anything
        ({"name": "NVIDIA GH200 480GB"}, (), [(1, STILL), (2, STILL)], "exited after 1 s"),
        ({"name": "NVIDIA GB10"}, (15261,), [(1, STILL), (2, STILL)], "exited after 1 s; still held by PID 15261"),
        ({"name": "NVIDIA Thor"}, (15261,), [(1, STILL), (2, STILL)], "exited after 1 s; still held by PID 15261"),
    ],
)
def test_memory_is_reported_as_far_as_samples_tell(
    changes: dict[str, Any], holders: tuple[int, ...], moments: list[tuple[float, dict[int, float]]], message: str
) -> None:
    stage = Stage(**changes).terminated()
    stage.process.gone, stage.process.holders = True, holders
    stage.tick(1)
    stage.show(*moments)
    stage.tick(MEMORY_PATIENCE)
    assert (stage.tick(), stage.session.message) == (Phase.OVER, message)
    assert stage.session.ended


def test_a_zombie_is_called_one() -> None:
    stage = Stage().terminated()
    stage.process.gone, stage.process.end = True, End.ZOMBIE
    assert stage.tick(1) is Phase.STOPPING  # its parent is given a moment to reap it
    assert stage.tick(REAP_SECONDS) is Phase.FREEING
    stage.show((3, {}), (4, {}))
    stage.tick()
    assert "zombie: parent 4711 (bash) has not reaped it, 12.0 GiB freed" in stage.session.message


def test_ignored_then_waited_for_then_killed() -> None:
    stage = Stage().terminated()
    assert stage.tick(GRACE_SECONDS) is Phase.STILL_THERE
    assert stage.session.view.message == "ignored SIGTERM for 10 s"
    assert stage.session.view.choices == (Choice.WAIT, Choice.KILL, Choice.LEAVE)
    assert not stage.session.choose(Choice.WAIT)
    assert stage.tick(1) is Phase.STOPPING
    assert stage.session.view.message == "asked to stop, 9 s …"
    assert stage.tick(GRACE_SECONDS) is Phase.STILL_THERE
    assert stage.session.view.message == "ignored SIGTERM for 21 s"
    assert stage.process.sent == [signal.SIGTERM]
    assert not stage.session.choose(Choice.KILL)
    assert stage.tick() is Phase.KILLING
    assert stage.session.view.message == "SIGKILL sent, 10 s …"
    assert stage.process.sent == [signal.SIGTERM, signal.SIGKILL]
    stage.process.gone = True
    assert stage.tick(1) is Phase.FREEING


def test_an_exit_while_it_asks_again_is_noticed() -> None:
    stage = Stage().terminated()
    stage.tick(GRACE_SECONDS)
    stage.process.gone = True
    assert stage.tick(1) is Phase.FREEING
    assert stage.process.sent == [signal.SIGTERM]


def test_left_alone() -> None:
    stage = Stage().terminated()
    stage.tick(GRACE_SECONDS)
    assert stage.session.choose(Choice.LEAVE)
    assert (stage.session.phase, stage.process.closed) == (Phase.OVER, 1)
    assert stage.process.recorded[-1] == ("outcome", {"result": "running", "seconds": 10.0, "detail": ""})


def test_stuck_in_the_kernel() -> None:
    stage = Stage().terminated()
    stage.process.alive_as = End.STUCK
    stage.tick(GRACE_SECONDS)
    assert "state D" in stage.session.view.message
    stage.session.choose(Choice.KILL)
    stage.tick()
    assert stage.tick(KILL_SECONDS) is Phase.OVER
    assert "only a driver reset or a reboot" in stage.session.message


@pytest.mark.parametrize(("end", "words"), [(End.GONE, "nothing was sent"), (End.DENIED, "not permitted: no")])
def test_what_could_not_be_signalled(end: End, words: str) -> None:
    stage = Stage().asked()
    stage.process.fails = Outcome(end, detail="no")
    stage.session.choose(Choice.TERMINATE)
    assert stage.tick() is Phase.OVER
    assert words in stage.session.message


def test_warnings_are_there_before_the_question() -> None:
    stage = Stage(problem="cannot record", weaker="weaker check").asked()
    assert stage.session.view.warnings == ("weaker check", "cannot record")
    stage.session.choose(Choice.TERMINATE)
    assert stage.tick() is Phase.STOPPING


@pytest.mark.parametrize("where", ["file", "line"])
def test_a_signal_that_cannot_be_recorded_is_held_back_and_asked_about_again(where: str) -> None:
    """Nobody confirmed an unrecorded signal. On a full disk the file can be opened, and only its line fails."""
    stage = Stage().asked()
    if where == "file":
        stage.unwritable = "cannot record: disk full"
    else:
        stage.process.unwritable = "cannot record: disk full"
    stage.session.choose(Choice.INTERRUPT)
    assert stage.tick() is Phase.ASKING
    assert stage.process.sent == []
    assert stage.session.view.warnings == ("cannot record: disk full",)
    stage.session.choose(Choice.INTERRUPT)
    assert stage.tick() is Phase.STOPPING
    assert stage.process.sent == [signal.SIGINT]


def test_a_harder_signal_waits_for_its_line_too() -> None:
    stage = Stage().terminated()
    assert stage.tick(GRACE_SECONDS + 1) is Phase.STILL_THERE
    stage.process.unwritable = "cannot record: disk full"
    stage.session.choose(Choice.KILL)
    assert stage.tick() is Phase.STILL_THERE
    assert stage.process.sent == [signal.SIGTERM]
    stage.session.choose(Choice.KILL)
    assert stage.tick() is Phase.KILLING
    assert stage.process.sent == [signal.SIGTERM, signal.SIGKILL]


def test_a_fault_of_our_own_is_told_and_nothing_is_left_open() -> None:
    stage = Stage().terminated()
    stage.process.exited = lambda: 1 / 0  # type: ignore[assignment,return-value]
    assert stage.tick(1) is Phase.OVER
    assert "gpuwatch failed at it: division by zero" in stage.session.message
    assert stage.process.closed == 1


def test_an_unanswered_sigint_is_followed_by_sigterm_and_only_then_by_sigkill() -> None:
    stage = Stage().asked()
    stage.session.choose(Choice.INTERRUPT)
    assert stage.tick() is Phase.STOPPING
    assert stage.tick(GRACE_SECONDS) is Phase.STILL_THERE
    assert stage.session.view.message == "ignored SIGINT for 10 s"
    assert stage.session.view.choices == (Choice.WAIT, Choice.TERMINATE, Choice.LEAVE)
    assert not stage.session.choose(Choice.KILL)
    stage.session.choose(Choice.TERMINATE)
    assert stage.tick() is Phase.STOPPING
    assert stage.tick(GRACE_SECONDS) is Phase.STILL_THERE
    assert stage.session.view.message == "ignored SIGTERM for 20 s"
    assert stage.session.view.choices == (Choice.WAIT, Choice.KILL, Choice.LEAVE)
    assert stage.process.sent == [signal.SIGINT, signal.SIGTERM]


def test_sigint_is_not_offered_to_who_ignores_it() -> None:
    stage = Stage(ignored=(signal.SIGINT,)).asked()
    assert stage.session.view.choices == (Choice.CANCEL, Choice.TERMINATE)
    assert stage.session.view.notes[0].startswith("it ignores SIGINT")
    assert not stage.session.choose(Choice.INTERRUPT)
    assert stage.tick() is Phase.ASKING
    assert not stage.process.sent


def test_a_run_of_one_offers_no_choice_of_scope() -> None:
    stage = Stage().asked()
    stage.session.toggle()
    assert (stage.session.whole_run, stage.session.view.scope, stage.session.view.members) == (False, "", ())
