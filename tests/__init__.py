"""Tests of gpuwatch, in folders that mirror the package; `support` is what they share."""

import gc
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
"""The checkout."""
GPUWATCH = str(Path(sys.executable).parent / "gpuwatch")
"""The installed program."""

# With Python's thresholds a quarter of the CPU of a dashboard's test is garbage collection, which finds little.
gc.set_threshold(20_000, 20, 100)
