"""What a recording must not have: arguments of command lines, and with `--anonymise` whatever tells of people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec.structs import replace

from gpuwatch.alerts.limits import CustomRule, Limits
from gpuwatch.model.snapshot import Declaration, Declared, Kind, Limit, Process, ProcessContext, Run, Snapshot
from gpuwatch.recorder.anonymise import TREATMENTS, Anonymiser, Commands, program_of
from gpuwatch.recorder.recording import Recording
from tests.recorder.test_hostile_recordings import strings
from tests.support.builders import GIB, at, gpu, holding, process, snapshot
from tests.support.store import ask, demo, record, small


def structs(kind: type, found: list[type]) -> list[type]:
    """Return a type of the stream, and all types of its fields."""
    if kind not in found:
        found.append(kind)
        for hint in get_type_hints(kind).values():
            for part in parts(hint):
                if isinstance(part, type) and issubclass(part, msgspec.Struct):
                    structs(part, found)
    return found


def parts(hint: Any) -> Iterator[Any]:
    """Yield the types that a field's type is made of."""
    if get_origin(hint) in (Union, UnionType, tuple, dict):
        for one in get_args(hint):
            yield from parts(one)
    elif hint not in (NoneType, Ellipsis):
        yield hint


KEPT = """
    Snapshot.driver Snapshot.cuda Snapshot.host_usage Gpu.memory Gpu.instances Gpu.holdings Gpu.xids
    Gpu.uuid Gpu.name Gpu.bus_id Gpu.words Gpu.pcie_link Gpu.throttle
    Gpu.compute_mode Gpu.holdings_note Instance.uuid Instance.name Holding.kind Process.program Process.state
    Process.terminal Unlisted.gpus Declared.frameworks Declaration.channel Declaration.framework Declaration.limits
    Limit.gpu Visible.gpus Hint.rule ProcessContext.server Container.runtime Pane.program Run.launcher
"""
"""Texts that are recorded as they are: words of the driver or of gpuwatch."""


def test_every_text_of_a_snapshot_has_a_treatment_or_is_kept() -> None:
    private = {
        f"{kind.__name__}.{name}"
        for kind in structs(Snapshot, [])
        for name, hint in get_type_hints(kind).items()
        if str in parts(hint)
        or name in ("uid", "viewer", "login_uid")
        or (
            kind in TREATMENTS and any(isinstance(one, type) and issubclass(one, msgspec.Struct) for one in parts(hint))
        )
    }
    treated = {f"{kind.__name__}.{name}" for kind, table in TREATMENTS.items() for name in table}
    assert private == treated | {*KEPT.split()}
    assert not treated & {*KEPT.split()}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/opt/conda/bin/python3.11 -u /home/ada/x/train.py --lr 3", "train.py"),
        ("python -m torch.distributed.run --nproc 4 a.py", "torch.distributed.run"),
        ("python -c 'import secret'", "python"),
        ("VLLM::EngineCore", "VLLM::EngineCore"),
        ("python 'torn quote", "'torn"),
        ("", ""),
        ("gunicorn: master [app]", "gunicorn"),
        ("/usr/bin/redis-server 127.0.0.1:6379 [/srv/data]", "redis-server"),
    ],
)
def test_a_command_line_is_cut_to_its_program(command: str, name: str) -> None:
    assert program_of(command) == name


