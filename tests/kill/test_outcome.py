"""The sentences about what became of a process and of its memory."""

from __future__ import annotations

import pytest

from gpuwatch.kill.outcome import End, GpuMemory, Outcome, Refusal, Refused, memory_after
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


def test_who_still_holds_it_is_named() -> None:
    figures = [gpu(4, 12, 30, 30)]
    assert memory_after(EXITED, figures, [71]) == "exited after 1.4 s; still held by PID 71"
    assert memory_after(EXITED, figures, [71, 72]) == "exited after 1.4 s; still held by PIDs 71, 72"
    crowd = memory_after(EXITED, figures, range(71, 197))
    assert crowd == "exited after 1.4 s; still held by PIDs 71, 72, 73, 74, 75 and 121 more"


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
