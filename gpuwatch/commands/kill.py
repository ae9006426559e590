"""`gpuwatch kill PID…`: ends the user's own processes, by the same steps as the dashboard."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import termios
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TextIO

from msgspec.structs import replace

from gpuwatch.analysis.rows import rows
from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import shorten
from gpuwatch.base.units import NONE, UNKNOWN, gib
from gpuwatch.commands.console import Console, TextColumn, discard_output, format_table
from gpuwatch.commands.flags import add_flags, parse_number
from gpuwatch.commands.startup import check_snapshot, configured, first_snapshot, open_source
from gpuwatch.kill.ending import IGNORES_INTERRUPT, Ending
from gpuwatch.kill.outcome import Refusal, Refused
from gpuwatch.kill.pinned import KillTarget, Pinner, make_pinner
from gpuwatch.model.fields import Row, brief_command
from gpuwatch.model.snapshot import Snapshot, known
from gpuwatch.sources.sampler_process import SamplerProcess
from gpuwatch.sources.source import Source


class Interrupted(BaseException):
    """Raised where the signal `number` asks the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def catch_signals() -> Iterator[Callable[[], None]]:
    """Store Ctrl-C, SIGTERM and SIGHUP for the length of a block; yield a check that raises `Interrupted` after one.

    No handler raises: an exception between a signal to a process and its line of output would lose the line. So the
    command waits in short steps, and checks between them. A signal that is ignored stays ignored.
    """
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    usual = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in usual}

    def check() -> None:
        if came:
            raise Interrupted(came[0])

    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class DialogConsole(Console):
    """Console that asks questions without waiting for the answer, and continues when a pipe is closed."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__(ascii_only=ascii_only)
        self._asking = False
        self.unread = False
        """Whether nobody reads the output: the other end of the pipe is closed."""

    def question(self, words: str) -> None:
        """Print a question, and discard what was typed before."""
        with contextlib.suppress(termios.error, OSError):  # no terminal, or one that is lost
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        self._write(self.err, [self.format_words(f"{words} [y/N] ", name="")], end="")
        self._asking = True

    def answer(self, seconds: float) -> str | None:
        """Return the line that is typed within some seconds, empty at the end of the input; None where none is."""
        poller = select.poll()
        poller.register(sys.stdin.fileno(), select.POLLIN)
        if not poller.poll(seconds * 1000):
            return None
        typed = os.read(sys.stdin.fileno(), 4096)
        self._asking = not typed.endswith(b"\n")  # Ctrl-D leaves the cursor where it was
        return typed.decode("utf-8", "replace").strip()

    def _write(self, stream: TextIO, lines: Iterable[str], end: str = "\n") -> None:
        if self._asking:  # the line of a question that nobody answers any more
            self._asking = False
            self._write(self.err, [""])
        try:
            super()._write(stream, lines, end)
        except BrokenPipeError:  # the work continues
            self.unread = True
            discard_output(stream)


def table(targets: Sequence[KillTarget], snapshot: Snapshot, uid: int, width: int | None = None) -> list[str]:
    """Return a line for each process that would be ended, all of one `uid`, with its facts in a snapshot.

    GPUs in brackets: a process only has the device file open. Lines are cut at `width` (cells).
    """
    people = [*snapshot.processes, *(one.process for one in snapshot.unlisted)]
    user = next((one.user for one in people if one.uid == uid and one.user), "?")
    indices = {gpu.key: gpu.index for gpu in snapshot.gpus}
    held: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows(snapshot):
        held[row.holding.pid].append(row)

    def gpus(target: KillTarget) -> str:
        opened = [f"({index})" for index in sorted(indices[key] for key in target.gpus if key in indices)]
        return ",".join([str(row.gpu.index) for row in held[target.pid]] or opened) or NONE

    def memory(target: KillTarget) -> str:
        sizes = [row.holding.memory for row in held[target.pid]]
        if not sizes and not target.gpus:
            return NONE
        return gib(sum(filter(known, sizes))) if sizes and all(map(known, sizes)) else UNKNOWN

    def busiest(target: KillTarget) -> str:
        figures = [row.holding.sm for row in held[target.pid]]
        if not figures or not all(map(known, figures)):
            return UNKNOWN if figures or target.gpus else NONE
        sm = max(filter(known, figures))
        return f"{sm:.0f}%" if sm else "idle"

    columns: tuple[TextColumn[KillTarget], ...] = (
        TextColumn("PID", lambda target: str(target.pid)),
        TextColumn("USER", lambda target: user, right=False),
        TextColumn("GPU", gpus),
        TextColumn("GiB", memory),
        TextColumn("SM", busiest),
        TextColumn("COMMAND", lambda target: shorten(brief_command(target.process), _WIDEST_COMMAND), right=False),
    )
    return format_table(columns, targets, width=width)


INTERVAL: Final = 0.5
"""Seconds between two samples: memory is judged by two of them after the end."""

SIGNALS: Final = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "KILL": signal.SIGKILL}

_STEP: Final = 0.05
"""Seconds of one wait for a snapshot, or for an answer; only then Ctrl-C and the other are looked at."""

_SEARCHED: Final = 6.0
"""Seconds to search for a process that the driver does not list, by its open device files."""

_AROUND: Final = 3.0
"""Seconds to wait for the run of a process, where the whole run is to be ended."""

_WIDEST_COMMAND: Final = 300
"""Characters of a command in the question: raylet's has 4,000, and no terminal's width cuts it in a pipe."""
_LARGEST_PID: Final = 2**22
"""PID_MAX_LIMIT of the kernel (include/linux/threads.h)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "allow-root-kill", "read-only")
    parser.add_argument("pids", metavar="PID", nargs="+", help="a process of yours that uses a GPU")
    parser.add_argument("--signal", metavar="NAME", help="INT, TERM or KILL (default: TERM)")
    only = "only if PID started then, in clock ticks since boot (`start` in --json)"
    parser.add_argument("--start", metavar="TICKS", help=only)
    parser.add_argument("--run", action="store_true", help="end the whole run of PID: launcher, ranks, workers")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Run the command and return its exit code: 128 and its number after a signal."""
    sig, pids = parse_signal(args.signal), parse_pids(args.pids)
    start_ticks = None if args.start is None else parse_number("--start", args.start, 2**63, "a number of clock ticks")
    if start_ticks is not None and len(pids) > 1:
        raise UsageError("--start: it is the start time of one process, but more than one PID is given")
    config = configured(args)
    source = open_source(args, config, sampler, interval=INTERVAL)
    pinner = make_pinner(read_only=config.read_only, allow_root=args.allow_root_kill)
    console = DialogConsole(ascii_only=config.ascii)
    try:
        with catch_signals() as check:
            may_ask = sys.stdin is not None and sys.stdin.isatty()
            command = KillCommand(
                source, pinner, console, check, sig, whole_run=args.run, ask=not args.yes, may_ask=may_ask
            )
            return command.run(pids, start_ticks)
    except Interrupted as interrupted:
        return 128 + interrupted.number
    finally:
        source.close()


def parse_signal(text: str | None) -> signal.Signals:
    """Parse --signal; raises UsageError."""
    name = "TERM" if text is None else text.upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise UsageError(f"--signal: {text!a} is not allowed; write INT, TERM or KILL")
    return SIGNALS[name]


def parse_pids(words: Sequence[str]) -> tuple[int, ...]:
    """Parse PIDs, each once; raises UsageError."""
    a_pid = f"a PID; a PID is a whole number from 1 to {_LARGEST_PID}"
    return tuple(dict.fromkeys(parse_number("PID", word, _LARGEST_PID, a_pid) for word in words))


class KillCommand:
    """Command that pins and shows all processes, asks once, and ends them one after the other."""

    def __init__(
        self,
        source: Source,
        pinner: Pinner,
        console: DialogConsole,
        check: Callable[[], None],
        sig: signal.Signals,
        *,
        whole_run: bool = False,
        ask: bool = True,
        may_ask: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`check` is called between two steps; it raises `Interrupted` when the command must end.

        If it is to `ask`, but stdin is no terminal (not `may_ask`), it shows the processes and raises UsageError.
        """
        self._source, self._pinner, self._console, self._check = source, pinner, console, check
        self._signal, self._whole_run, self._clock = sig, whole_run, clock
        self._ask, self._may_ask = ask, may_ask
        self._snapshot = Snapshot()
        self._endings: list[Ending] = []
        """Groups without a printed outcome."""
        self._failed = False

    def run(self, pids: Sequence[int], start_ticks: int | None = None) -> int:
        """End the processes and return the exit code; raises UnavailableError without a driver.

        With `start_ticks` only a process that started at that time is ended.
        """
        try:
            self._read_facts(pids)
            ready = [ending for pid in pids if (ending := self._pin(pid, start_ticks)) is not None]
            if ready and not self._is_confirmed(ready):
                self._failed, ready = True, []
                self._console.warn("nothing was sent")
            for ending in ready:
                self._end(ending)
        except Interrupted:
            self._break_off()
            raise
        finally:
            for ending in self._endings:
                ending.abandon()
            if problem := self._pinner.audit.flush():
                self._console.warn(problem)
        return 1 if self._failed else 0

    # -- the facts -------------------------------------------------------------------------------------------------

    def _read_facts(self, pids: Sequence[int]) -> None:
        """Read snapshots until they have all facts about the processes, or the time for that has passed."""
        self._snapshot = first_snapshot(self._source, look=_STEP, check=self._check)
        check_snapshot(self._snapshot)
        began = self._clock()
        while (missing := max(map(self._missing, pids), default=0.0)) and self._clock() < began + missing:
            self._step()

    def _missing(self, pid: int) -> float:
        """Return the seconds, from the first snapshot, to wait for facts about a PID that are missing; 0 for none."""
        if self._pinner.policy.may_end not in self._pinner.find_uids(pid):
            return 0.0  # it is refused in any case
        placed = self._is_placed(pid)
        if placed is None:
            return 0.0 if self._snapshot.searched else _SEARCHED
        listed = any(process.pid == pid for process in self._snapshot.processes)
        return 0.0 if placed or not self._whole_run else _AROUND if listed else _SEARCHED + _AROUND

    def _is_placed(self, pid: int) -> bool | None:
        """Return whether the context of a process is known; None for an unknown process."""
        processes = [*self._snapshot.processes, *(one.process for one in self._snapshot.unlisted)]
        return next((one.context is not None for one in processes if one.pid == pid), None)

    def _pin(self, pid: int, start_ticks: int | None) -> Ending | None:
        """Pin a process; print the reason and return None if it must not be ended."""
        self._check()
        head = next((one for one in self._endings if pid in [target.pid for target in one.targets]), None)
        if head is not None:
            self._console.warn(f"PID {pid} belongs to the run of PID {head.target.pid}")
            return None
        target = self._pinner.find_target(pid, self._snapshot)
        if start_ticks is not None:
            target = replace(target, process=replace(target.process, start=start_ticks))
        ending = Ending(self._pinner, target, self._snapshot, whole_run=self._whole_run, clock=self._clock)
        ending.tick()
        why, reason = "", None
        if ending.over:
            why = ending.message
        elif ending.warnings and not self._ask:
            why = f"{ending.warnings[0]}; without --yes gpuwatch asks first"
        elif self._signal is signal.SIGINT and ending.ignores_interrupt:
            why, reason = f"{IGNORES_INTERRUPT}; use --signal TERM", Refusal.IGNORED
        elif self._whole_run and not self._is_placed(pid):
            why, reason = f"{Refusal.RUN_UNKNOWN.value}; without --run only this process is ended", Refusal.RUN_UNKNOWN
        else:
            self._endings.append(ending)
            return ending
        if reason is not None:
            self._pinner.record_refusal(target, Refused(reason, pid))
        ending.abandon()
        self._failed = True
        self._console.warn(f"PID {pid} is not ended: {why}")
        return None

    # -- the question ----------------------------------------------------------------------------------------------

    def _is_confirmed(self, ready: Sequence[Ending]) -> bool:
        targets = [target for ending in ready for target in ending.targets]
        self._console.print(*table(targets, self._snapshot, self._pinner.policy.may_end, self._console.width))
        for words in dict.fromkeys(words for ending in ready for words in ending.warnings):
            self._console.warn(words)
        for ending in ready:
            for pid, why in ending.chosen.left_out:
                self._console.warn(f"PID {ending.target.pid}: not signalled: PID {pid}, {why}")
        if self._console.unread:
            return False  # nobody saw what was to be shown
        if self._ask and not self._may_ask:
            raise UsageError(
                "kill asks before it ends a process, but stdin is not a terminal; --yes skips the question"
            )
        what = "this process" if len(targets) == 1 else f"these {len(targets)} processes"
        return not self._ask or self._answer(f"End {what} with {self._signal.name}?") is True

    def _answer(self, question: str, about: Ending | None = None) -> bool | None:
        """Ask a question while snapshots are read; None where the ending `about` went on without an answer."""
        self._console.question(question)
        while about is None or about.asks_again:
            answer = self._console.answer(_STEP)
            if answer is not None:
                return answer.lower() in ("y", "yes")
            self._step(0.0)
        return None

    # -- the outcome -----------------------------------------------------------------------------------------------

    def _end(self, ending: Ending) -> None:
        """Signal a process or its run, and print the outcome."""
        self._check()
        ending.send(self._signal)
        left = ""
        while not ending.over:
            self._step()
            if ending.asks_again:
                sig = signal.SIGTERM if ending.sent is signal.SIGINT else signal.SIGKILL
                words = ending.sentence
                question = f"{self._name(ending)}: {words}. Send {sig.name}?"
                answer = self._answer(question, ending) if self._ask else False
                if answer:
                    ending.send(sig)
                elif answer is False:
                    left = f"{words}; left running" + ("" if self._ask else f"; {self._next(ending, sig)}")
                    ending.abandon()
        started = ending.outcome.started if ending.outcome is not None else ()
        self._failed = self._failed or not ending.exited or bool(started)
        self._report(ending, left or ending.message)

    def _report(self, ending: Ending, words: str) -> None:
        self._console.print(f"{self._name(ending)}: {words}")
        self._endings.remove(ending)

    def _next(self, ending: Ending, sig: signal.Signals) -> str:
        """Return the command that ends the rest with a harder signal, or the reason why there is none."""
        pid, again = ending.target.pid, ""
        if ending.chosen.key:
            on_gpu = ending.on_gpu()
            if not on_gpu:
                return "the rest has no GPU open, and gpuwatch ends only processes that have one"
            pid, again = on_gpu[0], " --run"
        root = " --allow-root-kill" if self._pinner.policy.euid == 0 else ""
        return f"next: gpuwatch kill {pid}{again} --signal {sig.name.removeprefix('SIG')}{root}"

    def _break_off(self) -> None:
        """Send no more signals, and print the outcomes."""
        for ending in list(self._endings):
            ending.tick()
            ending.abandon()
            if ending.exited and ending.outcome is not None:
                unseen = f"{ending.outcome.sentence}; whether it freed its memory was not checked"
                self._report(ending, ending.message or unseen)
            elif ending.sent is not None:
                self._console.warn(f"{self._name(ending)} got the signal, and gpuwatch does not wait for it")
        self._console.warn("interrupted: nothing more is sent")

    def _name(self, ending: Ending) -> str:
        if ending.chosen.key:
            return f"run of PID {ending.target.pid} ({len(ending.targets)} processes)"
        return f"PID {ending.target.pid}"

    def _step(self, seconds: float = _STEP) -> None:
        """Wait for a snapshot, and advance all endings."""
        self._check()
        snapshot = self._source.next(seconds)
        self._snapshot = snapshot or self._snapshot
        for ending in self._endings:
            if snapshot is not None:
                ending.observe(snapshot)
            ending.tick()
