"""One event from raised to ended: its key and id, its figures, how long it lasted and how it ended."""

from __future__ import annotations

import math

import msgspec
import pytest

from gpuwatch.alerts.alert import Alert, AlertCause, AlertGpu, AlertUser, Severity, Unit
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rules.health import HEALTH, STALE
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.model import Declared, Gpu, Health, SourceState
from tests.support.alerting import Bench, cap, card, feed, only, overshooting, uuid, words
from tests.support.builders import EPOCH, GIB, USABLE_GIB, filled, gpu, process, uid

WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


def cleared(bench: Bench) -> Alert:
    """Return the one alert that the last snapshot ended."""
    (alert,) = bench.last.cleared
    return alert


def free_percent(amount: float | None) -> float:
    """Give bytes free in percent of the GPU that `filled` builds."""
    assert amount is not None
    return round(100 * amount / GIB / USABLE_GIB, 4)


# Who it is


def test_an_alert_is_known_by_rule_host_and_gpu_or_subject() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4)
    assert only(bench, MEMORY).key == f"memory near limit|box3|{gpu(0).key}"
    assert only(overshooting(cap(10)), OVERSHOOT).key == f"uses more than declared|box3|100:100 {uuid()}"
    for _ in range(6):
        bench.feed(filled(4), state=SourceState.DRIVER_DOWN, fresh=False)
    assert only(bench, STALE).key == "data stale|box3|"


def test_it_lists_gpus_users_and_the_processes_that_cause_it() -> None:
    over = only(overshooting(cap(10)), OVERSHOOT)
    ada = AlertUser(uid("ada"), "ada")
    assert (over.gpus, over.users) == ((AlertGpu(uuid(), 0),), (ada,))
    assert over.causes == (AlertCause(uid=ada.uid, user="ada", pid=100, start=100, run="100:100"),)
    assert over.indices == {0}
    assert over.people == {"ada"}


def test_its_id_stays_and_the_next_event_has_another() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4)
    first = only(bench, MEMORY).id
    assert len(first) == 10
    assert int(first, 16) >= 0
    bench.feed_free(9, 8, 9, 4)
    assert only(bench, MEMORY).id == first
    bench.feed_free(60, 60, 60)
    assert cleared(bench).id == first
    bench.feed_free(4, 4, 4)
    assert only(bench, MEMORY).id != first


def test_what_was_raised_before_the_host_was_known_is_that_hosts() -> None:
    bench = Bench()
    for _ in range(6):
        bench.feed(host="", state=SourceState.DRIVER_DOWN)
    before = only(bench, STALE)
    assert before.host == ""
    bench.feed(state=SourceState.DRIVER_DOWN)
    after = only(bench, STALE)
    assert (after.host, after.id, bench.last.raised) == ("box3", before.id, ())
    bench.feed(host="", state=SourceState.DRIVER_DOWN)
    assert only(bench, STALE).host == "box3"


# Its figures


def test_peak_mean_and_last_are_those_of_its_own_samples() -> None:
    bench = Bench()
    # Three samples raise it; only the third is its own.
    bench.feed_free(4, 1, 4, 2, 3)
    alert = only(bench, MEMORY)
    assert alert.unit is Unit.FREE
    assert [free_percent(one) for one in (alert.peak, alert.mean, alert.last)] == [2, 3, 3]
    assert (alert.seen, alert.lasted, alert.raised) == (EPOCH + 4, 2.0, EPOCH + 2)
    bench.feed(filled(1, sampled=1004.0), fresh=False)
    assert only(bench, MEMORY) == alert


def test_an_overshoot_names_its_owner_and_counts_bytes() -> None:
    bench = Bench()
    feed(bench, cap(10), *[20] * 11, 30)
    alert = only(bench, OVERSHOOT)
    assert (alert.owners, alert.unit, alert.peak, alert.mean) == (("ada",), Unit.BYTES, 30 * GIB, 25 * GIB)


def test_the_worst_it_was_stays_when_it_steps_down() -> None:
    bench = Bench()
    bench.feed_free(9, 9, 9)
    assert only(bench, MEMORY).most is WARNING
    bench.feed_free(4, 4, 4)
    assert only(bench, MEMORY).most is CRITICAL
    bench.feed_free(8.5, 8.5)
    assert list(bench.last.eased) == []
    bench.feed_free(8.5)
    (eased,) = bench.last.eased
    assert eased == only(bench, MEMORY)
    assert (eased.severity, eased.most, bench.last.raised, bench.last.cleared) == (WARNING, CRITICAL, (), ())


# How it ends


def test_an_event_that_ends_says_what_it_was_and_how_it_ended() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4, 3, 60, 60, 60)
    alert = cleared(bench)
    assert alert.title == "GPU 0 near limit: 2.4 GiB of 79.1 free"
    assert alert.evidence.startswith("ada holds 76.7 GiB")
    assert alert.how == "47.5 of 79.1 GiB free again"
    assert (alert.ended, alert.lasted, alert.seen) == (EPOCH + 6, 4.0, EPOCH + 6)
    assert (free_percent(alert.peak), free_percent(alert.last), alert.owners) == (3, 60, ("ada",))


