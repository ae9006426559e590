"""Reader of a Python script: an interpreter that finds the shares, variables and GPUs that its code declares.

The script is parsed (`ast`), never imported or run; modules that it imports are not parsed. It understands this Python:
- statements: `if`, `while`, `for`, `with`, `try`, `match`, `return`, `break`, `continue`, `raise`, `sys.exit()`, and
  functions and classes, whose code runs where code that runs calls them by name (this file);
- names: imports, functions, classes, methods of `self`, and variables with one binding (`script_values`);
- values: literals, lists, arithmetic, one comparison, `not`, `and`, `or`, `if … else`, f-strings, indexes, slices,
  `str`, `int`, `float`, `bool`, `len`, `range`, `map(str, …)`, `join`, `lower`, `upper`, `strip`, variables of the
  process's environment, and a framework's lists and numbers of GPUs (`script_values`);
- calls, attributes and dicts of options of the frameworks (`script_patterns`).
The value of anything else is UNKNOWN. A declaration whose statement runs in every process with a GPU is LIKELY. Under a
condition that is not known, behind an early return, or in a function that nothing calls by name it is POSSIBLE. The
order of calls is not followed. Limits of engines, sessions and pools add up where it is known how many are made.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from gpuwatch.base.text import clean
from gpuwatch.declared import frameworks, script_lines
from gpuwatch.declared import script_patterns as patterns
from gpuwatch.declared.facts import OBJECTS, Candidate, ScriptContents, Selection, Variables
from gpuwatch.declared.script_patterns import Item, Items, MadeObject, ScriptCondition, ScriptSource, Site
from gpuwatch.declared.script_values import SOME, ScriptDevice, ScriptValues, SymbolTable, children
from gpuwatch.model.snapshot import Confidence, Hint, Kind

MOST = 100
"""Statements of one kind that are returned, at most; people write a handful."""
_KEPT = 10 * MOST
"""Statements that are examined, at most."""


def read_script(source: str | bytes, name: str = "script", variables: Variables = None) -> ScriptContents:
    """Return the declarations of a script that a process with these environment variables runs. Never raises.

    A source that cannot be parsed gives contents with an `error`, and the imports that its lines seem to have. One
    without any word of a declaration is not parsed.
    """
    raw = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    if script_lines.NOTEBOOK.match(raw) or name.endswith(".ipynb"):
        return ScriptContents(error="a notebook is not Python source")
    packages, runs = script_lines.imported_packages(raw), script_lines.find_call(script_lines.RUNS_CODE, raw)
    more: dict[str, Any] = {
        "others": frameworks.others(packages, raw),
        "dotenv": script_lines.DOTENV.search(raw) is not None,
        "unread": runs and f"it runs other code: {runs}",
        "changes": script_lines.find_call(script_lines.CHANGES, raw),
    }
    if not patterns.may_declare(raw) and b"\0" not in raw:  # compiled code cannot be parsed
        return ScriptContents(imports=packages, **more)
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(raw).readline)[0] if isinstance(source, bytes) else ""
        text = source if isinstance(source, str) else source.decode(encoding)
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")  # as the parser counts lines
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about odd code: `"\d"`, `1 is 1`
            tree = ast.parse(text)
        found = _Walk(tree, ScriptSource(text, name), None if more["dotenv"] else variables).result()
        called = (imported.partition(".")[0] for imported in script_lines.called_imports(raw))
        return replace(found, imports=tuple(dict.fromkeys((*found.imports, *filter(None, called))))[:MOST], **more)
    except SyntaxError as error:
        words = f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
    except (RecursionError, MemoryError):
        words = "it is nested too deeply"
    except (ValueError, LookupError) as error:
        words = str(error)  # a NUL, a lone surrogate, bytes that are not in the encoding that it names
    return ScriptContents(imports=packages, error=clean(words, 120), **more)


# -- statements that run ----------------------------------------------------------------------------------------------

_SETS_DEVICE = frozenset({"set_device", "setDevice", "select_device"})
_WITH_DEVICE = ("torch.cuda.device", "cuda.Device")
"""Objects whose `with` statement selects another GPU."""
_READ_ONCE = {"XLA": "jax", "PYTORCH": "torch", "TF": "tensorflow", "CUPY": "cupy"}
"""Beginnings of variables that a framework reads when it starts, or allocates first."""
_EXITS = frozenset({"exit", "quit", "sys.exit", "os._exit", "os.abort"})
_CALLS_DEEP = 16
_MENTIONS = 16
"""Places that name a function that are kept, at most."""
_INVERSE = {"if": "unless", "unless": "if", "in except": "unless"}

_When: TypeAlias = ScriptCondition | None
"""Condition under which a statement runs; None where none is in doubt."""

_LAMBDA = "lambda"
"""Name of all functions without one."""
_UNCALLED = ScriptCondition("if its function is called", None)
_MANY = "per object; how many are created is not known"


class _Mention(NamedTuple):
    """Place that names a function of the source."""

    when: _When
    function: str
    """Function around it; empty for none."""
    called: bool
    again: bool
    """Whether it is in a loop."""


class _Run(NamedTuple):
    """How a function runs, if it does."""

    when: _When = None
    once: bool = True
    """Whether it runs once at most; False where that is not known."""


class _Place(NamedTuple):
    """Place that may declare something."""

    site: Site
    when: _When
    function: str
    """Function around it: `main`, `Trainer.fit`; empty for none."""
    again: bool
    """Whether it is in a loop."""
    read: Callable[..., Items]
    arguments: tuple[object, ...]
    """Arguments of `read` after the site."""


class _Walk:
    """Walk through the statements of a script."""

    def __init__(self, tree: ast.Module, source: ScriptSource, variables: Variables) -> None:
        self._symbols = SymbolTable(tree)
        self._values = ScriptValues(self._symbols, variables)
        self._source = source
        self._places: list[_Place] = []
        self._selected: list[tuple[ast.expr, _When, str]] = []
        """GPUs that `torch.cuda.set_device` and the like choose, with the condition and the function around it."""
        self._mentions: defaultdict[str, list[_Mention]] = defaultdict(list)
        self._used: dict[str, int] = {}
        """Line of the first call of each package at module level."""
        self._runs: dict[str, _Run | None] = {"": _Run()}
        self._within: tuple[ScriptDevice, ...] = ()
        """GPUs of the `with torch.cuda.device(…):` around the present statement."""
        self._function, self._class, self._in_class, self._again = "", "", False, False
        """Function and class around the present statement, whether it is the class's own, and in a loop."""
        self._tries = 0
        """Blocks of `try` around the present statement, within its function."""
        self._left: dict[str, ScriptCondition] = {}
        """Conditions under which the present function, loop or `try` has not been left: by return, break, raise."""
        self._block(tree.body, None)

    def result(self) -> ScriptContents:
        """Return everything that the walk has found, in the order of the source."""
        current = self._find_current()
        read: list[tuple[ast.AST, Item]] = []
        counted: dict[ast.AST, bool] = {}  # whether a place runs once, for sure
        begun: set[str] = set()  # functions that have made a session of TensorFlow for sure
        for place in sorted(self._places, key=lambda place: (place.site.node.lineno, place.site.node.col_offset)):
            run = self._find_run(place.function)
            if run is None:
                continue
            when = place.when or run.when
            counted[place.site.node] = when is None and run.once and not place.again
            site = place.site._replace(condition=self._source.describe(when), current=place.site.current or current)
            if place.read is patterns.tensorflow_session:
                if not begun.isdisjoint(("", place.function)):  # a session before it has decided
                    continue
                begun |= {place.function} if when is None else set()
            read += [(place.site.node, item) for item in place.read(site, *place.arguments)]
        items = _add_up(read, counted)
        settings = [one for one in items if isinstance(one, tuple) and not isinstance(one, MadeObject)]
        for number, (variable, setting) in enumerate(settings):
            first = self._used.get(_READ_ONCE.get(variable.partition("_")[0], ""), setting.line)
            if first < setting.line and not setting.condition:
                late = f"unless the framework has started by line {first}"
                settings[number] = variable, replace(setting, confidence=Confidence.POSSIBLE, condition=late)
        candidates = [one for one in items if isinstance(one, Candidate)]
        selections = [one for one in items if isinstance(one, Selection)]
        hints = [one for one in items if isinstance(one, Hint)]
        if max(len(candidates), len(settings), len(selections), len(hints)) > MOST:
            words = f"{self._source.name} declares too much; the first {MOST} of each kind were read"
            hints = [Hint(rule="dynamic", words=words), *hints]
        return ScriptContents(
            candidates=tuple(candidates[:MOST]),
            settings=tuple(settings[:MOST]),
            selections=tuple(selections[:MOST]),
            imports=tuple(self._symbols.imports)[:MOST],
            hints=tuple(hints[:MOST]),
        )

    def _find_run(self, function: str, depth: int = _CALLS_DEEP) -> _Run | None:
        """Return how a function runs; None where only code that never runs names it."""
        if function not in self._runs:
            self._runs[function] = _Run(_UNCALLED, once=False)  # a function that only calls itself is not called
            mentions = self._mentions[function]
            around = [self._find_run(one.function, depth - 1) if depth else _Run(_UNCALLED) for one in mentions]
            live = [(one, run) for one, run in zip(mentions, around, strict=True) if run is not None]
            calls = [one.when or run.when for one, run in live if one.called]
            if not live and (mentions or function in self._symbols.mentioned):
                self._runs[function] = None
            elif calls:
                once = len(live) == 1 and live[0][1].once and not live[0][0].again and "." not in function
                self._runs[function] = _Run(None if None in calls else calls[0], once)
        return self._runs[function]

    def _find_current(self) -> tuple[ScriptDevice, ...]:
        """Return the GPU that CUDA uses where nothing else is said: SOME where several are set, or one perhaps."""
        chosen = [(node, when or run.when) for node, when, name in self._selected if (run := self._find_run(name))]
        if not chosen:
            return (self._values.first_gpu,)
        several = {self._values.devices(node) for node, _ in chosen}
        certain = len(several) == 1 and all(when is None for _, when in chosen)
        return several.pop() if certain else (SOME,)

    # -- statements ---------------------------------------------------------------------------------------------------

    def _block(self, statements: Iterable[ast.stmt], when: _When) -> bool:
        """Follow statements up to the first that always leaves the block; return whether one does."""
        return any(self._statement(one, when or next(iter(self._left.values()), None)) for one in statements)

    def _statement(self, node: ast.stmt, when: _When) -> bool:
        match node:
            case ast.If():
                return self._if(node, when)
            case ast.For(iter=head) | ast.AsyncFor(iter=head) | ast.While(test=head):
                self._expression(head, when)
                truth = self._values.truth(head) if isinstance(node, ast.While) else True
                again, self._again = self._again, True
                with self._scope("break"):
                    if truth is not False:
                        self._block(node.body, when if truth else ScriptCondition("while", head, when))
                self._again = again
                self._block(node.orelse, when)
            case ast.With() | ast.AsyncWith():
                before = self._within
                for item in node.items:
                    entered = item.context_expr
                    self._expression(entered, when)
                    if isinstance(entered, ast.Call) and self._symbols.path(entered.func).endswith(_WITH_DEVICE):
                        self._within = self._values.devices(entered.args[0]) if entered.args else (SOME,)
                left = self._block(node.body, when)
                self._within = before
                return left
            case ast.Try() | ast.TryStar():
                return self._try(node, when)
            case ast.Match(subject=subject, cases=cases):
                self._expression(subject, when)
                for case in cases:
                    self._block(case.body, ScriptCondition("in case", case.pattern, when))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._define(node, when)
            case ast.Return():
                return self._leave(node, when, "return")
            case ast.Break() | ast.Continue():
                return self._leave(node, when, "break")
            case ast.Raise():
                return self._leave(node, when, "raise")
            case ast.Expr(value=ast.Call(func=function)) if self._symbols.path(function) in _EXITS:
                return self._leave(node, when, "raise")
            case _:
                self._simple(node, when)
        return False

    def _leave(self, node: ast.stmt, when: _When, how: str) -> bool:
        """Follow a statement that leaves its block; outside of `try`, an exception ends the process, which runs."""
        self._simple(node, when)
        if how != "raise" or self._tries:
            words, condition = (_INVERSE.get(when.words, "behind"), when.node) if when else ("behind", node)
            self._left.setdefault(how, ScriptCondition(words, condition))
        return True

    @contextmanager
    def _scope(self, how: str) -> Iterator[None]:
        """Follow a loop or a `try`, after which it does not matter how it was left."""
        outside = how in self._left
        yield
        if not outside:
            self._left.pop(how, None)

    def _if(self, node: ast.If, when: _When) -> bool:
        """Follow the branches that may run, `elif` by `elif`; return whether all of them leave the block."""
        leaves, under = True, when
        while True:
            self._expression(node.test, under)
            truth = self._values.truth(node.test)
            if truth is not False:
                leaves = self._block(node.body, under if truth else ScriptCondition("if", node.test, when)) and leaves
            if truth:
                return leaves
            under = ScriptCondition("unless", node.test, when) if truth is None else under
            match node.orelse:
                case [ast.If() as node]:
                    continue
                case other:
                    return self._block(other, under) and leaves

    def _try(self, node: ast.Try | ast.TryStar, when: _When) -> bool:
        self._tries += bool(node.handlers)
        with self._scope("raise" if node.handlers else ""):
            left = self._block(node.body, when)
        self._tries -= bool(node.handlers)
        left = self._block(node.orelse, when) or left
        several = [self._block(one.body, ScriptCondition("in except", one.type, when)) for one in node.handlers]
        return self._block(node.finalbody, when) or (left and all(several))

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, when: _When) -> None:
        """Follow the body of a function or class; a function runs under the condition of its definition."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr | ast.arguments):
                self._expression(child, when)
        outside = self._function, self._class, self._in_class, self._again, self._tries, self._within, self._left
        if isinstance(node, ast.ClassDef):
            self._class, self._in_class = node.name, True
        else:
            self._function = f"{self._class}.{node.name}" if self._in_class else node.name
            self._in_class = self._again = False
        self._tries, self._within, self._left = 0, (), {}
        self._block(node.body, when)
        self._function, self._class, self._in_class, self._again, self._tries, self._within, self._left = outside

    def _simple(self, node: ast.stmt, when: _When) -> None:
        """Follow a statement that contains no block."""
        self._expression(node, when)
        match node:
            case ast.Assign(targets=targets, value=value):
                self._assign(node, targets, value, when)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(node, [target], value, when)
            case ast.AugAssign(target=target, op=ast.BitOr(), value=value):
                self._add(node, when, patterns.merged_settings, target, value)
            case ast.AugAssign(target=target):  # the value of an attribute is not known
                self._assign(node, [target], target if isinstance(target, ast.Attribute) else None, when)
            case ast.Delete(targets=targets):
                self._assign(node, targets, None, when)

    def _assign(self, node: ast.stmt, targets: Sequence[ast.expr], value: ast.expr | None, when: _When) -> None:
        for target in targets:
            if isinstance(target, ast.Attribute) and target.attr in patterns.ATTRIBUTES and value is not None:
                self._add(node, when, patterns.ATTRIBUTES[target.attr], target, value)
        if not all(isinstance(target, ast.Name | ast.Attribute) for target in targets):
            self._add(node, when, patterns.assigned_settings, targets, value)

    # -- expressions --------------------------------------------------------------------------------------------------

    def _expression(self, node: ast.AST, when: _When) -> None:
        """Examine every call, dict and name in an expression, from left to right."""
        outside = self._function, self._again
        waiting: list[tuple[ast.AST, _When, str, bool]] = [(node, when, *outside)]
        called: set[ast.AST] = set()
        known: ast.AST | None = None  # a function whose calls are read under another name
        match node:
            case ast.Assign(targets=[ast.Name(id=alias)], value=value) if self._symbols.constant(alias) is value:
                known = value
        while waiting:
            part, when, self._function, self._again = waiting.pop()
            if isinstance(part, ast.Call):
                called.add(part.func)
                self._call(part, when)
            elif isinstance(part, ast.Dict):
                self._add(part, when, patterns.options, part)
            if isinstance(part, ast.Name | ast.Attribute):
                name = self._symbols.called_function(part, self._class)
                if (name in self._symbols.functions or "." in name) and len(self._mentions[name]) < _MENTIONS:
                    sure = part in called and not self._symbols.is_ambiguous(name)
                    self._mentions[name].append(_Mention(when, self._function, sure, self._again))
                named = self._symbols.path(part).rpartition(".")[2] if isinstance(part.ctx, ast.Load) else ""
                if part not in called and part is not known and named in patterns.PASSED:
                    self._add(part, when, patterns.PASSED[named], part)
            again = self._again or isinstance(part, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp)
            function = _LAMBDA if isinstance(part, ast.Lambda) else self._function
            waiting += [(child, under, function, again) for child, under in reversed(self._parts(part, when))]
        self._function, self._again = outside

    def _parts(self, node: ast.AST, when: _When) -> list[tuple[ast.AST, _When]]:
        """Return the parts of an expression that may be computed, each with its condition."""
        parts: list[tuple[ast.AST, _When]] = []
        truth = self._values.truth
        match node:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                parts.append((test, when))
                if truth(test) is not False:
                    parts.append((body, when if truth(test) else ScriptCondition("if", test, when)))
                if not truth(test):
                    parts.append((orelse, ScriptCondition("unless", test, when) if truth(test) is None else when))
            case ast.BoolOp(op=operation, values=values):
                decisive, under = isinstance(operation, ast.Or), when
                for value in values:
                    parts.append((value, under))
                    if truth(value) is decisive:
                        break
                    if truth(value) is None:
                        under = ScriptCondition("unless" if decisive else "if", value, when)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                tests = {truth(test): test for each in node.generators for test in each.ifs}
                under = ScriptCondition("if", tests[None], when) if None in tests else when
                for child in children(node):
                    if isinstance(child, ast.comprehension):
                        parts.append((child, when))
                    elif False not in tests:
                        parts.append((child, under))
            case _:
                parts += [(child, when) for child in children(node)]
        return parts

    def _call(self, node: ast.Call, when: _When) -> None:
        path = self._symbols.path(node.func)
        name = path.rpartition(".")[2]
        if not (self._function or path.startswith("jax.config.")):
            self._used.setdefault(path.partition(".")[0], node.lineno)
        for read in patterns.CALLS.get(name, ()):
            self._add(node, when, read, node)
        if not patterns.UTILIZATIONS.isdisjoint(one.arg for one in node.keywords) and name not in patterns.CALLS:
            self._add(node, when, patterns.unused_arguments, node)
        if name in patterns.SESSIONS and path.startswith("tensorflow"):
            self._add(node, when, patterns.tensorflow_session, node)
        if name in _SETS_DEVICE and node.args:
            self._selected.append((node.args[0], when, self._function))
        elif isinstance(node.func, ast.Attribute) and path.endswith("cuda.Device().use"):
            self._selected.append((node.func.value, when, self._function))

    def _add(self, node: ast.expr | ast.stmt, when: _When, read: Callable[..., Items], *arguments: object) -> None:
        if len(self._places) < _KEPT:
            site = Site(node, self._values, self._source, current=self._within)
            self._places.append(_Place(site, when, self._function, self._again, read, arguments))


def _add_up(read: Sequence[tuple[ast.AST, Item]], counted: Mapping[ast.AST, bool]) -> list[Item]:
    """Return what was read, with limits of objects marked as parts of a sum; POSSIBLE where their number is not known.

    An object that was deleted counts too: a limit that is too large accuses nobody.
    """
    made = [item for _, item in read if isinstance(item, MadeObject)]
    parts = {part for one in made for part in one.parts}
    plain = [item.candidate if isinstance(item, MadeObject) else item for _, item in read]
    caps = [one for one in plain if isinstance(one, Candidate) and one.kind is Kind.CAP]
    limited = {one.framework for one in caps if not (one.lifts or one.void)}
    objects = {one.candidate.framework for one in made}
    items: list[Item] = []
    for (node, item), shown in zip(read, plain, strict=True):
        if node in parts or (isinstance(item, MadeObject) and item.candidate.framework not in limited):
            continue
        if isinstance(item, MadeObject) and not all(counted.get(part, True) for part in (node, *item.parts)):
            fields = {"condition": item.candidate.condition or _MANY, "confidence": Confidence.POSSIBLE}
            shown = replace(item.candidate, dynamic=not item.candidate.lifts, **fields)
        elif isinstance(shown, Candidate) and shown.kind is Kind.CAP and shown.framework in objects:
            single = shown.lifts or shown.condition or shown.void
            shown = replace(shown, adds="" if single else f"{OBJECTS} of {shown.framework}, GPU {shown.device}")
        items.append(shown)
    return items
