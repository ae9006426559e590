"""Minutes: means of the frames of a minute."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatch.history import History
from gpuwatch.minute import Minute, MinuteMaker
from gpuwatch.model import Snapshot
from gpuwatch.timeline import user_owner
from tests.support.builders import EPOCH, GIB, at, gpu, holding, process, snapshot, uid

GPU, ADA, BEN = gpu(0).key, user_owner(uid("ada")), user_owner(uid("ben"))
START = EPOCH + 40
PEOPLE = (process(1), process(2, "ben", cpu=25.0))


def minutes(*seconds: float) -> list[Minute]:
    """Return the minutes that frames at these seconds after a full minute make."""
    history, maker, made = History(), MinuteMaker(), []
    for second in seconds:
        seen = at(machine(), second, taken=START + second)
        one = maker.add(seen, history.add(seen, 5000.0 + second))
        made += [one] if one is not None else []
    return made


def machine() -> Snapshot:
    return snapshot([gpu(0, holdings=[holding(1, 2, sm=0), holding(2, 4)], utilization=40)], PEOPLE)


def test_a_minute_is_made_by_the_first_frame_after_it() -> None:
    (minute,) = minutes(*range(61))
    assert minute.at == START
    assert minute.values[f"{GPU}//utilization"] == 40
    assert minute.values[f"{GPU}/{ADA}/memory"] == pytest.approx(2 * GIB, rel=1e-3)
    assert minute.values["/process:2:2/cpu"] == 25
    assert minute.users == {ADA: "ada", BEN: "ben"}
    assert msgspec.json.decode(msgspec.json.encode(minute), type=Minute) == minute


def test_a_minute_without_frames_is_not_made() -> None:
    assert [minute.at - START for minute in minutes(0, 1, 2, 200, 201, 240)] == [0, 180]
