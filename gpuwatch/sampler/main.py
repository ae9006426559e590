"""Sampler process: samples every GPU and writes one snapshot a line; the only process that touches NVML.

python -P -m gpuwatch.sampler [--no-declared] [OPTIONS]

`protocol.SamplerOptions` come as JSON, in the argument or on the first line of stdin: the parent starts the sampler
before it has read its own command line. Each `interval` the sampler writes a `Snapshot` as JSON on a line of stdout.
Further lines of stdin are each a `protocol.SamplerCommand`. The sampler ends when stdin does; see `protocol.Exit`.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gpuwatch.base import procfs
from gpuwatch.base.child import ChildProcess, die_with_parent
from gpuwatch.base.text import clean
from gpuwatch.inspector.client import DEADLINE, InspectorClient
from gpuwatch.model.live import SERVICE, SharesReader
from gpuwatch.model.shares import add_promised, has_gap
from gpuwatch.model.snapshot import Gpu, Health, Presence, Process, Snapshot, SourceState, Unlisted, encode
from gpuwatch.sampler import machine, nvml
from gpuwatch.sampler.declarations import POLL, DeclarationCache
from gpuwatch.sampler.gpu import Shared
from gpuwatch.sampler.gpus import NoSuchGpu, SampledGpus
from gpuwatch.sampler.nvml import Calls, Unusable
from gpuwatch.sampler.owners import Owners
from gpuwatch.sampler.protocol import SHORTEST, Exit, SamplerCommand, SamplerOptions
from gpuwatch.sampler.reservations import SHARED, ReservationReader, reservation_folders
from gpuwatch.sampler.shared_page import SharedPage
from gpuwatch.sampler.unlisted import (
    LONG,
    ONCE,
    STEP,
    OpenFileSearch,
    candidates,
    find_openers,
    find_unlisted,
    is_held,
)

_PROGRESS = 0.5
"""Seconds after which the GPUs that were sampled so far are published: each may take seconds to wake."""

_SOON = 1.0
"""Seconds for which declarations that were read wait for the next sample, at most, but for the first: each snapshot
costs its readers as much as a sample."""

_ROOM = 10 * STEP
"""Seconds that must remain until the next sample for a step of the search for open device files: a step takes a little
longer than `STEP`, and at very short intervals there is no time for one."""

_MEMORY = 4 << 30
"""Bytes of address space that may be mapped after the driver's library is ready. The sampler's own values take some
20 MiB; a thread that looks up a user's name reserves up to 136 MiB (a stack, and an arena of glibc), and a directory
service's modules some hundred. More is a bug, and must not exhaust the machine's memory."""

_ONCE = 2.0
"""Seconds that a single snapshot waits for the declarations of the processes."""


class Closed(Exception):
    """Error: the parent has closed its end of a pipe."""


class Connection:
    """Connection to the parent: options and commands on stdin, snapshots on stdout."""

    def __init__(self) -> None:
        """Redirect stdout to stderr, since the driver's library may print."""
        sys.stdout.flush()
        self._output = os.dup(1)
        os.dup2(2, 1)
        self._received = bytearray()
        self._decode = msgspec.json.Decoder(SamplerCommand).decode

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot; raises Closed."""
        rest = memoryview(encode(snapshot) + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._output, rest) :]
        except BrokenPipeError:
            raise Closed from None

    def _read(self) -> None:
        chunk = os.read(0, 1 << 16)
        if not chunk:
            raise Closed
        self._received += chunk

    def read_options(self) -> SamplerOptions:
        """Wait for the first line, and return its options; raises Closed, or msgspec.MsgspecError."""
        while b"\n" not in self._received:
            self._read()
        line, _, self._received = self._received.partition(b"\n")
        return msgspec.json.decode(line, type=SamplerOptions)

    def read_commands(self, seconds: float, also: Sequence[int] = ()) -> list[SamplerCommand]:
        """Wait up to `seconds` for commands, or until one of the descriptors `also` is readable.

        Raises Closed, or msgspec.MsgspecError.
        """
        poller = select.poll()  # select(2) knows no descriptor above 1,023
        for descriptor in (0, *also):
            poller.register(descriptor, select.POLLIN)
        pause = 0.0 if b"\n" in self._received else max(0.0, seconds)
        if 0 in (descriptor for descriptor, _ in poller.poll(pause * 1000)):
            self._read()
        end = self._received.rfind(b"\n") + 1
        lines = bytes(self._received[:end]).splitlines()
        del self._received[:end]
        return [self._decode(line) for line in lines if line.strip()]


def _doubted(process: Process) -> Process:
    """Mark a process as uncertain: it has a PID that NVML lists, but NVML may mean another process.

    Its state and its parent are removed, so that it is not judged a zombie or a leftover: it may hold no GPU.
    """
    if process.presence is not Presence.SEEN:
        return process
    user = f"{process.user}?" if process.user else ""
    return replace(process, presence=Presence.UNSURE, uid=None, user=user, state="", leader_alive=None, adopted=False)


class Sampler:
    """Loop that samples the GPUs and their processes."""

    def __init__(
        self, options: SamplerOptions, page: SharedPage, connection: Connection, declarations: DeclarationCache | None
    ) -> None:
        self._options = options
        self._interval = max(SHORTEST, options.interval)
        self._page = page
        self._connection = connection
        self._proc = Path(options.proc)
        self._confined = procfs.is_in_pid_namespace(self._proc)
        self._owners = Owners(proc=self._proc)
        self._host = machine.HostReader(self._proc)
        self._declarations = declarations
        self._search = self._reservations = None
        self._published = None
        if declarations is not None:
            if os.getuid():  # root reads everything itself
                self._published = SharesReader(Path(options.published or SERVICE))
            self._search = OpenFileSearch(proc=self._proc)
            folders = reservation_folders(Path(options.reservations or SHARED))
            self._reservations = ReservationReader(folders, proc=self._proc)
        self._gpus: SampledGpus | None = None
        self._openers: dict[str, tuple[int, ...]] = {}
        """Processes that have a GPU open without being in its list, by the GPU's key."""
        self._last = Snapshot(host=machine.host_name(), state=SourceState.STARTING, since=time.time())
        self._sequence = 0
        self._written_at = self._began_at = time.monotonic()
        self._has_declarations = False
        """Whether declarations were written once."""

    # -- snapshots -------------------------------------------------------------------------------------------------

    def _publish(self, state: SourceState, words: str = "") -> None:
        """Write a snapshot of all values that are known now; raises Closed."""
        rows = self._gpus.rows() if self._gpus else []
        processes, unlisted = self._read_processes([row for row in rows if row.health is not Health.MISSING])
        starts = {process.pid: process.start for process in processes}
        gpus, search = self._gpus, self._search
        self._last = Snapshot(
            host=self._last.host,
            host_usage=self._host.read(),
            interval=self._interval,
            viewer=os.getuid(),
            driver=gpus.driver if gpus else "",
            cuda=gpus.cuda if gpus else "",
            state=state,
            words=words,
            since=self._last.since if state is self._last.state else time.time(),
            confined=self._confined,
            nvml_calls=self._page.calls,
            listed=gpus.listed if gpus else 0,
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
            searched=search.ended_at if search else 0.0,
            unsearched=search.unsearched if search else 0,
            reached=search.cut[0] if search else 0,
            existing=search.cut[1] if search else 0,
            hides=search is not None and search.hides,
            mps=search.mps if search else (),
        )
        self._write()

    def _write(self) -> None:
        self._last = replace(self._last, sequence=self._sequence, taken=time.time(), monotonic=time.monotonic())
        if self._reservations is not None and self._last.gpus:
            holders = {holding.pid for gpu in self._last.gpus for holding in gpu.holdings}
            reserved = self._reservations.read(holders)
            named = [one._replace(user=self._owners.users.name(one.uid)) for one in reserved]
            self._last = add_promised(self._last, named)
        self._connection.write(self._last)
        self._sequence += 1
        self._written_at = time.monotonic()

    def _write_again(self) -> None:
        """Write the last snapshot again, with the declarations that have been read since."""
        last = self._last
        rows = [row for row in last.gpus if row.health is not Health.MISSING]
        processes, unlisted = self._annotate_both(rows, last.processes, last.unlisted)
        self._last = replace(last, processes=processes, unlisted=unlisted)
        self._write()

    def _show_progress(self) -> None:
        """Publish the GPUs sampled so far, where this round takes long."""
        since = max(self._began_at, self._written_at)  # not only the last: the time between two rounds is no delay
        if not self._options.once and time.monotonic() - since >= _PROGRESS:
            starting = self._last.state is SourceState.STARTING
            self._publish(self._last.state, "waiting for the driver to wake the other GPUs" if starting else "")

    # -- processes -------------------------------------------------------------------------------------------------

    def _read_processes(self, rows: Sequence[Gpu]) -> tuple[tuple[Process, ...], tuple[Unlisted, ...]]:
        """Read the processes that NVML lists, and those that have GPUs open without being listed."""
        listed = {holding.pid for row in rows for holding in row.holdings}
        is_sure = not self._confined or machine.lists_own_pids(self._proc)
        # A process that is not listed by its number here may be listed by its number outside of our namespace.
        search = self._search if is_sure and rows and self._gpus else None
        if self._options.once and self._search and rows:
            read = self._read_owners(listed, is_sure=is_sure)
            self._annotate(rows, read)  # the inspector, another process, begins
            is_long = self._options.long_search or any(map(has_gap, rows))
            self._search.run_once(LONG if is_long else ONCE if any(map(is_held, rows)) else STEP, listed)
            if search:
                read = (*read, *self._owners.read({one.pid for one in candidates(search.found, listed)}))
        else:
            others = {one.pid for one in candidates(search.found, listed)} if search else set()
            read = self._read_owners(listed | others, others, is_sure=is_sure)
        if search is None:
            return self._annotate(rows, read, wait=True), ()
        by_pid = {process.pid: process for process in read}
        gone = {pid for pid, one in by_pid.items() if one.presence in (Presence.GONE, Presence.ELSEWHERE)} - listed
        if gone:  # else each sample would look for them again
            search.forget(gone)
        ours = (os.getpid(), os.getppid())
        found = [one for one in search.found if one.pid not in ours]
        unlisted = find_unlisted(found, by_pid, rows)
        self._openers = find_openers(found, by_pid, rows)
        return self._annotate_both(rows, [process for process in read if process.pid in listed], unlisted)

    def _read_owners(
        self, pids: Collection[int], seldom: Collection[int] = (), *, is_sure: bool
    ) -> tuple[Process, ...]:
        read = self._owners.read(pids, seldom)
        return read if is_sure else tuple(map(_doubted, read))

    def _annotate_both(
        self, rows: Sequence[Gpu], listed: Sequence[Process], unlisted: Sequence[Unlisted]
    ) -> tuple[tuple[Process, ...], tuple[Unlisted, ...]]:
        """Add declarations and contexts to both; wait only for unlisted ones that may be leftovers."""
        asked = [one.process for one in unlisted if one.process.adopted or not self._options.once]
        done = self._annotate(rows, (*listed, *asked), wait=True)
        contexts = {process.pid: process.context for process in done[len(listed) :]}
        return done[: len(listed)], tuple(
            # The promises in its environment are its parent's: it holds nothing that NVML would count.
            replace(one, process=replace(one.process, declared=None, context=contexts.get(one.process.pid)))
            for one in unlisted
        )

    def _annotate(
        self, rows: Sequence[Gpu], processes: Sequence[Process], *, wait: bool = False
    ) -> tuple[Process, ...]:
        """Add the declarations and contexts that are known; with `wait` a single snapshot waits for them."""
        declarations, gpus = self._declarations, self._gpus
        if declarations is None or gpus is None:
            return tuple(processes)
        if self._published is not None:
            declarations.published = self._published.read()
        if wait and self._options.once:
            declarations.annotate(processes, rows, gpus.listed, gpus.driver)
            declarations.wait(_ONCE)
        return declarations.annotate(processes, rows, gpus.listed, gpus.driver)

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> Exit:
        """Sample until the parent closes a pipe (Closed), or the driver is gone."""
        options = self._options
        try:
            pynvml = nvml.load()
            nvml.initialise(pynvml, self._page, self._proc)
            machine.limit_memory(_MEMORY)
            calls = Calls(pynvml, self._page)
            shared = Shared(
                calls, interval=self._interval, proc=self._proc, listens=options.events, focus=options.focus
            )
            gpus = self._gpus = SampledGpus(shared, options.only, options.skip, options.known, again=options.again)
        except Unusable as unusable:
            self._publish(unusable.state, unusable.words)
            return Exit.NO_DRIVER
        except NoSuchGpu as missing:
            self._publish(SourceState.ENDED, str(missing))
            return Exit.USAGE
        due = time.monotonic()
        while True:
            try:
                gpus.sample(self._show_progress)
            except Unusable as unusable:
                self._publish(unusable.state, unusable.words)
                return Exit.AGAIN
            self._publish(SourceState.OK)
            if options.once:
                return Exit.DONE
            gpus.listen()
            due = max(due + self._interval, time.monotonic())  # no burst after a stall
            if self._wait(due, lambda command: self._obey(command, gpus, shared)):
                due = time.monotonic()
            self._began_at = time.monotonic()

    def _wait(self, due: float, obey: Callable[[SamplerCommand], bool]) -> bool:
        """Wait until the next sample is due, and carry out commands; return whether one wants a sample before that."""
        declarations, search = self._declarations, self._search
        while True:
            has_room = search is not None and due - time.monotonic() > _ROOM
            pauses = [due - time.monotonic()]
            if declarations and declarations.busy:
                pauses.append(POLL)
            if search and has_room:
                pauses.append(search.pause())
            descriptors = declarations.descriptors if declarations else []
            wanted = [obey(command) for command in self._connection.read_commands(min(pauses), descriptors)]
            if any(wanted):
                return True
            if time.monotonic() >= due:
                return False
            if search and due - time.monotonic() > _ROOM:
                search.step()
            if declarations is not None:
                declarations.collect()
                worth = _SOON if self._has_declarations else _PROGRESS
                if declarations.news and not declarations.busy and due - time.monotonic() > worth:
                    self._has_declarations = True
                    self._write_again()

    def _obey(self, command: SamplerCommand, gpus: SampledGpus, shared: Shared) -> bool:
        """Carry out a command; return whether it wants a sample at once."""
        if command.interval is not None:
            self._interval = shared.interval = max(SHORTEST, command.interval)
        if command.skip is not None:
            gpus.skip(command.skip)
        if command.focus is not None:
            shared.focus = command.focus
        if command.events:
            shared.events.resume()
        return command.poke or command.interval is not None


