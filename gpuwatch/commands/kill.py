"""`gpuwatch kill PID…`: ends processes of one's own by the same protocol as the dashboard."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TextIO

from gpuwatch.errors import UsageError
from gpuwatch.kill.steps import Listed
from gpuwatch.model import Snapshot, known
from gpuwatch.output.plain import in_ascii, speaks_unicode
from gpuwatch.startup import configured, ordered, source_of
from gpuwatch.text import clean, fit
from gpuwatch.units import UNKNOWN, gib

if TYPE_CHECKING:
    from gpuwatch.kill.pinned import Refused
    from gpuwatch.kill.session import Request
    from gpuwatch.kill.target import Killer
    from gpuwatch.model import Snapshot
    from gpuwatch.sources.child import Child
    from gpuwatch.sources.source import Source


class Told(BaseException):
    """A signal said that the program is to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Ear:
    """Remembers Ctrl-C, SIGTERM and SIGHUP until `check` is called, between two steps of the command.

    No handler raises: an exception between a signal to a process and the line that tells of it would lose the line.
    So nothing that the command waits for may take long by itself; it waits in short pieces and checks between them.
    """

    def __init__(self) -> None:
        self._number = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hear for a while; one that we were started deaf to stays unheard."""
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
        """Raise `Told` where a signal has come."""
        if self._number:
            raise Told(self._number)


def call_now(call: Callable[[], Any]) -> Future[Any]:
    """Make a call here and now, to its end; what it raises is in the future, as a thread would have it."""
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - it is handed to the one who asked
        future.set_exception(error)
    return future


class Desk:
    """Prints lines, and asks on the terminal without waiting for the answer."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        self._ascii = ascii_only
        self._asking = False
        self.unread = False
        """Whether nobody reads what is printed: the other end of the pipe is closed."""

    @property
    def width(self) -> int | None:
        """Cells of a line; None where it is no terminal that is printed to."""
        return shutil.get_terminal_size((160, 50)).columns if sys.stdout.isatty() else None

    def put(self, *lines: str) -> None:
        """Print data."""
        self._write(sys.stdout, "".join(f"{line}\n" for line in lines))

    def say(self, words: str) -> None:
        """Print words, on stderr."""
        self._write(sys.stderr, f"gpuwatch: {clean(words)}\n")

    def question(self, words: str) -> None:
        """Print a question, without its answer's line; what was typed before it was there is no answer to it."""
        import termios

        with contextlib.suppress(termios.error, OSError):  # no terminal, or one that has gone
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        self._write(sys.stderr, f"{clean(words)} [y/N] ")
        self._asking = True

    def answer(self, seconds: float) -> str | None:
        """Wait so long for a line of the terminal; None where none has come, and nothing at its end."""
        poller = select.poll()
        poller.register(sys.stdin.fileno(), select.POLLIN)
        if not poller.poll(seconds * 1000):
            return None
        typed = os.read(sys.stdin.fileno(), 4096)
        self._asking = not typed.endswith(b"\n")  # Ctrl-D leaves the cursor where it was
        return typed.decode("utf-8", "replace").strip()

    def _write(self, stream: TextIO, text: str) -> None:
        if self._asking:  # the line of a question that nobody answers any more
            self._asking = False
            self._write(sys.stderr, "\n")
        plain = self._ascii or not speaks_unicode(stream)
        try:
            stream.write("\n".join(in_ascii(line) for line in text.split("\n")) if plain else text)
            stream.flush()
        except BrokenPipeError:  # what was begun goes on unheard; what is left in the buffer must go somewhere, too
            self.unread = True
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


_HEAD = ("PID", "USER", "GPU", "GiB", "SM", "COMMAND")


@dataclass(frozen=True, slots=True)
class Line:
    """One process that would be ended."""

    pid: int
    user: str
    gpus: tuple[int, ...] = ()
    """NVML's indices; empty for one that the driver does not list."""
    held: int | None = None
    """Bytes on all of them; None where that is not known."""
    sm: float | None = None
    """Percent of the time that its kernels ran on the busiest of them; None where that is not known."""
    command: str = ""
    open: tuple[int, ...] = ()
    """Of one that the driver does not list, the GPUs whose device files it has open."""


def line_of(one: Listed, snapshot: Snapshot, uid: int) -> Line:
    """Give what a snapshot tells of one that would be ended; `uid` is whose it is."""
    unlisted = {row.process.pid: row for row in snapshot.unlisted}
    people = [*snapshot.processes, *(row.process for row in unlisted.values())]
    held = [(gpu.index, holding) for gpu in snapshot.gpus for holding in gpu.holdings if holding.pid == one.pid]
    figures = [float(holding.sm) for _, holding in held if known(holding.sm)]
    sizes = [int(holding.memory) for _, holding in held if known(holding.memory)]
    files = unlisted[one.pid].gpus if not held and one.pid in unlisted else ()
    return Line(
        pid=one.pid,
        user=next((process.user for process in people if process.uid == uid and process.user), "?"),
        gpus=tuple(sorted({index for index, _ in held})),
        open=tuple(sorted(gpu.index for gpu in snapshot.gpus if gpu.uuid in files)),
        held=sum(sizes) if sizes and len(sizes) == len(held) else None,
        sm=max(figures) if figures and len(figures) == len(held) else None,
        command=one.command,
    )


