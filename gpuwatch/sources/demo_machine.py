"""Simulated machine of the demo: its GPUs, people and processes, and what they declared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from msgspec.structs import replace

from gpuwatch.model import (
    Basis,
    Confidence,
    Container,
    Declaration,
    Declared,
    Hint,
    Job,
    Kind,
    Knowledge,
    Limit,
    Margin,
    Notebook,
    Order,
    Pane,
    Presence,
    Process,
    Surroundings,
    Unlisted,
    Visible,
)
from gpuwatch.units import GIB, MIB

TOTAL: Final = 81559 * MIB
RESERVED: Final = 558 * MIB
"""Both as NVML shows them for an H100 80GB HBM3."""

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR

UIDS: Final = {"ada": 1001, "ben": 1002, "cyn": 1003, "dov": 1004, "eve": 1005, "fay": 1006, "gus": 1007, "hal": 1008}
VIEWER: Final = "you"
VIEWER_UID: Final = 1009


def uuid(gpu: int) -> str:
    """Return the UUID of a GPU by its index."""
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


def _ada_demo_cast(pid: int, gib: float) -> Actor:
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


def _worker_demo_cast(
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
            _worker_demo_cast(pid, "cyn", (*evaluators, str(k)), 1, 1.6, REQUESTS, 6 * HOUR - 9, ppid=EVALUATION_PID)
            for k, pid in enumerate(EVALUATOR_PIDS)
        ),
        *(
            _worker_demo_cast(pid, "dov", (*embedders, str(8010 + k)), 3, 2.6, REQUESTS, 2 * DAY)
            for k, pid in enumerate(EMBEDDER_PIDS)
        ),
        *(
            _worker_demo_cast(pid, "ben", (*actors, str(k)), 5, 2.4, Load(5, 2, 6, 0.6, wobble=2), 2 * HOUR)
            for k, pid in enumerate(GENV_PIDS)
        ),
    )


ACTORS: Final = (
    _ada_demo_cast(15226, 49.6),
    _ada_demo_cast(15227, 32.1),
    _ada_demo_cast(15228, 31.9),
    _ada_demo_cast(15229, 31.6),
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
    """Return the trial that runs in a slot at `t`, and for how many seconds it has run."""
    offset = slot * TRIAL_SECONDS / TRIALS
    generation, ran = divmod(t + offset, TRIAL_SECONDS)
    count = int(generation) * TRIALS + slot
    # It loads for 8 s; a pid stays far below every pid_max for as long as anybody watches a demo.
    gib = round(0.5 + 1.4 * min(1.0, ran / 8.0), 1)
    load = Load(high=5, low=1, period=5, share=0.7, wobble=2) if ran > 8.0 else IDLE
    argv = ("python", "sweep.py", "--trial", str(212 + count), f"--lr={3e-4 * 0.8 ** (count % 6):.1e}")
    return _worker_demo_cast(24100 + count % 8000, "hal", argv, 4, gib, load, age=0.0), ran


def surroundings(actor: Actor, start: int) -> Surroundings:
    """Return what an actor runs in; `start` is its start time in ticks. The same at every moment."""
    place = _PLACES.get(actor.pid, _TMUX_HAL if actor.user == "hal" else Surroundings())
    return replace(place, job=_job(actor, start))


def _job(actor: Actor, start: int) -> Job:
    if actor.pid in RANKS:
        rank = list(RANKS).index(actor.pid)
        return Job(
            key=f"15219:{start}",
            name="train.py",
            launcher="mpirun",
            head=15219,
            head_start=start,
            rank=rank,
            local_rank=rank,
            world=len(RANKS),
        )
    if actor.pid in GENV_PIDS:
        rank = actor.pid - GENV_PIDS.start
        return Job(key="ray:01000000", name="actor.py", launcher="ray", rank=rank, world=len(GENV_PIDS))
    if actor.pid in EVALUATOR_PIDS:
        # Started nine seconds after the one that they work for.
        head = start - 900
        return Job(
            key=f"{EVALUATION_PID}:{head}",
            name="evaluate",
            head=EVALUATION_PID,
            head_start=head,
            worker_of=EVALUATION_PID,
        )
    if actor.pid in EMBEDDER_PIDS:
        return Job(key=f"13990:{start}", name="serve_embeddings.py", head=13990, head_start=start)
    if actor.pid == VLLM_PID:
        return Job(key=f"12890:{start}", name="vllm serve", head=12890, head_start=start)
    if actor.argv[1:2] == ("sweep.py",):
        return Job(key="23001:900", name="sweep.py", head=23001, head_start=900)
    return Job(key=f"{actor.pid}:{start}", name=_name(actor), head=actor.pid, head_start=start)


def _name(actor: Actor) -> str:
    words = actor.argv
    if "ipykernel_launcher" in words:
        return "ipykernel"
    if words[1:2] == ("-c",):
        return "python -c"
    return words[2] if words[1:2] == ("-m",) else words[1] if words[0].endswith("python") else words[0]


def _notebook(pid: int, path: str, server: int = 3350) -> Surroundings:
    return Surroundings(notebook=Notebook(kernel=f"{pid * 2654435761 % 2**32:08x}", path=path, server=server))


def _tmux(session: int, pane: int, ssh: str = "") -> Surroundings:
    return Surroundings(pane=Pane(program="tmux", session=f"${session}", window=f"%{pane}", alive=True), ssh=ssh)


_TMUX_HAL: Final = _tmux(4, 31, "10.20.0.31")

_PLACES: Final[Mapping[int, Surroundings]] = {
    **dict.fromkeys(RANKS, _tmux(1, 3, "10.20.0.14")),
    **dict.fromkeys((EVALUATION_PID, *EVALUATOR_PIDS), _tmux(0, 12)),
    **dict.fromkeys(GENV_PIDS, Surroundings(pane=Pane(program="screen", session="actors", window="0", alive=True))),
    **{
        pid: Surroundings(unit="embeddings.service", user_unit=True, server=f"listens on port {8010 + place}")
        for place, pid in enumerate(EMBEDDER_PIDS)
    },
    SECRET_PID: Surroundings(ssh="10.20.0.17"),
    DISTILL_PID: _tmux(2, 7),
    VLLM_PID: Surroundings(container=Container(runtime="docker", id="3f9a1c0b77d2", name="vllm-llama"), server="vLLM"),
    TRITON_PID: Surroundings(
        container=Container(runtime="containerd", id="8c41e6d90a5b"), pod="serving/triton-7d9f", server="Triton"
    ),
    GROWING_PID: _notebook(GROWING_PID, "caching/growth.ipynb"),
    IDLE_PID: _notebook(IDLE_PID, "explore.ipynb"),
    17410: _notebook(17410, "probe.ipynb"),
    MISSPELT_PID: _notebook(MISSPELT_PID, "Untitled3.ipynb"),
    START_PID: _notebook(START_PID, "ablation.ipynb"),
    RUN_PID: _tmux(3, 11, "10.20.0.22"),
    STRAY_PID: Surroundings(ssh="10.20.0.22"),
}


def unlisted(
    starts: Mapping[int, int], booted: float, watched: frozenset[str], ended: Collection[int] = ()
) -> tuple[Unlisted, ...]:
    """Return who has device files open and is not listed by NVML.

    `starts` are the start times in ticks, by PID, of those who are listed, `booted` is when ticks began, in seconds
    since the epoch, `watched` are the keys of the GPUs that are watched, `ended` are PIDs of those who have ended.
    """
    run = starts.get(RUN_PID)
    orphan = ORPHAN_RUN_START
    found = [_worker(ORPHAN_PID, 0, orphan, orphan + 350, 2, booted)]
    if run is not None:
        found += [_worker(pid, RUN_PID, run, run + 400, 4, booted) for pid in RUN_WORKER_PIDS]
    return tuple(one for one in found if watched.issuperset(one.gpus) and one.process.pid not in ended)


def _worker(pid: int, parent: int, run: int, start: int, gpu: int, booted: float) -> Unlisted:
    """Return a data worker; without a parent its run has ended. `run` is the start of the run's first process."""
    orphan = not parent
    head = parent or ORPHAN_RUN_PID
    process = Process(
        pid=pid,
        start=start,
        uid=VIEWER_UID,
        user=VIEWER,
        name="pt_data_worker",
        command="python train_mine.py --workers 4",
        state="sleeping",
        ppid=parent or 1,
        parent="systemd" if orphan else "python",
        session=22790 if parent else 14877,
        led=not orphan,
        adopted=orphan,
        started=booted + start / 100,
        cpu=0.0,
        rss=620 * MIB,
        surroundings=Surroundings(
            pane=None if orphan else _PLACES[RUN_PID].pane,
            ssh="10.20.0.22",
            job=Job(
                key=f"{head}:{run}",
                name="train_mine.py",
                head=0 if orphan else head,
                head_start=0 if orphan else run,
                worker_of=None if orphan else head,
                orphaned=orphan,
            ),
        ),
    )
    return Unlisted(process=process, gpus=(uuid(gpu),), context=True)


