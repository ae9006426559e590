"""Dashboard of other hosts by ssh (`gpuwatch --host HOST`), without this machine."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence

from gpuwatch.commands.dashboard_app import dashboard_options
from gpuwatch.commands.filters import check_filter_flag
from gpuwatch.commands.startup import Reloader, fixed_settings, format_reload
from gpuwatch.config.types import Config, RemoteHost
from gpuwatch.fleet.remote import RemoteHosts
from gpuwatch.fleet.ssh import Hosts
from gpuwatch.ui.choices import Remembered
from gpuwatch.ui.options import Helpers, Reloading


def show_hosts(
    args: argparse.Namespace, config: Config, seconds: float, remembered: Remembered, hosts: Sequence[RemoteHost]
) -> int:
    """Show the list of hosts, and the one that is opened, until the user leaves; return the exit code."""
    first_filter = check_filter_flag(args, config)
    fleet = RemoteHosts(Hosts(hosts), config.limits())
    fleet.begin()
    reloader = Reloader(args, config, lambda old, new: fleet.set_limits(new.limits()))

    def reload() -> Reloading:
        came = reloader()
        words = format_reload(came, later=("interval", "user", "mine", "ascii", "host", "share"))
        options = remembered.over(dashboard_options(reloader.config, seconds), fixed_settings(args))
        return Reloading(words, failed=bool(came.error), options=None if came.error else options)

    gc.disable()  # until the dashboard has settled: what is imported stays
    try:
        from gpuwatch.fleet.ui.hosts_app import HostsApp  # 230 ms, in which the hosts connect

        options = remembered.over(dashboard_options(config, seconds, first_filter=first_filter))
        helpers = Helpers(reload=reload, remember=remembered.save, notice=remembered.notice)
        return HostsApp(fleet, options=options, helpers=helpers).run_to_exit_code()
    finally:
        fleet.close()
