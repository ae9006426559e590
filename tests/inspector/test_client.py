"""The child that reads for the sampler, as the sampler holds it: one that hangs, crashes, talks nonsense or leaves."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwatch.base.child import ChildProcess
from gpuwatch.declared.facts import GpuFacts, Share
from gpuwatch.inspector.client import InspectorClient
from tests.inspector.inspecting import STAND_IN, stand_in, words
from tests.support.waiting import PATIENCE, wait_for

Start = Callable[..., InspectorClient]

pytestmark = pytest.mark.slow  # real processes


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ("if pid == 3: time.sleep(600)", "could not be read within 1 s"),
        ("if pid == 3: os.kill(os.getpid(), 11)", "reading it crashed gpuwatch's reader (signal 11)"),
        ("if pid == 3: os._exit(7)", "reading it crashed gpuwatch's reader (exit code 7)"),
        ("if pid == 3: print('garbage', flush=True)", "gpuwatch's reader gave an invalid answer"),
        ("if pid == 3: start = 8", "gpuwatch's reader gave an invalid answer"),
        ("if pid == 3: print('x' * 3_000_000, flush=True)", "gpuwatch's reader gave too long an answer"),
        ("if pid == 3: os.close(1); time.sleep(600)", "reading it crashed gpuwatch's reader (it hangs in the kernel)"),
    ],
)
def test_a_reader_that_fails_costs_one_answer(inspector: Start, odd: str, expected: str) -> None:
    one = inspector(odd, deadline=1.0)
    for pid in range(1, 6):
        one.ask(pid, 7, "ada")
    assert words(one, times=5) == {**dict.fromkeys(range(1, 6), "read"), 3: expected}


def test_processes_that_hang_hold_up_nobody_elses(inspector: Start) -> None:
    one = inspector("if question['user'] == 'eve': time.sleep(600)", deadline=1.0)
    for pid in range(1, 66):
        one.ask(pid, 7, "eve")
    for pid in range(101, 109):
        one.ask(pid, 7, "ada")
    first = words(one, times=9)
    assert set(range(101, 109)) < first.keys()
    assert {pid for pid, said in first.items() if said != "read"} <= {1, 2}


def test_who_took_long_comes_last_in_the_next_batch(inspector: Start) -> None:
    now = [0.0]
    one = inspector("if question['user'] == 'eve': took = 1.5", clock=lambda: now[0])
    for pid in range(1, 4):
        one.ask(pid, 7, "eve")
    assert words(one, times=3).keys() == {1, 2, 3}
    assert not one.busy
    one.ask(4, 7, "eve")
    one.ask(5, 7, "ada")
    now[0] = 4.5
    assert one.poll() == []
    now[0] = 5.5
    assert [*words(one, times=2)] == [5, 4]


def test_a_long_batch_is_given_up_and_the_rest_waits_for_the_next(inspector: Start) -> None:
    now = [0.0]
    one = inspector("if pid == 3: time.sleep(600)", clock=lambda: now[0], deadline=60.0)
    for pid in range(1, 6):
        one.ask(pid, 7, "ada")
    assert set(words(one, times=2)) == {1, 2}
    for _ in range(9):
        now[0] += 0.5
        assert one.poll() == []
    assert (one.descriptor, one.busy) == (None, False)
    one.retain({(4, 7), (5, 7)})
    now[0] += 5.5
    assert set(words(one, times=2)) == {4, 5}


def test_who_has_a_reader_hang_in_the_kernel_waits_and_nobody_else(inspector: Start) -> None:
    stuck = ChildProcess(["sleep", "600"])
    one = inspector()
    one._stuck[stuck] = "eve"
    one.ask(1, 7, "eve")
    one.ask(2, 7, "ada")
    assert words(one, times=1) == {2: "read"}
    assert not one.busy
    stuck.kill()
    stuck.exit_code(PATIENCE)
    assert words(one, times=1) == {1: "read"}


def test_readers_that_do_not_go_are_not_joined_by_more(inspector: Start) -> None:
    stuck = [ChildProcess(["sleep", "600"]) for _ in range(4)]
    one = inspector()
    one._stuck |= {process: f"user {process.pid}" for process in stuck}
    one.ask(1, 7, "ada")
    assert (one.poll(), one.descriptor, one.busy) == ([], None, False)
    for process in stuck:
        process.kill()
        process.exit_code(PATIENCE)
    assert words(one, times=1) == {1: "read"}


def test_a_reader_is_not_blamed_for_the_time_in_which_nobody_ran(inspector: Start, tmp_path: Path) -> None:
    now, go = [0.0], tmp_path / "go"
    one = inspector(f"while not os.path.exists({str(go)!r}): time.sleep(0.01)", clock=lambda: now[0])
    one.ask(1, 7, "ada")
    wait_for(lambda: one.poll() == [] and one._is_ready, "it does not start")
    assert one.poll() == []
    now[0] = 3600.0
    assert one.poll() == []
    go.touch()
    assert words(one, times=1) == {1: "read"}


def test_what_is_no_longer_wanted_is_not_asked(inspector: Start, tmp_path: Path) -> None:
    program = tmp_path / "reader"
    one = inspector(command=(str(program),))
    for pid in range(1, 1001):
        one.ask(pid, 7, "ada")
    assert one.poll() == []  # it cannot be started, and is tried again
    one.retain({(5, 7), (6, 8)})
    program.write_text(f"#!{sys.executable}\n{STAND_IN.format(odd='pass')}")
    program.chmod(0o755)
    assert words(one, times=1) == {5: "read"}
    assert not one.busy


def test_a_reader_that_leaves_without_a_word_is_asked_again(inspector: Start, tmp_path: Path) -> None:
    mark = str(tmp_path / "left")
    one = inspector(f"if not os.path.exists({mark!r}): open({mark!r}, 'w').close(); os._exit(0)")
    one.ask(1, 7, "ada")
    assert words(one, times=1) == {1: "read"}


def test_the_machine_is_told_once_to_each_reader(inspector: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    odd = f"open({str(log)!r}, 'a').write(line)\n    if pid == 3: os._exit(7)"
    share = Share(user="ada", share=0.5)
    now = [0.0]
    one = inspector(odd, shares=(share,), clock=lambda: now[0])
    one.gpus = (GpuFacts(index=0, uuid="GPU-a", total=7),)
    for pid in range(1, 5):
        one.ask(pid, 7, "ada")
    words(one, times=4)
    now[0] = 5.5  # after the pause that follows a batch in which a reader failed
    one.gpus = (GpuFacts(index=0, uuid="GPU-a", total=8),)
    one.ask(5, 7, "ada")
    words(one, times=1)
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["pid"], "shares" in line, line.get("gpus", [{}])[0].get("total")) for line in told] == [
        (1, True, 7),
        (2, False, None),
        (3, False, None),
        (4, True, 7),
        (5, False, 8),
    ]


def test_a_reader_that_does_not_start_is_not_laid_to_a_process(inspector: Start) -> None:
    one = inspector(command=("false",))
    one.ask(1, 7, "ada")
    assert words(one, times=1) == {1: "gpuwatch's reader does not start (exit code 1)"}


def test_a_reader_that_was_started_before_is_taken_over(inspector: Start) -> None:
    one = inspector(command=("/no/such/program",), first=ChildProcess(stand_in("pass")))
    one.ask(1, 7, "ada")
    assert words(one, times=1) == {1: "read"}
