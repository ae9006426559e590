"""The environment variables that a Python source sets for itself: `os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from gpuwatch.declared.script_patterns import Site
from gpuwatch.declared.script_values import Value

_ENVIRON = "os.environ"

_OF_INTEREST = re.compile(
    "CUDA|XLA|TF_|PYTORCH|THEANO|NVIDIA|CUPY|GENV|FLAGS_|GPU|JAX|MXNET|OLLAMA|NVSHARE|SLURM|LD_PRELOAD"
)
"""Names with one of these are recorded: the known ones, and those that somebody meant to be one."""
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS")
_NAME_LIMIT = 128

MAY_SET = re.compile(rb"environ|putenv|unsetenv|set_flags")
NAMES = re.compile(_OF_INTEREST.pattern.encode())


# After one of these CUDA has read its variables. Most of torch.cuda and of cupy does so too.
_FIRST_USES = frozenset(
    {
        *("jax.devices", "jax.local_devices", "jax.device_count", "jax.local_device_count", "jax.default_backend"),
        *("jax.device_put", "jax.random.PRNGKey", "jax.random.key"),
        *("tensorflow.Session", "tensorflow.InteractiveSession", "tensorflow.test.is_gpu_available"),
        *("tensorflow.compat.v1.Session", "tensorflow.test.gpu_device_name"),
    }
)
_FIRST_USES_ANYWHERE = frozenset({"list_physical_devices", "list_logical_devices", "list_local_devices"})
_NO_USES = frozenset(
    {
        *("torch.cuda.device_count", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all"),
        *("torch.cuda.is_initialized", "cupy.show_config"),
    }
)
READ_AT_IMPORT = {"THEANO_FLAGS": "theano", "THEANORC": "theano"}
"""Variables that nobody looks at again once the package is imported."""


class Set(NamedTuple):
    """One variable and the value that it is given; None where that is only known at run time."""

    name: str
    value: str | None
    default: bool = False
    """It is given only if the variable is not set."""


def assigned(site: Site, target: ast.expr, value: ast.expr | None) -> Iterator[Set]:
    """Read `os.environ["X"] = "v"`; without a value the variable is deleted, or changed from what it was."""
    if isinstance(target, ast.Subscript) and site.path(target.value) == _ENVIRON:
        yield from _one(site, target.slice, value)


def merged(site: Site, target: ast.expr, value: ast.expr) -> Iterator[Set]:
    """Read `os.environ |= {"X": "v"}`."""
    if site.path(target) == _ENVIRON:
        yield from _several(site, site.entries(value))


def called(site: Site, call: ast.Call) -> Iterator[Set]:
    """Read `os.environ.update(…)`, `.setdefault(…)`, `.pop(…)`, `os.putenv(…)` and Paddle's `set_flags(…)`."""
    path = site.path(call.func)
    match path, call.args:
        case "os.environ.update", [*arguments]:
            for argument in arguments[:1]:
                yield from _several(site, site.entries(argument))
            yield from _several(site, site.keywords(call))
        case (("os.putenv" | "os.environ.__setitem__"), [key, value]):
            yield from _one(site, key, value)
        case "os.environ.setdefault", [key, value]:
            yield from _one(site, key, value, default=True)
        case (("os.environ.pop" | "os.unsetenv"), [key, *_]):
            yield from _one(site, key, None)
        case _, [flags] if path.startswith("paddle.") and path.endswith(".set_flags"):
            yield from _several(site, site.entries(flags), flags=True)


def unset_in(site: Site, test: ast.expr) -> str:
    """Give the variable of a test that it is not set, `if "X" not in os.environ`; empty for any other test."""
    match test:
        case ast.Compare(left=key, ops=[ast.NotIn()], comparators=[where]) if site.path(where) == _ENVIRON:
            pass
        case (
            ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=function, args=[key]))
            | ast.Compare(
                left=ast.Call(func=function, args=[key]), ops=[ast.Is()], comparators=[ast.Constant(value=None)]
            )
        ) if site.path(function) in ("os.environ.get", "os.getenv"):
            pass
        case _:
            return ""
    name = site.value(key)
    return name if isinstance(name, str) else ""


def is_read_by(site: Site, call: ast.Call, path: str) -> bool:
    """Whether a call makes CUDA or a framework read the variables: `model.cuda()`, `x.to("cuda")`, `jax.devices()`."""
    package, _, rest = path.partition(".")
    name = path.rpartition(".")[2]
    if path in _NO_USES:
        return False
    if path in _FIRST_USES or name in _FIRST_USES_ANYWHERE or package == "cupy" or path.startswith("torch.cuda."):
        return True
    if name == "to" and call.args:
        value = site.value(call.args[0])
        return isinstance(value, str) and value.startswith("cuda")
    return name == "cuda" and bool(rest) and not call.keywords


def _several(site: Site, entries: dict[str, ast.expr], *, flags: bool = False) -> Iterator[Set]:
    for name, value in entries.items():
        if _is_of_interest(name):
            yield Set(name, _spelt(site.value(value), flags=flags))


def _one(site: Site, key: ast.expr, value: ast.expr | None, *, default: bool = False) -> Iterator[Set]:
    name = site.value(key)
    if not isinstance(name, str) or not _is_of_interest(name):
        return
    match value:
        # os.environ["X"] = os.environ.get("X", "0")
        case ast.Call(func=function, args=[same, other]) if site.path(function) in ("os.environ.get", "os.getenv"):
            if site.value(same) == name:
                yield Set(name, _spelt(site.value(other)), default=True)
                return
    yield Set(name, None if value is None else _spelt(site.value(value)), default)


def _is_of_interest(name: str) -> bool:
    return len(name) <= _NAME_LIMIT and bool(_OF_INTEREST.search(name)) and not _SECRET.search(name)


def _spelt(value: Value, *, flags: bool = False) -> str | None:
    """Give a value as the environment holds it; a flag of Paddle's may be a number."""
    if isinstance(value, str):
        return value if "\0" not in value else None
    return str(value) if flags and isinstance(value, int | float) else None
