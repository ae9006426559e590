"""What the processes without a screen import, and when they look for garbage."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.uncovered import environment

PROGRAM = """
import gc, json, sys
from gpuwatch import lean
lean.begin()
before = gc.isenabled()
import {module}
lean.ready()
print(json.dumps([before, gc.isenabled(), gc.get_freeze_count() > 1000, sorted(sys.modules)]))
"""


@pytest.mark.parametrize("module", ["gpuwatch.sampler.main", "gpuwatch.inspector.worker"])
def test_nothing_is_imported_that_only_a_screen_needs(module: str) -> None:
    program = [sys.executable, "-c", PROGRAM.format(module=module)]
    done = subprocess.run(program, env=environment(), capture_output=True, check=True)
    before, after, frozen, modules = json.loads(done.stdout)
    assert (before, after, frozen) == (False, True, True)
    assert {"dataclasses", "inspect", "textual", "rich"}.isdisjoint(modules), "each costs 10 ms at every start"
