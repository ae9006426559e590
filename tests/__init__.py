"""Tests of gpuwatch, in folders that mirror the package; `support` is what they share."""

from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
"""The checkout."""
