"""What is called a stray, and above all what is not: a table of cases for each rule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuwatch.analysis.strays import Cause, Certainty
from gpuwatch.model import (
    Declared,
    Job,
    Knowledge,
    Notebook,
    Presence,
    Process,
    Reason,
    Snapshot,
    Surroundings,
    Unlisted,
)
from tests.support.builders import GIB, MIB, gpu, snapshot
from tests.support.straying import (
    CERTAIN,
    DOCKER,
    HOUR,
    KERNEL,
    LEFT,
    LIKELY,
    PID,
    REST,
    RUN,
    TMUX,
    find,
    held,
    left,
    machine,
    mine,
    one,
    started,
    stray,
    told,
)

# ---------------------------------------------------------------------------------------------------------------
# Zombies


def test_a_zombie_that_holds_memory_is_one_and_no_signal_ends_it() -> None:
    found = stray(mine(state="zombie", ppid=90, parent="python"), 60.0)
    assert (found.cause, found.sure, found.ends) == (Cause.ZOMBIE, CERTAIN, False)
    assert found.why == (
        "it has ended, and its parent, 90 python, has not collected its exit status",
        "no signal ends it: end its parent",
    )


@pytest.mark.parametrize(
    ("process", "sm", "idle"),
    [
        (mine(state="zombie", cpu=3.0), 0, HOUR),  # its first thread has ended, others compute
        (mine(state="zombie"), 12, HOUR),
        (mine(state="zombie"), Reason.NO_SAMPLE, HOUR),
        (mine(state="zombie"), 0, 12.0),  # every process is one for a moment
        (mine(state="zombie"), 0, None),
        (mine(state="sleeping"), 0, 60.0),
    ],
)
def test_no_zombie(process: Process, sm: Any, idle: float | None) -> None:
    assert one(process, idle, sm=sm) is None


# ---------------------------------------------------------------------------------------------------------------
# Stopped


def test_a_stopped_process_is_one_and_surely_so_a_day_after_its_login_is_gone() -> None:
    found = stray(mine(state="stopped"), 60.0, at_least=True)
    assert (found.cause, found.sure, found.ends) == (Cause.STOPPED, LIKELY, True)
    for idle, sure in ((9 * HOUR, LIKELY), (24 * HOUR, CERTAIN)):  # its owner may have lent the GPU to somebody
        found = stray(mine(state="stopped", led=False, around=Surroundings(ssh="10.0.0.7")), idle, gib=0.5)
        assert (found.cause, found.sure) == (Cause.STOPPED, sure)
        assert found.why == ("stopped, as by Ctrl-Z: it cannot run", "its SSH login from 10.0.0.7 has ended")


@pytest.mark.parametrize(
    ("process", "sm", "idle"),
    [
        (mine(state="tracing stop"), 0, HOUR),
        (mine(state="stopped"), 30, HOUR),
        (mine(state="stopped"), 0, 20.0),  # a moment ago it ran: perhaps for `bg`
        (mine(state="stopped"), 0, None),
        (mine(state="stopped", around=Surroundings(slurm="4711.0")), 0, HOUR),
        (mine(state="stopped", around=Surroundings(batch="pbs 4711")), 0, HOUR),
        (mine(state="stopped", surroundings=None), 0, HOUR),
    ],
)
def test_not_stopped(process: Process, sm: Any, idle: float | None) -> None:
    assert one(process, idle, sm=sm, gib=0.5) is None


# ---------------------------------------------------------------------------------------------------------------
# Workers


@pytest.mark.parametrize(
    ("around", "adopted", "idle", "sure"),
    [
        (Surroundings(job=REST), True, 600.0, CERTAIN),
        (Surroundings(job=REST), True, None, LIKELY),  # it may be between two steps
        (Surroundings(job=REST), False, 600.0, LIKELY),
        (Surroundings(job=REST, container=DOCKER), True, 600.0, LIKELY),
        (Surroundings(job=REST, server="vLLM"), True, 600.0, CERTAIN),  # an engine whose server is gone
        (Surroundings(job=REST, server="listens on port 8000"), True, 600.0, LIKELY),  # a rank has started it
        (Surroundings(job=msgspec.structs.replace(RUN, worker_of=90)), True, 600.0, LIKELY),
    ],
)
def test_a_worker_of_a_dead_run(around: Surroundings, adopted: bool, idle: float | None, sure: Certainty) -> None:
    found = stray(mine(around=around, adopted=adopted), idle)
    assert (found.cause, found.sure) == (Cause.WORKER, sure)
    assert found.why[0] in ("the run that it belongs to has ended", "process 90, which it worked for, has ended")


@pytest.mark.parametrize(
    ("process", "sm", "idle"),
    [
        (left(Surroundings(job=REST)), 5, None),  # perhaps it was let go on purpose
        (left(Surroundings(job=REST)), 0, 200.0),
        (mine(around=Surroundings(job=REST, container=DOCKER)), 0, 600.0),
        (mine(around=Surroundings(job=msgspec.structs.replace(RUN, worker_of=90))), 0, 600.0),
        (mine(around=Surroundings(job=RUN)), 0, 600.0),
        (left(Surroundings(job=REST), state="tracing stop"), 0, 600.0),
    ],
)
def test_no_worker_of_a_dead_run(process: Process, sm: Any, idle: float | None) -> None:
    assert one(process, idle, sm=sm) is None


def test_a_rank_without_its_launcher_is_none_while_another_computes() -> None:
    ranks = [mine(pid, Surroundings(job=REST), **LEFT) for pid in (100, 101)]
    both = machine(ranks, [held(100)], [held(101)])
    assert len(find(both, told((0, 100, 900.0), (1, 101, 900.0)))) == 2
    assert not find(both, told((0, 100, 900.0), (1, 101, 100.0)))


def unlisted(process: Process, *, context: bool = True, gap_gib: float = 0.0, others: Any = ()) -> Snapshot:
    """Return a machine with a process that NVML does not list, and so much memory that is nobody's."""
    card = gpu(0, holdings=[held(other.pid) for other in others], unattributed=round(gap_gib * GIB))
    row = Unlisted(process=process, gpus=(card.key,), context=context)
    return snapshot([card], others, unlisted=(row,))


