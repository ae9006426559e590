"""Environment variables and ~/.theanorc: what they declare of GPU memory, and names that are mistyped.

/proc/PID/environ is what the last execve(2) was given; what the program set later is not in it, but is in the
environment of the children that it has exec'ed, and often in its source. Source: proc_pid_environ(5).

Ranks. Within one framework the resolver takes the candidate of the highest rank, of equals the last. `RANKS` has all
that are not 0: what is set in code comes after the environment, and needs none.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from gpuwatch.declared import sizes
from gpuwatch.declared.facts import Candidate, Facts, Script, Setting, Unread, shown, void, with_value
from gpuwatch.model import Confidence, Hint, Kind, Margin
from gpuwatch.text import LIMIT, clean

_UNSURE = (Confidence.STALE, Confidence.GUESS)
"""Of a script that was edited, or a line that came too late: it does not take the place of what is known."""

_WHY = {
    Unread.DENIED: "its environment is not ours to read",
    Unread.OVERWRITTEN: "its environment was overwritten by a title of its own",
    Unread.GONE: "it ended while its environment was read",
    Unread.LONG: "its environment is too long to be read",
    Unread.FAILED: "its environment could not be read",
}


class Environment(NamedTuple):
    """Variables with who set them, and what of it could not be read."""

    settings: Mapping[str, Setting]
    read: bool
    """True where the variables that it was started with are known; those of a parent may have been added to."""
    words: str
    """Reason why something could not be read, and what was read instead; empty where all was read."""


def environment_of(facts: Facts) -> Environment:
    """Merge what a process was started with, what its children show of it, and what its script sets."""
    own = facts.environ
    settings: dict[str, Setting] = {}
    words = ""
    if isinstance(own, Unread):
        words = _WHY[own]
        heir = next((kin for kin in facts.ancestors if not isinstance(kin.environ, Unread)), None)
        if heir is not None and not isinstance(heir.environ, Unread):
            words += f"; that of its parent {heir.pid} was read in its place"
            where = f"environment of parent {heir.pid}"
            settings = {
                name: Setting(value=value, where=where, confidence=Confidence.LIKELY)
                for name, value in heir.environ.items()
            }
    else:
        settings = {name: Setting(value=value) for name, value in own.items()}
    for name, setting in _of_children(facts):
        settings.setdefault(name, setting)
    for name, setting in (one for script in facts.scripts for one in environment_of_script(script)):
        before = settings.get(name)
        if before is None or not (setting.default or setting.confidence in _UNSURE):
            settings[name] = _either(before, setting)
    return Environment(settings, not isinstance(own, Unread), words)


def _either(before: Setting | None, setting: Setting) -> Setting:
    """Return what a script sets; None as its value where that may not have run and another value was set."""
    if before is None or setting.confidence is Confidence.CERTAIN:
        return setting
    return before if before.value == setting.value else replace(setting, value=None)


_WORKER = "from multiprocessing."
"""Beginning of the code of a spawned worker, which inherits its variables. Source: multiprocessing/spawn.py."""


def _of_children(facts: Facts) -> Iterable[tuple[str, Setting]]:
    """Return the variables that all children that have exec'ed share; a guess if there is only one, unless a worker.

    One may have been given variables of its own: a trainer on GPU 0 starts a server with CUDA_VISIBLE_DEVICES=1.
    """
    environs = [(kin, kin.environ) for kin in facts.children if not isinstance(kin.environ, Unread)]
    if not environs:
        return
    first, values = environs[0]
    inherited = len(environs) > 1 or any(word.startswith(_WORKER) for word in first.argv[1:8])
    sure = Confidence.LIKELY if inherited else Confidence.GUESS
    for name, value in values.items():
        if all(environ.get(name) == value for _, environ in environs):
            yield name, Setting(value=value, where=f"environment of child {first.pid}", confidence=sure)


def environment_of_script(script: Script | None) -> Iterable[tuple[str, Setting]]:
    """Return the variables that a script sets, each no surer than the script itself."""
    if script is None or isinstance(script.contents, Unread):
        return
    for name, setting in script.contents.settings:
        yield name, replace(setting, where=script.path, confidence=script_confidence(setting.confidence, script))


_WEAKEST = (Confidence.CERTAIN, Confidence.LIKELY, Confidence.STALE, Confidence.GUESS)


def weakest(*confidences: Confidence) -> Confidence:
    """Return the lowest of several confidences."""
    return max(confidences, key=_WEAKEST.index)


def script_confidence(confidence: Confidence, script: Script) -> Confidence:
    """Return the confidence of a statement in a script, whose file may not be what runs."""
    file = Confidence.STALE if script.edited else Confidence.LIKELY if script.likely else Confidence.CERTAIN
    return weakest(confidence, file)


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
    """Return the known names by their first letters and by each length that a misspelling of them may have."""
    table: dict[tuple[str, int], tuple[str, ...]] = {}
    for name in sorted(_MEANT):
        for length in range(len(name) - _slips(name), len(name) + _slips(name) + 1):
            key = (name[:_START], length)
            table[key] = (*table.get(key, ()), name)
    return table


def _slips(name: str) -> int:
    """Return how many letters of a name may be wrong: in a short one, two make another name."""
    return 2 if len(name) >= _TWO_SLIPS else 1


def misspelt(names: Iterable[str]) -> list[Hint]:
    """Return a hint for each environment variable that looks like a misspelt one which declares a share.

    At most two letters may be missing, wrong, too many or swapped, and the first three must be right. A name that
    has the right one as its start or end (CUDA_VISIBLE_DEVICES_OLD) is somebody's own, as is one beside the right
    one. It is meant to be right rather than complete. 100 names of which 15 are CUDA's take 0.2 ms.
    """
    given = dict.fromkeys(islice(names, _MOST_NAMES))
    hints: list[Hint] = []
    for name in given:
        evaluations = _NEAR.get((name[:_START], len(name)))
        meant = _MISNAMED.get(name) or (evaluations and _meant(name, evaluations))
        if meant and meant not in given:
            hints.append(Hint(rule="misspelt", words=f"{name} has no effect; {meant} was meant"))
            if len(hints) == _MOST_HINTS:
                break
    return hints


@functools.lru_cache(maxsize=128)
def _meant(name: str, evaluations: tuple[str, ...]) -> str:
    """Return the one of `evaluations` that `name` misspells; empty for none."""
    if name in _MEANT or name in _REAL or not name.replace("_", "").isalpha() or not name.isascii():
        return ""
    for meant in evaluations:
        # Names joined to another word, or with a digit for the GPU, are meant as they are.
        joined = name.startswith(meant) or name.endswith(meant)
        if not joined and _is_slip(name, meant, _slips(meant)):
            return meant
    return ""


def _is_slip(one: str, other: str, slips: int) -> bool:
    """Return whether `slips` letters inserted, deleted, replaced or swapped turn `one` into `other`."""
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
    reads: sizes.Parser
    scope: str = ""
    margin: Margin = Margin.FRAMEWORK


SIMPLE = (
    # gpuwatch run: an agreement between people, which nothing enforces.
    Simple("GPUWATCH_SHARE", "", Kind.GRANT, sizes.gpuwatch),
    # cupy/cuda/memory.pyx: a limit of the default pool on each device.
    Simple("CUPY_GPU_MEMORY_LIMIT", "cupy", Kind.CAP, sizes.cupy),
    # paddle/fluid/platform/device/gpu/gpu_info.cc: N << 20 bytes. The other two are sizes of one chunk of many.
    Simple("FLAGS_gpu_memory_limit_mb", "paddle", Kind.CAP, sizes.mib),
    Simple("FLAGS_fraction_of_gpu_memory_to_use", "paddle", Kind.START, sizes.fraction_or_off),
    Simple("FLAGS_initial_gpu_memory_in_mb", "paddle", Kind.START, sizes.mib),
    # text-generation-inference/launcher/src/main.rs: the launcher sets it on its shards, to 1.0 by default.
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


def candidates(settings: Mapping[str, Setting]) -> list[Candidate]:
    """Return what an environment declares of memory and SMs, without the visible devices. Never raises.

    A value that its reader would refuse gives a candidate that is `void`, a setting without a value a `dynamic` one.
    """
    found: list[Candidate] = []
    for row in SIMPLE:
        found += _said(settings, row.name, row.framework, row.kind, row.reads, scope=row.scope, margin=row.margin)
    for several in (_jax, _tensorflow, _torch, _theano, _paddle, _mps, _hami, _kai, _genv, _slurm):
        found += several(settings)
    return found


# -- what they have in common -----------------------------------------------------------------------------------------


def _candidate(settings: Mapping[str, Setting], name: str, framework: str, kind: Kind, **fields: Any) -> Candidate:
    """Make the candidate of a variable that is set, without its value."""
    setting = settings[name]
    return Candidate(
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
    settings: Mapping[str, Setting], name: str, framework: str, kind: Kind, reads: sizes.Parser, **fields: Any
) -> list[Candidate]:
    """Return the candidates of a variable that is one number; none where it is not set, or empty."""
    if not _is_set(settings, name):
        return []
    return with_value(_candidate(settings, name, framework, kind, **fields), settings[name].value, reads)


def _is_set(settings: Mapping[str, Setting], name: str) -> bool:
    """Return whether a variable is set: to all readers but those of TensorFlow and PyTorch, empty is unset."""
    return name in settings and settings[name].value != ""


def _value(settings: Mapping[str, Setting], name: str) -> str:
    """Return the text of a variable, empty where it is not set or not known."""
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


def _jax(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
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
        for candidate in _said(
            settings, name, "jax", Kind.CAP, sizes.unified_fraction if unified else sizes.positive_fraction
        ):
            yield void(candidate, why) if why else candidate
    if _is_set(settings, _JAX_PREALLOCATE) and settings[_JAX_PREALLOCATE].value in ("false", "False", "0", None):
        yield _candidate(settings, _JAX_PREALLOCATE, "jax", Kind.GROWTH)
    if allocator in _UNCAPPED:
        yield _candidate(settings, _JAX_ALLOCATOR, "jax", Kind.GROWTH)


_TF_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def _tensorflow(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read TensorFlow's: growth, forced by `true` in these very letters; `false` leaves its default.

    Sources: tensorflow/core/common_runtime/gpu/gpu_bfc_allocator.cc, GetAllowGrowthValue; docs.jax.dev, gpu-memory
    (TF_GPU_ALLOCATOR, which XLA heeds too).
    """
    if _TF_GROWTH in settings and settings[_TF_GROWTH].value != "false":
        candidate = _candidate(settings, _TF_GROWTH, "tensorflow", Kind.GROWTH)
        heeded = settings[_TF_GROWTH].value in ("true", None)
        yield candidate if heeded else void(candidate, "TensorFlow ignores any text but true and false")
    if _value(settings, _TF_ALLOCATOR) == "cuda_malloc_async":
        yield _candidate(settings, _TF_ALLOCATOR, "tensorflow", Kind.GROWTH)
        yield _candidate(settings, _TF_ALLOCATOR, "jax", Kind.GROWTH)


