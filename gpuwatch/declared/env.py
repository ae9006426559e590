"""What environment variables say of a GPU's memory: `SIMPLE`, those that are a number by themselves, then the rest.

Ranks. Within one framework the resolver takes the claim of the highest rank, of equals the last. `RANKS` has all that
are not 0: what is set in code comes after the environment, and needs none.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from gpuwatch.declared import sizes
from gpuwatch.declared.environment import weakest
from gpuwatch.declared.facts import Claim, Setting, said, shown, void
from gpuwatch.model import Confidence, Kind, Margin
from gpuwatch.text import LIMIT

RANKS = {
    "CUDA_DEVICE_MEMORY_LIMIT": -1,
    "CUDA_DEVICE_SM_LIMIT": -1,
}
"""HAMi takes these where the variable with the device's number is not set."""

CONTAINER = "container"
"""A scope that the resolver completes with the container's id."""

_MANY = 64
"""Devices and entries that we look at, of one variable."""


class Simple(NamedTuple):
    """One variable whose value is a number, and means the same whatever else is set."""

    name: str
    framework: str
    kind: Kind
    reads: sizes.Reader
    scope: str = ""
    margin: Margin = Margin.FRAMEWORK


SIMPLE = (
    # gpuwatch run: agreed with people, and enforced by nobody.
    Simple("GPUWATCH_SHARE", "", Kind.GRANT, sizes.gpuwatch),
    # cupy/cuda/memory.pyx: a limit of the default pool on each device.
    Simple("CUPY_GPU_MEMORY_LIMIT", "cupy", Kind.CAP, sizes.cupy),
    # paddle/fluid/platform/device/gpu/gpu_info.cc: N << 20 bytes. The other two are sizes of one chunk of many.
    Simple("FLAGS_gpu_memory_limit_mb", "paddle", Kind.CAP, sizes.mib),
    Simple("FLAGS_fraction_of_gpu_memory_to_use", "paddle", Kind.START, sizes.fraction_or_off),
    Simple("FLAGS_initial_gpu_memory_in_mb", "paddle", Kind.START, sizes.mib),
    # text-generation-inference/launcher/src/main.rs: the launcher sets it on its shards, to 1.0 where nobody said so.
    Simple("CUDA_MEMORY_FRACTION", "tgi", Kind.CAP, sizes.fraction_or_all),
    # mxnet docs, env_var.md: percent; the pool only gives back what it caches.
    Simple("MXNET_GPU_MEM_POOL_RESERVE", "mxnet", Kind.RESERVE, sizes.percent_of_memory),
    # ollama/envconfig/config.go: bytes on each GPU.
    Simple("OLLAMA_GPU_OVERHEAD", "ollama", Kind.RESERVE, sizes.plain_bytes),
    # tensorflow/core/common_runtime/gpu/gpu_device.cc, MinSystemMemory.
    Simple("TF_DEVICE_MIN_SYS_MEMORY_IN_MB", "tensorflow", Kind.RESERVE, sizes.mib),
    # docs.nvidia.com/deploy/topics/topic_5_2_5.html: a cap of the threads, and no reservation.
    Simple("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "", Kind.COMPUTE, sizes.percent_of_sms),
    # kai-gpu-fractioning, fractiond/internal/injection: whole MiB, applied to the cgroup through NVML.
    Simple("NVIDIA_GPU_MEMORY_LIMIT", "", Kind.HARD, sizes.mib, CONTAINER, Margin.EXACT),
)


def claims(settings: Mapping[str, Setting]) -> list[Claim]:
    """Give what an environment says of memory and SMs; which devices it makes visible is not among it. Never raises.

    A value that its reader would refuse gives a claim that is `void`, a setting without a value one that is `dynamic`.
    """
    found: list[Claim] = []
    for row in SIMPLE:
        found += _said(settings, row.name, row.framework, row.kind, row.reads, scope=row.scope, margin=row.margin)
    for several in (_jax, _tensorflow, _torch, _theano, _paddle, _mps, _hami, _kai, _genv, _slurm):
        found += several(settings)
    return found


# -- what they have in common -----------------------------------------------------------------------------------------


def _claim(settings: Mapping[str, Setting], name: str, framework: str, kind: Kind, **fields: Any) -> Claim:
    """Make the claim of a variable that is set, without its value."""
    setting = settings[name]
    return Claim(
        **{
            "channel": name,
            "where": setting.where,
            "line": setting.line,
            "text": shown(setting.text or f"{name}={'' if setting.value is None else setting.value}"),
            "framework": framework,
            "kind": kind,
            "confidence": setting.confidence,
            "dynamic": setting.value is None,
            **fields,
        }
    )


def _said(
    settings: Mapping[str, Setting], name: str, framework: str, kind: Kind, reads: sizes.Reader, **fields: Any
) -> list[Claim]:
    """Give what a variable that is one number says; nothing where it is not set, or empty."""
    if not _is_set(settings, name):
        return []
    return said(_claim(settings, name, framework, kind, **fields), settings[name].value, reads)


def _is_set(settings: Mapping[str, Setting], name: str) -> bool:
    """Say whether a variable is set to anything: to all readers but TensorFlow's and PyTorch's, empty is unset."""
    return name in settings and settings[name].value != ""


def _value(settings: Mapping[str, Setting], name: str) -> str:
    """Give the text of a variable, empty where it is not set or not known."""
    setting = settings.get(name)
    return (setting.value or "") if setting else ""


# -- frameworks -------------------------------------------------------------------------------------------------------

_JAX_FRACTION = "XLA_CLIENT_MEM_FRACTION"
_JAX_DEPRECATED = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_JAX_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
_JAX_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"
_TF_ALLOCATOR = "TF_GPU_ALLOCATOR"
_CAPPED = ("default", "bfc", "vmm")
_UNCAPPED = ("platform", "cuda_async", "address")


def _jax(settings: Mapping[str, Setting]) -> Iterable[Claim]:
    """Read JAX's: a fraction of the total under two names, unless the allocator takes no notice of it.

    Sources: jaxlib/xla_client.py, generate_pjrt_gpu_plugin_options; xla/pjrt/plugin/xla_gpu/xla_gpu_allocator_config.h
    (memory_fraction); docs.jax.dev, gpu-memory (vmm has it too). Before jaxlib 0.4.1 it was a fraction of what is free.
    """
    names = [name for name in (_JAX_FRACTION, _JAX_DEPRECATED) if _is_set(settings, name)]
    allocator = _value(settings, _JAX_ALLOCATOR).lower()
    why = ""
    if len(names) == 2:
        why = "JAX refuses to start with both set"
    elif allocator and allocator not in (*_CAPPED, *_UNCAPPED):
        why = f"JAX refuses to start with {_JAX_ALLOCATOR}={shown(allocator)}"
    elif allocator in _UNCAPPED:
        why = f"the {allocator} allocator ignores it"
    elif _value(settings, _TF_ALLOCATOR) == "cuda_malloc_async":
        why = f"{_TF_ALLOCATOR}=cuda_malloc_async ignores it"
    unified = _value(settings, "TF_FORCE_UNIFIED_MEMORY").lower() in ("1", "true")
    for name in names:
        for claim in _said(
            settings, name, "jax", Kind.CAP, sizes.unified_fraction if unified else sizes.positive_fraction
        ):
            yield void(claim, why) if why else claim
    if _is_set(settings, _JAX_PREALLOCATE) and settings[_JAX_PREALLOCATE].value in ("false", "False", "0", None):
        yield _claim(settings, _JAX_PREALLOCATE, "jax", Kind.GROWTH)
    if allocator in _UNCAPPED:
        yield _claim(settings, _JAX_ALLOCATOR, "jax", Kind.GROWTH)


_TF_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def _tensorflow(settings: Mapping[str, Setting]) -> Iterable[Claim]:
    """Read TensorFlow's: growth, forced by `true` in these very letters; `false` leaves its default.

    Sources: tensorflow/core/common_runtime/gpu/gpu_bfc_allocator.cc, GetAllowGrowthValue; docs.jax.dev, gpu-memory
    (TF_GPU_ALLOCATOR, which XLA heeds too).
    """
    if _TF_GROWTH in settings and settings[_TF_GROWTH].value != "false":
        claim = _claim(settings, _TF_GROWTH, "tensorflow", Kind.GROWTH)
        heeded = settings[_TF_GROWTH].value in ("true", None)
        yield claim if heeded else void(claim, "TensorFlow ignores any text but true and false")
    if _value(settings, _TF_ALLOCATOR) == "cuda_malloc_async":
        yield _claim(settings, _TF_ALLOCATOR, "tensorflow", Kind.GROWTH)
        yield _claim(settings, _TF_ALLOCATOR, "jax", Kind.GROWTH)


_TORCH = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_TORCH_KEY = "per_process_memory_fraction"


def _torch(settings: Mapping[str, Setting]) -> Iterable[Claim]:
    """Read PyTorch's: one key of a list `key:value,…`, for all devices.

    Where PYTORCH_CUDA_ALLOC_CONF is set at all, even to nothing, the other is not read for this key; the documentation
    has it the other way round. PyTorch without the key does not start with it. Source: c10/cuda/CUDAAllocatorConfig.h,
    `instance` and `getKeys`, in all versions that have the key.
    """
    for name in _TORCH:
        if not _is_set(settings, name):
            continue
        claim = _claim(settings, name, "torch", Kind.CAP)
        fraction = _torch_fraction(settings[name].value)
        for one in said(claim, fraction, sizes.fraction) if fraction != "" else ():
            beaten = name == _TORCH[0] and _TORCH[1] in settings
            yield void(one, f"PyTorch reads {_TORCH[1]} in its place") if beaten else one


def _torch_fraction(value: str | None) -> str | None:
    """Give the text of the last fraction in an allocator's configuration, empty for none."""
    found: str | None = None if value is None else ""
    for part in (value or "")[:LIMIT].replace(" ", "").split(","):
        key, _, text = part.partition(":")
        if key == _TORCH_KEY:
            found = text or "?"
    return found


THEANO_START = ("lib.cnmem", "gpuarray.preallocate", "gpuarray__preallocate")
_THEANO_DEVICE = re.compile(r"(?:gpu|cuda)([0-9]{1,3})")


def theano_device(text: str) -> int | None:
    """Give the ordinal in Theano's `device=cuda0` or `gpu0`; None where it leaves the choice to the driver."""
    match = _THEANO_DEVICE.fullmatch(text.strip())
    return int(match[1]) if match else None


def _theano(settings: Mapping[str, Setting]) -> Iterable[Claim]:
    """Read THEANO_FLAGS: a list `option=value,…`, split as a shell would, where the right-most of each option wins.

    Source: theano/configparser.py, parse_config_string.
    """
    name = "THEANO_FLAGS"
    if not _is_set(settings, name):
        return
    claim = _claim(settings, name, "theano", Kind.START)
    value = settings[name].value
    if value is None:
        yield claim
        return
    splitter = shlex.shlex(value[:LIMIT], posix=True)
    splitter.whitespace = ","
    splitter.whitespace_split = True
    try:
        pairs = [part.strip().partition("=") for part in splitter]
    except ValueError:
        yield void(claim, "Theano cannot split it: a quotation is left open")
        return
    options = {key: text for key, equals, text in pairs if equals}
    claim = replace(claim, device=theano_device(options.get("device", "")))
    for option in THEANO_START:
        if option in options:
            yield from said(replace(claim, channel=f"{name} {option}"), options[option], sizes.theano)


def _paddle(settings: Mapping[str, Setting]) -> Iterable[Claim]:
    """Read Paddle's strategy: `auto_growth` takes memory as it is needed.

    Source: paddlepaddle.org.cn, docs, flags, FLAGS_allocator_strategy.
    """
    name = "FLAGS_allocator_strategy"
    if _is_set(settings, name) and settings[name].value in ("auto_growth", None):
        yield _claim(settings, name, "paddle", Kind.GROWTH)


# -- layers below the frameworks --------------------------------------------------------------------------------------

_MPS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


def _mps(settings: Mapping[str, Setting]) -> Iterable[Claim]:
    """Read the limits that an MPS client asks for, one for each device; likely, as only clients are held to them.

    The quotes in NVIDIA's own example are taken off. Source: docs.nvidia.com/deploy/mps, environment variables.
    """
    if not _is_set(settings, _MPS):
        return
    sure = weakest(settings[_MPS].confidence, *(() if _is_set(settings, "CUDA_MPS_PIPE_DIRECTORY") else (_LIKELY,)))
    claim = _claim(settings, _MPS, "", Kind.HARD, margin=Margin.EXACT, confidence=sure)
    value = settings[_MPS].value
    if value is None:
        yield claim
        return
    for entry in value[:LIMIT].strip(" '\"").split(",")[:_MANY]:
        if entry.strip():
            yield from said(claim, entry, sizes.mps)


_LIKELY = Confidence.LIKELY
_HAMI = re.compile(r"(CUDA_DEVICE_(?:MEMORY|SM)_LIMIT)(?:_([0-9]{1,2}))?")


def _hami(settings: Mapping[str, Setting]) -> Iterable[Claim]:
    """Read HAMi's, which volcano uses too: for one device of the container, else for all; 0 says nothing.

    Likely, unless its library is seen in LD_PRELOAD: it may be in a file that we do not read. Source: HAMi-core
    src/multiprocess/multiprocess_memory_limit.c, do_init_device_memory_limits and do_init_device_sm_limits.
    """
    matches = [match for name in settings if name.startswith("CUDA_DEVICE_") and (match := _HAMI.fullmatch(name))]
    preloaded = "libvgpu" in _value(settings, "LD_PRELOAD")
    oversubscribed = _value(settings, "CUDA_OVERSUBSCRIBE").lower() == "true"
    for match in sorted(matches, key=lambda match: (match[1], int(match[2] or -1)))[: 2 * _MANY]:
        name, channel, device = match[0], match[1], match[2]
        if not _is_set(settings, name):
            continue
        claim = _claim(settings, name, "", Kind.HARD, channel=channel, scope=CONTAINER, margin=Margin.EXACT)
        claim = replace(
            claim,
            device=int(device) if device else None,
            rank=0 if device else RANKS[channel],
            confidence=claim.confidence if preloaded else weakest(claim.confidence, _LIKELY),
        )
        if channel == "CUDA_DEVICE_SM_LIMIT":
            claim = replace(claim, kind=Kind.COMPUTE, margin=Margin.FRAMEWORK)
        elif oversubscribed:
            claim = replace(claim, text=shown(f"{claim.text}, of virtual memory (CUDA_OVERSUBSCRIBE=true)"))
        yield from said(claim, settings[name].value, sizes.hami if claim.kind is Kind.HARD else sizes.hami_sms)


def _kai(settings: Mapping[str, Setting]) -> Iterable[Claim]:
    """Read KAI's and run:ai's: a fraction that nobody enforces, and what a process may count on beside its limit.

    Sources: KAI-Scheduler pkg/binder/common/gpu_access.go (both names get one text); kai-gpu-fractioning
    fractiond/internal/injection.
    """
    for name in ("GPU_PORTION", "RUNAI_NUM_OF_GPUS"):
        if _is_set(settings, name):
            yield from _said(settings, name, "", Kind.GRANT, sizes.positive_fraction, scope=CONTAINER)
            break
    request = _said(
        settings, "NVIDIA_GPU_MEMORY_REQUEST", "", Kind.GRANT, sizes.mib, scope=CONTAINER, margin=Margin.EXACT
    )
    limited = _is_set(settings, "NVIDIA_GPU_MEMORY_LIMIT")
    yield from (void(claim, "NVIDIA_GPU_MEMORY_LIMIT allows more") if limited else claim for claim in request)


def _genv(settings: Mapping[str, Setting]) -> Iterable[Claim]:
    """Read genv's: bytes on each device for all processes of one environment together.

    Source: run-ai/genv genv/enforce/rules/env_memory.py.
    """
    environment = _value(settings, "GENV_ENVIRONMENT_ID")
    scope = f"genv {shown(environment)}" if environment else ""
    yield from _said(settings, "GENV_GPU_MEMORY", "", Kind.GRANT, sizes.genv, scope=scope, margin=Margin.EXACT)


def _slurm(settings: Mapping[str, Setting]) -> Iterable[Claim]:
    """Read how many shards Slurm gave; how many a GPU has stands in gres.conf, so that their size is not known.

    Source: slurm.schedmd.com/gres.html, "Sharding".
    """
    name = "SLURM_SHARDS_ON_NODE"
    if _is_set(settings, name):
        job = _value(settings, "SLURM_JOB_ID")
        scope = f"Slurm job {shown(job)}" if job else ""
        yield _claim(settings, name, "", Kind.GRANT, scope=scope, dynamic=True)