def test_a_leftover_that_nvml_does_not_list_is_a_worker() -> None:
    (found,) = find(unlisted(left(Surroundings(job=REST))), None)
    assert (found.cause, found.sure, found.held, found.listed) == (Cause.WORKER, CERTAIN, None, False)
    assert found.indices == (0,)
    (found,) = find(unlisted(left(), gap_gib=2.0), None)
    assert (found.cause, found.sure) == (Cause.WORKER, LIKELY)


def test_the_leftovers_of_one_run_are_all_strays() -> None:
    base = unlisted(left(Surroundings(job=REST)))
    more = (*base.unlisted, msgspec.structs.replace(base.unlisted[0], process=left(Surroundings(job=REST), pid=101)))
    assert len(find(msgspec.structs.replace(base, unlisted=more), None)) == 2


@pytest.mark.parametrize(
    "machine",
    [
        unlisted(left()),  # it has only asked how many GPUs there are
        unlisted(left(), gap_gib=0.4),  # no more than the driver takes for itself
        unlisted(left(), gap_gib=2.0, context=False),
        unlisted(left(cpu=80.0), gap_gib=2.0),
        unlisted(left(ppid=200), gap_gib=2.0, others=[mine(200)]),
        unlisted(left(), gap_gib=2.0, others=[mine(200, ppid=PID)]),  # it lets others compute
        unlisted(left(Surroundings(job=RUN)), gap_gib=2.0, others=[mine(200, Surroundings(job=RUN))]),
        unlisted(left(adopted=False), gap_gib=2.0),
        unlisted(left(Surroundings(unit="app.service")), gap_gib=2.0),
        unlisted(left(Surroundings(server="Triton")), gap_gib=2.0),
        unlisted(left(Surroundings(container=DOCKER)), gap_gib=2.0),
        unlisted(left(Surroundings(pane=TMUX)), gap_gib=2.0),
        unlisted(left(surroundings=None), gap_gib=2.0),
        unlisted(left(uid=1), gap_gib=2.0),
        unlisted(left(started=started(30)), gap_gib=2.0),
    ],
)
def test_no_leftover(machine: Snapshot) -> None:
    assert not find(machine, None)


