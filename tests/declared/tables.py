"""Tables of cases for the tests of declarations, inspector and sampler: a JSONL file, one case a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

Case = dict[str, Any]
"""What a test of its own table reads, by name, and under `expect` the fields that it is compared with."""


def read_cases(name: str) -> list[Case]:
    """Return the cases of `name.jsonl` below tests/."""
    file = Path(__file__).parents[1] / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def cases(name: str) -> pytest.MarkDecorator:
    """Return a parametrization of the argument `case` by the lines of `name.jsonl`, which are its ids."""
    found = read_cases(name)
    ids = [f"{line}: {' '.join(map(str, case.values()))}"[:60] for line, case in enumerate(found, start=1)]
    return pytest.mark.parametrize("case", found, ids=ids)
