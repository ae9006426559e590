"""The background worker: calls in order, a task on time, an end within a deadline."""

from __future__ import annotations

import threading

from gpuwatch.threads import Worker


def test_a_worker_makes_calls_in_order_and_hands_over_errors() -> None:
    worker = Worker("test-worker")
    done: list[int] = []
    first, second = worker(lambda: done.append(1)), worker(lambda: done.append(2))
    failed = worker(lambda: 1 / 0)
    assert isinstance(failed.exception(10), ZeroDivisionError)
    assert first.done()
    assert second.done()
    assert done == [1, 2]


def test_a_task_comes_when_it_is_woken_or_when_its_time_has_come_and_once_more_at_the_end() -> None:
    came: list[str] = []
    woken, again = threading.Event(), threading.Event()

    def task() -> float | None:
        came.append("task")
        (again if woken.is_set() else woken).set()
        return 0.01 if len(came) < 3 else None

    worker = Worker("test-worker", task, last=lambda: came.append("last"))
    assert not worker.is_running
    worker.wake()
    assert woken.wait(10)
    assert again.wait(10), "nobody woke it: its time had come"
    assert worker(lambda: worker.is_running).result(10)
    worker.close(10)
    assert not worker.is_running
    assert came[-1] == "last"
    assert came.count("last") == 1
    worker.wake()
    assert not worker.is_running


def test_closing_makes_the_calls_that_wait_and_does_not_wait_for_ever() -> None:
    gate, done = threading.Event(), threading.Event()
    worker = Worker("test-worker")
    hanging, waiting = worker(lambda: gate.wait(10)), worker(done.set)
    worker.close(0.01)
    assert worker.is_running
    assert not waiting.done()
    gate.set()
    worker.close(10)
    assert hanging.result(10)
    assert done.is_set()
    assert not worker.is_running
