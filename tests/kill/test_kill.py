"""Which process may be signalled: real processes of several users, and fixture trees for what cannot be had."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuwatch import procfs
from gpuwatch.analysis.rows import rows
from gpuwatch.kill import target as pidfd
from gpuwatch.kill.outcome import End, Refusal
from gpuwatch.kill.policy import Policy
from gpuwatch.kill.target import WEAKER, Target
from gpuwatch.kill.target import target_of as row_target
from gpuwatch.model import Presence
from gpuwatch.procfs import has_gpu_open
from tests.support import builders
from tests.support.gpuholder import ME, SOMEBODY_ELSE, GpuHolder
from tests.support.killing import POLICY, a_killer, on_record, pinned, reason, refused, sent, target_of
from tests.test_procfs import fixture_process, stat_line


@pytest.fixture
def holder() -> Iterator[GpuHolder]:
    """A training of one's own."""
    with GpuHolder() as training:
        yield training


def shown(pid: int, uid: int | None = None) -> Target:
    """A process of this machine as a row."""
    uid = procfs.read_uids(pid)[0] if uid is None else uid
    return Target(pid, procfs.read_stat(pid).start_ticks, uid, "python")


SEVEN = Target(7, 900, ME, "x")
"""The process of the fixture trees."""


def no_pidfd(code: int) -> Any:
    """A kernel or a sandbox that gives no handle."""

    def opener(pid: int) -> int:
        raise OSError(code, os.strerror(code))

    return opener


def holder_in(proc: Path) -> Path:
    """Write a process 7 that has a GPU open into a fixture tree."""
    folder = fixture_process(proc, 7, stat_line(), uid=ME)
    (folder / "fd" / "3").symlink_to("/dev/nvidia0")
    return folder


def container(proc: Path) -> None:
    """Let a fixture tree be that of a container with PIDs of its own."""
    (proc / "self" / "ns").mkdir(parents=True)
    (proc / "self" / "ns" / "pid").symlink_to("pid:[4026532201]")


def test_ones_own_training_is_pinned(tmp_path: Path, holder: GpuHolder) -> None:
    with pinned(a_killer(tmp_path), target_of(holder)) as training:
        assert not training.exited()
        assert training.weaker == ""
    assert holder.alive()
    assert not (tmp_path / "actions.jsonl").exists()


def test_a_refusal_is_on_record_with_all_that_is_known(tmp_path: Path, holder: GpuHolder) -> None:
    killer = a_killer(tmp_path, replace(POLICY, read_only=True))
    assert "--read-only" in refused(killer, target_of(holder)).sentence
    assert holder.alive()
    line = on_record(killer)[0]
    del line["time"]
    assert line == {
        "event": "refused",
        "uid": ME,
        "pid": holder.pid,
        "start_ticks": holder.start_ticks,
        "target_uid": ME,
        "gpus": ["GPU-4"],
        "held": 12 << 30,
        "command": "python train.py",
        "result": "read-only",
        "detail": "",
    }


@pytest.mark.parametrize(
    ("policy", "changes", "expected"),
    [
        ({"read_only": True}, {}, Refusal.READ_ONLY),
        ({"euid": 0}, {}, Refusal.ROOT),
        ({}, {"unreliable": True}, Refusal.UNRELIABLE),
        ({}, {"stale": True}, Refusal.STALE),
        ({}, {"start_ticks": 0}, Refusal.NO_IDENTITY),
        ({}, {"uid": None}, Refusal.NO_IDENTITY),
        ({}, {"pid": 1}, Refusal.SYSTEM_PID),
        ({}, {"pid": 0}, Refusal.SYSTEM_PID),
        ({}, {"pid": -1}, Refusal.SYSTEM_PID),
    ],
)
def test_what_is_refused_before_a_look_at_the_process(
    tmp_path: Path, holder: GpuHolder, policy: dict[str, Any], changes: dict[str, Any], expected: Refusal
) -> None:
    def opener(pid: int) -> int:
        raise AssertionError("the process was touched")

    killer = a_killer(tmp_path, replace(POLICY, **policy), open_pidfd=opener)
    assert reason(killer, target_of(holder, **changes)) is expected


def test_gpuwatch_itself_all_above_it_and_what_it_started(tmp_path: Path, holder: GpuHolder) -> None:
    killer = a_killer(tmp_path, replace(POLICY, pid=os.getpid()))
    assert reason(killer, shown(os.getpid())) is Refusal.ITSELF
    assert reason(killer, target_of(holder)) is Refusal.HELPER
    for pid in procfs.find_ancestors(os.getpid()):
        if pid > 1:
            assert reason(killer, shown(pid)) is Refusal.ANCESTOR


