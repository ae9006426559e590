"""Which run a process belongs to, and its notebook or terminal: real trees of processes, and what is left of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path

import pytest

from gpuwatch.inspector.runs import format_run_name
from tests.declared.tables import Case, cases
from tests.support.process import ME, ROOT, Family, Member, family

pytestmark = pytest.mark.slow  # trees of real processes

SHELL = ("bash",)


def member(case: Case) -> Member:
    """Return a process of a table, with those below it."""
    below = tuple(member(child) for child in case.get("children", ()))
    return Member(**{**case, "argv": tuple(case.get("argv", ("python", "train.py"))), "children": below})


def check(tree: Family, expected: Case) -> None:
    """Compare the run of each process, and what is around it; some fields name a process of the tree."""
    for name, fields in expected.items():
        around = tree.around(name)
        for field, value in fields.items():
            if field == "key":
                assert tree.run_of(name).key == tree.identity(value), name
                continue
            found = attrgetter(field.removeprefix("around."))(around if "around." in field else tree.run_of(name))
            named = field in ("head", "worker_of", "around.notebook.server") and value
            assert found == (tree.pids[value] if named else value), (name, field)


@cases("inspector/runs")
def test_the_runs_of_a_tree(case: Case) -> None:
    """`expect` holds while all live, `left` once those that `ends` names were killed; those of `same` are one run."""
    if case.get("uid") and not ROOT:
        pytest.skip("needs root")
    with family(*map(member, case["family"]), uid=ME if case.get("uid") else None) as tree:
        check(tree, case.get("expect", {}))
        if "ends" in case:
            for name in case["ends"].split():
                tree.end(name)
            check(tree, case["left"])
        names = case.get("same", ())
        assert len({tree.run_of(name).key for name in names}) <= 1
        assert not {tree.run_of(name).key for name in case.get("other", ())} & {tree.run_of(n).key for n in names}


@cases("inspector/run_names")
def test_the_name_of_a_run_has_no_secret(case: Case) -> None:
    assert format_run_name(tuple(case["argv"])) == case["name"]


MAIN = """
import multiprocessing, os, sys, threading, time

def say(name):
    os.write(1, b"%s %d\\n" % (name.encode(), os.getpid()))

def work(name):
    if name == "two" and len(sys.argv) > 2:
        multiprocessing.get_context("fork").Process(target=work, args=("below",)).start()
    say(name)
    time.sleep(600)

if __name__ == "__main__":
    for name in ("one", "two"):
        multiprocessing.get_context(sys.argv[1]).Process(target=work, args=(name,)).start()
    say("main")
    os.read(0, 1)
"""


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Family]:
    """Run real workers of a real program below a shell; all are ended."""
    (folder / "main.py").write_text(MAIN)
    main = Member("first", (sys.executable, str(folder / "main.py"), *arguments), {"A": "1"}, runs=True)
    with family(Member("shell", SHELL, children=(main,), leads=True)) as tree:
        try:
            tree.wait(["main", "one", "two", *(["below"] if len(arguments) > 1 else [])])
            yield tree
        finally:
            for name in {"one", "two", "below"} & set(tree.pids):
                os.kill(tree.pids[name], signal.SIGKILL)  # they sleep for 600 s: none has gone


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_multiprocessing(tmp_path: Path, method: str) -> None:
    with started(tmp_path, method) as tree:
        runs = [tree.run_of(name) for name in ("main", "one", "two")]
        assert {run.key for run in runs} == {tree.identity("main")}
        assert [run.worker_of for run in runs] == [None, tree.pids["main"], tree.pids["main"]]
    assert {(run.orphaned, run.name, run.rank) for run in runs} == {(False, "main.py", None)}


def test_spawned_workers_whose_program_was_killed(tmp_path: Path) -> None:
    with started(tmp_path, "spawn", "deep") as tree:
        assert tree.run_of("below").worker_of == tree.pids["main"]
        assert not tree.run_of("below").orphaned
        tree.end("main")
        left = [tree.run_of(name) for name in ("one", "two", "below")]
    assert all(run.orphaned and run.head == 0 for run in left)
    assert len({run.key for run in left}) == 1
    assert [run.worker_of for run in left] == [None, None, tree.pids["two"]]
