"""The contract of a source (`gpuwatch.sources.source.Source`), of each that there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuwatch.declared.facts import Share
from gpuwatch.model.snapshot import Reason, Snapshot, SourceState, decode, encode, known
from gpuwatch.sampler.protocol import SamplerOptions
from gpuwatch.sources.demo import DemoSource
from gpuwatch.sources.local import LocalSource
from gpuwatch.sources.source import Source
from tests.driver import Driver
from tests.support.sampler import close, until

INTERVAL = 0.05


@pytest.fixture(params=["local", "demo"])
def source(request: pytest.FixtureRequest, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    """Return a source that has given its first snapshot with GPUs."""
    for name, value in driver.env().items():
        monkeypatch.setenv(name, value)
    driver.lab(2, 2)
    driver.write()
    made: Source = (
        DemoSource(interval=INTERVAL) if request.param == "demo" else LocalSource(SamplerOptions(interval=INTERVAL))
    )
    following(made)
    yield made
    if isinstance(made, LocalSource):
        close(made)
    else:
        made.close()


def following(source: Source) -> Snapshot:
    """Wait for the next snapshot that has GPUs."""
    return until(source, lambda one: one.gpus and one.state is SourceState.OK)


def test_snapshots_follow_each_other(source: Source) -> None:
    found = [following(source) for _ in range(4)]
    times = [snapshot.monotonic for snapshot in found]
    assert times == sorted(times)
    assert len({snapshot.host for snapshot in found}) == 1
    assert all(decode(encode(snapshot)) == snapshot for snapshot in found)


def test_another_interval_holds_from_now_on(source: Source) -> None:
    source.set_interval(3600.0)
    while following(source).interval != 3600.0:
        pass
    assert source.next(0.0) is None, "nothing is due for an hour"


def test_a_poke_brings_a_sample_at_once(source: Source) -> None:
    source.set_interval(3600.0)
    while (last := following(source)).interval != 3600.0:
        pass
    source.poke()
    assert following(source).monotonic > last.monotonic


def test_new_shares_interrupt_nothing(source: Source) -> None:
    source.set_shares((Share(user="ada", share=0.5),))
    assert following(source).gpus


def test_the_gpu_in_focus_alone_has_values_of_its_links(source: Source) -> None:
    first = following(source)
    source.set_focus(first.gpus[1].key)
    while (seen := following(source)).gpus[1].pcie_tx is Reason.NO_SAMPLE:
        pass
    assert known(seen.gpus[1].pcie_tx)
    assert seen.gpus[1].pcie_link.startswith("gen")
    assert seen.gpus[0].pcie_tx is Reason.NO_SAMPLE
    source.set_focus(None)
    while known(following(source).gpus[1].pcie_tx):
        pass


def test_a_closed_source_gives_nothing_and_waits_for_nothing(source: Source) -> None:
    source.close()
    assert source.next(3600.0) is None
