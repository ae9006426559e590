"""`gpuwatch watch --unit`: the unit of the machine's service, as systemd itself judges it, and who may print one."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.base.errors import UsageError
from gpuwatch.cli import parse
from gpuwatch.commands import unit as unit_module
from gpuwatch.commands.unit import EXPORT_SCORE, NETWORK_SCORE, SCORE, print_unit

OTHER = 12345
"""A uid that is nobody's."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files of a service are root's")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter that finds gpuwatch in a folder of its own, where root alone can write."""
    monkeypatch.setattr(unit_module, "STICKY", 0)  # the tests' own folder is below /tmp
    package, link = tmp_path / "venv" / "lib" / "gpuwatch", tmp_path / "venv" / "bin" / "python3"
    for folder in (package, link.parent, tmp_path / "base"):
        folder.mkdir(mode=0o755, parents=True)
    base = tmp_path / "base" / "python3"
    base.write_text(f"#!/bin/sh\nprintf '%s\\n' {package}/__init__.py {package.parent}\n")
    base.chmod(0o755)
    link.symlink_to(base)
    for file in (package / "__init__.py", tmp_path / "venv" / "pyvenv.cfg"):
        file.touch(mode=0o644)
    return link


def unit(program: Path, settings: Path, *flags: str) -> int:
    return print_unit(parse(["watch", "--unit", *flags]), program=program, settings=settings)


@pytest.mark.parametrize(
    ("settings", "flags", "parts", "score"),
    [
        ("[report]\nkeep = '30d'\n[notify]\ntoast = false\n", (), 1, SCORE),
        ("[notify]\nurls = ['mailtos://a:secret@b.c']\n", (), 2, NETWORK_SCORE),
        ("", ("--export",), 2, EXPORT_SCORE),
        ("[export]\ntextfile = '/var/lib/node'\n", ("--export",), 2, SCORE),
        ("[export]\nlisten = ':9836'\n", ("--export",), 2, NETWORK_SCORE),
        ("[notify]\nurls = ['mailtos://a:secret@b.c']\n", ("--export",), 3, NETWORK_SCORE),
    ],
)
@pytest.mark.skipif(not os.environ.get("CI") and not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_takes_the_unit_and_finds_it_closed(
    settings: str,
    flags: tuple[str, ...],
    parts: int,
    score: str,
    program: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, service = tmp_path / "gpuwatch.toml", tmp_path / "gpuwatch.service"
    file.write_text(settings)
    file.chmod(0o600)
    assert unit(program, file, *flags) == 0
    printed = capsys.readouterr().out
    service.write_text(printed)
    assert f"ExecStart={program} -I -m gpuwatch watch --service\n" in printed
    assert "secret" not in printed
    assert printed.count("[Service]") == parts
    assert ("watch --service --export\n" in printed) is bool(flags)

    def analyze(*words: str) -> str:
        done = subprocess.run(["systemd-analyze", *words, service], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert analyze("verify") == ""
    found = re.search(r"exposure level for gpuwatch.service: ([\d.]+)", analyze("security", "--offline=true"))
    assert found
    # Other versions of systemd weigh a line or two more, or less.
    assert float(found[1]) == pytest.approx(float(score), abs=0.2)
    assert float(found[1]) <= 3.2


@pytest.mark.parametrize(
    ("place", "mode"),
    [
        ("base/python3", 0),
        ("base", 0o775),
        ("venv/bin", 0),
        ("venv/bin/python3", 0),
        ("venv/pyvenv.cfg", 0o666),
        ("venv", 0o757),
        ("venv/lib", 0),
        ("venv/lib/gpuwatch", 0o775),
        ("venv/lib/gpuwatch/__init__.py", 0o664),
        ("venv/lib/gpuwatch/planted", 0o777),
    ],
)
def test_no_unit_where_others_than_root_can_write(
    place: str, mode: int, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What others can write belongs to them, or has that mode."""
    path = tmp_path / place
    if not path.exists():
        path.mkdir()
    if mode:
        path.chmod(mode)
    else:
        os.chown(path, OTHER, 0, follow_symlinks=False)
    assert unit(program, tmp_path / "none") == 2
    out, err = capsys.readouterr()
    assert not out
    assert f"{path} " in err
    assert "/opt/gpuwatch/bin/pip install" in err


def test_no_unit_where_gpuwatch_is_found_by_the_environment_alone(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text("#!/bin/sh\nexit 1\n")
    assert unit(program, tmp_path / "none") == 2
    assert "PYTHONPATH" in capsys.readouterr().err


def test_no_unit_below_a_folder_for_everybody(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_module, "STICKY", stat.S_ISVTX)
    shared = tmp_path / "scratch"
    shared.mkdir()
    shared.chmod(0o1777)
    moved = shared / "python3"
    moved.symlink_to(program.resolve())
    assert unit(moved, tmp_path / "none") == 2
    out, err = capsys.readouterr()
    assert not out
    assert "where anybody can put another one" in err


def test_no_unit_for_metrics_without_what_they_need(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gpuwatch.export.exporter", raising=False)
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    with pytest.raises(UsageError, match=rf"--unit --export: {program} has no bcrypt"):
        unit(program, tmp_path / "none", "--export")
    assert not capsys.readouterr().out


def test_removal_says_what_is_kept_and_how_long(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gpuwatch.toml"
    file.write_text("[report]\nkeep = '30d'\nlargest = '8MiB'\n")
    file.chmod(0o600)
    assert unit(program, file, "--remove") == 0
    printed = capsys.readouterr().out
    assert "systemctl disable --now gpuwatch\n" in printed
    assert "/var/lib/gpuwatch stays" in printed
    assert "30 d, 40 MiB" in printed