def table(lines: Sequence[Line], width: int | None = None) -> list[str]:
    """Give the table, each line cut to `width` cells where there is one."""
    cells = [_HEAD, *(_cells(line) for line in lines)]
    wide = [max(len(row[column]) for row in cells) for column in range(len(_HEAD) - 1)]
    left = (1,)
    drawn = []
    for row in cells:
        parts = [
            row[column].ljust(wide[column]) if column in left else row[column].rjust(wide[column])
            for column in range(len(wide))
        ]
        whole = "  ".join((*parts, row[-1])).rstrip()
        drawn.append(whole if width is None else fit(whole, width).rstrip())
    return drawn


def _cells(line: Line) -> tuple[str, ...]:
    held = UNKNOWN if line.held is None else gib(line.held)
    busy = UNKNOWN if line.sm is None else f"{line.sm:.0f}%" if line.sm else "idle"
    gpus = ",".join((*map(str, line.gpus), *(f"({index})" for index in line.open)))
    return (str(line.pid), line.user, gpus or UNKNOWN, held, busy, line.command)


INTERVAL: Final = 0.5
"""Seconds between two samples: memory is judged by two of them after the end."""

SIGNALS: Final = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "KILL": signal.SIGKILL}

_HARDER: Final = {signal.SIGINT: signal.SIGTERM, signal.SIGTERM: signal.SIGKILL}

_LOOK: Final = 0.05
"""Seconds for which one wait for a snapshot, or for an answer, holds up the other, and Ctrl-C."""

_SEARCHED: Final = 6.0
"""Seconds that a process which the driver does not list is looked for by its open device files."""

_AROUND: Final = 3.0
"""Seconds that it is waited for what a process belongs to, where its whole run is meant."""

_LARGEST_PID: Final = 2**22
"""PID_MAX_LIMIT of the kernel (include/linux/threads.h)."""


