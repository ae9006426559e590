"""One table of cases: what is said of people, from their processes to the alert that names them.

A row of `claims.jsonl` has:

- `case` a few words, `point` the number of a kind of fault, `machine` a name in `test_resolver.MACHINES`
- `processes` each as in `resolver.jsonl` (`argv` as text or a list, `environ`, `libraries`, `script`, `cgroup`,
  `parent`, `share`, `mps`, `children`, …), and `user` (ada), `holds` (MiB by the GPU's index), `expect`
- `script` as there; null for a real process whose script is not there any more
- `file` the script's path where it is not `train.py`; `files` other files (text by path); `name` argv[0] in place of
  `python`, as of `exec -a`, of a real process; `facts` fields of `declared.facts.Facts` that only the reader finds
- `expect` of a process: `says` ("declared", "possible", "not known", "nothing declared"), `limits` (MiB by index),
  `visible` (indices in the framework's order, or null), `why` and `unsaid` (a text, or a list of texts, that are, or
  are not, a part of the words of `gpuwatch explain`); what is left out is not compared
- `overshoots` [user, index of the GPU] each, none where it is left out; `accused` the users whom alerts name, those of
  `overshoots` where it is left out
- `real` true: it is run a second time as real processes of users of their own (where we are root; else only with one
  user), which stop before their script; "only": it is not run without

In argv, environ and files of a real process `{folder}` is the working directory, which PWD names unless `environ` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.rules.shares import OVERSHOOT, overshoots
from gpuwatch.analysis.explanation import explain_process
from gpuwatch.declared.facts import Facts, GpuFacts, Share
from gpuwatch.declared.resolver import resolve
from gpuwatch.inspector.client import InspectorClient
from gpuwatch.inspector.protocol import Answer, Question, bounded
from gpuwatch.model.shares import is_conclusive
from gpuwatch.model.snapshot import Gpu, Instance, Presence, Process
from gpuwatch.sampler.declarations import DeclarationCache
from gpuwatch.sampler.owners import Owners
from tests.declared.tables import Case, read_cases
from tests.declared.test_resolver import MACHINES, process
from tests.support import builders
from tests.support.alerts import Bench
from tests.support.declared import InProcessInspector, limits, visible
from tests.support.process import ROOT, sharing

ROW = {"case", "point", "machine", "processes", "overshoots", "accused", "real"}
GIVEN = {
    *("user", "name", "argv", "environ", "libraries", "script", "file", "files", "facts", "cgroup", "parent", "share"),
    *("theanorc", "mps", "children", "child_argv", "holds", "expect"),
}
EXPECTED = {"says", "limits", "visible", "why", "unsaid"}
ARRANGED = {"libraries", "facts", "cgroup", "parent", "theanorc", "mps", "children", "child_argv"}
"""What a real process cannot be given."""

ROWS = read_cases("declared/claims")


def rows(*kinds: object) -> pytest.MarkDecorator:
    """Return a parametrization by the rows whose `real` is one of these."""
    found = [row for row in ROWS if row.get("real", False) in kinds]
    return pytest.mark.parametrize("row", found, ids=[f"{row['point']}: {row['case']}" for row in found])


def facts_of(case: Case, pid: int, user: str) -> Facts:
    """Return the facts of a process of a row."""
    argv = case.get("argv", "")
    known = process({**case, "argv": argv if isinstance(argv, str) else ""})
    changes: dict[str, Any] = {"pid": pid, "uid": builders.uid(user), "user": user}
    if not isinstance(argv, str):
        changes["argv"] = tuple(argv)
    if known.script is not None:
        changes["script"] = msgspec.structs.replace(known.script, path=case.get("file", "train.py"))
    return msgspec.structs.replace(known, **changes, **case.get("facts", {}))


def gpus_of(machine: Sequence[GpuFacts], held: Sequence[tuple[Process, Mapping[str, int]]]) -> list[Gpu]:
    """Return the GPUs of a machine with what processes hold in MiB; of each all memory can be used."""
    found = []
    for gpu in machine:
        holdings = [
            builders.holding(one.pid, size * builders.MIB / builders.GIB, start=one.start)
            for one, sizes in held
            if (size := sizes.get(str(gpu.index)))
        ]
        instances = tuple(
            Instance(
                uuid=one.uuid,
                name="MIG 1g.10gb",
                gpu_instance=one.gpu_instance,
                compute_instance=0,
                memory=builders.memory(total=one.total or 0, reserved=0),
            )
            for one in gpu.slices
        )
        used = sum(int(one.memory) for one in holdings) / builders.GIB
        memory = builders.memory(used, total=gpu.total or 0, reserved=0)
        fields: dict[str, Any] = {
            "uuid": gpu.uuid,
            "name": gpu.name,
            "bus_id": gpu.bus_id,
            "mig": gpu.mig,
            "instances": instances,
        }
        found.append(builders.gpu(gpu.index, memory=memory, holdings=holdings, **fields))
    return found


def says(one: Process, points: Iterable[tuple[str, str, str]]) -> str:
    """Return in which of four ways a process is spoken of, by what decides the words on screen and of `explain`."""
    labels = [label for label, _, _ in points]
    assert one.declared is not None
    if one.declared.limits:
        return "declared"
    if "possible" in labels:
        return "possible"
    return "nothing declared" if is_conclusive(one.declared) else "not known"


def check(row: Case, seen: Sequence[Process], inspector: InspectorClient) -> None:
    """Compare what is said of processes, which stand in the order of the row's."""
    machine = MACHINES[row["machine"]]
    gpus = gpus_of(machine, [(one, case.get("holds", {})) for one, case in zip(seen, row["processes"], strict=True)])
    read = DeclarationCache(inspector, viewer=-1).annotate(seen, gpus, len(gpus), "580.95.05")
    shown = builders.snapshot(gpus, read)
    for one, case in zip(read, row["processes"], strict=True):
        assert one.declared is not None
        expect = case.get("expect", {})
        points = explain_process(one, shown)
        words = "\n".join(" | ".join(point) for point in points)
        found = {
            "says": says(one, points),
            "limits": {str(index): size for index, size in limits(one.declared, machine).items()},
            "visible": visible(one.declared, machine),
        }
        if "limits" in expect:
            expect = {**expect, "limits": pytest.approx(expect["limits"], abs=0.1)}
        compared = {key: found[key] for key in found if key in expect}
        assert compared == {key: expect[key] for key in compared}, words
        for part in listed(expect.get("why", [])):
            assert part in words
        for part in listed(expect.get("unsaid", [])):
            assert part not in words
    over = [[one.user, one.gpu] for one in overshoots(shown)]
    assert sorted(over) == sorted(row.get("overshoots", []))
    bench = Bench()
    for _ in range(5):
        bench.feed(*gpus, people=read, seconds=5.0)
    accused = {name for alert in bench.of(OVERSHOOT) for name in alert.owners}
    assert accused == set(row.get("accused", [user for user, _ in over]))


