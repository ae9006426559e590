"""Python source reader: the shares, environment variables, GPUs and imports that a script declares.

Lines are enough, and parsing is not: most sources declare nothing. A line of a docstring costs a look at no file.

The source is only parsed (`ast`), never imported, run or evaluated. Statements are followed in the order in which they
run, as far as that can be seen: what is under `if False:` or after a `return` says nothing, what a function says counts
from where it is called, and what only may run is LIKELY.

A function may be called where something that runs mentions its name: it may be handed to who calls it
(`mp.spawn(worker)`). So may one that is handed to a decorator, and the methods of a class that has a base, which may be
a framework's, or that is handed to something itself (`fire.Fire(Jobs)`).
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from gpuwatch.declared import script_patterns as patterns
from gpuwatch.declared.facts import LOCAL_RANKS, RANKS, Claim, Ranks, Scan, Selection, Setting
from gpuwatch.declared.script_patterns import EVERY, SOME, Device, Item, Site, Source, gpus
from gpuwatch.declared.script_values import UNKNOWN, Function, Names, Scope, Value, Values, children, pairs
from gpuwatch.model import Confidence, Hint
from gpuwatch.text import clean

_LINE = re.compile(
    rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*|[^\n#;]*)|import[ \t]+([^\n#;]*))", re.MULTILINE
)
_DEEP = 8
"""Names in a row that are followed: `a.b.c`."""


def imported(source: bytes) -> list[str]:
    """Give the dotted names that a source imports, in order: `from .a import b` gives `.a` and `.a.b`, which may be
    a module of the package or anything else in it.
    """
    found: dict[str, None] = {}
    for base, several, plain in _LINE.findall(source):
        package = base.decode("utf-8", "replace")
        dot = "" if not package or package.endswith(".") else "."
        if package:
            found.setdefault(package)
        for words in (part.split() for part in (several.lstrip(b"(") or plain).split(b",")):
            name = words[0].decode("utf-8", "replace") if words else ""
            if name.replace(".", "").isidentifier():
                found.setdefault(f"{package}{dot}{name}")
    return list(found)


def files(name: str, folder: str, own: str) -> Iterator[tuple[str, str]]:
    """Give the two paths at which each part of a dotted name may lie, of which the first counts.

    `folder` is where the program's modules are found, `own` that of the source that imports it; both end with a `/`
    or are empty. None is given for a module of Python's own.
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
    for count in range(1, min(len(parts), _DEEP) + 1):
        if not parts[count - 1].isidentifier():
            return
        path = folder + "/".join(parts[:count])
        yield f"{path}/__init__.py", f"{path}.py"


_ENVIRON = "os.environ"

_OF_INTEREST = re.compile(
    "CUDA|XLA|TF_|PYTORCH|THEANO|NVIDIA|CUPY|GENV|FLAGS_|GPU|JAX|MXNET|OLLAMA|NVSHARE|SLURM|LD_PRELOAD"
)
"""Names with one of these are recorded: the known ones, and those that somebody meant to be one."""
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS")
_NAME_LIMIT = 128

MAY_SET = re.compile(rb"environ|putenv|unsetenv|set_flags")
NAMES = re.compile(_OF_INTEREST.pattern.encode())


