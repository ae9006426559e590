"""Dashboard of other hosts by ssh (`gpuwatch --host HOST`), with this machine or without it."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from gpuwatch.base.text import clean
from gpuwatch.commands.dashboard_setup import DashboardReloader, dashboard_options, prepare_memory
from gpuwatch.commands.startup import Reloader, check_filter_flag
from gpuwatch.config.types import Config
from gpuwatch.fleet.remote import RemoteHosts
from gpuwatch.fleet.ssh import Hosts, find_hosts
from gpuwatch.monitor import Monitor
from gpuwatch.ui.choices import Remembered
from gpuwatch.ui.options import Helpers, Options

if TYPE_CHECKING:
    from gpuwatch.fleet.ui.hosts_app import HostsApp


def show_hosts(args: argparse.Namespace, config: Config, seconds: float, remembered: Remembered) -> int:
    """Show the hosts of `--host`, else the configured ones, until the user leaves; return the exit code.

    Raises UsageError.
    """
    hosts = find_hosts(args.host, config.hosts) if args.host else config.hosts
    first_filter = check_filter_flag(args, config)
    prepare_memory()
    fleet = RemoteHosts(Hosts(hosts), config.limits())
    fleet.begin()
    reloader = Reloader(args, config, lambda old, new: fleet.set_limits(new.limits()))
    reload = DashboardReloader(reloader, args, seconds, remembered, "share")
    try:
        options = remembered.over(dashboard_options(config, seconds, first_filter=first_filter))
        helpers = Helpers(reload=reload, remember=remembered.save, notice=remembered.notice)
        return _make_app(fleet, options, helpers).run_to_exit_code()
    finally:
        fleet.close()


def make_app(config: Config, options: Options, helpers: Helpers, watch: Monitor) -> HostsApp:
    """Return the dashboard of this machine, from which the configured hosts can be opened; it does not connect yet."""
    name = clean(os.uname().nodename)
    here = "this machine" if name in {host.name for host in config.hosts} else name
    return _make_app(RemoteHosts(Hosts(config.hosts), config.limits(), local=watch, here=here), options, helpers, watch)


def _make_app(fleet: RemoteHosts, options: Options, helpers: Helpers, watch: Monitor | None = None) -> HostsApp:
    from gpuwatch.fleet.ui.hosts_app import HostsApp  # Textual, while the hosts connect

    return HostsApp(fleet, watch=watch, options=options, helpers=helpers)
