"""Symbol table of a Python source: what each name is bound to, and where variables of the environment are set.

A name stands for its binding where the whole source, in any function, binds it only once, or always to the same
expression. Where a name has several bindings, is changed in place (`gpus.append(…)`) or may be set by `exec`, a
parameter or a `from module import *`, it stands for nothing that is known.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias

LOCAL = "?"
"""Root of a path that is neither an import nor unbound: a parameter, a local class, a name with several bindings."""

NAMES_DEEP = 8
"""Names that are followed in a row, at most: `gpus` → `devices` → `tf.config.list_physical_devices("GPU")`."""
_BINDINGS = 8
"""Bindings of one name that are compared, at most."""
_BASES = 4
"""Bases of a class that are followed, at most, and how far."""
_PATH = 256
"""Characters of a path, at most."""

_MUTATORS = frozenset({"append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update"})
_STORES = frozenset({"__setitem__", "pop", "putenv", "unsetenv"})
"""Methods and functions whose first argument is a key that they set or delete."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_REPEATED = (*_FUNCTIONS, ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Loop(NamedTuple):
    """Binding of a loop's variable."""

    iterable: ast.expr


_Position: TypeAlias = tuple[int, int]
"""Line and column in a source."""

Binding: TypeAlias = str | ast.expr | Loop | None
"""Path of an import, an assigned expression, a loop; None for anything else."""


