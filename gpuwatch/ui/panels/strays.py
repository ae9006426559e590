"""The list of strays: a box to tick each off by hand, why it is called one, and what came of ending it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from textual import events
from textual.message import Message

from gpuwatch.analysis.strays import Stray, Sureness
from gpuwatch.model import Snapshot
from gpuwatch.ui.staging import Key, Stage, Staged
from gpuwatch.ui.theme import Glyphs, Kit, Role
from gpuwatch.ui.widgets.lines import CursorList, Line, Pen, blank
from gpuwatch.units import duration, gib, size

WIDE: Final = 100
"""From this width on a line has the command too."""
NARROW: Final = 60
"""From this width on it has the idle time."""
_ROLES: Final[dict[Stage, Role]] = {
    Stage.WAITING: "muted",
    Stage.ENDING: "note",
    Stage.ENDED: "text",
    Stage.LEFT: "warning",
}


def title_line(kit: Kit, width: int) -> Line:
    """Draw the titles of the columns."""
    pen = Pen(kit, "band").gap(6).write("PID", "muted", 8, right=True).write("GPU", "muted", 6, right=True)
    pen.write("GiB", "muted", 7, right=True)
    if width >= NARROW:
        pen.write("idle", "muted", 8 + kit.glyphs.ascii, right=True)
    if width >= WIDE:
        pen.write("age", "muted", 8, right=True)
    pen.gap(2).write("why", "muted", _why_cells(width) if width >= WIDE else None)
    if width >= WIDE:
        pen.gap(2).write("command", "muted")
    return pen.line(width)


def _why_cells(width: int) -> int:
    return (width - 47) * 3 // 5


def stray_line(
    stray: Stray, kit: Kit, width: int, now: float, *, ticked: bool, under_cursor: bool, staged: Staged | None
) -> Line:
    """Draw one stray; once it was staged, what became of it stands in the place of the reasons."""
    pen = Pen(kit, "cursor" if under_cursor else "base").write(kit.glyphs.cursor if under_cursor else "", "strong", 2)
    possible = stray.sure is Sureness.POSSIBLE
    box = "[x]" if ticked else "[ ]" if stray.ends and staged is None and not possible else "   "
    pen.write(box, "strong" if ticked else "muted", 3).gap()
    pen.write(str(stray.process.pid), "muted", 8, right=True)
    pen.write(",".join(map(str, stray.indices)) or kit.glyphs.missing, "text", 6, right=True)
    pen.write(kit.glyphs.missing if stray.held is None else gib(stray.held), "strong", 7, right=True)
    if width >= NARROW:
        pen.write(idle_words(stray, kit.glyphs), "text", 8 + kit.glyphs.ascii, right=True)
    if width >= WIDE:
        began = stray.process.started
        pen.write(kit.glyphs.missing if began is None else duration(now - began), "muted", 8, right=True)
    pen.gap(2)
    words = _words(stray, kit.glyphs) if staged is None else staged.said
    role: Role = ("muted" if possible else "text") if staged is None else _ROLES[staged.stage]
    if width < WIDE or staged is not None:
        return pen.write(words, role, max(0, width - pen.cells)).line(width)
    pen.write(words, role, _why_cells(width)).gap(2)
    command = stray.process.command or f"[{stray.process.name}]"
    return pen.write(command, "muted", max(0, width - pen.cells)).line(width)


def _words(stray: Stray, glyphs: Glyphs) -> str:
    sure = "" if stray.sure is Sureness.CERTAIN else f" ({stray.sure.value})"
    first = stray.why[0] if stray.why else stray.cause.value
    return f"{stray.cause.value}{sure} {glyphs.dot} {first}"


def idle_words(stray: Stray, glyphs: Glyphs) -> str:
    """Print how long it has been idle, as far as that is known."""
    if stray.idle is None:
        return glyphs.missing
    return f"{glyphs.least if stray.idle_at_least else ''}{duration(stray.idle)}"


def about(stray: Stray | None, kit: Kit, width: int, lines: int, staged: Staged | None) -> list[Line]:
    """Draw all that is known of the stray under the cursor, in as many lines as there are."""
    if lines <= 0:
        return []
    drawn = [Pen(kit, "band").line(width)]
    for label, words in _facts(stray, staged) if stray is not None else ():
        pen = Pen(kit).gap(2).write(label, "muted", 10)
        drawn.append(pen.write(words, "text", max(0, width - pen.cells)).line(width))
    return (drawn + [blank(kit, width)] * lines)[:lines]


def _facts(stray: Stray, staged: Staged | None) -> list[tuple[str, str]]:
    process = stray.process
    why = [(("why" if not place else ""), words) for place, words in enumerate(stray.why)]
    if why:
        why[0] = ("why", f"{why[0][1]} ({stray.sure.value})")
    around = process.surroundings
    found = [("command", process.command or process.name), *why, ("in", around.where if around else "")]
    if staged is not None:
        found.insert(1, ("now", staged.said))
    if not stray.listed:
        found.append(("memory", "the driver does not list it: what it holds is among the unattributed memory"))
    return [(label, words) for label, words in found if words]


def total(strays: Collection[Stray], possible: Collection[Stray] = ()) -> str:
    """Say how many they are and what they hold, and how many may be strays: `2 strays · 18.0 GiB · 1 possible`."""
    more = [f"{len(possible)} possible"] * bool(possible)
    if not strays:
        return " · ".join(["no strays", *more])
    known = [one.held for one in strays if one.held is not None]
    least = "at least " * (len(known) < len(strays))
    held = [f"{least}{size(sum(known))}"] * bool(known)
    return " · ".join([f"{len(strays)} stray{'s' * (len(strays) != 1)}", *held, *more])


class StrayList(CursorList):
    """The strays; the cursor follows its process, not the line."""

    class Ticked(Message):
        """The box of the one under the cursor was clicked."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.found: list[Stray] = []

    @property
    def chosen(self) -> Stray | None:
        """The stray under the cursor."""
        return self.found[self.cursor] if self.found else None

    def take(self, found: Sequence[Stray]) -> None:
        """Take other strays."""
        self.found = list(found)
        self._settle([one.key for one in self.found])

    def draw(
        self,
        kit: Kit,
        width: int,
        lines: int,
        seen: Snapshot,
        *,
        ticked: Collection[Key],
        staged: Mapping[Key, Staged],
        below: Sequence[Line] = (),
    ) -> None:
        """Draw as many as there are lines, and as much of what stands `below` them as there is room for."""
        drawn = [
            stray_line(
                self.found[place],
                kit,
                width,
                seen.taken,
                ticked=self.found[place].key in ticked,
                under_cursor=place == self.cursor,
                staged=staged.get(self.found[place].key),
            )
            for place in self._shown(lines)
        ]
        if below:
            drawn = [*drawn, blank(kit, width), *below][:lines]
        self.show(drawn + [blank(kit, width)] * (lines - len(drawn)))

    def on_click(self, event: events.Click) -> None:
        """Choose the stray that was clicked; a click on its box ticks it."""
        place = self.top + event.y
        if place < len(self.found):
            self.move(place - self.cursor)
            if event.x < 6:
                self.post_message(self.Ticked())
