"""Outputs of command lines: a copy of `tests/approved/commands` in which each `$ gpuwatch …` was run again.

Each runs in a fork of this process, in a folder with the files that `make_files` makes, and without a driver. Its
clocks stand still, so the demo is at its first moment. A line may begin with variables of the environment: COLUMNS
makes stdout a terminal of that width, DRIVER=yes is the driver of the tests with two GPUs, of which one is lost.
"""

from __future__ import annotations

from tests.clock import CLOCK

# isort: split

import io
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from gpuwatch import __version__, cli
from gpuwatch.commands.reference import COMMANDS
from gpuwatch.sources.demo import DemoSource
from tests.driver import Driver, Gpu, build
from tests.support.demo import WALL, save_demo
from tests.support.store import record

TIMEOUT_S = 60
LONG = 200
"""Characters from which on a line of JSON is indented, so that a difference is read."""


class FirstLine(io.FileIO):
    """Stdout after whose first line the program is interrupted."""

    def write(self, data: Any, /) -> int:
        super().write(data)
        raise KeyboardInterrupt


def make_files(approved: Path) -> Driver:
    """Fill the current folder: configuration files, two hours of events and use, recordings, and what is damaged."""
    for file in (approved / "files").iterdir():
        shutil.copy(file, ".")
        Path(file.name).chmod(0o644)
    save_demo(Path("store.sqlite"), WALL, hours=2.0)
    Path("damaged.sqlite").write_bytes(Path("store.sqlite").read_bytes()[:5000] + b"?" * 5000)
    demo = DemoSource(clock=lambda: 0.0, wall=lambda: WALL)
    record(Path("day"), map(demo.at, [*map(float, range(60)), *map(float, range(400, 430))]))
    content = Path("day").read_bytes()
    Path("cut").write_bytes(content[: len(content) // 2])
    Path("damaged").write_bytes(content[:10] + b"?" * 1000)
    Path("empty").touch()
    Path("libnvidia-ml.so.1").touch()  # found before one that this machine may have
    lost = "nvmlDeviceGetUtilizationRates@1 ret=15"
    return Driver(Path.cwd(), build(Path("driver").absolute()), gpus=[Gpu(0), Gpu(1)], faults=[lost]).write()


def run(line: str, driver: Driver) -> str:
    """Run a command line in a fork of this process; return its output and exit code as they are approved."""
    words = shlex.split(line)
    start = words.index("gpuwatch")
    environment = {"COLUMNS": "80", **dict(word.split("=", 1) for word in words[:start])}
    if environment.pop("DRIVER", ""):
        environment |= driver.env({})
    arguments = words[start + 1 :]
    with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
        child = os.fork()
        if not child:
            signal.alarm(TIMEOUT_S)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os._exit(run_here(arguments, environment, is_terminal=words[0].startswith("COLUMNS=")))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return "".join([*shown(out), *(f"2> {one}" for one in shown(err)), f"exit code {code}\n"])


def run_here(arguments: Sequence[str], environment: Mapping[str, str], *, is_terminal: bool) -> int:
    """Run a command in this process and return its exit code; 255 after a traceback."""
    sys.stdout = io.TextIOWrapper((FirstLine if "--stream" in arguments else io.FileIO)(1, "wb"), "utf-8")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "wb"), "utf-8")
    vars(sys.stdout)["isatty"] = lambda: is_terminal
    os.environ.update(environment)
    CLOCK.stop(WALL)
    try:
        return cli.main(arguments, None, reservations=Path("reservations").absolute())
    except SystemExit as error:  # of --help
        return int(error.code or 0)
    except BaseException:  # noqa: BLE001 - it is part of the output
        traceback.print_exc()
        return 255
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def shown(output: IO[bytes]) -> Iterator[str]:
    """Yield the lines of an output, with masks in place of what is not the same everywhere."""
    output.seek(0)
    text = output.read().decode()
    for pattern, mask in MASKS.items():
        text = re.sub(pattern, mask, text)
    for line in text.replace("\x1b", "␛").splitlines():
        if len(line) > LONG and line.startswith(('{"', "[{")):
            line = json.dumps(json.loads(line), indent=1, ensure_ascii=False)
        assert not line.startswith("$ "), line
        yield f"{line}\n"
    if text and not text.endswith("\n"):
        yield "(no line end)\n"


_LOCAL = "(device files|hidepid|container)"
MASKS = {
    re.escape(str(Path.cwd())): "‹folder›",
    re.escape(__version__): "‹version›",
    rf'((?:gpuwatch-|"host":"))({re.escape(os.uname().nodename)})(?=(?:\.2)?\.sqlite|")': r"\1‹host›",
    rf"(?m)^\w+ +{_LOCAL} .*(\n {{10}}.*)*": r"‹mark› \1 ‹of this machine›",
    r'"pid":\d+,"host"': '"pid":"‹pid›","host"',
    r'"pid_namespace":\d+': '"pid_namespace":"‹namespace›"',
    r'"boot":"[-\da-f]+"': '"boot":"‹boot›"',
    r'"(monotonic|sampled|slow_sampled)":\d+\.\d+': r'"\1":"‹since boot›"',
    rf'{{"name":"{_LOCAL}".*?}}': r'{"name":"\1"}',
}
"""Masks by what they stand for: the folder, the version, this machine's name, and what doctor finds on it."""


def main(approved: Path, target: Path) -> None:
    """Copy the approved files of commands with their outputs as they are now."""
    driver = make_files(approved)
    for name in COMMANDS:
        cli._import(name)
    for file in sorted((approved / "commands").iterdir()):
        lines = [line for line in file.read_text().splitlines() if line.startswith("$ ")]
        texts = [f"{line}\n{run(line[2:], driver)}" for line in lines]
        (target / "commands" / file.name).write_text("\n".join(texts))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
