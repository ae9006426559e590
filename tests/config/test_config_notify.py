"""[notify] in gpuwatch.toml: believed only from a file that nobody else could have written, and no secret is shown."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from gpuwatch.alerts.alert import Severity
from gpuwatch.base.errors import UsageError
from gpuwatch.base.files import check_source
from gpuwatch.config import load
from gpuwatch.config.types import Config, Notify
from tests.support.environment import make_homeless

OTHER = 12345
"""A uid that is nobody's."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user, which only root can")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with a command, in a folder of its own, that is safe."""
    folder = tmp_path / "config"
    folder.mkdir(mode=0o755)
    file = folder / "gpuwatch.toml"
    file.write_text('\n[notify]\ncommand = ["~/bin/tell", "--loud"]\n')
    file.chmod(0o644)
    return file


def read(file: Path, tmp_path: Path) -> Config:
    return load(str(file), administrators=tmp_path / "none")


def test_all_keys(tmp_path: Path) -> None:
    file = tmp_path / "gpuwatch.toml"
    file.write_text(
        '[notify]\ntoast = false\ndesktop = "osc9"\ncommand = ["/bin/tell", ""]\nurls = ["slack://a/b", "mailto://c:d@e.f"]\n'
        'least = "critical"\nmine = true\ncooldown = "1h"\ngather = 0\ndigest = 10\n'
    )
    file.chmod(0o600)
    assert read(file, tmp_path).notify == Notify(
        toast=False,
        desktop="osc9",
        command=("/bin/tell", ""),
        urls=("slack://a/b", "mailto://c:d@e.f"),
        least=Severity.CRITICAL,
        mine=True,
        cooldown=3600,
        gather=0,
        digest=10,
    )


def test_addresses_are_never_printed() -> None:
    config = Config(notify=Notify(urls=("slack://T0K3N/x", "T0K3N")))
    assert "T0K3N" not in repr(config)
    assert "'slack://…'" in repr(config)


@pytest.mark.parametrize("mode", [0o664, 0o606])
@pytest.mark.parametrize("key", ["command = ['/bin/tell']", "urls = ['slack://T0K3N']"])
def test_a_file_that_others_can_write_is_refused(file: Path, tmp_path: Path, mode: int, key: str) -> None:
    file.write_text(f"[notify]\n{key}\n")
    file.chmod(mode)
    with pytest.raises(UsageError) as raised:
        read(file, tmp_path)
    assert str(raised.value) == (
        f"{file}: key notify.{key.split()[0]}: found in a file that others can change: "
        f"others can write {file} (mode {mode:04o}); fix it with `chmod go-w {file}`"
    )


def test_without_a_command_or_addresses_the_mode_does_not_matter(file: Path, tmp_path: Path) -> None:
    file.write_text("[notify]\ndigest = 4\ncommand = []\nurls = []\n")
    file.chmod(0o666)
    assert read(file, tmp_path).notify.digest == 4


def test_a_folder_above_counts_too(file: Path, tmp_path: Path) -> None:
    file.parent.chmod(0o775)
    assert check_source(file) == (f"others can write {file.parent} (mode 0775); fix it with `chmod go-w {file.parent}`")
    file.parent.chmod(0o1777)
    assert check_source(file) == ""


