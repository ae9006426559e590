"""Every key of gpuwatch.toml: what it may hold, and what it is for. The default file and the README say the same."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gpuwatch.config.lists import Codes, Command, RuleNames, Urls
from gpuwatch.config.settings import Config
from gpuwatch.config.values import Choice, Count, Duration, Flag, Kind, Level, Number, Size, Text
from gpuwatch.units import MIB

MOST_FREE: Final = 95
"""Percent. An alert clears 2 points above its limit, so one near 100 would never end."""

_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR


class Key(NamedTuple):
    """One key."""

    name: str
    kind: Kind
    says: str
    """What it is for, in some words."""


class Section(NamedTuple):
    """One table, or what stands before the first."""

    name: str
    says: str
    keys: tuple[Key, ...]

    def whole(self, key: Key) -> str:
        """Give the whole name of one of its keys: `alerts.memory_warning`."""
        return f"{self.name}.{key.name}" if self.name else key.name

    def header(self) -> list[str]:
        """Give its header and what it is for; nothing for what stands before the first table."""
        return [f"[{self.name}]  # {self.says}"] if self.name else []


_TOP: Final = (
    Key("interval", Duration(0.1, _HOUR), 'time between two samples: 2, "500ms"'),
    Key("user", Text(), "start with one user's processes"),
    Key("mine", Flag(), "start with your own processes"),
    Key("read_only", Flag(), "no process can be ended from here"),
    Key("ascii", Flag(), "no character outside ASCII"),
    Key("theme", Choice(("dark", "light")), 'or "light"'),
    Key("bell", Flag(), "ring the terminal's bell on an alert"),
    Key("tmux", Flag(), "ask your own tmux for the names of sessions and windows: runs `tmux list-panes`"),
)

_ALERTS: Final = (
    Key("off", RuleNames(), 'rules that are not applied: ["power at limit"]'),
    Key("quiet", Duration(0, _HOUR / 6), "nothing is raised so soon after the start"),
    Key("memory_warning", Number(0, MOST_FREE), "percent of a GPU's memory still free"),
    Key("memory_critical", Number(0, MOST_FREE), "the same, for a critical alert"),
    Key("memory_for", Duration(0, _HOUR), "so long, and in 3 samples at least"),
    Key("full_warning", Duration(10, _DAY), "full so soon, at the speed of the last minutes"),
    Key("full_critical", Duration(0, _DAY), "the same, for a critical alert"),
    Key("full_for", Duration(0, _HOUR), "foreseen for so long"),
    Key("idle_after", Duration(10, 7 * _DAY), "memory held so long without computing"),
    Key("idle_memory", Size(MIB), "so much at least, by one user on one GPU"),
    Key("unattributed_memory", Size(MIB), "memory that no listed process accounts for"),
    Key("unattributed_for", Duration(0, _DAY), "for so long"),
    Key("orphan_memory", Size(MIB), "memory still held by a process that has ended"),
    Key("orphan_for", Duration(0, _DAY), "for so long"),
    Key("temperature_margin", Number(0, 50), "degrees below where the GPU slows itself down; critical at that"),
    Key("temperature_for", Duration(0, _DAY), "for so long"),
    Key("throttled_for", Duration(0, _DAY), "slowed down so long by heat or by the power brake"),
    Key("power_for", Duration(0, 7 * _DAY), "so long at the power limit; a note"),
    Key("xid_for", Duration(10, 7 * _DAY), "its alert ends so long after the newest XID"),
    Key("xid_critical", Codes(), "the driver's error codes that are critical"),
    Key("xid_warning", Codes(), "a warning; the others are a program's own fault, and no alert"),
)

_ALLOWANCE: Final = (
    Key("after", Duration(0.1, _HOUR), "so long, and in 3 samples at least"),
    Key("framework", Size(), "CUDA context and library handles on top of what an allocator counts"),
    Key("eager", Size(), "the same where all kernels are loaded at once (CUDA before 11.7)"),
    Key("budget", Size(), "vLLM; at least 2 % of the GPU"),
    Key("exact", Size(), "what is enforced (MPS, HAMi, NVML)"),
    Key("collective", Size(), "more for ranks of a job on several GPUs (NCCL)"),
    Key("second_step", Size(), "beyond which it is critical; at least 10 % of the limit"),
)

_NOTIFY: Final = (
    Key("toast", Flag(), "in the dashboard"),
    Key("desktop", Choice(("off", "auto", "osc9", "osc777")), 'by the terminal: "auto", "osc9", "osc777"'),
    Key("command", Command(), 'a program of yours: ["/home/ada/bin/tell"]; JSON on stdin'),
    Key("urls", Urls(), 'of apprise: ["slack://..."]; needs `pip install apprise`'),
    Key("least", Level(), 'what is worth a message: "note", "warning", "critical"'),
    Key("cooldown", Duration(0, _DAY), "one message about the same thing in so long"),
    Key("gather", Duration(0, 60), "what comes within it is sent together"),
    Key("digest", Count(1, 1000), "more than so many are one message"),
)

_REPORT: Final = (
    Key("dashboard", Flag(), "the dashboard keeps it too, not only `gpuwatch watch`"),
    Key("keep", Duration(_DAY, 365 * _DAY), "what is older is forgotten"),
    Key("largest", Size(4 * MIB), "the file's size, at which the oldest weeks go"),
)

SECTIONS: Final = (
    Section("", "", _TOP),
    Section("alerts", "when an alert is raised", _ALERTS),
    Section("allowance", "how far a process may hold more than its limit, and for how long", _ALLOWANCE),
    Section(
        "notify",
        "who is told besides the screen; the command, and a file that names it or urls, must be yours alone to write",
        _NOTIFY,
    ),
    Section("report", "what is kept of who held how much, for `gpuwatch report`", _REPORT),
)

KEYS: Final = {section.whole(key): key for section in SECTIONS for key in section.keys}
"""By their whole names, such as `alerts.memory_warning`."""

ORDERED: Final = (
    ("alerts.memory_critical", "alerts.memory_warning"),
    ("alerts.full_critical", "alerts.full_warning"),
)
"""Of each pair the first must not be above the second: critical would be reached before the warning."""


def value_of(config: Config, name: str) -> Any:
    """Give the value of a key by its whole name."""
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found
