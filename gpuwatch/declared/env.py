"""Reader of environment variables and ~/.theanorc that declare a share of GPU memory, and of misspelt names.

/proc/PID/environ contains the variables of the last execve(2). Variables that the program set later are missing there,
but are in the environment of the children that it has exec'ed, and often in its source code. See proc_pid_environ(5).

Most variables are rows of `VARIABLES`; those whose value is a list, or depends on other variables, have a function.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from gpuwatch.base.text import LIMIT, clean
from gpuwatch.declared import sizes
from gpuwatch.declared.facts import (
    Candidate,
    Facts,
    FrameworkConfig,
    Script,
    Setting,
    Unread,
    format_excerpt,
    parse_value,
    void,
)
from gpuwatch.model.snapshot import Confidence, Hint, Kind, Margin

UNSURE = (Confidence.STALE, Confidence.GUESS)
"""Confidences of a script that was edited, or a line that came too late: they do not replace known values."""


class Environment(NamedTuple):
    """Environment variables of a process, the places that set them, and the parts that could not be read."""

    settings: Mapping[str, Setting]
    read: bool
    """Whether the start variables of the process are known; a parent's variables may not be all of them."""
    words: str
    """Why something could not be read, and the replacement that was read; empty where everything was read."""


def merge_environment(facts: Facts) -> Environment:
    """Merge the variables at a process's start, those of its children, and those that its script sets."""
    own = facts.environ
    settings: dict[str, Setting] = {}
    words = ""
    if isinstance(own, Unread):
        words = own.of_environment
        readable = ((one.pid, one.environ) for one in facts.ancestors if not isinstance(one.environ, Unread))
        pid, heirs = next(readable, (0, {}))
        words += f"; that of its parent {pid} was read instead" if pid else ""
        inherited = Setting(value=None, where=f"environment of parent {pid}", confidence=Confidence.LIKELY)
        settings = {name: replace(inherited, value=value) for name, value in heirs.items()}
    else:
        settings = {name: Setting(value=value) for name, value in own.items()}
    for name, setting in _child_settings(facts):
        settings.setdefault(name, setting)
    for name, setting in facts.contents.settings:
        before = settings.get(name)
        confidence = file_confidence(setting.confidence, facts.script) if facts.script else setting.confidence
        setting = replace(setting, confidence=confidence)
        if before is None:
            if not setting.removes or isinstance(own, Unread):  # else there is nothing to remove
                settings[name] = setting
        elif before.value != setting.value and not setting.default and confidence not in UNSURE:
            # The order of the lines is not followed: of two that set different values either may be the last.
            doubted = before.line or confidence is Confidence.POSSIBLE
            settings[name] = replace(setting, value=None) if doubted else setting
    return Environment(settings, not isinstance(own, Unread), words)


WORKER = "from multiprocessing."
"""Beginning of the code of a spawned worker, which inherits its variables. Source: multiprocessing/spawn.py."""


def _child_settings(facts: Facts) -> Iterable[tuple[str, Setting]]:
    """Return the variables that all children share; those of an only child are a guess, unless it is a worker.

    A parent may give a child other variables: a trainer on GPU 0 starts a server with CUDA_VISIBLE_DEVICES=1.
    """
    environs = [(relative, relative.environ) for relative in facts.children if not isinstance(relative.environ, Unread)]
    if not environs:
        return
    first, values = environs[0]
    inherited = len(environs) > 1 or any(word.startswith(WORKER) for word in first.argv[1:8])
    sure = Confidence.LIKELY if inherited else Confidence.GUESS
    for name, value in values.items():
        if all(environ.get(name) == value for _, environ in environs):
            yield name, Setting(value=value, where=f"environment of child {first.pid}", confidence=sure)


_WEAKEST = (Confidence.CERTAIN, Confidence.LIKELY, Confidence.STALE, Confidence.GUESS, Confidence.POSSIBLE)


def weakest(*confidences: Confidence) -> Confidence:
    """Return the lowest of several confidences."""
    return max(confidences, key=_WEAKEST.index)


