"""Which process may be signalled: real processes of several users, and a table of files for what cannot be had."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuwatch.base import procfs
from gpuwatch.base.procfs import has_gpu_open
from gpuwatch.kill import pinned as pidfd
from gpuwatch.kill.outcome import End, Outcome, Refusal
from gpuwatch.kill.pinned import KillTarget, find_targets, make_pinner, shown_command
from gpuwatch.kill.policy import Policy
from gpuwatch.model.snapshot import Presence, Unlisted
from gpuwatch.sampler.owners import Owners
from tests.kill.processtable import HEAD, table
from tests.support import builders
from tests.support.kill import NO_PROCESS, POLICY, a_pinner, a_target, on_record, pinned, reason, refused, target_of
from tests.support.process import ME, SOMEBODY_ELSE, GpuHolder


@pytest.fixture
def holder() -> Iterator[GpuHolder]:
    """A training of one's own."""
    with GpuHolder() as training:
        yield training


def shown(pid: int) -> KillTarget:
    """A process of this machine as a row."""
    return a_target(pid, procfs.read_stat(pid).start_ticks, procfs.read_uids(pid)[0])


def no_pidfd(code: int) -> Any:
    """A kernel or a sandbox that gives no handle."""

    def opener(pid: int) -> int:
        raise OSError(code, os.strerror(code))

    return opener


# ---------------------------------------------------------------------------------------------------------------
# Who is refused


def test_ones_own_training_is_pinned_and_nothing_is_on_record(tmp_path: Path, holder: GpuHolder) -> None:
    training = pinned(a_pinner(tmp_path), target_of(holder))
    assert not training.has_exited()
    training.close()
    assert holder.alive()
    assert not (tmp_path / "actions.jsonl").exists()


def test_a_refusal_is_on_record_with_all_that_is_known(tmp_path: Path, holder: GpuHolder) -> None:
    pinner = a_pinner(tmp_path, replace(POLICY, read_only=True))
    assert "--read-only" in refused(pinner, target_of(holder)).sentence
    line = on_record(pinner)[0]
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
        "result": "read only",
        "detail": "",
    }


@pytest.mark.parametrize(
    ("policy", "changes", "expected"),
    [
        ({"read_only": True}, {}, Refusal.READ_ONLY),
        ({"euid": 0}, {}, Refusal.ROOT),
        ({}, {"start": 0}, Refusal.NO_IDENTITY),
        ({}, {"uid": None}, Refusal.NO_IDENTITY),
        ({}, {"pid": 1}, Refusal.SYSTEM_PID),
        ({}, {"pid": 0}, Refusal.SYSTEM_PID),
        ({}, {"pid": -1}, Refusal.SYSTEM_PID),
    ],
)
def test_what_is_refused_before_the_process_is_touched(
    tmp_path: Path, policy: dict[str, Any], changes: dict[str, Any], expected: Refusal
) -> None:
    target = a_target(7, 900)
    target = replace(target, process=replace(target.process, **changes))
    assert reason(a_pinner(tmp_path, replace(POLICY, **policy), open_pidfd=no_pidfd(errno.EIO)), target) is expected


@pytest.mark.parametrize(
    ("changes", "presence", "age", "doubt"),
    [
        ({}, Presence.SEEN, 0.0, None),
        ({"unreliable": True}, Presence.SEEN, 0.0, Refusal.UNRELIABLE),
        ({}, Presence.UNSURE, 0.0, Refusal.OTHER_NAMESPACE),
        ({}, Presence.SEEN, 2.2, Refusal.STALE),
        ({"sampled": 990.0}, Presence.SEEN, 0.0, Refusal.STALE),
    ],
)
def test_a_row_that_cannot_be_trusted(
    changes: dict[str, Any], presence: Presence, age: float, doubt: Refusal | None, tmp_path: Path
) -> None:
    gpu = builders.gpu(0, holdings=[builders.holding(70, 2.0, start=9)], **changes)
    mine = builders.process(70, "you", start=9, presence=presence)
    target = find_targets(builders.snapshot([gpu, builders.gpu(1)], [mine]), age)[70, 9]
    assert (target.doubt, target.gpus, target.memory) == (doubt, (gpu.key,), 2 << 30)
    if doubt is not None:
        assert reason(a_pinner(tmp_path, open_pidfd=no_pidfd(errno.EIO)), target) is doubt


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize(
    ("changes", "doubt"), [({"unreliable": True}, Refusal.UNRELIABLE), ({"sampled": 990.0}, Refusal.STALE)]
)
def test_one_gpu_that_cannot_be_trusted_is_enough(changes: dict[str, Any], doubt: Refusal, odd: int) -> None:
    gpus = [
        builders.gpu(index, holdings=[builders.holding(70, 2.0)], **(changes if index == odd else {}))
        for index in range(3)
    ]
    beside = builders.gpu(3, holdings=[builders.holding(71, 2.0)])
    found = find_targets(builders.snapshot([*gpus, beside], [builders.process(pid, "you") for pid in (70, 71)]))
    assert (found[70, 70].doubt, found[70, 70].memory, found[71, 71].doubt) == (doubt, 6 << 30, None)


