"""`gpuwatch doctor`: each check well and not well, its fix, the exit code, and that it changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuwatch.commands import doctor
from gpuwatch.commands.doctor import Check, CheckMark, Machine
from gpuwatch.model.snapshot import Health, Snapshot, SourceState
from gpuwatch.recorder.schema import own_store
from tests.support.builders import gpu, snapshot
from tests.support.store import alert, write

MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"
OK, FIX, NOTE = CheckMark.OK, CheckMark.FIX, CheckMark.NOTE
CAPABLE = "NVIDIA_DRIVER_CAPABILITIES"
TERMINAL = {"TERM": "xterm-256color", "PATH": os.environ["PATH"]}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine on which all is well."""
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    for folder in (proc / "self", proc / "1", proc / "driver/nvidia", proc / "sys/kernel/yama", dev):
        folder.mkdir(parents=True)
    (proc / "driver/nvidia/version").write_text(MODULE.format("580.95.05"))
    (proc / "self/mountinfo").write_text("22 1 0:20 / /proc rw,nosuid - proc proc rw\n")
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        (dev / name).touch()
    return Machine(proc=proc, root=tmp_path, environ=TERMINAL, uid=1001, size=(160, 50))


def well(**fields: Any) -> Snapshot:
    rows = [replace(gpu(0), persistence=True)]
    return replace(snapshot(rows), driver="580.95.05", cuda="13.0", **fields)


def found(machine: Machine, seen: Snapshot, error: str = "") -> dict[str, Check]:
    return {one.name: one for one in doctor.check_all(machine, seen, error)}


def test_a_machine_on_which_all_is_well(machine: Machine) -> None:
    checks = found(machine, well())
    assert checks.pop("service").mark is NOTE, "none runs"
    assert {one.mark for one in checks.values()} == {OK}
    assert not any(one.fix for one in checks.values())
    silent = found(machine, Snapshot(state=SourceState.SILENT), "the driver does not answer")
    assert silent["driver"].mark is FIX
    assert "terminal" not in found(replace(machine, is_terminal=False), well())


def down(words: str) -> Snapshot:
    return Snapshot(state=SourceState.DRIVER_DOWN, words=words)


def with_gpu(**fields: Any) -> Snapshot:
    return replace(well(), gpus=(replace(gpu(0), **{"persistence": True, **fields}),))


HIDING = "22 1 0:20 / /proc rw,nosuid - proc proc rw,hidepid=2\n"
INSIDE = {"container": "podman"}


@pytest.mark.parametrize(
    ("change", "seen", "name", "mark", "text"),
    [
        ({}, replace(well(), driver="590.1.2"), "driver", FIX, "library 590.1.2, kernel module 580.95.05 reboot"),
        ({}, down("not loaded; modprobe it"), "driver", FIX, "not loaded (library unknown, modprobe it"),
        ({}, with_gpu(health=Health.LOST, words="reset it"), "GPUs", FIX, "0 of 1 GPUs answer: GPU 0 lost reset it"),
        ({}, with_gpu(holdings_note="incomplete"), "GPUs", NOTE, "1 of 1 GPUs answer; GPU 0: incomplete"),
        ({}, with_gpu(persistence=False), "persistence mode", NOTE, "off on GPU 0 nvidia-smi -pm 1"),
        ({"uid": 1001}, HIDING, "hidepid", FIX, "/proc hides the processes hidepid=0"),
        ({"uid": 0}, HIDING, "hidepid", OK, "not from root"),
        ({"environ": INSIDE}, well(), "container", OK, "sees the processes of the host"),
        ({"environ": INSIDE}, well(confined=True), "container", FIX, "--pid=host"),
        ({"environ": INSIDE}, down(""), "container", NOTE, ""),
        ({"environ": INSIDE | {CAPABLE: "compute,video"}}, well(), "container", FIX, "compute,utility"),
        ({"environ": INSIDE | {"NVIDIA_VISIBLE_DEVICES": "void"}}, down(""), "container", FIX, "--gpus all"),
        ({"environ": {"TERM": "dumb"}}, well(), "terminal", FIX, "TERM=dumb"),
        ({"environ": {"TERM": "xterm\x1b]52;c;eA==\x07"}}, well(), "terminal", OK, "TERM=xterm"),
        ({"encoding": "ascii"}, well(), "terminal", FIX, "ascii"),
        ({"size": (39, 24)}, well(), "terminal", FIX, "39×24"),
    ],
)
def test_a_check_and_its_fix(
    machine: Machine, change: dict[str, Any], seen: Snapshot | str, name: str, mark: CheckMark, text: str
) -> None:
    """Each word of `text` is in what was found, or in the suggested fix."""
    if isinstance(seen, str):
        (machine.proc / "self/mountinfo").write_text(seen)
        seen = well()
    if "environ" in change:
        change = change | {"environ": TERMINAL | change["environ"]}
    check = found(replace(machine, **change), seen)[name]
    assert check.mark is mark
    assert all(word in f"{check.found} {check.fix}" for word in text.split())
    assert check.found.isprintable()


