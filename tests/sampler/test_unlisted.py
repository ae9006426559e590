"""Who has GPUs' device files open: real processes that hold stand-ins for them, and trees in place of /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.base import procfs
from gpuwatch.model.snapshot import Gpu, Health, Presence, Process, Reason, Unlisted
from gpuwatch.sampler import unlisted
from gpuwatch.sampler.unlisted import (
    EVERY,
    MOST,
    PAUSE,
    STEP,
    OpenFileSearch,
    OpenGpuFiles,
    candidates,
    find_openers,
    find_unlisted,
    parse_device_files,
)
from tests.support import builders
from tests.support.environment import environment
from tests.support.process import ME, ROOT, SOMEBODY_ELSE, GpuHolder, stat_line
from tests.support.program import answers

CUDA = ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia3")
"""What a CUDA program opens on a machine of which it sees GPUs 0 and 3."""

needs_root = pytest.mark.skipif(not ROOT, reason="processes of two users need root")


def whole(**seams: Any) -> OpenFileSearch:
    """Return a survey that has made one walk, however long that took."""
    looked = OpenFileSearch(**seams)
    looked.step(60.0)
    assert looked.ended_at > 0
    return looked


def of(looked: OpenFileSearch, pid: int) -> OpenGpuFiles | None:
    """Return what was found of one process."""
    return next((one for one in looked.found if one.pid == pid), None)


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["/dev/nvidia0", "/dev/nvidia11", "/dev/nvidia-uvm"], ({0, 11}, True, False)),
        (["/dev/nvidia2"], ({2}, False, False)),
        (["/dev/nvidia-uvm"], (set(), True, False)),
        (["/dev/nvidia0 (deleted)", "/dev/nvidia-uvm (deleted)"], ({0}, True, False)),
        (["/dev/dxg"], (set(), False, True)),
        (["/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm-tools", "/dev/nvidia-caps/nvidia-cap30"], None),
        (["/dev/null", "/dev/nvme0n1", "socket:[1]", "/home/ada/dev/nvidia0", "/dev/nvidia", "/dev/nvidia²"], None),
        ([f"/dev/nvidia{'9' * 5000}"], None),
        ([], None),
    ],
)
def test_what_names_of_files_tell(names: list[str], found: object) -> None:
    assert parse_device_files(names) == found


@given(st.lists(st.text() | st.text().map("/dev/nvidia{}".format)))
def test_no_name_is_too_odd(names: list[str]) -> None:
    found = parse_device_files(names)
    assert found is None or all(minor >= 0 for minor in found[0])


# -- real processes ------------------------------------------------------------------------------------------------


def test_a_program_and_the_worker_that_it_forked() -> None:
    with GpuHolder(devices=CUDA, children=1) as held:
        looked = whole()
    assert of(looked, held.pid) == OpenGpuFiles(held.pid, held.start_ticks, frozenset({0, 3}), cuda_context=True)
    worker = of(looked, held.children[0])
    assert worker is not None
    assert worker.minors == {0, 3}
    assert worker.cuda_context
    assert of(looked, os.getpid()) is None


AS_USER = """
import json, os, sys
from gpuwatch.sampler.unlisted import OpenFileSearch
me = int(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(me, me, me); os.setresuid(me, me, me)
looked = OpenFileSearch()
looked.step(60.0)
print(json.dumps([[one.pid for one in looked.found], looked.unsearched, looked.ended_at > 0]))
"""


@needs_root
def test_root_looks_into_everybody_and_others_only_into_their_own() -> None:
    with GpuHolder(devices=CUDA) as mine, GpuHolder(devices=CUDA, uid=SOMEBODY_ELSE) as theirs:
        assert of(whole(), theirs.pid) is not None
        ((pids, unsearched, ended),) = answers(AS_USER, ME, env=environment())
    assert (mine.pid in pids, theirs.pid in pids, unsearched > 0, ended) == (True, False, True, True)


# -- a tree in place of /proc, and a clock that the test moves -----------------------------------------------------


class Tree:
    """Processes with open files, as links in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def add(
        self, pid: int, *files: str, comm: str = "python", argv: str = "", state: str = "S", flags: int = 0
    ) -> Path:
        """Add a process with these open files; return its folder of them."""
        folder = self.root / str(pid) / "fd"
        folder.mkdir(parents=True)
        for number, file in enumerate(files):
            (folder / str(number)).symlink_to(file)
        fields = ["0"] * 50
        fields[0], fields[1], fields[6], fields[19] = state, "1", str(flags), str(pid * 10)
        (self.root / f"{pid}/stat").write_text(f"{pid} ({comm}) {' '.join(fields)}\n")
        (self.root / f"{pid}/cmdline").write_text(argv.replace(" ", "\0"))
        return folder


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "proc")


