"""Symbol table of a Python source: the bindings of its names, and the values that are known without running it.

A name stands for its binding where the whole source, in any function, binds it only once, or always to the same
expression. A value is known where it is a constant, such a name, simple arithmetic or text made of them, or a rank in
the environment of the process. All other values (`args.fraction`) are UNKNOWN: only known at run time. Nothing is
imported or called, and every result is bounded: numbers to 1e18, texts to 4 kB, lists to 1000 items.
"""

from __future__ import annotations

import ast
import operator
from collections import defaultdict
from collections.abc import Callable
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from gpuwatch.declared.facts import RANKS, Ranks

LOCAL = "?"
"""Root of a path that is neither an import nor unbound: a parameter, a local class, a name with several bindings."""

_NAMES_DEEP = 8
"""Names that are followed in a row, at most: `gpus` → `devices` → `tf.config.list_physical_devices("GPU")`."""
_VALUES_DEEP = 40
_BINDINGS = 8
"""Bindings of one name that are compared, at most."""
_STARS = 16
"""Imports `from x import *` that are assumed to change earlier names, at most."""
_LARGEST = 1e18
_LONGEST = 4096
_MOST = 1000
_POWER = 64
_PATH = 256

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


class Unknown(Enum):
    """Type of UNKNOWN, which stands for a value that is only known at run time."""

    UNKNOWN = "only known at run time"


UNKNOWN = Unknown.UNKNOWN

Scalar: TypeAlias = str | int | float | None
Known: TypeAlias = Scalar | tuple[Scalar, ...]
Value: TypeAlias = Known | Unknown


class _UnknownError(Exception):
    """Raised for an expression whose value is only known at run time."""


class Loop(NamedTuple):
    """Binding of a loop's variable."""

    iterable: ast.expr


Binding: TypeAlias = str | ast.expr | Loop | None
"""Path of an import, an assigned expression, a loop; None for anything else."""


class RankVariables:
    """Ranks in the environment of a process. All sources of its program share them, since any source may set one."""

    def __init__(self, ranks: Ranks = None) -> None:
        self._started_with = None if ranks is None else dict(ranks)
        self.stored: set[str] = set()
        """Keys that a source sets: `os.environ["LOCAL_RANK"] = …`, `{"LOCAL_RANK": …}`."""
        self.defaulted: set[str] = set()
        """Keys that a source sets where they are missing: `os.environ.setdefault("LOCAL_RANK", …)`."""

    def read(self, name: Known, *default: Known) -> Known:
        """Return a rank that the process was started with and no source sets, else the default."""
        if self._started_with is None or name not in RANKS or name in self.stored:
            raise _UnknownError
        if name in self._started_with:
            return self._started_with[str(name)]
        if not default or name in self.defaulted:
            raise _UnknownError
        return default[0]


