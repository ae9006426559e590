"""Declared shares on screen: beside the holding, in the bar, in sums, and in the detail of a process."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.limits import Allowances
from gpuwatch.analysis.rows import rows
from gpuwatch.model.snapshot import (
    Confidence,
    Declared,
    Gpu,
    Knowledge,
    Memory,
    Presence,
    Process,
    Promise,
    Reason,
    Snapshot,
)
from gpuwatch.ui.draw.gpu_pages import gpu_section
from gpuwatch.ui.draw.gpus import row_words
from gpuwatch.ui.draw.process_page import find_verdict, holding_section
from gpuwatch.ui.options import Options
from tests.support.builders import GIB, USABLE_GIB, declares, gpu, holding, process, snapshot
from tests.support.screen import alert, frame, press, resize, running, text

UNREADABLE = Declared(knowledge=Knowledge.UNREADABLE, words="no permission to read its environment")


def card(*held: tuple[int, str, float, Declared | None], index: int = 0, **changes: Any) -> tuple[Gpu, list[Process]]:
    """Return a GPU and its processes, each as (pid, user, GiB, declared)."""
    people = [process(pid, user, declared=declared) for pid, user, _, declared in held]
    return gpu(index, holdings=[holding(pid, gib) for pid, _, gib, _ in held], **changes), people


def machine(*held: tuple[int, str, float, Declared | None], **changes: Any) -> Snapshot:
    one, people = card(*held, **changes)
    return snapshot([one], people)


def overshoot(*pids: int, severity: Severity = Severity.CRITICAL, index: int = 0, **changes: Any) -> Alert:
    fields = {"rule": "over declared", "subject": "15226:1", "pids": pids}
    return alert(index, severity, **{**fields, "title": f"ada holds 62 % of GPU {index}, declared 40 %", **changes})


ADA = (11, "ada", 49.6, declares(0, 0.4 * USABLE_GIB * GIB))
HIDDEN = (13, "cyn", 5.0, UNREADABLE)
EVERY_KIND = (
    ADA,
    (12, "ben", 9.0, declares(0, 0.3 * USABLE_GIB * GIB, scope="genv 12")),
    HIDDEN,
    (14, "dov", 0.1, Declared()),
    (15, "eve", 4.0, declares(0, USABLE_GIB * GIB, scope="container 3f9a1c")),
)
THREE_OF_ADAS = tuple((pid, "ada", 5.0, declares(0, 0.4 * USABLE_GIB * GIB)) for pid in (21, 22, 23))
"""Processes that have declared more together than the GPU has."""


async def test_used_and_declared_stand_below_their_title() -> None:
    marks = {None: "", Severity.NOTE: " ·", Severity.WARNING: " ▲", Severity.CRITICAL: " ●"}
    async with running() as (app, pilot):
        for size, (severity, mark) in product([(80, 24), (160, 50)], marks.items()):
            alerts = [overshoot(11, severity=severity)] if severity else []
            await resize(app, pilot, size, frame(machine(*EVERY_KIND), *alerts))
            title, *lines = [line for line in app.dashboard.process_panel.text if line.strip()][: 1 + len(EVERY_KIND)]
            slash = title.index("used/decl") + len("used")
            found = [(line[:slash].split()[-1], line[slash : slash + 4].strip()) for line in lines]
            assert found == [("63", "/40"), ("Σ11", "/30"), ("6", ""), ("Σ5", "/100"), ("<1", "/·")]
            assert f"63/40{mark} " in lines[0]
            assert not any(sign in line for line in lines[1:] for sign in (" ·", "▲", "●"))


def with_promise(promised: int) -> Snapshot:
    """Return a free GPU of which so many bytes are promised, and a held one of which nothing is."""
    held, people = card(ADA, index=1, promised=0)
    promises = (Promise(user="eve", bytes=promised, reserved=1.0),)
    return snapshot([gpu(0, utilization=0, promised=promised, promises=promises), held], people)


async def test_what_is_left_stands_beside_what_is_free_and_the_bar_names_whose_the_rest_is() -> None:
    async with running(frame(with_promise(30 * GIB)), (160, 50)) as (app, pilot):
        title, row, other = app.dashboard.gpu_panel.text
        end = title.index("left") + len("left")
        assert row[:end].split()[-2:] == ["79.1", "49.1"]
        assert re.search("╱ eve ╱+ ", row)
        assert row.split()[-1] == "promised", "and such a GPU is not called free"
        assert len(set(other[:end].split()[-2:])) == 1
        await resize(app, pilot, (80, 24))
        assert "79.1  49.1 " in app.dashboard.gpu_panel.text[-2]


async def test_what_limits_cannot_be_read_is_said_once_and_not_in_each_row() -> None:
    async with running(frame(machine(HIDDEN, ADA)), (160, 50)) as (app, pilot):
        assert not any("?" in line for line in [*app.dashboard.gpu_panel.text, *app.dashboard.process_panel.text[1:]])
        await resize(app, pilot, (110, 50))
        assert "1 share unread (?) · 2 rows" in app.dashboard.process_panel.text[0]
        await pilot.press("question_mark")
        assert "Declared shares of 1 process are not readable" in text(app)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (alert(0, rule="time to full", short="was filling", forecast="full in 4 min"), "full in 4 min"),
        (alert(0, rule="time to full", short="was filling"), "was filling"),
        (alert(0, rule="hot memory", title="hot memory: GPU 0 temperature 83 °C, above 80"), "hot memory"),
    ],
)
def test_a_row_has_what_is_foreseen_else_the_short_form_else_the_rule(about: Alert, words: str) -> None:
    assert row_words(about) == words


def facts_of(seen: Snapshot) -> dict[str, str]:
    return {one.label: one.value for one in gpu_section(seen.gpus[0], seen).facts}


def test_the_detail_of_a_gpu_has_the_sums_and_what_is_not_known() -> None:
    others = ((14, "dov", 1.0, Declared()), (15, "eve", 2.0, UNREADABLE), (16, "eve", 2.0, None))
    facts = facts_of(machine(*THREE_OF_ADAS, *others))
    assert facts["declared"] == "94.9 GiB in 3 shares, overbooked: the GPU has 79.1 GiB"
    assert facts["held"] == "20.0 GiB by all processes"
    assert facts["undeclared"] == "1 process"
    assert facts["unread"] == "declared share of 2 processes"


def test_the_detail_of_a_gpu_makes_no_number_up() -> None:
    assert facts_of(machine((14, "dov", 1.0, Declared())))["declared"] == "nothing"
    assert "declared" not in facts_of(machine(HIDDEN))
    bare = gpu(0, holdings=[holding(1, 3.0), holding(2, memory=Reason.UNSUPPORTED)])
    assert facts_of(snapshot([bare]))["held"] == "at least 3.0 GiB by all processes"
    assert not {"declared", "held"} & {*facts_of(snapshot([gpu(0, memory=Memory(total=Reason.DENIED))]))}


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (ADA[3], "63 % of the GPU's memory, declared 40 %"),
        (EVERY_KIND[1][3], "63 % of the GPU's memory, declared 30 %, in total for genv 12"),
        (UNREADABLE, "63 % of the GPU's memory"),
    ],
)
def test_the_detail_of_a_holding_has_both_shares(declared: Declared, words: str) -> None:
    seen = machine((11, "ada", 49.6, declared))
    facts = {one.label: one.value for one in holding_section(rows(seen)[0]).facts}
    assert facts["used"] == words


GUESS = replace(ADA[3].declarations[0], confidence=Confidence.GUESS, line=12, where="train.py")
DOUBTFUL = replace(ADA[3], declarations=(GUESS,))
UNUSED = alert(0, Severity.WARNING, subject="11:11", title="pid 11 (ada) fills GPU 3 and computes only on GPU 0")


@pytest.mark.parametrize(
    ("declared", "changes", "alerts", "severity", "words"),
    [
        (ADA[3], {}, (), 3, "holds 49.6 GiB of GPU 0, declared 31.6 (environment)"),
        (DOUBTFUL, {}, (), 1, "holds 49.6 GiB of GPU 0, declared 31.6 at train.py:12, a guess"),
        (declares(0, 49.5 * GIB), {}, (), 0, "holds 49.6 GiB of GPU 0, declared 49.5 (environment), within the"),
        (declares(0, 60 * GIB), {}, (), 0, "holds 49.6 GiB of GPU 0, within the declared 60.0 (environment)"),
        (declares(0, 60 * GIB), {}, (UNUSED,), 2, "fills GPU 3 and computes only on GPU 0"),
        (declares(0, 60 * GIB), {}, (replace(UNUSED, severity=Severity.NOTE),), 0, "holds 49.6 GiB of GPU 0, within"),
        (Declared(), {}, (), 0, "holds 49.6 GiB on GPU 0; declared nothing"),
        (UNREADABLE, {}, (), 0, "holds 49.6 GiB on GPU 0; its declared share is not readable"),
        (None, {"presence": Presence.HIDDEN}, (), 0, "holds 49.6 GiB on GPU 0; hidden from you"),
        (ADA[3], {"state": "zombie"}, (), 0, "has ended and still holds 49.6 GiB on GPU 0"),
    ],
)  # fmt: skip
def test_the_page_of_a_process_begins_with_the_verdict(
    declared: Declared | None, changes: dict[str, Any], alerts: tuple[Alert, ...], severity: int, words: str
) -> None:
    one = process(11, "ada", start=11, declared=declared, **changes)
    seen = snapshot([gpu(0, holdings=[holding(11, 49.6)])], [one])
    found = find_verdict(rows(seen), frame(seen, *alerts), (), Options())
    assert (found[0], found[1][: len(words)]) == (severity, words)


async def test_the_detail_judges_by_the_allowances_that_were_set() -> None:
    first = frame(machine(ADA))
    for allowances, verdict in ((None, True), (Allowances(framework=40 * GIB), False)):
        async with running(first, (160, 50), allowances=allowances) as (app, pilot):
            await press(pilot, "enter")
            assert "declared" in " ".join(text(app).split())
            assert ("within the allowance" in text(app)) is not verdict
