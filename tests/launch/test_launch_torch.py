"""Which PyTorch can be told its share by environment: found in files, without running anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.launch.environment import torch_obstacle


class Python:
    """A folder with an interpreter, and PyTorch in it if so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program("python3", "")
        (folder / "bin" / "python3").write_bytes(b"\x7fELF")

    def program(self, name: str, text: str) -> str:
        place = self.folder / "bin" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o755)
        return str(place)

    def torch(self, header: str | None, packages: str = "lib/python3.11/site-packages") -> Path:
        package = self.folder / packages / "torch"
        headers = package / "include" / "c10" / "cuda"
        headers.mkdir(parents=True, exist_ok=True)
        if header is not None:
            (headers / "CUDAAllocatorConfig.h").write_text(header)
        return package

    def torch_obstacle(self, *command: str, **environ: str) -> str:
        return torch_obstacle(command, {"PATH": str(self.folder / "bin"), "HOME": str(self.folder / "home")} | environ)


NEW, OLD = '"per_process_memory_fraction",', '"max_split_size_mb",'


@pytest.fixture
def python(tmp_path: Path) -> Python:
    return Python(tmp_path / "venv")


def test_a_new_pytorch_is_told(python: Python) -> None:
    python.torch(NEW)
    assert python.torch_obstacle("python3", "train.py") == ""


def test_an_old_pytorch_is_not_told_for_it_would_end_with_an_error(python: Python) -> None:
    python.torch(OLD)
    assert "older than 2.10" in python.torch_obstacle("python3", "train.py")


def test_one_old_pytorch_among_those_that_could_be_imported_is_enough(python: Python, tmp_path: Path) -> None:
    python.torch(NEW)
    Python(python.folder / "home" / ".local").torch(OLD)
    assert "older than 2.10" in python.torch_obstacle("python3")
    Python(python.folder / "home" / ".local").torch(NEW)
    assert python.torch_obstacle("python3") == ""
    Python(tmp_path / "other").torch(OLD)
    assert "older" in python.torch_obstacle("python3", PYTHONPATH=f":{tmp_path}/other/lib/python3.11/site-packages")


def test_a_venv_that_sees_the_systems_packages_has_theirs(python: Python, tmp_path: Path) -> None:
    system = Python(tmp_path / "usr")
    system.torch(NEW, "lib/python3/dist-packages")
    settings = python.folder / "pyvenv.cfg"
    settings.write_text(f"home = {system.folder}/bin\ninclude-system-site-packages = false\n")
    assert "has no PyTorch" in python.torch_obstacle("python3")
    settings.write_text(f"home = {system.folder}/bin\ninclude-system-site-packages = true\n")
    assert python.torch_obstacle("python3") == ""
    settings.write_text("include-system-site-packages = true\n")
    assert "has no PyTorch" in python.torch_obstacle("python3")


def test_a_pytorch_without_its_headers_is_not_told(python: Python) -> None:
    python.torch(None)
    assert "it is not known whether" in python.torch_obstacle("python3")


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("#!{bin}/python3", ""),
        ("#!/usr/bin/env python3", ""),
        ("#!/usr/bin/env -S A=1 python3 -u", ""),
        ("#!/bin/sh", "not known which Python"),
        ("#!/nowhere/python3", "not known which Python"),
        ("#!", "not known which Python"),
        ("\x7fELF", "not known which Python"),
        ("#!{bin}/loop", "not known which Python"),
    ],
)
def test_a_script_is_judged_by_its_first_line(python: Python, first: str, said: str) -> None:
    python.torch(NEW)
    python.program("loop", f"#!{python.folder}/bin/loop\n")
    python.program("torchrun", first.format(bin=python.folder / "bin") + "\nimport torch\n")
    found = python.torch_obstacle("torchrun", "train.py")
    assert said in found
    assert bool(found) is bool(said)


def test_what_is_not_there_is_not_judged(python: Python) -> None:
    assert "not known which Python" in python.torch_obstacle("missing")
