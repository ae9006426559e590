"""Patterns of code by which a Python source sets environment variables, limits GPU memory and chooses GPUs.

Each reads one place of the source (`Site`): a call, a dict or an assignment that may declare something.

Sources: tensorflow/core/protobuf/config.proto, tensorflow/core/common_runtime/gpu/gpu_device.cc,
tensorflow/python/framework/config.py; torch/cuda/memory.py; cupy/cuda/memory.pyx; rmm/rmm.py, rmm/pylibrmm/helper.pyx;
onnxruntime.ai/docs/api/c/struct_ort_c_u_d_a_provider_options.html; vllm/config/cache.py; sglang server_args.py;
nvidia.github.io/TensorRT-LLM/llm-api/reference (KvCacheConfig); lmdeploy/messages.py; jax/_src/distributed.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from gpuwatch.base.text import ELLIPSIS, clean, redact, shorten
from gpuwatch.base.units import MIB
from gpuwatch.declared import sizes
from gpuwatch.declared.facts import Candidate, Selection, Setting, format_path, parse_value
from gpuwatch.declared.script_values import (
    CURRENT,
    EACH,
    GETS,
    LOCAL,
    MOST_DEVICES,
    SOME,
    UNKNOWN,
    ScriptDevice,
    ScriptValues,
    Value,
    is_number,
    read_ordinals,
)
from gpuwatch.model.snapshot import Basis, Confidence, Hint, Kind, Margin

CODE_RANK = 100
"""Rank of a program's own calls: above its environment and its files."""
_WIDTH = 100
"""Characters of source text in a candidate, at most."""
_CONDITION_WIDTH = 60
"""Characters of source text in a condition, at most."""
_CONDITIONS = 2
"""Conditions around a place that are quoted, at most: the innermost ones."""
_LONGEST = 4096
"""Bytes of a piece of source that are examined, at most."""
_MOST_OPTIONS = 256
"""Entries of a dict of options, at most; a longer dict is data."""


class ScriptCondition(NamedTuple):
    """Condition under which a place of a source runs, where it is not known to hold."""

    words: str
    """Words before the quoted source: `if`, `unless`, `in except`."""
    node: ast.expr | ast.stmt | ast.pattern | None
    outer: ScriptCondition | None = None
    """Condition around this one."""


class ScriptSource:
    """Text of a source, which returns excerpts for display."""

    def __init__(self, text: str, name: str) -> None:
        self.name = format_path(name)
        self._lines = text.encode().split(b"\n")  # `ast` counts columns in bytes of UTF-8

    def excerpt(self, node: ast.expr | ast.stmt | ast.pattern) -> str:
        """Return the source of a node in one line; of a very long node the beginning with "…"."""
        lines = self._lines[node.lineno - 1 : node.end_lineno]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        whole = b" ".join(filter(None, (line.strip() for line in lines)))
        return whole[:_LONGEST].decode("utf-8", "replace") + ELLIPSIS * (len(whole) > _LONGEST)

    def format(self, node: ast.expr | ast.stmt | ast.pattern, width: int = _WIDTH) -> str:
        """Return the source of a node for display, with secrets masked."""
        return _format(self.excerpt(node), width)

    def mentions(self, words: str) -> bool:
        """Return whether a line has these words, if only in a comment."""
        return any(words.encode() in line for line in self._lines)

    def describe(self, condition: ScriptCondition | None) -> str:
        """Return a condition for display: "if `args.cap`"; empty for none."""
        found: list[str] = []
        while condition is not None and len(found) < _CONDITIONS:
            quoted = f" `{self.format(condition.node, _CONDITION_WIDTH)}`" if condition.node is not None else ""
            found.insert(0, condition.words + quoted)
            condition = condition.outer
        return " and ".join(found)


def _format(text: str, width: int = _WIDTH) -> str:
    """Clean a piece of source and mask its secrets; of a long text keep both ends.

    Where the text is incomplete, keep only the beginning: at its end a secret may be cut, and not be found.
    """
    cut = clean if text.endswith(ELLIPSIS) else shorten
    return cut(redact(("-c", text))[1], width)


