"""A thousand hosts of eight GPUs on a real Prometheus server: what is read, and by how many queries. Never how fast."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator

import pytest

from gpuwatch.config.types import FleetSettings
from gpuwatch.fleet.overview import find_hosts
from gpuwatch.fleet.prometheus import PrometheusClient, PrometheusError
from gpuwatch.fleet.reader import read_fleet, read_past
from gpuwatch.launch.placement import Request
from tests.support.prometheus import GAP, GIB, MODELS, PEOPLE, instance_of, is_free, serving

pytestmark = pytest.mark.slow

HOSTS, GPUS = 1000, 8
MOST_QUERIES = 8


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("prometheus"), HOSTS, GPUS) as found:
        yield found


def requests(url: str) -> float:
    """Return how many requests to its API the server has counted."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    counted = re.findall(r'^prometheus_http_requests_total\{.*handler="/api/v1/query.*\} (\S+)$', text, re.MULTILINE)
    return sum(map(float, counted))


def test_a_thousand_hosts_are_read_by_at_most_eight_queries(url: str) -> None:
    before = requests(url)
    fleet = read_fleet(PrometheusClient(FleetSettings(timeout=60.0), url))
    assert 0 < requests(url) - before <= MOST_QUERIES
    assert fleet.notes == ()
    assert len(fleet.hosts) == HOSTS
    by_name = {host.name: host for host in fleet.hosts}
    assert all(len(host.gpus) == GPUS and host.people and host.age == 7.0 for host in fleet.hosts)
    assert sum(gpu.is_free for host in fleet.hosts for gpu in host.gpus) == sum(
        is_free(host, gpu) for host in range(HOSTS) for gpu in range(GPUS)
    )
    assert {host.name for host in fleet.hosts if host.trouble} == {f"node{n:04}" for n in range(99, HOSTS, 100)}
    first = by_name["node0001"].gpus[1]
    assert (first.used, first.total, first.left, first.utilization) == (28 * GIB, 80 * GIB, 52 * GIB, 2.0)
    assert [fleet.hosts[0].name, fleet.hosts[0].worst] == ["node0001", "GPU 1: nearly full"]
    assert len(fleet.alerts) == HOSTS // 50
    assert all(alert.age is not None and alert.age >= 600 for alert in fleet.alerts)
    assert {person.name for person in fleet.people} == {*PEOPLE}
    assert {one.name for one in fleet.free} == {name.removeprefix("NVIDIA ") for name in MODELS}
    assert {one.most for one in fleet.free} == {4}
    enough, _ = find_hosts(fleet.hosts, Request(memory=70 * GIB), 4)
    assert {one.host.name for one in enough} == {f"node{n:04}" for n in range(0, HOSTS, 10)}


def test_the_past_of_a_host_is_read_with_its_gap(url: str) -> None:
    now = time.time()
    past = read_past(PrometheusClient(FleetSettings(), url), "node0000", instance_of(0), now - 86400, 360.0, 240)
    assert {(one.user, one.memory) for one in past.owners} == {("ada", 9.0 * GIB)}
    assert {key.figure for key in past.series} == {"used", "utilization", "power", "temperature", "memory"}
    (power,) = (values for key, values in past.series.items() if key.figure == "power" and key.uuid.endswith("0"))
    assert set(power) == {300.0, None}
    missing = [place for place, value in enumerate(power) if value is None]
    inside = [240 - place for place in missing if place > 20]
    assert inside, "no line leads over the gap"
    assert all(GAP[0] <= back * 360 <= GAP[1] + 720 for back in inside)


def test_a_query_that_the_server_refuses_is_told_in_its_words(url: str) -> None:
    with pytest.raises(PrometheusError, match=r"it rejects a query \(400\): .*parse error"):
        PrometheusClient(FleetSettings(), url).query("up{")
