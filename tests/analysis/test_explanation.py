"""Explanation of one process: a table of declarations and holdings, with all lines that explain them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.limits import Allowances
from gpuwatch.analysis.explanation import context_points, explain_process
from gpuwatch.model.snapshot import Declared, Process
from tests.analysis.machines import card, read_cases
from tests.support.builders import process, snapshot


class Case(msgspec.Struct, forbid_unknown_fields=True):
    """One line of explanations.jsonl; `@1` is the UUID of GPU 1."""

    about: str
    declared: Declared | None
    points: list[tuple[str, str, str]]
    """All lines: label, value, evidence."""
    holds: list[list[Any]] = msgspec.field(default_factory=lambda: [[], []])
    """Holdings on each GPU: GiB or the reason of PID 7, or [PID, GiB]."""
    gpus: list[dict[str, Any]] = []
    """Fields of the GPUs, where these are not plain."""
    others: list[dict[str, Any]] = []
    known_before: bool = True
    """Whether the snapshot has the declarations, too: they may be newer."""
    allowances: Allowances | None = None
    process: dict[str, Any] = {}
    """Other fields of PID 7."""


@pytest.mark.parametrize("case", read_cases("explanations.jsonl", Case), ids=lambda case: case.about)
def test_a_process_is_explained_in_these_lines(case: Case) -> None:
    held = [[one if isinstance(one, list) else [7, one] for one in holds] for holds in case.holds]
    gpus = [card(fields) for fields in case.gpus or [{"index": n, "holdings": some} for n, some in enumerate(held)]]
    others = [process(one["pid"], declared=msgspec.convert(one["declared"], Declared)) for one in case.others]
    before = process(7, declared=case.declared if case.known_before else None)
    shown = snapshot(gpus, [before, *others])
    itself = msgspec.convert(msgspec.to_builtins(process(7, declared=case.declared)) | case.process, Process)
    points = [*explain_process(itself, shown, case.allowances), *context_points(itself)]
    assert [tuple(one) for one in points] == case.points
