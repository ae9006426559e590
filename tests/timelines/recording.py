"""What stands in a recording, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from gpuwatch.model.snapshot import Health, Presence, SourceState

FOLDER: Final = Path(__file__).parent

Figure: TypeAlias = Any
"""A number, a reason's words, `[from, to]` or `{"cycle": [[seconds, value], …]}`; of some keys a list or a bool."""


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: the machine, and for how long it is watched."""

    about: str
    length: int
    """Seconds."""
    interval: int = 1
    """Seconds between two snapshots; `t` and `length` are a multiple of it."""
    gpus: dict[int, float]
    """Total memory by index, in GiB; half a GiB of it is reserved."""
    people: dict[str, int] = {}
    """Uids by name."""
    quiet: float = 0.0
    """Seconds after the start in which nothing is raised."""
    limits: dict[str, Any] = {}
    """Fields of `alerts.limits.Limits` that are not as they come; `own` is a list of a user's rules."""


class OfProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process comes, changes or ends; it holds memory on each GPU that a step of it names."""

    t: float
    pid: int
    start: int = 0
    """What tells it from another with the same PID; the PID where nothing is said."""
    user: str = ""
    gpu: int | None = None
    gib: Figure = None
    sm: Figure = None
    until: float | None = None
    kind: str = ""
    name: str = ""
    state: str = ""
    presence: Presence | None = None
    limit: float | None = None
    """GiB that it declared on the GPU."""
    visible: int | None = None
    """Index of the only GPU that it chose to see."""
    hint: str = ""
    """What is wrong with its environment."""
    ends: bool = False
    """It is gone; with a GPU, it only let go of that."""


class OfGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures of a GPU change, or its health."""

    t: float
    gpu: int
    until: float | None = None
    health: Health | None = None
    listed: bool | None = None
    """Whether snapshots have it at all."""
    answers: bool | None = None
    """Whether its samples are new ones; else the last is given again."""
    others: Figure = None
    """GiB in use that no listed process holds."""
    xid: int | None = None
    """One more of this code."""
    figures: dict[str, Figure] = {}
    """Fields of `model.Gpu` by name: temperature, throttle, `index` (it is numbered anew), holdings_note…; `used` and
    `free` are those of its memory. None is a figure that is well."""


class OfMachine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something happens to the machine, to the sampler or to gpuwatch."""

    t: float
    wall: float = 0.0
    """Seconds by which the wall clock jumps: it was set, or the machine slept."""
    silence: float = 0.0
    """Seconds in which no snapshot comes."""
    stream: SourceState | None = None
    sampler_restarts: float | None = None
    """It ends; so many seconds the last samples are given again, and then it counts anew."""
    gpuwatch_restarts: float | None = None
    """So many seconds nobody watches, and then another goes on with what was raised."""
    acknowledge: str = ""
    """Somebody acknowledges all alerts of this rule."""
    reload: bool = False
    """The user changes the limits."""
    crowd: int = 0
    """Processes on all GPUs at any time, from here on: as one ends another comes."""
    until: float | None = None
    """When the crowd ends."""


Step: TypeAlias = OfProcess | OfGpu | OfMachine


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One alert from raised to ended, as it must come; what is not said here is not compared."""

    event: str
    """The rule."""
    gpu: int | None = None
    subject: str | None = None
    """Without the GPU's key at its end."""
    severity: str
    """As it was raised."""
    worst: str = ""
    """The worst that it became; as it was raised where nothing is said."""
    worse: tuple[float, ...] = ()
    """When it got worse."""
    eased: tuple[float, ...] = ()
    """When it stepped down."""
    owners: tuple[str, ...] | None = None
    raised: float
    ended: float | None = None
    """None where it holds at the end."""
    how: str = ""
    peak: float | None = None
    """The worst value; bytes are in GiB."""
    within: float = 0.02
    """The part of it by which the peak may differ."""
    says: str = ""
    """What its title contains at the end."""
    silent: tuple[tuple[float, float], ...] = ()
    """From when to when it is acknowledged, and says nothing."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file."""

    name: str
    header: Header
    steps: tuple[Step, ...]
    events: tuple[Event, ...]


def names() -> list[str]:
    """Return the names of all recordings."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def read(path: Path) -> Recording:
    """Read a recording; raises ValueError that names the file and the line."""
    lines = [(number, line) for number, line in enumerate(path.read_text().splitlines(), 1) if line.strip()]
    header: Header | None = None
    steps: list[Step] = []
    events: list[Event] = []
    for number, line in lines:
        try:
            if header is None:
                header = msgspec.json.decode(line, type=Header)
                continue
            found = msgspec.json.decode(line, type=dict[str, Any])
            one = msgspec.convert(found, Event) if "event" in found else parse(found)
        except msgspec.MsgspecError as error:
            raise ValueError(f"{path.name}:{number}: {error}") from error
        if isinstance(one, Event):
            events.append(one)
        elif events or (steps and one.t < steps[-1].t):
            raise ValueError(f"{path.name}:{number}: a step after what comes later")
        else:
            steps.append(one)
    if header is None:
        raise ValueError(f"{path.name}: empty")
    return Recording(name=path.stem, header=header, steps=tuple(steps), events=tuple(events))


_GPU_KEYS: Final = frozenset(OfGpu.__struct_fields__) - {"figures"}


def parse(found: dict[str, Any]) -> Step:
    """Return the step that a line says; raises msgspec.ValidationError."""
    if "pid" in found:
        return msgspec.convert(found, OfProcess)
    if "gpu" in found:
        figures = {key: figure for key, figure in found.items() if key not in _GPU_KEYS}
        known = {key: found[key] for key in found.keys() - figures.keys()}
        return msgspec.convert({**known, "figures": figures}, OfGpu)
    return msgspec.convert(found, OfMachine)
