"""Why memory may be held by no process that is listed: a case for each cause, and their order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuwatch.alerts.rules.idle import UNATTRIBUTED
from gpuwatch.alerts.unattributed import GapCause, GapEvidence, GapKind, matters, missing
from gpuwatch.model.shares import OWN, OWN_EACH, UnknownMemoryStart
from gpuwatch.model.snapshot import (
    Gpu,
    Health,
    Memory,
    Presence,
    Process,
    ProcessContext,
    Reason,
    Snapshot,
    Unlisted,
    Xid,
)
from tests.support import builders
from tests.support.alerts import observed
from tests.support.builders import GIB, MIB, TOTAL, holding

GONE = Process(pid=70, presence=Presence.GONE)
PLAIN = [GapKind.ENDING, GapKind.LEAK]
"""What remains of a large gap where nothing points to anything."""


def loose(gib: float = 8.0, **changes: Any) -> Gpu:
    """Give GPU 2 with so much memory that nobody is listed for, beside the listed process 70 with 10 GiB."""
    fields: dict[str, Any] = {"holdings": [holding(70, 10)], "used_gib": 10 + gib, "minor": 5, **changes}
    return builders.gpu(2, **fields)


def left(pid: int, user: str = "you", **changes: Any) -> Unlisted:
    """Return a worker on GPU 2 whose parent has ended."""
    fields: dict[str, Any] = {"ppid": 1, "adopted": True, "context": ProcessContext(), **changes}
    return Unlisted(process=builders.process(pid, user, **fields), gpus=(loose().uuid,), cuda_context=True)


def found(card: Gpu, *people: Process, **changes: Any) -> list[GapCause]:
    """Return the causes for a card of a machine that was searched, whose gap came an hour after its processes."""
    starts = changes.pop("starts", {card.key: LATER})
    snapshot = builders.snapshot([card], people, **{"searched": builders.EPOCH, **changes})
    return GapEvidence(snapshot, starts).causes(card)


def kinds(card: Gpu, *people: Process, **changes: Any) -> list[GapKind]:
    return [one.kind for one in found(card, *people, **changes)]


LATER = UnknownMemoryStart(builders.EPOCH, at_least=False)
"""When the memory was taken: an hour after the start of all processes."""


# -- gaps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mib", "total", "says"),
    [(0, TOTAL, False), (63, None, False), (64, None, True), (64, 4 * GIB, True), (255, TOTAL, False),
     (300, TOTAL, True), (255, 16 * GIB, True), (900, TOTAL, True), (300, 800 * GIB, True)],
)  # fmt: skip
def test_a_small_gap_says_nothing(mib: int, total: float | None, says: bool) -> None:
    assert matters(mib * MIB, total) is says


@pytest.mark.parametrize(
    ("changes", "gap"),
    [
        ({}, 8 * GIB),
        ({"unattributed": Reason.UNSUPPORTED}, 8 * GIB),
        ({"unattributed": Reason.NO_SAMPLE, "memory": Memory()}, None),
    ],
    ids=str,
)
def test_the_gap_as_far_as_it_is_known(changes: dict[str, Any], gap: int | None) -> None:
    card = loose(**changes)
    assert missing(card) == gap
    assert bool(found(card)) is (gap is not None)


def test_a_gpu_in_trouble_and_one_that_is_accounted_for_need_no_cause() -> None:
    assert kinds(loose(health=Health.LOST)) == []
    assert kinds(loose(0)) == []


def test_unified_memory_has_no_gap() -> None:
    memory = Memory(total=64 * GIB, used=40 * GIB, free=24 * GIB, reserved=Reason.UNSUPPORTED, unified=True)
    assert kinds(loose(memory=memory, unattributed=Reason.UNSUPPORTED)) == []


# -- each cause ----------------------------------------------------------------------------------------------------


def test_nothing_points_to_anything() -> None:
    leak = found(loose())[-1]
    assert leak.reason.startswith("no other process has it open: ")
    assert leak.step.startswith("`sudo fuser -v /dev/nvidia5` names nobody: `nvidia-smi --gpu-reset -i 2`")


def test_who_has_it_open_may_hold_it() -> None:
    one = found(loose(opened_by=(70, 4711)))[-1]
    assert one.reason == "PIDs 70, 4711 have it open too: if they hold none of this, only a reset frees it"
    assert one.step.startswith("if it is still in use after they have ended: `nvidia-smi --gpu-reset -i 2`")
    longest = found(loose(opened_by=tuple(range(4_194_288, 4_194_304))))[-1]
    assert longest.reason.endswith("only a reset frees it")


def test_nobody_is_known_to_have_open_what_has_no_number() -> None:
    assert found(loose(minor=Reason.UNSUPPORTED))[-1].reason.startswith("if nobody has it open, ")


def test_a_list_that_is_not_whole() -> None:
    note = "no permission to list this GPU's processes"
    first = found(loose(unattributed=Reason.NO_SAMPLE, holdings_note=note))[0]
    assert first.kind is GapKind.LIST
    assert note in first.reason
    assert kinds(loose(unreliable=True))[0] is GapKind.LIST


def test_a_driver_that_counts_its_own_as_used() -> None:
    card = loose(memory=builders.memory(18, reserved=0))
    old = loose(
        memory=Memory(total=TOTAL, used=18 * GIB, free=1, reserved=Reason.UNSUPPORTED), unattributed=Reason.UNSUPPORTED
    )
    assert kinds(card) == PLAIN
    assert kinds(old) == [GapKind.COUNTED, *PLAIN]


def test_in_a_container() -> None:
    assert "--pid=host" in found(loose(), confined=True)[0].step
    assert kinds(loose(), Process(pid=70, presence=Presence.ELSEWHERE))[0] is GapKind.CONTAINER


def test_workers_whose_parent_has_ended() -> None:
    (one, *_) = found(loose(), unlisted=(left(4711),))
    assert one == GapCause(
        GapKind.LEFTOVER,
        "PID 4711 python (you) has it open and is not listed: its parent or run has ended",
        "`gpuwatch kill 4711` ends it, if you no longer want what was run",
        (4711,),
    )
    (several, *_) = found(loose(), unlisted=(left(4711), left(4712), left(4713, "ben"), left(4714), left(4715)))
    assert several.reason == (
        "PIDs 4711, 4712, 4713 and 2 more (you, ben) have it open and are not listed: their parents or runs have ended"
    )
    assert several.step.startswith("`gpuwatch kill 4711 4712 4714 4715` ends them")
    assert several.pids == (4711, 4712, 4713, 4714, 4715)


def test_others_end_their_own_and_very_many_are_listed_elsewhere() -> None:
    assert "ben, ada" in found(loose(), unlisted=(left(4711, "ben"), left(4712, "ada")))[0].step
    many = tuple(left(pid) for pid in range(40_000, 40_126))
    assert "`gpuwatch strays`" in found(loose(), unlisted=many)[0].step


@pytest.mark.parametrize(
    "changes",
    [
        {"adopted": False},
        {"context": None},
        {"context": ProcessContext(unit="ollama.service")},
        {"context": ProcessContext(server="vLLM")},
        {"context": ProcessContext(pod="lab/train-0")},
    ],
    ids=str,
)
def test_who_is_tended_or_not_known_is_not_left_over(changes: dict[str, Any]) -> None:
    assert kinds(loose(), unlisted=(left(4711, **changes),)) == [GapKind.UNLISTED, *PLAIN]


def test_who_cannot_hold_it_is_no_cause() -> None:
    other = Unlisted(process=left(4711).process, gpus=("GPU-other",), cuda_context=True)
    asks = Unlisted(process=left(4712).process, gpus=(loose().uuid,))
    assert kinds(loose(), unlisted=(other, asks)) == PLAIN


def test_a_worker_of_a_listed_process_holds_what_that_holds() -> None:
    worker = left(4711, ppid=70, adopted=False)
    helper = left(4712, ppid=4711, adopted=False)
    assert kinds(loose(), unlisted=(worker, helper)) == PLAIN


def test_the_launcher_of_a_listed_process_is_no_cause() -> None:
    listed = builders.process(70, ppid=4711)
    assert kinds(loose(), listed, unlisted=(left(4711),)) == PLAIN


def test_a_program_that_is_not_listed() -> None:
    (one, *_) = found(loose(), unlisted=(left(4711, "ben", adopted=False, ppid=900),))
    assert one.reason == "PID 4711 python (ben) has it open with CUDA, and the driver does not list it"
    assert (one.step, one.pids) == ("ask ben", (4711,))
    assert "end it" in found(loose(), unlisted=(left(4711, adopted=False),))[0].step


def test_an_mps_server() -> None:
    (one, *_) = found(loose(), mps=(812,))
    assert (one.kind, one.pids) == (GapKind.MPS, (812,))
    assert "echo quit | nvidia-cuda-mps-control" in one.step
    server = builders.process(812, "root", name="nvidia-cuda-mps-server")
    assert kinds(loose(holdings=[holding(70, 9.5), holding(812, 0.5)]), server) == PLAIN  # what it holds is known


def test_an_mps_server_that_is_listed_on_another_gpu_alone_is_no_cause() -> None:
    server = builders.process(812, "root", name="nvidia-cuda-mps-server")
    elsewhere, card = builders.gpu(0, holdings=[holding(812, 0.1)]), loose()
    snapshot = builders.snapshot([elsewhere, card], [server], searched=1.0)
    assert [one.kind for one in GapEvidence(snapshot).causes(card)] == PLAIN


def test_what_a_driver_takes_for_itself() -> None:
    card = loose((OWN + OWN_EACH) / GIB, display_active=True)
    (one,) = found(card)
    assert (one.kind, one.reason) == (
        GapKind.DRIVER,
        "544 MiB is normal: the driver itself needs it for contexts and the display",
    )
    assert kinds(loose((OWN + OWN_EACH + MIB) / GIB)) == PLAIN


@pytest.mark.parametrize(
    "gone", [Process(pid=70, presence=Presence.GONE), builders.process(70, state="zombie")], ids=["gone", "zombie"]
)
def test_a_process_that_is_still_being_cleaned_up(gone: Process) -> None:
    for memory in (0, Reason.UNSUPPORTED):
        one, last = found(loose(holdings=[holding(70, memory=memory)], used_gib=8), gone)
        assert (one.kind, one.pids, last.kind) == (GapKind.ENDING, (70,), GapKind.LEAK)


def test_what_an_ended_process_is_listed_with_is_no_part_of_the_gap() -> None:
    """4.0 GiB of unknown processes beside 4.0 GiB that are listed for a process that has ended."""
    first, last = found(loose(4, holdings=[holding(70, 4)], used_gib=8, unattributed=4 * GIB), GONE)
    assert (first.kind, first.pids, last.kind) == (GapKind.ENDING, (), GapKind.LEAK)
    assert "70" not in first.reason


STRAY, LIVE = left(4711, "ben"), left(4712, "rea", adopted=False, ppid=900)


@pytest.mark.parametrize(
    ("start", "named", "advice"),
    [
        (LATER, [4711, 4712], ["ben can end it", "ask rea"]),
        (UnknownMemoryStart(builders.EPOCH - 3600 - 1, at_least=False), [], []),  # both are younger than the gap
        (UnknownMemoryStart(builders.EPOCH - 3600 - 1, at_least=True), [], []),
        (
            UnknownMemoryStart(builders.EPOCH, at_least=True),
            [4711, 4712],
            2 * ["it is not known when the memory was taken"],
        ),
        (None, [4711, 4712], 2 * ["it is not known when the memory was taken"]),
    ],
    ids=str,
)
def test_nobody_is_named_for_memory_that_was_taken_before_their_start(
    start: UnknownMemoryStart | None, named: list[int], advice: list[str]
) -> None:
    given = found(loose(), unlisted=(STRAY, LIVE), starts={loose().key: start} if start else {})
    suspects = [one for one in given if one.pids]
    assert [one.pids[0] for one in suspects] == named
    for one, words in zip(suspects, advice, strict=True):
        assert one.step.startswith(words)
    if named and (start is None or start.at_least):
        assert suspects[1].reason == "PID 4712 python (rea) has the GPU open"


def test_a_search_that_was_cut_short_says_how_far_it_came() -> None:
    for viewer in (0, 1000):
        hidden = found(loose(), reached=700, existing=3395, searched=0.0, viewer=viewer)[0]
        assert hidden.kind is GapKind.HIDDEN
        assert "cut short: 700 of 3395 processes were examined" in hidden.reason
        assert "sudo gpuwatch" not in hidden.step
        assert ("sudo" in hidden.step) is (viewer != 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unsearched": 1}, "1 process could not be read"),
        ({"unsearched": 212}, "212 processes could not be read"),
        ({"unsearched": 3, "hides": True}, "hidepid"),
    ],
)
def test_what_we_may_not_see(changes: dict[str, Any], words: str) -> None:
    hidden, _, leak = found(loose(), **changes)
    assert hidden.kind is GapKind.HIDDEN
    assert words in hidden.reason
    assert "sudo" in hidden.step
    assert leak.reason.startswith("if nobody has it open")


def test_root_that_was_blind_is_not_told_to_use_sudo() -> None:
    hidden = found(loose(), unsearched=3, viewer=0)[0]
    assert hidden.kind is GapKind.HIDDEN
    assert "sudo gpuwatch" not in hidden.step


def test_what_hidepid_and_instances_hide() -> None:
    assert "hidepid" in found(loose(), Process(pid=70, presence=Presence.HIDDEN))[0].reason
    assert "MIG" in found(loose(mig=True))[0].reason
    assert kinds(loose(mig=True), viewer=0) == PLAIN


# -- order ---------------------------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "confined": True,
    "unlisted": (left(4711), left(4712, adopted=False, ppid=900)),
    "mps": (812,),
    "unsearched": 4,
    "hides": True,
}
OLD = Memory(total=TOTAL, used=18 * GIB, free=1, reserved=Reason.UNSUPPORTED)


def test_the_order() -> None:
    note, rest = "list incomplete", dict[str, Any](memory=OLD, unattributed=Reason.UNSUPPORTED)
    card = loose(holdings_note=note, holdings=[holding(70, memory=0)], **rest)
    assert kinds(card, GONE, **EVERYTHING) == [
        GapKind.LIST,
        GapKind.COUNTED,
        GapKind.CONTAINER,
        GapKind.LEFTOVER,
        GapKind.MPS,
        GapKind.UNLISTED,
        GapKind.ENDING,
        GapKind.HIDDEN,
        GapKind.LEAK,
    ]
    assert kinds(loose(0.5), **EVERYTHING) == [
        GapKind.CONTAINER,
        GapKind.LEFTOVER,
        GapKind.MPS,
        GapKind.DRIVER,
        GapKind.UNLISTED,
        GapKind.HIDDEN,
    ]


def test_after_a_minute_nothing_is_ending_any_more() -> None:
    card = loose()
    first = GapEvidence(builders.snapshot([card], [GONE])).likeliest(card)
    assert first is not None
    assert first.kind is GapKind.LEAK
    assert GapEvidence(Snapshot()).likeliest(loose(memory=Memory(), unattributed=Reason.NO_SAMPLE)) is None


def test_the_alert_names_the_likeliest() -> None:
    card = loose()
    snapshot = builders.snapshot([card], unlisted=(left(4711),))
    (seen,) = observed(UNATTRIBUTED, snapshot)
    first = GapEvidence(snapshot).causes(card)[0]
    assert seen.evidence == f"{first.reason} · {first.step}"
    assert "PID 4711 python (you)" in seen.evidence
    (fine,) = observed(UNATTRIBUTED, builders.snapshot([loose(0.1)]))
    assert fine.evidence == ""


# -- whatever there is ---------------------------------------------------------------------------------------------

sizes = st.one_of(st.sampled_from(Reason), st.integers(0, TOTAL))
names = st.text(max_size=80)
pids = st.integers(1, 9)
processes = st.builds(
    Process,
    pid=pids,
    ppid=st.none() | pids,
    uid=st.none() | st.integers(0, 3),
    user=names,
    name=names,
    state=st.sampled_from(["", "sleeping", "zombie"]),
    presence=st.sampled_from(Presence),
    adopted=st.booleans(),
    context=st.none() | st.builds(ProcessContext, unit=names, server=names),
)
cards = st.builds(
    Gpu,
    index=st.just(2),
    uuid=st.sampled_from(["", "GPU-2"]),
    minor=st.one_of(st.sampled_from(Reason), st.integers(0, 64)),
    memory=st.builds(Memory, total=sizes, used=sizes, free=sizes, reserved=sizes, unified=st.booleans()),
    unattributed=sizes,
    holdings=st.lists(st.builds(holding, pids, st.floats(0, 9)), max_size=4).map(tuple),
    holdings_note=names,
    unreliable=st.booleans(),
    mig=st.booleans() | st.just(Reason.DENIED),
    display_active=st.booleans() | st.just(Reason.DENIED),
    opened_by=st.lists(st.integers(1, 2**22), max_size=16).map(tuple),
    xids=st.just((Xid(code=31),)),
)
gpus_open = st.sampled_from([(), ("",), ("GPU-2",), ("GPU-2", "GPU-3")])
snapshots = st.builds(
    Snapshot,
    viewer=st.integers(-1, 3),
    confined=st.booleans(),
    processes=st.lists(processes, max_size=5).map(tuple),
    unlisted=st.lists(
        st.builds(Unlisted, process=processes, gpus=gpus_open, cuda_context=st.booleans()), max_size=6
    ).map(tuple),
    searched=st.sampled_from([0.0, 1.0]),
    unsearched=st.integers(0, 10**6),
    hides=st.booleans(),
    mps=st.lists(pids, max_size=3).map(tuple),
)


@pytest.mark.uncounted
@given(cards, snapshots)
def test_whatever_there_is_each_cause_comes_once_and_fits_its_line(card: Gpu, snapshot: Snapshot) -> None:
    given = GapEvidence(snapshot).causes(card)
    assert given == GapEvidence(snapshot).causes(card)
    assert len({one.kind for one in given}) == len(given)
    for one in given:
        assert one.reason
        assert one.step
        assert max(cell_len(one.reason), cell_len(one.step)) <= 110
    first = GapEvidence(snapshot).likeliest(card)
    assert first is None or first.kind is not GapKind.ENDING
