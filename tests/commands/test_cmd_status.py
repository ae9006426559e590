"""`gpuwatch status`: its line, in every width of trouble, and where its figures come from."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.base.procfs import boot_id
from gpuwatch.commands.status import CELLS, status_line
from gpuwatch.model.live import FILE, Overuse, Status, StatusGpu
from gpuwatch.model.snapshot import Health, Reason, SourceState
from tests import GPUWATCH
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.program import Call
from tests.support.terminal import Terminal, Tmux


def rows(*near: str, busy: float = 71) -> tuple[StatusGpu, ...]:
    """Give GPUs whose memory is that near its limit."""
    return tuple(StatusGpu(index=index, near=one, utilization=busy) for index, one in enumerate(near))


def over(*users: tuple[str, float]) -> tuple[Overuse, ...]:
    return tuple(Overuse(user=user, gib=gib) for user, gib in users)


MIXED = (
    StatusGpu(index=1, utilization=Reason.UNSUPPORTED),
    StatusGpu(index=0, utilization=10),
    StatusGpu(index=2, utilization=30),
    StatusGpu(index=3, utilization=99, health=Health.LOST),
)
THREE = over(("ada", 3.14), ("ben", 1.0), ("cyn", 0.4))
NEAR = rows("critical", "critical", "warning", "")


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Status(gpus=rows(*[""] * 8)), "8 GPUs 71%"),
        (Status(gpus=MIXED), "4 GPUs 20% · 1 lost"),  # the mean is of those that have a figure
        (Status(gpus=MIXED[:1]), "1 GPU —"),
        (Status(gpus=NEAR, over=THREE, others=1), "4 GPUs 71% · 3 nearly full · 1 critical · ada 3.1 over +2"),
        (
            Status(gpus=NEAR, over=THREE, others=2, other="GPU 1 full in 4 min"),
            "4 GPUs 71% · 3 nearly full · GPU 1 full in 4 min +1 · ada 3.1 over +2",
        ),
        (Status(state=SourceState.DRIVER_DOWN, gpus=rows("")), "1 GPU 71% · NVIDIA driver down"),
    ],
)
def test_the_worst_comes_first_in_the_line(found: Status, line: str) -> None:
    assert status_line(found, 0.0) == line


@given(
    near=st.lists(st.sampled_from(["", "warning", "critical"]), min_size=1, max_size=64),
    over=st.lists(st.builds(Overuse, user=st.text(max_size=40), gib=st.floats(0, 1e4)), max_size=5),
    health=st.sampled_from(Health),
    others=st.integers(0, 99),
    sampled=st.floats(0, 1e6),
)
def test_it_is_short_whatever_is_wrong(
    near: list[str], over: list[Overuse], health: Health, others: int, sampled: float
) -> None:
    gpus = (*rows(*near), StatusGpu(index=99, health=health))
    found = Status(gpus=gpus, over=tuple(over), others=others, sampled=sampled)
    line = status_line(found, 1e6)
    assert len(line) <= CELLS
    assert line.isprintable()
    styled = status_line(found, 1e6, tmux=True)
    assert re.sub(r"#\[(?:fg=(?:red|yellow)|default)\]", "", styled.replace("##", "")).count("#") == 0


# ---------------------------------------------------------------------------------------------------------------
# The command


def write(newest: Status, home: Path) -> None:
    """Put figures where a `gpuwatch watch` leaves them."""
    folder = home / "runtime" / "gpuwatch"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / FILE).write_bytes(msgspec.json.encode(newest))


def test_without_a_watch_it_takes_a_sample(driver: Driver, call: Call) -> None:
    driver.gpus = [Gpu(0, util_gpu=20), Gpu(1, memory_used=78 * GIB, util_gpu=60)]
    driver.procs = [Proc(1, 1, memory=78 * GIB)]
    driver.write()
    assert call("status") == (0, "2 GPUs 40% · 1 nearly full\n", "")
    assert call("status", "--tmux") == (0, "2 GPUs 40% · #[fg=red]1 nearly full#[default]\n", "")
    found = msgspec.json.decode(call("status", "--json")[1], type=Status)
    assert [gpu.near for gpu in found.gpus] == ["", "critical"]


def test_fresh_figures_are_taken_and_no_call_is_made(driver: Driver, call: Call, own_home: Path) -> None:
    write(Status(gpus=rows("critical", busy=50), monotonic=time.monotonic(), boot=boot_id()), own_home)
    assert call("status") == (0, "1 GPU 50% · 1 nearly full\n", "")
    assert not driver.calls().total()


def test_a_driver_that_hangs_does_not_hang_the_line(driver: Driver, call: Call) -> None:
    driver.faults = ["nvmlInitWithFlags hang"]
    driver.write()
    assert call("status") == (3, "driver not responding\n", "")


def test_tmux_draws_it_and_runs_nothing_that_stands_in_a_name(tmux: Tmux, own_home: Path) -> None:
    names = ("#(id -u)", "#[fg=blue]x", "#{pid}")
    figures = Status(gpus=rows("critical"), boot=boot_id(), interval=1000)
    tmux.start(["cat"], {})
    socket = tmux.run("display-message", "-p", "#{socket_path}").strip()
    tmux.run("set", "-g", "status-right-length", "100")
    tmux.run("set", "-g", "status-interval", "1")
    tmux.run("set", "-g", "status-right", f"#({GPUWATCH} status --tmux)")
    with Terminal(["tmux", "-S", socket, "attach"], columns=150, rows=20, env=dict(os.environ)) as client:
        for name in names:
            over = (Overuse(user=name, gib=2.0),)
            write(msgspec.structs.replace(figures, over=over, monotonic=time.monotonic()), own_home)
            client.wait_for(f"1 GPU 71% · 1 nearly full · {name} 2.0 over", timeout=30.0)
