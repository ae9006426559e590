"""Values of names and expressions in a Python source, where they are known without running it.

A name is judged by its bindings in the scope that owns it. One that is bound twice to different things stands for
nothing that could be told.

Nothing is called or evaluated by Python itself, and every result is bounded: numbers to 1e18, texts to 4 kB, lists to
1000 items. Of the environment only ranks are read. What depends on anything else (`args.fraction`) is `UNKNOWN`.
"""

from __future__ import annotations

import ast
import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import TypeAlias

from gpuwatch.declared.facts import RANKS, Ranks

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_DEPTH = 8
"""How many names in a row are followed: `gpus` → `devices` → `tf.config.list_physical_devices("GPU")`."""

_BINDINGS = 8
"""How many bindings of one name are compared."""

_MUTATORS = frozenset({"append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update"})

_STORES = frozenset({"__setitem__", "pop", "putenv", "unsetenv"})
"""Methods and functions whose first argument is a key that they set or remove."""

_LEAVES = frozenset(
    {ast.Load, ast.Store, ast.Del, ast.Constant, *ast.operator.__subclasses__(), *ast.cmpop.__subclasses__()}
)
"""Nodes without anything in them, which are most of a tree."""

_BINDING = frozenset(
    {
        *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.Delete, ast.withitem, ast.Lambda),
        *(ast.For, ast.AsyncFor, ast.comprehension, ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping),
    }
)

LOCAL = "?"
"""The root of a path that is neither imported nor unbound: a parameter, a local class, whatever was assigned twice."""


@dataclass(frozen=True, slots=True)
class Each:
    """The binding of a loop's variable."""

    iterable: ast.expr


Binding: TypeAlias = str | ast.expr | Each | None
"""The path of an import, an assigned expression, a loop's iterable; None for anything else."""


@dataclass(slots=True, eq=False)
class Scope:
    """The names of a module, a function or the body of a class."""

    parent: Scope | None = None
    bindings: defaultdict[str, list[Binding]] = field(default_factory=lambda: defaultdict(list))
    functions: defaultdict[str, list[Function]] = field(default_factory=lambda: defaultdict(list))
    shared: set[str] = field(default_factory=set)
    """Names declared `global` or `nonlocal`."""
    is_class: bool = False


