"""Reader of the fleet: asks the Prometheus server on its own thread, and keeps the old figures if that fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from msgspec.structs import replace

from gpuwatch.base.errors import GpuwatchError
from gpuwatch.base.text import clean
from gpuwatch.base.threads import Worker
from gpuwatch.fleet.overview import QUERIES, Fleet, HostPast, host_queries, make_fleet, make_past
from gpuwatch.fleet.prometheus import PrometheusClient

CLOSING_S: Final = 0.2
"""Seconds that an unfinished reading gets when the program quits."""


def read_fleet(client: PrometheusClient) -> Fleet:
    """Read the fleet once; raises PrometheusError."""
    client.warnings.clear()
    samples = (one for query in QUERIES for one in client.query(query))  # only one answer is in memory at a time
    notes = (f"the answer is partial: {words}" for words in client.warnings)  # of all answers, once they are read
    return make_fleet(samples, server=client.url, taken=time.time(), received=time.monotonic(), notes=notes)


def read_past(client: PrometheusClient, host: str, instance: str, start: float, step: float, count: int) -> HostPast:
    """Read the owners on a host, and `count` values of its figures from `start` on; raises PrometheusError."""
    owners, past = host_queries(instance)
    end = min(start + count * step, time.time())
    return make_past(
        host,
        client.query(owners),
        client.query_range(past, start + step, max(end, start + step), step),
        start=start,
        step=step,
        count=count,
    )


class FleetReader:
    """Background reader: publishes a fleet after each reading, and the old one with its trouble after a failed one.

    Questions about one host are asked by the same thread, between two readings.
    """

    def __init__(self, client: PrometheusClient, interval: float, publish: Callable[[Fleet], None]) -> None:
        """`publish` is called on the reader's thread."""
        self.newest = Fleet(server=client.url)
        self.interval = interval
        self._client, self._publish = client, publish
        self._worker = Worker("gpuwatch-fleet", self._read, last=client.close)

    def start(self) -> None:
        """Begin to read, or read at once; raises NoThreadError."""
        self._worker.wake()

    def past(self, host: str, start: float, step: float, count: int) -> Future[HostPast]:
        """Ask for the past of a host; the future may have a PrometheusError."""
        instance = self.newest.instances.get(host, host)
        return self._worker(lambda: read_past(self._client, host, instance, start, step, count))

    def close(self) -> None:
        self._worker.close(CLOSING_S)

    def _read(self) -> float:
        try:
            self.newest = read_fleet(self._client)
        except GpuwatchError as error:
            self.newest = replace(self.newest, trouble=str(error))
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
            words = clean(f"{self._client.url}: {type(error).__name__}: {error}", 300)
            self.newest = replace(self.newest, trouble=words)
        self._publish(self.newest)
        return self.interval