def test_a_process_that_is_not_listed_is_a_target_while_the_search_for_it_is_young() -> None:
    hidden = Unlisted(process=builders.process(70, "you"), gpus=("GPU-1",))
    seen = builders.snapshot([], [], unlisted=(hidden,), searched=builders.EPOCH - 80)
    assert find_targets(seen)[70, 70] == KillTarget(hidden.process, ("GPU-1",))
    assert find_targets(seen, 20.0)[70, 70].doubt is Refusal.STALE


def test_gpuwatch_itself_all_above_it_and_what_it_started(tmp_path: Path, holder: GpuHolder) -> None:
    pinner = a_pinner(tmp_path, replace(POLICY, pid=os.getpid()))
    assert reason(pinner, shown(os.getpid())) is Refusal.ITSELF
    assert reason(pinner, target_of(holder)) is Refusal.HELPER
    for pid in procfs.find_ancestors(os.getpid()):
        if pid > 1:
            assert reason(pinner, shown(pid)) is Refusal.ANCESTOR


def test_another_users_training(tmp_path: Path) -> None:
    with GpuHolder(uid=SOMEBODY_ELSE) as theirs:
        refusal = refused(a_pinner(tmp_path), target_of(theirs))
        assert refusal.sentence == f"it is not yours: it runs as uid {SOMEBODY_ELSE}"
        assert theirs.alive()


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_each_of_the_three_uids_must_be_ours(tmp_path: Path, odd: int) -> None:
    real, effective, saved = (SOMEBODY_ELSE if n == odd else ME for n in range(3))
    with GpuHolder(uids=(real, effective, saved)) as mixed:
        assert reason(a_pinner(tmp_path), target_of(mixed)) is Refusal.NOT_YOURS


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_each_of_the_three_uids_must_be_ours_at_each_signal_too(tmp_path: Path, odd: int, sig: signal.Signals) -> None:
    """It may have run a program with the set-uid bit since it was pinned."""
    with table(tmp_path) as processes:
        processes.add(7)
        process = pinned(processes.pinner(), a_target(7, HEAD, command="python 7.py"))
        processes.add(7, uids=[SOMEBODY_ELSE if place == odd else ME for place in range(3)])
        assert process.send(sig) == Outcome(End.DENIED, detail="it runs as another user now")
        assert (processes.sent, process.signals) == ([], [])
        assert processes.pinner().find_uids(7) == {ME, SOMEBODY_ELSE}
        processes.add(7, uids=[ME] * 3)
        assert process.send(sig) is None
        assert processes.sent == [f"{sig.name} to 7"]
        process.close()


@pytest.mark.parametrize(
    ("state", "threads", "sent", "end"),
    [
        ("S", {71: "S", 72: "D"}, signal.SIGKILL, End.STUCK),
        ("Z", {71: "D"}, signal.SIGKILL, End.STUCK),
        ("D", {71: "S"}, signal.SIGKILL, End.STUCK),
        ("S", {71: "S"}, signal.SIGKILL, End.RUNNING),
        ("T", {71: "D"}, signal.SIGKILL, End.STUCK),
        ("T", {71: "S"}, signal.SIGKILL, End.RUNNING),
        ("S", {71: "D"}, signal.SIGTERM, End.RUNNING),
        ("D", {71: "S"}, signal.SIGTERM, End.STUCK),
        ("T", {71: "D"}, signal.SIGTERM, End.STOPPED),
    ],
)
def test_after_sigkill_any_thread_in_the_kernel_tells_why_it_has_not_ended(
    tmp_path: Path, state: str, threads: dict[int, str], sent: signal.Signals, end: End
) -> None:
    """Before it, a side thread there means little: a training reads its files, and can still end."""
    with table(tmp_path) as processes:
        processes.add(7)
        process = pinned(processes.pinner(), a_target(7, HEAD, command="python 7.py"))
        processes.add(7, state=state, threads=threads)
        assert process.read_outcome(10.0, sent) == Outcome(end, 10.0, sent)
        process.close()


