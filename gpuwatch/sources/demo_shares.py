"""What the people of the demo machine declared: who keeps to it, who does not, and what cannot be read."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from gpuwatch.model import (
    Basis,
    Confidence,
    Declaration,
    Declared,
    Hint,
    Kind,
    Knowledge,
    Limit,
    Margin,
    Order,
    Visible,
)
from gpuwatch.sources import demo_cast as cast
from gpuwatch.units import GIB

_NOTHING: Final = Declared()
"""All was read, and nothing was declared."""


def declared(actor: cast.Actor) -> Declared:
    """Give what an actor declared: the same at every moment."""
    if actor.pid in _DECLARED:
        return _DECLARED[actor.pid]
    return _SWEEP if actor.argv[1:2] == ("sweep.py",) else _NOTHING


def _sees(*gpus: int, name: str = "CUDA_VISIBLE_DEVICES", where: str = "environment") -> Visible:
    order = Order.EXACT if len(gpus) == 1 else Order.IDENTICAL
    text = f"{name}={','.join(map(str, gpus))}"
    return Visible(gpus=tuple(cast.uuid(gpu) for gpu in gpus), order=order, text=text, where=where)


def _fraction(framework: str, channel: str, value: float, text: str, where: str = "environment") -> Declaration:
    """Give a cap in parts of the GPU; `where` may name a line: `train.py:12`."""
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
    """Give an agreement in bytes that several processes share."""
    first = _fraction("", channel, size, text, where)
    return replace(first, kind=Kind.GRANT, basis=Basis.BYTES, scope=scope)


def _growth(framework: str, channel: str, text: str, where: str = "environment") -> Declaration:
    label = replace(_fraction(framework, channel, 0.0, text, where), kind=Kind.GROWTH, basis=Basis.NONE, value=None)
    return replace(label, why="memory is taken as it is needed; no limit")


def _held(visible: Visible, first: Declaration, *labels: Declaration, margin: Margin = Margin.FRAMEWORK) -> Declared:
    """Give a process that `first` limits on each GPU that it sees; the labels limit nothing."""
    value = first.value or 0.0
    size = round(value if first.basis is Basis.BYTES else value * cast.TOTAL)
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
    **{pid: _ada(gpu) for pid, gpu in cast.RANKS.items()},
    cast.STRAY_PID: _MINE,
    cast.RUN_PID: _MINE,
    cast.SECRET_PID: _ben(),
    cast.EVALUATION_PID: _jax(1, "0.75"),
    cast.DISTILL_PID: _fay(),
    cast.VLLM_PID: _gus(),
    **dict.fromkeys(cast.GENV_PIDS, _genv()),
    **dict.fromkeys(cast.EMBEDDER_PIDS, _agreed()),
    cast.START_PID: _paddle(),
    cast.MISSPELT_PID: _misspelt(),
    cast.IDLE_PID: _unreadable("its environment could not be read"),
    cast.TRITON_PID: _unreadable("its environment was overwritten by a title of its own"),
}
