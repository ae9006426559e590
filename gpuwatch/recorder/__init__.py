"""Recorder: everything that keeps or sends what a monitor sees, whoever looks at the screen."""