def test_a_kernel_thread(tmp_path: Path) -> None:
    fixture_process(tmp_path / "proc", 7, stat_line(flags=procfs.PF_KTHREAD), uid=ME)
    killer = a_killer(tmp_path, proc=tmp_path / "proc", open_pidfd=no_pidfd(errno.ENOSYS))
    assert reason(killer, SEVEN) is Refusal.KERNEL_THREAD


def test_another_users_training(tmp_path: Path) -> None:
    with GpuHolder(uid=SOMEBODY_ELSE) as theirs:
        refusal = refused(a_killer(tmp_path), target_of(theirs))
        assert refusal.reason is Refusal.NOT_YOURS
        assert refusal.sentence == f"it is not yours: it runs as uid {SOMEBODY_ELSE}"
        assert theirs.alive()


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_each_of_the_three_uids_must_be_ours(tmp_path: Path, odd: int) -> None:
    real, effective, saved = (SOMEBODY_ELSE if n == odd else ME for n in range(3))
    with GpuHolder(uids=(real, effective, saved)) as mixed:
        assert reason(a_killer(tmp_path), target_of(mixed)) is Refusal.NOT_YOURS


def test_roots_own_with_permission(tmp_path: Path) -> None:
    with GpuHolder(uid=0) as training:
        policy = replace(POLICY, uid=0, euid=0)
        assert reason(a_killer(tmp_path, policy), target_of(training)) is Refusal.ROOT
        pinned(a_killer(tmp_path, replace(policy, allow_root=True)), target_of(training)).close()


def test_root_under_sudo_ends_only_what_belongs_to_the_person_behind_it(tmp_path: Path, holder: GpuHolder) -> None:
    sudo = a_killer(tmp_path, replace(POLICY, uid=0, euid=0, sudo_uid=ME, allow_root=True))
    pinned(sudo, target_of(holder)).close()
    with GpuHolder(uid=0) as of_root, GpuHolder(uid=SOMEBODY_ELSE) as theirs:
        assert reason(sudo, target_of(of_root)) is Refusal.NOT_YOURS
        assert reason(sudo, target_of(theirs)) is Refusal.NOT_YOURS


@pytest.mark.parametrize(("sudo", "expected"), [("1000", 1000), ("", None), ("-1", None), ("x", None), ("²", None)])
def test_the_policy_of_this_process(sudo: str, expected: int | None) -> None:
    policy = Policy.of_this_process(read_only=True, environ={"SUDO_UID": sudo})
    assert (policy.uid, policy.euid, policy.pid) == (os.getuid(), os.geteuid(), os.getpid())
    assert (policy.sudo_uid, policy.read_only, policy.allow_root) == (expected, True, False)
    assert replace(policy, euid=1000, sudo_uid=5).may_end == 1000, "SUDO_UID is anybody's to set"


def test_an_own_process_without_a_gpu(tmp_path: Path) -> None:
    with GpuHolder(devices=()) as idle:
        assert reason(a_killer(tmp_path), target_of(idle)) is Refusal.NO_DEVICE
        assert idle.alive()


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        *((name, True) for name in ("nvidia0", "nvidia15", "nvidiactl", "nvidia-uvm", "dxg")),
        *((name, False) for name in ("null0", "dxg2", "my-nvidia0")),
    ],
)
def test_each_device_file_of_a_gpu_counts_and_no_other_file(tmp_path: Path, file: str, counts: bool) -> None:
    (fixture_process(tmp_path, 7, stat_line()) / "fd" / "3").symlink_to(f"/dev/{file}")
    assert has_gpu_open(7, tmp_path) is counts


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"start_ticks": 1}, "it started at another time"),
        ({"uid": SOMEBODY_ELSE}, f"it runs as uid {ME} now"),
        ({"command": "python other.py"}, "its command is another"),
    ],
)
def test_a_process_that_is_not_the_one_on_screen(
    tmp_path: Path, holder: GpuHolder, changes: dict[str, Any], detail: str
) -> None:
    killer = a_killer(tmp_path, describe=lambda pid: holder.command)
    refusal = refused(killer, target_of(holder, **changes))
    assert refusal.reason is Refusal.CHANGED
    assert refusal.sentence == f"process changed: this PID is no longer the process on screen: {detail}"
    assert holder.alive()