_TORCH = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_TORCH_KEY = "per_process_memory_fraction"


def _torch(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read PyTorch's: one key of a list `key:value,…`, for all devices.

    Where PYTORCH_CUDA_ALLOC_CONF is set at all, even to nothing, the other is not read for this key; the documentation
    has it the other way round. PyTorch without the key does not start with it. Source: c10/cuda/CUDAAllocatorConfig.h,
    `instance` and `getKeys`, in all versions that have the key.
    """
    for name in _TORCH:
        if not _is_set(settings, name):
            continue
        candidate = _candidate(settings, name, "torch", Kind.CAP)
        fraction = _torch_fraction(settings[name].value)
        for one in with_value(candidate, fraction, sizes.fraction) if fraction != "" else ():
            beaten = name == _TORCH[0] and _TORCH[1] in settings
            yield void(one, f"PyTorch reads {_TORCH[1]} in its place") if beaten else one


def _torch_fraction(value: str | None) -> str | None:
    """Return the text of the last fraction in an allocator's configuration, empty for none."""
    found: str | None = None if value is None else ""
    for part in (value or "")[:LIMIT].replace(" ", "").split(","):
        key, _, text = part.partition(":")
        if key == _TORCH_KEY:
            found = text or "?"
    return found


THEANO_START = ("lib.cnmem", "gpuarray.preallocate", "gpuarray__preallocate")
_THEANO_DEVICE = re.compile(r"(?:gpu|cuda)([0-9]{1,3})")


def theano_device(text: str) -> int | None:
    """Return the ordinal in Theano's `device=cuda0` or `gpu0`; None where it leaves the choice to the driver."""
    match = _THEANO_DEVICE.fullmatch(text.strip())
    return int(match[1]) if match else None


def _theano(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read THEANO_FLAGS: a list `option=value,…`, split as a shell would, where the right-most of each option wins.

    Source: theano/configparser.py, parse_config_string.
    """
    name = "THEANO_FLAGS"
    if not _is_set(settings, name):
        return
    candidate = _candidate(settings, name, "theano", Kind.START)
    value = settings[name].value
    if value is None:
        yield candidate
        return
    splitter = shlex.shlex(value[:LIMIT], posix=True)
    splitter.whitespace = ","
    splitter.whitespace_split = True
    try:
        pairs = [part.strip().partition("=") for part in splitter]
    except ValueError:
        yield void(candidate, "Theano cannot split it: a quotation is left open")
        return
    options = {key: text for key, equals, text in pairs if equals}
    candidate = replace(candidate, device=theano_device(options.get("device", "")))
    for option in THEANO_START:
        if option in options:
            yield from with_value(replace(candidate, channel=f"{name} {option}"), options[option], sizes.theano)


def _paddle(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read Paddle's strategy: `auto_growth` takes memory as it is needed.

    Source: paddlepaddle.org.cn, docs, flags, FLAGS_allocator_strategy.
    """
    name = "FLAGS_allocator_strategy"
    if _is_set(settings, name) and settings[name].value in ("auto_growth", None):
        yield _candidate(settings, name, "paddle", Kind.GROWTH)


# -- layers below the frameworks --------------------------------------------------------------------------------------

_MPS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


def _mps(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read the limits that an MPS client asks for, one for each device; likely, as only clients are held to them.

    The quotes in NVIDIA's own example are taken off. Source: docs.nvidia.com/deploy/mps, environment variables.
    """
    if not _is_set(settings, _MPS):
        return
    sure = weakest(settings[_MPS].confidence, *(() if _is_set(settings, "CUDA_MPS_PIPE_DIRECTORY") else (_LIKELY,)))
    candidate = _candidate(settings, _MPS, "", Kind.HARD, margin=Margin.EXACT, confidence=sure)
    value = settings[_MPS].value
    if value is None:
        yield candidate
        return
    for entry in value[:LIMIT].strip(" '\"").split(",")[:_MANY]:
        if entry.strip():
            yield from with_value(candidate, entry, sizes.mps)


_LIKELY = Confidence.LIKELY
_HAMI = re.compile(r"(CUDA_DEVICE_(?:MEMORY|SM)_LIMIT)(?:_([0-9]{1,2}))?")


def _hami(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read HAMi's, which volcano uses too: for one device of the container, else for all; 0 is no limit.

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
        candidate = _candidate(settings, name, "", Kind.HARD, channel=channel, scope=CONTAINER, margin=Margin.EXACT)
        candidate = replace(
            candidate,
            device=int(device) if device else None,
            rank=0 if device else RANKS[channel],
            confidence=candidate.confidence if preloaded else weakest(candidate.confidence, _LIKELY),
        )
        if channel == "CUDA_DEVICE_SM_LIMIT":
            candidate = replace(candidate, kind=Kind.COMPUTE, margin=Margin.FRAMEWORK)
        elif oversubscribed:
            candidate = replace(candidate, text=shown(f"{candidate.text}, of virtual memory (CUDA_OVERSUBSCRIBE=true)"))
        yield from with_value(
            candidate, settings[name].value, sizes.hami if candidate.kind is Kind.HARD else sizes.hami_sms
        )


def _kai(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read KAI's and run:ai's: a fraction that nothing enforces, and what a process may count on beside its limit.

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
    yield from (
        void(candidate, "NVIDIA_GPU_MEMORY_LIMIT allows more") if limited else candidate for candidate in request
    )


def _genv(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read genv's: bytes on each device for all processes of one environment together.

    Source: run-ai/genv genv/enforce/rules/env_memory.py.
    """
    environment = _value(settings, "GENV_ENVIRONMENT_ID")
    scope = f"genv {shown(environment)}" if environment else ""
    yield from _said(settings, "GENV_GPU_MEMORY", "", Kind.GRANT, sizes.genv, scope=scope, margin=Margin.EXACT)


def _slurm(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read how many shards Slurm gave; how many a GPU has stands in gres.conf, so that their size is not known.

    Source: slurm.schedmd.com/gres.html, "Sharding".
    """
    name = "SLURM_SHARDS_ON_NODE"
    if _is_set(settings, name):
        job = _value(settings, "SLURM_JOB_ID")
        scope = f"Slurm job {shown(job)}" if job else ""
        yield _candidate(settings, name, "", Kind.GRANT, scope=scope, dynamic=True)


_COMMENT = re.compile(r"^[#;]|\s[#;]")
_SIGN = re.compile(r"[=:]")


def theanorc(text: str, path: str) -> list[Candidate]:
    """Return the start sizes in the text of a Theano configuration, with the GPU that its `device` names. Never raises.

    `[lib] cnmem` belongs to the old back end, `[gpuarray] preallocate` to the new one. What is given twice counts
    once, as it stands last. Likely, because THEANO_FLAGS or another file may say otherwise. Source: theano/
    configparser.py, fetch_val_for_key.
    """
    options = {f"{section}.{option}": (line, value) for line, section, option, value in _options(text)}
    _, device = options.get("global.device", (0, ""))
    found: list[Candidate] = []
    for option in THEANO_START:
        if option in options:
            line, value = options[option]
            section, _, name = option.partition(".")
            candidate = Candidate(
                channel=f"[{section}] {name}",
                where=clean(path),
                line=line,
                text=shown(f"{name} = {value}"),
                framework="theano",
                kind=Kind.START,
                confidence=Confidence.LIKELY,
                device=theano_device(device),
            )
            found += with_value(candidate, value, sizes.theano)
    return found


def _options(text: str) -> Iterable[tuple[int, str, str, str]]:
    """Return line, section, option and value of each option; lines that are none are passed over."""
    section = ""
    for line, content in enumerate(text.split("\n"), start=1):
        content = _COMMENT.split(content.strip(), maxsplit=1)[0].strip()
        if content.startswith("["):
            section = content[1:].partition("]")[0]
        elif content and section:
            option, *value = _SIGN.split(content, maxsplit=1)
            if value:
                yield line, section, option.strip().lower(), value[0].strip()