def test_a_link_is_judged_by_all_that_it_leads_through(file: Path, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    good = tmp_path / "good.toml"
    good.symlink_to(Path("config") / ".." / "config" / file.name)
    assert check_source(good) == ""
    (open_to_all / "hop").symlink_to(file.parent)
    way = tmp_path / "way.toml"
    way.symlink_to(open_to_all / "hop" / file.name)
    assert f"others can write {open_to_all} (mode 0777)" in check_source(way)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert check_source(loop) == f"{loop} is a link that leads to itself"


@as_root
def test_secrets_that_root_alone_can_read_do_not_hold_for_others() -> None:
    with tempfile.TemporaryDirectory() as name:
        own, file = Path(name, "own.toml"), Path(name, "etc.toml")
        own.write_text("interval = 7\n")
        file.write_text("[notify]\nurls = ['mailtos://a:secret@b.c']\n")
        for path, mode in ((file, 0o600), (own, 0o644), (Path(name), 0o755)):
            path.chmod(mode)
        os.seteuid(OTHER)
        try:
            config = load(str(own), administrators=file)
        finally:
            os.seteuid(0)
        assert (config.interval, config.notify.urls) == (7, ())
        assert load(str(own), administrators=file).notify.urls


@as_root
def test_what_belongs_to_somebody_else_is_refused(file: Path, tmp_path: Path) -> None:
    os.chown(file, OTHER, -1)
    assert check_source(file) == f"{file} belongs to uid {OTHER}, who is neither you nor root"
    assert check_source(file, OTHER) == ""
    os.chown(file, 0, -1)
    assert check_source(file, OTHER) == ""
    os.chown(file.parent, OTHER, -1)
    assert check_source(file) == f"{file.parent} belongs to uid {OTHER}, who is neither you nor root"
    os.chown(file.parent, 0, -1)
    file.parent.chmod(0o1777)  # in a sticky folder it matters whose the file, or the link, is
    link = file.parent / "link"
    link.symlink_to(file)
    os.chown(link, OTHER, -1, follow_symlinks=False)
    assert check_source(link) == f"{link} belongs to uid {OTHER}, who is neither you nor root"


def test_another_file_than_the_one_that_was_read_is_not_believed(file: Path) -> None:
    read = file.stat()
    assert check_source(file, read=read) == ""
    good = file.with_name("good")
    good.write_bytes(file.read_bytes())
    good.chmod(0o644)
    good.replace(file)
    assert check_source(file, read=read) == f"{file} was replaced while it was read"


def test_what_is_no_file_is_said(file: Path, tmp_path: Path) -> None:
    assert check_source(file.parent) == f"{file.parent} is not a regular file"
    assert check_source(tmp_path / "none") == f"{tmp_path / 'none'} cannot be checked (No such file or directory)"


def test_a_relative_path_is_judged_from_where_we_stand(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert check_source(Path(file.name)) == ""
    file.parent.chmod(0o777)
    assert check_source(Path(file.name)).startswith(f"others can write {file.parent}")


def test_the_administrators_file_may_name_a_command(file: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("[notify]\ndigest = 9\n")
    notify = load(str(mine), administrators=file).notify
    assert (notify.command, notify.digest) == (("~/bin/tell", "--loud"), 9)


# The program itself


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return a program of one's own, in a folder of its own."""
    folder = tmp_path / "bin"
    folder.mkdir(mode=0o755)
    program = folder / "tell"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def naming(program: Path, tmp_path: Path) -> Path:
    """Write a file that names a program."""
    file = tmp_path / "mine.toml"
    file.write_text(f'[notify]\ncommand = ["{program}"]\n')
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("mode", [0o664, 0o606])
@pytest.mark.parametrize(
    ("table", "key"),
    [
        *(
            (f"[fleet]\n{name} = {value!r}", f"fleet.{name}")
            for name, value in {
                "prometheus": "https://prometheus.example.org",
                "user": "ada",
                **dict.fromkeys(("token_file", "password_file", "ca_file"), "/etc/file"),
            }.items()
        ),
        *(
            (f"[export]\n{name} = {value!r}", f"export.{name}")
            for name, value in {
                "listen": "[::1]:9836",
                "hosts": ["gpu.example.org"],
                **dict.fromkeys(("web_config", "textfile"), "/etc/file"),
            }.items()
        ),
        ("[[host]]\nname = 'lab'\naddress = 'lab'", "host"),
    ],
)
def test_no_server_no_token_and_no_host_of_a_file_that_others_can_write(
    file: Path, tmp_path: Path, mode: int, table: str, key: str
) -> None:
    file.write_text(f"{table}\n")
    read(file, tmp_path)
    file.chmod(mode)
    with pytest.raises(UsageError, match=rf"key {re.escape(key)}: found in a file that others can change: others can"):
        read(file, tmp_path)


@as_root
def test_secrets_of_the_administrator_have_a_file_of_their_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("publish = 'use'\n[[share]]\nuser = 'ada'\nshare = 0.4\n")
    secrets = file.with_name("notify.toml")
    secrets.write_text("[notify]\nurls = ['slack://T0K3N']\n")
    secrets.chmod(0o600)
    config = load(str(file), administrators=file)
    assert (config.notify.urls, len(config.shares), config.publish) == (("slack://T0K3N",), 1, "use")
    secrets.chmod(0o640)
    with pytest.raises(UsageError, match=r"notify\.toml: others than its owner can read its secrets \(mode 0640\)"):
        load(str(file), administrators=file)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: OTHER)
        assert load(str(file), administrators=file).shares == config.shares, "it is nothing to others"
    secrets.chmod(0o600)
    secrets.write_text("[[share]]\nuser = 'ada'\nshare = 0.4\n")
    with pytest.raises(UsageError, match=r"notify\.toml: key share: only \[notify\] is allowed here"):
        load(str(file), administrators=file)


def test_what_the_service_publishes_is_not_for_a_user_to_say(file: Path, tmp_path: Path) -> None:
    file.write_text("publish = 'none'\n")
    with pytest.raises(UsageError, match=r"key publish: it sets what the machine's service publishes, and only"):
        read(file, tmp_path)
    assert load(str(file), administrators=file).publish == "none"
    file.write_text("publish = 'shares'\n")
    assert read(file, tmp_path).publish == "shares", "as `config --show` prints it"


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_program_that_others_can_write_is_refused(program: Path, tmp_path: Path, mode: int) -> None:
    file = naming(program, tmp_path)
    assert read(file, tmp_path).notify.command == (str(program),)
    program.chmod(mode)
    with pytest.raises(UsageError) as raised:
        read(file, tmp_path)
    assert str(raised.value) == (
        f"{file}: key notify.command: found a program that others can change: "
        f"others can write {program} (mode {mode:04o}); fix it with `chmod go-w {program}`"
    )


def test_a_folder_in_which_others_can_put_a_program_is_refused(program: Path, tmp_path: Path) -> None:
    program.parent.chmod(0o775)
    for name in ("tell", "not there yet"):
        with pytest.raises(UsageError, match=f"others can write {program.parent} "):
            read(naming(program.parent / name, tmp_path), tmp_path)
    program.parent.chmod(0o755)
    assert read(naming(program.parent / "not there yet", tmp_path), tmp_path).notify.command


@pytest.mark.parametrize("whose", ["mine", "the administrator's"])
def test_a_program_is_judged_by_what_a_link_leads_to(program: Path, tmp_path: Path, whose: str) -> None:
    link = tmp_path / "link"
    link.symlink_to(program)
    file, none = naming(link, tmp_path), tmp_path / "none"
    named, administrators = (str(file), none) if whose == "mine" else (None, file)
    assert load(named, administrators=administrators).notify.command == (str(link),)
    program.chmod(0o777)
    with pytest.raises(UsageError, match=f"others can write {program} "):
        load(named, administrators=administrators)
    if os.geteuid() == 0:
        program.chmod(0o755)
        os.chown(program, OTHER, -1)
        with pytest.raises(UsageError, match=f"{program} belongs to uid {OTHER}, who is neither you nor root"):
            load(named, administrators=administrators)


def test_without_a_home_a_program_in_it_is_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_homeless(monkeypatch)
    with pytest.raises(UsageError, match=r"key notify\.command: found .~/bin/tell., but your home folder is not known"):
        read(file, tmp_path)
