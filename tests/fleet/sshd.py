"""A real sshd on the loopback, behind which another user lives: a second host on this machine.

It runs in a mount namespace of its own, in which /etc/passwd has one more user, /run is empty, and the checkout and the
virtual environment stand where that user may read them. Keys and configuration are the test's own. Nothing of the
machine is changed, and all of it goes with sshd.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil
import pytest

from gpuwatch.config.types import RemoteHost
from tests import CHECKOUT
from tests.driver import Driver
from tests.support.process import ROOT, unavailable
from tests.support.prometheus import free_port
from tests.support.waiting import PATIENCE, wait_for

SSHD = Path("/usr/sbin/sshd")
LAB_USER = 20_000 + os.getpid() % 30_000
"""Uid of the user over there, whose processes are ended: not that of a test beside this one."""
LAB_NAME = f"gpuwatch-{LAB_USER}"
"""Name of that user, which nobody on this machine has."""


def need_sshd() -> None:
    """Skip aloud where no sshd can log another user in."""
    if not ROOT:
        pytest.skip("a login as another user needs root")
    if not SSHD.exists() or shutil.which("ssh") is None or shutil.which("unshare") is None:
        unavailable("sshd, ssh or unshare is not installed (openssh-server, util-linux)")


class Sshd:
    """sshd, a user with a gpuwatch on a driver of the tests, and an ssh that knows them as the host `lab`.

    That ssh also knows the hosts `stranger` (its key is refused), `unknown` (whose key nobody knows), `refused` (no
    port) and `nowhere.invalid`. A context manager that leaves nothing behind.
    """

    def __init__(self, library: Path) -> None:
        need_sshd()
        self.folder = Path(tempfile.mkdtemp())
        self.folder.chmod(0o755)
        shutil.copy(library, self.folder / library.name)
        (self.folder / "driver").mkdir()
        self.driver = Driver(self.folder / "driver", self.folder / library.name).write()
        (self.folder / "driver").chmod(0o777)
        self.host = RemoteHost(name="lab", address="lab", command=f"{self.folder}/gpuwatch")

    def __enter__(self) -> Sshd:
        try:
            self._write()
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _write(self) -> None:
        folder = self.folder
        for name in ("home", "checkout", "venv", "bin"):
            (folder / name).mkdir()
        os.chown(folder / "home", LAB_USER, LAB_USER)
        for name in ("host", "key", "stranger"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        public = (folder / "key.pub").read_text()
        (folder / "authorized").write_text(public)
        user = f"{LAB_NAME}:*:{LAB_USER}:{LAB_USER}::{folder}/home:/bin/sh\n"
        (folder / "passwd").write_text(user + Path("/etc/passwd").read_text())
        self.port = free_port()
        key = (folder / "host.pub").read_text()
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {key}")
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {folder}/host\n"
            f"AuthorizedKeysFile {folder}/authorized\n"
            "UsePAM no\nStrictModes no\nPidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        )
        (folder / "ssh_config").write_text(
            f"Host refused\nPort 1\nHost stranger\nIdentityFile {folder}/stranger\nHost * !stranger\n"
            f"IdentityFile {folder}/key\nHost unknown\nUserKnownHostsFile {folder}/none\n"
            "Host * !nowhere.invalid\nHostName 127.0.0.1\nHost *\n"
            f"Port {self.port}\nUserKnownHostsFile {folder}/known\nGlobalKnownHostsFile none\nUser {LAB_NAME}\n"
            "IdentitiesOnly yes\nIdentityAgent none\n"
        )
        self._script("bin/ssh", f'exec {shutil.which("ssh")} -F {folder}/ssh_config "$@"')
        settings = self.driver.env({"PYTHONPATH": f"{folder}/checkout", "PYTHONDONTWRITEBYTECODE": "1"})
        words = " ".join(f"{name}={value}" for name, value in settings.items())
        self._script("gpuwatch", f'exec env {words} {folder}/venv/bin/python -P -m gpuwatch "$@"')

    def _script(self, name: str, command: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{command}\n")
        (self.folder / name).chmod(0o755)

    def _start(self) -> None:
        folder = self.folder
        steps = [
            f"mount --bind {folder}/passwd /etc/passwd",
            f"mount --bind {CHECKOUT} {folder}/checkout",
            f"mount --bind {sys.prefix} {folder}/venv",
            *_open_way(Path(sys.base_prefix), folder / "base"),
            "mount -t tmpfs -o mode=755 tmpfs /run",
            "mkdir /run/sshd",
            f"exec {SSHD} -D -e -f {folder}/sshd_config",
        ]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-ec", "\n".join(steps)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(lambda: self.process.poll() is not None or "listening" in self.log, "sshd does not listen")
        if self.process.poll() is not None:
            unavailable(f"sshd cannot be started here: {self.log[-300:]}")
        command = [f"{folder}/bin/ssh", "-o", "BatchMode=yes", "lab", self.host.command, "--version"]
        login = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
        assert not login.returncode, f"{LAB_NAME} cannot log in: {login.stderr}\nsshd said:\n{self.log}"

    @property
    def log(self) -> str:
        """What sshd has said."""
        return (self.folder / "log").read_text()

    @property
    def env(self) -> dict[str, str]:
        """Environment of a program that is to log in here."""
        return {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}

    def sessions(self) -> list[psutil.Process]:
        """Return the processes of the user over there whose parent is a process of sshd: one a login."""
        return [one for one in self.processes() if name_of(one) == "sshd"]

    def streams(self) -> list[psutil.Process]:
        """Return what runs of gpuwatch over there."""
        return [one for one in self.processes() if any("stream" in word for word in _words(one))]

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the user over there."""
        return [one for one in psutil.process_iter() if _uid(one) == LAB_USER]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if hasattr(self, "process"):
            self.process.kill()
            self.process.wait()
        for one in self.processes():
            with suppress(psutil.NoSuchProcess):
                one.kill()
        wait_for(lambda: not self.processes(), "a process of the other user is left")
        shutil.rmtree(self.folder)


def _open_way(path: Path, aside: Path) -> list[str]:
    """Return the commands that let everybody reach a folder, such as a Python in root's home."""
    closed = next((one for one in reversed(path.parents) if not one.stat().st_mode & 0o001), None)
    if closed is None:
        return []
    return [
        f"mkdir {aside}",
        f"mount --bind {path} {aside}",
        f"mount -t tmpfs -o mode=755 tmpfs {closed}",
        f"mkdir -p {path}",
        f"mount --bind {aside} {path}",
    ]


def _uid(process: psutil.Process) -> int:
    try:
        return process.uids().real
    except psutil.NoSuchProcess:
        return -1


def name_of(process: psutil.Process) -> str:
    """Return the name of a process; empty where it has ended."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else process.name()
    except psutil.NoSuchProcess:
        return ""


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
