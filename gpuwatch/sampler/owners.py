"""Owners of the processes that NVML lists: reads their users, programs, and use of CPU and memory.

Only these PIDs are read, never all of /proc. Each tick reads the line of `stat` of a process, and the rest of its row
only where that line has changed. The line shows CPU time, state, parent, session, terminal and name, and changes with
each execve(2), since a new program has page faults. Values that it does not show (uid, command line, whether the
session's leader runs, memory that was swapped out) are read every 10 s.
"""

from __future__ import annotations

import os
import pwd
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import cast

import msgspec

from gpuwatch.base import procfs
from gpuwatch.base.errors import NoThreadError
from gpuwatch.base.text import ELLIPSIS, Clean, clean, format_command_line
from gpuwatch.base.threads import Worker
from gpuwatch.model.snapshot import Presence, Process, Reading, Reason, known
from gpuwatch.sampler import machine

TTL = 600.0
"""Seconds after which a name is looked up again; the old name is shown until the new one is there."""


def name_of(uid: int) -> str:
    """Return the name of a user from the system's database; raises KeyError where there is no such user."""
    return pwd.getpwuid(uid).pw_name


class UserNames:
    """Cache of user names by uid, looked up in the background; a name is the uid in digits until it is known."""

    def __init__(
        self, look_up: Callable[[int], str] = name_of, *, ttl: float = TTL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look_up = look_up
        self._ttl = ttl
        self._clock = clock
        self._names: dict[int, tuple[str, float]] = {}
        self._pending: list[int] = []
        """Uids that are looked up, the first one now."""
        self._looked_up = threading.Condition()
        self._worker = Worker("user names", self._look_up_pending)

    def name(self, uid: int) -> str:
        """Return a user's name, cleaned, or the uid in digits; never waits."""
        known = self._names.get(uid)
        if (known is None or self._clock() - known[1] > self._ttl) and uid not in self._pending:
            self._pending.append(uid)
            try:
                self._worker.wake()
            except NoThreadError:  # the next call tries again
                self._pending.remove(uid)
        return known[0] if known else str(uid)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the running look-ups; return whether all are done."""
        with self._looked_up:
            return self._looked_up.wait_for(lambda: not self._pending, seconds)

    @property
    def pending(self) -> int:
        """Number of running look-ups."""
        return len(self._pending)

    def _look_up_pending(self) -> None:
        while self._pending:
            uid = self._pending[0]
            try:
                name = str(clean(self._look_up(uid), 64))
            except Exception:  # noqa: BLE001 - a uid that no user has, or a directory that does not answer
                name = ""
            self._names[uid] = (name or str(uid), self._clock())
            with self._looked_up:
                del self._pending[0]
                self._looked_up.notify()


REFRESH = 10.0
"""Seconds after which facts that rarely change are read again: a process can change its own command line."""

SELDOM = 5.0
"""Seconds after which processes are read again that hold no GPU memory of their own, such as forked workers."""

NAMES_WAIT = 0.02
"""Seconds that a snapshot waits for the names of users that it sees for the first time."""

_LONGEST_COMMAND = 4096
"""Bytes of a command line that are sent; a non-ASCII character has up to four."""

_MOST_READ = 20 << 10
"""Bytes of a command line that are read: the 5,120 characters that are formatted, of four bytes each.
The kernel looks up page by page what was never touched: 64 KiB of it would take as long as all else of a process."""


def terminal(tty: int) -> str:
    """Return the name of a controlling terminal by its device number; empty where there is none.

    Source: devices.txt of the Linux kernel (4: consoles and serial lines, 136 to 143: pseudo-terminals).
    """
    if tty <= 0:
        return ""
    major, minor = (tty >> 8) & 0xFFF, (tty & 0xFF) | ((tty >> 12) & 0xFFF00)
    if 136 <= major <= 143:
        return f"/dev/pts/{(major - 136) * 256 + minor}"
    if major == 4:
        return f"/dev/tty{minor}" if minor < 64 else f"/dev/ttyS{minor - 64}"
    return f"tty {major}:{minor}"


class _Facts(msgspec.Struct):
    """Facts about a process that rarely change, and its last CPU time."""

    start: int
    read_at: float = -inf
    uid: int | None = None
    name: str = ""
    command: str = ""
    parent: str = ""
    started: float | None = None
    leader_alive: bool | None = None
    adopted: bool = False
    start_stack: int = 0
    program: str = ""
    used: int = 0
    """CPU time in ticks at `used_at`."""
    used_at: float | None = None
    stat: procfs.Stat | None = None
    """The last one that was read."""
    changed: bool = True
    """Whether its line has changed in the last reading."""
    row: Process | None = None
    """The last row; None where the facts were read again since."""
    since: float | None = None
    """Seconds between the last two readings of rare changes; None where the descendants were read since."""
    thread: int | None = None
    """A living thread of a process whose first thread has ended."""
    below: Reading = Reason.NO_SAMPLE
    used_below: int | None = None


class Owners:
    """Reader of processes, with a cache of the facts about the processes of the last reading."""

    def __init__(
        self,
        *,
        proc: Path = procfs.PROC,
        users: UserNames | None = None,
        clock: Callable[[], float] = time.monotonic,
        sees_all: bool | None = None,
        viewer: int | None = None,
    ) -> None:
        """`sees_all` is whether /proc shows all processes to us in spite of hidepid. `viewer`: our uid by default."""
        self.users = users or UserNames()
        self._proc = proc
        self._confined = procfs.is_in_pid_namespace(proc)
        self._clock = clock
        self._known: dict[int, _Facts] = {}
        self._lines: dict[int, tuple[bytes, procfs.Stat]] = {}
        """Line of `stat` of each process that was read last, and what was parsed from it."""
        self._sees_all = os.geteuid() == 0 if sees_all is None else sees_all
        self._viewer = os.getuid() if viewer is None else viewer

    def read(self, pids: Iterable[int], seldom: Collection[int] = ()) -> tuple[Process, ...]:
        """Return a row for each PID, in order; a value that cannot be read is missing only in that row.

        The rows of those in `seldom` may be up to `SELDOM` old, unless they were reaped.
        """
        kept: dict[int, _Facts] = {}
        absent: list[Process] = []
        unread: dict[int, _Facts] = {}
        seen: dict[int, tuple[procfs.Stat, _Facts]] = {}
        now = self._clock()
        for pid in sorted(set(pids)):
            facts = self._known.get(pid) if pid in seldom else None
            is_new = facts is not None and facts.used_at is not None and now - facts.used_at < SELDOM
            if facts and facts.row and is_new and os.access(f"{self._proc}/{pid}/stat", os.F_OK):
                kept[pid] = facts
                continue
            stat = self._stat(pid)
            if stat is Presence.UNREADABLE and pid in self._known:
                unread[pid] = self._known[pid]
            elif isinstance(stat, Presence):
                absent.append(Process(pid=pid, presence=stat))
            else:
                seen[pid] = stat, self._facts(pid, stat)
        self._lines = {pid: self._lines[pid] for pid in (*seen, *kept) if pid in self._lines}
        self._known = kept | unread | {pid: facts for pid, (_, facts) in seen.items()}
        self._look_up_users()
        rows = absent + [self._unread(pid, facts) for pid, facts in unread.items()]
        rows += [facts.row for facts in kept.values() if facts.row]
        rows += [self._row(pid, stat, facts) for pid, (stat, facts) in seen.items()]
        return tuple(sorted(rows, key=lambda row: row.pid))

    def _look_up_users(self) -> None:
        """Look up the names of all users seen, and wait briefly for new names, unless a look-up hangs."""
        stuck = self.users.pending > 0
        for uid in {facts.uid for facts in self._known.values()} - {None}:
            self.users.name(cast(int, uid))
        if self.users.pending and not stuck:
            self.users.wait(NAMES_WAIT)

    def _stat(self, pid: int) -> procfs.Stat | Presence:
        """Return the stat of a process, the very same object as before where its line is the same."""
        try:
            line = procfs.read_line(pid, "stat", self._proc)
            before = self._lines.get(pid)
            if before is None or before[0] != line:
                before = self._lines[pid] = line, procfs.parse_stat(line)
            return before[1]
        except procfs.GONE:
            if self._confined:
                return Presence.ELSEWHERE
            return Presence.HIDDEN if self._hides() else Presence.GONE
        except PermissionError:  # hidepid=1: the process exists, and gpuwatch may not read it
            return Presence.HIDDEN
        except (OSError, ValueError):
            return Presence.UNREADABLE

    def _hides(self) -> bool:
        return not self._sees_all and machine.hides_pids(self._proc)

    def _facts(self, pid: int, stat: procfs.Stat) -> _Facts:
        """Return the facts about a process; read them every 10 s, and when its stat shows a change."""
        facts, now = self._known.get(pid), self._clock()
        if facts is not None and stat is facts.stat and now - facts.read_at < REFRESH:
            facts.changed = False
            return facts
        if facts is None or facts.start != stat.start_ticks:
            age = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_ticks / procfs.TICKS
            facts = _Facts(start=stat.start_ticks, started=time.time() - age)
        before, facts.stat, facts.changed = facts.stat, stat, True
        same = before is not None and _rare(stat) == _rare(before)
        if stat.start_stack not in (0, facts.start_stack):  # another program, which may have the same name
            facts.start_stack, same = stat.start_stack, False
        program = stat.program
        if program or not stat.is_ending:  # it has no mark any more
            facts.program = program
        if now - facts.read_at >= REFRESH or not same:
            since = now - facts.read_at
            facts.read_at, facts.row = now, None
            _refresh(pid, stat, facts, self._proc)
            alive = procfs.is_leader_alive(pid, stat, self._proc)
            facts.leader_alive = None if alive is False and self._hides() else alive
            facts.adopted, facts.since = procfs.is_adopted(pid, stat, self._proc), since
        return facts

    def _look_below(self, pid: int, stat: procfs.Stat, facts: _Facts) -> None:
        """Measure the CPU use of the descendants since the last look: a process that waits for them seems idle."""
        since, facts.since = facts.since, None
        if since is None or facts.uid != self._viewer:
            return
        used, before = procfs.read_descendants_cpu(pid, stat.children_cpu, self._proc), facts.used_below
        if before is None or since > 0:
            facts.used_below = used
        if before is not None and since > 0:
            facts.below = round(max(0, used - before) / procfs.TICKS / since * 100, 1)

    def _unread(self, pid: int, facts: _Facts) -> Process:
        """Return the row of a process from the known facts, as for one that cannot be read now."""
        return Process(
            pid=pid,
            start=facts.start,
            presence=Presence.UNREADABLE,
            uid=facts.uid,
            user="" if facts.uid is None else self.users.name(facts.uid),
            name=facts.name,
            command=facts.command,
            ppid=facts.stat.ppid if facts.stat else 0,
            parent=facts.parent,
            session=max(0, facts.stat.session) if facts.stat else 0,
            leader_alive=facts.leader_alive,
            adopted=facts.adopted,
            cpu=Reason.ERROR,
            below=Reason.ERROR,
            rss=Reason.ERROR,
            started=facts.started,
        )

    def _row(self, pid: int, stat: procfs.Stat, facts: _Facts) -> Process:
        """Return the row of a process: the last one where its stat has not changed, and it was idle already."""
        row, user = facts.row, "" if facts.uid is None else self.users.name(facts.uid)
        if row is not None and row.user != user:
            row = None
        if row is not None and not facts.changed and row.cpu == 0 and known(row.rss) and stat.state not in procfs.DEAD:
            facts.used_at = self._clock()
            return row
        self._look_below(pid, stat, facts)
        try:
            rss: Reading = procfs.read_rss(pid, self._proc)
        except (OSError, ValueError):  # it has just ended, or no file descriptor is left
            rss = Reason.ERROR
        if row is None:
            name = facts.name or procfs.format_name(stat.comm)
            row = msgspec.structs.replace(
                self._unread(pid, facts), presence=Presence.SEEN, name=name, terminal=terminal(stat.tty)
            )
        facts.row = msgspec.structs.replace(
            row,
            program=facts.program,
            state=self._state(pid, stat, facts),
            cpu=self._cpu(stat, facts),
            below=facts.below,
            rss=rss,
        )
        return facts.row

    def _state(self, pid: int, stat: procfs.Stat, facts: _Facts) -> str:
        """Return the name of the state; where the first thread has ended, the state of a living thread.

        The kernel calls such a process a zombie, proc_pid_stat(5), though it still computes and holds memory. The
        thread is searched once, and again when it has ended. Empty where it cannot be read.
        """
        state = stat.state
        if state in procfs.DEAD:
            try:
                state = self._thread_state(pid, facts) or state
            except procfs.GONE:
                pass
            except (OSError, ValueError):  # no file descriptor is left: it may go on
                return ""
        return procfs.STATES.get(state, state)

    def _thread_state(self, pid: int, facts: _Facts) -> str:
        """Read the state of a living thread; empty where all have ended. Raises OSError or ValueError."""
        if facts.thread is not None:
            with suppress(*procfs.GONE):
                state = procfs.read_thread(pid, facts.thread, self._proc).state
                if state not in procfs.DEAD:
                    return state
        facts.thread = procfs.find_living_thread(pid, self._proc)
        return "" if facts.thread is None else procfs.read_thread(pid, facts.thread, self._proc).state

    def _cpu(self, stat: procfs.Stat, facts: _Facts) -> Reading:
        """Return the percent of one core used since the last sample."""
        now = self._clock()
        used, since = stat.cpu - facts.used, facts.used_at
        facts.used, facts.used_at = stat.cpu, now
        if since is None or now <= since:
            return Reason.NO_SAMPLE
        return round(max(0, used) / procfs.TICKS / (now - since) * 100, 1)


def _rare(stat: procfs.Stat) -> tuple[object, ...]:
    """Return the values of a stat that rarely change: where one does, all facts are read again."""
    return stat.comm, stat.ppid, stat.session, stat.tty


def _refresh(pid: int, stat: procfs.Stat, facts: _Facts, proc: Path) -> None:
    """Read the facts about a process; a fact that cannot be read keeps its old value."""
    ending = stat.is_ending
    with suppress(OSError, ValueError):
        facts.uid = procfs.read_uids(pid, proc)[0]
    with suppress(OSError):
        command = read_command(pid, proc)
        if command or not ending:  # it has none any more
            facts.command = command
    if not ending or not facts.name:
        facts.name = procfs.read_name(pid, stat, proc)
    facts.parent = ""
    with suppress(OSError, ValueError):
        if stat.ppid > 0:
            facts.parent = procfs.read_name(stat.ppid, procfs.read_stat(stat.ppid, proc), proc)


def read_command(pid: int, proc: Path = procfs.PROC) -> Clean:
    """Read the command line of a process for display; raises OSError (see `procfs.GONE`).

    A title that a program has written over its arguments is one argument that contains spaces.
    """
    words = procfs.read_arguments(pid, proc, _MOST_READ).words
    command = format_command_line(words)
    if len(command) <= _LONGEST_COMMAND // 4 or len(command.encode()) <= _LONGEST_COMMAND:
        return command
    return clean(command.encode()[: _LONGEST_COMMAND - len(ELLIPSIS.encode())].decode("utf-8", "ignore") + ELLIPSIS)