def file_confidence(confidence: Confidence, file: Script | FrameworkConfig) -> Confidence:
    """Return the confidence of a statement in a file: lower where the process may have read another file."""
    return weakest(confidence, Confidence.STALE if file.edited else Confidence.LIKELY if file.likely else confidence)


class Variable(NamedTuple):
    """Environment variable whose meaning depends on no other variable."""

    name: str
    framework: str
    """Framework's id in `frameworks.NAMES`; empty for a layer below the frameworks."""
    kind: Kind
    parse: sizes.Parser | None = None
    """Parser of the number in its value; None where its value has no number."""
    margin: Margin = Margin.FRAMEWORK
    scope: str = ""
    scope_id: str = ""
    """Variable that contains the name of the scope; without one, only a scope CONTAINER counts."""
    values: frozenset[str] = frozenset()
    """Values that declare something; empty for any value."""
    unless: str = ""
    """Variable that, where it is set, makes this one have no effect."""
    several: bool = False
    """Whether its value is a list with an entry for each device."""


CONTAINER = "container"
"""Scope to which the resolver adds the container's id."""

_ASYNC = frozenset({"cuda_malloc_async"})
_JAX_FRACTION = "XLA_CLIENT_MEM_FRACTION"
_JAX_DEPRECATED = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_JAX_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"
_TF_ALLOCATOR = "TF_GPU_ALLOCATOR"
_TF_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
_MPS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_MPS_THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_RASA = "TF_GPU_MEMORY_ALLOC"
_EXACT = Margin.EXACT

VARIABLES = (
    # gpuwatch run: an agreement between people, which nothing enforces.
    Variable("GPUWATCH_SHARE", "", Kind.GRANT, sizes.gpuwatch),
    # cupy/cuda/memory.pyx: a limit of the default pool on each device.
    Variable("CUPY_GPU_MEMORY_LIMIT", "cupy", Kind.CAP, sizes.cupy),
    # paddle/fluid/platform/device/gpu/gpu_info.cc: N << 20 bytes. The other two are sizes of one chunk of many.
    Variable("FLAGS_gpu_memory_limit_mb", "paddle", Kind.CAP, sizes.mib),
    Variable("FLAGS_fraction_of_gpu_memory_to_use", "paddle", Kind.START, sizes.fraction_or_off),
    Variable("FLAGS_initial_gpu_memory_in_mb", "paddle", Kind.START, sizes.mib),
    # paddlepaddle.org.cn, docs, flags.
    Variable("FLAGS_allocator_strategy", "paddle", Kind.GROWTH, values=frozenset({"auto_growth"})),
    # text-generation-inference/launcher/src/main.rs: the launcher sets it on its shards, to 1.0 by default.
    Variable("CUDA_MEMORY_FRACTION", "tgi", Kind.CAP, sizes.fraction_or_all),
    # ollama/envconfig/config.go: bytes on each GPU.
    Variable("OLLAMA_GPU_OVERHEAD", "ollama", Kind.RESERVE, sizes.plain_bytes),
    # tensorflow/core/common_runtime/gpu/gpu_device.cc, MinSystemMemory.
    Variable("TF_DEVICE_MIN_SYS_MEMORY_IN_MB", "tensorflow", Kind.RESERVE, sizes.mib),
    # CUDA.jl docs/src/usage/memory.md: above the soft one it collects garbage, above the hard one it fails.
    Variable("JULIA_CUDA_HARD_MEMORY_LIMIT", "julia", Kind.CAP, sizes.julia),
    Variable("JULIA_CUDA_SOFT_MEMORY_LIMIT", "julia", Kind.GROWTH, sizes.julia),
    # docs.jax.dev, gpu-memory: XLA reads it too.
    Variable(_TF_ALLOCATOR, "tensorflow", Kind.GROWTH, values=_ASYNC),
    Variable(_TF_ALLOCATOR, "jax", Kind.GROWTH, values=_ASYNC),
    # jaxlib/xla_client.py, generate_pjrt_gpu_plugin_options.
    Variable("XLA_PYTHON_CLIENT_PREALLOCATE", "jax", Kind.GROWTH, values=frozenset({"false", "False", "0"})),
    # docs.nvidia.com/deploy/topics/topic_5_2_5.html: a cap of the threads, and no reservation.
    Variable(_MPS_THREADS, "", Kind.COMPUTE, sizes.percent_of_sms),
    # docs.nvidia.com/deploy/mps, environment variables; in NVIDIA's example it is in quotes.
    Variable(_MPS, "", Kind.HARD, sizes.mps, _EXACT, several=True),
    # rasa/utils/tensorflow/environment.py: limits that Rasa sets for TensorFlow.
    Variable(_RASA, "tensorflow", Kind.CAP, sizes.rasa, several=True),
    # kai-gpu-fractioning, fractiond/internal/injection: whole MiB, applied to the cgroup through NVML.
    Variable("NVIDIA_GPU_MEMORY_LIMIT", "", Kind.HARD, sizes.mib, _EXACT, CONTAINER),
    Variable(
        "NVIDIA_GPU_MEMORY_REQUEST", "", Kind.GRANT, sizes.mib, _EXACT, CONTAINER, unless="NVIDIA_GPU_MEMORY_LIMIT"
    ),
    # KAI-Scheduler pkg/binder/common/gpu_access.go: nothing enforces it; run:ai has one text under both names.
    Variable("GPU_PORTION", "", Kind.GRANT, sizes.positive_fraction, scope=CONTAINER),
    Variable("RUNAI_NUM_OF_GPUS", "", Kind.GRANT, sizes.positive_fraction, scope=CONTAINER, unless="GPU_PORTION"),
    # genv, enforce/rules/env_memory.py: bytes on each device for all processes of one environment together.
    Variable("GENV_GPU_MEMORY", "", Kind.GRANT, sizes.genv, _EXACT, "genv", "GENV_ENVIRONMENT_ID"),
    # slurm.schedmd.com/gres.html, "Sharding": gres.conf has the number of shards of a GPU.
    Variable("SLURM_SHARDS_ON_NODE", "", Kind.GRANT, None, scope="Slurm job", scope_id="SLURM_JOB_ID"),
)

