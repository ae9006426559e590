"""What the tests of panes share: a real tmux's sessions, and programs that stand in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuwatch.base import procfs
from gpuwatch.inspector.terminals import PaneNames
from gpuwatch.model.snapshot import Pane
from tests.support.terminal import Tmux
from tests.support.waiting import PATIENCE, wait_for

PANE = Pane(program="tmux", session="$0", window="%0", alive=True)
"""The first pane, without any name."""

_SLEEP = "exec sleep 600"


def started(tmux: Tmux, *words: str) -> int:
    """Start a window with a process in it, and give the PID of that."""
    pid = int(tmux.run(*words, "-P", "-F", "#{pane_pid}", _SLEEP))
    # The kernel sets the name before it has made the new environment.
    wait_for(lambda: procfs.read_stat(pid).comm == b"sleep" and Path(f"/proc/{pid}/environ").read_bytes())
    return pid


def session(tmux: Tmux, name: str = "train", window: str = "main") -> int:
    """Start a session with a process in it, and give the PID of that."""
    return started(tmux, "new-session", "-d", "-s", name, "-n", window)


def fake(tmp_path: Path, script: str, *, name: str = "bin") -> str:
    """Put a program called tmux into a folder, and give that folder."""
    folder = tmp_path / name
    folder.mkdir(mode=0o700)
    program = folder / "tmux"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return str(folder)


def patient(**options: Any) -> PaneNames:
    """Return one that waits for a busy machine."""
    return PaneNames(PATIENCE, **options)
