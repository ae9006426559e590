"""A worker makes its calls in order, and hands over what they return or raise."""

from __future__ import annotations

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
