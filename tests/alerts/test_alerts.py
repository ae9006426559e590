"""When the engine raises, holds, steps down and clears: alerts over time."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.condition import CALM
from gpuwatch.alerts.engine import FORGOTTEN, Changes
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rules.health import HEALTH, STALE
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.model import Health, Memory
from gpuwatch.sampler.nvml import Code, Failed, health
from tests.support.alerting import Bench, only, words
from tests.support.builders import EPOCH, GIB, USABLE_GIB, filled, gpu, holding, process

# Engine: memory over time


@pytest.mark.parametrize(
    ("free", "changed"),
    [
        # It is raised at the third sample in a row.
        ([4, 4, 4, 4], {2: "+critical"}),
        ([8, 8, 20, 8, 8, 8], {5: "+warning"}),
        # A sawtooth above the limit that raises and below the one that clears raises once, and it stays.
        ([9, 9, 9, *[10.5, 11.5, 9.5] * 20], {2: "+warning"}),
        # It is cleared at the third sample beyond the margin.
        ([9, 9, 9, 13, 13, 13, 13], {2: "+warning", 5: "cleared"}),
        # A step up is raised again, a step down is silent.
        ([9, 9, 9, 4, 4, 4, *[6.5] * 4, 8, 8, 8, 13, 13, 13], {2: "+warning", 5: "+critical", 15: "cleared"}),
    ],
)
def test_memory_near_its_limit_is_raised_and_cleared(free: list[float], changed: dict[int, str]) -> None:
    found = Bench().feed_free(*free)
    assert {sample: " ".join(changes) for sample, changes in enumerate(found) if changes} == changed


@pytest.mark.parametrize("fall", [[8, 8, 8], [20, 9, 20]])
def test_a_fall_below_the_second_limit_or_to_both_steps_down(fall: list[float]) -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4, 6.5, 6.5, 6.5)
    assert bench.severities() == [Severity.CRITICAL]
    assert bench.feed_free(*fall) == [()] * 3
    assert bench.severities() == [Severity.WARNING]


def test_missing_readings_freeze_what_is_raised_and_what_is_counted() -> None:
    bench = Bench()
    missing = filled(4, memory=Memory())
    bench.feed_free(4, 4)
    for _ in range(10):
        assert words(bench.feed(missing)) == ()
    assert bench.feed_free(4) == [("+critical",)]
    for _ in range(10):
        assert words(bench.feed(missing)) == ()
    assert len(bench.last.active) == 1
    assert bench.feed_free(20, 20) == [(), ()]
    bench.feed(missing)
    assert bench.feed_free(20) == [("cleared",)]


def test_the_same_sample_given_again_counts_once() -> None:
    bench = Bench()
    bench.feed(filled(4))
    for _ in range(4):
        bench.feed(filled(4), fresh=False)
    assert bench.last.active == ()
    still = filled(4, sampled=1043.0)
    for _ in range(4):
        bench.feed(still, fresh=False)
    assert bench.last.active == ()
    assert words(bench.feed(filled(4))) == ("+critical",)


def test_a_gpu_left_out_of_a_snapshot_keeps_its_alert() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4)
    assert len(bench.feed(gpu(1)).active) == 1
    assert len(bench.feed().active) == 1
    assert bench.feed_free(4) == [()]


def test_a_gpu_left_out_for_long_is_forgotten_with_a_word() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4)
    bench.feed(seconds=FORGOTTEN)
    assert len(bench.last.active) == 1
    assert words(bench.feed()) == ("cleared",)
    bench.feed(filled(4))
    assert words(bench.feed(seconds=FORGOTTEN + 1)) == ()


def test_the_figures_worst_value_and_evidence_are_kept_current() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4, 1.5, 3)
    (alert,) = bench.last.active
    assert alert.title == "GPU 0 near limit: 2.4 GiB of 79.1 free"
    assert alert.peak == pytest.approx(USABLE_GIB * GIB * 0.015, rel=1e-6)
    assert alert.evidence.startswith("ada holds 76.7 GiB")
    assert (alert.raised, alert.raised_monotonic) == (EPOCH + 2, 5002.0)
    assert (alert.rule, alert.gpu, alert.index, alert.pids) == (MEMORY, gpu(0).key, 0, (100,))


def test_an_alert_that_is_clearing_says_what_it_was_and_how_it_is_now() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4)
    (alert,) = bench.feed(filled(40)).active
    assert alert.title == "GPU 0 near limit: 3.2 GiB of 79.1 free"
    assert alert.evidence == "now: 31.6 of 79.1 GiB free again"
    assert alert.pids == (100,)


def test_limits_are_the_users() -> None:
    bench = Bench(Limits(memory_warning=50, memory_critical=20, memory_for=0, quiet=0))
    assert bench.feed_free(60, *[40] * 3, *[10] * 3)[1:] == [(), (), ("+warning",), (), (), ("+critical",)]


# Engine: health, staleness and the rest


def test_a_lost_gpu_is_raised_at_once_and_cleared_when_it_is_back_for_three_samples() -> None:
    bench = Bench()
    lost = gpu(5, health=Health.LOST, words="fell off the bus", memory=Memory())
    assert words(bench.feed(gpu(5))) == ()
    assert words(bench.feed(lost)) == ("+critical",)
    assert words(bench.feed(lost)) == ()
    (alert,) = bench.last.active
    assert (alert.rule, alert.title) == (HEALTH, "GPU 5 lost: it needs a reset or a reboot")
    assert alert.evidence == "nobody was on it · fell off the bus"
    assert [words(bench.feed(gpu(5))) for _ in range(4)] == [(), (), ("cleared",), ()]


def test_a_gpu_that_is_lost_says_who_was_on_it_and_has_nvmls_words_last() -> None:
    bench = Bench()
    people = [process(pid, user) for pid, user in enumerate(("ada", "ben", "cyn", "dov", "eve"), 1)]
    held = [holding(1, 31.8), holding(2, 9.6), holding(3, 2.0), holding(4, 0.2), holding(5, 0.1)]
    bench.feed(gpu(5, holdings=held), people=people)
    nvml = health(Failed("nvmlDeviceGetPowerUsage", Code.GPU_IS_LOST))[1]
    for _ in range(3):  # NVML lists nobody on it any more
        bench.feed(gpu(5, health=Health.LOST, words=nvml, memory=Memory()))
        (alert,) = bench.last.active
        who, _, rest = alert.evidence.partition(" · cannot be reached")
        assert who == "last on it: ada 31.8 GiB · ben 9.6 · cyn 2.0 · 2 others"
        assert "programs on it fail" in rest
        assert rest.endswith("NVML error 15: GPU is lost (nvmlDeviceGetPowerUsage)")


def test_of_a_gpu_that_was_lost_before_we_looked_nobody_is_named() -> None:
    bench = Bench()
    bench.feed(gpu(5, health=Health.LOST, words="the driver's words", memory=Memory()))
    assert bench.last.active[0].evidence == "the driver's words"


def test_health_that_gets_worse_is_raised_again_and_better_is_silent() -> None:
    bench = Bench()
    kinds = (Health.NOT_READY, Health.LOST, Health.FAILED, Health.FAILED, Health.FAILED)
    changes = [words(bench.feed(gpu(0, health=each))) for each in kinds]
    assert changes == [("+warning",), ("+critical",), (), (), ()]
    assert bench.severities() == [Severity.WARNING]


def test_an_alert_of_a_gpu_without_a_uuid_goes_on_under_the_uuid() -> None:
    bench = Bench()
    nameless = gpu(2, uuid="", health=Health.NOT_READY, memory=Memory(), sampled=0.0)
    assert words(bench.feed(nameless)) == ("+warning",)
    (alert,) = bench.feed(gpu(2)).active
    assert alert.gpu == gpu(2).key
    bench.feed(gpu(2))
    assert words(bench.feed(gpu(2))) == ("cleared",)


def test_a_uuid_that_has_an_alert_of_its_own_takes_none_over() -> None:
    bench = Bench()
    bench.feed(gpu(2, health=Health.MISSING))
    nameless = gpu(2, uuid="", health=Health.NOT_READY)
    assert words(bench.feed(nameless)) == ("+warning",)
    changes = bench.feed(gpu(2, health=Health.LOST))
    assert [alert.title for alert in changes.cleared] == ["GPU 2 not ready"]
    assert [alert.title for alert in changes.active] == ["GPU 2 lost: it needs a reset or a reboot"]
    bench = Bench()
    for free in (4, 4, 4):
        bench.feed(filled(free))
    bench.feed(filled(4, uuid=""))
    assert words(bench.feed(filled(4))) == ()


def test_counts_of_a_gpu_without_a_uuid_go_on_too() -> None:
    bench = Bench()
    for _ in range(2):
        bench.feed(filled(4, uuid=""))
    assert words(bench.feed(filled(4))) == ("+critical",)


def test_stale_data_is_raised_at_once_and_cleared_by_the_first_new_sample() -> None:
    bench = Bench()
    assert words(bench.feed(gpu(0))) == ()
    old = gpu(0, sampled=1000.0)
    assert [words(bench.feed(old, fresh=False)) for _ in range(7)] == [()] * 5 + [("+critical",), ()]
    (alert,) = bench.last.active
    assert (alert.rule, alert.gpu, alert.index) == (STALE, "", None)
    assert (alert.title, alert.peak) == ("no new data for 7 s", 7.0)
    assert words(bench.feed(gpu(0))) == ("cleared",)


def test_no_gpus_and_nothing_wrong_is_nothing() -> None:
    assert Bench().feed() == Changes()


def test_alerts_are_sorted_by_severity_and_then_by_age() -> None:
    bench = Bench()
    for _ in range(3):
        bench.feed(filled(8, 0), filled(4, 1), gpu(2))
    changes = bench.feed(filled(8, 0), filled(4, 1), gpu(2, health=Health.LOST))
    shown: list[Alert] = list(changes.active)
    assert [(alert.severity, alert.index) for alert in shown] == [
        (Severity.CRITICAL, 1),
        (Severity.CRITICAL, 2),
        (Severity.WARNING, 0),
    ]


def test_who_had_left_before_a_gpu_was_lost_is_not_said_to_have_been_on_it() -> None:
    bench = Bench()
    bench.feed(gpu(5, holdings=[holding(1, 30.0), holding(2, 1.0)]), people=[process(1, "ada"), process(2, "ben")])
    bench.feed(gpu(5, holdings=[holding(2, 1.0)]), people=[process(2, "ben")])
    bench.feed(gpu(5, health=Health.LOST, memory=Memory()))
    assert bench.last.active[0].evidence == "last on it: ben 1.0 GiB"


FULL, ROOM = 8, 30
"""Percent free."""
QUICK = int(CALM / 2)


def swinging(bench: Bench, times: int) -> list[str]:
    """Let memory be near its limit and not, in turns; returns all that changed."""
    turns = [*repeat(FULL, QUICK), *repeat(ROOM, QUICK)] * times
    return list(chain(*bench.feed_free(*turns)))


def test_what_swings_is_raised_twice_and_goes_on_until_it_is_better_for_long() -> None:
    bench = Bench()
    assert swinging(bench, 1) == ["+warning", "cleared"]
    assert swinging(bench, 10) == ["+warning"]
    assert only(bench, MEMORY).severity is Severity.WARNING
    calm = bench.feed_free(*repeat(ROOM, int(3 * CALM)))
    assert [second for second, changes in enumerate(calm, QUICK + 1) if changes] == [CALM + 1]
    # After a while it ends as any.
    assert bench.feed_free(FULL, FULL, FULL, ROOM, ROOM, ROOM) == [(), (), ("+warning",), (), (), ("cleared",)]


def test_steps_up_and_down_are_told_twice_too() -> None:
    bench = Bench()
    found = list(chain(*bench.feed_free(*[*repeat(FULL, QUICK), *repeat(3, QUICK)] * 10)))
    assert found == ["+warning", "+critical", "+critical"]
    assert only(bench, MEMORY).severity is Severity.CRITICAL