class Site(NamedTuple):
    """Place in a source: a call, dict or assignment."""

    node: ast.expr | ast.stmt
    values: ScriptValues
    source: ScriptSource
    condition: str = ""
    """Condition under which it runs, for display; empty where none is in doubt."""
    current: tuple[ScriptDevice, ...] = (SOME,)
    """GPU that CUDA uses at this place; in a loop all GPUs that it uses in turn."""

    @property
    def confidence(self) -> Confidence:
        """Confidence that the process has run this place."""
        return Confidence.POSSIBLE if self.condition else Confidence.LIKELY

    def path(self, node: ast.expr) -> str:
        """Return `SymbolTable.path` at this place."""
        return self.values.symbols.path(node)

    def value(self, node: ast.expr) -> Value:
        """Return `ScriptValues.value` at this place."""
        return self.values.value(node)

    def follow(self, node: ast.expr) -> ast.expr:
        """Return the expression that was assigned to a name once; any other expression unchanged."""
        constant = self.values.symbols.constant(node.id) if isinstance(node, ast.Name) else None
        return node if constant is None else constant

    def entries(self, node: ast.expr) -> dict[str, ast.expr]:
        """Return the named values of a literal dict, a `dict(…)` or a name for one; an empty dict for any other."""
        match self.follow(node):
            case ast.Dict(keys=keys, values=values) if len(keys) <= _MOST_OPTIONS:
                pairs = [(one, value) for one, value in zip(keys, values, strict=True) if isinstance(one, ast.Constant)]
                return {key.value: value for key, value in pairs if type(key.value) is str}
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                return {one.arg: one.value for one in keywords if one.arg}
        return {}

    def keywords(self, call: ast.Call) -> dict[str, ast.expr]:
        """Return the keyword arguments of a call, and those in `**options` where they are known."""
        found: dict[str, ast.expr] = {}
        for one in call.keywords:
            found |= {one.arg: one.value} if one.arg else self.entries(one.value) if self.is_known(one.value) else {}
        return found

    def under(self, words: str) -> Site:
        """Return the place with a condition, unless it has one."""
        return self if self.condition else self._replace(condition=words)

    def is_open(self, call: ast.Call) -> bool:
        """Return whether a call has arguments that are only known at run time: `*args`, `**json.load(file)`."""
        packed = [one.value for one in call.keywords if one.arg is None]
        return any(isinstance(one, ast.Starred) for one in call.args) or not all(map(self.is_known, packed))

    def is_known(self, node: ast.expr) -> bool:
        """Return whether `entries` has all entries of a dict."""
        match self.follow(node):
            case ast.Dict(keys=keys) if len(keys) <= _MOST_OPTIONS:
                return all(isinstance(key, ast.Constant) for key in keys)
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
                return all(one.arg for one in keywords)
        return False

    def argument(self, call: ast.Call, place: int, name: str) -> ast.expr | None:
        """Return an argument by its position or its name; None where it is missing or None."""
        starred = any(isinstance(one, ast.Starred) for one in call.args[: place + 1])
        found = call.args[place] if len(call.args) > place and not starred else self.keywords(call).get(name)
        return None if found is None or self.value(found) is None else found

    def devices(self, node: ast.expr | None) -> tuple[ScriptDevice, ...]:
        """Return the GPUs that an expression means, see `ScriptValues.devices`; None means the current one."""
        found = self.values.devices(node) if node is not None else (CURRENT,)
        return tuple(device for one in found for device in (self.current if one == CURRENT else (one,)))

    def measure(self, node: ast.expr, *, unit: float = 1, most: float | None = None) -> dict[str, Any]:
        """Return the fields for a number in a unit; a value that is not a number, or outside 0 to `most`, is void."""
        value = self.value(node)
        if value is UNKNOWN:
            return {"dynamic": True}
        if not is_number(value):
            return {"void": f"{self.source.format(node)} is not a number"}
        if value < 0 or (most is not None and value > most):
            return {"void": f"{value:g} is " + ("less than 0" if most is None else f"outside 0 to {most:g}")}
        return {"value": float(value) * unit}

    def text(self, name: str = "", value: ast.expr | None = None) -> str:
        """Return the source text to show: all of it, or only the argument `name` of a long call or dict."""
        whole = self.source.excerpt(self.node)
        if len(whole) > _WIDTH and value is not None:
            given = self.source.format(value)
            if isinstance(self.node, ast.Call):
                whole = f"{self.source.excerpt(self.node.func)[-_WIDTH // 2 :]}(… {name}={given} …)"
            elif isinstance(self.node, ast.Dict):
                whole = f'{{… "{name}": {given} …}}'
        return _format(whole)

    def candidate(self, device: ScriptDevice, channel: str, framework: str, kind: Kind, **fields: Any) -> Candidate:
        """Return a candidate for this place."""
        fields.setdefault("rank", CODE_RANK)
        fields.setdefault("confidence", self.confidence)
        fields["text"] = fields.get("text") or self.text()
        return Candidate(
            channel=channel,
            framework=framework,
            kind=kind,
            device=device.ordinal,
            some_gpu=not device.known,
            where=self.source.name,
            line=self.node.lineno,
            condition=self.condition,
            **fields,
        )

    def selection(self, channel: str, framework: str, ordinals: Sequence[int] | None, text: str = "") -> Selection:
        """Return a GPU selection for this place; its ordinals are None where the code may not run."""
        return Selection(
            channel=channel,
            framework=framework,
            ordinals=None if ordinals is None or self.condition else tuple(ordinals),
            where=self.source.name,
            line=self.node.lineno,
            text=text or self.text(),
        )


