"""A Textual app that a test drives is waited for until it has nothing to do, and not for real time.

Textual's own pilot waits after each key until the process takes hardly any CPU: 20 ms at least, up to a second on a
busy machine. Here it waits until every message has been handled and everything is laid out.
"""

from __future__ import annotations

import asyncio
import time

import textual.app
import textual.pilot
from textual._context import active_app

_ROUNDS = 8
"""Turns of the event loop without a message after which an app is idle: a message may come from another task."""


async def wait_for_idle(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """Wait until the active app has handled all messages and has laid out its screen; in place of Textual's own."""
    app = active_app.get()
    quiet, end = 0, time.monotonic() + max_sleep  # as in Textual, for an app that is never idle
    while quiet < 2 * _ROUNDS and time.monotonic() < end:
        is_resized = app._resize_event is not None  # Textual acts on it after 8 ms, in case that another follows
        await asyncio.sleep(0.002 if is_resized else 0)
        quiet = 0 if is_resized or any(pump.message_queue_size for pump in (app, *app._registry)) else quiet + 1
        if quiet == _ROUNDS and app.screen_stack:
            app.screen._on_timer_update()


def pytest_configure() -> None:
    """Put it into Textual."""
    for module in (textual.app, textual.pilot):
        module.wait_for_idle = wait_for_idle  # type: ignore[attr-defined]
