"""The reader as a process of its own: its answers, its bounds, and its end."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.base import procfs
from gpuwatch.declared.facts import GpuFacts
from gpuwatch.inspector import INSPECTOR
from gpuwatch.inspector.protocol import Answer, Question
from gpuwatch.model.snapshot import Declared, Knowledge
from tests.sampler.test_large_processes import many_threads
from tests.support.environment import environment
from tests.support.process import sharing
from tests.support.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.slow  # real processes

GIB = 1 << 30
GPUS = (
    GpuFacts(index=0, uuid="GPU-aaaa", name="H100", bus_id="0:1:0.0", total=80 * GIB),
    GpuFacts(index=1, uuid="GPU-bbbb", name="H100", bus_id="0:2:0.0", total=80 * GIB),
)

Reader = subprocess.Popen[bytes]


def start(code: str = "", *, env: Mapping[str, str] | None = None) -> Reader:
    """Start an inspector, where there is code with a changed module `worker`."""
    changed = (sys.executable, "-c", f"from gpuwatch.inspector import worker\n{code}\nworker.main()")
    command = changed if code else INSPECTOR
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env)


@pytest.fixture
def starting() -> Iterator[Callable[..., Reader]]:
    """Return `start`; what it starts is ended after the test."""
    started: list[Reader] = []

    def begin(code: str = "") -> Reader:
        started.append(start(code))
        return started[-1]

    yield begin
    for child in started:
        end(child)


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    """Start one reader for all tests that leave it alive, however large their sources make it."""
    child = start("worker.LARGE = 1 << 40", env=environment())
    yield child
    end(child)


def end(child: Reader) -> None:
    """End it by the end of its questions, so that its coverage is written."""
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        pipe.close()
    child.wait(PATIENCE)


def tell(child: Reader, line: bytes) -> None:
    assert child.stdin is not None
    child.stdin.write(line)


def hear(child: Reader) -> Answer:
    """Wait for one answer."""
    assert child.stdout is not None
    line = b""
    until = time.monotonic() + PATIENCE
    while not line.endswith(b"}\n"):
        assert select.select([child.stdout], [], [], max(0.0, until - time.monotonic()))[0], "no answer"
        chunk = child.stdout.read(1)
        assert chunk, f"it ended: {child.wait(PATIENCE)}"
        line += chunk
    return msgspec.json.decode(line, type=Answer)


def send(child: Reader, pid: int, start: int, **told: Any) -> None:
    tell(child, msgspec.json.encode(Question(pid=pid, start=start, **told)) + b"\n")


def ask_all(child: Reader, pid: int, *, start: int = -1, **told: Any) -> Answer:
    """Ask about a process, of this start time, and give the answer."""
    first = procfs.read_stat(pid).start_ticks if start < 0 else start
    send(child, pid, first, **told)
    answer = hear(child)
    assert (answer.pid, answer.start) == (pid, first)
    return answer


def ask(child: Reader, pid: int, *, start: int = -1, **told: Any) -> Declared:
    """Ask about a process, of this start time, and give what it declared."""
    return ask_all(child, pid, start=start, **told).declared


def test_an_environment_becomes_a_limit(reader: Reader) -> None:
    given = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".3", "CUDA_VISIBLE_DEVICES": "1"}
    with sharing("-c", "import jax", environ=given) as process:
        for declared in (ask(reader, process.pid, gpus=GPUS), ask(reader, process.pid)):
            assert declared.knowledge is Knowledge.READ
            (limit,) = declared.limits
            assert (limit.gpu, limit.bytes) == ("GPU-bbbb", round(0.3 * 80 * GIB))


def test_it_is_said_that_the_process_has_ended(reader: Reader) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        assert not ask_all(reader, process.pid, gpus=GPUS).ended
        process.kill()
        wait_for(lambda: procfs.read_stat(process.pid).state == "Z")
        assert ask_all(reader, process.pid).ended
        start = procfs.read_stat(process.pid).start_ticks
    assert ask_all(reader, process.pid, start=start).ended
    gone = Declared(knowledge=Knowledge.UNREADABLE, words="it has ended")
    assert ask(reader, process.pid, start=7) == ask(reader, os.getpid(), start=7) == gone  # another one now
    with many_threads(2) as pid:  # its first one has ended
        assert ask_all(reader, pid).ended


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = " + "(" * 100_000,
        "import torch\nset_per_process_memory_fraction(" + "-" * 200_000 + "1)",
        "CUDA_VISIBLE_DEVICES = [" + "[],[]," * 174_000 + "]\nimport os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'",
    ],
    ids=["brackets", "signs", "a list"],
)
def test_a_hostile_source_costs_one_answer(reader: Reader, tmp_path: Path, source: str) -> None:
    (tmp_path / "train.py").write_text(source)
    with sharing("train.py", cwd=tmp_path) as process:
        ask(reader, process.pid, gpus=GPUS)
    assert ask(reader, os.getpid()).knowledge is not Knowledge.PENDING


@pytest.mark.parametrize(("limit", "value"), [("Max address space", 512 << 20), ("Max core file size", 0)])
def test_its_memory_is_bounded_and_it_leaves_no_core(reader: Reader, limit: str, value: int) -> None:
    """It has read what is not for everybody's eyes, and whoever can crash it could fill a disk."""
    ask(reader, os.getpid())
    lines = Path(f"/proc/{reader.pid}/limits").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(limit)]
    assert line.removeprefix(limit).split()[:2] == [str(value)] * 2


