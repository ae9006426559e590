"""Simulated machine of the demo: its GPUs, people and processes, and what they declared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from zlib import crc32

import msgspec
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
"""Total and reserved memory of an H100 80GB HBM3, as NVML reports them."""

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR

UIDS: Final = {"ada": 1001, "ben": 1002, "cyn": 1003, "dov": 1004, "eve": 1005, "fay": 1006, "gus": 1007, "hal": 1008}
VIEWER: Final = "you"
VIEWER_UID: Final = 1009

RANKS: Final = {15226: 0, 15227: 2, 15228: 5, 15229: 6}
"""GPU of each rank of ada's job, by PID."""
GROWING_PID: Final = 20418
"""Notebook that fills GPU 1; the script replaces its amount of memory."""
IDLE_PID: Final = 11934
"""Process that holds 40 GiB and does nothing; its declarations cannot be read."""
STRAY_PID: Final = 15260
"""Forgotten process of the viewer: its shell has ended."""
LEFTOVER_PID: Final = 15391
"""Data worker of the viewer whose run has ended: NVML does not list it, and it holds GPU 2's unlisted memory."""
LEFTOVER_RUN_PID: Final = 15377
LEFTOVER_RUN_START: Final = 168_790_000
"""Start of that run, in ticks: some eight hours before the demo begins."""
RUN_PID: Final = 22871
"""Run of the viewer that is at work."""
RUN_WORKER_PIDS: Final = range(RUN_PID + 9, RUN_PID + 13)
"""Data workers of that run, which NVML does not list."""
HOSTILE_PID: Final = 23117
"""Process whose command line tries to attack the terminal."""
GONE_PID: Final = 19552
"""Process that NVML lists and the kernel does not."""
SECRET_PID: Final = 18233
"""Process with a secret on its command line."""
EVALUATION_PID: Final = 16077
EVALUATOR_PIDS: Final = range(16081, 16085)
"""Workers of the evaluation."""
DISTILL_PID: Final = 21775
"""Process that works on two GPUs."""
VLLM_PID: Final = 12931
"""Engine of a server: the limit is in its parent's command line."""
TRITON_PID: Final = 13544
MISSPELT_PID: Final = 19120
"""Process that should use one GPU, and has a context on each of four: its variable is misspelt."""
START_PID: Final = 20977
"""Process that declares a start size, which is no limit."""
GENV_PIDS: Final = range(22310, 22314)
"""Processes that share one grant of memory."""
EMBEDDER_PIDS: Final = range(14002, 14050, 6)
"""Processes that share an agreement in gpuwatch.toml."""


def uuid(gpu: int) -> str:
    return f"GPU-{crc32(b'demo%d' % gpu):08x}-5a1d-4c0e-9f3b-{gpu:012x}"


# ---------------------------------------------------------------------------------------------------------------
# Declarations


def _visible(*gpus: int, name: str = "CUDA_VISIBLE_DEVICES", where: str = "environment") -> Visible:
    order = Order.EXACT if len(gpus) == 1 else Order.IDENTICAL
    text = f"{name}={','.join(map(str, gpus))}"
    return Visible(gpus=tuple(uuid(gpu) for gpu in gpus), order=order, text=text, where=where)


def _cap(framework: str, channel: str, value: float, text: str, where: str = "environment") -> Declaration:
    """Return a limit as a fraction of the GPU; `where` may name a line: `train.py:12`."""
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
    """Return an agreement in bytes for several processes together."""
    return replace(_cap("", channel, size, text, where), kind=Kind.GRANT, basis=Basis.BYTES, scope=scope)


def _growth(framework: str, channel: str, text: str, where: str = "environment") -> Declaration:
    label = replace(_cap(framework, channel, 0.0, text, where), kind=Kind.GROWTH, basis=Basis.NONE, value=None)
    return replace(label, why="memory is taken as it is needed; no limit")


def _limited(visible: Visible, first: Declaration, *labels: Declaration, margin: Margin = Margin.FRAMEWORK) -> Declared:
    """Return declarations in which `first` limits each visible GPU, and the labels limit nothing."""
    value = first.value or 0.0
    size = round(value if first.basis is Basis.BYTES else value * TOTAL)
    limits = [Limit(gpu=gpu, bytes=size, declaration=0, scope=first.scope, margin=margin) for gpu in visible.gpus]
    return Declared(
        frameworks=(first.framework,) if first.framework else (),
        visible=visible,
        declarations=(replace(first, limits={limit.gpu: limit.bytes for limit in limits}), *labels),
        limits=tuple(limits),
    )