_MANY = 64
"""Devices and entries that are read from one variable, at most."""


def candidates(settings: Mapping[str, Setting]) -> list[Candidate]:
    """Return the candidates for limits of memory and SMs in an environment. Never raises.

    A value that the framework would refuse gives a `void` candidate, a setting without a value a `dynamic` one.
    """
    found = [one for row in VARIABLES for one in _read_variable(settings, row)]
    for several in (_jax, _tensorflow, _torch, _theano, _hami):
        found += several(settings)
    return found


def _read_variable(settings: Mapping[str, Setting], row: Variable) -> list[Candidate]:
    value = _value(settings, row.name)
    if not _is_set(settings, row.name) or (row.unless and _is_set(settings, row.unless)):
        return []
    if row.values and value is not None and value not in row.values:
        return []
    scope = row.scope
    if row.scope != CONTAINER:
        name = _value(settings, row.scope_id)
        scope = f"{row.scope} {format_excerpt(name)}" if name else ""
    candidate = replace(_candidate(settings, row.name, row.framework, row.kind), scope=scope, margin=row.margin)
    if row.parse is None:
        return [replace(candidate, dynamic=candidate.dynamic or row.kind is Kind.GRANT)]
    entries: list[str | None] = [value]
    if row.several and value is not None:
        entries = [one for one in value[:LIMIT].strip(" '\"").split(",")[:_MANY] if one.strip()]
    return [found for one in entries for found in parse_value(candidate, one, row.parse)]


def _candidate(settings: Mapping[str, Setting], name: str, framework: str, kind: Kind) -> Candidate:
    """Return the candidate of a variable that is set, without its value."""
    setting = settings[name]
    return Candidate(
        channel=name,
        where=setting.where,
        line=setting.line,
        text=format_excerpt(setting.text or f"{name}={'' if setting.value is None else setting.value}"),
        framework=framework,
        kind=kind,
        confidence=setting.confidence,
        condition=setting.condition,
        dynamic=setting.value is None,
    )


