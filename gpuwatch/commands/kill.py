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
from types import FrameType
from typing import Final, TextIO

from gpuwatch import procfs
from gpuwatch.commands.console import Column, Console, discard_output, format_table
from gpuwatch.commands.flags import add_flags
from gpuwatch.commands.startup import check_snapshot, configured, first_snapshot, open_source
from gpuwatch.errors import EXIT_CODES, UsageError
from gpuwatch.kill.outcome import Refusal, Refused
from gpuwatch.kill.session import IGNORES_INTERRUPT, Choice, Phase, Session, call_now
from gpuwatch.kill.target import Killer, Target, make_killer, target_of_pid
from gpuwatch.model import Holding, Snapshot, known
from gpuwatch.sources.sampler_process import SamplerProcess
from gpuwatch.sources.source import Source
from gpuwatch.units import UNKNOWN, gib


class Interrupted(BaseException):
    """Raised where the signal `number` asks the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class SignalGuard:
    """Handler that stores Ctrl-C, SIGTERM and SIGHUP until `check` is called, between two steps of the command.

    No handler raises: an exception between a signal to a process and its line of output would lose the line. So the
    command waits in short steps, and calls `check` between them.
    """

    def __init__(self) -> None:
        self._number = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """Install the handlers for the length of a block; a signal that is ignored stays ignored."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {one: signal.signal(one, self._hear) for one in numbers if signal.getsignal(one) != signal.SIG_IGN}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._number = number

    def check(self) -> None:
        """Raise `Interrupted` where a signal has come."""
        if self._number:
            raise Interrupted(self._number)