def _jax(gpu: int, share: str, *labels: Declaration) -> Declared:
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    return _limited(_visible(gpu), _cap("JAX", name, float(share), f"{name}={share}"), *labels)


def _horovod(gpu: int) -> Declared:
    said = "config.gpu_options.per_process_gpu_memory_fraction = 0.4"
    cap = _cap("TensorFlow", "per_process_gpu_memory_fraction", 0.4, said, "train.py:12")
    growth = _growth("TensorFlow", "allow_growth", "config.gpu_options.allow_growth = True", "train.py:13")
    return replace(_limited(_visible(gpu), cap, growth), collective=True)  # its ranks exchange gradients by NCCL


def _vllm() -> Declared:
    # vLLM's engine gives itself a title, which overwrites its environment; the flag is its parent's.
    flag, parent = "--gpu-memory-utilization", "12890"
    cap = _cap("vLLM", flag, 0.43, f"{flag} 0.43", f"command line of parent {parent}")
    visible = _visible(6, where=f"environment of parent {parent}")
    words = f"its environment was overwritten by a title of its own; that of its parent {parent} was read in its place"
    return replace(_limited(visible, replace(cap, confidence=Confidence.LIKELY), margin=Margin.BUDGET), words=words)


def _paddle() -> Declared:
    name = "FLAGS_fraction_of_gpu_memory_to_use"
    start = replace(_cap("PaddlePaddle", name, 0.01, f"{name}=0.01"), kind=Kind.START)
    return Declared(
        frameworks=(start.framework,),
        visible=_visible(6),
        declarations=(replace(start, why="a start size is no limit: more may be taken"),),
    )


