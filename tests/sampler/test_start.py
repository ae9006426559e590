"""The processes without a screen: what they import, and when they collect garbage."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.environment import environment

PROGRAM = """
import gc, json, os, sys
from {package} import __main__, {module}
seen = lambda *_: print(json.dumps([gc.isenabled(), gc.get_freeze_count() > 1000, sorted(sys.modules)])) or 0
{module}.main = seen
os._exit = lambda code: None
__main__.main({arguments})
"""


@pytest.mark.parametrize(
    ("package", "module", "arguments"),
    [("gpuwatch.sampler", "main", ["--no-declared"]), ("gpuwatch.inspector", "worker", "")],
)
def test_nothing_is_imported_that_only_a_screen_needs(package: str, module: str, arguments: object) -> None:
    program = [sys.executable, "-c", PROGRAM.format(package=package, module=module, arguments=arguments)]
    done = subprocess.run(program, env=environment(), capture_output=True, check=True)
    collects, frozen, modules = json.loads(done.stdout)
    assert (collects, frozen) == (True, True)
    never = {"textual", "rich", "psutil", "subprocess", "_hashlib", "tempfile", "ctypes.util", "socket"}
    assert never.isdisjoint(modules)
    assert ("gpuwatch.declared.sizes" in modules) is (package == "gpuwatch.inspector")


BEGINNING = """
import os
from gpuwatch.sampler import __main__, main
__main__.inspect = lambda: os.write(1, os.read(0, 1) or b"nothing\\n")
main.main = lambda _, inspector: inspector.end_input() or print(inspector.read_lines(60), flush=True) or 0
__main__.main([], once={once})
"""


@pytest.mark.parametrize(("once", "read"), [(True, [b""]), (False, [b"nothing"])])
def test_the_inspector_begins_before_the_options_are_there_for_a_single_snapshot(once: bool, read: list[bytes]) -> None:
    program = [sys.executable, "-c", BEGINNING.format(once=once)]
    done = subprocess.run(program, env=environment(), capture_output=True, check=True, text=True)
    assert done.stdout == f"{read}\n"


def test_the_binding_is_loaded_without_a_search_for_libraries() -> None:
    """And the module that it does not get is there for everybody else."""
    program = (
        "import sys; from gpuwatch.sampler import nvml; of = nvml.load(); loaded = set(sys.modules);"
        "from ctypes.util import find_library; assert find_library.__module__ == 'ctypes.util';"
        "print(hasattr(of, 'nvmlInit'), loaded & {'ctypes.util', 'tempfile', 'shutil', 'random'}, of.find_library('c'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, check=True, text=True
    )
    assert done.stdout.startswith("True set() libc.so")
