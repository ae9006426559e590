"""`gpuwatch events`: the recorded alerts and how they ended; no GPU is read."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuwatch.alerts.alert import MARKS, RENAMED, Alert, Severity
from gpuwatch.alerts.rules import RULE_NAMES
from gpuwatch.analysis.events import (
    UNFINISHED,
    Events,
    Gap,
    Repeated,
    State,
    fold_repeats,
    lasted_words,
    moment,
    repeat_words,
    value_words,
)
from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import cell_width, clean, fit
from gpuwatch.base.units import NONE, duration, long_duration, ranges
from gpuwatch.commands.console import DIM, RED, YELLOW, Console, TextColumn, format_table
from gpuwatch.commands.flags import add_flags, add_span_flags, parse_indices, parse_span
from gpuwatch.model.values import DAY
from gpuwatch.recorder.events import UNWATCHED, read_all_events
from gpuwatch.recorder.opening import StoreError
from gpuwatch.recorder.public import stores_read
from gpuwatch.recorder.schema import own_store

COLORS: Final = {Severity.CRITICAL: RED, Severity.WARNING: YELLOW, Severity.NOTE: DIM}

_WIDEST: Final = 24
"""Cells of a column that holds names."""
_ALL: Final = 120.0
"""Seconds of a time span that may be unwatched without a note: the store counts by the minute."""
_POLL: Final = 1.0
"""Seconds between two checks of a store with `--follow`."""
_NARROWEST: Final = 24
"""Least cells for the title, whatever the width of the columns before it."""


class EventFilter(msgspec.Struct, frozen=True):
    """Filter of events by what they are about; without any field it takes all."""

    gpus: frozenset[int] = frozenset()
    """GPU indices; empty for all events, also those about no GPU."""
    user: str = ""
    rules: frozenset[str] | None = None

    def __call__(self, alert: Alert) -> bool:
        return (
            (not self.gpus or not self.gpus.isdisjoint(alert.indices))
            and (not self.user or self.user in alert.people)
            and (self.rules is None or alert.rule in self.rules)
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "json", "recording", "demo", "gpu")
    add_span_flags(parser, "24h")
    parser.add_argument("--user", metavar="NAME", default=argparse.SUPPRESS, help="only about this user")
    parser.add_argument("--rule", metavar="NAME", help="only of rules whose name contains this, such as declared")
    parser.add_argument("--file", metavar="FILE", help="read this store instead of your own")
    parser.add_argument("--follow", action="store_true", help="keep printing new events, until Ctrl-C")


def main(
    args: argparse.Namespace,
    _sampler: object = None,
    *,
    wall: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    played: bool = False,
) -> int:
    """Run the command and return its exit code; raises UsageError. The store of a demo was `played`, not recorded."""
    if args.demo:
        from gpuwatch.commands.recorded import on_demo_store

        return on_demo_store(args, partial(main, wall=wall, played=True))
    if args.recording and (args.file or args.follow):
        raise UsageError(f"--recording cannot be used with {'--file' if args.file else '--follow'}")
    if args.until and args.follow:
        raise UsageError("--until cannot be used with --follow")
    gpus = frozenset(parse_indices(args.gpu))
    user = clean(getattr(args, "user", None) or "")
    path = Path(args.file) if args.file else own_store()
    left_out: list[str] = []
    now, covered = wall(), ""
    if args.recording:
        from gpuwatch.commands import recorded  # the rules and more, which the store does without

        recording = recorded.open_recording(args.recording)
        now, covered = recording.last, f"the recording covers {recorded.covered_words(recording)}"
        since, until = parse_span(args, math.inf, now)
        events = recording.events(since)
        notes = recording.notes
    else:
        since, until = parse_span(args, DAY, now)
        events = _read(path, since, given=bool(args.file), warn=left_out.append)
    chosen_by = EventFilter(gpus, user, _rules(args.rule, events))
    last = until if args.until else math.inf  # a clock that ran ahead dated events later than now
    chosen = [alert for alert in events.alerts if alert.raised <= last and chosen_by(alert)]
    console = Console(ascii_only=bool(args.ascii))
    if args.json:
        console.print_json(*(_json(alert, events) for alert in chosen))
    else:
        filtered = bool(gpus or user or args.rule)
        gaps = () if filtered and not chosen else [gap for gap in events.gaps if gap.since <= last]
        rows = events_rows(chosen, events, now, gaps=gaps, each=filtered)
        if rows:
            console.print(*table(rows, width=console.width, color=console.color))
    if covered:
        console.warn(*notes, covered if chosen else f"no matching event; {covered}")
    else:
        console.warn(*left_out, *_words(path, events, chosen, args, now, (since, until), played=played))
    if args.follow:
        _follow(console, path, since, chosen_by, events, args, wall, sleep)
    return 0 if events.exists else 1


def _follow(
    console: Console,
    path: Path,
    since: float,
    chosen_by: EventFilter,
    events: Events,
    args: argparse.Namespace,
    wall: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Print each event again that was recorded or has changed since, until interrupted; raises UsageError."""
    modified = 0
    printed = {alert.id: _progress(alert, events) for alert in events.alerts}
    while True:
        sleep(_POLL)
        if _modified(path) == modified:
            continue
        modified, now = _modified(path), wall()
        events = _read(path, since, given=bool(args.file))
        changed = [one for one in events.alerts if chosen_by(one) and printed.get(one.id) != _progress(one, events)]
        printed.update((alert.id, _progress(alert, events)) for alert in changed)
        if args.json:
            console.print_json(*(_json(alert, events) for alert in changed))
        else:
            rows = events_rows(changed, events, now, each=True)
            console.print(*table(rows, width=console.width, color=console.color)[1:])


