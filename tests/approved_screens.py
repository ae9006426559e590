"""Screens of the demo as plain text, for `tests.approve`: seed and clock are fixed, as for the pictures."""

from __future__ import annotations

from tests.clock import CLOCK

# isort: split

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.history.history import History
from gpuwatch.model.snapshot import Snapshot, SourceState
from gpuwatch.monitor import Frame
from tests.screenshots import Picture, showing
from tests.support.demo import WALL
from tests.support.screen import text, until


@dataclass(frozen=True)
class Screen(Picture):
    """Screen to approve; it is complete once these words are on it."""

    words: str = ""


def later(name: str, *keys: str, words: str = "", size: tuple[int, int] = (120, 36)) -> Screen:
    """Return a screen with what has come up after two minutes; GPU 1 is in focus."""
    return Screen(name, *size, at=345.0, watched=120.0, focus=1, keys=keys, words=words)


SCREENS = (
    Screen("dashboard-160x50", 160, 50),
    Screen("dashboard-80x24", 80, 24),
    Screen("dashboard-60x10", 60, 10),
    Screen("dashboard-40x6", 40, 6),
    Screen("gpus-64", 160, 50, gpus=64, watched=10.0, keys=("tab", "down")),
    Screen("no-driver", 80, 24, words="no NVIDIA driver"),
    later("gpu", "tab", "down", "enter", size=(160, 50)),
    later("gpu-80x24", "tab", "down", "enter", size=(80, 24)),
    later("gpu-60x10", "tab", "down", "enter", size=(60, 10)),
    later("gpus", "o", "down", size=(160, 50)),
    later("gpus-80x24", "o", *["left"] * 4, size=(80, 24)),
    later("gpus-60x10", "o", size=(60, 10)),
    later("process", "enter", size=(160, 50)),
    later("process-60x10", "enter", size=(60, 10)),
    later("people", "u"),
    later("people-80x24", "u", size=(80, 24)),
    later("tree", "t", "right"),
    later("tree-80x24", "t", "right", size=(80, 24)),
    later("strays", "S"),
    later("strays-end", "S", "space", "K", words="no signal is sent"),
    later("events", "e", "down"),
    later("columns", "C"),
    later("help", "question_mark", size=(160, 50)),
    later("acknowledge", "a"),
    later("message", "y", words="Thank you"),
    later("end", "m", "K"),
    later("filter", "slash", *"user:ada,ben mem>10GiB", "enter"),
    later("filter-mistake", "slash", *"mem>10"),
    later("paused", "p"),
    Screen("hosts", 120, 36, app="hosts"),
    Screen("hosts-60x10", 60, 10, app="hosts"),
    Screen("fleet", 120, 36, keys=("j",), app="fleet"),
    Screen("fleet-table-80x24", 80, 24, keys=("t",), app="fleet"),
    Screen("fleet-free", 120, 20, keys=("f",), app="fleet"),
    Screen("fleet-alerts", 120, 20, keys=("e",), app="fleet"),
    Screen("replay", 160, 50, at=300.0, watched=60.0, keys=("space",), app="replay"),
    Screen("replay-80x24", 80, 24, at=300.0, watched=60.0, keys=("space", "at", *"14:30"), app="replay"),
)


async def draw(screen: Screen) -> str:
    """Return the cells of a screen as lines."""
    frame = None
    if screen.name == "no-driver":
        frame = Frame(Snapshot(state=SourceState.NO_DRIVER, words="the library is missing"), screen.at, History().view)
    async with showing(screen, frame) as (app, pilot):
        await until(pilot, lambda: screen.words in text(app))
        lines = [line.rstrip() for line in text(app).split("\n")]
    return "\n".join([f"{screen.columns}×{screen.rows}: {' '.join(screen.keys)}".rstrip(" :"), *lines, ""])


def main(_approved: Path, target: Path) -> None:
    """Write a file for each screen."""
    CLOCK.stop_wall(WALL)
    for screen in SCREENS:
        (target / "screens" / f"{screen.name}.txt").write_text(asyncio.run(draw(screen)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
