"""Rows of runs: when each came to a GPU, how much of it it used, and when it went."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from gpuwatch.history.history import History
from gpuwatch.history.timeline import RecordedRun
from gpuwatch.model.snapshot import Holding, Presence, Process, ProcessContext, Reason, Run, Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.lines import plain
from gpuwatch.ui.draw.run_rows import draw_runs, find_runs
from gpuwatch.ui.draw.theme import make_styles
from gpuwatch.ui.draw.time_axis import AXIS
from gpuwatch.ui.draw.time_graphs import FrameGraphs
from tests.support import builders
from tests.support.builders import gpu, holding, process, snapshot


def drawn(
    *seconds: Snapshot, most: int = 9, ascii_only: bool = False, recorded: Sequence[RecordedRun] = ()
) -> list[str]:
    """The rows of GPU 0 after so many seconds of one minute, a cell each, without their initials."""
    history = History()
    for second, seen in enumerate(seconds):
        now = builders.at(seen, second)
        history.add(now, float(second))
    graphs = FrameGraphs(Frame(now, float(second), history.view), make_styles("gpuwatch-dark", ascii_only=ascii_only))
    history.view.timeline.recorded = {gpu(0).key: recorded}
    graphs.set_span(60.0)
    graphs.fit(graphs.styles, 60 + AXIS)
    rows = draw_runs(*find_runs(now.gpus[0], graphs, most), graphs)
    begin = 60 - round(graphs.until - builders.EPOCH)
    return [plain(line)[AXIS + begin : AXIS + begin + len(seconds)] for line in rows]


def held(*holdings: Holding, processes: tuple[Process, ...]) -> Snapshot:
    return snapshot([gpu(0, holdings=holdings)], processes)


ADA, BEN = process(11, "ada", command="python train.py"), process(12, "ben", command="nap")
NOBODY = held(processes=())
ALONE = held(holding(11, 30.0, sm=90), processes=(ADA,))
BOTH = held(holding(11, 30.0, sm=90), holding(12, 1.0, sm=0), processes=(ADA, BEN))


@pytest.mark.parametrize(
    ("ascii_only", "rows"),
    [
        (False, ["     ╾ nap 12 ░░░░░░░░░░░░░░░░░░░", " train.py 11 ████████████          "]),
        (True, ["     > nap 12 ...................", " train.py 11 ############          "]),
    ],
)
def test_a_row_goes_from_the_beginning_to_the_end_in_shades_of_its_use(ascii_only: bool, rows: list[str]) -> None:
    """What was there at first has no mark of a beginning; the largest comes first."""
    only = held(holding(12, 40.0, sm=0), processes=(BEN,))
    found = drawn(*[ALONE] * 5, *[BOTH] * 20, *[only] * 10, ascii_only=ascii_only)
    assert [row[:25] for row in found] == [row[:25] for row in rows]
    assert [row[25:] for row in found] == [("." if ascii_only else "░") * 10, " " * 10]


def test_sm_that_is_not_known_has_a_dash_and_a_time_that_nobody_watched_has_nothing() -> None:
    unknown = held(holding(11, 30.0, sm=Reason.UNSUPPORTED), processes=(ADA,))
    assert drawn(*[unknown] * 30) == [" train.py 11 –––––––––––––––––"]


def test_processes_of_one_run_have_one_row_and_runs_without_a_row_are_counted() -> None:
    around = ProcessContext(run=Run(name="sweep", key="7:7"))
    ranks = tuple(process(pid, "ada", context=around) for pid in (11, 12))
    seen = held(
        holding(11, 30.0, sm=20), holding(12, 20.0, sm=20), holding(13, 1.0), processes=(*ranks, process(13, "ben"))
    )
    assert drawn(*[seen] * 30, most=1) == [" sweep 11 +1 ▒▒▒▒▒▒▒▒▒▒▒▒▒▒ +1"]


def test_what_the_stores_have_of_a_run_has_dashes_and_comes_before_what_was_watched() -> None:
    """A run that the timeline has too continues; of one that ended before there is its name and its time."""
    begin = int(builders.EPOCH)
    mine = RecordedRun(ADA.uid or 0, ADA.run_key, "train.py", ((begin, 20),), 1.0)
    other = RecordedRun(1007, "8:8", "掃-floors.py", ((begin + 10, 5), (begin + 15, 5)), 90.0 * builders.GIB)
    rows = drawn(*[NOBODY] * 25, *[ALONE] * 25, recorded=(mine, other))
    assert rows == [
        " " * 10 + "–" * 10 + " ?-floors.py" + " " * 18,
        " train.py 11 –––––––     " + "█" * 25,
    ]


def test_a_process_that_has_ended_and_still_holds_memory_is_marked_where_it_ended() -> None:
    gone = replace(ADA, presence=Presence.GONE, rss=Reason.NO_SAMPLE, cpu=Reason.NO_SAMPLE)
    alive = held(holding(11, 30.0, sm=90), processes=(replace(ADA, rss=1e9, cpu=1.0),))
    after = held(holding(11, 30.0, sm=Reason.NO_SAMPLE), processes=(gone,))
    (row,) = drawn(*[alive] * 24, *[after] * 30)
    assert row.startswith(" train.py 11 ██████████✝")
    assert row[23:] == "✝ ended, holds 30.0 GiB ·······"
    run = ProcessContext(run=Run(name="sweep", key="7:7"))
    ranks = replace(gone, context=run), replace(BEN, context=run)
    both = held(holding(11, 30.0), holding(12, 1.0, sm=0), processes=ranks)
    assert [row[:9].strip() for row in drawn(*[both] * 40)] == ["✝ sweep 1", "sweep 12"]
