"""Fleet: hosts, free GPUs, people and alerts, made from recording rules on a Prometheus server. Pure functions.

`QUERIES` ask for everything. The names of the rules are the contract with the exporter's rule file.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import isfinite
from typing import Final, NamedTuple

import msgspec

from gpuwatch.alerts.alert import MARKS, Severity
from gpuwatch.analysis.people import PERSON
from gpuwatch.base.text import clean
from gpuwatch.base.units import GIB, Unit, long_duration
from gpuwatch.fleet.host import HOST, MOST_GPUS, Host, HostGpu
from gpuwatch.fleet.prometheus import FleetSample, Labels, Range
from gpuwatch.launch.placement import Request
from gpuwatch.model.fields import PROCESS, Amount, Field, amount, table
from gpuwatch.model.filters import Grammar, Term, of_names, of_numbers, with_text
from gpuwatch.model.holdings import UNSEEN_USER
from gpuwatch.model.snapshot import BUSY, Reason, known

QUERIES: Final = (
    '{__name__=~"gpuwatch:gpu_.+"}',
    '{__name__=~"gpuwatch:(user|host)_.+"}',
    'up and on (job, instance) (last_over_time({__name__="gpuwatch:host_driver_up:bool"}[1d])'
    ' unless on (job, instance) ({__name__="gpuwatch:host_driver_up:bool"} and on (job, instance) up == 1))',
    '{__name__=~"ALERTS|ALERTS_FOR_STATE", alertname=~"Gpuwatch.+", severity=~"warning|critical"}',
)
"""Queries for the whole fleet, including hosts that had figures within a day and have none now."""
LATE_S: Final = 300.0
"""Age of a host's newest sample that counts as a trouble: from then on Prometheus no longer shows its values."""
MOST_SERIES: Final = 2048
"""Series of a host that are read; 16 GPUs with 50 people have 400."""
_MOST_HOSTS: Final = 4096
_MOST_ROWS: Final = 10_000
"""People and alerts of a fleet, each."""
_LONGEST: Final = 200
"""Characters of a name from the server."""
_GPU_RULES: Final = {
    "gpuwatch:gpu_memory_used:bytes": "used",
    "gpuwatch:gpu_memory_total:bytes": "total",
    "gpuwatch:gpu_memory_free:bytes": "free",
    "gpuwatch:gpu_memory_left:bytes": "left",
    "gpuwatch:gpu_utilization:ratio": "utilization",
    "gpuwatch:gpu_processes:count": "processes",
    "gpuwatch:gpu_up:bool": "up",
}
_HELD: Final = "gpuwatch:user_gpus:count"
"""Rule with a series for each user who holds memory; a user without one has only promised memory."""
_LOST: Final = ("host down", "driver down", "lost")
"""Names of alerts about hosts and GPUs that do not answer: listed before others of their severity."""
_WORD: Final = re.compile("(?<=[a-z0-9])(?=[A-Z])")
"""Start of a word in the name of an alert: GpuwatchNearlyFull is `nearly full`."""
_SEVERITIES: Final = {"warning": Severity.WARNING, "critical": Severity.CRITICAL}


class FleetPerson(msgspec.Struct, frozen=True, kw_only=True):
    """One person on all hosts. People with the same name are one person: a fleet has one directory of users."""

    name: str
    hosts: tuple[str, ...] = ()
    """Hosts on which the person holds GPU memory."""
    memory: float | None = None
    """Bytes."""
    memory_percent: float | None = None
    """`memory` in percent of the memory of all GPUs."""
    gpus: int | None = None
    idle: float | None = None
    """Bytes of idle processes."""


class FleetAlert(msgspec.Struct, frozen=True, kw_only=True):
    """Firing alert of the server."""

    rule: str
    """Name in words: `nearly full`."""
    severity: Severity
    host: str = ""
    gpu: str = ""
    """Index."""
    uuid: str = ""
    user: str = ""
    age: float | None = None
    """Seconds for which its condition has been true."""

    @property
    def title(self) -> str:
        """Description in a few words: `GPU 3: nearly full, ada`."""
        return f"{f'GPU {self.gpu}: ' * bool(self.gpu)}{self.rule}{f', {self.user}' * bool(self.user)}"


