"""Processes on GPUs that they did not choose, or do not use; variables that were misspelt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.rules.devices import DISAGREE, MISSPELT, UNUSED
from gpuwatch.model import Declared, Health, Hint, Holding, Instance, Knowledge, Order, Reason, Visible
from tests.support.alerting import Bench, only, uuid
from tests.support.builders import GIB, gpu, holding, process

NOTE, WARNING = Severity.NOTE, Severity.WARNING


# Devices


def sees(*gpus: int | str, text: str = "CUDA_VISIBLE_DEVICES=0", **changes: Any) -> Declared:
    """Return a process's choice of devices."""
    uuids = tuple(uuid(one) if isinstance(one, int) else one for one in gpus)
    fields: dict[str, Any] = {"gpus": uuids, "text": text, "where": "environment"}
    return Declared(visible=Visible(**{**fields, **changes}))


def on(*places: tuple[int, Holding], declared: Declared | None, seconds: int = 11, bench: Bench | None = None) -> Bench:
    """Let a process of ada's be on GPUs 0 to 3 as given for some seconds."""
    bench = bench or Bench()
    person = process(100, declared=declared)
    for _ in range(seconds):
        cards = [gpu(index, used_gib=40, holdings=[one for at, one in places if at == index]) for index in range(4)]
        bench.feed(*cards, people=[person])
    return bench


def test_a_gpu_that_was_not_chosen_is_told_after_ten_seconds() -> None:
    bench = on((1, holding(100, 3.1)), declared=sees(0), seconds=10)
    assert bench.of(DISAGREE) == []
    on((1, holding(100, 3.1)), declared=sees(0), seconds=1, bench=bench)
    alert = only(bench, DISAGREE)
    assert alert.title == "pid 100 (ada) holds 3.1 GiB on GPU 1, its CUDA_VISIBLE_DEVICES=0 shows only GPU 0"
    assert alert.evidence == "environment CUDA_VISIBLE_DEVICES=0 · python train.py"
    assert (alert.severity, alert.index, alert.pids, alert.subject) == (WARNING, 1, (100,), "100:100")
    on((0, holding(100, 3.1)), declared=sees(0), seconds=1, bench=bench)
    assert bench.of(DISAGREE) == []


@pytest.mark.parametrize(
    ("declared", "title"),
    [
        (sees(), "holds 4.0 GiB on GPU 1, 2, its CUDA_VISIBLE_DEVICES=0 shows none"),
        (sees(3, 0), "holds 4.0 GiB on GPU 1, 2, its CUDA_VISIBLE_DEVICES=0 shows only GPU 0, 3"),
        (sees(1), "holds 2.0 GiB on GPU 2, its CUDA_VISIBLE_DEVICES=0 shows only GPU 1"),
        (sees("GPU-of-another-machine"), "holds 4.0 GiB on GPU 1, 2, its CUDA_VISIBLE_DEVICES=0 shows others"),
        (sees(1, order=Order.IDENTICAL), "holds 2.0 GiB on GPU 2, its CUDA_VISIBLE_DEVICES=0 shows only GPU 1"),
        (sees(0, order=Order.HEURISTIC), "is on 2 GPUs, its CUDA_VISIBLE_DEVICES=0 shows only 1"),
        (sees(0, 3, order=Order.HEURISTIC), None),
        (sees(1, 2), None),
        (sees(0, text=""), None),
        (msgspec.structs.replace(sees(0), knowledge=Knowledge.UNREADABLE), None),
        (Declared(), None),
        (None, None),
    ],
)
def test_which_devices_disagree(declared: Declared | None, title: str | None) -> None:
    bench = on((1, holding(100, 2.0)), (2, holding(100, 2.0)), declared=declared)
    assert [alert.title.removeprefix("pid 100 (ada) ") for alert in bench.of(DISAGREE)] == ([title] if title else [])


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (holding(100, 1.0, kind="G"), None),
        (holding(100, 0.0), None),
        (holding(100, 1.0, kind="C+G"), "holds 1.0 GiB on GPU 1"),
        (holding(100, 1.0, kind="M"), "holds 1.0 GiB on GPU 1"),
        (holding(100, memory=Reason.UNSUPPORTED), "is on GPU 1"),
    ],
)
def test_only_what_can_compute_counts(held: Holding, told: str | None) -> None:
    titles = [alert.title for alert in on((1, held), declared=sees(0)).of(DISAGREE)]
    assert [told in title for title in titles] == ([True] if told else []) if told else titles == []