# After one of these CUDA has read its variables. Most of torch.cuda and of cupy does so too.
_FIRST_USES = frozenset(
    {
        *("jax.devices", "jax.local_devices", "jax.device_count", "jax.local_device_count", "jax.default_backend"),
        *("jax.device_put", "jax.random.PRNGKey", "jax.random.key"),
        *("tensorflow.Session", "tensorflow.InteractiveSession", "tensorflow.test.is_gpu_available"),
        *("tensorflow.compat.v1.Session", "tensorflow.test.gpu_device_name"),
    }
)
_FIRST_USES_ANYWHERE = frozenset({"list_physical_devices", "list_logical_devices", "list_local_devices"})
_NO_USES = frozenset(
    {
        *("torch.cuda.device_count", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all"),
        *("torch.cuda.is_initialized", "cupy.show_config"),
    }
)
READ_AT_IMPORT = {"THEANO_FLAGS": "theano", "THEANORC": "theano"}
"""Variables that nobody looks at again once the package is imported."""


class Set(NamedTuple):
    """One variable and the value that it is given; None where that is only known at run time."""

    name: str
    value: str | None
    default: bool = False
    """It is given only if the variable is not set."""


def assigned(site: Site, target: ast.expr, value: ast.expr | None) -> Iterator[Set]:
    """Read `os.environ["X"] = "v"`; without a value the variable is deleted, or changed from what it was."""
    if isinstance(target, ast.Subscript) and site.path(target.value) == _ENVIRON:
        yield from _one(site, target.slice, value)


def merged(site: Site, target: ast.expr, value: ast.expr) -> Iterator[Set]:
    """Read `os.environ |= {"X": "v"}`."""
    if site.path(target) == _ENVIRON:
        yield from _several(site, site.entries(value))


def called(site: Site, call: ast.Call) -> Iterator[Set]:
    """Read `os.environ.update(…)`, `.setdefault(…)`, `.pop(…)`, `os.putenv(…)` and Paddle's `set_flags(…)`."""
    path = site.path(call.func)
    match path, call.args:
        case "os.environ.update", [*arguments]:
            for argument in arguments[:1]:
                yield from _several(site, site.entries(argument))
            yield from _several(site, site.keywords(call))
        case (("os.putenv" | "os.environ.__setitem__"), [key, value]):
            yield from _one(site, key, value)
        case "os.environ.setdefault", [key, value]:
            yield from _one(site, key, value, default=True)
        case (("os.environ.pop" | "os.unsetenv"), [key, *_]):
            yield from _one(site, key, None)
        case _, [flags] if path.startswith("paddle.") and path.endswith(".set_flags"):
            yield from _several(site, site.entries(flags), flags=True)


def unset_in(site: Site, test: ast.expr) -> str:
    """Give the variable of a test that it is not set, `if "X" not in os.environ`; empty for any other test."""
    match test:
        case ast.Compare(left=key, ops=[ast.NotIn()], comparators=[where]) if site.path(where) == _ENVIRON:
            pass
        case (
            ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=function, args=[key]))
            | ast.Compare(
                left=ast.Call(func=function, args=[key]), ops=[ast.Is()], comparators=[ast.Constant(value=None)]
            )
        ) if site.path(function) in ("os.environ.get", "os.getenv"):
            pass
        case _:
            return ""
    name = site.value(key)
    return name if isinstance(name, str) else ""


def is_read_by(site: Site, call: ast.Call, path: str) -> bool:
    """Whether a call makes CUDA or a framework read the variables: `model.cuda()`, `x.to("cuda")`, `jax.devices()`."""
    package, _, rest = path.partition(".")
    name = path.rpartition(".")[2]
    if path in _NO_USES:
        return False
    if path in _FIRST_USES or name in _FIRST_USES_ANYWHERE or package == "cupy" or path.startswith("torch.cuda."):
        return True
    if name == "to" and call.args:
        value = site.value(call.args[0])
        return isinstance(value, str) and value.startswith("cuda")
    return name == "cuda" and bool(rest) and not call.keywords


def _several(site: Site, entries: dict[str, ast.expr], *, flags: bool = False) -> Iterator[Set]:
    for name, value in entries.items():
        if _is_of_interest(name):
            yield Set(name, _spelt(site.value(value), flags=flags))


def _one(site: Site, key: ast.expr, value: ast.expr | None, *, default: bool = False) -> Iterator[Set]:
    name = site.value(key)
    if not isinstance(name, str) or not _is_of_interest(name):
        return
    match value:
        # os.environ["X"] = os.environ.get("X", "0")
        case ast.Call(func=function, args=[same, other]) if site.path(function) in ("os.environ.get", "os.getenv"):
            if site.value(same) == name:
                yield Set(name, _spelt(site.value(other)), default=True)
                return
    yield Set(name, None if value is None else _spelt(site.value(value)), default)


def _is_of_interest(name: str) -> bool:
    return len(name) <= _NAME_LIMIT and bool(_OF_INTEREST.search(name)) and not _SECRET.search(name)


def _spelt(value: Value, *, flags: bool = False) -> str | None:
    """Give a value as the environment holds it; a flag of Paddle's may be a number."""
    if isinstance(value, str):
        return value if "\0" not in value else None
    return str(value) if flags and isinstance(value, int | float) else None


