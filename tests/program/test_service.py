"""The machine's service: root publishes the shares of all, and an ordinary user reads them, with two real uids.

All of it happens in a mount namespace in which /run and /var/lib are empty, so that nothing of the machine is changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch import published
from gpuwatch.cli import parse
from gpuwatch.commands import watch
from gpuwatch.errors import UsageError
from gpuwatch.model import Declaration, Declared, Kind, Knowledge, Limit, Presence, Visible
from gpuwatch.published import FILE, PublishedFile, PublishedReader, publish, read_published
from tests import CHECKOUT
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.builders import gpu, holding, process, snapshot
from tests.support.gpuholder import ME, SOMEBODY_ELSE, unavailable
from tests.support.reserving import needs_root

PROGRAM = r"""
import json, os, subprocess, sys, time
from pathlib import Path

sys.path.insert(0, os.getcwd())
from gpuwatch.model import encode
from gpuwatch.published import PublishedReader
from gpuwatch.recorder.store import reading, stores_read
from gpuwatch.sampler.declarations import Declarations
from gpuwatch.sampler.owners import Owners
from tests.support import builders
from tests.support.explaining import InProcessInspector

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
    cards = [builders.gpu(0, uuid=uuid, holdings=[builders.holding(pid, 20, start=training.start)])]
    told = []
    for shares in ({}, PublishedReader().read()):
        asking = Declarations(InProcessInspector())
        asking.published = shares
        (one,) = asking.annotate([training], cards, 1)
        told.append(json.loads(encode(builders.snapshot(cards, [one])))["processes"][0]["declared"])
    print(json.dumps({"uid": os.geteuid(), "raw": raw, "stores": stores, "told": told}), flush=True)
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
        words = [sys.executable, "-c", PROGRAM, str(ME), str(training.pid), str(driver.gpus[0].uuid)]
        done = subprocess.run(
            ["unshare", "--mount", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=CHECKOUT,
            env=driver.env(),
        )
        training.kill()
    if "unshare:" in done.stderr:
        unavailable(f"no mount namespace can be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3, done.stderr
    seen, past, after = map(json.loads, done.stdout.splitlines())
    assert seen["uid"] == ME
    without, told = seen["told"]
    assert without["knowledge"] == "unreadable"
    (limit,) = told["limits"]
    assert limit["bytes"] == pytest.approx(0.4 * 79.6 * GIB, rel=0.01)
    assert told["declarations"][0]["channel"] == "GPUWATCH_SHARE"
    assert told["declarations"][0]["why"] == published.SOURCE
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


def test_shares_are_published_without_text_and_come_back_as_declarations(tmp_path: Path) -> None:
    needs_root()
    PublishedFile(tmp_path / "run").write(publish(seen_by_root(), time.monotonic()))
    assert "secret" not in (tmp_path / "run" / FILE).read_text()
    (declared,) = PublishedReader(tmp_path / "run").read().values()
    assert [(one.gpu, one.bytes) for one in declared.limits] == [(gpu(0).uuid, 20 * GIB)]
    (of,) = declared.declarations
    assert (of.channel, of.where, of.line, of.value, of.effective) == ("set_limit", "train.py", 12, 0.4, True)
    assert declared.visible is not None
    assert declared.visible.gpus == (gpu(0).uuid,)
    assert declared.visible.text == "CUDA_VISIBLE_DEVICES"


def test_what_is_not_read_or_hidden_is_not_published() -> None:
    assert publish(seen_by_root(), 1.0, hidden=True).processes == ()
    assert publish(seen_by_root(presence=Presence.UNSURE), 1.0).processes == ()
    unread = process(11, declared=Declared(knowledge=Knowledge.UNREADABLE))
    assert publish(snapshot([gpu(0, holdings=[holding(11, 1)])], [unread]), 1.0).processes == ()


def other(**changes: Any) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        file.write_bytes(
            msgspec.json.encode(msgspec.structs.replace(publish(seen_by_root(), time.monotonic()), **changes))
        )

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
        (linked, "is a link"),
        (torn, "is damaged"),
        (other(boot="before"), "of another boot"),
        (other(pid_namespace=1), "another PID namespace"),
        (other(monotonic=1.0), "s old"),
        (other(monotonic=time.monotonic() + 1e6), "s old"),
        (other(schema=published.SCHEMA + 1, version="9.9"), "upgrade this gpuwatch"),
        (other(schema=published.SCHEMA - 1, version="0.0"), "upgrade the service"),
    ],
)
def test_what_root_alone_did_not_write_here_and_now_is_refused(
    tmp_path: Path, change: Callable[[Path], None], why: str
) -> None:
    needs_root()
    PublishedFile(tmp_path / "run").write(publish(seen_by_root(), time.monotonic()))
    file = tmp_path / "run" / FILE
    change(file)
    assert why in read_published(tmp_path / "run").why
    assert PublishedReader(tmp_path / "run").read() == {}


def test_a_service_is_root_alone_and_for_the_whole_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for words, wrong in ((["--service"], "only root"), (["--service", "--only", "0"], "--only")):
        with pytest.raises(UsageError, match=wrong):
            watch.main(parse(["watch", *words]), None)
