"""Strays: processes of the viewer's own that nobody tends and that still hold memory. Right rather than complete.

Pure functions over a snapshot and a history. Where a fact is missing, or could not be read, the rule that needs it does
not hold. Nobody's process but the viewer's own is ever judged: root's, where the viewer is root.
"""

from __future__ import annotations

from gpuwatch.strays.cases import Known, has_unsure, unjudged
from gpuwatch.strays.finding import find, suspects
from gpuwatch.strays.stray import USUAL, Cause, Stray, Sureness, Tending

__all__ = ["USUAL", "Cause", "Known", "Stray", "Sureness", "Tending", "find", "has_unsure", "suspects", "unjudged"]