class SymbolTable:
    """Names, imports, functions and classes of one source."""

    def __init__(self, tree: ast.Module) -> None:
        self.imports: dict[str, None] = {}
        """Top-level packages that are imported anywhere, in the order of their first import."""
        self.mentioned: set[str] = set()
        """Names that are read anywhere."""
        self.functions: Counter[str] = Counter()
        """Definitions of each function or method, by its name."""
        self.methods: Counter[str] = Counter()
        """Definitions of each method alone."""
        self.classes: dict[str, tuple[list[str], list[str]]] = {}
        """Names of the bases and of the methods of each class."""
        self._open = False
        """Whether the source runs text as code, or sets names by their text: then no name's value is known."""
        self._stored: defaultdict[str, list[_Position]] = defaultdict(list)
        """Keys that the source sets or deletes, and the ends of the statements that do: `os.environ["RANK"] = …`."""
        self._defaulted: defaultdict[str, list[_Position]] = defaultdict(list)
        """Keys that the source sets where they are missing: `os.environ.setdefault("LOCAL_RANK", …)`."""
        self._blocks: list[tuple[_Position, _Position, bool]] = []
        """Functions and loops, whose code may run later or again, by their begin and end, and whether it is a loop."""
        self._bindings: defaultdict[str, list[Binding]] = defaultdict(list)
        self._assigned: dict[ast.expr, Binding] = {}
        """Binding of each name that is the only target of an assignment or a loop."""
        self._mutated: set[str] = set()
        """Names whose content is changed in place."""
        self._star = ""
        """Module of the last `from module import *`, which may bind again any name that is bound before it."""
        self._before_star = 0
        self._singles: dict[str, Binding] = {}
        waiting: list[ast.AST] = [tree]
        while waiting:
            node = waiting.pop()
            self._collect(node)
            waiting += reversed(children(node))
        self._mutated.update(islice(self._bindings, self._before_star))

    def constant(self, name: str) -> ast.expr | None:
        """Return the only expression that is assigned to a name, unless other code may change it."""
        found = self.binding(name)
        return found if isinstance(found, ast.expr) and name not in self._mutated and not self._open else None

    def binding(self, name: str) -> Binding:
        """Return the only binding of a name; None where it has none, or several."""
        if name not in self._singles:
            bindings = self._bindings.get(name) or [None]
            same = len(bindings) <= _BINDINGS and all(_is_same(one, other) for one, other in pairwise(bindings))
            self._singles[name] = bindings[0] if same else None
        return self._singles[name]

    def path(self, node: ast.expr, depth: int = NAMES_DEEP) -> str:
        """Return an expression as a dotted path from an import: `tf.Session().run` → `tensorflow.Session().run`.

        A call becomes `()`, and an index `[]`. The root is `LOCAL` where it is unknown, and the name itself where it is
        unbound.
        """
        tail = ""
        inner: ast.expr | None = node
        while inner is not None and len(tail) <= _PATH:
            node = inner
            match node:
                case (
                    ast.Attribute(value=inner, attr=name)
                    | ast.Call(func=ast.Name(id="getattr"), args=[inner, ast.Constant(value=str(name)), *_])
                ):
                    tail = f".{name}{tail}"
                case ast.Call(func=inner):
                    tail = f"(){tail}"
                case ast.Subscript(value=inner):
                    tail = f"[]{tail}"
                case _:
                    inner = None
        if len(tail) > _PATH or not isinstance(node, ast.Name):
            return LOCAL if len(tail) > _PATH else LOCAL + tail
        bindings = self._bindings.get(node.id)
        if not bindings:
            return f"{self._star}.{node.id}{tail}" if self._star else node.id + tail
        imported = next((one for one in bindings[:_BINDINGS] if isinstance(one, str)), None)
        if imported is not None:
            return imported + tail
        found = self.binding(node.id)
        return (self.path(found, depth - 1) if isinstance(found, ast.expr) and depth else LOCAL) + tail

    def called_function(self, node: ast.expr, inside: str) -> str:
        """Return the function of the source that a call of `node` in class `inside` runs: `main`, `Trainer.fit`.

        An empty text stands for all others, and for a method of an object that is not known.
        """
        match node:
            case ast.Name(id=name) if name in self.classes:
                return self._method(name, "__init__")
            case ast.Name(id=name):
                alias = self.constant(name)
                return alias.id if isinstance(alias, ast.Name) else name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                return "" if self.methods[name] > 1 else self._method(inside, name)  # a subclass may have its own
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                bases, _ = self.classes.get(inside, ([], []))
                return next(filter(None, (self._method(base, name) for base in bases)), "")
            case ast.Attribute(value=base, attr=name):
                known = self.constant(base.id) if isinstance(base, ast.Name) else None
                base = base if known is None else known
                base = base.func if isinstance(base, ast.Call) else base
                return self._method(base.id, name) if isinstance(base, ast.Name) else ""
        return ""

    def is_ambiguous(self, name: str) -> bool:
        """Return whether a function's name may stand for something else, too: a parameter, another function."""
        functions = self.functions[name]
        return len(self._bindings.get(name, ())) > functions or functions - self.methods[name] > 1

    def _method(self, name: str, method: str, depth: int = _BASES) -> str:
        """Return a method of a class, or of the first of its bases in the source that has it."""
        bases, methods = self.classes.get(name, ([], []))
        if method in methods:
            return f"{name}.{method}"
        return next(filter(None, (self._method(base, method, depth - 1) for base in bases)), "") if depth else ""

    def is_set_before(self, key: str, node: ast.expr) -> bool:
        """Return whether the source may set or delete a key before an expression: `os.environ["RANK"] = …`."""
        return self._may_follow(node, self._stored.get(key))

    def is_defaulted_before(self, key: str, node: ast.expr) -> bool:
        """Return whether the source may set a missing key before an expression, by `setdefault`."""
        return self._may_follow(node, self._defaulted.get(key))

    def _may_follow(self, node: ast.expr, places: list[_Position] | None) -> bool:
        """Return whether an expression may be computed after one of these places has run.

        At module level, what stands later runs later. In a function that is so for what stands in the same function,
        and in a loop not at all.
        """
        if not places:
            return False
        here = (node.lineno, node.col_offset)
        around = [one for one in self._blocks if one[0] <= here < one[1]]
        if min(places) <= here or any(loop for _, _, loop in around):
            return True
        return bool(around) and max(places) > min(end for _, end, _ in around)

    # -----------------------------------------------------------------------------------------------------------------
    # Collecting

    def _collect(self, node: ast.AST) -> None:
        if isinstance(node, _REPEATED):
            self._blocks.append(((node.lineno, node.col_offset), _end(node), not isinstance(node, _FUNCTIONS)))
        match node:
            case ast.Constant() | ast.Expr():
                pass
            case ast.Name(id=name, ctx=ast.Load()):
                self.mentioned.add(name)
            case ast.Name(id=name):
                self._bindings[name].append(self._assigned.get(node))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self._bindings[name].append(None)
                self.functions[name] += 1
            case ast.ClassDef(name=name, bases=bases, body=body):
                self._bindings[name].append(None)
                methods = [one.name for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
                self.methods.update(methods)
                self.classes[name] = ([getattr(one, "id", "") for one in bases[:_BASES]], methods)
            case (
                ast.arg(arg=str(name))
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
                given = self._assigned.get(node)  # it is computed first: `os.environ["A"] = os.environ.get("A", "0")`
                for name in _literal_texts(key):
                    self._stored[name].append(_end(given if isinstance(given, ast.expr) else node))
            case ast.Dict(keys=keys):
                for name in _literal_texts(*keys):
                    self._stored[name].append(_end(node))
            case ast.keyword(arg=str(name)):
                self._stored[name].append(_end(node))
            case ast.Call(func=ast.Name(id="exec" | "globals")):
                self._open = True
            case ast.Call(func=ast.Attribute(value=base, attr=name), args=arguments):
                if name in _MUTATORS:
                    self._mutated.update(_names(base))
                if name in _STORES or name == "setdefault":
                    kept = self._defaulted if name == "setdefault" else self._stored
                    for text in _literal_texts(*arguments[:1]):
                        kept[text].append(_end(node))

    def _collect_imports(self, node: ast.Import | ast.ImportFrom) -> None:
        prefix = "." * node.level + (node.module or "") + "." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            path = f"{prefix}{alias.name}"
            package = path.partition(".")[0]
            if package:
                self.imports.setdefault(package)
            if alias.name == "*":
                self._star, self._before_star = prefix.rstrip("."), len(self._bindings)
            elif alias.asname or prefix:
                self._bindings[alias.asname or alias.name].append(path)
            else:
                self._bindings[package].append(package)


def _end(node: ast.expr | ast.stmt | ast.keyword) -> _Position:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def children(node: ast.AST) -> list[ast.AST]:
    """Return the child nodes of a node, in order, without operators and contexts, which have no children."""
    return [child for child in ast.iter_child_nodes(node) if child._fields]


def _names(node: ast.expr) -> list[str]:
    return [node.id] if isinstance(node, ast.Name) else []


def _literal_texts(*nodes: ast.expr | None) -> list[str]:
    return [one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _is_same(binding: Binding, other: Binding) -> bool:
    if isinstance(binding, Loop) and isinstance(other, Loop):
        return _is_same(binding.iterable, other.iterable)
    if isinstance(binding, ast.expr) and isinstance(other, ast.expr):
        return ast.dump(binding) == ast.dump(other)
    return isinstance(binding, str) and binding == other
