"""The holdings of one GPU over time: its lists as last read, what is wrong with them, and what their processes used."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuwatch.model import Holding, Reading, Reason
from gpuwatch.sampler import nvml
from gpuwatch.sampler.holdings import Bounds, Entry, Incomplete, Lists, Window, held, merge, sound, with_use
from gpuwatch.sampler.mig import Instances
from gpuwatch.sampler.nvml import Failed, Handle

COMPUTE, GRAPHICS, MPS = "Compute", "Graphics", "MPSCompute"

_KINDS = {COMPUTE: "C", GRAPHICS: "G", MPS: "M"}

_NOTES = {
    Reason.DENIED: "you may not see this GPU's processes",
    Reason.UNSUPPORTED: "this driver does not list this GPU's processes",
    Reason.ERROR: "the list of processes could not be read",
}
_INCOMPLETE = "list incomplete: it grew faster than it could be read"


class Tenants:
    """The processes on one GPU."""

    def __init__(self, lists: Lists, instances: Instances, excuse: Callable[[Failed], Reason], pid_max: int) -> None:
        """Take the function that gives the reason for a failed call, or raises what concerns the whole GPU."""
        self.holdings: tuple[Holding, ...] = ()
        self._lists = lists
        self._instances = instances
        self._excuse = excuse
        self._pid_max = pid_max
        self._entries: dict[str, list[Entry]] = {}
        self._notes: dict[str, str] = {}
        self._nonsense: set[str] = set()
        self._unsupported: set[str] = set()
        self._window = Window()
        self._use: Window | Reason = self._window

    @property
    def unreliable(self) -> bool:
        """Whether an entry of a list cannot be true."""
        return bool(self._nonsense)

    @property
    def complete(self) -> bool:
        """Whether all holdings are known, so that they may be added up."""
        return not self._notes and not self._nonsense

    @property
    def held(self) -> Reading:
        """Bytes that the holdings take together, or the reason that it is not known."""
        return held(self.holdings) if COMPUTE not in self._notes else Reason.NO_SAMPLE

    def note(self, driver: str) -> str:
        """Say what is wrong with the list; empty where it can be trusted."""
        notes = list(dict.fromkeys(self._notes.values()))
        if self.unreliable:
            notes.insert(0, f"process list unreliable on driver {driver or 'of unknown version'}")
        return "; ".join(notes)

    def read(self, handle: Handle, lists: Iterable[str], total: Reading, *, mig: bool) -> bool:
        """Read some of the lists anew; raises Failed for what concerns the whole GPU.

        The others stay as they were. Says whether one of those has a process that has just left the compute list:
        it is likely to have ended, and that list is out of date.
        """
        before = {entry.pid for entry in self._entries.get(_KINDS[COMPUTE], ())}
        for name in lists:
            self._read_list(name, handle, Bounds(self._pid_max, total), mig=mig)
        self.holdings = tuple(merge(self._entries))
        left = before - {entry.pid for entry in self._entries.get(_KINDS[COMPUTE], ())}
        return any(holding.pid in left for holding in self.holdings)

    def _read_list(self, name: str, handle: Handle, bounds: Bounds, *, mig: bool) -> None:
        if name in self._unsupported:
            return
        kind = _KINDS[name]
        try:
            entries = self._ask(name, handle, mig=mig)
        except Incomplete:  # the last list that fitted is more than nothing
            self._notes[name] = _INCOMPLETE
            return
        except Failed as failed:
            why = self._excuse(failed)
            if why is Reason.UNSUPPORTED:
                self._unsupported.add(name)
            self._entries.pop(kind, None)
            self._nonsense.discard(name)
            # A GPU without graphics or MPS lacks nothing that a reader would miss.
            if name == COMPUTE or why is not Reason.UNSUPPORTED:
                self._notes[name] = _NOTES[why]
            return
        self._notes.pop(name, None)
        self._entries[kind], dropped = sound(entries, bounds)
        if dropped:
            self._nonsense.add(name)
        else:
            self._nonsense.discard(name)

    def _ask(self, name: str, handle: Handle, *, mig: bool) -> list[Entry]:
        try:
            return self._lists.processes(name, handle)
        except Failed as failed:
            if mig and failed.code in nvml.DENIED and len(self._instances):
                return self._instances.processes(name)
            raise

    def read_use(self, handle: Handle, now: int, *, mig: bool) -> None:
        """Add to the holdings what their processes used; `now` is wall-clock µs. Raises as `read` does."""
        since = self._window.since(now)
        if mig:
            self._use = Reason.UNSUPPORTED
        elif self._use is not Reason.UNSUPPORTED and self.holdings:
            self._ask_use(handle, since, now)
        self.holdings = with_use(self.holdings, self._use)

    def _ask_use(self, handle: Handle, since: int, now: int) -> None:
        window = self._window
        try:
            samples = self._lists.utilization(handle, since)
        except Incomplete:
            self._use = Reason.NO_SAMPLE
        except Failed as failed:
            self._use = self._excuse(failed)
        else:
            window.add(samples, since, frozenset(holding.pid for holding in self.holdings), now)
            self._use = window
