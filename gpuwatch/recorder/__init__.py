"""Recorder: saves and sends what the monitor sees: events, usage, marks, messages, the status file, recordings."""
