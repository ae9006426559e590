"""Memory that ended processes held: figures of each GPU before and after the end, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from gpuwatch.kill.ending import FreedMemory
from gpuwatch.kill.outcome import End, Outcome
from gpuwatch.model.snapshot import Reason
from tests.support import builders

UNKNOWN = Reason.NO_SAMPLE
ENDED = Outcome(End.EXITED, 2.0)


@pytest.mark.parametrize(
    ("before", "after", "samples", "words", "free"),
    [
        ([(40, 12)], [28], [2], "12.0 GiB freed on GPU 0", True),
        ([(40, 12)], [10], [2], "12.0 GiB freed on GPU 0", True),  # somebody else freed 18 at the same time
        ([(40, 12)], [28.6], [2], "11.4 GiB freed on GPU 0", True),  # the driver rounds
        ([(40, 12)], [36], [2], "4.0 GiB of 12.0 GiB freed on GPU 0", False),
        ([(40, 12)], [40], [2], "memory not yet freed", False),
        ([(40, 12)], [60], [2], "memory not yet freed", False),
        ([(40, 12)], [28], [1], "", False),
        ([(40, 12)], [UNKNOWN], [2], "", False),
        ([(40, 12), (40, 6)], [10, 34], [2, 2], "18.0 GiB freed on GPUs 0, 1", True),
        ([(40, 12), (40, 6)], [10, 40], [2, 2], "12.0 GiB of 18.0 GiB freed on GPUs 0, 1", False),
        ([(40, 12), (40, 6)], [28, 34], [2, 1], "", False),
        ([(40, 12), (40, 6)], [28, 34], [0, 2], "", False),
        ([(40, 12), (40, 6)], [28, UNKNOWN], [2, 2], "", False),
        ([(40, 12), (40, 0)], [28, 10], [2, 2], "12.0 GiB freed on GPU 0", True),
    ],
)
def test_what_became_of_the_memory(
    before: Sequence[tuple[int, int]], after: Sequence[float | Reason], samples: Sequence[int], words: str, free: bool
) -> None:
    """`before` is what is used on each GPU and what of it the process holds, in GiB; `samples` are those afterwards."""
    gpus = [
        builders.gpu(index, used_gib=used, holdings=[builders.holding(7, held), builders.holding(8, used - held)])
        for index, (used, held) in enumerate(before)
    ]
    memory = FreedMemory(builders.snapshot(gpus), [7], [])
    memory.begin(builders.snapshot(gpus))
    for second in (1, 2):
        for index, used in enumerate(after):
            if second <= samples[index]:
                now = builders.memory(0, used=used) if isinstance(used, Reason) else builders.memory(used)
                gpus[index] = replace(gpus[index], memory=now, sampled=1000.0 + second)
        memory.observe(builders.snapshot(gpus))
    assert memory.sentence(ENDED) == f"exited after 2 s{', ' * bool(words)}{words}"
    assert memory.is_free is free
    assert memory.sentence(Outcome(End.RUNNING)) == Outcome(End.RUNNING).sentence
