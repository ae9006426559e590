"""Patterns of code that tell a library about GPUs and their memory.

Source: tensorflow/core/protobuf/config.proto, tensorflow/core/common_runtime/gpu/gpu_device.cc,
tensorflow/python/framework/config.py, tensorflow/python/eager/context.py.

Sources: torch/cuda/memory.py; cupy/cuda/memory.pyx; rmm/rmm.py and rmm/pylibrmm/helper.pyx;
onnxruntime.ai/docs/api/c/struct_ort_c_u_d_a_provider_options.html; vllm/config/cache.py; sglang server_args.py;
nvidia.github.io/TensorRT-LLM/llm-api/reference (KvCacheConfig); lmdeploy/messages.py; jax/_src/distributed.py;
docs.ray.io/en/latest/ray-core/scheduling/resources.html; theano/configdefaults.py, theano/gpuarray/__init__.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from gpuwatch.declared import sizes
from gpuwatch.declared.facts import Claim, Selection, said
from gpuwatch.declared.script_values import LOCAL, UNKNOWN, Each, Names, Scope, Value, Values, number
from gpuwatch.model import Basis, Confidence, Hint, Kind, Margin
from gpuwatch.text import ELLIPSIS, clean, ends, redact
from gpuwatch.units import MIB

Item: TypeAlias = Claim | Selection | Hint

CODE = 100
"""The rank of what a program itself calls: above its environment and its files."""

WIDTH = 100
"""Characters of source that a claim carries."""
_LONGEST = 4096
"""Bytes of a piece that are looked at."""
_MOST_OPTIONS = 256
"""Entries of a dict of options; a longer one is data."""
_MOST_DEVICES = 64
"""An ordinal past this is no GPU: no machine has so many."""


class Source:
    """The text of a source, from which pieces are shown."""

    def __init__(self, text: str, name: str) -> None:
        self.name = clean(name)
        self._lines = text.encode().split(b"\n")  # `ast` counts columns in bytes of UTF-8.

    def excerpt(self, node: ast.expr | ast.stmt) -> str:
        """Give the source of *node* in one line, as it is written; of one that is very long the beginning, with "…"."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        pieces: list[bytes] = []
        room = _LONGEST
        for place in range(first, last + 1):
            begin = node.col_offset if place == first else 0
            piece = self._lines[place][begin : node.end_col_offset if place == last else None]
            pieces.append(piece[: max(room, 0)].strip())
            room -= len(piece) + 1
            if room < -1:
                pieces[-1] += ELLIPSIS.encode()
                break
        return b" ".join(filter(None, pieces)).decode("utf-8", "replace")


def shown(text: str) -> str:
    """Clean a piece of source, its secrets masked, to at most `WIDTH` characters: of a long one both ends.

    Of one that was not read to its end, which may have cut a secret in two, the beginning.
    """
    shorten = clean if text.endswith(ELLIPSIS) else ends
    return shorten(redact(("-c", text))[1], WIDTH)


class Device(NamedTuple):
    """A GPU that code speaks of: an ordinal among the visible ones, or None for each, or for one that is not known."""

    ordinal: int | None
    known: bool = True


EACH = Device(None)
"""Each GPU that is visible."""
SOME = Device(None, known=False)
"""One that is only known at run time."""

_COUNTS = ("cuda.device_count()", "runtime.getDeviceCount()")
"""Calls that tell how many GPUs are visible: PyTorch's and CuPy's."""


def _device(value: Value) -> Device:
    """Give the GPU of an ordinal; what is none is known only at run time."""
    return Device(int(value)) if isinstance(value, int) and 0 <= value < _MOST_DEVICES else SOME


