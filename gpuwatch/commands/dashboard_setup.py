"""Setup that the commands with a screen share: memory, the options, and the configuration read again."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
from collections.abc import Collection
from typing import Final

from gpuwatch.base.child import LIBC
from gpuwatch.commands.startup import Reloader, fixed_settings, format_reload
from gpuwatch.commands.stray_inputs import caller, stray_limits
from gpuwatch.config.types import Config
from gpuwatch.ui.choices import Remembered
from gpuwatch.ui.desktop import which_osc
from gpuwatch.ui.options import Options, Reloading

_M_ARENA_MAX: Final = -8
"""Number of that setting in malloc.h."""


def prepare_memory() -> None:
    """Let all threads share one heap, and collect no garbage until the screen has settled; call it before both.

    What is imported stays, so a collection would find nothing. A heap for each thread takes 2 MiB more.
    """
    gc.disable()
    with contextlib.suppress(AttributeError):  # only glibc has it
        LIBC.mallopt(_M_ARENA_MAX, 1)


def dashboard_options(config: Config, seconds: float, *, first_filter: str = "") -> Options:
    """Return the options of the dashboard; `first_filter` is the text of --filter."""
    desktop: str = config.notify.desktop
    if desktop == "auto":
        desktop = which_osc(os.environ) or "off"
    return Options(
        user=config.user,
        mine=config.mine,
        filter=first_filter,
        filters=config.filters,
        read_only=config.read_only,
        ascii=config.ascii,
        theme=config.theme,
        bell=config.bell,
        toast=config.notify.toast,
        desktop=desktop,
        interval=seconds,
        keys=config.keys,
        columns=config.columns,
        order=config.order,
        allowances=config.limits().allowances,
        stray_limits=stray_limits(config),
        caller=caller(),
    )


class DashboardReloader:
    """Function that reads the configuration again, and returns the new options of a dashboard."""

    def __init__(
        self, reloader: Reloader, args: argparse.Namespace, seconds: float, remembered: Remembered, *later: str
    ) -> None:
        """`later` are keys that apply from the next start on."""
        self._reloader, self._args, self._seconds, self._remembered = reloader, args, seconds, remembered
        self._later: Collection[str] = ("interval", "user", "mine", "ascii", "host", *later)

    def __call__(self) -> Reloading:
        """Read the configuration; if it has a mistake, the options stay."""
        reloaded = self._reloader()
        words = format_reload(reloaded, self._later)
        if reloaded.error:
            return Reloading(words, failed=True)
        options = dashboard_options(self._reloader.config, self._seconds)
        return Reloading(words, options=self._remembered.over(options, fixed_settings(self._args)))
