"""What holds of every event, whatever the samples are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.rule import Observation, Rule, RuleContext
from gpuwatch.base.units import Unit
from gpuwatch.model.snapshot import Reason
from tests.support.alerts import Bench
from tests.support.builders import gpu

AFTER, FOR = 3, 4.0


class Step(NamedTuple):
    """One sample of two GPUs: the value of each, None where it is missing, and the seconds since the last."""

    values: tuple[int | None, int | None]
    seconds: float
    partial: bool
    fresh: bool


def graded(context: RuleContext) -> Iterator[Observation]:
    """A warning over 20, critical over 30, each kept 5 lower; the value is the GPU's temperature."""
    for one in context.snapshot.gpus:
        value = one.temperature
        if isinstance(value, Reason):
            continue
        yield Observation(
            gpu=one,
            level=level(value),
            keeps=level(value + 5),
            partial=bool(one.holdings_note),
            raise_after=AFTER,
            raise_for=FOR,
            clear_after=AFTER,
            clear_for=FOR,
            stamp=one.sampled,
            title=f"{value}",
            value=value,
            unit=Unit.CELSIUS,
        )


def level(value: float) -> Severity | None:
    return Severity.CRITICAL if value > 30 else Severity.WARNING if value > 20 else None


_values = st.one_of(st.none(), st.sampled_from([0, 14, 16, 21, 24, 29, 31, 40]))
_steps = st.lists(
    st.builds(
        Step,
        values=st.tuples(_values, _values),
        seconds=st.sampled_from([0.5, 1.0, 2.0, 5.0]),
        partial=st.sampled_from([False, False, False, True]),
        fresh=st.sampled_from([True, True, True, False]),
    ),
    max_size=80,
)


class Shown(NamedTuple):
    """A sample of one GPU that a rule judged."""

    moment: float
    value: int
    partial: bool


class Play:
    """A bench that is fed steps, and keeps for each GPU the samples that were judged."""

    def __init__(self) -> None:
        self.bench = Bench(rules=[Rule("graded", graded)])
        self.stamp = 1000.0
        self.samples: dict[str, list[Shown]] = {gpu(index).key: [] for index in (0, 1)}

    def feed(self, step: Step) -> None:
        """Return one snapshot; where it is not fresh its sample is the one before, given again."""
        if step.fresh or self.stamp == 1000.0:
            self.stamp = 1001.0 + self.bench.moment + step.seconds
            self.shown = [
                gpu(
                    index,
                    temperature=Reason.NO_SAMPLE if value is None else value,
                    sampled=self.stamp,
                    holdings_note="incomplete" if step.partial else "",
                )
                for index, value in enumerate(step.values)
            ]
            for card, value in zip(self.shown, step.values, strict=True):
                if value is not None:
                    self.samples[card.key].append(Shown(self.stamp, value, step.partial))
        self.bench.feed(*self.shown, seconds=step.seconds, fresh=False)


@settings(max_examples=60)
@given(_steps)
def test_an_alert_is_raised_in_its_time_and_its_figures_are_those_of_its_samples(steps: Sequence[Step]) -> None:
    play, since = Play(), dict[str, int]()
    for step in steps:
        play.feed(step)
        for alert in play.bench.last.raised:
            samples = play.samples[alert.gpu]
            since.setdefault(alert.id, len(samples) - 1)
            run: list[Shown] = []
            for shown in reversed(samples):
                reached = level(shown.value)
                if reached is not None and reached >= alert.severity:
                    run.append(shown)
                elif not shown.partial:
                    break
            assert len(run) >= AFTER
            assert run[0].moment - run[-1].moment >= FOR
        for alert in play.bench.last.active:
            # What is only known in part counts where it is over a limit.
            values = [
                one.value
                for one in play.samples[alert.gpu][since[alert.id] :]
                if not (one.partial and level(one.value) is None)
            ]
            assert (alert.peak, alert.last) == (max(values), values[-1])
            assert alert.mean is not None
            bad = [value for value in values if level(value + 5) is not None]
            assert abs(alert.mean - sum(bad) / len(bad)) < 1e-9
            assert alert.lasted <= 5000.0 + play.bench.moment - alert.raised_monotonic


@settings(max_examples=40)
@given(_steps, st.integers(0, 40), st.integers(1, 3))
def test_restoring_is_idempotent_and_raises_nothing(steps: Sequence[Step], after: int, times: int) -> None:
    first = Play()
    for step in steps[:after]:
        first.feed(step)
    before = first.bench.last.active
    once, often = Play(), Play()
    once.bench.restore(*before)
    for _ in range(times):
        often.bench.restore(*before)
    known_ids = {alert.id for alert in before}
    for step in steps[after:]:
        once.feed(step)
        often.feed(step)
        often.bench.restore(*[alert for alert in before if any(one.id == alert.id for one in often.bench.last.active)])
        assert once.bench.last == often.bench.last
        for alert in once.bench.last.raised:
            assert alert.id not in known_ids or any(
                alert.severity > one.severity for one in before if one.id == alert.id
            )