@dataclass(frozen=True, slots=True)
class Site:
    """A call, a dict or an assignment, with what is known there."""

    node: ast.expr | ast.stmt
    scope: Scope
    names: Names
    values: Values
    source: Source
    current: tuple[Device, ...]
    """The GPU that CUDA is set to, in a loop those that it is set to in turn."""
    sure: Confidence
    called: bool = True
    """Whether anything is known to call the function that it stands in."""

    def last(self, node: ast.expr) -> str:
        """Give the last part of the path: the name of what is called."""
        return self.path(node).rpartition(".")[2]

    def path(self, node: ast.expr) -> str:
        """As `Names.path`."""
        return self.names.path(node, self.scope)

    def value(self, node: ast.expr) -> Value:
        """As `Values.of`."""
        return self.values.of(node, self.scope)

    def follow(self, node: ast.expr) -> ast.expr:
        """Give the expression that a name was assigned once, and any other as it is."""
        if isinstance(node, ast.Name):
            constant = self.names.constant(node.id, self.scope)
            if constant is not None:
                return constant[0]
        return node

    def entries(self, node: ast.expr) -> dict[str, ast.expr]:
        """Give the named values of a literal dict, a `dict(…)` or a name for one of them; nothing for all else."""
        match self.follow(node):
            case ast.Dict(keys=keys, values=values) if len(keys) <= _MOST_OPTIONS:
                return {
                    key.value: value
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                }
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                return {one.arg: one.value for one in keywords if one.arg}
        return {}

    def keywords(self, call: ast.Call) -> dict[str, ast.expr]:
        """Give the arguments of a call that have a name, those in `**options` too where they can be seen."""
        found: dict[str, ast.expr] = {}
        for one in call.keywords:
            found |= {one.arg: one.value} if one.arg else self.entries(one.value)
        return found

    def argument(self, call: ast.Call, place: int, name: str) -> ast.expr | None:
        """Give one argument, by its place or its name; None where it is not given, or is None."""
        starred = any(isinstance(one, ast.Starred) for one in call.args[: place + 1])
        found = call.args[place] if len(call.args) > place and not starred else self.keywords(call).get(name)
        return None if found is None or self.value(found) is None else found

    def measured(self, node: ast.expr, *, unit: float = 1, most: float | None = None) -> dict[str, Any]:
        """Give a claim the number *node*, in *unit*s; what is none, or not in 0 to *most*, makes it void."""
        value = self.value(node)
        if value is UNKNOWN:
            return {"dynamic": True}
        amount = number(value)
        if amount is None:
            return {"void": f"{shown(self.source.excerpt(node))} is no number"}
        if amount < 0 or (most is not None and amount > most):
            allowed = f"outside 0 to {most:g}" if most is not None else "less than 0"
            return {"void": f"{amount:g} is {allowed}"}
        return {"value": amount * unit}

    def on(self, node: ast.expr | None) -> tuple[Device, ...]:
        """Say which GPUs an argument means: 1, `cuda:1`, `torch.device("cuda", 1)`, a loop's; None: the current one."""
        if node is None:
            return self.current
        followed = self.follow(node)
        if isinstance(followed, ast.Call) and self.path(followed.func).endswith(("torch.device", "cuda.Device")):
            index = self.argument(followed, 1, "index")
            return self.on(index if index is not None else self.argument(followed, 0, "device"))
        bound = self.names.single(node.id, self.scope) if isinstance(node, ast.Name) else None
        if bound is not None and isinstance(bound[0], Each):
            return self.in_turn(bound[0].iterable, bound[1])
        value = self.value(node)
        if isinstance(value, str):
            match = re.fullmatch(r"cuda(?::([0-9]{1,4}))?", value)
            if match and not match[1]:
                return self.current
            value = int(match[1]) if match else UNKNOWN
        return (_device(value),)

    def in_turn(self, iterable: ast.expr, scope: Scope) -> tuple[Device, ...]:
        """Say over which GPUs a loop runs: `range(4)`, `[0, 2]`, `range(torch.cuda.device_count())`."""
        match iterable:
            case ast.Call(func=ast.Name(id="range"), args=[*begin, end]) if len(begin) <= 1:
                if self.names.path(end, scope).endswith(_COUNTS):
                    return (EACH,)
                first = self.values.of(begin[0], scope) if begin else 0
                last = self.values.of(end, scope)
                if isinstance(first, int) and isinstance(last, int) and 0 <= first < last <= _MOST_DEVICES:
                    return tuple(map(Device, range(first, last)))
            case _:
                values = self.values.of(iterable, scope)
                if isinstance(values, tuple):
                    return tuple(map(_device, values[:_MOST_DEVICES]))
        return (SOME,)

    def ordinals(self, value: Value) -> tuple[int, ...] | None:
        """Read a list of ordinals as TensorFlow and JAX take it: `"1,2"`, `[1, 2]`, 1; None where it cannot be told."""
        if isinstance(value, str):
            parts = [part.strip() for part in value.split(",")]
            return (
                tuple(int(part) for part in parts) if all(re.fullmatch("[0-9]{1,4}", part) for part in parts) else None
            )
        several = value if isinstance(value, tuple) else (value,)
        found = tuple(int(one) for one in several if isinstance(one, int) and one >= 0)
        return found if len(found) == len(several) else None

    def text(self, name: str = "", value: ast.expr | None = None) -> str:
        """Give the source to show: all of it, or where that is too long only the argument *name*."""
        whole = self.source.excerpt(self.node)
        if len(whole) > WIDTH and value is not None:
            given = self.part(value)
            if isinstance(self.node, ast.Call):
                whole = f"{self.source.excerpt(self.node.func)[-WIDTH // 2 :]}(… {name}={given} …)"
            elif isinstance(self.node, ast.Dict):
                whole = f'{{… "{name}": {given} …}}'
        return shown(whole)

    def part(self, node: ast.expr) -> str:
        """Give the source of a part of it to show."""
        return shown(self.source.excerpt(node))

    def claim(self, device: Device = EACH, **fields: Any) -> Claim:
        """Make a claim of what stands here."""
        sure = self.sure if device.known or self.sure is not Confidence.CERTAIN else Confidence.LIKELY
        given: Mapping[str, Any] = {
            "where": self.source.name,
            "line": self.node.lineno,
            "rank": CODE,
            "confidence": sure,
            "device": device.ordinal,
            "some_gpu": not device.known,
            "uncalled": not self.called,
            **fields,
        }
        return Claim(**given)

    def selection(self, channel: str, framework: str, ordinals: Sequence[int] | None, text: str = "") -> Selection:
        """Make a selection of what stands here; what may not have run has chosen nothing that could be told."""
        certain = self.sure is Confidence.CERTAIN and ordinals is not None
        return Selection(
            channel=channel,
            framework=framework,
            ordinals=tuple(ordinals) if certain and ordinals is not None else None,
            where=self.source.name,
            line=self.node.lineno,
            text=text or self.text(),
        )


