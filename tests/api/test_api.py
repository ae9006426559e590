"""Python API: one snapshot, streams, their errors, and the end of the child in each case."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import psutil
import pytest

import gpuwatch
from gpuwatch import Snapshot, Stream, UnavailableError, UsageError, snapshot, stream
from gpuwatch.commands.docs import FOLDER
from gpuwatch.model.snapshot import Reason, SourceState
from gpuwatch.model.snapshot import Snapshot as Taken
from tests.driver import Driver, Gpu
from tests.support.alerts import Script
from tests.support.builders import GIB, gpu, holding, process
from tests.support.builders import snapshot as built
from tests.support.environment import environment
from tests.support.store import demo, record

EXAMPLES = [
    example
    for page in ("python.md", "recording.md")
    for example in re.findall(r"```python\n(.*?)```", (FOLDER / page).read_text(), re.DOTALL)
]


@pytest.fixture
def machine(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Make the tests' driver this process's driver."""
    driver.gpus = [Gpu(0, util_gpu=37), Gpu(1)]
    for name, value in driver.write().env().items():
        monkeypatch.setenv(name, value)
    return driver


def children() -> set[int]:
    return {one.pid for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE}


@pytest.mark.uncounted
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_guide_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "day.gpuwatch", demo(12))
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(example, "python.md", "exec"), {})
    assert re.search(r"GiB|idle GPUs \[|^1795269780\.0 ", out.getvalue())


def test_the_guide_has_these_examples() -> None:
    assert len(EXAMPLES) == 6


@pytest.mark.uncounted
def test_a_recording_is_read_between_two_times(tmp_path: Path) -> None:
    shown = demo(40)
    day = record(tmp_path / "day", shown)

    def parts(*span: float) -> list[tuple[object, ...]]:
        return [(one.taken, one.gpus, [p.key for p in one.processes]) for one in gpuwatch.recording(day, *span)]

    expected = [(one.taken, one.gpus, [p.key for p in one.processes]) for one in shown]
    assert parts() == expected
    assert parts(shown[7].taken, shown[23].taken) == expected[7:24]
    with pytest.raises(gpuwatch.UsageError, match="No such file"):
        next(gpuwatch.recording(tmp_path / "none"))


def test_who_is_over_is_in_a_snapshot(tmp_path: Path) -> None:
    first, *_ = snapshot(demo=True).overshoots
    assert (first.user, first.gpu, first.pids, first.where) == ("ada", 0, (15226,), "train.py:12")
    assert first.held > first.declared
    file = tmp_path / "gpuwatch.toml"
    file.write_text('[allowance]\nframework = "70GiB"\neager = "70GiB"\nbudget = "70GiB"\nexact = "70GiB"\n')
    assert not snapshot(demo=True, config=file).overshoots
    with stream(demo=True) as snapshots:
        assert next(snapshots).overshoots[0].user == "ada"


def test_a_process_has_its_memory_and_gpus_and_is_printed_in_words() -> None:
    held: dict[int, dict[int, Any]] = {0: {11: GIB, 12: GIB}, 1: {12: Reason.UNSUPPORTED}, 2: {11: 2 * GIB}}
    gpus = [gpu(index, holdings=[holding(pid, memory=size) for pid, size in of.items()]) for index, of in held.items()]
    taken = built(gpus, [process(pid, "ada", command=f"/usr/bin/python {pid}.py") for pid in (11, 12, 13)])
    now = next(Stream(Script([taken])))
    assert [(one.memory, one.gpus) for one in now.processes] == [
        (3 * GIB, (0, 2)),
        (Reason.UNSUPPORTED, (0, 1)),
        (Reason.NO_SAMPLE, ()),
    ]
    assert [f"{one}" for one in now.processes] == [
        "<Process 11 ada: 11.py, 3.0 GiB on GPU 0,2>",
        "<Process 12 ada: 12.py, memory unsupported on GPU 0,1>",
        "<Process 13 ada: 13.py, memory no sample>",
    ]
    assert re.fullmatch(r"<Snapshot box3 [-\d]+ [:\d]+: 3 GPUs, 3 processes>", repr(now))
    assert "11  ada" in str(now)
    assert len(str(now).splitlines()) == 12


