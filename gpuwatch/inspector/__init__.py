"""Inspector: reads from /proc and files what a process declared and what it runs in, in a process of its own."""

from gpuwatch.child import python_command

INSPECTOR = python_command(__path__[0] + "/__main__.py")
"""Command that starts it."""