def _progress(alert: Alert, events: Events) -> tuple[State, Severity]:
    return events.state(alert), alert.severity


def _modified(path: Path) -> int:
    """Return when a store was last written to; 0 for one that does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _read(path: Path, since: float, *, given: bool, warn: Callable[[str], object] = lambda words: None) -> Events:
    try:
        paths = [path] if given else stores_read(since=since, warn=warn)
        events = read_all_events(paths, since, named=given)
    except StoreError as error:
        raise UsageError(f"--file: {error}; name a store that gpuwatch wrote" if given else str(error)) from None
    if given and not events.exists:
        raise UsageError(f"--file: no such file: {clean(str(path))}")
    return events


def _rules(text: str | None, events: Events) -> frozenset[str] | None:
    """Return the rules whose name is or contains `text`, among gpuwatch's rules and those in the log.

    A dash may stand for each space, as the completions of shells write it.
    """
    if text is None:
        return None
    known = RULE_NAMES | {alert.rule for alert in events.alerts}
    names: dict[str, str] = {name.lower(): name for name in known} | {**RENAMED}
    wanted = text.strip().lower()
    if not any(wanted in name for name in names):
        wanted = wanted.replace("-", " ")
    meant = {names[wanted]} if wanted in names else {names[name] for name in names if wanted and wanted in name}
    if not meant:
        raise UsageError(f"--rule: no rule has {text[:40]!a} in its name; the rules are: {', '.join(sorted(known))}")
    return frozenset(meant)


def _json(alert: Alert, events: Events) -> str:
    fields: dict[str, Any] = msgspec.to_builtins(alert)
    return msgspec.json.encode({**fields, "state": events.state(alert).value}).decode()


def _words(
    path: Path,
    events: Events,
    chosen: Collection[Alert],
    args: argparse.Namespace,
    now: float,
    span: tuple[float, float],
    *,
    played: bool,
) -> Iterable[str]:
    """Yield how much of a span was watched, what could not be read, and whether gpuwatch is running."""
    if not events.exists:
        yield f"nothing was recorded yet ({clean(str(path))}); the dashboard and `gpuwatch watch` record events"
        return
    (since, until), notes = span, []
    if not chosen:
        asked = args.since or args.until
        which = "no matching event" if events.alerts else "no event"
        notes = [f"{which} {'in that time' if asked else 'in the last 24h'}"]
    if events.since is not None and not (args.json and chosen):
        watched, whole = events.watched_seconds(since, until), until - since
        words = f"watched {long_duration(watched)} of {long_duration(whole)}"
        words = "watched the whole time" if whole - watched < _ALL else words
        notes.append(f"{words}, since {moment(events.since, now)}" if events.since >= since + _ALL else words)
    if not (chosen or asked or (events.since or since) > since):
        notes.append("--since 7d goes further back")
    yield from filter(None, ["; ".join(notes)])
    if played:
        return
    if events.damaged:
        count = "1 event is" if events.damaged == 1 else f"{events.damaged} events are"
        yield f"{count} damaged in {clean(str(path))}, and left out"
    if not events.watched and events.watched_until is not None:
        ago = long_duration(max(0.0, now - events.watched_until))
        yield f"gpuwatch is not running; it stopped at {moment(events.watched_until, now)}, {ago} ago"


# ---------------------------------------------------------------------------------------------------------------
# Rows of the table


class EventRow(msgspec.Struct, frozen=True):
    """One event, or a gap in the log, as text for each column."""

    start: str
    """`22:14:03`; with the date when that is not today's."""
    lasted: str
    """Duration: `6m`, `ongoing`, or `≥6m` where no gpuwatch saw the end."""
    mark: str
    """The severity's shape; empty in a gap."""
    severity: str
    """Highest severity that the event had, in a word; empty in a gap."""
    gpu: str
    owners: str
    title: str
    worst: str
    """Worst value and mean: `peak 91 °C, mean 88`; empty without a value."""
    how: str
    """How it ended; empty while it holds."""
    alert: Alert | None = None
    ids: tuple[str, ...] = ()
    """Ids of the events in this row."""


