"""Help screen: keys, marks and words, and gpuwatch's own resource use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from gpuwatch.shares import unread_processes, unread_words
from gpuwatch.ui.bindings import key_names
from gpuwatch.ui.screens.sheet import Fact, Section, Sheet
from gpuwatch.ui.theme import Glyphs, StyleSet
from gpuwatch.units import size
from gpuwatch.version import __version__

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame

_GROUPS = {
    "Replay": (
        *("replay.play", "replay.back", "replay.forward", "replay.minute.back", "replay.minute.forward"),
        *("replay.event.last", "replay.event.next", "replay.time", "replay.slower", "replay.faster"),
        *("replay.step.back", "replay.step.forward"),
    ),
    "Processes and GPUs": (
        *("detail", "switch", "follow", "filter", "find_next", "find_before", "clear", "mine"),
        *("sort_left", "sort_right", "reverse", "columns", "end", "message"),
    ),
    "Who and what": ("people", "gpus", "tree", "strays"),
    "Alerts": ("events", "acknowledge"),
    "Moving": ("up", "down", "left", "right", "pageup", "pagedown", "first", "last"),
}
_REST = "Everything else"


class HelpScreen(Sheet):
    """Help, made from the key bindings."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,h,f1", "close", "back", show=False, id="help.close", tooltip="Back to the dashboard"),
    ]

    def __init__(self, keys: Sequence[Binding], frame: Frame | None = None, styles: StyleSet | None = None) -> None:
        """Explain `keys`; `frame` has the number of NVML calls."""
        super().__init__(styles)
        self._keys = keys
        self._frame = frame

    def on_mount(self) -> None:
        super().on_mount()
        self.refresh_frame(self._frame)

    def refresh_frame(self, frame: Frame | None) -> None:
        """Update gpuwatch's own resource use; the rest of the help stays."""
        self._frame = frame
        if self.ready:
            calls = frame.snapshot.nvml_calls if frame else 0
            costs = Section("gpuwatch itself", cost(calls))
            left = [*key_sections(self._keys), _FILTER, costs]
            right = [*_unread(frame), *legend(self.style_set.glyphs), _GRAPHS, _MORE]
            if any((one.id or "").startswith("replay.") for one in self._keys):
                right.insert(0, _REPLAY)
            self.show(f"gpuwatch {__version__} · help", left, right)


def _unread(frame: Frame | None) -> list[Section]:
    """Say why declared shares are missing, and what mends it; nothing where none is."""
    count = unread_processes(frame.snapshot) if frame else 0
    facts = (
        Fact("why", f"{unread_words(count)}: Linux shows the environment of a process to its owner and to root alone"),
        Fact("so", "their share is blank, their overshoots are not seen, and what is left may be less"),
        Fact("mend", "`sudo gpuwatch`, or once for everybody: `gpuwatch watch` as root"),
    )
    return [Section("Shares that are not readable", facts)] * bool(count)


def key_sections(keys: Sequence[Binding]) -> list[Section]:
    """Return the keys in groups, each with its explanation."""
    grouped: dict[str, list[Fact]] = {title: [] for title in (*_GROUPS, _REST)}
    for one in keys:
        title = next((title for title, ids in _GROUPS.items() if one.id in ids), _REST)
        if not one.system and (one.description or one.tooltip):
            grouped[title].append(Fact(key_names(one.key), one.tooltip or one.description))
    return [Section(title, tuple(facts)) for title, facts in grouped.items() if facts]


