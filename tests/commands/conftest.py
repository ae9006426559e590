"""Fixtures of the command tests: gpuwatch on the tests' driver, in this process and as the installed program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import GPUWATCH
from tests.driver import Driver
from tests.support.program import Call, Run, run_gpuwatch


@pytest.fixture
def run(driver: Driver) -> Run:
    """Return a function that runs the installed program to its end without a terminal, by a shell if that is given."""

    def begin(
        *arguments: str, shell: str = "", stdout: int = subprocess.PIPE, **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", shell.replace("gpuwatch", GPUWATCH)] if shell else [GPUWATCH, *arguments]
        stdin = None if shell else subprocess.DEVNULL
        env = driver.write().env() | env
        return subprocess.run(
            command, env=env, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=90, check=False
        )

    return begin


@pytest.fixture
def call(driver: Driver, tmp_path: Path) -> Call:
    """Return a function that runs a command in this process and returns its exit code, stdout and stderr."""

    def begin(*arguments: str, has_driver: bool = True, **env: str) -> tuple[int, str, str]:
        env = driver.env() | ({} if has_driver else {"LD_LIBRARY_PATH": "/nowhere"}) | env
        env.pop("CUDA_VISIBLE_DEVICES", None)
        done = run_gpuwatch(*arguments, env=env, shared=tmp_path / "shared")
        return done.returncode, done.stdout, done.stderr

    return begin
