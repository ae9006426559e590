"""Reading the configuration again while the dashboard runs: on a thread, for a home on a file server may not answer."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gpuwatch.text import clean
from gpuwatch.ui.options import Reloading

if TYPE_CHECKING:
    from gpuwatch.ui.actions import Actions


def reload(app: Actions) -> None:
    """Read it, then let the app take it over in its own loop; called on a thread."""
    assert app.helpers.reload is not None
    try:
        came = app.helpers.reload()
    except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
        came = Reloading(clean(f"the configuration was not read again: {error}"), failed=True)
    with contextlib.suppress(RuntimeError):  # the program is on its way out
        app.call_from_thread(_take, app, came)


def _take(app: Actions, came: Reloading) -> None:
    if came.options is not None:
        app.take_options(came.options)
    app.notify(came.words, severity="error" if came.failed else "information", markup=False, timeout=8)