class MadeObject(NamedTuple):
    """Engine, session or pool with its own allocator: the process may take the sum of all their limits."""

    candidate: Candidate
    """Its limit; one that lifts limits where it has none."""
    parts: tuple[ast.expr, ...] = ()
    """Objects and dicts of options that it is created from; they declare nothing else."""


Item: TypeAlias = Candidate | Selection | Hint | MadeObject | tuple[str, Setting]
Items: TypeAlias = Iterator[Item]

_BELOW_LIMITS = CODE_RANK - 10
"""Rank of TensorFlow's fraction, which TensorFlow refuses together with memory limits of logical devices."""
_UNUSED = "per object that uses it, if any"
"""Condition of options that no known call uses."""


# -- os.environ -------------------------------------------------------------------------------------------------------

_ENVIRON = "os.environ"
_OF_INTEREST = re.compile("CUDA|XLA|TF_|PYTORCH|THEANO|NVIDIA|CUPY|GENV|FLAGS_|GPU|JAX|OLLAMA|SLURM|LD_PRELOAD")
"""Words of names that are recorded: of known variables, and of their misspellings."""
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS")
_NAME_LIMIT = 128


def assigned_settings(site: Site, targets: Sequence[ast.expr], value: ast.expr | None) -> Items:
    """Read `os.environ["X"] = "v"`; a variable that is deleted, or computed from its old value, has no value."""
    for target in targets:
        several = target.elts if isinstance(target, ast.Tuple | ast.List) else None
        for one in several or [target]:
            if isinstance(one, ast.Subscript) and site.path(one.value) == _ENVIRON:
                yield from _setting(site, site.value(one.slice), None if several else value)


def merged_settings(site: Site, target: ast.expr, value: ast.expr) -> Items:
    """Read `os.environ |= {"X": "v"}`."""
    if site.path(target) == _ENVIRON:
        yield from _settings(site, site.entries(value))


def _called_settings(site: Site, call: ast.Call) -> Items:
    """Read `os.environ.update(…)`, `os.putenv("X", "v")`, `paddle.set_flags(…)`."""
    match site.path(call.func), call.args:
        case "os.environ.update", arguments:
            yield from _settings(site, site.entries(arguments[0]) if arguments else {})
            yield from _settings(site, site.keywords(call))
        case (("os.putenv" | "os.environ.__setitem__"), [key, value]):
            yield from _setting(site, site.value(key), value)
        case "os.environ.setdefault", [key, value]:
            yield from _setting(site, site.value(key), value, default=True)
        case (("os.environ.pop" | "os.unsetenv"), [key, *_]):
            yield from _setting(site, site.value(key), None)
        case path, [flags] if path.startswith("paddle.") and path.endswith(".set_flags"):
            yield from _settings(site, site.entries(flags))


def _settings(site: Site, entries: Mapping[str, ast.expr]) -> Items:
    for name, value in entries.items():
        yield from _setting(site, name, value)


def _setting(site: Site, name: Value, node: ast.expr | None, *, default: bool = False) -> Items:
    """Return the variable `name` as it is set here; nothing for a name that declares nothing, or may be a secret's."""
    if not isinstance(name, str) or len(name) > _NAME_LIMIT or not _OF_INTEREST.search(name) or _SECRET.search(name):
        return
    match node:  # os.environ["X"] = os.environ.get("X", "0")
        case ast.Call(func=function, args=[same, other]) if site.path(function) in GETS and site.value(same) == name:
            node, default = other, True
    value = site.value(node) if node is not None else UNKNOWN
    if name.startswith("FLAGS_") and is_number(value):
        value = str(value)  # Paddle's `set_flags` takes numbers
    yield (
        name,
        Setting(
            value=value if isinstance(value, str) and "\0" not in value else None,
            where=site.source.name,
            line=site.node.lineno,
            text=site.text(),
            confidence=site.confidence,
            condition=site.condition,
            default=default,
            removes=node is None and isinstance(site.node, ast.Delete | ast.Call),
        ),
    )


# -- TensorFlow -------------------------------------------------------------------------------------------------------

_TENSORFLOW = "tensorflow"
_FRACTION = "per_process_gpu_memory_fraction"
SESSIONS = ("Session", "InteractiveSession", "MonitoredTrainingSession")


