"""The record of actions: whole lines, private, in a place that can be trusted; and never an exception."""

from __future__ import annotations

import errno
import json
import os
import pwd
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuwatch import files
from gpuwatch.files import state_folder
from gpuwatch.kill.audit import Audit
from gpuwatch.kill.target import make_killer, shown_command
from tests.support.gpuholder import ROOT, GpuHolder
from tests.support.homes import make_homeless
from tests.support.killing import NO_PROCESS

NOON = datetime(2025, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def lines(audit: Audit) -> list[dict[str, Any]]:
    """What is on record."""
    return [json.loads(line) for line in audit.path.read_text().splitlines()]


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    """A record in a folder that does not exist yet."""
    return Audit(tmp_path / "state" / "gpuwatch", now=lambda: NOON)


def test_a_line_has_time_event_and_facts(audit: Audit) -> None:
    assert audit.append("intent", {"pid": 7, "signal": "SIGTERM"}) is None
    assert audit.append("outcome", {"pid": 7, "result": "exited"}) is None
    assert lines(audit) == [
        {"time": "2025-03-01T12:00:00.250+00:00", "event": "intent", "pid": 7, "signal": "SIGTERM"},
        {"time": "2025-03-01T12:00:00.250+00:00", "event": "outcome", "pid": 7, "result": "exited"},
    ]


def test_what_others_may_do_is_taken_away(audit: Audit) -> None:
    audit.path.parent.mkdir(parents=True)
    audit.path.touch()
    audit.path.chmod(0o666)
    audit.path.parent.chmod(0o777)
    assert audit.append("intent", {}) is None
    assert stat.S_IMODE(audit.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(audit.path.stat().st_mode) == 0o600


def test_a_symbolic_link_is_refused_and_its_target_untouched(audit: Audit, tmp_path: Path) -> None:
    audit.path.parent.mkdir(parents=True)
    (tmp_path / "precious").write_text("mine")
    audit.path.symlink_to(tmp_path / "precious")
    for problem in (audit.problem(), audit.append("intent", {})):
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
    problem = audit.append("intent", {})
    assert problem is not None
    assert str(audit.path) in problem
    if other_end is not None:
        assert "not a regular file" in problem
        os.close(other_end)


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    audit = Audit(tmp_path / "file" / "gpuwatch")
    for problem in (audit.problem(), audit.append("intent", {})):
        assert problem == f"cannot record actions in {audit.path}: Not a directory"


@pytest.mark.skipif(not ROOT, reason="giving a file to another user needs root")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_belongs_to_another_user_is_not_trusted(audit: Audit, what: str) -> None:
    assert audit.problem() is None
    os.chown(audit.path if what == "file" else audit.path.parent, 54322, 54322)
    problem = audit.append("intent", {})
    assert problem == f"cannot record actions in {audit.path}: the {what} belongs to uid 54322"


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    audit = Audit(tmp_path, write=full)
    assert audit.append("intent", {}) == f"cannot record actions in {audit.path}: No space left on device"


def test_the_line_after_a_torn_one_can_be_read(tmp_path: Path) -> None:
    room = [9, None]

    def nearly_full(descriptor: int, data: bytes) -> int:
        return os.write(descriptor, data[: room.pop(0)])

    audit = Audit(tmp_path, write=nearly_full)
    problem = audit.append("intent", {"pid": 1})
    assert problem is not None
    assert "only part of the line" in problem
    assert audit.append("outcome", {"pid": 2}) is None
    assert json.loads(audit.path.read_text().splitlines()[1])["pid"] == 2


def test_each_line_is_one_write(tmp_path: Path) -> None:
    written: list[bytes] = []

    def counted(descriptor: int, data: bytes) -> int:
        written.append(data)
        return os.write(descriptor, data)

    Audit(tmp_path, write=counted).append("intent", {"command": "a\nb"})
    assert len(written) == 1
    assert written[0].count(b"\n") == 1


def test_no_text_can_fail_or_split_a_line(audit: Audit) -> None:
    command = "python \udcff\x1b[31m\n\u2028 ü.py"
    assert audit.append("intent", {"command": command, "folder": Path("/x")}) is None
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


def test_a_record_that_does_not_answer_is_given_up_and_written_later(tmp_path: Path) -> None:
    answer = threading.Event()

    def write(descriptor: int, line: bytes) -> int:
        answer.wait()
        return len(line)

    audit = Audit(tmp_path, write=write, seconds=0.01)
    assert "the file system does not answer" in (audit.append("intent", {}) or "")
    assert "the file system does not answer" in (audit.problem() or "")
    answer.set()


def test_a_record_that_answers_has_lines_whose_time_names_its_zone(tmp_path: Path) -> None:
    audit = Audit(tmp_path, seconds=30)
    assert audit.problem() is None
    assert audit.append("intent", {"pid": 1}) is None
    assert datetime.fromisoformat(lines(audit)[0]["time"]).tzinfo is not None


def test_the_killer_of_the_dashboard_knows_the_command_as_it_is_shown() -> None:
    killer = make_killer(read_only=True, allow_root=False)
    assert killer.policy.read_only
    with GpuHolder(["python", "train.py", "--token", "hunter2hunter2"]) as training:
        assert shown_command(training.pid) == "python train.py --token ***"
    assert shown_command(NO_PROCESS) is None
