"""The whole program with other hosts in a real pseudo-terminal; the ssh is one of the tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.driver import Driver
from tests.support.fleet import GOOD, WHOLE, put_ssh
from tests.support.terminal import Terminal, in_terminal
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

LAB = f'case "$*" in *live*) {GOOD};; *) {WHOLE};; esac'


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Driver, own_home: Path) -> Mapping[str, str]:
    """Environment with an ssh that knows `lab` and one that hangs, and a configuration that names `lab`."""
    put_ssh(tmp_path, monkeypatch, {"lab": LAB, "stalled": "sleep 1000", "*": "exit 127"})
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[[host]]\nname = "mylab"\naddress = "lab"\n')
    return driver.write().env(os.environ)


def ssh_of(terminal: Terminal) -> list[psutil.Process]:
    """Return what runs of the ssh; one that fails may end at any moment."""
    found = []
    for process in terminal.tree():
        with suppress(psutil.NoSuchProcess):
            if process.name() in ("ssh", "sleep"):
                found.append(process)
    return found


def test_every_ssh_ends_with_the_program(env: Mapping[str, str]) -> None:
    words = ["--host", "mylab", "--host", "stalled", "--host", "ada@none:2222"]
    with in_terminal(*words, env=env) as terminal:
        terminal.wait_for(lambda one: "gpuwatch was not found" in one.text and "2 GPUs" in one.text)
        terminal.wait_for(lambda one: len(ssh_of(one)) >= 2)
        ssh = ssh_of(terminal)
        terminal.quit()
        wait_for(lambda: not psutil.wait_procs(ssh, timeout=0)[1], "an ssh is left")


def test_without_a_driver_the_hosts_of_the_configuration_come_first(env: Mapping[str, str]) -> None:
    with in_terminal(env={**env, "LD_LIBRARY_PATH": "/nowhere"}) as terminal:
        terminal.wait_for(lambda one: "mylab" in one.text and "2 GPUs" in one.lines[0])
        terminal.send("\x03")
        assert terminal.wait_exit() in (0, 130)
