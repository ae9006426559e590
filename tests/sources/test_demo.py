"""The simulated machine: it can be drawn twice alike, its sums are right, and each trouble is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.alerts.engine import Engine
from gpuwatch.analysis.rows import rows
from gpuwatch.base.units import GIB
from gpuwatch.history.history import History
from gpuwatch.model.fields import share_words
from gpuwatch.model.shares import declared_memory, limit_usages
from gpuwatch.model.snapshot import (
    Declared,
    Gpu,
    Health,
    Presence,
    Process,
    Reason,
    Snapshot,
    decode,
    encode,
    known,
    number,
)
from gpuwatch.sources.demo import DemoSource
from tests.support.demo import (
    CYCLE,
    FILLING_GPU,
    FREE_GPU,
    GONE_PID,
    HOSTILE_PID,
    HOT_GPU,
    LEAKING_GPU,
    LOST_GPU,
    RANKS,
    SECRET_PID,
    UNATTRIBUTED_GPU,
    XID_GPU,
)
from tests.support.waiting import Clock

MOMENTS = (0.0, 10.0, 40.0, 75.0, 90.0, 118.0)


def test_the_links_of_the_gpu_in_focus_follow_its_use() -> None:
    made = source()
    made.set_focus(made.at(0.0).gpus[0].key)
    busy = made.at(10.0).gpus[0]
    assert busy == made.at(10.0).gpus[0]
    assert (busy.pcie_link, busy.nvlinks) == ("gen5 x16", 18)
    assert 0 < (number(busy.pcie_tx) or 0) < (number(busy.pcie_rx) or 0) < 64e9
    assert 0 < (number(busy.nvlink_tx) or 0) < 450e9
    made.set_focus(made.at(0.0).gpus[FREE_GPU].key)
    idle = made.at(10.0).gpus[FREE_GPU]
    assert (idle.pcie_rx, idle.nvlink_rx, idle.pcie_link) == (0, 0, "gen1 x16")


def source(seed: int = 1, begin: float = 0.0) -> DemoSource:
    clock = Clock(1000.0)
    return DemoSource(seed, clock=clock, wall=clock.wall, begin=begin)


def played(seconds: int, step: int = 1) -> Iterator[Snapshot]:
    clock = Clock(1000.0)
    demo = DemoSource(1, clock=clock, wall=clock.wall, interval=step)
    for _ in range(0, seconds, step):
        shown = demo.next(0.0)
        assert shown is not None
        yield shown
        clock.now += step


def numbers(gpu: Gpu) -> tuple[int, int, int, int, int, int]:
    parts = (gpu.memory.total, gpu.memory.used, gpu.memory.free, gpu.memory.reserved, gpu.unattributed)
    held = sum(int(one.memory) for one in gpu.holdings if known(one.memory))
    total, used, free, reserved, unattributed = (int(part) for part in parts if known(part))
    return total, used, free, reserved, unattributed, held


def find(shown: Snapshot, pid: int) -> Process:
    (one,) = [one for one in shown.processes if one.pid == pid]
    return one


# The same twice


def test_the_same_seed_and_clock_give_the_same_bytes() -> None:
    assert [encode(one) for one in played(20)] == [encode(one) for one in played(20)]
    assert [encode(source().at(t)) for t in MOMENTS] == [encode(source().at(t)) for t in MOMENTS]


def test_the_script_may_begin_anywhere() -> None:
    demo = source(begin=40.0)
    shown = demo.next(0.0)
    assert shown is not None
    assert shown.monotonic == 1000.0
    assert shown.gpus[LOST_GPU].health is Health.LOST


# As true as a real one


@settings(max_examples=15)
@given(st.floats(-300, 100_000), st.integers(0, 5))
def test_numbers_are_consistent_at_any_moment(t: float, seed: int) -> None:
    shown = source(seed).at(t)
    assert decode(encode(shown)) == shown
    for gpu in shown.gpus:
        if gpu.health is not Health.OK:
            continue
        total, used, free, reserved, unattributed, held = numbers(gpu)
        assert total == used + free + reserved
        assert used == held + unattributed
        assert free > 0
        for percent in (gpu.utilization, *(one.sm for one in gpu.holdings)):
            assert percent is Reason.NO_SAMPLE or 0 <= int(percent) <= 100
        busiest = max((int(one.sm) for one in gpu.holdings if known(one.sm)), default=0)
        assert known(gpu.utilization)
        assert gpu.utilization >= busiest - 1
        assert known(gpu.power)
        assert 60 <= gpu.power <= 700
        assert known(gpu.temperature)
        assert 20 <= gpu.temperature < 87


@pytest.mark.parametrize("t", MOMENTS)
def test_at_every_moment_processes_shares_and_texts_are_as_on_a_real_machine(t: float) -> None:
    shown = source().at(t)
    listed = {one.key for one in shown.processes}
    assert len(listed) == len(shown.processes)
    assert {(one.pid, one.start) for gpu in shown.gpus for one in gpu.holdings} == listed

    texts = [text for one in shown.processes for text in (one.user, one.name, one.command, one.parent, one.terminal)]
    texts += [declaration.text for one in shown.processes if one.declared for declaration in one.declared.declarations]
    texts += [text for gpu in shown.gpus for text in (gpu.name, gpu.words, gpu.uuid, gpu.bus_id, gpu.holdings_note)]
    assert all(text.isprintable() for text in texts)

    assert list(overshoots(shown)) == [next(iter(RANKS))], "one process overshoots, everybody else keeps to the share"
    (row,) = [row for row in rows(shown) if row.holding.pid in overshoots(shown)]
    assert share_words(row) == ("63", "40")

    people = {one.pid: one for one in shown.processes}
    sums = {gpu.index: declared_memory(gpu, people) for gpu in shown.gpus}
    assert [index for index, one in sums.items() if one.overbooked] == [4], "one GPU is overbooked"
    assert sums[4].limits == 3

    uuids = {gpu.uuid for gpu in shown.gpus}
    for process in shown.processes:
        declared = process.declared or Declared()
        for limit in declared.limits:
            declaration = declared.declarations[limit.declaration]
            assert declaration.effective
            assert (declaration.scope, declaration.limits[limit.gpu]) == (limit.scope, limit.bytes)
            assert limit.gpu in uuids
        assert set(declared.visible.gpus if declared.visible else ()) <= uuids


def overshoots(shown: Snapshot) -> dict[int, int]:
    """Return by pid the bytes over its limit, of every process beyond the most generous allowance for a framework."""
    found = limit_usages(shown)
    return {one.pids[0]: one.held - one.limit.bytes for one in found if one.held - one.limit.bytes > 1.2 * GIB}


# The troubles


def test_a_hostile_command_a_secret_and_a_process_that_is_gone() -> None:
    shown = source().at(5)
    hostile = find(shown, HOSTILE_PID).command
    assert "PWNED" in hostile
    assert "[@click=app.quit]" in hostile
    assert hostile.isprintable()
    secret = find(shown, SECRET_PID).command
    assert "--hf-token ***" in secret
    assert "hf_" not in secret
    assert find(shown, GONE_PID).presence is Presence.GONE


def told(seconds: int) -> dict[tuple[str, int | None], list[tuple[int, str]]]:
    """Give by rule and GPU when it is raised and how, and cleared; told from the first second on."""
    history, engine = History(), Engine()
    found: defaultdict[tuple[str, int | None], list[tuple[int, str]]] = defaultdict(list)
    for shown in played(seconds, step=2):
        second = round(shown.monotonic - 1000.0)
        view = history.add(shown, shown.monotonic)
        changes = engine.update(shown, view, shown.monotonic, shown.taken)
        for alert in changes.raised:
            found[alert.rule, alert.index].append((second, alert.severity.name))
        for alert in changes.cleared:
            found[alert.rule, alert.index].append((second, "cleared"))
    return dict(found)


def test_within_minutes_alerts_come_and_go() -> None:
    within = 3  # seconds: how many samples a rule takes is the rules' business
    expected = {
        ("nearly full", FILLING_GPU): "5 CRITICAL, 82 cleared, 112 WARNING, 122 CRITICAL, 202 cleared, "
        "232 WARNING, 242 CRITICAL",
        ("misspelt variable", 0): "5 WARNING",
        ("overbooked", 4): "5 NOTE",
        ("over declared", 0): "10 CRITICAL",
        ("ended process holds memory", 1): "20 WARNING",
        ("gpu health", LOST_GPU): "20 CRITICAL, 62 cleared, 140 CRITICAL, 182 cleared, 260 CRITICAL, 302 cleared",
        ("XID", XID_GPU): "48 WARNING",
        ("memory of unknown processes", UNATTRIBUTED_GPU): "60 WARNING",
        ("opened GPUs it does not use", 0): "62 NOTE",
        ("temperature near slowdown", HOT_GPU): "99 WARNING, 125 cleared",
        ("time to full", LEAKING_GPU): "122 WARNING, 214 CRITICAL, 260 cleared",
        ("nearly full", LEAKING_GPU): "234 WARNING, 252 cleared",
    }
    found = told(310)
    assert {key: [word for _, word in events] for key, events in found.items()} == {
        key: [event.split()[1] for event in events.split(", ")] for key, events in expected.items()
    }
    for key, events in expected.items():
        times = [int(event.split()[0]) for event in events.split(", ")]
        assert [second for second, _ in found[key]] == pytest.approx(times, abs=within), key


def test_a_lost_gpu_has_no_figures_and_says_since_when() -> None:
    shown = source().at(CYCLE + 40)
    lost = shown.gpus[LOST_GPU]
    assert (lost.utilization, lost.temperature, lost.memory.used) == (Reason.NO_SAMPLE,) * 3
    assert shown.taken - lost.since == pytest.approx(20)
    assert shown.monotonic - lost.sampled == pytest.approx(20)
    assert lost.words


# As a source


def test_it_keeps_its_beat_and_skips_what_was_missed() -> None:
    clock = Clock(1000.0)
    demo = DemoSource(clock=clock, wall=clock.wall)
    assert demo.next(0.0)
    clock.now += 1.25
    assert demo.next(0.0)
    clock.now += 0.75
    assert demo.next(0.0)
    clock.now += 30.0
    assert demo.next(0.0)
    clock.now += 0.5
    assert demo.next(0.0) is not None
    assert demo.next(0.0) is None