class SymbolTable:
    """Names, imports and known values of one source."""

    def __init__(self, tree: ast.Module, ranks: RankVariables, *, main: bool = True) -> None:
        self.imports: dict[str, None] = {}
        """Top-level packages that are imported anywhere, in the order of their first import."""
        self.mentioned: set[str] = set()
        """Names and attributes that are read anywhere."""
        self._ranks = ranks
        self._main = main
        self._bindings: defaultdict[str, list[Binding]] = defaultdict(list)
        self._assigned: dict[ast.expr, Binding] = {}
        """Binding of each name that is the only target of an assignment or a loop."""
        self._mutated: set[str] = set()
        """Names whose content is changed in place, or that `from x import *` may bind again."""
        self._stars: list[str] = []
        self._singles: dict[str, Binding] = {}
        self._values: dict[str, Value] = {}
        waiting: list[ast.AST] = [tree]
        while waiting:
            node = waiting.pop()
            self._collect(node)
            waiting += reversed(children(node))

    def single(self, name: str) -> Binding:
        """Return the only binding of a name; None where it has none, or several."""
        if name not in self._singles:
            bindings = self._bindings.get(name) or [None]
            same = len(bindings) <= _BINDINGS and all(_is_same(one, other) for one, other in pairwise(bindings))
            self._singles[name] = bindings[0] if same else None
        return self._singles[name]

    def constant(self, name: str) -> ast.expr | None:
        """Return the only expression that is assigned to a name, unless other code may change it."""
        found = self.single(name)
        return found if isinstance(found, ast.expr) and name not in self._mutated else None

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
        found = self.single(name)
        return self.path(found, depth - 1) if isinstance(found, ast.expr) and depth else LOCAL

    # -----------------------------------------------------------------------------------------------------------------
    # Values

    def value(self, node: ast.expr) -> Value:
        """Return the value of an expression, or UNKNOWN."""
        try:
            return self._evaluate(node, _VALUES_DEEP)
        except (_UnknownError, ArithmeticError, TypeError, ValueError):  # what raises there too has no value
            return UNKNOWN

    def _evaluate(self, node: ast.expr, depth: int) -> Known:
        if depth <= 0:
            raise _UnknownError

        def evaluate(part: ast.expr) -> Known:
            return self._evaluate(part, depth - 1)

        match node:
            case ast.Constant(value=constant):
                return _bounded(constant)
            case ast.Name(id="__name__"):
                return "__main__" if self._main else "a module"
            case ast.Name(id=name):
                return self._evaluate_name(name, depth - 1)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) if len(parts) <= _MOST:
                return tuple(_bounded(evaluate(part)) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not evaluate(operand)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                return _compute(0, ast.Sub() if isinstance(sign, ast.USub) else ast.Add(), evaluate(operand))
            case ast.BinOp(left=left, op=operation, right=right):
                return _compute(evaluate(left), operation, evaluate(right))
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                return evaluate(left) == evaluate(right)
            case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]):
                return evaluate(left) != evaluate(right)
            case ast.JoinedStr(values=parts) if len(parts) <= _MOST:
                return _join("", [evaluate(part) for part in parts])
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return _text(evaluate(inner))
            case ast.Subscript(value=base, slice=key) if self.path(base) == "os.environ":
                return _bounded(self._ranks.read(evaluate(key)))
            case ast.Call(func=ast.Name(id="str"), args=[argument], keywords=[]):
                return _text(evaluate(argument))
            case ast.Call(func=ast.Name(id="int" | "float" as kind), args=[argument], keywords=[]):
                value = evaluate(argument)
                if isinstance(value, str | int | float):
                    return _bounded(int(value) if kind == "int" else float(value))
            case ast.Call(func=ast.Attribute(value=separator, attr="join"), args=[parts], keywords=[]):
                match parts:  # ",".join(map(str, [2, 3]))
                    case ast.Call(func=ast.Name(id="map"), args=[ast.Name(id="str"), items], keywords=[]):
                        several = evaluate(items)
                        texts: Known = tuple(map(_text, several)) if isinstance(several, tuple) else None
                    case _:
                        texts = evaluate(parts)
                return _join(evaluate(separator), texts)
            case ast.Call(func=function, args=[key, *others], keywords=[]) if self.path(function) in GETS:
                return self._ranks.read(evaluate(key), evaluate(others[0]) if others else None)
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

    # -----------------------------------------------------------------------------------------------------------------
    # Collecting

    def _collect(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                self.mentioned.add(name)
            case ast.Constant() | ast.Expr():
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
                        self._assigned[item] = Loop(one)
                    case _:
                        self._assigned[target] = Loop(iterable)
            case ast.Import() | ast.ImportFrom():
                self._collect_imports(node)
            case ast.Subscript(value=base, slice=key, ctx=ast.Store() | ast.Del()):
                self._mutated.update(_names(base))
                self._ranks.stored.update(_literal_texts(key))
            case ast.Dict(keys=keys):
                self._ranks.stored.update(_literal_texts(*keys))
            case ast.keyword(arg=str(name)):
                self._ranks.stored.add(name)
            case ast.Call(func=ast.Attribute(value=base, attr=name), args=arguments):
                if name in _MUTATORS:
                    self._mutated.update(_names(base))
                if name in _STORES:
                    self._ranks.stored.update(_literal_texts(*arguments[:1]))
                elif name == "setdefault":
                    self._ranks.defaulted.update(_literal_texts(*arguments[:1]))

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


def _names(node: ast.expr) -> list[str]:
    return [node.id] if isinstance(node, ast.Name) else []


def _literal_texts(*nodes: ast.expr | None) -> list[str]:
    return [one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _is_same(one: Binding, other: Binding) -> bool:
    if isinstance(one, Loop) and isinstance(other, Loop):
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
