"""Outputs of all commands and screens as text files to approve: `python -m tests.approve` writes them anew.

`tests/approved/commands` has a file for each command: its lines `$ gpuwatch …` are run again, and what they print and
their exit code stand below each. `tests/approved/screens` has a file for each screen of `tests.approved_screens`. To
add a command line, add its line `$ …`. A commit that changes one of these files names the decision behind it.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import CHECKOUT

APPROVED = CHECKOUT / "tests" / "approved"
PARTS = ("commands", "screens")


def render(part: str, target: Path) -> None:
    """Write the outputs of a part to a folder, by a process that has nothing of the caller's environment."""
    (target / part).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        runtime = Path(folder, "runtime")
        runtime.mkdir(mode=0o700)
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(CHECKOUT),
            "LD_LIBRARY_PATH": folder,
            "HOME": folder,
            "XDG_RUNTIME_DIR": str(runtime),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }
        command = [sys.executable, "-m", f"tests.approved_{part}", str(APPROVED), str(target)]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdin=subprocess.DEVNULL)


def names(part: str, *more: Path) -> list[str]:
    """Return the names of the approved files of a part, and of those in more folders."""
    return sorted({file.name for folder in (APPROVED, *more) for file in (folder / part).iterdir()})


def difference(part: str, name: str, target: Path) -> str:
    """Return the difference between an approved file and that in a folder; empty for none."""
    before, after = (
        file.read_text().splitlines(keepends=True) if file.exists() else []
        for file in (APPROVED / part / name, target / part / name)
    )
    return "".join(difflib.unified_diff(before, after, f"approved/{part}/{name}", f"now/{part}/{name}"))


def main() -> None:
    """Write all outputs anew, unless this is CI: a person approves them."""
    if os.environ.get("CI"):
        raise SystemExit("tests/approved is not written by CI")
    for part in PARTS:
        with tempfile.TemporaryDirectory() as folder:
            render(part, Path(folder))
            sys.stdout.writelines(difference(part, name, Path(folder)) for name in names(part, Path(folder)))
            for file in (APPROVED / part).iterdir():
                file.unlink()
            for file in Path(folder, part).iterdir():
                (APPROVED / part / file.name).write_bytes(file.read_bytes())


if __name__ == "__main__":
    main()
