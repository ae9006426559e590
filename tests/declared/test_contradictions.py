"""Processes that NVML lists on GPUs that they are said not to see: the mapping is not known, nor what hangs on it."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatch.analysis.explanation import explain_process
from gpuwatch.base.units import MIB
from gpuwatch.declared.contradictions import HeldGpus, without_contradicted
from gpuwatch.declared.facts import Facts, Share
from gpuwatch.declared.resolver import resolve
from gpuwatch.inspector.context import find_batch_job, find_slurm_job
from gpuwatch.model.shares import is_conclusive
from gpuwatch.model.snapshot import Gpu, Holding, Memory, Process, Snapshot
from tests.declared.tables import Case, cases
from tests.declared.test_resolver import MACHINES, process
from tests.support.declared import limits, visible


def machine_of(facts: Facts, case: Case) -> tuple[Gpu, ...]:
    """Return the GPUs of a case, with the memory that the process holds."""
    return tuple(
        Gpu(
            index=one.index,
            uuid=one.uuid,
            memory=Memory(total=one.total or 0),
            holdings=(Holding(pid=facts.pid, memory=size * MIB),) if (size := held(case).get(one.index)) else (),
        )
        for one in MACHINES[case["machine"]]
    )


def held(case: Case) -> dict[int, int]:
    return {int(index): size for index, size in case["holds"].items()}


@cases("declared/contradicted")
def test_what_is_said_of_a_process_on_other_gpus(case: Case) -> None:
    """`visible` is None where the mapping is not known, `why` and `holds` are words of the explanation."""
    facts, machine, expect = process(case), MACHINES[case["machine"]], case["expect"]
    if "agreed" in case:
        facts = msgspec.structs.replace(facts, shares=(Share(memory=case["agreed"] * MIB),))
    gpus = machine_of(facts, case)
    confined = bool(case.get("cgroup") or find_slurm_job(facts) or find_batch_job(facts))
    on = frozenset(gpu.uuid for gpu in gpus if gpu.holdings)
    declared = without_contradicted(resolve(facts, machine), HeldGpus(on, confined), gpus)
    assert visible(declared, machine) == expect["visible"]
    assert limits(declared, machine) == pytest.approx({int(index): size for index, size in expect["limits"].items()})
    assert is_conclusive(declared) is expect["conclusive"]
    for limit in declared.limits:  # nothing is in effect where it does not hold memory
        assert limit.gpu in on or declared.declarations[limit.declaration].channel == "gpuwatch.toml"
    shown = Process(pid=facts.pid, declared=declared)
    points = explain_process(shown, Snapshot(gpus=gpus, processes=(shown,)))
    assert expect.get("why", "") in next(point.aside for point in points if point.label == "sees")
    holds = [point.aside for point in points if point.label == "holds"]
    assert all(expect["holds"] in one for one in holds)
    assert without_contradicted(declared, HeldGpus(on, confined), gpus).limits == declared.limits
