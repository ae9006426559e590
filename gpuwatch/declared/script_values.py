"""Names and values of a Python source: bindings, constants, conditions and GPUs that are known without running it.

Nothing is imported or called, and every result is bounded: numbers to 1e18, texts to 4 kB, lists to 1000 items. What
raises, is too large, or is known only at run time (`args.fraction`) is UNKNOWN.

A name has the value of its binding where the whole source, in any function, binds it only once, or always to the same
expression. Where a name has several bindings, is changed in place (`gpus.append(…)`) or may be set by `exec`, a
parameter or a `from module import *`, its value is not known.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from enum import Enum
from itertools import islice, pairwise
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeGuard

import msgspec

from gpuwatch.declared.facts import LOCAL_RANKS, Variables

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
        """Definitions of each method."""
        self.classes: dict[str, tuple[list[str], list[str]]] = {}
        """Names of the bases and of the methods of each class."""
        self._open = False
        """Whether the source runs text as code, or sets names by their text: then no name's value is known."""
        self.stored: defaultdict[str, list[_Position]] = defaultdict(list)
        """Keys that the source sets or deletes, and the ends of the statements that do: `os.environ["RANK"] = …`."""
        self.defaulted: defaultdict[str, list[_Position]] = defaultdict(list)
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

        Empty for all other calls, and for a method of an unknown object.
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
        """Return whether a function's name may also mean something else: a parameter, another function."""
        functions = self.functions[name]
        return len(self._bindings.get(name, ())) > functions or functions - self.methods[name] > 1

    def _method(self, name: str, method: str, depth: int = _BASES) -> str:
        """Return a method of a class, or of the first of its bases in the source that has it."""
        bases, methods = self.classes.get(name, ([], []))
        if method in methods:
            return f"{name}.{method}"
        return next(filter(None, (self._method(base, method, depth - 1) for base in bases)), "") if depth else ""

    def may_follow(self, node: ast.expr, places: list[_Position] | None) -> bool:
        """Return whether an expression may be computed after one of these places has run.

        At module level, later code runs later. In a function, this holds only for code of the same function; in a loop
        it never holds.
        """
        if not places:
            return False
        here = (node.lineno, node.col_offset)
        around = [one for one in self._blocks if one[0] <= here < one[1]]
        if min(places) <= here or any(loop for _, _, loop in around):
            return True
        return bool(around) and max(places) > min(end for _, end, _ in around)

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
                    self.stored[name].append(_end(given if isinstance(given, ast.expr) else node))
            case ast.Dict(keys=keys):
                for name in _literal_texts(*keys):
                    self.stored[name].append(_end(node))
            case ast.keyword(arg=str(name)):
                self.stored[name].append(_end(node))
            case ast.Call(func=ast.Name(id="exec" | "globals")):
                self._open = True
            case ast.Call(func=ast.Attribute(value=base, attr=name), args=arguments):
                if name in _MUTATORS:
                    self._mutated.update(_names(base))
                if name in _STORES or name == "setdefault":
                    kept = self.defaulted if name == "setdefault" else self.stored
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


# -- values -----------------------------------------------------------------------------------------------------------

_VALUES_DEEP = 40
"""Expressions within expressions that are followed, at most."""
_TESTS_DEEP = 20
"""Tests within tests that are followed, at most."""
_LARGEST = 1e18
_LONGEST = 4096
_MOST = 1000
_POWER = 64
MOST_DEVICES = 64
"""GPUs that are counted, at most: no machine has more."""

