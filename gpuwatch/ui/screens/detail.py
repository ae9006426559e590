"""Process detail screen: everything that is known of one process, kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from gpuwatch.analysis.explanation import whereabouts
from gpuwatch.analysis.rows import Row, RowKey, rows
from gpuwatch.analysis.strays import Stray
from gpuwatch.model import Gpu, Health, Presence, Process, Snapshot
from gpuwatch.ui.options import Options
from gpuwatch.ui.screens import facts
from gpuwatch.ui.screens.facts import Fact, Section
from gpuwatch.ui.screens.sheet import Sheet
from gpuwatch.ui.theme import UNICODE, Glyphs
from gpuwatch.ui.view import judged
from gpuwatch.units import long_duration

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame
    from gpuwatch.ui.app import GpuwatchApp


def around_section(process: Process) -> Section:
    """Describe what a process runs in; what does not apply has no line."""
    if process.surroundings is None:
        unseen = process.presence is not Presence.SEEN
        return Section("Runs in", (Fact("not known", "not visible" if unseen else "not read yet", missing=True),))
    found = [
        Fact(one.label, one.value, missing=one.label == "not read", aside=one.aside) for one in whereabouts(process)
    ]
    return Section("Runs in", tuple(found) or (Fact("place", "nothing that could be told", missing=True),))


def stray_section(stray: Stray) -> Section:
    """Describe why a process is called a stray, and how sure that is."""
    first, *rest = stray.why or (stray.cause.value,)
    facts = [Fact("why", first, aside=stray.sure.value), *(Fact("", words) for words in rest)]
    facts.append(Fact("to end it", "S lists all of yours" if stray.ends else "no signal can: it has ended already"))
    return Section("A stray of yours", tuple(facts))


class DetailScreen(Sheet):
    """The detail of a process: what it is, what it holds on each GPU, and the GPU it was chosen on."""

    app: GpuwatchApp

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "close", "back", show=False, id="detail.close", tooltip="Go back to the dashboard"),
        Binding("K,f9", "end_process", "end", id="detail.end", tooltip="End this process, after asking"),
    ]

    def __init__(self, row_key: RowKey, frame: Frame, glyphs: Glyphs = UNICODE, options: Options | None = None) -> None:
        """Show the process of `row_key` as `frame` has it, and from then on as `refresh_frame` is told."""
        super().__init__(glyphs)
        self._options = options or Options()
        self._key = row_key
        self._frame = frame
        self._held: list[Row] = []
        self._seen: Snapshot | None = None
        self._offered: bool | None = None
        """Whether the footer offers to end the process."""

    def on_mount(self) -> None:
        """Show the process at once."""
        super().on_mount()
        self.refresh_frame(self._frame)

    def set_options(self, options: Options) -> None:
        """Judge by other options."""
        self._options = options
        self.refresh_frame(self._frame)

    def refresh_frame(self, frame: Frame) -> None:
        """Show the process as a new frame has it; where the frame lacks it, keep the last values and say so."""
        self._frame = frame
        if not self.ready:
            return
        held = [row for row in rows(frame.snapshot, frame.history) if row.key[1:] == self._key[1:]]
        if held:
            held.sort(key=lambda row: (row.key[0] != self._key[0], row.gpu.index))
            self._held, self._seen = held, frame.snapshot
            left, right = facts.sections(held, frame.snapshot, self._options.allowances)
            left.insert(1, around_section(held[0].process))
            strays = judged(frame, self._options).strays
            stray = next((one for one in strays if one.key == held[0].process.key), None)
            left = [stray_section(stray), *left] if stray is not None else left
            self.show(title(held), left, right)
        missing = _missing(self._held, self._seen, frame.snapshot) if not held else ""
        if not self._held:
            self.show(f"process {self._key[1]}", [], [])
        self.notice(missing, over=not held)
        offered = self.check_action("end_process", ())
        if offered != self._offered:
            self._offered = offered
            # Not with every frame: it makes the footer's keys anew, and Textual 8.2 keeps the old ones in memory.
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to end only a process that is still there."""
        return bool(self._held) and not self.has_class("-over") if action == "end_process" else True

    def action_end_process(self) -> None:
        """Ask whether to end the process."""
        if self._held:
            self.app.ask_to_end(self._held[0].key)


def title(held: list[Row]) -> str:
    """Name a process in a line: `15260 python · ada · GPU 0, 1`."""
    first = held[0]
    gpus = ", ".join(str(row.gpu.index) for row in sorted(held, key=lambda row: row.gpu.index))
    name = first.process.name or "?"
    return f"{first.holding.pid} {name} · {first.owner} · GPU {gpus}"


def _missing(held: list[Row], seen: Snapshot | None, now: Snapshot) -> str:
    """Return why a process is not in a snapshot; no more is known, for the driver lists only those with memory."""
    if seen is None or not held:
        return "This process is on no GPU any more."
    ago = long_duration(now.monotonic - seen.monotonic)
    current = {gpu.key: gpu for gpu in now.gpus}
    if all(_silent(current.get(row.gpu.key)) for row in held):
        return f"Last seen {ago} ago: its GPU does not say now which processes it has."
    return f"Ended, or let go of its GPU memory, {ago} ago. Last known values:"


def _silent(gpu: Gpu | None) -> bool:
    return gpu is None or (gpu.health is not Health.OK and not gpu.holdings)