_NOTHING: Final = Declared()
"""All was read, and nothing was declared."""


def declared(actor: Actor) -> Declared:
    """Return what an actor declared: the same at every moment."""
    if actor.pid in _DECLARED:
        return _DECLARED[actor.pid]
    return _SWEEP if actor.argv[1:2] == ("sweep.py",) else _NOTHING


def _sees(*gpus: int, name: str = "CUDA_VISIBLE_DEVICES", where: str = "environment") -> Visible:
    order = Order.EXACT if len(gpus) == 1 else Order.IDENTICAL
    text = f"{name}={','.join(map(str, gpus))}"
    return Visible(gpus=tuple(uuid(gpu) for gpu in gpus), order=order, text=text, where=where)


def _fraction(framework: str, channel: str, value: float, text: str, where: str = "environment") -> Declaration:
    """Return a cap in parts of the GPU; `where` may name a line: `train.py:12`."""
    file, _, line = where.partition(":")
    return Declaration(
        channel=channel,
        where=file,
        line=int(line or 0),
        text=text,
        framework=framework,
        kind=Kind.CAP,
        basis=Basis.TOTAL,
        value=value,
        effective=True,
    )


def _grant(channel: str, size: int, text: str, where: str, scope: str) -> Declaration:
    """Return an agreement in bytes that several processes share."""
    first = _fraction("", channel, size, text, where)
    return replace(first, kind=Kind.GRANT, basis=Basis.BYTES, scope=scope)


