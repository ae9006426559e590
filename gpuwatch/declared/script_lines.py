"""Reader of the lines of a Python source, without parsing it: its imports, folders, and calls that run other code.

Most sources declare nothing, and this costs a fraction of parsing. A line of a docstring that looks like an import only
costs a search for a missing file.
"""

from __future__ import annotations

import posixpath
import re

MOST_PACKAGES = 100
"""Packages that are returned, at most."""

_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*|[^\n#;]*)|import[ \t]+([^\n#;]*))", re.MULTILINE
)
DOTENV = re.compile(rb"^[^#\n]*\bload_dotenv\(", re.MULTILINE)
"""Call that sets variables from a file."""
NOTEBOOK = re.compile(rb'\s*\{\s*"(?:cells|metadata|nbformat)"')
"""Beginning of a Jupyter notebook, which is JSON."""
_CALLED_IMPORT = re.compile(rb"(?:import_module|__import__)[ \t]*\([ \t]*['\"]([.\w]+)['\"]")
_CODE_WORDS = re.compile(rb"exec|import_|run_|spec_from|load_entry|instantiate|LightningCLI|uvicorn|override")
"""Words: a source without any of them calls nothing of the next, which takes longer to search."""
RUNS_CODE = rb"""(?mx)^[^#\n]*?(?<![\w.])(?<!def[ ])
    ((?:builtins\.)?exec|execfile|(?:[\w.]+\.)?(?:exec_module|spec_from_file_location)|(?:runpy\.)?run_(?:path|module)
    |(?:(?:importlib\.)?import_module|__import__)(?=[ \t]*\((?![ \t]*['"][.\w]+['"]))
    |(?:[\w.]+\.)?(?:instantiate|load_entry_point|LightningCLI)|uvicorn\.run(?=[ \t]*\([ \t]*f?['"]))
    [ \t]*(?:\(|(?<=CLI)\))"""
"""Calls that run code which is found at run time: of a file, a text, a configuration (Hydra, Lightning), or a module
whose name is computed."""
CHANGES = rb"""(?mx)^[^#\n]*?(?<![\w.])(?<!def[ ])
    ((?:builtins\.)?exec|execfile|(?:runpy\.)?run_(?:path|module)|(?:\w+\.)?load_dotenv(?=\((?s:.{,200}?)override\s*=\s*[^F\s]))
    [ \t]*\("""
"""Calls that run any code in the script's place, or replace variables of the environment."""


def find_call(pattern: bytes, source: bytes) -> str:
    """Return the first call that matches RUNS_CODE or CHANGES: "exec(…) at line 3"; empty for none."""
    found = re.search(pattern, source) if _CODE_WORDS.search(source) else None
    return f"{found[1].decode()}(…) at line {source[: found.start(1)].count(10) + 1}" if found else ""


def imported_names(source: bytes) -> list[str]:
    """Return the dotted names that a source imports, in order.

    `from .a import b` imports `.a` and `.a.b`, which may be a module or another object of the package.
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
    return list(found | dict.fromkeys(called_imports(source)))


def called_imports(source: bytes) -> list[str]:
    """Return the dotted names that a source imports by a call: `importlib.import_module("a.b")`."""
    return [name.decode("utf-8", "replace") for name in _CALLED_IMPORT.findall(source)]


_PATH = re.compile(rb"^[^\n#]*\b(?:sys\.path\b(?!\.(?:pop|remove|index))\s*[.+\[=]|addsitedir\b)([^\n]*)", re.MULTILINE)
_LITERAL = rb"""['"]([^'"\n]*)['"]"""
_PATH_WORDS = (
    rb"\b(?:r|os|path|sys|insert|append|extend|join|abspath|realpath|normpath|dirname|getcwd|str|Path|pathlib|resolve"
    rb"|absolute|parents?|__file__|\d+)\b|[\s.,:/()\[\]=+]"
)


def added_folders(source: bytes, path: str) -> tuple[list[str], bool]:
    """Return the folders that a source adds to `sys.path`, with a `/` or empty, and whether it may add others.

    `os.path.join(os.path.dirname(__file__), "..")` is worked out for a source at `path`, anything with names is not.
    """
    found: list[str] = []
    unknown = False
    for text in _PATH.findall(source):
        literals = [one.decode("utf-8", "replace") for one in re.findall(_LITERAL, text)]
        if re.sub(_PATH_WORDS, b"", re.sub(_LITERAL, b"", text.partition(b"#")[0])):
            unknown = True
            continue
        above = [int(one) for one in re.findall(rb"parents\[(\d)\]", text)]
        up = text.count(b"dirname(") + text.count(b".parent") + sum(above)
        start = path if b"__file__" in text else "."
        folder = posixpath.normpath("/".join([start, *[".."] * up, *literals[: 1 if start == "." else None]]))
        found.append("" if folder == "." else f"{folder}/")
    return found, unknown


_LONGEST_STUB = 4096
"""Bytes of a source that only starts a package, at most; pip's have 250."""
_OWN_CODE = re.compile(rb"^[ \t]*(?:async\s+def|def|class)\s", re.MULTILINE)
_USE = rb"^(?![^\n]*\bimport\b)[^\n=#]*\b%s\b"
_START = rb"^[ \t]*(?:(?:(?:sys\.)?exit|raise[ \t]+SystemExit)\([ \t]*%s[.\w]*\(|%s\(\))"


def stub_imports(source: bytes) -> dict[str, bool]:
    """Return the names that a source without a function of its own imports and calls, and whether it starts them.

    `sys.exit(main())` starts a package, as in what pip installs for a command; `torch.zeros(1)` does not.
    """
    if len(source) > _LONGEST_STUB or _OWN_CODE.search(source):
        return {}
    lines = re.sub(rb";[ \t]*", b"\n", source)
    last = {name: re.escape(name.rpartition(".")[2].encode()) for name in imported_names(lines)}
    used = {name: word for name, word in last.items() if re.search(_USE % word, lines, re.MULTILINE)}
    return {name: bool(re.search(_START % (word, word), lines, re.MULTILINE)) for name, word in used.items()}


def imported_packages(source: bytes) -> tuple[str, ...]:
    """Return the packages on lines that look like imports; some of them may be in a docstring."""
    found = dict.fromkeys(name.partition(".")[0] for name in imported_names(source))
    return tuple(one for one in found if one.isidentifier())[:MOST_PACKAGES]