def _gpu_options(site: Site, call: ast.Call) -> Items:
    """Read `GPUOptions(per_process_gpu_memory_fraction=0.4, allow_growth=True)`."""
    given = site.keywords(call)
    if site.is_open(call) and _FRACTION not in given:
        yield site.candidate(
            EACH, _FRACTION, _TENSORFLOW, Kind.CAP, basis=Basis.TOTAL, rank=_BELOW_LIMITS, dynamic=True
        )
    for name, value in given.items():
        yield from _gpu_option(site, name, value)


def _gpu_options_assigned(site: Site, target: ast.Attribute, value: ast.expr) -> Items:
    """Read `config.gpu_options.per_process_gpu_memory_fraction = 0.4`, also through `opts = …gpu_options`."""
    if site.path(target.value).endswith(("gpu_options", "GPUOptions()")):
        yield from _gpu_option(site, target.attr, value)


def _gpu_option(site: Site, name: str, value: ast.expr) -> Items:
    text = site.text(name, value)
    if name == _FRACTION:
        measured = site.measure(value)  # above 1 it means unified memory: more than the GPU has
        if measured.get("value") == 0:
            measured["void"] = "0 lets TensorFlow decide"
        fields = {"text": text, "basis": Basis.TOTAL, "rank": _BELOW_LIMITS, **measured}
        yield site.candidate(EACH, name, _TENSORFLOW, Kind.CAP, **fields)
    elif name == "per_process_memory_fraction":
        words = f"GPUOptions has no {name}; use {_FRACTION}"
        yield Hint(rule="no effect", words=f"{site.source.name}:{site.node.lineno}: {words}")
    elif name == "allow_growth":
        yield from _growth(site, EACH, value, name, text)
    elif name == "visible_device_list" and site.value(value) != "":  # empty is the default: all that are visible
        yield site.selection(name, _TENSORFLOW, read_ordinals(site.value(value)), text)


def tensorflow_session(site: Site, call: ast.Call) -> Items:
    """Read `tf.Session()` where the source has a fraction, but not in the session's own options.

    TensorFlow 1 makes its GPUs with the options of the first session; those of a later one change nothing.
    """
    given, options = site.argument(call, 2, "config"), None
    found = site.follow(given) if given is not None else None
    if isinstance(found, ast.Call) and site.path(found.func).endswith("ConfigProto") and not site.is_open(found):
        options = site.keywords(found).get("gpu_options")
        found = site.follow(options) if options is not None else None
    if isinstance(found, ast.Call) and site.path(found.func).endswith("GPUOptions") and not site.is_open(found):
        found = site.keywords(found).get(_FRACTION)
    pairs = ((given, "gpu_options."), (options, ""))
    own = [f"{one.id}.{path}{_FRACTION}" for one, path in pairs if isinstance(one, ast.Name)]
    if found is None and site.source.mentions(_FRACTION) and not any(map(site.source.mentions, own)):
        fields = {"basis": Basis.TOTAL, "rank": _BELOW_LIMITS, "dynamic": True}
        yield site.under("if it is the first session").candidate(EACH, _FRACTION, _TENSORFLOW, Kind.CAP, **fields)


def _growth(site: Site, device: ScriptDevice, value: ast.expr, channel: str, text: str) -> Items:
    wanted = site.value(value)
    if wanted:
        yield site.candidate(device, channel, _TENSORFLOW, Kind.GROWTH, text=text, dynamic=wanted is UNKNOWN)


def _memory_growth(site: Site, call: ast.Call) -> Items:
    """Read `set_memory_growth(gpu, True)`."""
    device, enable = site.argument(call, 0, "device"), site.argument(call, 1, "enable")
    if device is not None and enable is not None:
        for one in site.devices(device):
            yield from _growth(site, one, enable, "set_memory_growth", site.text())


def _logical_devices(site: Site, call: ast.Call) -> Items:
    """Read `set_logical_device_configuration(gpus[0], [LogicalDeviceConfiguration(memory_limit=1024), …])`.

    The limits are in MiB, and those of one GPU add up. TensorFlow refuses a GPU without a limit, so it is no candidate.
    """
    device = site.argument(call, 0, "device")
    parts = site.argument(call, 1, "logical_devices") or site.argument(call, 1, "virtual_devices")
    if device is None or parts is None:
        return
    limits = _memory_limits(site, parts)
    for one in site.devices(device):
        if limits is None:
            yield site.candidate(one, "memory_limit", _TENSORFLOW, Kind.CAP, basis=Basis.BYTES, dynamic=True)
            continue
        for part, limit in limits:
            text = site.text() if len(limits) == 1 else site.source.format(part)
            fields = {"basis": Basis.BYTES, "adds": f"line {call.lineno}, GPU {one.ordinal}", "text": text}
            yield site.candidate(one, "memory_limit", _TENSORFLOW, Kind.CAP, **fields, **site.measure(limit, unit=MIB))


