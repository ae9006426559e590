"""Recordings as commands read them: one snapshot, or events and use in a temporary store."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from gpuwatch.alerts.alert import Alert
from gpuwatch.errors import UsageError
from gpuwatch.minute import MINUTE, Minute
from gpuwatch.model import Snapshot
from gpuwatch.recorder.store import UNWATCHED, Gap, Store, write_events
from gpuwatch.recorder.usage import HOUR, NOBODY, Batch, GpuFacts, Owned, write_usage
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.replay import all_minutes, events_of, gap_limit
from gpuwatch.units import format_moment, long_duration, parse_moment


def open_recording(files: Iterable[str]) -> Recording:
    """Open the recording that some files are together; raises UsageError."""
    return Recording([Path(file) for file in files])


def covered_words(recording: Recording) -> str:
    """Return the span of a recording in words: `2026-11-21 00:00:00 to 2026-11-22 00:00:00`."""
    return f"{format_moment(recording.first)} to {format_moment(recording.last)}"


def parse_at(text: str, recording: Recording) -> float:
    """Parse a clock time of a recording; raises UsageError, also for a time that the recording does not cover."""
    first, last = recording.first, recording.last
    try:
        at = parse_moment(text, first, last, last)
    except ValueError as error:
        raise UsageError(f"--at: {error}") from None
    if not first <= at <= last:
        raise UsageError(f"--at: {format_moment(at)} is not in the recording, which covers {covered_words(recording)}")
    return at


def recorded_snapshot(recording: Recording, at: float) -> tuple[Snapshot, str]:
    """Return the last snapshot up to a time, and a warning where that time is in a gap; raises UsageError."""
    found = after = None
    for snapshot in recording.snapshots(at):
        if found is not None and snapshot.taken > at:
            after = snapshot
            break
        found = snapshot
    if found is None:
        raise UsageError(f"no snapshot of {format_moment(at)} can be read")
    if after is None or at - found.taken < gap_limit(found):
        return found, ""
    span = f"{format_moment(found.taken)} to {format_moment(after.taken)}"
    gap = long_duration(after.taken - found.taken)
    return found, f"nothing was recorded for {gap}, {span}; this is the snapshot before"


# ---------------------------------------------------------------------------------------------------------------
# Events and use


@contextlib.contextmanager
def recorded_store(recording: Recording) -> Iterator[Path]:
    """Context with a temporary store that has the events and the use of a recording."""
    with tempfile.TemporaryDirectory(prefix="gpuwatch-") as folder:
        path = Path(folder) / "recording.sqlite"
        starts: list[float] = []
        events: dict[str, Alert] = {}
        batch = Batch(host=recording.host)
        for minute in all_minutes(recording):
            starts.append(minute.at)
            events |= {alert.id: alert for alert in events_of([minute])}
            _add_use(batch, minute)
        uids = {name: uid for uid, name in batch.users.items()}
        for alert in events.values():
            owners = frozenset(uids[name] for name in alert.owners if name in uids)
            batch.events[alert.id] = Owned(alert, owners, frozenset())
        gaps = [Gap(one + MINUTE, other) for one, other in pairwise(starts) if other - one - MINUTE >= UNWATCHED]
        store = Store(path)
        store.write(lambda connection: write_events(connection, events.values(), gaps, recording.last))
        store.write(lambda connection: write_usage(connection, batch, boot=""))
        yield path


def _add_use(batch: Batch, minute: Minute) -> None:
    hour = int(minute.at // HOUR) * HOUR
    for gpu, name in minute.gpus.items():
        batch.gpus[gpu] = GpuFacts(name.number, name.name, None if name.total is None else int(name.total))
    batch.users |= {uid: name for owner, name in minute.users.items() if (uid := _uid(owner)) is not None}
    for gpu, seconds in minute.watched.items():
        if gpu in batch.gpus:
            batch.watched[hour, gpu] = batch.watched.get((hour, gpu), 0.0) + seconds
    for gpu, uses in minute.use.items():
        for owner, use in uses.items() if gpu in batch.gpus else ():
            uid = _uid(owner)
            if not owner:
                before = batch.by_gpu.get((hour, gpu))
                batch.by_gpu[hour, gpu] = use if before is None else before.plus(use)
            elif uid is not None:
                before = batch.by_user.get((hour, gpu, uid))
                batch.by_user[hour, gpu, uid] = use if before is None else before.plus(use)


def _uid(owner: str) -> int | None:
    """Return the uid of `user:1001`, NOBODY of `user:?`, and None of anything else."""
    number = owner.removeprefix("user:")
    if owner == "user:?":
        return NOBODY
    return int(number) if number.isascii() and number.isdigit() and len(number) < 12 else None
