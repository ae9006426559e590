"""Textual's bindings, with the keys of the dashboard and those that the user has chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from textual.binding import Binding

from gpuwatch.config.keymap import Keys
from gpuwatch.ui.draw.keys import BoundKey, keymap


def make_bindings(keys: Iterable[BoundKey]) -> list[Binding]:
    """Return the bindings of the dashboard's or a replay's keys."""
    return [Binding(**key._asdict()) for key in keys]


def with_own_keys(bindings: Iterable[Binding], keys: Keys) -> list[Binding]:
    """Return the bindings of another screen with the user's keys; an action without a key has none."""
    own = keymap(keys)
    found = [replace(one, key=own.get(one.id or "", one.key)) for one in bindings]
    return [one for one in found if one.key]
