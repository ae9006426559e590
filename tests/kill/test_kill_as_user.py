"""The whole protocol under the real uid of a person, and on a PID that was really used twice.

Both run in a program of their own: the first drops root's rights for good, the second enters a PID namespace in
which it may say which PID comes next, so that nothing of the machine is changed.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.base import procfs
from tests.support.process import ME, ROOT, SOMEBODY_ELSE, GpuHolder, unavailable
from tests.support.program import PID_NAMESPACE, answers, can_enter

pytestmark = pytest.mark.slow

END = """
import json, os, signal, sys, time
from pathlib import Path
from gpuwatch.kill.audit import Audit
from gpuwatch.kill.ending import KillState, Ending
from gpuwatch.kill.pinned import KillTarget, Pinner
from gpuwatch.kill.policy import Policy
from gpuwatch.model.snapshot import Process, Snapshot

me, folder, proc, pid, start, uid = json.loads(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(me, me, me)
    os.setresuid(me, me, me)
pinner = Pinner(Policy.of_this_process(read_only=False), Audit(Path(folder)), proc=Path(proc))
target = KillTarget(Process(pid=pid, start=start, uid=uid, command="python train.py"))
ending = Ending(pinner, target, Snapshot())
ending.tick()
if ending.state is KillState.ASKING:
    ending.send(signal.SIGTERM)
    while ending.outcome is None:
        ending.tick()
        time.sleep(0.01)
    ending.abandon()
    answer = {"end": ending.outcome.end}
else:
    pinner.audit.flush()
    reason = json.loads((Path(folder) / "actions.jsonl").read_text().splitlines()[-1])["result"]
    answer = {"refused": reason, "sentence": ending.message}
pinner.audit.flush()
print(json.dumps({**answer, "uids": os.getresuid()}))
"""

REUSE = """
import json, os, signal, sys
from pathlib import Path
from gpuwatch.base import procfs
from gpuwatch.kill.audit import Audit
from gpuwatch.kill.pinned import KillTarget, PinnedProcess, Pinner
from gpuwatch.kill.policy import Policy
from gpuwatch.model.snapshot import Process

def spawn():
    pid = os.fork()
    if not pid:
        os.open(dev + "/nvidia0", os.O_RDWR)
        os.write(ready[1], b"x")
        signal.pause()
    os.read(ready[0], 1)
    return pid

def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

def again(pid, start):
    for _ in range(1000):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        child = spawn()
        if child == pid and procfs.read_stat(child).start_ticks != start:
            return child
        end(child)
    raise SystemExit("the PID did not come again")

folder = sys.argv[1]
dev = folder + "/dev"
Path(dev).mkdir()
Path(dev, "nvidia0").touch()
ready = os.pipe()
policy = Policy(os.getuid(), os.geteuid(), 2**22 + 1, allow_root=True)
pinner = Pinner(policy, Audit(Path(folder)), dev=dev)
first = spawn()
start = procfs.read_stat(first).start_ticks
shown = KillTarget(Process(pid=first, start=start, uid=os.getuid(), command="python"))
before = pinner.pin(shown)
assert isinstance(before, PinnedProcess), before.sentence
end(first)
second = again(first, start)
after = pinner.pin(shown)
sent = before.send(signal.SIGKILL)
before.close()
alive = os.waitpid(second, os.WNOHANG) == (0, 0)
end(second)
print(json.dumps({"same": first == second, "pin": after.reason.word, "sent": sent.end, "alive": alive}))
"""


@pytest.fixture
def folder() -> Iterator[str]:
    """A folder that the person may write to; pytest's own are closed to them when root runs the tests."""
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, ME, ME if ROOT else os.getgid())
        yield name


def end(folder: str, holder: GpuHolder, *, uid: int | None = None, proc: Path = procfs.PROC) -> dict[str, Any]:
    """End a process as the person would."""
    row = [ME, folder, str(proc), holder.pid, holder.start_ticks, holder.uid if uid is None else uid]
    answer: dict[str, Any]
    (answer,) = answers(END, json.dumps(row))
    assert answer["uids"] == [ME] * 3
    return answer


def test_a_person_ends_a_training_of_their_own(folder: str) -> None:
    with GpuHolder() as training:
        answer = end(folder, training)
        assert answer.get("end") == "exited", answer
        assert not training.alive()
    record = Path(folder, "actions.jsonl")
    assert record.stat().st_uid == ME
    assert [json.loads(line)["event"] for line in record.read_text().splitlines()] == ["outcome"]


@pytest.mark.parametrize("uid", [SOMEBODY_ELSE, 0])
def test_a_person_does_not_end_somebody_elses(folder: str, uid: int) -> None:
    with GpuHolder(uid=uid) as theirs:
        assert end(folder, theirs)["refused"] == "not yours"
        assert theirs.alive()


def test_files_that_a_person_cannot_read_are_no_evidence(folder: str, tmp_path: Path) -> None:
    with GpuHolder() as training, tempfile.TemporaryDirectory() as proc:
        Path(proc).chmod(0o755)
        (Path(proc) / str(training.pid)).mkdir()
        for name in ("stat", "status", "task"):
            (Path(proc) / str(training.pid) / name).symlink_to(f"/proc/{training.pid}/{name}")
        (Path(proc) / str(training.pid) / "fd").mkdir(mode=0)
        assert end(folder, training, proc=Path(proc))["refused"] == "files unreadable"
        assert training.alive()


def test_a_pid_that_was_used_again_is_not_signalled(tmp_path: Path) -> None:
    if not can_enter("true"):
        unavailable("no PID namespace can be made here")
    (answer,) = answers(REUSE, tmp_path, enter=PID_NAMESPACE)
    assert answer == {"same": True, "pin": "changed", "sent": "gone", "alive": True}
