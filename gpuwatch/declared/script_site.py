"""One place in a Python source at which something may be declared: what it says, and how a claim is made of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from gpuwatch.declared.facts import Claim, Selection
from gpuwatch.declared.script_values import UNKNOWN, Each, Names, Scope, Value, Values, number
from gpuwatch.model import Confidence, Hint
from gpuwatch.text import ELLIPSIS, clean, ends, redact

Item: TypeAlias = Claim | Selection | Hint

CODE = 100
"""The rank of what a program itself calls: above its environment and its files."""

WIDTH = 100
"""Characters of source that a claim carries."""
_LONGEST = 4096
"""Bytes of a piece that are looked at."""
_MOST_OPTIONS = 256
"""Entries of a dict of options; a longer one is data."""
_MOST_DEVICES = 64
"""An ordinal past this is no GPU: no machine has so many."""


class Source:
    """The text of a source, from which pieces are shown."""

    def __init__(self, text: str, name: str) -> None:
        self.name = clean(name)
        self._lines = text.encode().split(b"\n")  # `ast` counts columns in bytes of UTF-8.

    def excerpt(self, node: ast.expr | ast.stmt) -> str:
        """Give the source of *node* in one line, as it is written; of one that is very long the beginning, with "…"."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        pieces: list[bytes] = []
        room = _LONGEST
        for place in range(first, last + 1):
            begin = node.col_offset if place == first else 0
            piece = self._lines[place][begin : node.end_col_offset if place == last else None]
            pieces.append(piece[: max(room, 0)].strip())
            room -= len(piece) + 1
            if room < -1:
                pieces[-1] += ELLIPSIS.encode()
                break
        return b" ".join(filter(None, pieces)).decode("utf-8", "replace")


def shown(text: str) -> str:
    """Clean a piece of source, its secrets masked, to at most `WIDTH` characters: of a long one both ends.

    Of one that was not read to its end, which may have cut a secret in two, the beginning.
    """
    shorten = clean if text.endswith(ELLIPSIS) else ends
    return shorten(redact(("-c", text))[1], WIDTH)


class Device(NamedTuple):
    """A GPU that code speaks of: an ordinal among the visible ones, or None for each, or for one that is not known."""

    ordinal: int | None
    known: bool = True


EACH = Device(None)
"""Each GPU that is visible."""
SOME = Device(None, known=False)
"""One that is only known at run time."""

_COUNTS = ("cuda.device_count()", "runtime.getDeviceCount()")
"""Calls that tell how many GPUs are visible: PyTorch's and CuPy's."""


def _device(value: Value) -> Device:
    """Give the GPU of an ordinal; what is none is known only at run time."""
    return Device(int(value)) if isinstance(value, int) and 0 <= value < _MOST_DEVICES else SOME


