"""Symbol table of a Python source: its names, and the values, conditions and GPUs that are known without running it.

A name stands for its binding where the whole source, in any function, binds it only once, or always to the same
expression. A value is known where it is a constant, such a name, simple arithmetic or text made of them, or a variable
in the environment of the process. All other values (`args.fraction`) are UNKNOWN: only known at run time. Nothing is
imported or called, and every result is bounded: numbers to 1e18, texts to 4 kB, lists to 1000 items.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import defaultdict
from collections.abc import Callable
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from gpuwatch.declared.facts import LOCAL_RANKS, Variables

LOCAL = "?"
"""Root of a path that is neither an import nor unbound: a parameter, a local class, a name with several bindings."""

_NAMES_DEEP = 8
"""Names that are followed in a row, at most: `gpus` → `devices` → `tf.config.list_physical_devices("GPU")`."""
_VALUES_DEEP = 40
_TESTS_DEEP = 20
"""Tests within tests that are followed, at most."""
_BINDINGS = 8
"""Bindings of one name that are compared, at most."""
_STARS = 16
"""Imports `from x import *` that are assumed to change earlier names, at most."""
_LARGEST = 1e18
_LONGEST = 4096
_MOST = 1000
_POWER = 64
_PATH = 256
_MOST_DEVICES = 64
"""Highest ordinal of a GPU: no machine has more."""

_MUTATORS = frozenset({"append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update"})
_STORES = frozenset({"__setitem__", "pop", "putenv", "unsetenv"})
"""Methods and functions whose first argument is a key that they set or delete."""
GETS = ("os.environ.get", "os.getenv")
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.eq,  # people compare with `is` only None, True and False
    ast.IsNot: operator.ne,
    ast.In: lambda one, several: one in several,
    ast.NotIn: lambda one, several: one not in several,
}
_TEXT_METHODS: dict[str, Callable[[str], str]] = {"lower": str.lower, "upper": str.upper, "strip": str.strip}
_CONVERSIONS: dict[str, Callable[[Any], object]] = {"int": int, "float": float, "bool": bool}


class Unknown(Enum):
    """Type of UNKNOWN, which stands for a value that is only known at run time."""

    UNKNOWN = "only known at run time"


UNKNOWN = Unknown.UNKNOWN

Scalar: TypeAlias = str | int | float | None
Known: TypeAlias = Scalar | tuple[Scalar, ...]
Value: TypeAlias = Known | Unknown


class _UnknownError(Exception):
    """Raised for an expression whose value is only known at run time."""


class _Loop(NamedTuple):
    """Binding of a loop's variable."""

    iterable: ast.expr


_Binding: TypeAlias = str | ast.expr | _Loop | None
"""Path of an import, an assigned expression, a loop; None for anything else."""


class Device(NamedTuple):
    """GPU in an expression: an ordinal among the visible ones; None for each visible GPU, or for an unknown one."""

    ordinal: int | None
    known: bool = True


EACH = Device(None)
"""Each visible GPU."""
SOME = Device(None, known=False)
"""One GPU that is only known at run time."""
CURRENT = Device(-1)
"""GPU that CUDA uses at the place of the expression: `"cuda"`."""

_LISTS = ("list_physical_devices", "get_visible_devices", "list_logical_devices")
_COUNTS = ("cuda.device_count()", "runtime.getDeviceCount()")
"""Calls that count the visible GPUs: PyTorch's and CuPy's."""
_GPU_TESTS = ("cuda.is_available()", "is_gpu_available()", "is_built_with_cuda()", *_COUNTS)
"""Calls whose result is true in a process that holds a GPU."""


