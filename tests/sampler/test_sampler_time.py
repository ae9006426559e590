"""What the sampler does over minutes, on a clock that the test moves; in a process of its own, by the real binding."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from gpuwatch.model import Gpu, Health, Reason
from tests.driver import GIB, Code, Driver, Mig, Proc
from tests.driver import Gpu as Card
from tests.support.sampling import ME, Running

SCRIPT = """
import sys
import msgspec
from gpuwatch.sampler import nvml
from gpuwatch.sampler.shared_page import SharedPage
from gpuwatch.sampler.nvml import Calls
from gpuwatch.sampler.gpu import Shared
from gpuwatch.sampler.gpus import SampledGpus

board, now = SharedPage(), 1000.0
pynvml = nvml.load()
nvml.initialise(pynvml, board)
shared = Shared(Calls(pynvml, board), clock=lambda: now)
gpus = SampledGpus(shared)
for line in sys.stdin:
    seconds, shared.focus = line.rstrip("\\n").split(" ")
    now += float(seconds)
    before = gpus.count
    gpus.sample(lambda: None)
    gpus.listen()
    look = {"now": now, "spent": gpus.count - before, "total": gpus.count, "gpus": gpus.rows()}
    print(msgspec.json.encode(look).decode(), flush=True)
"""


class Look(msgspec.Struct):
    """What one sample found, and the calls that it took."""

    now: float
    spent: int
    total: int
    gpus: list[Gpu]


Later = Callable[..., Look]


@pytest.fixture
def later(driver: Driver) -> Iterator[Later]:
    """Return a function that lets so many seconds go by and samples, with a GPU in focus or none."""
    started: list[Running] = []

    def look(seconds: float, focus: str = "") -> Look:
        if not started:
            started.append(Running.script(SCRIPT, driver.env()))
        pipe = started[0].process.stdin
        assert pipe is not None
        pipe.write(f"{seconds} {focus}\n".encode())
        line = started[0].line()
        assert line is not None, started[0].errors()
        return msgspec.json.decode(line, type=Look)

    yield look
    for running in started:
        running.close()


def test_three_minutes_within_the_budget(driver: Driver, later: Later) -> None:
    driver.put(procs=[Proc(0, ME, sm=40)])
    first = later(0)
    before = driver.calls(0)
    looks = [later(1) for _ in range(180)]
    spent = sorted(look.spent for look in looks)
    assert first.spent > 20
    assert spent[-1] <= 10
    assert spent[:-3][-1] <= 9
    assert sum((driver.calls(0) - before).values()) / len(spent) < 8
    assert driver.calls()["nvmlEventSetWait_v2"] == len(spent)
    assert all(look.gpus[0].health is Health.OK and look.now - look.gpus[0].slow_sampled < 12 for look in looks)
    counted = driver.calls(0)
    assert sum(driver.calls().values()) == looks[-1].total
    assert counted["nvmlDeviceGetFanSpeed"] == 1  # not supported on this model
    assert counted["nvmlDeviceGetPerformanceState"] in (18, 19)
    assert counted["nvmlDeviceGetPersistenceMode"] in (3, 4)


def test_at_a_slow_pace_each_sample_has_all(driver: Driver, later: Later) -> None:
    looks = [later(61) for _ in range(5)]
    assert [look.gpus[0].slow_sampled for look in looks] == [look.now for look in looks]


def test_a_gpu_that_is_cut_while_we_run(driver: Driver, later: Later) -> None:
    driver.put(gpus=[Card(0, util_gpu=60, memory_used=2 * GIB)], procs=[Proc(0, ME, sm=40)])
    assert later(0).gpus[0].utilization == 60
    driver.gpus[0].mig_mode, driver.gpus[0].migs = 1, [Mig(gi=3)]
    driver.procs[0].gi, driver.procs[0].ci = 3, 0
    driver.write()
    row = [later(1) for _ in range(62)][-1].gpus[0]
    assert (row.mig, row.utilization, len(row.instances)) == (True, Reason.UNSUPPORTED, 1)
    assert (row.holdings[0].sm, row.holdings[0].gpu_instance) == (Reason.UNSUPPORTED, 3)
    driver.gpus[0].mig_mode, driver.gpus[0].migs = 0, []
    driver.procs[0].gi = driver.procs[0].ci = None
    driver.write()
    row = [later(1) for _ in range(62)][-1].gpus[0]
    assert (row.mig, row.utilization, row.instances, row.holdings[0].sm) == (False, 60, (), 40)


def test_a_handle_that_is_reused_for_another_slice_carries_no_old_name(driver: Driver, later: Later) -> None:
    old = [Mig(gi=7, uuid="MIG-a", memory_used=GIB), Mig(gi=9, uuid="MIG-b", memory_used=2 * GIB)]
    new = [Mig(gi=1, uuid="MIG-c", name="MIG 3g.40gb", memory_used=3 * GIB), Mig(gi=9, uuid="MIG-d", memory_used=0)]
    driver.put(gpus=[Card(0, mig_mode=1, migs=old)])
    later(0)
    later(1)
    driver.gpus[0].migs = new
    driver.write()
    seen = [later(1).gpus[0].instances for _ in range(len(new))]
    used = {str(mig.uuid): mig.memory_used for mig in (*old, *new)}
    assert all(one.memory.used == used[one.uuid] for look in seen for one in look)
    assert [(one.uuid, one.name, one.gpu_instance) for one in seen[-1]] == [(mig.uuid, mig.name, mig.gi) for mig in new]
    driver.gpus[0].migs = new[1:]
    driver.write()
    assert [one.uuid for one in [later(1).gpus[0].instances for _ in new][-1]] == ["MIG-d"]


def test_instances_that_cannot_be_asked(driver: Driver, later: Later) -> None:
    driver.put(gpus=[Card(0, mig_mode=1, migs=[Mig(gi=3, memory_used=Code(4)), Mig(gi=4, memory_used=None)])])
    row = later(0).gpus[0]
    assert [one.memory.used for one in row.instances] == [Reason.DENIED, Reason.UNSUPPORTED]
    driver.put(faults=["nvmlDeviceGetMaxMigDeviceCount ret=4"])
    row = [later(1) for _ in range(62)][-1].gpus[0]
    assert (row.health, row.mig, row.instances) == (Health.OK, True, ())
    driver.put(faults=["nvmlDeviceGetMigDeviceHandleByIndex ret=15"])
    assert [later(1) for _ in range(62)][-1].gpus[0].health is Health.LOST


def test_a_gpu_that_goes_and_comes_back(driver: Driver, later: Later) -> None:
    driver.put(gpus=[Card(index) for index in range(3)])
    before = later(0).gpus
    del driver.gpus[1]
    driver.write()
    gone = [later(1) for _ in range(70)][-1].gpus
    assert {row.uuid: row.health for row in gone} == {
        before[0].uuid: Health.OK,
        before[1].uuid: Health.MISSING,
        before[2].uuid: Health.OK,
    }
    assert [row.index for row in gone if row.health is Health.OK] == [0, 1]
    driver.put(gpus=[Card(index) for index in range(4)])
    back = [later(1) for _ in range(70)][-1].gpus
    assert [row.index for row in back] == [0, 1, 2, 3]
    assert [row.uuid for row in back][:3] == [row.uuid for row in before]
    assert {row.health for row in back} == {Health.OK}


def test_gpus_with_a_name_of_any_bytes_without_one_and_without_an_address(driver: Driver, later: Later) -> None:
    hostile = Card(1, name="A\x1b]52;c;eA==\x07B", uuid=b"GPU-\xff")
    driver.put(gpus=[Card(0, name=Code(3), bus=b"\xff\xfe"), hostile, Card(2, name=b"NVIDIA \xff\xfe H100")])
    rows = later(0).gpus
    assert (rows[0].name, rows[0].bus_id, rows[0].health, rows[0].temperature) == ("", "", Health.OK, 31)
    assert (rows[1].name, rows[1].uuid) == ("A\ufffd]52;c;eA==\ufffdB", "GPU-\ufffd")
    assert rows[2].name == "NVIDIA \ufffd\ufffd H100"
