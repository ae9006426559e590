"""Screens of several machines: a fleet on Prometheus, and hosts by ssh."""
