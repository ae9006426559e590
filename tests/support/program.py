"""gpuwatch as it is installed, in this process or a child, with its own folder for the reservations of all users."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from gpuwatch import cli
from gpuwatch.base import procfs
from tests import CHECKOUT
from tests.driver import Driver
from tests.support.process import ROOT, unavailable

Call = Callable[..., tuple[int, str, str]]
Run = Callable[..., subprocess.CompletedProcess[str]]

PROGRAM = """
import os, sys
from pathlib import Path
from gpuwatch import cli
from gpuwatch.sources.sampler_process import SamplerProcess
sampler = None if "--demo" in sys.argv else SamplerProcess()
try:
    code = cli.main(sys.argv[2:], sampler, reservations=Path(sys.argv[1]))
finally:
    if sampler is not None:
        sampler.kill()
sys.exit(code)
"""


@contextmanager
def starting() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts a process which does nothing, as a `user` or in an `env`; all are ended."""
    with contextlib.ExitStack() as started:

        def start(**options: Any) -> subprocess.Popen[bytes]:
            pipe = subprocess.PIPE
            process = started.enter_context(subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, bufsize=0, **options))
            started.callback(process.kill)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b".")
            assert process.stdout.read(1) == b"."  # it is no longer us
            return process

        yield start


def run_gpuwatch(
    *arguments: str, env: Mapping[str, str], shared: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command line in this process, with pipes for its output, and with `env` as its whole environment.

    A command that needs the driver starts its sampler as a child, as it does where none was started early. `shared` is
    the folder of all users' reservations.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with (
        mock.patch.dict(os.environ, env, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = cli.main(arguments, None, reservations=shared)
        except SystemExit as error:  # of --help and --version
            code = int(error.code or 0)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return subprocess.CompletedProcess(list(arguments), code, *texts)


PID_NAMESPACE = ("unshare", "--fork", "--pid", "--mount-proc", *(() if ROOT else ("--user", "--map-root-user")))
"""Begin of a command line that runs in a PID namespace of its own."""


def can_enter(*command: str) -> bool:
    """Return whether a command runs in a PID namespace of its own."""
    try:
        return subprocess.run([*PID_NAMESPACE, *command], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def answers(
    script: str, *words: object, enter: Sequence[str] = (), env: Mapping[str, str] | None = None, timeout: float = 120.0
) -> list[Any]:
    """Run a Python script in a process, behind the command `enter`, and return the JSON of each line that it prints."""
    command = [*enter, sys.executable, "-c", script, *map(str, words)]
    done = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode and "unshare:" in done.stderr:
        unavailable(f"no namespace can be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class Launcher:
    """Runs gpuwatch on the tests' driver; its locks and reservations are in folders of the test."""

    def __init__(self, driver: Driver, folder: Path, *, in_process: bool = False) -> None:
        self._in_process = in_process
        self.driver = driver
        self.shared = folder / "shared"
        self._runtime = folder / "runtime"
        self._runtime.mkdir()

    @property
    def own(self) -> Path:
        """The user's own folder."""
        return self._runtime / "gpuwatch"

    def _env(self, env: dict[str, str]) -> dict[str, str]:
        base = {name: value for name, value in self.driver.env().items() if not name.startswith(("CUDA_", "XLA_"))}
        return base | {"XDG_RUNTIME_DIR": str(self._runtime), "CUDA_MPS_PIPE_DIRECTORY": "/nowhere"} | env

    def __call__(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        if self._in_process:
            return run_gpuwatch(*arguments, env=self._env(env), shared=self.shared)
        command = [sys.executable, "-c", PROGRAM, str(self.shared), *arguments]
        return subprocess.run(command, env=self._env(env), capture_output=True, text=True, timeout=60, check=False)

    @contextmanager
    def started(self, *arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
        """Start it and go on; it is ended with the context."""
        command = [sys.executable, "-c", PROGRAM, str(self.shared), *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, env=self._env(env), text=True, **pipes)  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


GPU = "GPU-aaaa0001"


def needs_root() -> None:
    """Pass over a test where it needs files or processes of other users and cannot have them."""
    if not ROOT:
        unavailable("another user's files and processes need root")


def write(
    folder: Path,
    pid: int,
    *,
    start: int | None = None,
    owner: int | None = None,
    gpus: dict[str, int] | None = None,
    text: str | None = None,
) -> Path:
    """Write what another run would have written: a reservation of 1000 bytes of `GPU`, unless told otherwise."""
    start = procfs.read_stat(pid).start_ticks if start is None else start
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)
    file = folder / f"{pid}-{start}.json"
    gpus = {GPU: 1000} if gpus is None else gpus
    file.write_text(json.dumps({"pid": pid, "start": start, "gpus": gpus}) if text is None else text)
    if owner is not None:
        os.chown(file, owner, owner)
    return file
