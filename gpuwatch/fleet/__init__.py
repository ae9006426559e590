"""Several machines: their rows, their snapshots by ssh, and their figures from a Prometheus server."""