@dataclass(frozen=True, slots=True)
class Site:
    """A call, a dict or an assignment, with what is known there."""

    node: ast.expr | ast.stmt
    scope: Scope
    names: Names
    values: Values
    source: Source
    current: tuple[Device, ...]
    """The GPU that CUDA is set to, in a loop those that it is set to in turn."""
    sure: Confidence
    called: bool = True
    """Whether anything is known to call the function that it stands in."""

    def last(self, node: ast.expr) -> str:
        """Give the last part of the path: the name of what is called."""
        return self.path(node).rpartition(".")[2]

    def path(self, node: ast.expr) -> str:
        """As `Names.path`."""
        return self.names.path(node, self.scope)

    def value(self, node: ast.expr) -> Value:
        """As `Values.of`."""
        return self.values.of(node, self.scope)

    def follow(self, node: ast.expr) -> ast.expr:
        """Give the expression that a name was assigned once, and any other as it is."""
        if isinstance(node, ast.Name):
            constant = self.names.constant(node.id, self.scope)
            if constant is not None:
                return constant[0]
        return node

    def entries(self, node: ast.expr) -> dict[str, ast.expr]:
        """Give the named values of a literal dict, a `dict(…)` or a name for one of them; nothing for all else."""
        match self.follow(node):
            case ast.Dict(keys=keys, values=values) if len(keys) <= _MOST_OPTIONS:
                return {
                    key.value: value
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                }
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                return {one.arg: one.value for one in keywords if one.arg}
        return {}

    def keywords(self, call: ast.Call) -> dict[str, ast.expr]:
        """Give the arguments of a call that have a name, those in `**options` too where they can be seen."""
        found: dict[str, ast.expr] = {}
        for one in call.keywords:
            found |= {one.arg: one.value} if one.arg else self.entries(one.value)
        return found

    def argument(self, call: ast.Call, place: int, name: str) -> ast.expr | None:
        """Give one argument, by its place or its name; None where it is not given, or is None."""
        starred = any(isinstance(one, ast.Starred) for one in call.args[: place + 1])
        found = call.args[place] if len(call.args) > place and not starred else self.keywords(call).get(name)
        return None if found is None or self.value(found) is None else found

    def measured(self, node: ast.expr, *, unit: float = 1, most: float | None = None) -> dict[str, Any]:
        """Give a claim the number *node*, in *unit*s; what is none, or not in 0 to *most*, makes it void."""
        value = self.value(node)
        if value is UNKNOWN:
            return {"dynamic": True}
        amount = number(value)
        if amount is None:
            return {"void": f"{shown(self.source.excerpt(node))} is no number"}
        if amount < 0 or (most is not None and amount > most):
            allowed = f"outside 0 to {most:g}" if most is not None else "less than 0"
            return {"void": f"{amount:g} is {allowed}"}
        return {"value": amount * unit}

    def on(self, node: ast.expr | None) -> tuple[Device, ...]:
        """Say which GPUs an argument means: 1, `cuda:1`, `torch.device("cuda", 1)`, a loop's; None: the current one."""
        if node is None:
            return self.current
        followed = self.follow(node)
        if isinstance(followed, ast.Call) and self.path(followed.func).endswith(("torch.device", "cuda.Device")):
            index = self.argument(followed, 1, "index")
            return self.on(index if index is not None else self.argument(followed, 0, "device"))
        bound = self.names.single(node.id, self.scope) if isinstance(node, ast.Name) else None
        if bound is not None and isinstance(bound[0], Each):
            return self.in_turn(bound[0].iterable, bound[1])
        value = self.value(node)
        if isinstance(value, str):
            match = re.fullmatch(r"cuda(?::([0-9]{1,4}))?", value)
            if match and not match[1]:
                return self.current
            value = int(match[1]) if match else UNKNOWN
        return (_device(value),)

    def in_turn(self, iterable: ast.expr, scope: Scope) -> tuple[Device, ...]:
        """Say over which GPUs a loop runs: `range(4)`, `[0, 2]`, `range(torch.cuda.device_count())`."""
        match iterable:
            case ast.Call(func=ast.Name(id="range"), args=[*begin, end]) if len(begin) <= 1:
                if self.names.path(end, scope).endswith(_COUNTS):
                    return (EACH,)
                first = self.values.of(begin[0], scope) if begin else 0
                last = self.values.of(end, scope)
                if isinstance(first, int) and isinstance(last, int) and 0 <= first < last <= _MOST_DEVICES:
                    return tuple(map(Device, range(first, last)))
            case _:
                values = self.values.of(iterable, scope)
                if isinstance(values, tuple):
                    return tuple(map(_device, values[:_MOST_DEVICES]))
        return (SOME,)

    def ordinals(self, value: Value) -> tuple[int, ...] | None:
        """Read a list of ordinals as TensorFlow and JAX take it: `"1,2"`, `[1, 2]`, 1; None where it cannot be told."""
        if isinstance(value, str):
            parts = [part.strip() for part in value.split(",")]
            return (
                tuple(int(part) for part in parts) if all(re.fullmatch("[0-9]{1,4}", part) for part in parts) else None
            )
        several = value if isinstance(value, tuple) else (value,)
        found = tuple(int(one) for one in several if isinstance(one, int) and one >= 0)
        return found if len(found) == len(several) else None

    def text(self, name: str = "", value: ast.expr | None = None) -> str:
        """Give the source to show: all of it, or where that is too long only the argument *name*."""
        whole = self.source.excerpt(self.node)
        if len(whole) > WIDTH and value is not None:
            given = self.part(value)
            if isinstance(self.node, ast.Call):
                whole = f"{self.source.excerpt(self.node.func)[-WIDTH // 2 :]}(… {name}={given} …)"
            elif isinstance(self.node, ast.Dict):
                whole = f'{{… "{name}": {given} …}}'
        return shown(whole)

    def part(self, node: ast.expr) -> str:
        """Give the source of a part of it to show."""
        return shown(self.source.excerpt(node))

    def claim(self, device: Device = EACH, **fields: Any) -> Claim:
        """Make a claim of what stands here."""
        sure = self.sure if device.known or self.sure is not Confidence.CERTAIN else Confidence.LIKELY
        given: Mapping[str, Any] = {
            "where": self.source.name,
            "line": self.node.lineno,
            "rank": CODE,
            "confidence": sure,
            "device": device.ordinal,
            "some_gpu": not device.known,
            "uncalled": not self.called,
            **fields,
        }
        return Claim(**given)

    def selection(self, channel: str, framework: str, ordinals: Sequence[int] | None, text: str = "") -> Selection:
        """Make a selection of what stands here; what may not have run has chosen nothing that could be told."""
        certain = self.sure is Confidence.CERTAIN and ordinals is not None
        return Selection(
            channel=channel,
            framework=framework,
            ordinals=tuple(ordinals) if certain and ordinals is not None else None,
            where=self.source.name,
            line=self.node.lineno,
            text=text or self.text(),
        )
