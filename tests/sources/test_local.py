"""The supervisor on the real sampler and the fake driver: hangs, crashes, lost drivers, and quitting amid them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.model.snapshot import Gpu, Health, Snapshot, SourceState
from gpuwatch.sampler.protocol import SamplerOptions
from gpuwatch.sources.local import LocalSource, Timeouts
from tests.driver import Driver
from tests.support.environment import environment
from tests.support.sampler import close, until

pytestmark = pytest.mark.slow

QUICK = Timeouts(call=0.6, start=1.2, probe=0.3, probe_most=1.0, restart=0.2, restart_most=0.4)
"""The same rules in less time."""

Start = Callable[..., LocalSource]


@pytest.fixture
def start(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts a source on the fake driver; whatever it started is closed."""
    sources = []

    def begin(**options: Any) -> LocalSource:
        for name in {*os.environ} - {*environment()}:
            monkeypatch.delenv(name)  # these samplers are killed, and never save which lines they ran
        for name, value in driver.env().items():
            monkeypatch.setenv(name, value)
        settings = {name: options.pop(name) for name in SamplerOptions.__struct_fields__ if name in options}
        source = LocalSource(SamplerOptions(**{"interval": 0.1, **settings}), **{"timeouts": QUICK, **options})
        sources.append(source)
        return sources[-1]

    yield begin
    for source in sources:
        close(source)


def live(snapshot: Snapshot) -> list[int]:
    """Return the indices of the GPUs that are well."""
    return [gpu.index for gpu in snapshot.gpus if gpu.health is Health.OK]


def row(snapshot: Snapshot, index: int) -> Gpu:
    """Return one GPU's row."""
    (found,) = [gpu for gpu in snapshot.gpus if gpu.index == index]
    return found


def eight(driver: Driver) -> None:
    """Put eight GPUs into the machine."""
    driver.lab(8, 20).write()


@pytest.fixture
def source(driver: Driver, start: Start) -> LocalSource:
    """Return a source that shows eight GPUs, which are all well."""
    eight(driver)
    begun = start()
    until(begun, all_are_well)
    return begun


def all_are_well(snapshot: Snapshot) -> bool:
    return live(snapshot) == list(range(8))


def test_a_hang_costs_one_row_until_the_gpu_answers_again(driver: Driver, source: LocalSource) -> None:
    driver.put(faults=["nvmlDeviceGetUtilizationRates@2 hang"])
    snapshot = until(source, lambda it: row(it, 2).health is Health.SILENT)
    assert "nvmlDeviceGetUtilizationRates" in row(snapshot, 2).words
    sampled = max(gpu.sampled for gpu in snapshot.gpus)
    snapshot = until(source, lambda it: len(live(it)) == 7 and min(row(it, i).sampled for i in live(it)) > sampled)
    assert row(snapshot, 2).uuid, "it keeps its identity"
    assert snapshot.monotonic - row(snapshot, 2).sampled > 0, "and its age"
    driver.put(faults=[])
    until(source, all_are_well)


def test_a_slow_gpu_does_not_make_the_others_late(driver: Driver, source: LocalSource) -> None:
    driver.put(faults=["*@5 sleep=3000"])
    snapshot = until(source, lambda it: row(it, 5).health is Health.SILENT)
    before = row(snapshot, 0).sampled
    snapshot = until(source, lambda it: row(it, 0).sampled > before + 1.0)
    assert live(snapshot) == [0, 1, 2, 3, 4, 6, 7]
    assert row(snapshot, 0).sampled - row(snapshot, 5).sampled > 0.9, "its figures show their age"


def test_a_hang_at_the_look_up_of_a_handle(driver: Driver, start: Start) -> None:
    eight(driver)
    driver.put(faults=["nvmlDeviceGetHandleByIndex_v2@3 hang"])
    snapshot = until(start(), lambda it: len(live(it)) == 7)
    assert row(snapshot, 3).health is Health.SILENT


def test_a_gpu_whose_call_crashes_the_sampler_is_left_out_and_tried_again(driver: Driver, start: Start) -> None:
    """After a while, and at once where the user asks."""
    eight(driver)
    driver.put(faults=["nvmlDeviceGetMemoryInfo_v2@4 segv"])
    source = start()
    snapshot = until(source, lambda it: len(live(it)) == 7)
    assert row(snapshot, 4).health is Health.QUARANTINED
    assert "nvmlDeviceGetMemoryInfo crashed the sampler (" in row(snapshot, 4).words
    driver.put(faults=[])
    until(source, all_are_well)
    driver.put(faults=["nvmlDeviceGetMemoryInfo_v2@4 segv"])
    until(source, lambda it: row(it, 4).health is Health.QUARANTINED)
    driver.put(faults=[])
    source.poke()
    until(source, all_are_well)


