"""Table of fields: each figure of a process, a GPU and a user is defined once, with heading, unit, format and order.

Lists, columns, filters, `[[rule]]` and the tables of the command line are made from it. A field is read from the row of
a list; `Field.of` makes the same field of another kind of row, such as a sum over the processes of a run. Pure
functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
from msgspec.structs import replace

from gpuwatch.base import programs
from gpuwatch.base.units import (
    GIB,
    NONE,
    UNKNOWN,
    Unit,
    duration,
    gib,
    long_duration,
    parse_duration,
    parse_percent,
    parse_ratio,
    parse_size,
    percent,
    size,
)
from gpuwatch.model.shares import is_conclusive, left, limit_on, usable
from gpuwatch.model.snapshot import (
    Gpu,
    Health,
    Holding,
    HostUsage,
    Idle,
    Limit,
    Presence,
    Process,
    Reading,
    Reason,
    known,
    number,
)

T = TypeVar("T")
U = TypeVar("U")

QUIET_S: Final = 60.0
"""Idle times shorter than this many seconds are not shown: shorter pauses belong to work."""

SortValue: TypeAlias = tuple[bool, float | str]
"""Whether the value is missing, and the value; missing values are last."""


class Amount(NamedTuple):
    """Value of a figure, in its unit."""

    number: float
    at_least: bool = False
    """Whether the number is a lower bound: a part is not known."""


def amount(reading: Reading | float | None, *, at_least: bool = False) -> Amount | Reason | None:
    """Return a reading as an amount; its reason, or None, where there is no number."""
    return reading if reading is None or isinstance(reading, Reason) else Amount(float(reading), at_least)


class Format(NamedTuple):
    """Text of the amounts of a unit: in a cell, in a filter or a rule, and with the unit in a sentence."""

    show: Callable[[float], str]
    parse: Callable[[str], float]
    """Raises ValueError."""
    write: Callable[[float], str] | None = None
    """Text with the unit; None where it is that of a cell, and the unit after it."""


def _plain(text: str) -> float:
    if not re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,6})?", text):
        raise ValueError(f'"{text}" is not understood; write a number, such as 80')
    return float(text)


WHOLE: Final = Format("{:.0f}".format, _plain)
PERCENT: Final = Format("{:.0f}".format, parse_percent)
OF_CORES: Final = Format("{:.0f}".format, lambda text: parse_percent(text, 100_000))
"""Percent of one core: eight busy cores are 800."""
RATIO: Final = Format(lambda ratio: percent(ratio, 1), parse_ratio)
BYTES: Final = Format(gib, lambda text: 0 if text == "0" else parse_size(text), size)
TIME: Final = Format(duration, parse_duration, long_duration)
_FORMATS: Final = {Unit.BYTES: BYTES, Unit.FREE: BYTES, Unit.PERCENT: PERCENT, Unit.SECONDS: TIME}


class Field(msgspec.Struct, Generic[T], frozen=True):
    """Field of one kind of row."""

    key: str
    """Name of its column, and of the order by it."""
    title: str
    """Heading of its column."""
    read: Callable[[T], Amount | Reason | str | None]
    """Returns a text or an amount; the reason, or None, where it is not known."""
    unit: Unit = Unit.COUNT
    words: str = ""
    """Name in sentences: `by memory`; empty where it is the heading."""
    compare: str = ""
    """Name by which filters and rules compare it; empty where they cannot."""
    phrase: str = ""
    """Words before an amount in an alert, `running for`; empty for `words`."""
    label: str = ""
    """Name in a list of facts; empty for the name in sentences."""
    fact: str = "{}"
    """Words around the amount and its unit in a list of facts: `{} total`."""
    ascending: bool = False
    """Whether the smallest value is the first."""
    quiet: float = 0.0
    """Smaller amounts are an empty cell."""
    rank: Callable[[T], float | None] | None = None
    """Value to order by, where it is not the amount: the start of a process does not change as its age does."""
    own_format: Format | None = None
    """Format of its amounts where it is not the one of its unit."""
    right: bool = True
    """Whether its column is aligned at the right, as numbers are."""

    @property
    def format(self) -> Format:
        """Format of its amounts."""
        return self.own_format or _FORMATS.get(self.unit, WHOLE)

    @property
    def name(self) -> str:
        """Name in sentences."""
        return self.words or self.title

    def amount(self, row: T) -> Amount | None:
        """Return the amount of a row; None where it is not known."""
        value = self.read(row)
        return value if isinstance(value, Amount) else None

    def cell(self, row: T, missing: str = UNKNOWN, least: str = "≥") -> str:
        """Return the text of a cell; `missing` is its text if it is not known, `least` comes before a lower bound."""
        value = self.read(row)
        if not isinstance(value, Amount):
            return missing if value is None or isinstance(value, Reason) else value
        if value.number < self.quiet:
            return ""
        return least * value.at_least + self.format.show(value.number)

    def describe(self, row: T) -> str | Reason | None:
        """Return the value with its unit for a list of facts; the reason, or None, where it is not known."""
        value = self.read(row)
        if not isinstance(value, Amount):
            return value
        text = (self.format.write or self.format.show)(value.number)
        if self.format.write is None and self.unit not in (Unit.NONE, Unit.COUNT):
            text = f"{text} {self.unit.value}"
        return self.fact.format(f"{'≥ ' * value.at_least}{text}")

    def order(self, row: T) -> SortValue:
        """Return the value to sort by: numbers with the greatest first, text from A."""
        if self.rank is not None:
            place = self.rank(row)
        else:
            value = self.read(row)
            if isinstance(value, str) and not isinstance(value, Reason):
                return (not value, value.casefold())
            place = value.number if isinstance(value, Amount) else None
        return (True, 0.0) if place is None else (False, place if self.ascending else -place)

    def of(self, read: Callable[[U], Amount | Reason | str | None], **changes: Any) -> Field[U]:
        """Return the same field of another kind of row; `changes` are other values of its attributes."""
        other: Any = self
        return cast("Field[U]", replace(other, read=read, rank=changes.pop("rank", None), **changes))


def age(started: float | None, now: float) -> Amount | None:
    """Return the seconds since a start; None where that is not known."""
    return None if started is None else Amount(max(0.0, now - started))


def table(fields: Iterable[Field[T]]) -> Mapping[str, Field[T]]:
    return {field.key: field for field in fields}


def compared(fields: Iterable[Field[T]]) -> Mapping[str, Field[T]]:
    """Return the fields that filters and rules compare, by the names that these use."""
    return {field.compare: field for field in fields if field.compare}


# ---------------------------------------------------------------------------------------------------------------
# Processes

RowKey = tuple[str, int, int]
"""GPU key, PID and start time, which identify a row."""


class Row(msgspec.Struct, frozen=True):
    """One process on one GPU."""

    gpu: Gpu
    holding: Holding
    process: Process
    mine: bool
    idle: Idle | None = None
    growth: int | None = None
    """Bytes by which the holding grew in the last minute."""
    age: float | None = None
    """Seconds since the process started."""
    together: int | None = None
    """Bytes that all processes under the same shared limit hold on the GPU, on the row of their oldest process."""

    @property
    def key(self) -> RowKey:
        """Identity of the row; the cursor follows it."""
        return (self.gpu.key, self.holding.pid, self.holding.start)

    @property
    def owner(self) -> str:
        """User name; `?` if it is not known."""
        return self.process.user or "?"

    @property
    def command(self) -> str:
        """Command line, or the reason why there is none; both if it was read before and cannot be read now."""
        return _with_presence(self.process, self.process.command)

    @property
    def brief(self) -> str:
        """What runs, as the column of commands has it: `train.py --lr 1`."""
        return brief_command(self.process)

    @property
    def where(self) -> str:
        """Container, job or terminal of the process: `tmux train`, `docker vllm`; empty if none is known."""
        around = self.process.context
        return around.where if around else ""

    @property
    def share(self) -> float | None:
        """Holding in percent of what the GPU can give, as most programs declare it."""
        return self.percent(self.holding.memory)

    @property
    def limit(self) -> Limit | None:
        """Declared limit to show on this GPU."""
        return limit_on(self.process.declared, self.gpu.uuid)

    @property
    def declared(self) -> float | None:
        """Limit in percent of the GPU's memory; None if it is not known."""
        limit = self.limit
        return self.percent(limit.bytes) if limit else None

    def percent(self, bytes_: Reading) -> float | None:
        """Return bytes in percent of what the GPU can give; None if either is not known."""
        total = usable(self.gpu)
        return 100 * bytes_ / total if known(bytes_) and total else None


