"""The environment that a process has now, as far as it can be told from outside.

/proc/PID/environ is what the last execve(2) was given; what the program set later is not in it, but is in the
environment of the children that it has exec'ed, and often in its source. Source: proc_pid_environ(5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from gpuwatch.declared.facts import Facts, Script, Setting, Unread
from gpuwatch.model import Confidence

_UNSURE = (Confidence.STALE, Confidence.GUESS)
"""Of a script that was edited, or a line that came too late: it does not take the place of what is known."""

_WHY = {
    Unread.DENIED: "its environment is not ours to read",
    Unread.OVERWRITTEN: "its environment was overwritten by a title of its own",
    Unread.GONE: "it ended while its environment was read",
    Unread.LONG: "its environment is too long to be read",
    Unread.FAILED: "its environment could not be read",
}


class Environment(NamedTuple):
    """Variables with who set them, and what of it could not be read."""

    settings: Mapping[str, Setting]
    read: bool
    """Whether it is known which variables it was started with. Those of a parent may have been added to."""
    words: str
    """What could not be read and what was read instead; empty where all was read."""


def of(facts: Facts) -> Environment:
    """Merge what a process was started with, what its children show of it, and what its script sets."""
    own = facts.environ
    settings: dict[str, Setting] = {}
    words = ""
    if isinstance(own, Unread):
        words = _WHY[own]
        heir = next((kin for kin in facts.ancestors if not isinstance(kin.environ, Unread)), None)
        if heir is not None and not isinstance(heir.environ, Unread):
            words += f"; that of its parent {heir.pid} was read in its place"
            where = f"environment of parent {heir.pid}"
            settings = {
                name: Setting(value=value, where=where, confidence=Confidence.LIKELY)
                for name, value in heir.environ.items()
            }
    else:
        settings = {name: Setting(value=value) for name, value in own.items()}
    for name, setting in _of_children(facts):
        settings.setdefault(name, setting)
    for name, setting in (one for script in facts.scripts for one in of_script(script)):
        before = settings.get(name)
        if before is None or not (setting.default or setting.confidence in _UNSURE):
            settings[name] = _either(before, setting)
    return Environment(settings, not isinstance(own, Unread), words)


def _either(before: Setting | None, setting: Setting) -> Setting:
    """Give what a script sets; where that may not have run and something else was set, which holds is not known."""
    if before is None or setting.confidence is Confidence.CERTAIN:
        return setting
    return before if before.value == setting.value else replace(setting, value=None)


_WORKER = "from multiprocessing."
"""How the code of a spawned worker begins, which has its parent's variables. Source: multiprocessing/spawn.py."""


def _of_children(facts: Facts) -> Iterable[tuple[str, Setting]]:
    """Give what all children that have exec'ed agree on; a guess if there is one alone, unless it is a worker.

    One may have been given variables of its own: a trainer on GPU 0 starts a server with CUDA_VISIBLE_DEVICES=1.
    """
    environs = [(kin, kin.environ) for kin in facts.children if not isinstance(kin.environ, Unread)]
    if not environs:
        return
    first, values = environs[0]
    inherited = len(environs) > 1 or any(word.startswith(_WORKER) for word in first.argv[1:8])
    sure = Confidence.LIKELY if inherited else Confidence.GUESS
    for name, value in values.items():
        if all(environ.get(name) == value for _, environ in environs):
            yield name, Setting(value=value, where=f"environment of child {first.pid}", confidence=sure)


def of_script(script: Script | None) -> Iterable[tuple[str, Setting]]:
    """Give what a script sets, each no surer than the script itself."""
    if script is None or isinstance(script.scan, Unread):
        return
    for name, setting in script.scan.settings:
        yield name, replace(setting, where=script.path, confidence=surely(setting.confidence, script))


_WEAKEST = (Confidence.CERTAIN, Confidence.LIKELY, Confidence.STALE, Confidence.GUESS)


def weakest(*confidences: Confidence) -> Confidence:
    """Give the least sure of several."""
    return max(confidences, key=_WEAKEST.index)


def surely(confidence: Confidence, script: Script) -> Confidence:
    """Say how sure something in a script is, when the file may not be what runs."""
    file = Confidence.STALE if script.edited else Confidence.LIKELY if script.likely else Confidence.CERTAIN
    return weakest(confidence, file)