def test_root_needs_its_permission_and_under_sudo_ends_only_what_belongs_to_the_caller(
    tmp_path: Path, holder: GpuHolder
) -> None:
    policy = replace(POLICY, uid=0, euid=0, allow_root=True)
    sudo = a_pinner(tmp_path, replace(policy, sudo_uid=ME))
    pinned(sudo, target_of(holder)).close()
    with GpuHolder(uid=0) as of_root, GpuHolder(uid=SOMEBODY_ELSE) as theirs:
        pinned(a_pinner(tmp_path, policy), target_of(of_root)).close()
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
        assert reason(a_pinner(tmp_path), target_of(idle)) is Refusal.NO_DEVICE
        assert idle.alive()


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        *((name, True) for name in ("nvidia0", "nvidia15", "nvidiactl", "nvidia-uvm", "dxg")),
        *((name, False) for name in ("null0", "dxg2", "my-nvidia0")),
    ],
)
def test_each_device_file_of_a_gpu_counts_and_no_other_file(tmp_path: Path, file: str, counts: bool) -> None:
    with table(tmp_path) as processes:
        processes.add(7, gpu=0)
        (processes.proc / "7" / "fd" / "3").symlink_to(f"/dev/{file}")
        assert has_gpu_open(7, processes.proc) is counts


# ---------------------------------------------------------------------------------------------------------------
# What has changed since it was drawn


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"start": 1}, "it started at another time"),
        ({"uid": SOMEBODY_ELSE}, f"it runs as uid {ME} now"),
        ({"command": "python other.py"}, "it may run another program now: python train.py"),
    ],
)
def test_a_process_that_is_not_the_one_on_screen(
    tmp_path: Path, holder: GpuHolder, changes: dict[str, Any], detail: str
) -> None:
    refusal = refused(a_pinner(tmp_path, describe=lambda pid: holder.command), target_of(holder, **changes))
    assert refusal.sentence == f"process changed: this PID is no longer the process on screen: {detail}"
    assert holder.alive()


def test_another_program_than_on_screen_is_refused_though_it_is_called_the_same(tmp_path: Path) -> None:
    with GpuHolder() as training:
        program = procfs.read_stat(training.pid).program
        training.exec()
        pinner = a_pinner(tmp_path, describe=shown_command)
        refusal = refused(pinner, target_of(training, command="python important_new_run.py", program=program))
        assert refusal.reason is Refusal.CHANGED
        assert refusal.detail == "it runs another program now: python important_new_run.py"


def test_a_title_that_changed_since_it_was_drawn_is_the_same_process(tmp_path: Path) -> None:
    with GpuHolder() as training:
        pinner = a_pinner(tmp_path, describe=shown_command)
        known = target_of(training, program=procfs.read_stat(training.pid).program)
        training.retitle()
        process = pinned(pinner, known)
        assert process.send(signal.SIGTERM) is None
        training.wait_until_exited()
        process.close()
    with GpuHolder() as training:
        unknown = target_of(training)
        training.retitle()
        assert "it may run another" in refused(pinner, unknown).detail, "where nothing tells them apart"


def test_one_whose_first_thread_has_ended_is_the_same_process(tmp_path: Path) -> None:
    """The kernel tells neither memory nor files of the first thread then, only of those that go on."""
    pinner = a_pinner(tmp_path, describe=shown_command)
    for before in (True, False):
        with GpuHolder() as training:
            owners = Owners()
            owners.read([training.pid])
            if before:
                training.end_first_thread()
            (row,) = owners.read([training.pid])
            assert row.command == "python train.py"
            process = pinned(pinner, target_of(training, command=row.command, program=row.program))
            if not before:
                training.end_first_thread()
            assert process.send(signal.SIGKILL) is None
            training.wait_until_exited()
            process.close()


