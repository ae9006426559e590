"""CPU time of the list of hosts: `python -m tests.bench.hosts [HOSTS] [SECONDS]`.

In place of each ssh a shell script prints a line of status of the demo each second, each time another one. The scripts
are not counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from tests import GPUWATCH
from tests.support.terminal import in_terminal

LINES = 8
SETTLED = 8.0
"""Seconds from the start until every host has its row."""


def main(hosts: int, seconds: float) -> None:
    """Print the CPU time in percent of a core, and the bytes sent to the terminal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = f"{GPUWATCH} --stream=live --demo | head -{LINES + 6} | tail -{LINES}"
        found = subprocess.run(command, shell=True, capture_output=True, check=True).stdout.splitlines()
        for number, line in enumerate(found):
            (folder / str(number)).write_bytes(line + b"\n")
        step = f"i=$((i + 1)); i=$((i % {LINES})); sleep 1"
        (folder / "ssh").write_text(f"#!/bin/sh\ni=$(($$ % {LINES}))\nwhile cat {folder}/$i; do {step}; done\n")
        (folder / "ssh").chmod(0o755)
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": name}
        words = [word for number in range(hosts) for word in ("--host", f"lab{number}")]
        with in_terminal(*words, columns=160, rows=50, env=env) as terminal:
            terminal.pump(SETTLED)
            process = psutil.Process(terminal.process.pid)
            before = process.cpu_times()
            sent = len(terminal.pump(seconds))
            now = process.cpu_times()
            used = now.user + now.system - before.user - before.system
            print(f"{hosts} hosts: {100 * used / seconds:.1f} % of a core, {sent / seconds / 1000:.1f} kB/s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32, float(sys.argv[2]) if len(sys.argv) > 2 else 20.0)
