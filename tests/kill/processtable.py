"""A process table made of files, and the stories that are played on it.

/proc is a tree of files, a handle is the end of a pipe, and a process does with a signal what the story says. So the
program's own code pins, compares, signals and follows, and neither a real process nor a second is needed.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpuwatch.kill.ending import Ending, KillChoice, KillState
from gpuwatch.kill.pinned import Pinner, find_targets
from gpuwatch.model.snapshot import Process, ProcessContext, Reason, Run, Snapshot, Unlisted
from tests.support import builders
from tests.support.kill import a_pinner, a_target, on_record
from tests.support.process import ME
from tests.support.waiting import Clock

HEAD = 1000
"""Start time of the processes, in clock ticks; a story that reuses a PID counts on from it."""

LATER = 2**40
"""Start time of what is started after the first signal."""


class Table:
    """Process table in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = folder / "proc"
        self.facts: dict[int, dict[str, Any]] = {}
        self.deadly: set[tuple[int, str]] = set()
        self.immortal: set[int] = set()
        self.sent: list[str] = []
        self._handles: dict[int, tuple[int, int]] = {}
        """PID and writing end of a pipe, by the reading end."""

    def add(self, pid: int, **facts: Any) -> None:
        """Start a process, or give it other facts."""
        usual = {"ppid": 1, "start": HEAD, "state": "S", "comm": "python", "uid": ME, "session": 5, "tty": 0, "gpu": 1}
        self.facts[pid] = {**usual, **self.facts.get(pid, {}), **facts}
        self._write(pid)
        for other in self.facts:
            self._write_children(other)

    def _write(self, pid: int) -> None:
        one, folder = self.facts[pid], self.proc / str(pid)
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        fields = [one["state"], one["ppid"], pid, one["session"], one["tty"], *[0] * 14, one["start"], *[0] * 3]
        program = one.get("program", 0)  # the address of the stack; the environment ends far from the top
        fields += [4096, 0, program, *[0] * 22, 0x7F0000000000 if program else 0]
        line = f"{pid} ({one['comm']}) {' '.join(map(str, fields))}\n"
        for file in (folder / "stat", folder / "task" / str(pid) / "stat"):
            file.write_text(line)
        for thread, state in one.get("threads", {}).items():
            (folder / "task" / str(thread)).mkdir(exist_ok=True)
            (folder / "task" / str(thread) / "stat").write_text(line.replace(f") {one['state']} ", f") {state} ", 1))
        mask = 1 << (signal.SIGINT - 1) if one.get("ignores") else 0
        uids = "\t".join(map(str, one.get("uids", [one["uid"]] * 3)))
        (folder / "status").write_text(f"Uid:\t{uids}\nSigIgn:\t{mask:x}\n")
        device = folder / "fd" / "3"
        device.unlink(missing_ok=True)
        if one["gpu"]:
            device.symlink_to("/dev/nvidia0")

    def _write_children(self, pid: int) -> None:
        children = " ".join(str(child) for child, one in self.facts.items() if one["ppid"] == pid)
        (self.proc / str(pid) / "task" / str(pid) / "children").write_text(children)

    def end(self, pid: int, *, zombie: bool = False) -> None:
        """End a process, and reap it or not; its children go to init."""
        for handle, (of, end) in list(self._handles.items()):
            if of == pid and end >= 0:
                os.close(end)
                self._handles[handle] = (pid, -1)
        if zombie:
            self.add(pid, state="Z", gpu=0)
        else:
            shutil.rmtree(self.proc / str(pid))
            del self.facts[pid]
        for child in [child for child, one in self.facts.items() if one["ppid"] == pid]:
            self.add(child, ppid=1)

    def open_pidfd(self, pid: int) -> int:
        """Give a handle: the reading end of a pipe, which is at its end when the process is."""
        if pid not in self.facts:
            raise ProcessLookupError(pid)
        reads, writes = os.pipe()
        self._handles[reads] = (pid, writes)
        return reads

    def send_signal(self, handle: int, sig: signal.Signals) -> None:
        """Take a signal down, and let the process do what the story says."""
        pid, _ = self._handles[handle]
        self.sent.append(f"{sig.name} to {pid}")
        if (pid, sig.name) in self.deadly or (sig is signal.SIGKILL and pid not in self.immortal):
            self.end(pid)

    def pinner(self) -> Pinner:
        """Return the program's access to this table."""
        return a_pinner(
            self.folder,
            proc=self.proc,
            open_pidfd=self.open_pidfd,
            send_signal=self.send_signal,
            describe=lambda pid: f"python {pid}.py" if pid in self.facts else None,
        )

    def close(self) -> None:
        """Close the writing ends; the program has closed the others."""
        for _, end in self._handles.values():
            if end >= 0:
                os.close(end)


@contextmanager
def table(folder: Path) -> Iterator[Table]:
    """Make an empty process table."""
    made = Table(folder)
    try:
        yield made
    finally:
        made.close()