class Names:
    """All scopes of one source."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope()
        self.imports: dict[str, None] = {}
        """Top-level packages that are imported anywhere, in order of their first import."""
        self.mentioned: set[str] = set()
        """Names and attributes that are used anywhere: a function that is not among them is never called."""
        self.stored: set[str] = set()
        """Keys under which anything is stored or removed: `os.environ["LOCAL_RANK"] = …`, `{"LOCAL_RANK": …}`."""
        self.defaulted: set[str] = set()
        """Keys that get a value where they have none: `os.environ.setdefault("LOCAL_RANK", …)`."""
        self._scopes: dict[ast.AST, Scope] = {tree: self.module}
        self._mutated: set[str] = set()
        self._stars: list[str] = []
        self._single: dict[tuple[Scope, str], tuple[Binding, Scope] | None] = {}
        self._collect(tree)
        self._share()

    def scope(self, node: ast.AST) -> Scope:
        """Give the scope that a module, function or class opens."""
        return self._scopes[node]

    def functions(self, name: str, scope: Scope) -> list[Function]:
        """Give the functions that *name* may mean in *scope*, the last ones of many."""
        owner = _owner(name, scope)
        return owner.functions.get(name, [])[-_BINDINGS:] if owner else []

    def single(self, name: str, scope: Scope) -> tuple[Binding, Scope] | None:
        """Give the one thing that *name* is bound to, and the scope in which that is to be read; None for several."""
        key = (scope, name)
        if key not in self._single:
            self._single[key] = self._find(name, scope)
        return self._single[key]

    def constant(self, name: str, scope: Scope) -> tuple[ast.expr, Scope] | None:
        """Give the expression that *name* is assigned once, unless what it holds is changed in place somewhere."""
        found = self.single(name, scope)
        if found is None or not isinstance(found[0], ast.expr) or name in self._mutated:
            return None
        return found[0], found[1]

    def path(self, node: ast.expr, scope: Scope, depth: int = _DEPTH) -> str:
        """Spell an expression as a dotted path from what was imported: `tf.Session().run` → `tensorflow.Session().run`.

        A call is `()`, and any index `[]`. The root is `LOCAL` where it cannot be told, and the name itself where
        nothing binds it.
        """
        tail = ""
        while True:
            if isinstance(node, ast.Attribute):
                tail = f".{node.attr}{tail}"
                node = node.value
            elif isinstance(node, ast.Call):
                tail = f"(){tail}"
                node = node.func
            elif isinstance(node, ast.Subscript):
                tail = f"[]{tail}"
                node = node.value
            else:
                break
            if len(tail) > 256:
                return LOCAL
        return (self._root(node.id, scope, depth) if isinstance(node, ast.Name) else LOCAL) + tail

    def _root(self, name: str, scope: Scope, depth: int) -> str:
        owner = _owner(name, scope)
        if owner is None:
            return f"{self._stars[-1]}.{name}" if self._stars else name
        imported = next((one for one in owner.bindings[name][:_BINDINGS] if isinstance(one, str)), None)
        if imported is not None:
            return imported
        found = self.single(name, scope)
        if found is None or not isinstance(found[0], ast.expr) or not depth:
            return LOCAL
        return self.path(found[0], found[1], depth - 1)

    def _find(self, name: str, scope: Scope) -> tuple[Binding, Scope] | None:
        owner = _owner(name, scope)
        bindings = owner.bindings[name] if owner else []
        if not owner or not bindings or len(bindings) > _BINDINGS:
            return None
        same = all(_same(one, other) for one, other in pairwise(bindings))
        return (bindings[0], owner) if same else None

    # -------------------------------------------------------------------------------------------------------------
    # Collecting

    def _collect(self, tree: ast.Module) -> None:
        waiting: list[tuple[ast.AST, Scope]] = [(tree, self.module)]
        while waiting:
            node, scope = waiting.pop()
            if isinstance(node, Function):
                inner = self._open(node, scope)
                scope.functions[node.name].append(node)
                scope.bindings[node.name].append(None)
                waiting += ((one, inner) for one in reversed(node.body))
                waiting += ((one, scope) for one in (*node.decorator_list, node.args) if one)
                for argument in _arguments(node.args):
                    inner.bindings[argument].append(None)
            elif isinstance(node, ast.ClassDef):
                inner = self._open(node, scope)
                inner.is_class = True
                scope.bindings[node.name].append(None)
                waiting += ((one, inner) for one in reversed(node.body))
                waiting += ((one, scope) for one in (*node.decorator_list, *node.bases))
            else:
                self._bind(node, scope)
                waiting += ((child, scope) for child in reversed(children(node)))

    def _open(self, node: Function | ast.ClassDef, scope: Scope) -> Scope:
        # The body of a class is no scope to its methods.
        while scope.is_class and isinstance(node, Function) and scope.parent:
            scope = scope.parent
        inner = self._scopes[node] = Scope(scope)
        return inner

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.Name):
            self.mentioned.add(node.id)
        elif isinstance(node, ast.Attribute):
            self.mentioned.add(node.attr)
            if node.attr in _MUTATORS and isinstance(node.value, ast.Name):
                self._mutated.add(node.value.id)
        elif type(node) in _BINDING:
            for name, binding in _bound(node):
                scope.bindings[name].append(binding)
        elif isinstance(node, ast.Subscript):
            if not isinstance(node.ctx, ast.Load):
                if isinstance(node.value, ast.Name):
                    self._mutated.add(node.value.id)
                self.stored.update(_texts(node.slice))
        elif isinstance(node, ast.Dict):
            self.stored.update(_texts(*node.keys))
        elif isinstance(node, ast.keyword) and node.arg:
            self.stored.add(node.arg)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _STORES:
                self.stored.update(_texts(*node.args[:1]))
            elif node.func.attr == "setdefault":
                self.defaulted.update(_texts(*node.args[:1]))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for name, path in _imported(node):
                self._import(name, path, scope)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            scope.shared.update(node.names)

    def _import(self, name: str, path: str, scope: Scope) -> None:
        package = path.partition(".")[0]
        if package:
            self.imports.setdefault(package)
        if name == "*":
            self._stars.append(path)
        else:
            scope.bindings[name].append(path)

    def _share(self) -> None:
        """Move what functions bind to names of their module to where they are declared."""
        for scope in self._scopes.values():
            for name in scope.shared & scope.bindings.keys():
                owner = (scope.parent and _owner(name, scope.parent)) or self.module
                if owner is not scope:
                    owner.bindings[name] += scope.bindings.pop(name)


def children(node: ast.AST) -> list[ast.AST]:
    """Give the nodes in a node, in order, without those that have nothing in them."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST) and type(one) not in _LEAVES]
        elif isinstance(value, ast.AST) and type(value) not in _LEAVES:
            found.append(value)
    return found