def test_a_process_that_has_gone_before_or_during_the_checks(tmp_path: Path) -> None:
    """The files of /proc may then be another process's: only the handle tells."""
    with GpuHolder() as training:

        def describe(pid: int) -> str:
            os.kill(pid, signal.SIGKILL)
            training.wait_until_exited()
            return training.command

        assert reason(a_pinner(tmp_path, describe=describe), target_of(training)) is Refusal.GONE
        training.reap()
        assert reason(a_pinner(tmp_path), target_of(training)) is Refusal.GONE


@pytest.mark.parametrize("reused", [False, True])
def test_one_that_the_driver_still_lists_is_refused_also_where_its_pid_is_used_again(
    tmp_path: Path, holder: GpuHolder, reused: bool
) -> None:
    before = holder.start_ticks - 1 if reused else holder.start_ticks
    facts: dict[str, Any] = {"uid": ME, "start": before, "presence": Presence.GONE, "state": ""}
    listed = [builders.gpu(0, holdings=[builders.holding(holder.pid, start=before)])]
    seen = builders.snapshot(listed, [builders.process(holder.pid, **facts)])
    if not reused:
        os.kill(holder.pid, signal.SIGKILL)
        holder.reap()
    target = find_targets(seen)[holder.pid, before]
    assert reason(a_pinner(tmp_path), target) is (Refusal.CHANGED if reused else Refusal.GONE)
    assert holder.alive() is reused


def test_a_zombie_names_its_parent(tmp_path: Path) -> None:
    with GpuHolder(reap=False) as training:
        os.kill(training.pid, signal.SIGKILL)
        training.wait_until_exited()
        refusal = refused(a_pinner(tmp_path), target_of(training))
        assert refusal.sentence.startswith(f"it has already exited: parent {os.getpid()} (")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with table(tmp_path) as processes:
        processes.add(7, gpu=0)
        (processes.proc / "7" / "fd").rmdir()
        (processes.proc / "7" / "fd").symlink_to("fd")  # a loop: neither "gone" nor "not permitted"
        target = a_target(7, HEAD, command="python 7.py")
        assert reason(processes.pinner(), target) is Refusal.UNREADABLE
        (processes.proc / "7" / "stat").write_text("nonsense")
        assert reason(processes.pinner(), target) is Refusal.UNREADABLE


def test_what_cannot_be_read_any_more_is_not_known_to_ignore_hold_or_run(tmp_path: Path) -> None:
    with table(tmp_path) as processes:
        processes.add(7)
        pinner = processes.pinner()
        process = pinned(pinner, a_target(7, HEAD, command="python 7.py"))
        assert pinner.is_on_gpu(7)
        for file in ("status", "stat"):
            (processes.proc / "7" / file).write_text("nonsense")
        assert not process.ignores(signal.SIGINT)
        assert not pinner.is_on_gpu(7)
        assert not pinner.is_running(7, HEAD)
        assert pinner.find_uids(7) == set()
        assert process.read_outcome(1.0, signal.SIGKILL).end is End.RUNNING
        outcome = process.send(signal.SIGTERM)
        assert outcome is not None
        assert outcome.sentence.startswith("not permitted: a file of /proc lacks a field")
        process.close()


def test_a_pid_that_was_typed_is_a_target_on_no_gpu(tmp_path: Path) -> None:
    with table(tmp_path) as processes:
        processes.add(7, program=1)
        pinner, seen = processes.pinner(), builders.snapshot([builders.gpu(0, holdings=[builders.holding(70)])])
        typed, gone = pinner.find_target(7, seen), pinner.find_target(8, seen)
        assert (typed.on_screen, typed.process.command, typed.key) == (False, "python 7.py", (7, HEAD))
        assert reason(pinner, typed) is Refusal.NOT_ON_GPU
        assert reason(pinner, gone) is Refusal.ABSENT
        assert pinner.find_target(70, seen).on_screen