def _memory_limits(site: Site, node: ast.expr) -> list[tuple[ast.expr, ast.expr]] | None:
    """Return each configuration in a list with its memory limit; None where the list is only known at run time."""
    parts = site.follow(node)
    if not isinstance(parts, ast.List | ast.Tuple) or len(parts.elts) > MOST_DEVICES:
        return None
    found: list[tuple[ast.expr, ast.expr]] = []
    for part in map(site.follow, parts.elts):
        if not isinstance(part, ast.Call) or not site.path(part.func).endswith(
            ("LogicalDeviceConfiguration", "VirtualDeviceConfiguration")
        ):
            return None
        limit = site.argument(part, 0, "memory_limit")
        if limit is not None:
            found.append((part, limit))
    return found


def _visible_devices(site: Site, call: ast.Call) -> Items:
    """Read `set_visible_devices(gpus[0:2], "GPU")`; a list of CPUs does not hide any GPU."""
    devices, kind = site.argument(call, 0, "devices"), site.argument(call, 1, "device_type")
    if devices is None or (kind is not None and site.value(kind) not in ("GPU", UNKNOWN)):
        return
    chosen = site.devices(devices)
    if chosen != (EACH,):
        ordinals = [one.ordinal for one in chosen if one.ordinal is not None]
        yield site.selection("set_visible_devices", _TENSORFLOW, ordinals if len(ordinals) == len(chosen) else None)


# -- servers: one number, in an argument whose name no other library uses ---------------------------------------------


class _Argument(NamedTuple):
    """Argument that declares a share by its name, in any call."""

    callables: tuple[str, ...]
    name: str
    framework: str
    kind: Kind
    basis: Basis
    margin: Margin = Margin.FRAMEWORK


_VLLM = ("LLM", "AsyncLLM", "EngineArgs", "AsyncEngineArgs")
_UTILIZATION = "gpu_memory_utilization"
UTILIZATIONS = frozenset({_UTILIZATION, f"vllm_{_UTILIZATION}"})
"""vLLM's argument, and that of trainers that start vLLM."""
_LMDEPLOY = ("TurbomindEngineConfig", "PytorchEngineConfig")
_ARGUMENTS = (
    _Argument(_VLLM, _UTILIZATION, "vllm", Kind.CAP, Basis.TOTAL, Margin.BUDGET),
    _Argument(_VLLM, "kv_cache_memory_bytes", "vllm", Kind.CACHE, Basis.BYTES),
    _Argument(("Engine", "ServerArgs", "Runtime"), "mem_fraction_static", "sglang", Kind.CACHE, Basis.FREE_AT_START),
    _Argument(("KvCacheConfig",), "free_gpu_memory_fraction", "tensorrt-llm", Kind.CACHE, Basis.FREE_AFTER_LOAD),
    _Argument(_LMDEPLOY, "cache_max_entry_count", "lmdeploy", Kind.CACHE, Basis.FREE_AFTER_LOAD),
)


def _argument(site: Site, call: ast.Call) -> Items:
    given = {name: value for name, value in site.keywords(call).items() if site.value(value) is not None}
    path = site.path(call.func)
    package, called = path.partition(".")[0].replace("_", "-"), path.rpartition(".")[2]
    for one in _ARGUMENTS:
        value = given.get(one.name)
        if value is None and one.basis is not Basis.BYTES and package == one.framework and site.is_open(call):
            value = call
        if value is None or called not in one.callables:
            continue
        fields = {"basis": one.basis, **site.measure(value, most=None if one.basis is Basis.BYTES else 1)}
        count = site.value(value)
        if one.framework == "lmdeploy" and isinstance(count, int) and count > 0:
            fields = {"basis": Basis.NONE}  # a whole number is one of blocks
        if one.name == _UTILIZATION and "kv_cache_memory_bytes" in given:
            fields["void"] = "kv_cache_memory_bytes replaces it"
        text = site.text(one.name, value)
        yield site.candidate(EACH, one.name, one.framework, one.kind, text=text, margin=one.margin, **fields)


def _made(items: Items, without: Candidate, parts: tuple[ast.expr, ...] = ()) -> Items:
    """Return the limit among the items as that of an object, or `without` as one that has none."""
    several = list(items)
    limits = [one for one in several if isinstance(one, Candidate) and one.kind is Kind.CAP and not one.void]
    yield from (one for one in several if one not in limits)
    yield from (MadeObject(one, parts) for one in limits or [without])


