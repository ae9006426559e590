"""Places in a Python source: what stands there, under which condition it runs, and what it comes to.

A place is a call, a dict or an assignment that may declare something. `script_patterns` reads it: the names of its
arguments, their values, the GPUs that it concerns, and its text for display.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpuwatch.base.text import ELLIPSIS, clean, redact, shorten
from gpuwatch.declared.facts import Candidate, Selection, format_path
from gpuwatch.declared.script_values import CURRENT, SOME, UNKNOWN, ScriptDevice, ScriptValues, Value, is_number
from gpuwatch.model.snapshot import Confidence, Kind

CODE_RANK = 100
"""Rank of a program's own calls: above its environment and its files."""
_WIDTH = 100
"""Characters of source text in a candidate, at most."""
_CONDITION_WIDTH = 60
"""Characters of source text in a condition, at most."""
_CONDITIONS = 2
"""Conditions around a place that are quoted, at most: the innermost ones."""
_LONGEST = 4096
"""Bytes of a piece of source that are examined, at most."""
_MOST_OPTIONS = 256
"""Entries of a dict of options, at most; a longer dict is data."""


class ScriptCondition(NamedTuple):
    """Condition under which a place of a source runs, where it is not known to hold."""

    words: str
    """Words before the quoted source: `if`, `unless`, `in except`."""
    node: ast.expr | ast.stmt | ast.pattern | None
    outer: ScriptCondition | None = None
    """Condition around this one."""


class ScriptSource:
    """Text of a source, which returns excerpts for display."""

    def __init__(self, text: str, name: str) -> None:
        self.name = format_path(name)
        self._lines = text.encode().split(b"\n")  # `ast` counts columns in bytes of UTF-8

    def excerpt(self, node: ast.expr | ast.stmt | ast.pattern) -> str:
        """Return the source of a node in one line; of a very long node the beginning with "…"."""
        lines = self._lines[node.lineno - 1 : node.end_lineno]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        whole = b" ".join(filter(None, (line.strip() for line in lines)))
        return whole[:_LONGEST].decode("utf-8", "replace") + ELLIPSIS * (len(whole) > _LONGEST)

    def format(self, node: ast.expr | ast.stmt | ast.pattern, width: int = _WIDTH) -> str:
        """Return the source of a node for display, with secrets masked."""
        return _format(self.excerpt(node), width)

    def mentions(self, words: str) -> bool:
        """Return whether a line has these words, if only in a comment."""
        return any(words.encode() in line for line in self._lines)

    def describe(self, condition: ScriptCondition | None) -> str:
        """Return a condition for display: "if `args.cap`"; empty for none."""
        found: list[str] = []
        while condition is not None and len(found) < _CONDITIONS:
            quoted = f" `{self.format(condition.node, _CONDITION_WIDTH)}`" if condition.node is not None else ""
            found.insert(0, condition.words + quoted)
            condition = condition.outer
        return " and ".join(found)


def _format(text: str, width: int = _WIDTH) -> str:
    """Clean a piece of source and mask its secrets; of a long text keep both ends.

    Where the text is incomplete, keep only the beginning: at its end a secret may be cut, and not be found.
    """
    cut = clean if text.endswith(ELLIPSIS) else shorten
    return cut(redact(("-c", text))[1], width)