def played(path: Path, snapshots: list[Snapshot], commands: Commands) -> tuple[list[Snapshot], list[Any]]:
    """Record snapshots; return what is read again: the snapshots, and all texts of the file."""
    recording = Recording([record(path, snapshots, commands=commands)])
    again = list(recording.snapshots())
    tables = {name for (name,) in ask(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")} - {"snapshots"}
    cells = [str(cell) for name in tables for row in ask(path, f"SELECT * FROM {name}") for cell in row]
    standing = [recording.play(row.since)[0] for row in recording.rows]
    whole = [msgspec.to_builtins(one) for one in (*again, *recording.minutes(), *recording.events().alerts, *standing)]
    return again, [*strings(whole), *cells]


SECRET = "/home/ingrid/hushhush"


def secretive(seconds: int = 80) -> list[Snapshot]:
    """Return snapshots whose texts all tell something: each private one has a word that nothing else has."""
    told = Declared(
        declarations=(
            Declaration(channel="--share", where="command line of parent 6", text="--share hushparent", kind=Kind.CAP),
            Declaration(
                channel="--share", where="command line", text=f"--share {SECRET}", kind=Kind.CAP, why=f"of {SECRET}"
            ),
        )
    )
    one = process(
        7,
        "ingrid",
        command=f"python train.py --data {SECRET} --token hushtoken",
        declared=told,
        context=ProcessContext(run=Run(key=f"rdzv {SECRET}", name="train.py"), words=f"no {SECRET}"),
    )
    return [
        snapshot(
            [gpu(0, holdings=[holding(7)])],
            [one],
            host="lab-secret",
            taken=1795269780.0 + second,
            monotonic=1000.0 + second,
        )
        for second in range(seconds)
    ]


def test_no_argument_is_recorded_and_stand_ins_hide_people_hosts_and_programs(tmp_path: Path) -> None:
    again, texts = played(tmp_path / "day", secretive(), Commands.NAMES)
    assert not [one for one in texts if "hush" in one]
    (first,) = again[0].processes
    assert (first.command, first.user, again[0].host) == ("train.py", "ingrid", "lab-secret")
    assert "train.py" in texts
    again, texts = played(tmp_path / "hidden", secretive(), Commands.ANONYMISED)
    assert not [one for one in texts if any(word in one for word in ("hush", "ingrid", "lab-secret", "train"))]
    assert len({one.processes[0].user for one in again}) == len({one.processes[0].uid for one in again}) == 1
    (one,) = secretive(1)
    users = {Anonymiser(Commands.ANONYMISED)(one).processes[0].user for _ in range(3)}
    assert len(users) == 3, "the same text has another stand-in in another run"


def test_the_demo_keeps_its_people_apart(tmp_path: Path) -> None:
    snapshots = demo(60, step=5)
    private = {one.user for one in snapshots[0].processes if one.user not in ("", "root")} | {"lab-gpu-03"}
    again, texts = played(tmp_path / "day", snapshots, Commands.ANONYMISED)
    assert not private & {*texts}
    assert not [one for one in texts if "/home/" in one or any(f"{name} holds" in one for name in private)]
    for before, after in zip(snapshots, again, strict=True):
        named = {
            (was.user, was.uid): (now.user, now.uid) for was, now in zip(before.processes, after.processes, strict=True)
        }
        assert len({*named.values()}) == len(named)
        assert [(one.pid, one.start) for one in after.processes] == [(one.pid, one.start) for one in before.processes]
        assert [replace(one, promises=()) for one in after.gpus] == [replace(one, promises=()) for one in before.gpus]


def test_a_process_that_changes_is_looked_at_again() -> None:
    anonymiser = Anonymiser(Commands.NAMES)
    (one,) = secretive(1)
    anonymiser(one)
    for changes in ({"command": "python other.py --x hushtwo"}, {"name": "other"}, {"parent": "bash"}):
        changed: Process = msgspec.structs.replace(one.processes[0], **changes)
        found = anonymiser(msgspec.structs.replace(one, processes=(changed,)))
        assert not [text for text in strings(msgspec.to_builtins(found)) if "hush" in text]
        assert found.processes[0].name == changed.name


def test_by_default_titles_are_cut_and_paths_that_an_argument_names_are_left_out() -> None:
    title = "serve --data /srv/data on 4"
    (one,) = secretive(1)
    where = (f"{SECRET}/x.yaml", "/home/ada/train.py")
    changed = process(
        7,
        name=title,
        parent=title,
        command=f"python /home/ada/train.py --config {SECRET}/x.yaml",
        context=ProcessContext(run=Run(key="7:1", name=title)),
        declared=Declared(declarations=tuple(Declaration(channel="x", where=one, kind=Kind.CAP) for one in where)),
    )
    (found,) = Anonymiser(Commands.NAMES)(msgspec.structs.replace(one, processes=(changed,))).processes
    assert found.context is not None
    assert found.context.run is not None
    assert found.declared is not None
    assert (found.name, found.parent, found.context.run.name) == ("serve", "serve", "serve")
    config, script = (declaration.where for declaration in found.declared.declarations)
    assert "hush" not in config
    assert script == "/home/ada/train.py"


def test_no_text_of_an_alert_has_an_argument(tmp_path: Path) -> None:
    """It overshoots what it declared, and the alert quotes the declaration and the command line."""
    text = f"--share 0.1 {SECRET}"
    told = Declared(
        declarations=(Declaration(channel="--share", where="command line", text=text, kind=Kind.CAP),),
        limits=(Limit(gpu=gpu(0).key, bytes=int(GIB), declaration=0),),
    )
    one = secretive(1)[0]
    whose = msgspec.structs.replace(one.processes[0], declared=told)
    base = msgspec.structs.replace(one, gpus=(gpu(0, holdings=[holding(7, 60)]),), processes=(whose,))
    for commands in (Commands.NAMES, Commands.ANONYMISED):
        path = tmp_path / commands
        _, texts = played(path, [at(base, float(second)) for second in range(20)], commands)
        assert "over declared" in {one.rule for one in Recording([path]).events().alerts}
        assert not [one for one in texts if "hush" in one]


def test_rules_of_the_user_are_not_applied_with_stand_ins(tmp_path: Path) -> None:
    """Their names may be those of people."""
    rule = CustomRule(name="ada-too-much", when="processes>0", after=0.0)
    limits = Limits(custom=(rule,), quiet=0.0)
    for commands, count in ((Commands.NAMES, 1), (Commands.ANONYMISED, 0)):
        path = record(tmp_path / commands, small(2), commands=commands, limits=limits)
        assert len({one.rule for one in Recording([path]).events().alerts} & {"ada-too-much"}) == count
        assert (b"ada-too-much" in path.read_bytes()) == bool(count)
