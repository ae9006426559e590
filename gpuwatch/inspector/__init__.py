"""Reads from /proc what the resolver wants to know of a process; all that may hang or crash is done by a child."""