def _is_set(settings: Mapping[str, Setting], name: str) -> bool:
    """Return whether a variable is set and not empty: most programs treat an empty variable as unset."""
    return name in settings and settings[name].value != ""


def _value(settings: Mapping[str, Setting], name: str) -> str | None:
    """Return the text of a variable; None where it is not set or not known."""
    setting = settings.get(name)
    return setting.value if setting else None


# -- frameworks -------------------------------------------------------------------------------------------------------


_UNCAPPED = ("platform", "cuda_async", "address")
_CAPPED = ("default", "bfc", "vmm")


def _jax(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read JAX's fraction, which has two names; some allocators ignore it.

    Sources: jaxlib/xla_client.py, generate_pjrt_gpu_plugin_options; xla/pjrt/plugin/xla_gpu/xla_gpu_allocator_config.h
    (memory_fraction); docs.jax.dev, gpu-memory (vmm has it too). Before jaxlib 0.4.1 it was a fraction of what is free.
    """
    names = [name for name in (_JAX_FRACTION, _JAX_DEPRECATED) if _is_set(settings, name)]
    allocator = (_value(settings, _JAX_ALLOCATOR) or "").lower()
    why = ""
    if len(names) == 2:
        why = "JAX refuses to start with both set"
    elif allocator in _UNCAPPED:
        why = f"the {allocator} allocator ignores it"
    elif allocator and allocator not in _CAPPED:
        why = f"JAX refuses to start with {_JAX_ALLOCATOR}={format_excerpt(allocator)}"
    elif _value(settings, _TF_ALLOCATOR) in _ASYNC:
        why = f"{_TF_ALLOCATOR}=cuda_malloc_async ignores it"
    unified = (_value(settings, "TF_FORCE_UNIFIED_MEMORY") or "").lower() in ("1", "true")
    parse = sizes.unified_fraction if unified else sizes.positive_fraction
    for name in names:
        for one in parse_value(_candidate(settings, name, "jax", Kind.CAP), settings[name].value, parse):
            yield void(one, why) if why else one
    if allocator in _UNCAPPED:
        yield _candidate(settings, _JAX_ALLOCATOR, "jax", Kind.GROWTH)


def _tensorflow(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read TF_FORCE_GPU_ALLOW_GROWTH: exactly `true` forces growth, `false` leaves the default.

    Source: tensorflow/core/common_runtime/gpu/gpu_bfc_allocator.cc, GetAllowGrowthValue.
    """
    if _TF_GROWTH in settings and settings[_TF_GROWTH].value != "false":
        candidate = _candidate(settings, _TF_GROWTH, "tensorflow", Kind.GROWTH)
        heeded = settings[_TF_GROWTH].value in ("true", None)
        yield candidate if heeded else void(candidate, "TensorFlow accepts only true and false")


_TORCH = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_TORCH_KEY = "per_process_memory_fraction"


def _torch(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read PyTorch's fraction for all devices: a key in a list `key:value,…`; the last one counts.

    Where PYTORCH_CUDA_ALLOC_CONF is set, even to an empty text, PYTORCH_ALLOC_CONF is not read for this key; the
    documentation says the opposite. A PyTorch that does not know the key does not start with it. Source:
    c10/cuda/CUDAAllocatorConfig.h, `instance` and `getKeys`, in all versions that have the key.
    """
    for name in _TORCH:
        if not _is_set(settings, name):
            continue
        value = settings[name].value
        parts = [part.partition(":") for part in (value or "")[:LIMIT].replace(" ", "").split(",")]
        fractions = [None] if value is None else [text or "?" for key, _, text in parts if key == _TORCH_KEY]
        candidate = _candidate(settings, name, "torch", Kind.CAP)
        for one in parse_value(candidate, fractions[-1], sizes.fraction) if fractions else ():
            beaten = name == _TORCH[0] and _TORCH[1] in settings
            yield void(one, f"PyTorch reads {_TORCH[1]} instead") if beaten else one


_THEANO_START = ("lib.cnmem", "gpuarray.preallocate", "gpuarray__preallocate")
_THEANO_DEVICE = r"\s*(?:gpu|cuda)([0-9]{1,3})\s*"


def _theano_device(text: str) -> int | None:
    """Return the ordinal in Theano's `device=cuda0` or `gpu0`; None where the driver shall choose."""
    match = re.fullmatch(_THEANO_DEVICE, text)
    return int(match[1]) if match else None


def _theano(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read THEANO_FLAGS: a list `option=value,…`, split as in a shell; the last value of an option counts.

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
        yield void(candidate, "Theano cannot parse it: a quote is not closed")
        return
    options = {key: text for key, equals, text in pairs if equals}
    candidate = replace(candidate, device=_theano_device(options.get("device", "")))
    for option in _THEANO_START:
        if option in options:
            yield from parse_value(replace(candidate, channel=f"{name} {option}"), options[option], sizes.theano)


_COMMENT = r"^[#;]|\s[#;]"
_SIGN = r"[=:]"


def theanorc(text: str, path: str) -> list[Candidate]:
    """Return the start sizes in the text of a Theano configuration, with the GPU that its `device` names. Never raises.

    `[lib] cnmem` belongs to the old back end, `[gpuarray] preallocate` to the new one. Of two equal options the last
    counts. Their confidence is LIKELY: THEANO_FLAGS or another file may override them. Source: theano/
    configparser.py, fetch_val_for_key.
    """
    options: dict[str, tuple[int, str]] = {}
    section = ""
    for line, content in enumerate(text.split("\n"), start=1):
        content = re.split(_COMMENT, content.strip(), maxsplit=1)[0].strip()
        if content.startswith("["):
            section = content[1:].partition("]")[0]
        elif content and section:
            name, *value = re.split(_SIGN, content, maxsplit=1)
            if value:
                options[f"{section}.{name.strip().lower()}"] = (line, value[0].strip())
    _, device = options.get("global.device", (0, ""))
    found: list[Candidate] = []
    for option in _THEANO_START:
        if option in options:
            line, number = options[option]
            section, _, name = option.partition(".")
            candidate = Candidate(
                channel=f"[{section}] {name}",
                where=clean(path),
                line=line,
                text=format_excerpt(f"{name} = {number}"),
                framework="theano",
                kind=Kind.START,
                confidence=Confidence.LIKELY,
                device=_theano_device(device),
            )
            found += parse_value(candidate, number, sizes.theano)
    return found


# -- layers below the frameworks --------------------------------------------------------------------------------------


def find_lack(channel: str, facts: Facts) -> str:
    """Return the condition on which a variable of MPS, HAMi or Rasa has an effect; empty where the process meets it."""
    if channel in (_MPS, _MPS_THREADS) and not facts.mps:
        return "if an MPS daemon serves it"
    if re.fullmatch(_HAMI, channel) and (
        isinstance(facts.libraries, Unread) or not any(one.startswith("libvgpu") for one in facts.libraries)
    ):
        return "if HAMi's libvgpu.so is loaded"
    names = [*facts.contents.imports, *(word.rpartition("/")[2].partition(".")[0] for word in facts.argv[:4])]
    if channel == _RASA and "rasa" not in names:
        return "if it runs Rasa, which reads it"
    return ""


_HAMI = r"(CUDA_DEVICE_(?:MEMORY|SM)_LIMIT)(?:_([0-9]{1,2}))?"


def _hami(settings: Mapping[str, Setting]) -> Iterable[Candidate]:
    """Read the limits of HAMi and volcano: for one device of the container, else for all; 0 means no limit.

    Source: HAMi-core src/multiprocess/multiprocess_memory_limit.c, do_init_device_memory_limits and
    do_init_device_sm_limits.
    """
    matches = [match for name in settings if name.startswith("CUDA_DEVICE_") and (match := re.fullmatch(_HAMI, name))]
    virtual = (_value(settings, "CUDA_OVERSUBSCRIBE") or "").lower() == "true"
    for match in sorted(matches, key=lambda match: (match[1], int(match[2] or -1)))[: 2 * _MANY]:
        name, channel, device = match[0], match[1], match[2]
        if not _is_set(settings, name):
            continue
        of_memory = "MEMORY" in channel
        candidate = replace(
            _candidate(settings, name, "", Kind.HARD if of_memory else Kind.COMPUTE),
            channel=channel,
            scope=CONTAINER,
            margin=_EXACT if of_memory else Margin.FRAMEWORK,
            device=int(device) if device else None,
            rank=0 if device else -1,  # the one of the device comes before the one of all
        )
        if of_memory and virtual:
            text = f"{candidate.text}, of virtual memory (CUDA_OVERSUBSCRIBE=true)"
            candidate = replace(candidate, text=format_excerpt(text))
        yield from parse_value(candidate, settings[name].value, sizes.hami if of_memory else sizes.hami_sms)


# -- misspelt names ---------------------------------------------------------------------------------------------------

# Names that people type, and so long that a similar name can only be a typing error.
_MEANT = sorted(
    {row.name for row in VARIABLES} - {"GPU_PORTION", "RUNAI_NUM_OF_GPUS", "SLURM_SHARDS_ON_NODE", _RASA}
    | {_JAX_FRACTION, _JAX_DEPRECATED, _JAX_ALLOCATOR, _TF_GROWTH, *_TORCH, "THEANO_FLAGS", "TF_FORCE_UNIFIED_MEMORY"}
    | {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"}
    | {"CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT", "CUDA_OVERSUBSCRIBE"}
)
_OTHERS = frozenset(
    {
        *("cpu", "xpu", "npu", "mlu", "gcu", "dcu", "hpu", "tpu", "ipu", "hip", "rocm", "maca", "musa", "sdaa", "supa"),
        *("sycl", "ascend", "reactant"),
    }
)
"""Words of real names of other vendors, and of the CPU's: FLAGS_fraction_of_xpu_memory_to_use is no misspelling."""
# Not misspellings. NVIDIA's page on MPS has the first in an example
# (docs.nvidia.com/deploy/mps/latest/appendix-environment-variables.html). CUDA_MEM_FRACTION is others'.
_MISNAMED = {
    "CUDA_MPS_DEVICE_MEM_LIMIT": _MPS,
    **{name.replace("_MEM_", "_MEMORY_"): name for name in _MEANT if "_MEM_" in name},
    **{re.sub("_(mem|MEM)(ory|ORY)_", r"_\1_", name): name for name in _MEANT if "_MEMORY_" in name.upper()},
}
del _MISNAMED["CUDA_MEM_FRACTION"]

_ALIKE = 0.9
"""Least ratio of `difflib` for a misspelling: one wrong letter in the shortest name, two or three in longer ones."""
# An environment may be made of 100,000 names that are nearly right.
_MOST_NAMES = 2000
_MOST_HINTS = 8


def find_misspelt(names: Iterable[str]) -> list[Hint]:
    """Return a hint for each name that looks like a misspelt variable of gpuwatch's tables.

    One letter in ten or so may be missing, wrong, too many or swapped, and the first three must be right. A name that
    starts or ends with a known name (CUDA_VISIBLE_DEVICES_OLD) is no misspelling, nor is any name where the known one
    is set too. The search avoids false hints rather than finding all misspellings.
    """
    given = dict.fromkeys(islice(names, _MOST_NAMES))
    slips = ((name, meant) for name in given if (meant := _find_meant(name)) and meant not in given)
    words = (f"{name} has no effect; use {meant}" for name, meant in islice(slips, _MOST_HINTS))
    return [Hint(rule="misspelt", words=one) for one in words]


@functools.lru_cache(maxsize=128)
def _find_meant(name: str) -> str:
    """Return the known name that `name` misspells; empty where there is none."""
    if name in _MISNAMED:
        return _MISNAMED[name]
    near = [meant for meant in _MEANT if meant[:3] == name[:3] and abs(len(meant) - len(name)) <= 2]
    joined = any(name.startswith(one) or name.endswith(one) for one in near)  # to another word: meant as it is
    if not near or joined or not name.replace("_", "").isalpha() or not name.isascii():
        return ""
    if not _OTHERS.isdisjoint(name.lower().split("_")):
        return ""
    import difflib  # for a mistake alone

    return next(iter(difflib.get_close_matches(name, near, n=1, cutoff=_ALIKE)), "")