def _growth(framework: str, channel: str, text: str, where: str = "environment") -> Declaration:
    label = replace(_fraction(framework, channel, 0.0, text, where), kind=Kind.GROWTH, basis=Basis.NONE, value=None)
    return replace(label, why="memory is taken as it is needed; no limit")


def _held(visible: Visible, first: Declaration, *labels: Declaration, margin: Margin = Margin.FRAMEWORK) -> Declared:
    """Return a process that `first` limits on each GPU that it sees; the labels limit nothing."""
    value = first.value or 0.0
    size = round(value if first.basis is Basis.BYTES else value * TOTAL)
    limits = [Limit(gpu=gpu, bytes=size, declaration=0, scope=first.scope, margin=margin) for gpu in visible.gpus]
    return Declared(
        frameworks=(first.framework,) if first.framework else (),
        visible=visible,
        declarations=(replace(first, limits={limit.gpu: limit.bytes for limit in limits}), *labels),
        limits=tuple(limits),
    )


def _ada(gpu: int) -> Declared:
    said = "config.gpu_options.per_process_gpu_memory_fraction = 0.4"
    cap = _fraction("TensorFlow", "per_process_gpu_memory_fraction", 0.4, said, "train.py:12")
    growth = _growth("TensorFlow", "allow_growth", "config.gpu_options.allow_growth = True", "train.py:13")
    # Horovod's ranks exchange gradients by NCCL.
    return replace(_held(_sees(gpu), cap, growth), collective=True)