class Story:
    """A story: lines that change the table, press buttons or let time pass, and what the program does with them."""

    def __init__(self, processes: Table) -> None:
        self._table = processes
        self._pinner = processes.pinner()
        self._clock = Clock(1000.0)
        self._sampled = 0.0
        self._held: dict[int, float] = {}
        self._runs: dict[int, dict[str, Any]] = {}
        self._gpu: dict[str, Any] = {}
        self._group: Ending | None = None

    def play(self, lines: list[str]) -> Iterator[str]:
        """Play the lines that begin with `>`; yield each, and what changed by it."""
        before = ""
        for line in lines:
            if not line.startswith("> "):
                continue
            yield line
            verb, *words = line[2:].split()
            getattr(self, f"_{verb}")(*words)
            if self._group is None:
                continue
            for _ in range(3):
                self._group.tick()
            yield from (f"  {sent}" for sent in self._table.sent)
            self._table.sent.clear()
            if (now := self._shown(self._group)) != before:
                yield f"  {now}"
            before = now
        self._pinner.audit.problem()  # it waits, and makes the file
        for record in on_record(self._pinner):
            signals = "+".join(record.get("signals", ())) or "no signal"
            of = f" of {record['run']}" if "run" in record else ""
            detail = f" ({record['detail']})" if record["detail"] else ""
            yield f"  on record: {record['pid']}{of} {record['event']} {signals} {record['result']}{detail}"

    def _shown(self, ending: Ending) -> str:
        buttons = ", ".join(choice.label(max(ending.left, 1)) for choice in ending.choices)
        asked = len(ending.targets) > 1 and ending.state is KillState.ASKING and not ending.asks_again
        whom = [" ".join(["all of", *(str(one.pid) for one in ending.targets)])] if asked else []
        notes = ending.notes if ending.state is KillState.ASKING else ()
        said = "; ".join((*whom, *notes, *filter(None, [ending.sentence])))
        return f"{ending.state.value} [{buttons}]{' ' * bool(said)}{said}"

    # -- the table -------------------------------------------------------------------------------------------------

    def _process(self, pid: str, *words: str) -> None:
        facts: dict[str, Any] = {}
        for word in words:
            name, _, value = word.partition("=")
            if name == "gib":
                self._held[int(pid)] = float(value)
            elif name in ("key", "launcher"):
                self._runs.setdefault(int(pid), {})[name] = value
            elif name in ("head", "head_start", "rank", "worker_of", "orphaned"):
                self._runs.setdefault(int(pid), {})[name] = int(value)
            else:
                facts[name] = int(value) if value.isdecimal() else value
        self._table.add(int(pid), **facts)

    def _gpus(self, *words: str) -> None:
        self._gpu = {"name": " ".join(words)}

    def _unknown(self) -> None:
        self._gpu = {"memory": builders.memory(0.0, used=Reason.NO_SAMPLE)}

    def _dies(self, pid: str, *signals: str) -> None:
        self._table.deadly |= {(int(pid), sig) for sig in signals}

    def _survives(self, pid: str) -> None:
        self._table.immortal.add(int(pid))

    def _ends(self, *pids: str) -> None:
        for pid in pids:
            self._table.end(int(pid))

    def _zombie(self, pid: str) -> None:
        self._table.end(int(pid), zombie=True)

    # -- the program -----------------------------------------------------------------------------------------------

    def _check(self, pid: str, run: str = "") -> None:
        seen = self._seen()
        target = next((one for one in find_targets(seen).values() if one.pid == int(pid)), None)
        self._group = Ending(
            self._pinner,
            target or a_target(int(pid), HEAD, ME, f"python {pid}.py"),
            seen,
            has_run=True,
            whole_run=bool(run),
            clock=self._clock,
        )

    def _press(self, *label: str) -> None:
        assert self._group is not None
        choice = KillChoice(" ".join(label))
        self._group.choose(choice)

    def _toggle(self) -> None:
        assert self._group is not None
        self._group.toggle()

    def _quit(self) -> None:
        assert self._group is not None
        self._group.abandon()

    def _pass(self, seconds: str) -> None:
        self._clock.now += float(seconds)

    def _sample(self, *held: str) -> None:
        """Take a sample; what has ended holds memory no more, but for those that are named: `7=12`."""
        assert self._group is not None
        self._sampled += 1.0
        more = {int(pid): float(gib) for pid, _, gib in (one.partition("=") for one in held)}
        self._group.observe(self._seen(more))

    def _seen(self, more: dict[int, float] | None = None) -> Snapshot:
        held = {pid: gib for pid, gib in self._held.items() if pid in self._table.facts} | (more or {})
        holdings = [builders.holding(pid, gib, start=HEAD) for pid, gib in held.items()]
        gpu = replace(builders.gpu(4, holdings=holdings), **self._gpu)
        processes = [self._row(pid) for pid in {**held, **self._runs}]
        unlisted = [pid for pid in self._runs if pid not in held]
        return builders.at(
            builders.snapshot([gpu], [row for row in processes if row.pid not in unlisted], viewer=ME),
            self._sampled,
            searched=builders.EPOCH + self._sampled,
            unlisted=tuple(Unlisted(process=self._row(pid), gpus=(gpu.key,)) for pid in unlisted),
        )

    def _row(self, pid: int) -> Process:
        run = Run(**{"head_start": HEAD, **self._runs[pid]}) if pid in self._runs else None
        uid = self._table.facts.get(pid, {}).get("uid", ME)
        return builders.process(
            pid, "you", start=HEAD, uid=uid, command=f"python {pid}.py", context=ProcessContext(run=run)
        )
