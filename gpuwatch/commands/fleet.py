"""`gpuwatch fleet`: machines that a Prometheus server knows, on a screen or as JSON; and `gpuwatch pick --fleet`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

import msgspec

from gpuwatch.base.errors import UsageError
from gpuwatch.base.extras import install_hint
from gpuwatch.base.text import clean
from gpuwatch.base.units import gib
from gpuwatch.commands.console import Console
from gpuwatch.commands.dashboard import check_terminal
from gpuwatch.commands.flags import add_flags, given_flags
from gpuwatch.commands.startup import check_filter_flag, configured, fixed_settings
from gpuwatch.config.types import ADDRESS
from gpuwatch.launch.placement import Request
from gpuwatch.model.snapshot import Reading
from gpuwatch.ui.choices import read_choices

try:
    from gpuwatch.fleet.demo import DemoClient
    from gpuwatch.fleet.overview import Fleet, HostOffer, find_hosts, hosts_grammar
    from gpuwatch.fleet.prometheus import PrometheusClient
    from gpuwatch.fleet.reader import FleetReader, read_fleet
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "urllib3":
        raise
    _INSTALLED = False  # `--help` does without
else:
    _INSTALLED = True

_NEAREST = 5
"""Hosts without enough room that are named, at most."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "json", "theme")
    parser.add_argument("--demo", action="store_true", default=argparse.SUPPRESS, help="show simulated machines")
    parser.add_argument("--prometheus", metavar="URL", help="the Prometheus server (default: that of [fleet])")
    parser.add_argument(
        "--filter", metavar="TEXT", default=argparse.SUPPRESS, help="start with the hosts that match, such as 'free>=4'"
    )


def main(args: argparse.Namespace, _sampler: object = None) -> int:
    """Show the fleet until the user leaves it, or print it, and return the exit code.

    Raises UsageError, and UnavailableError if nothing can be printed.
    """
    _check_installed()
    if args.demo and args.prometheus:
        raise UsageError("--demo and --prometheus cannot be used together")
    config = configured(args)
    words = check_filter_flag(args, config, hosts_grammar(Fleet()))
    client = DemoClient() if args.demo else PrometheusClient(config.fleet, args.prometheus or "")
    if args.json:
        console = Console(ascii_only=config.ascii)
        fleet = read_fleet(client)
        shown = msgspec.to_builtins(fleet)
        del shown["received"], shown["trouble"]  # only for a screen
        shown["instances"] = {name: clean(instance) for name, instance in fleet.instances.items()}
        console.print_json(msgspec.json.encode(shown).decode())
        console.warn(*fleet.notes)
        return 0
    check_terminal("try `gpuwatch fleet --json`")
    from gpuwatch.commands.dashboard_setup import dashboard_options, prepare_memory  # only for a screen

    prepare_memory()
    app: FleetApp | None = None

    def publish(fleet: Fleet) -> None:
        if app is not None:
            app.publish(fleet)

    reader = FleetReader(client, config.fleet.interval, publish)
    reader.start()  # it reads while Textual is imported
    try:
        from gpuwatch.fleet.ui.fleet_app import FleetApp

        remembered = read_choices(fixed_settings(args))
        options = remembered.over(dashboard_options(config, config.interval, first_filter=words))
        app = FleetApp(options=options, reader=reader, interval=config.fleet.interval, save=remembered.save)
        return app.run_to_exit_code()
    finally:
        reader.close()


def _check_installed() -> None:
    if not _INSTALLED:
        raise UsageError(f"a fleet needs urllib3: {install_hint('fleet')}")


# ---------------------------------------------------------------------------------------------------------------
# gpuwatch pick --fleet


def pick(args: argparse.Namespace, wanted: Request, count: int) -> int:
    """Print the hosts with `count` GPUs that have room, best first, and return the exit code: 1 if there is none."""
    _check_installed()
    if given := given_flags(args, ("demo", "index", "ignore-reservations", "gpu")):
        raise UsageError(f"{given[0]} cannot be used with --fleet")
    config = configured(args)
    fleet = read_fleet(PrometheusClient(config.fleet, args.prometheus or ""))
    named = [host for host in fleet.hosts if (found := re.match(ADDRESS, host.name)) and not found["user"]]
    enough, fewer = find_hosts(named, wanted, count)
    console = Console(ascii_only=config.ascii)
    if args.json:
        shown = FleetPickJson([_host(one, count) for one in enough])
        console.print_json(msgspec.json.encode(shown).decode())
    else:
        console.print(*(one.host.name for one in enough))
    odd = len(fleet.hosts) - len(named)
    words = f"{odd} {'host is' if odd == 1 else 'hosts are'} left out: an `instance` that is not an address"
    console.warn(*fleet.notes, *[words] * bool(odd), *([] if enough else _reasons(fleet, fewer, count)))
    return 0 if enough else 1


class FleetPickGpu(msgspec.Struct, frozen=True):
    """GPU with room."""

    index: int
    uuid: str
    name: str
    left: Reading
    """Bytes of free memory, minus what is promised."""
    chosen: bool
    """Whether it is one of the GPUs with the most room."""


class FleetPickHost(msgspec.Struct, frozen=True):
    """Host with room."""

    host: str
    gpus: Sequence[FleetPickGpu]


class FleetPickJson(msgspec.Struct, frozen=True):
    """JSON of `pick --fleet`."""

    hosts: Sequence[FleetPickHost]
    """The host with the most left on its fullest chosen GPU is first."""


def _host(offer: HostOffer, count: int) -> FleetPickHost:
    gpus = [
        FleetPickGpu(gpu.index, gpu.uuid, gpu.name, gpu.left, place < count) for place, gpu in enumerate(offer.gpus)
    ]
    return FleetPickHost(offer.host.name, gpus)


def _reasons(fleet: Fleet, fewer: list[HostOffer], count: int) -> list[str]:
    """Return why no host was chosen: the nearest ones, and those that could not be judged."""
    lines = [f"{count} {'GPU' if count == 1 else 'GPUs'} on one host wanted, but no host has room"]
    nearest = sorted(fewer, key=lambda one: -len(one.gpus))[:_NEAREST]
    for one in nearest:
        if one.gpus:
            left = ", ".join(gib(float(gpu.left)) for gpu in one.gpus)
            lines.append(f"{one.host.name}: {len(one.gpus)} of {len(one.host.gpus)} with room ({left} GiB left)")
    troubled = sum(bool(host.trouble) for host in fleet.hosts)
    lines += [f"{troubled} {'host is' if troubled == 1 else 'hosts are'} left out: no new values"] * bool(troubled)
    lines += [f"{fleet.server} knows no host: are gpuwatch's recording rules loaded there?"] * (not fleet.hosts)
    return lines