class DialogConsole(Console):
    """Console that asks questions without waiting for the answer, and goes on when a pipe is closed."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__(ascii_only=ascii_only)
        self._asking = False
        self.unread = False
        """Whether nobody reads the output: the other end of the pipe is closed."""

    def question(self, words: str) -> None:
        """Print a question, and discard what was typed before."""
        with contextlib.suppress(termios.error, OSError):  # no terminal, or one that has gone
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
        except BrokenPipeError:  # what was begun goes on unheard
            self.unread = True
            discard_output(stream)


def table(targets: Sequence[Target], snapshot: Snapshot, uid: int, width: int | None = None) -> list[str]:
    """Return a line for each process that would be ended, all of one `uid`, with its facts in a snapshot.

    In brackets stand GPUs of which a process only has the device file open. `width` (cells) is where lines are cut.
    """
    people = [*snapshot.processes, *(one.process for one in snapshot.unlisted)]
    user = next((one.user for one in people if one.uid == uid and one.user), "?")
    holdings: defaultdict[int, list[tuple[int, Holding]]] = defaultdict(list)
    for gpu in snapshot.gpus:
        for holding in gpu.holdings:
            holdings[holding.pid].append((gpu.index, holding))
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    opened = {one.process.pid: sorted(indices[key] for key in one.gpus if key in indices) for one in snapshot.unlisted}

    def gpus(target: Target) -> str:
        held = sorted({index for index, _ in holdings[target.pid]})
        files = [f"({index})" for index in opened.get(target.pid, ()) if not held]
        return ",".join([*map(str, held), *files]) or UNKNOWN

    def memory(target: Target) -> str:
        held = [holding.memory for _, holding in holdings[target.pid]]
        return gib(sum(filter(known, held))) if held and all(map(known, held)) else UNKNOWN

    def busiest(target: Target) -> str:
        figures = [holding.sm for _, holding in holdings[target.pid]]
        if not figures or not all(map(known, figures)):
            return UNKNOWN
        sm = max(filter(known, figures))
        return f"{sm:.0f}%" if sm else "idle"

    columns: tuple[Column[Target], ...] = (
        Column("PID", lambda target: str(target.pid)),
        Column("USER", lambda target: user, right=False),
        Column("GPU", gpus),
        Column("GiB", memory),
        Column("SM", busiest),
        Column("COMMAND", lambda target: target.command, right=False),
    )
    return format_table(columns, targets, width=width)


INTERVAL: Final = 0.5
"""Seconds between two samples: memory is judged by two of them after the end."""

SIGNALS: Final = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "KILL": signal.SIGKILL}

_HARDER: Final = {signal.SIGINT: signal.SIGTERM, signal.SIGTERM: signal.SIGKILL}

_LOOK: Final = 0.05
"""Seconds of one wait for a snapshot, or for an answer; only then Ctrl-C and the other are looked at."""

_SEARCHED: Final = 6.0
"""Seconds to search for a process that the driver does not list, by its open device files."""

_AROUND: Final = 3.0
"""Seconds to wait for the run of a process, where the whole run is to be ended."""

_LARGEST_PID: Final = 2**22
"""PID_MAX_LIMIT of the kernel (include/linux/threads.h)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)
    parser.epilog = f"Exit codes: 0 all have exited, 1 one was refused or still runs, {EXIT_CODES}"
    parser.add_argument("pids", metavar="PID", nargs="+", help="processes of yours that hold a GPU")
    parser.add_argument("--signal", metavar="NAME", help="INT, TERM or KILL (default: TERM)")
    parser.add_argument("--job", action="store_true", help="the whole run that it belongs to: launcher, ranks, workers")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    as_root = "let root end processes: its own, under sudo those of the caller"
    parser.add_argument("--allow-root-kill", action="store_true", default=argparse.SUPPRESS, help=as_root)
    parser.add_argument("--read-only", action="store_true", default=argparse.SUPPRESS, help="end nothing: refuse all")


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Run the command and return its exit code: 128 and its number after a signal."""
    sig, pids = parse_signal(args.signal), parse_pids(args.pids)
    config = configured(args)
    if not args.yes and not (sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError("kill asks before it ends anything, and stdin is not a terminal; --yes skips the question")
    source = open_source(args, config, sampler, interval=INTERVAL)
    killer = make_killer(read_only=config.read_only, allow_root=args.allow_root_kill)
    console, guard = DialogConsole(ascii_only=config.ascii), SignalGuard()
    try:
        with guard.open():
            return KillCommand(source, killer, console, guard, sig, whole_run=args.job, ask=not args.yes).run(pids)
    except Interrupted as told:
        return 128 + told.number
    finally:
        source.close()


def parse_signal(text: str | None) -> signal.Signals:
    """Parse --signal; raises UsageError."""
    name = "TERM" if text is None else text.upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise UsageError(f"--signal: {text!a} is not allowed; INT, TERM and KILL are")
    return SIGNALS[name]


def parse_pids(words: Sequence[str]) -> tuple[int, ...]:
    """Parse PIDs, each once; raises UsageError."""
    found: dict[int, None] = {}
    for word in words:
        number = int(word) if word.isascii() and word.isdecimal() and len(word) < 12 else 0
        if not 0 < number <= _LARGEST_PID:
            raise UsageError(f"PID: {word[:40]!a} is not a PID; a PID is a whole number from 1 to {_LARGEST_PID}")
        found[number] = None
    return tuple(found)


class KillCommand:
    """Command that pins and shows all processes, asks once, and ends them one after the other."""

    def __init__(
        self,
        source: Source,
        killer: Killer,
        console: DialogConsole,
        guard: SignalGuard,
        sig: signal.Signals,
        *,
        whole_run: bool = False,
        ask: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._killer = killer
        self._console = console
        self._guard = guard
        self._signal = sig
        self._whole_run = whole_run
        self._ask = ask
        self._clock = clock
        self._snapshot = Snapshot()
        self._sessions: list[Session] = []
        self._reported: list[Session] = []
        """Sessions whose outcome was printed."""
        self._failed = False

    def run(self, pids: Sequence[int]) -> int:
        """End the processes and return the exit code; raises UnavailableError where there is no driver."""
        try:
            self._find(pids)
            ready = [session for session in map(self._pin, pids) if session is not None]
            if ready and self._confirmed(ready):
                for session in ready:
                    self._follow(session)
            elif ready:
                self._failed = True
                self._console.warn("nothing was sent")
        except Interrupted:
            self._break_off()
            raise
        finally:
            for session in self._sessions:
                session.abandon()
                session.tick()
        return 1 if self._failed else 0

    # -- what they are ---------------------------------------------------------------------------------------------

    def _find(self, pids: Sequence[int]) -> None:
        """Read snapshots until they have all facts about the processes, or the time for that has passed."""
        self._snapshot = first_snapshot(self._source, look=_LOOK, check=self._guard.check)
        check_snapshot(self._snapshot)
        began = self._clock()
        while (missing := max(map(self._missing, pids), default=0.0)) and self._clock() < began + missing:
            self._pump()

    def _missing(self, pid: int) -> float:
        """Return the seconds, from the first snapshot, to wait for facts about a PID that are missing; 0 for none."""
        try:
            if self._killer.policy.may_end not in procfs.read_uids(pid):
                return 0.0  # whatever it is, it is refused
        except (OSError, ValueError):
            return 0.0
        listed = any(process.pid == pid for process in self._snapshot.processes)
        placed = self._is_placed(pid)
        if placed is None:
            return 0.0 if self._snapshot.searched else _SEARCHED
        if self._whole_run and not placed:
            return _AROUND if listed else _SEARCHED + _AROUND
        return 0.0

    def _is_placed(self, pid: int) -> bool | None:
        """Return whether the context of a process is known; None for an unknown process."""
        snapshot = self._snapshot
        processes = [*snapshot.processes, *(one.process for one in snapshot.unlisted)]
        return next((one.surroundings is not None for one in processes if one.pid == pid), None)

    def _pin(self, pid: int) -> Session | None:
        """Pin a process; print the reason and return None where it must not be ended."""
        self._guard.check()
        head = next((one.target.pid for one in self._sessions if pid in [each.pid for each in one.members]), None)
        if head is not None:
            self._console.warn(f"PID {pid} is of the run of PID {head}")
            return None
        session = Session(
            self._killer,
            target_of_pid(pid, self._snapshot, self._killer),
            self._snapshot,
            submit=call_now,
            whole_run=self._whole_run,
            clock=self._clock,
        )
        self._sessions.append(session)
        session.tick()
        why, refused = "", None
        if session.over:
            why = session.message
        elif session.unrecorded and not self._ask:
            why = f"{session.unrecorded}; without --yes you are asked whether to go on"
        elif self._signal is signal.SIGINT and session.ignores_interrupt:
            refused = Refused(Refusal.IGNORED, pid, self._signal.name)
            why = f"{session.notes[0]}; --signal TERM asks it in another way"
        elif self._whole_run and not self._is_placed(pid):
            refused = Refused(Refusal.RUN_UNKNOWN, pid)
            why = f"{refused.sentence}; without --job it is ended alone"
        else:
            return session
        session.abandon()
        if refused is not None:
            self._killer.refuse(session.target, refused)
        self._failed = True
        self._console.warn(f"PID {pid} is not ended: {why}")
        return None

    # -- the question ----------------------------------------------------------------------------------------------

    def _confirmed(self, ready: Sequence[Session]) -> bool:
        listed = [one for session in ready for one in session.members]
        self._console.print(*table(listed, self._snapshot, self._killer.policy.may_end, self._console.width))
        for words in dict.fromkeys(words for session in ready for words in session.warnings):
            self._console.warn(words)
        for session in ready:
            for words in session.notes:
                if words != IGNORES_INTERRUPT:  # it gets another signal: what ignores SIGINT was refused
                    self._console.warn(f"PID {session.target.pid}: {words}")
        if self._console.unread:
            return False  # it was to be shown, and nobody saw it
        if not self._ask:
            return True
        what = "this process" if len(listed) == 1 else f"these {len(listed)} processes"
        return self._answered(f"End {what} with {self._signal.name}?") is True

    def _answered(self, question: str, *, about: Session | None = None) -> bool | None:
        """Ask a question while snapshots are read; None where the session `about` went on without an answer."""
        self._console.question(question)
        phase = about.phase if about is not None else None
        while True:
            answer = self._console.answer(_LOOK)
            if answer is not None:
                return answer.lower() in ("y", "yes")
            self._pump(0.0)
            if about is not None and about.phase is not phase:
                return None

    # -- what becomes of them --------------------------------------------------------------------------------------

    def _follow(self, session: Session) -> None:
        """Signal a process or its run, and print the outcome."""
        self._guard.check()
        warned = set(session.warnings)
        session.send(self._signal)
        sig, left = self._signal, ""
        while not session.over:
            self._pump()
            for words in session.warnings:
                if words not in warned:
                    self._console.warn(words)
                    warned.add(words)
            if session.phase is Phase.ASKING:  # it cannot be recorded any more: that was not what was confirmed
                if self._ask and self._answered("Go on without a record?"):
                    session.send(sig)
                else:
                    session.choose(Choice.CANCEL)
                    left = "nothing was sent"
            elif session.phase is Phase.STILL_THERE:
                harder, words = _HARDER[sig], session.view.message
                question = f"{self._name(session)}: {words}. Send {harder.name}?"
                answer = self._answered(question, about=session) if self._ask else False
                if answer:
                    sig = harder
                    session.send(harder)
                elif answer is False:
                    left = f"{words}; left running" + ("" if self._ask else f"; {self._next(session, harder)}")
                    session.choose(Choice.LEAVE)
        started_meanwhile = session.outcome.left if session.outcome is not None else ()
        self._failed = self._failed or not session.ended or bool(started_meanwhile)
        self._report(session, left or session.message)

    def _report(self, session: Session, words: str) -> None:
        self._console.print(f"{self._name(session)}: {words}")
        self._reported.append(session)

    def _next(self, session: Session, harder: signal.Signals) -> str:
        """Return the command that ends the rest with a harder signal, or why there is none."""
        pid, again = session.target.pid, ""
        if session.run is not None:
            on_gpu = session.run.on_gpu()
            if not on_gpu:
                return "what is left of it has no GPU open, and gpuwatch ends nothing else"
            pid, again = on_gpu[0], " --job"
        root = " --allow-root-kill" if self._killer.policy.euid == 0 else ""
        return f"next: gpuwatch kill {pid}{again} --signal {harder.name.removeprefix('SIG')}{root}"

    def _break_off(self) -> None:
        """Send no more signals, and print the outcomes."""
        for session in self._sessions:
            session.tick()
            session.abandon()
            session.tick()  # what was under way is picked up, and put on record
            if not session.signalled or session in self._reported:
                continue
            if session.ended and session.over:
                self._report(session, session.message)
            elif session.ended and session.outcome is not None:
                self._report(session, f"{session.outcome.sentence}; what became of its memory was not waited for")
            else:
                self._console.warn(f"{self._name(session)} was signalled, and is left as it is")
        self._console.warn("broken off: nothing more is sent")

    def _name(self, session: Session) -> str:
        if session.run is not None:
            return f"run of PID {session.target.pid} ({len(session.members)} processes)"
        return f"PID {session.target.pid}"

    def _pump(self, seconds: float = _LOOK) -> None:
        """Wait for a snapshot, and advance all sessions."""
        self._guard.check()
        snapshot = self._source.next(seconds)
        if snapshot is not None:
            self._snapshot = snapshot
        for session in self._sessions:
            if snapshot is not None:
                session.observe(snapshot)
            session.tick()