_UNSEEN = {
    Presence.GONE: "(ended: it still holds memory)",
    Presence.HIDDEN: "(hidden: /proc shows only your own processes)",
    Presence.ELSEWHERE: "(in another PID namespace)",
    Presence.UNREADABLE: "(not readable just now)",
}


def brief_command(process: Process, *, below: bool = False) -> str:
    """Return a command line by what runs: `train.py --lr 1`.

    Where a title or code does not say that, it is named by what started it, `vllm serve meta/llama (VLLM::EngineCore)`;
    `below` the name of its run the title is enough.
    """
    own, run = programs.label(process.command), process.run
    starter = run.starter or run.name if run else ""
    if run is None or not own or starter.partition(" ")[0] in own:
        return _with_presence(process, own)
    argv, below = programs.split_command(process.command), below and not run.starter
    if programs.is_worker(argv):
        own = starter if below else f"{starter} (worker)"
    elif programs.is_kernel(argv):
        own = starter
    elif not below and ("::" in argv[0] or (programs.find_source(argv) is None and (run.worker_of or run.launcher))):
        own = f"{starter} ({own})"
    return _with_presence(process, own)


def _with_presence(process: Process, command: str) -> str:
    """Return a command line, or the reason why there is none; both if it was read before and cannot be read now."""
    if process.presence in _UNSEEN:
        return f"{_UNSEEN[process.presence]} {command}".rstrip()
    command = command or f"[{process.name}]"
    if process.presence is Presence.UNSURE:
        return f"perhaps {command} (or a process outside of this container)"
    return command


