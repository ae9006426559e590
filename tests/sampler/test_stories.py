"""What the sampler says of GPUs over minutes, as `stories.jsonl` tells them, on a clock that the test moves.

Each story has steps: the driver is changed, some seconds go by with a look each, and the rows of the last look are
compared. `gpus` are all GPUs anew (`eight`: those of `support.sampling`), `set` are changes of one, `drop` is the place
of one that the driver no longer lists; `procs` are processes as [GPU, PID, figures], `add` more of them, `xids` is what
happens as [GPU, code]. `look` is [times, seconds], [1, 1] by default, with the GPU in `focus` or none. `rows` are by
place and `of` by the number of a GPU's UUID; `calls` are counted from the start, with [least, most] or exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.model.snapshot import Gpu, Health, Reason, Xid
from gpuwatch.sampler.shared_page import EVENT_CALLS, LINK_CALLS
from gpuwatch.sampler.xid import XidCounter
from tests.declared.tables import Case, cases
from tests.driver import GIB, MIB, Code, Driver, Mig, Proc, build
from tests.driver import Gpu as Card
from tests.support.sampler import ME, Running, eight, once

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
    before = board.calls
    gpus.sample(lambda: None)
    gpus.listen()
    look = {"now": now, "spent": board.calls - before, "total": board.calls, "gpus": gpus.rows()}
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


def figure(value: Any) -> Any:
    """Return a figure of the driver, or one that is expected: `3GiB`, "me", {"code": 15}, {"bytes": …}, or itself."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]+GiB", value):
        return int(value[:-3]) * GIB
    if isinstance(value, list):
        return [figure(one) for one in value]
    if isinstance(value, dict) and value.keys() == {"code"}:
        return Code(value["code"])
    if isinstance(value, dict) and value.keys() == {"bytes"}:
        return value["bytes"].encode("latin-1")
    return ME if value == "me" else value


def fields(written: Case) -> Case:
    """Return the fields of a GPU of the driver, with its instances."""
    found = {name: figure(value) for name, value in written.items()}
    if "migs" in written:
        found["migs"] = [Mig(**{name: figure(value) for name, value in one.items()}) for one in written["migs"]]
    if "values" in written:
        found["values"] = {int(number): figure(value) for number, value in written["values"].items()}
    return found


def change(driver: Driver, step: Case) -> None:
    """Do to the driver what a step says."""
    if step.get("eight"):
        eight(driver)
    if "gpus" in step:
        driver.gpus = [Card(**fields(one)) for one in step["gpus"]]
    for place, changes in step.get("set", {}).items():
        driver.gpus[int(place)] = replace(driver.gpus[int(place)], **fields(changes))
    if "drop" in step:
        del driver.gpus[step["drop"]]
    kept = [] if "procs" in step else driver.procs
    listed = [*step.get("procs", []), *step.get("add", [])]
    added = [Proc(gpu, figure(pid), **fields(more)) for gpu, pid, more in listed]
    driver.procs = [*kept, *added]
    driver.faults = step.get("faults", driver.faults)
    driver.xids = [*driver.xids, *(tuple(one) for one in step.get("xids", ()))]
    driver.write()


def observed(row: Gpu, look: Look, field: str) -> Any:
    """Return a field of a row: also of its first holding, of its instances, how often each XID came, and its age."""
    if field == "xids":
        return row.xids if isinstance(row.xids, Reason) else {str(xid.code): xid.count for xid in row.xids}
    if field == "held":
        return [one.pid for one in row.holdings]
    if field == "age":
        return look.now - row.sampled
    if field == "parts":
        return [[one.pid, one.gpu_instance, one.memory] for one in row.holdings]
    if field.startswith("slices"):
        return [one.memory.used if field.endswith("used") else one.gpu_instance for one in row.instances]
    if field.startswith("held."):
        return getattr(row.holdings[0], field.removeprefix("held."))
    return attrgetter(field)(row)


def assert_row(row: Gpu, look: Look, expected: Case) -> None:
    for field, value in expected.items():
        found = msgspec.to_builtins(observed(row, look, field))
        if field in ("words", "holdings_note") and value:
            assert value in found, row
        else:
            assert (list(found) if isinstance(found, tuple) else found) == figure(value), (field, row)


@cases("sampler/stories")
def test_a_story(driver: Driver, later: Later, case: Case) -> None:
    before: Look | None = None
    for step in case["steps"]:
        change(driver, step)
        times, seconds = step.get("look", (1, 1))
        focus = str(driver.gpus[step["focus"]].uuid) if "focus" in step else ""
        look = [later(seconds, focus) for _ in range(times)][-1]
        for place, expected in step.get("rows", {}).items():
            assert_row(look.gpus[int(place)], look, expected)
        for number, expected in step.get("of", {}).items():
            (row,) = [one for one in look.gpus if one.uuid.startswith(f"GPU-{int(number):08x}")]
            assert_row(row, look, expected)
        for name in step.get("same", ()):
            assert before is not None
            assert [getattr(row, name) for row in look.gpus] == [getattr(row, name) for row in before.gpus]
        for call, number in step.get("calls", {}).items():
            name, _, gpu = call.partition("@")
            least, most = number if isinstance(number, list) else (number, number)
            assert least <= driver.calls(*([int(gpu)] if gpu else []))[name] <= most, call
        before = look


NEW = (
    *("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"),
    "nvmlDeviceGetRemappedRows",
)


