"""The machine's service: root publishes the shares of all, and an ordinary user reads them, with two real uids.

All of it happens in a mount namespace in which /run and /var/lib are empty, so that nothing of the machine is changed.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import clean
from gpuwatch.cli import parse
from gpuwatch.commands import watch
from gpuwatch.history.history import History
from gpuwatch.model.live import FILE, OLDEST, SCHEMA, SOURCE, LiveFileError, SharesReader, Status, read_service
from gpuwatch.model.snapshot import (
    Confidence,
    Declaration,
    Declared,
    Idle,
    Kind,
    Knowledge,
    Limit,
    Presence,
    Visible,
    known,
    to_idle_times,
)
from gpuwatch.monitor import Frame
from gpuwatch.recorder.live_writer import LiveFile, make_status, publish
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.builders import at, gpu, holding, process, snapshot
from tests.support.process import ME, SOMEBODY_ELSE
from tests.support.program import answers, needs_root
from tests.support.screen import alert
from tests.support.waiting import PATIENCE, wait_for

PROGRAM = r"""
import json, os, subprocess, sys, time
from pathlib import Path

sys.path.insert(0, os.getcwd())
from gpuwatch.commands.stray_inputs import idle_times
from gpuwatch.model.snapshot import encode
from gpuwatch.model.live import SharesReader
from gpuwatch.recorder.opening import reading
from gpuwatch.recorder.public import stores_read
from gpuwatch.sampler.declarations import DeclarationCache
from gpuwatch.sampler.owners import Owners
from tests.support import builders
from tests.support.declared import InProcessInspector

# What is imported now needs no rights later.
me, pid, uuid = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for place in ("/run", "/var/lib"):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place], check=True)
service = subprocess.Popen([sys.executable, "-m", "gpuwatch", "watch", "--service", "--quiet"])
file, deadline = Path("/run/gpuwatch/live.json"), time.monotonic() + 60
while not (file.exists() and b'"bytes"' in file.read_bytes()):
    assert service.poll() is None and time.monotonic() < deadline, "the service publishes nothing"
    time.sleep(0.05)
raw = file.read_text()
stores = [str(path) for path in Path("/var/lib").rglob("*")]
if os.fork() == 0:
    os.setgroups([])
    os.setresgid(me, me, me)
    os.setresuid(me, me, me)
    (training,) = Owners().read([pid])
    gpus = [builders.gpu(0, uuid=uuid, holdings=[builders.holding(pid, 20, start=training.start)])]
    told = []
    for shares in ({}, SharesReader().read()):
        asking = DeclarationCache(InProcessInspector())
        asking.published = shares
        (one,) = asking.annotate([training], gpus, 1)
        told.append(json.loads(encode(builders.snapshot(gpus, [one])))["processes"][0]["declared"])
    idle = [pid for _, pid, _ in idle_times(builders.snapshot(gpus)) or ()]
    print(json.dumps({"uid": os.geteuid(), "raw": raw, "stores": stores, "told": told, "idle": idle}), flush=True)
    os._exit(0)
os.wait()
while not 2 < time.time() % 60 < 59:  # a minute that has hardly begun may have no value yet
    time.sleep(0.1)
service.terminate()
code = service.wait()
if os.fork() == 0:
    os.setgroups([])
    os.setresgid(me, me, me)
    os.setresuid(me, me, me)
    day, own = stores_read()
    with reading(day) as connection:
        (count,) = connection.execute("SELECT count(*) FROM gpu_values").fetchone()
    private = os.access(own, os.F_OK) or os.access("/var/lib/gpuwatch/gpuwatch", os.R_OK)
    print(json.dumps({"day": str(day), "values": count, "private": private}), flush=True)
    os._exit(0)