MOST = 100
"""Statements of one sort that are taken from one source; people write a handful."""
_KEPT = 10 * MOST
"""Found before we stop looking: only then are those in order, of which the first are taken."""
_CALLS_DEEP = 16
_ERROR_WIDTH = 120

_TOO_DEEP = "it is nested too deeply"
_WORD = re.compile(rb"[A-Za-z_]\w*", re.ASCII)
_SETS_RANK = re.compile(rf"""\[\s*["']({"|".join(sorted(RANKS))})["']\s*\]\s*=(?!=)""".encode())
"""`os.environ["LOCAL_RANK"] = …` in a module that is not parsed."""
_NOTEBOOK = re.compile(rb'\s*\{\s*"(?:cells|metadata|nbformat)"')


def may_declare(source: bytes) -> bool:
    """Say whether any word that declares something is in a source at all; most have none, and need no parsing."""
    if patterns.MAY_DECLARE.search(source):
        return True
    return bool(MAY_SET.search(source) and NAMES.search(source))


def scan(source: str | bytes, name: str = "script", ranks: Ranks = None) -> Scan:
    """Find what a Python source declares that is all of a program; see `scan_program`."""
    return scan_program([(name, source)], ranks)[0]


def scan_program(sources: Sequence[tuple[str, str | bytes]], ranks: Ranks = None) -> tuple[Scan, ...]:
    """Find what the sources of a program declare: its script, then modules that it imports. Never raises.

    Each stands with how it is to be called; *ranks* are variables of the process that runs them. What cannot be parsed
    gives a Scan with an `error`, and the imports that its lines seem to have. A module that has none of the words that
    declare something is not parsed: what it mentions is found by its words.
    """
    raw = [one.encode("utf-8", "surrogatepass") if isinstance(one, str) else one for _, one in sources]
    telling = [may_declare(one) for one in raw]
    elsewhere = Elsewhere()
    scans: list[Scan | _Run] = []
    for place, (name, source) in enumerate(sources):
        notebook = _NOTEBOOK.match(raw[place]) or name.endswith(".ipynb")
        if notebook:
            found: Scan | _Run = Scan(error="a notebook is no Python source")
        elif telling[place] or (place == 0 and any(telling)):
            found = _opened(source, name, ranks, elsewhere, main=place == 0)
        else:
            found = Scan(imports=_packages(raw[place]))
            elsewhere.stored.update(name.decode("ascii") for name in _SETS_RANK.findall(raw[place]))
        scans.append(found)
        if any(telling) and not isinstance(found, _Run):
            elsewhere.mentioned.update(word.decode("ascii") for word in _WORD.findall(raw[place]))
    runs = [one for one in scans if isinstance(one, _Run)]
    try:
        _follow(runs, elsewhere)
    except (RecursionError, MemoryError):
        return tuple(Scan(imports=_packages(one), error=_TOO_DEEP) for one in raw)
    return tuple(one.result() if isinstance(one, _Run) else one for one in scans)


def _opened(source: str | bytes, name: str, ranks: Ranks, elsewhere: Elsewhere, *, main: bool) -> _Run | Scan:
    """Parse a source; give a Scan with the reason where that fails."""
    try:
        text = source if isinstance(source, str) else _decoded(source)
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")  # As the parser counts lines.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of what the source does oddly: `"\d"`, `1 is 1`.
            tree = ast.parse(text)
        return _Run(tree, Source(text, name), ranks, elsewhere, main=main)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        words = f"{where}{error.msg}"
    except (RecursionError, MemoryError):
        words = _TOO_DEEP
    except (ValueError, LookupError) as error:
        words = str(error)  # A NUL, a lone surrogate, bytes that are not in the encoding that it names.
    raw = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    return Scan(imports=_packages(raw), error=clean(words, _ERROR_WIDTH))


