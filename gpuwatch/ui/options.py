"""What the dashboard is started with: how the user wants it, and whom it asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpuwatch.alerts.alert import Alert, Mute
from gpuwatch.alerts.limits import Allowances
from gpuwatch.analysis.strays import DEFAULT_LIMITS, StrayLimits
from gpuwatch.monitor import Frame

if TYPE_CHECKING:
    from gpuwatch.kill.session import ProcessEnder
    from gpuwatch.recorder.events_log import Events


class AlertControl(Protocol):
    """What the dialog about an alert asks of the watch thread."""

    def acknowledge(self, alert: Alert) -> None:
        """Let an alert say nothing more until it gets worse or ends."""

    def unacknowledge(self, alert: Alert) -> None:
        """Take back the acknowledgement of an alert."""

    def mute(self, mute: Mute) -> None:
        """Let a rule, or one alert of it, say nothing for a while."""

    def unmute(self, rule: str, key: str = "") -> None:
        """Let a rule, or one alert of it, speak again."""


class MonitorControl(AlertControl, Protocol):
    """What the dashboard asks of the watch thread."""

    @property
    def newest(self) -> Frame | None:
        """The last frame."""

    def set_interval(self, seconds: float) -> None:
        """Ask for a snapshot every so many seconds."""

    def poke(self) -> None:
        """Ask for a sample at once."""

    def stop(self) -> None:
        """End, without waiting."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the user started the dashboard."""

    user: str = ""
    """Show the processes of one user at first."""
    mine: bool = False
    filter: str = ""
    read_only: bool = False
    ascii: bool = False
    theme: str = "dark"
    bell: bool = False
    toast: bool = True
    desktop: str = "off"
    """How the terminal is told to notify the desktop: `osc9`, `osc777`, or `off`."""
    interval: float = 1.0
    allowances: Allowances | None = None
    stray_limits: StrayLimits = DEFAULT_LIMITS
    """When a process of one's own counts as a stray."""
    caller: int | None = None
    """Whose processes are looked through for strays; None for whoever runs this."""


@dataclass(frozen=True, slots=True)
class Reloading:
    """What came of reading the configuration again."""

    words: str
    """What changed, or what is wrong with the file."""
    failed: bool = False
    options: Options | None = None
    """How the dashboard is wanted now; None to leave it as it is."""


@dataclass(frozen=True, slots=True)
class Helpers:
    """What the dashboard asks of the rest of the program, made when it is first wanted."""

    killer: Callable[[], ProcessEnder] | None = None
    """Without it no process can be ended."""
    events: Callable[[], Events] | None = None
    """Reads the events log; may take its time, and may raise OSError."""
    reload: Callable[[], Reloading] | None = None
    """Reads the configuration again; may take its time."""
