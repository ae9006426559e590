"""What gpuwatch.toml sets, checked and in plain units: seconds, bytes, percent."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.rules.memory import Allowances, Limits, OwnRule
from gpuwatch.config.values import mask_url
from gpuwatch.declared.facts import Share

_LIMITS: Final = Limits()
_ALLOWANCES: Final = Allowances()


class Alerts(msgspec.Struct, frozen=True, kw_only=True):
    """When alerts are raised; see `alerts.rules.Limits`. Durations in seconds, sizes in bytes."""

    off: frozenset[str] = _LIMITS.off
    quiet: float = _LIMITS.quiet
    memory_warning: float = _LIMITS.memory_warning
    memory_critical: float = _LIMITS.memory_critical
    memory_for: float = _LIMITS.memory_for
    full_warning: float = _LIMITS.full_warning
    full_critical: float = _LIMITS.full_critical
    full_for: float = _LIMITS.full_for
    idle_after: float = _LIMITS.idle_after
    idle_memory: int = _LIMITS.idle_memory
    unattributed_memory: int = _LIMITS.unattributed_memory
    unattributed_for: float = _LIMITS.unattributed_for
    orphan_memory: int = _LIMITS.orphan_memory
    orphan_for: float = _LIMITS.orphan_for
    temperature_margin: float = _LIMITS.temperature_margin
    temperature_for: float = _LIMITS.temperature_for
    throttled_for: float = _LIMITS.throttled_for
    power_for: float = _LIMITS.power_for
    xid_for: float = _LIMITS.xid_for
    xid_critical: frozenset[int] = _LIMITS.xid_critical
    xid_warning: frozenset[int] = _LIMITS.xid_warning

    def limits(self) -> Limits:
        """Give the limits that the rules take, with the default allowances and no rule of the user's own."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        # Who makes one critical need not know that it was a warning.
        return Limits(**{**found, "xid_warning": self.xid_warning - self.xid_critical})


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """How far, and how long, a process may hold more than it declared; see `alerts.rules.Allowances`."""

    after: float = _ALLOWANCES.after
    framework: int = _ALLOWANCES.framework
    eager: int = _ALLOWANCES.eager
    budget: int = _ALLOWANCES.budget
    exact: int = _ALLOWANCES.exact
    collective: int = _ALLOWANCES.collective
    second_step: int = _ALLOWANCES.second_step

    def allowances(self) -> Allowances:
        """Give what the rules take."""
        return Allowances(**{name: getattr(self, name) for name in self.__struct_fields__})


class Notify(msgspec.Struct, frozen=True, kw_only=True):
    """Where alerts are told besides the screen, and how often. Durations in seconds."""

    toast: bool = True
    desktop: Literal["off", "auto", "osc9", "osc777"] = "off"
    command: tuple[str, ...] = ()
    """Arguments; the first is an absolute path, or begins with `~/`. Only from a file that nobody else can write."""
    urls: tuple[str, ...] = ()
    """Of apprise. Each holds a secret: for no screen, log, argument list or environment."""
    least: Severity = Severity.WARNING
    cooldown: float = 300.0
    gather: float = 2.0
    digest: int = 3

    def __repr__(self) -> str:
        """Give all but the secrets."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        fields["urls"] = tuple(map(mask_url, self.urls))
        return f"Notify({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept for `gpuwatch report`. Durations in seconds, sizes in bytes."""

    dashboard: bool = False
    """The dashboard keeps it too, not only `gpuwatch watch`."""
    keep: float = 90 * 24 * 3600.0
    largest: int = 64 << 20


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that may stand in gpuwatch.toml."""

    interval: float = 1.0
    """Seconds between two samples."""
    user: str = ""
    mine: bool = False
    read_only: bool = False
    ascii: bool = False
    theme: Literal["dark", "light"] = "dark"
    bell: bool = False
    tmux: bool = False
    """Ask our own tmux for the names of sessions and windows: runs `tmux list-panes`."""
    alerts: Alerts = Alerts()
    allowance: Allowance = Allowance()
    notify: Notify = Notify()
    report: Report = Report()
    shares: tuple[Share, ...] = ()
    """The `[[share]]` tables of both files, the administrator's first."""
    rules: tuple[OwnRule, ...] = ()
    """The `[[rule]]` tables of both files; of two with one name the user's own."""

    def limits(self) -> Limits:
        """Give the limits that the rules take."""
        allowances = self.allowance.allowances()
        return msgspec.structs.replace(self.alerts.limits(), allowances=allowances, own=self.rules)
