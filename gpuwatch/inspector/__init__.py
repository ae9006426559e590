"""Inspector: separate process that reads from /proc and from files what a process declared and what it runs in."""

from gpuwatch.base.child import python_command

INSPECTOR = python_command(__path__[0] + "/__main__.py")
"""Command that starts the inspector."""
