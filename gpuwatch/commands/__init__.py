"""The commands beside the dashboard: one module each, with its arguments and what it prints."""