def test_the_command_is_compared_as_the_screen_shows_it(tmp_path: Path, holder: GpuHolder) -> None:
    pinned(a_killer(tmp_path, describe=lambda pid: holder.command), target_of(holder)).close()
    assert reason(a_killer(tmp_path, describe=lambda pid: None), target_of(holder)) is Refusal.CHANGED


def test_a_process_that_has_gone(tmp_path: Path, holder: GpuHolder) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.reap()
    assert reason(a_killer(tmp_path), target_of(holder)) is Refusal.GONE


@pytest.mark.parametrize("reused", [False, True])
def test_one_that_the_driver_still_lists_is_refused_also_where_its_pid_is_used_again(
    tmp_path: Path, holder: GpuHolder, reused: bool
) -> None:
    before = holder.start_ticks - 1 if reused else holder.start_ticks
    facts: dict[str, Any] = {"uid": ME, "start": before, "presence": Presence.GONE, "state": ""}
    listed = [builders.gpu(0, holdings=[builders.holding(holder.pid, start=before)])]
    shown = builders.snapshot(listed, [builders.process(holder.pid, **facts)])
    if not reused:
        os.kill(holder.pid, signal.SIGKILL)
        holder.reap()
    refusal = refused(a_killer(tmp_path), row_target(rows(shown), shown))
    assert refusal.reason is (Refusal.CHANGED if reused else Refusal.GONE)
    assert holder.alive() is reused


def test_a_zombie_names_its_parent(tmp_path: Path) -> None:
    with GpuHolder(reap=False) as training:
        os.kill(training.pid, signal.SIGKILL)
        training.wait_until_exited()
        refusal = refused(a_killer(tmp_path), target_of(training))
        assert refusal.reason is Refusal.ZOMBIE
        assert f"parent {os.getpid()} (" in refusal.sentence


def test_a_process_that_ends_during_the_checks(tmp_path: Path, holder: GpuHolder) -> None:
    """The files of /proc may then be another process's: only the handle tells."""

    def describe(pid: int) -> str:
        os.kill(pid, signal.SIGKILL)
        holder.wait_until_exited()
        return holder.command

    assert reason(a_killer(tmp_path, describe=describe), target_of(holder)) is Refusal.GONE


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    folder = fixture_process(tmp_path / "proc", 7, stat_line(), uid=ME)
    (folder / "fd").rmdir()
    killer = a_killer(tmp_path, proc=tmp_path / "proc", open_pidfd=no_pidfd(errno.ENOSYS))
    (folder / "fd").symlink_to("fd")  # a loop: an error that is neither "gone" nor "not permitted"
    assert reason(killer, SEVEN) is Refusal.UNREADABLE
    (folder / "stat").write_text("nonsense")
    assert reason(killer, SEVEN) is Refusal.UNREADABLE


@pytest.mark.parametrize("there", [True, False])
def test_inside_a_container_the_reason_is_its_own(tmp_path: Path, there: bool) -> None:
    container(tmp_path / "proc")
    if there:
        fixture_process(tmp_path / "proc", 7, stat_line(), uid=ME)
    opener = no_pidfd(errno.ENOSYS if there else errno.ESRCH)
    refusal = refused(a_killer(tmp_path, proc=tmp_path / "proc", open_pidfd=opener), SEVEN)
    assert refusal.reason is Refusal.OTHER_NAMESPACE
    assert "container" in refusal.sentence


def test_inside_a_container_an_open_device_proves_nothing_where_the_driver_may_mean_another(tmp_path: Path) -> None:
    container(tmp_path / "proc")
    holder_in(tmp_path / "proc")
    killer = a_killer(tmp_path, proc=tmp_path / "proc", open_pidfd=no_pidfd(errno.ENOSYS))
    pinned(killer, SEVEN).close()
    for unsure in (replace(SEVEN, unsure=True), replace(SEVEN, unlisted=True)):
        assert reason(killer, unsure) is Refusal.OTHER_NAMESPACE


