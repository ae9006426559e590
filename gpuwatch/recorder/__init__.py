"""Recorder: saves and sends events, usage, marks, messages, the status file and recordings."""