def _vllm_engine(site: Site, call: ast.Call) -> Items:
    """Read `LLM(…)` and `AsyncLLM.from_engine_args(EngineArgs(…))`, which create an engine each."""
    path, made = site.path(call.func), call
    if path.endswith("from_engine_args"):
        given = site.argument(call, 0, "engine_args")
        found = site.follow(given) if given is not None else call
        if isinstance(found, ast.Call) and site.path(found.func).endswith("EngineArgs"):
            made = found
    parts = (*(site.follow(one.value) for one in made.keywords if one.arg is None), *([] if made is call else [made]))
    at, lifts = site._replace(node=made), made is not call or path.endswith("LLM")
    fields = {"basis": Basis.TOTAL, "margin": Margin.BUDGET, "dynamic": not lifts, "lifts": lifts}
    yield from _made(_argument(at, made), at.candidate(EACH, _UTILIZATION, "vllm", Kind.CAP, **fields), parts)


def unused_arguments(site: Site, node: ast.expr) -> Items:
    """Read `gpu_memory_utilization` in a dict, or in a call that creates an unknown number of engines."""
    if isinstance(node, ast.Call) and site.path(node.func) == LOCAL:
        bases, _ = site.values.symbols.classes.get(getattr(node.func, "id", ""), ([], []))
        if not bases:  # `class Own(LLM)` has the limit of its base
            return  # a function of the source, which is read
    entries = site.keywords(node) if isinstance(node, ast.Call) else site.entries(node)
    for name in UTILIZATIONS.intersection(entries):
        fields = {"text": site.text(name, entries[name]), "basis": Basis.TOTAL, "margin": Margin.BUDGET}
        fields |= site.measure(entries[name], most=1) | {"dynamic": True}
        if site.value(entries[name]) is not None:
            yield site.under(_UNUSED).candidate(EACH, _UTILIZATION, "vllm", Kind.CAP, **fields)


# -- PyTorch, CuPy, RMM, ONNX Runtime and JAX -------------------------------------------------------------------------


def _torch_fraction(site: Site, call: ast.Call) -> Items:
    """Read `torch.cuda.set_per_process_memory_fraction(0.5, 0)`, which refuses 1 and accepts 1.0.

    Source: torch/cuda/memory.py, which accepts only a float.
    """
    fraction = site.argument(call, 0, "fraction")
    if fraction is None and site.is_open(call):
        fraction = call
    if fraction is None or re.search(r"\b(mps|xpu|npu)\.", site.path(call.func)):
        return
    fields = site.measure(fraction, most=1)
    if isinstance(site.value(fraction), int):
        fields = {"void": "PyTorch raises TypeError: the fraction must be a float"}
    fields |= {"text": site.text("fraction", fraction), "basis": Basis.TOTAL}
    device = site.argument(call, 1, "device")
    for one in (SOME,) if fraction is call and device is None else site.devices(device):
        yield site.candidate(one, "set_per_process_memory_fraction", "torch", Kind.CAP, **fields)


def _torch_passed(site: Site, _: ast.expr) -> Items:
    """Read `functools.partial(torch.cuda.set_per_process_memory_fraction, 0.5)`: whether it is called is not known."""
    fields = {"basis": Basis.TOTAL, "dynamic": True}
    yield site.under("if it is called").candidate(SOME, "set_per_process_memory_fraction", "torch", Kind.CAP, **fields)


def _cupy_limit(site: Site, call: ast.Call) -> Items:
    """Read `cupy.get_default_memory_pool().set_limit(size=…, fraction=…)`; an asynchronous pool may exceed it.

    In a source that imports CuPy, `set_limit` of an unknown object (an argument, an attribute) counts as a guess.
    """
    path = site.path(call.func)
    guessed = path.startswith(LOCAL) and "cupy" in site.values.symbols.imports
    pools = ("get_default_memory_pool().set_limit", ".MemoryPool().set_limit", "AsyncPool().set_limit")
    size, fraction = site.argument(call, 0, "size"), site.argument(call, 1, "fraction")
    name, value = ("size", size) if size is not None else ("fraction", fraction)
    value = call if value is None and site.is_open(call) else value
    if value is None or not (guessed or path.endswith(pools)):
        return
    fields = site.measure(value, most=None if name == "size" else 1)
    fields |= {"text": site.text(name, value), "basis": Basis.BYTES if name == "size" else Basis.TOTAL}
    fields |= {"lifts": fields.get("value") == 0}
    if guessed and not site.condition:
        fields["confidence"] = Confidence.GUESS
    for device in site.current:
        found = site.candidate(device, "set_limit", "cupy", Kind.START if "AsyncPool()" in path else Kind.CAP, **fields)
        pool = site.follow(call.func.value) if isinstance(call.func, ast.Attribute) else call
        yield MadeObject(found, (pool,)) if path.endswith(".MemoryPool().set_limit") else found