def _lists(*generations: str) -> Iterable[str]:
    kinds = ("Compute", "Graphics", "MPSCompute")
    return [f"nvmlDeviceGet{kind}RunningProcesses{generation}" for kind in kinds for generation in generations]


@pytest.mark.parametrize(
    ("absent", "used"),
    [(_lists("_v3"), "_v2"), ([*NEW, *_lists("_v3", "_v2"), *LINK_CALLS, *EVENT_CALLS], "")],
    ids=["no _v3", "neither _v3 nor _v2, nor any newer call"],
)
def test_an_old_driver_fills_all_that_it_can(
    driver: Driver, later: Later, tmp_path: Path, absent: list[str], used: str
) -> None:
    """Each call has an older one below it."""
    driver.library = build(tmp_path / "old", absent=absent)
    eight(driver)
    later(0)
    row = later(1, str(driver.gpus[0].uuid)).gpus[0]
    assert (row.health, row.temperature, row.throttle, row.utilization) == (Health.OK, 31, (), 50)
    assert [(held.pid, held.memory, held.sm) for held in row.holdings] == [(ME, 2 * GIB, 40)]
    assert driver.calls()[f"nvmlDeviceGetComputeRunningProcesses{used}"]
    if "nvmlDeviceGetMemoryInfo_v2" in absent:
        assert (row.memory.used, row.memory.reserved) == (3 * GIB + 551 * MIB, Reason.UNSUPPORTED)
        assert row.unattributed is Reason.UNSUPPORTED
        asked = (row.pcie_rx, row.pcie_tx, row.pcie_link, row.nvlinks, row.nvlink_rx, row.nvlink_tx)
        assert {*asked, row.xids, row.remap_pending} == {Reason.UNSUPPORTED}
    else:
        assert (row.memory.used, row.unattributed) == (3 * GIB, GIB)


def test_a_driver_without_a_process_list(driver: Driver, later: Later, tmp_path: Path) -> None:
    driver.library = build(tmp_path / "old", absent=_lists("_v3", "_v2", ""))
    row = later(0).gpus[0]
    assert (row.health, row.holdings, row.unattributed) == (Health.OK, (), Reason.NO_SAMPLE)
    assert "does not list" in row.holdings_note


def test_a_unified_machine_shows_the_machines_memory(driver: Driver, tmp_path: Path) -> None:
    """GB10: neither memory call is supported; the GPU's use is what its processes take."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text("MemTotal:       125829120 kB\nMemFree: 1 kB\nMemAvailable:   83886080 kB\n")
    driver.gpus = [Card(0, memory_total=None, memory_used=None), Card(1, memory_total=0)]
    driver.procs = [Proc(0, ME, memory=5 * GIB), Proc(0, ME - 1, memory=2 * GIB)]
    snapshot, _ = once(driver.write().env(), proc=str(proc))
    memory = snapshot.gpus[0].memory
    assert memory.unified
    assert (memory.total, memory.free, memory.used) == (120 * GIB, 80 * GIB, 7 * GIB)
    assert (memory.reserved, snapshot.gpus[0].unattributed) == (Reason.UNSUPPORTED, Reason.UNSUPPORTED)
    assert (snapshot.gpus[1].memory.unified, snapshot.gpus[1].memory.used) == (True, 0)


def test_a_cut_gpu_keeps_to_the_budget(driver: Driver, later: Later) -> None:
    driver.put(gpus=[Card(0, mig_mode=1, migs=[Mig(gi=index + 1) for index in range(7)])])
    assert len(later(0).gpus[0].instances) == 7
    before = driver.calls(0)
    for _ in range(10):
        later(0.1)
    assert sum((driver.calls(0) - before).values()) <= 8 * 10


def heard(xids: tuple[Xid, ...] | Reason) -> dict[int, int] | Reason:
    """Return how often each code was reported."""
    return xids if isinstance(xids, Reason) else {xid.code: xid.count for xid in xids}


def test_a_counter_counts_by_code_and_keeps_the_newest() -> None:
    assert XidCounter().xids is Reason.NO_SAMPLE
    counter = XidCounter()
    counter.missing = None
    assert heard(counter.xids) == {}
    for wall, code in enumerate([79, 31, 79], 100):
        counter.add(code, wall)
    assert counter.xids == (Xid(code=31, count=1, last=101), Xid(code=79, count=2, last=102))
    for code in range(200, 215):
        counter.add(code, 200.0)
    assert heard(counter.xids) == {79: 2, **dict.fromkeys(range(200, 215), 1)}
    counter.missing = Reason.ERROR
    assert len(counter.xids) == 16, "what was heard stays true"


def test_a_driver_whose_events_cannot_be_waited_for(driver: Driver, later: Later, tmp_path: Path) -> None:
    driver.library = build(tmp_path / "older", absent=("nvmlEventSetWait_v2",))
    row = [later(1) for _ in range(3)][-1].gpus[0]
    assert (row.health, row.xids, row.remap_pending) == (Health.OK, Reason.UNSUPPORTED, False)
    assert not driver.calls()["nvmlEventSetCreate"]


def test_a_fault_must_be_known(driver: Driver) -> None:
    for fault in ("nvmlDeviceGetTemprature hang", "nvmlInit_v2 hnag", "* ", "nvmlInit_v2@x hang"):
        with pytest.raises(ValueError, match="not a fault"):
            driver.put(faults=[fault])