def test_an_import_of_gpuwatch_loads_nothing_else() -> None:
    look = "import sys, gpuwatch; print([name for name in sys.modules if name.startswith(('gpuwatch.', 'msgspec'))])"
    done = subprocess.run([sys.executable, "-c", look], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "['gpuwatch.version']\n"


def test_every_name_is_there_and_no_other() -> None:
    assert all(getattr(gpuwatch, name) for name in gpuwatch.__all__)
    with pytest.raises(AttributeError, match="no attribute 'frames'"):
        gpuwatch.frames  # type: ignore[attr-defined]  # noqa: B018


def test_a_snapshot_of_this_machine_leaves_no_child(machine: Driver) -> None:
    before = children()
    found = snapshot()
    assert [gpu.utilization for gpu in found.gpus] == [37, 0]
    called = machine.calls(gpu=0)
    assert [gpu.index for gpu in snapshot(only=[1]).gpus] == [1]
    assert machine.calls(gpu=0) == called
    assert children() <= before


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    with pytest.raises(UnavailableError, match=r"libnvidia-ml.* try: demo=True$"):
        snapshot()
    with stream() as snapshots, pytest.raises(UnavailableError, match=r"libnvidia-ml.* try: demo=True$"):
        next(snapshots)


@pytest.mark.parametrize("only", [[9], [-1], [0.5], "0"])
def test_an_unknown_gpu(machine: Driver, only: Any) -> None:
    with pytest.raises(UsageError, match="only"):
        snapshot(only=only)
    with pytest.raises(UsageError, match="only"):
        next(stream(only=only))


@pytest.mark.parametrize("interval", [0, -1, float("nan"), 3601])
def test_a_wrong_interval(interval: float) -> None:
    with pytest.raises(UsageError, match=r"interval: .* 0\.1 to 3600 s"):
        stream(interval, demo=True)


def test_a_mistake_in_the_configuration_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("intervall = 2\n")
    with pytest.raises(UsageError, match="did you mean interval"):
        snapshot(demo=True, config=file)


def test_a_stream_goes_on_and_ends_with_its_block(machine: Driver) -> None:
    before = children()
    with stream(0.1) as snapshots:
        taken = [next(snapshots).sequence for _ in range(3)]
        assert children() > before
    assert taken == sorted(set(taken))
    assert children() <= before
    assert list(snapshots) == []


def test_an_abandoned_stream_leaves_no_child(machine: Driver) -> None:
    before = children()
    for found in stream(0.1):
        assert isinstance(found, Snapshot)
        break
    assert children() <= before


@pytest.mark.slow
def test_python_ends_at_once_with_an_open_stream(machine: Driver) -> None:
    program = "import gpuwatch, psutil; s = gpuwatch.stream(0.1); next(s); print(psutil.Process().children()[0].pid)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=machine.env(), capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr == ""
    pid = int(done.stdout)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_thread_uses_a_stream_and_another_ends_it(machine: Driver) -> None:
    found: list[int] = []
    opened = stream(0.1)
    some = threading.Event()

    def use() -> None:
        for one in opened:
            found.append(len(one.gpus))
            some.set()

    thread = threading.Thread(target=use)
    thread.start()
    assert some.wait(20)
    opened.close()
    thread.join(20)
    assert not thread.is_alive()
    assert set(found) == {2}


def test_what_fails_later_is_in_the_snapshot() -> None:
    down = Taken(state=SourceState.DRIVER_DOWN, words="the driver is being upgraded")
    ended = Taken(state=SourceState.ENDED, words="the sampler does not start")
    snapshots = Stream(Script([built(), down, ended]))
    assert [next(snapshots).state, next(snapshots).state] == [SourceState.OK, SourceState.DRIVER_DOWN]
    with pytest.raises(UsageError, match="does not start"):
        next(snapshots)
