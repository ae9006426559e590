"""Processes whose scripts declare without an end: what is sent of each has a bound, and says what was left out."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatch.analysis.explanation import explain_process
from gpuwatch.declared.facts import GpuFacts
from gpuwatch.declared.resolver import resolve
from gpuwatch.inspector.protocol import MOST, ROOM, bounded
from gpuwatch.model.shares import is_conclusive
from gpuwatch.model.snapshot import Basis, Declaration, Declared, Hint, Kind, Limit, Snapshot, encode
from gpuwatch.sources.sampler_process import LONGEST_LINE
from tests.driver import GIB
from tests.sources.test_local import Start, start, stub
from tests.support import builders
from tests.support.declared import TENSORFLOW, facts
from tests.support.sampler import until

__all__ = ["start"]

GPUS = 16


def endless(number: int = 300) -> str:
    """A script of so many statements, of each sort; the last of them counts."""
    options = "tf.compat.v1.GPUOptions(per_process_gpu_memory_fraction=0.{})  # " + "x" * 150 + "\n"
    memory = "".join(options.format(n + 100) for n in range(number))
    environ = "".join(f"os.environ['CUDA_VISIBLE_DEVICE'] = '{n}'\n" for n in range(number))
    return f"import os\nimport tensorflow as tf\n{memory}{environ}"


def test_175_scripts_of_300_statements_are_one_snapshot() -> None:
    gpus = [GpuFacts(index=index, uuid=f"GPU-{index}", total=60 * GIB) for index in range(GPUS)]
    declared = bounded(resolve(facts(script=endless(), libraries=TENSORFLOW), gpus))
    assert declared.left_out > 0
    assert declared.declarations[0].effective
    assert len(declared.limits) == GPUS
    assert len(msgspec.json.encode(declared)) <= ROOM
    assert is_conclusive(declared)
    process = builders.process(4711, "you", declared=declared)
    assert len(encode(Snapshot(processes=(process,) * 175))) < LONGEST_LINE
    labels = [point.value for point in explain_process(process, Snapshot(processes=(process,)))]
    assert any(value.startswith("… and ") and value.endswith(" more statements") for value in labels)


def statement(number: int, **changes: object) -> Declaration:
    fields = {"channel": f"channel{number}", "kind": Kind.CAP, "basis": Basis.TOTAL, "value": 0.1, "text": "x" * 200}
    return msgspec.convert({**fields, **changes}, Declaration)


@pytest.mark.parametrize("room", [0, 1000, ROOM])
def test_what_holds_is_kept_first_and_all_is_counted(room: int) -> None:
    """Then what lifts a limit: without it, that no limit is known would be said to be sure."""
    many = [statement(number, limits={f"GPU-{number}": 1}, effective=True) for number in range(3)]
    many += [statement(number) for number in range(3, 200)]
    many += [
        statement(200, effective=True, kind=Kind.START),
        statement(201, effective=True, value=None, undecided=True),
    ]
    limits = [Limit(gpu=f"GPU-{number}", bytes=1, declaration=number) for number in range(3)]
    hints = [Hint(rule="void", words="y" * 200)] * 100
    whole = Declared(declarations=tuple(many), limits=tuple(limits), hints=tuple(hints))
    part = bounded(whole, room)
    assert part.limits == whole.limits
    assert [part.declarations[limit.declaration] for limit in part.limits] == many[:3]
    assert many[201] in part.declarations
    assert is_conclusive(part) is is_conclusive(whole) is False
    assert len(part.declarations) + part.left_out == len(many)
    assert len(part.hints) + part.hints_left_out == len(hints)
    assert len(part.declarations) <= 3 + MOST
    assert len(part.hints) <= MOST
    if room == ROOM:
        assert len(msgspec.json.encode(part)) <= room
        assert many[200] in part.declarations
    assert sorted(part.declarations, key=many.index) == list(part.declarations)
    again = bounded(part, room)
    assert (again.declarations, again.left_out) == (part.declarations, part.left_out)


def test_what_people_declare_is_sent_as_it_is() -> None:
    few = Declared(declarations=tuple(statement(number) for number in range(5)), hints=(Hint(rule="a", words="b"),))
    assert bounded(few) is few


def test_five_thousand_processes_at_every_bound_are_one_line() -> None:
    """Of hostile text too, each character of which is four bytes long."""
    declared = bounded(Declared(declarations=tuple(statement(n, text="\U0001f600" * 200) for n in range(300))), 1024)
    process = builders.process(4711, "you", command="\U0001f600" * 1024, declared=declared)
    one = len(encode(Snapshot(processes=(process,)))) - len(encode(Snapshot()))
    assert 5000 * (one + 6000) < LONGEST_LINE  # and 6 kB of what it runs in


def test_the_line_that_is_longest_is_taken_in_pieces(start: Start) -> None:
    body = """
out = sys.stdout.buffer
line = encode(Snapshot(host="long", words="x" * (40 << 20), gpus=(Gpu(index=0),))) + b"\\n"
for place in range(0, len(line), 1 << 20):
    out.write(line[place : place + (1 << 20)])
    out.flush()
time.sleep(60)
"""
    assert len(until(start(command=stub(body)), lambda it: it.host == "long").words) == 40 << 20
