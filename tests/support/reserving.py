"""Reservations as runs leave them: real files that name real processes, of several users where root can make them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuwatch import procfs
from tests.support.gpuholder import ROOT, unavailable

GPU = "GPU-aaaa0001"

FAMILY = r"""
import ctypes, os, signal, sys
shape, count, uid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if uid != os.getuid():
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
read, write = os.pipe()
for _ in range(count):
    parent = os.getpid()
    if os.fork():
        if shape == "nested":
            break
        continue
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: none outlives the one above it
    if os.getppid() != parent:
        os._exit(1)
    os.write(1, b"%d\n" % os.getpid())
    if shape == "siblings":
        break
os.close(write)
signal.pause()
"""
"""So many processes of one user below one that is not counted: each in the one before it, or all beside each other."""


def needs_root() -> None:
    """Pass over a test where it needs files or processes of other users and cannot have them."""
    if not ROOT:
        unavailable("another user's files and processes need root")


@contextmanager
def family(shape: str, count: int, *, uid: int | None = None) -> Iterator[list[int]]:
    """Start processes that do nothing, `nested` or as `siblings`, and give their PIDs; all are ended."""
    owner = str(os.getuid() if uid is None else uid)
    command = [sys.executable, "-S", "-c", FAMILY, shape, str(count), owner]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as head:
        assert head.stdout is not None
        try:
            yield [int(head.stdout.readline()) for _ in range(count)]
        finally:
            head.kill()
            head.wait()


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
