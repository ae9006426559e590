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

from gpuwatch.commands.status import CELLS, exit_code, status_line
from gpuwatch.model import Health, Reason, SourceState
from gpuwatch.recorder.live import FILE, IdleHolding, Overuse, Status, StatusGpu, boot
from tests.commands.conftest import GPUWATCH
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.launching import Call, Run
from tests.support.terminal import Terminal
from tests.support.tmux import Tmux


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
        (Status(gpus=rows("")), "1 GPU 71%"),
        (Status(gpus=MIXED), "4 GPUs 20% · 1 lost"),  # the mean is of those that have a figure
        (Status(gpus=MIXED[:1]), "1 GPU —"),
        (Status(gpus=NEAR, over=THREE, others=1), "4 GPUs 71% · 2 full · 1 more critical · ada 3.1 over +2 …"),
        (Status(gpus=NEAR, over=THREE), "4 GPUs 71% · 2 full · ada 3.1 over +2 · 1 near limit"),
        (Status(state=SourceState.DRIVER_DOWN, gpus=rows("")), "1 GPU 71% · NVIDIA driver down"),
    ],
)
def test_the_worst_comes_first_in_the_line(found: Status, line: str) -> None:
    assert status_line(found, 0.0) == line


def test_old_figures_say_so() -> None:
    found = Status(gpus=rows(""), sampled=100.0, interval=2.0)
    assert status_line(found, 110.0) == "1 GPU 71%"
    assert status_line(found, 114.5) == "1 GPU 71% · stale 14 s"


@pytest.mark.parametrize(
    ("state", "line", "code"),
    [
        (SourceState.NO_DRIVER, "no NVIDIA driver", 3),
        (SourceState.DRIVER_DOWN, "NVIDIA driver down", 3),
        (SourceState.NO_GPU, "no GPU", 3),
        (SourceState.SILENT, "driver not responding", 3),
        (SourceState.STARTING, "starting", 0),
    ],
)
def test_what_cannot_be_seen_is_said(state: SourceState, line: str, code: int) -> None:
    assert status_line(Status(state=state), 0.0) == line
    assert exit_code(Status(state=state)) == code


def test_in_tmux_a_name_is_no_format() -> None:
    found = Status(gpus=rows("critical"), over=(Overuse(user="#(id)#[x", gib=2.0),))
    assert status_line(found, 0.0, tmux=True) == (
        "1 GPU 71% · #[fg=red]1 full#[default] · #[fg=yellow]##(id)##[x 2.0 over#[default]"
    )


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
    assert call("status") == (0, "2 GPUs 40% · 1 full\n", "")
    assert call("status", "--tmux") == (0, "2 GPUs 40% · #[fg=red]1 full#[default]\n", "")
    found = msgspec.json.decode(call("status", "--json")[1], type=Status)
    assert [gpu.near for gpu in found.gpus] == ["", "critical"]


@pytest.mark.parametrize("content", [b'{"of another version":' + b"[" * 200_000, b'{"words": "\xff"}', b""])
def test_a_damaged_file_is_said_in_one_line(driver: Driver, call: Call, own_home: Path, content: bytes) -> None:
    driver.gpus = [Gpu(0, util_gpu=20)]
    driver.write()
    write(Status(), own_home)
    file = own_home / "runtime" / "gpuwatch" / FILE
    file.write_bytes(content)
    code, out, err = call("status")
    assert (code, out, err.count("\n")) == (0, "1 GPU 20%\n", 1)
    assert err.startswith(f"gpuwatch: {file} is damaged, and not used: ")


def test_idle_times_are_not_printed(call: Call, own_home: Path) -> None:
    idle = (IdleHolding("GPU-0", 100, 5, 60.0, at_least=True),)
    write(Status(host="lab", monotonic=time.monotonic(), boot=boot(), interval=600.0, resting=idle), own_home)
    printed = msgspec.json.decode(call("status", "--json")[1])
    assert printed["host"] == "lab"
    assert "resting" not in printed


def test_fresh_figures_are_taken_and_no_call_is_made(driver: Driver, call: Call, own_home: Path) -> None:
    write(Status(gpus=rows("critical", busy=50), monotonic=time.monotonic(), boot=boot()), own_home)
    assert call("status") == (0, "1 GPU 50% · 1 full\n", "")
    assert not driver.calls().total()


def test_old_figures_are_not_taken(driver: Driver, call: Call, own_home: Path) -> None:
    driver.write()
    write(Status(gpus=rows(*[""] * 5), monotonic=time.monotonic() - 10, boot=boot()), own_home)
    assert call("status")[1].startswith("1 GPU ")


def test_no_driver_is_exit_code_3(call: Call) -> None:
    assert call("status", has_driver=False) == (3, "no NVIDIA driver\n", "")


def test_a_driver_that_hangs_does_not_hang_the_line(driver: Driver, call: Call) -> None:
    driver.faults = ["nvmlInitWithFlags hang"]
    driver.write()
    assert call("status") == (3, "driver not responding\n", "")


def test_the_demo_has_a_status_too(call: Call) -> None:
    code, out, _ = call("--demo", "status", has_driver=False)
    assert code == 0
    assert re.match(r"8 GPUs \d+% · 1 full · ada \d+\.\d over", out)


def test_the_help_has_lines_that_tmux_takes(tmux: Tmux, run: Run, tmp_path: Path) -> None:
    printed = run("status", "--help", LD_LIBRARY_PATH="/nowhere", COLUMNS="40").stdout
    lines = [line.strip() for line in printed.splitlines() if line.strip().startswith("set -g ")]
    assert len(lines) == 3
    (tmp_path / "tmux.conf").write_text("\n".join(lines) + "\n")
    tmux.start(["cat"], {})
    tmux.run("source-file", str(tmp_path / "tmux.conf"))
    shown = tmux.run("show-options", "-gv", "status-right").strip()
    assert shown == f"#({GPUWATCH} status --tmux)"  # in a virtual environment the name alone would not be found
    assert int(tmux.run("show-options", "-gv", "status-interval")) == 5
    assert int(tmux.run("show-options", "-gv", "status-right-length")) >= CELLS


def test_tmux_draws_it_and_runs_nothing_that_stands_in_a_name(tmux: Tmux, own_home: Path) -> None:
    names = ("#(id -u)", "#[fg=blue]x", "#{pid}")
    figures = Status(gpus=rows("critical"), boot=boot(), interval=1000)
    tmux.start(["cat"], {})
    socket = tmux.run("display-message", "-p", "#{socket_path}").strip()
    tmux.run("set", "-g", "status-right-length", "100")
    tmux.run("set", "-g", "status-interval", "1")
    tmux.run("set", "-g", "status-right", f"#({GPUWATCH} status --tmux)")
    with Terminal(["tmux", "-S", socket, "attach"], columns=150, rows=20, env=dict(os.environ)) as client:
        for name in names:
            over = (Overuse(user=name, gib=2.0),)
            write(msgspec.structs.replace(figures, over=over, monotonic=time.monotonic()), own_home)
            client.wait_for(f"1 GPU 71% · 1 full · {name} 2.0 over", timeout=30.0)
