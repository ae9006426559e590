"""Sampler process: samples every GPU and writes one snapshot a line; the only process that touches NVML.

python -P -m gpuwatch.sampler [--interval S] [--only 0,2] [--skip 5] [--known JSON] [--board FD] [--once]
                                 [--patient] [--again] [--proc DIR] [--reservations DIR] [--shares JSON] [--tmux]
                                 [--no-declared] [--no-events] [--orders]

A GPU is named by its UUID, or by its index as long as it has given none.
It writes one `model.Snapshot` as JSON on a line of stdout each `interval` seconds and reads commands, one JSON object
a line, from stdin: {"interval": 2.0}, {"skip": ["GPU-1b", 5]} (all that is to be left alone, in place of what was),
{"events": true} (in spite of `--no-events`), and {"poke": true} (sample at once). With `--orders` the first line is a
list, the rest of the command line: the parent starts us before it has understood its own. It ends when stdin does. Exit
codes: see `Exit`; each is preceded by a snapshot that says why.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Collection, Sequence
from enum import IntEnum
from pathlib import Path

import msgspec

from gpuwatch import procfs
from gpuwatch.child import ChildProcess, die_with_parent
from gpuwatch.declared.facts import Share
from gpuwatch.inspector.client import DEADLINE, InspectorClient
from gpuwatch.model import Gpu, Health, Place, Presence, Process, Snapshot, SourceState, Unlisted, encode
from gpuwatch.sampler import machine, nvml
from gpuwatch.sampler.declarations import LOOK, Declarations
from gpuwatch.sampler.gpu import Shared
from gpuwatch.sampler.gpus import Gpus, NoSuchGpu
from gpuwatch.sampler.nvml import Calls, Unusable
from gpuwatch.sampler.owners import Owners
from gpuwatch.sampler.reservations import SHARED, Reservations, places
from gpuwatch.sampler.shared_page import Board
from gpuwatch.sampler.unlisted import ONCE, PATIENT, STEP, Judge, Survey, candidates, is_held
from gpuwatch.shares import add_promised
from gpuwatch.text import clean


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """A line on stdin."""

    interval: float | None = None
    skip: tuple[int | str, ...] | None = None
    events: bool = False
    poke: bool = False


class Closed(Exception):
    """Nobody listens any more."""


class Output:
    """Where the lines go: what was stdout. From now on anything the driver's library prints goes to stderr."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def write(self, line: bytes) -> None:
        """Write a whole line; raises Closed."""
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except BrokenPipeError:
            raise Closed from None


class Input:
    """Commands as they come; a half line waits for its other half."""

    def __init__(self) -> None:
        self._buffer = b""
        self._decoder = msgspec.json.Decoder(Command)

    def wait(self, seconds: float, also: Sequence[int] = ()) -> list[Command]:
        """Wait up to so many seconds for commands, or until one of `also` is readable.

        Raises Closed, or msgspec.MsgspecError for what is no command.
        """
        poller = select.poll()  # select(2) knows no descriptor above 1,023
        for descriptor in (0, *also):
            poller.register(descriptor, select.POLLIN)
        if 0 not in (descriptor for descriptor, _ in poller.poll(max(0.0, seconds) * 1000)):
            return []
        chunk = os.read(0, 1 << 16)
        if not chunk:
            raise Closed
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [self._decoder.decode(line) for line in lines if line.strip()]


SHORTEST = 0.05
"""Seconds between two samples, at least; below 0.5 the driver itself has nothing new to tell."""

_PROGRESS = 0.5
"""Seconds after which a round that is not finished shows what it has: each GPU may take 3 s to wake."""


_ROOM = 10 * STEP
"""Seconds that must be left until the next sample for a step of the survey: one takes a little longer than it should,
and where samples come at once there is no time for it."""

_MEMORY = 4 << 30
"""Bytes of address space beyond what is mapped once the driver's library is ready, which knows best what it needs. The
sampler's own figures take some 20 MiB; a thread that looks up a user's name reserves up to 136 (a stack, and an arena
of glibc), and a directory service's modules some hundred. More is a fault, and must not cost the machine its memory."""