os.wait()
print(json.dumps({"code": code, "left": file.exists()}))
"""


def test_an_ordinary_user_sees_what_only_root_can_read(driver: Driver) -> None:
    needs_root()
    secret = "/home/ada/secret-project"
    environment = {"GPUWATCH_SHARE": "0.4", "SECRET": secret}
    with subprocess.Popen(["sleep", "600"], env=environment, user=SOMEBODY_ELSE, cwd="/") as training:
        driver.gpus = [Gpu(0)]
        driver.procs = [Proc(0, training.pid, memory=20 * GIB)]
        driver.write()
        words = (ME, training.pid, driver.gpus[0].uuid)
        seen, past, after = answers(PROGRAM, *words, enter=("unshare", "--mount"), env=driver.env())
        training.kill()
    assert seen["uid"] == ME
    without, told = seen["told"]
    assert without["knowledge"] == "unreadable"
    (limit,) = told["limits"]
    assert limit["bytes"] == pytest.approx(0.4 * 79.6 * GIB, rel=0.01)
    assert told["declarations"][0]["channel"] == "GPUWATCH_SHARE"
    assert told["declarations"][0]["why"] == SOURCE
    assert seen["idle"] == [training.pid]
    assert not any(words in seen["raw"] for words in (secret, "SECRET", "sleep"))
    assert any(path.startswith("/var/lib/gpuwatch/") for path in seen["stores"]), seen["stores"]
    assert past["day"].startswith("/var/lib/gpuwatch/public-")
    assert past["values"] >= 1
    assert not past["private"]
    assert after == {"code": 0, "left": False}


# ---------------------------------------------------------------------------------------------------------------
# What is published, and what is refused


SECRET = "/home/ada/secret"


def seen_by_root(**changes: Any) -> Any:
    """Return a snapshot with a process whose declaration quotes a path, an argument and a title."""
    card = gpu(0, holdings=[holding(11, 30)])
    of = Declaration(
        channel="set_limit",
        where=f"{SECRET}/train.py",
        line=12,
        text=f"set_limit('{SECRET}')",
        why=SECRET,
        condition=SECRET,
        kind=Kind.CAP,
        value=0.4,
        limits={card.uuid: 20 * GIB},
        effective=True,
    )
    declared = Declared(
        declarations=(of,),
        limits=(Limit(gpu=card.uuid, bytes=20 * GIB, declaration=0),),
        visible=Visible(gpus=(card.uuid,), text=f"CUDA_VISIBLE_DEVICES={SECRET}", where=SECRET, note=SECRET),
        words=SECRET,
    )
    return snapshot([card], [process(11, "ada", command=SECRET, declared=declared, **changes)])


def published(shown: Any = None, *, hidden: bool = False, **changes: Any) -> Status:
    """Return what everybody may know of a snapshot (default: `seen_by_root`)."""
    shown = shown or seen_by_root()
    status = publish(make_status(shown, (), time.monotonic()), shown, hidden=hidden)
    return msgspec.structs.replace(status, **changes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the service's file, as the service writes it."""
    needs_root()
    run, shown = tmp_path / "run", seen_by_root()
    service = LiveFile(lambda: True, run, pace=0.01, public=True)
    service.take(Frame(shown, time.monotonic(), History().view))
    wait_for((run / FILE).exists)
    content = (run / FILE).read_bytes()
    service.close(PATIENCE)
    assert not (run / FILE).exists()
    (run / FILE).write_bytes(content)
    return run / FILE


def test_shares_are_published_without_text_and_come_back_as_declarations(file: Path) -> None:
    assert "secret" not in file.read_text()
    (declared,) = SharesReader(file.parent).read().values()
    assert [(one.gpu, one.bytes) for one in declared.limits] == [(gpu(0).uuid, 20 * GIB)]
    (of,) = declared.declarations
    assert (of.channel, of.where, of.line, of.value, of.effective) == ("set_limit", "train.py", 12, 0.4, True)
    assert declared.visible is not None
    assert declared.visible.gpus == (gpu(0).uuid,)
    assert declared.visible.text == "CUDA_VISIBLE_DEVICES"
    found = read_service(file.parent)
    assert found is not None
    assert [one.used for one in found.gpus] == [30 * GIB]


def test_a_row_of_a_host_is_for_the_users_own_readers_alone() -> None:
    shown = seen_by_root()
    mine = make_status(shown, (alert(0, title="GPU 0 nearly full: ada holds it"),), time.monotonic())
    assert (mine.people, mine.worst, mine.severity) == (1, "GPU 0 nearly full: ada holds it", "critical")
    assert [(one.processes, known(one.left)) for one in mine.gpus] == [(1, True)]
    public = publish(mine, shown)
    assert (public.people, public.worst, public.severity) == (None, "", "")
    assert [(one.processes, known(one.left)) for one in public.gpus] == [(None, False)]


@pytest.mark.parametrize("hidden", [False, True])
def test_who_is_over_and_who_is_idle_is_published_unless_processes_are_hidden(hidden: bool) -> None:
    shown = at(seen_by_root(), 30.0)
    history = History()
    for second in (0.0, 30.0):
        history.add(at(snapshot([gpu(0, holdings=[holding(11, 30, sm=0)])]), second), second)
    over = alert(0, rule=OVERSHOOT, gpu=gpu(0).key, pids=(11,))
    mine = make_status(shown, (over,), time.monotonic(), history.view)
    public = publish(mine, shown, hidden=hidden)
    assert [one.user for one in public.over] == ([] if hidden else ["ada"])
    assert to_idle_times(public.resting) == ({} if hidden else {(gpu(0).key, 11, 11): Idle(30.0, at_least=True)})


def test_what_is_not_read_or_hidden_is_not_published() -> None:
    assert published(hidden=True).processes == ()
    assert published(seen_by_root(presence=Presence.UNSURE)).processes == ()
    unread = process(11, declared=Declared(knowledge=Knowledge.UNREADABLE))
    assert published(snapshot([gpu(0, holdings=[holding(11, 1)])], [unread])).processes == ()


