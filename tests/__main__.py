"""Every check there is, in one command: `python -m tests [pytest arguments]`.

Format and lint, and then the tests with branch coverage. The tests wait now and then: beside them run types, import
contracts, and a wheel that installs and starts; what these print is shown when each has ended. The tests are collected
once before: pytest then keeps their files with rewritten assertions (12 s), which each worker would rewrite on its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
LOCK = ROOT / ".ci" / "lock.txt"
COVERAGE_FLOOR = 93
DEEP = ("gpuwatch/kill/*", "gpuwatch/sampler/*", "gpuwatch/base/files.py")
DEEP_FLOOR = 96
"""Percent, where a fault ends the wrong process, or a driver's fault ends ours. A killed sampler reports nothing."""


def step(name: str, *command: str | Path, cwd: Path = ROOT, live: bool = False, quiet: bool = False) -> None:
    """Run one check and show what it prints: at once, when it has ended, or, `quiet`, where it fails (SystemExit)."""
    # The tests start gpuwatch a thousand times: without compiled modules each of them would compile it again.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    if live:
        print(f"== {name}", flush=True)
    output = None if live else subprocess.PIPE
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=cwd,
        env=environment,
        check=False,
        text=True,
        stdout=output,
        stderr=None if live else subprocess.STDOUT,
    )
    if not live and (done.returncode or not quiet):
        print(f"\n== {name}\n{done.stdout}", end="", flush=True)
    if done.returncode:
        raise SystemExit(f"== {name}: failed")


def wheel_starts() -> None:
    """Build the wheel, install it alone into an environment of its own, and start what it installs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step("build", sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
        (wheel,) = folder.glob("*.whl")
        step("environment", sys.executable, "-m", "venv", "--without-pip", folder / "venv")
        pip = (sys.executable, "-m", "pip", "--python", folder / "venv" / "bin" / "python")
        step("install the wheel", *pip, "install", "--quiet", "--no-compile", "-c", LOCK, wheel, cwd=folder)
        gpuwatch = folder / "venv" / "bin" / "gpuwatch"
        step("start it", gpuwatch, "--version", cwd=folder)
        step("show its guide", gpuwatch, "docs", "start", cwd=folder)
        step("print its completions", gpuwatch, "completion", "bash")
        if not os.geteuid():  # a service is root's, and so are its files: none may lie below /tmp
            there = f"mount --bind {folder} /opt && exec /opt/venv/bin/python -I -m gpuwatch watch --unit"
            step("print the service's unit", "unshare", "--mount", "sh", "-c", there, cwd=Path("/"))
        step("start its demo", gpuwatch, "--demo", "--once", cwd=folder)


def examples_are_typed() -> None:
    """Check the types of the guide's examples as strictly as a user may."""
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "gpuwatch" / "docs" / "python.md").read_text(), re.DOTALL)
    with tempfile.TemporaryDirectory() as name:
        for number, example in enumerate(examples):
            Path(name, f"example_{number}.py").write_text(example)
        step("types of the examples", BIN / "mypy", "--strict", name)


def other_checks() -> None:
    """Run what runs beside the tests."""
    step("types", BIN / "mypy")
    examples_are_typed()
    step("import contracts", BIN / "lint-imports")
    wheel_starts()


def main() -> None:
    """Run all checks."""
    step("format", BIN / "ruff", "format", "--check", ".")
    step("lint", BIN / "ruff", "check", ".")
    coverage = ["--cov", "--cov-report=term", f"--cov-fail-under={COVERAGE_FLOOR}"]
    pytest = [sys.executable, "-m", "pytest", *sys.argv[1:]]
    with ThreadPoolExecutor(1) as beside:
        others = beside.submit(other_checks)
        step("collection", *pytest, "--collect-only", "-qq", quiet=True)
        step("tests", *pytest, "-n", "4", "--dist", "worksteal", *coverage, live=True)
        others.result()
    deep = [f"--include={','.join(DEEP)}", f"--fail-under={DEEP_FLOOR}"]
    command = [sys.executable, "-m", "coverage", "report", *deep]  # it warns of files that a killed process left
    done = subprocess.run(command, cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:  # else pytest has the last word
        raise SystemExit(f"== coverage of kill, sampler and files\n{done.stdout}")


if __name__ == "__main__":
    main()
