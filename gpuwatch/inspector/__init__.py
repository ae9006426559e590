"""Inspector: separate process that reads the declarations and the context of processes from /proc and from files."""

from gpuwatch.base.child import python_command

INSPECTOR = python_command(__path__[0] + "/__main__.py")
"""Command that starts the inspector."""

IDLE = 30.0
"""Seconds without a question after which the inspector ends, to free its memory."""
