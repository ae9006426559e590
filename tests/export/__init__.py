"""Tests of the metrics, of their server, and of the rules that a real Prometheus judges by them."""
