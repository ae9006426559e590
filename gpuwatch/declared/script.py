"""Reader of Python sources: the shares, environment variables, GPUs and imports that a program declares in its code.

The sources are only parsed (`ast`), never imported, run or evaluated. Statements are followed in the order in which
they run, as far as that is known: code under `if False:` or after a `return` declares nothing, the code of a function
counts where the function is called, and code that may not run is LIKELY.

A function may be called where code that runs mentions its name: another function may call it (`mp.spawn(worker)`). The
same holds for a function with a decorator, and for the methods of a class that has a base class, perhaps of a
framework, or that is an argument itself (`fire.Fire(Jobs)`).
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from gpuwatch.declared import script_patterns as patterns
from gpuwatch.declared.facts import LOCAL_RANKS, RANKS, Candidate, Ranks, ScriptContents, Selection, Setting
from gpuwatch.declared.script_patterns import SOME, Device, Item, Site, Source, may_declare
from gpuwatch.declared.script_values import UNKNOWN, RankVariables, SymbolTable, children
from gpuwatch.model import Confidence, Hint
from gpuwatch.text import clean

MOST = 100
"""Statements of one kind that are returned from one source, at most; people write a handful."""
_KEPT = 10 * MOST
"""Statements after which the search stops: it finds them out of order, and returns the first by line."""
_CALLS_DEEP = 16
_MEANT = 8
"""Of several functions of one name, a call may mean any of this many last ones."""
_MODULES_DEEP = 8
"""Parts of an imported name (`a.b.c`) that are followed, at most."""
_ERROR_WIDTH = 120

# ---------------------------------------------------------------------------------------------------------------------
# Imports, which are read from lines, without parsing: most sources declare nothing

_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*|[^\n#;]*)|import[ \t]+([^\n#;]*))", re.MULTILINE
)


def imported_names(source: bytes) -> list[str]:
    """Return the dotted names that a source imports, in order.

    `from .a import b` imports `.a` and `.a.b`, which may be a module or another object of the package. A line of a
    docstring that looks like an import only costs a search for a missing file.
    """
    found: dict[str, None] = {}
    for base, several, plain in _IMPORT.findall(source):
        package = base.decode("utf-8", "replace")
        dot = "" if not package or package.endswith(".") else "."
        if package:
            found.setdefault(package)
        for words in (part.split() for part in (several.lstrip(b"(") or plain).split(b",")):
            name = words[0].decode("utf-8", "replace") if words else ""
            if name.replace(".", "").isidentifier():
                found.setdefault(f"{package}{dot}{name}")
    return list(found)


def module_files(name: str, folder: str, own: str) -> Iterator[tuple[str, str]]:
    """Return the two possible paths of each part of a dotted name, of which the first existing one counts.

    `folder` has the program's modules, `own` the source that imports the name; both end with a `/` or are empty.
    Modules of the standard library have no path.
    """
    relative = len(name) - len(name.lstrip("."))
    parts = [part for part in name.split(".") if part]
    if relative:
        above = own.rstrip("/").split("/") if own else []
        if relative - 1 > len(above):
            return
        folder = "".join(f"{part}/" for part in above[: len(above) - relative + 1])
        yield f"{folder}__init__.py", f"{folder}__init__.py"
    elif parts and parts[0] in sys.stdlib_module_names:
        return
    for count in range(1, min(len(parts), _MODULES_DEEP) + 1):
        if not parts[count - 1].isidentifier():
            return
        path = folder + "/".join(parts[:count])
        yield f"{path}/__init__.py", f"{path}.py"


def _packages(source: bytes) -> tuple[str, ...]:
    """Return the packages on lines that look like imports; some of them may be in a docstring."""
    found = dict.fromkeys(name.partition(".")[0] for name in imported_names(source))
    return tuple(one for one in found if one.isidentifier())[:MOST]


# ---------------------------------------------------------------------------------------------------------------------
# Sources of a program

_TOO_DEEP = "it is nested too deeply"
_WORD = re.compile(rb"[A-Za-z_]\w*", re.ASCII)
_SETS_RANK = re.compile(rf"""\[\s*["']({"|".join(sorted(RANKS))})["']\s*\]\s*=(?!=)""".encode())
"""`os.environ["LOCAL_RANK"] = …` in a module that is not parsed."""
_NOTEBOOK = re.compile(rb'\s*\{\s*"(?:cells|metadata|nbformat)"')


def read_script(source: str | bytes, name: str = "script", ranks: Ranks = None) -> ScriptContents:
    """Return the declarations of a program that is one Python source; see `read_scripts`."""
    return read_scripts([(name, source)], ranks)[0]


def read_scripts(sources: Sequence[tuple[str, str | bytes]], ranks: Ranks = None) -> tuple[ScriptContents, ...]:
    """Return the declarations in each source of a program: its script, then modules that it imports. Never raises.

    Each source has a path; `ranks` are variables of the process that runs them. A source that cannot be parsed
    gives contents with an `error`, and the imports that its lines seem to have. A module without any word of a
    declaration is not parsed: the names that it mentions are found as words.
    """
    raw = [one.encode("utf-8", "surrogatepass") if isinstance(one, str) else one for _, one in sources]
    telling = [may_declare(one) for one in raw]
    program = _Program(ranks)
    scans: list[ScriptContents | _Walk] = []
    for place, (name, source) in enumerate(sources):
        if _NOTEBOOK.match(raw[place]) or name.endswith(".ipynb"):
            found: ScriptContents | _Walk = ScriptContents(error="a notebook is no Python source")
        elif telling[place] or (place == 0 and any(telling)):
            found = _parsed(source, name, program, main=place == 0)
        else:
            found = ScriptContents(imports=_packages(raw[place]))
            program.variables.stored.update(rank.decode("ascii") for rank in _SETS_RANK.findall(raw[place]))
        scans.append(found)
        if any(telling) and not isinstance(found, _Walk):
            program.mention(*(word.decode("ascii") for word in _WORD.findall(raw[place])))
    try:
        program.follow([one for one in scans if isinstance(one, _Walk)])
    except (RecursionError, MemoryError):
        return tuple(ScriptContents(imports=_packages(one), error=_TOO_DEEP) for one in raw)
    return tuple(one.result() if isinstance(one, _Walk) else one for one in scans)


def _parsed(source: str | bytes, name: str, program: _Program, *, main: bool) -> _Walk | ScriptContents:
    """Parse a source; return a ScriptContents with the error where that fails."""
    raw = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    try:
        text = (
            source if isinstance(source, str) else source.decode(tokenize.detect_encoding(io.BytesIO(raw).readline)[0])
        )
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")  # as the parser counts lines
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the source does oddly: `"\d"`, `1 is 1`
            tree = ast.parse(text)
        return _Walk(tree, Source(text, name), program, main=main)
    except SyntaxError as error:
        words = f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
    except (RecursionError, MemoryError):
        words = _TOO_DEEP
    except (ValueError, LookupError) as error:
        words = str(error)  # a NUL, a lone surrogate, bytes that are not in the encoding that it names
    return ScriptContents(imports=_packages(raw), error=clean(words, _ERROR_WIDTH))


# ---------------------------------------------------------------------------------------------------------------------
# What runs

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_STRENGTH = (Confidence.LIKELY, Confidence.CERTAIN)
_SETS_DEVICE = frozenset({"set_device", "setDevice", "select_device"})
_WITH_DEVICE = ("torch.cuda.device", "cuda.Device")
_WRAP = frozenset(
    {
        *("staticmethod", "classmethod", "property", "cached_property", "setter", "abstractmethod", "overload"),
        *("wraps", "partial", "lru_cache", "cache", "contextmanager", "asynccontextmanager", "dataclass"),
        *("no_grad", "inference_mode", "enable_grad", "autocast", "compile", "jit", "njit", "vmap", "pmap", "function"),
    }
)
"""Decorators that never call the function; any other decorator may (`@click.command()`, `@hydra.main(…)`)."""
_EXITS = frozenset({"exit", "quit", "sys.exit", "os._exit", "os.abort"})


class _Definition(NamedTuple):
    """Function of a source, with its class if it is a method."""

    walk: _Walk
    function: Function
    owner: ast.ClassDef | None


class _Program:
    """All functions of a program, the names that its running code mentions, and its ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self.variables = RankVariables(ranks)
        # The framework sets a process of another rank to another GPU: Accelerate, Lightning.
        self.is_first = all(value == "0" for name, value in ranks or () if name in LOCAL_RANKS)
        self._mentioned: set[str] = set()
        """Mentioned names and attributes."""
        self._handed: set[str] = set()
        self._definitions: list[_Definition] = []
        self._by_name: defaultdict[str, list[_Definition]] = defaultdict(list)
        """Functions by their name, and by their class's name."""
        self._aliases: dict[str, str] = {}
        """Real names of imported aliases: `b` → `a` for `from x import a as b`."""
        self._waiting: list[_Definition] = []
        """Functions that may be called now, and have to be checked."""

    def mention(self, *names: str) -> None:
        """Add names that running code mentions."""
        for name in names:
            if name not in self._mentioned:
                self._mentioned.add(name)
                self._waiting += self._by_name[name]
                if name in self._aliases:
                    self.mention(self._aliases[name])

    def hand_over(self, name: str) -> None:
        """Add the name of an argument: `fire.Fire(Jobs)` may call any method of `Jobs`."""
        self._handed.add(name)
        self._waiting += self._by_name[name]

    def alias(self, bound: str, name: str) -> None:
        """Add an alias that an import creates."""
        self._aliases[bound] = name
        if bound in self._mentioned:
            self.mention(name)

    def define(self, definition: _Definition) -> None:
        """Add a function whose definition the walk has reached."""
        self._definitions.append(definition)
        self._waiting.append(definition)
        self._by_name[definition.function.name].append(definition)
        if definition.owner is not None:
            self._by_name[definition.owner.name].append(definition)

    def find_functions(self, name: str, walk: _Walk) -> list[Function]:
        """Return the functions with a name that a source has defined so far, without methods."""
        return [one.function for one in self._by_name.get(name, ()) if one.walk is walk and one.owner is None]

    def follow(self, walks: Sequence[_Walk]) -> None:
        """Follow all code that may run, the script last, then the functions that no known code calls."""
        everywhere = self._mentioned.union(*(walk.symbols.mentioned for walk in walks))
        if len(walks) > 1 or self._mentioned:  # there are modules, any of which may set the GPU first
            self.is_first = self.is_first and _SETS_DEVICE.isdisjoint(everywhere)
        for walk in reversed(walks):
            walk.begin()
        while self._waiting:
            one = self._waiting.pop()
            if self._may_be_called(one):
                one.walk.enter(one.function, Confidence.LIKELY)
        for one in self._definitions:  # it grows by the functions that are defined in them
            one.walk.enter(one.function, Confidence.LIKELY, called=False)

    def _may_be_called(self, one: _Definition) -> bool:
        owner, name = one.owner, one.function.name
        if owner is not None:
            decorated = one.walk.has_caller(owner.decorator_list)
            if owner.name not in self._mentioned and not decorated:
                return False
            based = any(not (isinstance(base, ast.Name) and base.id == "object") for base in owner.bases)
            if based or owner.keywords or decorated or owner.name in self._handed or name.startswith("__"):
                return True
        return name in self._mentioned or one.walk.has_caller(one.function.decorator_list)


class _Walk:
    """Walk through the statements of a source, in the order in which they run."""

    def __init__(self, tree: ast.Module, source: Source, program: _Program, *, main: bool) -> None:
        self._tree = tree
        self._source = source
        self._program = program
        self.symbols = SymbolTable(tree, program.variables, main=main)
        self._found: dict[tuple[int, ...], tuple[int, Item | tuple[str, Setting]]] = {}
        """Items by their place, each with its strength of confidence; of the same item the stronger is kept."""
        self._current: tuple[Device, ...] = (SOME,)
        self._cuda_used = False
        """Whether CUDA has certainly been used already."""
        self._classes: dict[ast.stmt, ast.ClassDef] = {}
        """Class of each method."""
        self._walked: dict[Function, Confidence] = {}
        self._stack: list[Function] = []
        self._called = True
        """Whether known code calls the present function; else its variables are never set."""

    def begin(self) -> None:
        """Follow the statements that run when the source is imported."""
        self._current = (Device(0) if self._program.is_first else SOME,)
        self._block(self._tree.body, Confidence.CERTAIN)
        self._cuda_used = False

    def enter(self, function: Function, confidence: Confidence, *, called: bool = True) -> None:
        """Follow the body of a function that is called here; again only with a higher confidence."""
        walked = self._walked.get(function)
        known = walked is not None and _STRENGTH.index(walked) >= _STRENGTH.index(confidence)
        if known or function in self._stack or len(self._stack) >= _CALLS_DEEP:
            return
        self._walked[function] = confidence
        self._stack.append(function)
        self._called = called
        self._block(function.body, confidence)
        self._stack.pop()

    def has_caller(self, decorators: Sequence[ast.expr]) -> bool:
        """Return whether one of the decorators may call the decorated function."""
        paths = map(self.symbols.path, decorators)
        return any(path.removesuffix("()").rpartition(".")[2] not in _WRAP for path in paths)

    def result(self) -> ScriptContents:
        """Return everything that the walk has found."""
        items = [self._found[place][1] for place in sorted(self._found)]
        settings = [one for one in items if isinstance(one, tuple)]
        candidates = [one for one in items if isinstance(one, Candidate)]
        selections = [one for one in items if isinstance(one, Selection)]
        hints = [one for one in items if isinstance(one, Hint)]
        if max(len(candidates), len(settings), len(selections), len(hints)) > MOST:
            words = f"{self._source.name} declares too much; the first {MOST} of each sort were read"
            hints = [Hint(rule="dynamic", words=words), *hints]
        return ScriptContents(
            candidates=tuple(candidates[:MOST]),
            settings=tuple(settings[:MOST]),
            selections=tuple(selections[:MOST]),
            imports=tuple(self.symbols.imports)[:MOST],
            hints=tuple(hints[:MOST]),
        )

    # -----------------------------------------------------------------------------------------------------------------
    # Statements

    def _block(self, statements: Iterable[ast.stmt], confidence: Confidence) -> bool:
        """Follow statements up to the first that leaves the block; return whether one does."""
        return any(self._statement(one, confidence) for one in statements)

    def _statement(self, node: ast.stmt, confidence: Confidence) -> bool:
        match node:
            case ast.If():
                return self._if(node, confidence)
            case ast.For(iter=head) | ast.AsyncFor(iter=head) | ast.While(test=head):
                self._expression(head, confidence)
                if not isinstance(node, ast.While) or self._truth(head) is not False:
                    self._block(node.body, confidence)
                self._block(node.orelse, confidence)
            case ast.With() | ast.AsyncWith():
                before = self._current
                for item in node.items:
                    self._context(item.context_expr, confidence)
                self._block(node.body, confidence)
                self._current = before
            case ast.Try() | ast.TryStar():
                left = self._block(node.body, confidence)
                handled = [self._block(handler.body, Confidence.LIKELY) for handler in node.handlers]
                left = self._block(node.orelse, confidence) or left
                return self._block(node.finalbody, confidence) or (left and all(handled))
            case ast.Match(subject=subject, cases=cases):
                self._expression(subject, confidence)
                for case in cases:
                    self._block(case.body, Confidence.LIKELY)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for one in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
                    self._expression(one, confidence)
                self._program.define(_Definition(self, node, self._classes.get(node)))
            case ast.ClassDef():
                for one in (*node.decorator_list, *node.bases):
                    self._expression(one, confidence)
                self._classes |= dict.fromkeys(node.body, node)
                self._block(node.body, confidence)
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    if alias.asname:
                        self._program.alias(alias.asname, alias.name)
            case _:
                return self._simple(node, confidence)
        return False

    def _simple(self, node: ast.stmt, confidence: Confidence) -> bool:
        """Follow a statement that contains no block."""
        for child in children(node):
            if isinstance(child, ast.expr):
                self._expression(child, confidence)
        site = self._site(node, confidence)
        self._add_settings(site)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute) and target.attr in patterns.ATTRIBUTES:
                    value = target if isinstance(node, ast.AugAssign) else node.value  # `+=` leaves it unknown
                    self._add(target, patterns.ATTRIBUTES[target.attr](site, target, value), confidence)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return site.path(node.value.func) in _EXITS
        return isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue)

    def _if(self, node: ast.If, confidence: Confidence) -> bool:
        """Follow the branches that may run, `elif` by `elif`; return whether all of them leave the block."""
        leaves = True
        while True:
            self._expression(node.test, confidence)
            truth = self._truth(node.test)
            if truth is not False:
                runs = truth or patterns.asks_for_gpu(self._site(node.test, confidence), node.test)
                leaves = self._block(node.body, confidence if runs else Confidence.LIKELY) and leaves
            if truth:
                return leaves
            confidence = confidence if truth is False else Confidence.LIKELY
            match node.orelse:
                case [ast.If() as node]:
                    continue
                case other:
                    return self._block(other, confidence) and leaves

    def _truth(self, test: ast.expr) -> bool | None:
        """Return whether a test is true; None where that is only known at run time."""
        if self.symbols.path(test).endswith("TYPE_CHECKING"):
            return False
        value = self.symbols.value(test)
        return None if value is UNKNOWN else bool(value)

    def _context(self, node: ast.expr, confidence: Confidence) -> None:
        """Follow a `with` statement, which may select another GPU: `with torch.cuda.device(1):`."""
        self._expression(node, confidence)
        site = self._site(node, confidence)
        if isinstance(node, ast.Call) and site.path(node.func).endswith(_WITH_DEVICE):
            self._current = site.devices(node.args[0]) if node.args else (SOME,)

    # -----------------------------------------------------------------------------------------------------------------
    # Expressions

    def _expression(self, node: ast.expr, confidence: Confidence) -> None:
        """Examine every call, dict and name in an expression, from left to right."""
        waiting: list[ast.AST] = [node]
        while waiting:
            one = waiting.pop()
            if isinstance(one, ast.Name | ast.Attribute) and self._called:
                self._program.mention(one.id if isinstance(one, ast.Name) else one.attr)
            elif isinstance(one, ast.Call):
                self._call(one, confidence)
            elif isinstance(one, ast.Dict):
                self._options(one, confidence)
            waiting += reversed(children(one))

    def _options(self, node: ast.expr, confidence: Confidence) -> None:
        site = self._site(node, confidence)
        self._add(node, patterns.provider_options(site, site.entries(node)), confidence)

    def _call(self, node: ast.Call, confidence: Confidence) -> None:
        site = self._site(node, confidence)
        for argument in node.args if self._called else ():
            if isinstance(argument, ast.Name):
                self._program.hand_over(argument.id)
        path = site.path(node.func)
        name = path.rpartition(".")[2]
        if name in patterns.CALLS:
            self._add(node, patterns.CALLS[name](site, node), confidence)
        elif path == "dict":
            self._options(node, confidence)
        self._add_settings(site)
        self._cuda_used |= confidence is Confidence.CERTAIN and patterns.uses_cuda(site, node, path)
        if name in _SETS_DEVICE and node.args:
            self._current = site.devices(node.args[0])
        elif isinstance(node.func, ast.Attribute) and path.endswith("cuda.Device().use"):
            self._current = site.devices(node.func.value)
        if isinstance(node.func, ast.Name):
            meant = self._program.find_functions(node.func.id, self)
            for function in meant[-_MEANT:]:
                self.enter(function, confidence if len(meant) == 1 else Confidence.LIKELY, called=self._called)

    def _site(self, node: ast.expr | ast.stmt, confidence: Confidence) -> Site:
        return Site(node, self.symbols, self._source, self._current, confidence, called=self._called)

    # -----------------------------------------------------------------------------------------------------------------
    # What is found

    def _add_settings(self, site: Site) -> None:
        """Add the variables that are set at a place; after the first use of CUDA they may have no effect."""
        if self._called:
            confidence = Confidence.LIKELY if self._cuda_used else site.confidence
            self._add(site.node, patterns.find_settings(site._replace(confidence=confidence), site.node), confidence)

    def _add(
        self, node: ast.expr | ast.stmt, items: Iterable[Item | tuple[str, Setting]], confidence: Confidence
    ) -> None:
        """Keep the items found at a node, except GPU selections in a function that no known code calls."""
        strength = _STRENGTH.index(confidence)
        for count, item in enumerate(items if len(self._found) < _KEPT else ()):
            # `a().b()` and its `a()` begin at one place.
            begin, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
            place = (*begin, *end, isinstance(item, tuple), count)
            unused = not self._called and isinstance(item, Selection)
            if not unused and (place not in self._found or self._found[place][0] <= strength):
                self._found[place] = (strength, item)
