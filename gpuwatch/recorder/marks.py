"""Marks: what users acknowledged and muted, the same in all gpuwatches of a user on a host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from sqlite3 import Connection
from typing import Final, TypeAlias

from gpuwatch.alerts.alert import NO_ATTENTION, RENAMED, Acknowledgement, Attention, Mute, Severity
from gpuwatch.monitor import Frame
from gpuwatch.recorder.opening import reading
from gpuwatch.recorder.part import Part, RecorderContext
from gpuwatch.recorder.schema import file_state

_MOST_MARKS: Final = 1000
"""Acknowledgements and mutes that are kept, at most: the newest ones."""
Marks: TypeAlias = dict[tuple[str, str, str], Acknowledgement | Mute | None]
"""Acknowledgements and mutes by kind, rule and key; None for one that the user took back."""


def marks_of(attention: Attention) -> Marks:
    acks: Marks = {("ack", "", one.key): one for one in attention.acks}
    return acks | {("mute", one.rule, one.key): one for one in attention.mutes}


def changed_marks(before: Attention, after: Attention) -> Marks:
    old, new = marks_of(before), marks_of(after)
    return {key: new.get(key) for key in (*old, *new) if old.get(key) != new.get(key)}


def with_marks(attention: Attention, change: Marks, now: float) -> Attention:
    """Return acknowledgements and mutes after a change, without expired ones."""
    marks = (marks_of(attention) | change).values()
    return Attention(
        acks=tuple(one for one in marks if isinstance(one, Acknowledgement))[-_MOST_MARKS:],
        mutes=tuple(one for one in marks if isinstance(one, Mute))[-_MOST_MARKS:],
    ).pruned((), now)


def write_marks(connection: Connection, change: Marks, now: float) -> Attention:
    """Apply a change to the stored marks, and return all of them; `now` is the wall-clock time."""
    wanted = with_marks(read_marks(connection), change, now)
    connection.execute("DELETE FROM marks")
    rows: list[tuple[object, ...]] = [("ack", "", one.key, one.at, int(one.severity), None) for one in wanted.acks]
    rows += [("mute", one.rule, one.key, None, None, one.until) for one in wanted.mutes]
    connection.executemany("INSERT INTO marks VALUES (?, ?, ?, ?, ?, ?)", rows)
    return wanted


def read_marks(connection: Connection) -> Attention:
    acks: list[Acknowledgement] = []
    mutes: list[Mute] = []
    asked = "SELECT kind, rule, key, at, severity, until FROM marks ORDER BY rowid"
    for kind, name, known, at, severity, until in connection.execute(asked):
        rule, (of, bar, subject) = RENAMED.get(name, name), known.partition("|")
        key = RENAMED.get(of, of) + bar + subject
        if kind == "ack":
            acks.append(Acknowledgement(key=key, at=at, severity=Severity(severity)))
        else:
            mutes.append(Mute(rule=rule, key=key, until=until))
    return Attention(acks=tuple(acks), mutes=tuple(mutes))


class MarksPart(Part):
    """Part that saves marks, and keeps them the same in all gpuwatches of a user on a host."""

    def __init__(self, context: RecorderContext, attend: Callable[[Attention], object]) -> None:
        super().__init__(context)
        self._attend = attend
        self._frames: deque[tuple[Attention, Attention]] = deque()
        """For each frame its marks, and the marks that were last handed over before it."""
        self._last: Attention | None = None
        """The marks that came last, in the monitor's thread."""
        self._seen = NO_ATTENTION
        """The marks that were compared last."""
        self._attended = NO_ATTENTION
        """The marks that were last handed over and have come back in a frame."""
        self._known = NO_ATTENTION
        """The store's marks, as last read or written."""
        self._state: object = None
        """State of the file that `_known` was read from."""
        self._change: Marks = {}
        """Marks that must be saved."""

    @property
    def waiting(self) -> str:
        return "what you acknowledge or mute applies only to this gpuwatch" if self._change and self.error else ""

    def take(self, frame: Frame) -> bool:
        """Read the marks of a frame; a demo's marks are not saved."""
        if frame.snapshot.demo or frame.attention is self._last:
            return False
        self._last = frame.attention
        self._frames.append((frame.attention, frame.attended))
        return True

    def step(self) -> None:
        """Save the marks that the user changed; where there are none, read those that others have changed."""
        self._compare()
        if not self._is_due("retry"):
            return
        if self._change:
            self._save()
        else:
            self._look()
        self.error = ""

    def finish(self) -> None:
        self._compare()
        if self._change:
            self._save()

    def begin_anew(self) -> None:
        super().begin_anew()
        self._change = marks_of(self._known) | self._change

    def _compare(self) -> None:
        """Find the marks that the user changed from frame to frame, without those that the recorder handed over."""
        while self._frames:
            now, attended = self._frames.popleft()
            before = self._seen if attended is self._attended else attended
            self._change |= changed_marks(before, now)
            self._seen, self._attended = now, attended

    def _look(self) -> None:
        """Read the store's marks, and hand over those that others have changed."""
        state = file_state(self.store.path)
        # A removed file means no change of marks: it is written again with the next change.
        if state is None or state == self._state:
            return
        try:
            with reading(self.store.path) as connection:
                known = read_marks(connection).pruned((), self._wall())
        except FileNotFoundError:
            return
        is_news = known != self._known
        self._known, self._state = known, state
        if is_news:
            self._hand_over(known)

    def _save(self) -> None:
        """Write the user's changes into the store's present marks."""
        if self.store.is_empty:  # the new file lacks the earlier marks
            self._change = marks_of(self._known) | self._change

        def write(connection: Connection) -> None:
            self._known = write_marks(connection, self._change, self._wall())

        self.store.write(write)
        self._state = None  # another gpuwatch may have written since our transaction: it is read again
        self._change = {}
        if changed_marks(self._seen, self._known):
            self._hand_over(self._known)

    def _hand_over(self, attention: Attention) -> None:
        # The user's last change is not in the store yet: without it, the screen would undo the change for a moment.
        self._compare()
        self._attend(with_marks(attention, self._change, self._wall()))
