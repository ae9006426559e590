"""The sink that keeps what was acknowledged and muted: `attention-HOST.json`, shared by all that a user runs on a host.

Two gpuwatches change it, so neither writes what it believes the whole to be: each applies what its own user changed to
what the file says at that moment, under a lock. What others changed is found within two seconds, and handed over.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatch import files, text
from gpuwatch.alerts.alert import NO_ATTENTION, Acknowledgement, Attention, Mute
from gpuwatch.recorder.events_log import for_host
from gpuwatch.threads import start_thread

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame

SCHEMA: Final = 1
POLL: Final = 2.0
"""Seconds between two looks at the file."""
RETRY: Final = 30.0
"""Seconds after an error."""
PATIENCE: Final = 2.0
"""Seconds that the lock is waited for; a change takes milliseconds, unless a file system hangs."""

_TOLD: Final = 600.0
"""Seconds for which a damaged file is spoken of."""
_LARGEST: Final = 1 << 20
_MOST: Final = 1000
"""Acknowledgements, and mutes, that are kept: the newest."""
_FAR: Final = float(1 << 33)

_Signature = tuple[int, int, int]


class Change(NamedTuple):
    """What somebody changed: by key what is there now, None for what was taken away."""

    acks: dict[str, Acknowledgement | None]
    mutes: dict[tuple[str, str], Mute | None]

    @classmethod
    def between(cls, before: Attention, after: Attention) -> Change:
        """Return what changed from one to the other."""
        old_acks, acks = {one.key: one for one in before.acks}, {one.key: one for one in after.acks}
        old_mutes, mutes = ({(one.rule, one.key): one for one in each.mutes} for each in (before, after))
        return cls(
            {key: acks.get(key) for key in old_acks.keys() | acks.keys() if old_acks.get(key) != acks.get(key)},
            {key: mutes.get(key) for key in old_mutes.keys() | mutes.keys() if old_mutes.get(key) != mutes.get(key)},
        )

    def __bool__(self) -> bool:
        """Return whether anything changed."""
        return bool(self.acks or self.mutes)

    def then(self, later: Change) -> Change:
        """Return both changes as one."""
        return Change({**self.acks, **later.acks}, {**self.mutes, **later.mutes})

    def applied(self, attention: Attention, now: float) -> Attention:
        """Return what it is with the change, less what is out of date."""
        acks = {**{one.key: one for one in attention.acks}, **self.acks}
        mutes = {**{(one.rule, one.key): one for one in attention.mutes}, **self.mutes}
        return Attention(
            acks=tuple([one for one in acks.values() if one is not None][-_MOST:]),
            mutes=tuple([one for one in mutes.values() if one is not None][-_MOST:]),
        ).pruned((), now)


NO_CHANGE: Final = Change({}, {})


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the file."""

    schema: int
    attention: Attention


class _NewerError(Exception):
    """A newer gpuwatch wrote the file."""


class _DamagedError(Exception):
    """The file holds nothing that we understand."""