@pytest.mark.parametrize("doubtful", [True, False])
def test_a_choice_that_may_never_have_been_made_is_not_compared(doubtful: bool) -> None:
    declared = sees(0, order=Order.HEURISTIC, doubtful=doubtful)
    bench = on((0, holding(100, 2.0)), (1, holding(100, 2.0)), declared=declared)
    assert bool(bench.of(DISAGREE)) is not doubtful


def test_a_mig_instance_stands_for_its_gpu() -> None:
    instance = Instance(uuid="MIG-1", name="1g.10gb", gpu_instance=1, compute_instance=0)
    held = [holding(100, 1.0, gpu_instance=1), holding(100, 2.0, gpu_instance=2)]
    bench = Bench()
    for seen in ("MIG-1", "MIG-2"):
        person = process(100, declared=sees(seen, text=f"CUDA_VISIBLE_DEVICES={seen}"))
        for _ in range(11):
            bench.feed(gpu(0, used_gib=3, holdings=held, instances=(instance,), mig=True), people=[person])
        titles = [alert.title for alert in bench.of(DISAGREE)]
        told = "pid 100 (ada) holds 3.0 GiB on GPU 0, its CUDA_VISIBLE_DEVICES=MIG-2 shows others"
        assert titles == ([told] if seen == "MIG-2" else [])


def test_instances_of_which_one_is_not_known_have_no_sum() -> None:
    held = [holding(100, 1.0, gpu_instance=1), holding(100, memory=Reason.DENIED, gpu_instance=2)]
    bench = Bench()
    for _ in range(11):
        bench.feed(gpu(1, used_gib=3, holdings=held), people=[process(100, declared=sees(0))])
    assert "is on GPU 1" in only(bench, DISAGREE).title


def test_a_long_value_is_cut_in_the_title_and_whole_in_the_evidence() -> None:
    value = "CUDA_VISIBLE_DEVICES=" + ",".join(f"GPU-{n:08x}" for n in range(9))
    alert = only(on((1, holding(100, 1.0)), declared=sees(0, text=value, note="-1 hides all")), DISAGREE)
    assert len(alert.title) < 120
    assert f"{value} · -1 hides all" in alert.evidence


def test_a_gpu_that_stops_answering_keeps_its_disagreement() -> None:
    bench = on((1, holding(100, 3.1)), declared=sees(0))
    bench.feed(gpu(0), gpu(1, health=Health.LOST), people=[process(100, declared=sees(0))])
    assert len(bench.of(DISAGREE)) == 1


# Contexts on every GPU


def spread(
    *sizes: float | Reason, busy: Iterable[int] = (0,), seconds: int = 64, bench: Bench | None = None, **changes: Any
) -> Bench:
    """Let a process hold so much of GPU 0, 1, 2…, and compute on those that are `busy`."""
    places = []
    for index, size in enumerate(sizes):
        sm = 80 if index in busy else 0
        fields: dict[str, Any] = {"sm": sm, "memory": size if isinstance(size, Reason) else round(size * GIB)}
        places.append((index, holding(100, **{**fields, **changes})))
    return on(*places, declared=None, seconds=seconds, bench=bench)