def _cupy_pool(site: Site, call: ast.Call) -> Items:
    """Read `cupy.cuda.MemoryPool()`, which has no limit until one is set."""
    if site.path(call.func).startswith("cupy."):
        yield MadeObject(site.candidate(EACH, "MemoryPool", "cupy", Kind.CAP, lifts=True))


def _rmm_pool(site: Site, call: ast.Call) -> Items:
    """Read `rmm.reinitialize(pool_allocator=True, initial_pool_size=…, maximum_pool_size=…, devices=0)`."""
    if not site.path(call.func).startswith("rmm."):
        return
    pool, chosen = site.argument(call, 0, "pool_allocator"), site.argument(call, 4, "devices")
    void = "" if pool is not None and site.value(pool) else "ignored without pool_allocator=True"
    ordinals = (0,) if chosen is None else read_ordinals(site.value(chosen))
    devices = (SOME,) if ordinals is None else tuple(map(ScriptDevice, ordinals))
    yield from _rmm_sizes(site, call, 2, devices, void)


def _rmm_resource(site: Site, call: ast.Call) -> Items:
    """Read `rmm.mr.PoolMemoryResource(upstream, initial_pool_size=…, maximum_pool_size=…)`."""
    if "rmm" in site.path(call.func):
        without = site.candidate(EACH, "maximum_pool_size", "rmm", Kind.CAP, lifts=True)
        yield from _made(_rmm_sizes(site, call, 1, site.current), without)


def _rmm_sizes(site: Site, call: ast.Call, first: int, devices: Sequence[ScriptDevice], void: str = "") -> Items:
    least, most = site.argument(call, first, "initial_pool_size"), site.argument(call, first + 1, "maximum_pool_size")
    most = call if most is None and site.is_open(call) else most
    for channel, kind, size in (("initial_pool_size", Kind.START, least), ("maximum_pool_size", Kind.CAP, most)):
        if size is not None:
            for device in devices:
                candidate = site.candidate(device, channel, "rmm", kind, text=site.text(channel, size), void=void)
                yield from _with_size(site, candidate, size, sizes.dask)


def _with_size(site: Site, candidate: Candidate, node: ast.expr, parse: sizes.Parser) -> list[Candidate]:
    """Return a candidate with its bytes: a number, or a text for `parse`."""
    value = site.value(node)
    if isinstance(value, str):
        return parse_value(candidate, value, parse)
    fields = site.measure(node)
    fields["void"] = candidate.void or fields.get("void", "")
    return [replace(candidate, basis=Basis.BYTES, **fields)]


def options(site: Site, node: ast.expr) -> Items:
    """Read a dict that no known call uses: it limits each object that is made with it."""
    yield from unused_arguments(site, node)
    entries = site.entries(node)
    if "gpu_mem_limit" in entries:
        yield from (replace(one, dynamic=not one.void) for one in _arena(site.under(_UNUSED), entries))


def _arena(site: Site, entries: Mapping[str, ast.expr]) -> list[Candidate]:
    """Return the limit in the options of ONNX Runtime's CUDA provider; its `device_id` is 0 by default."""
    limit = entries.get("gpu_mem_limit")
    ordinals = read_ordinals(site.value(entries["device_id"])) if "device_id" in entries else (0,)
    device = ScriptDevice(ordinals[0]) if ordinals else SOME
    text = site.text("gpu_mem_limit", limit) if limit is not None else ""
    found = site.candidate(device, "gpu_mem_limit", "onnxruntime", Kind.CAP, text=text, lifts=limit is None)
    return [found] if limit is None else _with_size(site, found, limit, sizes.plain_bytes)


def _session(site: Site, call: ast.Call) -> Items:
    """Read `InferenceSession(model, providers=[("CUDAExecutionProvider", options)])`; each has an arena of its own."""
    given, options_list = site.argument(call, 2, "providers"), site.argument(call, 3, "provider_options")
    providers = site.follow(given) if given is not None else call
    lists = site.follow(options_list) if options_list is not None else call
    chosen: ast.expr | None = call  # CUDA's options: None for none, the call itself where they are not known
    if given is None or site.path(providers).endswith("get_available_providers()"):
        chosen = call if options_list is not None or site.is_open(call) else None
    elif isinstance(providers, ast.List | ast.Tuple):
        for place, provider in enumerate(map(site.follow, providers.elts)):
            pair = provider.elts if isinstance(provider, ast.List | ast.Tuple) and len(provider.elts) == 2 else None
            name, options = pair or (provider, None)
            if site.value(name) == "TensorrtExecutionProvider":
                return  # TensorRT takes memory of its own, which these options do not limit
            if options_list is not None and options is None and isinstance(lists, ast.List | ast.Tuple):
                options = dict(enumerate(lists.elts)).get(place)
            if site.value(name) == "CUDAExecutionProvider":
                chosen = None if options is None and lists is call else site.follow(options or lists)
                break
        else:
            if UNKNOWN not in map(site.value, providers.elts):
                return  # it has no arena on a GPU
    if chosen is not None and not site.is_known(chosen):
        yield MadeObject(site.candidate(SOME, "gpu_mem_limit", "onnxruntime", Kind.CAP, dynamic=True))
        return
    entries = {} if chosen is None else site.entries(chosen)
    yield from _made(iter(_arena(site, entries)), _arena(site, {})[0], () if chosen is None else (chosen,))


