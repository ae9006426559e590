"""What a recording must not have: arguments of command lines, and with `--anonymise` whatever tells of people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from gpuwatch.alerts.engine import Engine
from gpuwatch.history import History
from gpuwatch.minute import Minute, MinuteMaker
from gpuwatch.model import Declaration, Declared, Job, Kind, Process, Snapshot, Surroundings
from gpuwatch.monitor import Frame
from gpuwatch.recording.anonymise import TREATMENTS, Anonymiser, Treatment, program_of
from gpuwatch.recording.format import Commands
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.replay import all_minutes, events_of
from gpuwatch.recording.writer import RecordingWriter
from tests.recording.test_hostile import strings
from tests.recording.test_reader import demo
from tests.support.builders import gpu, holding, process, snapshot
from tests.support.recording import alert


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


def test_every_text_of_a_snapshot_has_a_treatment() -> None:
    missing = [
        f"{kind.__name__}.{name}"
        for kind in structs(Snapshot, [])
        for name, hint in get_type_hints(kind).items()
        if (str in parts(hint) or name in ("uid", "viewer", "login_uid")) and name not in TREATMENTS.get(kind, {})
    ]
    assert not missing


def test_every_treatment_is_of_a_text_that_there_is() -> None:
    kinds = structs(Snapshot, [])
    assert {*TREATMENTS} <= {*kinds}
    assert not [
        (kind, name) for kind, table in TREATMENTS.items() for name in table if name not in get_type_hints(kind)
    ]


def test_all_texts_of_gpus_are_kept() -> None:
    """`Anonymiser.snapshot` does not look at them."""
    hint = get_type_hints(Snapshot)["gpus"]
    (gpu_type,) = parts(hint)
    assert all({*TREATMENTS.get(kind, {}).values()} <= {Treatment.KEEP} for kind in structs(gpu_type, []))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --data /secret", "train.py"),
        ("/opt/conda/bin/python3.11 -u /home/ada/x/train.py --lr 3", "train.py"),
        ("python -m torch.distributed.run --nproc 4 a.py", "torch.distributed.run"),
        ("python -c 'import secret'", "python"),
        ("/usr/bin/ollama serve", "ollama"),
        ("VLLM::EngineCore", "VLLM::EngineCore"),
        ("python 'torn quote", "'torn"),
        ("ray::Trainer.fit(secret)", "ray::Trainer.fit(secret)"),
        ("", ""),
        ("serve --password *** --data /srv/data", "serve"),
        ("gunicorn: master [app]", "gunicorn"),
        ("/usr/bin/redis-server 127.0.0.1:6379 [/srv/data]", "redis-server"),
    ],
)
def test_a_command_line_is_cut_to_its_program(command: str, name: str) -> None:
    assert program_of(command) == name


def played(path: Path, snapshots: list[Snapshot], commands: Commands) -> tuple[list[Snapshot], list[Any]]:
    """Record snapshots with their alerts; return what is read again: the snapshots, and all strings of the file."""
    writer, history, engine, maker = RecordingWriter(path, commands=commands), History(), Engine(), MinuteMaker()
    for one in snapshots:
        view = history.add(one, one.taken)
        changes = engine.update(one, view, one.taken, one.taken)
        found = (*changes.active, alert(evidence=one.processes[0].command, title=f"{one.processes[0].user} holds it"))
        minute = maker.add(one, view, found, changes.cleared)
        writer.take(Frame(one, one.taken, view, alerts=found, cleared=changes.cleared, minute=minute))
    writer.close(30.0)
    with Recording([path]) as recording:
        again, minutes = list(recording.snapshots()), list(recording.minutes())
        whole = [msgspec.to_builtins(one) for one in (*again, *minutes, recording.header)]
    return again, [*strings(whole)]


SECRET = "/home/ada/hushhush"


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
        "ada",
        command=f"python train.py --data {SECRET} --token hushtoken",
        declared=told,
        surroundings=Surroundings(job=Job(key=f"rdzv {SECRET}", name="train.py"), words=f"no {SECRET}"),
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


def test_by_default_no_argument_of_a_command_line_is_recorded(tmp_path: Path) -> None:
    again, texts = played(tmp_path / "day.gz", secretive(), Commands.NAMES)
    assert not [one for one in texts if "hush" in one]
    (first,) = again[0].processes
    assert (first.command, first.user, again[0].host) == ("train.py", "ada", "lab-secret")
    assert "train.py" in texts  # the evidence of the alert


def test_all_is_recorded_where_the_user_says_so(tmp_path: Path) -> None:
    snapshots = secretive()
    assert played(tmp_path / "day.gz", snapshots, Commands.ALL)[0] == snapshots


def test_stand_ins_hide_people_hosts_and_programs(tmp_path: Path) -> None:
    again, texts = played(tmp_path / "day.gz", secretive(), Commands.ANONYMISED)
    assert not [one for one in texts if any(word in one for word in ("hush", "ada", "lab-secret", "train"))]
    assert len({one.processes[0].user for one in again}) == len({one.processes[0].uid for one in again}) == 1


def test_the_demo_keeps_its_people_apart(tmp_path: Path) -> None:
    snapshots = demo(150, step=5)
    private = {one.user for one in snapshots[0].processes if one.user not in ("", "root")} | {"lab-gpu-03"}
    again, texts = played(tmp_path / "day.gz", snapshots, Commands.ANONYMISED)
    assert not private & {*texts}
    assert not [one for one in texts if "/home/" in one or any(f"{name} holds" in one for name in private)]
    for before, after in zip(snapshots, again, strict=True):
        named = {
            (was.user, was.uid): (now.user, now.uid) for was, now in zip(before.processes, after.processes, strict=True)
        }
        assert len({*named.values()}) == len(named)
        assert [(one.pid, one.start) for one in after.processes] == [(one.pid, one.start) for one in before.processes]
        assert after.gpus == before.gpus


def test_the_same_text_has_another_stand_in_in_another_run() -> None:
    (one,) = secretive(1)
    users = {Anonymiser(Commands.ANONYMISED).snapshot(one).processes[0].user for _ in range(3)}
    assert len(users) == 3


def test_a_process_that_changes_is_looked_at_again() -> None:
    anonymiser = Anonymiser(Commands.NAMES)
    (one,) = secretive(1)
    anonymiser.snapshot(one)
    for changes in ({"command": "python other.py --x hushtwo"}, {"name": "other"}, {"parent": "bash"}):
        changed: Process = msgspec.structs.replace(one.processes[0], **changes)
        found = anonymiser.snapshot(msgspec.structs.replace(one, processes=(changed,)))
        assert not [text for text in strings(msgspec.to_builtins(found)) if "hush" in text]
        assert found.processes[0].name == changed.name


def test_by_default_a_title_is_cut_to_its_program_wherever_it_is_a_name() -> None:
    title = "serve --data /srv/data on 4"
    (one,) = secretive(1)
    job = Job(key="7:1", name=title)
    changed: Process = msgspec.structs.replace(
        one.processes[0], name=title, parent=title, command="python a.py", surroundings=Surroundings(job=job)
    )
    anonymiser = Anonymiser(Commands.NAMES)
    found = anonymiser.snapshot(msgspec.structs.replace(one, processes=(changed,))).processes[0]
    assert found.surroundings is not None
    assert found.surroundings.job is not None
    assert (found.name, found.parent, found.surroundings.job.name) == ("serve", "serve", "serve")
    (held,) = anonymiser.minute(Minute(at=60.0, alerts=(alert(pids=(7,), evidence=f"pid 7 {title} waits"),))).alerts
    assert held.evidence == "pid 7 serve waits"


def test_by_default_the_path_of_a_file_that_an_argument_names_is_not_recorded() -> None:
    (one,) = secretive(1)
    told = Declared(
        declarations=(
            Declaration(channel="--share", where=f"{SECRET}/x.yaml", kind=Kind.CAP),
            Declaration(channel="--share", where="/home/ada/train.py", kind=Kind.CAP),
        )
    )
    changed = msgspec.structs.replace(
        one.processes[0], command=f"python /home/ada/train.py --config {SECRET}/x.yaml", declared=told
    )
    found = Anonymiser(Commands.NAMES).snapshot(msgspec.structs.replace(one, processes=(changed,))).processes[0]
    assert found.declared is not None
    config, script = (one.where for one in found.declared.declarations)
    assert "hush" not in config
    assert script == "/home/ada/train.py"


def test_by_default_an_alert_about_a_process_that_was_never_seen_has_no_evidence() -> None:
    """It was restored from the store, and its process had ended before."""
    held = alert(pids=(9,), evidence=f"CUDA_VISIBLE_DEVICES=1 · python train.py --data {SECRET}")
    minute = Anonymiser(Commands.NAMES).minute(Minute(at=60.0, alerts=(held,), ended=(held,)))
    assert [one.evidence for one in (*minute.alerts, *minute.ended)] == ["", ""]


def test_by_default_no_title_or_end_of_an_alert_has_an_argument() -> None:
    anonymiser = Anonymiser(Commands.NAMES)
    anonymiser.snapshot(secretive(1)[0])
    held = alert(pids=(7,), title=f"7 (ada) is on GPU 0, its --data {SECRET} shows 1", how=f"{SECRET} was freed")
    (found,) = anonymiser.minute(Minute(at=60.0, alerts=(held,))).alerts
    assert "hush" not in found.title + found.how
    assert found.title


def test_an_alert_goes_on_as_the_same_where_its_minute_is_played(tmp_path: Path) -> None:
    """Its key must stay that of the condition: each alert of the demo was an event twice."""
    path = tmp_path / "day.gz"
    writer, history, engine, maker = (
        RecordingWriter(path, commands=Commands.ANONYMISED),
        History(),
        Engine(),
        MinuteMaker(),
    )
    for one in demo(200, step=5):
        view = history.add(one, one.taken)
        found = engine.update(one, view, one.taken, one.taken)
        writer.take(Frame(one, one.taken, view, minute=maker.add(one, view, found.active, found.cleared)))
    writer.close(30.0)
    with Recording([path]) as recording:
        events = [one for one in events_of(all_minutes(recording)) if one.ended is None]
    assert not [one.subject for one in events if one.subject.startswith("name-")]
    assert sorted({one.key for one in events}) == sorted(one.key for one in events)
    assert {one.rule for one in events} >= {"memory near limit", "overbooked"}


def test_the_name_of_a_rule_of_the_user_gets_a_stand_in() -> None:
    held = (alert(rule="ada-too-much"), alert(), alert(rule="ada-too-much"))
    found = Anonymiser(Commands.ANONYMISED).minute(Minute(at=60.0, alerts=held)).alerts
    assert not [text for text in strings(msgspec.to_builtins(found)) if "ada" in text]
    assert found[0].rule == found[2].rule != found[1].rule == "memory near limit"
