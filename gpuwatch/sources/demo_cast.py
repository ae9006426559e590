"""Who is on the demo machine: its GPUs and processes, what these hold, and how they load their GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from zlib import crc32

from gpuwatch.model import Presence
from gpuwatch.units import MIB

TOTAL: Final = 81559 * MIB
RESERVED: Final = 558 * MIB
"""Both as NVML shows them for an H100 80GB HBM3."""

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR

UIDS: Final = {"ada": 1001, "ben": 1002, "cyn": 1003, "dov": 1004, "eve": 1005, "fay": 1006, "gus": 1007, "hal": 1008}
VIEWER: Final = "you"
VIEWER_UID: Final = 1009


def uuid(gpu: int) -> str:
    """Give the UUID of a GPU by its index."""
    return f"GPU-{crc32(b'demo%d' % gpu):08x}-5a1d-4c0e-9f3b-{gpu:012x}"


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a process keeps a GPU over time, in percent: `high` for a share of each period, else `low`."""

    high: float = 0.0
    low: float = 0.0
    period: float = 1.0
    """Seconds; each load starts its own periods at its own moment."""
    share: float = 1.0
    """Of the period that is spent at `high`."""
    ramp: bool = False
    """Rises from `low` to `high` over that share, instead of a jump."""
    wobble: float = 6.0
    """Percentage points of noise around it; none while it is at 0."""


IDLE: Final = Load()


@dataclass(frozen=True, slots=True)
class Actor:
    """One process of the script."""

    pid: int
    user: str
    argv: tuple[str, ...]
    holds: tuple[tuple[int, float], ...]
    """(GPU index, GiB), the GPU that it works on first."""
    load: Load
    age: float
    """Seconds since its start when the demo begins."""
    name: str = "python"
    parent: str = "bash"
    ppid: int = 4021
    terminal: str = ""
    rss: float = 3.0
    """GiB of host memory."""
    cpu: float = 100.0
    """Percent of one core while it is busy."""
    presence: Presence = Presence.SEEN
    breathes: bool = False
    """Its memory moves a little, as that of a training loop does."""


TRAINING: Final = Load(high=76, low=10, period=17, share=0.8, ramp=True)
REQUESTS: Final = Load(high=9, low=1, period=9, share=0.35, wobble=2)
RARE: Final = Load(high=35, low=0, period=40, share=0.15, wobble=10)
SERVING: Final = Load(high=46, low=34, period=12, share=0.6)
EVALUATION: Final = Load(high=70, low=64, period=8, share=0.6)

RANKS: Final = {15226: 0, 15227: 2, 15228: 5, 15229: 6}
"""The ranks of ada's job, and which GPU each has."""
GROWING_PID: Final = 20418
"""The notebook that fills GPU 1; the amount it is listed with is replaced by the script's."""
IDLE_PID: Final = 11934
"""Holds 40 GiB and does nothing; what it declared cannot be read."""
STRAY_PID: Final = 15260
"""The viewer's own, forgotten: its shell is gone."""
ORPHAN_PID: Final = 15391
"""A data worker of the viewer's whose run has ended: NVML does not list it, and it holds what GPU 2 misses."""
ORPHAN_RUN_PID: Final = 15377
ORPHAN_RUN_START: Final = 168_790_000
"""Of that run, in ticks: some eight hours before the demo begins."""
RUN_PID: Final = 22871
"""The viewer's own, at work."""
RUN_WORKER_PIDS: Final = range(RUN_PID + 9, RUN_PID + 13)
"""Its data workers, which NVML does not list."""
HOSTILE_PID: Final = 23117
"""Its command line attacks the terminal."""
GONE_PID: Final = 19552
"""NVML lists it and the kernel does not."""
SECRET_PID: Final = 18233
"""Was given a secret on its command line."""
EVALUATION_PID: Final = 16077
EVALUATOR_PIDS: Final = range(16081, 16085)
"""Its workers."""
DISTILL_PID: Final = 21775
"""Works on two GPUs."""
VLLM_PID: Final = 12931
"""The engine of a server: what it may take is said to its parent."""
TRITON_PID: Final = 13544
MISSPELT_PID: Final = 19120
"""Meant to choose one GPU, and has a context on each of four."""
START_PID: Final = 20977
"""Declared what it begins with, which is no limit."""
GENV_PIDS: Final = range(22310, 22314)
"""Share one grant of memory."""
EMBEDDER_PIDS: Final = range(14002, 14050, 6)
"""Share what was agreed on in gpuwatch.toml."""

_HOSTILE = "import train; '\x1b]2;PWNED\x07\x1b[2J' '[/bold][@click=app.quit]' '\u202egnp.exe'"


def _ada(pid: int, gib: float) -> Actor:
    return Actor(
        pid=pid,
        user="ada",
        argv=("/home/ada/env/bin/python", "-u", "train.py", "--config", "big.yaml"),
        holds=((RANKS[pid], gib),),
        load=TRAINING,
        age=2 * HOUR + 600,
        parent="mpirun",
        ppid=15219,
        terminal="/dev/pts/3",
        rss=11.4,
        cpu=112.0,
        breathes=True,
    )


def _worker(
    pid: int, user: str, argv: tuple[str, ...], gpu: int, gib: float, load: Load, age: float, ppid: int = 4700
) -> Actor:
    return Actor(pid=pid, user=user, argv=argv, holds=((gpu, gib),), load=load, age=age, rss=1.8, cpu=35.0, ppid=ppid)


