"""Somebody without a home folder, as in a container that runs under a number that it does not know."""

from __future__ import annotations

import pwd

import pytest


def make_homeless(patch: pytest.MonkeyPatch, home: str | None = None) -> None:
    """Let there be no HOME, or one that is no folder's absolute path, and nobody of our number."""
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        patch.delenv(name, raising=False)
    if home is not None:
        patch.setenv("HOME", home)

    def unknown(number: int) -> pwd.struct_passwd:
        raise KeyError(number)

    patch.setattr(pwd, "getpwuid", unknown)