def legend(glyphs: Glyphs) -> list[Section]:
    """Explain the marks and the words of the dashboard."""
    missing, least = glyphs.missing, glyphs.least
    marks = (
        Fact(glyphs.critical, "critical: act now"),
        Fact(glyphs.warning, "warning: look at it"),
        Fact(glyphs.note, "note: good to know"),
        Fact("memory bar", "all of the GPU's memory; a colour and a name or initial for each owner"),
        Fact(glyphs.declared, "where an owner's part would end if each process held what it declared"),
        Fact(glyphs.hatch, "memory of unknown processes: in use, and held by no listed process"),
        Fact(glyphs.promised, "promised memory: declared or reserved by `gpuwatch run`, and not used yet"),
        Fact("blank", "memory that is left"),
        Fact("+3", "3 more (owners in a bar, alerts behind words) for which there is no room"),
        Fact(
            f"3{glyphs.warning}89",
            "a GPU in a heat map (many GPUs or a small window): index, mark, percent of memory in use",
        ),
        Fact(missing, "not known, never zero; Enter gives the reason"),
        Fact("62/40", "uses 62 % of the GPU's memory, limit 40 %; with a mark: uses much more than declared"),
        Fact(f"62/{missing}", "declared no limit"),
        Fact("62", "its limit is not known: not readable, or known only at run time"),
        Fact("Σ62/80", "several processes have one limit: their sum, beside the oldest; the others have 12/Σ"),
        Fact(f"{least} 5m", "idle for at least 5 min: it was idle already when gpuwatch started"),
    )
    words = (
        Fact("holding", "the memory of one process on one GPU"),
        Fact("processes", "those that the driver lists, each counted once"),
        Fact("rows", "holdings: a process has one for each of its GPUs"),
        Fact("free", "memory that a process can still get, without the driver's own reserve"),
        Fact("left", "free memory without what is promised: what you can take (`gpuwatch pick`)"),
        Fact("promised", "declared or reserved by `gpuwatch run`, but not used yet; others count on it"),
        Fact("used/limit %", "memory held and limit declared, both in percent of the GPU's memory"),
        Fact("overbooked", "more is declared on a GPU than it has"),
        Fact("runs in", "container, pod, batch job, notebook, systemd unit or terminal of a process"),
        Fact("run", "all processes that one launch started: launcher, ranks and workers"),
        Fact("stray", "your own process that nobody attends to and that still holds memory; Enter says why"),
        Fact("leftover", "its launcher, parent or run has ended, and it still has a GPU open"),
        Fact("dead process", "a process that has ended; the driver still lists its memory"),
        Fact("unlisted", "has a GPU open, and the driver does not list it"),
        Fact("SM %", "share of the time in which a kernel ran, not how full the GPU was"),
        Fact("memory busy", "share of the time in which memory was read or written"),
        Fact("near limit", "under 10 % free a warning, under 5 % critical, unless set otherwise"),
        Fact("near slowdown", "nearly as hot as where the GPU slows itself down"),
        Fact("XID 79", "an error that the driver reported; the alert says what the code means"),
        Fact("acknowledged", "dim, last in the list, quiet until it ends or gets worse; a undoes it"),
        Fact("2 muted", "alerts and rules that are not shown; a unmutes them"),
        Fact("power cap", "at its power limit, as a busy GPU mostly is"),
        Fact("hw/sw thermal", "too hot, and slowed down for it"),
        Fact("power brake", "slowed down from outside: short of power or cooling"),
        Fact("dimmed", "older than two intervals"),
        Fact("stale 14 s", "the driver has not answered for 14 s (shown after five intervals)"),
    )
    return [Section("Marks", marks), Section("Words", words)]


_REPLAY = Section(
    "In a replay",
    (
        Fact("alerts", "judged by your limits; the events (e) are those that were recorded"),
        Fact("you, strays", "of the user who recorded it"),
    ),
)
_FILTER = Section(
    "Filter: processes that match every term",
    (
        Fact("user:ada,ben", "the user's name has one of these in it, or this is the uid"),
        Fact("uid:1001", "of this uid"),
        Fact("gpu:0-3,5", "on one of these GPUs"),
        Fact("pid:123", "this process"),
        Fact("mine", "your own"),
        Fact("train", "the command, user, PID or GPU name has this in it"),
        Fact("mem>10GiB", "holds more than 10 GiB; rss: host memory; also with >= < <= and ="),
        Fact("idle>30m", "idle for more than 30 min; age: time since its start"),
        Fact("sm>50", "SM %; cpu: CPU %"),
        Fact("share>1", "memory held / limit declared"),
        Fact("!train -mine", "! or - before any term excludes what matches"),
        Fact("@long", "the filter called long in [filters] of gpuwatch.toml; Tab offers them"),
        Fact("rule:uses", "only in the list of events: the rule's name has this in it"),
        Fact("n N", "after / and Esc: from match to match, with all processes in sight"),
    ),
)
_GRAPHS = Section(
    "Graphs: Enter on a GPU or a process",
    (
        Fact("1 to 5", "the last 1 min, 10 min, 1 h, 6 h or 24 h"),
        Fact("← → mouse", "the values at one time, in the legend; Esc shows the newest again"),
        Fact("empty", "not measured, or not known; never zero"),
        Fact("dashed line", "a limit; in the memory of a GPU, where an owner's part would end by what it declared"),
        Fact("●▲·", "on the time axis: an alert was raised, or (clocks) the GPU was slowed down"),
    ),
)
_MORE = Section(
    "More",
    (
        Fact(":", "every command by name"),
        Fact("a click", "on a GPU or a process: chooses it, and a second click shows all that is known of it"),
        Fact("", "on an alert: its process, or the processes of its GPU; so does Enter in e"),
        Fact("gpuwatch --help", "all options and commands"),
        Fact("gpuwatch docs", "the guide: what each figure means and where it comes from"),
    ),
)


def cost(nvml_calls: int, proc: Path = Path("/proc/self")) -> tuple[Fact, ...]:
    """Return the memory, threads and open files of the dashboard's process, and the sampler's NVML calls."""
    found = []
    try:
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
        found.append(Fact("memory", f"{size(int(status['VmRSS'].split()[0]) * 1024)} in the dashboard's process"))
        found.append(Fact("threads", status["Threads"].strip()))
        found.append(Fact("open files", str(sum(1 for _ in (proc / "fd").iterdir()))))
    except (OSError, KeyError, ValueError, IndexError) as error:
        found.append(Fact("this process", f"cannot be read: {error}", missing=True))
    found.append(Fact("NVML calls", f"{nvml_calls} by the sampler so far, none by the dashboard"))
    return tuple(found)