def _kernel(pid: int, user: str, gpu: int, gib: float, load: Load, age: float, contexts: tuple[int, ...] = ()) -> Actor:
    kernel = f"/home/{user}/.local/share/jupyter/runtime/kernel-{pid * 2654435761 % 2**32:08x}.json"
    argv = ("/opt/conda/bin/python", "-m", "ipykernel_launcher", "-f", kernel)
    holds = ((gpu, gib), *((other, 0.4) for other in contexts))
    return Actor(pid, user, argv, holds, load, age, parent="jupyter-lab", ppid=3350, rss=2.2)


def _viewers() -> tuple[Actor, ...]:
    mine = ("python", "train_mine.py", "--workers", "4")
    return (
        Actor(STRAY_PID, VIEWER, mine, ((4, 12.0),), IDLE, 9 * HOUR + 2460, parent="systemd", ppid=1),
        Actor(
            RUN_PID,
            VIEWER,
            (*mine, "--resume", "runs/041/last.pt"),
            ((4, 8.0),),
            Load(high=44, low=8, period=14, share=0.75, ramp=True),
            1500.0,
            ppid=22790,
            terminal="/dev/pts/11",
        ),
    )


def _loners() -> tuple[Actor, ...]:
    secret = ("python", "finetune.py", "--model", "llama-3.1-8b", "--hf-token", "hf_" + "demo" * 6, "--lora-rank", "16")
    distill = ("python", "distill.py", "--devices", "2,4", "--batch-size", "96")
    evaluate = ("python", "-m", "evaluate", "--suite", "long-context", "--cache", "gpu")
    engine = "VLLM::EngineCore"
    return (
        Actor(
            SECRET_PID, "ben", secret, ((0, 14.2),), Load(high=18, low=4, period=21, share=0.7), 5 * HOUR, ppid=18101
        ),
        Actor(
            EVALUATION_PID,
            "cyn",
            evaluate,
            ((1, 56.6),),
            EVALUATION,
            6 * HOUR,
            parent="tmux: server",
            ppid=2107,
            rss=22,
        ),
        Actor(DISTILL_PID, "fay", distill, ((2, 9.5), (4, 9.5)), Load(12, 5, 11, 0.5), 4200.0, terminal="/dev/pts/7"),
        Actor(
            VLLM_PID, "gus", (engine,), ((6, 34.6),), SERVING, 3 * DAY, name=engine, parent="vllm", ppid=12890, rss=7.9
        ),
        Actor(
            TRITON_PID,
            "dov",
            ("tritonserver", "--model-repository=/srv/models", "--http-port=8000"),
            ((2, 7.2),),
            REQUESTS,
            11 * DAY,
            name="tritonserver",
            parent="containerd-shim",
            ppid=13501,
        ),
        Actor(HOSTILE_PID, "hal", ("python", "-c", _HOSTILE), ((5, 2.2),), REQUESTS, 700.0, ppid=23050),
        Actor(GONE_PID, "", (), ((1, 1.4),), IDLE, 0.0, name="", presence=Presence.GONE),
    )


def _kernels() -> tuple[Actor, ...]:
    return (
        _kernel(GROWING_PID, "ben", 1, 0.0, Load(high=12, low=4, period=15, share=0.5), 2700.0),
        _kernel(IDLE_PID, "eve", 3, 40.0, IDLE, 7 * HOUR),
        _kernel(17410, "fay", 0, 0.9, RARE, 26 * HOUR),
        _kernel(MISSPELT_PID, "hal", 2, 1.3, RARE, 5 * HOUR, contexts=(0, 1, 3)),
        _kernel(START_PID, "cyn", 6, 1.1, RARE, 2 * HOUR),
    )


def _workers() -> tuple[Actor, ...]:
    evaluators = ("python", "-m", "evaluate.worker")
    embedders = ("python", "serve_embeddings.py", "--model", "bge-m3", "--port")
    actors = ("python", "actor.py", "--env", "nethack", "--rank")
    return (
        *(
            _worker(pid, "cyn", (*evaluators, str(k)), 1, 1.6, REQUESTS, 6 * HOUR - 9, ppid=EVALUATION_PID)
            for k, pid in enumerate(EVALUATOR_PIDS)
        ),
        *(
            _worker(pid, "dov", (*embedders, str(8010 + k)), 3, 2.6, REQUESTS, 2 * DAY)
            for k, pid in enumerate(EMBEDDER_PIDS)
        ),
        *(
            _worker(pid, "ben", (*actors, str(k)), 5, 2.4, Load(5, 2, 6, 0.6, wobble=2), 2 * HOUR)
            for k, pid in enumerate(GENV_PIDS)
        ),
    )


ACTORS: Final = (
    _ada(15226, 49.6),
    _ada(15227, 32.1),
    _ada(15228, 31.9),
    _ada(15229, 31.6),
    *_viewers(),
    *_loners(),
    *_kernels(),
    *_workers(),
)
"""Everybody who is there all the time."""

TRIALS: Final = 8
"""Short runs of hal's sweep on GPU 4 that come and go: so many at a time."""
TRIAL_SECONDS: Final = 96.0


def trial(slot: int, t: float) -> tuple[Actor, float]:
    """Give the trial that runs in a slot at `t`, and for how many seconds it has run."""
    offset = slot * TRIAL_SECONDS / TRIALS
    generation, ran = divmod(t + offset, TRIAL_SECONDS)
    count = int(generation) * TRIALS + slot
    # It loads for 8 s; a pid stays far below every pid_max for as long as anybody watches a demo.
    gib = round(0.5 + 1.4 * min(1.0, ran / 8.0), 1)
    load = Load(high=5, low=1, period=5, share=0.7, wobble=2) if ran > 8.0 else IDLE
    argv = ("python", "sweep.py", "--trial", str(212 + count), f"--lr={3e-4 * 0.8 ** (count % 6):.1e}")
    return _worker(24100 + count % 8000, "hal", argv, 4, gib, load, age=0.0), ran
