"""Drawing of the dashboard: what is on screen, as lines of styled text."""