def main(args: argparse.Namespace, sampler: Child | None) -> int:
    """Run the command and give its exit code: 0 all exited, 1 one was refused or still runs, 130 after Ctrl-C."""
    if args.demo or args.json:
        raise UsageError(f"{'--demo' if args.demo else '--json'} does not go with `gpuwatch kill`")
    sig, pids = signal_of(args.signal), pids_of(args.pids)
    config = configured(args)
    if not args.yes and not (sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError("kill asks before it ends anything, and stdin is no terminal; --yes goes ahead without asking")
    from gpuwatch.sources.child import sampler_arguments
    from gpuwatch.ui.background import make_killer

    child = ordered(sampler, sampler_arguments(INTERVAL, (), shares=config.shares))
    source = source_of(child, INTERVAL, (), config)
    killer = make_killer(read_only=config.read_only, allow_root=args.allow_root_kill)
    desk, ear = Desk(ascii_only=config.ascii), Ear()
    try:
        with ear.open():
            return Ends(source, killer, desk, ear, sig, whole_run=args.job, ask=not args.yes).run(pids)
    except Told as told:
        return 128 + told.number
    finally:
        source.close()


def signal_of(text: str | None) -> signal.Signals:
    """Understand --signal; raises UsageError."""
    name = "TERM" if text is None else text.upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise UsageError(f"--signal: there is no {text!a} here; INT, TERM and KILL are allowed")
    return SIGNALS[name]


def pids_of(words: Sequence[str]) -> tuple[int, ...]:
    """Understand the PIDs, each once; raises UsageError."""
    found: dict[int, None] = {}
    for word in words:
        number = int(word) if word.isascii() and word.isdecimal() and len(word) < 12 else 0
        if not 0 < number <= _LARGEST_PID:
            raise UsageError(f"PID: {word[:40]!a} is none; a PID is a whole number from 1 to {_LARGEST_PID}")
        found[number] = None
    return tuple(found)


class Ends:
    """Ends processes one after the other: finds each, proves it, shows all, asks once, then follows each to its end."""

    def __init__(
        self,
        source: Source,
        killer: Killer,
        desk: Desk,
        ear: Ear,
        sig: signal.Signals,
        *,
        whole_run: bool = False,
        ask: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._killer = killer
        self._desk = desk
        self._ear = ear
        self._signal = sig
        self._whole_run = whole_run
        self._ask = ask
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._requests: list[Request] = []
        self._told: list[Request] = []
        """Those of whom it was said what became of them."""
        self._failed = False

    def run(self, pids: Sequence[int]) -> int:
        """End these; raises UnavailableError where there is no driver to see them by."""
        try:
            self._find(pids)
            ready = [request for request in (self._asked_about(pid) for pid in pids) if request is not None]
            if ready and self._confirmed(ready):
                for request in ready:
                    self._follow(request)
            elif ready:
                self._failed = True
                self._desk.say("nothing was sent")
        except Told:
            self._break_off()
            raise
        finally:
            for request in self._requests:
                request.abandon()
                request.tick()
        return 1 if self._failed else 0

    # What they are

    def _find(self, pids: Sequence[int]) -> None:
        """Wait until the sampler has seen them, or has looked for them everywhere."""
        from gpuwatch.commands.once import first, problem

        self._snapshot = first(self._source, look=_LOOK, check=self._ear.check)
        error = problem(self._snapshot)
        if error is not None:
            raise error
        began = self._clock()
        while (missing := self._missing(pids)) and self._clock() < began + missing:
            self._pump()

    def _missing(self, pids: Sequence[int]) -> float:
        """How many seconds after the first snapshot there may still come what is not known of them; 0 for nothing."""
        from gpuwatch import procfs

        snapshot = self._must()
        listed = {process.pid: process for process in snapshot.processes}
        unlisted = {one.process.pid: one.process for one in snapshot.unlisted}
        patience = 0.0
        for pid in pids:
            try:
                mine = self._killer.policy.may_end in procfs.read_uids(pid)
            except (OSError, ValueError):
                continue  # whatever it is, it is refused
            if not mine:
                continue
            found = listed.get(pid) or unlisted.get(pid)
            searching = 0.0 if pid in listed or (found is None and snapshot.searched) else _SEARCHED
            if found is None:
                patience = max(patience, searching)
            elif self._whole_run and found.surroundings is None:
                patience = max(patience, searching + _AROUND)
        return patience

    def _asked_about(self, pid: int) -> Request | None:
        """Prove what it is and hold on to it; None, with the reason told, where it is not to be ended."""
        from gpuwatch.kill.pinned import Refusal, Refused

        self._ear.check()
        run_of = next((one.target.pid for one in self._requests if pid in _pids(one)), None)
        if run_of is not None:
            self._desk.say(f"PID {pid} is of the run of PID {run_of}")
            return None
        request = self._request(pid)
        self._requests.append(request)
        while request.view.phase.value == "checking":
            request.tick()
        if request.over:
            self._refuse(pid, request.said)
            return None
        if request.unrecorded and not self._ask:
            request.abandon()
            self._refuse(pid, f"{request.unrecorded}; without --yes you are asked whether to go on")
            return None
        if self._signal is signal.SIGINT and request.ignores_interrupt:
            refused = Refused(Refusal.IGNORED, pid, self._signal.name)
            self._turn_down(request, refused, f"{request.notes[0]}; --signal TERM asks it in another way")
            return None
        if self._whole_run and not self._is_placed(pid):
            refused = Refused(Refusal.RUN_UNKNOWN, pid)
            self._turn_down(request, refused, f"{refused.sentence}; without --job it is ended alone")
            return None
        return request

    def _is_placed(self, pid: int) -> bool:
        """Say whether it is known what a process belongs to, be it nothing."""
        snapshot = self._must()
        people = [*snapshot.processes, *(one.process for one in snapshot.unlisted)]
        return any(one.pid == pid and one.surroundings is not None for one in people)

    def _turn_down(self, request: Request, refused: Refused, words: str) -> None:
        """Refuse what was proven, and put that on record."""
        request.abandon()
        self._killer.refuse(request.target, refused)
        self._refuse(request.target.pid, words)

    def _refuse(self, pid: int, why: str) -> None:
        self._failed = True
        self._desk.say(f"PID {pid} is not ended: {why}")

    def _request(self, pid: int) -> Request:
        from gpuwatch.kill.session import Request
        from gpuwatch.kill.target import not_yours, target_of_pid

        snapshot = self._must()
        target, process = target_of_pid(pid, snapshot, self._killer)
        return Request(
            target,
            snapshot,
            self._killer.pin,
            run=call_now,
            problem=self._killer.audit.problem,
            pin_run=(lambda pinned, seen, asked: self._killer.pin_run(pinned, seen, asked=asked))
            if self._whole_run
            else None,
            whole_run=self._whole_run,
            not_yours=not_yours(process, self._killer.policy) if process is not None else "",
            clock=self._clock,
        )

    # The question

    def _confirmed(self, ready: Sequence[Request]) -> bool:
        from gpuwatch.kill.steps import IGNORES_INTERRUPT

        listed = [one for request in ready for one in request.members]
        lines = [line_of(one, self._must(), self._killer.policy.may_end) for one in listed]
        self._desk.put(*table(lines, self._desk.width))
        for words in dict.fromkeys(words for request in ready for words in request.warnings):
            self._desk.say(words)
        for request in ready:
            for words in request.notes:
                if words != IGNORES_INTERRUPT:  # it gets another signal: what ignores SIGINT was refused
                    self._desk.say(f"PID {request.target.pid}: {words}")
        if self._desk.unread:
            return False  # it was to be shown, and nobody saw it
        if not self._ask:
            return True
        what = "this process" if len(listed) == 1 else f"these {len(listed)} processes"
        return self._answered(f"End {what} with {self._signal.name}?") is True

    def _answered(self, question: str, *, about: Request | None = None) -> bool | None:
        """Ask, while samples come in; None where what was asked `about` has moved on by itself."""
        self._desk.question(question)
        phase = about.phase if about is not None else None
        while True:
            answer = self._desk.answer(_LOOK)
            if answer is not None:
                return answer.lower() in ("y", "yes")
            self._pump(0.0)
            if about is not None and about.phase is not phase:
                return None

    # What becomes of them

    def _follow(self, request: Request) -> None:
        """Signal one, or its run, and tell what became of it."""
        from gpuwatch.kill.session import Choice, Phase

        self._ear.check()
        warned = set(request.warnings)
        request.send(self._signal)
        asked, leaves = self._signal, ""
        while not request.over:
            self._pump()
            for words in request.warnings:
                if words not in warned:
                    self._desk.say(words)
                    warned.add(words)
            if request.phase is Phase.ASKING:  # it cannot be recorded any more: that was not what was confirmed
                if self._ask and self._answered("Go on without a record?"):
                    request.send(asked)
                else:
                    request.choose(Choice.CANCEL)
                    leaves = "nothing was sent"
            elif request.phase is Phase.STILL_THERE:
                harder, words = _HARDER[asked], request.view.said
                wish = (
                    self._answered(f"{self._name(request)}: {words}. Send {harder.name}?", about=request)
                    if self._ask
                    else False
                )
                if wish:
                    asked = harder
                    request.send(harder)
                elif wish is False:
                    leaves = f"{words}; left running"
                    if not self._ask:
                        leaves += f"; {self._next(request, harder)}"
                    request.choose(Choice.LEAVE)
        left = request.outcome.left if request.outcome is not None else ()
        self._failed = self._failed or not request.ended or bool(left)
        self._tell(request, leaves or request.said)

    def _tell(self, request: Request, words: str) -> None:
        self._desk.put(f"{self._name(request)}: {words}")
        self._told.append(request)

    def _next(self, request: Request, harder: signal.Signals) -> str:
        """Give the command that ends what is left of it with a harder signal, by a PID that the command takes."""
        pid, again = request.target.pid, ""
        if request.whole_run and request.pinned_run is not None:
            on_gpu = request.pinned_run.on_gpu()
            if not on_gpu:
                return "what is left of it has no GPU open, and gpuwatch ends nothing else"
            pid, again = on_gpu[0], " --job"
        root = " --allow-root-kill" if self._killer.policy.euid == 0 else ""
        return f"next: gpuwatch kill {pid}{again} --signal {harder.name.removeprefix('SIG')}{root}"

    def _break_off(self) -> None:
        """Send nothing more; what was signalled is put on record as it stands, and told as far as it is known."""
        for request in self._requests:
            request.tick()
            request.abandon()
            request.tick()  # what was under way is picked up, and put on record
            if not request.signalled or request in self._told:
                continue
            if request.ended and request.over:
                self._tell(request, request.said)
            elif request.ended and request.outcome is not None:
                self._tell(request, f"{request.outcome.sentence}; what became of its memory was not waited for")
            else:
                self._desk.say(f"{self._name(request)} was signalled, and is left as it is")
        self._desk.say("broken off: nothing more is sent")

    def _name(self, request: Request) -> str:
        if request.whole_run and request.pinned_run is not None:
            return f"run of PID {request.target.pid} ({len(request.pinned_run.members)} processes)"
        return f"PID {request.target.pid}"

    # Samples

    def _pump(self, seconds: float = _LOOK) -> None:
        """Take a snapshot where one comes, and let all that is under way move on."""
        self._ear.check()
        snapshot = self._source.next(seconds)
        if snapshot is not None:
            self._snapshot = snapshot
        for request in self._requests:
            if snapshot is not None:
                request.observe(snapshot)
            request.tick()

    def _must(self) -> Snapshot:
        assert self._snapshot is not None
        return self._snapshot


def _pids(request: Request) -> tuple[int, ...]:
    return tuple(one.pid for one in request.members)