class Ticking:
    """A clock that goes on by itself, each time that it is read."""

    def __init__(self, each: float) -> None:
        self.now, self.each = 1000.0, each

    def __call__(self) -> float:
        self.now += self.each
        return self.now


def test_a_walk_goes_in_small_steps_and_rests_when_it_has_ended(tree: Tree) -> None:
    for pid in range(100, 150):
        tree.add(pid, "/dev/nvidia0", "/dev/nvidia-uvm")
    clock = Ticking(STEP / 4)
    looked = OpenFileSearch(proc=tree.root, uid=os.getuid(), clock=clock, wall=lambda: 7.0)
    steps = 0
    while not looked.ended_at:
        looked.step()
        steps += 1
        if not looked.ended_at:
            assert PAUSE - STEP <= looked.pause() <= PAUSE
            assert looked.found == ()
            clock.now += PAUSE
    assert 20 < steps < 120
    assert [one.pid for one in looked.found] == [*range(100, 150)]
    assert looked.pause() == pytest.approx(EVERY, rel=0.1)
    looked.step()
    assert looked.ended_at == 7.0
    assert looked.pause() > EVERY / 2


def test_what_is_new_is_looked_at_twice(tree: Tree) -> None:
    """The child of a CUDA program has its files until it becomes another program."""
    child = tree.add(100, "/dev/nvidia0", "/dev/nvidia-uvm")
    tree.add(101, "/dev/nvidia0", "/dev/nvidia-uvm")
    clock = Ticking(2 * STEP)  # a step is one process
    looked = OpenFileSearch(proc=tree.root, uid=os.getuid(), clock=clock)
    for _ in "the one", "the other":
        looked.step()
        clock.now += PAUSE
    for link in child.iterdir():
        link.unlink()
    while not looked.ended_at:
        looked.step()
        clock.now += PAUSE
    assert [one.pid for one in looked.found] == [101]


def test_what_is_open_later_is_found_and_what_was_closed_is_dropped(tree: Tree) -> None:
    first, second = tree.add(100, "/dev/nvidia0"), tree.add(101, "/dev/null")
    clock = Ticking(0.0)
    looked = OpenFileSearch(proc=tree.root, uid=os.getuid(), clock=clock)
    looked.step(1.0)
    assert [one.pid for one in looked.found] == [100]
    (first / "0").unlink()
    (second / "1").symlink_to("/dev/nvidia1")
    clock.now += EVERY - 1
    looked.step(1.0)
    assert [one.pid for one in looked.found] == [100]
    clock.now += 1
    looked.step(1.0)
    assert looked.found == (OpenGpuFiles(101, 1010, frozenset({1})),)


def test_what_had_nothing_open_for_a_minute_is_searched_once_a_minute(tree: Tree) -> None:
    """What is new is searched at once, also under a PID that was another process's."""
    opened, clock = [tree.add(pid, "/dev/null") for pid in (100, 101)], Ticking(0.0)
    looked = OpenFileSearch(proc=tree.root, uid=os.getuid(), clock=clock)

    def found_after(seconds: float) -> list[int]:
        clock.now += seconds
        looked.step(1.0)
        return [one.pid for one in looked.found]

    assert [found_after(EVERY) for _ in range(4)] == [[]] * 4
    (opened[0] / "1").symlink_to("/dev/nvidia1")
    (tree.root / "101").rename(tree.root.parent / "ended")
    tree.add(101, "/dev/nvidia0")
    tree.add(102, "/dev/nvidia0")
    assert [found_after(EVERY) for _ in range(3)] == [[101, 102], [101, 102], [100, 101, 102]]


def test_a_single_walk_is_cut_short(tree: Tree) -> None:
    for pid in range(100, 150):
        tree.add(pid, "/dev/nvidia0")
    looked = OpenFileSearch(proc=tree.root, uid=os.getuid(), clock=Ticking(0.002))
    looked.run_once(0.05)
    assert 10 < len(looked.found) < 40
    assert looked.ended_at == 0.0
    assert looked.cut == (len(looked.found), 50), "of how many it looked at how many"
    looked = OpenFileSearch(proc=tree.root, uid=os.getuid(), clock=Ticking(0.0))
    looked.run_once()
    assert (len(looked.found), looked.ended_at > 0, looked.cut) == (50, True, (0, 0))