def _jax_update(site: Site, call: ast.Call) -> Items:
    """Read `jax.config.update("jax_cuda_visible_devices", "0,1")`."""
    if len(call.args) == 2 and site.value(call.args[0]) == "jax_cuda_visible_devices":
        yield from _jax_visible(site, call, call.args[1])


def _jax_visible(site: Site, _: ast.expr, value: ast.expr) -> Items:
    chosen = site.value(value)
    if chosen != "all":  # the default
        yield site.selection("jax_cuda_visible_devices", "jax", read_ordinals(chosen))


def _jax_initialize(site: Site, call: ast.Call) -> Items:
    """Read `jax.distributed.initialize(…, local_device_ids=[0, 1])`."""
    chosen = site.argument(call, 3, "local_device_ids")
    if chosen is not None and site.path(call.func).endswith("distributed.initialize"):
        yield site.selection("local_device_ids", "jax", read_ordinals(site.value(chosen)))


# -- readers, by the last part of the name that they read -------------------------------------------------------------

_Reader: TypeAlias = Callable[[Site, ast.Call], Items]

_READERS: tuple[tuple[_Reader, tuple[str, ...]], ...] = (
    (_gpu_options, ("GPUOptions",)),
    (_memory_growth, ("set_memory_growth",)),
    (_logical_devices, ("set_logical_device_configuration", "set_virtual_device_configuration")),
    (_visible_devices, ("set_visible_devices",)),
    (_torch_fraction, ("set_per_process_memory_fraction",)),
    (_cupy_limit, ("set_limit",)),
    (_cupy_pool, ("MemoryPool",)),
    (_session, ("InferenceSession",)),
    (_vllm_engine, ("LLM", "AsyncLLM", "from_engine_args", "from_vllm_config")),
    (_rmm_pool, ("reinitialize",)),
    (_rmm_resource, ("PoolMemoryResource",)),
    (_jax_update, ("update",)),
    (_jax_initialize, ("initialize",)),
    (options, ("dict",)),
    (_argument, tuple(name for one in _ARGUMENTS for name in one.callables if name not in _VLLM)),
    (_called_settings, ("update", "putenv", "__setitem__", "setdefault", "pop", "unsetenv", "set_flags")),
)

CALLS: Mapping[str, list[_Reader]] = {
    name: [reader for reader, others in _READERS if name in others] for _, names in _READERS for name in names
}
"""Readers of a call by the last part of its name."""

PASSED: Mapping[str, Callable[[Site, ast.expr], Items]] = {"set_per_process_memory_fraction": _torch_passed}
"""Readers of a function that is named without being called, by the last part of its name."""

_GPU_OPTIONS = "per_process_gpu_memory_fraction per_process_memory_fraction allow_growth visible_device_list"
ATTRIBUTES: Mapping[str, Callable[[Site, ast.Attribute, ast.expr], Items]] = {
    **dict.fromkeys(_GPU_OPTIONS.split(), _gpu_options_assigned),
    "jax_cuda_visible_devices": _jax_visible,
}

_CALL_WORDS = re.compile(
    rb"gpu_options|GPUOptions|memory_growth|device_configuration|visible_device|memory_fraction|set_limit|pool_size"
    rb"|reinitialize|distributed\.initialize|gpu_mem|kv_cache_memory|mem_fraction|cache_max_entry|local_device_ids"
    rb"|vllm|sglang|InferenceSession"
)
"""Words: a source without any of them declares nothing by a call or an attribute."""
_ENVIRON_WORDS = re.compile(rb"environ|putenv|unsetenv|set_flags")
_VARIABLE_WORDS = re.compile(_OF_INTEREST.pattern.encode())


def may_declare(source: bytes) -> bool:
    """Return whether a source contains a word that declares something; most sources do not, and need no parsing."""
    return bool(_CALL_WORDS.search(source) or (_ENVIRON_WORDS.search(source) and _VARIABLE_WORDS.search(source)))