@pytest.mark.parametrize(
    ("fault", "state", "words"),
    [("hang", SourceState.SILENT, "does not answer"), ("ret=9", SourceState.DRIVER_DOWN, "not loaded")],
)
def test_a_driver_that_does_not_start_is_waited_for(
    driver: Driver, start: Start, fault: str, state: SourceState, words: str
) -> None:
    driver.put(faults=[f"nvmlInit_v2 {fault}", f"nvmlInitWithFlags {fault}"])
    source = start()
    assert words in until(source, lambda it: it.state is state).words
    driver.put(faults=[])
    until(source, lambda it: live(it) == [0])


def test_a_driver_upgraded_under_us_heals_with_the_library(driver: Driver, source: LocalSource) -> None:
    driver.put(faults=["* ret=18"])
    assert "version" in until(source, lambda it: it.state is SourceState.DRIVER_DOWN).words
    driver.put(faults=[])
    until(source, lambda it: it.state is SourceState.OK and all_are_well(it))


def test_closing_does_not_wait_for_a_hung_driver(driver: Driver, start: Start) -> None:
    driver.put(faults=["* hang"])
    source = start()
    until(source, lambda it: "nvmlInit" in it.words)
    pids = source.pids
    close(source)
    assert source.next(10.0) is None
    assert not any(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids if Path(f"/proc/{pid}").exists())


def test_a_shorter_interval_makes_no_figures_late(driver: Driver, start: Start) -> None:
    source = start(interval=60.0)
    seen = until(source, lambda it: it.state is SourceState.OK and bool(it.gpus and it.gpus[0].sampled))
    stamp = seen.gpus[0].sampled
    # As old as figures may be under the old interval, and not under the new one.
    old = time.monotonic() + 0.5
    while time.monotonic() < old:
        source.next(0.05)
    source.set_interval(0.1)
    while seen.gpus[0].sampled == stamp:
        seen = source.next(0.5) or seen
        assert seen.gpus[0].sampled > stamp or seen.interval == 60.0, "figures that are shown again are late"
    assert until(source, lambda it: it.interval == 0.1)


# -- programs in place of the sampler ------------------------------------------------------------------------------


def stub(body: str) -> tuple[str, ...]:
    """Return a command that stands in for the sampler where no real one misbehaves so."""
    return (sys.executable, "-c", f"import os, sys, time\nfrom gpuwatch.model.snapshot import *\n{body}")


def ends_once(tmp_path: Path, ending: str) -> tuple[str, ...]:
    """Return a command that ends as told the first time, and the second time shows a GPU of the host `second`."""
    mark = tmp_path / "second"
    return stub(f"""
if os.path.exists({str(mark)!r}):
    print(encode(Snapshot(host="second", gpus=(Gpu(index=0),))).decode(), flush=True)
    time.sleep(60)
open({str(mark)!r}, "w").close()
{ending}
""")


def test_torn_lines_and_a_flood_are_survived(start: Start) -> None:
    body = """
out = sys.stdout.buffer
out.write(b'{"half": ' + b"x" * 100 + b"\\n" + b"\\xff\\xfe\\n\\n")
out.write(b"y" * (65 * 2**20))
out.write(b"\\n" + encode(Snapshot(host="after", gpus=(Gpu(index=0),))) + b"\\n")
out.flush()
time.sleep(60)
"""
    until(start(command=stub(body)), lambda it: it.host == "after")


def test_a_sampler_that_dies_mid_line_is_started_again(start: Start, tmp_path: Path) -> None:
    ending = """print('{"schema": 1, "ho', end="", flush=True)\nos._exit(70)"""
    until(start(command=ends_once(tmp_path, ending)), lambda it: it.host == "second")


def test_a_newer_schema_is_not_misread(start: Start) -> None:
    body = """print(encode(Snapshot(schema=99, host="future")).decode(), flush=True)\ntime.sleep(60)"""
    snapshot = until(start(command=stub(body)), lambda it: it.monotonic > 0)
    assert snapshot.host != "future"


def test_a_settled_source_looks_only_at_what_came_and_when_it_is_woken(start: Start) -> None:
    looks: list[float] = []

    def clock() -> float:
        looks.append(time.monotonic())
        return looks[-1]

    source = start(interval=1.0, timeouts=Timeouts(), clock=clock)
    until(source, lambda it: it.state is SourceState.OK)
    for _ in range(2):  # the first may come at once, with what was read meanwhile
        until(source, lambda it: True)
    began, before = time.monotonic(), len(looks)
    for _ in range(3):
        assert source.next(60.0) is not None
    # Two readings of the clock for a snapshot, or two where none came in time.
    assert len(looks) - before <= 6 + 2 * int(time.monotonic() - began) // 1.25 + 2
    source.wake()
    source.wake()
    assert source.next(60.0) is None
    threading.Timer(0.1, source.wake).start()
    while source.next(60.0) is not None:  # a snapshot may come before
        pass


def test_a_source_that_is_closed_wakes_up(start: Start) -> None:
    source = start(interval=60.0, timeouts=Timeouts(restart=60.0), command=("/nonexistent",))
    threading.Timer(0.1, source.close).start()
    while source.next(60.0) is not None:
        pass
    source.wake()