_NOTHING: Final = Declared()
"""Everything was read, and nothing was declared."""
_MINE: Final = _jax(4, "0.4", _growth("JAX", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_PREALLOCATE=false"))
_BEN: Final = "torch.cuda.set_per_process_memory_fraction(0.2)"
_FAY: Final = "PYTORCH_CUDA_ALLOC_CONF"
_GENV: Final = _grant("GENV_GPU_MEMORY", 12 * 10**9, "GENV_GPU_MEMORY=12g", "environment", "genv 41")
_AGREED: Final = _grant(
    "gpuwatch.toml", 24 * GIB, 'memory = "24GiB"', "/etc/gpuwatch/gpuwatch.toml", "share of dov on GPU 3"
)
_SWEEP: Final = Declared(
    frameworks=("TensorFlow",),
    visible=_visible(4),
    declarations=(_growth("TensorFlow", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_FORCE_GPU_ALLOW_GROWTH=true"),),
)
_MISSPELT: Final = Declared(
    frameworks=("TensorFlow",),
    visible=_visible(0, 1, 2, 3, name="NVIDIA_VISIBLE_DEVICES"),
    hints=(Hint(rule="misspelt", words="CUDA_VISIBLE_DIVICES has no effect; CUDA_VISIBLE_DEVICES was meant"),),
)


def _unreadable(words: str) -> Declared:
    return Declared(knowledge=Knowledge.UNREADABLE, words=words)


# ---------------------------------------------------------------------------------------------------------------
# Processes


class Load(msgspec.Struct, frozen=True):
    """Utilization of a process over time, in percent: `high` for a part of each period, else `low`."""

    high: float = 0.0
    low: float = 0.0
    period: float = 1.0
    """Seconds of a period; each load has its own phase."""
    share: float = 1.0
    """Part of the period that is spent at `high`."""
    ramp: bool = False
    """Whether it rises slowly from `low` to `high`, instead of jumping."""
    wobble: float = 6.0
    """Percentage points of noise; none while the value is 0."""


IDLE: Final = Load()
_TRAINING: Final = Load(high=76, low=10, period=17, share=0.8, ramp=True)
_REQUESTS: Final = Load(high=9, low=1, period=9, share=0.35, wobble=2)
_RARE: Final = Load(high=35, low=0, period=40, share=0.15, wobble=10)
_SERVING: Final = Load(high=46, low=34, period=12, share=0.6)
_EVALUATION: Final = Load(high=70, low=64, period=8, share=0.6)


_ANYWHERE: Final = Surroundings()


class Actor(msgspec.Struct, frozen=True):
    """One process of the demo."""

    pid: int
    user: str
    argv: tuple[str, ...]
    holds: tuple[tuple[int, float], ...]
    """(GPU index, GiB) of each holding; the process computes on the first GPU."""
    load: Load
    age: float
    """Age in seconds when the demo begins."""
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
    """Whether its memory changes a little, as in a training loop."""
    job: Job | None = None
    """Run of the process. Without a key its head is this process, unless another is named, and `head_start` counts from
    this process's start."""
    context: Surroundings = _ANYWHERE
    declared: Declared = _NOTHING


def _tmux(session: int, pane: int, ssh: str = "") -> Surroundings:
    return Surroundings(pane=Pane(program="tmux", session=f"${session}", window=f"%{pane}", alive=True), ssh=ssh)


_TMUX_HAL: Final = _tmux(4, 31, "10.20.0.31")
_TMUX_RUN: Final = _tmux(3, 11, "10.20.0.22")


def _rank(pid: int, gib: float) -> Actor:
    rank = list(RANKS).index(pid)
    return Actor(
        pid,
        "ada",
        ("/home/ada/env/bin/python", "-u", "train.py", "--config", "big.yaml"),
        ((RANKS[pid], gib),),
        _TRAINING,
        age=2 * HOUR + 600,
        parent="mpirun",
        ppid=15219,
        terminal="/dev/pts/3",
        rss=11.4,
        cpu=112.0,
        breathes=True,
        job=Job(key="", name="train.py", launcher="mpirun", head=15219, rank=rank, local_rank=rank, world=len(RANKS)),
        context=_tmux(1, 3, "10.20.0.14"),
        declared=_horovod(RANKS[pid]),
    )


def _worker(
    pid: int,
    user: str,
    argv: tuple[str, ...],
    hold: tuple[int, float],
    load: Load,
    age: float,
    job: Job,
    context: Surroundings,
    declared: Declared = _NOTHING,
    ppid: int = 4700,
) -> Actor:
    return Actor(
        pid,
        user,
        argv,
        (hold,),
        load,
        age,
        ppid=ppid,
        rss=1.8,
        cpu=35.0,
        job=job,
        context=context,
        declared=declared,
    )


def _kernel(
    pid: int,
    user: str,
    path: str,
    hold: tuple[int, float],
    load: Load,
    age: float,
    declared: Declared = _NOTHING,
    contexts: tuple[int, ...] = (),
) -> Actor:
    kernel = f"{pid * 2654435761 % 2**32:08x}"
    file = f"/home/{user}/.local/share/jupyter/runtime/kernel-{kernel}.json"
    return Actor(
        pid,
        user,
        ("/opt/conda/bin/python", "-m", "ipykernel_launcher", "-f", file),
        (hold, *((gpu, 0.4) for gpu in contexts)),
        load,
        age,
        parent="jupyter-lab",
        ppid=3350,
        rss=2.2,
        job=Job(key="", name="ipykernel"),
        context=Surroundings(notebook=Notebook(kernel=kernel, path=path, server=3350)),
        declared=declared,
    )


_TRAIN: Final = ("python", "train_mine.py", "--workers", "4")
_SECRET: Final = ("--hf-token", "hf_" + "demo" * 6)
_HOSTILE: Final = "import train; '\x1b]2;PWNED\x07\x1b[2J' '[/bold][@click=app.quit]' '\u202egnp.exe'"

ACTORS: Final = (
    _rank(15226, 49.6),
    _rank(15227, 32.1),
    _rank(15228, 31.9),
    _rank(15229, 31.6),
    Actor(
        STRAY_PID,
        VIEWER,
        _TRAIN,
        ((4, 12.0),),
        IDLE,
        9 * HOUR + 2460,
        parent="systemd",
        ppid=1,
        job=Job(key="", name="train_mine.py"),
        context=Surroundings(ssh="10.20.0.22"),
        declared=_MINE,
    ),
    Actor(
        RUN_PID,
        VIEWER,
        (*_TRAIN, "--resume", "runs/041/last.pt"),
        ((4, 8.0),),
        Load(high=44, low=8, period=14, share=0.75, ramp=True),
        1500.0,
        ppid=22790,
        terminal="/dev/pts/11",
        job=Job(key="", name="train_mine.py"),
        context=_TMUX_RUN,
        declared=_MINE,
    ),
    Actor(
        SECRET_PID,
        "ben",
        ("python", "finetune.py", "--model", "llama-3.1-8b", *_SECRET, "--lora-rank", "16"),
        ((0, 14.2),),
        Load(high=18, low=4, period=21, share=0.7),
        5 * HOUR,
        ppid=18101,
        job=Job(key="", name="finetune.py"),
        context=Surroundings(ssh="10.20.0.17"),
        declared=_limited(_visible(0), _cap("PyTorch", "set_per_process_memory_fraction", 0.2, _BEN, "finetune.py:31")),
    ),
    Actor(
        EVALUATION_PID,
        "cyn",
        ("python", "-m", "evaluate", "--suite", "long-context", "--cache", "gpu"),
        ((1, 56.6),),
        _EVALUATION,
        6 * HOUR,
        parent="tmux: server",
        ppid=2107,
        rss=22,
        job=Job(key="", name="evaluate"),
        context=_tmux(0, 12),
        declared=_jax(1, "0.75"),
    ),
    Actor(
        DISTILL_PID,
        "fay",
        ("python", "distill.py", "--devices", "2,4", "--batch-size", "96"),
        ((2, 9.5), (4, 9.5)),
        Load(12, 5, 11, 0.5),
        4200.0,
        terminal="/dev/pts/7",
        job=Job(key="", name="distill.py"),
        context=_tmux(2, 7),
        declared=_limited(_visible(2, 4), _cap("PyTorch", _FAY, 0.4, f"{_FAY}=per_process_memory_fraction:0.4")),
    ),
    Actor(
        VLLM_PID,
        "gus",
        ("VLLM::EngineCore",),
        ((6, 34.6),),
        _SERVING,
        3 * DAY,
        name="VLLM::EngineCore",
        parent="vllm",
        ppid=12890,
        rss=7.9,
        job=Job(key="", name="vllm serve", head=12890),
        context=Surroundings(
            container=Container(runtime="docker", id="3f9a1c0b77d2", name="vllm-llama"), server="vLLM"
        ),
        declared=_vllm(),
    ),
    Actor(
        TRITON_PID,
        "dov",
        ("tritonserver", "--model-repository=/srv/models", "--http-port=8000"),
        ((2, 7.2),),
        _REQUESTS,
        11 * DAY,
        name="tritonserver",
        parent="containerd-shim",
        ppid=13501,
        job=Job(key="", name="tritonserver"),
        context=Surroundings(
            container=Container(runtime="containerd", id="8c41e6d90a5b"), pod="serving/triton-7d9f", server="Triton"
        ),
        declared=_unreadable("its environment was overwritten by a title of its own"),
    ),
    Actor(
        HOSTILE_PID,
        "hal",
        ("python", "-c", _HOSTILE),
        ((5, 2.2),),
        _REQUESTS,
        700.0,
        ppid=23050,
        job=Job(key="", name="python -c"),
        context=_TMUX_HAL,
    ),
    Actor(GONE_PID, "", (), ((1, 1.4),), IDLE, 0.0, name="", presence=Presence.GONE),
    _kernel(GROWING_PID, "ben", "caching/growth.ipynb", (1, 0.0), Load(12, 4, 15, 0.5), 2700.0),
    _kernel(
        IDLE_PID, "eve", "explore.ipynb", (3, 40.0), IDLE, 7 * HOUR, _unreadable("its environment could not be read")
    ),
    _kernel(17410, "fay", "probe.ipynb", (0, 0.9), _RARE, 26 * HOUR),
    _kernel(MISSPELT_PID, "hal", "Untitled3.ipynb", (2, 1.3), _RARE, 5 * HOUR, _MISSPELT, contexts=(0, 1, 3)),
    _kernel(START_PID, "cyn", "ablation.ipynb", (6, 1.1), _RARE, 2 * HOUR, _paddle()),
    *(
        _worker(
            pid,
            "cyn",
            ("python", "-m", "evaluate.worker", str(number)),
            (1, 1.6),
            _REQUESTS,
            6 * HOUR - 9,
            Job(key="", name="evaluate", head=EVALUATION_PID, head_start=-900, worker_of=EVALUATION_PID),
            _tmux(0, 12),
            ppid=EVALUATION_PID,
        )
        for number, pid in enumerate(EVALUATOR_PIDS)
    ),
    *(
        _worker(
            pid,
            "dov",
            ("python", "serve_embeddings.py", "--model", "bge-m3", "--port", str(8010 + number)),
            (3, 2.6),
            _REQUESTS,
            2 * DAY,
            Job(key="", name="serve_embeddings.py", head=13990),
            Surroundings(unit="embeddings.service", user_unit=True, server=f"listens on port {8010 + number}"),
            _limited(_visible(3), _AGREED, margin=Margin.EXACT),
        )
        for number, pid in enumerate(EMBEDDER_PIDS)
    ),
    *(
        _worker(
            pid,
            "ben",
            ("python", "actor.py", "--env", "nethack", "--rank", str(number)),
            (5, 2.4),
            Load(5, 2, 6, 0.6, wobble=2),
            2 * HOUR,
            Job(key="ray:01000000", name="actor.py", launcher="ray", rank=number, world=len(GENV_PIDS)),
            Surroundings(pane=Pane(program="screen", session="actors", window="0", alive=True)),
            _limited(_visible(5), _GENV, margin=Margin.EXACT),
        )
        for number, pid in enumerate(GENV_PIDS)
    ),
)
"""Processes that run all the time."""

TRIALS: Final = 8
"""Number of short runs of hal's sweep on GPU 4 that run at a time."""
TRIAL_SECONDS: Final = 96.0


def trial(slot: int, t: float) -> tuple[Actor, float]:
    """Return the trial that runs in a slot at `t`, and its age in seconds."""
    generation, ran = divmod(t + slot * TRIAL_SECONDS / TRIALS, TRIAL_SECONDS)
    count = int(generation) * TRIALS + slot
    # It loads for 8 s; a pid stays far below every pid_max for as long as anybody watches a demo.
    gib = round(0.5 + 1.4 * min(1.0, ran / 8.0), 1)
    load = Load(high=5, low=1, period=5, share=0.7, wobble=2) if ran > 8.0 else IDLE
    argv = ("python", "sweep.py", "--trial", str(212 + count), f"--lr={3e-4 * 0.8 ** (count % 6):.1e}")
    job = Job(key="23001:900", name="sweep.py", head=23001, head_start=900)
    return _worker(24100 + count % 8000, "hal", argv, (4, gib), load, 0.0, job, _TMUX_HAL, _SWEEP), ran


def context(actor: Actor, start: int) -> Surroundings:
    """Return an actor's context, which never changes; `start` is its start time in ticks."""
    job = actor.job
    if job is None:
        return actor.context
    if not job.key:
        head, head_start = job.head or actor.pid, start + job.head_start
        job = replace(job, key=f"{head}:{head_start}", head=head, head_start=head_start)
    return replace(actor.context, job=job)


def unlisted(
    starts: Mapping[int, int], booted: float, watched: frozenset[str], ended: Collection[int] = ()
) -> tuple[Unlisted, ...]:
    """Return the processes that have device files open and are not listed by NVML.

    `starts` are the start times of the listed processes in ticks, by PID; `booted` is the time of tick 0, in seconds
    since the epoch; `watched` are the keys of the watched GPUs; `ended` are the PIDs of ended processes.
    """
    run = starts.get(RUN_PID)
    found = [_data_worker(LEFTOVER_PID, 0, LEFTOVER_RUN_START, LEFTOVER_RUN_START + 350, 2, booted)]
    if run is not None:
        found += [_data_worker(pid, RUN_PID, run, run + 400, 4, booted) for pid in RUN_WORKER_PIDS]
    return tuple(one for one in found if watched.issuperset(one.gpus) and one.process.pid not in ended)


def _data_worker(pid: int, parent: int, run: int, start: int, gpu: int, booted: float) -> Unlisted:
    """Return a data worker; without a parent its run has ended. `run` is the start time of the run's first process."""
    leftover = not parent
    head = parent or LEFTOVER_RUN_PID
    process = Process(
        pid=pid,
        start=start,
        uid=VIEWER_UID,
        user=VIEWER,
        name="pt_data_worker",
        command="python train_mine.py --workers 4",
        state="sleeping",
        ppid=parent or 1,
        parent="systemd" if leftover else "python",
        session=22790 if parent else 14877,
        led=not leftover,
        adopted=leftover,
        started=booted + start / 100,
        cpu=0.0,
        rss=620 * MIB,
        surroundings=Surroundings(
            pane=None if leftover else _TMUX_RUN.pane,
            ssh="10.20.0.22",
            job=Job(
                key=f"{head}:{run}",
                name="train_mine.py",
                head=0 if leftover else head,
                head_start=0 if leftover else run,
                worker_of=None if leftover else head,
                orphaned=leftover,
            ),
        ),
    )
    return Unlisted(process=process, gpus=(uuid(gpu),), context=True)
