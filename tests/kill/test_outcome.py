"""The sentences about what became of a process and of its memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuwatch.kill.outcome import End, GpuMemory, Outcome, Refusal, Refused, memory_after, of_several
from gpuwatch.units import GIB

EXITED = Outcome(End.EXITED, 1.4)


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (EXITED, "exited after 1.4 s"),
        (Outcome(End.ZOMBIE, 2, parent=(4711, "sh")), "exited after 2 s, zombie: parent 4711 (sh) has not reaped it"),
        (Outcome(End.ZOMBIE, 2), "exited after 2 s, zombie: its parent has not reaped it"),
        (Outcome(End.RUNNING, 10), "still running after 10 s: it ignores SIGTERM or takes its time"),
        (Outcome(End.RUNNING, 20, killed=True), "still running after 20 s, and SIGKILL was sent"),
        (Outcome(End.STOPPED, 10), "stopped (Ctrl-Z or a debugger) after 10 s: SIGTERM waits until it is continued"),
        (Outcome(End.STUCK, 10), "waiting in the kernel (state D) after 10 s: no signal reaches it there"),
        (
            Outcome(End.STUCK, 20, killed=True),
            "stuck in the kernel (state D) after 20 s: only a driver reset or a reboot will clear it",
        ),
        (Outcome(End.DENIED, detail="Operation not permitted"), "not permitted: Operation not permitted"),
        (Outcome(End.DENIED), "not permitted"),
        (Outcome(End.GONE), "had already exited; nothing was sent"),
    ],
)
def test_each_outcome_has_its_sentence(outcome: Outcome, sentence: str) -> None:
    assert outcome.sentence == sentence
    assert memory_after(outcome, []) == sentence
    assert outcome.over is (outcome.end in (End.EXITED, End.ZOMBIE, End.GONE))


def gpu(index: int, held: float | None, before: float | None, after: float | None) -> GpuMemory:
    """Figures in GiB."""
    held_bytes, before_bytes, after_bytes = (None if n is None else int(n * GIB) for n in (held, before, after))
    return GpuMemory(index, held_bytes, before_bytes, after_bytes)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([gpu(4, 12, 30, 18)], ", 12.0 GiB freed on GPU 4"),
        ([gpu(4, 12, 30, 10)], ", 12.0 GiB freed on GPU 4"),  # the rest of the drop is somebody else's
        ([gpu(4, 12, 30, 30)], ", memory not yet freed"),
        ([gpu(4, 12, 30, 33)], ", memory not yet freed"),
        ([gpu(4, 12, 30, 27)], ", 3.0 GiB of 12.0 GiB freed on GPU 4"),
        ([gpu(5, 12, 30, 18), gpu(4, 12, 12, 0)], ", 24.0 GiB freed on GPUs 4, 5"),
        ([gpu(4, None, 30, 18)], ", 12.0 GiB freed on GPU 4"),
        ([gpu(4, 12, 30, None)], ""),
        ([gpu(4, 12, 30, 18), gpu(5, 12, None, 0)], ""),
        ([gpu(4, 12, 30, 18), gpu(5, 0, 3, 3)], ", 12.0 GiB freed on GPU 4"),
        ([], ""),
    ],
)
def test_only_memory_that_is_known_to_be_free_is_called_free(gpus: list[GpuMemory], expected: str) -> None:
    assert memory_after(EXITED, gpus) == f"exited after 1.4 s{expected}"


@pytest.mark.parametrize(
    ("pids", "said"),
    [([71], "PID 71"), ([71, 72], "PIDs 71, 72"), (range(71, 197), "PIDs 71, 72, 73, 74, 75 and 121 more")],
)
def test_who_still_holds_it_is_named(pids: Sequence[int], said: str) -> None:
    assert memory_after(EXITED, [gpu(4, 12, 30, 30)], pids) == f"exited after 1.4 s; still held by {said}"


def test_nothing_is_promised_where_the_gpu_shares_the_memory_of_the_machine() -> None:
    assert memory_after(EXITED, [gpu(0, 12, 30, 30)], must_fall=False) == "exited after 1.4 s"


def test_a_zombie_has_given_its_memory_back() -> None:
    zombie = Outcome(End.ZOMBIE, 1.4, parent=(9, "sh"))
    assert memory_after(zombie, [gpu(4, 12, 30, 18)]).endswith("has not reaped it, 12.0 GiB freed on GPU 4")


@pytest.mark.parametrize("reason", list(Refusal))
def test_each_refusal_has_its_sentence(reason: Refusal) -> None:
    plain = Refused(reason, 7).sentence
    assert plain
    assert Refused(reason, 7, "because").sentence == f"{plain}: because"


@pytest.mark.parametrize(
    ("each", "sentence"),
    [
        ([(1, Outcome(End.EXITED, 2))], "exited after 2 s"),  # one alone keeps its own words
        ([(1, Outcome(End.EXITED, 2)), (2, Outcome(End.EXITED, 3))], "all 2 exited after 3 s"),
        ([(1, Outcome(End.GONE)), (2, Outcome(End.GONE))], "all 2 had already exited; nothing was sent"),
        (
            [(1, Outcome(End.EXITED, 2)), (2, Outcome(End.RUNNING, 10)), (3, Outcome(End.RUNNING, 10))],
            "1 of 3 exited after 10 s, 2 still running: PIDs 2, 3",
        ),
        (
            [(1, Outcome(End.STOPPED, 10)), (2, Outcome(End.STUCK, 10)), (3, Outcome(End.DENIED, 10))],
            "0 of 3 exited after 10 s, 1 stopped (Ctrl-Z or a debugger): PID 1, "
            "1 in the kernel (state D), where no signal reaches: PID 2, 1 not permitted: PID 3",
        ),
        (
            [(1, Outcome(End.EXITED, 2)), (2, Outcome(End.ZOMBIE, 2, parent=(9, "sh")))],
            "all 2 exited after 2 s, 1 zombie until reaped by its parent: PID 2",
        ),
        (
            [(1, Outcome(End.EXITED, 2)), (2, Outcome(End.RUNNING, 20, killed=True))],
            "1 of 2 exited after 20 s, 1 still running and SIGKILL was sent: PID 2",
        ),
    ],
)
def test_the_outcome_of_several_in_words(each: list[tuple[int, Outcome]], sentence: str) -> None:
    whole = of_several(each)
    assert whole.sentence == sentence
    assert whole.over is all(one.over for _, one in each)
