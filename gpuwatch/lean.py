"""A short start for the processes that have no screen: three interpreters start at once, often on few cores."""

from __future__ import annotations

import gc
import sys

_OFTEN = (700, 10, 10)
"""As Python has it: each look is short."""


def begin() -> None:
    """Call this before anything else is imported, in a process that never imports Textual.

    What is imported stays, so nothing is looked through for garbage meanwhile (10 ms). msgspec takes typing's own
    functions where there is no typing_extensions, which Textual has installed and nothing else here needs (11 ms).
    """
    gc.disable()
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # `import` then says that there is none


def ready() -> None:
    """Call this after the imports: what there is now is never looked at again, what comes after it is."""
    gc.freeze()
    gc.set_threshold(*_OFTEN)
    gc.enable()
