"""Hosts by a real sshd under another user: rows, snapshots, and connections that are refused, killed or stalled."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from gpuwatch.config.types import RemoteHost
from gpuwatch.fleet.host import Host
from gpuwatch.fleet.remote import RemoteSource
from gpuwatch.fleet.ssh import Hosts, Timing, kill_command
from gpuwatch.model.snapshot import Snapshot, SourceState
from tests.driver import GIB, Gpu, Proc
from tests.fleet.sshd import LAB_USER, Sshd, name_of
from tests.support.process import GpuHolder
from tests.support.sampler import until
from tests.support.terminal import Terminal
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

QUICK = Timing(silence=2.0, first=0.2, most=0.5, beat=0.5, keepalive=3.0)
"""Short delays: a test waits for what they lead to."""


@pytest.fixture(scope="module")
def _lab(nvml_library: Path, own_pids: None) -> Iterator[Sshd]:
    with Sshd(nvml_library) as sshd:
        yield sshd


@pytest.fixture
def lab(_lab: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """The other host; each test begins and ends without a login there."""
    monkeypatch.setenv("PATH", _lab.env["PATH"])
    yield _lab
    wait_for(lambda: not _lab.streams(), "gpuwatch still runs over there")
    wait_for(lambda: not ssh_children(), "an ssh is left")


def ssh_children() -> list[psutil.Process]:
    """Return the running ssh processes that this process has started."""
    return [one for one in psutil.Process().children() if name_of(one) == "ssh"]


@contextmanager
def watching(*hosts: RemoteHost, timing: Timing = QUICK) -> Iterator[Callable[[], list[Host]]]:
    """Watch hosts, and yield what reads their rows."""
    thread = Hosts(hosts, timing=timing, pause=0.05)
    thread.begin()
    try:
        yield thread.rows
    finally:
        thread.close()


@contextmanager
def opened(sshd: Sshd) -> Iterator[Callable[[Callable[[Snapshot], object]], Snapshot]]:
    """Open the host, and yield what waits for a snapshot that satisfies a condition."""
    source = RemoteSource(sshd.host, interval=0.2, timing=replace(QUICK, first=2.0))  # a gap that can be seen
    try:
        yield lambda holds: until(source, holds)
    finally:
        source.close()


def has_row(row: Host) -> bool:
    """Return whether a row has figures that came just now."""
    return bool(row.gpus) and not row.trouble


def test_a_row_is_judged_there_and_gone_with_its_reader(lab: Sshd) -> None:
    lab.driver.gpus = [Gpu(0, memory_used=30 * GIB, util_gpu=40), Gpu(1)]
    lab.driver.write()
    with watching(lab.host) as rows:
        wait_for(lambda: has_row(rows()[0]))
        (row,) = rows()
        assert (row.name, [gpu.used for gpu in row.gpus]) == ("lab", [30 * GIB, 0])
        assert row.age is not None
        assert any("--stream=live" in one.cmdline() for one in lab.streams())
        assert len(ssh_children()) == 1
    # The fixture waits until nothing of it is left on either side.


def test_an_opened_host_sends_whole_snapshots_of_its_own_viewer(lab: Sshd) -> None:
    with GpuHolder(uid=LAB_USER) as training:
        lab.driver.gpus, lab.driver.procs = [Gpu(0, memory_used=GIB)], [Proc(0, training.pid, sm=0)]
        lab.driver.write()
        with opened(lab) as until:
            snapshot = until(lambda one: bool(one.processes))
            (process,) = snapshot.processes
            assert (snapshot.host, snapshot.viewer) == ("lab", LAB_USER)
            assert (process.pid, process.start, process.uid) == (training.pid, training.start_ticks, LAB_USER)
            for one in ssh_children():
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            lost = until(lambda one: one.state is SourceState.UNREACHABLE)
            assert [one.pid for one in lost.processes] == [training.pid]
            assert lost.monotonic >= snapshot.monotonic
            until(lambda one: one.state is SourceState.OK and one.monotonic > lost.monotonic)
    lab.driver.procs = []
    lab.driver.write()


@pytest.mark.parametrize(
    ("address", "command", "words"),
    [
        ("stranger", "", "Permission denied (publickey); run `ssh stranger`, which must not ask for a password"),
        ("unknown", "", "Host key verification failed; run `ssh unknown`, and check its key"),
        ("refused", "", "Connection refused"),
        ("nowhere.invalid", "", "Could not resolve hostname"),
        ("lab", "/nowhere/gpuwatch", "/nowhere/gpuwatch was not found; install it"),
        ("lab", "/bin/true", "gpuwatch has ended there"),
        ("lab", "/bin/sh", "sh"),
    ],
)
def test_a_trouble_is_said_in_the_row_and_holds_nothing_up(lab: Sshd, address: str, command: str, words: str) -> None:
    bad = RemoteHost(name="bad", address=address, command=command or lab.host.command)
    with watching(bad, lab.host) as rows:
        wait_for(lambda: words in rows()[0].trouble)
        wait_for(lambda: has_row(rows()[1]))
        assert words in rows()[0].trouble


def test_a_killed_login_comes_back(lab: Sshd) -> None:
    with watching(lab.host) as rows:
        wait_for(lambda: has_row(rows()[0]))
        for one in lab.sessions():
            with suppress(psutil.NoSuchProcess):
                one.kill()
        wait_for(lambda: rows()[0].trouble)
        assert rows()[0].gpus, "its last figures stay, with their age"
        wait_for(lambda: has_row(rows()[0]))


@pytest.mark.parametrize("side", ["here", "there"])
def test_a_stalled_connection_is_cut_on_both_sides(lab: Sshd, side: str) -> None:
    """Nobody closes a pipe: this side hears nothing, and that side is not told that it is still read."""
    with watching(lab.host) as rows:
        wait_for(lambda: has_row(rows()[0]))
        stalled = ssh_children() if side == "here" else lab.sessions()
        running = {one.pid for one in lab.streams()}
        for one in stalled:
            one.send_signal(signal.SIGSTOP)
        wait_for(lambda: "no data for 2 s" in rows()[0].trouble)
        wait_for(lambda: not running & {one.pid for one in lab.streams()}, "gpuwatch over there goes on")
        wait_for(lambda: has_row(rows()[0]))
        for one in stalled if side == "there" else ():
            with suppress(psutil.NoSuchProcess):
                one.kill()


def test_the_program_lists_opens_and_leaves_nothing(lab: Sshd, own_home: Path) -> None:
    (own_home / "config" / "gpuwatch").mkdir(parents=True)
    (own_home / "config" / "gpuwatch" / "gpuwatch.toml").write_text(
        f'[[host]]\nname = "lab"\naddress = "lab"\ncommand = "{lab.host.command}"\n'
    )
    with GpuHolder(uid=LAB_USER, orphan=True) as training:
        lab.driver.gpus, lab.driver.procs = [Gpu(0, memory_used=GIB)], [Proc(0, training.pid, sm=0)]
        lab.driver.write()
        gpuwatch = [str(Path(sys.executable).parent / "gpuwatch"), "--host", "lab"]
        with Terminal(gpuwatch, columns=120, rows=30, env=lab.env) as terminal:
            terminal.wait_for("1 GPU,")
            terminal.send("\r")
            terminal.wait_for(str(training.pid))
            assert "lab · 1 GPU" in terminal.lines[0]
            terminal.send("K")
            terminal.wait_for("[y/N]")
            terminal.send("y\r")
            terminal.wait_for("Press Enter to go back")
            assert not training.alive()
            terminal.send("\r")
            terminal.wait_for("q quit")
            terminal.quit()
    lab.driver.procs = []
    lab.driver.write()


def test_no_pid_is_signalled_without_its_start(lab: Sshd) -> None:
    with GpuHolder(uid=LAB_USER, orphan=True) as training:
        lab.driver.gpus, lab.driver.procs = [Gpu(0, memory_used=GIB)], [Proc(0, training.pid, sm=0)]
        lab.driver.write()
        command = kill_command(lab.host, training.pid, training.start_ticks + 1)
        done = subprocess.run(
            [*command, "--yes"], env=lab.env, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert f"PID {training.pid} is not ended" in done.stdout + done.stderr
        assert training.alive()
    lab.driver.procs = []
    lab.driver.write()