_TENSORFLOW = "tensorflow"
_BELOW_LIMITS = CODE - 10
"""The rank of the fraction: TensorFlow refuses it beside memory limits of logical devices, and those stand."""
_DEPTH = 8
_MOST = 64

_LISTS = ("list_physical_devices", "get_visible_devices", "list_logical_devices")
_CONFIGURATIONS = ("LogicalDeviceConfiguration", "VirtualDeviceConfiguration")


class Every(Enum):
    """All GPUs that TensorFlow sees, however many there are."""

    EVERY = "every"


EVERY = Every.EVERY
Gpus: TypeAlias = "tuple[int, ...] | Every | None"
"""Ordinals of GPUs, all of them, or None where it cannot be told; an empty tuple is no GPU, as CPUs are."""


# -----------------------------------------------------------------------------------------------------------------
# GPUOptions


def gpu_options(site: Site, call: ast.Call) -> Iterator[Item]:
    """Read `GPUOptions(per_process_gpu_memory_fraction=0.4, allow_growth=True)`."""
    for name, value in site.keywords(call).items():
        yield from gpu_option(site, name, value)


def assigned(site: Site, target: ast.Attribute, value: ast.expr) -> Iterator[Item]:
    """Read `config.gpu_options.per_process_gpu_memory_fraction = 0.4`, and the same through `opts = …gpu_options`."""
    path = site.path(target.value)
    if path.endswith(("gpu_options", "GPUOptions()")):
        yield from gpu_option(site, target.attr, value)


def gpu_option(site: Site, name: str, value: ast.expr) -> Iterator[Item]:
    """Read one field of `GPUOptions`."""
    if name == "per_process_gpu_memory_fraction":
        # Above 1 it means unified memory, with which a process may take more than the GPU has.
        measured = site.measured(value)
        if measured.get("value") == 0:
            measured["void"] = "0 leaves it to TensorFlow"
        yield site.claim(
            channel=name,
            text=site.text(name, value),
            framework=_TENSORFLOW,
            kind=Kind.CAP,
            basis=Basis.TOTAL,
            rank=_BELOW_LIMITS,
            **measured,
        )
    elif name == "per_process_memory_fraction":
        words = (
            f"{site.source.name}:{site.node.lineno}: GPUOptions has no per_process_memory_fraction; "
            "per_process_gpu_memory_fraction is meant"
        )
        yield Hint(rule="no effect", words=words)
    elif name == "allow_growth":
        yield from _growth(site, value, name, site.text(name, value), EACH)
    elif name == "visible_device_list":
        chosen = site.value(value)
        if chosen != "":  # The default: all that are visible.
            yield site.selection(name, _TENSORFLOW, site.ordinals(chosen), site.text(name, value))


