"""Private texts of a recording: command lines are cut to program names, or all that tells of people gets stand-ins.

One table has the treatment of each text of a snapshot. A stand-in is made of the text by a hash with a random key that
is stored nowhere: the same person has the same stand-in throughout one run, and nobody can compute it from a name.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from gpuwatch import model, programs
from gpuwatch.model import Declaration, Process, Snapshot

S = TypeVar("S", bound=msgspec.Struct)


class Commands(StrEnum):
    """How much of the command lines of processes is recorded."""

    NAMES = "names"
    """The name of the program, without arguments."""
    ALL = "all"
    ANONYMISED = "anonymised"
    """Stand-ins, as for users, hosts, paths, containers and sessions."""


class Treatment(Enum):
    """Treatment of one field."""

    KEEP = auto()
    """A word of the driver or of gpuwatch, or a number."""
    PERSON = auto()
    UID = auto()
    HOST = auto()
    PROGRAM = auto()
    """Name of a program, or a title, which is cut to it. Names that gpuwatch knows, such as `bash`, are kept."""
    COMMAND = auto()
    """Command line: by default cut to the name of its program."""
    NAME = auto()
    """Name or path that people chose, or an address."""
    UNIT = auto()
    """Systemd unit; the prefix that marks an interactive one is kept."""
    PLACE = auto()
    """Place of a declaration: `environment`, `command line`, or the path of a file."""
    TEXT = auto()
    """Sentence or source text, which may quote other texts."""


_Table: TypeAlias = Mapping[str, Treatment]
_T: Final = Treatment

TREATMENTS: Final[Mapping[type[msgspec.Struct], _Table]] = {
    Snapshot: {
        "host": _T.HOST,
        "viewer": _T.UID,
        "driver": _T.KEEP,
        "cuda": _T.KEEP,
        "words": _T.TEXT,
    },
    model.Gpu: {
        **dict.fromkeys(("uuid", "name", "bus_id", "compute_mode", "throttle", "pcie_link"), _T.KEEP),
        # The driver's errors, by code and call.
        **dict.fromkeys(("words", "holdings_note"), _T.KEEP),
    },
    model.Instance: dict.fromkeys(("uuid", "name"), _T.KEEP),
    model.Holding: {"kind": _T.KEEP},
    Process: {
        "uid": _T.UID,
        "user": _T.PERSON,
        "name": _T.PROGRAM,
        "command": _T.COMMAND,
        "program": _T.KEEP,
        "state": _T.KEEP,
        "parent": _T.PROGRAM,
        "terminal": _T.KEEP,
    },
    model.Unlisted: {"gpus": _T.KEEP},
    model.Declared: {"words": _T.TEXT, "frameworks": _T.KEEP},
    Declaration: {
        "channel": _T.KEEP,
        "where": _T.PLACE,
        "text": _T.TEXT,
        "framework": _T.KEEP,
        "limits": _T.KEEP,
        "scope": _T.NAME,
        "why": _T.TEXT,
        "condition": _T.TEXT,
    },
    model.Limit: {"gpu": _T.KEEP, "scope": _T.NAME},
    model.Visible: {"gpus": _T.KEEP, "text": _T.TEXT, "where": _T.PLACE, "note": _T.TEXT},
    model.Hint: {"rule": _T.KEEP, "words": _T.TEXT},
    model.Surroundings: {
        **dict.fromkeys(("pod", "slurm", "batch", "ssh", "peer"), _T.NAME),
        "unit": _T.UNIT,
        "login": _T.PERSON,
        "login_uid": _T.UID,
        "server": _T.KEEP,
        "words": _T.TEXT,
    },
    model.Container: {"runtime": _T.KEEP, "id": _T.NAME, "name": _T.NAME},
    model.Pane: {"program": _T.KEEP, "session": _T.NAME, "window": _T.NAME},
    model.Notebook: {"kernel": _T.NAME, "path": _T.NAME},
    model.Job: {"key": _T.NAME, "name": _T.PROGRAM, "launcher": _T.KEEP},
}
"""Treatment of each text of a snapshot, and of each uid."""

_QUOTING: Final = frozenset({_T.TEXT, _T.NAME, _T.PLACE})
"""Treatments of texts that may repeat an argument of a command line."""
_SHORT: Final = 2
"""Length up to which an argument says nothing: `-n`, `4`."""
_KNOWN: Final = frozenset().union(
    *(programs.SHELLS, programs.INITS, programs.CONTAINER_INITS, programs.MANAGERS, programs.MULTIPLEXERS),
    *(programs.LOGINS, programs.USER_SWITCHES, programs.TERMINALS, programs.WRAPPERS, programs.MONITORS),
    *(programs.NOTEBOOK_SERVERS, programs.NOTEBOOK_KERNELS, programs.LAUNCHERS),
    {"nvidia-cuda-mps-server", "nvidia-cuda-mps-control"},
)
_COMMAND_LINE: Final = "command line"
_PLACES: Final = ("environment", _COMMAND_LINE)
_HOST: Final = "anonymous"
_CONSONANTS: Final = "bdfghjklmnprstvwz"
_VOWELS: Final = "aeiou"
_MOST_ARGUMENTS: Final = 1000
"""Arguments of one process that are remembered, at most."""


@functools.lru_cache(maxsize=1024)
def program_of(command: str) -> str:
    """Return the name of the program of a command line: of the script, of the module, else of the executable."""
    words = _words(command)
    if not words:
        return ""
    return programs.find_executable(words) or words[0].rpartition("/")[2]


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError:  # it was cut, or a title has a quote
        return tuple(command.split())


def _arguments(command: str) -> tuple[str, ...]:
    """Return the arguments of a command line that no other text may repeat: not the name of the program."""
    name = program_of(command)
    return tuple([word for word in _words(command)[1:] if len(word) > _SHORT and word.rpartition("/")[2] != name])


class Anonymiser:
    """Function on snapshots that removes what a recording may not have; used from one thread.

    All else in a recording is made from the snapshots that it returns.
    """

    def __init__(self, commands: Commands, key: bytes | None = None) -> None:
        """`key` replaces the random key of the stand-ins."""
        self._commands = commands
        self._key = os.urandom(32) if key is None else key
        self._stand_in = functools.lru_cache(maxsize=10_000)(self._make_stand_in)
        self._treated: dict[tuple[int, int], tuple[Process, Process]] = {}
        """Processes of the snapshot before, as they were and as they are recorded, by their key."""
        self._arguments: dict[tuple[int, int], tuple[str, ...]] = {}
        """Arguments of these processes."""

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot as it is recorded."""
        if self._commands is Commands.ALL:
            return snapshot
        before, self._treated = self._treated, {}
        self._arguments = {key: words for key, words in self._arguments.items() if key in before}
        # Not its GPUs, which have only texts that are kept.
        fields = self._values(Snapshot, {name: getattr(snapshot, name) for name in TREATMENTS[Snapshot]}, ())
        fields["processes"] = tuple([self._process(one, before) for one in snapshot.processes])
        fields["unlisted"] = tuple(
            [msgspec.structs.replace(one, process=self._process(one.process, before)) for one in snapshot.unlisted]
        )
        return msgspec.structs.replace(snapshot, **fields)

    # -- processes ---------------------------------------------------------------------------------------------------

    def _process(self, process: Process, before: Mapping[tuple[int, int], tuple[Process, Process]]) -> Process:
        """Return a process as it is recorded; only what changed since the snapshot before is looked at."""
        known = before.get(process.key)
        if known is not None and known[0].command == process.command:
            was, treated = known
            fields = {name: getattr(process, name) for name in process.__struct_fields__}
            news = {name: value for name, value in fields.items() if value != getattr(was, name)}
            changed = self._values(Process, news, self._arguments.get(process.key, ()))
            treated = msgspec.structs.replace(treated, **changed)
        else:
            # Its other texts may still quote the command line before.
            before_it = self._arguments.get(process.key, ())
            found = dict.fromkeys((*_arguments(process.command), *before_it))
            self._arguments[process.key] = tuple(found)[:_MOST_ARGUMENTS]
            treated = self._struct(process, self._arguments[process.key])
        self._treated[process.key] = (process, treated)
        return treated

    # -- fields ------------------------------------------------------------------------------------------------------

    def _struct(self, one: S, arguments: tuple[str, ...]) -> S:
        values = {name: getattr(one, name) for name in one.__struct_fields__}
        if isinstance(one, Declaration) and one.where.startswith(_COMMAND_LINE):
            values["text"] = one.channel  # it may be the command line of a parent
        return msgspec.structs.replace(one, **self._values(type(one), values, arguments))

    def _values(self, kind: type[msgspec.Struct], values: dict[str, Any], arguments: tuple[str, ...]) -> dict[str, Any]:
        """Return the values of fields of an object as they are recorded."""
        table = TREATMENTS[kind]
        return {name: self._value(name, value, table.get(name), arguments) for name, value in values.items()}

    def _value(self, name: str, value: Any, treatment: Treatment | None, arguments: tuple[str, ...]) -> Any:
        if isinstance(value, msgspec.Struct):
            return self._struct(value, arguments)
        if isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
            return tuple([self._struct(one, arguments) for one in value])
        if treatment in (None, Treatment.KEEP) or value in ("", None):
            return value
        if self._commands is Commands.ANONYMISED:
            return self._stand_in(name, value, treatment)
        if treatment is Treatment.COMMAND or (treatment is Treatment.PROGRAM and " " in value):
            return program_of(value)
        if treatment in _QUOTING and any(word in value for word in arguments):
            return self._stand_in(name, value, treatment)
        return value

    def _make_stand_in(self, name: str, value: Any, treatment: Treatment) -> Any:
        if treatment is Treatment.UID:
            return value if value <= 0 else 10_000_000 + int.from_bytes(self._hash(f"uid {value}")[:4], "big") // 4
        if treatment is Treatment.HOST:
            return _HOST
        if treatment is Treatment.PERSON:
            return self._person(value)
        if treatment in (Treatment.PROGRAM, Treatment.COMMAND):
            value, name = program_of(value) or value, "program"
            if value in _KNOWN or programs.is_python(value):
                return value
        if treatment is Treatment.PLACE and value.startswith(_PLACES):
            return value
        prefix = ""
        if treatment is Treatment.UNIT:
            prefix = next((f"{word}-" for word in programs.INTERACTIVE_UNITS if value.startswith(word)), "")
        return f"{prefix}{name}-{self._hash(value)[:4].hex()}"

    def _person(self, name: str) -> str:
        """Return a name that can be spoken: `ruka-7c3f`; root, and users who are not known, stay."""
        known, mark = name.removesuffix("?"), "?" if name.endswith("?") else ""
        if known in ("", "root"):
            return name
        one, two, three, four, *rest = self._hash(f"user {known}")
        letters = [_CONSONANTS[one % 17], _VOWELS[two % 5], _CONSONANTS[three % 17], _VOWELS[four % 5]]
        return f"{''.join(letters)}-{bytes(rest[:2]).hex()}{mark}"

    def _hash(self, text: str) -> bytes:
        return hashlib.blake2b(text.encode("utf-8", "replace"), key=self._key, digest_size=8).digest()