def _texts(*nodes: ast.expr | None) -> Iterator[str]:
    """Give the literal texts among expressions."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _owner(name: str, scope: Scope) -> Scope | None:
    """Find the scope that binds *name*."""
    found: Scope | None = scope
    while found is not None and name not in found.bindings:
        found = found.parent
    return found


def _same(one: Binding, other: Binding) -> bool:
    if isinstance(one, Each) and isinstance(other, Each):
        return _same(one.iterable, other.iterable)
    if isinstance(one, ast.expr) and isinstance(other, ast.expr):
        return ast.dump(one) == ast.dump(other)
    return isinstance(one, str) and one == other


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if one is not None:
            yield one.arg


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds and their paths; those of the own package begin with a dot."""
    prefix = ""
    if isinstance(node, ast.ImportFrom):
        prefix = "." * node.level + (node.module or "") + "."
    for alias in node.names:
        if alias.name == "*":
            yield "*", prefix.rstrip(".")
        elif prefix:
            yield alias.asname or alias.name, prefix + alias.name
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            top = alias.name.partition(".")[0]
            yield top, top


def _bound(node: ast.AST) -> Iterator[tuple[str, Binding]]:
    """Yield the names that a node binds, imports and definitions apart."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _assigned(target, node.value)
    elif isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield from _assigned(node.target, node.value)
    elif isinstance(node, ast.NamedExpr):
        yield node.target.id, node.value
    elif isinstance(node, ast.AugAssign):
        yield from _assigned(node.target, None)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        match node.target, node.iter:
            case ast.Name(id=name), _:
                yield name, Each(node.iter)
            case ast.Tuple(elts=[counter, ast.Name(id=name)]), ast.Call(func=ast.Name(id="enumerate"), args=[listed]):
                yield from _assigned(counter, None)
                yield name, Each(listed)
            case _:
                yield from _assigned(node.target, None)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _assigned(node.optional_vars, None)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            yield from _assigned(target, None)
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name, None
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest, None
    elif isinstance(node, ast.Lambda):
        for name in _arguments(node.args):
            yield name, None


def _assigned(target: ast.expr, value: ast.expr | None) -> Iterable[tuple[str, Binding]]:
    """Yield the names in a target with what each is assigned, as far as that can be seen."""
    waiting: list[tuple[ast.expr, ast.expr | None]] = [(target, value)]
    while waiting:
        one, given = waiting.pop()
        if isinstance(one, ast.Name):
            yield one.id, given
        elif isinstance(one, ast.Starred):
            waiting.append((one.value, None))
        elif isinstance(one, ast.Tuple | ast.List):
            waiting += pairs(one, given)


def pairs(target: ast.Tuple | ast.List, value: ast.expr | None) -> list[tuple[ast.expr, ast.expr | None]]:
    """Match the parts of a target with those of what is assigned to it: `a, b = 1, 2`."""
    parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    starred = any(isinstance(one, ast.Starred) for one in (*target.elts, *parts))
    if starred or len(parts) != len(target.elts):
        return [(one, None) for one in target.elts]
    return list(zip(target.elts, parts, strict=True))


class Unknown(Enum):
    """The lack of a value, which None is not."""

    UNKNOWN = "only known at run time"


UNKNOWN = Unknown.UNKNOWN

Scalar: TypeAlias = str | int | float | bool | Unknown | None
Value: TypeAlias = Scalar | tuple[Scalar, ...]
"""Lists are flat: what is in a list in a list is unknown."""

LARGEST = 1e18
LONGEST = 4096
MOST = 1000
_DEPTH_SCRIPT_VALUES = 40
_POWER = 64

_Operator: TypeAlias = Callable[[int | float, int | float], int | float]

_ARITHMETIC: Mapping[type[ast.operator], _Operator] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_SHIFTS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_ASKS = ("os.environ.get", "os.getenv")
_EQUALITY: Mapping[type[ast.cmpop], bool] = {ast.Eq: True, ast.Is: True, ast.NotEq: False, ast.IsNot: False}


class Values:
    """Evaluates the expressions of one source; a name's value is worked out once."""

    def __init__(
        self, names: Names, ranks: Ranks = None, stored_elsewhere: Collection[str] = (), *, main: bool = True
    ) -> None:
        """`stored_elsewhere` are keys that other sources of the program set; it may grow until values are asked for."""
        self._names = names
        self._stored_elsewhere = stored_elsewhere
        self._main = main
        self._ranks = None if ranks is None else dict(ranks)
        self._known: dict[tuple[Scope, str], Value] = {}

    def of(self, node: ast.expr, scope: Scope, depth: int = _DEPTH_SCRIPT_VALUES) -> Value:
        """Give the value of *node* as it is read in *scope*, or UNKNOWN."""
        if depth <= 0:
            return UNKNOWN

        def value(inner: ast.expr) -> Value:
            return self.of(inner, scope, depth - 1)

        match node:
            case ast.Constant(value=constant):
                return _bounded(constant)
            case ast.Name(id=name):
                return self._named(name, scope, depth)
            case ast.UnaryOp(op=operation, operand=operand):
                return _unary(operation, value(operand))
            case ast.BinOp(left=left, op=operation, right=right):
                return _binary(value(left), operation, value(right))
            case ast.Compare(left=left, ops=[operation], comparators=[right]):
                return _compared(value(left), operation, value(right))
            case ast.Tuple(elts=parts) | ast.List(elts=parts) if len(parts) <= MOST:
                return tuple(_scalar(value(part)) for part in parts)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = value(test)
                return UNKNOWN if _hidden(chosen) else value(body if chosen else orelse)
            case ast.JoinedStr(values=parts) if len(parts) <= MOST:
                return _joined("", [value(part) for part in parts])
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return _text(value(inner))
            case ast.Subscript(value=base, slice=key) if self._names.path(base, scope) == "os.environ":
                return self._rank(value(key), UNKNOWN)
            case ast.Call(keywords=[]):
                return self._call(node, scope, depth)
        return UNKNOWN

    def _rank(self, name: Value, otherwise: Value) -> Value:
        """Give a rank that the process was started with; one that the program sets is only known at run time."""
        if self._ranks is None or not isinstance(name, str) or name not in RANKS:
            return UNKNOWN
        if name in self._names.stored or name in self._stored_elsewhere:
            return UNKNOWN
        if name in self._ranks:
            return _bounded(self._ranks[name])
        return UNKNOWN if name in self._names.defaulted else otherwise

    def _named(self, name: str, scope: Scope, depth: int) -> Value:
        if name == "__name__":
            return "__main__" if self._main else "a module"
        key = (scope, name)
        if key not in self._known:
            self._known[key] = UNKNOWN  # What is defined by itself has no value.
            constant = self._names.constant(name, scope)
            if constant is not None:
                self._known[key] = self.of(constant[0], constant[1], depth - 1)
        return self._known[key]

    def _call(self, node: ast.Call, scope: Scope, depth: int) -> Value:
        match node:
            case ast.Call(func=ast.Attribute(value=separator, attr="join"), args=[parts]):
                between = self.of(separator, scope, depth - 1)
                items = self._texts(parts, scope, depth)
                return _joined(between, items) if isinstance(between, str) else UNKNOWN
            case ast.Call(func=ast.Name(id="int" | "float" | "str" as kind), args=[argument]):
                return _converted(kind, self.of(argument, scope, depth - 1))
            case ast.Call(func=function, args=[key, *others]) if self._names.path(function, scope) in _ASKS:
                otherwise = self.of(others[0], scope, depth - 1) if others else None
                return self._rank(self.of(key, scope, depth - 1), otherwise)
        return UNKNOWN

    def _texts(self, node: ast.expr, scope: Scope, depth: int) -> Iterable[Value]:
        """Give what `join` is given: a literal list, or `map(str, …)` or `str(x) for x in …` over one."""
        mapped = True
        match node:
            case ast.Call(func=ast.Name(id="map"), args=[ast.Name(id="str"), items], keywords=[]):
                pass
            case (
                ast.GeneratorExp(elt=element, generators=[ast.comprehension(target=target, iter=items, ifs=[])])
                | ast.ListComp(elt=element, generators=[ast.comprehension(target=target, iter=items, ifs=[])])
            ) if _is_text_of(element, target):
                pass
            case _:
                items, mapped = node, False
        found = self.of(items, scope, depth - 1)
        if not isinstance(found, tuple):
            return (UNKNOWN,)
        return [_text(one) for one in found] if mapped else found