_ONCE = 2.0
"""Seconds that a single snapshot waits for what the processes declared."""


class Exit(IntEnum):
    """What the process ends with."""

    DONE = 0
    """stdin or stdout was closed, or `--once` is done."""
    USAGE = 2
    NO_DRIVER = 3
    """The driver could not be asked at the start; a fresh process may find it later."""
    AGAIN = 4
    """The driver below changed while we ran: only a fresh process can see the new one."""
    BUG = 70


class Options(msgspec.Struct, kw_only=True):
    """The command line."""

    interval: float = 1.0
    only: tuple[int | str, ...] = ()
    skip: tuple[int | str, ...] = ()
    known: tuple[Place, ...] = ()
    """The GPUs that an earlier sampler found."""
    board: int = -1
    once: bool = False
    patient: bool = False
    """Whether a single snapshot waits longer for who has the GPUs open without being listed."""
    again: bool = False
    """An earlier sampler found all of `only`: what is not there now has gone."""
    orders: bool = False
    """More of the command line comes on stdin."""
    proc: str = str(procfs.PROC)
    """Another root of /proc, for tests."""
    reservations: str = str(SHARED)
    """Another folder in which all users' reservations are, for tests."""
    shares: tuple[Share, ...] = ()
    """What people agreed on."""
    tmux: bool = False
    """Whether our own tmux is asked for the names of sessions and windows."""
    declared: bool = True
    """Whether to read what processes declared."""
    events: bool = True
    """Whether to take what the driver reports by itself (XIDs); a single snapshot never does."""


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line, which only our own parent writes; raises ValueError. argparse would cost 6 ms."""
    options = Options()
    rest = iter(arguments)
    for flag in rest:
        name = flag.removeprefix("--")
        if name in ("once", "patient", "again", "orders", "tmux"):
            setattr(options, name, True)
        elif name == "interval":
            options.interval = max(SHORTEST, float(next(rest, "")))
        elif name == "board":
            options.board = int(next(rest, ""))
        elif name == "only":
            options.only = _gpus(next(rest, ""))
        elif name == "skip":
            options.skip = _gpus(next(rest, ""))
        elif name == "known":
            options.known = msgspec.json.decode(next(rest, ""), type=tuple[Place, ...])
        elif name == "no-declared":
            options.declared = False
        elif name == "no-events":
            options.events = False
        elif name == "shares":
            options.shares = msgspec.json.decode(next(rest, ""), type=tuple[Share, ...])
        elif name == "proc":
            options.proc = next(rest, "")
        elif name == "reservations":
            options.reservations = next(rest, "")
        else:
            raise ValueError(f"unknown argument {flag}")
    named = {one for one in (*options.only, *options.skip) if isinstance(one, str)}
    if unknown := named - {place.uuid for place in options.known}:
        raise ValueError(f"unknown GPU {min(unknown)}")
    return options


def _gpus(text: str) -> tuple[int | str, ...]:
    return tuple(int(word) if word.isdecimal() else word for word in text.split(",") if word)


def ordered(arguments: Sequence[str]) -> list[str]:
    """Get ready, then wait for the rest of the command line on stdin; raises Closed, or ValueError for what is none."""
    with contextlib.suppress(Unusable):  # it is said when the driver is first asked
        nvml.load()
    line = b""
    while not line.endswith(b"\n"):  # byte by byte: what follows the line are commands
        byte = os.read(0, 1)
        if not byte:
            raise Closed
        line += byte
    return [*arguments, *msgspec.json.decode(line, type=list[str])]


def _doubted(process: Process) -> Process:
    """Return a process that NVML may not mean, though it has the number that NVML lists.

    It may be a zombie or an orphan that holds nothing: so nothing is to be judged by that.
    """
    if process.presence is not Presence.SEEN:
        return process
    user = f"{process.user}?" if process.user else ""
    return msgspec.structs.replace(
        process, presence=Presence.UNSURE, uid=None, user=user, state="", led=None, adopted=False
    )


class Sampler:
    """The loop, and all that it reads."""

    def __init__(self, options: Options, board: Board, output: Output, declarations: Declarations | None) -> None:
        self._options = options
        self._board = board
        self._output = output
        self._proc = Path(options.proc)
        self._owners = Owners(proc=self._proc)
        self._declarations = declarations
        self._survey = Survey(proc=self._proc) if declarations else None
        self._reservations = Reservations(places(Path(options.reservations)), proc=self._proc) if declarations else None
        self._judge = Judge(pid=os.getpid(), parent=os.getppid(), proc=self._proc)
        self._gpus: Gpus | None = None
        self._shared: Shared | None = None
        self._openers: dict[str, tuple[int, ...]] = {}
        """By the key of a GPU: who has it open without being on its list."""
        self._last = Snapshot()
        self._sequence = 0
        self._host = machine.host_name()
        self._state = SourceState.STARTING
        self._since = time.time()
        self._written = self._began = time.monotonic()

    # -- what goes out ---------------------------------------------------------------------------------------------

    def say(self, state: SourceState, words: str = "") -> None:
        """Write a snapshot of what is known now; raises Closed."""
        if state is not self._state:
            self._state, self._since = state, time.time()
        rows = self._gpus.rows() if self._gpus else []
        processes, unlisted = self._people(_listed(rows))
        starts = {process.pid: process.start for process in processes}
        survey, replace = self._survey, msgspec.structs.replace
        self._last = Snapshot(
            host=self._host,
            interval=self._options.interval,
            viewer=os.getuid(),
            driver=self._gpus.driver if self._gpus else "",
            cuda=self._gpus.cuda if self._gpus else "",
            state=state,
            words=words,
            since=self._since,
            confined=procfs.in_pid_namespace(self._proc),
            nvml_calls=self._board.calls,
            listed=self._gpus.listed if self._gpus else 0,
            gpus=tuple(
                replace(
                    row,
                    holdings=tuple(replace(of, start=starts[of.pid]) for of in row.holdings),
                    opened_by=self._openers.get(row.key, ()),
                )
                for row in rows
            ),
            processes=processes,
            unlisted=unlisted,
            searched=survey.ended if survey else 0.0,
            blind=survey.blind if survey else 0,
            hides=survey is not None and survey.hides,
            mps=survey.mps if survey else (),
        )
        self._write()

    def _write(self) -> None:
        self._last = msgspec.structs.replace(
            self._last, sequence=self._sequence, taken=time.time(), monotonic=time.monotonic()
        )
        if self._reservations is not None and self._last.gpus:
            holders = {holding.pid for gpu in self._last.gpus for holding in gpu.holdings}
            self._last = add_promised(self._last, self._reservations.read(holders))
        self._output.write(encode(self._last) + b"\n")
        self._sequence += 1
        self._written = time.monotonic()

    def _people(self, rows: Sequence[Gpu]) -> tuple[tuple[Process, ...], tuple[Unlisted, ...]]:
        """Read the processes that NVML lists, and those that it does not and that have GPUs' files open."""
        listed = {of.pid for row in rows for of in row.holdings}
        sure = not procfs.in_pid_namespace(self._proc) or machine.lists_own_pids(self._proc)
        if self._survey is None or self._gpus is None or not rows:
            return self._annotated(rows, self._named(listed, sure=sure)), ()
        if self._options.once:
            read = self._named(listed, sure=sure)
            self._asked(rows, read)
            # Meanwhile the reader, another process, is at work; where it has nothing to do, the search is waited for.
            held = any(map(is_held, rows))
            self._survey.once(PATIENT if self._options.patient else ONCE if held else STEP)
            others = {one.pid for one in candidates(self._survey.found, listed)}
            read = (*read, *self._owners.read(others)) if sure else read
        else:
            others = {one.pid for one in candidates(self._survey.found, listed)}
            read = self._named(listed | others if sure else listed, sure=sure)
        if not sure:  # one that is not listed by its number here may be listed by that outside
            return self._annotated(rows, read), ()
        people = {one.pid: one for one in read}
        found, count = self._survey.found, self._gpus.listed
        unlisted = self._judge.unlisted(found, people, rows, count)
        self._openers = {row.key: self._judge.openers(found, people, row, count) for row in rows}
        return self._with_unlisted(rows, [one for one in read if one.pid in listed], unlisted)

    def _named(self, pids: Collection[int], *, sure: bool) -> tuple[Process, ...]:
        """Read processes by their PIDs; where NVML is not `sure` to list by those, each may be another."""
        read = self._owners.read(pids)
        return read if sure else tuple(map(_doubted, read))

    def _with_unlisted(
        self, rows: Sequence[Gpu], listed: Sequence[Process], unlisted: Sequence[Unlisted]
    ) -> tuple[tuple[Process, ...], tuple[Unlisted, ...]]:
        """Annotate both; of those that are not listed a single snapshot waits only for what may be left over."""
        asked = [one.process for one in unlisted if one.process.adopted or not self._options.once]
        done = self._annotated(rows, (*listed, *asked))
        around = {one.pid: one.surroundings for one in done[len(listed) :]}
        replace = msgspec.structs.replace
        return done[: len(listed)], tuple(
            # What its environment promises is its parent's: it holds nothing that NVML would count.
            replace(one, process=replace(one.process, declared=None, surroundings=around.get(one.process.pid)))
            for one in unlisted
        )

    def _asked(self, rows: Sequence[Gpu], processes: Sequence[Process]) -> None:
        """Ask about the processes, and wait for nothing."""
        if self._declarations is not None and self._gpus is not None:
            self._declarations.annotate(processes, rows, self._gpus.listed, self._gpus.driver)

    def _annotated(self, rows: Sequence[Gpu], processes: Sequence[Process]) -> tuple[Process, ...]:
        """Add to the processes what they declared, as far as it is known; for a single snapshot, wait for it."""
        if self._declarations is None or self._gpus is None:
            return tuple(processes)
        if self._options.once:
            self._declarations.annotate(processes, rows, self._gpus.listed, self._gpus.driver)
            self._declarations.settle(_ONCE)
        return self._declarations.annotate(processes, rows, self._gpus.listed, self._gpus.driver)

    def _amend(self) -> None:
        """Write the last snapshot again, with the declarations that have come since, where the next is far."""
        last = self._last
        processes, unlisted = self._with_unlisted(_listed(last.gpus), last.processes, last.unlisted)
        self._last = msgspec.structs.replace(last, processes=processes, unlisted=unlisted)
        self._write()

    def _progress(self) -> None:
        """Show the first GPUs when the others take long to wake; later, show those that do not hang on a slow one."""
        since = max(self._began, self._written)  # not only the last: the interval between two rounds is no delay
        if self._options.once or time.monotonic() - since < _PROGRESS:
            return
        starting = self._state is SourceState.STARTING
        self.say(self._state, "waiting for the driver to wake the other GPUs" if starting else "")

    # -- what goes on ----------------------------------------------------------------------------------------------

    def run(self) -> Exit:
        """Sample until nobody listens any more, or the driver is gone."""
        try:
            self._start()
        except Unusable as unusable:
            self.say(unusable.state, unusable.words)
            return Exit.NO_DRIVER
        except NoSuchGpu as missing:
            self.say(SourceState.ENDED, str(missing))
            return Exit.USAGE
        return self._loop()

    def _start(self) -> None:
        """Find the driver and its GPUs; raises Unusable or NoSuchGpu."""
        pynvml = nvml.load()
        nvml.initialise(pynvml, self._board, self._proc)
        machine.limit_memory(_MEMORY)
        options = self._options
        calls = Calls(pynvml, self._board)
        self._shared = Shared(calls, interval=options.interval, proc=self._proc, listens=options.events)
        self._gpus = Gpus(self._shared, options.only, options.skip, options.known, again=options.again)

    def _loop(self) -> Exit:
        assert self._gpus is not None
        commands = Input()
        due = time.monotonic()
        while True:
            try:
                self._gpus.sample(self._progress)
            except Unusable as unusable:
                self.say(unusable.state, unusable.words)
                return Exit.AGAIN
            self.say(SourceState.OK)
            if self._options.once:
                return Exit.DONE
            self._gpus.listen()
            due = max(due + self._options.interval, time.monotonic())  # no burst after a stall
            if self._wait(commands, due):
                due = time.monotonic()
            self._began = time.monotonic()

    def _wait(self, commands: Input, due: float) -> bool:
        """Wait until a sample is due; say whether one is wanted before. Commands are heard even when it is overdue."""
        asking, survey = self._declarations, self._survey
        while True:
            pauses = [due - time.monotonic()]
            if asking and asking.busy:
                pauses.append(LOOK)
            if survey and self._has_room(due):
                pauses.append(survey.wait())
            if self._obey(commands.wait(min(pauses), asking.descriptors if asking else [])):
                return True
            if time.monotonic() >= due:
                return False
            if survey and self._has_room(due):
                survey.step()
            if asking is not None:
                asking.collect()
                if asking.news and not asking.busy and due - time.monotonic() > _PROGRESS:
                    self._amend()

    @staticmethod
    def _has_room(due: float) -> bool:
        """Return whether a step of the survey ends well before the next sample."""
        return due - time.monotonic() > _ROOM

    def _obey(self, commands: Sequence[Command]) -> bool:
        """Do as told; say whether a sample is wanted now."""
        assert self._gpus is not None
        assert self._shared is not None
        for command in commands:
            if command.interval is not None:
                self._options.interval = self._shared.interval = max(SHORTEST, command.interval)
            if command.skip is not None:
                self._gpus.skip(command.skip)
            if command.events:
                self._gpus.resume()
        return any(command.poke or command.interval is not None for command in commands)