def test_a_single_walk_reads_once_what_the_driver_lists(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    read = mock.Mock(wraps=procfs.read_open_files)
    monkeypatch.setattr(procfs, "read_open_files", read)
    for pid in (100, 101):
        tree.add(pid, "/dev/nvidia0")
    OpenFileSearch(proc=tree.root, uid=os.getuid()).run_once(60.0, [100])
    assert sorted(call.args[0] for call in read.call_args_list) == [100, 101, 101]


def test_of_very_many_files_only_so_many_are_looked_at(tree: Tree) -> None:
    tree.add(100, *[f"/dev/nvidia{number}" for number in range(2 * unlisted.MOST_FILES)])
    (found,) = whole(proc=tree.root, uid=os.getuid()).found
    assert len(found.minors) == unlisted.MOST_FILES


def test_what_is_not_ours_is_counted_and_an_mps_server_among_it_is_told(tree: Tree) -> None:
    tree.add(7, "/dev/nvidia0", comm="nvidia-cuda-mps", argv="/usr/bin/nvidia-cuda-mps-server")
    tree.add(8, comm="nvidia-cuda-mps", argv="nvidia-cuda-mps-control -d")
    tree.add(9, "/dev/nvidia0")
    tree.add(10, comm="kworker/0:1", flags=procfs.PF_KTHREAD)
    looked = whole(proc=tree.root, uid=os.getuid() + 1)
    assert (looked.found, looked.unsearched, looked.mps) == ((), 3, (7,))


@pytest.mark.parametrize(("options", "hides"), [("rw", False), ("rw,hidepid=2", True), ("rw,hidepid=invisible", True)])
def test_hidepid_is_told(tree: Tree, options: str, hides: bool) -> None:
    (tree.root / "self").mkdir()
    (tree.root / "self/mountinfo").write_text(f"22 1 0:20 / /proc rw,nosuid - proc proc {options}\n")
    assert whole(proc=tree.root, uid=os.getuid() + 1).hides is hides
    if ROOT:
        assert whole(proc=tree.root, uid=0).hides is False


def test_a_program_whose_first_thread_has_ended(tree: Tree) -> None:
    """The kernel calls it a zombie and shows no files of it; its other threads still have them open."""
    tree.add(100, state="Z")
    threads = tree.root / "100/task"
    for thread, file in (100, None), (101, "/dev/nvidia0"):
        folder = threads / str(thread) / "fd"
        folder.mkdir(parents=True)
        (threads / str(thread) / "stat").write_bytes(stat_line(thread, state="S" if file else "Z"))
        if file:
            (folder / "3").symlink_to(file)
    tree.add(200, state="Z")
    (tree.root / "200/task").mkdir()
    assert whole(proc=tree.root, uid=os.getuid()).found == (OpenGpuFiles(100, 1000, frozenset({0})),)


def test_no_proc_at_all(tmp_path: Path) -> None:
    looked = OpenFileSearch(proc=tmp_path / "none")
    looked.run_once()
    assert (looked.found, looked.unsearched, looked.mps, looked.ended_at) == ((), 1, (), 0.0)


# -- what is told of it --------------------------------------------------------------------------------------------


def person(pid: int, **changes: Any) -> Process:
    return builders.process(pid, **{"start": pid * 10, "ppid": 1, **changes})


def cuda(pid: int, *minors: int, **changes: Any) -> OpenGpuFiles:
    return OpenGpuFiles(pid, **{"start": pid * 10, "minors": frozenset(minors), "cuda_context": True, **changes})


def two(**changes: Any) -> list[Gpu]:
    """Return two GPUs whose device files are crossed, each with one process; the changes are the second's."""
    return [
        builders.gpu(0, minor=1, holdings=[builders.holding(70)]),
        builders.gpu(1, **{"minor": 0, "holdings": [builders.holding(71)], **changes}),
    ]


def told(
    found: Iterable[OpenGpuFiles], people: Iterable[Process], gpus: list[Gpu] | None = None
) -> tuple[Unlisted, ...]:
    return find_unlisted([*found], {one.pid: one for one in people}, two() if gpus is None else gpus)


def test_it_is_told_with_the_gpus_that_its_files_are_of() -> None:
    first, second = two()
    (one,) = told([cuda(70, 1), cuda(5, 0)], [person(70), person(5)])
    assert (one.process.pid, one.gpus, one.cuda_context) == (5, (second.uuid,), True)
    (one,) = told([cuda(5, 0, 1)], [person(5)])
    assert one.gpus == (second.uuid, first.uuid)


@pytest.mark.parametrize(
    "gone",
    [
        {"start": 51},
        {"presence": Presence.GONE, "start": 0},
        {"presence": Presence.HIDDEN},
        {"state": "zombie"},
        {"state": "dead"},
    ],
    ids=str,
)
def test_one_that_has_ended_is_not_told(gone: dict[str, Any]) -> None:
    assert told([cuda(5, 0)], [person(5, **gone)]) == ()
    assert told([cuda(5, 0)], []) == ()


@pytest.mark.parametrize(
    "command",
    [
        "/usr/bin/python3 -P /opt/gpuwatch/sampler/__main__.py --board 5",
        "python -P -m gpuwatch.sampler --once",
        "python -P /x/gpuwatch/inspector/__main__.py",
    ],
)
def test_gpuwatch_itself_is_not_told(command: str) -> None:
    assert told([cuda(5, 0, cuda_context=False)], [person(5, command=command)]) == ()
    assert len(told([cuda(5, 0)], [person(5, command=command)])) == 1, "a name is no proof: it has a CUDA context"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("nvidia-smi", "nvidia-smi dmon"),
        ("nvitop", "/usr/bin/python3 /usr/local/bin/nvitop"),
        ("python3", "/usr/bin/python3 /usr/local/bin/gpuwatch watch"),
    ],
)
def test_what_only_asks_the_driver_is_not_told(name: str, command: str) -> None:
    process = person(5, name=name, command=command)
    assert told([cuda(5, 0, cuda_context=False)], [process]) == ()
    assert len(told([cuda(5, 0)], [process])) == 1
    assert not told([cuda(5, 0, cuda_context=False)], [person(5)])[0].cuda_context