GETS = ("os.environ.get", "os.getenv")
_OPERATORS: dict[type[ast.operator | ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, several: one in several,
    ast.NotIn: lambda one, several: one not in several,
}
_CONVERSIONS: dict[str, Callable[[Any], object]] = {"int": int, "float": float, "bool": bool}


class Unknown(Enum):
    """Type of UNKNOWN, a value that is known only at run time."""

    UNKNOWN = "known only at run time"


UNKNOWN = Unknown.UNKNOWN


class _UnknownError(Exception):
    """Raised for an expression whose value is known only at run time."""


class ScriptDevice(msgspec.Struct, frozen=True):
    """GPU in an expression: an ordinal among the visible ones; None for each visible GPU, or for an unknown one."""

    ordinal: int | None
    known: bool = True


EACH = ScriptDevice(None)
"""Each visible GPU; as a value, the list of them, or the number of them."""
SOME = ScriptDevice(None, known=False)
"""One GPU that is known only at run time."""
CURRENT = ScriptDevice(-1)
"""GPU that CUDA uses at the place of the expression: `"cuda"`."""

Scalar: TypeAlias = str | int | float | ScriptDevice | None
Known: TypeAlias = Scalar | tuple[Scalar, ...]
Value: TypeAlias = Known | Unknown

_LISTS = ("list_physical_devices", "get_visible_devices", "list_logical_devices")
_COUNTS = ("cuda.device_count", "runtime.getDeviceCount")
"""Functions that count the visible GPUs: PyTorch's and CuPy's."""
_GPU_TESTS = ("cuda.is_available", "is_gpu_available", "is_built_with_cuda")
"""Functions whose result is true in a process that holds a GPU."""


class ScriptValues:
    """Known values of one source, in a process with these environment variables."""

    def __init__(self, symbols: SymbolTable, variables: Variables) -> None:
        self.symbols = symbols
        self._environ = None if variables is None else dict(variables)
        self._values: dict[str, Value] = {}
        self._truths: dict[ast.expr, bool | None] = {}
        self._tests = 0
        """Tests that are being computed, each for the one before."""

    @property
    def first_gpu(self) -> ScriptDevice:
        """GPU that CUDA uses first; a launcher's framework sets a process of another rank to another GPU."""
        ranks = [value for name, value in (self._environ or {}).items() if name in LOCAL_RANKS]
        return ScriptDevice(0) if all(value == "0" for value in ranks) else SOME

    def value(self, node: ast.expr) -> Value:
        """Return the value of an expression, or UNKNOWN."""
        try:
            return self._evaluate(node, _VALUES_DEEP)
        except (
            _UnknownError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
        ):  # an expression that raises has no value
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
        if self.symbols.path(test).endswith("TYPE_CHECKING"):
            return False
        value = self.value(test)
        return None if value is UNKNOWN else bool(value)

    def devices(self, node: ast.expr, depth: int = NAMES_DEEP) -> tuple[ScriptDevice, ...]:
        """Return the GPUs that an expression means: `1`, `"cuda:1"`, `gpus[0:2]`, a loop's variable; else SOME."""
        value = self.value(node)
        if value is not UNKNOWN:
            several = value if isinstance(value, tuple) else (value,)
            return tuple(map(_device, several[:MOST_DEVICES]))
        match node:
            case ast.Name(id=name) if depth:
                bound = self.symbols.binding(name)
                inner = bound.iterable if isinstance(bound, Loop) else self.symbols.constant(name)
                return self.devices(inner, depth - 1) if inner is not None else (SOME,)
            case ast.Subscript(value=base, slice=index) if depth and self.value(base) in (EACH, ()):
                return self.devices(index, depth - 1) if self.value(base) == EACH else ()
        return (SOME,)

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
            case ast.Tuple(elts=parts) | ast.List(elts=parts) if len(parts) <= _MOST:
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
            case ast.Compare(left=left, ops=[kind], comparators=[right]):
                if self.symbols.path(right) in ("os.environ", "os.environ.keys()"):
                    found = self._read_variable(node, evaluate(left), None) is not None
                    return found is isinstance(kind, ast.In) if isinstance(kind, ast.In | ast.NotIn) else _unknown()
                several = ast.Tuple(elts=right.elts) if isinstance(right, ast.Set) else right  # `in {"0", "1"}`
                return _compare(evaluate(left), kind, evaluate(several))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self.truth(test)
                if truth is not None:
                    return evaluate(body if truth else orelse)
            case ast.JoinedStr(values=parts) if len(parts) <= _MOST:
                return _join("", tuple(_text(evaluate(part)) for part in parts))
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return _text(evaluate(inner))
            case ast.Attribute(value=base, attr="type"):  # `device.type == "cuda"`
                device = evaluate(base)
                if isinstance(device, ScriptDevice) and device.known:
                    return "cuda"
            case ast.Subscript(value=base, slice=key) if self.symbols.path(base) == "os.environ":
                return self._read_variable(node, evaluate(key))
            case ast.Subscript(value=base, slice=ast.Slice(lower=lower, upper=upper, step=None)):
                return _cut(evaluate(base), *(None if bound is None else evaluate(bound) for bound in (lower, upper)))
            case ast.Subscript(value=base, slice=index):
                whole, place = evaluate(base), evaluate(index)
                if isinstance(place, int) and whole == EACH and 0 <= place < MOST_DEVICES:
                    return ScriptDevice(place)  # `gpus[-1]` is not known: the last of how many?
                if isinstance(place, int) and isinstance(whole, tuple):
                    return whole[place]
            case ast.Call(func=function, args=arguments, keywords=keywords):
                return self._evaluate_call(function, [*arguments, *(one.value for one in keywords)], evaluate)
        raise _UnknownError

    def _evaluate_call(
        self, function: ast.expr, arguments: list[ast.expr], evaluate: Callable[[ast.expr], Known]
    ) -> Known:
        """Return the result of a call whose arguments, by position or by name, are known."""
        match function, arguments:
            case ast.Name(id="str"), [argument]:
                return _text(evaluate(argument))
            case ast.Name(id="int" | "float" | "bool" as conversion), [argument]:
                return _bounded(_CONVERSIONS[conversion](evaluate(argument)))
            case ast.Name(id="len"), [argument]:
                whole = evaluate(argument)
                return EACH if whole == EACH else len(whole) if isinstance(whole, str | tuple) else _unknown()
            case ast.Name(id="range"), [*begin, end] if len(begin) <= 1:
                first, last = evaluate(begin[0]) if begin else 0, evaluate(end)
                if isinstance(first, int) and isinstance(last, int) and last - first <= _MOST:
                    return tuple(range(first, last))
                return EACH if last == EACH and not first else _unknown()
            case ast.Name(id="map"), [ast.Name(id="str"), items]:  # ",".join(map(str, [2, 3]))
                several = evaluate(items)
                return tuple(map(_text, several)) if isinstance(several, tuple) else _unknown()
            case ast.Attribute(value=separator, attr="join"), [parts]:
                return _join(evaluate(separator), evaluate(parts))
            case ast.Attribute(value=base, attr="lower" | "upper" | "strip" as method), []:
                return str(getattr(_text(evaluate(base)), method)())
        path = self.symbols.path(function)
        if path in GETS and arguments:
            return self._read_variable(function, *map(evaluate, arguments), *[None] * (len(arguments) == 1))
        if path.endswith(_LISTS) and arguments:  # without a type the list begins with the CPU
            return EACH if evaluate(arguments[0]) == "GPU" else ()
        if path.endswith(("torch.device", "cuda.Device")) and arguments:
            return _device(evaluate(arguments[-1]))
        return EACH if path.endswith(_COUNTS) else True if path.endswith(_GPU_TESTS) else _unknown()

    def _evaluate_name(self, name: str, depth: int) -> Known:
        if name not in self._values:
            self._values[name] = UNKNOWN  # a name that is defined by itself has no value
            constant = self.symbols.constant(name)
            if constant is not None:
                self._values[name] = self._evaluate(constant, depth)
        found = self._values[name]
        return _unknown() if isinstance(found, Unknown) else found

    def _read_variable(self, node: ast.expr, name: Known, *default: Known) -> Known:
        """Return a variable that the process was started with and the source has not set before, else the default."""
        if self._environ is None or not isinstance(name, str):
            raise _UnknownError
        if self.symbols.may_follow(node, self.symbols.stored.get(name)):
            raise _UnknownError
        if name in self._environ:
            return _bounded(self._environ[name])
        defaulted = self.symbols.may_follow(node, self.symbols.defaulted.get(name))
        return default[0] if default and not defaulted else _unknown()


def is_number(value: Value) -> TypeGuard[int | float]:
    """Return whether a value is a number, which a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_ordinals(value: Value) -> tuple[int, ...] | None:
    """Return a list of ordinals as TensorFlow and JAX accept it: `"1,2"`, `[1, 2]`, 1; None for any other value."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        return tuple(map(int, parts)) if all(re.fullmatch("[0-9]{1,4}", part) for part in parts) else None
    several = value if isinstance(value, tuple) else (value,)
    found = tuple(int(one) for one in several if isinstance(one, int) and one >= 0)
    return found if len(found) == len(several) else None


def _unknown() -> NoReturn:
    raise _UnknownError


def _device(value: Known) -> ScriptDevice:
    """Return the GPU that an ordinal, `"cuda"` or `"cuda:1"` means."""
    if isinstance(value, ScriptDevice) or value == "cuda":
        return value if isinstance(value, ScriptDevice) else CURRENT
    match = re.fullmatch(r"cuda:([0-9]{1,4})", value) if isinstance(value, str) else None
    ordinal = int(match[1]) if match else value
    return ScriptDevice(int(ordinal)) if isinstance(ordinal, int) and 0 <= ordinal < MOST_DEVICES else SOME


def _bounded(value: object) -> Scalar:
    if value is None or isinstance(value, ScriptDevice) or (isinstance(value, str) and len(value) <= _LONGEST):
        return value
    if isinstance(value, int | float) and abs(value) <= _LARGEST:  # neither an infinity nor a NaN is
        return value
    raise _UnknownError


def _compute(left: Known, operation: ast.operator, right: Known) -> Scalar:
    texts = isinstance(left, str) and isinstance(right, str) and isinstance(operation, ast.Add)
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if type(operation) not in _OPERATORS or not (texts or numbers):
        raise _UnknownError
    if isinstance(operation, ast.Pow | ast.LShift) and isinstance(right, int | float) and abs(right) > _POWER:
        raise _UnknownError
    return _bounded(_OPERATORS[type(operation)](left, right))


def _compare(left: Known, kind: ast.cmpop, right: Known) -> bool:
    """Compare two values; the number of GPUs (EACH) is at least 1 in a process that holds one.

    Lists are not compared with each other: a tuple and a set are none, and all three are tuples here. Of what `is`
    compares, only None, True and False are the same object everywhere.
    """
    among, same = isinstance(kind, ast.In | ast.NotIn), isinstance(kind, ast.Is | ast.IsNot)
    if SOME in (left, right) or isinstance(left, tuple) or (isinstance(right, tuple) and not among):
        raise _UnknownError
    if same and not (right is None or isinstance(right, bool)):
        raise _UnknownError
    if EACH not in (left, right):
        return bool(_OPERATORS[type(kind)](left, right))
    if left != EACH or not isinstance(right, int) or (isinstance(kind, ast.Eq | ast.NotEq) and right > 0):
        raise _UnknownError
    found = {bool(_OPERATORS[type(kind)](number, right)) for number in (1, MOST_DEVICES)}
    return found.pop() if len(found) == 1 else _unknown()


def _cut(whole: Known, first: Known = None, last: Known = None) -> Known:
    """Return a slice of a list; of that of all GPUs only the beginning, or the whole, is known."""
    if not isinstance(first, int | None) or not isinstance(last, int | None):
        raise _UnknownError
    if isinstance(whole, tuple):
        return whole[first:last]
    if whole != EACH or (last is None and first) or (last or 0) < 0 or (first or 0) < 0:
        raise _UnknownError
    return EACH if last is None else tuple(map(ScriptDevice, range(min(last, MOST_DEVICES))))[first:]


def _text(value: Known) -> str:
    return str(value) if isinstance(value, str | int | float) else _unknown()


def _join(separator: Known, parts: Known) -> Scalar:
    if not isinstance(separator, str) or not isinstance(parts, tuple):
        raise _UnknownError
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts) or sum(map(len, texts)) > _LONGEST:
        raise _UnknownError
    return _bounded(separator.join(texts))