class Site(NamedTuple):
    """Place in a source: a call, dict or assignment."""

    node: ast.expr | ast.stmt
    values: ScriptValues
    source: ScriptSource
    condition: str = ""
    """Condition under which it runs, for display; empty where none is in doubt."""
    current: tuple[ScriptDevice, ...] = (SOME,)
    """GPU that CUDA uses at this place; in a loop all GPUs that it uses in turn."""

    @property
    def confidence(self) -> Confidence:
        """Confidence that the process has run this place."""
        return Confidence.POSSIBLE if self.condition else Confidence.LIKELY

    def path(self, node: ast.expr) -> str:
        """Return `SymbolTable.path` at this place."""
        return self.values.symbols.path(node)

    def value(self, node: ast.expr) -> Value:
        """Return `ScriptValues.value` at this place."""
        return self.values.value(node)

    def follow(self, node: ast.expr) -> ast.expr:
        """Return the expression that was assigned to a name once; any other expression unchanged."""
        constant = self.values.symbols.constant(node.id) if isinstance(node, ast.Name) else None
        return node if constant is None else constant

    def entries(self, node: ast.expr) -> dict[str, ast.expr]:
        """Return the named values of a literal dict, a `dict(…)` or a name for one; an empty dict for any other."""
        match self.follow(node):
            case ast.Dict(keys=keys, values=values) if len(keys) <= _MOST_OPTIONS:
                pairs = [(one, value) for one, value in zip(keys, values, strict=True) if isinstance(one, ast.Constant)]
                return {key.value: value for key, value in pairs if type(key.value) is str}
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                return {one.arg: one.value for one in keywords if one.arg}
        return {}

    def keywords(self, call: ast.Call) -> dict[str, ast.expr]:
        """Return the keyword arguments of a call, and those in `**options` where they are known."""
        found: dict[str, ast.expr] = {}
        for one in call.keywords:
            found |= {one.arg: one.value} if one.arg else self.entries(one.value) if self.is_known(one.value) else {}
        return found

    def under(self, words: str) -> Site:
        """Return the place with a condition, unless it has one."""
        return self if self.condition else self._replace(condition=words)

    def is_open(self, call: ast.Call) -> bool:
        """Return whether a call has arguments that are only known at run time: `*args`, `**json.load(file)`."""
        packed = [one.value for one in call.keywords if one.arg is None]
        return any(isinstance(one, ast.Starred) for one in call.args) or not all(map(self.is_known, packed))

    def is_known(self, node: ast.expr) -> bool:
        """Return whether `entries` has all entries of a dict."""
        match self.follow(node):
            case ast.Dict(keys=keys) if len(keys) <= _MOST_OPTIONS:
                return all(isinstance(key, ast.Constant) for key in keys)
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
                return all(one.arg for one in keywords)
        return False

    def argument(self, call: ast.Call, place: int, name: str) -> ast.expr | None:
        """Return an argument by its position or its name; None where it is missing or None."""
        starred = any(isinstance(one, ast.Starred) for one in call.args[: place + 1])
        found = call.args[place] if len(call.args) > place and not starred else self.keywords(call).get(name)
        return None if found is None or self.value(found) is None else found

    def devices(self, node: ast.expr | None) -> tuple[ScriptDevice, ...]:
        """Return the GPUs that an expression means, see `ScriptValues.devices`; None means the current one."""
        found = self.values.devices(node) if node is not None else (CURRENT,)
        return tuple(device for one in found for device in (self.current if one == CURRENT else (one,)))

    def measure(self, node: ast.expr, *, unit: float = 1, most: float | None = None) -> dict[str, Any]:
        """Return the fields for a number in a unit; a value that is no number, or outside 0 to `most`, is void."""
        value = self.value(node)
        if value is UNKNOWN:
            return {"dynamic": True}
        if not is_number(value):
            return {"void": f"{self.source.format(node)} is no number"}
        if value < 0 or (most is not None and value > most):
            return {"void": f"{value:g} is " + ("less than 0" if most is None else f"outside 0 to {most:g}")}
        return {"value": float(value) * unit}

    def text(self, name: str = "", value: ast.expr | None = None) -> str:
        """Return the source text to show: all of it, or only the argument `name` of a long call or dict."""
        whole = self.source.excerpt(self.node)
        if len(whole) > _WIDTH and value is not None:
            given = self.source.format(value)
            if isinstance(self.node, ast.Call):
                whole = f"{self.source.excerpt(self.node.func)[-_WIDTH // 2 :]}(… {name}={given} …)"
            elif isinstance(self.node, ast.Dict):
                whole = f'{{… "{name}": {given} …}}'
        return _format(whole)

    def candidate(self, device: ScriptDevice, channel: str, framework: str, kind: Kind, **fields: Any) -> Candidate:
        """Return a candidate for this place."""
        fields.setdefault("rank", CODE_RANK)
        fields.setdefault("confidence", self.confidence)
        fields["text"] = fields.get("text") or self.text()
        return Candidate(
            channel=channel,
            framework=framework,
            kind=kind,
            device=device.ordinal,
            some_gpu=not device.known,
            where=self.source.name,
            line=self.node.lineno,
            condition=self.condition,
            **fields,
        )

    def selection(self, channel: str, framework: str, ordinals: Sequence[int] | None, text: str = "") -> Selection:
        """Return a GPU selection for this place; its ordinals are None where the code may not run."""
        return Selection(
            channel=channel,
            framework=framework,
            ordinals=None if ordinals is None or self.condition else tuple(ordinals),
            where=self.source.name,
            line=self.node.lineno,
            text=text or self.text(),
        )
