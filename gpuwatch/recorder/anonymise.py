"""Private texts of a recording: command lines are cut to program names, or private texts are replaced by stand-ins.

A stand-in is a hash of the text with a random key that is not stored: the same person has the same stand-in
throughout one run, and nobody can compute it from a name.
"""

from __future__ import annotations

import hashlib
import os
from enum import StrEnum
from typing import Any, Final

import msgspec

from gpuwatch.base import programs
from gpuwatch.model import snapshot as model
from gpuwatch.model.snapshot import Declaration, Process, Snapshot


class Commands(StrEnum):
    """How much of the command lines of processes is recorded."""

    NAMES = "names"
    """The name of the program, without arguments."""
    ALL = "all"
    ANONYMISED = "anonymised"
    """Stand-ins, as for users, hosts, paths, containers and sessions."""


TREATMENTS: Final[dict[type[msgspec.Struct], dict[str, str]]] = {
    Snapshot: {"host": "host", "viewer": "uid", "words": "text"}
    | dict.fromkeys(("gpus", "processes", "unlisted"), "inside"),
    model.Gpu: {"promises": "inside"},
    model.Promise: {"user": "person", "uid": "uid"},
    model.Unlisted: {"process": "inside"},
    Process: {"uid": "uid", "user": "person", "name": "program", "command": "command", "parent": "program"}
    | {"declared": "inside", "context": "inside"},
    model.Declared: {"words": "text", "visible": "inside", "declarations": "inside", "limits": "inside"}
    | {"hints": "inside", "unseen": "text"},
    Declaration: {"where": "place", "text": "text", "scope": "name", "why": "text", "condition": "text"},
    model.Limit: {"scope": "name"},
    model.Visible: {"text": "text", "where": "place", "note": "text"},
    model.Hint: {"words": "text"},
    model.ProcessContext: dict.fromkeys(("container", "pane", "notebook", "run"), "inside")
    | dict.fromkeys(("pod", "slurm", "batch", "ssh", "peer"), "name")
    | {"unit": "unit", "login": "person", "login_uid": "uid", "words": "text"},
    model.Container: {"id": "name", "name": "name"},
    model.Pane: {"session": "name", "window": "name"},
    model.Notebook: {"kernel": "name", "path": "name"},
    model.Run: {"key": "name", "name": "program", "starter": "program"},
}
"""Treatment of each private field; a test names the texts that are kept. A `name` is also a path or an address, a
`text` may quote other texts, a `place` is that of a declaration, and a `unit` is of systemd."""
_SHORT: Final = 2
"""Length up to which an argument reveals nothing: `-n`, `4`."""
_MOST_ARGUMENTS: Final = 1000
"""Arguments of one process that are remembered, at most."""
_COMMAND_LINE: Final = "command line"
_LETTERS: Final = ("bdfghjklmnprstvwz", "aeiou", "bdfghjklmnprstvwz", "aeiou")
_KNOWN: Final = frozenset({"nvidia-cuda-mps-server", "nvidia-cuda-mps-control"}).union(
    *(programs.SHELLS, programs.INITS, programs.CONTAINER_INITS, programs.MANAGERS, programs.MULTIPLEXERS),
    *(programs.LOGINS, programs.USER_SWITCHES, programs.TERMINALS, programs.WRAPPERS, programs.MONITORS),
    *(programs.NOTEBOOK_SERVERS, programs.NOTEBOOK_KERNELS, programs.LAUNCHERS),
)


def program_of(command: str) -> str:
    """Return the name of the program of a command line: of the script, of the module, else of the executable."""
    words = programs.split_command(command)
    return (programs.find_executable(words) or words[0].rpartition("/")[2]) if words else ""


class Anonymiser:
    """Function that removes private texts from snapshots; used from one thread.

    Everything else in a recording is made from the snapshots that it returns.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands, self._key = commands, os.urandom(32)
        self._known: dict[tuple[int, int], tuple[Process, Process, tuple[str, ...]]] = {}
        """By key a process, as it is recorded, and the arguments that no text of it may repeat."""

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot as it is recorded."""
        if self._commands is Commands.ALL:
            return snapshot
        keys = {one.key for one in (*snapshot.processes, *(found.process for found in snapshot.unlisted))}
        self._known = {key: one for key, one in self._known.items() if key in keys}
        recorded: Snapshot = self._inside(snapshot, ())
        return recorded

    def _inside(self, one: Any, arguments: tuple[str, ...]) -> Any:
        """Return a struct, None, or a tuple of structs with each field treated."""
        if one is None or isinstance(one, tuple):
            return one and tuple([self._inside(each, arguments) for each in one])
        known = self._known.get(one.key) if isinstance(one, Process) else None
        if isinstance(one, Process) and (known is None or known[0].command != one.command):
            name, before = program_of(one.command), known[2] if known else ()
            new = [
                word
                for word in programs.split_command(one.command)[1:]
                if len(word) > _SHORT and word.rpartition("/")[2] != name
            ]
            # Its other texts may still quote the command line before.
            known, arguments = None, tuple(dict.fromkeys((*new, *before)))[:_MOST_ARGUMENTS]
        elif known:
            arguments = known[2]
        elif isinstance(one, Declaration) and one.where.startswith(_COMMAND_LINE):
            one = msgspec.structs.replace(one, text=one.channel)  # it may be the command line of a parent
        changes = {}
        for field, treatment in TREATMENTS[type(one)].items():
            value = getattr(one, field)
            if known is not None and value == getattr(known[0], field):
                changes[field] = getattr(known[1], field)
            else:
                changes[field] = self._value(field, value, treatment, arguments)
        recorded = msgspec.structs.replace(one, **changes)
        if isinstance(one, Process):
            self._known[one.key] = (one, recorded, arguments)
        return recorded

    def _value(self, field: str, value: Any, treatment: str, arguments: tuple[str, ...]) -> Any:
        if treatment == "inside":
            return self._inside(value, arguments)
        is_cut = treatment == "command" or (treatment == "program" and " " in str(value))
        is_quoting = treatment in ("text", "name", "place") and any(word in value for word in arguments)
        if value in ("", None, "root") or not (is_cut or is_quoting or self._commands is Commands.ANONYMISED):
            return value
        if treatment == "host":
            return "anonymous"
        if is_cut or treatment == "program":
            value, treatment, field = program_of(value) or value, "program", "program"
            if self._commands is Commands.NAMES or value in _KNOWN or programs.is_python(value):
                return value
        text, mark = (value.removesuffix("?"), "?" * value.endswith("?")) if treatment == "person" else (value, "")
        digest = hashlib.blake2b(
            f"{treatment} {text}".encode("utf-8", "replace"), key=self._key, digest_size=8
        ).digest()
        if treatment == "uid":
            return value if value <= 0 else 10_000_000 + int.from_bytes(digest[:4], "big") // 4
        if treatment == "person":  # pronounceable: `ruka-7c3f`
            letters = (letter[byte % len(letter)] for letter, byte in zip(_LETTERS, digest, strict=False))
            return f"{''.join(letters)}-{digest[4:6].hex()}{mark}" if text else value
        if treatment == "place" and value.startswith(("environment", _COMMAND_LINE)):
            return value
        prefixes = programs.INTERACTIVE_UNITS if treatment == "unit" else ()
        prefix = next((f"{word}-" for word in prefixes if value.startswith(word)), "")
        return f"{prefix}{field}-{digest[:4].hex()}"
