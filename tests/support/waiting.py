"""How tests wait: for a condition, never for a time; and a clock that a test sets."""

from __future__ import annotations

import ast
import inspect
import reprlib
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

PATIENCE = 30.0
"""Seconds after which a test gives up waiting."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 1000
_REPR.maxlist = _REPR.maxtuple = _REPR.maxset = _REPR.maxdict = 30


def wait_for(condition: Callable[[], object], what: str = "", *, patience: float = PATIENCE) -> None:
    """Wait until a condition holds; where it does not, fail with `what`, the condition, and what was there instead."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() >= end:
            raise AssertionError(f"{what or 'it did not happen'}, in {patience:g} s: {describe(condition)}")
        time.sleep(0.005)


def describe(condition: Callable[..., object]) -> str:
    """Return the source of a condition, and below it the values of what it compares or names."""
    if not inspect.isfunction(condition):
        return repr(condition)
    scope = inspect.getclosurevars(condition)
    names = {**condition.__globals__, **scope.nonlocals}
    body = _body(condition)
    if body is None:
        values = [f"{name} = {_REPR.repr(value)}" for name, value in scope.nonlocals.items()]
        return "\n  ".join([condition.__qualname__, *values])
    values = []
    for node in _operands(body):
        source = compile(ast.Expression(node), "<operand>", "eval")
        with suppress(Exception):  # it names what is bound within the condition, or fails now
            values.append(f"{ast.unparse(node)} = {_REPR.repr(eval(source, names))}")
    return "\n  ".join([ast.unparse(body), *values])


def _body(condition: Callable[..., object]) -> ast.expr | None:
    """Return the expression of a lambda."""
    if condition.__name__ != "<lambda>":
        return None
    tree = ast.parse(Path(condition.__code__.co_filename).read_text())
    line = condition.__code__.co_firstlineno
    return next((one.body for one in ast.walk(tree) if isinstance(one, ast.Lambda) and one.lineno == line), None)


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a condition that are no literals, from left to right."""
    if isinstance(node, ast.Compare):
        yield from (one for one in (node.left, *node.comparators) if not isinstance(one, ast.Constant))
    elif isinstance(node, ast.BoolOp):
        for one in node.values:
            yield from _operands(one)
    elif isinstance(node, ast.UnaryOp):
        yield from _operands(node.operand)
    else:
        yield node


class Clock:
    """Clock that a test sets."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        """Return the time of its wall clock."""
        return self.now + 1_700_000_000.0
