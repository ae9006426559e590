"""`gpuwatch --stream`: its lines of status, and its end when nobody reads; and the flags of hosts."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from gpuwatch.base.procfs import boot_id
from gpuwatch.model.live import Status
from gpuwatch.model.snapshot import Snapshot
from tests import GPUWATCH
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.program import Call
from tests.support.waiting import PATIENCE


@contextmanager
def streaming(driver: Driver, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program with pipes, and kill it where a test has failed."""
    command = [GPUWATCH, "--interval", "0.1", *flags]
    with subprocess.Popen(
        command, env=driver.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_status(process: subprocess.Popen[bytes]) -> Status:
    assert process.stdout is not None
    return msgspec.json.decode(process.stdout.readline(), type=Status)


def test_a_status_comes_each_second_with_what_a_list_of_hosts_shows(driver: Driver) -> None:
    driver.gpus, driver.procs = [Gpu(0, memory_used=GIB, util_gpu=40)], [Proc(0, os.getpid(), memory=GIB)]
    driver.write()
    with streaming(driver, "--stream=live") as process:
        found = [read_status(process) for _ in range(3)]
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    last = found[-1]
    (card,) = last.gpus
    assert (card.used, card.processes, last.people, last.boot) == (GIB, 1, 1, boot_id())
    assert (last.processes, last.resting) == ((), ())
    stamps = [one.monotonic for one in found]
    assert stamps == sorted(stamps)
    assert last.sampled is not None
    assert last.monotonic - last.sampled >= 0


@pytest.mark.parametrize(
    ("flag", "end"),
    [
        ("--stream", "stdin ends"),
        ("--stream=live", "stdin ends"),
        ("--stream=live", "stdin is silent"),
        ("--stream=live", "stdout is full"),
    ],
)
def test_it_ends_when_its_reader_gives_no_sign_of_life(driver: Driver, flag: str, end: str) -> None:
    """A connection that breaks without a word leaves both pipes open, and its writes block."""
    driver.gpus = [Gpu(index) for index in range(8)]
    driver.write()
    with streaming(driver, flag, "--keepalive=1s" if end != "stdin ends" else "--keepalive=1h") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        if end == "stdin ends":
            process.stdin.close()
        elif end == "stdin is silent":
            while select.select([process.stdout], [], [], PATIENCE)[0] and os.read(process.stdout.fileno(), 1 << 16):
                pass
        assert process.wait(PATIENCE) == 0


def test_a_reader_that_asks_for_each_line_gets_the_newest(driver: Driver) -> None:
    """What waits in a slow network is old when it comes; what was not asked for is left out."""
    driver.write()
    with streaming(driver, "--stream", "--keepalive=1h") as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask() -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b".")
            process.stdin.flush()
            return msgspec.json.decode(process.stdout.readline(), type=Snapshot).sequence

        ask()  # a line may be on its way before the first one was asked for
        first = ask()
        while select.select([process.stdout], [], [], 0.5)[0]:
            first = msgspec.json.decode(process.stdout.readline(), type=Snapshot).sequence
        assert ask() > first + 1


def test_it_goes_on_while_its_reader_gives_signs_of_life(driver: Driver) -> None:
    driver.write()
    with streaming(driver, "--stream=live", "--keepalive=1.5s") as process:
        assert process.stdin is not None
        for _ in range(4):
            read_status(process)
            process.stdin.write(b"\n")
            process.stdin.flush()
        assert process.poll() is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--stream=quick", "--stream: unknown format 'quick'; write --stream, or --stream=live"),
        ("--stream=live events", "--stream=live cannot be used with `gpuwatch events`"),
        ("--keepalive 3", "--keepalive needs --stream"),
        ("--stream --keepalive never", "--keepalive: "),
        ("--host lab --once", "--host cannot be used with --once"),
        ("--host lab --stream", "--host cannot be used with --stream"),
        ("--host lab --demo", "--host cannot be used with --demo"),
        ("--host lab --gpu 1", "--host cannot be used with --gpu"),
        ("--host lab events", "--host cannot be used with `gpuwatch events`"),
    ],
)
def test_flags_that_do_not_go_together_are_one_line(call: Call, arguments: str, words: str) -> None:
    code, _, err = call(*arguments.split())
    assert (code, err.count("\n")) == (2, 1)
    assert words in err
