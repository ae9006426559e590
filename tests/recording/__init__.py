"""Tests of recordings: writing, reading, and what must not be in them."""
