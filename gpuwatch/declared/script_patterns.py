"""What code tells each library about GPUs and their memory: which calls, dicts and attributes are looked at.

Sources: torch/cuda/memory.py; cupy/cuda/memory.pyx; rmm/rmm.py and rmm/pylibrmm/helper.pyx;
onnxruntime.ai/docs/api/c/struct_ort_c_u_d_a_provider_options.html; vllm/config/cache.py; sglang server_args.py;
nvidia.github.io/TensorRT-LLM/llm-api/reference (KvCacheConfig); lmdeploy/messages.py; jax/_src/distributed.py;
docs.ray.io/en/latest/ray-core/scheduling/resources.html; theano/configdefaults.py, theano/gpuarray/__init__.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import replace

from gpuwatch.declared import script_tensorflow as tensorflow
from gpuwatch.declared import sizes
from gpuwatch.declared.facts import Claim, said
from gpuwatch.declared.script_site import EACH, SOME, Device, Item, Site
from gpuwatch.declared.script_values import LOCAL, UNKNOWN, number
from gpuwatch.model import Basis, Confidence, Kind, Margin

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
    "GPUOptions": tensorflow.gpu_options,
    "set_memory_growth": tensorflow.memory_growth,
    "set_logical_device_configuration": tensorflow.logical_devices,
    "set_virtual_device_configuration": tensorflow.logical_devices,
    "set_visible_devices": tensorflow.visible_devices,
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
    "per_process_gpu_memory_fraction": tensorflow.assigned,
    "per_process_memory_fraction": tensorflow.assigned,
    "allow_growth": tensorflow.assigned,
    "visible_device_list": tensorflow.assigned,
    "jax_cuda_visible_devices": _jax_assigned,
    "cnmem": _theano_assigned,
    "preallocate": _theano_assigned,
}

MAY_DECLARE = re.compile(
    rb"gpu_options|GPUOptions|memory_growth|device_configuration|visible_device|memory_fraction|set_limit|pool_size"
    rb"|reinitialize|distributed\.initialize|gpu_mem|kv_cache_memory|mem_fraction|cache_max_entry|local_device_ids|num_gpus|cnmem|preallocate"
)
"""One of these is in every source that declares anything by a call or an attribute."""
