"""Tables of cases: a JSONL file beside the tests, one case a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

Case = dict[str, Any]
"""What a test of its own table reads, by name, and under `expect` the fields that it is compared with."""


def read_cases(name: str) -> list[Case]:
    """Return the cases of `name.jsonl`."""
    return [json.loads(line) for line in Path(__file__).with_name(f"{name}.jsonl").read_text().splitlines()]


def cases(name: str) -> pytest.MarkDecorator:
    """Return a parametrization of the argument `case` by the lines of `name.jsonl`, which are its ids."""
    found = read_cases(name)
    ids = [f"{line}: {' '.join(map(str, case.values()))}"[:60] for line, case in enumerate(found, start=1)]
    return pytest.mark.parametrize("case", found, ids=ids)
