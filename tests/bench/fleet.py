"""How fast a fleet opens and is read again: `python -m tests.bench.fleet [--hosts 1000] [--gpus 8] [--times 9]`.

A real Prometheus server runs on this machine, on blocks that promtool makes. The budgets are 2 s from the command to
the first screen with all hosts, and 1 s for a reading with its drawing, by at most 8 queries.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from gpuwatch.config.types import FleetSettings
from gpuwatch.fleet.overview import QUERIES, Fleet, make_fleet
from gpuwatch.fleet.prometheus import PrometheusClient
from gpuwatch.fleet.reader import read_fleet
from gpuwatch.fleet.ui.fleet_app import FleetApp, NewFleet
from tests import GPUWATCH
from tests.support.prometheus import serving
from tests.support.terminal import Terminal


def show(what: str, seconds: list[float]) -> None:
    print(f"{what:<44} {median(seconds):.3f} s median, {min(seconds):.3f} to {max(seconds):.3f}")


def opened(url: str, hosts: int) -> float:
    """Return the seconds from the start of the command until all hosts are counted on its screen."""
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.environ["PATH"], "HOME": home, "LC_ALL": "C.UTF-8"}
        command = [GPUWATCH, "fleet", "--prometheus", url]
        with Terminal(command, columns=160, rows=50, env=env) as terminal:
            return terminal.wait_for(f"{hosts} hosts")


async def drawn(fleets: list[Fleet]) -> list[float]:
    """Return the seconds in which each fleet is taken and drawn as a heat map."""
    app, found = FleetApp(), []
    async with app.run_test(size=(160, 50)) as pilot:
        for one in fleets:
            began = time.perf_counter()
            app.on_new_fleet(NewFleet(one))
            found.append(time.perf_counter() - began)
            await pilot.pause()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--times", type=int, default=9)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), args.hosts, args.gpus) as url:
        print(f"{args.hosts} hosts of {args.gpus} GPUs, {len(QUERIES)} queries, {os.cpu_count()} CPUs")
        show("command to first screen with all hosts", [opened(url, args.hosts) for _ in range(args.times)])
        client, fleets, whole, made = PrometheusClient(FleetSettings(), url), [], [], []
        for _ in range(args.times):
            began = time.perf_counter()
            fleets.append(read_fleet(client))
            whole.append(time.perf_counter() - began)
        samples = [one for query in QUERIES for one in client.query(query)]
        for _ in range(args.times):
            began = time.perf_counter()
            make_fleet(samples, server=url, taken=0.0, received=0.0, notes=())
            made.append(time.perf_counter() - began)
        show("a reading", whole)
        show("of which: the fleet from its samples", made)
        show("drawing it", asyncio.run(drawn(fleets)))


if __name__ == "__main__":
    main()