@pytest.mark.parametrize(
    ("sizes", "busy", "level", "title"),
    [
        ((10, 10, 10, 10), (0,), WARNING, "fills GPU 1, 2, 3 and computes on GPU 0 alone"),
        ((75, 45, 0.3), (0,), WARNING, "fills GPU 1 and computes on GPU 0 alone"),
        ((10, 70), (1,), None, ""),
        ((10, 5, 0.3), (0,), WARNING, "fills GPU 1 and computes on GPU 0 alone"),
        ((3, 312 / 1024, 312 / 1024), (0,), NOTE, "opened GPU 1, 2 (312 MiB each) and computes on GPU 0 alone"),
        ((3, 0.3, 0.5), (0,), NOTE, "opened GPU 1, 2 (307 MiB to 512 MiB) and computes on GPU 0 alone"),
        ((0.5, 3), (1,), NOTE, "opened GPU 0 (512 MiB) and computes on GPU 1 alone"),
        ((0.4, 0.3), (0,), NOTE, "opened GPU 1 (307 MiB) and computes on GPU 0 alone"),
        ((10, 3), (0,), None, ""),
        ((10, 0.01), (0,), None, ""),
        ((10, 10), (0, 1), None, ""),
        ((10, 10), (), None, ""),
        ((10,), (0,), None, ""),
    ],
)
def test_who_is_on_many_gpus_and_computes_on_one(
    sizes: Sequence[float], busy: Sequence[int], level: Severity | None, title: str
) -> None:
    bench = spread(*sizes, busy=busy)
    told = [(alert.severity, alert.title.removeprefix("pid 100 (ada) ")) for alert in bench.of(UNUSED)]
    assert told == ([(level, title)] if level else [])
    assert [alert.index for alert in bench.of(UNUSED)] == ([busy[0]] if level else [])


def test_it_takes_a_minute_of_watching_and_three_samples() -> None:
    bench = spread(10, 10, seconds=62)
    assert bench.of(UNUSED) == []
    spread(10, 10, seconds=1, bench=bench)
    assert len(bench.of(UNUSED)) == 1


def test_once_it_computes_elsewhere_it_is_over() -> None:
    bench = spread(10, 10)
    spread(10, 10, busy=(0, 1), seconds=1, bench=bench)
    assert bench.of(UNUSED) == []
    spread(10, 10, busy=(0,), seconds=100, bench=bench)
    assert bench.of(UNUSED) == []


@pytest.mark.parametrize("missing", [{"sm": Reason.UNSUPPORTED}, {"memory": Reason.NO_SAMPLE}])
def test_without_its_figures_nothing_is_judged_and_nothing_ends(missing: dict[str, Any]) -> None:
    assert spread(10, 10, **missing).of(UNUSED) == []
    bench = spread(10, 10)
    before = only(bench, UNUSED)
    spread(10, 10, bench=bench, seconds=5, **missing)
    assert only(bench, UNUSED) == before


# Misspelt variables


def misspelt(*words: str) -> Declared:
    return Declared(
        hints=(Hint(rule="dynamic", words="not this"), *(Hint(rule="misspelt", words=one) for one in words))
    )


def test_a_misspelt_variable_is_a_note_and_on_several_gpus_a_warning() -> None:
    slip = "CUDA_VISIBLE_DIVICES has no effect; CUDA_VISIBLE_DEVICES was meant"
    bench = on((0, holding(100)), declared=misspelt(slip, "another"), seconds=3)
    alert = only(bench, MISSPELT)
    assert (alert.severity, alert.title) == (NOTE, f"pid 100 (ada): {slip}")
    assert alert.evidence == "another · on GPU 0 · python train.py"
    on((0, holding(100)), (2, holding(100)), declared=misspelt(slip), seconds=3, bench=bench)
    (alert,) = bench.of(MISSPELT)
    assert (alert.severity, alert.evidence) == (WARNING, "on GPU 0, 2 · python train.py")
    on(declared=misspelt(slip), seconds=1, bench=bench)
    assert bench.of(MISSPELT) == []


def test_other_hints_and_none_are_no_alert() -> None:
    assert on((0, holding(100)), declared=misspelt()).last.active == ()


def test_a_process_that_proc_does_not_know_is_left_alone() -> None:
    bench = Bench()
    shown = msgspec.structs.replace(gpu(0, used_gib=40, holdings=[holding(7, 30.0)]))
    for _ in range(12):
        bench.feed(shown, processes=())
    assert bench.last.active == ()


def test_an_owner_who_is_hidden_is_not_named() -> None:
    bench = Bench()
    person = process(100, user="", uid=None, command="", declared=sees(0))
    for _ in range(11):
        bench.feed(gpu(1, used_gib=40, holdings=[holding(100, 2.0)]), people=[person])
    assert only(bench, DISAGREE).title.startswith("pid 100 holds 2.0 GiB on GPU 1")
