"""Help screen: keys, marks and terms, on one screen of 160×50."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType

from gpuwatch.model.shares import unread_processes, unread_words
from gpuwatch.ui.draw.keys import BoundKey, key_names
from gpuwatch.ui.draw.sheet import Canvas, Fact, Section, SheetPage
from gpuwatch.ui.draw.theme import Glyphs, StyleSet
from gpuwatch.ui.screens.sheet import Sheet
from gpuwatch.version import __version__

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame

_MOVING: Final = "Moving"
_GROUPS: Final = {
    "Replay": (
        *("replay.play", "replay.back", "replay.minute.back", "replay.event.last", "replay.time", "replay.slower"),
        "replay.step.back",
    ),
    "Processes and GPUs": (
        *("detail", "switch", "follow", "filter", "sort_left", "mine", "end", "find_next", "message", "columns"),
        *("reverse", "clear"),
    ),
    "Screens": ("people", "gpus", "tree", "strays", "hosts", "events", "acknowledge"),
    _MOVING: ("up", "left", "pageup", "first"),
}
_REST = "Everything else"
_PAIRS: Final = {
    "replay.back": ("replay.forward", "Go back or forward 10 s"),
    "replay.minute.back": ("replay.minute.forward", "Go back or forward a minute"),
    "replay.event.last": ("replay.event.next", "Go to the start of the previous or the next event"),
    "replay.slower": ("replay.faster", "Play slower or faster"),
    "replay.step.back": ("replay.step.forward", "Pause, and go back or forward one snapshot"),
    "sort_left": ("sort_right", "Sort by the previous or the next column"),
    "find_next": ("find_before", "Jump to the next or the previous match"),
    "up": ("down", "Move to the process or GPU above or below"),
    "left": ("right", "Move left or right in a heat map"),
    "pageup": ("pagedown", "Move up or down one screen"),
    "first": ("last", "Move to the first or last process or GPU"),
    "quit": ("quit_now", "Quit (^c ^q: from any screen)"),
    "slower": ("faster", "Sample less or more often"),
}
"""Actions that are explained in one line with their opposite."""


class HelpScreen(Sheet):
    """Help, made from the key bindings: keys at the left, marks and terms at the right."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,h,f1", "close", "back", show=False, id="help.close", tooltip="Back to the dashboard"),
    ]

    def __init__(self, keys: Sequence[BoundKey], frame: Frame | None = None, styles: StyleSet | None = None) -> None:
        """Explain `keys`, and what cannot be read in `frame`."""
        super().__init__(styles)
        self._keys = keys
        self._frame = frame

    def make_page(self, canvas: Canvas) -> SheetPage:
        is_replay = any(binding.id.startswith("replay.") for binding in self._keys)
        left = [*key_sections(self._keys), _FILTER]
        right = [*[_REPLAY] * is_replay, *_unread(self._frame), *legend(canvas.styles.glyphs)]
        return SheetPage(f"gpuwatch {__version__} · help", left, right, "all pages: gpuwatch docs")


def _unread(frame: Frame | None) -> list[Section]:
    """Explain why declared shares are missing, and the fix; nothing if none is missing."""
    count = unread_processes(frame.snapshot) if frame else 0
    words = unread_words(count)
    facts = (
        Fact("why", "only owner and root can read an environment"),
        Fact("so", "they may hold too much; left may be less"),
        Fact("fix", "root runs the service: gpuwatch docs admin"),
    )
    return [Section(words[:1].upper() + words[1:], facts)] * bool(count)


def key_sections(keys: Sequence[BoundKey]) -> list[Section]:
    """Return the keys in groups, each with its explanation; opposites share a line."""
    by_id = {one.id: one for one in keys}
    opposites = {other for other, _ in _PAIRS.values()}
    grouped: dict[str, list[Fact]] = {title: [] for title in (*_GROUPS, _REST)}
    for one in by_id.values():
        names, words = key_names(one.key), one.tooltip
        other, both = _PAIRS.get(one.id, ("", ""))
        if other in by_id:
            names, words = f"{names} {key_names(by_id[other].key)}", both
        elif one.id in opposites and any(by_id.get(first) for first, (last, _) in _PAIRS.items() if last == one.id):
            continue
        title = next((title for title, ids in _GROUPS.items() if one.id in ids), _REST)
        if words:
            grouped[title].append(Fact(names, words))
    grouped[_MOVING].append(Fact("mouse", "Click a row or a key; click twice to open"))
    return [Section(title, tuple(facts)) for title, facts in grouped.items() if facts]