def listed(words: str | list[str]) -> list[str]:
    """Return one text or several as a list."""
    return [words] if isinstance(words, str) else words


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['point']}: {row['case']}" for row in ROWS])
def test_the_rows_have_no_other_words(row: Case) -> None:
    assert row.keys() <= ROW
    for case in row["processes"]:
        assert case.keys() <= GIVEN
        assert case.get("expect", {}).keys() <= EXPECTED
        assert "real" not in row or ARRANGED.isdisjoint(case.keys() - ({"facts"} if row["real"] is True else set()))


@rows(False, True)
def test_what_is_said(row: Case) -> None:
    facts = {pid: facts_of(case, pid, case.get("user", "ada")) for pid, case in enumerate(row["processes"], start=4711)}
    seen = [builders.process(one.pid, one.user) for one in facts.values()]

    def answer(question: Question) -> Answer:
        declared = resolve(facts[question.pid], question.gpus or (), question.driver or "")
        return Answer(pid=question.pid, start=question.start, declared=bounded(declared))

    check(row, seen, InProcessInspector(answer=answer))


@pytest.mark.slow  # real processes
@rows(True, "only")
def test_what_is_said_of_real_processes(row: Case, public: Path) -> None:
    users = [case.get("user", "ada") for case in row["processes"]]
    if not ROOT and len(set(users)) > 1:
        pytest.skip("processes of several users need root")
    with ExitStack() as running:
        seen = []
        for place, (case, user) in enumerate(zip(row["processes"], users, strict=True)):
            folder = public / str(place)
            folder.mkdir()
            files = {
                **case.get("files", {}),
                **({case.get("file", "train.py"): case["script"]} if "script" in case else {}),
            }
            for name, text in files.items():
                if text is None:
                    continue
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text.replace("{folder}", str(folder)))
            argv = case.get("argv") or "python train.py"
            first, *rest = [
                word.replace("{folder}", str(folder)) for word in (argv.split() if isinstance(argv, str) else argv)
            ]
            environ = {"PWD": "{folder}", **case.get("environ", {})}
            process = running.enter_context(
                sharing(
                    *rest,
                    name=case.get("name", first),
                    environ={key: value.replace("{folder}", str(folder)) for key, value in environ.items()},
                    cwd=folder,
                    first=f"drop({builders.uid(user)})" if ROOT else "",
                )
            )
            (found,) = Owners().read([process.pid])
            uid = builders.uid(user) if ROOT else os.getuid()
            seen.append(msgspec.structs.replace(found, user=user, uid=uid, presence=Presence.SEEN))
        shares = tuple(
            Share(**case["share"], where="gpuwatch.toml", line=3) for case in row["processes"] if "share" in case
        )
        check(row, seen, InProcessInspector(shares))