def events_rows(
    alerts: Iterable[Alert], events: Events, now: float, *, gaps: Iterable[Gap] = (), each: bool = False
) -> list[EventRow]:
    """Return the rows of some alerts of `events`, and of gaps, by when they began; `now` is the wall-clock time.

    What was raised again and again is one row, unless `each` alert is asked for.
    """
    folded = map(Repeated, alerts) if each else fold_repeats(alerts)
    rows = [(one.alert.raised, _row(one, events, now)) for one in folded]
    rows += [(gap.since, _gap(gap, now)) for gap in gaps if gap.lost or gap.until - gap.since >= UNWATCHED]
    return [row for _, row in sorted(rows, key=lambda row: row[0])]


def table(rows: Sequence[EventRow], *, width: int | None = None, color: bool = False) -> list[str]:
    """Return a line for each row, after one of headers; `width` (cells) is where lines are cut, None for nowhere.

    Where a line is too long, the title and the columns after it are cut, never the columns before it.
    """
    return format_table(_COLUMNS, rows, width=width, least=_NARROWEST, color=color)


_COLUMNS: Final[tuple[TextColumn[EventRow], ...]] = (
    TextColumn("start", lambda row: row.start),
    TextColumn("for", lambda row: row.lasted),
    TextColumn(
        "  severity",
        lambda row: f"{row.mark or ' '} {row.severity}",
        right=False,
        color=lambda row: DIM if row.alert is None else COLORS[row.alert.most],
    ),
    TextColumn("GPU", lambda row: row.gpu),
    TextColumn("who", lambda row: fit(row.owners, min(_WIDEST, cell_width(row.owners))), right=False),
    TextColumn("what", lambda row: " · ".join(filter(None, (row.title, row.worst, row.how))), right=False),
)


def _row(event: Repeated, events: Events, now: float) -> EventRow:
    alert = event.alert
    state = events.state(alert)
    worst = max(alert.most, alert.severity)
    how = alert.how
    if state is State.OPEN:
        how = UNFINISHED
    elif state is State.ONGOING and worst > alert.severity:
        how = f"{alert.severity.name.lower()} now"
    return EventRow(
        start=moment(alert.raised, now),
        lasted=_lasted(alert, state, events.watched_until),
        mark=MARKS[worst],
        severity=worst.name.lower(),
        gpu=ranges(alert.indices) or NONE,
        owners=", ".join(alert.owners),
        title=alert.title,
        worst=value_words(alert),
        how=repeat_words(event, now, "last") or ("" if how == alert.title else how),
        alert=alert,
        ids=event.ids or (alert.id,),
    )


def _lasted(alert: Alert, state: State, until: float | None) -> str:
    if state is State.ONGOING:
        return State.ONGOING.value
    if state is State.ENDED:
        return lasted_words(alert, 0.0)
    return f"≥{duration(max(alert.lasted, (until or 0.0) - alert.raised))}"


def _gap(gap: Gap, now: float) -> EventRow:
    count = "1 event" if gap.lost == 1 else f"{gap.lost} events"
    title = f"{count} could not be written" if gap.lost else "gpuwatch was not running"
    start, lasted = moment(gap.since, now), duration(gap.until - gap.since)
    return EventRow(start, lasted, "", "gap", "", "", title, "", "")
