"""What code tells TensorFlow 1 and 2, and Keras on top of it, about GPUs and their memory.

Source: tensorflow/core/protobuf/config.proto, tensorflow/core/common_runtime/gpu/gpu_device.cc,
tensorflow/python/framework/config.py, tensorflow/python/eager/context.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import TypeAlias

from gpuwatch.declared.script_site import CODE, EACH, SOME, Device, Item, Site
from gpuwatch.declared.script_values import UNKNOWN, Each, Scope, Value
from gpuwatch.model import Basis, Hint, Kind
from gpuwatch.units import MIB

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