def _growth(site: Site, value: ast.expr, channel: str, text: str, device: Device) -> Iterator[Item]:
    wanted = site.value(value)
    if wanted is UNKNOWN or wanted:
        yield site.claim(
            device, channel=channel, text=text, framework=_TENSORFLOW, kind=Kind.GROWTH, dynamic=wanted is UNKNOWN
        )


# -----------------------------------------------------------------------------------------------------------------
# tf.config


def memory_growth(site: Site, call: ast.Call) -> Iterator[Item]:
    """Read `set_memory_growth(gpu, True)`."""
    device, enable = site.argument(call, 0, "device"), site.argument(call, 1, "enable")
    if device is not None and enable is not None:
        for one in _each(gpus(site, device)):
            yield from _growth(site, enable, "set_memory_growth", site.text(), one)


def logical_devices(site: Site, call: ast.Call) -> Iterator[Item]:
    """Read `set_logical_device_configuration(gpus[0], [LogicalDeviceConfiguration(memory_limit=1024), …])`.

    The limits are MiB, and those of one GPU add up. One without a limit is refused for a GPU, and so is no claim.
    """
    device = site.argument(call, 0, "device")
    parts = site.argument(call, 1, "logical_devices") or site.argument(call, 1, "virtual_devices")
    if device is None or parts is None:
        return
    limits = _limits(site, parts)
    for one in _each(gpus(site, device)):
        fields = {"channel": "memory_limit", "framework": _TENSORFLOW, "kind": Kind.CAP, "basis": Basis.BYTES}
        if limits is None:
            yield site.claim(one, text=site.text(), dynamic=True, **fields)
            continue
        for part, limit in limits:
            text = site.text() if len(limits) == 1 else site.part(part)
            adds = f"line {call.lineno}, GPU {one.ordinal}"
            yield site.claim(one, text=text, adds=adds, **fields, **site.measured(limit, unit=MIB))


def visible_devices(site: Site, call: ast.Call) -> Iterator[Item]:
    """Read `set_visible_devices(gpus[0:2], "GPU")`; what it says of CPUs hides no GPU."""
    devices, kind = site.argument(call, 0, "devices"), site.argument(call, 1, "device_type")
    if devices is None or (kind is not None and site.value(kind) not in ("GPU", UNKNOWN)):
        return
    chosen = gpus(site, devices)
    if chosen is not EVERY:
        yield site.selection("set_visible_devices", _TENSORFLOW, chosen)


def gpus(site: Site, node: ast.expr) -> Gpus:
    """Say which GPUs an expression holds: `tf.config.list_physical_devices("GPU")[0:2]`, a name or a loop over it."""
    return _gpus(site, node, site.scope, _DEPTH)


