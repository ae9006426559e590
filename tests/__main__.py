"""Every check there is, in one command: `python -m tests [pytest arguments]`.

Format, lint, types, import contracts, a wheel that installs and starts, and last the tests with branch coverage, so
that pytest's own line closes the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
LOCK = ROOT / ".ci" / "lock.txt"
COVERAGE_FLOOR = 97


def step(name: str, *command: str | Path, cwd: Path = ROOT) -> None:
    """Run one check and end the whole with its exit code where it fails."""
    print(f"== {name}", flush=True)
    # The tests start gpuwatch a thousand times: without compiled modules each of them would compile it again.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, check=False)
    if done.returncode:
        print(f"== {name}: failed", flush=True)
        sys.exit(done.returncode)


def wheel_starts() -> None:
    """Build the wheel, install it alone into an environment of its own, and start what it installs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step("build", sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
        (wheel,) = folder.glob("*.whl")
        venv.create(folder / "venv", with_pip=True)
        pip = folder / "venv" / "bin" / "pip"
        step(
            "install the wheel", pip, "install", "--quiet", "--disable-pip-version-check", "-c", LOCK, wheel, cwd=folder
        )
        gpuwatch = folder / "venv" / "bin" / "gpuwatch"
        step("start it", gpuwatch, "--version", cwd=folder)
        step("show its guide", gpuwatch, "docs", "guide", cwd=folder)
        step("print its completions", gpuwatch, "completion", "bash")
        step("start its demo", gpuwatch, "--demo", "--once", cwd=folder)


def main() -> None:
    """Run all checks."""
    step("format", BIN / "ruff", "format", "--check", ".")
    step("lint", BIN / "ruff", "check", ".")
    step("types", BIN / "mypy")
    step("import contracts", BIN / "lint-imports")
    wheel_starts()
    coverage = ["--cov", "--cov-report=term", f"--cov-fail-under={COVERAGE_FLOOR}"]
    step("tests", sys.executable, "-m", "pytest", "-n", "3", *coverage, *sys.argv[1:])


if __name__ == "__main__":
    main()
