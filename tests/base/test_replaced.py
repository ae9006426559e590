"""Modules that are replaced while a library is imported."""

from __future__ import annotations

import sys
import types
from importlib import import_module

import pytest

from gpuwatch.base.replaced import replaced

NEVER = "colorsys"
"""Module that nothing here imports."""


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, NEVER, raising=False)


def test_a_module_is_another_or_missing_within_and_itself_afterwards() -> None:
    other: object = types.SimpleNamespace()
    with replaced(colorsys=other):
        assert import_module(NEVER) is other
    with pytest.raises(ImportError), replaced(colorsys=None):  # and after an error
        import_module(NEVER)
    assert import_module(NEVER).rgb_to_hsv


def test_a_module_that_was_imported_stays() -> None:
    real = import_module(NEVER)
    with replaced(colorsys=None):
        assert import_module(NEVER) is real
    assert sys.modules[NEVER] is real
