"""`gpuwatch config`: what it shows can be read again, what it writes is safe, and what it checks is named."""

from __future__ import annotations

import argparse
import io
import os
import re
import stat
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from gpuwatch.base.errors import UsageError
from gpuwatch.cli import parse
from gpuwatch.commands import config as command
from gpuwatch.config import load
from gpuwatch.config.document import default_text
from gpuwatch.config.types import Config
from gpuwatch.ui.choices import Remembered

AWKWARD = """
interval = "500ms"
user = "josé \\"j\\" \\\\ 1"
[alerts]
off = ["power limit", "XID"]
memory_warning = 12.25
ended_process_memory = 1048577
[notify]
command = ["/bin/tell", "it's"]
[[share]]
command = "a\\\\.b|\\"c\\""
gpu = [0, "GPU-8932"]
share = 0.33333333333333331
[[rule]]
name = "ada's memory"
on = "process"
when = "mem>20GiB gpu:1 user:1001"
message = "it's \\"too much\\""
"""


def write(file: Path, content: str, mode: int = 0o644) -> Path:
    """Write a file with a mode."""
    file.write_text(content)
    file.chmod(mode)
    return file


def run(*words: str, administrators: Path | None = None, wrong: Sequence[str] = ()) -> tuple[int, list[str]]:
    """Run the command; give its exit code and lines."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    args: argparse.Namespace = parse(["config", *words])
    nowhere = Path("/nowhere/gpuwatch.toml")
    code = command.main(args, administrators=administrators or nowhere, out=out, check_urls=lambda urls: wrong)
    out.seek(0)
    return code, out.read().splitlines()


def without_places(config: Config) -> Config:
    shares = tuple(msgspec.structs.replace(share, where="", line=0, ceiling=False) for share in config.shares)
    return msgspec.structs.replace(config, shares=shares)


@pytest.mark.parametrize("flags", [(), ("--ascii",)])
def test_what_is_shown_can_be_read_again(tmp_path: Path, flags: Sequence[str]) -> None:
    admin = write(tmp_path / "etc.toml", "read_only = true\n[[share]]\nuser = 'bob'\nshare = 0.5\n")
    file = write(tmp_path / "mine.toml", AWKWARD)
    code, lines = run("--show", "--config", str(file), *flags, administrators=admin)
    again = write(tmp_path / "again.toml", "\n".join(lines))
    expected = load(str(file), administrators=admin)
    if flags:
        expected = msgspec.structs.replace(expected, ascii=True)
        assert all(line.isascii() for line in lines)
    assert code == 0
    assert without_places(load(str(again), administrators=tmp_path / "none")) == without_places(expected)


def test_what_was_chosen_in_the_dashboard_stands_beside_the_default(tmp_path: Path) -> None:
    Remembered().save({"theme": "nord", "interval": 2.0})
    _, lines = run("--show", "--config", str(write(tmp_path / "a.toml", "interval = 3\n")))
    theme, interval = (next(line for line in lines if line.startswith(name)) for name in ("theme", "interval"))
    assert theme.endswith('# default; chosen in the dashboard: "nord"')
    assert interval.endswith("a.toml")


def test_secrets_are_shown_masked_and_commented_out(tmp_path: Path) -> None:
    content = "[notify]\nurls = ['slack://T0K3N/x', 'json://h']\ncommand = ['/bin/tell', '--token', 'T0K3N']\n"
    file = write(tmp_path / "mine.toml", content, 0o600)
    _, lines = run("--show", "--config", str(file))
    assert "T0K3N" not in "\n".join(lines)
    assert any(line.startswith("# urls = [slack://…, json://…]") for line in lines)
    assert any(line.startswith('# command = ["/bin/tell", "--token", "***"]') for line in lines)
    assert "urls" not in tomllib.loads("\n".join(lines))["notify"]


def test_its_examples_are_good(tmp_path: Path) -> None:
    text = re.sub(r"^# (?=(\[\[)?[a-z_]+(\]\]| = ))", "", default_text(), flags=re.MULTILINE)
    config = load(str(write(tmp_path / "a.toml", text)), administrators=tmp_path / "none")
    assert [rule.name for rule in config.rules] == ["hot memory"]
    assert [share.user for share in config.shares] == ["ada"]
    assert config.filters == {"long": "mem>10GiB idle>30m"}
    assert msgspec.structs.replace(config, rules=(), shares=(), hosts=(), filters={}) == Config()


def test_it_is_written_for_its_owner_alone(own_home: Path) -> None:
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    before = os.umask(0)
    try:
        code, lines = run("--init")
    finally:
        os.umask(before)
    assert (code, lines) == (0, ["~/config/gpuwatch/gpuwatch.toml: written; all its keys are commented out"])
    assert file.read_text() == default_text()
    modes = [stat.S_IMODE(place.stat().st_mode) for place in (file, file.parent, file.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]
    assert run("--check") == (0, ["~/config/gpuwatch/gpuwatch.toml: ok"])


@pytest.mark.parametrize("kind", ["file", "link"])
def test_it_is_never_written_over_another(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "mine.toml"
    if kind == "file":
        file.write_text("bell = true\n")
    else:
        file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="exists, and was not changed"):
        run("--init", "--config", str(file))
    assert kind == "link" or file.read_text() == "bell = true\n"
    assert not (tmp_path / "elsewhere").exists()


def test_what_will_not_work_is_warned_of(tmp_path: Path) -> None:
    tell = tmp_path / "tell"
    file = write(tmp_path / "mine.toml", f"[notify]\ncommand = ['{tell}']\nurls = ['slack://T0K3N']\n")
    code, lines = run("--check", "--config", str(file), wrong=["has an address that is none"])
    assert (code, lines[0]) == (0, f"{file}: ok")
    words = (f"there is no file {tell}", "others can read these secrets (mode 0644)", "slack://… has an address")
    assert all(word in line for word, line in zip(words, lines[1:], strict=True))
    write(tell, "#!/bin/sh\n", 0o644)
    file.chmod(0o600)
    if os.geteuid() != 0 or not os.access(tell, os.X_OK):
        assert run("--check", "--config", str(file))[1][1].endswith(f"{tell} cannot be executed")
    tell.chmod(0o777)
    code, (line,) = run("--check", "--config", str(file))
    assert code == 2
    assert f"others can write {tell} (mode 0777)" in line
    tell.chmod(0o755)
    assert run("--check", "--config", str(file)) == (0, [f"{file}: ok"])


def test_the_administrators_file_is_for_everybody(tmp_path: Path) -> None:
    file, out = tmp_path / "etc" / "gpuwatch.toml", io.StringIO()
    assert command.main(parse(["config", "--init", "--config", str(file)]), administrators=file, out=out) == 0
    assert [one.stat().st_mode & 0o777 for one in (file, file.parent)] == [0o644, 0o755]
    file.chmod(0o600)
    assert command.main(parse(["config", "--check", "--config", str(file)]), administrators=file, out=out) == 0
    assert (
        "it applies only to root (mode 0600); run `chmod a+r` on it; put secrets of [notify] into notify.toml"
        in out.getvalue()
    )
    file.write_text("[notify]\nurls = ['json://localhost']\n")
    file.chmod(0o644)
    assert command.main(parse(["config", "--check", "--config", str(file)]), administrators=file, out=out) == 0
    assert f"move [notify] to {file.with_name('notify.toml')}, which only root can read" in out.getvalue()
