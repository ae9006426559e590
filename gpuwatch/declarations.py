"""What a process declared, as it crosses the stream: each statement, what holds of it, and which GPUs the process sees.

Part of the stream, see `gpuwatch.model`; the package `gpuwatch.declared` finds and weighs them. All text is clean.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """What a declaration promises. Only `LIMITS` can be overshot."""

    CAP = "cap"
    """The framework's own allocator refuses to go beyond it."""
    HARD = "hard limit"
    """Something outside the framework enforces it: MPS, HAMi, the driver."""
    GRANT = "grant"
    """Agreed with a scheduler or with people; nothing enforces it."""
    START = "start size"
    """The first chunk; more may be taken, by design."""
    CACHE = "cache"
    """A part of what is free when the model is loaded, for its cache; says nothing of the total."""
    RESERVE = "reserve"
    """How much is to be left free."""
    GROWTH = "growth"
    """Memory is taken as it is needed; no number."""
    COMPUTE = "compute share"
    """A share of the SMs; says nothing of memory."""
    DEFAULT = "default"
    """What the framework takes where nothing is said. Not a declaration."""


LIMITS = frozenset({Kind.CAP, Kind.HARD, Kind.GRANT})
"""Kinds that hold a process to a number."""


class Basis(StrEnum):
    """What the number of a declaration counts."""

    TOTAL = "of the GPU"
    """A fraction of the GPU's memory."""
    FREE_AT_START = "of what is free at start"
    FREE_AFTER_LOAD = "of what is free after loading"
    BYTES = "bytes"
    NONE = ""
    """There is no number, or it is no memory."""


class Confidence(StrEnum):
    """How sure we are that a declaration is what the process runs with."""

    CERTAIN = "certain"
    LIKELY = "likely"
    """Read where it usually is in effect, but could have been changed since."""
    STALE = "stale"
    """The file was edited after the process started."""
    GUESS = "guess"


class Order(StrEnum):
    """How sure we are which GPU a framework's ordinal means."""

    EXACT = "exact"
    """By UUID, by a single GPU, or by PCI_BUS_ID."""
    IDENTICAL = "identical GPUs"
    """All GPUs are of one model, which CUDA then numbers as NVML does."""
    HEURISTIC = "heuristic"
    """Different models, and CUDA puts the fastest first: which that is we can only guess."""


class Margin(StrEnum):
    """How far a process may hold more than its limit before that is an overshoot; the rules know the bytes."""

    FRAMEWORK = "framework"
    """A CUDA context and the libraries' handles come on top of what the allocator counts."""
    EAGER = "eager"
    """The same where all kernels are loaded at once: before CUDA 11.7, or CUDA_MODULE_LOADING=EAGER."""
    BUDGET = "budget"
    """A server's own budget for everything (vLLM), exceeded by its CUDA graphs and fragments."""
    EXACT = "exact"
    """Enforced, or agreed in bytes."""


class Knowledge(StrEnum):
    """Whether we could look for a process's declarations. Unreadable is not undeclared."""

    READ = "read"
    PENDING = "not read yet"
    UNREADABLE = "unreadable"
    """Its environment belongs to somebody else, was overwritten, or could not be read in time."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One statement of how much memory a process takes, wherever it stands."""

    channel: str
    """How it was said: `XLA_PYTHON_CLIENT_MEM_FRACTION`, `--gpu-memory-utilization`, `set_limit`, `gpuwatch.toml`."""
    where: str = ""
    """Where it stands: `environment`, `command line`, `environment of parent 812`, `train.py`."""
    line: int = 0
    """Line in that file; 0 for none."""
    text: str = ""
    """As it is written there, cleaned."""
    framework: str = ""
    """Whose it is; empty where it holds for any."""
    kind: Kind
    basis: Basis = Basis.NONE
    value: float | None = None
    """A fraction (0.4) or bytes, by the basis; None where there is none or it is only known at run time."""
    limits: dict[str, int] = {}
    """Bytes by GPU UUID, for the GPUs that it concerns; empty where it is no limit."""
    scope: str = ""
    """Empty for the process itself; else what shares it: `genv 12`, `container 3f9a1c`, `share of ada on GPU 2`."""
    confidence: Confidence = Confidence.CERTAIN
    effective: bool = False
    """Whether it is one of those that hold."""
    why: str = ""
    """Why it is in effect, or why not."""
    guessed: bool = False
    """Which GPU it concerns is a guess, as CUDA's order of different models is."""
    undecided: bool = False
    """It may limit the process: only the program itself knows whether, by which number, or on which GPU."""


class Limit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds on one GPU, after all declarations were weighed."""

    gpu: str
    """UUID of the GPU."""
    bytes: int
    declaration: int
    """Its place in `Declared.declarations`."""
    scope: str = ""
    """As in the declaration: with a scope, the holdings of all processes of that scope count together."""
    margin: Margin = Margin.FRAMEWORK


class Visible(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which GPUs a process can see, in its framework's order: the first is `cuda:0`."""

    gpus: tuple[str, ...] = ()
    """UUIDs of GPUs or MIG instances; empty where it hides all of them."""
    order: Order = Order.EXACT
    text: str = ""
    """What decided it: `CUDA_VISIBLE_DEVICES=3,2`; empty where nothing was said and all are visible."""
    where: str = ""
    """Where that stands, as in a declaration."""
    note: str = ""
    """What is odd about it: `-1 hides all that follow`."""
    doubtful: bool = False
    """The process may never have made this choice: the note says why."""


class Hint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that somebody wrote and surely did not mean."""

    rule: str
    """`misspelt`, `invalid`, `no effect`, `dynamic`."""
    words: str


class Declared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one process said it would take."""

    knowledge: Knowledge = Knowledge.READ
    words: str = ""
    """What could not be read, and why."""
    incomplete: bool = False
    """Modules of its script were not read: they may have declared more."""
    frameworks: tuple[str, ...] = ()
    visible: Visible | None = None
    """None where it cannot be told."""
    declarations: tuple[Declaration, ...] = ()
    """Those that were found, those in effect first; of many only some, see `left_out`."""
    left_out: int = 0
    """How many more statements were found and weighed, and are not among `declarations`."""
    limits: tuple[Limit, ...] = ()
    """At most one a GPU and scope: that of the process itself first."""
    collective: bool = False
    """It is one of several processes that exchange data between GPUs (NCCL), which takes buffers of its own."""
    hints: tuple[Hint, ...] = ()
    hints_left_out: int = 0
    """How many more hints there are."""
