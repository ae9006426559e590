"""Child processes and the background worker: feeding, reading, time limits and ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gpuwatch.base.child import Backoff, ChildProcess, describe_exit, run
from gpuwatch.base.threads import Worker
from tests import CHECKOUT

pytestmark = pytest.mark.slow  # real processes

PATIENCE = 30.0

Start = Callable[..., ChildProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a child; it is killed after the test."""
    children = []

    def begin(command: Sequence[str] | Callable[[], None], **options: int) -> ChildProcess:
        children.append(ChildProcess(command, **options))  # type: ignore[arg-type]
        return children[-1]

    yield begin
    for child in children:
        child.kill()
        assert child.exit_code(PATIENCE) is not None


def script(body: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import os, signal, subprocess, sys, time\n{body}")


def lines(child: ChildProcess, count: int) -> list[bytes]:
    """Read so many lines, or as many as there are until the output ends."""
    found: list[bytes] = []
    while len(found) < count and not child.eof:
        found += child.read_lines(PATIENCE)
    return found


def echo() -> None:
    """Copy stdin to stdout, as a forked child does it."""
    while chunk := os.read(0, 1 << 16):
        os.write(1, chunk)


@pytest.mark.parametrize("command", [("cat",), echo], ids=["a program", "a fork"])
def test_more_than_a_pipe_holds_comes_back_in_whole_lines(start: Start, command: Sequence[str]) -> None:
    child = start(command, longest_line=1 << 22)
    sent = [b"x" * 1000 + b"%d" % number for number in range(1000)]
    child.write(b"\n".join(sent) + b"\n")
    child.end_input()
    assert lines(child, 1000) == sent
    while not child.eof:
        child.read_lines(PATIENCE)
    assert child.exit_code(PATIENCE) == 0
    assert child.descriptor is None


def test_a_line_that_is_too_long_is_dropped(start: Start) -> None:
    child = start(script("print('x' * 100_000); print('next', flush=True); time.sleep(600)"), longest_line=1000)
    while not child.overflowed:
        child.read_lines(PATIENCE)
    assert lines(child, 1)[-1].endswith(b"next") or lines(child, 1) == [b"next"]


def test_a_child_is_killed_with_the_processes_that_it_started(start: Start) -> None:
    child = start(script("print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"))
    (line,) = lines(child, 1)
    handle = os.pidfd_open(int(line))
    child.kill()
    assert child.exit_code(PATIENCE) == -signal.SIGKILL
    assert select.select([handle], [], [], PATIENCE)[0]
    os.close(handle)
    assert (child.eof, child.read_lines(), child.wait(0.0)) == (True, [], False)
    child.write(b"nobody reads this")


def test_a_program_that_is_not_there_leaves_no_descriptor() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        ChildProcess(["/no/such/program"])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_child_ends_with_its_parent() -> None:
    code = (
        "import os, time\nfrom gpuwatch.base.child import ChildProcess\n"
        "child = ChildProcess(lambda: time.sleep(600))\nprint(child.pid, flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=CHECKOUT) as parent:
        assert parent.stdout is not None
        handle = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert select.select([handle], [], [], PATIENCE)[0]
    os.close(handle)


@pytest.mark.parametrize(
    ("body", "options", "expected"),
    [
        ("sys.stdout.write(sys.stdin.read()[::-1])", {}, (0, b"cba")),
        ("sys.stderr.write('why'); sys.exit(7)", {"output": 2}, (7, b"why")),
        ("os.kill(os.getpid(), 15)", {}, (-15, b"")),
        ("print('x' * 100)", {"most": 5}, (0, b"xxxx\n")),
        ("time.sleep(600)", {"timeout": 0.05}, (None, b"")),
        ("time.sleep(600)", {"is_stopped": lambda: True}, (None, b"")),
        ("subprocess.Popen(['sleep', '5'], start_new_session=True)", {}, (0, b"")),
    ],
)
def test_a_program_is_run_to_its_end(body: str, options: dict[str, object], expected: tuple[object, bytes]) -> None:
    given = {"output": 1, "timeout": PATIENCE, "is_stopped": lambda: False, "most": 1000, **options}
    assert run(script(body), b"abc", **given) == expected  # type: ignore[arg-type]


def test_delays_double_up_to_a_limit() -> None:
    backoff = Backoff(5.0, 12.0)
    assert [backoff.next() for _ in range(4)] == [5.0, 10.0, 12.0, 12.0]
    backoff.reset()
    assert backoff.next() == 5.0


def test_how_a_child_ended() -> None:
    assert [describe_exit(code) for code in (None, -9, 3)] == ["it hangs in the kernel", "signal 9", "exit code 3"]


# -- the background worker -----------------------------------------------------------------------------------------


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