def test_it_ends_when_it_has_grown_large(starting: Callable[..., Reader]) -> None:
    """After its answer: what a parser took is not given back. What else it was asked is asked of the next one."""
    child = starting("worker.LARGE = 1")
    send(child, os.getpid(), 1)
    send(child, os.getpid(), 2)
    assert hear(child).start == 1
    assert child.wait(PATIENCE) == 0


def test_a_fault_of_ours_costs_one_answer(starting: Callable[..., Reader]) -> None:
    child = starting("def broken(*_): raise KeyError('x')\nworker.resolve = broken")
    declared = ask(child, os.getpid())
    assert declared == Declared(knowledge=Knowledge.UNREADABLE, words="a fault in gpuwatch: KeyError: 'x'")


@pytest.mark.parametrize("how", ["nobody asks", "idle", "nobody reads"])
def test_it_ends(starting: Callable[..., Reader], how: str) -> None:
    child = starting("worker.IDLE = 0.05" if how == "idle" else "")
    assert child.stdin is not None
    assert child.stdout is not None
    if how == "nobody asks":
        child.stdin.close()
    elif how == "nobody reads":
        ask(child, os.getpid())
        child.stdout.close()
        send(child, os.getpid(), 1)
    assert child.wait(PATIENCE) == 0


SAYING_WHO = """
import os
first = os.getpid()
def broken(*_):
    assert not {crashes} or os.getpid() == first or os.abort()
    raise KeyError(os.getpid())
worker.resolve = broken
"""


@pytest.mark.parametrize("crashes", [False, True])
def test_two_processes_answer_a_batch(starting: Callable[..., Reader], *, crashes: bool) -> None:
    """In its order; where the second one crashes, the question without an answer is to blame, as with one process."""
    child = starting(SAYING_WHO.format(crashes=crashes))
    about = Question(pid=os.getpid(), start=procfs.read_stat(os.getpid()).start_ticks)
    batch = [msgspec.structs.replace(about, in_two=True), *[about] * 4]
    tell(child, b"".join(msgspec.json.encode(question) + b"\n" for question in batch))
    words = [hear(child).declared.words for _ in range(3 if crashes else 5)]
    own = f"a fault in gpuwatch: KeyError: {child.pid}"
    assert [said == own for said in words] == [True, True, True, False, False][: len(words)]
    if crashes:
        assert child.wait(PATIENCE) == 1
