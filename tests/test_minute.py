"""Minutes: what frames of a minute come to."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatch.history import History, Idle, IdleTimes, Use
from gpuwatch.minute import GpuName, IdleTime, Minute, MinuteMaker
from gpuwatch.model import Snapshot
from gpuwatch.timeline import user_owner
from tests.support.builders import EPOCH, GIB, TOTAL, at, gpu, holding, process, snapshot, uid
from tests.support.recording import alert, ended

GPU, ADA, BEN = gpu(0).key, user_owner(uid("ada")), user_owner(uid("ben"))
START = EPOCH + 40
PEOPLE = (process(1), process(2, "ben", cpu=25.0))


class Maker:
    """A maker of minutes behind a history."""

    def __init__(self) -> None:
        self.history, self.maker = History(), MinuteMaker()
        self.made: list[Minute] = []

    def add(self, base: Snapshot, second: float, **facts: object) -> None:
        """Add the frame of a second after a full minute."""
        seen = at(base, second, taken=START + second)
        made = self.maker.add(seen, self.history.add(seen, 5000.0 + second), **facts)  # type: ignore[arg-type]
        self.made += [made] if made is not None else []


def machine() -> Snapshot:
    return snapshot([gpu(0, holdings=[holding(1, 2, sm=0), holding(2, 4)], utilization=40)], PEOPLE)


def test_a_minute_is_made_by_the_first_frame_after_it() -> None:
    maker, held, over = Maker(), alert("held"), ended(alert("over"))
    for second in range(61):
        maker.add(machine(), second, alerts=(held,), cleared=(over,) if second == 30 else ())
    (minute,) = maker.made
    assert (minute.at, minute.seconds, minute.watched) == (START, 59.0, {GPU: 59.0})
    assert minute.values[f"{GPU}//utilization"] == 40
    assert minute.values[f"{GPU}/{ADA}/memory"] == pytest.approx(2 * GIB, rel=1e-3)
    assert minute.values["/process:2:2/cpu"] == 25
    assert minute.use[GPU][ADA] == Use(59.0, 0.0, 0.0, 118.0 * GIB, 118.0 * GIB, 0.0)
    assert minute.use[GPU][""] == Use(59.0, 59.0, 0.0, 354.0 * GIB, 118.0 * GIB, 0.0)
    assert minute.gpus == {GPU: GpuName(0, "NVIDIA H100 80GB HBM3", TOTAL)}
    assert minute.users == {ADA: "ada", BEN: "ben"}
    assert (minute.alerts, minute.ended) == ((held,), (over,))
    assert minute.idle[0] == IdleTime(GPU, 1, 1, 59.0, at_least=True)
    assert msgspec.json.decode(msgspec.json.encode(minute), type=Minute) == minute


def test_a_minute_without_frames_is_not_made() -> None:
    maker = Maker()
    for second in (0, 1, 2, 200, 201, 240):
        maker.add(machine(), second)
    assert [minute.at - START for minute in maker.made] == [0, 180]


def test_the_longer_idle_time_counts_where_another_gpuwatch_knows_more() -> None:
    maker, kept = Maker(), dict[tuple[str, int, int], Idle]({(GPU, 1, 1): Idle(7200.0, at_least=False)})
    known: IdleTimes = kept
    for second in (0, 1, 60):
        maker.add(machine(), second, kept=known)
    assert maker.made[0].idle[0] == IdleTime(GPU, 1, 1, 7200.0, at_least=False)