@pytest.mark.parametrize(
    "trouble",
    [
        {"health": Health.LOST},
        {"holdings_note": "no permission to list this GPU's processes"},
        {"unreliable": True},
        {"minor": Reason.UNSUPPORTED},
        {"sampled": 0.0},
    ],
    ids=str,
)
def test_where_a_list_cannot_be_trusted_nobody_is_said_not_to_be_on_it(trouble: dict[str, Any]) -> None:
    gpus = two(**trouble)
    people = [person(5), person(6), person(7)]
    shown = told([cuda(5, 0), cuda(6, 1), cuda(7, 0, 1)], people, gpus)
    assert [one.process.pid for one in shown] == [6]


def test_a_gpu_that_is_not_asked_may_list_it() -> None:
    assert told([cuda(5, 0), cuda(6, 0, 1), cuda(7)], [person(5), person(6), person(7)], two()[:1]) == ()
    assert len(told([cuda(5, 1)], [person(5)], two()[:1])) == 1


def test_who_has_a_gpu_open_that_does_not_list_it() -> None:
    first, _ = two()
    found = [cuda(70, 1), cuda(71, 0, 1), cuda(5, 0), cuda(6, 1), cuda(8, 1), OpenGpuFiles(9, 90, shared=True)]
    ended = person(6, state="zombie")
    assert find_openers(found, {6: ended, 71: person(71)}, [first]) == {first.key: (71, 8, 9)}


def test_one_that_has_ended_is_forgotten_until_the_next_search_finds_its_number_again(tmp_path: Path) -> None:
    tree, now = Tree(tmp_path / "proc"), [0.0]
    tree.add(5, "/dev/nvidia0")
    tree.add(6, "/dev/nvidia0")
    search = whole(proc=tree.root, clock=lambda: now[0])
    search.forget({5})
    assert [one.pid for one in search.found] == [6]
    now[0] += EVERY
    search.step(60.0)
    assert [one.pid for one in search.found] == [5, 6]


def test_no_more_than_so_many_and_those_with_a_context_first() -> None:
    found = [cuda(pid, 0, cuda_context=pid > 1100) for pid in range(1000, 1400)]
    chosen = candidates(found, {1399})
    assert (len(chosen), all(one.cuda_context for one in chosen)) == (MOST, True)
    shown = told(found, [person(pid) for pid in range(1000, 1400)])
    assert [one.process.pid for one in shown] == [*range(1101, 1101 + MOST)]
