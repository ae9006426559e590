"""What every test stands on: the fake driver, and a home of its own.

Counting the lines of a test takes twice as long: those of the files in `UNCOUNTED`, and of the long tests that are
marked `uncounted`, are not counted, since other tests run the same ones. A child process that counts its lines takes
0.1 s more to start, so only those of `COUNTED` do.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.environment import hide_service, uncounted
from tests.support.environment import public as public

# A shell ignores SIGINT in what it starts in its background, nohup SIGHUP, and every child inherits that.
for _signal, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _usual)

# Half of what is usual: there are some two hundred such tests, and all of them run at every change. The same ones each
# time, so that a change does not fail by what it did not touch; the profile `nightly` looks for others. Without limits
# of time: how long an example takes says how busy the machine is.
_ANY_TIME: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("gpuwatch", max_examples=50, derandomize=True, **_ANY_TIME)
settings.register_profile("nightly", max_examples=2000, **_ANY_TIME)
settings.load_profile("gpuwatch")  # more examples: pytest --hypothesis-profile=nightly

COUNTED = (
    "commands/test_cmd_kill.py",
    "commands/test_cmd_run.py",
    "commands/test_cmd_watch.py",
    "inspector/test_client.py",
    "inspector/test_worker.py",
    "kill/",
    "program/test_pty.py",
    "program/test_recording.py",
    "recorder/test_notifiers.py",
    "sampler/",
)
"""Tests that run what runs in a child process alone: the sampler, the inspector, the dashboard in its terminal, …"""

UNCOUNTED = (
    "alerts/test_engine_properties.py",
    "alerts/test_engine_walk.py",
    "alerts/test_false_alarms.py",
    "alerts/test_growth_rule.py",
    "commands/test_cmd_docs.py",
    "commands/test_stream.py",
    "declared/test_claims.py",
    "declared/test_sizes.py",
    "fleet/test_real_server.py",
    "fleet/test_sshd.py",
    "history/",
    "program/",
    "recorder/test_anonymise.py",
    "recorder/test_hostile_recordings.py",
    "recorder/test_recording.py",
    "recorder/test_replay.py",
    "ui/draw/test_theme.py",
    "ui/draw/test_useful_columns.py",
    "ui/test_dashboard.py",
    "ui/test_dashboard_keys.py",
    "ui/test_exit.py",
    "ui/test_layout_drawn.py",
    "ui/test_own_keys.py",
    "ui/test_partial_updates.py",
    "ui/test_textual_internals.py",
)
"""Tests that run only lines that others run too, but for 250 branches of 58,000."""

pytest_plugins = ["tests.idle", "tests.driver.fixtures", "tests.inspector.inspecting", "tests.support.terminal"]


_SEEN = hide_service()
"""Folders of the machine's own service that the tests see all the same."""


def pytest_report_header() -> str:
    """Say that the tests may fail by the machine's service."""
    return f"only root can hide {', '.join(_SEEN)}: tests without the machine's service may fail" if _SEEN else ""


def _is_of(path: Path, files: tuple[str, ...]) -> bool:
    return str(path.relative_to(Path(__file__).parent)).startswith(files)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run an uncounted test without the trace function of coverage."""
    is_uncounted = "uncounted" in item.keywords or _is_of(item.path, UNCOUNTED)
    with uncounted() if is_uncounted else nullcontext():
        return (yield)


@pytest.fixture(autouse=True)
def children_uncounted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count no lines in the child processes of a test that is not in `COUNTED`."""
    if not _is_of(request.path, COUNTED):
        monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point home and every XDG folder to a temporary one: no test reads or writes the developer's own."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    runtime = home / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    for name in ("NO_COLOR", "SUDO_UID", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    return home