def _gpus(site: Site, node: ast.expr, scope: Scope, depth: int) -> Gpus:
    match node:
        case _ if not depth:
            return None
        case ast.Name(id=name):
            found = site.names.single(name, scope)
            if found is None or found[0] is None or isinstance(found[0], str):
                return None
            bound = found[0].iterable if isinstance(found[0], Each) else found[0]
            return _gpus(site, bound, found[1], depth - 1)
        case ast.Call(func=function) if site.names.path(function, scope).rpartition(".")[2] in _LISTS:
            # Without a type the list begins with the CPU, and an index says nothing.
            kind = site.argument(node, 0, "device_type")
            wanted = site.values.of(kind, scope) if kind is not None else UNKNOWN
            return EVERY if wanted == "GPU" else None if wanted is UNKNOWN else ()
        case ast.Subscript(value=base, slice=ast.Slice(lower=lower, upper=upper, step=step)):
            bounds = [None if one is None else site.values.of(one, scope) for one in (lower, upper, step)]
            return _sliced(_gpus(site, base, scope, depth - 1), bounds)
        case ast.Subscript(value=base, slice=index):
            whole = _gpus(site, base, scope, depth - 1)
            turns = _turns(site, index, scope, depth)
            if whole is EVERY and turns is not None:
                return turns
            return _indexed(whole, site.values.of(index, scope))
        case ast.List(elts=parts) | ast.Tuple(elts=parts) if len(parts) <= _MOST:
            return _together(_gpus(site, part, scope, depth // 2) for part in parts)
    return None


def _turns(site: Site, index: ast.expr, scope: Scope, depth: int) -> Gpus:
    """Give the GPUs that a loop's variable counts: `for i in range(len(gpus))`, `for i in range(2)`."""
    bound = site.names.single(index.id, scope) if isinstance(index, ast.Name) else None
    if bound is None or not isinstance(bound[0], Each):
        return None
    match bound[0].iterable:
        case ast.Call(func=ast.Name(id="range"), args=[ast.Call(func=ast.Name(id="len"), args=[listed])]):
            return _gpus(site, listed, bound[1], depth - 1)
    devices = site.in_turn(bound[0].iterable, bound[1])
    if EACH in devices:
        return EVERY
    ordinals = tuple(device.ordinal for device in devices if device.ordinal is not None)
    return ordinals if len(ordinals) == len(devices) else None


def _together(several: Iterable[Gpus]) -> Gpus:
    found: list[int] = []
    for one in several:
        if one is None or one is EVERY:
            return one
        found += one
    return tuple(found) if len(found) <= _MOST else None


def _indexed(base: Gpus, index: Value) -> Gpus:
    if base is None or not isinstance(index, int) or not -_MOST < index < _MOST:
        return None
    if base is EVERY:
        return (index,) if index >= 0 else None  # The last of how many?
    return base[index : index + 1 or None]


def _sliced(base: Gpus, bounds: Sequence[Value]) -> Gpus:
    lower, upper, step = (
        one if one is None or (isinstance(one, int) and abs(one) <= _MOST) else UNKNOWN for one in bounds
    )
    if base is None or lower is UNKNOWN or upper is UNKNOWN or step is UNKNOWN or step == 0:
        return None
    if base is not EVERY:
        return base[lower:upper:step]
    if (lower or 0, upper, step or 1) == (0, None, 1):
        return EVERY
    if upper is None or upper < 0 or (lower or 0) < 0 or (step or 1) < 0:
        return None
    return tuple(range(lower or 0, upper, step or 1))


def _each(chosen: Gpus) -> list[Device]:
    """Give the devices of which each of *chosen* has a claim: one for all, when they are all or not known."""
    if chosen is None:
        return [SOME]
    return [EACH] if chosen is EVERY else [Device(one) for one in chosen]


def _limits(site: Site, node: ast.expr) -> list[tuple[ast.expr, ast.expr]] | None:
    """Give each configuration in a list and its memory limit; None where the list is only known at run time."""
    parts = _listed(site, node)
    if parts is None or len(parts) > _MOST:
        return None
    found: list[tuple[ast.expr, ast.expr]] = []
    for part in parts:
        configuration = site.follow(part)
        if not isinstance(configuration, ast.Call) or site.last(configuration.func) not in _CONFIGURATIONS:
            return None
        limit = site.argument(configuration, 0, "memory_limit")
        if limit is not None:
            found.append((configuration, limit))
    return found


def _listed(site: Site, node: ast.expr) -> list[ast.expr] | None:
    """Give the items of a literal list, of one that is repeated (`[…] * 2`), or of `[… for _ in range(2)]`."""
    match site.follow(node):
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return parts
        case ast.BinOp(left=ast.List(elts=parts), op=ast.Mult(), right=times):
            count = site.value(times)
        case ast.ListComp(
            elt=part, generators=[ast.comprehension(iter=ast.Call(func=ast.Name(id="range"), args=[times]), ifs=[])]
        ):
            parts, count = [part], site.value(times)
        case _:
            return None
    return parts[: _MOST + 1] * count if isinstance(count, int) and 0 <= count <= _MOST else None


OnCall: TypeAlias = Callable[[Site, ast.Call], Iterator[Item]]
OnAttribute: TypeAlias = Callable[[Site, ast.Attribute, ast.expr], Iterator[Item]]


# -----------------------------------------------------------------------------------------------------------------
# Servers: one number, in an argument whose name nobody else uses


@dataclass(frozen=True, slots=True)
class _Argument:
    """An argument that declares a share by its name alone."""

    callables: tuple[str, ...]
    name: str
    framework: str
    kind: Kind
    basis: Basis
    margin: Margin = Margin.FRAMEWORK


_VLLM = ("LLM", "AsyncLLM", "EngineArgs", "AsyncEngineArgs")
_ARGUMENTS = (
    _Argument(_VLLM, "gpu_memory_utilization", "vllm", Kind.CAP, Basis.TOTAL, Margin.BUDGET),
    _Argument(_VLLM, "kv_cache_memory_bytes", "vllm", Kind.CACHE, Basis.BYTES),
    _Argument(("Engine", "ServerArgs", "Runtime"), "mem_fraction_static", "sglang", Kind.CACHE, Basis.FREE_AT_START),
    _Argument(("KvCacheConfig",), "free_gpu_memory_fraction", "tensorrt-llm", Kind.CACHE, Basis.FREE_AFTER_LOAD),
    _Argument(
        ("TurbomindEngineConfig", "PytorchEngineConfig"),
        "cache_max_entry_count",
        "lmdeploy",
        Kind.CACHE,
        Basis.FREE_AFTER_LOAD,
    ),
)


def _argument(site: Site, call: ast.Call) -> Iterator[Item]:
    given = {name: value for name, value in site.keywords(call).items() if site.value(value) is not None}
    for one in _ARGUMENTS:
        value = given.get(one.name)
        if value is None or site.last(call.func) not in one.callables:
            continue
        measured = site.measured(value, most=None if one.basis is Basis.BYTES else 1)
        basis = one.basis
        count = site.value(value)
        if one.framework == "lmdeploy" and isinstance(count, int) and count > 0:
            measured, basis = {}, Basis.NONE  # A whole number is one of blocks.
        if one.name == "gpu_memory_utilization" and "kv_cache_memory_bytes" in given:
            measured["void"] = "kv_cache_memory_bytes takes its place"
        yield site.claim(
            channel=one.name,
            text=site.text(one.name, value),
            framework=one.framework,
            kind=one.kind,
            basis=basis,
            margin=one.margin,
            **measured,
        )


# -----------------------------------------------------------------------------------------------------------------
# PyTorch and CuPy


def _torch_fraction(site: Site, call: ast.Call) -> Iterator[Item]:
    """Read `torch.cuda.set_per_process_memory_fraction(0.5, 0)`, which refuses 1 and takes 1.0.

    Source: torch/cuda/memory.py, which takes nothing but a float.
    """
    fraction = site.argument(call, 0, "fraction")
    if fraction is None or re.search(r"\b(mps|xpu|npu)\.", site.path(call.func)):
        return
    measured = site.measured(fraction, most=1)
    if isinstance(site.value(fraction), int):
        measured = {"void": "PyTorch raises TypeError: the fraction must be a float"}
    for device in site.on(site.argument(call, 1, "device")):
        yield site.claim(
            device,
            channel="set_per_process_memory_fraction",
            text=site.text("fraction", fraction),
            framework="torch",
            kind=Kind.CAP,
            basis=Basis.TOTAL,
            **measured,
        )


def _cupy_limit(site: Site, call: ast.Call) -> Iterator[Item]:
    """Read `cupy.get_default_memory_pool().set_limit(size=…, fraction=…)`; an asynchronous pool may go beyond it.

    What an argument or an attribute holds is not followed: in a source that uses CuPy it is taken for a pool, which
    is a guess.
    """
    path = site.path(call.func)
    if path.startswith(LOCAL) and "cupy" in site.names.imports:
        sure = {"confidence": Confidence.GUESS}
    elif path.endswith(("get_default_memory_pool().set_limit", "MemoryPool().set_limit", "AsyncPool().set_limit")):
        sure = {}
    else:
        return
    size, fraction = site.argument(call, 0, "size"), site.argument(call, 1, "fraction")
    value = size if size is not None else fraction
    if value is None:
        return
    measured = site.measured(value, most=None if size is not None else 1)
    if measured.get("value") == 0:
        measured["lifts"] = True
    for device in site.current:
        yield site.claim(
            device,
            channel="set_limit",
            text=site.text("fraction" if size is None else "size", value),
            framework="cupy",
            kind=Kind.START if "AsyncPool()" in path else Kind.CAP,
            basis=Basis.BYTES if size is not None else Basis.TOTAL,
            **measured,
            **sure,
        )


# -----------------------------------------------------------------------------------------------------------------
# RMM and ONNX Runtime


def _rmm_pool(site: Site, call: ast.Call) -> Iterator[Item]:
    """Read `rmm.reinitialize(pool_allocator=True, initial_pool_size=…, maximum_pool_size=…, devices=0)`."""
    if not site.path(call.func).startswith("rmm."):
        return
    pool, chosen = site.argument(call, 0, "pool_allocator"), site.argument(call, 4, "devices")
    wanted = site.value(pool) if pool is not None else False
    ordinals = (0,) if chosen is None else site.ordinals(site.value(chosen))
    devices = [SOME] if ordinals is None else [Device(one) for one in ordinals]
    void = "" if wanted is UNKNOWN or wanted else "ignored without pool_allocator=True"
    yield from _rmm_sizes(site, call, 2, devices, void)


def _rmm_resource(site: Site, call: ast.Call) -> Iterator[Item]:
    """Read `rmm.mr.PoolMemoryResource(upstream, initial_pool_size=…, maximum_pool_size=…)`."""
    if "rmm" in site.path(call.func):
        yield from _rmm_sizes(site, call, 1, site.current, "")


def _rmm_sizes(site: Site, call: ast.Call, place: int, devices: Sequence[Device], void: str) -> Iterator[Item]:
    for offset, (channel, kind) in enumerate((("initial_pool_size", Kind.START), ("maximum_pool_size", Kind.CAP))):
        size = site.argument(call, place + offset, channel)
        if size is None:
            continue
        text = site.text(channel, size)
        for device in devices:
            claim = site.claim(device, channel=channel, text=text, framework="rmm", kind=kind, void=void)
            yield from _sized(site, claim, size, sizes.dask)


def _sized(site: Site, claim: Claim, node: ast.expr, reads: sizes.Reader) -> list[Claim]:
    """Give a claim its bytes: a number, or a text as *reads* takes it."""
    value = site.value(node)
    if isinstance(value, str):
        return said(claim, value, reads)
    fields = site.measured(node)
    return [replace(claim, basis=Basis.BYTES, **{**fields, "void": claim.void or fields.get("void", "")})]


def provider_options(site: Site, entries: Mapping[str, ast.expr]) -> Iterator[Item]:
    """Read the `gpu_mem_limit` in the options of ONNX Runtime's CUDA provider, for `device_id`, which is 0 by default.

    Each session has an arena of its own, so those of one GPU add up.
    """
    limit = entries.get("gpu_mem_limit")
    if limit is None:
        return
    chosen = site.value(entries["device_id"]) if "device_id" in entries else 0
    ordinals = site.ordinals(chosen)
    device = Device(ordinals[0]) if ordinals else SOME
    claim = site.claim(
        device,
        channel="gpu_mem_limit",
        text=site.text("gpu_mem_limit", limit),
        framework="onnxruntime",
        kind=Kind.CAP,
        adds=f"arenas, GPU {device.ordinal}",
    )
    yield from _sized(site, claim, limit, sizes.plain_bytes)


# -----------------------------------------------------------------------------------------------------------------
# JAX, Ray and Theano


def _jax_update(site: Site, call: ast.Call) -> Iterator[Item]:
    """Read `jax.config.update("jax_cuda_visible_devices", "0,1")`."""
    if len(call.args) == 2 and site.value(call.args[0]) == "jax_cuda_visible_devices":
        yield from _jax_visible(site, call.args[1])


def _jax_assigned(site: Site, _target: ast.Attribute, value: ast.expr) -> Iterator[Item]:
    yield from _jax_visible(site, value)


def _jax_visible(site: Site, value: ast.expr) -> Iterator[Item]:
    chosen = site.value(value)
    if chosen != "all":  # The default.
        yield site.selection("jax_cuda_visible_devices", "jax", site.ordinals(chosen))


def _jax_initialize(site: Site, call: ast.Call) -> Iterator[Item]:
    """Read `jax.distributed.initialize(…, local_device_ids=[0, 1])`."""
    if site.path(call.func).endswith("distributed.initialize"):
        chosen = site.argument(call, 3, "local_device_ids")
        if chosen is not None:
            yield site.selection("local_device_ids", "jax", site.ordinals(site.value(chosen)))


def _ray(site: Site, call: ast.Call) -> Iterator[Item]:
    """Read `@ray.remote(num_gpus=0.25)`: what Ray's scheduler counts with, and no limit on anything."""
    wanted = site.keywords(call).get("num_gpus")
    if wanted is None or "ray" not in site.names.imports:
        return
    value = site.value(wanted)
    amount = number(value)
    if value is UNKNOWN or (amount is not None and 0 < amount < 1):
        yield site.claim(
            channel="ray num_gpus",
            text=f"{site.text('num_gpus', wanted)} (Ray counts it and limits nothing)",
            framework="ray",
            kind=Kind.COMPUTE,
            value=amount,
            dynamic=value is UNKNOWN,
        )


def _theano_assigned(site: Site, target: ast.Attribute, value: ast.expr) -> Iterator[Item]:
    """Read `theano.config.lib.cnmem = 0.3`, which raises: the flags that size a pool cannot be changed after import."""
    path = site.path(target)
    if path in ("theano.config.lib.cnmem", "theano.config.gpuarray.preallocate"):
        void = "Theano lets nobody change it after import"
        yield from _theano_start(site, path.removeprefix("theano.config."), EACH, value, void)


def _theano_use(site: Site, call: ast.Call) -> Iterator[Item]:
    """Read `theano.gpuarray.use("cuda0", preallocate=0.3)`."""
    value = site.keywords(call).get("preallocate")
    if value is None or not site.path(call.func).startswith("theano."):
        return
    named = site.argument(call, 0, "device")
    match = re.fullmatch("(?:cuda|gpu)([0-9]{1,2})", str(site.value(named))) if named is not None else None
    yield from _theano_start(site, "gpuarray.preallocate", Device(int(match[1])) if match else EACH, value, "")


def _theano_start(site: Site, channel: str, device: Device, node: ast.expr, void: str) -> list[Claim]:
    """Make a claim of a pool's first size."""
    claim = site.claim(
        device,
        channel=channel,
        text=site.text(channel, node),
        framework="theano",
        kind=Kind.START,
        void=void,
    )
    value = site.value(node)
    return said(claim, None if value is UNKNOWN else str(value), sizes.theano)


# -----------------------------------------------------------------------------------------------------------------
# What is looked at, by the last part of its name

CALLS: Mapping[str, OnCall] = {
    "GPUOptions": gpu_options,
    "set_memory_growth": memory_growth,
    "set_logical_device_configuration": logical_devices,
    "set_virtual_device_configuration": logical_devices,
    "set_visible_devices": visible_devices,
    "set_per_process_memory_fraction": _torch_fraction,
    "set_limit": _cupy_limit,
    "reinitialize": _rmm_pool,
    "PoolMemoryResource": _rmm_resource,
    "update": _jax_update,
    "initialize": _jax_initialize,
    "remote": _ray,
    "options": _ray,
    "use": _theano_use,
    "init_dev": _theano_use,
    **{name: _argument for one in _ARGUMENTS for name in one.callables},
}

ATTRIBUTES: Mapping[str, OnAttribute] = {
    "per_process_gpu_memory_fraction": assigned,
    "per_process_memory_fraction": assigned,
    "allow_growth": assigned,
    "visible_device_list": assigned,
    "jax_cuda_visible_devices": _jax_assigned,
    "cnmem": _theano_assigned,
    "preallocate": _theano_assigned,
}

MAY_DECLARE = re.compile(
    rb"gpu_options|GPUOptions|memory_growth|device_configuration|visible_device|memory_fraction|set_limit|pool_size"
    rb"|reinitialize|distributed\.initialize|gpu_mem|kv_cache_memory|mem_fraction|cache_max_entry|local_device_ids|num_gpus|cnmem|preallocate"
)
"""One of these is in every source that declares anything by a call or an attribute."""
