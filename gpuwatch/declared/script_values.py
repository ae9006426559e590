"""What an expression of a Python source comes to, when that can be told without running it.

Nothing is called or evaluated by Python itself, and every result is bounded: numbers to 1e18, texts to 4 kB, lists to
1000 items. Of the environment only ranks are read. What depends on anything else (`args.fraction`) is `UNKNOWN`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import TypeAlias

from gpuwatch.declared.facts import RANKS, Ranks
from gpuwatch.declared.script_names import Names, Scope


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
_DEPTH = 40
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

    def of(self, node: ast.expr, scope: Scope, depth: int = _DEPTH) -> Value:
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