def test_a_limit_that_was_read_is_published_as_likely_where_the_script_is_gone() -> None:
    said = Declaration(channel="XLA_PYTHON_CLIENT_MEM_FRACTION", kind=Kind.CAP, value=0.25, effective=True)
    limit = Limit(gpu=gpu(0).uuid, bytes=20 * GIB, declaration=0)
    gone = Declared(knowledge=Knowledge.UNREADABLE, declarations=(said,), limits=(limit,))
    shown = snapshot([gpu(0, holdings=[holding(11, 1)])], [process(11, declared=gone)])
    (one,) = published(shown).processes
    assert [(limit.bytes, limit.confidence) for limit in one.limits] == [(20 * GIB, Confidence.LIKELY)]
    assert not one.conclusive


@pytest.mark.parametrize("kind", Kind)
def test_a_start_size_or_a_cache_that_is_not_published_is_not_nothing_declared(kind: Kind) -> None:
    said = Declaration(channel="--mem-fraction-static", kind=kind, value=0.3, effective=True)
    shown = snapshot([gpu(0, holdings=[holding(11, 1)])], [process(11, declared=Declared(declarations=(said,)))])
    (one,) = published(shown).processes
    assert one.conclusive is (kind is Kind.DEFAULT)


def other(**changes: Any) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        file.write_bytes(msgspec.json.encode(published(**changes)))

    return change


def torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def linked(file: Path) -> None:
    file.rename(file.with_name("other.json"))
    file.symlink_to("other.json")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda file: file.parent.chmod(0o777), "others can write"),
        (lambda file: file.chmod(0o666), "others can write"),
        (lambda file: os.chown(file, SOMEBODY_ELSE, 0), "belongs to"),
        (lambda file: os.chown(file.parent, SOMEBODY_ELSE, 0), "belongs to uid"),
        (linked, "not a regular file"),
        (torn, "is damaged"),
        (other(boot="before"), "from another boot"),
        (other(pid_namespace=1), "another PID namespace"),
        (other(monotonic=1.0), "s old"),
        (other(monotonic=time.monotonic() + 1e6), "s old"),
        (other(schema=SCHEMA + 1, version="9.9"), "upgrade this gpuwatch"),
        (other(schema=SCHEMA - 1, version="0.0"), "upgrade the service"),
    ],
)
def test_what_root_alone_did_not_write_here_and_now_is_refused(
    file: Path, change: Callable[[Path], None], why: str
) -> None:
    change(file)
    with pytest.raises(LiveFileError, match=why):
        read_service(file.parent)
    assert SharesReader(file.parent).read() == {}


@pytest.mark.parametrize(("interval", "oldest"), [(1.0, OLDEST), (60.0, 184.0)])
def test_the_figures_of_the_service_are_ten_seconds_or_three_samples_old_at_most(
    file: Path, interval: float, oldest: float
) -> None:
    other(monotonic=500.0, interval=interval)(file)
    assert read_service(file.parent, clock=lambda: 500.0 + oldest) is not None
    with pytest.raises(LiveFileError, match="s old"):
        read_service(file.parent, clock=lambda: 501.0 + oldest)


def test_no_words_of_a_scope_or_a_folder_are_published() -> None:
    scopes = (f"genv {SECRET}", f"genv {SECRET}", "genv other")
    of = Declaration(channel="GENV_GPU_MEMORY", where=clean("/secret" * 700), kind=Kind.CAP)
    limits = tuple(Limit(gpu=gpu(0).uuid, bytes=GIB * n, declaration=0, scope=one) for n, one in enumerate(scopes, 1))
    shown = snapshot([gpu(0)], [process(11, declared=Declared(declarations=(of,), limits=limits))])
    found = published(shown)
    assert b"secret" not in msgspec.json.encode(found)
    first, second, third = (one.scope for one in found.processes[0].limits)
    assert first == second != third


def test_texts_of_the_service_are_cleaned_again(file: Path) -> None:
    evil = "\x1b[2Jevil\u202e"
    shown = published()
    one = msgspec.structs.replace(shown.processes[0], sees=(evil,))
    one = msgspec.structs.replace(one, limits=tuple(msgspec.structs.replace(each, gpu=evil) for each in one.limits))
    other(processes=(one,))(file)
    (declared,) = SharesReader(file.parent).read().values()
    assert declared.visible is not None
    assert {*declared.visible.gpus, *(limit.gpu for limit in declared.limits)} == {clean(evil)}


def test_a_service_is_root_alone_and_for_the_whole_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for words, wrong in ((["--service"], "only root"), (["--service", "--gpu", "0"], "--gpu")):
        with pytest.raises(UsageError, match=wrong):
            watch.main(parse(["watch", *words]), None)
