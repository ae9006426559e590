"""Fixtures of the command tests: gpuwatch on the tests' driver, in this process and as the installed program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch import cli
from tests.driver import Driver
from tests.support.launching import Call, Run

GPUWATCH = Path(sys.executable).parent / "gpuwatch"


@pytest.fixture
def run(driver: Driver) -> Run:
    """Return a function that runs the installed program to its end without a terminal, by a shell if that is given."""

    def begin(
        *arguments: str, shell: str = "", stdout: int = subprocess.PIPE, **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", shell.replace("gpuwatch", str(GPUWATCH))] if shell else [str(GPUWATCH), *arguments]
        stdin = None if shell else subprocess.DEVNULL
        env = driver.write().env() | env
        return subprocess.run(
            command, env=env, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=90, check=False
        )

    return begin


@pytest.fixture
def call(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs a command in this process and returns its exit code, stdout and stderr."""

    def begin(*arguments: str, has_driver: bool = True) -> tuple[int, str, str]:
        for name, value in driver.env().items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if not has_driver:
            monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
        capsys.readouterr()
        code = cli.main(arguments, None, reservations=tmp_path / "shared")
        return code, *capsys.readouterr()

    return begin
