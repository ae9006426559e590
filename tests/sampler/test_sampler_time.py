"""What the sampler does over minutes, on a clock that the test moves; in a process of its own, by the real binding."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from gpuwatch.model import Gpu, Health
from tests.driver import GIB, Driver, Mig, Proc
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
