"""Metrics of this machine for Prometheus, and the rules that judge them."""