def share_words(row: Row) -> tuple[str, str]:
    """Return both parts of `41/30`: the holding and its limit in percent of the GPU's memory.

    The second part is `·` where nothing was declared, and empty where that is not known. Of several processes under one
    limit the oldest has their sum, `Σ26/30`, and the others `3/Σ`.
    """
    share, limit = row.share, row.limit
    used = UNKNOWN if share is None else percent(share, 100)
    if limit is None:
        return used, NONE if is_conclusive(row.process.declared) else ""
    declared = row.percent(limit.bytes)
    if declared is None:
        return used, ""
    if not limit.scope:
        return used, percent(declared, 100)
    together = row.percent(row.together) if row.together is not None else None
    return (used, "Σ") if together is None else (f"Σ{percent(together, 100)}", percent(declared, 100))


def _used_of_declared(row: Row) -> Amount | None:
    """Return memory held / limit declared; a lower bound where other processes count towards the same limit."""
    limit, memory = row.limit, row.holding.memory
    if limit is None or not known(limit.bytes) or limit.bytes <= 0 or not known(memory):
        return None
    return Amount(memory / limit.bytes, at_least=bool(limit.scope))


PROCESS: Final[Mapping[str, Field[Row]]] = table(
    (
        Field("gpu", "GPU", lambda row: Amount(row.gpu.index), ascending=True),
        Field("pid", "PID", lambda row: Amount(row.holding.pid), ascending=True),
        Field("user", "user", lambda row: row.owner, ascending=True, right=False),
        Field("memory", "GiB", lambda row: amount(row.holding.memory), Unit.BYTES, words="memory", compare="mem"),
        Field("used", "used/declared %", lambda row: amount(row.share), Unit.PERCENT, words="of GPU memory"),
        Field(
            "sm",
            "SM %",
            lambda row: amount(row.holding.sm),
            Unit.PERCENT,
            compare="sm",
            phrase="SM use",
            label="SM busy",
        ),
        Field(
            "cpu",
            "CPU %",
            lambda row: amount(row.process.cpu),
            Unit.PERCENT,
            compare="cpu",
            phrase="CPU",
            label="CPU",
            fact="{} of a core",
            own_format=OF_CORES,
        ),
        Field("rss", "RSS GiB", lambda row: amount(row.process.rss), Unit.BYTES, words="host memory", compare="rss"),
        Field(
            "idle",
            "idle",
            lambda row: Amount(*row.idle) if row.idle else None,
            Unit.SECONDS,
            words="idle time",
            compare="idle",
            phrase="idle for",
            quiet=QUIET_S,
        ),
        Field(
            "age",
            "age",
            lambda row: amount(row.age),
            Unit.SECONDS,
            compare="age",
            phrase="running for",
            rank=lambda row: None if row.process.started is None else -row.process.started,
        ),
        Field("in", "runs in", lambda row: row.where, words="what it runs in", ascending=True, right=False),
        Field("command", "command", lambda row: row.brief, ascending=True, right=False),
    )
)
"""Columns of the process list, in their usual order."""

