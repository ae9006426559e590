"""Names of environment variables that somebody mistyped: they are set, and nobody reads them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import islice

from gpuwatch.model import Hint


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names that people type, and long enough that one which is nearly the same can only be a slip.
_MEANT = _words(
    """
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES
    XLA_CLIENT_MEM_FRACTION XLA_PYTHON_CLIENT_MEM_FRACTION XLA_PYTHON_CLIENT_PREALLOCATE XLA_PYTHON_CLIENT_ALLOCATOR
    TF_FORCE_GPU_ALLOW_GROWTH TF_GPU_ALLOCATOR TF_DEVICE_MIN_SYS_MEMORY_IN_MB TF_FORCE_UNIFIED_MEMORY
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF
    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
    CUDA_DEVICE_MEMORY_LIMIT CUDA_DEVICE_SM_LIMIT CUDA_OVERSUBSCRIBE
    CUPY_GPU_MEMORY_LIMIT THEANO_FLAGS CUDA_MEMORY_FRACTION GENV_GPU_MEMORY GPUWATCH_SHARE
    FLAGS_gpu_memory_limit_mb FLAGS_fraction_of_gpu_memory_to_use FLAGS_initial_gpu_memory_in_mb
    FLAGS_allocator_strategy MXNET_GPU_MEM_POOL_RESERVE OLLAMA_GPU_OVERHEAD
    """
)
# Real names that are nearly one of those: another vendor's, or the CPU's.
_REAL = _words(
    """
    PYTORCH_MUSA_ALLOC_CONF TF_CPU_ALLOCATOR
    FLAGS_cpu_memory_limit_mb FLAGS_fraction_of_cpu_memory_to_use FLAGS_initial_cpu_memory_in_mb
    """
)
# Not slips of the finger. NVIDIA's page on MPS has the first in an example
# (docs.nvidia.com/deploy/mps/latest/appendix-environment-variables.html).
_MISNAMED = {"CUDA_MPS_DEVICE_MEM_LIMIT": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}

_START = 3
_TWO_SLIPS = 18
# An environment may be made of 100,000 names that are nearly right.
_MOST_NAMES = 2000
_MOST_HINTS = 8


def _table() -> dict[tuple[str, int], tuple[str, ...]]:
    """Give the meant names by their first letters and by each length that a slip could have made of theirs."""
    table: dict[tuple[str, int], tuple[str, ...]] = {}
    for name in sorted(_MEANT):
        for length in range(len(name) - _slips(name), len(name) + _slips(name) + 1):
            key = (name[:_START], length)
            table[key] = (*table.get(key, ()), name)
    return table


def _slips(name: str) -> int:
    """How many letters of a name may be wrong: in a short one two make another name."""
    return 2 if len(name) >= _TWO_SLIPS else 1


def misspelt(names: Iterable[str]) -> list[Hint]:
    """Give a hint for each environment variable that is nearly one which declares a share, and is none.

    At most two letters may be missing, wrong, too many or swapped, and the first three must be right. A name that
    has the right one as its start or end (CUDA_VISIBLE_DEVICES_OLD) is somebody's own, as is one beside the right
    one. It is meant to be right rather than complete. 100 names of which 15 are CUDA's take 0.2 ms.
    """
    given = dict.fromkeys(islice(names, _MOST_NAMES))
    hints: list[Hint] = []
    for name in given:
        candidates = _NEAR.get((name[:_START], len(name)))
        meant = _MISNAMED.get(name) or (candidates and _meant(name, candidates))
        if meant and meant not in given:
            hints.append(Hint(rule="misspelt", words=f"{name} has no effect; {meant} was meant"))
            if len(hints) == _MOST_HINTS:
                break
    return hints


@functools.lru_cache(maxsize=128)
def _meant(name: str, candidates: tuple[str, ...]) -> str:
    """Give the one of `candidates` that `name` is a slip for; empty for none."""
    if name in _MEANT or name in _REAL or not name.replace("_", "").isalpha() or not name.isascii():
        return ""
    for meant in candidates:
        # Names joined to another word, or with a digit for the GPU, are meant as they are.
        joined = name.startswith(meant) or name.endswith(meant)
        if not joined and _is_slip(name, meant, _slips(meant)):
            return meant
    return ""


def _is_slip(one: str, other: str, slips: int) -> bool:
    """Whether so many letters inserted, deleted, replaced or swapped with their neighbour make `one` the other."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    one, other = one[same:], other[same:]
    if not slips or one == other:
        return one == other
    slips -= 1
    return (
        _is_slip(one[1:], other[1:], slips)
        or _is_slip(one[1:], other, slips)
        or _is_slip(one, other[1:], slips)
        or (one[:2] == other[1::-1] and _is_slip(one[2:], other[2:], slips))
    )


_NEAR = _table()