class SymbolTable:
    """Names, imports and known values of one source, in a process with these environment variables."""

    def __init__(self, tree: ast.Module, variables: Variables) -> None:
        self.imports: dict[str, None] = {}
        """Top-level packages that are imported anywhere, in the order of their first import."""
        self._environ = None if variables is None else dict(variables)
        self._stored: set[str] = set()
        """Keys that the source sets or deletes: `os.environ["LOCAL_RANK"] = …`, `{"LOCAL_RANK": …}`."""
        self._defaulted: set[str] = set()
        """Keys that the source sets where they are missing: `os.environ.setdefault("LOCAL_RANK", …)`."""
        self._bindings: defaultdict[str, list[_Binding]] = defaultdict(list)
        self._assigned: dict[ast.expr, _Binding] = {}
        """Binding of each name that is the only target of an assignment or a loop."""
        self._mutated: set[str] = set()
        """Names whose content is changed in place, or that `from x import *` may bind again."""
        self._stars: list[str] = []
        self._singles: dict[str, _Binding] = {}
        self._values: dict[str, Value] = {}
        self._truths: dict[ast.expr, bool | None] = {}
        self._tests = 0
        """Tests that are being computed, each for the one before."""
        waiting: list[ast.AST] = [tree]
        while waiting:
            node = waiting.pop()
            self._collect(node)
            waiting += reversed(children(node))

    @property
    def first_gpu(self) -> Device:
        """GPU that CUDA uses first; a launcher's framework sets a process of another rank to another GPU."""
        ranks = [value for name, value in (self._environ or {}).items() if name in LOCAL_RANKS]
        return Device(0) if all(value == "0" for value in ranks) else SOME

    def constant(self, name: str) -> ast.expr | None:
        """Return the only expression that is assigned to a name, unless other code may change it."""
        found = self._single(name)
        return found if isinstance(found, ast.expr) and name not in self._mutated else None

    def _single(self, name: str) -> _Binding:
        """Return the only binding of a name; None where it has none, or several."""
        if name not in self._singles:
            bindings = self._bindings.get(name) or [None]
            same = len(bindings) <= _BINDINGS and all(_is_same(one, other) for one, other in pairwise(bindings))
            self._singles[name] = bindings[0] if same else None
        return self._singles[name]

    def path(self, node: ast.expr, depth: int = _NAMES_DEEP) -> str:
        """Return an expression as a dotted path from an import: `tf.Session().run` → `tensorflow.Session().run`.

        A call becomes `()`, and an index `[]`. The root is `LOCAL` where it is unknown, and the name itself where it is
        unbound.
        """
        tail = ""
        while isinstance(node, ast.Attribute | ast.Call | ast.Subscript) and len(tail) <= _PATH:
            if isinstance(node, ast.Attribute):
                tail, node = f".{node.attr}{tail}", node.value
            elif isinstance(node, ast.Call):
                tail, node = f"(){tail}", node.func
            else:
                tail, node = f"[]{tail}", node.value
        if len(tail) > _PATH or not isinstance(node, ast.Name):
            return LOCAL if len(tail) > _PATH else LOCAL + tail
        return self._root(node.id, depth) + tail

    def _root(self, name: str, depth: int) -> str:
        bindings = self._bindings.get(name)
        if not bindings:
            return f"{self._stars[-1]}.{name}" if self._stars else name
        imported = next((one for one in bindings[:_BINDINGS] if isinstance(one, str)), None)
        if imported is not None:
            return imported
        found = self._single(name)
        return self.path(found, depth - 1) if isinstance(found, ast.expr) and depth else LOCAL

    # -----------------------------------------------------------------------------------------------------------------
    # Values

    def value(self, node: ast.expr) -> Value:
        """Return the value of an expression, or UNKNOWN."""
        try:
            return self._evaluate(node, _VALUES_DEEP)
        except (_UnknownError, ArithmeticError, TypeError, ValueError):  # what raises there too has no value
            return UNKNOWN

    def truth(self, test: ast.expr) -> bool | None:
        """Return whether a test is true in a process that holds a GPU; None where only a run shows it."""
        if test not in self._truths:
            self._truths[test] = None  # each test is computed once: it may contain others
            self._tests += 1
            self._truths[test] = self._find_truth(test) if self._tests <= _TESTS_DEEP else None
            self._tests -= 1
        return self._truths[test]

    def _find_truth(self, test: ast.expr) -> bool | None:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self.truth(operand)
                return None if truth is None else not truth
            case ast.BoolOp(op=operation, values=parts):
                truths = {self.truth(part) for part in parts}
                decisive = isinstance(operation, ast.Or)
                return decisive if decisive in truths else None if None in truths else not decisive
        if self.path(test).endswith("TYPE_CHECKING"):
            return False
        value = self.value(test)
        if value is not UNKNOWN:
            return bool(value)
        return self._asks_for_gpu(test) or None

    def _asks_for_gpu(self, test: ast.expr) -> bool:
        """Return whether a test asks for a GPU: `if len(gpus) > 0:`, `if device.type == "cuda":`."""
        match test:
            case ast.Compare(left=left, ops=[ast.Gt() | ast.NotEq()], comparators=[ast.Constant(value=0)]):
                test = left
            case ast.Compare(left=left, ops=[ast.GtE()], comparators=[ast.Constant(value=1)]):
                test = left
            case ast.Compare(
                left=ast.Attribute(value=device, attr="type"), ops=[ast.Eq()], comparators=[ast.Constant(value="cuda")]
            ):
                return SOME not in self.devices(device)
        match test:
            case ast.Call(func=ast.Name(id="len" | "bool"), args=[inner]):
                test = inner
        if not isinstance(test, ast.Name | ast.Call):
            return False
        return self.path(test).endswith(_GPU_TESTS) or self.devices(test) == (EACH,)

    def _evaluate(self, node: ast.expr, depth: int) -> Known:
        if depth <= 0:
            raise _UnknownError

        def evaluate(part: ast.expr) -> Known:
            return self._evaluate(part, depth - 1)

        match node:
            case ast.Constant(value=constant):
                return _bounded(constant)
            case ast.Name(id="__name__"):
                return "__main__"
            case ast.Name(id=name):
                return self._evaluate_name(name, depth - 1)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) if len(parts) <= _MOST:
                return tuple(_bounded(evaluate(part)) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not evaluate(operand)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                return _compute(0, ast.Sub() if isinstance(sign, ast.USub) else ast.Add(), evaluate(operand))
            case ast.BinOp(left=left, op=operation, right=right):
                return _compute(evaluate(left), operation, evaluate(right))
            case ast.BoolOp(op=operation, values=[*parts, last]):  # `os.environ.get("A") or "0"`
                for part in parts:
                    if bool(value := evaluate(part)) is isinstance(operation, ast.Or):
                        return value
                return evaluate(last)
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn() as kind], comparators=[right]) if (
                self.path(right) == "os.environ"
            ):
                return (self._read_variable(evaluate(key), None) is not None) is isinstance(kind, ast.In)
            case ast.Compare(left=left, ops=[kind], comparators=[right]):
                return _COMPARISONS[type(kind)](evaluate(left), evaluate(right))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self.truth(test)
                if truth is not None:
                    return evaluate(body if truth else orelse)
            case ast.JoinedStr(values=parts) if len(parts) <= _MOST:
                return _join("", [evaluate(part) for part in parts])
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return _text(evaluate(inner))
            case ast.Subscript(value=base, slice=key) if self.path(base) == "os.environ":
                return self._read_variable(evaluate(key))
            case ast.Call(func=ast.Name(id="str"), args=[argument], keywords=[]):
                return _text(evaluate(argument))
            case ast.Call(func=ast.Name(id="int" | "float" | "bool" as conversion), args=[argument], keywords=[]):
                return _bounded(_CONVERSIONS[conversion](evaluate(argument)))
            case ast.Call(func=ast.Attribute(value=separator, attr="join"), args=[parts], keywords=[]):
                match parts:  # ",".join(map(str, [2, 3]))
                    case ast.Call(func=ast.Name(id="map"), args=[ast.Name(id="str"), items], keywords=[]):
                        several = evaluate(items)
                        texts: Known = tuple(map(_text, several)) if isinstance(several, tuple) else None
                    case _:
                        texts = evaluate(parts)
                return _join(evaluate(separator), texts)
            case ast.Call(func=function, args=[key, *others], keywords=[]) if self.path(function) in GETS:
                return self._read_variable(evaluate(key), evaluate(others[0]) if others else None)
            case ast.Call(func=ast.Attribute(value=base, attr=method), args=[], keywords=[]):
                text = evaluate(base) if method in _TEXT_METHODS else None
                if isinstance(text, str):
                    return _TEXT_METHODS[method](text)
        raise _UnknownError

    def _evaluate_name(self, name: str, depth: int) -> Known:
        if name not in self._values:
            self._values[name] = UNKNOWN  # a name that is defined by itself has no value
            constant = self.constant(name)
            if constant is not None:
                self._values[name] = self._evaluate(constant, depth)
        found = self._values[name]
        if isinstance(found, Unknown):
            raise _UnknownError
        return found

    def _read_variable(self, name: Known, *default: Known) -> Known:
        """Return a variable that the process was started with and the source does not set, else the default."""
        if self._environ is None or not isinstance(name, str) or name in self._stored:
            raise _UnknownError
        if name in self._environ:
            return _bounded(self._environ[name])
        if not default or name in self._defaulted:
            raise _UnknownError
        return default[0]

    # -----------------------------------------------------------------------------------------------------------------
    # GPUs

    def devices(self, node: ast.expr, depth: int = _NAMES_DEEP, *, in_list: bool = False) -> tuple[Device, ...]:
        """Return the GPUs that an expression means: `1`, `"cuda:1"`, `gpus[0:2]`, a loop's variable.

        A GPU that is only known at run time is SOME.
        """
        value = self.value(node)
        if value is not UNKNOWN:
            several = value if isinstance(value, tuple) else (value,)
            return tuple(_device(one) for one in several[:_MOST_DEVICES])
        if not depth:
            return (SOME,)
        match node:
            case ast.Name(id=name):
                bound = self._single(name)
                if isinstance(bound, _Loop):
                    return self._devices_of_loop(bound.iterable, depth - 1)
                constant = self.constant(name)
                if constant is not None:
                    return self.devices(constant, depth - 1, in_list=in_list)
            case ast.Call(func=function, args=arguments, keywords=keywords) if self.path(function).endswith(
                ("torch.device", "cuda.Device")
            ):
                index = [*(one.value for one in keywords if one.arg in ("index", "device")), *arguments[:2]]
                if index:
                    return self.devices(index[0] if keywords else index[-1], depth - 1)
            case ast.Call(func=function, args=arguments, keywords=keywords) if self.path(function).endswith(_LISTS):
                kinds = [self.value(one) for one in (*arguments[:1], *(one.value for one in keywords))]
                if kinds and kinds[0] is not UNKNOWN:  # without a type the list begins with the CPU
                    return (EACH,) if kinds[0] == "GPU" else ()
            case ast.Subscript(value=base, slice=ast.Slice(lower=lower, upper=upper, step=None)):
                return self._devices_of_slice(self.devices(base, depth - 1), lower, upper)
            case ast.Subscript(value=base, slice=index):
                whole, place = self.devices(base, depth - 1), self.value(index)
                if whole == (EACH,):
                    return self.devices(index, depth - 1)  # `gpus[-1]` is SOME: the last of how many?
                if isinstance(place, int) and SOME not in whole and abs(place) <= _MOST_DEVICES:
                    return whole[place : place + 1 or None]
            case ast.List(elts=parts) | ast.Tuple(elts=parts) if len(parts) <= _MOST_DEVICES and not in_list:
                found = [one for part in parts for one in self.devices(part, depth - 1, in_list=True)]
                return tuple(found) if len(found) <= _MOST_DEVICES else (SOME,)
        return (SOME,)

    def _devices_of_slice(
        self, whole: tuple[Device, ...], lower: ast.expr | None, upper: ast.expr | None
    ) -> tuple[Device, ...]:
        first = None if lower is None else self.value(lower)
        last = None if upper is None else self.value(upper)
        if not isinstance(first, int | None) or not isinstance(last, int | None) or SOME in whole:
            return (SOME,)
        if whole != (EACH,):
            return whole[first:last]
        if last is None and not first:
            return whole
        if last is not None and last >= 0 and (first or 0) >= 0:
            return tuple(map(Device, range(min(last, _MOST_DEVICES))))[first:]
        return (SOME,)

    def _devices_of_loop(self, iterable: ast.expr, depth: int) -> tuple[Device, ...]:
        """Return the GPUs over which a loop runs: `gpus`, `[0, 2]`, `range(4)`, `range(torch.cuda.device_count())`."""
        match iterable:
            case ast.Call(func=ast.Name(id="range"), args=[ast.Call(func=ast.Name(id="len"), args=[listed])]):
                several = self.devices(listed, depth)
                return several if several == (EACH,) else (SOME,)
            case ast.Call(func=ast.Name(id="range"), args=[end]) if self.path(end).endswith(_COUNTS):
                return (EACH,)
            case ast.Call(func=ast.Name(id="range"), args=[*begin, end]) if len(begin) <= 1:
                first, last = self.value(begin[0]) if begin else 0, self.value(end)
                if isinstance(first, int) and isinstance(last, int) and 0 <= first < last <= _MOST_DEVICES:
                    return tuple(map(Device, range(first, last)))
                return (SOME,)
        return self.devices(iterable, depth)

    # -----------------------------------------------------------------------------------------------------------------
    # Collecting

    def _collect(self, node: ast.AST) -> None:
        match node:
            case ast.Constant() | ast.Expr() | ast.Name(ctx=ast.Load()):
                pass
            case ast.Name(id=name):
                self._bindings[name].append(self._assigned.get(node))
            case (
                ast.arg(arg=str(name))
                | ast.FunctionDef(name=str(name))
                | ast.AsyncFunctionDef(name=str(name))
                | ast.ClassDef(name=str(name))
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                self._bindings[name].append(None)
            case ast.Assign(targets=targets, value=value):
                self._assigned |= dict.fromkeys(targets, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                self._assigned[target] = value
            case ast.For(target=target, iter=iterable) | ast.comprehension(target=target, iter=iterable):
                match target, iterable:
                    case ast.Tuple(elts=[_, ast.Name() as item]), ast.Call(func=ast.Name(id="enumerate"), args=[one]):
                        self._assigned[item] = _Loop(one)
                    case _:
                        self._assigned[target] = _Loop(iterable)
            case ast.Import() | ast.ImportFrom():
                self._collect_imports(node)
            case ast.Subscript(value=base, slice=key, ctx=ast.Store() | ast.Del()):
                self._mutated.update(_names(base))
                self._stored.update(_literal_texts(key))
            case ast.Dict(keys=keys):
                self._stored.update(_literal_texts(*keys))
            case ast.keyword(arg=str(name)):
                self._stored.add(name)
            case ast.Call(func=ast.Attribute(value=base, attr=name), args=arguments):
                if name in _MUTATORS:
                    self._mutated.update(_names(base))
                if name in _STORES:
                    self._stored.update(_literal_texts(*arguments[:1]))
                elif name == "setdefault":
                    self._defaulted.update(_literal_texts(*arguments[:1]))

    def _collect_imports(self, node: ast.Import | ast.ImportFrom) -> None:
        prefix = "." * node.level + (node.module or "") + "." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            path = f"{prefix}{alias.name}"
            package = path.partition(".")[0]
            if package:
                self.imports.setdefault(package)
            if alias.name == "*":
                self._stars.append(prefix.rstrip("."))
                if len(self._stars) <= _STARS:
                    self._mutated.update(self._bindings)  # it may bind any name again
            elif alias.asname or prefix:
                self._bindings[alias.asname or alias.name].append(path)
            else:
                self._bindings[package].append(package)


def children(node: ast.AST) -> list[ast.AST]:
    """Return the child nodes of a node, in order, without operators and contexts, which have no children."""
    return [child for child in ast.iter_child_nodes(node) if child._fields]


def is_number(value: Value) -> TypeGuard[int | float]:
    """Return whether a value is a number, which a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _device(value: Value) -> Device:
    """Return the GPU that an ordinal, `"cuda"` or `"cuda:1"` means."""
    if value == "cuda":
        return CURRENT
    match = re.fullmatch(r"cuda:([0-9]{1,4})", value) if isinstance(value, str) else None
    ordinal = int(match[1]) if match else value
    return Device(int(ordinal)) if isinstance(ordinal, int) and 0 <= ordinal < _MOST_DEVICES else SOME


def _names(node: ast.expr) -> list[str]:
    return [node.id] if isinstance(node, ast.Name) else []


def _literal_texts(*nodes: ast.expr | None) -> list[str]:
    return [one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _is_same(one: _Binding, other: _Binding) -> bool:
    if isinstance(one, _Loop) and isinstance(other, _Loop):
        return _is_same(one.iterable, other.iterable)
    if isinstance(one, ast.expr) and isinstance(other, ast.expr):
        return ast.dump(one) == ast.dump(other)
    return isinstance(one, str) and one == other


def _bounded(value: object) -> Scalar:
    if value is None or (isinstance(value, str) and len(value) <= _LONGEST):
        return value
    if isinstance(value, int | float) and abs(value) <= _LARGEST:  # neither an infinity nor a NaN is
        return value
    raise _UnknownError


def _compute(left: Known, operation: ast.operator, right: Known) -> Scalar:
    texts = isinstance(left, str) and isinstance(right, str) and isinstance(operation, ast.Add)
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if type(operation) not in _ARITHMETIC or not (texts or numbers):
        raise _UnknownError
    if isinstance(operation, ast.Pow | ast.LShift) and isinstance(right, int | float) and abs(right) > _POWER:
        raise _UnknownError
    return _bounded(_ARITHMETIC[type(operation)](left, right))


def _text(value: Known) -> str:
    if not isinstance(value, str | int | float):
        raise _UnknownError
    return str(value)


def _join(separator: Known, parts: object) -> Scalar:
    texts = [part for part in parts if isinstance(part, str)] if isinstance(parts, tuple | list) else []
    if not isinstance(separator, str) or not isinstance(parts, tuple | list) or len(texts) < len(parts):
        raise _UnknownError
    if sum(map(len, texts)) > _LONGEST:
        raise _UnknownError
    return _bounded(separator.join(texts))