USED: Final[Field[Row]] = Field(
    "used", "used/declared", _used_of_declared, words="used of the declared share", compare="used", own_format=RATIO
)
"""Memory held / share declared: no column of its own, since the column of the same key shows both."""


# ---------------------------------------------------------------------------------------------------------------
# GPUs


def reading(path: str) -> Callable[[Any], Amount | Reason | None]:
    """Return the function that reads the reading at a path of attributes."""
    get = attrgetter(path)
    return lambda row: amount(get(row))


def _part(part: float | None, whole: float | None) -> Amount | None:
    return Amount(100 * part / whole) if part is not None and whole and whole > 0 else None


def throttle_words(reasons: Iterable[str]) -> list[str]:
    """Return the reasons that limit the clocks in the words of the screen: the stream has `power cap`, as NVML."""
    return ["power limit" if one == "power cap" else one for one in reasons]


def state_words(gpu: Gpu) -> str:
    """Return the troubles of a GPU in words: health, low clocks, unknown work, unified memory; empty for none."""
    if gpu.health is not Health.OK:
        return f"{gpu.health.value}: {gpu.words}" if gpu.words else gpu.health.value
    words = throttle_words(gpu.throttle) if isinstance(gpu.throttle, tuple) else []
    if gpu.is_busy_unlisted and gpu.persistence is not False:  # else a single look has woken it
        words.append("busy, but no process is listed")
    if gpu.memory.unified:
        words.append("unified memory: the machine's, not the GPU's own")
    return ", ".join(words)


