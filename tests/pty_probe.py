"""Runs a command in a real pseudo-terminal and measures what it sends and what it costs. A helper, not a test.

python tests/pty_probe.py 10 gpuwatch --demo
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

_ESCAPE = re.compile(rb"\x1b(?:\[[0-9;?<=>]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")


@dataclass
class Probe:
    """What was seen of one run."""

    sent: bytes = b""
    """Everything that the command wrote to the terminal."""
    warm_bytes: int = 0
    """Bytes after the warm-up."""
    first_digit: float | None = None
    """Seconds from the start to the first digit on screen that is not part of an escape sequence."""
    cpu: dict[int, float] = field(default_factory=dict)
    """CPU seconds after the warm-up, by process of the tree."""
    names: dict[int, str] = field(default_factory=dict)
    resident: dict[int, int] = field(default_factory=dict)
    """Resident bytes at the end."""
    measured: float = 0.0
    """Seconds from the end of the warm-up to the end."""
    status: int | None = None
    """Exit status, where the command ended by itself or after `keys`; negative for a signal."""

    @property
    def bytes_per_second(self) -> float:
        """Bytes sent a second, after the warm-up."""
        return self.warm_bytes / self.measured if self.measured else 0.0

    @property
    def cpu_percent(self) -> float:
        """CPU of the whole tree in percent of a core, after the warm-up."""
        return 100 * sum(self.cpu.values()) / self.measured if self.measured else 0.0


def probe(
    command: Sequence[str],
    seconds: float,
    *,
    size: tuple[int, int] = (160, 50),
    warm: float = 3.0,
    env: Mapping[str, str] | None = None,
    keys: Mapping[float, bytes] | None = None,
    during: Callable[[int, float], None] | None = None,
) -> Probe:
    """Run a command for `seconds` (after a warm-up), typing `keys` at their times; what still runs then is ended."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})})
        os.execvp(command[0], list(command))
    began = time.monotonic()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    found = Probe()
    try:
        _watch(found, pid, terminal, began, warm, seconds, dict(keys or {}), during)
    finally:
        _end(pid, found)
        os.close(terminal)
    return found


def _watch(
    found: Probe,
    pid: int,
    terminal: int,
    began: float,
    warm: float,
    seconds: float,
    keys: dict[float, bytes],
    during: Callable[[int, float], None] | None,
) -> None:
    sent = bytearray()
    base: dict[int, float] = {}
    warm_at = 0
    while (now := time.monotonic() - began) < warm + seconds:
        for at in [at for at in keys if at <= now]:
            os.write(terminal, keys.pop(at))
        if now >= warm and not base:
            base, _ = _tree(pid, found)
            warm_at, warm_time = len(sent), now
        if during:
            during(pid, now)
        if select.select([terminal], [], [], 0.02)[0]:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:
                break
            if not data:
                break
            sent += data
            if found.first_digit is None and re.search(rb"\d", _ESCAPE.sub(b"", bytes(sent))):
                found.first_digit = time.monotonic() - began
    found.sent = bytes(sent)
    if base:
        found.measured = time.monotonic() - began - warm_time
        found.warm_bytes = len(sent) - warm_at
        after, found.resident = _tree(pid, found)
        found.cpu = {one: used - base.get(one, 0.0) for one, used in after.items()}


def _tree(pid: int, found: Probe) -> tuple[dict[int, float], dict[int, int]]:
    times: dict[int, float] = {}
    resident: dict[int, int] = {}
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return times, resident
    for one in processes:
        try:
            used = one.cpu_times()
            times[one.pid] = used.user + used.system
            resident[one.pid] = one.memory_info().rss
            found.names[one.pid] = " ".join(one.cmdline()[:4])
        except psutil.NoSuchProcess:
            continue
    return times, resident


def _end(pid: int, found: Probe) -> None:
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            os.kill(pid, number)
        deadline = time.monotonic() + (0.2 if number is None else 2.0)
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                found.status = os.waitstatus_to_exitcode(status)
                return
            time.sleep(0.01)


def main() -> None:
    """Measure a command given on the command line, and say what was found."""
    result = probe(sys.argv[2:], float(sys.argv[1]))
    first = "never" if result.first_digit is None else f"{result.first_digit:.3f} s"
    lines = [
        f"first digit {first} · {result.bytes_per_second:.0f} B/s · {result.cpu_percent:.1f} % CPU over"
        f" {result.measured:.1f} s · exit status {result.status}"
    ]
    for pid, used in result.cpu.items():
        share = 100 * used / result.measured
        lines.append(f"  {share:5.1f} %  {result.resident[pid] / 2**20:6.1f} MiB  {result.names[pid]}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