# ---------------------------------------------------------------------------------------------------------------
# Notebook kernels


def test_a_kernel_whose_server_is_gone_is_one_once_it_is_quiet() -> None:
    found = stray(mine(around=Surroundings(notebook=KERNEL)), 400.0, at_least=True)
    assert (found.cause, found.sure) == (Cause.KERNEL, LIKELY)
    assert found.why == ("the server of its notebook has ended", "no SM use for at least 6 min")
    found = stray(left(Surroundings(notebook=KERNEL)), 400.0)
    assert found.sure is CERTAIN


@pytest.mark.parametrize(
    ("around", "idle", "changes"),
    [
        (Surroundings(notebook=KERNEL), None, {}),
        (Surroundings(notebook=KERNEL), 200.0, {}),
        (Surroundings(notebook=KERNEL), 400.0, {"cpu": 90.0}),
        (Surroundings(notebook=KERNEL, container=DOCKER), 400.0, {}),
        (Surroundings(notebook=Notebook(kernel="8f2a", server=3350)), 400.0, {}),
    ],
)
def test_no_kernel_that_was_left(around: Surroundings, idle: float | None, changes: dict[str, Any]) -> None:
    assert one(left(around, **changes), idle) is None


# ---------------------------------------------------------------------------------------------------------------
# Orphaned


@pytest.mark.parametrize(
    ("around", "idle", "at_least", "sure", "words"),
    [
        (Surroundings(), 400.0, False, LIKELY, "its login has ended"),
        (Surroundings(), 400.0, True, LIKELY, "its login has ended"),
        (Surroundings(), 9 * HOUR, False, LIKELY, "its login has ended"),
        (Surroundings(), 90000.0, True, CERTAIN, "its login has ended"),
        (Surroundings(words="its environment was overwritten"), 90000.0, False, LIKELY, "its login has ended"),
        (Surroundings(peer="10.0.0.3:6379"), 9 * HOUR, False, LIKELY, "its login has ended"),
        (Surroundings(job=Job(key="100:1", rank=3, world=16)), 9 * HOUR, False, LIKELY, "its login has ended"),
        (Surroundings(ssh="10.0.0.7"), 90000.0, False, CERTAIN, "its SSH login from 10.0.0.7 has ended"),
        (
            Surroundings(pane=msgspec.structs.replace(TMUX, alive=False), ssh="10.0.0.7"),
            90000.0,
            False,
            CERTAIN,
            "its tmux session has ended",
        ),
    ],
)
def test_an_orphan_that_does_nothing(
    around: Surroundings, idle: float, at_least: bool, sure: Certainty, words: str
) -> None:
    found = stray(left(around), idle, at_least, gib=0.5)
    assert (found.cause, found.sure) == (Cause.LEFTOVER, sure)
    assert found.why[:2] == (words, "its parent has ended")
    assert found.why[-1].startswith("no SM use for ")


def test_who_may_wait_for_somebody_is_said_to() -> None:
    found = stray(left(Surroundings(peer="10.0.0.3:6379", job=Job(key="100:1", rank=3, world=16))), HOUR)
    assert found.why[2:4] == (
        "it is connected to 10.0.0.3:6379, and may wait for it",
        "15 of its run's 16 ranks are not seen here",
    )


def test_a_run_all_of_whose_ranks_are_idle_waits_for_nobody() -> None:
    ranks = [left(Surroundings(job=Job(key="9:9", rank=rank, world=2)), pid=100 + rank) for rank in (0, 1)]
    found = find(machine(ranks, [held(100)], [held(101)]), told((0, 100, 25 * HOUR), (1, 101, 25 * HOUR)))
    assert [row.sure for row in found] == [CERTAIN, CERTAIN]


