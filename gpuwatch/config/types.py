"""Types of the configuration: the settings of gpuwatch.toml as structs.

`[alerts]`, `[allowance]`, `[[rule]]` and `[[share]]` belong to the parts that use them. A field with a description is a
key. The keys of `[filters]` are names that the user chooses.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import Allowances, CustomRule, Limits
from gpuwatch.base import text
from gpuwatch.base.units import MIB
from gpuwatch.config.keymap import Keys
from gpuwatch.declared.facts import Share
from gpuwatch.model.values import DAY, HOUR, MOST, Bytes, FilePath, Seconds, Text, Url

Command: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[^\0]*\Z")], ...], Meta(max_length=MOST, extra={"form": "command"})
]
"""A program and its arguments; no shell runs them. A relative name would depend on the working folder."""
_URL: Final = r"^[A-Za-z][A-Za-z0-9.+-]{0,30}://[^\s\x00-\x1f\x7f]{1,4000}\Z"
Urls: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(pattern=_URL)], ...], Meta(max_length=MOST, extra={"form": "urls"})
]
"""Addresses that apprise knows. Each contains a secret, so no message quotes an address."""

Theme: TypeAlias = Literal[
    "dark",
    "light",
    "ansi-dark",
    "ansi-light",
    "atom-one-dark",
    "atom-one-light",
    "catppuccin-frappe",
    "catppuccin-latte",
    "catppuccin-macchiato",
    "catppuccin-mocha",
    "dracula",
    "flexoki",
    "gruvbox",
    "monokai",
    "nord",
    "rose-pine",
    "rose-pine-dawn",
    "rose-pine-moon",
    "solarized-dark",
    "solarized-light",
    "textual-dark",
    "textual-light",
    "tokyo-night",
]
"""Names of themes: two of gpuwatch, and those of Textual."""
ColumnName: TypeAlias = Literal[
    "gpu", "pid", "user", "memory", "used", "sm", "cpu", "rss", "idle", "age", "in", "command"
]
"""Columns of the process list."""
ColumnNames: TypeAlias = Annotated[
    tuple[ColumnName, ...], Meta(max_length=len(get_args(ColumnName)), extra={"form": "columns"})
]


class Notify(msgspec.Struct, frozen=True, kw_only=True):
    """`[notify]`: where alerts are sent besides the screen, and how often."""

    toast: Annotated[bool, Meta(description="also in the dashboard")] = True
    desktop: Annotated[
        Literal["off", "auto", "osc9", "osc777"],
        Meta(description='by the terminal: "auto", "osc9", "osc777"'),
    ] = "off"
    command: Annotated[Command, Meta(description='a program of yours: ["/home/ada/bin/tell"]; JSON on stdin')] = ()
    """The program is an absolute path, or begins with `~/`. Read only from a file that no other user can write."""
    urls: Annotated[Urls, Meta(description="URLs of apprise: [\"slack://...\"]; needs `pip install '.[notify]'`")] = ()
    """Secret: never on a screen or in a log, an argument list or the environment."""
    least: Annotated[Severity, Meta(description='least severity that is sent: "note", "warning", "critical"')] = (
        Severity.WARNING
    )
    mine: Annotated[
        bool, Meta(description="only alerts about you, or about a GPU on which a process of yours holds memory")
    ] = False
    runs: Annotated[
        bool, Meta(description="also that a run of yours has ended, or was started by `gpuwatch run --wait`")
    ] = False
    cooldown: Annotated[
        Seconds, Meta(ge=0, le=DAY, description="least time between two messages about the same rule")
    ] = 300.0
    gather: Annotated[
        Seconds, Meta(ge=0, le=60, description="time in which messages are gathered and sent together")
    ] = 2.0
    digest: Annotated[int, Meta(ge=1, le=1000, description="number of messages above which they are sent as one")] = 3

    @property
    def sends(self) -> bool:
        """Whether messages are sent to a command or an address."""
        return bool(self.command or self.urls)

    def __repr__(self) -> str:
        """Mask the secrets."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["urls"] = tuple(map(text.mask_url, self.urls))
        return f"Notify({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`[report]`: how usage is recorded for `gpuwatch report`."""

    dashboard: Annotated[bool, Meta(description="the dashboard records it too, not only `gpuwatch watch`")] = True
    keep: Annotated[Seconds, Meta(ge=DAY, le=365 * DAY, description="how long it is kept")] = 90 * DAY
    largest: Annotated[
        Bytes, Meta(ge=4 * MIB, description="size of the file at which the oldest weeks are deleted")
    ] = 64 * MIB


class ExportConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[export]`: metrics for Prometheus, of `gpuwatch export` and of `gpuwatch watch --export`."""

    listen: Annotated[Text, Meta(description="address and port; any but the loopback needs `web_config`")] = (
        "127.0.0.1:9836"
    )
    web_config: Annotated[FilePath, Meta(description="Prometheus's web configuration file: TLS and passwords")] = ""
    textfile: Annotated[
        FilePath, Meta(description="folder of node_exporter's textfile collector, to write to instead of listening")
    ] = ""
    per_process: Annotated[
        int, Meta(ge=0, le=1000, description="how many processes, the largest, have their own metrics")
    ] = 0
    names: Annotated[
        Literal["all", "own"],
        Meta(description='"all": also the names of nvidia_gpu_exporter and DCGM; "own": only those of gpuwatch'),
    ] = "all"
    hosts: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,253}\Z")], ...],
        Meta(max_length=MOST, description="further names by which the loopback may be asked", extra={"form": "hosts"}),
    ] = ()


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[fleet]`: the Prometheus server that knows all hosts, and how it is read."""

    prometheus: Annotated[Url, Meta(description="the Prometheus server with the figures of all hosts")] = ""
    token_file: Annotated[FilePath, Meta(description="file with a bearer token for it; only you can read it")] = ""
    user: Annotated[Text, Meta(description="name of a user of the server, for basic authentication")] = ""
    password_file: Annotated[FilePath, Meta(description="file with that user's password; only you can read it")] = ""
    ca_file: Annotated[
        FilePath, Meta(description="CA that verifies the server's certificate, instead of the system's")
    ] = ""
    interval: Annotated[Seconds, Meta(ge=5, le=HOUR, description="time between two readings of the server")] = 15.0
    timeout: Annotated[Seconds, Meta(ge=1, le=120, description="longest time to wait for an answer")] = 10.0


_PORT: Final = r"(?:6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})"
ADDRESS: Final = (
    r"^(?P<user>[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}@)?"
    r"(?:(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]{0,252})|\[(?P<ip>[0-9A-Fa-f:]{2,45})\])"
    rf"(?::(?P<port>{_PORT}))?\Z"
)
"""Address of a host. It never begins with `-`, which ssh would read as an option."""
ADDRESSES: Final = "lab1, ada@lab2, ada@lab2:2222 or ada@[2001:db8::1]:2222"


class RemoteHost(msgspec.Struct, frozen=True, kw_only=True):
    """`[[host]]`: another machine, on which gpuwatch runs by ssh."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=40,
            description="its name on screen, and for --host",
            examples=['"lab2"'],
            extra={"form": "text"},
        ),
    ]
    address: Annotated[
        str,
        Meta(
            pattern=ADDRESS,
            description=f"as ssh knows it: {ADDRESSES}",
            examples=['"ada@lab2:2222"'],
            extra={"form": "address"},
        ),
    ]
    command: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_~/][A-Za-z0-9_.+~/-]{0,199}\Z",
            description="path of gpuwatch on that host; left out: gpuwatch",
            examples=['"~/venv/bin/gpuwatch"'],
            extra={"form": "program"},
        ),
    ] = "gpuwatch"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of gpuwatch.toml, in seconds, bytes and percent."""

    interval: Annotated[Seconds, Meta(ge=0.1, le=HOUR, description='time between two samples: 2, "500ms"')] = 1.0
    user: Annotated[Text, Meta(description="start with one user's processes")] = ""
    mine: Annotated[bool, Meta(description="start with your own processes")] = False
    read_only: Annotated[bool, Meta(description="no process can be ended from here")] = False
    ascii: Annotated[bool, Meta(description="no character outside ASCII")] = False
    theme: Annotated[Theme, Meta(description='colours: "dark" or "light", or a theme of Textual')] = "dark"
    columns: Annotated[ColumnNames, Meta(description="columns of the process list, in order; [] for all that fit")] = ()
    order: Annotated[ColumnName, Meta(description="column that the process list is sorted by at the start")] = "memory"
    bell: Annotated[bool, Meta(description="ring the terminal's bell on an alert")] = False
    tmux: Annotated[
        bool,
        Meta(description="ask your own tmux for the names of sessions and windows: runs `tmux list-panes`"),
    ] = False
    publish: Annotated[
        Literal["shares", "use", "none"],
        Meta(description='what the machine\'s service publishes: declared "shares", also "use" by person, or "none"'),
    ] = "shares"
    alerts: Annotated[Limits, Meta(description="when an alert is raised")] = Limits()
    allowance: Annotated[
        Allowances, Meta(description="how much more than its limit a process may hold, and for how long")
    ] = Allowances()
    notify: Annotated[
        Notify,
        Meta(
            description="where else alerts are sent; nobody else may write to the command, or to a file with "
            "`command` or `urls`"
        ),
    ] = Notify()
    keys: Annotated[
        Keys,
        Meta(
            description="keys of the dashboard's actions; one key, or a list; [] for none. Other screens use those of "
            "`end`, `message`, `mine` and `reverse`"
        ),
    ] = Keys()
    report: Annotated[Report, Meta(description="what is kept about use, for `gpuwatch report`")] = Report()
    export: Annotated[ExportConfig, Meta(description="metrics for Prometheus, see `gpuwatch export`")] = ExportConfig()
    fleet: Annotated[
        FleetSettings, Meta(description="the machines that `gpuwatch fleet` and `gpuwatch pick --fleet` show")
    ] = FleetSettings()
    shares: tuple[Share, ...] = ()
    """The `[[share]]` tables of both files, the administrator's first."""
    rules: tuple[CustomRule, ...] = ()
    """The `[[rule]]` tables of both files; of two with one name the user's own."""

    hosts: tuple[RemoteHost, ...] = ()
    """The `[[host]]` tables of both files; of two with one name the user's own."""

    filters: dict[str, str] = {}
    """The table `[filters]` of both files: texts of filters by name; of two with one name the user's own."""

    def limits(self) -> Limits:
        """Return the limits of the rules, with the allowances and the user's own rules."""
        # A code that is made critical may still stand among the warnings.
        warning = self.alerts.xid_warning - self.alerts.xid_critical
        return msgspec.structs.replace(self.alerts, xid_warning=warning, allowances=self.allowance, custom=self.rules)