def test_an_event_that_has_ended_is_told_as_it_was_at_its_worst() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4, 1.5, 3, 4, 60, 60, 60)
    assert cleared(bench).title == "GPU 0 near limit: 1.2 GiB of 79.1 free"
    assert "77.9" in cleared(bench).evidence
    bench.feed_free(*[60] * 30, 4, 4, 4, 3, 4, 60, 60, 60)
    assert cleared(bench).title == "GPU 0 near limit: 2.4 GiB of 79.1 free"
    assert free_percent(cleared(bench).mean) == pytest.approx(11 / 3, abs=0.01), "that of its own three samples"


def test_a_gpu_that_is_back_says_for_how_long_it_was_away() -> None:
    bench = Bench()
    bench.feed(gpu(0))
    for _ in range(40):
        bench.feed(gpu(0, health=Health.LOST))
    for _ in range(3):
        bench.feed(gpu(0))
    assert cleared(bench).how == "answers again after 42 s"


def test_data_that_is_back_says_so() -> None:
    bench = Bench()
    for _ in range(6):
        bench.feed(gpu(0), state=SourceState.DRIVER_DOWN)
    bench.feed(gpu(0), state=SourceState.DRIVER_DOWN, seconds=58)
    bench.feed(gpu(0), state=SourceState.STARTING)
    assert only(bench, STALE).title.startswith("starting")
    bench.feed(gpu(0))
    assert cleared(bench).how == "data again after 1 min"


OTHER = card((100, 50.0), index=1)


@pytest.mark.parametrize(
    ("cards", "declared", "how"),
    [
        ([gpu(0)], None, "process 100 has ended"),
        ([gpu(0), OTHER], cap(10), "process 100 has left GPU 0"),
        ([card((100, 50.0))], Declared(), "it is no longer so"),
    ],
)
def test_an_overshoot_that_ends_says_how(cards: list[Gpu], declared: Declared | None, how: str) -> None:
    bench = overshooting(cap(10))
    bench.feed(*cards, people=[process(100, declared=declared)] if declared else [])
    assert cleared(bench).how == how
    assert cleared(bench).title == "ada holds 50.0 GiB of GPU 0, declared 10.0"


def test_several_processes_end_together() -> None:
    bench = Bench()
    people = [process(pid, declared=cap(10, scope="genv 12")) for pid in (100, 101)]
    for _ in range(11):
        bench.feed(card((100, 20.0), (101, 6.5)), people=people)
    bench.feed(gpu(0))
    assert cleared(bench).how == "its processes have ended"


def test_an_index_that_got_a_uuid_with_an_alert_of_its_own() -> None:
    bench = Bench()
    bench.feed(gpu(2, health=Health.MISSING))
    bench.feed(gpu(2, uuid="", health=Health.NOT_READY))
    bench.feed(gpu(2, health=Health.LOST))
    assert cleared(bench).how == "it goes on under the GPU's UUID"
    assert len(bench.of(HEALTH)) == 1


def test_a_gpu_that_moves_to_an_index_takes_nothing_over_from_the_one_that_had_it() -> None:
    """GPU 2, which never gave a UUID, is behind one that drops out; GPU 3 takes its index."""
    bench = Bench()
    bench.feed(gpu(2, uuid="", health=Health.SILENT), gpu(3))
    for _ in range(2):
        bench.feed(gpu(1, uuid="", health=Health.SILENT), gpu(2, uuid=gpu(3).uuid))
        assert [(one.gpu, one.index) for one in bench.of(HEALTH)] == [("index-1", 1)]


def test_a_missing_gpu_with_the_same_index_ends_nothing() -> None:
    bench = Bench()
    seen = (gpu(2, uuid="", health=Health.SILENT), gpu(2, health=Health.MISSING))
    raised = [len(bench.feed(*seen).raised) for _ in range(3)]
    assert raised == [2, 0, 0]


# Time


def test_memory_must_be_near_its_limit_for_a_while() -> None:
    bench = Bench(Limits(quiet=0, memory_for=5))
    assert bench.feed_free(*[4] * 6) == [()] * 5 + [("+critical",)]
    assert bench.feed_free(*[60] * 5) == [()] * 5
    assert bench.feed_free(11, *[60] * 5, 60) == [()] * 6 + [("cleared",)]
    fast = Bench(Limits(quiet=0))
    told = [words(fast.feed(filled(4), seconds=0.25)) for _ in range(9)]
    assert told == [()] * 8 + [("+critical",)]


# The first seconds


def test_nothing_is_raised_in_the_first_seconds_and_what_holds_is_raised_then() -> None:
    bench = Bench(Limits())
    lost = gpu(1, health=Health.LOST)
    told = [words(bench.feed(filled(4), lost)) for _ in range(7)]
    assert told == [()] * 5 + [("+critical", "+critical"), ()]
    assert {alert.raised for alert in bench.last.active} == {EPOCH + 5}


def test_what_is_over_by_then_is_never_raised() -> None:
    bench = Bench(Limits())
    assert bench.feed_free(4, 4, 4, 4, 60, 60, 60, 60) == [()] * 8
    assert bench.engine._conditions == {}


def test_quiet_is_counted_by_the_readers_clock_and_not_by_the_samples() -> None:
    bench = Bench(Limits())
    bench.feed(filled(4))
    bench.feed(filled(4), seconds=60)
    assert words(bench.feed(filled(4))) == ("+critical",)


def test_an_alert_is_written_and_read_again_as_it_is() -> None:
    bench = overshooting(cap(10))
    bench.feed(gpu(0))
    alert = cleared(bench)
    again = msgspec.json.decode(msgspec.json.encode(alert), type=Alert)
    assert again == alert
    assert math.isclose(again.mean or 0, 50 * GIB)