def _is_text_of(element: ast.expr, target: ast.expr) -> bool:
    """Whether a comprehension is `str(x) for x in …`."""
    match element, target:
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=used)], keywords=[]), ast.Name(id=name):
            return used == name
    return False


def number(value: Value) -> float | None:
    """Give a value that is a number, which a bool is not."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _hidden(value: Value) -> bool:
    """Whether a value is unknown, or has a part that is."""
    return value is UNKNOWN or (isinstance(value, tuple) and UNKNOWN in value)


def _scalar(value: Value) -> Scalar:
    return UNKNOWN if isinstance(value, tuple) else value


def _bounded(value: object) -> Scalar:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) <= LARGEST else UNKNOWN  # Neither an infinity nor a NaN is.
    if isinstance(value, str):
        return value if len(value) <= LONGEST else UNKNOWN
    return UNKNOWN


def _unary(operation: ast.unaryop, value: Value) -> Value:
    if isinstance(operation, ast.Not):
        return UNKNOWN if _hidden(value) else not value
    if isinstance(value, int | float) and isinstance(operation, ast.USub | ast.UAdd):
        return -value if isinstance(operation, ast.USub) else +value
    return UNKNOWN


def _binary(left: Value, operation: ast.operator, right: Value) -> Value:
    if isinstance(left, str) and isinstance(right, str):
        return _bounded(left + right) if isinstance(operation, ast.Add) else UNKNOWN
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        return UNKNOWN
    if isinstance(operation, ast.Pow) and abs(right) > _POWER:
        return UNKNOWN
    try:
        if type(operation) in _ARITHMETIC:
            return _bounded(_ARITHMETIC[type(operation)](left, right))
        shift = _SHIFTS.get(type(operation))
        if shift and isinstance(left, int) and isinstance(right, int) and right <= _POWER:
            return _bounded(shift(left, right))
    except (ArithmeticError, ValueError):
        return UNKNOWN  # Divided by 0, too large a power, shifted by less than nothing: it raises there too.
    return UNKNOWN


def _compared(left: Value, operation: ast.cmpop, right: Value) -> Value:
    if _hidden(left) or _hidden(right) or type(operation) not in _EQUALITY:
        return UNKNOWN
    return (left == right) is _EQUALITY[type(operation)]


def _converted(kind: str, value: Value) -> Value:
    if kind == "str":
        return _text(value)
    if not isinstance(value, str | int | float):
        return UNKNOWN
    try:
        return _bounded(int(value) if kind == "int" else float(value))
    except (ValueError, OverflowError):
        return UNKNOWN


def _text(value: Value) -> Scalar:
    """Give `str(value)` of a text or number."""
    return str(value) if isinstance(value, str | int | float) else UNKNOWN


def _joined(between: str, parts: Iterable[Value]) -> Scalar:
    texts: list[str] = []
    length = 0
    for part in parts:
        if not isinstance(part, str):
            return UNKNOWN
        texts.append(part)
        length += len(part) + len(between)
        if length > LONGEST + len(between):
            return UNKNOWN
    return between.join(texts)
