"""What the names in a Python source stand for: imported packages, values assigned once, loop variables.

A name is judged by its bindings in the scope that owns it. One that is bound twice to different things stands for
nothing that could be told.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

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
