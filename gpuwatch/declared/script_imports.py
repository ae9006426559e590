"""Which modules a Python source imports, by its lines, and where they lie in the folder of the program.

Lines are enough, and parsing is not: most sources declare nothing. A line of a docstring costs a look at no file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

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