def test_device_files(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(machine, well())["device files"].found == "you may open all 3 in /dev"
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("nvidia0"))  # root may open any
    closed = found(machine, well())["device files"]
    assert (closed.mark, closed.found) == (FIX, "no permission to open /dev/nvidia0")
    for file in (machine.root / "dev").iterdir():
        file.unlink()
    assert found(machine, well())["device files"].mark is NOTE
    assert found(machine, down(""))["device files"].mark is FIX
    (machine.root / "dev/dxg").touch()
    assert "WSL" in found(machine, down(""))["device files"].found


def files(config: Path | None = None) -> dict[str, Check]:
    """Return the checks of the user's files."""
    return {one.name: one for one in doctor.check_files(str(config) if config else None)}


def test_the_files(tmp_path: Path) -> None:
    checks = files()
    assert {one.mark for one in checks.values()} == {OK}
    assert "none yet" in checks["store"].found
    assert not own_store().exists()
    write(own_store(), alert())
    assert files()["store"].found == str(own_store())
    own_store().write_bytes(b"no database" * 100)
    assert files()["store"].mark is FIX
    wrong = tmp_path / "mine.toml"
    wrong.write_text("intervall = 2\n")
    assert "did you mean interval" in files(wrong)["configuration"].found
    assert files(wrong)["configuration"].fix == "fix the file, or run without --config"
    assert "no such file" in files(tmp_path / "none.toml")["configuration"].found
    secrets = tmp_path / "secrets.toml"
    secrets.write_text("[notify]\nurls = ['json://localhost']\n")
    secrets.chmod(0o644)
    assert "others can read these secrets (mode 0644)" in files(secrets)["configuration"].found


def test_a_store_that_may_not_be_made_or_is_being_written() -> None:
    (check,) = (one for one in doctor.check_files(None, own_store(Path("/proc/gpuwatch"))) if one.name == "store")
    assert check.mark is FIX
    assert "cannot be written: " in check.found
    write(own_store(), alert())
    Path(f"{own_store()}-journal").write_bytes(b"half a write")
    assert "being written" in files()["store"].found
    assert Path(f"{own_store()}-journal").read_bytes() == b"half a write"


def test_the_documentation_lists_every_check_in_its_order(machine: Machine) -> None:
    made = [*found(machine, well()), *files()]
    assert [name for name in doctor.CHECKS if name != "clipboard"] == made, "the clipboard is checked in tmux"


def test_lines_are_folded_at_the_width_of_the_terminal() -> None:
    checks = [
        Check("driver", FIX, "word " * 30 + "/a/path/that/stays/whole" * 3, "step " * 30),
        Check("a", OK, "b"),
    ]
    lines = list(doctor.format_checks(checks, color=False, width=60))
    assert [line for line in lines if len(line) > 60 and "whole" not in line] == []
    assert lines[0].startswith("fix   driver  word")
    assert all(line.startswith(" " * 14) for line in lines[1:-1])
    assert lines[-1] == "ok    a       b"
    assert "\x1b[33mfix \x1b[0m" in next(iter(doctor.format_checks(checks, color=True)))
