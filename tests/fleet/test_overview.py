"""Fleet from samples: hosts, free GPUs, people, alerts, filters, hosts with room, and the past of one host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpuwatch.alerts.alert import Severity
from gpuwatch.base.units import GIB
from gpuwatch.fleet.host import HOST
from gpuwatch.fleet.overview import (
    ALERTS,
    FLEET_PERSON,
    FREE,
    FREE_GPUS,
    PEOPLE,
    Fleet,
    FleetAlert,
    PastKey,
    find_hosts,
    host_names,
    host_queries,
    hosts_grammar,
    make_fleet,
    make_past,
)
from gpuwatch.fleet.prometheus import Labels, Range
from gpuwatch.launch.placement import Request
from gpuwatch.model.filters import FilterError, Grammar, parse_terms
from gpuwatch.model.snapshot import Reason
from tests.support.prometheus import a_fleet, decoded

NOW = 1_764_000_000.0


def fleet(lines: str, *notes: str) -> Fleet:
    return make_fleet(decoded(lines), server="http://prom", taken=NOW, received=5.0, notes=notes)


def gpu(rule: str, value: float, index: int = 0, host: str = "a:9400", name: str = "NVIDIA H100") -> str:
    labels = f'instance="{host}",job="gpuwatch",uuid="GPU-{host}-{index}",gpu="{index}",name="{name}"'
    return f"gpuwatch:gpu_{rule}{{{labels}}} {value}"


def card(index: int, used: float, *, left: float | None = None, host: str = "a:9400", **changes: Any) -> str:
    """Return the rules of a GPU with 80 GiB, of which so many are used."""
    values = {
        "memory_used:bytes": used * GIB,
        "memory_total:bytes": 80 * GIB,
        "memory_free:bytes": (80 - used) * GIB,
        "memory_left:bytes": (80 - used if left is None else left) * GIB,
        "utilization:ratio": 0.5,
        "processes:count": float(used > 0),
        "up:bool": 1.0,
    } | {key.replace("__", ":"): value for key, value in changes.items() if key != "name"}
    name = changes.get("name", "NVIDIA H100")
    return "\n".join(gpu(rule, one, index, host, name) for rule, one in values.items() if one is not None)


def user(name: str, host: str, memory: float, **others: float) -> str:
    on = f'{{instance="{host}",job="gpuwatch",user="{name}"}}'
    lines = [f"gpuwatch:user_memory:bytes{on} {memory * GIB}", f"gpuwatch:user_gpus:count{on} 1"]
    return "\n".join([*lines, *(f"gpuwatch:user_{rule}:bytes{on} {one * GIB}" for rule, one in others.items())])


def alert(name: str, severity: str = "warning", **labels: str) -> str:
    every = {"alertname": name, "severity": severity, **labels}
    inside = ",".join(f'{key}="{one}"' for key, one in every.items())
    return f'ALERTS{{{inside},alertstate="firing"}} 1\nALERTS_FOR_STATE{{{inside}}} {NOW - 600}'


# -- hosts ----------------------------------------------------------------------------------------------------------


def test_a_host_has_its_gpus_its_people_and_its_age() -> None:
    lines = [
        card(1, 20.0, left=50.0),
        card(0, 0.0),
        user("ada", "a:9400", 20.0),
        'gpuwatch:host_age:seconds{instance="a:9400"} 7',
    ]
    found = fleet("\n".join(lines))
    (host,) = found.hosts
    assert (host.name, host.people, host.age, host.trouble, host.alerts) == ("a", 1, 7.0, "", 0)
    assert [(one.index, one.used, one.free, one.left) for one in host.gpus] == [
        (0, 0.0, 80.0 * GIB, 80.0 * GIB),
        (1, 20.0 * GIB, 60.0 * GIB, 50.0 * GIB),
    ]
    assert host.gpus[0].is_free
    assert host.gpus[1].utilization == 50
    assert found.instances == {"a": "a:9400"}
    assert {key: HOST[key].cell(host) for key in ("gpus", "free", "memory", "left", "busy")} == {
        "gpus": "2", "free": "1", "memory": "12", "left": "130.0", "busy": "50",
    }  # fmt: skip


@pytest.mark.parametrize("value", ["NaN", "+Inf", "text"])
def test_what_is_missing_or_no_number_is_never_0(value: str) -> None:
    lines = card(0, 20.0, utilization__ratio=None, processes__count=None, memory_left__bytes=None)
    used = gpu("memory_used:bytes", 1.0, 1).rpartition(" ")[0]
    (host,) = fleet(f"{lines}\n{used} {value}\n{gpu('memory_total:bytes', 80.0 * GIB, 1)}").hosts
    first, second = host.gpus
    assert (first.utilization, first.processes, first.left) == (Reason.NO_SAMPLE, None, Reason.NO_SAMPLE)
    assert (second.used, second.free, second.total) == (Reason.NO_SAMPLE, Reason.NO_SAMPLE, 80 * GIB)
    assert not first.is_free
    assert HOST["left"].cell(host) == HOST["busy"].cell(host) == "—"


def test_a_host_that_does_not_answer_and_one_with_old_figures_say_so() -> None:
    lines = [
        card(0, 20.0),
        'up{instance="b:9400",job="gpuwatch"} 0',
        'up{instance="d:9100",job="nodes"} 1',
        'gpuwatch:host_age:seconds{instance="c:9400"} 400',
        card(0, 0.0, host="c:9400"),
    ]
    found = fleet("\n".join(lines))
    assert {host.name: host.trouble for host in found.hosts} == {
        "b": "its exporter does not answer",
        "d": "gpuwatch no longer exports metrics",
        "c": "no data for 6 min 40 s",
        "a": "",
    }
    assert found.hosts[-1].name == "a", "worst first"
    assert [(one.gpus, one.free, one.unknown) for one in found.free] == [(2, 0, 1)], "an old figure is no promise"
    assert HOST["free"].cell(found.hosts[0]) == "—"


def test_ports_are_left_out_unless_two_hosts_would_be_alike() -> None:
    assert host_names(["a:9400", "b:9400", "b:9401", "[::1]:9400", "plain", "x\x1b:1"]) == {
        "a:9400": "a",
        "b:9400": "b:9400",
        "b:9401": "b:9401",
        "[::1]:9400": "[::1]",
        "plain": "plain",
        "x\x1b:1": "x�",
    }


def test_foreign_text_is_cleaned() -> None:
    bad = "\\u001b[2J\\u202e"
    lines = [
        card(0, 5.0, host=f"h{bad}:9400", name=f"card{bad}"),
        user(f"ada{bad}", f"h{bad}:9400", 5.0),
        alert(f"Gpuwatch{bad}", instance=f"h{bad}:9400", user=f"u{bad}", gpu=bad, uuid=bad),
    ]
    found = fleet("\n".join(lines), "partial \x1b[2J")
    texts = [found.notes[0], found.hosts[0].name, found.hosts[0].gpus[0].name, found.hosts[0].gpus[0].uuid]
    texts += [
        found.people[0].name,
        *found.people[0].hosts,
        found.alerts[0].title,
        found.alerts[0].host,
        found.alerts[0].uuid,
    ]
    assert all(text.isprintable() and "\u202e" not in text for text in texts)


def test_what_no_host_has_is_left_out_with_a_line() -> None:
    """20,000 series of one instance, and 5,000 instances; a host beside them is whole."""
    flood = "\n".join(
        f'gpuwatch:gpu_memory_used:bytes{{instance="f:1",uuid="G{n}",gpu="{n}",user="u{n}"}} 1' for n in range(20_000)
    )
    found = fleet(f"{card(0, 20.0)}\n{flood}")
    by_name = {host.name: host for host in found.hosts}
    assert (len(by_name["a"].gpus), len(by_name["f"].gpus)) == (1, 256)
    assert found.notes == ("17,952 series are left out: the limits are 2,048 a host and 4,096 hosts",)
    many = fleet("\n".join(f'up{{instance="h{n}:1"}} 0' for n in range(5000)))
    assert (len(many.hosts), many.notes[0].split()[0]) == (4096, "904")


def test_an_empty_server_has_no_host() -> None:
    assert fleet("").hosts == ()


# -- alerts ---------------------------------------------------------------------------------------------------------


def test_alerts_are_listed_worst_first_and_count_for_their_host() -> None:
    lines = [
        card(3, 79.0),
        alert("GpuwatchNearlyFull", "critical", instance="a:9400", gpu="3", uuid="GPU-a:9400-3"),
        alert("GpuwatchIdleMemory", instance="a:9400", user="ada"),
        alert("GpuwatchRulesFail"),
        'ALERTS{alertname="GpuwatchOther",alertstate="pending",severity="warning",instance="a:9400"} 1',
    ]
    found = fleet("\n".join(lines))
    assert [(one.title, one.severity, one.host, one.age) for one in found.alerts] == [
        ("GPU 3: nearly full", Severity.CRITICAL, "a", 600.0),
        ("rules fail", Severity.WARNING, "", 600.0),
        ("idle memory, ada", Severity.WARNING, "a", 600.0),
    ]
    (host,) = found.hosts
    assert (host.alerts, host.worst, host.severity) == (2, "GPU 3: nearly full", Severity.CRITICAL)


def test_a_lost_gpu_is_worse_than_one_that_is_full() -> None:
    lines = [alert(f"Gpuwatch{name}", "critical", instance="a:9400", gpu=gpu) for name, gpu in _CRITICAL.items()]
    (host,) = fleet("\n".join(lines).replace(str(NOW - 600), str(NOW), 2)).hosts
    assert (host.worst, host.alerts) == ("GPU 1: lost", 3)


_CRITICAL = {"NearlyFull": "0", "GpuLost": "1", "OverDeclared": "2"}


# -- people and free GPUs -------------------------------------------------------------------------------------------


def test_people_are_added_up_over_hosts() -> None:
    lines = [card(0, 60.0), card(0, 20.0, host="b:1")]
    lines += [user("ada", "a:9400", 40.0), user("ada", "b:1", 20.0, idle_memory=5.0), user("ben", "a:9400", 20.0)]
    ada, ben = fleet("\n".join(lines)).people
    assert (ada.name, ada.hosts, ada.memory, ada.gpus, ada.idle) == ("ada", ("a", "b"), 60 * GIB, 2, 5 * GIB)
    assert ada.memory_percent == 37.5
    assert ben.idle is None
    assert {key: one.cell(ada) for key, one in FLEET_PERSON.items()} == {
        "user": "ada", "memory": "60.0", "part": "38", "gpus": "2", "hosts": "2", "idle": "5.0", "where": "a, b",
    }  # fmt: skip
    assert FLEET_PERSON["idle"].cell(ben) == ""


def test_free_gpus_are_counted_by_model_and_the_host_with_most_is_named() -> None:
    lines = [card(index, 0.0) for index in range(3)]
    lines += [card(index, 0.0, host="b:1") for index in range(4)]
    lines += [card(4, 0.0, host="b:1", up__bool=0.0), card(5, 0.0, host="b:1", processes__count=None)]
    lines += [card(6, 0.0, host="b:1", name="NVIDIA L40S")]
    first, second = fleet("\n".join(lines)).free
    assert (first.name, first.memory, first.gpus, first.free, first.unknown) == ("H100", 80, 9, 7, 1)
    assert first.hosts == (("b", 4), ("a", 3))
    assert (second.name, second.most) == ("L40S", 1)
    assert (FREE_GPUS["free"].cell(first), FREE_GPUS["most"].cell(second)) == ("≥7", "1")


# -- filters --------------------------------------------------------------------------------------------------------


def matches(rows: Sequence[Any], words: str, grammar: Grammar[Any]) -> list[Any]:
    terms = parse_terms(words, grammar, finished=True)
    return [row for row in rows if all(term(row) for term in terms)]


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("free>=2", ["b"]),
        ("gpus=1", ["a"]),
        ("mem>50", ["a"]),
        ("left>100GiB l40s", ["b"]),
        ("user:ad", ["a"]),
        ("!user:ada", ["b"]),
        ("NEAR", ["a"]),
        ("age>1m", []),
        ("b", ["b"]),
    ],
)
def test_hosts_are_filtered_by_the_grammar_of_all_lists(words: str, hosts: list[str]) -> None:
    lines = [card(0, 60.0), user("ada", "a:9400", 60.0), alert("GpuwatchNearlyFull", instance="a:9400")]
    lines += [card(index, 0.0, host="b:1", name="NVIDIA L40S") for index in range(2)]
    found = fleet("\n".join(lines))
    assert [host.name for host in matches(found.hosts, words, hosts_grammar(found))] == hosts


def test_the_other_lists_are_filtered_too() -> None:
    found = fleet(a_fleet(100, 8))
    assert [one.name for one in matches(found.people, "user:ada mem>1GiB", PEOPLE)] == ["ada"]
    assert len(matches(found.free, "h100 most>=4", FREE)) == 1
    assert [one.host for one in matches(found.alerts, "rule:full gpu:0-2 age<1h node0051", ALERTS)] == ["node0051"]
    assert not matches([FleetAlert(rule="x", severity=Severity.WARNING)], "gpu:0", ALERTS)
    with pytest.raises(FilterError, match="sm is not a figure of this list"):
        parse_terms("sm>3", hosts_grammar(found))


# -- hosts with room ------------------------------------------------------------------------------------------------


ROOM = "\n".join(
    [
        *(card(index, 10.0, host="a:1") for index in range(3)),
        *(card(index, 0.0, host="b:1", utilization__ratio=0.0) for index in range(2)),
        card(2, 5.0, host="b:1", utilization__ratio=0.9),
        card(0, 0.0, host="c:1"),
        card(1, 0.0, host="c:1", memory_left__bytes=None),
        card(2, 0.0, host="c:1", up__bool=0.0),
        *(card(index, 0.0, host="d:1") for index in range(8)),
        'up{instance="d:1"} 0',
    ]
)


@pytest.mark.parametrize(
    ("wanted", "count", "hosts"),
    [
        (Request(memory=70 * GIB), 1, ["b", "c", "a"]),
        (Request(memory=70 * GIB), 3, ["b", "a"]),
        (Request(memory=79 * GIB), 2, ["b"]),
        (Request(share=0.9), 3, ["b"]),
        (Request(share=0.95), 3, []),
        (Request(share=0.8), 3, ["b", "a"]),
        (Request(empty=True), 2, ["b"]),
        (Request(memory=1 * GIB, busy=60), 3, ["a"]),
    ],
)
def test_hosts_with_room_are_found_best_first(wanted: Request, count: int, hosts: list[str]) -> None:
    enough, fewer = find_hosts(fleet(ROOM).hosts, wanted, count)
    assert [one.host.name for one in enough] == hosts
    assert len(enough) + len(fewer) == 4


# -- one host -------------------------------------------------------------------------------------------------------


def test_a_host_is_asked_for_by_its_whole_label() -> None:
    owners, past = host_queries('a"b\\c:9400')
    assert owners.endswith(', instance="a\\"b\\\\c:9400"}')
    assert "gpuwatch_gpu_power_watts" in past


def test_owners_and_past_of_a_host() -> None:
    on = '{uuid="GPU-1",gpu="0",user="ada"}'
    owners = decoded(
        f"""gpuwatch_user_memory_bytes{on} 40
        gpuwatch_user_declared_bytes{on} 32
        gpuwatch_user_idle_seconds{on} NaN
        other{on} 1"""
    )
    power, renumbered = (
        Range(labels=Labels(metric="gpuwatch_gpu_power_watts", uuid="GPU-1", gpu=gpu), values=[(at, "300")])
        for gpu, at in (("3", 110.0), ("4", 130.0))
    )
    past = make_past("a", owners, [power, renumbered], start=100.0, step=10.0, count=3)
    (one,) = past.owners
    assert (one.user, one.memory, one.declared, one.idle) == ("ada", 40.0, 32.0, None)
    assert past.series == {PastKey("GPU-1", "", "power"): [300.0, None, 300.0]}
    assert [(gpu.index, gpu.uuid, gpu.up) for gpu in past.gpus] == [(4, "GPU-1", False)]


def test_a_host_without_a_driver_and_one_that_only_has_an_alert_are_hosts() -> None:
    lines = [
        'gpuwatch:host_driver_up:bool{instance="a:9400"} 0',
        'up{instance="b:9400"} 0',
        'gpuwatch:host_driver_up:bool{instance="b:9400"} 0',
        alert("GpuwatchHostDown", "critical", instance="c:9400"),
        'gpuwatch:host_driver_up:bool{instance="d:9400"} 1',
    ]
    found = {host.name: host.trouble or host.worst for host in fleet("\n".join(lines)).hosts}
    silent = "its exporter does not answer"
    assert found == {"a": "its driver does not answer", "b": silent, "c": "host down", "d": ""}


def test_people_are_those_who_hold_memory_and_are_visible() -> None:
    promised = 'gpuwatch:user_memory:bytes{instance="a:9400",user="cyn"} 0'
    found = fleet("\n".join([card(0, 20.0), user("ada", "a:9400", 20.0), user("?", "a:9400", 1.0), promised]))
    assert found.hosts[0].people == 1
    assert [one.name for one in found.people] == ["ada", "?"]


@pytest.mark.parametrize(("busy", "is_empty"), [(0.19, True), (0.2, False), (None, True)])
def test_a_busy_gpu_is_not_empty_though_nobody_is_listed(busy: float | None, is_empty: bool) -> None:
    enough, _ = find_hosts(fleet(card(0, 0.0, utilization__ratio=busy)).hosts, Request(empty=True), 1)
    assert bool(enough) is is_empty