def test_the_id_of_a_thread(tmp_path: Path, holder: GpuHolder) -> None:
    for code in (errno.EINVAL, errno.ENOENT):
        refusal = refused(a_killer(tmp_path, open_pidfd=no_pidfd(code)), target_of(holder))
        assert refusal.reason is Refusal.CHANGED


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_without_a_handle_the_check_is_weaker_and_says_so(tmp_path: Path, holder: GpuHolder, code: int) -> None:
    killer = a_killer(tmp_path, open_pidfd=no_pidfd(code))
    with pinned(killer, target_of(holder)) as training:
        assert training.weaker == f"{WEAKER} ({os.strerror(code)})"
        assert not training.exited()
        assert not training.wait(0)
        assert sent(training, signal.SIGTERM) is None
        holder.wait_until_exited()
        assert training.wait(10)
    assert on_record(killer)[-1]["weaker"] is True


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("stat", stat_line(start_ticks=901), "had already exited; nothing was sent"),  # the PID was used again
        ("status", b"Uid:\t0\t0\t0\t0\n", "not permitted: it runs as another user now"),
    ],
)
def test_without_a_handle_what_is_another_process_by_now_is_not_signalled(
    tmp_path: Path, file: str, content: bytes, said: str
) -> None:
    folder = holder_in(tmp_path / "proc")
    killer = a_killer(tmp_path, proc=tmp_path / "proc", open_pidfd=no_pidfd(errno.ENOSYS))
    with pinned(killer, SEVEN) as process:
        (folder / file).write_bytes(content)
        outcome = sent(process, signal.SIGTERM)  # PID 7 of this machine, if there is one, is a kernel thread
        assert outcome is not None
        assert outcome.sentence == said


def test_the_handle_of_a_dead_process_reaches_nobody(tmp_path: Path, holder: GpuHolder) -> None:
    with pinned(a_killer(tmp_path), target_of(holder)) as training:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait_until_exited()
        outcome = sent(training, signal.SIGTERM)
        assert outcome is not None
        assert outcome.end is End.GONE


def test_nothing_is_sent_once_the_handle_is_given_back(tmp_path: Path, holder: GpuHolder) -> None:
    training = pinned(a_killer(tmp_path), target_of(holder))
    training.close()
    with pytest.raises(ValueError, match="no longer pinned"):
        sent(training, signal.SIGTERM)
    assert holder.alive()


def test_no_signal_is_sent_without_a_line_of_intent_of_its_own(tmp_path: Path) -> None:
    def is_held_back(sig: signal.Signals) -> bool:
        with pytest.raises(ValueError, match="no line of intent"):
            process.send(sig)
        return True

    with GpuHolder(deaf=True) as training, pinned(a_killer(tmp_path), target_of(training)) as process:
        assert is_held_back(signal.SIGTERM)
        assert sent(process, signal.SIGTERM) is None
        assert is_held_back(signal.SIGTERM), "one line is for one signal"
        process.record("intent", signal="SIGTERM")
        assert is_held_back(signal.SIGKILL)
        process.record("outcome", result="not sent")
        assert is_held_back(signal.SIGTERM)
        assert training.alive()


def test_an_unwritable_record_warns_and_does_not_block(tmp_path: Path, holder: GpuHolder) -> None:
    (tmp_path / "file").touch()
    killer = a_killer(tmp_path / "file" / "gpuwatch")
    warning = killer.audit.problem()
    assert warning is not None
    with pinned(killer, target_of(holder)) as training:
        assert training.record("intent", signal="SIGTERM") == warning
        assert training.send(signal.SIGTERM) is None
        assert training.wait(10)


def test_the_calls_by_number_are_those_of_the_library(holder: GpuHolder) -> None:
    """Conda's Python has neither os.pidfd_open nor signal.pidfd_send_signal."""
    handle = pidfd.open_by_number(holder.pid)
    try:
        assert not os.get_inheritable(handle)
        assert not pidfd.has_exited(handle)
        pidfd.send_by_number(handle, signal.SIGTERM)
        assert pidfd.has_exited(handle, 10)
        holder.reap()
        with pytest.raises(ProcessLookupError):
            pidfd.send_by_number(handle, signal.SIGTERM)
    finally:
        os.close(handle)
    with pytest.raises(ProcessLookupError):
        pidfd.open_by_number(holder.pid)


def test_a_failing_description_leaks_no_handle(tmp_path: Path, holder: GpuHolder) -> None:
    handles = []

    def opener(pid: int) -> int:
        handles.append(pidfd.open_pidfd(pid))
        return handles[0]

    def describe(pid: int) -> str:
        raise KeyError(pid)

    with pytest.raises(KeyError):
        a_killer(tmp_path, describe=describe, open_pidfd=opener).pin(target_of(holder))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handles[0])