def _decoded(source: bytes) -> str:
    """Decode a source as Python does: by its BOM or its coding cookie, else as UTF-8."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding)


def _packages(source: bytes) -> tuple[str, ...]:
    """Give the packages on lines that look like imports; some of them may be in a docstring."""
    found = dict.fromkeys(name.partition(".")[0] for name in imported(source))
    return tuple(one for one in found if one.isidentifier())[:MOST]


# -----------------------------------------------------------------------------------------------------------------
# Following what runs

_Place: TypeAlias = tuple[int, int, int, int, int]
"""Line and column where a node begins and ends, and a count: `a().b()` and its `a()` begin at one place."""

_STRENGTH = (Confidence.GUESS, Confidence.LIKELY, Confidence.CERTAIN)

_SETS_DEVICE = frozenset({"set_device", "setDevice", "select_device"})
_WITH_DEVICE = ("torch.cuda.device", "cuda.Device")
_WRAP = frozenset(
    {
        *("staticmethod", "classmethod", "property", "cached_property", "setter", "abstractmethod", "overload"),
        *("wraps", "partial", "lru_cache", "cache", "contextmanager", "asynccontextmanager", "dataclass"),
        *("no_grad", "inference_mode", "enable_grad", "autocast", "compile", "jit", "njit", "vmap", "pmap", "function"),
    }
)
"""Decorators that call nothing by themselves; any other may do so (`@click.command()`, `@hydra.main(…)`)."""
_ROUNDS = 32
"""How often we look for functions that those found the last time may call; then all may be called that are named."""
_EXITS = frozenset({"exit", "quit", "sys.exit", "os._exit", "os.abort"})


@dataclass
class _Found:
    """What was found, by where it stands; what is found twice keeps the surer of both."""

    items: dict[_Place, tuple[int, Item | tuple[str, Setting]]] = field(default_factory=dict)

    def put(self, node: ast.expr | ast.stmt, items: Iterable[Item | tuple[str, Setting]], sure: Confidence) -> None:
        if len(self.items) >= _KEPT:
            return
        strength = _STRENGTH.index(sure)
        for count, item in enumerate(items):
            place = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0, count)
            if place not in self.items or self.items[place][0] <= strength:
                self.items[place] = (strength, item)

    def in_order(self) -> Iterator[Item | tuple[str, Setting]]:
        for place in sorted(self.items):
            yield self.items[place][1]


@dataclass
class Elsewhere:
    """What all sources of a program mention in what runs, as far as it was followed."""

    mentioned: set[str] = field(default_factory=set)
    """Names and attributes."""
    handed: set[str] = field(default_factory=set)
    """Names that are handed over: `f` and `A` in `run(f, A())`."""
    stored: set[str] = field(default_factory=set)
    """Ranks that they set, as `script_names.Names.stored`."""
    aliases: list[tuple[str, str]] = field(default_factory=list)
    """Names that imports give to others: (`b`, `a`) of `from x import a as b`."""


def _follow(runs: Sequence[_Run], elsewhere: Elsewhere) -> None:
    """Follow all of a program that may run, its script last, and then what nothing is known to call."""
    everywhere = set.union(elsewhere.mentioned, *(run.names.mentioned for run in runs)) if runs else set()
    sets_device = [bool(_SETS_DEVICE & run.names.mentioned) for run in runs]
    for place, run in reversed([*enumerate(runs)]):
        others = any(sets_device[:place] + sets_device[place + 1 :]) or bool(_SETS_DEVICE & elsewhere.mentioned)
        run.begin(device_set_elsewhere=others)
    for rounds in itertools.count():
        elsewhere.mentioned.update([name for bound, name in elsewhere.aliases if bound in elsewhere.mentioned])
        if rounds == _ROUNDS:
            elsewhere.mentioned |= everywhere
        if not any(run.follow() for run in runs):
            break
    for run in runs:
        run.rest()


class _Run:
    """One walk through a source, in the order in which it would run."""

    def __init__(self, tree: ast.Module, source: Source, ranks: Ranks, elsewhere: Elsewhere, *, main: bool) -> None:
        self._tree = tree
        self._source = source
        self.names = Names(tree)
        self._values = Values(self.names, ranks, elsewhere.stored, main=main)
        self._elsewhere = elsewhere
        elsewhere.stored |= self.names.stored & RANKS
        self._declared = _Found()
        self._set = _Found()
        # Of other ranks the framework sets it to another: Accelerate, Lightning.
        first = all(value == "0" for name, value in ranks or () if name in LOCAL_RANKS)
        self._current: tuple[Device, ...] = (Device(0) if first else SOME,)
        self._used = False
        """Whether CUDA has certainly been used already."""
        self._imported: set[str] = set()
        self._unset = ""
        """The variable that is certainly not set here, by the test that we are under."""
        self._defined: list[Function] = []
        self._classes: dict[ast.stmt, ast.ClassDef] = {}
        """The class of each method."""
        self._walked: dict[Function, Confidence] = {}
        self._stack: list[Function] = []
        self._dead = False
        """In a function that nothing is known to call: its variables are never set."""

    def begin(self, *, device_set_elsewhere: bool) -> None:
        """Follow what runs as the source is imported."""
        if device_set_elsewhere:
            self._current = (SOME,)
        self._block(self._tree.body, self.names.module, Confidence.CERTAIN)
        self._used = False

    def follow(self) -> bool:
        """Follow the functions that what was followed so far may call; say whether there was any."""
        found = [one for one in self._defined if one not in self._walked and self._may_be_called(one)]
        for function in found:
            self._enter(function, Confidence.LIKELY)
        return bool(found)

    def rest(self) -> None:
        """Look at the functions that nothing is known to call."""
        self._dead = True
        for function in self._defined:  # It grows by the functions that are defined in them.
            self._enter(function, Confidence.LIKELY)

    def _may_be_called(self, function: Function) -> bool:
        of = self._classes.get(function)
        handed = False
        if of is not None:
            based = any(not (isinstance(base, ast.Name) and base.id == "object") for base in of.bases)
            handed = based or bool(of.keywords) or of.name in self._elsewhere.handed or self._calls(of)
            if of.name not in self._elsewhere.mentioned and not self._calls(of):
                return False
        special = of is not None and function.name.startswith("__")
        return handed or special or function.name in self._elsewhere.mentioned or self._calls(function)

    def _calls(self, node: Function | ast.ClassDef) -> bool:
        """Whether a decorator may call what it is handed."""
        paths = (self.names.path(one, self.names.module) for one in node.decorator_list)
        return any(path.removesuffix("()").rpartition(".")[2] not in _WRAP for path in paths)

    def result(self) -> Scan:
        """Give what was found."""
        items = list(self._declared.in_order())
        settings = [one for one in self._set.in_order() if isinstance(one, tuple)]
        claims = [one for one in items if isinstance(one, Claim)]
        selections = [one for one in items if isinstance(one, Selection)]
        hints = [one for one in items if isinstance(one, Hint)]
        if max(len(claims), len(settings), len(selections), len(hints)) > MOST:
            words = f"{self._source.name} declares too much; the first {MOST} of each sort were read"
            hints = [Hint(rule="dynamic", words=words), *hints]
        return Scan(
            claims=tuple(claims[:MOST]),
            settings=tuple(settings[:MOST]),
            selections=tuple(selections[:MOST]),
            imports=tuple(self.names.imports)[:MOST],
            hints=tuple(hints[:MOST]),
        )

    # -------------------------------------------------------------------------------------------------------------
    # Statements

    def _block(self, statements: Iterable[ast.stmt], scope: Scope, sure: Confidence) -> bool:
        """Follow statements to the first that leaves the block, and say whether one does."""
        return any(self._statement(one, scope, sure) for one in statements)

    def _statement(self, node: ast.stmt, scope: Scope, sure: Confidence) -> bool:
        match node:
            case ast.If():
                return self._if(node, scope, sure)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._loop(node, scope, sure)
            case ast.With() | ast.AsyncWith():
                with self._context(node, scope, sure):
                    self._block(node.body, scope, sure)
            case ast.Try() | ast.TryStar():
                return self._try(node, scope, sure)
            case ast.Match():
                self._expressions(node.subject, scope, sure)
                for case in node.cases:
                    self._block(case.body, scope, Confidence.LIKELY)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for one in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
                    self._expressions(one, scope, sure)
                self._defined.append(node)
            case ast.ClassDef():
                for one in (*node.decorator_list, *node.bases):
                    self._expressions(one, scope, sure)
                self._classes |= dict.fromkeys(node.body, node)
                self._block(node.body, self.names.scope(node), sure)
            case ast.Import() | ast.ImportFrom():
                self._imported.update(self._packages(node))
                self._elsewhere.aliases += ((one.asname, one.name) for one in node.names if one.asname)
            case _:
                return self._simple(node, scope, sure)
        return False

    def _simple(self, node: ast.stmt, scope: Scope, sure: Confidence) -> bool:
        """Follow a statement without a block."""
        for child in children(node):
            if isinstance(child, ast.expr):
                self._expressions(child, scope, sure)
        site = self._site(node, scope, sure)
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assigned(site, target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assigned(site, target, value)
            case ast.AugAssign(target=target, op=ast.BitOr(), value=value):
                self._setting(site, merged(site, target, value))
            case ast.AugAssign(target=target):
                self._setting(site, assigned(site, target, None))
            case ast.Delete(targets=targets):
                for target in targets:
                    self._setting(site, assigned(site, target, None), target)
            case ast.Expr(value=ast.Call(func=function)):
                return site.path(function) in _EXITS
        return isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue)

    def _if(self, node: ast.If, scope: Scope, sure: Confidence) -> bool:
        """Follow the branches that may run, `elif` by `elif`; say whether every one of them leaves the block."""
        leaves = True
        while True:
            self._expressions(node.test, scope, sure)
            truth = self._truth(node.test, scope)
            if truth is not False:
                unset, self._unset = self._unset, unset_in(self._site(node.test, scope, sure), node.test)
                surely = truth or bool(self._unset) or self._asks_for_gpu(node.test, scope)
                left = self._block(node.body, scope, sure if surely else Confidence.LIKELY)
                self._unset = unset
                leaves = left and leaves
            if truth:
                return leaves
            sure = sure if truth is False else Confidence.LIKELY
            match node.orelse:
                case [ast.If() as node]:
                    continue
                case other:
                    return self._block(other, scope, sure) and leaves

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope, sure: Confidence) -> None:
        head = node.test if isinstance(node, ast.While) else node.iter
        self._expressions(head, scope, sure)
        if not isinstance(node, ast.While) or self._truth(head, scope) is not False:
            self._block(node.body, scope, sure)
        self._block(node.orelse, scope, sure)

    def _try(self, node: ast.Try | ast.TryStar, scope: Scope, sure: Confidence) -> bool:
        left = self._block(node.body, scope, sure)
        handled = [self._block(handler.body, scope, Confidence.LIKELY) for handler in node.handlers]
        left = left or self._block(node.orelse, scope, sure)
        return self._block(node.finalbody, scope, sure) or (left and all(handled))

    @contextmanager
    def _context(self, node: ast.With | ast.AsyncWith, scope: Scope, sure: Confidence) -> Iterator[None]:
        """Keep the GPU that CUDA is set to, for as long as `with torch.cuda.device(1):` changes it."""
        before = self._current
        for item in node.items:
            call = item.context_expr
            self._expressions(call, scope, sure)
            site = self._site(call, scope, sure)
            if isinstance(call, ast.Call) and site.path(call.func).endswith(_WITH_DEVICE):
                self._current = site.on(call.args[0]) if call.args else (SOME,)
        yield
        self._current = before

    def _truth(self, test: ast.expr, scope: Scope) -> bool | None:
        """Say whether a test holds; None where that is only known at run time."""
        if self.names.path(test, scope).endswith("TYPE_CHECKING"):
            return False
        value = self._values.of(test, scope)
        return None if value is UNKNOWN else bool(value)

    def _asks_for_gpu(self, test: ast.expr, scope: Scope) -> bool:
        """Whether a test is that there is a GPU: so it is for a process that holds one."""
        match test:
            case ast.Compare(left=asked, ops=[ast.Gt() | ast.NotEq()], comparators=[ast.Constant(value=0)]):
                test = asked
        match test:
            case ast.Call(func=ast.Name(id="len"), args=[asked]):
                test = asked
        path = self.names.path(test, scope)
        site = self._site(test, scope, Confidence.CERTAIN)
        return path.endswith(("cuda.is_available()", "is_gpu_available()")) or gpus(site, test) is EVERY

    def _packages(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for name in names:
            self._used = self._used or name == "pycuda.autoinit"
            yield name.partition(".")[0]

    # -------------------------------------------------------------------------------------------------------------
    # Expressions

    def _expressions(self, node: ast.expr, scope: Scope, sure: Confidence) -> None:
        """Look at every call, dict and name in an expression, from left to right."""
        waiting: list[ast.AST] = [node]
        while waiting:
            one = waiting.pop()
            if isinstance(one, ast.Name):
                self._elsewhere.mentioned.add(one.id)
            elif isinstance(one, ast.Attribute):
                self._elsewhere.mentioned.add(one.attr)
            elif isinstance(one, ast.Call):
                self._call(one, scope, sure)
            elif isinstance(one, ast.Dict):
                site = self._site(one, scope, sure)
                self._declare(one, patterns.provider_options(site, site.entries(one)), sure)
            waiting += reversed(children(one))

    def _call(self, node: ast.Call, scope: Scope, sure: Confidence) -> None:
        site = self._site(node, scope, sure)
        for given in (*node.args, *(one.value for one in node.keywords)):
            handed = given.func if isinstance(given, ast.Call) else given
            if isinstance(handed, ast.Name):
                self._elsewhere.handed.add(handed.id)
        path = site.path(node.func)
        name = path.rpartition(".")[2]
        if name in patterns.CALLS:
            self._declare(node, patterns.CALLS[name](site, node), sure)
        elif isinstance(node.func, ast.Name) and node.func.id == "dict":
            self._declare(node, patterns.provider_options(site, site.entries(node)), sure)
        self._setting(site, called(site, node))
        self._used = self._used or (sure is Confidence.CERTAIN and is_read_by(site, node, path))
        if name in _SETS_DEVICE and node.args:
            self._current = site.on(node.args[0])
        elif name == "use" and isinstance(node.func, ast.Attribute) and path.endswith("cuda.Device().use"):
            self._current = site.on(node.func.value)
        if isinstance(node.func, ast.Name):
            meant = self.names.functions(node.func.id, scope)
            for function in meant:
                self._enter(function, sure if len(meant) == 1 else Confidence.LIKELY)

    def _enter(self, function: Function, sure: Confidence) -> None:
        """Follow the body of a function that is called here, once for each confidence."""
        walked = self._walked.get(function)
        known = walked is not None and _STRENGTH.index(walked) >= _STRENGTH.index(sure)
        if known or function in self._stack or len(self._stack) >= _CALLS_DEEP:
            return
        self._walked[function] = sure
        self._stack.append(function)
        self._block(function.body, self.names.scope(function), sure)
        self._stack.pop()

    def _site(self, node: ast.expr | ast.stmt, scope: Scope, sure: Confidence) -> Site:
        called = not self._dead
        return Site(node, scope, self.names, self._values, self._source, self._current, sure, called)

    # -------------------------------------------------------------------------------------------------------------
    # What is found

    def _declare(self, node: ast.expr, items: Iterable[Item], sure: Confidence) -> None:
        """Keep what stands here; a choice of GPUs in a function that nothing calls is none."""
        kept = (one for one in items if not (self._dead and isinstance(one, Selection)))
        self._declared.put(node, kept, sure)

    def _assigned(self, site: Site, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Attribute) and target.attr in patterns.ATTRIBUTES:
            self._declare(target, patterns.ATTRIBUTES[target.attr](site, target, value), site.sure)
        elif isinstance(target, ast.Subscript):
            self._setting(site, assigned(site, target, value), target)
        elif isinstance(target, ast.Tuple | ast.List):
            for one, given in pairs(target, value):
                if given is not None:
                    self._assigned(site, one, given)
                else:
                    self._setting(site, assigned(site, one, None), one)

    def _setting(self, site: Site, found: Iterable[Set], node: ast.expr | None = None) -> None:
        if self._dead:
            return
        settings = []
        for name, value, default in found:
            late = self._used or READ_AT_IMPORT.get(name, "") in self._imported
            setting = Setting(
                value=value,
                where=self._source.name,
                line=site.node.lineno,
                text=site.text(),
                confidence=Confidence.GUESS if late else site.sure,
                default=default or name == self._unset,
            )
            settings.append((name, setting))
        self._set.put(node or site.node, settings, site.sure)
