"""A crowd of processes comes and goes while gpuwatch ends thirty of them: no signal ever reaches another one.

All of it runs in a program of its own; where that is allowed, in a PID namespace whose next PID is chosen again and
again among few hundred, so that a PID is another process's within milliseconds. Every process writes down each signal
that it gets; whoever is killed outright is seen by the process that reaps it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.environment import environment
from tests.support.process import ME, ROOT, SOMEBODY_ELSE
from tests.support.program import PID_NAMESPACE, answers, can_enter

pytestmark = pytest.mark.slow

PROGRAM = r"""
import ctypes, json, os, random, signal, sys, time
from pathlib import Path
from gpuwatch.base import procfs
from gpuwatch.kill.audit import Audit
from gpuwatch.kill.ending import Ending
from gpuwatch.kill.pinned import KillTarget, Pinner
from gpuwatch.kill.policy import Policy
from gpuwatch.model.snapshot import Process, Snapshot

spec = json.loads(sys.argv[1])
folder, uids = spec["folder"], spec["uids"]
dice = random.Random(spec["seed"])
libc = ctypes.CDLL(None)
SET_NAME, SUBREAPER, DUMPABLE = 15, 36, 4
CAUGHT = [s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD)]
os.umask(0)
Path(folder, "dev").mkdir()
Path(folder, "dev", "nvidia0").touch()
Path(folder, "heard").mkdir()

def write(serial, words):
    file = os.open(f"{folder}/heard/{serial}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(file, words.encode() + b"\n")
    os.close(file)

def be(serial, uid, dice):
    # A life: short, perhaps with a worker, under the eyes of whoever reads /proc.
    def heard(number, frame):
        write(serial, signal.Signals(number).name)
        os._exit(0)
    for one in CAUGHT:
        signal.signal(one, heard)
    libc.prctl(SET_NAME, f"c{serial}".encode(), 0, 0, 0)
    if uid != os.getuid():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        libc.prctl(DUMPABLE, 1, 0, 0, 0)
    os.open(folder + "/dev/nvidia0", os.O_RDWR)
    if dice.random() < 0.2 and "w" not in serial:
        if not os.fork():
            be(serial + "w", uid, dice)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
    time.sleep(dice.uniform(0.1, 2.0))
    signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
    for one in signal.sigpending():
        write(serial, one.name)
    write(serial, "bye")
    os._exit(0)

def nurse():
    # Keep a crowd alive until the pipe closes; tell of whoever did not end by itself.
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
    serial, alive, stop = 0, 0, False
    while alive or not stop:
        stop = stop or Path(folder, "stop").exists()
        while alive < spec["alive"] and not stop:
            if spec["again"]:
                Path("/proc/sys/kernel/ns_last_pid").write_text(str(dice.randrange(100, 500)))
            serial, uid = serial + 1, dice.choice(uids)
            child = os.fork()
            if not child:
                be(str(serial), uid, random.Random(serial))
            alive += 1
        try:
            while True:
                pid, status = os.waitpid(-1, 0 if stop else os.WNOHANG)
                if not pid:
                    break
                alive -= 1
                if os.WIFSIGNALED(status):
                    write("killed", f"{pid} by {os.WTERMSIG(status)}")
        except ChildProcessError:
            alive = 0
        alive = max(alive, 0)
        time.sleep(0.002)
    write("lives", str(serial))
    os._exit(0)

def comm(pid):
    try:
        return procfs.read_stat(pid).comm.decode()
    except (OSError, ValueError):
        return None

def seen():
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                stat = procfs.read_stat(int(name))
                uid = procfs.read_uids(int(name))[0]
            except (OSError, ValueError):
                continue
            if stat.comm[:1] == b"c" and stat.comm[1:2].isdigit():
                found.append(Process(pid=int(name), start=stat.start_ticks, uid=uid, command=stat.comm.decode()))
    return found

def heard(serial):
    try:
        return Path(folder, "heard", serial).read_text().split()
    except FileNotFoundError:
        return []

policy = Policy(spec["me"], spec["me"], 2**22 + 1, allow_root=True)
pinner = Pinner(policy, Audit(Path(folder, "state")), describe=comm, dev=folder + "/dev")
nursery = os.fork()
if not nursery:
    nurse()
chosen, refused, tries, lone, began = [], {}, 0, 0, time.monotonic()
while len(chosen) < spec["end"] and time.monotonic() < began + 240:
    shown = seen()
    time.sleep(dice.choice([0, 0.02, 0.1, 0.3]))
    for process in dice.sample(shown, min(12, len(shown))):
        tries += 1
        ending = Ending(pinner, KillTarget(process), Snapshot(), whole_run=dice.random() < 0.5)
        ending.tick()
        if ending.over:
            pinner.audit.flush()
            last = json.loads(pinner.audit.path.read_text().splitlines()[-1])["result"]
            refused[last] = refused.get(last, 0) + 1
            continue
        names = [one.process.command[1:] for one in ending.targets]
        time.sleep(dice.choice([0, 0.005, 0.05]))
        ending.send(dice.choice([signal.SIGINT, signal.SIGTERM]))
        while not ending.exited and not ending.over:
            time.sleep(0.001)
            ending.tick()
        ending.abandon()
        chosen += names
        lone += len(names) == 1
Path(folder, "stop").touch()
os.waitpid(nursery, 0)
everybody = {path.name: path.read_text().split("\n") for path in Path(folder, "heard").iterdir()}
killed, lives = everybody.pop("killed", []), int(everybody.pop("lives")[0])
signals = {serial: [w for w in words if w.startswith("SIG")] for serial, words in everybody.items()}
print(json.dumps({
    "chosen": chosen, "lives": lives, "tries": tries, "lone": lone, "refused": refused, "killed": killed,
    "signals": {serial: words for serial, words in signals.items() if words},
    "unheard": [serial for serial in chosen if not signals.get(serial) and "bye" not in everybody.get(serial, [])],
}))
"""


@pytest.fixture
def folder() -> Iterator[str]:
    """A folder that other people may look into; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield name


def test_no_signal_reaches_anybody_but_the_chosen(folder: str) -> None:
    again = can_enter("sh", "-c", "echo 300 > /proc/sys/kernel/ns_last_pid")  # by which the next PID is chosen
    alive = 150 if again else 50  # of the 400 PIDs that are used again, many are alive
    uids = [ME, ME, SOMEBODY_ELSE] if ROOT else [0 if again else ME]
    spec: dict[str, Any] = {"folder": folder, "seed": 1, "alive": alive, "end": 30, "again": again}
    me = uids[0]
    words, enter = json.dumps({**spec, "me": me, "uids": uids}), PID_NAMESPACE if again else ()
    (answer,) = answers(PROGRAM, words, enter=enter, env=environment(), timeout=300.0)
    chosen = set(answer["chosen"])
    assert len(answer["chosen"]) >= 30, answer
    assert len(chosen) == len(answer["chosen"]), "none was chosen twice"
    assert answer["killed"] == []
    assert set(answer["signals"]) <= chosen, answer
    assert all(len(signals) == 1 for signals in answer["signals"].values()), answer
    # Whoever was chosen has heard it, or had just ended by itself.
    assert answer["unheard"] == [], answer
    assert len(answer["signals"]) >= 20, answer
    if ROOT:
        assert answer["refused"].get("not yours", 0) > 0, answer