def test_a_worker_of_a_dead_run_is_not_certain_after_a_minute_of_looking() -> None:
    found = stray(left(Surroundings(job=REST)), 100.0, at_least=True)
    assert found.sure is LIKELY


@pytest.mark.parametrize(
    ("process", "idle", "sm"),
    [
        (left(), 0.0, 70),  # nohup python train.py &
        (left(), 200.0, 0),
        (left(), None, 0),
        (left(led=True), 1000.0, 0),  # setsid: it leads a session of its own
        (left(led=None), 1000.0, 0),
        (left(adopted=False), 1000.0, 0),
        (left(surroundings=None), 1000.0, 0),
        (left(cpu=80.0), 1000.0, 0),
        (left(below=800.0), 1000.0, 0),  # it waits for a pool that prepares data
        (left(state="disk sleep"), 1000.0, 0),
        (left(state="tracing stop"), 1000.0, 0),
        (left(Surroundings(unit="ollama.service")), 1000.0, 0),
        (left(Surroundings(unit="mine.service", user_unit=True)), 1000.0, 0),
        (left(Surroundings(container=DOCKER)), 1000.0, 0),
        (left(Surroundings(slurm="4711.batch")), 1000.0, 0),
        (left(Surroundings(batch="lsf 4711")), 1000.0, 0),
        (left(Surroundings(pod="lab/x")), 1000.0, 0),
        (left(Surroundings(pane=TMUX)), 1000.0, 0),
        (left(Surroundings(pane=msgspec.structs.replace(TMUX, alive=None))), 1000.0, 0),
        (left(Surroundings(server="listens on port 8000")), 1000.0, 0),
        (left(Surroundings(notebook=Notebook(server=3350))), 1000.0, 0),
        (left(name="nvidia-cuda-mps-server"), 1000.0, 0),
        (left(started=started(30)), 1000.0, 0),
        (left(started=None), 1000.0, 0),
        (left(start=0), 1000.0, 0),
        (left(uid=1), 1000.0, 0),
        (left(uid=None, presence=Presence.HIDDEN), 1000.0, 0),
    ],
)
def test_no_orphan(process: Process, idle: float | None, sm: int) -> None:
    assert one(process, idle, sm=sm) is None


def test_a_client_of_mps_and_a_desktop_are_not_judged_by_their_idle_time() -> None:
    assert one(left(), 1e5, kind="M") is None
    assert one(left(), 1e5, kind="G") is None
    assert one(left(), 1e5, kind="C+G") is not None


def test_little_memory_is_nobodys_loss_and_unknown_memory_may_be_much() -> None:
    assert one(left(), 1000.0, memory=63 * MIB) is None
    assert one(left(), 1000.0, memory=64 * MIB) is not None
    found = stray(left(), 1e5, memory=Reason.UNSUPPORTED)
    assert (found.held, found.why) == (None, ("its login has ended", "its parent has ended", "no SM use for 1 d 3 h"))


# ---------------------------------------------------------------------------------------------------------------
# Idle


@pytest.mark.parametrize(
    ("around", "changes", "why"),
    [
        (Surroundings(), {}, ("no SM use for 50 min", "its terminal is still open")),
        (Surroundings(), {"terminal": ""}, ("no SM use for 50 min",)),
        (Surroundings(notebook=Notebook(server=1)), {}, ("no SM use for 50 min", "its notebook may still be open")),
        (
            Surroundings(notebook=Notebook(server=1), unit="jupyterhub.service"),
            {},
            ("no SM use for 50 min", "its notebook may still be open"),
        ),
        (
            Surroundings(slurm="4711.0"),
            {"terminal": ""},
            ("no SM use for 50 min", "Slurm ends it with job 4711"),
        ),
        (
            Surroundings(batch="pbs 4711"),
            {"terminal": ""},
            ("no SM use for 50 min", "its scheduler ends it with pbs 4711"),
        ),
        (Surroundings(container=DOCKER), {"terminal": ""}, ("no SM use for 50 min", "its container still runs")),
        (
            Surroundings(job=Job(key="100:1", rank=3, world=16)),
            {"terminal": ""},
            ("no SM use for 50 min", "15 of its run's 16 ranks are not seen here"),
        ),
    ],
)
def test_idle_for_longer_than_the_limit(around: Surroundings, changes: dict[str, Any], why: tuple[str, ...]) -> None:
    found = stray(mine(around=around, **changes), 3000.0)
    assert (found.cause, found.sure, found.why, found.idle) == (Cause.IDLE, LIKELY, why, 3000.0)


