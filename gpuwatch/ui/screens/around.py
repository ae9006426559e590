"""What a process runs in and belongs to, and why it is called a stray, as labelled facts in words."""

from __future__ import annotations

from gpuwatch.analysis.explanation import whereabouts
from gpuwatch.analysis.strays import Stray
from gpuwatch.model import Presence, Process
from gpuwatch.ui.screens.facts import Fact, Section


def around_section(process: Process) -> Section:
    """Tell what a process runs in; what does not apply has no line."""
    if process.surroundings is None:
        unseen = process.presence is not Presence.SEEN
        return Section("Runs in", (Fact("not known", "not visible" if unseen else "not read yet", missing=True),))
    found = [
        Fact(one.label, one.value, missing=one.label == "not read", aside=one.aside) for one in whereabouts(process)
    ]
    return Section("Runs in", tuple(found) or (Fact("place", "nothing that could be told", missing=True),))


def stray_section(stray: Stray) -> Section:
    """Tell why a process is called a stray, and how sure that is."""
    first, *rest = stray.why or (stray.cause.value,)
    facts = [Fact("why", first, aside=stray.sure.value), *(Fact("", words) for words in rest)]
    facts.append(Fact("to end it", "S lists all of yours" if stray.ends else "no signal can: it has ended already"))
    return Section("A stray of yours", tuple(facts))
