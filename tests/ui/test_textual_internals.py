"""Private parts of Textual and Rich that the screens use or override: each is listed here, with its reason.

Another version may lack any of them: look at each before another major version of Textual or Rich is allowed.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

import gpuwatch

TEXTUAL: Final = "Textual 8.2.8"
RICH: Final = "Rich 15.0.0"
INTERNALS: Final = {
    "App._display": (TEXTUAL, "overridden: what was drawn before the app stays until all is laid out"),
    "App._driver": (TEXTUAL, "writes a sequence for the terminal (clipboard, notification) past the screen"),
    "App._exit": (TEXTUAL, "an error while the program quits is none: widgets are no longer mounted"),
    "App._filters": (TEXTUAL, "draws without colours, or in ASCII alone: no public way replaces a filter"),
    "App._handle_exception": (TEXTUAL, "overridden, for errors while the program quits"),
    "Compositor._dirty_regions": (TEXTUAL, "cells to send, from which a smaller update is made"),
    "Compositor._regions_to_spans": (TEXTUAL, "the same as runs of cells in lines"),
    "DOMNode._bindings": (TEXTUAL, "replaced by those with the user's keys, and again when they change"),
    "Driver._debug": (TEXTUAL, "handed on to the parser of keys"),
    "Driver._loop": (TEXTUAL, "suspends from the event loop"),
    "Driver._size": (TEXTUAL, "set before the first drawing: a terminal that reports none has the kernel's"),
    "LinuxDriver._file": (TEXTUAL, "written to where the thread that writes did not start"),
    "LinuxDriver._get_terminal_size": (TEXTUAL, "overridden: a size is bounded"),
    "LinuxDriver._key_thread": (TEXTUAL, "whether the thread that reads keys was started"),
    "LinuxDriver._sigtstp_application": (TEXTUAL, "overridden: Ctrl-Z in the middle of a write would wait for ever"),
    "LinuxDriver._writer_thread": (TEXTUAL, "whether the thread that writes was started"),
    "MessagePump._running": (TEXTUAL, "nothing is drawn once the application ends"),
    "Screen._compositor": (TEXTUAL, "replaced by one that sends only the changed cells"),
    "Widget._repaint_regions": (TEXTUAL, "filled without Textual's caches of lines, which panels do not use"),
    "Widget._set_dirty": (TEXTUAL, "overridden, for the same"),
    "_batch_count": (TEXTUAL, "whether the screen draws at once what panels change (`App`)"),
    "_color_system": (RICH, "colours of the terminal, by which the codes of a style are chosen (`Console`)"),
    "_dirty_widgets": (TEXTUAL, "panels to draw, without a message from each (`Screen`)"),
    "_on_timer_update": (TEXTUAL, "draws them at once, without waking a timer (`Screen`)"),
    "_segments": (TEXTUAL, "segments of a cropped line, without a copy (`Strip`)"),
    "_timeout_time": (TEXTUAL, "whether a sequence is unfinished, so that reading wakes up (`XTermParser`)"),
    "textual._compositor.ChopsUpdate": (TEXTUAL, "update of the screen that is sent in fewer bytes"),
    "textual._compositor.Compositor": (TEXTUAL, "base of the compositor that sends only the changed cells"),
    "textual._compositor.CompositorUpdate": (TEXTUAL, "base of the update that it sends"),
    "textual._xterm_parser.XTermParser": (TEXTUAL, "reads keys without waking up ten times a second"),
}
"""Version that it was checked against, and what it is used for. A name without a class belongs to another object."""

ROOT: Final = Path(gpuwatch.__file__).parent
PUBLIC: Final = frozenset({"_replace", "_asdict"})
"""Names of named tuples that begin with `_` and are documented."""


@cache
def modules() -> dict[ModuleType, ast.Module]:
    """Return the modules of the screens, each with its syntax tree."""
    files = [file for room in ("ui", "fleet/ui") for file in (ROOT / room).rglob("*.py") if file.stem != "__init__"]
    names = [".".join(("gpuwatch", *file.relative_to(ROOT).with_suffix("").parts)) for file in files]
    return {import_module(name): ast.parse(file.read_text()) for name, file in zip(names, files, strict=True)}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_") and name not in PUBLIC


def is_foreign(module: str) -> bool:
    return module.partition(".")[0] in ("textual", "rich")


def own_names(tree: ast.AST) -> set[str]:
    """Return the private names that a class defines, or uses of itself and of its bases."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super")), attr=name):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return {name for name in found if is_private(name)}


_NAMES: Final[dict[type, set[str]]] = {}


def names_of(kind: type) -> set[str]:
    """Return the private names of a class, which is read once."""
    if kind not in _NAMES:
        _NAMES[kind] = own_names(ast.parse(textwrap.dedent(inspect.getsource(kind))))
    return _NAMES[kind]


def shared_with_bases(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield the private names that the classes of a module share with a class of Textual or Rich, and its name."""
    for kind in [one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__]:
        for base in reversed(kind.__mro__):
            if is_foreign(base.__module__):
                yield from ((name, base.__name__) for name in names_of(kind) & names_of(base))


def used() -> set[str]:
    """Return the private parts of Textual and Rich that the screens import, share with their bases, or ask for."""
    shared: dict[str, str] = {}
    for module in modules():
        for name, base in shared_with_bases(module):
            shared.setdefault(name, f"{base}.{name}")
    known = {name for tree in modules().values() for name in own_names(tree)}
    found = set(shared.values())
    for node in (node for tree in modules().values() for node in ast.walk(tree)):
        match node:
            case ast.ImportFrom(module=str(name), names=names) if is_foreign(name):
                found |= {f"{name}.{one.name}" for one in names if "._" in f"{name}.{one.name}"}
            case ast.Attribute(value=ast.Name(id="os")):
                pass
            case ast.Attribute(attr=name) if is_private(name) and name not in known:
                found.add(name)
    return found


def test_each_private_part_that_is_used_is_listed_with_its_reason() -> None:
    assert sorted(used()) == sorted(INTERNALS)
