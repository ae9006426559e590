"""Options of the dashboard, and the parts of the program that it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from gpuwatch.alerts.limits import Allowances
from gpuwatch.analysis.stray_facts import DEFAULT_LIMITS, StrayLimits
from gpuwatch.config.keymap import DEFAULT_KEYS, Keys

if TYPE_CHECKING:
    from gpuwatch.analysis.events import Events
    from gpuwatch.history.timeline import Timeline
    from gpuwatch.kill.demo import DemoEnder
    from gpuwatch.kill.pinned import Pinner


class Options(msgspec.Struct, frozen=True):
    """Settings of the dashboard, from the configuration and the flags."""

    host: str = ""
    """Name of the host that is shown; empty where there is no other one."""
    user: str = ""
    """User whose processes are shown at first; empty for all users."""
    mine: bool = False
    filter: str = ""
    """Filter of the processes at first."""
    filters: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Saved filters by name."""
    read_only: bool = False
    ascii: bool = False
    theme: str = "dark"
    bell: bool = False
    toast: bool = True
    desktop: str = "off"
    """Escape sequence for desktop notifications: `osc9`, `osc777`, or `off`."""
    interval: float = 1.0
    keys: Keys = DEFAULT_KEYS
    columns: tuple[str, ...] = ()
    """Columns of the process list, in order; empty for those that suit the width."""
    order: str = "memory"
    """Column that the process list is sorted by at first."""
    allowances: Allowances | None = None
    stray_limits: StrayLimits = DEFAULT_LIMITS
    """Limits above which a process of the user counts as a stray."""
    caller: int | None = None
    """Uid whose processes are searched for strays; None for the viewer of the snapshot."""


class Reloading(msgspec.Struct, frozen=True):
    """Result of reading the configuration again."""

    words: str
    """Changes, or the errors of the file."""
    failed: bool = False
    options: Options | None = None
    """New options; None if they do not change."""


class Helpers(msgspec.Struct, frozen=True):
    """Functions of the rest of the program that the dashboard calls when it needs them."""

    ender: Callable[[], Pinner | DemoEnder] | None = None
    """Without it no process can be ended."""
    events: Callable[[], Events] | None = None
    """Reads the recorded events; may be slow, and may raise StoreError."""
    older: Callable[[Timeline, float], None] | None = None
    """Adds what was recorded before to a timeline, up to a wall-clock time; may be slow, and may raise StoreError."""
    reload: Callable[[], Reloading] | None = None
    """Reads the configuration again; may be slow."""
    remember: Callable[[Mapping[str, object]], None] | None = None
    """Saves choices of the user by the fields of `choices.Choices`; may be slow, and may raise OSError."""
    notice: str = ""
    """Line to show at the start."""
