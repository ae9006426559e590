"""Reservations as runs leave them: real files that name real processes, of several users where root can make them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gpuwatch.base import procfs
from tests.support.process import ROOT, unavailable

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