def main(arguments: Sequence[str], inspector: ChildProcess | None) -> int:
    """Run the sampler and return its exit code."""
    die_with_parent()
    connection = Connection()
    declared = "--no-declared" not in arguments
    given = [word for word in arguments if word != "--no-declared"]
    try:
        if given:
            options = msgspec.json.decode(" ".join(given), type=SamplerOptions)
        else:
            with contextlib.suppress(Unusable):  # the first call to the driver reports it
                nvml.load()
            options = connection.read_options()
        if options.once and inspector is not None:
            inspector.write(b"\n")  # it begins its imports, since this snapshot waits for its answers
        # A single snapshot waits: one process that hangs must not keep the others from being read.
        deadline = _ONCE / 2 if options.once else DEADLINE
        client = InspectorClient(
            proc=Path(options.proc),
            shares=options.shares,
            tmux=options.tmux,
            first=inspector,
            deadline=deadline,
            in_two=options.once,
        )
        cache = DeclarationCache(client) if declared else None
        return Sampler(options, SharedPage(options.page), connection, cache).run()
    except Closed:
        return Exit.DONE
    except MemoryError:
        words = f"the sampler ended: it would have used more than {_MEMORY >> 30} GiB of memory"
    except Exception as bug:  # noqa: BLE001 - any error must reach the user, and stderr may be closed
        # The text of NVML's own errors is asked of the driver's library, which may hang.
        said = f"code {getattr(bug, 'value', '')}" if type(bug).__module__ == "pynvml" else clean(str(bug), 500)
        words = f"a fault in gpuwatch's sampler: {type(bug).__name__}: {said}"
    try:
        connection.write(Snapshot(state=SourceState.DRIVER_DOWN, words=words, host=machine.host_name()))
    except Closed:
        return Exit.DONE
    return Exit.BUG
