"""Tests of gpuwatch, in folders that mirror the package; `support` is what they share."""

import sys
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
"""The checkout."""
GPUWATCH = str(Path(sys.executable).parent / "gpuwatch")
"""The installed program."""
