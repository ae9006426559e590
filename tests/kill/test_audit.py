"""The record of actions: whole lines, private, in a place that can be trusted; and never an exception."""

from __future__ import annotations

import json
import os
import pwd
import stat
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.base import files
from gpuwatch.base.files import state_folder
from gpuwatch.kill.audit import LARGEST, Audit
from tests.support.environment import make_homeless
from tests.support.process import ROOT


def append(audit: Audit, event: str, fields: dict[str, Any]) -> str | None:
    """Append a line and wait for it; return why it is not written."""
    audit.append(event, fields)
    return audit.flush(30.0)


def lines(audit: Audit) -> list[dict[str, Any]]:
    """What is on record."""
    return [json.loads(line) for line in audit.path.read_text().splitlines()]


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    """A record in a folder that does not exist yet."""
    return Audit(tmp_path / "state" / "gpuwatch")


def test_a_line_has_time_event_and_facts(audit: Audit) -> None:
    assert append(audit, "refused", {"pid": 7}) is None
    assert append(audit, "outcome", {"pid": 7, "result": "exited"}) is None
    found = lines(audit)
    assert all(datetime.fromisoformat(line.pop("time")).tzinfo is not None for line in found)
    assert found == [{"event": "refused", "pid": 7}, {"event": "outcome", "pid": 7, "result": "exited"}]


def test_what_others_may_do_is_taken_away(audit: Audit) -> None:
    audit.path.parent.mkdir(parents=True)
    audit.path.touch()
    audit.path.chmod(0o666)
    audit.path.parent.chmod(0o777)
    assert append(audit, "outcome", {}) is None
    assert stat.S_IMODE(audit.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(audit.path.stat().st_mode) == 0o600


def test_a_symbolic_link_is_refused_and_its_target_untouched(audit: Audit, tmp_path: Path) -> None:
    audit.path.parent.mkdir(parents=True)
    (tmp_path / "precious").write_text("mine")
    audit.path.symlink_to(tmp_path / "precious")
    for problem in (audit.problem(), append(audit, "outcome", {})):
        assert problem == f"cannot record actions in {audit.path}: it is a symbolic link"
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "gpuwatch").symlink_to(tmp_path / "elsewhere")
    assert Audit(tmp_path / "gpuwatch").problem() is not None
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("reader", [False, True])
def test_a_fifo_neither_blocks_nor_swallows_a_line(audit: Audit, reader: bool) -> None:
    audit.path.parent.mkdir(parents=True)
    os.mkfifo(audit.path)
    other_end = os.open(audit.path, os.O_RDONLY | os.O_NONBLOCK) if reader else None
    problem = append(audit, "outcome", {})
    assert problem is not None
    assert str(audit.path) in problem
    if other_end is not None:
        assert "not a regular file" in problem
        os.close(other_end)


@pytest.mark.skipif(not ROOT, reason="giving a file to another user needs root")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_belongs_to_another_user_is_not_trusted(audit: Audit, what: str) -> None:
    assert audit.problem() is None
    os.chown(audit.path if what == "file" else audit.path.parent, 54322, 54322)
    problem = append(audit, "outcome", {})
    assert problem == f"cannot record actions in {audit.path}: the {what} belongs to uid 54322"


def test_a_line_that_is_cut_is_a_sentence(tmp_path: Path) -> None:
    audit = Audit(tmp_path, write=lambda file, data: os.write(file, data[:9]))
    problem = append(audit, "outcome", {"pid": 1})
    assert problem == f"cannot record actions in {audit.path}: only part of the line was written"
    assert audit.flush() is None, "it is told once"


def test_each_line_is_one_write(tmp_path: Path) -> None:
    written: list[bytes] = []

    def counted(descriptor: int, data: bytes) -> int:
        written.append(data)
        return os.write(descriptor, data)

    append(Audit(tmp_path, write=counted), "outcome", {"command": "a\nb"})
    assert len(written) == 1
    assert written[0].count(b"\n") == 1


def test_a_large_file_is_followed_by_another_and_one_old_one_is_kept(audit: Audit) -> None:
    for number in range(3):
        audit.append("sent", {"pid": number})
        assert audit.flush() is None
        os.truncate(audit.path, LARGEST + 1)
    audit.append("sent", {"pid": 3})
    assert audit.flush() is None
    assert json.loads(audit.path.read_text())["pid"] == 3
    assert sorted(file.name for file in audit.path.parent.iterdir()) == ["actions.jsonl", "actions.jsonl.1"]


def test_no_text_can_fail_or_split_a_line(audit: Audit) -> None:
    command = "python \udcff\x1b[31m\n\u2028 ü.py"
    assert append(audit, "outcome", {"command": command, "folder": Path("/x")}) is None
    assert audit.path.read_bytes().isascii()
    assert lines(audit)[0]["command"] == command


def test_the_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder(1000, {}) == tmp_path / "gpuwatch"


@pytest.mark.parametrize("home", [None, "relative"])
def test_without_a_home_nothing_is_put_where_we_happen_to_stand(
    monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    make_homeless(monkeypatch, home)
    assert state_folder(1000, {}) == files.NO_HOME / ".local" / "state" / "gpuwatch"


def test_root_under_sudo_keeps_out_of_the_home_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    of_root = Path(pwd.getpwuid(0).pw_dir) / ".local/state/gpuwatch"
    assert state_folder(0, {"SUDO_UID": "1000"}) == of_root


@pytest.mark.skipif(not ROOT, reason="giving a folder to another user needs root")
def test_root_through_su_keeps_out_of_the_home_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home" / "state"))
    (tmp_path / "home").mkdir()
    assert state_folder(0, {}) == tmp_path / "home" / "state" / "gpuwatch"
    os.chown(tmp_path / "home", 54321, 54321)
    assert state_folder(0, {}) == Path(pwd.getpwuid(0).pw_dir) / ".local/state/gpuwatch"


# -- a file system that does not answer ---------------------------------------------------------------------------


def test_a_file_system_that_does_not_answer_holds_nothing_up_and_the_line_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, late = threading.Event(), "cannot record actions in {}: the file system does not answer"

    def write(descriptor: int, line: bytes) -> int:
        answer.wait()
        return os.write(descriptor, line)

    monkeypatch.setattr("gpuwatch.kill.audit.ANSWER_SECONDS", 0.01)
    audit = Audit(tmp_path, write=write)
    audit.append("outcome", {"pid": 1})
    assert audit.flush(0.0) is None, "it has not been waited for"
    assert audit.flush(0.01) == audit.problem() == late.format(audit.path)
    answer.set()
    assert audit.flush(30.0) is None
    assert lines(audit)[0]["pid"] == 1