def test_inside_a_container_an_open_device_is_evidence_only_where_the_driver_means_this_process(tmp_path: Path) -> None:
    with table(tmp_path) as processes:
        (processes.proc / "self" / "ns").mkdir(parents=True)
        (processes.proc / "self" / "ns" / "pid").symlink_to("pid:[4026532201]")
        pinner, target = processes.pinner(), a_target(7, HEAD, command="python 7.py")
        assert reason(pinner, target) is Refusal.OTHER_NAMESPACE, "there is no such PID here"
        processes.add(7, gpu=0)
        assert reason(pinner, target) is Refusal.OTHER_NAMESPACE
        processes.add(7, gpu=1)
        pinned(pinner, target).close()
        assert reason(pinner, replace(target, on_screen=False)) is Refusal.OTHER_NAMESPACE


# ---------------------------------------------------------------------------------------------------------------
# The handle


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.EINVAL, Refusal.CHANGED),  # the id of a thread
        (errno.ENOENT, Refusal.CHANGED),
        (errno.EMFILE, Refusal.TOO_MANY),
        (errno.ENOSYS, Refusal.NO_PIDFD),
        (errno.EPERM, Refusal.NO_PIDFD),
    ],
)
def test_without_a_handle_nothing_is_signalled(tmp_path: Path, code: int, expected: Refusal) -> None:
    assert reason(a_pinner(tmp_path, open_pidfd=no_pidfd(code)), a_target(7, 900)) is expected


def test_the_handle_of_a_dead_process_reaches_nobody(tmp_path: Path, holder: GpuHolder) -> None:
    training = pinned(a_pinner(tmp_path), target_of(holder))
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait_until_exited()
    outcome = training.send(signal.SIGTERM)
    assert outcome is not None
    assert outcome.end is End.GONE
    training.close()


def test_nothing_is_sent_once_the_handle_is_given_back(tmp_path: Path, holder: GpuHolder) -> None:
    training = pinned(a_pinner(tmp_path), target_of(holder))
    training.close()
    with pytest.raises(ValueError, match="no longer pinned"):
        training.send(signal.SIGTERM)
    assert holder.alive()


def test_a_signal_that_the_kernel_refuses_is_told(tmp_path: Path) -> None:
    def refuse(handle: int, sig: signal.Signals) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with table(tmp_path) as processes:
        processes.add(7)
        processes.send_signal = refuse  # type: ignore[method-assign]
        process = pinned(processes.pinner(), a_target(7, HEAD, command="python 7.py"))
        outcome = process.send(signal.SIGTERM)
        assert outcome is not None
        assert outcome.sentence == "not permitted: Operation not permitted"
        process.close()


def test_the_calls_by_number_are_those_of_the_library(holder: GpuHolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conda's Python has neither os.pidfd_open nor signal.pidfd_send_signal."""
    with monkeypatch.context() as conda:
        conda.delattr(os, "pidfd_open")
        conda.delattr(signal, "pidfd_send_signal")
        handle = pidfd.open_pidfd(holder.pid)
        assert not os.get_inheritable(handle)
        pidfd.send_signal(handle, signal.SIGTERM)
    holder.wait_until_exited()
    holder.reap()
    with monkeypatch.context() as conda:
        conda.delattr(os, "pidfd_open")
        conda.delattr(signal, "pidfd_send_signal")
        with pytest.raises(ProcessLookupError):
            pidfd.send_signal(handle, signal.SIGTERM)
        with pytest.raises(ProcessLookupError):
            pidfd.open_pidfd(holder.pid)
    os.close(handle)


def test_a_failing_description_leaks_no_handle(tmp_path: Path, holder: GpuHolder) -> None:
    handles = []

    def opener(pid: int) -> int:
        handles.append(pidfd.open_pidfd(pid))
        return handles[0]

    def describe(pid: int) -> str:
        raise KeyError(pid)

    with pytest.raises(KeyError):
        a_pinner(tmp_path, describe=describe, open_pidfd=opener).pin(target_of(holder))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handles[0])


def test_the_pinner_of_the_program_knows_the_command_as_it_is_shown() -> None:
    assert make_pinner(read_only=True, allow_root=False).policy.read_only
    with GpuHolder(["python", "train.py", "--token", "hunter2hunter2"]) as training:
        assert shown_command(training.pid) == "python train.py --token ***"
    assert shown_command(NO_PROCESS) is None
