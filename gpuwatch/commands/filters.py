"""Flag `--filter` of the dashboard and of `--once`."""

from __future__ import annotations

import argparse

from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import clean
from gpuwatch.config.types import Config
from gpuwatch.model.filters import Filter, FilterError


def check_filter_flag(args: argparse.Namespace, config: Config) -> str:
    """Return the text of --filter, empty where it is not given; raises UsageError for a mistake in it."""
    words = clean(args.filter or "")
    try:
        Filter.parse(words, config.filters, finished=True)
    except FilterError as error:
        raise UsageError(f"--filter: {error}") from None
    return words