def _listed(rows: Sequence[Gpu]) -> list[Gpu]:
    """Leave out the GPUs that the driver no longer lists: the index of each may be another's now."""
    return [row for row in rows if row.health is not Health.MISSING]


def main(arguments: Sequence[str], reader: ChildProcess | None) -> int:
    """Run the sampler and give its exit code; `reader` is the child that reads what processes declared."""
    die_with_parent()
    output = Output()
    try:
        options = parse(arguments)
        if options.orders:
            options = parse(ordered(arguments))
        board = Board.attach(options.board) if options.board >= 0 else Board.private()
    except Closed:
        return Exit.DONE
    except (ValueError, OSError) as wrong:
        words = f"the sampler's arguments: {clean(str(wrong), 200)}"
        return _last_words(output, Exit.USAGE, SourceState.ENDED, words)
    try:
        return Sampler(options, board, output, _declarations(options, reader)).run()
    except Closed:
        return Exit.DONE
    except MemoryError:
        words = f"the sampler ended: it was about to take more than {_MEMORY >> 30} GiB of memory"
        return _last_words(output, Exit.BUG, SourceState.DRIVER_DOWN, words)
    except Exception as bug:  # noqa: BLE001 - whatever it is, it must reach the user and not a closed stderr
        words = f"a fault in gpuwatch's sampler: {type(bug).__name__}: {_said(bug)}"
        return _last_words(output, Exit.BUG, SourceState.DRIVER_DOWN, words)


def _declarations(options: Options, reader: ChildProcess | None) -> Declarations | None:
    if not options.declared:
        return None
    # A single snapshot waits: one process that hangs must not keep the others from being read.
    deadline = _ONCE / 2 if options.once else DEADLINE
    return Declarations(
        InspectorClient(
            proc=Path(options.proc), shares=options.shares, tmux=options.tmux, first=reader, deadline=deadline
        )
    )


def _said(bug: Exception) -> str:
    """Return an exception's text; NVML's own is asked of the driver's library, which may hang."""
    if type(bug).__module__ == "pynvml":
        return f"code {getattr(bug, 'value', '')}"
    return clean(str(bug), 500)


def _last_words(output: Output, code: Exit, state: SourceState, words: str) -> Exit:
    try:
        output.write(encode(Snapshot(state=state, words=words, host=machine.host_name())) + b"\n")
    except Closed:
        return Exit.DONE
    return code
