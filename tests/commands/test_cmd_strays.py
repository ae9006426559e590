"""`gpuwatch strays`: its table and its JSON, what one look cannot tell, and the second look at the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from rich.cells import cell_len

from gpuwatch.analysis.stray_facts import StrayLimits
from gpuwatch.analysis.strays import Stray, StrayReport, find_strays, notes
from gpuwatch.base import files, procfs, psinfo
from gpuwatch.base.procfs import boot_id
from gpuwatch.cli import parse
from gpuwatch.commands import stray_inputs
from gpuwatch.commands import strays as command
from gpuwatch.commands.strays import document, table
from gpuwatch.model.live import FILE, Status
from gpuwatch.model.snapshot import Idle, IdleHolding, IdleTimes, Pane, ProcessContext, Run, Unlisted
from gpuwatch.sources.sampler_process import SamplerProcess
from tests.driver import Driver, Gpu, Proc
from tests.support.builders import EPOCH, GIB, gpu
from tests.support.program import Call, needs_root
from tests.support.screen import HOSTILE
from tests.support.strays import HOUR, LEFT, find, held, left, machine, mine, told
from tests.support.waiting import wait_for

NOW = machine([], [])


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


def found() -> list[Stray]:
    """Return an orphan, a zombie, and a leftover that NVML does not list."""
    orphan = mine(around=ProcessContext(pane=Pane(program="tmux", session="$1", alive=False)), **LEFT)
    zombie = mine(101, state="zombie", ppid=90, parent="python")
    rest = mine(102, ProcessContext(run=Run(key="90:90", orphaned=True)), **LEFT)
    row = Unlisted(process=rest, gpus=(gpu(1).key,), cuda_context=True)
    base = machine([orphan, zombie], [held(100, 2)], [held(100, 10), held(101, 1)], unlisted=(row,))
    return find(base, told((0, 100, 90100.0, True), (1, 100, 90000.0, True), (1, 101, 120.0)))


# ---------------------------------------------------------------------------------------------------------------
# What is printed


def test_a_stray_is_a_row_and_a_line_of_reasons() -> None:
    lines = table(found(), EPOCH)
    assert lines[1] == "100  0-1  12.0  ≥1d01h  1h00m  leftover, certain  tmux $1  train.py"
    assert lines[2].endswith("its tmux session has ended · its parent has ended · no SM use for at least 1 d 1 h")
    assert "90 python, has not collected its exit status · no signal ends it" in lines[4]
    assert lines[5].split()[:4] == ["102", "1", "—", "—"]
    assert "it has the GPU open, and NVML does not list it" in lines[6]
    assert lines[-2:] == ["3 processes hold at least 13.0 GiB", "to end them: gpuwatch kill 100 102"]
    cut = table(found(), EPOCH, width=50, root=True)
    assert cut[1] == "100  0-1  12.0  ≥1d01h  1h00m  leftover, certain …"
    assert cut[2:-1] == lines[2:-1] or cut[2].endswith("no SM use for at least 1 d 1 h")
    assert cut[-1] == "to end them: gpuwatch kill --allow-root-kill 100 102"


@pytest.mark.parametrize("words", HOSTILE)
def test_any_command_is_text_and_costs_no_other_line(words: str) -> None:
    (orphan, *_) = found()
    evil = structs.replace(orphan, process=structs.replace(orphan.process, command=words, user=words))
    lines = table([evil], EPOCH, width=100)
    assert len(lines) == len(table([orphan], EPOCH))
    assert all(cell_len(line) <= 100 for line in lines)
    assert json.loads(msgspec.json.encode(document([evil], EPOCH)))[0]["command"] == words


def possible(*pids: int) -> list[Stray]:
    """Give orphans of whom nobody knows whether they are idle."""
    return find_strays(machine([left(pid=pid) for pid in pids], [held(pid) for pid in pids]), None).possible


def said(strays: list[Stray], maybe: list[Stray], watched: float | None = None, **changes: Any) -> list[str]:
    """Return what the rows do not say."""
    return notes(StrayReport(strays, maybe, []), machine([], [], **{"searched": EPOCH, **changes}), watched)


def test_notes_say_what_one_look_cannot_tell() -> None:
    nobody = "none of your processes is a stray"
    assert said([], []) == [nobody], "somebody watches"
    assert said([], [], 1800.0) == [nobody]
    assert "not all processes were examined" in said(found(), [], searched=0.0)[0]
    assert said([], [], 60.0) == [nobody], "nothing has run for so long"
    first, second = notes(StrayReport([], [], []), machine([mine()], [], searched=EPOCH), 60.0)
    assert first == nobody
    assert second.startswith("to know which processes have been idle for 30 min")
    assert said(found(), []) == []
    (one,) = said(found(), possible(100))
    assert one.startswith("1 of your processes may be a stray (100): to know whether it is idle takes ")
    (one,) = said([], possible(100, 101), 0.0)
    assert one.startswith("2 of your processes may be strays (100, 101): to know whether they are idle")


def test_under_sudo_the_processes_of_who_called_it_are_judged() -> None:
    called = 54321 if os.geteuid() == 0 else os.geteuid()  # SUDO_UID says nothing where nobody became root
    assert stray_inputs.caller({"SUDO_UID": "54321"}) == called
    assert stray_inputs.caller({}) == os.geteuid()


def a_watch(runtime: Path, pid: int, uid: int, *, ago: float = 0.0, interval: float = 600.0) -> None:
    """Leave what a `gpuwatch watch` of that user leaves, who has seen one process idle for two hours."""
    rests = (IdleHolding(gpu(0).key, pid, pid, 2 * HOUR, at_least=False),)
    told = Status(monotonic=time.monotonic() - ago, interval=interval, boot=boot_id(), resting=rests)
    folder = runtime / "gpuwatch"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / FILE).write_bytes(msgspec.json.encode(told))
    for path in (runtime, folder, folder / FILE):
        os.chown(path, uid, -1)


def test_under_sudo_idle_times_are_roots_and_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, caller = tmp_path / "0", tmp_path / "caller"
    us = os.geteuid()
    other = 54321 if us == 0 else us  # nobody but root can give a file away
    folders = {0: root / "gpuwatch", other: caller / "gpuwatch"}
    monkeypatch.setattr(files, "runtime_folder", lambda environ=None, uid=None: folders[uid])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    sudo = {"SUDO_UID": str(other)}

    def kept() -> list[int] | None:
        found = stray_inputs.idle_times(NOW, sudo)
        return found if found is None else sorted(pid for _, pid, _ in found)

    assert kept() is None
    a_watch(caller, 100, other)
    assert kept() == [100]
    if us == 0:
        a_watch(root, 101, 0, ago=100.0)
        assert kept() == [100], "root's watch looked too long ago"
        a_watch(root, 101, 0)
        assert kept() == [100, 101]
        assert [pid for _, pid, _ in stray_inputs.idle_times(NOW, {}) or ()] == [101]
        a_watch(caller, 100, 4321)
        a_watch(root, 101, 4321)
        assert kept() is None, "neither is whose it should be"


KEY = (gpu(0).key, 100, 100)


@pytest.mark.parametrize(
    ("mine", "theirs", "known"),
    [
        (None, Idle(700.0, at_least=True), Idle(700.0, at_least=True)),
        (Idle(60.0, at_least=True), Idle(700.0, at_least=True), Idle(700.0, at_least=True)),
        (Idle(60.0, at_least=False), Idle(700.0, at_least=True), Idle(60.0, at_least=False)),
        (Idle(900.0, at_least=False), Idle(700.0, at_least=True), Idle(900.0, at_least=False)),
        (Idle(60.0, at_least=False), Idle(700.0, at_least=False), Idle(60.0, at_least=False)),
    ],
)
def test_idle_times_are_those_of_the_service_and_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mine: Idle | None, theirs: Idle, known: Idle
) -> None:
    needs_root()
    own, service = tmp_path / "own", tmp_path / "service"
    monkeypatch.setattr(files, "runtime_folder", lambda environ=None, uid=None: own)
    for folder, idle in ((own, mine), (service, theirs)):
        folder.mkdir(mode=0o700)
        rests = () if idle is None else (IdleHolding(*KEY, *idle),)
        told = Status(monotonic=time.monotonic(), boot=boot_id(), resting=rests)
        (folder / FILE).write_bytes(msgspec.json.encode(told))
    assert stray_inputs.idle_times(NOW, {}, service=service) == {KEY: known}
    (service / FILE).chmod(0o666)
    assert stray_inputs.idle_times(NOW, {}, service=service) == ({} if mine is None else {KEY: mine})


# ---------------------------------------------------------------------------------------------------------------
# The second look


def test_the_second_look_tells_what_the_cpu_and_its_children_do() -> None:
    with sleeper() as process:
        rests = mine(process.pid, start=procfs.read_stat(process.pid).start_ticks, cpu=99.0)
        ours = mine(os.getpid(), start=procfs.read_stat(os.getpid()).start_ticks, cpu=0.0)
        base = machine([rests, ours, mine(7, cpu=12.0)], [held(process.pid)])
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:

            def burn(seconds: float) -> None:
                before, below = psinfo.read_usage(os.getpid()).cpu, psinfo.read_usage(child.pid).cpu
                while psinfo.read_usage(os.getpid()).cpu - before < 0.6:
                    sum(range(10_000))
                wait_for(lambda: psinfo.read_usage(child.pid).cpu - below >= 0.3)

            try:
                seen = command.measure_cpu(base, [rests, ours], pause=burn, clock=iter((0.0, 0.5)).__next__)
            finally:
                child.kill()
    found = {one.pid: one for one in seen.processes}
    assert (found[process.pid].cpu, found[7].cpu) == (0.0, 12.0)
    assert float(found[os.getpid()].cpu) >= 100.0
    assert float(found[os.getpid()].below) >= 50.0


# ---------------------------------------------------------------------------------------------------------------
# From end to end


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        (["*@1 ret=15"], "lost, cannot be reached"),
        (["nvmlDeviceGetComputeRunningProcesses_v3@1 ret=4"], "no permission to list this GPU's processes"),
    ],
)
def test_a_gpu_that_cannot_be_judged_is_named_on_stderr(
    driver: Driver, call: Call, faults: list[str], why: str
) -> None:
    driver.gpus = [Gpu(0), Gpu(1)]
    driver.faults = faults
    driver.write()
    code, out, err = call("strays", "--json")
    assert (code, json.loads(out)) == (0, [])
    first, second, *_ = err.splitlines()
    assert first == "gpuwatch: no strays found"
    assert second.startswith(f"gpuwatch: GPU 1 could not be checked: {why}")


def test_a_process_that_is_stopped_is_found_on_a_real_machine(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in driver.env().items():
        monkeypatch.setenv(name, value)
    with sleeper() as process, sleeper() as other:
        driver.procs = [Proc(0, process.pid, memory=2 * GIB), Proc(0, other.pid, memory=2 * GIB)]
        driver.write()
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: procfs.read_stat(process.pid).state == "T")
        start = procfs.read_stat(process.pid).start_ticks
        kept: IdleTimes = {(str(driver.gpus[0].uuid), process.pid, start): Idle(90.0, at_least=True)}
        monkeypatch.setattr(command, "idle_times", lambda snapshot, warn: kept)
        found: list[dict[str, Any]] = []

        def search() -> bool:
            child = SamplerProcess()
            try:
                assert command.main(parse(["strays", "--json"]), child, StrayLimits(settled_after=0.0)) == 0
            finally:
                child.kill()
            found.extend(json.loads(capsys.readouterr().out))
            return bool(found)

        # One snapshot waits 2 s for what processes run in; a loaded machine takes longer.
        wait_for(search)
        (row,) = found
    assert (row["pid"], row["cause"], row["held"]) == (process.pid, "stopped", 2 * GIB)
