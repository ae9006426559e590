"""Modules that are replaced while a library is imported, which can do without them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def replaced(**modules: object) -> Iterator[None]:
    """Context in which imports of the named modules find the given objects; with None they fail.

    Modules that were imported before stay. Afterwards each can be imported as usual; what a library has taken meanwhile
    it keeps.
    """
    modules = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(modules)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)


def quote_path(path: bytes) -> str:
    """Return a path as in an address, like the function of `urllib.parse`, which it imports when it is called."""
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(path)
