"""Lines that coverage does not count: counting takes two to three times as long, and other tests run them too."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def environment() -> dict[str, str]:
    """Give our own environment without what makes a child count its lines."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}


@contextmanager
def uncounted() -> Iterator[None]:
    """Count no lines in this thread, and none in threads that start meanwhile.

    pytest-cov's `no_cover` saves nothing in a worker of pytest-xdist: it pauses one of several collectors.
    """
    here, later = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        sys.settrace(here)
        threading.settrace(later)
