"""A process with the unmodified pynvml on the tests' driver library, that evaluates what a test sends it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.driver import Driver
from tests.support.uncovered import environment

CHILD = """
import json, sys
from ctypes import *
from pynvml import *

def call(name, *args):  # past the binding's wrapper: the return code as it is
    return getattr(nvml_lib(), name)(*args)

def nvml_lib():
    import pynvml
    return pynvml.nvmlLib

def plain(value):
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if hasattr(value, "_fields_"):
        return {f[0]: getattr(value, f[0]) for f in value._fields_}
    return vars(value)

nvmlInit()
h = {}
for line in sys.stdin:
    try:
        answer = {"value": eval(line)}
    except NVMLError as error:
        answer = {"code": error.value}
    print(json.dumps(answer, default=plain), flush=True)
"""
GET = "(h.get({0}) or h.setdefault({0}, nvmlDeviceGetHandleByIndex({0})))"


class Refused(Exception):
    """NVML's return code."""


class Child:
    """A process with pynvml that evaluates what it is sent. `{0}` is the handle of GPU 0."""

    def __init__(self, driver: Driver) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            env=driver.env(environment()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, expression: str) -> None:
        assert self.process.stdin is not None
        for gpu in range(8):
            expression = expression.replace(f"{{{gpu}}}", GET.format(gpu))
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def ask(self, expression: str) -> Any:
        assert self.process.stdout is not None
        self.send(expression)
        answer = json.loads(self.process.stdout.readline())
        if "code" in answer:
            raise Refused(answer["code"])
        return answer["value"]

    def code(self, expression: str) -> int:
        try:
            self.ask(expression)
        except Refused as error:
            return int(error.args[0])
        return 0

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start_nvml(driver: Driver) -> Iterator[Callable[[], Child]]:
    children: list[Child] = []

    def begin() -> Child:
        children.append(Child(driver))
        return children[-1]

    yield begin
    for child in children:
        child.close()


@pytest.fixture
def nvml(start_nvml: Callable[[], Child]) -> Child:
    """Return a process with pynvml, initialised."""
    return start_nvml()
