"""Reader of the fleet: at most eight queries a reading, and old figures that stay with their trouble."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from gpuwatch.config.types import FleetSettings
from gpuwatch.fleet.overview import Fleet
from gpuwatch.fleet.prometheus import PrometheusClient
from gpuwatch.fleet.reader import FleetReader, read_fleet
from tests.support.prometheus import FakePrometheus, fake_prometheus
from tests.support.waiting import PATIENCE, wait_for


@contextmanager
def reading(fake: FakePrometheus, interval: float = 3600.0) -> Iterator[tuple[FleetReader, SimpleQueue[Fleet]]]:
    """Run a reader, and return it with what it publishes."""
    published: SimpleQueue[Fleet] = SimpleQueue()
    reader = FleetReader(PrometheusClient(FleetSettings(), fake.url), interval, published.put)
    reader.start()
    try:
        yield reader, published
    finally:
        fake.over.set()
        reader.close()


def test_a_reading_is_four_queries_on_one_connection() -> None:
    with fake_prometheus() as fake:
        fake.warnings = ["store eu-1 is down"]
        found = read_fleet(PrometheusClient(FleetSettings(), fake.url))
    assert len(fake.asked) == 4
    assert len({one["query"] for one in fake.asked}) == 4
    assert [host.name for host in found.hosts] == ["node0001", "node0000", "node0002", "node0003"]
    assert found.notes == ("the answer is partial: store eu-1 is down",), "once, of four answers"


def test_old_figures_stay_where_the_server_fails_and_go_when_it_is_back() -> None:
    with fake_prometheus() as fake, reading(fake) as (reader, published):
        first = published.get(timeout=PATIENCE)
        assert (len(first.hosts), first.trouble) == (4, "")
        fake.fault = lambda handler: handler.reply(503, b"oops", "text/plain")
        reader.start()
        second = published.get(timeout=PATIENCE)
        assert second.trouble.endswith("answer 503 (text/plain); it answers with an error page")
        assert (second.hosts, second.received, second.taken) == (first.hosts, first.received, first.taken)
        fake.fault = None
        reader.start()
        third = published.get(timeout=PATIENCE)
        assert third.trouble == ""
        assert third.received is not None
        assert first.received is not None
        assert third.received > first.received


def test_it_reads_again_after_each_interval() -> None:
    with fake_prometheus() as fake, reading(fake, 0.01) as (_, published):
        for _ in range(3):
            assert published.get(timeout=PATIENCE).hosts


def test_a_fault_of_ours_is_a_trouble_too() -> None:
    with fake_prometheus() as fake:
        client = PrometheusClient(FleetSettings(), fake.url)
        published: SimpleQueue[Fleet] = SimpleQueue()
        reader = FleetReader(client, 3600.0, published.put)
        client.query = lambda expression: 1 / 0  # type: ignore[assignment, method-assign, return-value]
        reader.start()
        assert "ZeroDivisionError" in published.get(timeout=PATIENCE).trouble
        reader.close()


def test_the_past_of_a_host_is_asked_for_by_its_instance() -> None:
    with fake_prometheus() as fake, reading(fake) as (reader, published):
        published.get(timeout=PATIENCE)
        future = reader.past("node0001", 1000.0, 15.0, 4)
        wait_for(future.done)
        assert future.result().start == 1000.0
    owners, past = fake.asked[4:]
    assert 'instance="node0001:9400"' in owners["query"]
    assert (past["path"], past["start"], past["end"], past["step"]) == (
        "/api/v1/query_range", "1015.000", "1060.000", "15.000",
    )  # fmt: skip
