"""Strays: processes of the viewer's own that nobody tends and that still hold memory. Right rather than complete.

Pure functions over a snapshot and a history. Where a fact is missing, or could not be read, the rule that needs it does
not hold. Nobody's process but the viewer's own is ever judged: root's, where the viewer is root.
"""

from __future__ import annotations

from gpuwatch.strays.finding import Judged, judge
from gpuwatch.strays.notes import notes
from gpuwatch.strays.stray import USUAL, Cause, Stray, Sureness, Tending

__all__ = ["USUAL", "Cause", "Judged", "Stray", "Sureness", "Tending", "judge", "notes"]
