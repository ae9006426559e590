"""Commands: one module each, with its arguments and its output; `reference` has their help."""
