"""Extras: the command that installs one into each kind of environment, and what works without any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.base.extras import install_hint, packages_of
from gpuwatch.commands.reference import COMMANDS

FLEET = "'urllib3>=2.2'"


@pytest.mark.parametrize(
    ("file", "content", "command"),
    [
        ("pyvenv.cfg", "version = 3.11.7\n", "{place}/bin/pip install"),
        ("pyvenv.cfg", "uv = 0.9.1\n", "uv pip install --python {place}/bin/python"),
        ("pipx_metadata.json", "{}", "pipx inject gpuwatch-tui"),
        ("other", "", "{place}/bin/pip install"),
    ],
)
def test_a_hint_is_for_the_environment_that_runs(tmp_path: Path, file: str, content: str, command: str) -> None:
    place = tmp_path / "gpuwatch-tui"
    place.mkdir()
    (place / file).write_text(content)
    assert install_hint("fleet", place) == f"{command.format(place=place)} {FLEET}"


def test_an_environment_of_root_needs_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert install_hint("fleet", Path("/opt/gpuwatch")) == f"sudo /opt/gpuwatch/bin/pip install {FLEET}"


@pytest.mark.parametrize("extra", ["notify", "html", "export", "fleet"])
def test_each_extra_names_its_packages(extra: str) -> None:
    assert packages_of(extra)
    assert not packages_of("none")


WITHOUT = """
import sys
from gpuwatch import cli

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"urllib3", "bcrypt", "yaml", "prometheus_client", "matplotlib", "jinja2"}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Without())
for line in sys.argv[1:]:
    try:
        print(line, cli.main(line.split(), None))
    except SystemExit as end:
        print(line, end.code)
"""


def test_without_the_extras_each_command_has_its_help_and_a_hint() -> None:
    asked = [f"{name} --help" for name in COMMANDS]
    refused = {
        "fleet --json": "a fleet needs urllib3",
        "pick --fleet --empty": "a fleet needs urllib3",
        "report --html /tmp/x.html": "--html needs matplotlib and jinja2",
    }
    command = [sys.executable, "-c", WITHOUT, *asked, *refused]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line for line in asked if f"{line} 0" not in done.stdout.splitlines()] == []
    for (line, words), said in zip(refused.items(), done.stderr.splitlines(), strict=True):
        assert f"{line} 2" in done.stdout
        assert said.startswith(f"gpuwatch: {words}: ")
        assert "install" in said
