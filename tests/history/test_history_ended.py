"""A process that ends and whose memory stays: of it only the PID is left, and its history goes on."""

from __future__ import annotations

from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.history import History, Idle
from gpuwatch.model import Presence, Process
from tests.support.alerting import Bench, only
from tests.support.builders import GIB, gpu, holding, process
from tests.support.histories import KEY, machine, watched


def test_it_has_not_grown_by_that() -> None:
    history = History()
    for second in range(70):
        watched(history, machine(holding(7, 40, sm=5)), second)
    view = watched(history, machine(holding(7, 40, start=0, sm=0)), 70)
    assert view.growth(KEY, 7, 0) == 0
    assert view.idle(KEY, 7, 0) == Idle(1.0, at_least=False)


def test_one_that_comes_without_a_start_time_has_grown_from_nothing() -> None:
    history = History()
    watched(history, machine(holding(8, 1)), 0)
    assert watched(history, machine(holding(8, 1), holding(7, 40, start=0)), 1).growth(KEY, 7, 0) == 40 * GIB


def test_nobody_is_said_to_have_grown() -> None:
    bench = Bench()
    for start, person in ((100, process(100)), (0, Process(pid=100, presence=Presence.GONE))):
        for _ in range(5):
            bench.feed(gpu(0, holdings=[holding(100, 74, start=start)]), people=[person])
    assert only(bench, MEMORY).evidence == "pid 100 (gone) holds 74.0 GiB"