GPU: Final[Mapping[str, Field[Gpu]]] = table(
    (
        Field("gpu", "GPU", lambda gpu: Amount(gpu.index), ascending=True),
        Field("name", "name", lambda gpu: gpu.name.removeprefix("NVIDIA ") or None, ascending=True, right=False),
        Field("memory", "used GiB", reading("memory.used"), Unit.BYTES, words="memory", compare="mem", label="used"),
        Field("free", "free", reading("memory.free"), Unit.FREE, words="free memory", compare="free", label="free"),
        Field(
            "left",
            "left",
            lambda gpu: amount(left(gpu)),
            Unit.FREE,
            words="memory left",
            compare="left",
            label="left",
            fact="{} free and not promised",
        ),
        Field("total", "total", reading("memory.total"), Unit.BYTES, label="memory", fact="{} total"),
        Field(
            "promised", "promised", reading("promised"), Unit.BYTES, fact="{} declared or reserved, but not used yet"
        ),
        Field("reserved", "driver's own", reading("memory.reserved"), Unit.BYTES),
        Field(
            "unknown",
            "unknown",
            reading("unattributed"),
            Unit.BYTES,
            words="memory of unknown processes",
            compare="unknown",
            label="unknown",
            fact="{} of unknown processes",
        ),
        Field(
            "utilization", "util %", reading("utilization"), Unit.PERCENT, words="utilization", compare="utilization"
        ),
        Field("temperature", "°C", reading("temperature"), Unit.CELSIUS, words="temperature", compare="temperature"),
        Field(
            "watts",
            "W/limit",
            lambda gpu: (
                f"{GPU['power'].cell(gpu)}/{GPU['power_limit'].cell(gpu)}"
                if known(gpu.power) or known(gpu.power_limit)
                else None
            ),
        ),
        Field("state", "state", state_words, right=False),
        Field("power", "W", reading("power"), Unit.WATTS, words="power", compare="power"),
        Field("power_limit", "limit", reading("power_limit"), Unit.WATTS, words="power limit", label="limit"),
        Field(
            "slowdown_temperature",
            "slowdown",
            reading("slowdown_temperature"),
            Unit.CELSIUS,
            words="temperature of slowdown",
            label="slows down at",
        ),
        *(
            Field(key, f"{words} %", read, Unit.PERCENT, words=words, compare=key, label=label, fact=fact)
            for key, words, read, label, fact in (
                ("mem_percent", "memory", lambda gpu: _part(number(gpu.memory.used), usable(gpu)), "", "{}"),
                ("free_percent", "free memory", lambda gpu: _part(number(gpu.memory.free), usable(gpu)), "", "{}"),
                ("power_percent", "power", lambda gpu: _part(number(gpu.power), number(gpu.power_limit)), "", "{}"),
                ("memory_utilization", "memory utilization", reading("memory_utilization"), "memory busy", "{}"),
                ("fan", "fan", reading("fan"), "", "{} of top speed"),
                ("encoder", "encoder", reading("encoder"), "", "{}"),
                ("decoder", "decoder", reading("decoder"), "", "{}"),
            )
        ),
        Field("sm_clock", "SM MHz", reading("sm_clock"), Unit.MHZ, words="SM clock", compare="sm_clock"),
        Field(
            "memory_clock",
            "memory MHz",
            reading("memory_clock"),
            Unit.MHZ,
            words="memory clock",
            compare="memory_clock",
        ),
        Field("pstate", "P-state", reading("pstate"), fact="P{}"),
        *(
            Field(f"{link}_{way}", f"{link} {label}", reading(f"{link}_{way}"), Unit.BYTES, label=label, fact="{}/s")
            for link in ("pcie", "nvlink")
            for way, label in (("rx", "received"), ("tx", "sent"))
        ),
        Field(
            "ecc",
            "ECC",
            reading("ecc_uncorrected"),
            words="uncorrected memory errors",
            compare="ecc",
            label="ECC",
            fact="{} uncorrected errors since the driver was loaded",
        ),
        Field(
            "processes",
            "procs",
            lambda gpu: (
                None if gpu.unreliable else Amount(len({one.pid for one in gpu.holdings}), bool(gpu.holdings_note))
            ),
            words="processes",
            compare="processes",
        ),
    )
)
"""Fields of a GPU: all figures of a snapshot; rules compare nearly all of them."""


def process_words(gpus: Sequence[Gpu], count: int) -> str:
    """Return the number of processes: `3 processes`, `3 processes listed` where there may be others.

    `processes not listed` where the driver lists those of no GPU.
    """
    noted = [bool(gpu.holdings_note) for gpu in gpus if gpu.health is Health.OK]
    if not count and noted and all(noted):
        return "processes not listed"
    return f"{count} process{'es' * (count != 1)}{' listed' * any(noted)}"


def host_words(usage: HostUsage, missing: str = UNKNOWN) -> list[str]:
    """Return the use of the machine in words, the most important first; nothing of what was not measured."""
    limits = []
    if known(usage.cpu_limit):
        limits.append(f"{usage.cpu_limit:g} CPU{'s' * (usage.cpu_limit != 1)}")
    if known(usage.memory_limit):
        limits.append(_of_total(usage.memory_of_limit, usage.memory_limit, missing))
    swap = (size(usage.swap_used) if usage.swap_used else "0") if known(usage.swap_used) else missing
    words = (
        (usage.cpu, f"CPU {usage.cpu:.0f} %" if known(usage.cpu) else f"CPU {missing}"),
        (usage.memory_used, f"RAM {_of_total(usage.memory_used, usage.memory_total, missing)}"),
        (Reason.NO_SAMPLE if not limits else 0, f"container {', '.join(limits)}"),
        (usage.swap_used, "no swap" if usage.swap_total == 0 else f"swap {swap}"),
        (usage.load, f"load {usage.load:.1f}" if known(usage.load) else f"load {missing}"),
    )
    return [text for read, text in words if read is not Reason.NO_SAMPLE]


def _of_total(used: Reading, total: Reading, missing: str) -> str:
    """Return memory of a total in GiB, without decimals from 10 GiB on: `9.3/512 GiB`."""
    both = (f"{one / GIB:.{int(one < 10 * GIB)}f}" if known(one) else missing for one in (used, total))
    return f"{'/'.join(both)} GiB"