def legend(glyphs: Glyphs) -> list[Section]:
    """Explain the marks and the terms, each in one line of half a wide terminal; `docs/terms.md` is made from it."""
    missing, none, least = glyphs.missing, glyphs.none, glyphs.least
    severities = (glyphs.critical, glyphs.warning, glyphs.note)
    marks = (
        Fact(" ".join(severities), "critical: act now; warning: look at it; note: good to know"),
        Fact(glyphs.declared, "the declared limit of an owner who exceeds it"),
        Fact("a e y", "initials of owners whose names do not fit into the bar"),
        Fact(glyphs.hatch, "memory of unknown processes: no listed process holds it"),
        Fact(glyphs.promised, "promised memory, with the name of its owner"),
        Fact("blank", "the memory that is left"),
        Fact("+3", "3 more that do not fit"),
        Fact(f"{glyphs.warning}3:89", "in a heat map: mark, GPU 3, percent of its memory in use"),
        Fact(missing, "not known, never zero; Enter shows the reason"),
        Fact("62/40", "used/declared: holds 62 % of the GPU's memory, declared 40 %"),
        Fact(f"62/{none}  62", f"declared nothing ({none} is none); not known what it declared"),
        Fact("Σ62/80", "sum of all processes under one limit; the others show 12/Σ"),
        Fact(f"{least}5m", "at least: it was so before gpuwatch started"),
        Fact("dimmed", "older than two intervals; stale 14 s: older than five"),
    )
    terms = (
        Fact("free", "memory that a process can still get"),
        Fact("left", "free memory, minus what is promised: what you can take"),
        Fact("promised", "declared or reserved, and not used yet"),
        Fact("reserved", "set aside by `gpuwatch run`"),
        Fact("driver's own", "memory that the driver and the firmware keep for themselves"),
        Fact("declared", "the part of a GPU that a process said it would take"),
        Fact("over declared", "holds more than it declared, by more than the allowance"),
        Fact("overbooked", "more memory is declared on a GPU than it has"),
        Fact("run", "all processes of one launch: launcher, ranks and workers"),
        Fact("stray", "your own abandoned process that still holds memory"),
        Fact("idle", "holds memory, and has run no kernel for that time"),
        Fact("leftover", "its launcher, parent or run has ended; it has a GPU open"),
        Fact(f"{glyphs.ended} ended", "no longer runs, but the driver still lists its memory"),
        Fact("not listed", "has a GPU open, and is not in the driver's list"),
        Fact("SM %", "part of the time in which a kernel ran, not how full it was"),
        Fact("nearly full", "less than 10 % free, critical below 5 %, unless you set it"),
        Fact("near slowdown", "almost so hot that the GPU slows down"),
        Fact("power limit", "at its power limit, which is normal for a busy GPU"),
        Fact("hw/sw thermal", "slowed down by heat; power brake: by the power supply"),
        Fact("acknowledged", "dim, last, and quiet until it ends or gets worse"),
        Fact("2 muted", "2 alerts or rules that are not shown; a shows them again"),
    )
    return [Section("Marks", marks), Section("Terms", terms)]


_REPLAY: Final = Section(
    "In a replay",
    (
        Fact("alerts", "judged by your own settings; events (e) are as recorded"),
        Fact("you, strays", "mean the user who recorded it"),
    ),
)
_FILTER: Final = Section(
    "Filter: processes that match every term",
    (
        Fact("train", "command, user, PID or GPU name contains it"),
        Fact("user:ada,ben", "user contains one of these; mine: your own"),
        Fact("gpu:0-3,5", "on these GPUs; also pid:123, uid:1001"),
        Fact("mem>10GiB", "also rss, idle>30m, age, sm>50, cpu, used>1; >= < <= ="),
        Fact("!train @long", "! or - excludes; @long: saved in [filters]"),
    ),
)
