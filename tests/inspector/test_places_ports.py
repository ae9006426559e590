"""Ports that somebody chose, among those that the kernel hands out by chance."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.declared.facts import Facts
from gpuwatch.inspector import servers
from tests.inspector.test_places_servers import machine, row


@pytest.mark.parametrize(
    ("words", "listens"),
    [
        ("--port 40000", True),
        ("--port=40000", True),
        ("--bind 0.0.0.0:40000", True),
        ("--seed 4000", False),
        ("--init-method tcp://127.0.0.1:40000", False),
        ("--dist_url=tcp://127.0.0.1:40000", False),
    ],
)
def test_a_port_that_somebody_typed_is_one_that_was_chosen(tmp_path: Path, words: str, listens: bool) -> None:
    """Whether or not the kernel hands it out; where ranks meet is for no requests."""
    machine(tmp_path, "socket:[41]", tcp=row(40000, 41))
    facts = Facts(pid=7, argv=("python", "x.py", *words.split()), environ={})
    assert servers.server(facts, proc=tmp_path) == ("listens on port 40000" if listens else "")
