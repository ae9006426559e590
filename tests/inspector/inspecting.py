"""Readers that do something odd, and a client to ask them."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from gpuwatch.inspector.client import InspectorClient
from tests.support.waiting import PATIENCE

STAND_IN = """
import json, os, sys, time
print(flush=True)
for line in sys.stdin:
    question = json.loads(line)
    pid, start = question["pid"], question["start"]
    took = 0.0
    {odd}
    print(json.dumps({{"pid": pid, "start": start, "declared": {{"words": "read"}}, "took": took}}), flush=True)
"""


def stand_in(odd: str) -> tuple[str, str, str]:
    """A reader that does something odd before it answers."""
    return (sys.executable, "-c", STAND_IN.format(odd=odd))


@pytest.fixture
def inspector() -> Iterator[Callable[..., InspectorClient]]:
    """Return a function that makes a client of such a reader; its children are ended after the test."""
    made = []

    def make(odd: str = "pass", **options: object) -> InspectorClient:
        made.append(InspectorClient(**{"command": stand_in(odd), **options}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        if one._child is not None:
            one._drop()
        for child in one._stuck:
            child.exit_code(PATIENCE)


def words(client: InspectorClient, *, times: int) -> dict[int, str]:
    """Wait for so many answers; give what each says of which PID."""
    found: dict[int, str] = {}
    end = time.monotonic() + PATIENCE
    while len(found) < times:
        assert time.monotonic() < end, f"{times} answers were to come; there are {found}"
        select.select([fd] if (fd := client.descriptor) is not None else [], [], [], 0.05)
        found |= {answer.pid: answer.declared.words for answer in client.poll()}
    return found