class FreeGpus(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of one model and memory size, with the number of free ones."""

    name: str
    memory: int | None = None
    """GiB of each, rounded."""
    gpus: int = 0
    free: int = 0
    unknown: int = 0
    """Number of GPUs that may or may not be free."""
    hosts: tuple[tuple[str, int], ...] = ()
    """Hosts with free GPUs, and the number on each, largest first."""

    @property
    def most(self) -> int:
        """Number of free GPUs on the host that has the most."""
        return self.hosts[0][1] if self.hosts else 0


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """All hosts at one time. Empty collections where nothing was read yet."""

    server: str = ""
    taken: float | None = None
    """Wall-clock time of the figures; None if there are none yet."""
    received: float | None = None
    """Monotonic time of the reader at which they came."""
    trouble: str = ""
    """Why there are no newer figures; empty for no trouble."""
    notes: tuple[str, ...] = ()
    """What the server said about these figures, such as that they are partial."""
    hosts: tuple[Host, ...] = ()
    """Worst first."""
    instances: Mapping[str, str] = {}
    """Label `instance` by name of the host."""
    people: tuple[FleetPerson, ...] = ()
    alerts: tuple[FleetAlert, ...] = ()
    """The worst first, then the oldest."""
    free: tuple[FreeGpus, ...] = ()


# -- From samples to a fleet --------------------------------------------------------------------------------------


def make_fleet(
    samples: Iterable[FleetSample], *, server: str, taken: float, received: float, notes: Iterable[str]
) -> Fleet:
    """Return the fleet of the samples of `QUERIES`; a value that is not there, or not finite, is missing.

    `notes` are read after the samples.
    """
    gpus: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    labels: dict[tuple[str, str], Labels] = {}
    held: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    ages: dict[str, float] = {}
    down: dict[str, str] = {}
    answering: set[str] = set()
    driverless: set[str] = set()
    firing: list[Labels] = []
    since: dict[tuple[str, ...], float] = {}
    series: Counter[str] = Counter()
    left_out = 0
    for one in samples:
        label, number = one.labels, one.number
        if number is None:
            continue
        if series[label.instance] >= MOST_SERIES or (label.instance not in series and len(series) >= _MOST_HOSTS):
            left_out += 1
            continue
        series[label.instance] += 1
        if rule := _GPU_RULES.get(label.metric):
            key = (label.instance, label.uuid or label.gpu)
            labels[key] = label
            gpus[key][rule] = number
        elif label.metric.startswith("gpuwatch:user_"):
            held[label.instance, label.user][label.metric] = number
        elif label.metric == "gpuwatch:host_age:seconds":
            ages[label.instance] = number
        elif label.metric == "gpuwatch:host_driver_up:bool":
            (answering if number else driverless).add(label.instance)
        elif label.metric == "ALERTS":
            firing += [label] * (label.alertstate == "firing")
        elif label.metric == "ALERTS_FOR_STATE":
            since[_alert_key(label)] = number
        elif label.metric == "up":
            down[label.instance] = "gpuwatch no longer exports metrics" if number else "its exporter does not answer"
    cards: dict[str, list[HostGpu]] = defaultdict(list)
    for key, values in gpus.items():
        cards[key[0]].append(_gpu(labels[key], values))
    fired = {one.instance for one in firing}
    instances = {*cards, *ages, *down, *answering, *driverless, *fired, *(instance for instance, _ in held)} - {""}
    names = host_names(instances)
    alerts = _alerts(firing, {key: max(0.0, taken - at) for key, at in since.items()}, names)
    by_host: dict[str, list[FleetAlert]] = defaultdict(list)
    for each in alerts:
        by_host[each.host].append(each)
    people = Counter(one for (one, user), values in held.items() if user != UNSEEN_USER and _HELD in values)
    troubles = dict.fromkeys(driverless, "its driver does not answer") | down
    hosts = [
        _host(names[one], cards[one], people[one], by_host[names[one]], ages.get(one), troubles.get(one))
        for one in instances
    ]
    too_many = f"{left_out:,} series are left out: the limits are {MOST_SERIES:,} a host and {_MOST_HOSTS:,} hosts"
    total = sum(float(gpu.total) for host in hosts for gpu in host.gpus if known(gpu.total))
    return Fleet(
        server=server,
        taken=taken,
        received=received,
        notes=tuple(clean(note, _LONGEST) for note in (*dict.fromkeys(notes), *(too_many,) * bool(left_out))),
        hosts=tuple(sorted(hosts, key=lambda host: host.weight)),
        instances={name: instance for instance, name in names.items()},
        people=_people(held, names, total)[:_MOST_ROWS],
        alerts=alerts[:_MOST_ROWS],
        free=free_gpus(hosts),
    )


def host_names(instances: Iterable[str]) -> dict[str, str]:
    """Return a clean name for each `instance`: without its port, unless two would be alike."""
    every = sorted(instances)
    bare = {one: clean(re.sub(r":[0-9]{1,5}\Z", "", one), _LONGEST) for one in every}
    times = Counter(bare.values())
    return {one: name if times[name] == 1 else clean(one, _LONGEST) for one, name in bare.items()}


def _gpu(labels: Labels, values: Mapping[str, float]) -> HostGpu:
    used, total, free, left = (values.get(name, Reason.NO_SAMPLE) for name in ("used", "total", "free", "left"))
    busy = values.get("utilization")
    processes = values.get("processes")
    return HostGpu(
        index=int(labels.gpu) if re.fullmatch("[0-9]{1,5}", labels.gpu) else -1,
        uuid=clean(labels.uuid, _LONGEST),
        name=clean(labels.name, _LONGEST),
        used=used,
        total=total,
        free=free,
        left=left,
        utilization=Reason.NO_SAMPLE if busy is None else 100 * busy,
        processes=None if processes is None else int(processes),
        up=bool(values.get("up", 1.0)),
    )


def _host(
    name: str,
    gpus: Iterable[HostGpu],
    people: int,
    alerts: Sequence[FleetAlert],
    age: float | None,
    trouble: str | None,
) -> Host:
    cards = tuple(sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid)))[:MOST_GPUS]
    late = age is not None and age >= LATE_S
    trouble = trouble or (f"no data for {long_duration(age or 0)}" if late else "")
    return Host(
        name=name,
        gpus=cards,
        people=people if cards else None,
        alerts=len(alerts),
        worst=alerts[0].title if alerts else "",
        severity=alerts[0].severity if alerts else None,
        age=age,
        trouble=trouble,
    )


def _alert_key(labels: Labels) -> tuple[str, ...]:
    return (labels.alertname, labels.severity, labels.instance, labels.uuid, labels.gpu, labels.user)


def _alerts(
    firing: Iterable[Labels], ages: Mapping[tuple[str, ...], float], names: Mapping[str, str]
) -> tuple[FleetAlert, ...]:
    found = [
        FleetAlert(
            rule=clean(_WORD.sub(" ", one.alertname.removeprefix("Gpuwatch").removeprefix("Gpu")).lower(), _LONGEST),
            severity=_SEVERITIES.get(one.severity, Severity.NOTE),
            host=names.get(one.instance, ""),
            gpu=clean(one.gpu, _LONGEST),
            uuid=clean(one.uuid, _LONGEST),
            user=clean(one.user, _LONGEST),
            age=ages.get(_alert_key(one)),
        )
        for one in firing
    ]
    by = {one: (-one.severity, one.rule not in _LOST, -(one.age or 0.0), one.host, one.title) for one in found}
    return tuple(sorted(found, key=by.__getitem__))


def _people(
    held: Mapping[tuple[str, str], Mapping[str, float]], names: Mapping[str, str], total: float
) -> tuple[FleetPerson, ...]:
    by_user: dict[str, list[tuple[str, Mapping[str, float]]]] = defaultdict(list)
    for (instance, user), values in held.items():
        if values.get("gpuwatch:user_memory:bytes") or _HELD in values:  # else the user has only promised memory
            by_user[user].append((instance, values))

    def added(values: Iterable[Mapping[str, float]], rule: str) -> float | None:
        found = [one[rule] for one in values if rule in one]
        return total if found and isfinite(total := sum(found)) else None

    people = []
    for user, every in by_user.items():
        theirs = [one for _, one in every]
        memory, gpus = added(theirs, "gpuwatch:user_memory:bytes"), added(theirs, "gpuwatch:user_gpus:count")
        people.append(
            FleetPerson(
                name=clean(user, _LONGEST),
                hosts=tuple(sorted(names[instance] for instance, _ in every if instance)),
                memory=memory,
                memory_percent=100 * memory / total if memory is not None and total else None,
                gpus=None if gpus is None else int(gpus),
                idle=added(theirs, "gpuwatch:user_idle_memory:bytes"),
            )
        )
    return tuple(sorted(people, key=lambda one: (-(one.memory or 0.0), one.name)))


def free_gpus(hosts: Iterable[Host]) -> tuple[FreeGpus, ...]:
    """Return the GPUs by model and memory, sorted by the most free GPUs on one host."""
    grouped: dict[tuple[str, int | None], list[tuple[str, HostGpu]]] = defaultdict(list)
    for host in hosts:
        for gpu in host.gpus:
            memory = round(gpu.total / GIB) if known(gpu.total) else None
            grouped[gpu.name.removeprefix("NVIDIA "), memory].append((host.name if not host.trouble else "", gpu))
    for name, memory in [key for key in grouped if key[1] is None]:
        alike = [key for key in grouped if key[0] == name and key[1] is not None]
        if len(alike) == 1:  # a GPU that does not answer no longer reports its memory size
            grouped[alike[0]] += grouped.pop((name, memory))
    found = []
    for (name, memory), cards in grouped.items():
        # A host that does not answer offers no GPU.
        free = Counter(host for host, gpu in cards if gpu.is_free and host)
        found.append(
            FreeGpus(
                name=name,
                memory=memory,
                gpus=len(cards),
                free=free.total(),
                unknown=sum(not host or (gpu.up and gpu.processes is None) for host, gpu in cards),
                hosts=tuple(sorted(free.items(), key=lambda one: (-one[1], one[0]))),
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.most, -one.free, one.name, one.memory or 0)))


# -- Fields and filters -------------------------------------------------------------------------------------------

FLEET_PERSON: Final[Mapping[str, Field[FleetPerson]]] = table(
    (
        PERSON["user"].of(lambda one: one.name),
        PERSON["memory"].of(lambda one: amount(one.memory)),
        PERSON["part"].of(lambda one: amount(one.memory_percent)),
        Field("gpus", "GPUs", lambda one: amount(one.gpus)),
        Field("hosts", "hosts", lambda one: Amount(len(one.hosts))),
        Field("idle", "idle GiB", lambda one: amount(one.idle or 0.0), Unit.BYTES, words="idle memory", quiet=1.0),
        Field("where", "on", lambda one: ", ".join(one.hosts), right=False),
    )
)
FREE_GPUS: Final[Mapping[str, Field[FreeGpus]]] = table(
    (
        Field("name", "model", lambda one: one.name, ascending=True, right=False),
        Field("memory", "GiB", lambda one: amount(one.memory), words="memory of each"),
        Field("gpus", "GPUs", lambda one: Amount(one.gpus)),
        Field("free", "free", lambda one: Amount(one.free, one.unknown > 0), words="free GPUs"),
        Field("most", "on one host", lambda one: Amount(one.most, one.unknown > 0), words="free GPUs of one host"),
        Field("where", "hosts", lambda one: ", ".join(f"{host} {free}" for host, free in one.hosts), right=False),
    )
)
FLEET_ALERT: Final[Mapping[str, Field[FleetAlert]]] = table(
    (
        Field("rank", "", lambda one: MARKS[one.severity], rank=lambda one: float(one.severity), right=False),
        Field("host", "host", lambda one: one.host or None, ascending=True, right=False),
        PROCESS["age"].of(lambda one: amount(one.age), key="lasted", title="lasted"),
        Field("title", "alert", lambda one: one.title, ascending=True, right=False),
    )
)


def hosts_grammar(fleet: Fleet) -> Grammar[Host]:
    """Return the filter terms for the hosts of a fleet, with `user:` for people who hold memory there."""

    def of_user(value: str) -> Term[Host]:
        is_one = PEOPLE.keys["user"](value)
        hosts = {host for person in fleet.people if is_one(person) for host in person.hosts}
        return lambda host: host.name in hosts

    figures = ("gpus", "free", "left", "busy", "people", "age")
    return Grammar(
        keys={"user": of_user},
        anywhere=with_text(lambda host: (host.name, host.worst, host.trouble, *{gpu.name for gpu in host.gpus})),
        figures={"mem": HOST["memory"], **{key: HOST[key] for key in figures}},
    )


PEOPLE: Final[Grammar[FleetPerson]] = Grammar(
    keys={"user": of_names(lambda one: (one.name,))},
    anywhere=with_text(lambda one: (one.name, *one.hosts)),
    figures={"mem": FLEET_PERSON["memory"], **{key: FLEET_PERSON[key] for key in ("gpus", "hosts", "idle")}},
)
FREE: Final[Grammar[FreeGpus]] = Grammar(
    keys={},
    anywhere=with_text(lambda one: (one.name, *(host for host, _ in one.hosts))),
    figures={"mem": FREE_GPUS["memory"], **{key: FREE_GPUS[key] for key in ("gpus", "free", "most")}},
)
ALERTS: Final[Grammar[FleetAlert]] = Grammar(
    keys={
        "user": of_names(lambda one: (one.user,)),
        "rule": of_names(lambda one: (one.rule,)),
        "gpu": of_numbers("gpu", lambda one: (int(one.gpu) if one.gpu.isdecimal() else None,)),
    },
    anywhere=with_text(lambda one: (one.host, one.title)),
    figures={"age": FLEET_ALERT["lasted"]},
)


# -- Hosts with room ----------------------------------------------------------------------------------------------


class HostOffer(NamedTuple):
    """GPUs of one host that have room for a request."""

    host: Host
    gpus: Sequence[HostGpu]
    """Those with the most memory left first."""


def find_hosts(hosts: Iterable[Host], wanted: Request, count: int) -> tuple[list[HostOffer], list[HostOffer]]:
    """Return the hosts with `count` GPUs that have room, best first, and those with fewer.

    The best host has the most memory left on the fullest of the GPUs that would be taken; among equals, the host with
    the most such GPUs wins. A host with a trouble, or a GPU whose memory left is not known, is never offered.
    """
    offers = []
    for host in hosts:
        fit = [gpu for gpu in host.gpus if not host.trouble and _fits(gpu, wanted)]
        offers.append(HostOffer(host, sorted(fit, key=lambda gpu: (-_left(gpu), _busy(gpu), gpu.index))))
    offers.sort(key=lambda one: (-min(map(_left, one.gpus[:count]), default=0.0), -len(one.gpus), one.host.name))
    return [one for one in offers if len(one.gpus) >= count], [one for one in offers if len(one.gpus) < count]


def _left(gpu: HostGpu) -> float:
    return float(gpu.left) if known(gpu.left) else -1.0


def _busy(gpu: HostGpu) -> float:
    return float(gpu.utilization) if known(gpu.utilization) else 100.0


def _fits(gpu: HostGpu, wanted: Request) -> bool:
    if not gpu.up or not known(gpu.left) or (wanted.empty and not gpu.is_free):
        return False
    if wanted.empty and known(gpu.utilization) and gpu.utilization >= BUSY:  # although no process is listed
        return False
    if wanted.busy is not None and not (known(gpu.utilization) and gpu.utilization <= wanted.busy):
        return False
    if wanted.memory is not None:
        return gpu.left >= wanted.memory
    return wanted.share is None or (known(gpu.total) and gpu.left >= wanted.share * gpu.total)


# -- One host -----------------------------------------------------------------------------------------------------

_OWNER_RULES: Final = {
    "gpuwatch_user_memory_bytes": "memory",
    "gpuwatch_user_declared_bytes": "declared",
    "gpuwatch_user_over_bytes": "over",
    "gpuwatch_user_idle_seconds": "idle",
}
_PAST_RULES: Final = {
    "gpuwatch_gpu_memory_used_bytes": "used",
    "gpuwatch_gpu_utilization_ratio": "utilization",
    "gpuwatch_gpu_power_watts": "power",
    "gpuwatch_gpu_temperature_celsius": "temperature",
    "gpuwatch_user_memory_bytes": "memory",
}


class HostOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one person on one GPU of the opened host; None where a value is not known or does not apply."""

    uuid: str
    user: str
    memory: float | None = None
    declared: float | None = None
    over: float | None = None
    """Bytes above what was declared."""
    idle: float | None = None
    """Seconds for which the person's processes have been idle."""


class PastKey(NamedTuple):
    """Series of the opened host."""

    uuid: str
    user: str
    """Empty for a figure of the GPU itself."""
    figure: str
    """`used`, `utilization` (0 to 1), `power`, `temperature`, or `memory` of the user."""


class HostPast(msgspec.Struct, frozen=True, kw_only=True):
    """Owners on one host, and its figures over a span."""

    host: str
    start: float
    step: float
    """Seconds of each value."""
    series: Mapping[PastKey, Sequence[float | None]] = {}
    owners: tuple[HostOwner, ...] = ()
    gpus: tuple[HostGpu, ...] = ()
    """GPUs that have a figure in the span, without one of now: of a host that does not answer none are listed."""


def host_queries(instance: str) -> tuple[str, str]:
    on = f"instance={json.dumps(instance, ensure_ascii=False)}"
    owners, past = (f'{{__name__=~"{"|".join(rules)}", {on}}}' for rules in (_OWNER_RULES, _PAST_RULES))
    return owners, past


def make_past(
    host: str, owners: Iterable[FleetSample], past: Iterable[Range], *, start: float, step: float, count: int
) -> HostPast:
    """Return the owners and the past of a host from the samples of `host_queries`."""
    held: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for one in islice(owners, MOST_SERIES):
        if one.number is not None and (rule := _OWNER_RULES.get(one.labels.metric)):
            held[clean(one.labels.uuid, _LONGEST), clean(one.labels.user, _LONGEST)][rule] = one.number
    series: dict[PastKey, list[float | None]] = {}
    gpus: dict[str, HostGpu] = {}
    for each in islice(past, MOST_SERIES):
        if each.labels.uuid:
            gpus[each.labels.uuid] = _gpu(each.labels, {"up": 0.0})
        if figure := _PAST_RULES.get(each.labels.metric):
            key = PastKey(clean(each.labels.uuid, _LONGEST), clean(each.labels.user, _LONGEST), figure)
            before = series.get(key, [None] * count)  # of a GPU whose index changed there are two series
            numbers = each.numbers(start, step, count)
            series[key] = [old if new is None else new for old, new in zip(before, numbers, strict=True)]
    found = [HostOwner(uuid=uuid, user=user, **values) for (uuid, user), values in held.items()]
    found.sort(key=lambda one: -(one.memory or 0.0))
    known_gpus = tuple(sorted(gpus.values(), key=lambda gpu: (gpu.index, gpu.uuid)))[:MOST_GPUS]
    return HostPast(host=host, start=start, step=step, series=series, owners=tuple(found), gpus=known_gpus)