def _jax(gpu: int, share: str, *labels: Declaration) -> Declared:
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    return _held(_sees(gpu), _fraction("JAX", name, float(share), f"{name}={share}"), *labels)


def _ben() -> Declared:
    said = "torch.cuda.set_per_process_memory_fraction(0.2)"
    return _held(_sees(0), _fraction("PyTorch", "set_per_process_memory_fraction", 0.2, said, "finetune.py:31"))


def _fay() -> Declared:
    name = "PYTORCH_CUDA_ALLOC_CONF"
    return _held(_sees(2, 4), _fraction("PyTorch", name, 0.4, f"{name}=per_process_memory_fraction:0.4"))


def _gus() -> Declared:
    # vLLM's engine gives itself a title, which overwrites its environment; the flag is its parent's.
    flag, parent = "--gpu-memory-utilization", "12890"
    cap = _fraction("vLLM", flag, 0.43, f"{flag} 0.43", f"command line of parent {parent}")
    visible = _sees(6, where=f"environment of parent {parent}")
    words = f"its environment was overwritten by a title of its own; that of its parent {parent} was read in its place"
    return replace(_held(visible, replace(cap, confidence=Confidence.LIKELY), margin=Margin.BUDGET), words=words)


def _genv() -> Declared:
    name = "GENV_GPU_MEMORY"
    return _held(_sees(5), _grant(name, 12 * 10**9, f"{name}=12g", "environment", "genv 41"), margin=Margin.EXACT)


def _agreed() -> Declared:
    file = "/etc/gpuwatch/gpuwatch.toml:7"
    share = _grant("gpuwatch.toml", 24 * GIB, 'memory = "24GiB"', file, "share of dov on GPU 3")
    return _held(_sees(3), share, margin=Margin.EXACT)


def _paddle() -> Declared:
    name = "FLAGS_fraction_of_gpu_memory_to_use"
    start = replace(_fraction("PaddlePaddle", name, 0.01, f"{name}=0.01"), kind=Kind.START)
    return Declared(
        frameworks=(start.framework,),
        visible=_sees(6),
        declarations=(replace(start, why="a start size is no limit: more may be taken"),),
    )


def _misspelt() -> Declared:
    return Declared(
        frameworks=("TensorFlow",),
        visible=_sees(0, 1, 2, 3, name="NVIDIA_VISIBLE_DEVICES"),
        hints=(Hint(rule="misspelt", words="CUDA_VISIBLE_DIVICES has no effect; CUDA_VISIBLE_DEVICES was meant"),),
    )


def _unreadable(words: str) -> Declared:
    return Declared(knowledge=Knowledge.UNREADABLE, words=words)


_SWEEP: Final = Declared(
    frameworks=("TensorFlow",),
    visible=_sees(4),
    declarations=(_growth("TensorFlow", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_FORCE_GPU_ALLOW_GROWTH=true"),),
)
_MINE: Final = _jax(4, "0.4", _growth("JAX", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_PREALLOCATE=false"))
_DECLARED: Final = {
    **{pid: _ada(gpu) for pid, gpu in RANKS.items()},
    STRAY_PID: _MINE,
    RUN_PID: _MINE,
    SECRET_PID: _ben(),
    EVALUATION_PID: _jax(1, "0.75"),
    DISTILL_PID: _fay(),
    VLLM_PID: _gus(),
    **dict.fromkeys(GENV_PIDS, _genv()),
    **dict.fromkeys(EMBEDDER_PIDS, _agreed()),
    START_PID: _paddle(),
    MISSPELT_PID: _misspelt(),
    IDLE_PID: _unreadable("its environment could not be read"),
    TRITON_PID: _unreadable("its environment was overwritten by a title of its own"),
}