@pytest.mark.parametrize(
    ("process", "idle", "changes"),
    [
        (mine(), 1799.0, {}),
        (mine(), None, {}),
        (mine(), 3000.0, {"sm": 1}),
        (mine(), 3000.0, {"gib": 0.9}),
        (mine(), 3000.0, {"memory": Reason.UNSUPPORTED}),
        (mine(), 3000.0, {"kind": "G"}),
        (mine(), 3000.0, {"kind": "M"}),
        (mine(cpu=60.0), 3000.0, {}),
        (mine(state="tracing stop"), 3000.0, {}),
        (mine(around=Surroundings(server="vLLM")), 3000.0, {}),
        (mine(around=Surroundings(unit="ollama.service")), 3000.0, {}),
        (mine(around=Surroundings(pod="lab/x")), 3000.0, {}),
        (mine(surroundings=None), 3000.0, {}),
        (mine(declared=Declared(knowledge=Knowledge.PENDING)), 3000.0, {}),
        (mine(name="nvidia-cuda-mps-server"), 3000.0, {}),
    ],
)
def test_not_idle(process: Process, idle: float | None, changes: dict[str, Any]) -> None:
    assert one(process, idle, **changes) is None


def test_on_several_gpus_it_must_be_idle_on_each() -> None:
    two = machine([mine()], [held(gib=0.5)], [held(gib=0.75)])
    (found,) = find(two, told((0, PID, 3000.0), (1, PID, 2000.0, True)))
    assert (found.indices, found.held, found.idle, found.idle_at_least) == ((1, 0), round(1.25 * GIB), 2000.0, True)
    assert not find(two, told((0, PID, 3000.0), (1, PID, 900.0)))
    assert not find(two, told((0, PID, 3000.0)))


def test_a_rank_that_waits_for_the_others_is_not_idle() -> None:
    ranks = [mine(pid, Surroundings(job=RUN)) for pid in (100, 101, 102)]
    run = machine(ranks, [held(100)], [held(101)], [held(102)])
    assert len(find(run, told(*((index, 100 + index, 3000.0) for index in range(3))))) == 3
    assert not find(run, told((0, 100, 3000.0), (1, 101, 3000.0), (2, 102, 1000.0)))
    assert not find(run, told((0, 100, 3000.0), (1, 101, 3000.0)))


def test_who_lets_a_worker_compute_is_not_idle() -> None:
    both = machine([mine(100), mine(101, ppid=100)], [held(100), held(101, sm=40)])
    assert not find(both, told((0, 100, 3000.0)))
    busy = Unlisted(process=mine(101, ppid=100, cpu=99.0), gpus=(gpu(0).key,), context=True)
    assert not find(machine([mine()], [held()], unlisted=(busy,)), told((0, PID, 3000.0)))
    rests = msgspec.structs.replace(busy, process=mine(101, ppid=100))
    assert len(find(machine([mine()], [held()], unlisted=(rests,)), told((0, PID, 3000.0)))) == 1


def test_what_holds_several_instances_of_a_gpu_is_busy_where_one_is() -> None:
    both = machine([mine()], [held(gpu_instance=1, sm=0), held(gpu_instance=2, sm=20)])
    assert not find(both, told((0, PID, 3000.0)))
