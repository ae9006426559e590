"""What stands behind a reload: the configuration read again, and what of it reaches source, watch and sinks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.cli import parse
from gpuwatch.commands.dashboard_setup import DashboardReloader
from gpuwatch.commands.startup import Reloader, configured
from gpuwatch.config.types import Config
from gpuwatch.declared.facts import Share
from gpuwatch.monitor import Monitor
from gpuwatch.recorder.recorder import Sinks
from gpuwatch.sampler.protocol import SamplerOptions
from gpuwatch.sources.local import LocalSource
from gpuwatch.ui.choices import Remembered
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.alerts import Script
from tests.support.sampler import close
from tests.support.waiting import wait_for


def test_new_shares_take_a_new_sampler(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in driver.env().items():
        monkeypatch.setenv(name, value)
    driver.gpus = [Gpu(0, memory_used=GIB)]
    driver.procs = [Proc(0, os.getpid(), memory=GIB)]
    driver.write()
    source = LocalSource(SamplerOptions(interval=0.1))

    def limit(wanted: int | None) -> None:
        def is_there() -> bool:
            snapshot = source.next(0.5)
            declared = snapshot.processes[0].declared if snapshot is not None and snapshot.processes else None
            return declared is not None and [one.bytes for one in declared.limits] == ([wanted] if wanted else [])

        wait_for(is_there, f"there never was a limit of {wanted}")

    try:
        limit(None)
        (before,) = source.pids
        source.set_shares((Share(memory=5 * GIB, where="gpuwatch.toml", line=3),))
        limit(5 * GIB)
        assert before not in source.pids
        (now,) = source.pids
        source.set_shares((Share(memory=5 * GIB, where="gpuwatch.toml", line=3),))
        limit(5 * GIB)
        assert source.pids == {now}, "the same shares change nothing"
    finally:
        close(source)


def test_a_mistake_changes_nothing_of_a_dashboard(tmp_path: Path) -> None:
    file = tmp_path / "gpuwatch.toml"
    file.write_text('theme = "nord"\n')
    args = parse(["--config", str(file)])
    applied: list[Config] = []
    reloader = Reloader(args, configured(args), lambda old, new: applied.append(new))
    reload = DashboardReloader(reloader, args, 1.0, Remembered())
    file.write_text('theme = "nord"\nreed_only = true\n')
    answer = reload()
    assert answer.failed
    assert "configuration not changed: " in answer.words
    assert "did you mean read_only?" in answer.words
    assert (answer.options, applied, reloader.config.theme) == (None, [], "nord")
    file.write_text('theme = "light"\nread_only = true\n')
    answer = reload()
    assert not answer.failed
    assert answer.options is not None
    assert (answer.options.theme, answer.options.read_only, len(applied)) == ("light", True, 1)


def test_a_demo_records_nothing(own_home: Path) -> None:
    watch = Monitor(Script(), lambda frame: None)
    Sinks(watch, Config(), demo=True, watch=True).close(1.0)
    assert list(own_home.rglob("*gpuwatch*")) == []
