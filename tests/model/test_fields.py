"""Words about the host in the dashboard's header and in `--once`."""

from __future__ import annotations

import pytest

from gpuwatch.model.fields import host_words, process_words
from gpuwatch.model.snapshot import Gpu, Health, HostUsage, Reason
from tests.support.builders import GIB, gpu

MEASURED = HostUsage(
    cores=64, cpu=36.6, memory_total=512 * GIB, memory_used=212 * GIB, swap_total=8 * GIB, swap_used=0, load=12.14
)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (HostUsage(), ""),  # an older recording
        (MEASURED, "CPU 37 % · RAM 212/512 GiB · swap 0 · load 12.1"),
        (
            HostUsage(cpu=Reason.ERROR, memory_used=GIB, memory_total=7 * GIB, swap_total=0, swap_used=0, load=0.04),
            "CPU ? · RAM 1.0/7.0 GiB · no swap · load 0.0",
        ),
        (
            HostUsage(memory_used=Reason.ERROR, swap_used=3 * GIB, load=Reason.ERROR),
            "RAM ?/? GiB · swap 3.0 GiB · load ?",
        ),
        (
            HostUsage(cpu=4, cpu_limit=2.5, memory_limit=16 * GIB, memory_of_limit=3 * GIB),
            "CPU 4 % · container 2.5 CPUs, 3.0/16 GiB",
        ),
        (HostUsage(cpu_limit=1.0), "container 1 CPU"),
    ],
)
def test_words_about_the_host(usage: HostUsage, expected: str) -> None:
    assert " · ".join(host_words(usage, "?")) == expected


@pytest.mark.parametrize(
    ("notes", "count", "words"),
    [
        (["", ""], 0, "0 processes"),
        (["", ""], 1, "1 process"),
        (["no list", "no list"], 0, "processes not listed"),
        (["no list", ""], 0, "0 processes listed"),
        (["no list", "no list"], 3, "3 processes listed"),
        ([], 0, "0 processes"),
    ],
)
def test_a_count_of_processes_says_where_there_may_be_others(notes: list[str], count: int, words: str) -> None:
    gpus = [gpu(index, holdings_note=note) for index, note in enumerate(notes)]
    assert process_words(gpus, count) == words
    lost = Gpu(index=9, health=Health.LOST)
    assert process_words([*gpus, lost], count) == words