class AttentionFile:
    """A `watch.Sink` that keeps acknowledgements and mutes over restarts, and the same for all that run."""

    name = "attention"

    def __init__(
        self,
        *,
        attend: Callable[[Attention], object],
        folder: Path | None = None,
        poll: float = POLL,
        retry: float = RETRY,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`attend` is handed what the file says, from the thread of this sink; `folder` stands in for the state folder.

        It is `Monitor.attend`.
        """
        self._attend = attend
        self._folder = folder
        self._file = f"{for_host('attention')}.json"
        self._poll = poll
        self._retry = retry
        self._wall = wall
        self._frames: deque[tuple[Attention, Attention]] = deque()
        """What each frame says now, and what was handed over last before it."""
        self._last: Attention | None = None
        """The last that came, in the watch thread."""
        self._seen = NO_ATTENTION
        """The last that was looked at, in ours."""
        self._attended = NO_ATTENTION
        """The last that was handed over and has come back in a frame."""
        self._known = NO_ATTENTION
        """What the file says, as far as we know."""
        self._signature: _Signature | None = None
        self._change = NO_CHANGE
        """What is to be saved."""
        self._retry_at = 0.0
        self._error = ""
        self._damaged: tuple[str, float] = ("", 0.0)
        self._news = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuwatch-attention", daemon=True)
        self._started = False

    @property
    def trouble(self) -> str:
        """What keeps it from its work, in one line; empty when all is well."""
        if self._error:
            rest = "; what you acknowledged or muted is kept in this gpuwatch alone" if self._change else ""
            return f"attention: {self._error}{rest}"
        words, at = self._damaged
        return f"attention: {words}" if words and time.monotonic() - at < _TOLD else ""

    def start(self) -> None:
        """Start the thread, unless it has been; the first frame does, too."""
        if not self._started:
            start_thread(self._thread)
            self._started = True

    def take(self, frame: Frame) -> None:
        """Take in what is acknowledged and muted now. What is so in a demo is nobody's."""
        if frame.snapshot.demo:
            return
        self.start()
        if frame.attention is not self._last:
            self._last = frame.attention
            self._frames.append((frame.attention, frame.attended))
            self._news.set()

    def close(self, seconds: float) -> None:
        """Save what has changed, and give up after so many seconds."""
        self._closing.set()
        self._news.set()
        if self._started:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._news.clear()
            self._step()
            if not self._closing.is_set():
                self._news.wait(self._poll)
        self._retry_at = 0.0
        self._step()

    def _step(self) -> None:
        self._compare()
        if time.monotonic() < self._retry_at:
            return
        try:
            self._folder = self._folder or _state_folder()
            if self._change:
                self._save(self._folder)
            else:
                self._look(self._folder)
            self._error = ""
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
            self._error = _words(error, self._folder, self._file)
            self._retry_at = time.monotonic() + self._retry

    def _compare(self) -> None:
        """Find out what the user changed from one frame to the next: all but what we handed over ourselves."""
        while self._frames:
            now, attended = self._frames.popleft()
            before = self._seen if attended is self._attended else attended
            self._change = self._change.then(Change.between(before, now))
            self._seen, self._attended = now, attended

    def _look(self, folder: Path) -> None:
        """Hand over what others have changed."""
        signature = _signature(folder / self._file)
        # One that is gone says nothing: it is written again with the next change.
        if signature is None or signature == self._signature:
            return
        try:
            found = self._read(folder)
        except _DamagedError:
            with _locked(folder, self._closing):  # whoever is about to write it may have
                found = self._mended(folder)
        self._known = found.pruned((), self._wall())
        self._signature = signature
        self._hand_over(self._known)

    def _save(self, folder: Path) -> None:
        """Put what the user changed into the file, as it is now."""
        with _locked(folder, self._closing) as opened:
            files.sweep_drafts(opened, self._file)
            before = self._mended(folder)
            wanted = self._change.applied(before, self._wall())
            content = msgspec.json.encode(_File(schema=SCHEMA, attention=wanted))
            files.replace_file(opened, self._file, content + b"\n")
            self._signature = _signature(folder / self._file)
        self._known, self._change = wanted, NO_CHANGE
        if Change.between(self._seen, wanted):
            self._hand_over(wanted)

    def _hand_over(self, attention: Attention) -> None:
        # What the user did a moment ago is not in the file yet: it would be undone on screen until it is.
        self._compare()
        self._attend(self._change.applied(attention, self._wall()))

    def _read(self, folder: Path) -> Attention:
        """Return what the file says.

        where it is gone, what it said last. Raises OSError, _DamagedError, _NewerError.
        """
        try:
            content = _content(folder / self._file)
        except FileNotFoundError:
            return self._known
        return _understood(content)

    def _mended(self, folder: Path) -> Attention:
        """The same with the lock held: one that is damaged is moved away, and written anew from what it said last."""
        try:
            return self._read(folder)
        except _DamagedError:
            kept = f"{self._file}.damaged"
            (folder / self._file).replace(folder / kept)
            words = f"{self._file} was damaged and is kept as {kept}; it is begun anew"
            self._damaged = (text.clean(words, 300), time.monotonic())
            self._change = Change.between(NO_ATTENTION, self._known).then(self._change)
            return self._known


def _state_folder() -> Path:
    from gpuwatch.files import state_folder

    return state_folder()


def _signature(path: Path) -> _Signature | None:
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def _content(path: Path) -> bytes:
    folder = files.open_folder(path.parent)
    try:
        file = files.open_file(folder, path.name, os.O_RDONLY)
    finally:
        os.close(folder)
    with open(file, "rb") as opened:
        return opened.read(_LARGEST + 1)


def _understood(content: bytes) -> Attention:
    """Return what a file says, cleaned and cut; raises _DamagedError, and _NewerError."""
    if len(content) > _LARGEST:
        raise _DamagedError
    try:
        found = msgspec.json.decode(content, type=_File)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _DamagedError from None
    if found.schema > SCHEMA:
        raise _NewerError
    acks = [msgspec.structs.replace(one, key=text.clean(one.key)) for one in found.attention.acks[-_MOST:]]
    mutes = [
        msgspec.structs.replace(one, rule=text.clean(one.rule), key=text.clean(one.key))
        for one in found.attention.mutes[-_MOST:]
    ]
    times = [*(one.at for one in acks), *(one.until for one in mutes if one.until is not None)]
    if not all(0 <= at < _FAR for at in times):
        raise _DamagedError
    return Attention(acks=tuple(acks), mutes=tuple(mutes))


@contextmanager
def _locked(folder: Path, closing: threading.Event) -> Iterator[int]:
    """Lock the lock beside the file and give the open folder; raises OSError where somebody else has it for long."""
    name = f"{for_host('attention')}.lock"
    opened = files.open_folder(folder)
    try:
        lock = files.open_file(opened, name, os.O_RDWR | os.O_CREAT)
        try:
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end or closing.is_set():
                        raise OSError(errno.EAGAIN, f"{name} is held by another program") from None
                    time.sleep(0.02)
            yield opened
        finally:
            os.close(lock)
    finally:
        os.close(opened)


def _words(error: Exception, folder: Path | None, file: str) -> str:
    """Say in a few words what went wrong."""
    if isinstance(error, _NewerError):
        return f"{file} was written by a newer gpuwatch, and is left alone"
    return files.words(error, None if folder is None else folder / file)
